"""Decodes GTFS-realtime VehiclePositions (protobuf or JSON) into columns, with a reason for each refused entity.

Source: GTFS Realtime Reference 2.0, messages FeedMessage, FeedEntity and VehiclePosition. Positions are float32 there,
so they are rounded to 1e-6 degree, a tenth of a metre. Speeds are in m/s; many agencies send none, or only zeros.

FULL_DATASET and DIFFERENTIAL are read alike: each position says where a vehicle was at one time. Which vehicles a feed
leaves out says nothing, and a deleted entity takes back no earlier position. The specification leaves DIFFERENTIAL
undefined.

The part of GTFS-realtime that is read, and its bounds. A parser keeps all else as bytes, whatever is nested in it.

Two bytes of a snapshot can be a message of their own, which takes a hundred once it is parsed. So parts are counted
before: of protobuf its entities, because nothing else that is read here is repeated, and of JSON what separates
values.

GTFS-realtime VehiclePositions as canonical events.
"""

import json
import math
import re
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from google.transit import gtfs_realtime_pb2

from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.sources.file_kinds import BOM
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT, Decode, Snapshot, SnapshotError, SnapshotRows

MOST_ENTITIES = 100_000
"""Of one snapshot; the largest cities have some 10 000 vehicles."""
MOST_SEPARATORS = 2_000_000
"""Characters of JSON that begin or separate values: as many as 80 000 vehicles with all their fields have."""
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


def too_many_separators(body: bytes) -> bool:
    """Whether a document in JSON has more parts than :data:`MOST_SEPARATORS`, wherever they are."""
    return sum(body.count(sign) for sign in b"{[,") > MOST_SEPARATORS


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


_LARGEST_SINGLE = 3.4e38
_UINT64_DIGITS = 20
_INCREMENTALITY = FeedMessage.DESCRIPTOR.fields_by_name["header"].message_type.fields_by_name["incrementality"].number
_UNREADABLE = (ValueError, RecursionError)
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that may be half of a surrogate pair."""
_BEGIN = re.compile(r"(Failed to parse \w+ field: )*")
"""How an error of protobuf's JSON begins: with names of the format, before any value."""
_NAMED = re.compile(r"parse (\w+) field")
_HEADER_TAG, _ENTITY_TAG = b"\x0a", b"\x12"


def decode_snapshot(
    body: bytes,
    received_us: int | None = None,
    kmh: float = 3.6,
    times_zone: ZoneInfo | None = None,
) -> Snapshot:
    """The vehicles of one FeedMessage. An entity without a timestamp gets that of the header, else ``received_us``.

    ``kmh``: one unit of speed in km/h. ``times_zone``: that of the clocks, where timestamps count local time. The user
    is its :func:`vehicle_name`. An entity's own ``id`` is not used, because it may change between snapshots. An entity
    that cannot be read is refused alone. Raises :class:`SnapshotError` for bytes that are not such a feed.
    """
    message, unreadable = parse_feed(body)
    arrived_us = None if received_us is None else received_us // 1_000_000 * 1_000_000
    rows = SnapshotRows(message.header.timestamp * 1_000_000, arrived_us, times_zone)
    if unreadable:
        rows.refused["unreadable"] += unreadable
    for entity in message.entity:
        where, named = entity.vehicle.position, vehicle_name(entity.vehicle.vehicle)
        if entity.is_deleted or not entity.HasField("vehicle"):
            rows.refused["deleted" if entity.is_deleted else "no-vehicle"] += 1
        elif not (where.HasField("latitude") and where.HasField("longitude")):
            rows.refused["no-position" if named else "no-vehicle-id"] += 1
        else:
            seconds = entity.vehicle.timestamp if entity.vehicle.HasField("timestamp") else None
            speed = where.speed * kmh / 3.6 if where.HasField("speed") else math.nan
            rows.add(named, None if seconds is None else seconds * 1_000_000, where.latitude, where.longitude, speed)
    return rows.snapshot()


def vehicle_name(descriptor: Any) -> str | None:
    """The vehicle's ``id``, else its licence plate, else its label; None if it has none of them."""
    name = descriptor.id or descriptor.license_plate or descriptor.label
    if isinstance(name, bytes):  # protobuf returns bytes for a text that is not UTF-8, like one in Shift JIS
        name = name.decode(errors="backslashreplace")
    return name or None


def parse_feed(body: bytes) -> tuple[Any, int]:
    """The decoded message, from protobuf or JSON, with what is read of it, and how many entities were unreadable.

    Raises :class:`SnapshotError`, also for a message whose parts would take more memory than a city's.
    """
    if len(body) > LARGEST_SNAPSHOT:
        raise SnapshotError(f"{len(body)} bytes are more than the {LARGEST_SNAPSHOT} of one snapshot")
    body = body.removeprefix(BOM)  # no protobuf begins with it
    start = body[:64].lstrip()
    try:
        if start.startswith(b"{"):
            _require(not too_many_separators(body))
            message, unreadable = _of_tree(_tree(body.decode()))
        elif start.startswith(b"<"):
            raise SnapshotError("an HTML or XML page instead of GTFS-realtime; check the address and the key")
        else:
            _require(not too_many_entities(body))
            message, unreadable = _of_octets(body)
            for unknown in UnknownFieldSet(message.header):
                if unknown.field_number == _INCREMENTALITY:
                    raise _unknown_incrementality(str(unknown.data))
    except SnapshotError:
        raise
    except (DecodeError, json_format.ParseError, *_UNREADABLE) as error:
        raise SnapshotError(f"not a GTFS-realtime feed in protobuf or JSON ({_found(error)})") from None
    if not message.HasField("header") and not message.entity and not unreadable:
        raise SnapshotError("an empty message: neither header nor vehicles; cut short, or another protobuf")
    return message, unreadable


def _of_octets(body: bytes) -> tuple[Any, int]:
    """The message of protobuf; where it is damaged within entities, without these."""
    message = FeedMessage()
    try:
        message.ParseFromString(body)
        return message, 0
    except DecodeError:
        message, unreadable = FeedMessage(), 0
    for part in _parts(body):
        try:
            message.MergeFrom(FeedMessage.FromString(part))
        except DecodeError:
            if part.startswith(_HEADER_TAG):
                raise
            unreadable += 1
    return message, unreadable


def _parts(body: bytes) -> list[bytes]:
    """The headers and entities of a message, each with its tag and length. :class:`DecodeError` if they do not fit."""
    parts, at = [], 0
    while at < len(body):
        begin = at
        if body[at : at + 1] not in (_HEADER_TAG, _ENTITY_TAG):
            raise DecodeError("neither a header nor an entity")
        size, at = _varint(body, at + 1)
        at += size
        parts.append(body[begin:at])
    if at != len(body):
        raise DecodeError("cut short")
    return parts


def _of_tree(tree: Any) -> tuple[Any, int]:
    message, unreadable = FeedMessage(), 0
    entities = tree.get("entity", []) or []
    if not isinstance(entities, list):
        raise json_format.ParseError("Failed to parse entity field: ")
    _require(len(entities) <= MOST_ENTITIES)
    json_format.ParseDict(tree | {"entity": []}, message, ignore_unknown_fields=True)
    _check_named(tree, message)
    for entity in entities:
        try:
            json_format.ParseDict({"entity": [entity]}, read := FeedMessage(), ignore_unknown_fields=True)
            message.MergeFrom(read)
        except (json_format.ParseError, *_UNREADABLE):
            unreadable += 1
    return message, unreadable


def _require(bounded: bool) -> None:
    if not bounded:
        raise SnapshotError(f"more entities or other parts than a snapshot of {MOST_ENTITIES} vehicles has")


def _found(error: Exception) -> str:
    """What a parser found, or where. Its own words may quote what a vehicle sent, which no log may show."""
    if isinstance(error, json_format.ParseError):
        begin = _BEGIN.match(str(error))
        path = ".".join(_NAMED.findall(begin[0] if begin else ""))
        return f"another type of value than the format has{path and f' in {path}'}"
    return " ".join(str(error).split())[:120] or type(error).__name__


def _check_named(tree: Any, message: Any) -> None:
    """Raise :class:`SnapshotError` for an incrementality that the parser of JSON skipped as unknown."""
    header = tree.get("header")
    named = header.get("incrementality") if isinstance(header, dict) else None
    if named is not None and not message.header.HasField("incrementality"):
        raise _unknown_incrementality(str(named))


def _unknown_incrementality(value: str) -> SnapshotError:
    return SnapshotError(
        f"header.incrementality is {value[:40]!r}, neither FULL_DATASET nor DIFFERENTIAL, so what its entities mean is "
        "unknown; ask the agency for one of these"
    )


def _tree(text: str) -> Any:
    """The JSON of a feed, with every number within single precision.

    The parser of protobuf refuses a feed as a whole for a number beyond, and one vehicle's speed may not decide that.
    Raises :class:`UnicodeEncodeError` for half a surrogate pair, which is no text and ends that parser in a name.
    """
    tree = json.loads(
        text, object_pairs_hook=_unique, parse_float=_single, parse_int=_integer_or_single, parse_constant=str
    )
    if _HALF_A_PAIR.search(text):
        json.dumps(tree, ensure_ascii=False).encode()
    return tree


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise SnapshotError("not a GTFS-realtime feed: a name occurs twice in one object of its JSON")
    return fields


def _single(text: str) -> float:
    return min(max(float(text), -_LARGEST_SINGLE), _LARGEST_SINGLE)


def _integer_or_single(text: str) -> int | float:
    return int(text) if len(text) <= _UINT64_DIGITS else _single(text)


class GtfsRealtime(SnapshotEvents):
    """Events of VehiclePositions, whose speeds are in m/s, as the format prescribes, or in ``feed.speed_unit``."""

    unit_of_format = "m/s"

    def decoder(self, feed: FeedConfig) -> Decode:
        """The snapshot in the bytes of a FeedMessage."""
        zone = None if feed.times_zone is None else ZoneInfo(feed.times_zone)
        kmh = SPEED_TO_KMH[self.unit]
        return partial(decode_snapshot, kmh=kmh, times_zone=zone)
