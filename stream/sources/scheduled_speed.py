"""Scheduled speed of cells by kind of day and local hour: all scheduled metres by all scheduled seconds. Pure; public
facts.

The scheduled time of a cell includes the standing times between arrival and departure at its stops, except before the
first and after the last stop of a trip. Between two stops the speed is steady. A stretch between two stops within one
cell, and a stay, counts in the hour of its middle; one after midnight counts on the day on which it is driven.

Where the stops of a trip lie along its line, and which cells the line crosses between them. Pure.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import h3
import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.earth import great_circle_m
from stream.config.section import BoundingBox
from stream.sources.places import MOST_SAMPLES, PER_EDGE, is_inside
from stream.sources.schedule import ScheduleError
from stream.sources.timetable import MOST_CALLS, Timetable, filled

FURTHEST_M = 250.0
"""A stop further from its shape than this does not lie on it."""
MOST_COMPARED = 1_000_000
"""Pairs of a stop and an edge of one trip; of more, the trip is drawn straight from stop to stop."""
_DEGREE_M = 111_195.0


@dataclass(frozen=True)
class Line:
    """A line through ``points`` (n, 2) in degrees, of which no two consecutive ones are alike."""

    points: FloatArray

    @cached_property
    def along(self) -> FloatArray:
        """Metres from the start to each point."""
        lat, lng = self.points.T
        return np.concatenate([[0.0], np.cumsum(great_circle_m(lat[:-1], lng[:-1], lat[1:], lng[1:]))])


@dataclass(frozen=True)
class Course:
    """Cells along a line: cell k lies between ``ends[k]`` and ``ends[k + 1]`` metres."""

    cells: list[str]
    ends: FloatArray


def line_of(points: FloatArray) -> Line | None:
    """The line through the points; None if they are all alike."""
    differs = np.any(points[1:] != points[:-1], axis=1)
    kept = points[np.concatenate([[True], differs])] if len(points) else points
    return Line(kept) if len(kept) > 1 else None


def course_of(line: Line, resolution: int, step: float) -> Course:
    """The cells that the line crosses, looked up in the middle of parts of at most ``step`` metres."""
    length = float(line.along[-1])
    count = max(1, int(np.ceil(length / step)))
    ends = np.linspace(0.0, length, count + 1)
    middles = (ends[1:] + ends[:-1]) / 2
    lat, lng = (np.interp(middles, line.along, column).tolist() for column in line.points.T)
    cells = [h3.latlng_to_cell(*place, resolution) for place in zip(lat, lng, strict=True)]
    starts = [k for k in range(count) if not k or cells[k] != cells[k - 1]]
    return Course([cells[k] for k in starts], np.append(ends[starts], length))


def positions(line: Line, stops: FloatArray) -> FloatArray | None:
    """Metres along the line at which it passes the stops (n, 2), in their order, with the least sum of squared
    distances.

    None if a stop lies further than :data:`FURTHEST_M` from there, or if too many pairs would be compared.
    """
    if len(stops) * len(line.points) > MOST_COMPARED:
        return None
    apart, share = _distances(line, stops)
    chosen = _in_order(apart**2)
    rows = np.arange(len(stops))
    if apart[rows, chosen].max() > FURTHEST_M:
        return None
    lengths = np.diff(line.along)
    return np.maximum.accumulate(line.along[chosen] + share[rows, chosen] * lengths[chosen])


def _distances(line: Line, stops: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Metres (n, edges) from each stop to each edge on a plane, and the share of the edge at which that is."""
    scale = np.array([_DEGREE_M, _DEGREE_M * np.cos(np.radians(line.points[0, 0]))])
    points, places = line.points * scale, stops * scale
    edge = points[1:] - points[:-1]
    towards = places[:, None] - points[None, :-1]
    square = np.maximum((edge**2).sum(axis=1), 1e-12)
    share = np.clip((towards * edge).sum(axis=2) / square, 0.0, 1.0)
    return np.hypot(*np.moveaxis(towards - share[:, :, None] * edge, 2, 0)), share


def _in_order(cost: FloatArray) -> IntArray:
    """One column for each row, never before that of the row above, with the least sum of costs."""
    numbers, total, before = np.arange(cost.shape[1]), cost[0], []
    for row in cost[1:]:
        least = np.minimum.accumulate(total)
        before.append(np.maximum.accumulate(np.where(total == least, numbers, 0)))
        total = least + row
    chosen = [int(np.argmin(total))]
    for back in reversed(before):
        chosen.append(int(back[chosen[-1]]))
    return np.array(chosen[::-1])


DAYS = ("workday", "saturday", "sunday")
"""Kinds of day: Monday to Friday, Saturday, Sunday. A holiday counts as the day of the week on which it falls."""
MOST_HOURS = 600_000
"""Hours of all cells that are written: with names and lines they fit into a file that ``hexveil serve`` takes."""
MOST_CELLS = 100_000
"""Cells that are written, as many as ``hexveil serve`` takes."""
_MOST_OF_A_LINE = 100_000
"""Points of one line that are looked up; at resolution 8 it is 2 300 km long."""
_AT_ONCE = 1 << 20
"""Stretches that are added at once."""
_MOST_COMPARED = 1_000_000_000
"""Pairs of a stop and an edge that are compared in all; the trips after that are drawn straight from stop to stop."""


@dataclass(frozen=True)
class ScheduledSpeeds:
    """``metres`` and ``seconds``: (cells, kinds of day, hours) of all days of the calendar, of which there are ``days``
    (3,) of each kind. ``trips``: how many were counted.

    ``straight``: those of them that were drawn straight from stop to stop; ``refused``: trips by reason.
    """

    cells: list[str]
    metres: FloatArray
    seconds: FloatArray
    days: IntArray
    trips: int
    straight: int
    refused: Counter[str]

    def table(self) -> dict[str, Any]:
        """As ``hexveil serve`` reads it: of each cell the rows (kind of day, hour, metres, seconds). Raises
        :class:`ScheduleError`."""
        metres, seconds = np.rint(self.metres).astype(np.int64), np.rint(self.seconds).astype(np.int64)
        known = (metres > 0) & (seconds > 0)
        cells = known.any(axis=(1, 2)).sum()
        if known.sum() > MOST_HOURS or cells > MOST_CELLS:
            raise ScheduleError(
                f"{known.sum()} hours of {cells} cells have a service, more than {MOST_HOURS} or {MOST_CELLS}; choose "
                "a coarser resolution"
            )
        rows = []
        for number, cell in sorted(enumerate(self.cells), key=lambda item: item[1]):
            day, hour = np.nonzero(known[number])
            columns = (day, hour, metres[number, day, hour], seconds[number, day, hour])
            if len(day):
                rows.append({"cell": cell, "hours": np.column_stack(columns).tolist()})
        return {"days": dict(zip(DAYS, np.maximum(self.days, 1).tolist(), strict=True)), "cells": rows}


class _Stretches(NamedTuple):
    """Parts of a trip within one cell: from ``start`` to ``end``, shares of the way from stop ``hop`` to the next."""

    cell: IntArray
    hop: IntArray
    start: FloatArray
    end: FloatArray
    metres: FloatArray


def scheduled_speeds(timetable: Timetable, domain: BoundingBox, resolution: int) -> ScheduledSpeeds:
    """The speeds of cells wholly in ``domain``. Raises :class:`ScheduleError` for more service than a city has."""
    return _Adding(timetable, domain, resolution).speeds()


def _by_kind(service_days: IntArray) -> FloatArray:
    """(services, 7, 3): on how many days of each kind a service runs, so many days after its service day."""
    kinds = np.zeros((len(service_days), 7, len(DAYS)))
    for later in range(7):
        for weekday in range(7):
            kinds[:, later, max(0, (weekday + later) % 7 - 4)] += service_days[:, weekday]
    return kinds


class _Adding:
    def __init__(self, timetable: Timetable, domain: BoundingBox, resolution: int) -> None:
        self._table, self._domain, self._resolution = timetable, domain, resolution
        self._step = h3.average_hexagon_edge_length(resolution, "m") / PER_EDGE
        self._kinds = _by_kind(timetable.service_days)
        self._numbers: dict[str, int] = {}
        self._cells: list[str] = []
        self._courses: dict[int, Course | None] = {}
        self._sums = np.zeros((2, 0))
        self._waiting: list[FloatArray] = []
        self._columns = 0
        self._samples, self._compared, self._calls, self._trips, self._straight = 0, 0, 0, 0, 0

    def speeds(self) -> ScheduledSpeeds:
        for (shape, key), starts in self._patterns().items():
            self._add_pattern(shape, np.frombuffer(key, dtype=np.int64), np.array(starts))
        self._flush()
        metres, seconds = self._sums.reshape(2, -1, len(DAYS), 24)
        days = np.add.reduceat(self._table.calendar_days, [0, 5, 6])
        return ScheduledSpeeds(self._cells, metres, seconds, days, self._trips, self._straight, +self._table.refused)

    def _patterns(self) -> dict[tuple[int, bytes], list[int]]:
        trip, stop = self._table.call_trip, self._table.call_stop
        starts = np.flatnonzero(np.diff(trip, prepend=-1)).tolist()
        patterns: dict[tuple[int, bytes], list[int]] = {}
        for start, end in pairwise([*starts, len(trip)]):
            if end - start < 2:
                self._table.refused["trip-of-one-stop"] += 1
            else:
                key = int(self._table.trip_shape[trip[start]]), stop[start:end].tobytes()
                patterns.setdefault(key, []).append(start)
        return patterns

    def _add_pattern(self, shape: int, stops: IntArray, starts: IntArray) -> None:
        placed = self._placed(shape, stops)
        if placed is None:
            self._table.refused["trip-without-way"] += len(starts)
            return
        course, along, is_straight = placed
        calls = starts[:, None] + np.arange(len(stops))
        times = filled(self._table.arrival[calls], self._table.departure[calls], along)
        self._table.refused["trip-without-times"] += len(starts) - len(times.trips)
        self._trips += len(times.trips)
        self._straight += len(times.trips) * is_straight
        stretches = self._stretches(course, along)
        row, later = self._runs(self._table.call_trip[starts[times.trips]], times.departure[:, 0], len(stops))
        service = self._table.trip_service[self._table.call_trip[starts[times.trips]]]
        at_once = max(1, _AT_ONCE // (len(stretches.cell) + len(stops)))
        for k in range(0, len(row), at_once):
            part = row[k : k + at_once]
            arrival, departure = (column[part] + later[k : k + at_once, None] for column in times[1:])
            self._add(stretches, arrival, departure, service[part])
            self._add_standing(course, along, arrival, departure, service[part])

    def _placed(self, shape: int, stops: IntArray) -> tuple[Course, FloatArray, bool] | None:
        """The cells along the way of a trip, where its stops lie along it, and whether it is straight between stops."""
        places = self._table.places[stops]
        line = line_of(self._table.shapes[shape]) if shape >= 0 else None
        pairs = 0 if line is None else len(places) * len(line.points)
        self._compared += pairs if pairs <= MOST_COMPARED else 0
        along = None if line is None or self._compared > _MOST_COMPARED else positions(line, places)
        if line is not None and along is not None and along[-1] > along[0]:
            if shape not in self._courses:
                self._courses[shape] = self._sampled(line)
            course = self._courses[shape]
            return None if course is None else (course, along, False)
        straight = line_of(places)
        course = None if straight is None else self._sampled(straight)
        if straight is None or course is None:
            return None
        is_new = np.concatenate([[0], np.any(places[1:] != places[:-1], axis=1)])
        return course, straight.along[np.cumsum(is_new)], True

    def _sampled(self, line: Line) -> Course | None:
        """None for a line around the world, as a stop with a wrong sign makes it."""
        samples = int(line.along[-1] / self._step) + 1
        if samples > _MOST_OF_A_LINE:
            return None
        self._samples += samples
        if self._samples > MOST_SAMPLES:
            raise ScheduleError(
                "the trips are longer than those of a city; choose a coarser resolution, or divide the schedule"
            )
        return course_of(line, self._resolution, self._step)

    def _stretches(self, course: Course, along: FloatArray) -> _Stretches:
        ends = np.unique(np.concatenate([course.ends, along]))
        ends = ends[(ends >= along[0]) & (ends <= along[-1])]
        middle = (ends[1:] + ends[:-1]) / 2
        hop = np.searchsorted(along, middle, side="right") - 1
        length = along[hop + 1] - along[hop]
        cell = self._numbered(course)[np.searchsorted(course.ends, middle, side="right") - 1]
        columns = (cell, hop, (ends[:-1] - along[hop]) / length, (ends[1:] - along[hop]) / length, np.diff(ends))
        return _Stretches(*(column[cell >= 0] for column in columns))

    def _numbered(self, course: Course) -> IntArray:
        """Numbers of the cells; -1 outside of the domain."""
        for cell in course.cells:
            if cell not in self._numbers:
                self._numbers[cell] = len(self._cells) if is_inside(cell, self._domain) else -1
                self._cells += [cell] if self._numbers[cell] >= 0 else []
        return np.array([self._numbers[cell] for cell in course.cells], dtype=np.int64)

    def _runs(self, trips: IntArray, first: FloatArray, stops: int) -> tuple[IntArray, FloatArray]:
        """Rows of the trips, as often as they run on one day, and how many seconds each is later than its row."""
        row: list[IntArray] = []
        later: list[FloatArray] = []
        for k, (trip, departure) in enumerate(zip(trips.tolist(), first.tolist(), strict=True)):
            spans = self._table.departures.get(trip)
            runs = 1 if spans is None else sum(math.ceil((end - start) / headway) for start, end, headway in spans)
            self._calls += stops * runs
            if self._calls > MOST_CALLS:
                raise ScheduleError(
                    f"frequencies.txt makes more than {MOST_CALLS} calls; divide the schedule by agency"
                )
            begins = [np.array([departure])] if spans is None else [np.arange(*span) for span in spans]
            later += [begin - departure for begin in begins]
            row += [np.full(len(begin), k) for begin in begins]
        return np.concatenate([np.zeros(0, dtype=np.int64), *row]), np.concatenate([np.zeros(0), *later])

    def _add(self, parts: _Stretches, arrival: FloatArray, departure: FloatArray, service: IntArray) -> None:
        begin, lasting = departure[:, parts.hop], arrival[:, parts.hop + 1] - departure[:, parts.hop]
        middle = begin + lasting * (parts.start + parts.end) / 2
        self._wait(parts.cell, middle, service, parts.metres, lasting * (parts.end - parts.start))

    def _add_standing(
        self, course: Course, along: FloatArray, arrival: FloatArray, departure: FloatArray, service: IntArray
    ) -> None:
        """Time at stops, and between stops at one place, without first and last."""
        at = np.clip(np.searchsorted(course.ends, along, side="right") - 1, 0, len(course.cells) - 1)
        cell = self._numbered(course)[at]
        staying = departure - arrival
        staying[:, [0, -1]] = 0.0
        staying[:, :-1] += np.where(along[1:] == along[:-1], arrival[:, 1:] - departure[:, :-1], 0.0)
        begin = np.column_stack([departure[:, 0], arrival[:, 1:]])
        chosen = np.flatnonzero((cell >= 0) & (staying > 0).any(axis=0))
        if len(chosen):
            middle = (begin + staying / 2)[:, chosen]
            self._wait(cell[chosen], middle, service, np.zeros(1), staying[:, chosen])

    def _wait(
        self, cell: IntArray, time: FloatArray, service: IntArray, metres: FloatArray, seconds: FloatArray
    ) -> None:
        columns = np.broadcast_arrays(cell, time, service[:, None], metres, seconds)
        self._waiting.append(np.stack([column.ravel().astype(np.float64) for column in columns]))
        self._columns += time.size
        if self._columns > _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        wide = len(self._cells) * len(DAYS) * 24
        self._sums = np.pad(self._sums, ((0, 0), (0, wide - self._sums.shape[1])))
        if not self._waiting:
            return
        cell, time, service, *measured = np.concatenate(self._waiting, axis=1)
        self._waiting, self._columns = [], 0
        hour = (time // 3600).astype(np.int64)
        weights = self._kinds[service.astype(np.int64), hour // 24 % 7]
        for kind in range(len(DAYS)):
            slot = (cell.astype(np.int64) * len(DAYS) + kind) * 24 + hour % 24
            for sums, column in zip(self._sums, measured, strict=True):
                sums += np.bincount(slot, weights=weights[:, kind] * column, minlength=wide)
