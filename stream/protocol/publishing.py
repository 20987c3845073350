"""Publishes committed windows: an idempotent producer sends the close marker last, then every message is read back."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import RecordMetadata

from stream.config.servers import KafkaConfig
from stream.messages.message import OUTPUT_TOPICS, Message
from stream.servers.connection import kafka_options, reading

_CONFIRM_SECONDS = 60.0


class PublishError(RuntimeError):
    """Kafka does not return a message that it acknowledged. The window stays committed and is published again."""


class _Producer(AIOKafkaProducer):  # type: ignore[misc]
    """A producer that keeps the metadata of all topics that existed when it started.

    aiokafka first requests the metadata of all topics, but later only of the topics that were added explicitly. After
    it is given a new topic, it forgets the leaders of the others, and messages that are queued for them expire.
    """

    async def start(self) -> None:
        await super().start()
        for topic in self.client.cluster.topics().intersection(OUTPUT_TOPICS):
            await self.client.add_topic(topic)


def make_producer(kafka: KafkaConfig) -> AIOKafkaProducer:
    """Producer for releases: idempotent, acknowledged by all in-sync replicas."""
    return _Producer(
        **kafka_options(kafka),
        enable_idempotence=True,
        acks="all",
        compression_type="lz4",
        linger_ms=5,
        max_request_size=64 * 1024 * 1024,
    )


class KafkaPublisher:
    """Publishes committed windows at least once with the same bytes, and confirms them by reading the output topics."""

    def __init__(self, producer: AIOKafkaProducer, kafka: KafkaConfig) -> None:
        self._producer = producer
        self._kafka = kafka
        self._sent: dict[str, RecordMetadata] = {}

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all messages; the close marker is sent after the others were acknowledged."""
        *releases, marker = messages
        self._sent = {}
        for batch in (releases, [marker]):
            waiting = [await self.send(message) for message in batch]
            for message, metadata in zip(batch, await asyncio.gather(*waiting), strict=True):
                self._sent[message.ce_id] = metadata

    async def send(self, message: Message) -> asyncio.Future[RecordMetadata]:
        """Hand ``message`` to the producer; the future tells where the broker stored it."""
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
        try:
            async with reading(self._kafka) as consumer:
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
                f"{missing} of {len(messages)} messages were not read back; they will be sent again"
            ) from None


def _match(
    expected: dict[TopicPartition, dict[int, bytes]], partition: TopicPartition, read: dict[int, bytes | None]
) -> None:
    wanted = expected.get(partition)
    if wanted is None:
        return
    for offset in list(wanted):
        if offset in read:
            if read[offset] != wanted[offset]:
                raise PublishError(f"{partition.topic}/{partition.partition} holds other bytes at offset {offset}")
            del wanted[offset]
    if not wanted:
        del expected[partition]
