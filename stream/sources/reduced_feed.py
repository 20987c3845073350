"""The part of GTFS-realtime that is read, and its bounds. A parser keeps all else as bytes, whatever is nested in it.

Two bytes of a snapshot can be a message of their own, which takes a hundred once it is parsed. So parts are counted
before: of protobuf its entities, because nothing else that is read here is repeated, and of JSON and text what
separates values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.transit import gtfs_realtime_pb2

MOST_ENTITIES = 100_000
"""Of one snapshot; the largest cities have some 10 000 vehicles."""
MOST_SEPARATORS: Mapping[str, int] = {"JSON": 2_000_000, "text": 500_000}
"""Characters that begin or separate values: as many as 80 000 and 20 000 vehicles with all their fields have."""
_SEPARATORS = {"JSON": b"{[,", "text": b"{<:,\"'"}
_KIND_BITS = 3
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_ALL: frozenset[str] = frozenset()
_READ = {
    "FeedMessage": {"header", "entity"},
    "FeedHeader": _ALL,
    "FeedEntity": {"id", "is_deleted", "vehicle"},
    "VehiclePosition": {"position", "timestamp", "vehicle"},
    "Position": _ALL,
    "VehicleDescriptor": _ALL,
}
"""Fields by message."""


def _reduced() -> type[Any]:
    file = descriptor_pb2.FileDescriptorProto()
    gtfs_realtime_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "reduced-gtfs-realtime.proto"
    messages = [message for message in file.message_type if message.name in _READ]
    del file.message_type[:]
    for message in messages:
        if names := _READ[message.name]:
            fields = [field for field in message.field if field.name in names]
            for part in (message.field, message.nested_type, message.enum_type):
                del part[:]
            message.field.extend(fields)
        file.message_type.append(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("transit_realtime.FeedMessage"))
    return made


FeedMessage: type[Any] = _reduced()
"""A FeedMessage of the vehicles' positions alone."""


def too_many_separators(body: bytes, form: str) -> bool:
    """Whether a document in JSON or text has more parts than :data:`MOST_SEPARATORS`, wherever they are."""
    return sum(body.count(sign) for sign in _SEPARATORS[form]) > MOST_SEPARATORS[form]


def too_many_entities(body: bytes) -> bool:
    """Whether a FeedMessage in protobuf has more outermost fields than :data:`MOST_ENTITIES`.

    What is in a group counts as if it were outside. Raises :class:`DecodeError` for bytes that are no protobuf.
    """
    at, fields = 0, 0
    while at < len(body):
        tag, at = _varint(body, at)
        kind = tag & (1 << _KIND_BITS) - 1
        if kind == _VARINT:
            _, at = _varint(body, at)
        elif kind == _BYTES:
            size, at = _varint(body, at)
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind not in (_GROUP, _END_GROUP):
            raise DecodeError("a field of no known kind")
        fields += 1
        if fields > MOST_ENTITIES:
            return True
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 70:
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number that does not end")
