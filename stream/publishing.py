"""Outbox to Kafka: idempotent producer, close marker last; then every message is read back before state is deleted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import RecordMetadata

from stream.connection import kafka_options
from stream.ledger import LedgerError
from stream.releases import WINDOW, Message
from stream.sections.servers import KafkaConfig

_CONFIRM_SECONDS = 60.0
_TOPIC_SECONDS = 10.0


class PublishError(RuntimeError):
    """Kafka does not show a message it acknowledged; the window stays committed and is published again."""


def make_producer(kafka: KafkaConfig) -> AIOKafkaProducer:
    """Producer for releases: idempotent, acknowledged by all in-sync replicas."""
    return AIOKafkaProducer(
        **kafka_options(kafka),
        enable_idempotence=True,
        acks="all",
        compression_type="lz4",
        linger_ms=5,
        max_request_size=64 * 1024 * 1024,
    )


class KafkaPublisher:
    """Publishes committed windows and confirms them by reading the output topics. At-least-once, same bytes."""

    def __init__(self, producer: AIOKafkaProducer, kafka: KafkaConfig) -> None:
        self._producer = producer
        self._kafka = kafka
        self._sent: dict[str, RecordMetadata] = {}

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all messages, the close marker after the others are acknowledged."""
        *releases, marker = messages
        self._sent = {}
        for batch in (releases, [marker]):
            waiting = [await self._send(message) for message in batch]
            for message, metadata in zip(batch, await asyncio.gather(*waiting), strict=True):
                self._sent[message.ce_id] = metadata

    async def _send(self, message: Message) -> asyncio.Future[RecordMetadata]:
        future: asyncio.Future[RecordMetadata] = await self._producer.send(
            message.topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers),
            timestamp_ms=message.timestamp_ms,
        )
        return future

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Read every message back at the offset Kafka gave it and compare the bytes; raises :class:`PublishError`."""
        expected: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        for message in messages:
            metadata = self._sent[message.ce_id]
            expected[TopicPartition(metadata.topic, metadata.partition)][metadata.offset] = message.value
        consumer = AIOKafkaConsumer(**kafka_options(self._kafka), enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign(list(expected))
            for partition, offsets in expected.items():
                consumer.seek(partition, min(offsets))
            async with asyncio.timeout(_CONFIRM_SECONDS):
                while expected:
                    for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                        _match(expected, partition, {record.offset: record.value for record in records})
        except TimeoutError:
            missing = sum(map(len, expected.values()))
            raise PublishError(
                f"{missing} of {len(messages)} messages were not read back; they are sent again"
            ) from None
        finally:
            await consumer.stop()


def _match(
    expected: dict[TopicPartition, dict[int, bytes]], partition: TopicPartition, found: dict[int, bytes | None]
) -> None:
    wanted = expected.get(partition)
    if wanted is None:
        return
    for offset in list(wanted):
        if offset in found:
            if found[offset] != wanted[offset]:
                raise PublishError(f"{partition.topic}/{partition.partition} holds other bytes at offset {offset}")
            del wanted[offset]
    if not wanted:
        del expected[partition]


async def _partitions(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    """Partitions of the topic of close markers; a topic just created may take a moment to show."""
    deadline = time.monotonic() + _TOPIC_SECONDS
    while True:
        found = [TopicPartition(WINDOW, number) for number in consumer.partitions_for_topic(WINDOW) or ()]
        if found or time.monotonic() > deadline:
            return found
        await consumer._client.force_metadata_update()
        await asyncio.sleep(0.2)


async def last_marker(kafka: KafkaConfig, feed: str) -> bytes | None:
    """Value of the newest close marker of ``feed`` in the output topic, by the end of its window; None where there is none.

    Raises :class:`LedgerError` where the broker does not show the topic: then nobody knows what was released.
    """
    consumer = AIOKafkaConsumer(**kafka_options(kafka), enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = await _partitions(consumer)
        if not partitions:
            raise LedgerError(
                f"Kafka at {kafka.bootstrap} shows no topic {WINDOW}, so whether feed {feed!r} released anything is unknown. "
                "Run 'hexveil topics create', let this user describe and read the topic, or wait for the broker"
            )
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        starts = await consumer.beginning_offsets(partitions)
        remaining = {partition for partition in partitions if ends[partition] > starts[partition]}
        for partition in partitions:
            consumer.seek(partition, starts[partition])
        newest: tuple[int, int, int, bytes] | None = None
        while remaining:
            for records in (await consumer.getmany(*remaining, timeout_ms=1000)).values():
                for record in records:
                    if record.key == feed.encode() and record.value is not None:
                        found = (record.timestamp, record.partition, record.offset, record.value)
                        newest = max(newest, found) if newest else found
            for partition in list(remaining):
                if await consumer.position(partition) >= ends[partition]:
                    remaining.discard(partition)
        return None if newest is None else newest[3]
    finally:
        await consumer.stop()
