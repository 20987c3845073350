"""The newest messages of a Kafka topic, with the times at which the broker appended them, for an inspection.

They are read within the worker's bounds: a batch that unpacks to more is skipped, and of a larger message only that is
known.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from numpy.typing import NDArray

from stream.config.servers import KafkaConfig
from stream.diagnosis.observations import InspectionError
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.bounded import BoundedConsumer, FeedRecord
from stream.ingestion.decoding import Reason
from stream.servers.connection import start_client

_READ_SECONDS = 30.0
_AT_ONCE = 5_000
_MOST_BYTES = 256 << 20
"""Bytes of messages that are kept in memory; an event has about a hundred."""


class TopicUnreachableError(RuntimeError):
    """Kafka does not answer."""


async def newest_messages(
    kafka: KafkaConfig, topic: str, limit: int
) -> tuple[list[bytes], NDArray[np.int64], Counter[str]]:
    """The newest ``limit`` messages of ``topic``, in equal parts from its partitions, when each arrived (µs UTC), and
    how many were left out, by reason. It joins no group and commits nothing.

    Raises :class:`TopicUnreachableError` and :class:`InspectionError`.
    """
    # It subscribes to nothing: a subscription to a missing topic would wait for it without end.
    bounded, unread = BoundedConsumer(kafka, group=None), Counter[str]()
    consumer = bounded.kafka
    try:
        await start_client(consumer)
        there = topic in await consumer.topics()
        values, arrived = await _newest(bounded, topic, limit, unread) if there else ([], [])
    except (KafkaError, OSError) as error:
        raise TopicUnreachableError(f"Kafka at {kafka.bootstrap} does not answer: {error}") from None
    finally:
        await consumer.stop()
    if not values:
        left_out = "".join(f"; {count} {reason}" for reason, count in unread.items())
        raise InspectionError(
            f"{topic} is neither a file, nor an address, nor a topic with messages of Kafka at "
            f"{kafka.bootstrap}{left_out}"
        )
    return values, np.array(arrived, dtype=np.int64), unread


async def _newest(
    bounded: BoundedConsumer, topic: str, limit: int, unread: Counter[str]
) -> tuple[list[bytes], list[int]]:
    """Messages, and when the broker appended each (µs UTC), below 0 if it does not say. ``unread`` counts those left
    out."""
    consumer = bounded.kafka
    values: list[bytes] = []
    arrived: list[int] = []
    ends = await _assign_newest(consumer, topic, limit)
    left, size = set(ends), 0
    clock = asyncio.get_running_loop().time
    until = clock() + _READ_SECONDS
    while left and len(values) < limit and size < _MOST_BYTES and clock() < until:
        for _, _, records in await bounded.gather(_AT_ONCE, 1_000, _first_offset):
            for record in records:
                if record.value is not None and len(record.value) > MAX_ARRAY_BYTES:
                    unread[Reason.TOO_LARGE] += 1
                    continue
                values.append(record.value or b"")
                arrived.append(record.appended_us)
        size += bounded.bytes_read
        left = {partition for partition in left if await consumer.position(partition) < ends[partition]}
    skipped = sum(last - first + 1 for _, first, last in bounded.skipped)
    if skipped:
        unread[Reason.UNREADABLE_BATCH] += skipped
    return values, arrived


async def _assign_newest(consumer: AIOKafkaConsumer, topic: str, limit: int) -> dict[TopicPartition, int]:
    """Let ``consumer`` begin ``limit`` messages before the end of ``topic``, in equal parts; the ends of partitions
    with messages."""
    await consumer._client.set_topics([topic])
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    wanted = {partition: ends[partition] for partition in partitions if begins[partition] < ends[partition]}
    if wanted:
        consumer.assign(list(wanted))
    for partition, end in wanted.items():
        consumer.seek(partition, max(begins[partition], end - -(-limit // len(wanted))))
    return wanted


def _first_offset(_: TopicPartition, records: list[FeedRecord]) -> int:
    return records[0].offset
