"""How far the log of a partition reaches on its leader, with the messages that readers are not shown yet.

A leader shows a message once every follower in sync has it. While it waits for one that died or hangs, for up to
``replica.lag.time.max.ms``, messages that it appended stay invisible: the end that readers are usually told (the high watermark)
lies before them, and the topic looks read to its end. Here the leader is asked for the end of its log.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, NoError
from aiokafka.protocol.offset import OffsetRequest

_AS_READER, _AS_DEBUGGER = -1, -2
"""Replica ids of ListOffsets. Only a leader answers a reader. A debugger is told the end of the log by any replica."""
_LATEST = -1


async def log_ends(consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset behind the last message that each partition's leader has appended, by the consumer's metadata.

    Partitions are left out whose leader is unknown, does not answer, or is no leader any more.
    """
    of_node: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        node = consumer._client.cluster.leader_for_partition(partition)
        if node is not None and node >= 0:
            of_node[node].append(partition)
    answers = await asyncio.gather(*(_ends_on(consumer, node, led) for node, led in of_node.items()))
    return {partition: end for answer in answers for partition, end in answer.items()}


async def _ends_on(consumer: AIOKafkaConsumer, node: int, led: list[TopicPartition]) -> dict[TopicPartition, int]:
    try:
        shown = await _asked(consumer, node, led, _AS_READER)
        return await _asked(consumer, node, list(shown), _AS_DEBUGGER) if shown else {}
    except (KafkaError, OSError):
        return {}


async def _asked(
    consumer: AIOKafkaConsumer, node: int, led: list[TopicPartition], replica: int
) -> dict[TopicPartition, int]:
    topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition in led:
        topics[partition.topic].append((partition.partition, _LATEST))
    response = await consumer._client.send(node, OffsetRequest(replica, 0, list(topics.items())))
    return {
        TopicPartition(topic, number): end
        for topic, answers in response.topics
        for number, error, _, end in answers
        if error == NoError.errno
    }
