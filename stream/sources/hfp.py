"""Decodes High-Frequency Positioning (HFP 2), Helsinki's format of vehicle positions over MQTT, with a reason for each
refusal.

Source: Digitransit, "High-frequency positioning". A message has one object under the name of its event (``VP``,
``DOO``, …); the vehicle is named by two levels of the topic, because the ``oper`` of the payload is whoever runs the
trip. Pure.
"""

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from stream.config.feed import SPEED_TO_KMH
from stream.ingestion.formats import claims_utc, read_instant, time_us
from stream.sources.messages import Messages
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import SnapshotRows

LARGEST_MESSAGE = 64 << 10
"""Bytes of a payload; a position has about 400."""
EVERY_POSITION = "/hfp/v2/journey/ongoing/vp/#"
"""The filter of all vehicles that are on a journey."""
_VERSION = "v2"
_OPERATOR, _VEHICLE = 6, 7
"""Levels of a topic after ``hfp``: its version, journey type, temporal type, event type and mode come before."""


class Publication(NamedTuple):
    """One message of a broker. ``arrived_us``: µs UTC; None: when it is decoded."""

    topic: str
    payload: bytes
    arrived_us: int | None = None


class _Fix(msgspec.Struct):
    tst: Any = None
    tsi: Any = None
    lat: Any = None
    long: Any = None
    spd: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(dict[str, _Fix]).decode


class HighFrequencyPositions(SnapshotEvents):
    """Events of HFP messages, whose speeds are in m/s, as the format prescribes, or in ``feed.speed_unit``."""

    unit_of_format = "m/s"

    def of(self, publications: Sequence[Publication], received_us: int) -> Messages:
        """The new events of messages that are decoded at ``received_us`` (µs UTC), in order of time.

        A message that cannot be read is refused alone. Raises :class:`SnapshotError` for too many vehicles.
        """
        rows = SnapshotRows(None, received_us, self._clocks)
        for publication in publications:
            _add(rows, publication, SPEED_TO_KMH[self.unit])
        return self.take(rows.snapshot(), len(publications))


def _add(rows: SnapshotRows, publication: Publication, kmh: float) -> None:
    name, fix = vehicle_of(publication.topic), _read(publication.payload)
    if isinstance(fix, str):
        rows.refused[fix] += 1
    elif name is None:
        rows.refused["no-vehicle-id"] += 1
    elif fix.lat is None or fix.long is None:
        rows.refused["no-position"] += 1
    else:
        try:
            stamped = None if fix.tst is None and fix.tsi is None else _moment(fix)
        except (ValueError, OverflowError):
            rows.refused["time-unreadable"] += 1
            return
        moment, is_utc = (publication.arrived_us, False) if stamped is None else (time_us(stamped), claims_utc(stamped))
        place = _number(fix.lat), _number(fix.long)
        rows.add(name, moment, *place, _speed(fix.spd) * kmh / 3.6, is_utc=is_utc)


def vehicle_of(topic: str) -> str | None:
    """``operator:vehicle`` by the levels of an HFP 2 topic, without leading zeros; None if the topic does not name
    them.

    HFP 1 has no level of the event type, so the levels that name a vehicle here are its vehicle and its route there:
    one vehicle would be another user, with a budget of its own, on each route.
    """
    levels = topic.split("/")
    try:
        start = levels.index("hfp")
        if levels[start + 1] != _VERSION:
            return None
        operator, vehicle = levels[start + _OPERATOR], levels[start + _VEHICLE]
    except (ValueError, IndexError):
        return None
    return f"{operator.lstrip('0') or '0'}:{vehicle.lstrip('0') or '0'}" if operator and vehicle else None


def _read(payload: bytes) -> _Fix | str:
    if len(payload) > LARGEST_MESSAGE:
        return "too-large"
    try:
        events = _decode(payload)
    except (ValueError, RecursionError):
        return "unreadable"
    return next(iter(events.values())) if len(events) == 1 else "unreadable"


def _moment(fix: _Fix) -> datetime | int:
    """The time of a fix: ``tst`` (RFC 3339), else ``tsi`` (seconds) in milliseconds. Raises for others."""
    if isinstance(fix.tst, str):
        return read_instant(fix.tst, None)
    if isinstance(fix.tsi, bool) or not isinstance(fix.tsi, int):
        raise ValueError("no time")
    return fix.tsi * 1_000


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _speed(text: msgspec.Raw) -> float:
    """The number in JSON, infinite if no double holds it; NaN for anything else. No number may make a message
    unreadable."""
    try:
        value = json.loads(bytes(text), parse_int=float)
    except (ValueError, RecursionError):
        return math.nan
    return value if isinstance(value, float) else math.nan
