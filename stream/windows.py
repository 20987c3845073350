"""Timeslots, ledger periods and watermarks: pure functions of time.

A period of whole days runs from one local midnight to another; several days are counted from Monday 1970-01-05. A
period shorter than a day divides the local day in elapsed time from its midnight, and the last one is cut at the next
midnight. Timeslots are counted in elapsed time from the start of their period and the last one is cut at its end, so
a slot never straddles two periods, not even on days of 23, 23.5 or 25 hours. A midnight that the clocks repeat is its
first occurrence; one that they skip is the instant at which the clock before the change would have shown it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from dpcore.arrays import IntArray

_DAY = 86_400
_MICROSECOND = timedelta(microseconds=1)
_MONDAY = date(1970, 1, 5).toordinal()
_KEPT_DAYS = 1024
"""Number of UTC days whose slot tables are cached; a live feed needs two or three."""
MAX_SPAN_DAYS = 3660
EARLIEST_US = 946_684_800_000_000
"""2000-01-01 in UTC. No feed is older, and clocks whose battery failed often show 1970 or 1980."""
EARLIEST_S, LATEST_S = EARLIEST_US // 1_000_000, 4_102_444_800
"""2000 and 2100. A number outside is not a time in epoch seconds: often it is in milliseconds, or was never set."""
CLOCK_MARGIN_US = 2_000_000
"""How far the clocks of brokers and Redis may differ; "hexveil doctor" checks it."""
JUST_NOW_US = 15_000_000
"""After this time, a partition that had been read to its end may contain new messages."""


class SpanError(ValueError):
    """A span of time that cannot be released; the message says why and what to write instead."""


class Window(NamedTuple):
    """One timeslot ``[start, end)`` in epoch seconds."""

    start: int
    end: int


class Horizon(NamedTuple):
    """Blocks of periods with a budget of their own: the length of a block, and its budget in the ledger's unit."""

    length: timedelta
    budget: int


class Block(NamedTuple):
    """One block of a horizon ``[start, end)`` in epoch seconds. ``key``: its first local date and its length."""

    start: int
    end: int
    key: str
    budget: int


class Period(NamedTuple):
    """One ledger period ``[start, end)`` in epoch seconds. ``key``: its first local date, with the part of the day if
    shorter.

    ``block``: the block of the horizon that it belongs to; None without a horizon.
    """

    start: int
    end: int
    key: str
    block: Block | None = None

    @property
    def begun(self) -> int:
        """When the time began for which its users have a budget: a ledger born later does not release the period."""
        return self.start if self.block is None else self.block.start


class PartitionTime(NamedTuple):
    """How far one partition was read, µs UTC.

    ``max_event_us``: largest event time (None: no event yet). ``moved_us``: when that last grew, or else when the
    partition was first listed, by Redis's clock. ``read_us``: everything that the broker appended before this time was
    read.
    """

    max_event_us: int | None
    moved_us: int
    read_us: int


@dataclass(frozen=True)
class PublicationTimes:
    """Instants at which a window may be published: its end, plus ``delay``, plus k times ``margin`` for k = 1, 2, ….

    A window whose draw is not committed by the first of them waits for the next. So its publication tells of the draw's
    length no more than how many margins it took, and after an outage, too.
    """

    delay: timedelta
    margin: timedelta

    def first_us(self, window_end: int) -> int:
        """The first instant (µs UTC) for a window that ends at ``window_end`` (epoch seconds)."""
        return window_end * 1_000_000 + (self.delay + self.margin) // _MICROSECOND

    def next_us(self, window_end: int, now_us: int) -> int:
        """The first of the instants (µs UTC) that is not before ``now_us``."""
        first, margin = self.first_us(window_end), self.margin // _MICROSECOND
        return first + max(0, -(-(now_us - first) // margin)) * margin


@dataclass(frozen=True)
class Slotting:
    """Divides time into timeslots and ledger periods of one time zone.

    ``horizon``: the blocks that several periods form; they are counted as periods of several days are. Raises
    :class:`ValueError` for a slot or period that is not a whole positive number of seconds, a slot longer than the
    period, a period above a day that is not a whole number of days, and a horizon that is not a whole number of days
    and periods.
    """

    slot: timedelta
    period: timedelta
    timezone: str
    horizon: Horizon | None = None
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _tables: dict[int, IntArray] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, span in (("slot", self.slot), ("period", self.period)):
            if span <= timedelta(0) or span.microseconds:
                raise ValueError(f"{name} {span} is not a positive whole number of seconds; give one like '1h'")
        if self.slot > self.period:
            raise ValueError(f"slot {self.slot} is longer than the period {self.period}; make it divide the period")
        if self.period > timedelta(days=1) and self.period.seconds:
            raise ValueError(f"period {self.period} is above a day but not whole days; give whole days like '7d'")
        if self.horizon is not None:
            length, whole = self.horizon.length, max(self.period, timedelta(days=1))
            if length.seconds or length.microseconds or length % whole or length <= self.period:
                raise ValueError(
                    f"horizon {length} is not several whole periods of {self.period} and whole days; give one like "
                    "'28d'"
                )
        object.__setattr__(self, "_zone", ZoneInfo(self.timezone))

    def slot_starts(self, times_us: IntArray) -> IntArray:
        """Start (epoch seconds) of the timeslot of each time (µs UTC), from one table per distinct UTC day."""
        seconds = np.asarray(times_us, dtype=np.int64) // 1_000_000
        if seconds.size == 0:
            return seconds
        days = seconds // _DAY
        first, last = int(days.min()), int(days.max())
        distinct = range(first, last + 1) if last - first <= 1 else np.unique(days).tolist()
        tables = [self._table(day) for day in distinct]
        boundaries = tables[0] if len(tables) == 1 else np.concatenate(tables)
        return boundaries[np.searchsorted(boundaries, seconds, side="right") - 1]

    def window(self, slot_start: int) -> Window:
        """The timeslot that holds ``slot_start`` (epoch seconds), which need not be its first second."""
        period = self.period_of(slot_start)
        length = self.slot // timedelta(seconds=1)
        start = period.start + (slot_start - period.start) // length * length
        return Window(start, min(start + length, period.end))

    def period_of(self, slot_start: int) -> Period:
        """The ledger period that holds the instant ``slot_start`` (epoch seconds)."""
        start, end, key = self._days(slot_start, max(1, self.period.days))
        block = self.block_of(slot_start)
        if self.period.days:
            return Period(start, end, key, block)
        length = self.period // timedelta(seconds=1)
        part = (slot_start - start) // length
        return Period(start + part * length, min(start + (part + 1) * length, end), f"{key}.{part}", block)

    def block_of(self, instant: int) -> Block | None:
        """The block of the horizon that holds ``instant`` (epoch seconds); None without a horizon."""
        if self.horizon is None:
            return None
        days = self.horizon.length.days
        start, end, key = self._days(instant, days)
        return Block(start, end, f"{key}+{days}d", self.horizon.budget)

    def whole_from(self, birth: int) -> int:
        """The time (epoch seconds) from which periods may be released by a ledger that was born at ``birth``.

        With a horizon it is the start of a block: what was spent before in a block that had begun is unknown.
        """
        block = self.block_of(birth)
        return birth if block is None or block.start == birth else block.end

    def _days(self, instant: int, whole: int) -> tuple[int, int, str]:
        """Start and end (epoch seconds) and first local date of the ``whole`` days that hold ``instant``."""
        local = datetime.fromtimestamp(instant, self._zone).toordinal()
        first = _MONDAY + (local - _MONDAY) // whole * whole
        # The clocks may repeat or skip a midnight, so the date on the clock is only a first guess.
        while self._midnight(first) > instant:
            first -= whole
        while self._midnight(first + whole) <= instant:
            first += whole
        return self._midnight(first), self._midnight(first + whole), date.fromordinal(first).isoformat()

    def span(self, start: str, end: str) -> Window:
        """Two local dates or RFC 3339 times as a span of whole timeslots. Raises :class:`SpanError`."""
        first, last = self._slot_start(start), self._slot_start(end)
        if first >= last:
            raise SpanError(f"the span from {start} until {end} is empty; its end must be after its start")
        if last - first > MAX_SPAN_DAYS * _DAY:
            raise SpanError(f"the span from {start} until {end} is longer than {MAX_SPAN_DAYS} days; split it")
        return Window(first, last)

    def _slot_start(self, text: str) -> int:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = datetime.min
        if not 1970 < moment.year < 9999:
            raise SpanError(f"{text!r} is not a time after 1970; write one like 2017-03-21 or 2017-03-21T07:00")
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=self._zone)).timestamp()
        if self.window(int(seconds)).start != seconds:
            raise SpanError(f"{text} is not the start of a timeslot of {self.slot}; begin and end at one")
        return int(seconds)

    def slots_in(self, span: Window) -> list[int]:
        """Start of every timeslot that begins in ``span``, itself the start of one."""
        slots, slot = [], span.start
        while slot < span.end:
            slots.append(slot)
            slot = self.window(slot).end
        return slots

    def most_slots(self, instant: int) -> int:
        """Number of timeslots of the longest ledger period among those of the year from ``instant`` (epoch seconds) on.

        In a period in which the clocks go back it is above ``period // slot``.
        """
        length = self.slot // timedelta(seconds=1)
        most, at = 0, instant
        while at < instant + 366 * _DAY:
            period = self.period_of(at)
            most = max(most, -(-(period.end - period.start) // length))
            if not self.period.days:  # such a period is never longer than configured
                return self.period // self.slot
            at = period.end
        return most

    def _midnight(self, ordinal: int) -> int:
        day = date.fromordinal(ordinal)
        return int(datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp())

    def _table(self, day: int) -> IntArray:
        """Starts of all timeslots that overlap one UTC day (given in days since 1970), in order."""
        table = self._tables.get(day)
        if table is None:
            table = self._slots_between(day * _DAY, (day + 1) * _DAY)
            if len(self._tables) >= _KEPT_DAYS:
                self._tables.pop(next(iter(self._tables)), None)
            self._tables[day] = table
        return table

    def _slots_between(self, start: int, end: int) -> IntArray:
        length = self.slot // timedelta(seconds=1)
        parts, instant = [], start
        while instant < end:
            period = self.period_of(instant)
            begin = period.start + (instant - period.start) // length * length
            parts.append(np.arange(begin, min(end, period.end), length, dtype=np.int64))
            instant = period.end
        return np.concatenate(parts)


def read_through(partitions: Mapping[str, PartitionTime]) -> int | None:
    """The time (µs UTC) before which everything appended to any partition has been read; None while that is unknown.

    A window takes no more events once this time is after its end plus the allowed delay.
    """
    return min((times.read_us for times in partitions.values()), default=None)


def watermark(
    partitions: Mapping[str, PartitionTime], now_us: int, allowed_delay: timedelta, idle_timeout: timedelta
) -> int | None:
    """The watermark of a recording: windows that end before this time (µs UTC) can close. None while it is unknown.

    It is the smallest, over partitions, of the largest event time less ``allowed_delay``. Idle partitions are ignored:
    those that were just read to their end and brought no larger event time for ``idle_timeout``. So a vehicle whose
    clock stands still cannot keep windows open for longer. An event time after ``now_us`` (Redis's clock) counts as
    ``now_us``. A partition without any event keeps all windows open until it is idle. If all partitions are idle, the
    watermark is ``now_us - allowed_delay``, which closes the last windows of a recording that has ended.
    """
    delay, timeout = allowed_delay // _MICROSECOND, idle_timeout // _MICROSECOND
    active = [
        times.max_event_us
        for times in partitions.values()
        if times.read_us - times.moved_us < timeout or now_us - times.read_us > JUST_NOW_US
    ]
    if not active:
        seen_any = any(times.max_event_us is not None for times in partitions.values())
        return now_us - delay if seen_any else None
    known = [event for event in active if event is not None]
    if len(known) < len(active):
        return None
    return min(min(known), now_us) - delay


def utc_text(epoch_seconds: int) -> str:
    """The time as messages write it: ``2017-03-21T12:00:00Z``."""
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
