"""Processor seconds per million events when 1, 2 and 4 workers share a topic of 16 partitions.

Each number of workers has a broker and a Redis of its own. The workers are ready before the events come; all processes
of a worker count, and so do the closing of windows and waiting. Wall time is that of the machine, which the broker,
Redis and the producer share.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio import Redis

from bench.faults.feeding import Stream
from bench.faults.feeds import write_config
from bench.faults.processes import Worker, wait_until_ready
from bench.faults.site import prepare
from bench.progress import shown
from stream.config import Config, load_config
from stream.local.kafka import KafkaServer
from stream.local.server import RedisServer
from stream.storage.row_store import RowStore

PARTITIONS = 16
WORKERS = (1, 2, 4)
_BATCH, _SLOT = 1_000, 600


@dataclass(frozen=True)
class Sizes:
    """Events sent to each number of workers."""

    events: int


FULL, QUICK = Sizes(2_000_000), Sizes(16_000)


def run(quick: bool) -> dict[str, Any]:
    """Processor seconds per million events, and events per second of wall time, by number of workers."""
    sizes = QUICK if quick else FULL
    figures = {str(number): asyncio.run(_measured(number, sizes)) for number in shown(WORKERS, "workers")}
    least, *more = (figures[str(number)]["cpu_seconds_per_million"] for number in WORKERS)
    return {"partitions": PARTITIONS, "events": sizes.events, "workers": figures, "growth": max(more) / least}


async def _measured(number: int, sizes: Sizes) -> dict[str, float]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexveil-bench-")))
        kafka, redis = stack.enter_context(KafkaServer()), stack.enter_context(RedisServer(appendfsync="always"))
        file = write_config(folder, "plain", "workers", bootstrap=kafka.bootstrap, redis=redis.url, slot=_SLOT)
        config = load_config(file)
        await _create_topic(config)
        await prepare(config)
        workers = [Worker(file) for _ in range(number)]
        for worker in workers:
            stack.callback(worker.end)
        await asyncio.to_thread(wait_until_ready, workers)
        before, begun = cpu_seconds(workers), time.monotonic()
        await _send(config, sizes.events)
        async with Redis.from_url(config.redis.url) as client:
            rows = RowStore(client, config.feed.name)
            while sum((await rows.next_offsets()).values()) < sizes.events:
                await asyncio.sleep(0.05)
        used, wall = cpu_seconds(workers) - before, time.monotonic() - begun
    return {"cpu_seconds_per_million": used / sizes.events * 1e6, "events_per_second": sizes.events / wall}


async def _create_topic(config: Config) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=config.kafka.bootstrap)
    await client.start()
    topic = NewTopic(config.feed.topic, PARTITIONS, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})
    await client.create_topics([topic])
    await client.close()


async def _send(config: Config, count: int) -> None:
    events = Stream(config.feed.topic, 0, _SLOT, 5, np.random.default_rng(1)).events(_BATCH, time.time())
    async with AIOKafkaProducer(bootstrap_servers=config.kafka.bootstrap, acks=1, max_batch_size=1 << 18) as producer:
        for number in range(count // _BATCH):
            batch = producer.create_batch()
            for value in events:
                batch.append(key=None, value=value, timestamp=None)
            await producer.send_batch(batch, config.feed.topic, partition=number % PARTITIONS)
        await producer.flush()


def cpu_seconds(workers: Sequence[Worker]) -> float:
    """Processor seconds of the workers and their children so far."""
    family = [psutil.Process(worker.process.pid) for worker in workers]
    family += [child for process in family for child in process.children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in family))
