"""Logs are one JSON object per line, also those of libraries; a repeated line is written once and then counted. A
broker that just started lists no brokers. Clients that heard this fail within seconds instead of waiting without end.
Whoever opens connections and asks for nothing keeps nobody else out. Real sockets; 127.0.0.2 is another address of this
machine.

A real broker shows this for some milliseconds after its start and at no one's wish, so a server stands in for it here.
"""

import asyncio
import gc
import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError

from stream.config.servers import KafkaConfig
from stream.http_server import BoundedRunner
from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK
from stream.logs import QUIET_SECONDS, REPEAT_SECONDS, Repeats
from stream.protocol.publishing import make_producer
from stream.servers import connection
from stream.servers.connection import connect, kafka_options, start_client

TALK = """
import asyncio, logging, warnings
import structlog
from stream.logs import configure_logs
configure_logs()
own, library = structlog.get_logger(), logging.getLogger("aiokafka.client")
for n in range(1000):
    library.error("Unable connect to node with id %s: %s", n, "gone")
    library.warning(f"Topic {n} is not available during auto-create initialization")
    own.warning("redis unreachable, trying again", reason="gone", seconds=n)
    own.info("window closed", window=n)
own.warning("window not closed", window="a")
own.warning("window not closed", window="b")
warnings.warn("of Python", stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("mode").exception("line one\\nline two")
"""


def test_everything_that_is_logged_is_json_and_a_thousand_repeats_are_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TALK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    assert sum(line["event"] == "window closed" for line in lines) == 1000
    other_lines = [line for line in lines if line["event"] != "window closed"]
    loggers = " ".join(line.get("logger", "hexveil") for line in other_lines)
    assert loggers == "aiokafka.client hexveil hexveil hexveil py.warnings mode"
    assert "ZeroDivisionError" in other_lines[-1]["exception"]


def test_a_repeat_is_told_again_after_a_pause_or_a_long_time_with_its_count():
    now = 0.0
    repeats = Repeats(lambda: now)
    assert repeats.suppressed("a") == 0
    for _ in range(5):
        now += QUIET_SECONDS / 2
        assert repeats.suppressed("a") is None
    assert repeats.suppressed("b") == 0
    now += QUIET_SECONDS
    assert repeats.suppressed("a") == 5
    n_lines = 0
    for _ in range(round(2.5 * REPEAT_SECONDS)):
        now += 1.0
        n_lines += repeats.suppressed("a") is not None
    assert n_lines == 2


def test_what_is_remembered_of_repeats_is_bounded():
    repeats = Repeats(lambda: 0.0)
    for n in range(100_000):
        repeats.suppressed(n)
    assert len(repeats) <= 1_000


_API_VERSIONS, _METADATA = 18, 3


def _answer(request: bytes) -> bytes:
    """To a request for versions or for metadata: the versions of two requests, and a cluster without brokers."""
    key, _, correlation = struct.unpack_from(">hhi", request)
    if key == _API_VERSIONS:
        body = (
            struct.pack(">hi", 0, 2) + struct.pack(">hhh", _API_VERSIONS, 0, 0) + struct.pack(">hhh", _METADATA, 0, 1)
        )
    else:
        body = struct.pack(">iii", 0, -1, 0)
    return struct.pack(">ii", 4 + len(body), correlation) + body


@asynccontextmanager
async def _broker_without_brokers() -> AsyncIterator[str]:
    """Address of a server that answers one request for metadata on each connection, and then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = None
        while key != _METADATA:
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(length)
            (key,) = struct.unpack_from(">h", request)
            writer.write(_answer(request))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_SECONDS", 1.0)


def _consumer(kafka: KafkaConfig) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(**kafka_options(kafka), group_id="group")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("make", [make_producer, _consumer])
async def test_a_client_that_hears_of_no_broker_fails_within_seconds(make):
    async with _broker_without_brokers() as address, asyncio.timeout(10):
        with pytest.raises(KafkaConnectionError, match="no broker"):
            await start_client(make(KafkaConfig(bootstrap=address)))


@pytest.mark.usefixtures("soon")
async def test_a_worker_tries_new_clients_until_a_broker_is_there(kafka):
    async with _broker_without_brokers() as address, asyncio.timeout(60):
        addresses = iter([address, address, kafka])
        producer = await connect(lambda: make_producer(KafkaConfig(bootstrap=next(addresses))), lambda: False)
        await producer.stop()
    assert next(addresses, None) is None


@pytest.mark.usefixtures("soon")
async def test_who_is_stopped_waits_no_longer():
    async with _broker_without_brokers() as address, asyncio.timeout(10):
        with pytest.raises(KafkaConnectionError):
            await connect(lambda: make_producer(KafkaConfig(bootstrap=address)), lambda: True)


EXPECTING = b"GET %s HTTP/1.1\r\nHost: x\r\nExpect: %s\r\n\r\n"
ASKED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(most: int, idle_seconds: float, answer_after: float = 0.0) -> AsyncIterator[int]:
    """The port of a server that answers every request."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(answer_after)
        return web.Response(text="here")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = BoundedRunner(application, most, idle_seconds)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def connected(port: int, count: int, address: str = LOOPBACK) -> list[Link]:
    return [await asyncio.open_connection(LOOPBACK, port, local_addr=(address, 0)) for _ in range(count)]


async def open_of(links: list[Link], seconds: float = 0.2) -> int:
    """How many of the connections the server has not closed by then."""
    await asyncio.sleep(seconds)
    return sum(not reader.at_eof() and reader.exception() is None for reader, _ in links)


async def answered(link: Link) -> bool:
    reader, writer = link
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(20):
            writer.write(ASKED)
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
    return False


async def test_an_address_has_at_most_half_of_the_connections_and_others_are_answered():
    gc.collect()  # what earlier tests left open would tell so here
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with served(8, 3600) as port:
        links = await connected(port, 20)
        assert await open_of(links) == 4
        others = [await answered(link) for link in await connected(port, 5, "127.0.0.2")]
        assert others == [True] * 4 + [False]
        for _, writer in links:
            writer.transport.abort()
        await asyncio.sleep(0.1)
        assert await answered((await connected(port, 1))[0])
        gc.collect()
        assert not faults, "each refused connection would be a traceback in the log"


@pytest.mark.parametrize("sent", [b"", ASKED[:20], ASKED], ids=["nothing", "half a head", "a request long ago"])
async def test_a_connection_that_asks_for_nothing_is_closed(sent):
    async with served(8, 0.3) as port:
        (link,) = await connected(port, 1)
        link[1].write(sent)
        async with asyncio.timeout(20):
            await link[0].read()


async def test_a_request_that_takes_longer_than_an_idle_connection_may_is_answered():
    async with served(8, 0.2, answer_after=0.8) as port:
        assert await answered((await connected(port, 1))[0])


@pytest.mark.parametrize("path", [b"/", b"/nowhere"])
async def test_what_a_server_cannot_be_expected_to_do_is_refused_without_a_word_of_it_and_fills_no_log(path, caplog):
    """aiohttp answered bytes that are no text with 500 and a traceback."""
    async with served(8, 3600) as port:
        for expected in (b"\xe9\xff", "é".encode(), b"200-ok"):
            (link,) = await connected(port, 1)
            link[1].write(EXPECTING % (path, expected))
            answer = await link[0].read()
            assert answer.startswith(b"HTTP/1.1 417 ")
            assert expected not in answer
        (link,) = await connected(port, 1)
        link[1].write(EXPECTING % (path, b"100-Continue"))
        assert await link[0].readline() == b"HTTP/1.1 100 Continue\r\n"
    assert not caplog.records
