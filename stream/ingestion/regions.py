"""Canonical messages that declare a region by its corners. Pure.

A message has either a place (``lat`` and ``lng``) or a ``region``; one with both is refused, because it would be an
event of its own and the corners of others.
"""

import json
from typing import Annotated, Any

import msgspec

from stream.ingestion.formats import Fix, Number, Time, is_not_finite

_Absent = msgspec.UnsetType | None


class _Place(Fix, gc=False):
    region: _Absent = msgspec.UNSET


place_of = msgspec.json.Decoder(_Place).decode
"""The fix of a canonical event without a region; raises for anything else."""


class _Corner(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    lat: Number
    lng: Number


class _DeclaredRegion(msgspec.Struct, gc=False):
    user: str | int
    time: Time
    speed: Number
    region: Annotated[list[_Corner], msgspec.Meta(min_length=1)]
    lat: _Absent = msgspec.UNSET
    lng: _Absent = msgspec.UNSET


_declared_region = msgspec.json.Decoder(_DeclaredRegion).decode


def corners_of(message: bytes) -> list[Fix] | None:
    """The fixes of a canonical event with a ``region``, a list of corners: one for each, all with its user, time and
    speed. None for anything else, whatever the bytes.
    """
    try:
        event = _declared_region(message)
    except Exception:  # whatever the decoder raises, the message is no region
        return None
    return [Fix(event.user, event.time, corner.lat, corner.lng, event.speed) for corner in event.region]


def region_fault(message: bytes) -> tuple[str, int] | None:
    """Why a message with a region is refused, by the name of the reason, and the index of the first corner that is at
    fault; -1 if none is. None for a message without a region. A sound region is "several-events": it was sent where one
    is expected.
    """
    try:
        event = json.loads(message.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return None
    region = event.get("region") if isinstance(event, dict) else None
    if region is None:
        return None
    if event.get("lat") is not None or event.get("lng") is not None or corners_of(message) is not None:
        return "several-events", -1
    if region == [] or any(event.get(name) is None for name in ("user", "time", "speed")):
        return "missing-field", -1
    if any(is_not_finite(event[name]) for name in ("time", "speed")):
        return "not-finite", -1
    faults = enumerate(map(_corner_fault, region)) if isinstance(region, list) else ()
    return next(((fault, at) for at, fault in faults if fault is not None), ("wrong-type", -1))


def _corner_fault(corner: Any) -> str | None:
    if not isinstance(corner, dict):
        return "wrong-type"
    place = corner.get("lat"), corner.get("lng")
    if None in place:
        return "missing-field"
    if any(map(is_not_finite, place)):
        return "not-finite"
    return None if len(corner) == 2 and all(isinstance(value, float) for value in place) else "wrong-type"
