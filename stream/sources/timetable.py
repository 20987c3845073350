"""Reads the service of a GTFS schedule into columns: trips, the days on which they run, and their calls at stops.

Source: GTFS Schedule Reference, files agency.txt, calendar.txt, calendar_dates.txt, trips.txt, stop_times.txt,
frequencies.txt and shapes.txt. Times are seconds after noon less 12 hours of the service day, and may be after
24:00:00.

Times of trips with the same stops: gaps and rounding are filled by distance. Pure.
"""

import math
import zipfile
from array import array
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpcore.arrays import BoolArray, FloatArray, IntArray
from stream.sources.schedule import MOST_POINTS, ScheduleError, opened, point_of, table_rows


class Times(NamedTuple):
    """Arrival and departure (trips, stops) in seconds; ``trips``: which of the given rows they are."""

    trips: IntArray
    arrival: FloatArray
    departure: FloatArray


class _Known(NamedTuple):
    """Timed calls in order of trip and stop: their flat indexes (``at``), rows, arrivals and departures."""

    at: IntArray
    row: IntArray
    arrival: FloatArray
    departure: FloatArray


def filled(arrival: FloatArray, departure: FloatArray, along: FloatArray) -> Times:
    """Times at every stop, at a steady speed between stops with known times (NaN = unknown); ``along``: metres
    (stops,).

    Timetables are often rounded to minutes, so that several stops have one time. Of those only one counts as known: the
    first of the trip's first such run, else the last of a run. Stops at which a vehicle stands count as known instead,
    since their times are not only rounded. Rows without first or last time, without duration or whose times go back are
    left out.
    """
    usable = _usable(arrival, departure)
    arrival, departure = arrival[usable], departure[usable]
    index = np.flatnonzero(~np.isnan(arrival.ravel()))
    known = _Known(index, index // arrival.shape[1], arrival.ravel()[index], departure.ravel()[index])
    kept = _kept(known)
    complete = np.bincount(known.row[kept & _is_last(known.row)], minlength=len(usable)) > 0
    kept &= complete[known.row]
    anchors = _Known(known.at[kept], known.row[kept], known.arrival[kept], known.departure[kept])
    rows = np.flatnonzero(complete)
    return Times(usable[rows], *_between(anchors, rows, along))


def _usable(arrival: FloatArray, departure: FloatArray) -> IntArray:
    known = ~np.isnan(arrival)
    latest = np.maximum.accumulate(np.where(known, departure, -np.inf), axis=1)
    back = (known & (arrival > departure)).any(axis=1) | (arrival[:, 1:] < latest[:, :-1]).any(axis=1)
    return np.flatnonzero(known[:, 0] & known[:, -1] & ~back)


def _is_last(row: IntArray) -> BoolArray:
    return np.append(row[1:] != row[:-1], True)[: len(row)]


def _kept(known: _Known) -> BoolArray:
    """Which timed calls count as known: one of each run of equal times."""
    if not len(known.row):
        return np.zeros(0, dtype=bool)
    is_first = np.insert(known.row[1:] != known.row[:-1], 0, True)
    is_new = is_first | np.insert(known.arrival[1:] > known.departure[:-1], 0, True)
    run = np.cumsum(is_new)
    in_first = run == run[np.flatnonzero(is_first)][np.cumsum(is_first) - 1]
    stands = known.departure > known.arrival
    has_stand = np.bincount(run, weights=stands)[run] > 0
    ends_run = np.append(is_new[1:], True) & ~(has_stand & ~_is_last(known.row))
    return np.asarray(is_first | stands | (~in_first & ends_run))


def _between(anchors: _Known, rows: IntArray, along: FloatArray) -> tuple[FloatArray, FloatArray]:
    stops = len(along)
    index = (rows[:, None] * stops + np.arange(stops)).ravel()
    before = np.searchsorted(anchors.at, index, side="right") - 1
    after = np.searchsorted(anchors.at, index)
    at = along[index % stops]
    start, end = along[anchors.at[before] % stops], along[anchors.at[after] % stops]
    share = np.divide(at - start, end - start, out=np.zeros_like(at), where=end > start)
    passing = anchors.departure[before] + share * (anchors.arrival[after] - anchors.departure[before])
    is_known = before == after
    arrival = np.where(is_known, anchors.arrival[before], passing).reshape(len(rows), stops)
    return arrival, np.where(is_known, anchors.departure[before], passing).reshape(len(rows), stops)


MOST_CALLS = 10_000_000
"""Calls at stops that are kept, those of repeated departures included; each takes about 40 bytes."""
MOST_TRIPS = MOST_CALLS // 2
"""Trips whose names are kept, also those of other routes; one that goes anywhere has two calls, and a name takes about
150 bytes."""
_MOST_DAYS = 3_660
"""Days of a service's span; a longer one is a wrong year."""
_MOST_HOURS = 168
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass
class Timetable:
    """Columns of a timetable.

    ``places``: latitude and longitude by number of stop; ``shapes``: (points, 2) by number of shape; ``trip_shape``: -1
    for none; ``service_days``: (services, 7) on how many days of each weekday, Monday first, a service runs. Calls are
    in order of trip and sequence; their times are NaN where the timetable has none. ``departures``: by number of trip
    the rows (start, end, headway in s) of frequencies.txt. ``zones``: of the agencies; ``first_year``: of the service,
    None without any; ``calendar_days``: (7,) days of each weekday from the first to the last day of any service.
    """

    places: FloatArray
    shapes: list[FloatArray]
    trip_shape: IntArray
    trip_service: IntArray
    service_days: IntArray
    call_trip: IntArray
    call_stop: IntArray
    arrival: FloatArray
    departure: FloatArray
    departures: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    zones: list[str] = field(default_factory=list)
    first_year: int | None = None
    calendar_days: IntArray = field(default_factory=lambda: np.zeros(7, dtype=np.int64))
    refused: Counter[str] = field(default_factory=Counter)


def read_timetable(path: Path, routes: Collection[str] | None = None) -> Timetable:
    """The service of the archive at ``path``, on these routes alone where they are given. Raises
    :class:`ScheduleError`."""
    with opened(path) as archive:
        return _Reading(archive, routes).timetable()


class _Reading:
    def __init__(self, archive: zipfile.ZipFile, routes: Collection[str] | None) -> None:
        self._archive, self._routes = archive, routes
        self._elsewhere: set[str] = set()
        self._refused: Counter[str] = Counter()
        self._numbers: dict[str, dict[str, int]] = {"stop": {}, "trip": {}, "shape": {}, "service": {}}
        self._span: tuple[date, date] | None = None

    def timetable(self) -> Timetable:
        zones = sorted({zone for (zone,) in self._rows("agency", ("agency_timezone",))})
        days, places = self._services(), self._stops()
        shape, service = self._trips()
        trip, stop, arrival, departure = self._calls()
        calendar = np.array([0 if self._span is None else _count(*self._span, weekday) for weekday in range(7)])
        return Timetable(
            places, self._shapes(), shape, service, days, trip, stop, arrival, departure, self._frequencies(), zones,
            None if self._span is None else self._span[0].year, calendar, self._refused,
        )  # fmt: skip

    def _rows(self, name: str, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[list[str]]:
        return table_rows(self._archive, name, columns, optional, self._refused)

    def _services(self) -> IntArray:
        """Days of each weekday on which each service runs. An exception counts once, whatever repeats it."""
        numbers = self._numbers["service"]
        spans: dict[str, tuple[date, date, list[bool]]] = {}
        for service, start, end, *flags in self._rows("calendar", ("service_id", "start_date", "end_date", *_WEEKDAYS)):
            first, last = _date(start), _date(end)
            if first is None or last is None or not 0 <= (last - first).days < _MOST_DAYS:
                self._refused["service-no-span"] += 1
                continue
            spans[service] = first, last, [flag == "1" for flag in flags]
        exceptions = {
            (service, day): kind
            for service, day, kind in self._rows("calendar_dates", ("service_id", "date", "exception_type"))
        }
        for service in [*spans, *(service for service, _ in exceptions)]:
            numbers.setdefault(service, len(numbers))
        days = np.zeros((len(numbers), 7), dtype=np.int64)
        for service, (first, last, runs) in spans.items():
            days[numbers[service]] = [_count(first, last, k) if flag else 0 for k, flag in enumerate(runs)]
            self._cover(first, last)
        for (service, text), kind in exceptions.items():
            self._except(days[numbers[service]], spans.get(service), text, kind)
        return days

    def _except(self, days: IntArray, span: tuple[date, date, list[bool]] | None, text: str, kind: str) -> None:
        day = _date(text)
        if day is None or kind not in ("1", "2"):
            self._refused["exception-no-day"] += 1
            return
        runs = span is not None and span[0] <= day <= span[1] and span[2][day.weekday()]
        if runs == (kind == "2"):
            days[day.weekday()] += 1 if kind == "1" else -1
            self._cover(day, day)

    def _cover(self, first: date, last: date) -> None:
        before, after = self._span or (first, last)
        self._span = min(before, first), max(after, last)

    def _stops(self) -> FloatArray:
        numbers, places = self._numbers["stop"], []
        for stop, lat, lng in self._rows("stops", ("stop_id", "stop_lat", "stop_lon")):
            place = point_of(lat, lng)
            if place is not None and stop not in numbers:
                numbers[stop] = len(numbers)
                places.append(place)
        return np.array(places, dtype=np.float64).reshape(-1, 2)

    def _trips(self) -> tuple[IntArray, IntArray]:
        trips, shapes, services = (self._numbers[name] for name in ("trip", "shape", "service"))
        shape_of, service_of = array("q"), array("q")
        for trip, service, shape, route in self._rows("trips", ("trip_id", "service_id"), ("shape_id", "route_id")):
            if len(trips) + len(self._elsewhere) >= MOST_TRIPS:
                raise ScheduleError(f"trips.txt has more than {MOST_TRIPS} trips; divide the schedule by agency")
            if self._routes is not None and route not in self._routes:
                self._elsewhere.add(trip)
            elif service not in services:
                self._refused["trip-of-no-service"] += 1
            elif trip not in trips:
                trips[trip] = len(trips)
                shape_of.append(shapes.setdefault(shape, len(shapes)) if shape else -1)
                service_of.append(services[service])
        return np.array(shape_of, dtype=np.int64), np.array(service_of, dtype=np.int64)

    def _calls(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
        trips, stops = self._numbers["trip"], self._numbers["stop"]
        trip_of, stop_of, order, arrivals, departures = array("i"), array("i"), array("q"), array("d"), array("d")
        columns = ("trip_id", "stop_id", "stop_sequence")
        for trip, stop, sequence, arrival, departure in self._rows(
            "stop_times", columns, ("arrival_time", "departure_time")
        ):
            if trip in self._elsewhere:
                continue
            if trip not in trips or stop not in stops or not sequence.isdecimal() or len(sequence) > 18:
                self._refused["call-of-no-trip-or-stop"] += 1
                continue
            if len(order) >= MOST_CALLS:
                raise ScheduleError(f"stop_times.txt has more than {MOST_CALLS} calls; divide the schedule by agency")
            trip_of.append(trips[trip])
            stop_of.append(stops[stop])
            order.append(int(sequence))
            arrives, departs = _seconds(arrival), _seconds(departure)
            arrivals.append(departs if math.isnan(arrives) else arrives)
            departures.append(arrives if math.isnan(departs) else departs)
        by_trip = np.lexsort((np.array(order), np.array(trip_of)))
        trips_in_order, stops_in_order = (np.array(column, np.int64)[by_trip] for column in (trip_of, stop_of))
        return trips_in_order, stops_in_order, np.array(arrivals)[by_trip], np.array(departures)[by_trip]

    def _shapes(self) -> list[FloatArray]:
        numbers = self._numbers["shape"]
        shape_of, order, lats, lngs = array("q"), array("q"), array("d"), array("d")
        columns = ("shape_id", "shape_pt_lat", "shape_pt_lon", "shape_pt_sequence")
        for shape, lat, lng, sequence in self._rows("shapes", columns):
            place = point_of(lat, lng)
            if shape not in numbers or place is None or not sequence.isdecimal() or len(sequence) > 18:
                continue
            if len(order) >= MOST_POINTS:
                raise ScheduleError(f"the lines have more than {MOST_POINTS} points; divide the schedule by agency")
            shape_of.append(numbers[shape])
            order.append(int(sequence))
            lats.append(place[0])
            lngs.append(place[1])
        by_shape = np.lexsort((np.array(order), np.array(shape_of)))
        points = np.column_stack([np.array(lats), np.array(lngs)])[by_shape]
        ends = np.searchsorted(np.array(shape_of)[by_shape], np.arange(len(numbers) + 1))
        return [points[ends[k] : ends[k + 1]] for k in range(len(numbers))]

    def _frequencies(self) -> dict[int, list[tuple[float, float, float]]]:
        departures: dict[int, list[tuple[float, float, float]]] = {}
        columns = ("trip_id", "start_time", "end_time", "headway_secs")
        for trip, start, end, headway in self._rows("frequencies", columns):
            if trip in self._elsewhere:
                continue
            first, last = _seconds(start), _seconds(end)
            seconds = int(headway) if headway.isdecimal() and len(headway) <= 6 else 0
            if trip not in self._numbers["trip"] or not first < last or not seconds:
                self._refused["frequency-no-headway"] += 1
                continue
            departures.setdefault(self._numbers["trip"][trip], []).append((first, last, float(seconds)))
        return departures


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if len(text) == 8 and text.isdecimal() else None
    except ValueError:
        return None


def _count(first: date, last: date, weekday: int) -> int:
    begin = first + timedelta(days=(weekday - first.weekday()) % 7)
    return 0 if begin > last else (last - begin).days // 7 + 1


@lru_cache(maxsize=200_000)
def _seconds(text: str) -> float:
    """Seconds of a text like 25:30:00; NaN for none, and for one that is no time."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) <= 3 for part in parts):
        return math.nan
    hours, minutes, seconds = map(int, parts)
    inside = hours < _MOST_HOURS and minutes < 60 and seconds < 60
    return float(3600 * hours + 60 * minutes + seconds) if inside else math.nan
