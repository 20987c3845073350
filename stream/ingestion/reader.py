"""Reads Kafka into Redis: aiokafka reads batches, the decoder makes columns, and one Lua call per batch stores them."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from dpcore.arrays import IntArray
from stream.config import Config
from stream.ingestion.bounded import BoundedConsumer, FeedRecord
from stream.ingestion.decoding import ArrivalTimes, Batch, Decoder, Reason
from stream.ingestion.log_ends import first_after, log_ends
from stream.messages.message import Message, rejected_message
from stream.metrics import OperatorMetrics
from stream.servers.connection import connect
from stream.storage.row_store import Appended, AppendTimes, Behind, ReadThrough, RowStore
from stream.windows import CLOCK_MARGIN_US

log = structlog.get_logger()

BATCH_MESSAGES = 10_000
"""Messages per poll. Decoding them takes about 30 ms, so heartbeats never wait long."""
_COMMIT_SECONDS = 5.0
_LAG_SECONDS = 5.0
LOOK_SECONDS = 1.0
_BACKOFF_SECONDS = (0.1, 5.0)
_REPORTS_WAITING = 1_000
_REPORT_SECONDS = 5.0

T = TypeVar("T")
Report = Callable[[Message], Awaitable[None]]
Observe = Callable[[Sequence[bytes | None], Batch, ArrivalTimes], None]


class Ingestor(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the feed's topic into Redis until stopped. Kafka offsets are committed after the append.

    Redis, not Kafka, stores which messages were read: reading continues at the offset in Redis. Every append states the
    offset from which its batch was read without a gap, so Redis can refuse a batch that would skip messages.
    """

    def __init__(
        self,
        config: Config,
        redis: Redis,
        decoder: Decoder,
        metrics: OperatorMetrics,
        report: Report,
        observe: Observe = lambda values, batch, arrived_us: None,
    ) -> None:
        """``observe``: called with messages, what they became, and when they arrived."""
        self._config = config
        self._rows = RowStore.of(redis, config)
        self._decoder = decoder
        self._metrics = metrics
        self._report = report
        self._observe = observe
        self.bounded: BoundedConsumer | None = None
        """The consumer of the feed; none before :meth:`run`."""
        self._stopping = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._reports: asyncio.Queue[Message] = asyncio.Queue(_REPORTS_WAITING)
        self._position: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, tuple[int, int]] = {}
        """For partitions not yet read to their end: an offset at which each ended, and when (µs UTC)."""
        window = config.window
        self._by_append_time = window.lateness == "append-time"
        delay_us = window.allowed_delay // timedelta(microseconds=1)
        self._deadline = functools.lru_cache(4096)(lambda slot: config.slotting.window(slot).end * 1_000_000 + delay_us)
        self.assigned = asyncio.Event()
        """Set once this worker was assigned partitions."""
        self.topic_exists = True
        """Whether the brokers, when they were last asked, knew the input topic."""

    async def run(self) -> None:
        """Read until :meth:`stop`. While Redis is down, wait and try the same batch again.

        Raises :class:`stream.storage.row_store.StateError` if the feed belongs to another user key.
        """
        self._done.clear()
        beside = [asyncio.create_task(self._send_reports())]
        try:
            await self._retry(lambda: self._rows.claim_key(self._decoder.key_fingerprint))
            consumer = await connect(self._new_consumer, self._stopping.is_set)
            consumer.subscribe([self._config.feed.topic], listener=self)
            beside.append(asyncio.create_task(self._look_for_ends(consumer)))
            await self._read()
        except (RedisError, KafkaError) as error:
            if not self._stopping.is_set():
                raise
            log.warning("stopped while a server was unreachable; what was not stored is read again", reason=str(error))
        finally:
            self._stopping.set()  # the clients may lose a cancellation while their servers are away
            for task in beside:
                task.cancel()
            if self.bounded is not None:
                await self.bounded.kafka.stop()
            self._done.set()

    def _new_consumer(self) -> AIOKafkaConsumer:
        self.bounded = BoundedConsumer(self._config.kafka, self._config.kafka.group)
        return self.bounded.kafka

    async def stop(self) -> None:
        """Finish the current batch and leave the consumer group."""
        self._stopping.set()
        await self._done.wait()

    async def _read(self) -> None:
        assert self.bounded is not None
        bounded, consumer = self.bounded, self.bounded.kafka
        committed = measured = time.monotonic()
        pause, longest = _BACKOFF_SECONDS
        while not self._stopping.is_set():
            try:
                # Positions are noted before any await, because a rebalance during one may seek.
                batches = await bounded.gather(BATCH_MESSAGES, 250, self._advance)
            except OffsetOutOfRangeError as error:
                with contextlib.suppress(KafkaError):  # then the next fetch asks for it again
                    await self._find_again(consumer, error.args[0])
                continue
            except NoOffsetForPartitionError:
                continue  # polled before on_partitions_assigned has set the position
            except KafkaError as error:
                log.warning("cannot read from kafka, trying again", reason=str(error), seconds=pause)
                # The consumer is already past what it read before the error, but did not return it.
                for partition in consumer.assignment() & self._position.keys():
                    self._go_to(partition, self._position[partition])
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
                continue
            pause = _BACKOFF_SECONDS[0]
            for partition, begin, records in batches:
                await self._take(partition, records, begin)
            for partition, first, last in bounded.skipped:
                self._reject(Reason.UNREADABLE_BATCH, partition, first, last, last - first + 1)
            bounded.skipped.clear()
            await self._note_ends(consumer)
            now = time.monotonic()
            if now - committed >= _COMMIT_SECONDS:
                committed = now
                await self._commit(consumer)
            if now - measured >= _LAG_SECONDS:
                measured = now
                self._measure_lag(consumer)
        await self._commit(consumer)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reports.join(), _REPORT_SECONDS)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Continue each partition at the offset in Redis."""
        try:
            offsets = await self._retry(self._rows.next_offsets)
        except RedisError:
            return  # only while stopping
        for partition in assigned:
            known = offsets.get(_name(partition))
            self._go_to(partition, 0 if known is None else known)
            if known is not None:
                self._stored[partition] = known
        self.assigned.set()
        log.info("partitions assigned", partitions=sorted(partition.partition for partition in assigned))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget the partitions. If the next owner is faster, Redis skips what it stored of a batch in progress."""
        for partition in revoked:
            self._position.pop(partition, None)
            self._stored.pop(partition, None)
            self._ends.pop(partition, None)

    async def _look_for_ends(self, consumer: AIOKafkaConsumer) -> None:
        """Look up the ends of partitions repeatedly. While that fails, windows wait."""
        while not self._stopping.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look(consumer)
            except (KafkaError, RedisError, OSError) as error:
                log.warning("cannot look up the ends of partitions, trying again", reason=str(error))

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        # The time is read before the ends, so everything appended before that time lies before the ends.
        now_us = await self._rows.now_us() - CLOCK_MARGIN_US
        if await consumer._client.force_metadata_update():
            numbers = consumer.partitions_for_topic(self._config.feed.topic) or ()
            names = [_name(TopicPartition(self._config.feed.topic, number)) for number in sorted(numbers)]
            if self.topic_exists and not names:
                log.error("the input topic was deleted: nothing can be read", topic=self._config.feed.topic)
            self.topic_exists = bool(names)
            if names:
                await self._rows.list_partitions(names, now_us)
        known = await log_ends(consumer, consumer.assignment())
        if known.unknown:
            reasons = sorted(set(known.unknown.values()))
            log.warning("cannot look up the ends of partitions, trying again", reason="; ".join(reasons))
        for partition, end in known.ends.items():
            if end < self._stored.get(partition, 0):
                continue  # messages that were read are gone, so the next fetch fails
            # One that was not reached yet stays, unless a new leader's log is shorter and may never reach it.
            if partition not in self._ends or end < self._ends[partition][0]:
                self._ends[partition] = (end, now_us)

    async def _note_ends(self, consumer: AIOKafkaConsumer) -> None:
        """Store which partitions were read to the end that was looked up. Everything read so far is already in Redis.

        One of which Redis lost rows is read again from where Redis is, because it may never get a message that would
        show it.
        """
        reached, mine = [], consumer.assignment()
        for partition, (end, time_us) in list(self._ends.items()):
            if partition not in mine:
                del self._ends[partition]
                continue
            try:
                position = await consumer.position(partition)
            except IllegalStateError:
                continue  # revoked meanwhile
            if position >= end:
                reached.append(ReadThrough(_name(partition), self._stored.get(partition), position, time_us))
        if not reached:
            return
        behind = await self._retry(lambda: self._rows.read_through(reached))
        for entry in reached:
            topic, _, number = entry.partition.rpartition("/")
            partition = TopicPartition(topic, int(number))
            self._ends.pop(partition, None)
            if entry.partition in behind:
                self._read_again(partition, behind[entry.partition])
            else:
                self._stored[partition] = self._position[partition] = entry.position

    def _go_to(self, partition: TopicPartition, offset: int) -> None:
        assert self.bounded is not None
        try:
            self.bounded.kafka.seek(partition, offset)
        except IllegalStateError:
            return  # revoked meanwhile; its next owner asks state as well
        self._position[partition] = offset

    def _read_again(self, partition: TopicPartition, offset: int) -> None:
        log.warning("redis was set back, reading again", partition=partition.partition, offset=offset)
        self._stored[partition] = offset
        self._go_to(partition, offset)

    def _advance(self, partition: TopicPartition, records: Sequence[FeedRecord]) -> int:
        """The offset from which ``records`` were read without a gap. Moves the position past them."""
        begin: int = min(self._position.get(partition, records[0].offset), records[0].offset)
        self._position[partition] = records[-1].offset + 1
        return begin

    async def _find_again(self, consumer: AIOKafkaConsumer, lost: Mapping[TopicPartition, int]) -> None:
        """Continue logs that no longer have our offset: where retention has moved their beginning, there.

        If a log ends before our offset, a power failure took its end, or the topic is new. What was appended before the
        time until which it was read was read, so reading continues behind that.
        """
        begins = await consumer.beginning_offsets(list(lost))
        for partition, begin in begins.items():
            stored, unread = self._stored.get(partition), begin
            if stored is not None:
                if begin <= stored and self._by_append_time:
                    read_us = await self._retry(functools.partial(self._rows.read_until, _name(partition)))
                    unread = await first_after(consumer, partition, read_us)
                missing = max(0, begin - stored)
                self._metrics.events_lost.inc(missing)
                log.error(
                    "the log no longer has the offset, continuing at another",
                    partition=partition.partition,
                    offset=stored,
                    beginning=begin,
                    continuing=unread,
                    lost=missing,
                )
                await self._retry(functools.partial(self._rows.move, _name(partition), stored, unread))
                self._stored[partition] = unread
            self._go_to(partition, unread)

    async def _take(self, partition: TopicPartition, records: Sequence[FeedRecord], begin: int) -> None:
        values = [record.value for record in records]
        offsets = np.array([record.offset for record in records], np.int64)
        appended = await self.arrivals(records)
        # If the clock goes back, or a new leader's clock is behind, append times must still not decrease.
        rising = np.maximum.accumulate(appended) if isinstance(appended, np.ndarray) else None
        while values:
            batch = self._decoder.decode_part(values, appended)
            self._observe(values, batch, appended)
            if not await self._store(partition, begin, batch, offsets, rising):
                return
            taken = batch.messages
            begin, values, offsets = int(offsets[taken - 1]) + 1, values[taken:], offsets[taken:]
            if rising is not None and not isinstance(appended, int):
                appended, rising = appended[taken:], rising[taken:]

    async def _store(
        self,
        partition: TopicPartition,
        begin: int,
        batch: Batch,
        offsets: IntArray,
        rising: IntArray | None,
    ) -> bool:
        """Store the batch; False if reading must continue elsewhere. Events of one message are stored by one call."""
        last = batch.messages - 1
        following = int(offsets[last]) + 1
        arrivals = None if rising is None else AppendTimes(rising[batch.index], int(rising[last]), self._deadline)

        async def append() -> Appended:
            return await self._rows.append(
                _name(partition),
                begin,
                following,
                batch.rows,
                offsets[batch.index],
                batch.slots,
                arrivals,
                begun=partition in self._stored,
            )

        try:
            result = await self._retry(append)
        except Behind as behind:
            self._read_again(partition, behind.stored)
            return False
        self._stored[partition] = following
        self._metrics.events_ingested.inc(result.appended)
        self._metrics.events_duplicate.inc(result.duplicates)
        self._metrics.events_late.inc(result.late)
        self._metrics.events_skewed.inc(result.skewed)
        for reason, *where in batch.refusals(offsets):
            self._reject(reason, partition, *where)
        return True

    async def arrivals(self, records: Sequence[FeedRecord]) -> ArrivalTimes:
        """When the broker appended each record, µs UTC; for recordings, the present time."""
        if not self._by_append_time:
            return await self._retry(self._rows.now_us)
        return np.fromiter((record.appended_us for record in records), np.int64, len(records))

    def _reject(
        self, reason: Reason, partition: TopicPartition, first: int, last: int, count: int, element: int = -1
    ) -> None:
        self._metrics.events_rejected.labels(reason.value).inc(count)
        feed = self._config.feed.name
        message = rejected_message(
            feed, reason.value, partition.topic, partition.partition, first, last, count, element
        )
        try:
            self._reports.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("rejections not reported, because their topic is too slow", reason=reason.value, count=count)

    async def _send_reports(self) -> None:
        """Send reports from a queue of their own, so that a topic that does not answer never delays the feed."""
        while not self._stopping.is_set():
            message = await self._reports.get()
            try:
                await self._report(message)
            except KafkaError as error:
                log.warning("rejections not reported", reason=str(error))
            finally:
                self._reports.task_done()

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        pause, longest = _BACKOFF_SECONDS
        while True:
            try:
                return await call()
            except (RedisError, OSError) as error:
                self._metrics.redis_errors.inc()
                log.warning("redis unreachable, trying again", reason=str(error), seconds=pause)
                if self._stopping.is_set():
                    raise RedisConnectionError(str(error)) from error
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)
                pause = min(2 * pause, longest)

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        mine = consumer.assignment()
        offsets = {partition: offset for partition, offset in self._stored.items() if partition in mine}
        if not offsets:
            return
        try:
            await consumer.commit(offsets)
        except (IllegalStateError, KafkaError) as error:
            log.info("offsets not committed to kafka; redis has them", reason=str(error))

    def _measure_lag(self, consumer: AIOKafkaConsumer) -> None:
        mine = consumer.assignment()
        marks = ((consumer.highwater(tp), offset) for tp, offset in self._stored.items() if tp in mine)
        self._metrics.consumer_lag.set(sum(max(mark - offset, 0) for mark, offset in marks if mark is not None))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
