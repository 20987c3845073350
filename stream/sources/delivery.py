"""Sends messages to Kafka at a chosen pace, with an idempotent producer, in whole batches, a partition per vehicle.

Reads a source in a thread, so that what delivers its messages is not held up while the source computes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from stream.config.servers import KafkaConfig
from stream.servers.connection import kafka_options, start_client
from stream.sources.messages import Messages

AHEAD = 4
"""Blocks that are read before they are asked for: a nap of delivery after an empty block holds up none."""
_WAIT_SECONDS = 0.01


def in_background(blocks: Iterable[Messages]) -> Iterator[Messages]:
    """The same blocks, up to :data:`AHEAD` of them read in advance; an empty block whenever the next one is not ready.

    Errors of the source are raised in their place. When the iterator is closed, it waits for the block that is being
    read.
    """
    source = iter(blocks)
    reader = ThreadPoolExecutor(1, thread_name_prefix="source")
    try:
        ahead = deque(reader.submit(next, source, None) for _ in range(AHEAD))
        while True:
            while not wait([ahead[0]], _WAIT_SECONDS).done:
                yield Messages(np.zeros(0, dtype=np.int64), [], [])
            block = ahead.popleft().result()
            if block is None:
                return
            ahead.append(reader.submit(next, source, None))
            yield block
    finally:
        reader.shutdown(cancel_futures=True)


BATCH_BYTES = 256 << 10
_AHEAD = 16
"""Number of unacknowledged batches above which the source has to wait."""
_MOST_KEYS = 1 << 18
"""Keys whose partitions are remembered, which saves hashing. A sender may make up any number of users."""
_SLICE = 10_000
_NAP_S = 0.05
_TOPIC_SECONDS = 5.0
"""Seconds to wait for a topic, because brokers list a new topic only after a moment."""


class DeliveryError(RuntimeError):
    """Kafka cannot be reached, has no such topic, or did not take a message."""


class Sender(Protocol):
    """Receives the messages of a source."""

    async def send(self, messages: Messages) -> None:
        """Take ``messages`` in order. May wait, and may keep messages until :meth:`flush`."""

    async def flush(self) -> None:
        """Send the messages that were kept."""

    async def confirm(self) -> None:
        """Wait until every message has arrived. Raises :class:`DeliveryError`."""


class KafkaSender:
    """Sends to one topic, in order per key. A key's partition is the one that Kafka's own clients choose.

    It builds whole batches, because one coroutine per message would be the bottleneck.
    """

    def __init__(self, kafka: KafkaConfig, topic: str) -> None:
        self.bootstrap, self.topic = kafka.bootstrap, topic
        self._producer = AIOKafkaProducer(
            **kafka_options(kafka),
            enable_idempotence=True,
            acks="all",
            compression_type="lz4",
            max_batch_size=BATCH_BYTES,
            max_request_size=4 * BATCH_BYTES,
        )
        self._partitions: list[int] = []
        self._partition_of: dict[bytes | None, int] = {}
        self._builders: dict[int, Any] = {}
        self._under_way: deque[asyncio.Future[Any]] = deque()

    async def __aenter__(self) -> Self:
        try:
            await start_client(self._producer)
            await self._see_topic()
            self._partitions = sorted(await self._producer.partitions_for(self.topic))
        except (KafkaError, OSError, ValueError) as error:
            await self._producer.stop()
            raise DeliveryError(
                f"Kafka at {self.bootstrap} does not answer: {error}; start the broker, or correct kafka.bootstrap, "
                "security_protocol or the credentials"
            ) from None
        except DeliveryError:
            await self._producer.stop()
            raise
        return self

    async def _see_topic(self) -> None:
        deadline = time.monotonic() + _TOPIC_SECONDS
        while self.topic not in (await self._producer.client.fetch_all_metadata()).topics():
            if time.monotonic() > deadline:
                raise DeliveryError(
                    f"Kafka at {self.bootstrap} has no topic {self.topic!r}, or does not show it; run 'hexveil topics "
                    "create', correct feed.topic, or let this user describe and write it"
                )
            await asyncio.sleep(_NAP_S)

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def send(self, messages: Messages) -> None:
        """Queue ``messages``; waits while too many batches are unacknowledged."""
        partition_of, builders = self._partition_of, self._builders
        for key, value in zip(messages.keys, messages.values, strict=True):
            partition = partition_of.get(key)
            if partition is None:
                if len(partition_of) >= _MOST_KEYS:
                    partition_of.clear()
                partition = partition_of[key] = self._partitions[
                    (murmur2(key or b"") & 0x7FFFFFFF) % len(self._partitions)
                ]
            builder = builders.get(partition)
            if builder is None:
                builder = builders[partition] = self._producer.create_batch()
            if builder.append(key=key, value=value, timestamp=None) is None:
                await self._ship(partition)
                builder = builders[partition] = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=None)

    async def flush(self) -> None:
        """Send the queued messages without waiting for the acknowledgements."""
        for partition in list(self._builders):
            await self._ship(partition)

    async def confirm(self) -> None:
        """Send the queued messages and wait until Kafka has all. Raises :class:`DeliveryError`."""
        await self.flush()
        while self._under_way:
            await self._acknowledged(self._under_way.popleft())

    async def _ship(self, partition: int) -> None:
        builder = self._builders.pop(partition)
        try:
            self._under_way.append(await self._producer.send_batch(builder, self.topic, partition=partition))
        except KafkaError as error:
            raise DeliveryError(f"Kafka at {self.bootstrap} took no batch: {error!r}") from None
        while len(self._under_way) > _AHEAD:
            await self._acknowledged(self._under_way.popleft())

    async def _acknowledged(self, batch: Awaitable[Any]) -> None:
        try:
            await batch
        except KafkaError as error:
            raise DeliveryError(f"Kafka at {self.bootstrap} refused a batch: {error!r}") from None


class Pacer:
    """Decides when a message is due on the wall clock: at ``speed`` times the recorded pace, or at once (``None``).

    With ``live``, no message is due before its own time: once an accelerated feed reaches the present, it continues in
    real time.
    """

    def __init__(self, speed: float | None, *, live: bool = False, clock: Callable[[], float] = time.time) -> None:
        if speed is not None and not 0 < speed < float("inf"):
            raise ValueError(f"speed {speed} is not a positive number; give one, or 'max'")
        self.speed, self.live, self._clock = speed, live, clock
        self._origin: tuple[float, int] | None = None

    def reached(self, first_due: int) -> float:
        """Event time (µs UTC) up to which messages are due now. The first call starts the clock at ``first_due``."""
        now = self._clock()
        if self._origin is None:
            self._origin = (now, first_due)
        wall, due = self._origin
        reached = float("inf") if self.speed is None else due + (now - wall) * 1e6 * self.speed
        return min(reached, now * 1e6) if self.live else reached


@dataclass
class Progress:
    """Counts of what was sent so far."""

    sent: int = 0
    unread: int = 0
    first_due: int = 0
    last_due: int = 0

    def add(self, messages: Messages) -> None:
        """Count one delivered block."""
        if not self.sent:
            self.first_due = self.last_due = int(messages.due[0])
        self.sent += len(messages.values)
        self.unread += messages.unread
        self.last_due = max(self.last_due, int(messages.due[-1]))


async def deliver(
    blocks: Iterable[Messages],
    sender: Sender,
    pacer: Pacer,
    progress: Progress,
    *,
    stopped: Callable[[], bool] = lambda: False,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Send ``blocks`` in order at the pace until ``stopped``. Returns once all have arrived.

    After an empty block, everything is sent at once. A message that goes back in time is due together with the latest
    one before it. An error of the source is raised after all messages before it were delivered.
    """
    latest = np.iinfo(np.int64).min
    try:
        for block in blocks:
            if not block.values:  # the source is silent at present
                await sender.flush()
                await asyncio.sleep(_NAP_S)
                report()
                if stopped():
                    break
                continue
            due = np.maximum.accumulate(np.maximum(block.due, latest))
            n, start = len(due), 0
            while start < n and not stopped():
                stop = int(np.searchsorted(due, pacer.reached(int(due[0])), side="right"))
                stop = min(stop, start + _SLICE)
                if stop <= start:
                    await sender.flush()
                    await asyncio.sleep(_NAP_S)
                    report()
                    continue
                part = block.part(start, stop)
                await sender.send(part)
                progress.add(part)
                report()
                await asyncio.sleep(0)
                start = stop
            latest = int(due[-1])
            if stopped():
                break
            if pacer.speed is not None:
                await sender.flush()
    finally:
        await sender.confirm()
        report()
