"""Decodes the messages of a batch into columns in one pass, with a reason for each message that is refused.

Values are rounded to the public grid of ``QUANTUM`` (half to even), positions to a grid of 1e-7 degree. The H3 cell
is computed from the position before rounding. Under relation "values" no speed is refused because it is high or
negative, because the number of events is public: a negative one counts as 0, and speeds are clipped to the configured
bound later.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import repeat
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np
import structlog
from numpy.typing import NDArray

from dpcore.arrays import BoolArray, FloatArray, IdArray, IntArray
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import MAX_FUTURE, ORIGIN_DEGREES
from stream.config.section import BoundingBox
from stream.config.value import QUANTUM
from stream.ingestion.arrays import MAX_ARRAY_BYTES, MAX_EVENTS, Leading, Read, elements, may_hold_several
from stream.ingestion.formats import (
    OF_FIX,
    ROLES,
    claims_utc,
    feed_format,
    fields_in,
    is_not_finite,
    lenient_tree,
    times_us,
    utc_of_local,
)
from stream.ingestion.pseudonyms import Pseudonyms, key_fingerprint
from stream.ingestion.regions import corners_of, place_of, region_fault
from stream.storage.row_store import ROW
from stream.windows import EARLIEST_US

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 1 << 16
"""Largest size of a message with one event, which has about a hundred bytes."""
AT_ONCE = 10_000
"""Messages with several events are decoded until they have given this many events, or 32 bytes for each."""
_MAX_VALUE = 2**31 - 1


ArrivalTimes = int | IntArray
_Columns = tuple[IntArray, FloatArray, FloatArray, FloatArray]
"""Time (µs UTC), latitude, longitude and speed of events."""


class Reason(StrEnum):
    """Why a message is refused."""

    TOMBSTONE = "tombstone"
    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    MISSING_FIELD = "missing-field"
    WRONG_TYPE = "wrong-type"
    NOT_FINITE = "not-finite"
    ID_EMPTY = "id-empty"
    ID_TOO_LONG = "id-too-long"
    AT_ORIGIN = "at-origin"
    SWAPPED_AXES = "swapped-axes"
    OUT_OF_DOMAIN = "out-of-domain"
    NEGATIVE_SPEED = "negative-speed"
    TOO_FAST = "too-fast"
    TOO_OLD = "too-old"
    IN_FUTURE = "in-future"
    UNDECODABLE = "undecodable"
    NOT_STAMPED = "not-stamped"
    UNREADABLE_BATCH = "unreadable-batch"
    SEVERAL_EVENTS = "several-events"


REASONS = tuple(Reason)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
_BRACKET = ord("[")
_SOUND = 255
"""Verdict on a message that is accepted."""


@dataclass(frozen=True)
class Batch:
    """Columns of one batch.

    ``rows``: accepted events. ``index``: index of the message of each row. ``slots``: start of its timeslot (epoch
    seconds). ``refused``: index of the message of each refused event; ``reason``: its code, so that ``REASONS[code]``
    is the reason. ``element``: the index of each refused event in its message, or of the corner for which a region is;
    -1 for other whole messages. Neither index descends, and every event is in exactly one of them. ``messages``: number
    of messages that were decoded.
    """

    rows: NDArray[np.void]
    index: IntArray
    slots: IntArray
    refused: IntArray
    reason: NDArray[np.uint8]
    element: IntArray
    messages: int

    def refusals(self, offsets: IntArray) -> Iterator[tuple[Reason, int, int, int, int]]:
        """Of each reason the first and the last offset, the number of events, and the element of the first.
        ``offsets``: of the messages, (n,)."""
        for code in np.unique(self.reason).tolist():
            chosen = self.reason == code
            where = offsets[self.refused[chosen]]
            yield REASONS[code], int(where[0]), int(where[-1]), len(where), int(self.element[chosen][0])


@dataclass(frozen=True)
class _Fixes:
    """Columns of decoded messages, shape (n,): pseudonym, µs UTC, degrees, speed in the feed's unit."""

    user: IdArray
    time_us: IntArray
    lat: FloatArray
    lng: FloatArray
    speed: FloatArray

    def where(self, kept: BoolArray) -> "_Fixes":
        return _Fixes(self.user[kept], self.time_us[kept], self.lat[kept], self.lng[kept], self.speed[kept])


class Decoder:
    """Decodes messages of the configured feed. Between batches it keeps only the cache of pseudonyms."""

    def __init__(self, config: Config, user_key: bytes, *, arrays: bool = True) -> None:
        """``arrays``: whether a message may hold several events, as an array or notification.

        Under "participation" such a message is refused as a whole, with a reason of its own: an array has one size and
        one structure, so what one user sends in it would decide whether the events of the others in it count. A region,
        which is several events of one user, is read under both relations, but only as a message of its own: within an
        array it is refused.
        """
        self._regions = config.declares_regions and config.feed.format == "canonical"
        known = feed_format(config.feed)
        self._format = replace(known, decode=place_of, read=place_of, getters=OF_FIX) if self._regions else known
        zone = config.feed.times_zone
        self._clocks = None if zone is None else ZoneInfo(zone)
        self._arrays = arrays and not self._format.positional
        self._one_each = config.relation == NeighbouringRelation.PARTICIPATION
        self._pseudonyms = Pseudonyms(user_key)
        self.key_fingerprint = key_fingerprint(user_key)
        self._domain = config.feed.domain
        self._resolution = config.hexagons.resolution
        self._quanta = self._format.kmh / QUANTUM
        self._least = 0 if config.value.is_speed else -_MAX_VALUE
        self._slotting = config.slotting
        self._slowest = 0.0 if self._one_each and config.value.is_speed else -np.inf
        self._fastest = (config.fastest_km_h or np.inf) / self._format.kmh
        self._max_age_us = config.window.max_age // timedelta(microseconds=1)
        self._max_future_us = MAX_FUTURE // timedelta(microseconds=1)

    def decode(self, values: Sequence[bytes | None], arrived_us: ArrivalTimes) -> Batch:
        """Decode messages. ``arrived_us``: when they arrived, µs UTC, for all or shape (n,); below 0 if unknown.

        Never raises, whatever the bytes.
        """
        whole = self.decode_part(values, arrived_us)
        while whole.messages < len(values):
            begin = whole.messages
            whole = _joined(whole, self.decode_part(values[begin:], _of(arrived_us, slice(begin, None))))
        return whole

    def decode_part(self, values: Sequence[bytes | None], arrived_us: ArrivalTimes) -> Batch:
        """As :meth:`decode`, but of messages that are no event alone only so many that about ``AT_ONCE`` events are
        decoded.

        The batch says how many messages that were, at least one of them. No byte is decoded twice.
        """
        leading = self._leading(values)
        if len(leading.fixes) == len(values):
            return self._total(leading.fixes, arrived_us)
        read = self._read(values, leading)
        message, element = read.places()
        index = np.array(read.index, np.int64)
        batch = self._total(read.fixes, _of(arrived_us, message[index]))
        reason = np.full(len(message), _SOUND, dtype=np.uint8)
        reason[list(read.refused)] = list(read.refused.values())
        reason[index[batch.refused]] = batch.reason
        bad, index = np.flatnonzero(reason != _SOUND), message[index[batch.index]]
        return Batch(batch.rows, index, batch.slots, message[bad], reason[bad], element[bad], read.messages)

    def _leading(self, values: Sequence[Any]) -> Leading:
        """The fixes of the first messages, up to one that is no event alone: of all in an ordinary batch."""
        leading = Leading([])
        # An error is of the message that cannot be decoded, or of an empty one or a tombstone before any is.
        with suppress(Exception):
            several = self._arrays and _BRACKET in map(_first_byte, values)
            if not several and max(map(len, values)) <= MAX_MESSAGE_BYTES:
                leading.is_cut = True
                leading.fixes.extend(map(self._format.decode, values))
        return leading

    def _read(self, values: Sequence[bytes | None], leading: Leading, *, nested: bool = False) -> Read:
        """Events of the first messages, in one pass. ``nested``: of elements of one message, which hold no others."""
        arrays = self._arrays and not nested
        fixes, events, spent = leading.fixes, len(leading.fixes), 0
        read, undecodable = Read(fixes, list(range(events))), events if leading.is_cut else -1
        decode, keep, place = self._format.read, fixes.append, read.index.append
        if decode is not self._format.decode:
            undecodable = -1
        for position, value in enumerate(values[events:], events):
            if (
                value is not None
                and len(value) <= MAX_MESSAGE_BYTES
                and not (arrays and value[:1] == b"[")
                and position != undecodable
            ):
                try:
                    keep(decode(value))
                except Exception:
                    pass
                else:
                    place(events)
                    events += 1
                    continue
            several = self._corners(value) if arrays else None
            if several is None:
                parts = _parts(value) if arrays else None
                if value is None or parts is None or self._one_each or len(parts) > MAX_EVENTS:
                    reason, read.corners[events] = self._why_refused(value, parts)
                    read.refused[events] = _CODE[reason]
                else:
                    several = self._read(parts, Leading([]), nested=True)
            count = 1
            if several is not None:
                read.add(position, events, several)
                count = several.events
            events += count
            spent += max(count, len(value or b"") >> 5)
            if spent >= AT_ONCE and not nested:
                values = values[: position + 1]
                break
        read.events, read.messages = events, len(values)
        return read

    def _corners(self, value: bytes | None) -> Read | None:
        """The corners of a declared region, each an event; None for another message."""
        if not self._regions or value is None or len(value) > MAX_MESSAGE_BYTES:
            return None
        corners = corners_of(value)
        return None if corners is None else Read(corners, list(range(len(corners))), events=len(corners))

    def _why_refused(self, value: bytes | None, parts: list[bytes] | None) -> tuple[Reason, int]:
        """The reason, and the corner for which a region is refused; -1 without one."""
        if value is None:
            return Reason.TOMBSTONE, -1
        if parts is not None and self._one_each:
            return Reason.SEVERAL_EVENTS, -1
        if parts or len(value) > MAX_MESSAGE_BYTES:
            return Reason.TOO_LARGE, -1
        fault = region_fault(value) if self._regions else None
        return (self._why_undecodable(value), -1) if fault is None else (Reason(fault[0]), fault[1])

    def _total(self, fixes: list[Any], arrived_us: ArrivalTimes) -> Batch:
        """The batch of read fixes. If one causes an error, they are halved until it is alone and refused."""
        try:
            users, times, lats, lngs, speeds = (list(map(getter, fixes)) for getter in self._format.getters)
            columns = times_us(times), np.array(lats, float), np.array(lngs, float), np.array(speeds, float)
            reason = np.full(len(fixes), _SOUND, dtype=np.uint8)
            if self._clocks is not None:
                columns = self._from_local(columns, np.array(list(map(claims_utc, times)), dtype=bool), reason)
            return self._of_sound(users, columns, reason, arrived_us)
        except Exception as error:
            if not fixes:
                raise
            if len(fixes) == 1:
                log.error("a message caused an unexpected error and is refused", error=type(error).__name__)
                return _refused(Reason.UNDECODABLE)
        middle = len(fixes) // 2
        first = self._total(fixes[:middle], _of(arrived_us, slice(middle)))
        return _joined(first, self._total(fixes[middle:], _of(arrived_us, slice(middle, None))))

    def decode_fixes(self, users: list[Any], columns: _Columns, arrived_us: ArrivalTimes) -> Batch:
        """Rows of fixes whose messages are read already, by the same rules as :meth:`decode`."""
        reason = np.full(len(users), _SOUND, dtype=np.uint8)
        if self._clocks is not None:
            columns = self._from_local(columns, np.ones(len(reason), dtype=bool), reason)
        return self._of_sound(users, columns, reason, arrived_us)

    def _from_local(self, columns: _Columns, are_local: BoolArray, reason: NDArray[np.uint8]) -> _Columns:
        """The columns with the times ``are_local``, which claim to be UTC, as local times of ``feed.times_zone``."""
        assert self._clocks is not None
        local, wrong = utc_of_local(columns[0], self._clocks)
        reason[are_local & wrong & (reason == _SOUND)] = _CODE[Reason.WRONG_TYPE]
        return np.where(are_local, local, columns[0]), *columns[1:]

    def _of_sound(
        self, users: list[Any], columns: _Columns, reason: NDArray[np.uint8], arrived_us: ArrivalTimes
    ) -> Batch:
        """:meth:`judged` for those events that have no ``reason`` yet."""
        if (reason == _SOUND).all():
            return self.judged(users, columns, np.arange(len(users), dtype=np.int64), reason, arrived_us)
        index = np.flatnonzero(reason == _SOUND)
        time, lat, lng, speed = columns
        chosen = time[index], lat[index], lng[index], speed[index]
        return self.judged([users[at] for at in index.tolist()], chosen, index, reason, arrived_us)

    def judged(
        self,
        users: list[Any],
        columns: _Columns,
        index: IntArray,
        reason: NDArray[np.uint8],
        arrived_us: ArrivalTimes,
    ) -> Batch:
        """The batch of which ``columns`` (time, lat, lng, speed) are messages at ``index``; writes each ``reason``."""
        pseudonyms, verdict = self._pseudonymise(users)
        fixes = _Fixes(pseudonyms, *columns)
        self._judge(fixes, arrived_us if isinstance(arrived_us, int) else arrived_us[index], verdict)
        reason[index] = verdict
        sound = verdict == _SOUND
        if not sound.all():
            index, fixes = index[sound], fixes.where(sound)
        rows, refused = self._rows(fixes), np.flatnonzero(reason != _SOUND)
        slots, element = self._slotting.slot_starts(fixes.time_us), np.full(len(refused), -1, dtype=np.int64)
        return Batch(rows, index, slots, refused, reason[refused], element, len(reason))

    def _judge(self, fixes: _Fixes, arrived_us: ArrivalTimes, verdict: NDArray[np.uint8]) -> None:
        """For each fix without a verdict, write the first reason to refuse it into ``verdict``."""
        domain = self._domain
        oldest = np.maximum(arrived_us - self._max_age_us, EARLIEST_US)
        inside = _inside(domain, fixes.lat, fixes.lng)
        origin = (np.abs(fixes.lat) < ORIGIN_DEGREES) & (np.abs(fixes.lng) < ORIGIN_DEGREES)
        for failed, why in (
            (np.less(arrived_us, 0), Reason.NOT_STAMPED),
            (fixes.time_us < oldest, Reason.TOO_OLD),
            (fixes.time_us > arrived_us + self._max_future_us, Reason.IN_FUTURE),
            (fixes.speed < self._slowest, Reason.NEGATIVE_SPEED),
            (fixes.speed > self._fastest, Reason.TOO_FAST),
            (origin, Reason.AT_ORIGIN),
            (~inside & _inside(domain, fixes.lng, fixes.lat), Reason.SWAPPED_AXES),
            (~inside, Reason.OUT_OF_DOMAIN),
        ):
            verdict[failed & (verdict == _SOUND)] = _CODE[why]

    def _rows(self, fixes: _Fixes) -> NDArray[np.void]:
        rows = np.empty(len(fixes.user), dtype=ROW)
        cells = map(h3.latlng_to_cell, fixes.lat.tolist(), fixes.lng.tolist(), repeat(self._resolution))
        rows["cell"] = np.fromiter(cells, np.uint64, len(rows))
        rows["user"] = fixes.user
        rows["time"] = fixes.time_us
        rows["lat"] = np.rint(fixes.lat * 1e7)
        rows["lng"] = np.rint(fixes.lng * 1e7)
        with np.errstate(over="ignore"):  # a speed that is infinite in quanta is above the bound, too
            rows["value"] = np.clip(np.rint(fixes.speed * self._quanta), self._least, _MAX_VALUE)
        return rows

    def _pseudonymise(self, users: list[str | int]) -> tuple[IdArray, NDArray[np.uint8]]:
        """Pseudonym and verdict of each user; the pseudonym is 0 if the user is refused."""
        verdict = np.full(len(users), _SOUND, dtype=np.uint8)
        lookup: Callable[[Any], int] = self._pseudonyms.__getitem__
        try:
            return np.fromiter(map(lookup, users), np.uint64, len(users)), verdict
        except (KeyError, AttributeError):
            pass
        pseudonyms = np.zeros(len(users), dtype=np.uint64)
        for position, user in enumerate(users):
            text = user if isinstance(user, str) else str(user)
            try:
                pseudonyms[position] = self._pseudonyms[text]
            except KeyError:
                verdict[position] = _CODE[Reason.ID_EMPTY if not text.strip() else Reason.ID_TOO_LONG]
        return pseudonyms, verdict

    def _why_undecodable(self, message: bytes) -> Reason:
        try:
            present = fields_in(lenient_tree(message), self._format.fields)
        except (ValueError, RecursionError):
            return Reason.NOT_JSON
        if len(present) < len(ROLES):
            return Reason.MISSING_FIELD
        if any(is_not_finite(value) for name, value in present.items() if name != "user"):
            return Reason.NOT_FINITE
        return Reason.WRONG_TYPE


def _parts(value: bytes | None) -> list[bytes] | None:
    """The events of a message that may hold several; None if it does not."""
    if value is None or len(value) > MAX_ARRAY_BYTES or not may_hold_several(value):
        return None
    return elements(value, MAX_EVENTS)


def _inside(domain: BoundingBox, lat: FloatArray, lng: FloatArray) -> BoolArray:
    within, west, east = (lat >= domain.south) & (lat <= domain.north), lng >= domain.west, lng <= domain.east
    return np.asarray(within & (west | east if domain.crosses_180 else west & east) & (np.abs(lng) <= 180))


def _refused(reason: Reason) -> Batch:
    none = np.zeros(0, dtype=np.int64)
    alone, code = np.zeros(1, dtype=np.int64), np.array([_CODE[reason]], np.uint8)
    return Batch(np.zeros(0, dtype=ROW), none, none, alone, code, alone - 1, 1)


def _of(arrived_us: ArrivalTimes, part: slice | IntArray) -> ArrivalTimes:
    return arrived_us if isinstance(arrived_us, int) else arrived_us[part]


def _joined(first: Batch, second: Batch) -> Batch:
    """Two parts of a batch, the second of which follows the first."""
    return Batch(
        np.concatenate([first.rows, second.rows]),
        np.concatenate([first.index, second.index + first.messages]),
        np.concatenate([first.slots, second.slots]),
        np.concatenate([first.refused, second.refused + first.messages]),
        np.concatenate([first.reason, second.reason]),
        np.concatenate([first.element, second.element]),
        first.messages + second.messages,
    )


_first_byte = itemgetter(0)
