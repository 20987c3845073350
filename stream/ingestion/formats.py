"""Feed formats: the paths and units of their fields, and fast decoders of the known ones.

A format is a set of field paths (``FeedFields``) and a speed unit. The typed structs only make the known formats fast. All
formats give the same five fields, so later steps do not depend on the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream.config.feed import SPEED_TO_KMH, FeedConfig, FeedFields

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""RFC 3339 with an offset. A local time without one is refused, because when clocks go back it is ambiguous."""
Time = Instant | int | float
Number = float
_FAR_US = 2**62
"""Replaces a time that int64 microseconds cannot hold, with the same sign."""


class Fix(msgspec.Struct, gc=False):
    """A canonical event: degrees, and speed in the unit of the feed."""

    user: str | int
    time: Time
    lat: Number
    lng: Number
    speed: Number


class _FixOfAnySpeed(msgspec.Struct, gc=False):
    user: str | int
    time: Time
    lat: Number
    lng: Number
    speed: Number | None


class _CapmetroFix(msgspec.Struct, gc=False):
    vehicle_id: str | int
    timestamp: Time
    latitude: Number
    longitude: Number
    speed: Number


class _Point(msgspec.Struct, gc=False):
    coordinates: Annotated[list[float], msgspec.Meta(min_length=2, max_length=3)]


class _ItmsFix(msgspec.Struct, gc=False):
    license_plate: str | int
    observation_date_time: Time = msgspec.field(name="observationDateTime")
    location: _Point
    speed: Number


_CANONICAL_FIELDS = FeedFields(user="user", time="time", lat="lat", lng="lng", speed="speed")
_CAPMETRO_FIELDS = FeedFields(user="vehicle_id", time="timestamp", lat="latitude", lng="longitude", speed="speed")
_ITMS_FIELDS = FeedFields(
    user="license_plate",
    time="observationDateTime",
    lat="location.coordinates.1",
    lng="location.coordinates.0",
    speed="speed",
)


def known_fields() -> dict[str, FeedFields]:
    """Field paths of each known format; capmetro-2015 has those of capmetro."""
    return {"canonical": _CANONICAL_FIELDS, "capmetro": _CAPMETRO_FIELDS, "itms": _ITMS_FIELDS}


@dataclass(frozen=True)
class FeedFormat:
    """Decoder of one format: ``decode`` returns an object or raises; the getters read its user, time, lat, lng and speed.

    Times are aware datetimes or epoch milliseconds. ``kmh``: one unit of the format's speed in km/h.
    """

    decode: Callable[[bytes], Any]
    getters: tuple[Callable[[Any], Any], ...]
    fields: FeedFields
    kmh: float

    @property
    def unit(self) -> str:
        """The unit of the format's speed."""
        return next(unit for unit, kmh in SPEED_TO_KMH.items() if kmh == self.kmh)

    @property
    def positional(self) -> bool:
        """Whether an event is itself a list, so that an array is no list of events."""
        return any(path.split(".")[0].isdecimal() for path in self.fields.paths)


def feed_format(feed: FeedConfig) -> FeedFormat:
    """The format of ``feed``. Canonical and declared feeds use the configured unit of speed."""
    configured = SPEED_TO_KMH[feed.speed_unit]
    if feed.format == "declared":
        assert feed.fields is not None
        decode = _declared_decoder if feed.fields.speed else _decoder_of_any_speed
        return FeedFormat(decode(feed.fields), _getters("user time lat lng speed"), feed.fields, configured)
    struct, fields, names, kmh = {
        "canonical": (Fix, _CANONICAL_FIELDS, "user time lat lng speed", configured),
        "capmetro": (_CapmetroFix, _CAPMETRO_FIELDS, "vehicle_id timestamp latitude longitude speed", 3.6),
        "capmetro-2015": (
            _CapmetroFix,
            _CAPMETRO_FIELDS,
            "vehicle_id timestamp latitude longitude speed",
            SPEED_TO_KMH["mph"],
        ),
        "itms": (_ItmsFix, _ITMS_FIELDS, "license_plate observation_date_time location location speed", 1.0),
    }[feed.format]
    getters = _getters(names)
    if feed.format == "itms":
        getters = (*getters[:2], _itms_lat, _itms_lng, getters[4])
    return FeedFormat(msgspec.json.Decoder(struct).decode, getters, fields, kmh)


def recording_format(feed: FeedConfig, file_format: str) -> FeedFormat:
    """The format of recordings in ``file_format``.

    Where ``feed`` derives speeds, an event needs none: that of an event without a number is None, and if all are derived, that of
    every event is; then ``fields`` names none.
    """
    known = feed_format(feed.model_copy(update={"format": file_format}))
    if not feed.derives_speeds:
        return known
    fields = known.fields if feed.speeds == "missing" else known.fields.model_copy(update={"speed": None})
    decode = _decoder_of_any_speed(fields, declared=file_format == "declared")
    return replace(known, decode=decode, getters=_getters("user time lat lng speed"), fields=fields)


def _getters(names: str) -> tuple[Callable[[Any], Any], ...]:
    return tuple(attrgetter(name) for name in names.split())


def _itms_lat(fix: _ItmsFix) -> float:
    return fix.location.coordinates[1]


def _itms_lng(fix: _ItmsFix) -> float:
    return fix.location.coordinates[0]


def _declared_decoder(fields: FeedFields) -> Callable[[bytes], Fix]:
    assert fields.speed is not None
    decode, read, speed = msgspec.json.Decoder().decode, _fix_reader(fields, declared=True), field_path(fields.speed)

    def decode_declared(message: bytes) -> Fix:
        tree = decode(message)
        return msgspec.convert(read(tree) | {"speed": walk(tree, speed)}, Fix)

    return decode_declared


def _decoder_of_any_speed(fields: FeedFields, *, declared: bool = True) -> Callable[[bytes], _FixOfAnySpeed]:
    decode, read = msgspec.json.Decoder().decode, _fix_reader(fields, declared=declared)
    speed = None if fields.speed is None else field_path(fields.speed)

    def decode_any(message: bytes) -> _FixOfAnySpeed:
        tree = decode(message)
        return msgspec.convert(read(tree) | {"speed": None if speed is None else _number(tree, speed)}, _FixOfAnySpeed)

    return decode_any


def _number(tree: Any, path: tuple[str | int, ...]) -> float | None:
    """The number at ``path``, or None. Raises :class:`OverflowError` for a number that no double holds."""
    try:
        value = walk(tree, path)
    except LookupError:
        return None
    return float(value) if type(value) in (int, float) else None


def _fix_reader(fields: FeedFields, *, declared: bool) -> Callable[[Any], dict[str, Any]]:
    """Reads user, time and place. ``declared``: times are in ``time_format``, else RFC 3339 or epoch milliseconds."""
    user, time, lat, lng = (field_path(text) for text in (fields.user, fields.time, fields.lat, fields.lng))
    to_ms = {"epoch-s": 1000, "epoch-us": 0.001}.get(fields.time_format, 1)
    is_text = declared and fields.time_format == "rfc3339"
    zone = None if fields.timezone is None else ZoneInfo(fields.timezone)

    def read(tree: Any) -> dict[str, Any]:
        moment = walk(tree, time)
        if is_text:
            moment = msgspec.convert(moment, Instant) if zone is None else read_instant(moment, zone)
        elif type(moment) in (int, float):
            moment *= to_ms
        return {"user": walk(tree, user), "time": moment, "lat": walk(tree, lat), "lng": walk(tree, lng)}

    return read


def read_instant(text: object, zone: ZoneInfo) -> datetime:
    """ISO 8601 text as an aware datetime; a time without an offset is local time in ``zone``.

    Raises :class:`ValueError` for other values, and for a local time that occurs twice or never because clocks are changed.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        return moment
    moment = moment.replace(tzinfo=zone)
    if moment.utcoffset() != moment.replace(fold=1).utcoffset():
        raise ValueError(f"{text} occurs twice or never in {zone.key}")
    return moment


def field_path(text: str) -> tuple[str | int, ...]:
    """A path like ``location.coordinates.1`` as a sequence of keys and list indexes."""
    return tuple(int(part) if part.isdecimal() else part for part in text.split("."))


def walk(tree: Any, path: tuple[str | int, ...]) -> Any:
    """The value at ``path``. Raises :class:`LookupError` if there is none."""
    for key in path:
        if isinstance(tree, Mapping):
            tree = tree[str(key)]
        elif isinstance(tree, list) and isinstance(key, int):
            tree = tree[key]
        else:
            raise LookupError(key)
    return tree


def time_us(moment: datetime | int | float) -> int:
    """Epoch microseconds (UTC) of an aware datetime or of epoch milliseconds, rounded half to even.

    Raises :class:`ValueError` or :class:`OverflowError` for a time that is not finite.
    """
    if isinstance(moment, datetime):
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return moment * 1000 if isinstance(moment, int) else round(moment * 1000)


def times_us(times: list[datetime | int | float]) -> NDArray[np.int64]:
    """:func:`time_us` of each, shape (n,); a time that int64 cannot hold is ± 2^62, which is always refused."""
    try:
        # A double holds the seconds of any time that passes the age check to a quarter of a microsecond.
        return np.rint(np.array(list(map(_timestamp, times))) * 1e6).astype(np.int64)
    except (AttributeError, TypeError):
        return np.array([_bounded_time_us(moment) for moment in times], dtype=np.int64)


def _bounded_time_us(moment: datetime | int | float) -> int:
    # A double of milliseconds may be infinite in microseconds, which no integer is.
    exact = moment * 1000 if isinstance(moment, float) else time_us(moment)
    return round(max(-_FAR_US, min(_FAR_US, exact)))


_timestamp: Callable[[Any], float] = datetime.timestamp
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int:
    """Epoch microseconds of RFC 3339 text with an offset. Raises :class:`ValueError` for anything else."""
    return time_us(msgspec.convert(text, Instant))


def looks_like(message: bytes, fields: FeedFields) -> tuple[bool, list[tuple[str, Any]]]:
    """Read a refused message again, leniently: whether it is JSON, and the fields that it has."""
    try:
        tree = json.loads(message.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return False, []
    present = []
    for name, path in zip(("user", "time", "lat", "lng", "speed"), fields.paths, strict=False):
        try:
            value = walk(tree, field_path(path))
        except LookupError:
            continue
        if value is not None:
            present.append((name, value))
    return True, present


def is_not_finite(value: Any) -> bool:
    """Whether a number in the JSON is NaN, infinite or too large for a double."""
    return isinstance(value, float) and not math.isfinite(value)


def user_field(feed: FeedConfig, file_format: str | None = None) -> str:
    """The field that identifies a user in the events of a feed, or in recordings in ``file_format``."""
    return f"field '{_user_of(feed, file_format)}'{_recorded_user(feed, file_format)}"


def user_identity(feed: FeedConfig, file_format: str | None = None) -> str:
    """The field that identifies a user, as text: a field of the feed's topic, or of recordings in ``file_format``."""
    source = f"topic {feed.topic}" if file_format is None else "recordings"
    return f"field '{_user_of(feed, file_format)}' of {source}{_recorded_user(feed, file_format)}"


def _user_of(feed: FeedConfig, file_format: str | None) -> str:
    named = feed if file_format is None else feed.model_copy(update={"format": file_format})
    return feed_format(named).fields.user


def _recorded_user(feed: FeedConfig, file_format: str | None) -> str:
    """Where speeds are derived the topic is canonical whatever the recordings are, so their field belongs to it."""
    if file_format is not None or not feed.derives_speeds or feed.fields is None:
        return ""
    return f", from field '{feed.fields.user}' of recordings"
