"""How good a recording is as a live map: skill, coverage, response to a planted incident. NOT PRIVATE: it uses true
values.

Every draw is a feed of its own that lives through the recording (:mod:`stream.evaluation.living`).

The typical map that a live map must beat: exact means of earlier days, or of the other windows of a single day. NOT
PRIVATE.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self
from zoneinfo import ZoneInfo

import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from stream.config import Config
from stream.evaluation.living import INCIDENT_S, Exact, Feed, Living, Response, Shown, Watch, plant
from stream.evaluation.scores import USEFUL_KMH
from stream.windows import utc_text

Means = tuple[int, IdArray, FloatArray, FloatArray]
"""A window: its start in epoch seconds; ids, events and exact means of its cells, (H,) each."""


@dataclass(frozen=True)
class Typical:
    """Of each window the typical mean of its cells, (H,), in km/h; whether it has one that it may be compared with; and
    what they are means of.
    """

    maps: list[FloatArray]
    known: list[bool]
    against: str


EVENTS = 100
"""The mean of a cell over all hours counts as so many events beside its events of one hour. On CapMetro's 2016-11-24 to
27, 30 were worse than no hours at all, 100 were about as good."""


def typical_of(windows: Sequence[Means], zone: ZoneInfo) -> Typical:
    """Of a recording of several days: the mean of the cell in this hour of the days before, with :data:`EVENTS` of its
    mean over all hours; the first day is not compared. Of a single day: its mean in the other windows. Where the cell
    has no events there, the mean of all cells.
    """
    times = [datetime.fromtimestamp(slot, zone) for slot, *_ in windows]
    cells = np.unique(np.concatenate([ids for _, ids, _, _ in windows]))
    places = [np.searchsorted(cells, ids) for _, ids, _, _ in windows]
    sums = [np.stack([n, n * mean]) for _, _, n, mean in windows]
    if times[0].date() == times[-1].date():
        rest = _other_windows(places, sums, len(cells))
        return Typical(rest, [True] * len(rest), "other windows of the day")
    known = [time.date() != times[0].date() for time in times]
    return Typical(_days_before(times, places, sums, len(cells)), known, "earlier days")


def _other_windows(places: Sequence[IntArray], sums: Sequence[FloatArray], cells: int) -> list[FloatArray]:
    total = np.zeros((2, cells))
    for at, own in zip(places, sums, strict=True):
        total[:, at] += own
    level = total[1].sum() / total[0].sum()
    return [_mean(total[:, at] - own, level) for at, own in zip(places, sums, strict=True)]


def _days_before(
    times: Sequence[datetime], places: Sequence[IntArray], sums: Sequence[FloatArray], cells: int
) -> list[FloatArray]:
    total, maps, today = np.zeros((2, 24, cells)), [], list[int]()
    for k, (time, at) in enumerate(zip(times, places, strict=True)):
        if today and time.date() != times[today[0]].date():
            for before in today:
                total[:, times[before].hour, places[before]] += sums[before]
            today = []
        today.append(k)
        whole = _mean(total.sum(axis=1), float(_mean(total.sum(axis=(1, 2)), 0.0)))[at]
        maps.append(_mean(total[:, time.hour, at] + EVENTS * np.stack([np.ones_like(whole), whole]), 0.0))
    return maps


def _mean(sums: FloatArray, level: float) -> FloatArray:
    """Means (...) from ``sums`` (2, ...) of events and of speeds; ``level`` where there are no events."""
    events, total = sums
    return np.asarray(np.where(events > 0.5, total / np.maximum(events, 1), level))


CURVES = 6
"""Cells that are drawn over the day."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Curve:
    """One busy cell over the recording's last day, of the first draw: hours since the window that ``begins`` it, and in
    km/h the true mean, the typical one, the estimate and its interval, shape (W + 1,) each, the last window again at
    its end. ``struck``: hours of the incident, which is in them; None for a cell without it.
    """

    cell: int
    begins: str
    struck: tuple[float, float] | None
    hours: FloatArray
    true: FloatArray
    typical: FloatArray
    estimate: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class LiveScore:
    """How good the live map is, over the windows that are compared and all draws; shares and means are weighted by
    events.

    ``against``: of what x̄, the typical map, is the exact mean. ``skill``: 1 − Σ n(x̂ − x)²/Σ n(x̄ − x)²: 0 says no
    more than the typical map, 1 is exact; where nothing is shown, readers have the typical map. ``oracle``: the skill
    of an estimate that knows the typical map and how wrong it is, beside the same noise. ``shown``: share of events in
    cells with an estimate; ``mae``, ``half_width`` (the median) and the coverages are of these; ``useful``: share of
    all events within ±5 km/h. ``vehicles``: median number of users of a window.
    """

    mechanism: str
    epsilon: float
    budget: float
    draws: int
    windows: int
    vehicles: float
    against: str
    shown: float
    mae: float | None
    useful: float
    half_width: float | None
    covers_events: float | None
    covers_cells: float | None
    skill: float
    oracle: float
    incident: Response | None
    curves: tuple[Curve, ...] = field(repr=False)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in ("incident", "curves")]
        incident = None if self.incident is None else self.incident.facts()
        return {name: getattr(self, name) for name in names} | {"incident": incident}


def evaluate_live(
    config: Config,
    windows: Sequence[Exact],
    draws: int,
    mechanism: str = "configured",
    on_window: Callable[[], None] = lambda: None,
) -> LiveScore:
    """Live through ``windows`` in ``draws`` feeds of one configuration. ``on_window``: called after each window."""
    return judge(config, windows, [Feed(config, seed) for seed in range(draws)], mechanism, on_window)


def judge(
    config: Config,
    windows: Sequence[Exact],
    feeds: Sequence[Living],
    mechanism: str,
    on_window: Callable[[], None] = lambda: None,
) -> LiveScore:
    """The same for other ``feeds``, which live under other mechanisms."""
    typical = typical_of([(w.slot, w.cells, w.events, w.mean) for w in windows], ZoneInfo(config.feed.timezone))
    incident = plant(windows, int(config.window.slot.total_seconds()), most=10)
    watch = None if incident is None else Watch(config, incident, windows)
    maps, struck = [], dict[int, Shown]()
    for feed in feeds:
        living, met = life(feed, windows, watch, on_window)
        maps.append(living)
        struck = struck or met
    scored = [k for k, known in enumerate(typical.known) if known]
    compared = [windows[k] for k in scored], [typical.maps[k] for k in scored], [[m[k] for k in scored] for m in maps]
    return LiveScore(
        mechanism=mechanism,
        epsilon=config.privacy.epsilon,
        budget=config.privacy.budget,
        draws=len(feeds),
        windows=len(scored),
        vehicles=float(np.median([windows[k].rows.counts.n_users for k in scored])),
        against=typical.against,
        incident=None if watch is None else watch.response(),
        curves=_curves(
            windows, typical.maps, [struck.get(w.slot, m) for w, m in zip(windows, maps[0], strict=True)], watch
        ),
        **_Judged.of(*compared).figures(),
    )


def life(
    feed: Living, windows: Sequence[Exact], watch: Watch | None, on_window: Callable[[], None]
) -> tuple[list[Shown], dict[int, Shown]]:
    """What a feed shows of all ``windows``, and, by their start, of those that the incident touches with it."""
    other, living, met = None, list[Shown](), dict[int, Shown]()
    for window in windows:
        if watch is not None and window.slot == watch.first:
            other = feed.forked()
        living.append(feed.release(window))
        if watch is not None and other is not None and window.slot in watch.struck:
            met[window.slot] = other.release(watch.struck[window.slot])
            watch.add(window.slot, living[-1], met[window.slot])
        on_window()
    return living, met


@dataclass(frozen=True)
class _Judged:
    """All hexagons of all windows and draws, (N,): events, true and typical mean, what is shown."""

    events: FloatArray
    true: FloatArray
    typical: FloatArray
    shown: Shown

    @classmethod
    def of(cls, windows: Sequence[Exact], typical: Sequence[FloatArray], maps: Sequence[Sequence[Shown]]) -> Self:
        parts = [part for living in maps for part in living]
        events, true, known = (
            np.tile(np.concatenate(column), len(maps))
            for column in ([w.events for w in windows], [w.mean for w in windows], typical)
        )
        return cls(events, true, known, Shown(*(np.concatenate([part[i] for part in parts]) for i in range(4))))

    def figures(self) -> dict[str, Any]:
        known, share = np.isfinite(self.shown.value), self.events / self.events.sum()
        value = np.where(known, self.shown.value, self.typical)
        wrong, half = np.abs(value - self.true), (self.shown.high - self.shown.low) / 2
        covers = (self.shown.low - _ROUNDING <= self.true) & (self.true <= self.shown.high + _ROUNDING)
        off, weight = share @ np.square(self.typical - self.true), float(share[known].sum())
        any_shown = weight > 0
        return {
            "shown": weight,
            "mae": float(share[known] @ wrong[known] / weight) if any_shown else None,
            "useful": float(share[known & (wrong <= USEFUL_KMH)].sum()),
            "half_width": _median(half[known], share[known]) if any_shown else None,
            "covers_events": float(share[known & covers].sum() / weight) if any_shown else None,
            "covers_cells": float(covers[known].mean()) if any_shown else None,
            "skill": float(1 - share @ np.square(wrong) / off),
            "oracle": float(1 - share @ np.square(self._oracle() - self.true) / off),
        }

    def _oracle(self) -> FloatArray:
        """The typical map and the true mean with as much noise, weighted by their errors; that of the typical map is
        known by busyness.
        """
        edges = np.quantile(self.events, np.linspace(0, 1, 13)[1:-1])
        classes = np.searchsorted(edges, self.events)
        error = np.bincount(classes, weights=np.square(self.typical - self.true)) / np.maximum(np.bincount(classes), 1)
        noise, prior = np.square(self.shown.noise), error[classes]
        read = (
            self.true + np.random.default_rng(0).normal(size=len(noise)) * np.where(np.isfinite(noise), noise, 0) ** 0.5
        )
        weight = np.where(np.isfinite(noise), prior / (prior + noise + 1e-12), 0.0)
        return np.asarray(self.typical + weight * (read - self.typical))


def _median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])


def _curves(
    windows: Sequence[Exact], typical: Sequence[FloatArray], shown: Sequence[Shown], watch: Watch | None
) -> tuple[Curve, ...]:
    """The busiest cells of the last day, those of the incident first. ``shown``: with the incident."""
    day = [k for k, window in enumerate(windows) if window.slot > windows[-1].slot - 86_400]
    cells, index = np.unique(np.concatenate([windows[k].cells for k in day]), return_inverse=True)
    events = np.bincount(index, weights=np.concatenate([windows[k].events for k in day]))
    struck = np.zeros(len(cells), dtype=bool) if watch is None else np.isin(cells, watch.incident.cells)
    true = [w if watch is None else watch.struck.get(w.slot, w) for w in windows]
    drawn = [(true[k], typical[k], shown[k]) for k in day]
    since = 0 if watch is None else watch.incident.start
    return tuple(
        _curve(int(cells[i]), drawn, since if struck[i] else None) for i in np.lexsort((-events, ~struck))[:CURVES]
    )


def _curve(cell: int, drawn: Sequence[tuple[Exact, FloatArray, Shown]], since: int | None) -> Curve:
    """Of the windows ``drawn``: as it was, typical means, what is shown. ``since``: begin of an incident (epoch s)."""
    begin, rows = drawn[0][0].slot, []
    for window, typical, seen in drawn:
        here = np.flatnonzero(window.cells == cell)
        columns = (window.mean, typical, seen.value, seen.low, seen.high)
        numbers = [float(column[here[0]]) if len(here) else np.nan for column in columns]
        rows.append([(window.slot - begin) / 3600, *numbers])
    hours = [row[0] for row in rows]
    last = rows[-1][0] + (min(np.diff(hours)) if len(rows) > 1 else 1.0)
    rows.append([last, *rows[-1][1:]])  # the end of the last window
    struck = None if since is None else ((since - begin) / 3600, (since - begin + INCIDENT_S) / 3600)
    return Curve(cell, utc_text(begin), struck, *np.array(rows).T)
