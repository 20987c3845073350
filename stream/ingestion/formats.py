"""Feed formats: the paths and units of their fields, and fast decoders of the known ones.

A format is a set of field paths (``FeedFields``) and a speed unit. The typed structs only make the known formats fast.
All formats give the same five fields, so later steps do not depend on the format.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from dpcore.arrays import BoolArray, IntArray
from stream.config.feed import SPEED_TO_KMH, TIME_UNIT_US, FeedConfig, FeedFields, SpeedUnit
from stream.ingestion.shapes import shape_of

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""RFC 3339 with an offset. A local time without one is refused, because when clocks go back it is ambiguous."""
Time = Instant | int | float
Number = float
ROLES = ("user", "time", "lat", "lng", "speed")
_NOTHING = frozenset({"", "-", "--", "n/a", "na", "nan", "null", "none", "nil", "\\n"})
NO_LETTER = "\ufffd"
"""Replaces bytes that are not UTF-8."""
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_LEAP_SECOND = re.compile(r"(.*\d[T ]\d\d:59):60(.*)", re.ASCII)
_KNOWN_TIMES, _LONGEST_TIME, _TO_MICROSECONDS = 4_096, 64, 26
"""Texts of times that are remembered, their characters, and those of a time with six decimals and no offset."""
_QUARTER_US = 900_000_000
"""Clocks are changed at full quarters of an hour."""
_UNIX = datetime(1970, 1, 1)
_decode_tree = msgspec.json.Decoder().decode
_FAR_US = 2**62
"""Replaces a time that int64 microseconds cannot hold, with the same sign."""


class Fix(msgspec.Struct, gc=False):
    """A canonical event: degrees, and speed in the unit of the feed, None where any is accepted and there is none."""

    user: str | int
    time: Time
    lat: Number
    lng: Number
    speed: Number | None


_CANONICAL_FIELDS = FeedFields(user="user", time="time", lat="lat", lng="lng", value="speed")
_CAPMETRO_FIELDS = FeedFields(user="vehicle_id", time="timestamp", lat="latitude", lng="longitude", value="speed")
_ITMS_FIELDS = FeedFields(
    user="license_plate",
    time="observationDateTime",
    lat="location.coordinates.1",
    lng="location.coordinates.0",
    value="speed",
)


def known_fields() -> dict[str, FeedFields]:
    """Field paths of each known format; capmetro-2015 has those of capmetro."""
    return {"canonical": _CANONICAL_FIELDS, "capmetro": _CAPMETRO_FIELDS, "itms": _ITMS_FIELDS}


@dataclass(frozen=True)
class FeedFormat:
    """Decoder of one format: ``decode`` returns an object or raises; the getters read its user, time, lat, lng and
    speed.

    Times are aware datetimes or epoch milliseconds. ``kmh``: one unit of the format's speed in km/h. ``read``: also
    reads what ``decode`` refuses and whose meaning is certain, like numbers in texts.
    """

    decode: Callable[[bytes], Any]
    read: Callable[[bytes], Any]
    getters: tuple[Callable[[Any], Any], ...]
    fields: FeedFields
    kmh: float

    @property
    def unit(self) -> SpeedUnit:
        """The unit of the format's speed."""
        return next(unit for unit, kmh in SPEED_TO_KMH.items() if kmh == self.kmh)

    @property
    def positional(self) -> bool:
        """Whether an event is itself a list, so that an array is no list of events."""
        return any(path.split(".")[0].isdecimal() for path in self.fields.paths)


_UNITS: dict[str, SpeedUnit] = {"capmetro": "m/s", "capmetro-2015": "mph", "itms": "km/h"}
"""The units of speed that known formats fix."""
OF_FIX = tuple(map(attrgetter, ROLES))
"""Getters of the values of a :class:`Fix`, in the order of ``ROLES``."""


def feed_format(feed: FeedConfig) -> FeedFormat:
    """The format of ``feed``. Canonical and declared feeds use the configured unit of speed."""
    kmh = SPEED_TO_KMH[_UNITS.get(feed.format, feed.speed_unit)]
    if feed.format == "declared":
        assert feed.fields is not None
        return _format(feed.fields, kmh, declared=True, any_speed=feed.fields.value is None)
    return _format(known_fields()[feed.format.removesuffix("-2015")], kmh, declared=False)


def recording_format(feed: FeedConfig, file_format: str) -> FeedFormat:
    """The format of recordings in ``file_format``.

    Where ``feed`` derives speeds, an event needs none: that of an event without a number is None, and if all are
    derived, that of every event is; then ``fields`` names none.
    """
    known = feed_format(feed.model_copy(update={"format": file_format}))
    if not feed.derives_speeds:
        return known
    fields = known.fields if feed.speeds == "missing" else known.fields.model_copy(update={"value": None})
    return _format(fields, known.kmh, declared=file_format == "declared", any_speed=True)


def _format(fields: FeedFields, kmh: float, *, declared: bool, any_speed: bool = False) -> FeedFormat:
    """The format with these fields. ``declared``: times are in ``time_format``, else RFC 3339 or epoch milliseconds.

    ``any_speed``: a speed that is no number is None. Events whose values have the types that msgspec knows are read by
    it; what it refuses, the lenient reader judges.
    """
    form, per = fields.time_format if declared else "epoch-ms", fields.units_per_degree
    local = declared and form not in TIME_UNIT_US and (fields.timezone is not None or "%" in form)
    time: Any = str if local else int | float if declared and form in TIME_UNIT_US else Instant if declared else Time
    speed = [] if fields.value is None else [float | None if any_speed else float]
    shape = shape_of(fields.paths, (str | int, time, float, float, *speed))
    walking = _walking_decoder(fields, declared=declared, any_speed=any_speed)
    if shape is None:
        return FeedFormat(walking, walking, OF_FIX, fields, kmh)
    parse, values, make = shape.decode, attrgetter(*shape.names), shape.make
    if local or form in ("epoch-s", "epoch-us") or per != 1 or not speed:
        instant = time_reader(fields, declared=declared) if local or form in ("epoch-s", "epoch-us") else None

        def convert(message: bytes) -> Fix:
            user, moment, lat, lng, *reported = values(parse(message))
            moment = moment if instant is None else instant(moment)
            return Fix(user, moment, lat / per, lng / per, *(reported or (None,)))

        return FeedFormat(convert, _either(convert, walking), OF_FIX, fields, kmh)

    def remake(message: bytes) -> Any:
        fix = walking(message)
        return make((fix.user, fix.time, fix.lat, fix.lng, fix.speed))

    return FeedFormat(parse, _either(parse, remake), tuple(map(attrgetter, shape.names)), fields, kmh)


def _either(first: Callable[[bytes], Any], second: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Reads by the one that read last, else by the other one; both read alike. Raises if neither reads."""
    order = [first, second]

    def read(message: bytes) -> Any:
        try:
            return order[0](message)
        except Exception:  # whatever it is, the other one judges
            event = order[1](message)
            order.reverse()
            return event

    return read


def _walking_decoder(fields: FeedFields, *, declared: bool, any_speed: bool = False) -> Callable[[bytes], Fix]:
    """Reads events field by field: what stands in other fields never matters, and numbers may be texts.

    Raises for an event that cannot be read.
    """
    user, time, lat, lng = (field_path(text) for text in (fields.user, fields.time, fields.lat, fields.lng))
    speed = None if fields.value is None else field_path(fields.value)
    instant, per_degree = time_reader(fields, declared=declared), fields.units_per_degree

    def decode(message: bytes) -> Fix:
        tree = _tree(message)
        place = number(walk(tree, lat)) / per_degree, number(walk(tree, lng)) / per_degree
        event = _named(walk(tree, user)), instant(walk(tree, time)), *place
        if not any_speed:
            assert speed is not None
            return Fix(*event, number(walk(tree, speed)))
        value = None
        with suppress(LookupError, ValueError):  # and no OverflowError, of a number that no double holds
            value = None if speed is None else number(walk(tree, speed))
        return Fix(*event, value)

    return decode


def _tree(message: bytes) -> Any:
    try:
        return _decode_tree(message)
    except UnicodeDecodeError:  # the text of a field, which may be none of ours
        return _decode_tree(message.decode("utf-8", "replace").encode())


def _named(user: Any) -> str | int:
    """The identifier. Raises for other types, and for a text that is not in UTF-8, which several users may have."""
    if isinstance(user, bool) or not isinstance(user, str | int) or (isinstance(user, str) and NO_LETTER in user):
        raise ValueError("no identifier")
    return user


def number(value: Any) -> float:
    """A number, also one that is written as text, with a decimal point or comma. Raises for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()) is not None:
        finite = float(text.replace(",", "."))
        if math.isfinite(finite):
            return finite
        raise OverflowError("no double holds it")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("no number")
    return float(value)


def is_nothing(value: Any) -> bool:
    """Whether a value stands for none: null, or a text like "" or "N/A"."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def number_or_none(value: Any) -> float | None:
    """The number, or None. Not for one that no double holds: that is none as well."""
    with suppress(ValueError, OverflowError):
        return number(value)
    return None


def time_reader(fields: FeedFields, *, declared: bool) -> Callable[[Any], datetime | int | float]:
    """Reads times of one form, as aware datetimes or epoch milliseconds, and raises for others.

    Not ``declared``: epoch milliseconds. Where times are numbers, texts of ISO 8601 are read as well. A text without an
    offset is local time in the ``timezone``.
    """
    form = fields.time_format if declared else "epoch-ms"
    zone = None if fields.timezone is None else ZoneInfo(fields.timezone)
    to_ms = {"epoch-s": 1000, "epoch-us": 0.001}.get(form, 1)
    numbers = form in TIME_UNIT_US

    def of_text(text: str) -> datetime:
        return with_zone(datetime.strptime(text, form), zone) if "%" in form else read_instant(text, zone)

    known = lru_cache(_KNOWN_TIMES)(of_text)  # vehicles of a fleet report at the same seconds

    def read(value: Any) -> datetime | int | float:
        if isinstance(value, str) and numbers and _NUMBER.fullmatch(value):
            value = number(value) if set(value) & set(".,eE") else int(value)
        if isinstance(value, str):
            return known(value) if len(value) <= _LONGEST_TIME else of_text(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not numbers:
            raise ValueError("no time of the form")
        return value * to_ms

    return read


def read_instant(text: object, zone: ZoneInfo | None) -> datetime:
    """ISO 8601 text as an aware datetime; a time without an offset is local time in ``zone``. Leap seconds are valid.

    Raises :class:`ValueError` for other values, for a local time that occurs twice or never because clocks are changed,
    and for one without a ``zone``.
    """
    if not isinstance(text, str):
        raise ValueError("no text")
    text = text[:-1] + "Z" if text[-1:] == "z" else text
    if len(text) > _TO_MICROSECONDS:
        with suppress(msgspec.ValidationError):  # rounds, as decoders of JSON do, where Python cuts digits off
            return msgspec.convert(text, Instant)
    leap = _LEAP_SECOND.fullmatch(text)
    if leap is not None:
        moment = with_zone(datetime.fromisoformat(f"{leap[1]}:59{leap[2]}"), zone)
        return moment.astimezone(UTC) + timedelta(seconds=1)
    return with_zone(datetime.fromisoformat(text), zone)


def with_zone(moment: datetime, zone: ZoneInfo | None) -> datetime:
    """The time as it is if it is aware, else as local time in ``zone``; raises as :func:`read_instant` does."""
    if moment.tzinfo is not None:
        return moment
    if zone is None:
        raise ValueError("a time without an offset from UTC")
    moment = moment.replace(tzinfo=zone)
    if moment.utcoffset() != moment.replace(fold=1).utcoffset():
        raise ValueError(f"a local time that occurs twice or never in {zone.key}")
    return moment


def utc_of_local(local_us: IntArray, zone: ZoneInfo) -> tuple[IntArray, BoolArray]:
    """µs UTC of local times in ``zone``, counted as if they were UTC; and which of them occur twice or never."""
    quarters, which = np.unique(local_us // _QUARTER_US, return_inverse=True)
    offsets = np.zeros(len(quarters), dtype=np.int64)
    wrong = np.zeros(len(quarters), dtype=bool)
    for at, quarter in enumerate(quarters.tolist()):
        try:
            moment = (_UNIX + timedelta(microseconds=quarter * _QUARTER_US)).replace(tzinfo=zone)
            offset = moment.utcoffset() or timedelta(0)
            wrong[at] = offset != moment.replace(fold=1).utcoffset()
        except OverflowError:
            wrong[at] = True
        else:
            offsets[at] = offset // timedelta(microseconds=1)
    return local_us - offsets[which], wrong[which]


def claims_utc(moment: datetime | int | float) -> bool:
    """Whether a time says that it is UTC, as every number does."""
    return not isinstance(moment, datetime) or not moment.utcoffset()


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


def times_us(times: list[datetime | int | float]) -> IntArray:
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


def lenient_tree(message: bytes) -> Any:
    """A refused message as JSON, in which NaN is a number. Raises ValueError or RecursionError for what is none."""
    return json.loads(message.decode("utf-8", "replace"), parse_int=float)


def fields_in(tree: Any, fields: FeedFields) -> dict[str, Any]:
    """The fields of a format that an event has, by their roles."""
    present = {}
    for name, path in zip(ROLES, fields.paths, strict=False):
        with suppress(LookupError):
            value = walk(tree, field_path(path))
            if not is_nothing(value) or (name == "user" and value is not None):
                present[name] = value
    return present


def is_not_finite(value: Any) -> bool:
    """Whether a number in the JSON, or in a text there, is NaN, infinite or too large for a double."""
    with suppress(TypeError, ValueError):
        return not isinstance(value, bool) and not math.isfinite(float(value))
    return False


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
