"""The public service over what a test publishes to a real broker."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from dpcore.noise import Noise
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.messages.message import Message
from stream.messages.topics import create_topics
from stream.protocol.publishing import make_producer
from stream.serve.api import make_app
from stream.serve.reading.files import FileSource
from tests.support.builders import bus_config, random_rows
from tests.support.releasing import build_messages, planned


def released(tmp_path: Path, rows: int = 200, **overrides: Any) -> list[Message]:
    """A window of six cells with its marker last."""
    config = bus_config(tmp_path, **overrides)
    plan, contributions = planned(config, random_rows(1, rows))
    return build_messages(plan, contributions, Noise(), None)[0]


async def publish(bootstrap: str, messages: Iterable[Message]) -> None:
    """Send them in order."""
    producer = make_producer(KafkaConfig(bootstrap=bootstrap))
    await producer.start()
    try:
        for message in messages:
            await producer.send_and_wait(
                message.topic,
                message.value,
                key=message.key,
                headers=list(message.headers),
                timestamp_ms=message.timestamp_ms,
            )
    finally:
        await producer.stop()


async def ready(client: TestClient) -> None:
    """Wait until everything present at the start was read."""
    for _ in range(600):
        if (await client.get("/readyz")).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the service never caught up")


def origin_of(client: TestClient) -> str:
    """Address of the service without a path."""
    return str(client.make_url("/")).rstrip("/")


@asynccontextmanager
async def serving_file(config: Config, releases: Path) -> AsyncIterator[TestClient]:
    """The service over a file or folder of releases, caught up."""
    async with TestClient(TestServer(make_app(config, source=FileSource(releases)))) as client:
        await ready(client)
        yield client


@asynccontextmanager
async def serving(
    config: Config, messages: Iterable[Message] = (), basemap: Path | None = None
) -> AsyncIterator[TestClient]:
    """The service, caught up, after ``messages`` were published."""
    await create_topics(config)
    await publish(config.kafka.bootstrap, messages)
    async with TestClient(TestServer(make_app(config, basemap))) as client:
        await ready(client)
        yield client
