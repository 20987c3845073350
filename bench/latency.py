"""How long an event takes: from the producer to durable state, and from the end of its window's delay to the readers of
the map.

Real Kafka, Redis, worker and ``hexveil serve``, each in a process of its own. First a burst measures the capacity; then
events flow at 10, 50 and 90 % of it. Every batch that is sent carries on: when it was given to the producer, and when
Redis knew its last offset. A window's release cannot come before its end plus the allowed delay, so that is where its
own clock begins; the last reader is a connection to the event stream. The producer shares the machine.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from bench.faults.feeding import Stream
from bench.faults.feeds import write_config
from bench.faults.processes import PublicService, Worker, wait_until_ready
from bench.faults.site import prepare
from bench.progress import shown
from stream.config import Config, load_config
from stream.local.kafka import KafkaServer
from stream.local.server import LOOPBACK, RedisServer
from stream.storage.row_store import RowStore

SHARES = (0.1, 0.5, 0.9)
_BATCH, _POLL_SECONDS, _PREPARED = 200, 0.005, 50
_DELAY_SECONDS = 1
"""``window.allowed_delay`` of the campaign's feeds."""


@dataclass(frozen=True)
class Sizes:
    """Events of the burst, seconds of each flow, and length of a timeslot in seconds."""

    burst: int
    seconds: float
    slot: int


FULL, QUICK = Sizes(600_000, 45.0, 5), Sizes(2_000, 6.0, 2)


def run(quick: bool) -> dict[str, Any]:
    """Capacity, and p50 and p99 of both latencies at each share of it."""
    return asyncio.run(_measured(QUICK if quick else FULL))


async def _measured(sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexveil-bench-")))
        kafka, redis = stack.enter_context(KafkaServer()), stack.enter_context(RedisServer(appendfsync="always"))
        file = write_config(folder, "plain", "latency", bootstrap=kafka.bootstrap, redis=redis.url, slot=sizes.slot)
        config = load_config(file)
        await prepare(config)
        worker, service = Worker(file), PublicService(file, config.public.port)
        stack.callback(worker.end)
        stack.callback(service.end)
        await asyncio.to_thread(wait_until_ready, [worker])
        await asyncio.to_thread(wait_until_ready, [service])
        async with AIOKafkaProducer(
            bootstrap_servers=config.kafka.bootstrap, acks=1, max_batch_size=1 << 18
        ) as producer:
            flow = _Flow(config, producer, sizes)
            async with Redis.from_url(config.redis.url) as client:
                begun = time.monotonic()
                await flow.send(RowStore(client, config.feed.name), sizes.burst, np.inf)
                capacity = sizes.burst / (time.monotonic() - begun)
                flows = {}
                for share in shown(SHARES, "latency"):
                    flows[f"{share:.0%}"] = await flow.measure(RowStore(client, config.feed.name), share * capacity)
    return {"capacity_per_second": capacity, "slot_seconds": sizes.slot, "shares": flows}


class _Flow:
    """Sends events to one of the partitions, and watches where they arrive. The others stay empty."""

    def __init__(self, config: Config, producer: AIOKafkaProducer, sizes: Sizes) -> None:
        self._config, self._producer, self._sizes = config, producer, sizes
        self._partition = f"{config.feed.topic}/0"
        self._events = Stream(config.feed.topic, 0, sizes.slot, 5, np.random.default_rng(1))

    async def measure(self, rows: RowStore, rate: float) -> dict[str, Any]:
        """Both latencies while ``rate`` events a second flow."""
        arrivals: list[float] = []
        watching = asyncio.create_task(self._windows(arrivals))
        stored = await self.send(rows, int(rate * self._sizes.seconds), rate)
        await asyncio.sleep(self._sizes.slot + _DELAY_SECONDS + 1)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return {"events_per_second": rate, "in_state": told(stored), "on_the_map": told(arrivals)}

    async def send(self, rows: RowStore, count: int, rate: float) -> list[float]:
        """Send ``count`` events and wait until Redis knows them; seconds that each batch took."""
        sent: list[tuple[float, int]] = []
        taken: list[float] = []
        sending = asyncio.create_task(self._send(count, rate, sent))
        while not sending.done() or sent:
            known = (await rows.next_offsets()).get(self._partition, 0)
            now = time.monotonic()
            while sent and sent[0][1] < known:
                taken.append(now - sent.pop(0)[0])
            await asyncio.sleep(_POLL_SECONDS)
        await sending
        return taken

    async def _send(self, count: int, rate: float, sent: list[tuple[float, int]]) -> None:
        begun, prepared = time.monotonic(), []
        for number in range(0, count, _BATCH):
            if not number % (_BATCH * _PREPARED):  # drawing events takes longer than sending them
                events = self._events.events(_BATCH * _PREPARED, time.time())
                prepared = [events[start : start + _BATCH] for start in range(0, len(events), _BATCH)]
            await asyncio.sleep(max(begun + number / rate - time.monotonic(), 0))
            batch, at = self._producer.create_batch(), time.monotonic()
            for value in prepared.pop():
                batch.append(key=None, value=value, timestamp=None)
            record = await (await self._producer.send_batch(batch, self._config.feed.topic, partition=0))
            sent.append((at, record.offset + batch.record_count() - 1))

    async def _windows(self, arrivals: list[float]) -> None:
        url = f"http://{LOOPBACK}:{self._config.public.port}/api/v1/stream"
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.get(url) as answer,
        ):
            async for end in _ends(answer.content):
                arrivals.append(time.time() - end - _DELAY_SECONDS)


async def _ends(lines: aiohttp.StreamReader) -> AsyncIterator[float]:
    """End of each window that the event stream announces, epoch seconds."""
    async for line in lines:
        if line.startswith(b"data: "):
            yield datetime.fromisoformat(json.loads(line[6:])["window"]["end"]).timestamp()


def told(seconds: list[float]) -> dict[str, Any]:
    """Number, median, 99th percentile and largest, in ms."""
    if not seconds:
        return {"number": 0}
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1000
    return {"number": len(seconds), "p50_ms": p50, "p99_ms": p99, "longest_ms": max(seconds) * 1000}
