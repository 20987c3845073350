"""Reads topics from their beginning to their present end."""

from collections import defaultdict
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from stream.messages.message import HEXAGON_SPEED, REJECTED, WINDOW

PARTITIONS = 4
"""Partitions of the input topics that tests of sources create."""


async def read_topics(bootstrap: str, topics: Sequence[str]) -> list[ConsumerRecord]:
    """Every record of ``topics``, those of a partition in their order."""
    async with AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, enable_auto_commit=False) as consumer:
        partitions = [TopicPartition(topic, p) for topic in topics for p in consumer.partitions_for_topic(topic) or ()]
        consumer.unsubscribe()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for read in (await consumer.getmany(timeout_ms=200)).values():
                records += read
        return records


async def read_all(
    bootstrap: str, feed: str, topics: Sequence[str] = (HEXAGON_SPEED, WINDOW, REJECTED)
) -> list[ConsumerRecord]:
    """Every record of ``feed`` in ``topics``."""
    source = f"/hexveil/{feed}".encode()
    return [r for r in await read_topics(bootstrap, topics) if dict(r.headers).get("ce_source") == source]


async def versions(
    bootstrap: str, feed: str, topics: Sequence[str] = (HEXAGON_SPEED, WINDOW, REJECTED)
) -> dict[str, set[bytes]]:
    """Every value that was published of ``feed``, by the identifier of its message."""
    values = defaultdict[str, set[bytes]](set)
    for record in await read_all(bootstrap, feed, topics):
        values[dict(record.headers)["ce_id"].decode()].add(record.value)
    return values


async def stored(bootstrap: str, topic: str) -> list[list[tuple[bytes | None, bytes]]]:
    """(Key, value) of every record of an input topic, by partition, in order."""
    records = await read_topics(bootstrap, [topic])
    return [[(r.key, r.value) for r in records if r.partition == number] for number in range(PARTITIONS)]
