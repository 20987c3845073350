"""Feeds a view from the output topics: own consumer, no group, from the beginning of what retention kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream.config import KafkaConfig
from stream.connection import kafka_options
from stream.releases import HEXAGON_SPEED, WINDOW
from stream.serve.metrics import PublicMetrics
from stream.serve.view import View, WindowView

log = structlog.get_logger()

_RETRY_SECONDS = 2.0


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
        consumer = AIOKafkaConsumer(
            HEXAGON_SPEED, WINDOW, **kafka_options(self._kafka), enable_auto_commit=False, group_id=None
        )
        await consumer.start()
        try:
            names = (HEXAGON_SPEED, WINDOW)
            partitions = [TopicPartition(name, p) for name in names for p in consumer.partitions_for_topic(name) or ()]
            if not partitions:
                await asyncio.sleep(_RETRY_SECONDS)
                return
            consumer.unsubscribe()
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            ends = await consumer.end_offsets(partitions)
            while True:
                for records in (await consumer.getmany(timeout_ms=500, max_records=5000)).values():
                    for record in records:
                        self._take(record.topic, dict(record.headers), record.value)
                if not self.caught_up.is_set():
                    positions = [await consumer.position(partition) >= ends[partition] for partition in partitions]
                    if all(positions):
                        self.caught_up.set()
        finally:
            await consumer.stop()

    def _take(self, topic: str, headers: dict[str, bytes], value: bytes | None) -> None:
        self._metrics.messages.inc()
        outcome = self._view.add(topic, headers.get("ce_id", b"").decode(errors="replace"), value or b"")
        if outcome == "invalid":
            self._metrics.invalid.inc()
        elif outcome == "duplicate":
            self._metrics.duplicate.inc()
        elif outcome == "completed":
            window = self._view.completed[-1]
            self._metrics.windows.inc()
            self._metrics.last_window_seconds.set(datetime.fromisoformat(window.end).timestamp())
            self._on_complete(window)
