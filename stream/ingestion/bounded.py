"""A Kafka consumer with bounded memory, whatever producers send.

A batch that :mod:`stream.ingestion.unpacking` refuses, or that cannot be read, is skipped and noted, and reading
continues after it. So is one that was damaged in the broker's log, which aiokafka would fetch again without end, and
nothing else. Of a message this consumer keeps only what the service needs, and of one above ``MAX_ARRAY_BYTES`` only
the fact that it was too large.

aiokafka has no setting for such limits, so this module replaces two of aiokafka's classes by its own. Its tests fail if
another version of aiokafka does not have these classes.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import aiokafka.consumer.fetcher as fetcher
import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError

from stream.config.servers import KafkaConfig
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.unpacking import scratch
from stream.servers.connection import kafka_options

log = structlog.get_logger()

MAX_FETCH_BYTES = 8 << 20
"""Largest stored size of one partition's part in one answer of the broker; a single batch may be as large."""
MAX_GATHERED_BYTES = 32 << 20
"""Once this many bytes were read or unpacked at a time, no message is taken: at most one more batch is unpacked."""
_FETCHES = 3
"""How often a batch is fetched whose bytes are not those that were sent, before it is skipped."""
_LOG_APPEND_TIME = 1
_TOO_LARGE = bytes(MAX_ARRAY_BYTES + 1)
"""Replaces the value of every message above the limit."""


class FeedRecord(msgspec.Struct, frozen=True, gc=False):
    """One message. ``appended_us``: when the broker appended it, µs UTC; below 0 if the broker does not say.

    It is a struct, because a named tuple takes four times as long to make, and there is one for each message.
    """

    offset: int
    appended_us: int
    value: bytes | None


class Skipped(NamedTuple):
    """Offsets ``first`` to ``last`` of a partition, whose batch was left out."""

    partition: TopicPartition
    first: int
    last: int


class BoundedConsumer:
    """An :class:`AIOKafkaConsumer` (``kafka``) of the feed, and the batches that it skipped (``skipped``); the caller
    clears them.

    ``group``: the consumer group; None for a reader that is assigned its partitions and commits nothing.
    """

    def __init__(self, config: KafkaConfig, group: str | None) -> None:
        self.skipped: list[Skipped] = []
        self.bytes_read = 0
        """Bytes of the messages that were read at a time; of a packed batch, of what was unpacked and packed."""
        self._failure: KafkaError | None = None
        self._damaged: dict[TopicPartition, tuple[int, int]] = {}
        self.kafka = AIOKafkaConsumer(
            **kafka_options(config),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_bytes=64 << 20,
            max_partition_fetch_bytes=MAX_FETCH_BYTES,
            metadata_max_age_ms=30_000,
            value_deserializer=_Limits(self),
        )

    def fetches_again(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the damaged batch at ``offset`` is fetched once more, because its way here may have damaged it."""
        last, count = self._damaged.get(partition, (offset, 0))
        count = count + 1 if last == offset else 1
        self._damaged[partition] = offset, count
        return count < _FETCHES

    @property
    def has_enough(self) -> bool:
        """Whether no further message is taken at this time."""
        return self.bytes_read >= MAX_GATHERED_BYTES

    def skip(self, partition: TopicPartition, first: int, last: int, reason: str) -> None:
        """Note that a batch is left out, and say so in the log."""
        log.error(
            "a batch of messages is skipped",
            partition=partition.partition,
            first_offset=first,
            last_offset=last,
            reason=reason,
        )
        self.skipped.append(Skipped(partition, first, last))

    async def gather(
        self, messages: int, timeout_ms: int, begun: Callable[[TopicPartition, list[FeedRecord]], int]
    ) -> list[tuple[TopicPartition, int, list[FeedRecord]]]:
        """At most ``messages`` messages: for each run of records its partition, the offset that ``begun`` returns, and
        the records.

        ``begun`` is called before anything else can happen to the partition. If a partition was assigned anew
        meanwhile, its records come as separate runs. An error of the broker is raised only after the messages before it
        were returned.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        gathered: dict[TopicPartition, list[tuple[int, list[FeedRecord]]]] = {}
        count = self.bytes_read = 0
        while count < messages and not self.has_enough:
            try:
                batches = await self.kafka.getmany(timeout_ms=0 if count else timeout_ms, max_records=messages - count)
            except KafkaError as error:
                if not gathered:
                    raise
                self._failure = error  # first return what was read before the error
                break
            if not batches:
                break
            for partition, records in batches.items():
                count += len(records)
                begin = begun(partition, records)
                parts = gathered.setdefault(partition, [])
                if parts and begin == parts[-1][1][-1].offset + 1:
                    parts[-1][1].extend(records)
                else:
                    parts.append((begin, records))
        return [(partition, begin, records) for partition, parts in gathered.items() for begin, records in parts]


class _Limits:
    """Marks the consumers whose records are bounded; aiokafka passes this object to the records of every answer."""

    def __init__(self, consumer: BoundedConsumer) -> None:
        self.consumer = consumer

    def __call__(self, value: bytes) -> bytes:
        return value


class _BoundedResult(fetcher.FetchResult):  # type: ignore[misc]  # aiokafka has no types
    """The part of one partition in one answer of the broker, of which no more is taken once enough bytes were read."""

    _partition_records: Any

    def __init__(self, tp: TopicPartition, *, assignment: Any, partition_records: Any, backoff: float) -> None:
        super().__init__(tp, assignment=assignment, partition_records=partition_records, backoff=backoff)
        partition_records.log_end = assignment.state_value(tp).highwater

    def getall(self, max_records: int | None = None) -> list[Any]:
        """At most so many records. What is left is taken by the next call."""
        consumer = getattr(self._partition_records, "consumer", None)
        if consumer is None or max_records is None:
            return list(super().getall(max_records))
        records: list[Any] = []
        if consumer.has_enough or not self.check_assignment(self._topic_partition) or not self.has_more():
            return records
        for record in self._partition_records:
            records.append(record)
            if len(records) >= max_records or consumer.has_enough:
                self._update_position()
                return records
        self._update_position()
        self._partition_records = None
        return records


class _BoundedRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types
    """Records of one partition in one answer of the broker. ``log_end``: the offset after its last message then."""

    log_end: float = math.inf
    is_packed = False
    """Whether the bytes of the current batch were counted when it was unpacked."""

    def __init__(self, tp: TopicPartition, records: Any, *rest: Any) -> None:
        super().__init__(tp, records, *rest)
        if isinstance(self._value_deserializer, _Limits):
            self.partition, self.consumer = tp, self._value_deserializer.consumer
            self._check_crcs = False  # the batches compare them
            self._records = _Batches(records, self)
            self._consumer_record = self._feed_record

    def __iter__(self) -> Iterator[FeedRecord]:
        # The generator itself: aiokafka's own iterator calls a function of Python for each record, and drops the
        # generator at its end.
        records: Iterator[FeedRecord] | None = self._records_iterator
        return iter(()) if records is None else records

    def _feed_record(self, tp: TopicPartition, record: Any) -> FeedRecord:
        value = record.value
        if value is not None:
            if not self.is_packed:
                self.consumer.bytes_read += len(value)
            if len(value) > MAX_ARRAY_BYTES:
                value = _TOO_LARGE
        return FeedRecord(
            record.offset, record.timestamp * 1000 if record.timestamp_type == _LOG_APPEND_TIME else -1, value
        )


class _Batches:
    """The batches of an answer; each of them can be skipped.

    Where the log is damaged so that no batch can be told from the next, the answer ends. The brokers do not read on
    there either; other partitions are read.
    """

    def __init__(self, records: Any, reading: _BoundedRecords) -> None:
        self._records, self._reading = records, reading
        self._readable = self._read()
        self._next: _Batch | _Damaged | None = None

    def has_next(self) -> bool:
        """Whether another batch is taken. After batches unpacked in vain, the rest is fetched again."""
        if self._reading.consumer.has_enough:
            return False
        if self._next is None:
            self._next = next(self._readable, None)
        return self._next is not None

    def next_batch(self) -> "_Batch | _Damaged | None":
        batch, self._next = self._next, None
        return batch

    def _read(self) -> "Iterator[_Batch | _Damaged]":
        batch = self._take()
        while batch is not None:
            if self._is_sound(batch):
                yield _Batch(batch, self._reading)
                batch = self._take()
            elif self._reading.consumer.fetches_again(self._reading.partition, batch.base_offset):
                return
            else:
                following = self._take()
                yield _Damaged(self._reading, self._end_of(batch, following))
                batch = following

    def _take(self) -> Any:
        try:
            return self._records.next_batch() if self._records.has_next() else None
        except CorruptRecordException as error:
            log.error("the log is damaged", partition=self._reading.partition.partition, reason=str(error))
            return None

    def _is_sound(self, batch: Any) -> bool:
        """Whether its checksum is right, and its offsets, which it does not cover, lie in what is left of the log."""
        return (
            bool(batch.validate_crc()) and self._reading.next_fetch_offset < batch.next_offset <= self._reading.log_end
        )

    def _end_of(self, damaged: Any, following: Any) -> int:
        """The offset after a batch whose own word is not believed: the next one's, within what is left of the log."""
        end = damaged.next_offset if following is None else following.base_offset
        return int(max(min(end, self._reading.log_end), self._reading.next_fetch_offset + 1))


class _Batch:
    """A batch as it was sent."""

    def __init__(self, batch: Any, reading: _BoundedRecords) -> None:
        self._batch, self._reading = batch, reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        batch, reading, before = self._batch, self._reading, scratch.bytes_unpacked
        try:
            try:
                records = iter(batch)  # which unpacks it
            finally:
                unpacked = scratch.bytes_unpacked - before
                reading.is_packed = unpacked > 0
                reading.consumer.bytes_read += unpacked
            yield from records
        except Exception as error:  # whatever error its bytes cause, the batch is skipped and the feed continues
            reading.consumer.skip(reading.partition, batch.base_offset, batch.next_offset - 1, str(error))


class _Damaged:
    """Stands for a batch that was damaged in the log. None of its bytes is used."""

    is_control_batch = False

    def __init__(self, reading: _BoundedRecords, next_offset: int) -> None:
        self._reading, self.next_offset = reading, next_offset

    def __iter__(self) -> Iterator[Any]:
        reading, last = self._reading, self.next_offset - 1
        reading.consumer.skip(reading.partition, reading.next_fetch_offset, last, "damaged in the broker's log")
        return iter(())


fetcher.PartitionRecords, fetcher.FetchResult = _BoundedRecords, _BoundedResult
