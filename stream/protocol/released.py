"""Reads everything that the output topics hold, once, for those who verify it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, TopicPartition

from stream.config.servers import KafkaConfig
from stream.messages.verification import TOPICS, Record
from stream.servers.connection import kafka_options, start_client

_POLL_MS = 500


async def each_released(kafka: KafkaConfig) -> AsyncIterator[Record]:
    """Every message that the output topics held when reading began, in the order of each partition.

    Errors of Kafka are passed on.
    """
    consumer = AIOKafkaConsumer(
        **kafka_options(kafka), enable_auto_commit=False, group_id=None, auto_offset_reset="earliest"
    )
    await start_client(consumer)
    try:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(topic, n) for topic in TOPICS for n in consumer.partitions_for_topic(topic) or ()]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                for record in records:
                    headers = {name: value.decode(errors="replace") for name, value in record.headers}
                    where = f"{record.topic}/{partition.partition}, offset {record.offset}"
                    yield Record(record.topic, headers, record.value or b"", where)
    finally:
        await consumer.stop()
