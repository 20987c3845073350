"""Behaviour that all answers share: caching, compression, rules for other origins, and refusals that name the remedy.
Behind nginx and HAProxy that keep their connections, no request is hidden from the proxy in another one (request
smuggling)."""

import asyncio
import gzip
import json
import logging
import socket
import string
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler
from aiokafka.admin import AIOKafkaAdminClient

from stream.config import ConfigError
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import LOOPBACK, free_port
from stream.serve.api import SERVICE, make_app
from stream.serve.guards import worth_a_log
from stream.serve.reading.files import FileSource
from stream.serve.reading.intake import TopicSource
from tests.stream.serve.made_windows import START, windows_of, with_histograms
from tests.stream.serve.serving import json_of, publish, released, served, serving
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.nginx import listening, program_of, temporary_paths

HEXAGONS = f"/api/v1/hexagons?window={START}"
SITE, OTHER = "https://maps.example.org", "https://elsewhere.example.org"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    messages, _ = with_histograms(tmp_path)
    async with served(bus_config(tmp_path, **{"public.cors_origins": [SITE]}), messages) as made:
        yield made


async def test_entity_tags_are_those_of_the_bytes_and_what_is_known_is_not_sent_again(client):
    plain = await client.get(HEXAGONS, headers={"Accept-Encoding": "identity"})
    packed = await client.get(HEXAGONS, headers={"Accept-Encoding": "gzip"}, auto_decompress=False)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(await packed.read()) == await plain.read()
    tags = [answer.headers["ETag"] for answer in (plain, packed)]
    assert tags[0] != tags[1]
    for tag in tags:
        assert tag.startswith('"'), "a strong tag"
        again = await client.get(HEXAGONS, headers={"If-None-Match": f'"other", {tag}'})
        assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)
    assert (await client.get(HEXAGONS, headers={"If-None-Match": '"other"'})).status == 200
    assert (await client.get(HEXAGONS, headers={"If-None-Match": "*"})).status == 304
    for refused in ("gzip;q=0", "br", ""):
        answer = await client.get(HEXAGONS, headers={"Accept-Encoding": refused})
        assert "Content-Encoding" not in answer.headers
        assert answer.headers["Vary"] == "Origin, Accept-Encoding"


async def test_every_answer_is_asked_for_again_because_no_address_fixes_its_numbers(client):
    for path in (
        HEXAGONS,
        f"/api/v1/windows/{START}",
        f"/api/v1/histograms/{START}/ug",
        f"/api/v1/windows/{START}/download.csv",
        "/api/v1/cells/87489e251ffffff",
        "/api/v1/openapi.json",
    ):
        answer = await client.get(path)
        assert answer.status == 200, path
        assert answer.headers["Cache-Control"] == "public, no-cache", path
        head = await client.head(path)
        assert (head.status, head.headers["ETag"], await head.read()) == (200, answer.headers["ETag"], b"")


async def test_the_same_moment_is_the_same_window_however_it_is_written(client):
    tags = set()
    for moment in (START, "2017-03-21T07:00:00-05:00", "2017-03-21T12:00:00.000z", "2017-03-21 12:00:00+00:00"):
        answer = await client.get("/api/v1/hexagons", params={"window": moment})
        assert answer.status == 200, moment
        tags.add(answer.headers["ETag"])
    assert len(tags) == 1


async def test_pages_of_other_sites_read_the_api_if_the_operator_says_so(client):
    allowed = await client.get(HEXAGONS, headers={"Origin": SITE})
    assert allowed.headers["Access-Control-Allow-Origin"] == SITE
    assert "ETag" in allowed.headers["Access-Control-Expose-Headers"]
    for headers in ({"Origin": OTHER}, {"Origin": "null"}, {}):
        answer = await client.get(HEXAGONS, headers=headers)
        assert answer.status == 200
        assert "Access-Control-Allow-Origin" not in answer.headers
    asked = {"Origin": SITE, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "last-event-id"}
    assert (await client.get(HEXAGONS)).headers["Vary"].startswith("Origin"), "what another origin was told is not its"
    preflight = await client.options("/api/v1/stream", headers=asked)
    assert preflight.status == 204
    assert "Last-Event-ID" in preflight.headers["Access-Control-Allow-Headers"]
    assert (await client.options("/api/v1/stream", headers=asked | {"Origin": OTHER})).status == 405


NO_ORIGINS = {
    "cors_origins": ["maps.example.org", "https://maps.example.org/", "HTTPS://A.example", "https://*"],
    "frame_ancestors": ["https://x.example/path", "'self'; script-src *", "x.example", "https://x\r\nSet-Cookie:a"],
}


def test_what_is_no_origin_is_refused_at_check(tmp_path):
    for key, origin in ((key, origin) for key, origins in NO_ORIGINS.items() for origin in origins):
        with pytest.raises(ConfigError, match=rf"{key}.* write scheme, host and port only"):
            bus_config(tmp_path, **{f"public.{key}": [origin]})


NO_TIMES = ["2017-03-21", "2017-02-30T12:00:00Z", "2017-03-21T12:00:00", "2017-03-21T25:00:00Z", "now", "1e9", "٢٠١٧"]
NO_TIMES += ["0001-01-01T00:00:00%2B10:00", "2017-03-21T12:00:00.5Z", "-1", "9" * 5000, "%00", "%ff", "%F0%9F%9A%8C"]
NO_BOXES = ["0,0,1", "0,0,1,1,1", "a,b,c,d", "nan,0,1,1", "inf,0,1,1", "0,1,1,0", "-181,0,1,1", "0,0,1,91"]
NO_BOXES += ["1e999,0,1,1", "0,0,0,0", "0x1,0,1,1", "0,0,1,1" + "0" * 5000, "", ",,,", "٠,0,1,1"]
REFUSED = [
    *(f"/api/v1/hexagons?window={text}" for text in NO_TIMES),
    *(f"/api/v1/windows/{text}" for text in NO_TIMES),
    *(f"/api/v1/windows/{text}/download.csv" for text in NO_TIMES),
    *(f"/api/v1/hexagons?bbox={text}" for text in NO_BOXES),
    *(f"/api/v1/histograms/{START}/count?mechanism=ug&bbox={text}" for text in NO_BOXES),
    *(f"/api/v1/hexagons?resolution={text}" for text in ("-1", "16", "7.0", "x", "", "٧", "9" * 5000)),
    *(f"/api/v1/windows?limit={text}" for text in ("0", "-1", "1001", "1e2", "%2B1", "9" * 5000)),
    *(f"/api/v1/cells/{text}" for text in ("x", "87489E251FFFFFF", "0" * 15, "f" * 15, "87489e251ffffff0", "%00")),
    *(f"/api/v1/stream?after={text}" for text in ("-1", "x", "9" * 30)),
    "/api/v1/hexagons?format=xml",
    "/api/v1/hexagons?feed=BUS",
    "/api/v1/hexagons?feed=" + "a" * 5000,
    "/api/v1/hexagons?feed=../../etc/passwd",
    "/api/v1/hexagons?window=" + START + "&window=" + START,
    "/api/v1/hexagons?limit=1",
    f"/api/v1/histograms/{START}/UG",
]
ABSENT = [
    "/api/v1",
    "/api/v1/",
    "/api/v2/windows",
    "/api/v1/windows/1999-01-01T00:00:00Z",
    "/api/v1/hexagons?feed=none",
    f"/api/v1/histograms/{START}/none",
    f"/api/v1/windows/{START}/download.xlsx",
    f"/api/v1/windows/{START}/download.csv/..%2f..%2fetc%2fpasswd",
    "/assets/..%2f..%2f..%2fetc%2fpasswd",
    "/assets/%2e%2e/build.json",
    "/assets/%00",
    "/..%2f..%2fetc/passwd",
]


async def test_hostile_requests_are_refused_with_value_and_remedy_and_none_makes_the_service_fail(tmp_path, own_feed):
    messages, _ = with_histograms(tmp_path, **own_feed)
    async with serving(bus_config(tmp_path, **own_feed), messages) as client:
        for path in (*REFUSED, *ABSENT):
            status, body = await raw(client, path)
            problem = json.loads(body)
            assert status == problem["status"], path
            assert (status in (400, 404)) if path in REFUSED else (status == 404), (path, problem)
            assert problem["title"], path
            assert problem["detail"], path
            assert len(problem["title"]) < 400, path
        registry = client.server.app[SERVICE].metrics.registry
    codes = {
        sample.labels["code"] for metric in registry.collect() for sample in metric.samples if "code" in sample.labels
    }
    assert codes - {"200", "503"} == {"400", "404"}, "200 and 503: asking whether it is ready"


async def raw(client: TestClient, path: str) -> tuple[int, bytes]:
    """Status and body of a GET whose path is sent exactly as given, because clients normalise paths."""
    target = quote(path, safe=string.punctuation)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, (path, head)
    return int(head.split()[1]), body


async def test_nothing_can_be_written(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await client.request(method, "/api/v1/windows", data=b"x")
        assert (answer.status, answer.content_type) == (405, "application/problem+json")
        assert answer.headers["Allow"] == "GET, HEAD"


async def test_bytes_that_are_no_request_end_their_connection_alone_and_fill_no_log(client, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("aiohttp.server"), "filters", [worth_a_log])
    for rubbish in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 20_000 + b"\r\n\r\n"):
        with socket.create_connection((client.host, client.port)) as link:
            link.sendall(rubbish)
        assert (await client.get("/healthz")).status == 200
    assert not caplog.records


async def test_reading_joins_no_group_and_refused_bytes_are_counted(tmp_path):
    """No group by the configured name; that it needs no right to any group is shown by tests/deploy/test_access.py.

    The broker is the test's own: whatever other tests publish beside it would be counted, too.
    """
    with KafkaServer(tmp_path / "kafka") as broker:
        overrides = {"feed.name": "bus", "kafka.bootstrap": broker.bootstrap, "kafka.group": "readers"}
        *cells, marker = released(tmp_path, **overrides)
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        async with serving(bus_config(tmp_path, **overrides)) as client:
            registry = client.server.app[SERVICE].metrics.registry
            bad = [cells[0]._replace(value=value) for value in (b"rubbish", b"{}", cells[0].value[:-1])]
            bad += [cells[0]._replace(headers=headers) for headers in ((), (("ce_id", None),), (("ce_id", b"\xff"),))]
            bad[-1] = bad[-1]._replace(value=b"\xff")
            (_, other) = windows_of(tmp_path, 2, **overrides)
            await publish(broker.bootstrap, [*bad, *cells, *cells, marker, *other])
            while len((await json_of(client, "/api/v1/windows"))["windows"]) < 2:
                await asyncio.sleep(0.02)
            assert registry.get_sample_value("hexveil_public_messages_invalid_total") == len(bad)
            assert not await admin.list_consumer_groups()
        await admin.close()


async def test_a_service_that_no_longer_reads_says_so(tmp_path, monkeypatch, own_feed):
    async def fail(_: TopicSource, __: object) -> None:
        raise RuntimeError("planted")

    config = bus_config(tmp_path, **own_feed)
    async with serving(config) as client:
        assert (await client.get("/healthz")).status == 200
    monkeypatch.setattr(TopicSource, "run", fail)
    with structlog.testing.capture_logs() as logs:
        async with TestClient(TestServer(make_app(config))) as made:
            assert "no longer reading" in (await json_of(made, "/healthz", 503))["status"]
    assert [str(entry["exc_info"]) for entry in logs if entry["event"] == "a part of the service ended"] == ["planted"]


NO_PLACES = {"HEXVEIL_PUBLIC__PLACES": str(hourly.BUS)}
"""A file that is none of places."""
NO_SECRET = {
    "HEXVEIL_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
    "HEXVEIL_KAFKA__USERNAME": "serve",
    "HEXVEIL_KAFKA__PASSWORD_FILE": "none",
}


@pytest.mark.parametrize(
    ("settings", "said"), [({}, "cannot listen on"), (NO_SECRET, "kafka.password_file"), (NO_PLACES, "hexveil gtfs")]
)
def test_a_service_that_cannot_start_says_why(hexveil, settings, said, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for name, value in {"HEXVEIL_PUBLIC__PORT": str(taken.getsockname()[1]), **settings}.items():
            monkeypatch.setenv(name, value)
        command = [*hexveil, "serve", "--config", str(hourly.BUS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPO_ROOT, check=False)
    assert done.returncode == 2
    assert said in done.stderr


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
LENGTHS = (b": %d", b": %d, 0", b": +%d", b" : %d")
CODINGS = (b": xchunked", b" : chunked", b":\x0bchunked", b": chunked, identity", b": identity, chunked")
FOLDS = (b" ", b"X: y\n", b"X: y\r")
ODD = (b"Transfer_Encoding: chunked", b"Connection: Content-Length", b"Expect: 100-continue", b"Upgrade: h2c")
BESIDE = (NONE, *(b"Transfer-Encoding" + coding for coding in CODINGS), *(fold + CHUNKED for fold in FOLDS), *ODD)
"""What is said beside the length of what is hidden."""
HEADS = (
    *([b"Content-Length" + length % len(HIDDEN)] for length in LENGTHS),
    *([LENGTH, one] for one in BESIDE),
    [NONE, LENGTH],
    [CHUNKED],
    [CHUNKED, LENGTH],
    [CHUNKED, NONE],
    [b"Content-Length: 5", CHUNKED],
    [LENGTH, CHUNKED, b"Transfer-Encoding: x"],
)
BODIES = (HIDDEN, LAST_CHUNK + HIDDEN, IN_A_CHUNK, b"0;x=\n\r\n\r\n" + HIDDEN, b"0x0\r\n\r\n" + HIDDEN)


@asynccontextmanager
async def proxied(name: str, folder: Path, server: int) -> AsyncIterator[int]:
    """The port of the proxy before ``server``."""
    program = program_of(name)
    if program is None:
        pytest.skip(f"no {name} here (Debian: apt-get install {name})")
    port, file = free_port(), folder / f"{name}.conf"
    text = {"nginx": NGINX, "haproxy": HAPROXY}[name]
    file.write_text(text.format(port=port, server=server, temporary=temporary_paths(folder)))
    words = ["-p", folder, "-c", file] if name == "nginx" else ["-db", "-f", file]
    async with listening(port, program, *words):
        yield port


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
async def test_the_service_answers_only_requests_that_the_proxy_knows_of(proxy, tmp_path):
    (tmp_path / "none").mkdir()
    app = make_app(bus_config(tmp_path), source=FileSource(tmp_path / "none"))
    seen: list[bool] = []

    @web.middleware
    async def noting(asked: web.Request, handler: Handler) -> web.StreamResponse:
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
