"""A broker that just started lists no brokers. Clients that heard this fail within seconds instead of waiting without
end.

A real broker shows this for some milliseconds after its start and at no one's wish, so a server stands in for it here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError

from stream.config.servers import KafkaConfig
from stream.protocol.publishing import make_producer
from stream.servers import connection
from stream.servers.connection import connect, kafka_options, start_client

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
