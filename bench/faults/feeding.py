"""Sends what vehicles, broken clocks and attackers send: a seeded stream of events, and hostile messages on demand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from stream.config.feed import MAX_FUTURE

PARTITIONS = 4
_TICK_SECONDS = 0.2
_REGULARS, _OTHERS, _ACTIVE = 30, 1_500, 50
"""Users in every window, who spend their budgets; others; and how many of these are in one window."""
_SOUTH, _WEST, _SIDE = 30.18, -97.82, 0.24
"""Where events are: far enough inside the box that every cell is in the public list."""
_BOMB_BYTES = 40 << 20


@dataclass
class Stream:
    """The events of one feed. ``clock_off_ms``: by how much the clocks of a third of the users are ahead."""

    topic: str
    rate: int
    slot: int
    ahead: int
    rng: np.random.Generator
    clock_off_ms: int = 0
    _places: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        spots = self.rng.uniform(0, _SIDE, (60, 2)) + np.array([_SOUTH, _WEST])
        self._places = [f'"lat":{lat:.5f},"lng":{lng:.5f}'.encode() for lat, lng in spots.tolist()]

    def events(self, count: int, now: float) -> list[bytes]:
        """``count`` events around ``now`` (epoch seconds): some of them late, ahead, or too far ahead."""
        rng, window = self.rng, int(now) // self.slot
        active = window * 7_919 % _OTHERS
        user = np.where(
            rng.random(count) < 0.3,
            rng.integers(0, _REGULARS, count),
            _REGULARS + (active + rng.integers(0, _ACTIVE, count)) % _OTHERS,
        )
        kind = rng.random(count)
        shift = np.where(kind < 0.03, -rng.integers(2_000, 1 + 4_000 * self.slot, count), -rng.integers(0, 900, count))
        shift = np.where(kind > 0.98, rng.integers(0, 1_000 * self.ahead - 500, count), shift)
        shift = np.where(kind > 0.998, 1_000 * (int(MAX_FUTURE.total_seconds()) + 60), shift)
        shift += np.where(user % 3 == 0, self.clock_off_ms, 0)
        times = (int(now * 1000) + shift).tolist()
        place = (user * 7 + rng.integers(0, 3, count)) % len(self._places)
        speed = rng.integers(0, 90, count).tolist()
        return [
            b'{"user":"bus-%d","time":%d,%s,"speed":%d}' % (u, t, self._places[p], s)
            for u, t, p, s in zip(user.tolist(), times, place.tolist(), speed, strict=True)
        ]

    def flood_of_one(self, count: int, now: float) -> list[bytes]:
        """One user's events, ten in a millisecond, over many cells."""
        start = int(now * 10_000) - count
        return [
            b'{"user":"flood","time":%d.%d,%s,"speed":50}' % (*divmod(start + k, 10), self._places[k % 60])
            for k in range(count)
        ]

    def invented_users(self, count: int, now: float) -> list[bytes]:
        """One event of each of ``count`` users that never appeared before."""
        seed = int(self.rng.integers(1 << 40))
        return [
            b'{"user":"new-%d-%d","time":%d,%s,"speed":30}' % (seed, k, int(now * 1000), self._places[k % 60])
            for k in range(count)
        ]

    def old_hours(self, now: float) -> list[bytes]:
        """An event for every hour of the last four days."""
        return [
            b'{"user":"old","time":%d,%s,"speed":30}' % (int(now * 1000) - 3_600_000 * k, self._places[0])
            for k in range(96)
        ]


def hostile_messages(now: float) -> list[bytes | None]:
    """Messages that no vehicle sends. Most of them are refused; some are events in an unusual form that is allowed."""
    sound: dict[str, object] = {"user": "h", "time": int(now * 1000), "lat": 30.3, "lng": -97.7, "speed": 40}
    changed: list[dict[str, object]] = [
        {"time": 1e306},
        {"time": -1e306},
        {"time": 10**400},
        {"time": 2**63},
        {"time": 0},
        {"time": "2017-03-21T07:00:00"},
        {"time": "now"},
        {"time": True},
        {"time": now * 1000 + 0.25},
        {"lat": 1e400},
        {"lat": 95},
        {"lat": "30.3"},
        {"lat": None},
        {"lng": True},
        {"speed": -1},
        {"speed": 1e308},
        {"speed": [40]},
        {"user": ""},
        {"user": "x" * 300},
        {"user": 17},
        {"user": 3.5},
        {"user": {"a": 1}},
        {"lat": None, "lng": None},
    ]
    messages: list[bytes | None] = [json.dumps(sound | change).encode() for change in changed]
    deep = b"[" * 20_000 + b"]" * 20_000
    messages += [None, b"", b"\x00", b"{}", b"null", b"[]", b"rubbish", b"\xff\xfe\x00", deep, b" " * 70_000]
    messages += [json.dumps(sound).encode()[:-1], json.dumps(sound).encode() * 2, b'{"user":"\\ud800"}']
    return [*messages, json.dumps(sound | {"further": list(range(50))}).encode()]


class Feeder(threading.Thread):
    """Sends every stream at its rate until stopped, and further messages on request."""

    def __init__(self, bootstrap: str, streams: Sequence[Stream]) -> None:
        super().__init__(daemon=True, name="feeder")
        self.streams = streams
        self.sent = 0
        """Events that the broker acknowledged."""
        self._brokers = bootstrap
        self._loop = asyncio.new_event_loop()
        self._over = threading.Event()
        self._ready = threading.Event()
        self._producer: AIOKafkaProducer | None = None

    def run(self) -> None:
        self._loop.run_until_complete(self._run())

    def begin(self) -> None:
        """Start, and return once the producer is connected."""
        self.start()
        self._ready.wait(300)

    def stop(self) -> None:
        """Stop sending; returns once everything was acknowledged or given up."""
        self._over.set()
        if self.is_alive():
            self.join(90)

    def send(self, topic: str, values: Sequence[bytes | None], codec: str | None = None) -> None:
        """Send further ``values``, in one batch per partition; returns once the broker acknowledged them."""
        asyncio.run_coroutine_threadsafe(self._send(topic, values, codec), self._loop).result(300)

    def bomb(self, topic: str, codec: str) -> None:
        """Send one message of zeros that is small on disk and large in memory."""
        self.send(topic, [bytes(_BOMB_BYTES)], codec)

    async def _run(self) -> None:
        producer = self._producer = await self._connected(None)
        self._ready.set()
        due = time.time()
        try:
            while not self._over.is_set():
                now = time.time()
                for stream in self.streams:
                    count = int(stream.rate * min(now - due, 5 * _TICK_SECONDS))
                    await self._send_batches(producer, stream.topic, stream.events(count, now))
                due = now
                await asyncio.sleep(max(0.0, _TICK_SECONDS - (time.time() - now)))
        finally:
            await producer.stop()

    async def _connected(self, codec: str | None) -> AIOKafkaProducer:
        while True:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._brokers,
                acks="all",
                compression_type=codec,
                max_batch_size=1 << 30 if codec else 1 << 20,
                max_request_size=1 << 30 if codec else 1 << 20,
                request_timeout_ms=10_000,
                metadata_max_age_ms=10_000,
            )
            try:
                await producer.start()
                return producer
            except (KafkaError, OSError):
                await producer.stop()
                await asyncio.sleep(0.5)

    async def _send(self, topic: str, values: Sequence[bytes | None], codec: str | None) -> None:
        producer = await self._connected(codec)
        try:
            await self._send_batches(producer, topic, values)
        finally:
            await producer.stop()

    async def _send_batches(self, producer: AIOKafkaProducer, topic: str, values: Sequence[bytes | None]) -> None:
        """Spread ``values`` over the partitions. Batches that the broker does not take are counted as not sent."""
        waiting: list[tuple[int, asyncio.Future[object]]] = []
        for partition in range(min(PARTITIONS, len(values))):
            part = list(values[partition::PARTITIONS])
            while part:
                batch, taken = producer.create_batch(), 0
                for value in part:
                    if batch.append(key=None, value=value, timestamp=None) is None:
                        break
                    taken += 1
                if not taken:
                    return
                batch.close()
                try:
                    sending = producer.send_batch(batch, topic, partition=partition)
                    waiting.append((taken, await asyncio.wait_for(sending, 60)))
                except (KafkaError, TimeoutError):
                    return
                part = part[taken:]
        for taken, acknowledged in waiting:
            try:
                await acknowledged
                self.sent += taken
            except KafkaError:
                continue
