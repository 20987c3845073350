"""What alerts compare a cell with: its earlier releases at the same time of day.

A merged cell is what its finer neighbours leave of it (``excludes``), so one cell id is another area in another window.
Only releases of the same area are compared. Values are as released: the errors of modelled ones depend on each other,
so their mean over windows would have no honest error. Pure; uses released values only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import time
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.messages.cells import Cell, cells_of
from stream.serve.local_time import local_start, zone_of
from stream.serve.window_store import View, WindowView

EARLIER = 28
"""Largest number of earlier windows that are used."""
LOOK_BACK = 10_000
"""Number of earlier windows among which they are sought."""
ENOUGH = 3
"""Fewest windows of a kind that say what is usual."""

CellArray = npt.NDArray[np.uint64]
Rests = dict[int, frozenset[str]]
"""The finer cells that each merged cell of a window excludes; cells without such are left out."""


class Decoded(NamedTuple):
    """Of a complete window: cells with noise in their mean, ascending, (2, C) means as released with standard
    deviations of their noise, and what merged cells exclude."""

    cells: CellArray
    means: FloatArray
    rests: Rests


class Usual:
    """Finds what is usual before any window of the store; keeps what it decoded of each window."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Decoded] = {}
        """By (feed, start), of windows that the view still holds."""
        self._lock = threading.Lock()

    def earlier_of_each(self, view: View, windows: Sequence[WindowView]) -> list[list[WindowView]]:
        """For each of the ``windows``, all of one feed: complete ones before it that begin at the same local time, at
        most :data:`EARLIER`, newest first.

        They are of the same day of the week if there are :data:`ENOUGH`; else of the same kind of day (Monday to
        Friday, or the weekend); else of any day. The view is sorted once, and each time of day read once.
        """
        if not windows:
            return []
        with self._lock:
            for key in self.kept.keys() - view.windows.keys():
                del self.kept[key]
        newest = max(window.start for window in windows)
        before = (other for other in view.ordered(windows[0].feed) if other.complete and other.start < newest)
        others = list(islice(before, LOOK_BACK))
        zones = [zone_of(window) for window in windows]
        by_time = {zone: _by_time_of_day(others, zone) for zone in set(zones)}
        return [_earlier(by_time[zone], window, zone) for window, zone in zip(windows, zones, strict=True)]

    def decoded(self, window: WindowView) -> Decoded:
        """What is compared of a complete window."""
        key = (window.feed, window.start)
        with self._lock:
            decoded = self.kept.get(key)
        if decoded is None:  # without the lock, for which the event loop may wait
            decoded = _decode(cells_of(window.in_order()))
            with self._lock:
                self.kept[key] = decoded
        return decoded


def _by_time_of_day(windows: Sequence[WindowView], zone: str) -> dict[time, list[tuple[int, WindowView]]]:
    """Windows with their days of the week, by the local time at which they begin, in the given order."""
    by_time: dict[time, list[tuple[int, WindowView]]] = {}
    for window in windows:
        local = local_start(window.start, zone)
        by_time.setdefault(local.time(), []).append((local.weekday(), window))
    return by_time


def _earlier(by_time: dict[time, list[tuple[int, WindowView]]], window: WindowView, zone: str) -> list[WindowView]:
    local = local_start(window.start, zone)
    day = local.weekday()
    before = [(other_day, other) for other_day, other in by_time.get(local.time(), ()) if other.start < window.start]
    same_day = [other for other_day, other in before if other_day == day]
    same_kind = [other for other_day, other in before if (other_day < 5) == (day < 5)]
    any_day = [other for _, other in before]
    return next((alike for alike in (same_day, same_kind) if len(alike) >= ENOUGH), any_day)[:EARLIER]


def other_areas(one: Rests, other: Rests) -> CellArray:
    """Cells that are not the same area in two windows."""
    return np.array([cell for cell in one.keys() | other.keys() if one.get(cell) != other.get(cell)], dtype=np.uint64)


def _decode(cells: Sequence[Cell]) -> Decoded:
    # A scale of 0 means that there was nobody to measure, so the value says nothing about what is usual.
    noisy = [(cell, cell.mean) for cell in cells if cell.mean is not None and cell.mean.scale > 0]
    deviations = [cell.deviation_of(mean) for cell, mean in noisy]
    means = np.array([[mean.raw for _, mean in noisy], deviations], dtype=float)
    rests = {int(cell.cell, 16): frozenset(cell.excludes) for cell in cells if cell.excludes}
    return Decoded(np.array([int(cell.cell, 16) for cell, _ in noisy], dtype=np.uint64), means, rests)
