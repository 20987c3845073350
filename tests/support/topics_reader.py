"""Reads topics from their beginning to their present end."""

from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stream.messages.message import HEXAGON_SPEED, REJECTED, WINDOW

PARTITIONS = 4
"""Partitions of the input topics that tests of sources create."""


async def read_all(
    bootstrap: str, feed: str, topics: Sequence[str] = (HEXAGON_SPEED, WINDOW, REJECTED)
) -> list[ConsumerRecord]:
    """Every record of ``feed`` in ``topics``."""
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, p) for topic in topics for p in consumer.partitions_for_topic(topic) or ()]
        consumer.unsubscribe()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        published: list[ConsumerRecord] = []
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                published += [r for r in records if dict(r.headers).get("ce_source") == f"/hexveil/{feed}".encode()]
        return published
    finally:
        await consumer.stop()


async def stored(bootstrap: str, topic: str) -> list[list[tuple[bytes | None, bytes]]]:
    """(Key, value) of every record of an input topic, by partition, in order."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        records: dict[TopicPartition, list[tuple[bytes | None, bytes]]] = {p: [] for p in partitions}
        while any(len(records[p]) < ends[p] for p in partitions):
            for p, more in (await consumer.getmany(timeout_ms=1000)).items():
                records[p] += [(record.key, record.value) for record in more]
        return list(records.values())
    finally:
        await consumer.stop()
