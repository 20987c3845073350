"""The usual value of a cell: the mean of its earlier releases at the same time of day, weighted by precision.

A merged cell is what its finer neighbours leave of it (``excludes``), so one cell id is another area in another window.
Only releases of the same area are compared. Values are as released: the errors of modelled ones depend on each other,
so their mean over windows would have no honest error. Pure; uses released values only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import time
from itertools import islice
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.serve.close_marker import marker_of
from stream.serve.local_time import local_start, zone_of
from stream.serve.window_store import View, WindowView

EARLIER = 28
"""Largest number of earlier windows that are used."""
LOOK_BACK = 10_000
"""Number of earlier windows among which they are sought."""
ENOUGH = 3
"""Fewest windows of a kind that say what is usual."""

Days = Literal["weekday", "kind", "any"]
"""Which days are compared: the same day of the week; Monday to Friday, or the weekend; all days."""
DAYS: tuple[Days, ...] = ("weekday", "kind", "any")
_Z95 = 1.959964

CellArray = npt.NDArray[np.uint64]


class _Estimate(msgspec.Struct, gc=False):
    raw: float
    scale: float


class _Cell(msgspec.Struct, gc=False):
    cell: str
    excludes: tuple[str, ...] = ()
    accounting: str | None = None
    mean: _Estimate | None = None
    variance: _Estimate | None = None
    p15: _Estimate | None = None
    p50: _Estimate | None = None
    p85: _Estimate | None = None


class UsualValue(msgspec.Struct, gc=False):
    """What is usual of one statistic of a cell, as it is written. Ten thousand of them are no work for the garbage
    collector."""

    value: float
    interval: tuple[float, float]
    deviation: float
    spread: float
    windows: int


class _UsualCell(msgspec.Struct, gc=False):
    cell: str
    raw: dict[str, UsualValue]


class Earlier(NamedTuple):
    """The windows that say what is usual, newest first: all begin at the same local time, on ``days``."""

    days: Days
    windows: list[WindowView]


_RELEASED = ("mean", "variance", "p15", "p50", "p85")

Columns = dict[str, tuple[CellArray, FloatArray]]
"""For each statistic: cells, and (2, C) values as released and standard deviations."""
Rests = dict[int, frozenset[str]]
"""The finer cells that each merged cell of a window excludes; cells without such are left out."""


class Decoded(NamedTuple):
    """What is compared of a window."""

    columns: Columns
    rests: Rests


class Usual:
    """Computes usual values before any window of the store; keeps what it decoded of each window."""

    def __init__(self) -> None:
        self.decoded: dict[tuple[str, str], Decoded] = {}
        """By (feed, start), of windows that the view still holds."""
        self._lock = threading.Lock()

    def earlier(self, view: View, window: WindowView) -> Earlier:
        """Complete windows of the feed before ``window`` that begin at the same local time, at most :data:`EARLIER`.

        They are of the same day of the week if there are :data:`ENOUGH`; else of the same kind of day; else of any day.
        """
        return self.earlier_of_each(view, [window])[0]

    def earlier_of_each(self, view: View, windows: Sequence[WindowView]) -> list[Earlier]:
        """:meth:`earlier` for each of the ``windows``, all of one feed; sorts the view once, and reads each time of day
        once."""
        if not windows:
            return []
        with self._lock:
            for key in self.decoded.keys() - view.windows.keys():
                del self.decoded[key]
        newest = max(window.start for window in windows)
        before = (other for other in view.ordered(windows[0].feed) if other.complete and other.start < newest)
        others = list(islice(before, LOOK_BACK))
        zones = [zone_of(window) for window in windows]
        by_time = {zone: _by_time_of_day(others, zone) for zone in set(zones)}
        return [_earlier(by_time[zone], window, zone) for window, zone in zip(windows, zones, strict=True)]

    def over(self, window: WindowView, days: Days, earlier: list[WindowView]) -> bytes:
        """Usual values of every cell over the ``earlier`` complete windows, as JSON. Safe to call from any thread.

        A cell's are of the area that it has in ``window``; of the whole hexagon if it is not in it.
        """
        by_cell = self._values(window, earlier)
        return msgspec.json.encode(
            {
                "feed": window.feed,
                "window": {"start": window.start, "end": window.end},
                "days": days,
                "earlier_windows": len(earlier),
                "cells": [by_cell[cell] for cell in sorted(by_cell)],
            }
        )

    def means(self, window: WindowView, earlier: list[WindowView]) -> dict[str, UsualValue]:
        """Of the same values, those of the means over :data:`ENOUGH` windows, by cell. Safe to call from any thread."""
        means = ((cell.cell, cell.raw.get("mean")) for cell in self._values(window, earlier).values())
        return {cell: mean for cell, mean in means if mean is not None and mean.windows >= ENOUGH}

    def _values(self, window: WindowView, earlier: list[WindowView]) -> dict[int, _UsualCell]:
        rests = _rests(_bodies(window))
        columns = [_of_same_areas(self._decoded(other), rests) for other in earlier]
        by_cell: dict[int, _UsualCell] = {}
        for statistic in sorted({statistic for table in columns for statistic in table}):
            parts = [table[statistic] for table in columns if statistic in table]
            for cell, usual in _weighted(parts, _range(statistic, earlier)):
                known = by_cell.get(cell)
                if known is None:
                    known = by_cell[cell] = _UsualCell(f"{cell:x}", {})
                known.raw[statistic] = usual
        return by_cell

    def released(self, window: WindowView, statistic: str) -> tuple[CellArray, FloatArray]:
        """Cells of a complete window with noise in that statistic, and (2, C) values as released and standard
        deviations."""
        nothing = np.zeros(0, dtype=np.uint64), np.zeros((2, 0))
        return self._decoded(window).columns.get(statistic, nothing)

    def rests(self, window: WindowView) -> Rests:
        """The finer cells that each merged cell of a complete window excludes."""
        return self._decoded(window).rests

    def _decoded(self, window: WindowView) -> Decoded:
        key = (window.feed, window.start)
        with self._lock:
            decoded = self.decoded.get(key)
        if decoded is None:  # without the lock, for which the event loop may wait
            cells = _bodies(window)
            decoded = Decoded(_columns(cells), _rests(cells))
            with self._lock:
                self.decoded[key] = decoded
        return decoded


def _by_time_of_day(windows: Sequence[WindowView], zone: str) -> dict[time, list[tuple[int, WindowView]]]:
    """Windows with their days of the week, by the local time at which they begin, in the given order."""
    by_time: dict[time, list[tuple[int, WindowView]]] = {}
    for window in windows:
        local = local_start(window.start, zone)
        by_time.setdefault(local.time(), []).append((local.weekday(), window))
    return by_time


def _earlier(by_time: dict[time, list[tuple[int, WindowView]]], window: WindowView, zone: str) -> Earlier:
    local = local_start(window.start, zone)
    day = local.weekday()
    alike: dict[Days, list[WindowView]] = {days: [] for days in DAYS}
    for other_day, other in by_time.get(local.time(), ()):
        if other.start >= window.start:
            continue
        alike["any"].append(other)
        if (other_day < 5) == (day < 5):
            alike["kind"].append(other)
        if other_day == day:
            alike["weekday"].append(other)
    enough: list[Days] = [days for days in DAYS if len(alike[days]) >= ENOUGH]
    days: Days = enough[0] if enough else "any"
    return Earlier(days, alike[days][:EARLIER])


def other_areas(one: Rests, other: Rests) -> CellArray:
    """Cells that are not the same area in two windows."""
    return np.array([cell for cell in one.keys() | other.keys() if one.get(cell) != other.get(cell)], dtype=np.uint64)


def _of_same_areas(decoded: Decoded, rests: Rests) -> Columns:
    """Columns without the cells whose area is another than by ``rests``."""
    apart = other_areas(decoded.rests, rests)
    if not len(apart):
        return decoded.columns
    kept = {key: ~np.isin(cells, apart) for key, (cells, _) in decoded.columns.items()}
    return {key: (cells[kept[key]], table[:, kept[key]]) for key, (cells, table) in decoded.columns.items()}


def _bodies(window: WindowView) -> list[_Cell]:
    decoder = msgspec.json.Decoder(_Cell)
    return [decoder.decode(body) for body in window.in_order()]


def _rests(cells: Iterable[_Cell]) -> Rests:
    return {int(body.cell, 16): frozenset(body.excludes) for body in cells if body.excludes}


def _columns(cells: Iterable[_Cell]) -> Columns:
    rows: dict[str, list[tuple[int, float, float]]] = {}
    for body in cells:
        cell = int(body.cell, 16)
        to_deviation = 1.0 if body.accounting == "zcdp" else math.sqrt(2.0)
        for name in _RELEASED:
            estimate = getattr(body, name)
            # A scale of 0 means that there was nobody to measure, so the value says nothing about what is usual.
            if estimate is not None and estimate.scale > 0:
                rows.setdefault(name, []).append((cell, estimate.raw, estimate.scale * to_deviation))
    return {
        key: (np.array([row[0] for row in table], dtype=np.uint64), np.array([row[1:] for row in table]).T)
        for key, table in rows.items()
    }


def _weighted(
    parts: list[tuple[CellArray, FloatArray]], within: tuple[float, float]
) -> Iterator[tuple[int, UsualValue]]:
    """Mean per cell weighted by 1/variance, clamped to ``within``, with a 95 % interval that assumes independent
    windows.

    ``deviation`` is the standard deviation of the noise in that mean. ``spread`` is how much the cell itself varies
    from window to window: the root of the variance between windows that their noise does not explain (DerSimonian and
    Laird, Controlled Clinical Trials 7, 1986, section 3).
    """
    cells, index = np.unique(np.concatenate([part for part, _ in parts]), return_inverse=True)
    values, deviations = np.concatenate([table for _, table in parts], axis=1)
    weights = deviations**-2.0
    total = np.bincount(index, weights)
    mean = np.bincount(index, weights * values) / total
    deviation = 1 / np.sqrt(total)
    ends = [np.clip(mean + z * deviation, *within) for z in (0.0, -_Z95, _Z95)]
    columns = np.round([*ends, deviation, _spread(index, values, weights)], 4)
    for cell, number, row in zip(cells.tolist(), np.bincount(index).tolist(), columns.T.tolist(), strict=True):
        yield cell, UsualValue(row[0], (row[1], row[2]), row[3], row[4], number)


def _spread(index: npt.NDArray[np.intp], values: FloatArray, weights: FloatArray) -> FloatArray:
    """Standard deviation between windows that noise does not explain, of each cell; 0 for a cell with one window."""
    total, windows = np.bincount(index, weights), np.bincount(index)
    mean = np.bincount(index, weights * values) / total
    excess = np.bincount(index, weights * (values - mean[index]) ** 2) - (windows - 1)
    share = total - np.bincount(index, weights**2) / total
    variance = np.divide(excess, share, out=np.zeros_like(share), where=windows > 1)
    return np.asarray(np.sqrt(np.clip(variance, 0.0, None)))


def _range(statistic: str, windows: list[WindowView]) -> tuple[float, float]:
    """Public bounds of the statistic, the widest of all windows: those of the value, or 0 and U²/4 for a variance."""
    ranges = [marker.clipping for marker in map(marker_of, windows) if marker is not None]
    lower = min((one.lower for one in ranges), default=-float("inf"))
    upper = max((one.upper for one in ranges), default=float("inf"))
    return (0.0, (upper - lower) ** 2 / 4) if statistic == "variance" else (lower, upper)
