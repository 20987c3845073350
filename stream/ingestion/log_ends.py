"""How far the log of a partition reaches on its leader, with the messages that readers are not shown yet.

A leader shows a message once every follower in sync has it. While it waits for one that died or hangs, for up to
``replica.lag.time.max.ms``, messages that it appended stay invisible: the end that readers are usually told (the high
watermark) lies before them, and the topic looks read to its end. Here the leader is asked for the end of its log.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, NoError, for_code
from aiokafka.protocol.offset import OffsetRequest

_AS_READER, _AS_DEBUGGER = -1, -2
"""Replica ids of ListOffsets. Only a leader answers a reader. A debugger is told the end of the log by any replica."""
_LATEST = -1
_OWN_CONNECTION = 2
"""The group of connections of these requests, beside aiokafka's own two. On one that fetches, each would wait behind a
fetch that finds nothing, for half a second."""


class LogEnds(NamedTuple):
    """``ends``: the offset behind the last message that the leader of each partition has appended. ``unknown``: why
    there is none of the other partitions.
    """

    ends: dict[TopicPartition, int]
    unknown: dict[TopicPartition, str]


async def log_ends(consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition]) -> LogEnds:
    """The ends of the logs of ``partitions`` on those who lead them by the consumer's metadata.

    A partition's end is unknown if its leader is, or does not answer, or is no leader any more.
    """
    of_node: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    known = LogEnds({}, {})
    for partition in partitions:
        node = consumer._client.cluster.leader_for_partition(partition)
        if node is not None and node >= 0:
            of_node[node].append(partition)
        else:
            known.unknown[partition] = "no leader"
    for answer in await asyncio.gather(*(_ends_on(consumer, node, led) for node, led in of_node.items())):
        known.ends.update(answer.ends)
        known.unknown.update(answer.unknown)
    return known


async def _ends_on(consumer: AIOKafkaConsumer, node: int, led: list[TopicPartition]) -> LogEnds:
    try:
        shown = await _asked(consumer, node, led, _AS_READER)
        whole = await _asked(consumer, node, list(shown.ends), _AS_DEBUGGER)
    except (KafkaError, OSError) as error:
        return LogEnds({}, dict.fromkeys(led, f"broker {node}: {error!r}"))
    return LogEnds(whole.ends, shown.unknown | whole.unknown)


async def _asked(consumer: AIOKafkaConsumer, node: int, led: list[TopicPartition], replica: int) -> LogEnds:
    answered, topics = LogEnds({}, {}), defaultdict(list)
    for partition in led:
        topics[partition.topic].append((partition.partition, _LATEST))
    if not topics:
        return answered
    request = OffsetRequest(replica, 0, list(topics.items()))
    response = await consumer._client.send(node, request, group=_OWN_CONNECTION)
    for topic, answers in response.topics:
        for number, error, _, end in answers:
            if error == NoError.errno:
                answered.ends[TopicPartition(topic, number)] = end
            else:
                reason = f"broker {node}: {for_code(error).__name__} to replica id {replica}"
                answered.unknown[TopicPartition(topic, number)] = reason
    return answered


async def first_after(consumer: AIOKafkaConsumer, partition: TopicPartition, time_us: int) -> int:
    """Offset of the first message that was appended to ``partition`` after ``time_us`` (µs UTC), or the log's end."""
    ends = await consumer.end_offsets([partition])
    later = await consumer.offsets_for_times({partition: time_us // 1000 + 1})
    return int(ends[partition] if later[partition] is None else later[partition].offset)
