"""Behind nginx and HAProxy that keep their connections, no request is hidden from the proxy in another one (request
smuggling)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from stream.local import LOOPBACK, free_port
from stream.serve.api import make_app
from stream.serve.reading.files import FileSource
from tests.support.builders import bus_config

MARK = "X-By-Proxy"
"""What the proxy adds to every request that it knows of."""
NGINX = f"""
daemon off; pid nginx.pid; error_log stderr crit; worker_processes 1;
events {{{{ }}}}
http {{{{ access_log off; {{temporary}}
  upstream served {{{{ server {LOOPBACK}:{{server}}; keepalive 4; }}}}
  server {{{{ listen {LOOPBACK}:{{port}}; location / {{{{
    proxy_pass http://served; proxy_http_version 1.1; proxy_request_buffering off;
    proxy_set_header Connection ""; proxy_set_header {MARK} yes; }}}} }}}} }}}}
"""
HAPROXY = f"""
defaults
  mode http
  timeout connect 20s
  timeout client 20s
  timeout server 20s
frontend everybody
  bind {LOOPBACK}:{{port}}
  http-request set-header {MARK} yes
  default_backend served
backend served
  http-reuse always
  server one {LOOPBACK}:{{server}}
"""
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH, NONE, CHUNKED = b"Content-Length: %d" % len(HIDDEN), b"Content-Length: 0", b"Transfer-Encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
IN_A_CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
HEADS = (
    [LENGTH], [LENGTH, NONE], [NONE, LENGTH], [b"Content-Length: %d, 0" % len(HIDDEN)],
    [b"Content-Length: +%d" % len(HIDDEN)],
    [b"Content-Length : %d" % len(HIDDEN)], [CHUNKED], [CHUNKED, LENGTH], [CHUNKED, NONE], [b"Content-Length: 5",
    CHUNKED],
    [LENGTH, b"Transfer-Encoding : chunked"], [LENGTH, b"Transfer-Encoding: xchunked"], [LENGTH,
    b"Transfer-Encoding:\x0bchunked"],
    [LENGTH, b"Transfer-Encoding: chunked, identity"], [LENGTH, b"Transfer-Encoding: identity, chunked"], [LENGTH,
    CHUNKED, b"Transfer-Encoding: x"],
    [LENGTH, b" Transfer-Encoding: chunked"], [LENGTH, b"X: y\nTransfer-Encoding: chunked"], [LENGTH,
    b"X: y\rTransfer-Encoding: chunked"],
    [LENGTH, b"Transfer_Encoding: chunked"], [LENGTH, b"Connection: Content-Length"], [LENGTH, b"Expect: 100-continue"],
    [LENGTH, b"Upgrade: h2c"],
)  # fmt: skip
BODIES = (HIDDEN, LAST_CHUNK + HIDDEN, IN_A_CHUNK, b"0;x=\n\r\n\r\n" + HIDDEN, b"0x0\r\n\r\n" + HIDDEN)


@asynccontextmanager
async def proxied(name: str, folder: Path, server: int) -> AsyncIterator[int]:
    """The port of the proxy before ``server``."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"no {name} here (Debian: apt-get install {name})")
    port, file = free_port(), folder / f"{name}.conf"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    file.write_text({"nginx": NGINX, "haproxy": HAPROXY}[name].format(port=port, server=server, temporary=temporary))
    words = ["-p", folder, "-c", file] if name == "nginx" else ["-db", "-f", file]
    process = await asyncio.create_subprocess_exec(program, *words, stderr=asyncio.subprocess.DEVNULL)
    try:
        for _ in range(600):
            with suppress(OSError):
                (await asyncio.open_connection(LOOPBACK, port))[1].close()
                break
            await asyncio.sleep(0.1)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def sent(port: int, data: bytes) -> bytes:
    """What came back until nothing came any more."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    answer = b""
    try:
        writer.write(data)
        with suppress(TimeoutError, ConnectionError):
            while part := await asyncio.wait_for(reader.read(1 << 16), 0.1):
                answer += part
    finally:
        writer.transport.abort()
    return answer


def request(method: bytes, head: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([method + b" /healthz HTTP/1.1", b"Host: x", *head, b"", body])


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
async def test_the_service_answers_only_requests_that_the_proxy_knows_of(proxy: str, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    app = make_app(bus_config(tmp_path), source=FileSource(tmp_path / "none"))
    seen: list[bool] = []

    @web.middleware
    async def noting(asked: web.Request, handler: web.Handler) -> web.StreamResponse:
        seen.append(MARK in asked.headers)
        return await handler(asked)

    app.middlewares.insert(0, noting)
    async with TestServer(app) as served, proxied(proxy, tmp_path, served.port or 0) as port:
        for method in (b"GET", b"POST"):
            for head in HEADS:
                await asyncio.gather(*(sent(port, request(method, head, body)) for body in BODIES))
                assert (await sent(port, request(b"GET", [b"Connection: close"], b""))).startswith(b"HTTP/1.1 200")
    assert len(seen) > 2 * len(HEADS)
    assert all(seen), "a request was answered that the proxy took for the body of another one"


@pytest.mark.parametrize("proxy", ["nginx", "haproxy"])
async def test_a_service_that_reads_no_bodies_would_answer_a_hidden_request(proxy: str, tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def naive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(naive, LOOPBACK, 0)
    async with server, proxied(proxy, tmp_path, server.sockets[0].getsockname()[1]) as port:
        await sent(port, request(b"POST", [LENGTH], HIDDEN))
    assert any(MARK.lower().encode() not in head.lower() for head in seen)
