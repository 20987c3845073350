"""Which cells a rule names in a window, from released numbers only. Pure.

A rule names a cell if each of its k windows supports the claim on its own, at the level of :func:`level`.
The probabilities of the k windows are not multiplied: the claim is about every window, so it is wrong as soon as it is
wrong in one of them, and then that window's test alone errs with the level (an intersection–union test: Berger,
Technometrics 24, 1982). This needs no independence between windows. Values as released are judged, never smoothed ones,
because only their noise is known. A merged cell is what its finer neighbours leave of it. In windows where it is
another area, it is another cell.

How easily noise alone makes a released mean look as low as it does: upper bounds on tail probabilities. Pure.

A rule claims something of exact means: the mean of a cell, clipped and weighted as its window says but without noise,
is below a limit. Each function bounds the probability of a number as low as the released one if the claim does not
hold, whatever the exact means are. The noise is known: its scale was released.

**Sums of Laplace noise.** For independent Lᵢ with scales bᵢ and b = max bᵢ, and any t > 0,

    P(Σ Lᵢ ≥ t) <= ½ exp(−t/b) ∏ 1/(1 − bᵢ²/b²), without the widest in the product,        (1)

because P(L ≥ s) <= ½ exp(−s/b) for every s, and E exp(V/b) is that product for the sum V of the others; for a single L
it is exact. And Chernoff's bound, for 0 < λ < 1/b: P(Σ Lᵢ ≥ t) <= exp(−λt) ∏ 1/(1 − λ²bᵢ²). The least of them is taken.
Both hold for discrete Laplace noise, too: (1) after half a step of the grid is taken off t, which :data:`ROUNDED`
covers.

**Sums of Gaussian noise** (discrete or not): P(Σ Gᵢ ≥ t) <= exp(−t²/(2 Σ σᵢ²)) (Canonne, Kamath, Steinke 2020,
corollary 17).

**A ratio of noisy numbers** (relation "participation"): the mean is x̃ = S̃/Ñ, so x̃ as such has no known law. But the
exact mean is at least r if and only if S − rN >= 0, and S̃ − rÑ = (x̃ − r)Ñ has noise that is a sum as above (Fieller
1954).

Usual is what earlier releases of a cell say at the same time of day, of the same area: a merged cell is what its finer
neighbours leave of it (``excludes``), so one cell id is another area in another window.
"""

import math
import threading
from collections.abc import Sequence
from datetime import time
from itertools import islice
from typing import Any, NamedTuple

import h3
import numpy as np

from dpcore.arrays import FloatArray, IdArray
from dpcore.bernstein import MEAN_OF
from stream.config.alerts import AlertRule
from stream.messages.cells import Cell, Number, cells_of
from stream.serve.window_store import CloseMarker, View, WindowView, elapsed, local_start, marker_of, stated_by

EARLIER = 28
"""Largest number of earlier windows that are used."""
LOOK_BACK = 10_000
"""Number of earlier windows among which they are sought."""
ENOUGH = 3
"""Fewest windows of a kind that say what is usual."""

Rests = dict[int, frozenset[str]]
"""The finer cells that each merged cell of a window excludes; cells without such are left out."""


class Decoded(NamedTuple):
    """Of a complete window: cells with noise in their mean, ascending, (2, C) means as released with standard
    deviations of their noise, and what merged cells exclude."""

    cells: IdArray
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
        zones = [stated_by(window).period.timezone for window in windows]
        by_time = {zone: _by_time_of_day(others, zone) for zone in set(zones)}
        return [_before(by_time[zone], window, zone) for window, zone in zip(windows, zones, strict=True)]

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


def _before(by_time: dict[time, list[tuple[int, WindowView]]], window: WindowView, zone: str) -> list[WindowView]:
    local = local_start(window.start, zone)
    day = local.weekday()
    before = [(other_day, other) for other_day, other in by_time.get(local.time(), ()) if other.start < window.start]
    same_day = [other for other_day, other in before if other_day == day]
    same_kind = [other for other_day, other in before if (other_day < 5) == (day < 5)]
    any_day = [other for _, other in before]
    return next((alike for alike in (same_day, same_kind) if len(alike) >= ENOUGH), any_day)[:EARLIER]


def other_areas(one: Rests, other: Rests) -> IdArray:
    """Cells that are not the same area in two windows."""
    return np.array([cell for cell in one.keys() | other.keys() if one.get(cell) != other.get(cell)], dtype=np.uint64)


def _decode(cells: Sequence[Cell]) -> Decoded:
    # A scale of 0 means that there was nobody to measure, so the value says nothing about what is usual.
    noisy = [(cell, cell.mean) for cell in cells if cell.mean is not None and cell.mean.scale > 0]
    deviations = [cell.deviation_of(mean) for cell, mean in noisy]
    means = np.array([[mean.raw for _, mean in noisy], deviations], dtype=float)
    rests = {int(cell.cell, 16): frozenset(cell.excludes) for cell in cells if cell.excludes}
    return Decoded(np.array([int(cell.cell, 16) for cell, _ in noisy], dtype=np.uint64), means, rests)


ROUNDED = 0.02
"""km/h taken off every difference: more than rounding and the grids of the noise may have moved the numbers in it."""
_COUNT_ROUNDED = 0.05
"""A released count is rounded to 0.1."""
_TILTS = (0.5, 0.8, 0.9, 0.95)
"""λb of Chernoff's bound."""
_DAY = 86_400.0


def level(false_alarms_per_day: float, seconds: float, cells: int) -> float:
    """The probability that each of the ``cells`` tests of a window of that length may err with.

    Bonferroni: expectations add up whatever depends on what, so all tests of a day err no more often than the rule
    allows.
    """
    return min(false_alarms_per_day * seconds / _DAY / max(cells, 1), 0.5)


def laplace_tail(excess: FloatArray, scales: FloatArray) -> FloatArray:
    """Bound on P(Σᵢ Lᵢ >= ``excess``), shape (C,), for independent Laplace noise of ``scales`` (N, C), 0 for none."""
    widest = scales.max(axis=0)
    known = (widest > 0) & (excess > 0)
    distance = np.where(known, excess, 0.0) / np.where(known, widest, 1.0)
    shares = np.square(scales / np.where(widest > 0, widest, 1.0))
    others = shares.copy()
    others[scales.argmax(axis=0), np.arange(scales.shape[1])] = 0.0
    with np.errstate(divide="ignore"):  # as wide as the widest: (1) says nothing
        bounds = [-distance - np.log(2) - np.log1p(-others).sum(axis=0)]
    bounds += [-tilt * distance - np.log1p(-(tilt**2) * shares).sum(axis=0) for tilt in _TILTS]
    return np.where(known, np.exp(np.minimum(np.min(bounds, axis=0), 0.0)), 1.0)


def gaussian_tail(excess: FloatArray, deviation: FloatArray) -> FloatArray:
    """Bound on P(G >= ``excess``), shape (C,), for a sum of Gaussian noise with this ``deviation``."""
    known = (deviation > 0) & (excess > 0)
    return np.where(known, np.exp(-0.5 * np.square(excess / np.where(known, deviation, 1.0))), 1.0)


def chance_below(values: FloatArray, scales: FloatArray, limit: float) -> FloatArray:
    """Of released means (C,) with Laplace noise, if the exact ones are not below ``limit``."""
    return laplace_tail(limit - values - ROUNDED, scales[None, :])


def chance_slower(
    now: tuple[FloatArray, FloatArray], earlier: tuple[FloatArray, FloatArray], share: float, less: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Chance, usual, limit), each of shape (C,), for the claim: exact mean < ``share`` · exact usual − ``less``.

    ``now``: values and scales (C,); ``earlier``: values and scales (N, C), scale 0 where a window has none of the cell.
    Usual is the mean of the earlier values weighted by precision; NaN where fewer than :data:`ENOUGH` windows know the
    cell.
    """
    values, scales = earlier
    present = scales > 0
    weights = np.where(present, 1.0 / np.square(np.where(present, scales, 1.0)), 0.0)
    total = weights.sum(axis=0)
    enough = present.sum(axis=0) >= ENOUGH
    weights = weights / np.where(enough, total, 1.0)
    usual = np.where(enough, (weights * values).sum(axis=0), np.nan)
    limit = share * usual - less
    excess = np.where(enough, limit - now[0] - 2 * ROUNDED, 0.0)
    return laplace_tail(excess, np.vstack([now[1][None, :], share * weights * scales])), usual, limit


def chance_ratio_below(
    shares: FloatArray, counts: FloatArray, scales: FloatArray, limit: FloatArray, *, degree: int, gaussian: bool
) -> FloatArray:
    """Of means (C,) that are ratios of noisy numbers, if the exact ones are not below ``limit``.

    ``shares``: released means as shares of their range; ``limit``: likewise. ``counts`` and their ``scales``: the
    denominators. Of the degree + 1 noisy sums of a cell (:mod:`dpcore.bernstein`), the count is the sum and the mean a
    form of them. A count of 1 or less says nothing.
    """
    counted = counts > 1
    excess = np.where(counted, (limit - shares) * counts - _COUNT_ROUNDED * np.abs(limit - shares), 0.0)
    parts = np.abs(MEAN_OF[degree][:, None] - limit[None, :]) * (scales / np.sqrt(degree + 1))[None, :]
    if gaussian:
        return gaussian_tail(excess, np.sqrt(np.square(parts).sum(axis=0)))
    return laplace_tail(excess, parts)


class Judged(NamedTuple):
    """One window and what its cells are compared with."""

    window: WindowView
    earlier: Sequence[WindowView]


_Area = tuple[str, tuple[str, ...]]
"""A cell, and the finer ones that it excludes."""
_Named = tuple[float, float, float | None]
"""Of a cell that a rule names in one window its value, the limit, and what is usual, where the rule compares with it.
"""


class Alert(NamedTuple):
    """A rule, a cell and the last of the k windows in which its claim holds. ``new``: not so a window earlier."""

    rule: AlertRule
    cell: str
    first: str
    new: bool
    value: float
    limit: float
    usual: float | None

    def body(self, window: WindowView) -> dict[str, Any]:
        """As JSON can hold it. ``id`` depends on feed, rule, window and cell only."""
        return window.named | {
            "id": f"{window.feed}/{self.rule.name}/{window.start}/{self.cell}",
            "rule": self.rule.name,
            "cell": self.cell,
            "first_window": self.first,
            "new": self.new,
            "statistic": "mean",
            "value": round(self.value, 2),
            "limit": round(self.limit, 2),
            "usual": None if self.usual is None else round(self.usual, 2),
            "unit": stated_by(window).clipping.unit,
        }


def chain(view: View, window: WindowView, usual: Usual, rules: Sequence[AlertRule]) -> list[Judged]:
    """The window and complete ones that end where the next begins, newest first, as many as rules look at and one."""
    ends = {other.end: other for other in view.windows.values() if other.complete and other.feed == window.feed}
    windows: list[WindowView] = [window]
    while len(windows) <= max((rule.windows for rule in rules), default=0) and windows[-1].start in ends:
        windows.append(ends[windows[-1].start])
    compared = 1 + max((rule.windows for rule in rules if rule.relative), default=-1)
    before = usual.earlier_of_each(view, windows[:compared])
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
    return [Alert(rule, area[0], first, area not in before, *named[0][area]) for area in sorted(active)]


def judged_cells(rule: AlertRule, window: WindowView) -> list[str]:
    """The window's cells that the rule covers, published or not: as many tests are counted."""
    if rule.cells:
        return [cell for cell in rule.cells if cell in window.cells]
    if rule.area is None:
        return list(window.cells)
    return [cell for cell in window.cells if rule.area.contains(*h3.cell_to_latlng(cell))]


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
    numbers = np.array([int(cell, 16) for cell in covered], dtype=np.uint64)
    allowed = level(rule.false_alarms_per_day, elapsed(window).total_seconds(), len(covered))
    sure = (chances <= allowed) & np.isin(cells, numbers)
    shown = np.clip(values, marker.clipping.lower, marker.clipping.upper)
    rows = zip(shown[sure].tolist(), limits[sure].tolist(), usuals[sure].tolist(), strict=True)
    named = ((value, limit, None if math.isnan(average) else average) for value, limit, average in rows)
    rests = usual.decoded(window).rests
    areas = [(f"{cell:x}", tuple(sorted(rests.get(cell, ())))) for cell in cells[sure].tolist()]
    return dict(zip(areas, named, strict=True))


def _has_laplace_noise(marker: CloseMarker) -> bool:
    """Whether means have Laplace noise. That it is their only noise, the configuration ensures by
    ``speed.mean_mechanism``."""
    return (marker.relation, marker.accounting) == ("values", "pure")


def _released(window: WindowView, usual: Usual) -> tuple[IdArray, FloatArray, FloatArray]:
    """Cells, released means before clamping, and their Laplace scales, shape (C,) each, in order of cell."""
    decoded = usual.decoded(window)
    values, deviations = decoded.means
    return decoded.cells, values, deviations / np.sqrt(2.0)


def _against_usual(
    rule: AlertRule, judged: Judged, usual: Usual
) -> tuple[IdArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Cells, values, chances, usual values and limits, shape (C,) each."""
    cells, values, scales = _released(judged.window, usual)
    marked = [(one, marker_of(one)) for one in judged.earlier]
    noisy = [window for window, marker in marked if marker is not None and _has_laplace_noise(marker)]
    earlier = _earlier(judged.window, cells, noisy, usual)
    share = 1.0 if rule.slower_percent is None else 1.0 - rule.slower_percent / 100.0
    chances, usuals, limits = chance_slower((values, scales), earlier, share, rule.slower_km_h or 0.0)
    return cells, values, chances, usuals, limits


def _earlier(
    judged: WindowView, cells: IdArray, windows: Sequence[WindowView], usual: Usual
) -> tuple[FloatArray, FloatArray]:
    """Released means of the ``cells`` in those windows and their scales, shape (N, C) each; scale 0 where there is none
    of the area that the cell is in the ``judged`` window.
    """
    values, scales = np.zeros((2, max(len(windows), 1), len(cells)))
    for row, window in enumerate(windows):
        theirs, means, widths = _released(window, usual)
        _, here, there = np.intersect1d(cells, theirs, assume_unique=True, return_indices=True)
        values[row, here], scales[row, here] = means[there], widths[there]
        scales[row, np.isin(cells, other_areas(usual.decoded(judged).rests, usual.decoded(window).rests))] = 0.0
    return values, scales


def _of_ratios(rule: AlertRule, window: WindowView, marker: CloseMarker) -> tuple[IdArray, FloatArray, FloatArray]:
    """Cells, values and chances under "participation". Rules that compare with usual name nothing."""
    bodies = [cell for cell in cells_of(window.in_order()) if cell.mean is not None]
    counted = [(body, body.events if isinstance(body.events, Number) else body.users) for body in bodies]
    rows = [
        (
            int(body.cell, 16),
            body.mean.raw,
            count.raw,
            count.scale,
            *(body.clipping or marker.clipping).of_shares(ROUNDED),
        )
        for body, count in counted
        if isinstance(count, Number) and body.mean is not None and not rule.relative
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
