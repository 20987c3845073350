"""The newest messages of a Kafka topic, with the times at which the broker appended them, for an inspection."""

from __future__ import annotations

import asyncio
from itertools import chain

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from stream.config.servers import KafkaConfig
from stream.connection import kafka_options
from stream.inspection.observations import Observations
from stream.inspection.reading import InspectionError, observe_messages

_READ_SECONDS = 30.0
_AT_ONCE = 5_000
_LOG_APPEND_TIME = 1


class TopicUnreachableError(RuntimeError):
    """Kafka does not answer."""


async def observe_topic(kafka: KafkaConfig, topic: str, limit: int) -> Observations:
    """The newest ``limit`` messages of ``topic``, in equal parts from its partitions. It joins no group and commits nothing.

    Raises :class:`TopicUnreachableError` and :class:`InspectionError`.
    """
    # It subscribes to nothing: a subscription to a missing topic would wait for it without end.
    consumer = AIOKafkaConsumer(**kafka_options(kafka), group_id=None, enable_auto_commit=False)
    try:
        await consumer.start()
        there = topic in await consumer.topics()
        values, arrived = await _newest(consumer, topic, limit) if there else ([], [])
    except (KafkaError, OSError) as error:
        raise TopicUnreachableError(f"Kafka at {kafka.bootstrap} does not answer: {error}") from None
    finally:
        await consumer.stop()
    if not values:
        raise InspectionError(
            f"{topic} is neither a file, nor an address, nor a topic with messages of Kafka at {kafka.bootstrap}"
        )
    return observe_messages(values[:limit], np.array(arrived[:limit], dtype=np.int64))


async def _newest(consumer: AIOKafkaConsumer, topic: str, limit: int) -> tuple[list[bytes], list[int]]:
    """Messages, and when the broker appended each (µs UTC), below 0 if it does not say."""
    values: list[bytes] = []
    arrived: list[int] = []
    await consumer._client.set_topics([topic])
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    left = {partition for partition in partitions if begins[partition] < ends[partition]}
    for partition in left:
        consumer.seek(partition, max(begins[partition], ends[partition] - -(-limit // len(left))))
    clock = asyncio.get_running_loop().time
    until = clock() + _READ_SECONDS
    while left and len(values) < limit and clock() < until:
        batches = await consumer.getmany(*left, timeout_ms=1_000, max_records=_AT_ONCE)
        for record in chain.from_iterable(batches.values()):
            values.append(record.value or b"")
            arrived.append(record.timestamp * 1000 if record.timestamp_type == _LOG_APPEND_TIME else -1)
        left = {partition for partition in left if await consumer.position(partition) < ends[partition]}
    return values, arrived
