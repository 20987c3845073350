"""What the noise of a live map leaves possible. NOT PRIVATE: it knows the truth, and what it knows is chosen in
hindsight.

Readings are the true means of a day with normal noise that is as large as that of one draw of ours.

- The *oracle* knows the day's typical map and, by busyness of cells, how wrong that is. It weighs each reading against
  it. A drop that nobody foretold it shows by that weight alone.
- The *learner* must learn the map from the same readings. It is an exact Kalman filter of the model of
  :mod:`dpcore.smoothing` (level and effect of the covariate, lasting deviations of neighbours and of cells, passing
  ones of both, sampling), which keeps all covariances. Its variances, lengths and times (:data:`START`) are those that
  suit this very day best: a search by steps from :data:`STARTS` places, over :data:`DRAWS` draws of noise. "mae": of
  the filter of least mean absolute error. "half_width": the median half interval of the filter that foretells the truth
  best (log score), all intervals stretched alike until 95 % of events are covered. "shows_last", "shows_both": the
  filter of least error among those that show as much of a drop as is wanted, which is what the wish costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np
import scipy

from dpcore.arrays import FloatArray, IntArray
from dpcore.earth import local_kilometres
from stream.config import Config
from stream.evaluation.live import typical_of
from stream.evaluation.living import Exact, Living, Shown, Watch, plant

DRAWS, STARTS = 16, 3
MOST = 130
"""The learner knows so many cells, the busiest; figures are of these."""
Variances = Mapping[str, float]
START: Variances = {
    "level": 20.0,
    "level_off": 5.0,
    "level_drift": 0.6,
    "effect": 10.0,
    "field": 4.0,
    "length_km": 4.0,
    "own_quiet": 3.0,
    "own_middle": 2.0,
    "own_busy": 1.5,
    "memory_hours": 500.0,
    "shared": 1.3,
    "shared_km": 4.0,
    "shared_hours": 1.5,
    "passing": 2.0,
    "passing_hours": 1.5,
    "event": 16.0,
    "user": 8.0,
}
"""The expected level, and standard deviations in km/h: of what is ``off`` there, of its drift in an hour, of the
covariate's effect, of lasting deviations (three classes of cells by events), of passing ones, of an event and a user;
with their lengths and times."""


@dataclass
class Recorded:
    """A feed that notes what it shows, by window."""

    feed: Living
    shown: dict[int, Shown]

    def forked(self) -> Recorded:
        """The same as it is now; it notes elsewhere."""
        return Recorded(self.feed.forked(), {})

    def release(self, window: Exact) -> Shown:
        """What readers see of the next window."""
        self.shown[window.slot] = self.feed.release(window)
        return self.shown[window.slot]


@dataclass(frozen=True)
class Window:
    """Of the cells that are known, (n,): which, hours, events, true and typical mean, covariate, users, deviation of
    noise, readings (n, draws), and how far an incident lets the mean fall; whether it is scored."""

    cells: IntArray
    hours: float
    events: FloatArray
    true: FloatArray
    typical: FloatArray
    covariate: FloatArray
    users: FloatArray
    noise: FloatArray
    read: FloatArray
    fall: FloatArray
    scored: bool


@dataclass(frozen=True)
class Figures:
    """Errors in km/h weighted by events; ``seen``: share of the fall in each window of the incident."""

    mae: float
    half_width: float
    skill: float
    score: float
    seen: tuple[float, ...]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        first, last = (self.seen[0], self.seen[-1]) if self.seen else (None, None)
        return {"mae": self.mae, "half_width": self.half_width, "skill": self.skill, "seen": [first, last]}


def bounds(
    config: Config, windows: Sequence[Exact], shown: Mapping[int, Shown], wish: tuple[float, float] | None
) -> dict[str, Any]:
    """Figures of oracle and learner. ``shown``: of each window, for its noise. ``wish``: shares of a drop that should
    be seen in the first and in the last window of the incident."""
    cells, each = _read(config, windows, shown)
    day = Day(cells, each, config.value.upper)
    least, scored = day.best(lambda f: f.mae, START, STARTS), day.best(lambda f: f.score, START)
    learner = least[0].facts() | {"half_width": scored[0].half_width, "knows": least[1]}
    figures = {"oracle": _oracle(each).facts(), "learner": learner}
    for name, wanted in {} if wish is None else {"shows_last": (0.0, wish[1]), "shows_both": wish}.items():
        best, _ = day.best(partial(_cost, wanted), least[1])
        figures[name] = best.facts() | {"wished": list(wanted)}
    return figures


def _cost(wanted: tuple[float, float], figures: Figures) -> float:
    short = max(wanted[0] - figures.seen[0], 0.0) + max(wanted[1] - figures.seen[-1], 0.0)
    return figures.mae + 50 * short


def _read(config: Config, windows: Sequence[Exact], shown: Mapping[int, Shown]) -> tuple[IntArray, list[Window]]:
    """(Known cells, their windows)."""
    typical = typical_of([(w.slot, w.cells, w.events, w.mean) for w in windows], ZoneInfo(config.feed.timezone))
    incident = plant(windows, int(config.window.slot.total_seconds()), most=10)
    struck = {} if incident is None else Watch(config, incident, windows).struck
    every, index = np.unique(np.concatenate([w.cells for w in windows]), return_inverse=True)
    events = np.bincount(index, weights=np.concatenate([w.events for w in windows]))
    if incident is not None:
        events[np.searchsorted(every, incident.cells)] += events.sum()
    cells = np.sort(every[np.argsort(-events, kind="stable")[:MOST]])
    rng, each = np.random.default_rng(11), []
    for window, usual, known in zip(windows, typical.maps, typical.known, strict=True):
        at = np.flatnonzero(np.isin(window.cells, cells))
        users = np.diff(window.rows.counts.cell_start)
        crowd = np.log(window.events / users)
        noise = np.nan_to_num(shown[window.slot].noise, posinf=1e5)[at]
        true, fall = window.mean[at], np.zeros(len(at))
        if window.slot in struck and incident is not None:
            hit = np.isin(window.cells[at], incident.cells)
            fall[hit] = true[hit] - struck[window.slot].mean[at][hit]
        read = true[:, None] + noise[:, None] * rng.normal(size=(len(at), DRAWS))
        each.append(
            Window(
                np.searchsorted(cells, window.cells[at]),
                window.slot / 3600,
                window.events[at],
                true,
                usual[at],
                (crowd - window.events @ crowd / window.events.sum())[at],
                users[at].astype(np.float64),
                noise,
                read,
                fall,
                known,
            )
        )
    return cells, each


def _oracle(windows: Sequence[Window]) -> Figures:
    scored = [window for window in windows if window.scored]
    events, true, typical, noise = (
        np.concatenate([getattr(window, name) for window in scored]) for name in ("events", "true", "typical", "noise")
    )
    edges = np.quantile(events, np.linspace(0, 1, 13)[1:-1])
    classes = np.searchsorted(edges, events)
    error = np.bincount(classes, weights=np.square(typical - true)) / np.maximum(np.bincount(classes), 1)
    weight = error[classes] / (error[classes] + np.square(noise) + 1e-12)
    split = np.cumsum([len(window.events) for window in scored])[:-1]
    means, reaches = [], []
    for window, gain, off in zip(scored, np.split(weight, split), np.split(error[classes], split), strict=True):
        means.append(window.typical[:, None] + gain[:, None] * (window.read - window.typical[:, None]))
        reaches.append(np.sqrt((1 - gain) * off))
    seen = [
        float(g @ w.fall / w.fall.sum()) for w, g in zip(scored, np.split(weight, split), strict=True) if w.fall.any()
    ]
    return _judged(scored, means, reaches, seen)


def _judged(
    windows: Sequence[Window], means: Sequence[FloatArray], deviations: Sequence[FloatArray], seen: Sequence[float]
) -> Figures:
    """Of the ``means`` (n, draws) and their standard deviations (n,) in the scored windows."""
    events, true, typical = (
        np.concatenate([getattr(window, name) for window in windows]) for name in ("events", "true", "typical")
    )
    share, deviation = events / events.sum(), np.concatenate(deviations)[:, None]
    off = np.abs(np.concatenate(means) - true[:, None])
    ratio, weight = (off / deviation).ravel(), np.repeat(share, off.shape[1])
    half = _quantile(ratio, weight, 0.95) * _quantile(deviation[:, 0], share, 0.5)
    skill = 1 - share @ np.square(off).mean(axis=1) / (share @ np.square(typical - true))
    score = share @ (np.log(deviation) + np.square(off / deviation) / 2).mean(axis=1)
    return Figures(float(share @ off.mean(axis=1)), half, float(skill), float(score), tuple(seen))


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), share * weights.sum())])


class Day:
    """The learner on one day."""

    def __init__(self, cells: IntArray, windows: Sequence[Window], upper: float) -> None:
        lat, lng = np.array([h3.cell_to_latlng(cell) for cell in cells.tolist()]).T
        at = local_kilometres(lat, lng)
        self._distance = np.sqrt(np.square(at[:, None] - at[None]).sum(axis=2))
        self._windows, self._upper = windows, upper
        events = np.zeros(len(cells))
        for window in windows:
            events[window.cells] += window.events
        self._class = np.searchsorted(np.quantile(events, (1 / 3, 2 / 3)), events)

    def best(
        self, cost: Callable[[Figures], float], start: Variances, starts: int = 1
    ) -> tuple[Figures, dict[str, float]]:
        """The filter of least ``cost``, and what it knows: steps from ``start`` and from ``starts`` - 1 places near
        it."""
        rng, candidates = np.random.default_rng(3), []
        for number in range(starts):
            known = {name: value * float(np.exp(rng.normal(0, 0.5 * (number > 0)))) for name, value in start.items()}
            figures = self.filtered(known)
            for step in (2.0, 2**0.5, 2**0.25):
                for name, factor in ((name, factor) for name in START for factor in (step, 1 / step)):
                    while (other := self.filtered(known | {name: known[name] * factor})) and (
                        cost(other) < cost(figures) - 1e-3
                    ):
                        known, figures = known | {name: known[name] * factor}, other
            candidates.append((cost(figures), number, figures, known))
        return min(candidates)[2:]

    def filtered(self, v: Variances) -> Figures:
        """One pass: the state is lasting, shared and passing deviation of each cell, level and effect."""
        G = len(self._class)
        near, own = np.exp(-self._distance / v["length_km"]), np.array([v["own_quiet"], v["own_middle"], v["own_busy"]])
        parts = (
            (v["field"] ** 2 * near + np.diag(np.square(own[self._class])), v["memory_hours"]),
            (v["shared"] ** 2 * np.exp(-self._distance / v["shared_km"]), v["shared_hours"]),
            (v["passing"] ** 2 * np.eye(G), v["passing_hours"]),
        )
        size = 3 * G + 2
        covariance = scipy.linalg.block_diag(*(part for part, _ in parts), v["level_off"] ** 2, v["effect"] ** 2)
        state, before = np.zeros((size, DRAWS + 1)), self._windows[0].hours
        state[-2, :DRAWS] = v["level"]
        means, deviations, seen = [], [], []
        for window in self._windows:
            passed, before = window.hours - before, window.hours
            if passed:
                fade = np.ones(size)
                for block, (_, hours) in enumerate(parts):
                    fade[block * G : (block + 1) * G] = np.exp(-passed / hours)
                covariance *= fade[:, None] * fade
                state *= fade[:, None]
                for block, (part, hours) in enumerate(parts):
                    rows = slice(block * G, (block + 1) * G)
                    covariance[rows, rows] += (1 - np.exp(-2 * passed / hours)) * part
                covariance[-2, -2] += v["level_drift"] ** 2 * passed

            def observed(columns: FloatArray, window: Window = window) -> FloatArray:
                blocks = (columns[block * G + window.cells] for block in range(3))
                return np.asarray(sum(blocks) + columns[[-2]] + window.covariate[:, None] * columns[[-1]])

            across = observed(covariance)
            true = observed(across.T) + np.diag(v["event"] ** 2 / window.events + v["user"] ** 2 / window.users)
            root = scipy.linalg.cholesky(true + np.diag(np.square(window.noise)), lower=True, check_finite=False)
            expected = observed(state)
            off, gain, own_gain = (
                scipy.linalg.solve_triangular(root, each, lower=True, check_finite=False)
                for each in (np.column_stack([window.read, -window.fall]) - expected, across, true)
            )
            mean = expected + own_gain.T @ off
            state += gain.T @ off
            covariance -= gain.T @ gain
            if window.scored:
                means.append(np.clip(mean[:, :DRAWS], 0, self._upper))
                deviations.append(np.sqrt(np.maximum(np.diag(true) - np.square(own_gain).sum(axis=0), 1e-6)))
            if window.fall.any():
                hit = window.fall > 0
                seen.append(float(-mean[hit, -1].sum() / window.fall[hit].sum()))
        return _judged([window for window in self._windows if window.scored], means, deviations, seen)
