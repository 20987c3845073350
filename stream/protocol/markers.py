"""Reads the output topics: their close markers, which show what Redis has to remember, or all that they hold.

A topic's identity is a random UUID that the cluster draws when it creates the topic. Two clusters may have the same id,
because container images format their storage with a constant one; two topics never have.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, LeaderNotAvailableError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from stream.config.servers import KafkaConfig
from stream.ingestion.log_ends import log_ends
from stream.messages.message import RELEASE_TOPICS, WINDOW
from stream.messages.verification import Record
from stream.servers.connection import reading
from stream.storage.ledger import LedgerError

TOPIC_SECONDS = 10.0
_ANSWER_SECONDS = 60.0


class MarkedWindow(msgspec.Struct, frozen=True):
    """Start and end of a window, as messages write them."""

    start: str
    end: str


class Marker(msgspec.Struct, frozen=True):
    """What a close marker says about the ledger. ``ledger``: its name if the feed shares it with others."""

    window: MarkedWindow
    generation: str
    digest: str
    sequence: int
    ledger: str | None = None


class _Naming(msgspec.Struct, frozen=True):
    """The part of a close marker by which feeds of other ledgers are told apart."""

    ledger: str | None = None


class Ranked(NamedTuple):
    """The last close marker of a feed by number, with its place in the order of markers."""

    rank: tuple[int, int, int, int]
    marker: Marker


@dataclass(frozen=True)
class Published:
    """The close markers of a feed, and of those that share its ledger, up to ``positions``.

    ``newest``: the last one of each feed. ``generations``: all that they name. ``topic``: identity of the topic that
    holds them; empty if the ledger is not shared.
    """

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    newest: Mapping[str, Ranked] = field(default_factory=dict)
    generations: frozenset[str] = frozenset()
    topic: str = ""

    def last(self, feed: str) -> Marker | None:
        """The last close marker of ``feed`` by number; None if there is none."""
        return self.newest[feed].marker if feed in self.newest else None

    def markers(self) -> Iterator[tuple[str, Marker]]:
        """Each feed and its last close marker."""
        return ((feed, ranked.marker) for feed, ranked in self.newest.items())


async def read_markers(
    kafka: KafkaConfig,
    feed: str,
    known: Published | None = None,
    shared_ledger: str | None = None,
    members: Collection[str] = (),
) -> Published:
    """All close markers of ``feed`` and of every feed that names ``shared_ledger``; reading continues where ``known``
    ended.

    ``members``: feeds that joined this ledger. Raises :class:`LedgerError` if the broker does not show the topic, or a
    message of the feed or of a member is no close marker, because then nobody knows what was released.
    """
    async with reading(kafka) as consumer:
        partitions = await _partitions(consumer)
        if not partitions:
            raise LedgerError(
                f"Kafka at {kafka.bootstrap} shows no topic {WINDOW}, so whether feed {feed!r} released anything is "
                "unknown. "
                "Run 'hexveil topics create', let this user describe and read the topic, or wait for the broker"
            )
        identity = "" if shared_ledger is None else await topic_identity(consumer, WINDOW)
        if known is None or known.topic != identity:
            known = Published()  # what was read before was another topic
        gathered = _Gathered(feed, shared_ledger, members, dict(known.newest), set(known.generations))
        ends = await _read(consumer, partitions, gathered, known.positions)
        # An identity never returns, so if the topic still has it, all that was read is of this topic.
        if shared_ledger is not None and await topic_identity(consumer, WINDOW) != identity:
            raise LedgerError(f"topic {WINDOW} was created anew while it was read; the worker tries again")
        return Published(ends, gathered.newest, frozenset(gathered.generations), identity)


async def _partitions(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    """Partitions of the topic of close markers. Waits some seconds, because brokers list a new topic late."""
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


@dataclass(frozen=True)
class _Gathered:
    """The close markers of ``feed``, and of feeds that name ``shared_ledger``: the last of each, all generations."""

    feed: str
    shared_ledger: str | None
    members: Collection[str]
    newest: dict[str, Ranked]
    generations: set[str]

    def add(self, record: ConsumerRecord) -> None:
        """Take in one record, unless it is of another feed."""
        feed = (record.key or b"").decode(errors="replace")
        if record.value is None or not (feed == self.feed or self._of_the_ledger(feed, record.value)):
            return
        try:
            marker = msgspec.json.decode(record.value, type=Marker)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LedgerError(
                f"{record.topic}/{record.partition}, offset {record.offset} holds something that is not a close marker "
                f"({error}), so what was released is unknown. Only workers may write there; find out who else did"
            ) from None
        self.generations.add(marker.generation)
        rank = marker.sequence, record.timestamp, record.partition, record.offset
        if feed not in self.newest or rank > self.newest[feed].rank:
            self.newest[feed] = Ranked(rank, marker)

    def _of_the_ledger(self, feed: str, value: bytes) -> bool:
        """Whether a message of another feed names the shared ledger. An unreadable one may, if ``feed`` is a member."""
        if self.shared_ledger is None:
            return False
        try:
            return msgspec.json.decode(value, type=_Naming).ledger == self.shared_ledger
        except (msgspec.DecodeError, RecursionError):
            return feed in self.members


async def _read(
    consumer: AIOKafkaConsumer,
    partitions: list[TopicPartition],
    gathered: _Gathered,
    known: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Gather the records from the positions ``known`` on. Returns the positions up to which they were read."""
    # Before the assignment: its first fetch would hold the connection for half a second if there is nothing new.
    ends = await _ends(consumer, partitions)
    starts = await consumer.beginning_offsets(partitions)
    begins = {}
    for partition in partitions:
        position = known.get(partition, 0)
        # A topic that ends before the known position was created anew, so it is read from its beginning.
        begin = max(position, starts[partition]) if position <= ends[partition] else starts[partition]
        if begin < ends[partition]:
            begins[partition] = begin
    consumer.assign(list(begins))
    for partition, begin in begins.items():
        consumer.seek(partition, begin)
    remaining = set(begins)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while remaining:
        batches = await consumer.getmany(*remaining, timeout_ms=1000)
        if batches:
            deadline = time.monotonic() + _ANSWER_SECONDS
        elif time.monotonic() > deadline:
            raise LedgerError(
                f"Kafka shows that {WINDOW} holds more, but sent nothing for {_ANSWER_SECONDS:.0f} s, so what was "
                "released is unknown. Check the broker; the worker tries again"
            )
        for records in batches.values():
            for record in records:
                gathered.add(record)
        for partition in list(remaining):
            if await consumer.position(partition) >= ends[partition]:
                remaining.discard(partition)
    return dict(ends)


_BYTES = 16
_NONE = bytes(_BYTES)
_NAME, _IDS, _TAGS = CompactString("utf-8"), CompactArray(Int32), ("tags", TaggedFields)


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no types
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_BYTES)


_BROKER = (("node_id", Int32), ("host", _NAME), ("port", Int32), ("rack", _NAME), _TAGS)
_PARTITION = (
    *(("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32)),
    *(("replicas", _IDS), ("in_sync", _IDS), ("offline", _IDS), _TAGS),
)
_TOPIC = (
    *(("error_code", Int16), ("name", _NAME), ("topic_id", _Uuid), ("internal", Boolean)),
    *(("partitions", CompactArray(*_PARTITION)), ("operations", Int32), _TAGS),
)


class _Metadata(Response):  # type: ignore[misc]
    """Version 10, the first that names the identity of topics; the client library speaks no later one than 5."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        *(("throttle_time_ms", Int32), ("brokers", CompactArray(*_BROKER)), ("cluster_id", _NAME)),
        *(("controller_id", Int32), ("topics", CompactArray(*_TOPIC)), ("operations", Int32), _TAGS),
    )


class _MetadataRequestStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _Metadata
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _NAME), _TAGS)),
        *(("create", Boolean), ("cluster_operations", Boolean), ("topic_operations", Boolean), _TAGS),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        return request_struct_class([(_NONE, self._topic, {})], False, False, False, {})


async def topic_identity(consumer: AIOKafkaConsumer, topic: str) -> str:
    """The identity of ``topic``, as Kafka's tools write it.

    Raises :class:`LedgerError` if the brokers give topics none, and a :class:`KafkaError` if they do not tell it.
    """
    try:
        answer = await consumer._client.send(consumer._client.get_random_node(), _MetadataRequest(topic))
    except (IncompatibleBrokerVersion, NotImplementedError) as error:
        raise _without_identity(topic) from error
    error_code, _, identity, *_ = answer.topics[0]
    if error_code:
        failure: KafkaError = for_code(error_code)(topic)
        raise failure
    if identity == _NONE:
        raise _without_identity(topic)
    return base64.urlsafe_b64encode(identity).decode().rstrip("=")


def _without_identity(topic: str) -> LedgerError:
    return LedgerError(
        f"the brokers give topic {topic} no identity, so whether all feeds of the ledger publish there is unknown. "
        "Give this feed a ledger of its own, or use Kafka 2.8 or later"
    )


_POLL_MS = 500


async def each_released(kafka: KafkaConfig) -> AsyncIterator[Record]:
    """Every message that the output topics held when reading began, in the order of each partition.

    Errors of Kafka are passed on.
    """
    async with reading(kafka) as consumer:
        await consumer._client.force_metadata_update()
        partitions = [
            TopicPartition(topic, n) for topic in RELEASE_TOPICS for n in consumer.partitions_for_topic(topic) or ()
        ]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                for record in records:
                    headers = {name: value.decode(errors="replace") for name, value in record.headers}
                    where = f"{record.topic}/{partition.partition}, offset {record.offset}"
                    yield Record(record.topic, headers, record.value or b"", where)
