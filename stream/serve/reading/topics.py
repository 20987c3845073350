"""Reads the output topics with a consumer without group, from the first message of the oldest window to keep.

Close markers order the windows. At the start all markers are read, so that the store knows which windows to keep.
Later, a marker is used only after everything was read that was in the topics when the marker was seen. So windows
become complete in the order of their markers, which is the same for every reader, whatever the order of partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from stream.config.servers import KafkaConfig
from stream.messages.message import WINDOW
from stream.serve.reading.intake import Arrival, Intake
from stream.serve.received import TOPICS
from stream.servers.connection import kafka_options, start_client

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
        async with self._client() as asking:
            await asking._client.force_metadata_update()
            numbers = {topic: asking.partitions_for_topic(topic) or set() for topic in TOPICS}
            problem = _problem(numbers)
            if problem is not None:
                log.warning("topics unusable", reason=problem)
                return
            partitions = [TopicPartition(topic, number) for topic in TOPICS for number in numbers[topic]]
            async with self._client() as consumer:
                reached = await _markers(intake, consumer, asking)
            async with self._client() as consumer:
                await _start(intake, consumer, asking, partitions, reached)
                await _follow(intake, consumer, asking, partitions)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AIOKafkaConsumer]:
        # If retention overtakes the reader, it continues with the oldest message that exists, not with the newest.
        consumer = AIOKafkaConsumer(
            **kafka_options(self._kafka), enable_auto_commit=False, group_id=None, auto_offset_reset="earliest"
        )
        await start_client(consumer)
        try:
            yield consumer
        finally:
            await consumer.stop()


async def _markers(intake: Intake, consumer: AIOKafkaConsumer, asking: AIOKafkaConsumer) -> int:
    """Read the close markers; returns the position that was reached."""
    marker = TopicPartition(WINDOW, 0)
    starts, ends = await asking.beginning_offsets([marker]), await asking.end_offsets([marker])
    consumer.assign([marker])
    await _take_until(intake, consumer, starts, ends)
    return int(await consumer.position(marker))


async def _start(
    intake: Intake,
    consumer: AIOKafkaConsumer,
    asking: AIOKafkaConsumer,
    partitions: list[TopicPartition],
    reached: int,
) -> None:
    """Read all other messages, beginning with the oldest window to keep. The markers before ``reached`` were read."""
    marker, others = TopicPartition(WINDOW, 0), [p for p in partitions if p.topic != WINDOW]
    kept = [_milliseconds(window.end) for window in intake.view.windows.values()]
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
            f"{WINDOW} has {len(partitions[WINDOW])} partitions, which have no common order; create "
            "it "
            "again with 1 partition"
        )
    return None


async def _reached(consumer: AIOKafkaConsumer, ends: Positions) -> bool:
    for partition, end in ends.items():
        if await consumer.position(partition) < end:
            return False
    return True


def _milliseconds(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)
