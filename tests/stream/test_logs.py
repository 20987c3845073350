"""Logs are one JSON object per line, also those of libraries; a repeated line is written once and then counted. A
broker that just started lists no brokers. Clients that heard this fail within seconds instead of waiting without end.

A real broker shows this for some milliseconds after its start and at no one's wish, so a server stands in for it here.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from stream.config.servers import KafkaConfig
from stream.local import REPO_ROOT
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


def test_everything_that_is_logged_is_json_and_a_thousand_repeats_are_one_line(tmp_path: Path) -> None:
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
    assert [line.get("logger", "hexveil") for line in other_lines] == [
        "aiokafka.client",
        "hexveil",
        "hexveil",
        "hexveil",
        "py.warnings",
        "mode",
    ]
    assert "ZeroDivisionError" in other_lines[-1]["exception"]


def test_a_repeat_is_told_again_after_a_pause_or_a_long_time_with_its_count() -> None:
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


def test_what_is_remembered_of_repeats_is_bounded() -> None:
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
async def test_a_client_that_hears_of_no_broker_fails_within_seconds(
    make: Callable[[KafkaConfig], AIOKafkaProducer | AIOKafkaConsumer],
) -> None:
    async with _broker_without_brokers() as address, asyncio.timeout(10):
        with pytest.raises(KafkaConnectionError, match="no broker"):
            await start_client(make(KafkaConfig(bootstrap=address)))


async def test_by_itself_a_producer_would_wait_without_end() -> None:
    async with _broker_without_brokers() as address:
        producer = make_producer(KafkaConfig(bootstrap=address))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.start(), 3)
        await producer.stop()


@pytest.mark.usefixtures("soon")
async def test_a_worker_tries_new_clients_until_a_broker_is_there(kafka: str) -> None:
    async with _broker_without_brokers() as address, asyncio.timeout(60):
        addresses = iter([address, address, kafka])
        producer = await connect(lambda: make_producer(KafkaConfig(bootstrap=next(addresses))), lambda: False)
        await producer.stop()
    assert next(addresses, None) is None


@pytest.mark.usefixtures("soon")
async def test_who_is_stopped_waits_no_longer() -> None:
    async with _broker_without_brokers() as address, asyncio.timeout(10):
        with pytest.raises(KafkaConnectionError):
            await connect(lambda: make_producer(KafkaConfig(bootstrap=address)), lambda: True)
