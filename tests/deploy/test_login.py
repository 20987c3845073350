"""``serve`` on a Unix socket, which it never takes from another process, and behind nginx, which asks for a login."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession, encode_basic_auth

from stream.messages.lines import line_of
from tests.stream.serve.serving import released
from tests.support import hourly
from tests.support.environment import environment
from tests.support.nginx import needs_nginx, nginx

Serve = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def serve(hexveil: Sequence[str], tmp_path: Path) -> Iterator[Serve]:
    """Starts a process that serves one window at ``serve.sock``."""
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, released(tmp_path))))
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [*hexveil, "serve", "releases.ndjson", "--config", str(hourly.BUS)],
                cwd=tmp_path,
                env=environment({"public.socket": str(tmp_path / "serve.sock")}),
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def until_it_listens(process: subprocess.Popen[str], socket: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


@needs_nginx
async def test_the_documented_nginx_asks_for_a_login_before_anything_of_serve_is_read(
    serve: Serve, tmp_path: Path
) -> None:
    await until_it_listens(serve(), tmp_path / "serve.sock")
    (tmp_path / "users").write_text("desk:{PLAIN}pass\n")
    here = {
        "/run/hexveil/serve.sock": str(tmp_path / "serve.sock"),
        "/etc/nginx/traffic.users": str(tmp_path / "users"),
    }
    paths = ("/", "/api/v1/hexagons", "/api/v1/stream", "/ogc", "/metrics", "/readyz")
    async with nginx(tmp_path, "operators.md", **here) as address, ClientSession() as session:
        known, unknown = ({"Authorization": encode_basic_auth("desk", word)} for word in ("pass", "guess"))
        for headers, status in (({}, 401), (unknown, 401), (known, 200)):
            for path in paths:
                async with session.get(address + path, headers=headers) as answer:
                    assert answer.status == status, path
        async with session.get(f"{address}/ogc", headers=known) as answer:
            links = (await answer.json(content_type=None))["links"]
        assert all(link["href"].startswith(f"{address}/") for link in links), links


async def test_a_socket_is_for_its_group_and_is_taken_over_only_from_a_process_that_ended(
    serve: Serve, tmp_path: Path
) -> None:
    socket, first = tmp_path / "serve.sock", serve()
    await until_it_listens(first, socket)
    while stat.S_IMODE(socket.stat().st_mode) != 0o660:
        await asyncio.sleep(0.05)
    second = serve()
    said = await asyncio.to_thread(lambda: second.communicate(timeout=60)[1])
    assert second.returncode == 2
    assert f"cannot listen on unix:{socket} (public.socket): Address already in use" in said
    first.kill()
    first.wait()
    await until_it_listens(serve(), socket)
