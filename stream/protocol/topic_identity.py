"""The identity of a topic: a random UUID that the cluster draws when it creates the topic.

Two clusters may have the same id, because container images format their storage with a constant one; two topics never
have.
"""

from __future__ import annotations

import base64
from io import BytesIO

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
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

from stream.storage.ledger import LedgerError

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
        "Give this feed a "
        "ledger of its own, or use Kafka 2.8 or later"
    )
