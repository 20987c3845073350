"""How good a recording is as a live map: skill, coverage, and the response to a planted incident. NOT PRIVATE: it uses true values.

Every draw is a feed of its own that lives through the recording: ledger, plan, charge, draw, memory and messages are the
service's (:class:`stream.statistics.window_release.WindowStatistics`), and the number of a cell is the one that readers show
(:func:`stream.messages.estimate.estimates_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.evaluation.accounts import Accounts
from stream.evaluation.cell_coverage import means_of
from stream.evaluation.scores import USEFUL_KMH
from stream.evaluation.typical import typical_of
from stream.messages.estimate import estimates_of
from stream.messages.message import HEXAGON_SPEED, Message
from stream.statistics.plan import Due, Plan
from stream.statistics.window_release import WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms
from stream.windows import utc_text

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
Windows = dict[int, npt.NDArray[np.void]]

_ROUNDING = 1e-9
CURVES = 6
"""Cells that are drawn over the day."""
INCIDENT_S = 3600
"""Length of a planted incident."""
APART = 3
"""Cells of an incident are at least so many hexagons apart, so that none answers for another."""


class Shown(NamedTuple):
    """What readers see of each hexagon with events, shape (H,), in km/h: value and 95 % interval, nan where there is none;
    ``noise``: standard deviation of the released mean's noise.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    noise: FloatArray


@dataclass(frozen=True)
class Exact:
    """One window as it truly was: its rows, and of each hexagon with events the number of them and their clipped mean, (H,)."""

    slot: int
    rows: WindowRows
    cells: IdArray = field(init=False)
    events: FloatArray = field(init=False)
    mean: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        counts, put = self.rows.counts, object.__setattr__
        put(self, "cells", counts.cells)
        put(self, "events", counts.by_cell(counts.samples).astype(np.float64))
        put(self, "mean", means_of(self.rows.contributions))


class Feed:
    """A feed that lives from window to window. Its noise follows from ``seed``, so it may never leave the boundary."""

    def __init__(self, config: Config, seed: int) -> None:
        self._terms, self._seed = Terms.of(config), seed
        self._statistics = WindowStatistics(self._terms, public_cells(config))
        self._accounts, self._memory, self._number = Accounts(), b"", 0

    def forked(self) -> Self:
        """The feed as it is now, to be continued with other rows."""
        return deepcopy(self)

    def release(self, window: Exact) -> Shown:
        """Plan, charge, draw and compose the next window, and read it as everybody does."""
        due = Due(self._terms, self._terms.window_at(window.slot), "evaluation")
        plan = self._statistics.plan(
            window.rows, due, self._accounts.allowance(due, window.rows.counts.users), self._memory
        )
        self._accounts.pay(due, plan)
        noise = Noise(np.random.default_rng([self._seed, window.slot]).bytes)
        drawn = self._statistics.draw(plan, window.rows, noise)
        self._number += 1
        messages, memory = self._statistics.compose(plan, drawn, self._memory, self._number)
        self._memory = memory or self._memory
        return _read(plan, window.cells, messages)


def _read(plan: Plan, hexagons: IdArray, messages: Sequence[Message]) -> Shown:
    """The leading mean that the ``messages`` show of each of ``hexagons``, or of the cell into which the plan merged it."""
    answering = hexagons if plan.merged is None else plan.merged
    seen = {}
    for message in messages:
        if message.topic == HEXAGON_SPEED:
            body = msgspec.json.decode(message.value)
            estimates = estimates_of(body)
            if estimates is not None and "mean" in estimates:
                mean, law = estimates["mean"], 1.0 if plan.gaussian else np.sqrt(2)
                seen[int(body["cell"], 16)] = mean["value"], *mean["interval"], body["mean"]["scale"] * law
    nothing = (np.nan, np.nan, np.nan, np.inf)
    rows = [seen.get(cell, nothing) for cell in answering.tolist()]
    return Shown(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


@dataclass(frozen=True)
class Incident:
    """Slower traffic for an hour from ``start`` (epoch seconds): speeds of ``cells`` (C,) are multiplied by ``factors`` (C,)."""

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
    """An incident in the busiest hour of the last day, in up to ``most`` cells, busiest first, that have events in each window
    of it; None if there is no such cell.

    ``drop``: mean speeds fall by so many km/h, in cells that are faster by at least 2 km/h; None: to 0.4 of what they are,
    in cells above 10 km/h. The cells are :data:`APART`.
    """
    by_slot = {window.slot: window for window in windows}
    touched, day = -(-INCIDENT_S // slot_s), windows[-1].slot - 86_400
    hours = [
        [by_slot[start + k * slot_s] for k in range(touched)]
        for start in by_slot
        if start > day and all(start + k * slot_s in by_slot for k in range(touched))
    ]
    if not hours:
        return None
    busiest = max(hours, key=lambda hour: sum(window.events.sum() for window in hour))
    cells, number = np.unique(np.concatenate([window.cells for window in busiest]), return_counts=True)
    events, total = np.zeros((2, len(cells)))
    for window in busiest:
        at = np.searchsorted(cells, window.cells)
        events[at] += window.events
        total[at] += window.events * window.mean
    mean, chosen = total / events, dict[int, float]()
    for at in np.lexsort((cells, -events)).tolist():
        fast = mean[at] > (10.0 if drop is None else drop + 2)
        if number[at] == touched and fast and len(chosen) < most and _apart(int(cells[at]), chosen):
            chosen[int(cells[at])] = 0.4 if drop is None else 1 - drop / mean[at]
    if not chosen:
        return None
    ascending = sorted(chosen)
    factors = np.array([chosen[cell] for cell in ascending])
    return Incident(busiest[0].slot, np.array(ascending, dtype=np.uint64), factors)


def _apart(cell: int, others: dict[int, float]) -> bool:
    """Whether ``cell`` is far from each of ``others``; cells between which H3 knows no distance are far apart."""
    near = set(h3.grid_disk(cell, APART - 1).tolist())
    return not any(other in near for other in others)


@dataclass(frozen=True)
class Response:
    """What the map shows of a planted incident, window by window. ``minutes``: from the incident's begin until the window is on the
    screen; ``seen``: share of the drop that it shows; ``flagged``: share of the ``cells`` whose 95 % interval lies below the mean
    that they had without the incident. ``drop``: mean over cells, in km/h.
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


@dataclass(frozen=True)
class Curve:
    """One busy cell over the recording's last day, of the first draw: hours since the window that ``begins`` it, and in km/h the
    true mean, the typical one, the estimate and its interval, shape (W,) each. ``struck``: hours of the incident, which is in
    them; None for a cell without it.
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
    """How good the live map is, over the windows that are compared and all draws; shares and means are weighted by events.

    ``against``: of what x̄, the typical map, is the exact mean. ``skill``: 1 − Σ n(x̂ − x)²/Σ n(x̄ − x)²: 0 says no more than
    the typical map, 1 is exact; where nothing is shown, readers have the typical map. ``oracle``: the skill of an estimate that
    knows the typical map and how wrong it is, beside the same noise. ``shown``: share of events in cells with an estimate;
    ``mae``, ``half_width`` (the median) and the coverages are of these; ``useful``: share of all events within ±5 km/h.
    ``vehicles``: median number of users of a window.
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


def exact_windows(config: Config, windows: Windows) -> list[Exact]:
    """The windows (slot -> rows) in order of time, as the terms read them."""
    reading = Terms.of(config).reading
    each = [Exact(slot, WindowRows.of(windows[slot], reading)) for slot in sorted(windows)]
    return [window for window in each if len(window.cells)]


def evaluate_live(
    config: Config,
    windows: Sequence[Exact],
    draws: int,
    mechanism: str = "configured",
    on_window: Callable[[], None] = lambda: None,
) -> LiveScore:
    """Live through ``windows`` in ``draws`` feeds of one configuration. ``on_window``: called after each window of each of them."""
    typical = typical_of([(w.slot, w.cells, w.events, w.mean) for w in windows], ZoneInfo(config.feed.timezone))
    incident = plant(windows, int(config.window.slot.total_seconds()), most=10)
    watch = None if incident is None else Watch(config, incident, windows)
    scored = [k for k, known in enumerate(typical.known) if known]
    maps: list[list[Shown]] = []
    struck: dict[int, Shown] = {}
    for seed in range(draws):
        feed, other, living = Feed(config, seed), None, list[Shown]()
        for window in windows:
            if watch is not None and window.slot == watch.first:
                other = feed.forked()
            living.append(feed.release(window))
            if watch is not None and other is not None and window.slot in watch.struck:
                met = other.release(watch.struck[window.slot])
                watch.add(window.slot, living[-1], met)
                if seed == 0:
                    struck[window.slot] = met
            on_window()
        maps.append(living)
    compared = [windows[k] for k in scored], [typical.maps[k] for k in scored], [[m[k] for k in scored] for m in maps]
    return LiveScore(
        mechanism=mechanism,
        epsilon=config.privacy.epsilon,
        budget=config.privacy.budget,
        draws=draws,
        windows=len(scored),
        vehicles=float(np.median([windows[k].rows.counts.n_users for k in scored])),
        against=typical.against,
        incident=None if watch is None else watch.response(),
        curves=_curves(windows, typical.maps, maps[0], struck, watch),
        **_Judged.of(*compared).figures(),
    )


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
        some = weight > 0
        return {
            "shown": weight,
            "mae": float(share[known] @ wrong[known] / weight) if some else None,
            "useful": float(share[known & (wrong <= USEFUL_KMH)].sum()),
            "half_width": _median(half[known], share[known]) if some else None,
            "covers_events": float(share[known & covers].sum() / weight) if some else None,
            "covers_cells": float(covers[known].mean()) if some else None,
            "skill": float(1 - share @ np.square(wrong) / off),
            "oracle": float(1 - share @ np.square(self._oracle() - self.true) / off),
        }

    def _oracle(self) -> FloatArray:
        """The typical map and the true mean with as much noise, weighted by their errors; that of the typical map is known by
        busyness.
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
    windows: Sequence[Exact],
    typical: Sequence[FloatArray],
    shown: Sequence[Shown],
    struck: dict[int, Shown],
    watch: Watch | None,
) -> tuple[Curve, ...]:
    """The busiest cells of the last day, those of the incident first."""
    day = [k for k, window in enumerate(windows) if window.slot > windows[-1].slot - 86_400]
    cells, index = np.unique(np.concatenate([windows[k].cells for k in day]), return_inverse=True)
    events = np.bincount(index, weights=np.concatenate([windows[k].events for k in day]))
    order = np.lexsort((-events, np.ones(len(cells)) if watch is None else ~np.isin(cells, watch.incident.cells)))
    curves = []
    begin = windows[day[0]].slot
    for cell in cells[order][:CURVES].tolist():
        rows = []
        for k in day:
            window, seen = windows[k], struck.get(windows[k].slot, shown[k])
            true = window if watch is None else watch.struck.get(window.slot, window)
            here = np.flatnonzero(window.cells == cell)
            columns = (true.mean, typical[k], seen.value, seen.low, seen.high)
            numbers = [float(column[here[0]]) if len(here) else np.nan for column in columns]
            rows.append([(window.slot - begin) / 3600, *numbers])
        hours = None
        if watch is not None and cell in watch.incident.cells:
            since = (watch.incident.start - begin) / 3600
            hours = since, since + INCIDENT_S / 3600
        curves.append(Curve(cell, utc_text(begin), hours, *np.array(rows).T))
    return tuple(curves)
