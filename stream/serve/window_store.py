"""Holds releases in memory: windows, their cells and histograms, and whether they are complete. No I/O.

Also what the service reads of a window's close marker, and when windows begin on the clocks of their feed.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from stream.config.value import SPEED
from stream.messages.cells import Clipping
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, digest
from stream.serve.ogc.selection import Bounds
from stream.serve.received import Received

MAX_WINDOWS = 24 * 35
"""Number of windows to keep; those whose close markers arrived first are removed first."""
MAX_BYTES = 1 << 30
"""Bytes of message values to keep. Windows without a close marker get at most a quarter of it."""
MAX_FORGOTTEN = 100_000
"""Number of removed windows whose starts are remembered, so that they are not stored again."""

Outcome = Literal["taken", "duplicate", "invalid", "forgotten", "completed"]
"""What became of a message. "forgotten": its window is no longer kept. "completed": it was taken and made its window
complete.
"""


_NUMBER = attrgetter("number")


class Described(NamedTuple):
    """What answers say of a window, as JSON, in one state of it."""

    tag: str
    """It is another one in another state, and no other window has it: a body of it depends on nothing else."""
    summary: bytes
    histograms: bytes
    """The window with the summaries of its histograms."""


@dataclass
class WindowView:
    """One window of one feed: message values by cell and by mechanism, and its close marker once it arrived."""

    feed: str
    start: str
    end: str
    cells: dict[str, bytes] = field(default_factory=dict)
    histograms: dict[str, bytes] = field(default_factory=dict)
    histogram_summaries: dict[str, bytes] = field(default_factory=dict)
    """Summary of each histogram as JSON, without feed, window and structure."""
    marker: bytes | None = None
    number: int = 0
    """Position of the close marker in its topic, from 1. It orders windows and is the id of their events."""
    promised: tuple[int, str] = (0, "")
    """Number of messages and digest that the close marker states."""
    complete: bool = False
    size: int = 0
    seen: set[str] = field(default_factory=set)
    """The ``ce_id`` of each accepted message; emptied once the window is complete, to save memory."""
    bounds: Bounds | None = None
    """Box around the hexagons of a complete window, computed when it is first needed; None if there are no hexagons."""
    _ordered: tuple[int, list[bytes]] = field(default=(-1, []), init=False, repr=False)
    """Values of the cells in order, and the window's size when they were sorted."""
    _described: tuple[tuple[int, bool], Described] | None = field(default=None, init=False, repr=False)
    """With the window's size, and whether it was complete, at that time."""

    def agrees(self) -> bool:
        """Whether the messages of a full window have the digest of its close marker.

        Changes no message, and takes time in proportion to the window: the event loop leaves it to a thread.
        """
        histograms = [self.histograms[mechanism] for mechanism in sorted(self.histograms)]
        return digest(self.in_order() + histograms) == self.promised[1]

    def put(self, message: Received) -> None:
        """Store a checked message."""
        if message.topic == HEXAGON_SPEED:
            self.cells[message.part] = message.value
        elif message.topic == SPATIAL_HISTOGRAM:
            self.histograms[message.part] = message.value
            self.histogram_summaries[message.part] = message.summary
        else:
            self.marker, self.number, self.promised = message.value, message.number, message.promised
        self.seen.add(message.ce_id)
        self.size += len(message.value)

    def holds(self, message: Received) -> bool:
        """Whether a complete window has this message with the same bytes, so that a repetition is no contradiction."""
        if message.topic == HEXAGON_SPEED:
            return self.cells.get(message.part) == message.value
        of_histogram = message.topic == SPATIAL_HISTOGRAM
        return message.value == (self.histograms.get(message.part) if of_histogram else self.marker)

    def in_order(self) -> list[bytes]:
        """Values of the cells in ascending order of cell: one list, which nobody changes, until another message comes.

        Any thread may ask. The size grows last with each message, so what was sorted meanwhile is not taken for newer.
        """
        size, values = self._ordered
        if size != self.size:
            size = self.size
            values = [self.cells[cell] for cell in sorted(self.cells)]
            self._ordered = size, values
        return values

    @property
    def tag(self) -> str:
        """:attr:`Described.tag` of the present state."""
        return self.described().tag

    def described(self) -> Described:
        """What answers say of the present state, encoded once. For the thread that puts messages in, the event loop."""
        state = self.size, self.complete
        if self._described is None or self._described[0] != state:
            names = f"{self.feed} {self.start} {self.end} {self.number} {self.size} {self.complete} "
            summaries = [msgspec.Raw(summary) for _, summary in sorted(self.histogram_summaries.items())]
            self._described = (
                state,
                Described(
                    digest([names.encode(), self.marker or b""])[7:39],
                    msgspec.json.encode(self.summary()),
                    msgspec.json.encode(self.stated | {"histograms": summaries}),
                ),
            )
        return self._described[1]

    @property
    def named(self) -> dict[str, Any]:
        """Which window it is, as answers say it."""
        return {"feed": self.feed, "window": {"start": self.start, "end": self.end}}

    @property
    def stated(self) -> dict[str, Any]:
        """Which window it is, and whether it is complete."""
        return self.named | {"complete": self.complete}

    def summary(self) -> dict[str, Any]:
        """The window without its cells."""
        return self.stated | {
            "event_id": self.number or None,
            "cells": len(self.cells),
            "histograms": sorted(self.histograms),
            "marker": None if self.marker is None else msgspec.json.decode(self.marker),
        }


class View:
    """All windows by (feed, start). A message is accepted once per ``ce_id``, and only if it matches its schema."""

    def __init__(
        self, max_windows: int = MAX_WINDOWS, max_bytes: int = MAX_BYTES, max_forgotten: int = MAX_FORGOTTEN
    ) -> None:
        """``max_windows``: the most windows with a close marker to keep, and the most without one."""
        self._max_windows, self._max_bytes, self._max_forgotten = max_windows, max_bytes, max_forgotten
        self.forgotten: dict[tuple[str, str], None] = {}
        """Feed and start of windows no longer kept, oldest first. Messages of them that arrive again are not stored."""
        self._size = 0
        self._unmarked: dict[tuple[str, str], WindowView] = {}
        self._unmarked_size = 0
        self.windows: dict[tuple[str, str], WindowView] = {}
        self.generation = 0
        """How often a window became complete, or a complete one was removed. What was derived from complete windows
        holds while it stays."""

    def put(self, message: Received) -> Outcome:
        """Store a checked message. The caller then asks :meth:`full` whether its window may be complete now."""
        key = (message.feed, message.start)
        if key in self.forgotten:
            return "forgotten"
        window = self.windows.get(key)
        if window is None:
            window = self.windows[key] = self._unmarked[key] = WindowView(*key, message.end)
        if message.ce_id in window.seen or (window.complete and window.holds(message)):
            return "duplicate"
        if window.complete or window.end != message.end:
            return "invalid"
        window.put(message)
        self._size += len(message.value)
        if key in self._unmarked:
            self._unmarked_size += len(message.value)
            if window.marker is not None:
                del self._unmarked[key]
                self._unmarked_size -= window.size
        self._forget()
        return "taken"

    def full(self, message: Received) -> WindowView | None:
        """The window of a message that was just stored, if as many are here as its close marker promises.

        It may be complete: their digest can be compared.
        """
        window = self.windows.get((message.feed, message.start))
        if window is None or window.marker is None:
            return None
        return window if window.promised[0] == len(window.cells) + len(window.histograms) else None

    def finish(self, window: WindowView) -> None:
        """Mark a window as complete; it stays so."""
        window.complete = True
        window.seen.clear()
        self.generation += 1

    def _forget(self) -> None:
        """Remove windows until the limits hold. Windows without a close marker never displace those that have one."""
        while self._unmarked and (
            len(self._unmarked) > self._max_windows or self._unmarked_size > self._max_bytes // 4
        ):
            self._drop(next(iter(self._unmarked.values())))
        while (len(self.windows) - len(self._unmarked) > self._max_windows or self._size > self._max_bytes) and len(
            self.windows
        ) - len(self._unmarked) > 1:
            self._drop(min((w for w in self.windows.values() if w.marker is not None), key=_NUMBER))

    def _drop(self, window: WindowView) -> None:
        key = (window.feed, window.start)
        del self.windows[key]
        if window.complete:
            self.generation += 1
        self._size -= window.size
        if self._unmarked.pop(key, None) is not None:
            self._unmarked_size -= window.size
        self.forgotten[key] = None
        if len(self.forgotten) > self._max_forgotten:
            del self.forgotten[next(iter(self.forgotten))]

    def completed(self, feed: str | None = None) -> list[WindowView]:
        """Complete windows in the order of their markers."""
        return sorted((w for w in self.windows.values() if w.complete and feed in (None, w.feed)), key=_NUMBER)

    def feeds(self) -> set[str]:
        """Names of the feeds that have a complete window."""
        return {window.feed for window in self.windows.values() if window.complete}

    def ordered(self, feed: str | None = None) -> list[WindowView]:
        """All windows, newest first."""
        windows = [window for window in self.windows.values() if feed in (None, window.feed)]
        return sorted(windows, key=lambda window: (window.start, window.feed), reverse=True)

    def span(self, feed: str) -> tuple[str, str] | None:
        """Starts of the oldest and the newest complete window of the feed; None if it has none."""
        starts = [window.start for window in self.windows.values() if window.complete and window.feed == feed]
        return (min(starts), max(starts)) if starts else None

    def find(self, start: str | None, feed: str) -> WindowView | None:
        """The window that starts then, or the newest complete one."""
        if start is not None:
            return self.windows.get((feed, start))
        return next((window for window in self.ordered(feed) if window.complete), None)


class Period(msgspec.Struct):
    """The ledger period of the window, of which only the zone is read."""

    timezone: str


class CloseMarker(msgspec.Struct):
    """How the numbers of a window were made."""

    relation: str
    clipping: Clipping
    period: Period
    accounting: str = "pure"
    withheld: bool = False
    value: str = SPEED


# Made here, because two threads that decode a type for the first time at once crash msgspec.
_MARKERS = msgspec.json.Decoder(CloseMarker)


def marker_of(window: WindowView) -> CloseMarker | None:
    """The window's close marker; None before it arrived."""
    return None if window.marker is None else _MARKERS.decode(window.marker)


_NOT_YET = CloseMarker("", Clipping(0.0, float("inf")), Period("UTC"))


def stated_by(window: WindowView) -> CloseMarker:
    """What the window's close marker states; before it arrived, a speed of any number of 0 or more, in UTC."""
    return marker_of(window) or _NOT_YET


_LEAST = timedelta(microseconds=1)
_KEPT = 20_000
"""Number of local starts that are kept."""


@lru_cache(maxsize=_KEPT)
def local_start(start: str, zone: str) -> datetime:
    """The start of a window, as messages write it, on the clocks of ``zone``; in UTC if these have no such day."""
    moment = datetime.fromisoformat(start)
    try:
        return moment.astimezone(_place(zone))
    except OverflowError:  # the first or the last day of the calendar
        return moment


def local_length(window: WindowView, zone: str) -> timedelta:
    """From the first to the last time that the clocks of ``zone`` show in the window.

    It is the length of the window unless the clocks change in it. The end is that of the last moment in the window:
    where the clocks skip from 02:00 to 03:00, the window from 01:00 ends at 02:00.
    """
    begin = local_start(window.start, zone).replace(tzinfo=None)
    try:
        last = (datetime.fromisoformat(window.end) - _LEAST).astimezone(_place(zone))
    except OverflowError:  # the first or the last day of the calendar
        return elapsed(window)
    return last.replace(tzinfo=None) + _LEAST - begin


def elapsed(window: WindowView) -> timedelta:
    """Length of the window."""
    return datetime.fromisoformat(window.end) - datetime.fromisoformat(window.start)


def start_at(local: datetime) -> str | None:
    """The start in UTC as messages write it; None for a local time that the clocks skip or that no calendar has."""
    try:
        moment = local.astimezone(UTC)
        back = moment.astimezone(local.tzinfo)
    except OverflowError:
        return None
    is_shown = back.replace(tzinfo=None) == local.replace(tzinfo=None)
    return moment.isoformat().replace("+00:00", "Z") if is_shown else None


def _place(zone: str) -> ZoneInfo:
    """The zone of that name, or UTC if no such zone is known."""
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")
