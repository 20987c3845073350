"""Recognises a live feed that is misread: other units, zones or users than declared, or events that are mostly refused.

It looks at a sample of what arrives and tells operators. It decides nothing: what is released must not depend on it,
because speeds are protected. Its sentences contain no value of any event. No event can make it raise, and its memory is
bounded.

The newest messages of a Kafka topic, with the times at which the broker appended them, for an inspection.

They are read within the worker's bounds: a batch that unpacks to more is skipped, and of a larger message only that is
known.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from numpy.typing import NDArray

from dpcore.arrays import IntArray
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.diagnosis.reading import InspectionError
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import NEWEST, SpeedCheck, bound_problem, check_rows
from stream.diagnosis.users import LEAST_EVENTS, LEAST_SPREAD_US, events_as_users
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.bounded import BoundedConsumer
from stream.ingestion.decoding import ArrivalTimes, Batch, Reason
from stream.ingestion.formats import feed_format, user_field
from stream.servers.connection import start_client
from stream.sources.timestamps import local_as_utc
from stream.storage.row_store import ROW

_READ_SECONDS = 30.0
_AT_ONCE = 5_000
_MOST_BYTES = 256 << 20
"""Bytes of messages that are kept in memory; an event has about a hundred."""


class TopicUnreachableError(RuntimeError):
    """Kafka does not answer."""


async def newest_messages(kafka: KafkaConfig, topic: str, limit: int) -> tuple[list[bytes], IntArray, Counter[str]]:
    """The newest ``limit`` messages of ``topic``, in equal parts from its partitions, when each arrived (µs UTC), and
    how many were left out, by reason. It joins no group and commits nothing.

    Raises :class:`TopicUnreachableError` and :class:`InspectionError`.
    """
    # It subscribes to nothing: a subscription to a missing topic would wait for it without end.
    bounded, unread = BoundedConsumer(kafka, group=None), Counter[str]()
    consumer = bounded.kafka
    try:
        await start_client(consumer)
        there = topic in await consumer.topics()
        values, arrived = await _newest(bounded, topic, limit, unread) if there else ([], [])
    except (KafkaError, OSError) as error:
        raise TopicUnreachableError(f"Kafka at {kafka.bootstrap} does not answer: {error}") from None
    finally:
        await consumer.stop()
    if not values:
        left_out = "".join(f"; {count} {reason}" for reason, count in unread.items())
        raise InspectionError(
            f"{topic} is neither a file, nor an address, nor a topic with messages of Kafka at "
            f"{kafka.bootstrap}{left_out}"
        )
    return values, np.array(arrived, dtype=np.int64), unread


async def _newest(
    bounded: BoundedConsumer, topic: str, limit: int, unread: Counter[str]
) -> tuple[list[bytes], list[int]]:
    """Messages, and when the broker appended each (µs UTC), below 0 if unsaid. ``unread`` counts those left out."""
    consumer = bounded.kafka
    values: list[bytes] = []
    arrived: list[int] = []
    ends = await _assign_newest(consumer, topic, limit)
    left, size = set(ends), 0
    clock = asyncio.get_running_loop().time
    until = clock() + _READ_SECONDS
    while left and len(values) < limit and size < _MOST_BYTES and clock() < until:
        for _, _, records in await bounded.gather(_AT_ONCE, 1_000, lambda _, records: records[0].offset):
            for record in records:
                if record.value is not None and len(record.value) > MAX_ARRAY_BYTES:
                    unread[Reason.TOO_LARGE] += 1
                    continue
                values.append(record.value or b"")
                arrived.append(record.appended_us)
        size += bounded.bytes_read
        left = {partition for partition in left if await consumer.position(partition) < ends[partition]}
    skipped = sum(last - first + 1 for _, first, last in bounded.skipped)
    if skipped:
        unread[Reason.UNREADABLE_BATCH] += skipped
    return values, arrived


async def _assign_newest(consumer: AIOKafkaConsumer, topic: str, limit: int) -> dict[TopicPartition, int]:
    """Let ``consumer`` begin ``limit`` messages before the end of ``topic``, in equal parts; the ends of partitions
    with messages."""
    await consumer._client.set_topics([topic])
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    wanted = {partition: ends[partition] for partition in partitions if begins[partition] < ends[partition]}
    if wanted:
        consumer.assign(list(wanted))
    for partition, end in wanted.items():
        consumer.seek(partition, max(begins[partition], end - -(-limit // len(wanted))))
    return wanted


log = structlog.get_logger()

DOUBTFUL_SPEED = "doubtful-speed"
"""Speeds that may be right, and would agree with the positions only in another unit. Every other kind is clear."""
KINDS = ("refused", "zone", "speed", DOUBTFUL_SPEED, "bound", "users")
"""Faults that an alarm names."""
MAY_BE_RIGHT = frozenset({DOUBTFUL_SPEED, "bound"})
"""Kinds that are no fault for certain."""
MOST_ROWS = 20_000
_SPAN_US = 1_800_000_000
"""Where there are more rows than :data:`MOST_ROWS`, those of the last half hour are kept, then those of fewer users."""
_LEAST_EVENTS, _LOOKS, _MOST_TIMES, _LEAST_TIMES = 100, 20, 1_000, 10
"""Events since the last judgement of refusals without which there is no new one; refused events of each reason that
are looked at; times that are compared with their arrivals."""
_NO_UNIT = "no known unit fits: let speeds be derived where the feed is read, feed.speeds = 'derived'"


class RowSample:
    """The newest rows of some users, those with the lowest pseudonyms, which are random: all of them, if there is room.

    So a small fleet, or one that reports seldom, is judged later but is judged, and a large one by some of its
    vehicles, each with all of its events.
    """

    def __init__(self) -> None:
        self._parts, self._size, self._limit = list[NDArray[np.void]](), 0, 2**64 - 1

    def take(self, rows: NDArray[np.void]) -> None:
        """Take rows of the feed."""
        self._parts.append(rows[rows["user"] <= np.uint64(self._limit)])
        self._size += len(self._parts[-1])
        if self._size > 2 * MOST_ROWS:
            self.newest()

    def newest(self) -> NDArray[np.void]:
        """The rows that are kept. All users are taken again if few are left: others may be invented."""
        rows = np.concatenate([np.zeros(0, dtype=ROW), *self._parts])
        while len(rows) > MOST_ROWS and self._limit:
            kept = rows["time"] > rows["time"].max() - _SPAN_US
            if kept.all():
                self._limit //= 2
                kept = rows["user"] <= np.uint64(self._limit)
            rows = rows[kept]
        if 2 * (rows["time"] > rows["time"].max(initial=0) - _SPAN_US).sum() < MOST_ROWS:
            self._limit = 2**64 - 1
        self._parts, self._size = [rows], len(rows)
        return rows


class FeedDoubts:
    """What a sample of a feed's events says about its fields, times, users and speeds."""

    def __init__(self, config: Config) -> None:
        self._config, self._unit = config, feed_format(config.feed).unit
        self._begin()
        self.has_failed = False
        """Whether anything could not be judged."""

    def _begin(self) -> None:
        self._refusals, self._sample = Refusals(self._config.feed, sample=_LOOKS), RowSample()
        self._ahead_s = np.zeros(0)
        self._refused: str | None = None
        self._speed: SpeedCheck | None = None

    def observe(self, values: Sequence[bytes | None], batch: Batch, arrived_us: ArrivalTimes) -> None:
        """Take a sample of decoded messages. ``arrived_us``: when they arrived, µs UTC. Never raises."""
        with self._unharmed():
            self._refusals.add(values, batch, arrived_us)
            if not len(batch.rows):
                return
            self._sample.take(batch.rows)
            arrived = arrived_us if isinstance(arrived_us, int) else arrived_us[batch.index]
            ahead = (batch.rows["time"][-_MOST_TIMES:] - np.broadcast_to(arrived, len(batch.rows))[-_MOST_TIMES:]) / 1e6
            self._ahead_s = np.concatenate([self._ahead_s, ahead])[-_MOST_TIMES:]

    def found(self) -> dict[str, str]:
        """What seems to be wrong now: for each kind a sentence with the remedy. Never raises."""
        sentences: dict[str, str | None] = {}
        with self._unharmed():
            sentences = {"refused": self._of_refused(), **self._of_rows(self._sample.newest())}
            if self._config.window.lateness == "append-time" and len(self._ahead_s) >= _LEAST_TIMES:
                sentences["zone"] = local_as_utc(self._ahead_s, "the moments when they arrive")
        return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        """Whatever fails inside: say so once, begin a new sample, and go on, because reading must not end by it."""
        try:
            yield
        except Exception as error:
            if not self.has_failed:
                log.error(
                    "whether the feed is misread could not be judged; reading goes on", error=type(error).__name__
                )
            self.has_failed = True
            self._begin()

    def _of_refused(self) -> str | None:
        newest = self._refusals
        if newest.taken + newest.refused >= _LEAST_EVENTS:
            self._refused = None
            if newest.refused > newest.taken:
                (reason, count), *_ = newest.counts.most_common(1)
                why = newest.cause_of(reason)
                counted = f"{count} of {newest.taken + newest.refused} events are refused as {reason}"
                self._refused = counted if why is None else f"{counted}: {why}"
            self._refusals = Refusals(self._config.feed, sample=_LOOKS)
        return self._refused

    def _of_rows(self, rows: NDArray[np.void]) -> dict[str, str | None]:
        times, feed = rows["time"].astype(np.int64), self._config.feed
        users = events_as_users(rows["user"], times, user_field(feed), 4 * LEAST_SPREAD_US)
        enough = len(rows) >= LEAST_EVENTS
        bound = bound_problem(rows["value"], self._config.value) if enough else None
        check = check_rows(rows, self._unit, NEWEST)
        if check.is_compared and self._config.value.is_speed:
            self._speed = check if check.contradicts or check.is_doubtful else None
        if self._speed is None:
            return {"users": users, "bound": bound}
        check, sets_unit = self._speed, feed.format in ("canonical", "declared")
        remedy = "set feed.speed_unit" if sets_unit else "set feed.format = 'declared', and declare fields and unit"
        likely = f"they would fit {' or '.join(check.fits)}: {remedy}" if check.fits else _NO_UNIT
        read = f"the reported speeds, read as {self._unit},"
        if not check.is_doubtful:
            return {"users": users, "bound": bound, "speed": f"{read} contradict the positions; {likely}"}
        doubt = f"{read} agree badly with the positions; {likely}, if whoever runs the feed says so"
        return {"users": users, "bound": bound, DOUBTFUL_SPEED: doubt}
