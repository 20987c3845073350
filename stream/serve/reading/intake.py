"""Passes committed messages from a source to the store of windows.

Reads the output topics with a consumer without group, from the first message of the oldest window to keep.

Close markers order the windows. At the start all markers are read, so that the store knows which windows to keep.
Later, a marker is used only after everything was read that was in the topics when the marker was seen. So windows
become complete in the order of their markers, which is the same for every reader, whatever the order of partitions.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from stream.config.servers import KafkaConfig
from stream.messages.message import RELEASE_TOPICS, WINDOW
from stream.serve.metrics import PublicMetrics
from stream.serve.received import Received, received
from stream.serve.window_store import Outcome, View, WindowView
from stream.servers.connection import reading

Argument = TypeVar("Argument")
Result = TypeVar("Result")

PIECE_BYTES = 256 << 10
"""Messages are checked by this many bytes at a time; between two pieces the event loop answers readers."""


class Arrival(NamedTuple):
    """A message as a source found it, not checked yet. ``number``: a close marker's position among markers, from 1."""

    topic: str
    ce_id: str
    value: bytes
    number: int


class Intake:
    """Puts messages into the store, counts them, and announces each window that becomes complete.

    Whatever takes time in proportion to a message or a window happens in a thread: decoding, the schema, histograms and
    digests. The thread is the intake's own, so that readers who ask for much cannot hold it up. The store is changed in
    the event loop alone.
    """

    def __init__(self, view: View, metrics: PublicMetrics, feed: str, announce: Callable[[WindowView], None]) -> None:
        """``feed``: the one whose newest window the metrics state; windows of others may be in the same topics."""
        self.view = view
        self._metrics = metrics
        self._feed = feed
        self._announce = announce
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self.caught_up = asyncio.Event()
        """Set by the source once it passed on all that existed at the start. No window is announced before that."""

    async def take(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Take messages of output topics in their order; returns what became of each.

        One source calls this, and waits before it calls it again.
        """
        outcomes = []
        for piece in _pieces(arrivals):
            for message in await self.in_thread(lambda piece: [received(*arrival) for arrival in piece], piece):
                outcomes.append(await self._put(message))
        return outcomes

    async def in_thread(self, work: Callable[[Argument], Result], argument: Argument) -> Result:
        """Run ``work`` in the intake's thread and return its result for ``argument``."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, argument)

    async def _put(self, message: Received | None) -> Outcome:
        self._metrics.messages.inc()
        outcome: Outcome = "invalid" if message is None else self.view.put(message)
        if outcome == "invalid":
            self._metrics.invalid.inc()
        elif outcome == "duplicate":
            self._metrics.duplicate.inc()
        elif outcome == "taken" and message is not None:
            window = self.view.full(message)
            if window is not None and await self.in_thread(WindowView.agrees, window):
                self._complete(window)
                return "completed"
        return outcome

    def _complete(self, window: WindowView) -> None:
        self.view.finish(window)
        self._metrics.windows.inc()
        if (span := self.view.span(self._feed)) is not None:
            newest = self.view.windows[self._feed, span[1]]
            self._metrics.last_window_seconds.set(datetime.fromisoformat(newest.end).timestamp())
        if self.caught_up.is_set():
            self._announce(window)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def refuse(self, count: int = 1) -> None:
        """Count something that is not a message."""
        self._metrics.messages.inc(count)
        self._metrics.invalid.inc(count)


class Source(Protocol):
    """A source of committed messages. It passes on each at least once, a close marker once its position is final."""

    open_files: int
    """Number of files that it may have open at a time."""

    async def run(self, intake: Intake) -> None:
        """Pass messages to ``intake`` until cancelled. Its server or file may disappear and come back."""


def _pieces(arrivals: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The messages in their order, :data:`PIECE_BYTES` together, or one message that has more."""
    piece: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        if piece and size + len(arrival.value) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(arrival)
        size += len(arrival.value)
    if piece:
        yield piece


log = structlog.get_logger()

_RETRY_SECONDS = 2.0
_POLL_MS = 500
_BATCH = 25
"""Messages that the client library unpacks in one go, in the event loop: 25 histograms of 770 kB take it 31 ms."""

Positions = dict[TopicPartition, int]


class TopicSource:
    """The output topics of a Kafka cluster."""

    open_files = 0

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka

    async def run(self, intake: Intake) -> None:
        """Read for ever. If a broker goes down, try again."""
        while True:
            try:
                await self._read(intake)
            except (KafkaError, OSError) as error:
                log.warning("kafka unreachable", reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, intake: Intake) -> None:
        # A broker answers a connection's requests one after the other, and a fetch that finds nothing takes it half a
        # second. So positions are asked for by a client that never fetches, and each part is fetched by one of its own.
        async with reading(self._kafka) as asking:
            await asking._client.force_metadata_update()
            numbers = {topic: asking.partitions_for_topic(topic) or set() for topic in RELEASE_TOPICS}
            problem = _problem(numbers)
            if problem is not None:
                log.warning("topics unusable", reason=problem)
                return
            partitions = [TopicPartition(topic, number) for topic in RELEASE_TOPICS for number in numbers[topic]]
            async with reading(self._kafka) as consumer:
                reached = await _markers(intake, consumer, asking)
            async with reading(self._kafka) as consumer:
                await _start(intake, consumer, asking, partitions, reached)
                await _follow(intake, consumer, asking, partitions)


async def _markers(intake: Intake, consumer: AIOKafkaConsumer, asking: AIOKafkaConsumer) -> int:
    """Read the close markers; returns the position that was reached."""
    marker = TopicPartition(WINDOW, 0)
    starts, ends = await asking.beginning_offsets([marker]), await asking.end_offsets([marker])
    consumer.assign([marker])
    await _take_until(intake, consumer, starts, ends)
    return int(await consumer.position(marker))


async def _start(
    intake: Intake, consumer: AIOKafkaConsumer, asking: AIOKafkaConsumer, partitions: list[TopicPartition], reached: int
) -> None:
    """Read all other messages, beginning with the oldest window to keep. The markers before ``reached`` were read."""
    marker, others = TopicPartition(WINDOW, 0), [p for p in partitions if p.topic != WINDOW]
    kept = [int(datetime.fromisoformat(one.end).timestamp() * 1000) for one in intake.view.windows.values()]
    ends = await asking.end_offsets(others)
    # Each message carries its window's end as timestamp, so reading starts at the timestamp of the oldest kept window.
    first = await asking.offsets_for_times({p: min(kept, default=0) for p in others})
    begin = {p: ends[p] if (oldest := first[p]) is None else oldest.offset for p in others}
    consumer.assign(partitions)
    consumer.seek(marker, reached)
    consumer.pause(marker)
    await _take_until(intake, consumer, begin, ends)
    consumer.resume(marker)
    intake.caught_up.set()


async def _take_until(intake: Intake, consumer: AIOKafkaConsumer, begin: Positions, ends: Positions) -> None:
    for partition, offset in begin.items():
        consumer.seek(partition, offset)
    while not await _reached(consumer, ends):
        for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH)).values():
            await intake.take([_arrival(record) for record in records])


async def _follow(
    intake: Intake, consumer: AIOKafkaConsumer, asking: AIOKafkaConsumer, partitions: list[TopicPartition]
) -> None:
    others = [p for p in partitions if p.topic != WINDOW]
    markers: list[ConsumerRecord] = []
    ends: Positions = {}
    while True:
        batch = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH)
        for partition, records in batch.items():
            if partition.topic == WINDOW:
                markers += records
                ends = await asking.end_offsets(others)
            else:
                await intake.take([_arrival(record) for record in records])
        if markers and await _reached(consumer, ends):
            await intake.take([_arrival(record) for record in markers])
            markers = []


def _arrival(record: ConsumerRecord) -> Arrival:
    ce_id = (dict(record.headers).get("ce_id") or b"").decode(errors="replace")
    return Arrival(record.topic, ce_id, record.value or b"", record.offset + 1)


def _problem(partitions: dict[str, set[int]]) -> str | None:
    missing = [topic for topic, numbers in partitions.items() if not numbers]
    if missing:
        return f"{', '.join(missing)} do not exist; run: hexveil topics create"
    if len(partitions[WINDOW]) > 1:
        return (
            f"{WINDOW} has {len(partitions[WINDOW])} partitions, which have no common order; create it again with 1 "
            "partition"
        )
    return None


async def _reached(consumer: AIOKafkaConsumer, ends: Positions) -> bool:
    return all([await consumer.position(partition) >= end for partition, end in ends.items()])
