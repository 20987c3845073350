"""Feeds a view from the output topics: own consumer, no group, from the first message of the oldest window kept.

Markers order the windows. At the start all markers are read, so that the view knows which windows it keeps; later a
marker is taken once everything that was in the topics when it was seen has been read. So windows are finished in the
order of their markers, whatever the partitions' order, and that order is the same for every reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from stream.config.servers import KafkaConfig
from stream.connection import kafka_options
from stream.messages.message import WINDOW
from stream.serve.metrics import PublicMetrics
from stream.serve.window_store import TOPICS, View, WindowView

log = structlog.get_logger()

_RETRY_SECONDS = 2.0
_POLL_MS = 500
_BATCH = 5000

Positions = dict[TopicPartition, int]


class TopicReader:
    """Reads until cancelled; ``caught_up`` is set once everything present at the start was read."""

    def __init__(
        self, kafka: KafkaConfig, view: View, metrics: PublicMetrics, on_complete: Callable[[WindowView], None]
    ) -> None:
        self._kafka = kafka
        self._view = view
        self._metrics = metrics
        self._on_complete = on_complete
        self.caught_up = asyncio.Event()

    async def run(self) -> None:
        """Read for ever; a broker that goes away is tried again."""
        while True:
            try:
                await self._read()
            except (KafkaError, OSError) as error:
                log.warning("kafka unreachable", reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        # Where retention overtakes the reader it goes on with the oldest message kept, not with the newest.
        consumer = AIOKafkaConsumer(
            **kafka_options(self._kafka), enable_auto_commit=False, group_id=None, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            await consumer._client.force_metadata_update()
            found = {topic: consumer.partitions_for_topic(topic) or set() for topic in TOPICS}
            problem = _problem(found)
            if problem is not None:
                log.warning("topics unusable", reason=problem)
                return
            partitions = [TopicPartition(topic, number) for topic in TOPICS for number in found[topic]]
            await self._start(consumer, partitions)
            await self._follow(consumer, partitions)
        finally:
            await consumer.stop()

    async def _start(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        """Take the markers, then everything else from the oldest window kept on."""
        marker, others = TopicPartition(WINDOW, 0), [p for p in partitions if p.topic != WINDOW]
        consumer.assign([marker])
        starts = await consumer.beginning_offsets([marker])
        await self._take_until(consumer, starts, await consumer.end_offsets([marker]))
        reached = await consumer.position(marker)
        kept = [_milliseconds(window.end) for window in self._view.windows.values()]
        ends = await consumer.end_offsets(others)
        # A message carries its window's end as timestamp: none of a kept window lies before the first that is as young.
        first = await consumer.offsets_for_times({p: min(kept, default=0) for p in others})
        begin = {p: ends[p] if (found := first[p]) is None else found.offset for p in others}
        consumer.assign(partitions)
        consumer.seek(marker, reached)
        consumer.pause(marker)
        await self._take_until(consumer, begin, ends)
        consumer.resume(marker)
        self.caught_up.set()

    async def _take_until(self, consumer: AIOKafkaConsumer, begin: Positions, ends: Positions) -> None:
        for partition, offset in begin.items():
            consumer.seek(partition, offset)
        while not await _reached(consumer, ends):
            for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH)).values():
                for record in records:
                    self._take(record)

    async def _follow(self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> None:
        others = [p for p in partitions if p.topic != WINDOW]
        held: list[ConsumerRecord] = []
        ends: Positions = {}
        while True:
            batch = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH)
            for partition, records in batch.items():
                if partition.topic == WINDOW:
                    held += records
                    ends = await consumer.end_offsets(others)
                else:
                    for record in records:
                        self._take(record)
            if held and await _reached(consumer, ends):
                for record in held:
                    self._take(record)
                held = []

    def _take(self, record: ConsumerRecord) -> None:
        self._metrics.messages.inc()
        ce_id = (dict(record.headers).get("ce_id") or b"").decode(errors="replace")
        outcome = self._view.add(record.topic, ce_id, record.value or b"", record.offset + 1)
        if outcome == "invalid":
            self._metrics.invalid.inc()
        elif outcome == "duplicate":
            self._metrics.duplicate.inc()
        elif outcome == "completed" and (window := self._view.last_completed):
            self._metrics.windows.inc()
            self._metrics.last_window_seconds.set(_milliseconds(window.end) / 1000)
            if self.caught_up.is_set():
                self._on_complete(window)


def _problem(found: dict[str, set[int]]) -> str | None:
    missing = [topic for topic, numbers in found.items() if not numbers]
    if missing:
        return f"{', '.join(missing)} do not exist; run: hexveil topics create"
    if len(found[WINDOW]) > 1:
        return f"{WINDOW} has {len(found[WINDOW])} partitions, which have no order; make it anew with 1"
    return None


async def _reached(consumer: AIOKafkaConsumer, ends: Positions) -> bool:
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return False
    return True


def _milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
