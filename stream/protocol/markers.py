"""Reads the close markers of the output topic. They show what was released, and so what Redis has to remember."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import LeaderNotAvailableError

from stream.config.servers import KafkaConfig
from stream.connection import kafka_options, start_client
from stream.ingestion.log_ends import log_ends
from stream.messages.message import WINDOW
from stream.storage.ledger import LedgerError

TOPIC_SECONDS = 10.0
_ANSWER_SECONDS = 60.0


class MarkedWindow(msgspec.Struct, frozen=True):
    """Start and end of a window, as messages write them."""

    start: str
    end: str


class Marker(msgspec.Struct, frozen=True):
    """What a close marker says about the ledger."""

    window: MarkedWindow
    generation: str
    digest: str
    sequence: int


@dataclass(frozen=True)
class Published:
    """The close markers of a feed up to ``positions``: the last one by number, and all generations that they name."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    last: Marker | None = None
    rank: tuple[int, int, int, int] = (0, 0, 0, 0)
    generations: frozenset[str] = frozenset()


async def read_markers(kafka: KafkaConfig, feed: str, known: Published | None = None) -> Published:
    """All close markers of ``feed``; reading continues where ``known`` ended.

    Raises :class:`LedgerError` if the broker does not show the topic, because then nobody knows what was released.
    """
    consumer = AIOKafkaConsumer(**kafka_options(kafka), enable_auto_commit=False, auto_offset_reset="earliest")
    await start_client(consumer)
    try:
        partitions = await _partitions(consumer)
        if not partitions:
            raise LedgerError(
                f"Kafka at {kafka.bootstrap} shows no topic {WINDOW}, so whether feed {feed!r} released anything is unknown. "
                "Run 'hexveil topics create', let this user describe and read the topic, or wait for the broker"
            )
        return await _read(consumer, partitions, feed.encode(), known or Published())
    finally:
        await consumer.stop()


def _marker(value: bytes, where: str) -> Marker:
    try:
        return msgspec.json.decode(value, type=Marker)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LedgerError(
            f"{where} holds something that is not a close marker ({error}), so what was released is unknown. Only workers may write there; "
            "find out who else did"
        ) from None


async def _partitions(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    """Partitions of the topic of close markers. Waits some seconds, because brokers list a new topic only after a moment."""
    deadline = time.monotonic() + TOPIC_SECONDS
    while True:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(WINDOW, number) for number in consumer.partitions_for_topic(WINDOW) or ()]
        if partitions or time.monotonic() > deadline:
            return partitions
        await asyncio.sleep(0.2)


async def _ends(consumer: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of the log, with markers that are not shown yet, so that none is missed. Waits for leaders."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        known = await log_ends(consumer, partitions)
        if not known.unknown:
            return known.ends
        if time.monotonic() > deadline:
            reasons = "; ".join(sorted(set(known.unknown.values())))
            raise LeaderNotAvailableError(f"the ends of {WINDOW} are unknown for {_ANSWER_SECONDS:.0f} s: {reasons}")
        await asyncio.sleep(0.2)
        await consumer._client.force_metadata_update()


async def _read(
    consumer: AIOKafkaConsumer, partitions: list[TopicPartition], key: bytes, known: Published
) -> Published:
    # Before the assignment: its first fetch would hold the connection for half a second if there is nothing new.
    ends = await _ends(consumer, partitions)
    starts = await consumer.beginning_offsets(partitions)
    begins = {}
    for partition in partitions:
        position = known.positions.get(partition, 0)
        # A topic that ends before the known position was created anew, so it is read from its beginning.
        begin = max(position, starts[partition]) if position <= ends[partition] else starts[partition]
        if begin < ends[partition]:
            begins[partition] = begin
    consumer.assign(list(begins))
    for partition, begin in begins.items():
        consumer.seek(partition, begin)
    remaining = set(begins)
    last, rank, generations = known.last, known.rank, set(known.generations)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while remaining:
        batches = await consumer.getmany(*remaining, timeout_ms=1000)
        if batches:
            deadline = time.monotonic() + _ANSWER_SECONDS
        elif time.monotonic() > deadline:
            raise LedgerError(
                f"Kafka shows that {WINDOW} holds more, but sent nothing for {_ANSWER_SECONDS:.0f} s, so what was released is "
                "unknown. Check the broker; the worker tries again"
            )
        for records in batches.values():
            for record in records:
                if record.key != key or record.value is None:
                    continue
                marker = _marker(record.value, f"{record.topic}/{record.partition}, offset {record.offset}")
                generations.add(marker.generation)
                place = (marker.sequence, record.timestamp, record.partition, record.offset)
                if last is None or place > rank:
                    last, rank = marker, place
        for partition in list(remaining):
            if await consumer.position(partition) >= ends[partition]:
                remaining.discard(partition)
    return Published(dict(ends), last, rank, frozenset(generations))
