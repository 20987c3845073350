"""Kafka batches to state: aiokafka reads, the decoder makes columns, one Lua call per partition batch stores them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.closing import slotting_of
from stream.config import Config
from stream.events import REASONS, Batch, Decoder
from stream.releases import Message, rejected_message
from stream.state import Appended, State

log = structlog.get_logger()

BATCH_MESSAGES = 10_000
"""Messages per poll: some 80 ms of decoding, so heartbeats never wait long."""
_COMMIT_SECONDS = 5.0
_LAG_SECONDS = 5.0
_BACKOFF_SECONDS = (0.1, 5.0)

T = TypeVar("T")
Report = Callable[[Message], Awaitable[None]]


class IngestMetrics(Protocol):
    """Counters that ingestion moves; :class:`stream.metrics.OperatorMetrics` has them."""

    events_ingested: Counter
    events_rejected: Counter
    events_late: Counter
    events_duplicate: Counter
    events_lost: Counter
    redis_errors: Counter
    consumer_lag: Gauge


class Ingestor(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reads the feed's topic into Redis until stopped. Kafka offsets are committed after the append."""

    def __init__(self, config: Config, redis: Redis, decoder: Decoder, metrics: IngestMetrics, report: Report) -> None:
        self._config = config
        self._state = State(redis, config.feed.name)
        self._decoder = decoder
        self._metrics = metrics
        self._report = report
        self._slotting = slotting_of(config)
        self._consumer: AIOKafkaConsumer | None = None
        self.assigned = asyncio.Event()
        self._stopping = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._stored: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Read until :meth:`stop`; survives Redis being away by waiting and trying the same batch again."""
        self._consumer = consumer = AIOKafkaConsumer(
            bootstrap_servers=self._config.kafka.bootstrap,
            group_id=self._config.kafka.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=64 << 20,
            max_partition_fetch_bytes=8 << 20,
            metadata_max_age_ms=30_000,
        )
        self._done.clear()
        try:
            await consumer.start()
            consumer.subscribe([self._config.feed.topic], listener=self)
            await self._read(consumer)
        finally:
            await consumer.stop()
            self._done.set()

    async def stop(self) -> None:
        """Finish the batch at hand, leave the group."""
        self._stopping.set()
        await self._done.wait()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        committed = measured = time.monotonic()
        while not self._stopping.is_set():
            batches = await consumer.getmany(timeout_ms=250, max_records=BATCH_MESSAGES)
            for partition, records in batches.items():
                await self._take(partition, records)
            now = time.monotonic()
            if now - committed >= _COMMIT_SECONDS:
                committed = now
                await self._commit(consumer)
            if now - measured >= _LAG_SECONDS:
                measured = now
                self._measure_lag(consumer)
        await self._commit(consumer)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Go on where state ends: Redis, not Kafka, knows what was taken."""
        assert self._consumer is not None
        assigned = list(assigned)
        offsets = await self._retry(self._state.next_offsets)

        async def expect() -> None:
            await self._state.expect(map(_name, assigned), time.time_ns() // 1000)

        await self._retry(expect)
        for partition in assigned:
            known = offsets.get(_name(partition))
            if known is not None:
                self._consumer.seek(partition, known)
                self._stored[partition] = known
        self.assigned.set()
        log.info("partitions assigned", partitions=sorted(partition.partition for partition in assigned))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget them; a batch still at hand is trimmed by its offsets if the next owner was faster."""
        for partition in revoked:
            self._stored.pop(partition, None)

    async def _take(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        now_us = time.time_ns() // 1000
        batch = self._decoder.decode([record.value for record in records], now_us)
        offsets = np.fromiter((record.offset for record in records), np.int64, len(records))
        first, following = int(offsets[0]), int(offsets[-1]) + 1
        expected = self._stored.get(partition)
        if expected is not None and first > expected:
            self._metrics.events_lost.inc(first - expected)
            log.warning("offsets missing", partition=partition.partition, first=expected, count=first - expected)
        slots = self._slotting.slot_starts(batch.rows["time"].astype(np.int64))

        async def append() -> Appended:
            return await self._state.append(
                _name(partition), first, following, batch.rows, offsets[batch.index], slots, now_us
            )

        result = await self._retry(append)
        self._stored[partition] = following
        self._metrics.events_ingested.inc(result.appended)
        self._metrics.events_duplicate.inc(result.duplicates)
        self._metrics.events_late.inc(result.late)
        if len(batch.rejected):
            await self._report_rejected(partition, batch, offsets)

    async def _report_rejected(self, partition: TopicPartition, batch: Batch, offsets: NDArray[np.int64]) -> None:
        for code in np.unique(batch.reason).tolist():
            where = offsets[batch.rejected[batch.reason == code]]
            reason = REASONS[code].value
            self._metrics.events_rejected.labels(reason).inc(len(where))
            message = rejected_message(
                self._config.feed.name,
                reason,
                partition.topic,
                partition.partition,
                int(where[0]),
                int(where[-1]),
                len(where),
            )
            try:
                await self._report(message)
            except KafkaError as error:
                log.warning("rejections not reported", reason=str(error))

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        pause, longest = _BACKOFF_SECONDS
        while True:
            try:
                return await call()
            except RedisError as error:
                self._metrics.redis_errors.inc()
                log.warning("redis unreachable, trying again", reason=str(error), seconds=pause)
                if self._stopping.is_set():
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)

    async def _commit(self, consumer: AIOKafkaConsumer) -> None:
        mine = consumer.assignment()
        offsets = {partition: offset for partition, offset in self._stored.items() if partition in mine}
        if not offsets:
            return
        try:
            await consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError, KafkaError) as error:
            log.info("offsets not committed; state keeps them", reason=str(error))

    def _measure_lag(self, consumer: AIOKafkaConsumer) -> None:
        marks = ((consumer.highwater(partition), offset) for partition, offset in self._stored.items())
        self._metrics.consumer_lag.set(sum(max(mark - offset, 0) for mark, offset in marks if mark is not None))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
