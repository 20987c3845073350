"""What tests of ingestion share: a configuration, messages and the rows that must come of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from stream.config import Config
from stream.ingestion.decoding import REASONS, Batch, Decoder

KEY = bytes(range(32))
START_MS = 1_490_072_400_000  # 2017-03-21T00:00 in Chicago
NOW_US = START_MS * 1000 + 10**12


def make_config(
    topic: str = "t",
    bootstrap: str = "127.0.0.1:1",
    redis_url: str = "redis://127.0.0.1:1/0",
    group: str = "group",
    feed: Mapping[str, object] | None = None,
    resolution: int = 7,
    **window: object,
) -> Config:
    """A small bus feed of recordings; ``feed`` and ``window`` are further keys of their sections."""
    domain = {"south": 29.8, "west": -98.3, "north": 30.9, "east": -97.2}
    return Config(
        relation="values",
        feed={"name": "bus", "topic": topic, "timezone": "America/Chicago", "domain": domain, **(feed or {})},
        window={"lateness": "event-time"} | window,
        privacy={"epsilon": 2.0, "budget": 48.0},
        hexagons={"resolution": resolution},
        value={"upper": 65.0},
        speed={"clipping": "none"},
        kafka={"bootstrap": bootstrap, "group": f"{topic}-{group}"},
        redis={"url": redis_url},
    )


def messages(count: int, seed: int = 0) -> list[bytes]:
    """Distinct events of 40 vehicles over three hours, one in eleven of them bad."""
    rng = np.random.default_rng(seed)
    lat, lng = rng.uniform(30.1, 30.5, count), rng.uniform(-97.9, -97.6, count)
    seconds, speed = rng.integers(0, 3 * 3600, count), rng.integers(0, 6500, count)
    fixes = zip(START_MS + seconds * 1000 + np.arange(count) % 1000, lat, lng, speed / 100, strict=True)
    return [b"rubbish" if i % 11 == 10 else event(f"bus-{i % 40}", *fix) for i, fix in enumerate(fixes)]


def event(user: str, time_ms: float, lat: float = 30.2, lng: float = -97.7, speed: float = 20.0) -> bytes:
    """A canonical event."""
    place = {"lat": float(lat), "lng": float(lng), "speed": float(speed)}
    return json.dumps({"user": user, "time": int(time_ms)} | place).encode()


def array(*events: bytes) -> bytes:
    return b"[" + b", ".join(events) + b"]"


def refusals(batch: Batch) -> list[tuple[int, int, str]]:
    """Message, element and reason of each refused event."""
    reasons = [REASONS[code].value for code in batch.reason.tolist()]
    return list(zip(batch.refused.tolist(), batch.element.tolist(), reasons, strict=True))


def recorded_hour(folder: Path) -> Path:
    """A recording of 20 buses, one after the other in one cell and hour."""
    lines = [event(f"bus{k}", START_MS + 25_200_000 + 60_000 * k, speed=20.0 + k) for k in range(20)]
    file = folder / "hour.ndjson"
    file.write_bytes(b"\n".join(lines))
    return file


def expected_rows(config: Config, values: Sequence[bytes]) -> list[bytes]:
    """The rows of ``values``, sorted: what state must hold, each once."""
    return sorted(row.tobytes() for row in Decoder(config, KEY).decode(values, NOW_US).rows)


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client that creates, changes and deletes topics."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create_topic(bootstrap: str, topic: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    async with administering(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=settings or {})])


async def produce(bootstrap: str, topic: str, values: Sequence[bytes | None], partitions: int, first: int = 0) -> None:
    """Send ``values`` round robin over the partitions."""
    settings = {"linger_ms": 5, "acks": 1, "max_request_size": 32 << 20}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        sent = [
            await producer.send(topic, value, key=b"k", partition=(first + i) % partitions)
            for i, value in enumerate(values)
        ]
        await asyncio.gather(*sent)


async def until_true(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait for ``condition`` of this process; fails after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait for ``condition``; fails after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.1)
