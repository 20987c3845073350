"""Reads topics from their beginning to their present end."""

from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stream.messages.message import HEXAGON_SPEED, REJECTED, WINDOW

PARTITIONS = 4
"""Partitions of the input topics that tests of sources create."""


async def records_of(bootstrap: str, topics: Sequence[str]) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Every record of ``topics``, by partition, in order."""
    async with AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(topic, p) for topic in topics for p in consumer.partitions_for_topic(topic) or ()]
        consumer.unsubscribe()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in sorted(partitions)}
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for partition, more in (await consumer.getmany(timeout_ms=200)).items():
                records[partition] += more
        return records


async def read_all(
    bootstrap: str, feed: str, topics: Sequence[str] = (HEXAGON_SPEED, WINDOW, REJECTED)
) -> list[ConsumerRecord]:
    """Every record of ``feed`` in ``topics``."""
    source = f"/hexveil/{feed}".encode()
    read = await records_of(bootstrap, topics)
    return [
        record for records in read.values() for record in records if dict(record.headers).get("ce_source") == source
    ]


async def stored(bootstrap: str, topic: str) -> list[list[tuple[bytes | None, bytes]]]:
    """(Key, value) of every record of an input topic, by partition, in order."""
    read = await records_of(bootstrap, [topic])
    return [[(record.key, record.value) for record in records] for records in read.values()]
