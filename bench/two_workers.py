"""How many messages two workers of one feed publish twice, with the lease by which one of them closes at a time and
without.

Both run the worker's own closing service over the same Redis and Kafka, each in a process of its own. Windows become
due one after the other, at the same moment for both.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h3
import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from redis.asyncio import Redis

from bench.hourly import hourly_config
from bench.progress import shown
from stream.app.services import Closing
from stream.app.worker import Worker
from stream.config import Config
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import RedisServer
from stream.logs import configure_logs
from stream.messages.message import HEXAGON_SPEED, WINDOW
from stream.messages.topics import create_topics
from stream.storage.lease import Lease
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, ReadThrough, RowStore

START, HOUR = 1_490_097_600, 3_600
_ROWS, _USERS, _CELLS = 3_000, 60, 40
_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Sizes:
    windows: int


FULL, QUICK = Sizes(windows=20), Sizes(windows=3)


def config_of(feed: str, kafka: str, redis_url: str, folder: str) -> Config:
    settings = {"feed.name": feed, "kafka.bootstrap": kafka, "redis.url": redis_url}
    return hourly_config("bus-fleet", **settings, **{"privacy.user_key_file": f"{folder}/user.key"})


def run(quick: bool) -> dict[str, Any]:
    """Repeated messages and draws thrown away, of two workers with and without the lease."""
    sizes = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="hexveil-bench-") as folder, KafkaServer() as kafka, RedisServer() as redis:
        figures = {}
        for mode in shown(("without", "with"), "two workers"):
            config = config_of(f"{mode}-lease", kafka.bootstrap, redis.url, folder)
            figures[f"{mode}_lease"] = asyncio.run(_measure(config, mode, folder, sizes))
    return {"windows": sizes.windows, "workers": 2} | figures


async def _measure(config: Config, mode: str, folder: str, sizes: Sizes) -> dict[str, Any]:
    await create_topics(config)
    command = [sys.executable, "-m", "bench.two_workers", mode, config.feed.name, config.kafka.bootstrap]
    command += [config.redis.url, folder]
    async with Redis.from_url(config.redis.url) as redis:
        await Ledger(redis, config.feed.name).start_generation(birth=0)
        rows = RowStore(redis, config.feed.name)
        await _fill(rows, sizes.windows)
        workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=REPO_ROOT,
            )
            for _ in range(2)
        ]
        for worker in workers:
            await asyncio.to_thread(_line, worker)
        for window in range(sizes.windows):
            read_us = (START + (window + 1) * HOUR + 600) * 1_000_000
            await rows.list_partitions(["t/0"], read_us)
            await rows.read_through([ReadThrough("t/0", None, sizes.windows, read_us)])
            await asyncio.sleep(_TICK_SECONDS)
        while await rows.open_slots():
            await asyncio.sleep(_TICK_SECONDS)
    redraws = 0
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
        redraws += int(await asyncio.to_thread(_line, worker))
        worker.wait(30)
    sent = await _sent(config)
    repeated = sum(times - 1 for times in sent.values())
    return {"messages": sum(sent.values()), "repeated": repeated, "redraws": redraws}


async def _fill(rows: RowStore, windows: int) -> None:
    rng = np.random.default_rng(1)
    cells = [h3.str_to_int(h3.latlng_to_cell(30.0 + 0.03 * k, -97.7, 7)) for k in range(_CELLS)]
    for window in range(windows):
        slot, batch = START + window * HOUR, np.zeros(_ROWS, dtype=ROW)
        batch["cell"] = rng.choice(np.array(cells, dtype=np.uint64), _ROWS)
        batch["user"] = rng.integers(1, _USERS + 1, _ROWS)
        batch["time"] = slot * 1_000_000 + rng.permutation(HOUR * 1000)[:_ROWS] * 1000
        batch["value"] = rng.integers(0, 6500, _ROWS)
        await rows.append("t/0", window, window + 1, batch, np.full(_ROWS, window), np.full(_ROWS, slot))


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


async def _sent(config: Config) -> Counter[bytes]:
    """How often each message of the feed is in the output topics, by its ``ce_id``."""
    topics = (HEXAGON_SPEED, WINDOW)
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=config.kafka.bootstrap, enable_auto_commit=False)
    await consumer.start()
    copies: Counter[bytes] = Counter()
    try:
        partitions = [
            TopicPartition(topic, number) for topic in topics for number in consumer.partitions_for_topic(topic) or ()
        ]
        consumer.unsubscribe()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        for partition, end in (await consumer.end_offsets(partitions)).items():
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=500)).get(partition, []):
                    if json.loads(record.value)["feed"] == config.feed.name:
                        copies[dict(record.headers)["ce_id"]] += 1
    finally:
        await consumer.stop()
    return copies


@asynccontextmanager
async def _everybody(self: Lease) -> AsyncIterator[bool]:
    """A lease that every worker holds at the same time, as if there were none."""
    yield True


async def _close_until_told(config: Config) -> int:
    """Run the closing service until stdin is closed; returns the draws thrown away."""
    configure_logs()  # to stderr: stdout is for the figures
    worker = Worker(config)
    worker.ready.set()
    closing = Closing(worker)
    worker.end_soon = lambda: None  # type: ignore[method-assign]  # this process ends by itself
    await closing.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await closing.stop()
    await worker.redis.aclose()
    return int(worker.metrics.noise_redraw._value.get())


if __name__ == "__main__":
    mode, *given = sys.argv[1:]
    if mode == "without":
        Lease.hold = _everybody  # type: ignore[method-assign]
    print(asyncio.run(_close_until_told(config_of(*given))), flush=True)
