"""Which cells a rule names in a window, from released numbers only. Pure.

A rule names a cell if each of its k windows supports the claim on its own, at the level of :func:`significance.level`.
The probabilities of the k windows are not multiplied: the claim is about every window, so it is wrong as soon as it is
wrong in one of them, and then that window's test alone errs with the level (an intersection–union test: Berger,
Technometrics 24, 1982). This needs no independence between windows. Values as released are judged, never smoothed ones,
because only their noise is known. A merged cell is what its finer neighbours leave of it. In windows where it is
another area, it is another cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import h3
import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.config.alerts import AlertRule
from stream.config.value import SPEED_UNIT
from stream.serve.alerts.significance import ROUNDED, chance_below, chance_ratio_below, chance_slower, level
from stream.serve.cell_history import CellArray, Rests, Usual, other_areas
from stream.serve.close_marker import Bounds, CloseMarker, marker_of
from stream.serve.window_store import View, WindowView


class _Number(msgspec.Struct):
    raw: float
    scale: float


class _Cell(msgspec.Struct):
    cell: str
    mean: _Number | None = None
    variance: _Number | None = None
    users: int | _Number | None = None
    events: int | _Number | None = None
    clipping: Bounds | None = None


class Judged(NamedTuple):
    """One window and what its cells are compared with."""

    window: WindowView
    earlier: Sequence[WindowView]


class _Area(NamedTuple):
    """A cell without the finer ones that it excludes."""

    cell: str
    excludes: tuple[str, ...]


class _Named(NamedTuple):
    """A cell that a rule names in one window. ``usual``: None for rules that do not compare with it."""

    value: float
    limit: float
    usual: float | None


class Alert(NamedTuple):
    """A rule, a cell and the last of the k windows in which its claim holds. ``new``: it was not so a window
    earlier."""

    rule: AlertRule
    cell: str
    first: str
    new: bool
    value: float
    limit: float
    usual: float | None

    def body(self, window: WindowView) -> dict[str, Any]:
        """As JSON can hold it. ``id`` depends on feed, rule, window and cell only."""
        return {
            "id": f"{window.feed}/{self.rule.name}/{window.start}/{self.cell}",
            "rule": self.rule.name,
            "feed": window.feed,
            "cell": self.cell,
            "window": {"start": window.start, "end": window.end},
            "first_window": self.first,
            "new": self.new,
            "statistic": "mean",
            "value": round(self.value, 2),
            "limit": round(self.limit, 2),
            "usual": None if self.usual is None else round(self.usual, 2),
            "unit": unit_of(window),
        }


def unit_of(window: WindowView) -> str:
    """The unit of a window's means, by its marker."""
    marker = marker_of(window)
    return SPEED_UNIT if marker is None else marker.clipping.unit


def chain(view: View, window: WindowView, usual: Usual, rules: Sequence[AlertRule]) -> list[Judged]:
    """The window and complete ones that end where the next begins, newest first: as many as the rules look at, and one
    more."""
    ends = {other.end: other for other in view.windows.values() if other.complete and other.feed == window.feed}
    windows: list[WindowView] = [window]
    while len(windows) <= max((rule.windows for rule in rules), default=0) and windows[-1].start in ends:
        windows.append(ends[windows[-1].start])
    compared = 1 + max((rule.windows for rule in rules if rule.relative), default=-1)
    before = [earlier.windows for earlier in usual.earlier_of_each(view, windows[:compared])]
    return [Judged(one, before[n] if n < len(before) else ()) for n, one in enumerate(windows)]


def alerts(rule: AlertRule, windows: Sequence[Judged], usual: Usual) -> list[Alert]:
    """What the rule says of the newest of :func:`chain`'s windows, in order of cell. Safe to call from any thread."""
    k = rule.windows
    if len(windows) < k:
        return []
    named = [_named(rule, judged, usual) for judged in windows[: k + 1]]
    active = set.intersection(*(set(areas) for areas in named[:k]))
    before = set.intersection(*(set(areas) for areas in named[1:])) if len(named) > k else set()
    first = windows[k - 1].window.start
    return [Alert(rule, area.cell, first, area not in before, *named[0][area]) for area in sorted(active)]


def judged_cells(rule: AlertRule, window: WindowView) -> list[str]:
    """The window's cells that the rule covers, published or not: as many tests are counted."""
    if rule.cells:
        return [cell for cell in rule.cells if cell in window.cells]
    if rule.area is None:
        return list(window.cells)
    return [cell for cell in window.cells if rule.area.contains(*h3.cell_to_latlng(cell))]


def level_of(rule: AlertRule, window: WindowView, cells: int) -> float:
    """The probability with which each of the ``cells`` that the rule covers in the window may be named by mistake."""
    seconds = (datetime.fromisoformat(window.end) - datetime.fromisoformat(window.start)).total_seconds()
    return level(rule.false_alarms_per_day, seconds, cells)


def _named(rule: AlertRule, judged: Judged, usual: Usual) -> dict[_Area, _Named]:
    window = judged.window
    covered = judged_cells(rule, window)
    marker = marker_of(window)
    if marker is None or not covered:
        return {}
    if marker.relation != "participation" and not _has_laplace_noise(marker):
        return {}
    if marker.relation == "participation":
        cells, values, chances = _of_ratios(rule, window, marker)
        limits, usuals = np.full(len(cells), _limit(rule)), np.full(len(cells), np.nan)
    elif rule.relative:
        cells, values, chances, usuals, limits = _against_usual(rule, judged, usual)
    else:
        cells, values, scales = _released(window, usual)
        limits, usuals = np.full(len(cells), _limit(rule)), np.full(len(cells), np.nan)
        side = -1.0 if rule.below is None else 1.0  # to be above is to be below of what is turned around
        chances = chance_below(side * values, scales, side * _limit(rule))
    sure = (chances <= level_of(rule, window, len(covered))) & np.isin(cells, _numbers(covered))
    shown = np.clip(values, marker.clipping.lower, marker.clipping.upper)
    rows = zip(shown[sure].tolist(), limits[sure].tolist(), usuals[sure].tolist(), strict=True)
    named = (_Named(value, limit, None if math.isnan(average) else average) for value, limit, average in rows)
    return dict(zip(_areas(cells[sure], usual.rests(window)), named, strict=True))


def _numbers(cells: Sequence[str]) -> CellArray:
    return np.array([int(cell, 16) for cell in cells], dtype=np.uint64)


def _areas(cells: CellArray, rests: Rests) -> list[_Area]:
    return [_Area(f"{cell:x}", tuple(sorted(rests.get(cell, ())))) for cell in cells.tolist()]


def _has_laplace_noise(marker: CloseMarker) -> bool:
    """Whether means have Laplace noise. That it is their only noise, the configuration ensures by
    ``speed.mean_mechanism``."""
    return (marker.relation, marker.accounting) == ("values", "pure")


def _released(window: WindowView, usual: Usual) -> tuple[CellArray, FloatArray, FloatArray]:
    """Cells, released means before clamping, and their Laplace scales, shape (C,) each, in order of cell."""
    cells, table = usual.released(window, "mean")
    order = np.argsort(cells)
    return cells[order], table[0][order], table[1][order] / np.sqrt(2.0)


def _against_usual(
    rule: AlertRule, judged: Judged, usual: Usual
) -> tuple[CellArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Cells, values, chances, usual values and limits, shape (C,) each."""
    cells, values, scales = _released(judged.window, usual)
    marked = [(one, marker_of(one)) for one in judged.earlier]
    noisy = [window for window, marker in marked if marker is not None and _has_laplace_noise(marker)]
    earlier = _earlier(judged.window, cells, noisy, usual)
    share = 1.0 if rule.slower_percent is None else 1.0 - rule.slower_percent / 100.0
    chances, usuals, limits = chance_slower((values, scales), earlier, share, rule.slower_km_h or 0.0)
    return cells, values, chances, usuals, limits


def _earlier(
    judged: WindowView, cells: CellArray, windows: Sequence[WindowView], usual: Usual
) -> tuple[FloatArray, FloatArray]:
    """Released means of the ``cells`` in those windows and their scales, shape (N, C) each; scale 0 where there is none
    of the area that the cell is in the ``judged`` window.
    """
    values, scales = np.zeros((2, max(len(windows), 1), len(cells)))
    for row, window in enumerate(windows):
        theirs, means, widths = _released(window, usual)
        _, here, there = np.intersect1d(cells, theirs, assume_unique=True, return_indices=True)
        values[row, here], scales[row, here] = means[there], widths[there]
        scales[row, np.isin(cells, other_areas(usual.rests(judged), usual.rests(window)))] = 0.0
    return values, scales


def _of_ratios(
    rule: AlertRule, window: WindowView, marker: CloseMarker
) -> tuple[CellArray, FloatArray, npt.NDArray[np.float64]]:
    """Cells, values and chances under "participation". Rules that compare with usual name nothing."""
    decoder = msgspec.json.Decoder(_Cell)
    bodies = [body for body in map(decoder.decode, window.in_order()) if body.mean is not None]
    counted = [(body, body.events if isinstance(body.events, _Number) else body.users) for body in bodies]
    rows = [
        (int(body.cell, 16), body.mean.raw, count.raw, count.scale, *_bounds(body, marker).of_shares(ROUNDED))
        for body, count in counted
        if isinstance(count, _Number) and body.mean is not None and not rule.relative
    ]
    cells = np.array([row[0] for row in rows], dtype=np.uint64)
    values, counts, scales, lower, width = np.array([row[1:] for row in rows], dtype=float).reshape(-1, 5).T
    degree = 2 if any(body.variance is not None for body in bodies) else 1
    shares, limit = (values - lower) / width, (_limit(rule) - lower) / width
    if rule.below is None:  # the forms of a mean are symmetric: turned around, it is 1 less the share
        shares, limit = 1.0 - shares, 1.0 - limit
    limit = limit - ROUNDED / width
    chances = chance_ratio_below(shares, counts, scales, limit, degree=degree, gaussian=marker.accounting == "zcdp")
    return cells, values, chances


def _limit(rule: AlertRule) -> float:
    """What the mean is claimed to be below or above; 0 of rules that compare with usual, which do not read it."""
    return next((float(limit) for limit in (rule.below, rule.above) if limit is not None), 0.0)


def _bounds(body: _Cell, marker: CloseMarker) -> Bounds:
    return body.clipping or marker.clipping
