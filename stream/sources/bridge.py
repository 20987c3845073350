"""Reads a topic of somebody else's and sends its events, with the speeds that the feed asks for, to the feed's own topic.

An event is read again until it was stored: offsets are committed after the events have reached the feed's topic and the last
fixes were kept. What is read again gives the same events, or none if its fixes were kept, and the service counts each once. So
restarts, rebalances and deaths lose and change nothing where fixes are kept (relation "values").

Speeds are derived for each partition alone, and a fix is forgotten when no later one that is compared with it can be in time. So
under "participation" the speeds of a vehicle that count follow from its own events alone, if the topic is keyed by vehicle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.ingestion.arrays import MAX_EVENTS, elements, may_hold_several
from stream.ingestion.bounded import BoundedConsumer, FeedRecord
from stream.sources.derived_events import DerivedEvents, late_us
from stream.sources.live import Sink
from stream.sources.polling import FetchError
from stream.sources.snapshot_events import Memory, Tally
from stream.sources.snapshots import SnapshotError

log = structlog.get_logger()

_AT_ONCE = 5_000
_PAUSE_S = 2.0
_REPORT_SECONDS = 60.0


class Bridge(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Sends the events of ``topic``, which are in ``file_format``, to a sink."""

    def __init__(self, config: Config, topic: str, file_format: str) -> None:
        self._config, self._topic, self._format = config, topic, file_format
        self._one_each = config.relation == NeighbouringRelation.PARTICIPATION
        self._late_us = late_us(config)
        self._events: dict[TopicPartition, DerivedEvents] = {}
        self._next: dict[TopicPartition, int] = {}
        self._memory: Memory | None = None
        self.tally = Tally()

    def remember_by(self, memory: Memory | None) -> None:
        """Recall earlier fixes from ``memory``, and keep new ones in it."""
        self._memory = memory

    async def run(self, sink: Sink, stopping: asyncio.Event) -> None:
        """Feed ``sink`` until ``stopping`` is set. Raises :class:`FetchError` if Kafka does not answer at the start or has no such topic."""
        bounded = BoundedConsumer(self._config.kafka, f"{self._config.kafka.group}-bridge-{self._topic}")
        consumer = bounded.kafka
        try:
            await consumer.start()
            if self._topic not in await consumer.topics():
                raise FetchError(f"Kafka at {self._config.kafka.bootstrap} has no topic {self._topic!r}", final=True)
            consumer.subscribe([self._topic], listener=self)
            async with sink:
                await self._read(bounded, sink, stopping)
        except (KafkaError, OSError) as error:
            raise FetchError(f"Kafka at {self._config.kafka.bootstrap} does not answer: {error}", final=True) from None
        finally:
            await consumer.stop()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Continue at the offsets of the group."""

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget the partitions: another process may go on with them, and derive from what was kept."""
        for partition in revoked:
            self._next.pop(partition, None)
            self._events.pop(partition, None)

    async def _read(self, bounded: BoundedConsumer, sink: Sink, stopping: asyncio.Event) -> None:
        consumer, reported = bounded.kafka, time.monotonic()
        while not stopping.is_set():
            try:
                batches = await bounded.gather(_AT_ONCE, 250, self._advance)
            except NoOffsetForPartitionError as error:
                await _to_beginning(consumer, [error.args[0]])
                continue
            except OffsetOutOfRangeError as error:
                log.error("kafka has deleted events before they were read; going on with those that are left")
                await _to_beginning(consumer, list(error.args[0]))
                continue
            except KafkaError as error:
                log.warning("cannot read from kafka, trying again", reason=str(error), seconds=_PAUSE_S)
                self._go_back(consumer)
                await asyncio.sleep(_PAUSE_S)
                continue
            for partition, _, records in batches:
                await self._store(sink, partition, records)
                await _commit(consumer, partition, records[-1].offset + 1)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                log.info("fed", events=self.tally.events, derived=self.tally.derived)

    def _advance(self, partition: TopicPartition, records: list[FeedRecord]) -> int:
        self._next[partition] = records[-1].offset + 1
        return records[0].offset

    def _go_back(self, consumer: AIOKafkaConsumer) -> None:
        """After an error the consumer is past what it read before, but did not return it."""
        for partition, offset in self._next.items():
            with suppress(IllegalStateError):  # revoked meanwhile
                consumer.seek(partition, offset)

    async def _store(self, sink: Sink, partition: TopicPartition, records: list[FeedRecord]) -> None:
        """Send what the records of a partition give, then keep the last fixes."""
        events = self._of(partition)
        try:
            messages, _ = await asyncio.to_thread(events.of, self._values(records), self._clock(records[0].appended_us))
        except SnapshotError as error:
            log.warning("messages are skipped", reason=str(error), messages=len(records))
            self._events.pop(partition, None)
        else:
            if messages.values:
                await sink.take(messages)
            await asyncio.to_thread(events.keep)

    def _clock(self, appended_us: int) -> int | None:
        return None if self._late_us is None or appended_us < 0 else appended_us - self._late_us

    def _of(self, partition: TopicPartition) -> DerivedEvents:
        events = self._events.get(partition)
        if events is None:
            events = self._events[partition] = DerivedEvents(self._config.feed, self._config.slotting, self._format)
            events.tally = self.tally
            events.remember_by(self._memory)
        return events

    def _values(self, records: list[FeedRecord]) -> Iterator[bytes | None]:
        """The events of messages. Under "participation" a message with several is refused, as the service refuses it."""
        for record in records:
            value = record.value
            several = elements(value) if value is not None and may_hold_several(value) else None
            if several is None:
                yield value
            elif self._one_each or len(several) > MAX_EVENTS:
                self.tally.refused["several-events" if self._one_each else "too-large"] += 1
            else:
                yield from several


async def _to_beginning(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
    with suppress(IllegalStateError):  # revoked meanwhile
        await consumer.seek_to_beginning(*partitions)


async def _commit(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
    try:
        await consumer.commit({partition: offset})
    except (CommitFailedError, IllegalStateError):
        log.info("the partition was revoked; its next owner reads these events again", partition=partition.partition)
    except KafkaError as error:
        log.warning("cannot commit, going on", reason=str(error))
