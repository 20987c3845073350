"""Times of trips with the same stops: gaps and rounding are filled by distance. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


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
    known = _known(arrival, departure)
    kept = _kept(known)
    complete = np.bincount(known.row[kept & _is_last(known.row)], minlength=len(usable)) > 0
    kept &= complete[known.row]
    anchors = _Known(known.at[kept], known.row[kept], known.arrival[kept], known.departure[kept])
    rows = np.flatnonzero(complete)
    return Times(usable[rows], *_between(anchors, rows, along))


def _usable(arrival: FloatArray, departure: FloatArray) -> IntArray:
    """Rows whose first and last times are known, and whose times never go back."""
    known = ~np.isnan(arrival)
    latest = np.maximum.accumulate(np.where(known, departure, -np.inf), axis=1)
    back = (known & (arrival > departure)).any(axis=1) | (arrival[:, 1:] < latest[:, :-1]).any(axis=1)
    return np.flatnonzero(known[:, 0] & known[:, -1] & ~back)


def _known(arrival: FloatArray, departure: FloatArray) -> _Known:
    index = np.flatnonzero(~np.isnan(arrival.ravel()))
    return _Known(index, index // arrival.shape[1], arrival.ravel()[index], departure.ravel()[index])


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
    """Arrivals and departures (rows, stops) from those that are known."""
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
