"""A planted incident, and what the map shows of it, from the event to the screen. NOT PRIVATE: it knows true means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h3.api.numpy_int as h3
import numpy as np

from dpcore.arrays import FloatArray, IdArray
from stream.config import Config
from stream.evaluation.living import Exact, Shown
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms

INCIDENT_S = 3600
"""Length of a planted incident."""
APART = 3
"""Cells of an incident are at least so many hexagons apart, so that none answers for another."""


@dataclass(frozen=True)
class Incident:
    """Slower traffic for an hour from ``start`` (epoch seconds): speeds of ``cells`` (C,) times ``factors`` (C,)."""

    start: int
    cells: IdArray
    factors: FloatArray

    def slots(self, slot_s: int) -> list[int]:
        """Starts of the windows that it touches."""
        return list(range(self.start, self.start + INCIDENT_S, slot_s))

    def struck(self, window: Exact, upper_quanta: int) -> Exact:
        """``window`` with the incident."""
        rows = window.rows.rows.copy()
        at = np.minimum(np.searchsorted(self.cells, rows["cell"]), len(self.cells) - 1)
        hit = (self.cells[at] == rows["cell"]) & (rows["time"] < (self.start + INCIDENT_S) * 1_000_000)
        slowed = np.minimum(rows["value"][hit], upper_quanta) * self.factors[at[hit]]
        rows["value"][hit] = np.round(slowed).astype(rows["value"].dtype)
        return Exact(window.slot, WindowRows.of(rows, window.rows.reading))


def plant(windows: Sequence[Exact], slot_s: int, *, most: int, drop: float | None = None) -> Incident | None:
    """An incident in the busiest hour of the last day, in up to ``most`` cells, busiest first, that have events in each
    window of it; None if there is no such cell.

    ``drop``: mean speeds fall by so many km/h, in cells that are faster by at least 2 km/h; None: to 0.4 of what they
    are, in cells above 10 km/h. The cells are :data:`APART`.
    """
    if (busiest := _busiest_hour(windows, slot_s)) is None:
        return None
    cells, number = np.unique(np.concatenate([window.cells for window in busiest]), return_counts=True)
    events, total = np.zeros((2, len(cells)))
    for window in busiest:
        at = np.searchsorted(cells, window.cells)
        events[at] += window.events
        total[at] += window.events * window.mean
    mean, chosen = total / events, dict[int, float]()
    possible = (number == len(busiest)) & (mean > (10.0 if drop is None else drop + 2))
    for i in np.lexsort((cells, -events)).tolist():
        if possible[i] and len(chosen) < most and _apart(int(cells[i]), chosen):
            chosen[int(cells[i])] = 0.4 if drop is None else 1 - drop / mean[i]
    if not chosen:
        return None
    ascending = sorted(chosen)
    factors = np.array([chosen[cell] for cell in ascending])
    return Incident(busiest[0].slot, np.array(ascending, dtype=np.uint64), factors)


def _busiest_hour(windows: Sequence[Exact], slot_s: int) -> list[Exact] | None:
    """The windows that an incident may touch of the hour of the last day with most events."""
    by_slot, touched = {window.slot: window for window in windows}, range(0, INCIDENT_S, slot_s)
    hours = [
        [by_slot[start + later] for later in touched]
        for start in by_slot
        if start > windows[-1].slot - 86_400 and all(start + later in by_slot for later in touched)
    ]
    return max(hours, key=lambda hour: sum(window.events.sum() for window in hour), default=None)


def _apart(cell: int, others: dict[int, float]) -> bool:
    """Whether ``cell`` is far from each of ``others``; cells between which H3 knows no distance are far apart."""
    near = set(h3.grid_disk(cell, APART - 1).tolist())
    return not any(other in near for other in others)


@dataclass(frozen=True)
class Response:
    """What the map shows of a planted incident, window by window. ``minutes``: from the incident's begin until the
    window is on the screen; ``seen``: share of the drop that it shows; ``flagged``: share of the ``cells`` whose 95 %
    interval lies below the mean that they had without the incident. ``drop``: mean over cells, in km/h.
    """

    start: int
    cells: int
    drop: float
    minutes: tuple[float, ...]
    seen: tuple[float, ...]
    flagged: tuple[float, ...]

    def after(self, minutes: float) -> tuple[float, float]:
        """(Seen, flagged) as the screen is so many minutes after the begin; (0, 0) while it shows an older window."""
        return max(
            ((m, s, f) for m, s, f in zip(self.minutes, self.seen, self.flagged, strict=True) if m <= minutes),
            default=(0.0, 0.0, 0.0),
        )[1:]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        points = zip(self.minutes, self.seen, self.flagged, strict=True)
        return {
            "start": self.start,
            "cells": self.cells,
            "drop_km_h": self.drop,
            "on_screen": [{"minutes": m, "seen": s, "flagged": f} for m, s, f in points],
            "seen_after_15_min": self.after(15)[0],
            "seen_after_60_min": self.after(60)[0],
        }


class Watch:
    """Compares a feed that meets an incident with the same feed without it, draw after draw."""

    def __init__(self, config: Config, incident: Incident, windows: Sequence[Exact]) -> None:
        self._slot_s = int(config.window.slot.total_seconds())
        delay = config.window.allowed_delay.total_seconds()
        margin = config.window.publication_margin
        self._delay_s = delay + (0.0 if margin is None else margin.total_seconds())
        self.incident, self._slots = incident, incident.slots(self._slot_s)
        upper = Terms.of(config).speed.upper_quanta
        self.struck = {window.slot: incident.struck(window, upper) for window in windows if window.slot in self._slots}
        self._without = {window.slot: window for window in windows if window.slot in self.struck}
        self._shown, self._flagged = {slot: list[float]() for slot in self.struck}, dict[int, list[float]]()

    @property
    def first(self) -> int:
        """Start of the first window with the incident."""
        return self._slots[0]

    def add(self, slot: int, without: Shown, struck: Shown) -> None:
        """What both showed of one window of one draw."""
        at = np.searchsorted(self._without[slot].cells, self.incident.cells)
        fall = np.nan_to_num(without.value[at] - struck.value[at])
        self._shown[slot].append(float(fall.sum()))
        self._flagged.setdefault(slot, []).append(float((struck.high[at] < self._without[slot].mean[at]).mean()))

    def response(self) -> Response:
        """Means over all draws."""
        drops = {slot: self._drop(slot) for slot in self._slots}
        return Response(
            start=self.incident.start,
            cells=len(self.incident.cells),
            drop=float(np.mean([drop.mean() for drop in drops.values()])),
            minutes=tuple((slot + self._slot_s - self.first + self._delay_s) / 60 for slot in self._slots),
            seen=tuple(float(np.mean(self._shown[slot]) / drops[slot].sum()) for slot in self._slots),
            flagged=tuple(float(np.mean(self._flagged[slot])) for slot in self._slots),
        )

    def _drop(self, slot: int) -> FloatArray:
        """True drop of each cell of the incident, in km/h, (C,), over the part of the window in which it lasts."""
        before, after = self._without[slot], self.struck[slot]
        at = np.searchsorted(before.cells, self.incident.cells)
        fall = (before.mean - after.mean)[at]
        inside = before.rows.rows["time"] < (self.incident.start + INCIDENT_S) * 1_000_000
        here = before.rows.rows["cell"]
        struck = np.array([(inside & (here == cell)).sum() / (here == cell).sum() for cell in self.incident.cells])
        return np.asarray(fall / struck)
