"""Feed formats: where each keeps its fields and in which unit, and the fast typed decoders of the known ones.

A format is a set of field paths (``FeedFields``) and a speed unit; the typed structs only make the known ones fast.
All of them yield the same five fields, so nothing downstream knows the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from stream.config.feed import SPEED_TO_KMH, FeedConfig, FeedFields

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""RFC 3339 with an offset; a local time without one is refused, because it names two instants a year."""
Time = Instant | int | float
Number = float


class _Fix(msgspec.Struct, gc=False):
    user: str | int
    time: Time
    lat: Number
    lng: Number
    speed: Number


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
    """Where each known format keeps its fields; capmetro-2015 keeps them where capmetro does."""
    return {"canonical": _CANONICAL_FIELDS, "capmetro": _CAPMETRO_FIELDS, "itms": _ITMS_FIELDS}


@dataclass(frozen=True)
class FeedFormat:
    """Decoder of one format: ``decode`` makes an object or raises; the getters read its user, time, lat, lng and speed.

    Times are aware datetimes or epoch milliseconds. ``kmh`` is the number of km/h in the format's unit of speed.
    """

    decode: Callable[[bytes], Any]
    getters: tuple[Callable[[Any], Any], ...]
    fields: FeedFields
    kmh: float


def feed_format(feed: FeedConfig) -> FeedFormat:
    """The format that ``feed`` names; canonical and declared feeds have the configured unit of speed."""
    configured = SPEED_TO_KMH[feed.speed_unit]
    if feed.format == "declared":
        assert feed.fields is not None
        return FeedFormat(_declared_decoder(feed.fields), _getters("user time lat lng speed"), feed.fields, configured)
    struct, fields, names, kmh = {
        "canonical": (_Fix, _CANONICAL_FIELDS, "user time lat lng speed", configured),
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


def _getters(names: str) -> tuple[Callable[[Any], Any], ...]:
    return tuple(attrgetter(name) for name in names.split())


def _itms_lat(fix: _ItmsFix) -> float:
    return fix.location.coordinates[1]


def _itms_lng(fix: _ItmsFix) -> float:
    return fix.location.coordinates[0]


def _declared_decoder(fields: FeedFields) -> Callable[[bytes], _Fix]:
    decode = msgspec.json.Decoder().decode
    user, time, lat, lng, speed = (
        field_path(text) for text in (fields.user, fields.time, fields.lat, fields.lng, fields.speed)
    )
    factor = 1000 if fields.time_format == "epoch-s" else 1
    rfc3339 = fields.time_format == "rfc3339"

    def decode_declared(message: bytes) -> _Fix:
        tree = decode(message)
        moment = walk(tree, time)
        if rfc3339:
            moment = msgspec.convert(moment, Instant)
        elif type(moment) in (int, float):
            moment *= factor
        values = {
            "user": walk(tree, user),
            "time": moment,
            "lat": walk(tree, lat),
            "lng": walk(tree, lng),
            "speed": walk(tree, speed),
        }
        return msgspec.convert(values, _Fix)

    return decode_declared


def field_path(text: str) -> tuple[str | int, ...]:
    """``location.coordinates.1`` as the keys and list indexes that lead to the field."""
    return tuple(int(part) if part.isdecimal() else part for part in text.split("."))


def walk(tree: Any, path: tuple[str | int, ...]) -> Any:
    """The value at ``path``. Raises :class:`LookupError` where there is none."""
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


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int:
    """Epoch microseconds of RFC 3339 text with an offset. Raises :class:`ValueError` for anything else."""
    return time_us(msgspec.convert(text, Instant))


def looks_like(message: bytes, fields: FeedFields) -> tuple[bool, list[tuple[str, Any]]]:
    """Second, lenient reading of a refused message: whether it is JSON at all, and the fields that it does hold."""
    try:
        tree = json.loads(message.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return False, []
    found = []
    for name in ("user", "time", "lat", "lng", "speed"):
        try:
            value = walk(tree, field_path(getattr(fields, name)))
        except LookupError:
            continue
        if value is not None:
            found.append((name, value))
    return True, found


def is_not_finite(value: Any) -> bool:
    """Whether a JSON number is NaN, infinite or beyond what a double holds."""
    return isinstance(value, float) and not math.isfinite(value)


def user_identity(feed: FeedConfig, file_format: str | None = None) -> str:
    """What names a user: a field of the feed's topic, or of recordings in ``file_format``."""
    if file_format is None:
        return f"field '{feed_format(feed).fields.user}' of topic {feed.topic}"
    recorded = feed.model_copy(update={"format": file_format})
    return f"field '{feed_format(recorded).fields.user}' of recordings"
