"""How good a live map of a fleet is, by accounting, grants and clipping (mechanisms S15 to S19). NOT PRIVATE: it knows
the truth.

``python -m research live_map``: CapMetro's days in ``$HEXVEIL_DATA``, as they are or as so many clones whose
times are shifted by up to six minutes. 15 minutes, H3 resolution 7, (12, 10⁻⁶) a day, U = 65 km/h, relation "values".
Noise is drawn by numpy with the scales that :mod:`dpcore` charges for; everything else is the product's own
mathematics. Of each mechanism: half width of the 95 % interval (median by events), share of events within 5 km/h, MAE,
coverage by events and by cells, skill against the exact mean of the cell in the other windows, and the share of a
planted incident (speeds × 0.4 for an hour from 08:00 in up to ten cells that are far apart) that the map shows after
15, 30 and 60 minutes. ``oracle``: the noise of the last mechanism beside that exact mean, with its true error by
busyness: what a forecast that knows the typical map would reach.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from bench.recordings import recordings
from dpcore.accounting import rho_of
from dpcore.allocation import Sensitivities, allocate
from dpcore.gaussian_allocation import allocate_gaussian
from dpcore.grants import rolling_grants
from dpcore.residual import Forecast, Response, choose_ranges, widened
from dpcore.smoothing import Releases, SmoothingState, foretell, smooth

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

UPPER, QUANTUM, TYPICAL = 65.0, 0.01, 20.0
SLOT_S, WINDOWS = 900, 96
BUDGET, DELTA = 12.0, 1e-6
SPREAD, OPEN_REACH = 0.2, 2.5
"""As in :mod:`stream.statistics.residual_clipping`."""
DAYS = ("2016-11-26", "2016-11-26:2.5", "2016-11-26:10", "2017-03-21", "2017-03-21:2.5", "2017-03-21:10")


class Events(NamedTuple):
    """Columns of all events: vehicle, local time in seconds, speed in km/h, cell."""

    vehicle: IntArray
    time: FloatArray
    speed: FloatArray
    cell: npt.NDArray[np.uint64]


def read(day: str) -> Events:
    """One of CapMetro's days; speeds clipped to U, one event per vehicle and time."""
    unit = 1.609344 if day.startswith("2015") else 3.6
    rows: dict[tuple[str, float], tuple[float, int]] = {}
    with gzip.open(recordings() / f"capmetro/{day}.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            try:
                at = (
                    datetime.fromisoformat(row["timestamp"]).replace(tzinfo=None) - datetime(2015, 1, 5)
                ).total_seconds()
                place, speed = (float(row["latitude"]), float(row["longitude"])), float(row["speed"]) * unit
            except ValueError:
                continue
            if 29.8 < place[0] < 30.9 and -98.3 < place[1] < -97.2:
                rows[row["vehicle_id"], at] = min(max(speed, 0.0), UPPER), h3.latlng_to_cell(*place, 7)
    names = np.unique([name for name, _ in rows], return_inverse=True)[1]
    speeds, cells = zip(*rows.values(), strict=True)
    return Events(names, np.array([at for _, at in rows]), np.array(speeds), np.array(cells, dtype=np.uint64))


def cloned(events: Events, times: float, seed: int = 5) -> Events:
    """``times`` copies of every vehicle, of the last a share, each shifted by up to six minutes within the day."""
    rng, vehicles, parts = np.random.default_rng(seed), int(events.vehicle.max()) + 1, []
    for copy in range(int(np.ceil(times))):
        shift = rng.uniform(-360, 360, vehicles) if copy else np.zeros(vehicles)
        kept = rng.random(vehicles) < times - copy
        time = events.time + shift[events.vehicle]
        whole = kept[events.vehicle] & (time // 86400 == events.time // 86400)
        parts.append(Events(events.vehicle + copy * vehicles, time, events.speed, events.cell))
        parts[-1] = Events(*(column[whole] for column in parts[-1]))
    return Events(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Window:
    """The pairs of a window: (cell, user), their samples and mean; and of its cells: events, vehicles, true mean."""

    number: int
    users: IntArray
    cells: npt.NDArray[np.uint64]
    row: IntArray
    user: IntArray
    samples: IntArray
    means: FloatArray
    places: FloatArray
    events: FloatArray = field(init=False)
    vehicles: IntArray = field(init=False)
    truth: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        set_, n = object.__setattr__, np.bincount(self.row, weights=self.samples)
        set_(self, "events", n)
        set_(self, "vehicles", np.bincount(self.row))
        set_(self, "truth", np.bincount(self.row, weights=self.samples * self.means) / n)


def windows_of(events: Events) -> list[Window]:
    """All windows, in order."""
    number, windows = (events.time // SLOT_S).astype(np.int64), []
    for each in np.unique(number):
        now = Events(*(column[number == each] for column in events))
        users, user = np.unique(now.vehicle, return_inverse=True)
        cells, cell = np.unique(now.cell, return_inverse=True)
        pairs, pair = np.unique(cell * len(users) + user, return_inverse=True)
        samples = np.bincount(pair)
        means = np.bincount(pair, weights=now.speed) / samples
        places = np.array([h3.cell_to_latlng(c) for c in cells.tolist()])
        windows.append(Window(int(each), users, cells, *np.divmod(pairs, len(users)), samples, means, places))
    return windows


@dataclass(frozen=True)
class Mechanism:
    """A way to release the mean of every cell."""

    name: str
    gaussian: bool
    rolling: bool = False
    residual: bool = False


MECHANISMS = (
    Mechanism("Laplace (S14)", gaussian=False),
    Mechanism("Gaussian (S15)", gaussian=True),
    Mechanism("and rolling (S17)", gaussian=True, rolling=True),
    Mechanism("and residual (S16)", gaussian=True, rolling=True, residual=True),
)


@dataclass
class Map:
    """The map of a fleet while it lives: ledger, memory of releases, widened ranges."""

    mechanism: Mechanism
    noise: np.random.Generator
    spent: dict[int, int] = field(default_factory=dict)
    state: SmoothingState | None = None
    edge: dict[int, float] = field(default_factory=dict)
    day: int = -1
    left_open: FloatArray | float = 0.0

    def allowances(self, window: Window) -> IntArray:
        """nρ of each user of the window."""
        if window.number // WINDOWS != self.day:
            self.day, self.spent = window.number // WINDOWS, {}
        if not self.mechanism.rolling:
            return np.full(len(window.users), rho_of(BUDGET, DELTA) // WINDOWS)
        spent = np.array([self.spent.get(user, 0) for user in window.users.tolist()])
        return rolling_grants(rho_of(BUDGET, DELTA), spent, WINDOWS - window.number % WINDOWS)

    def release(self, window: Window) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """(Estimate, low, high, deviation of the released mean) of each cell of the window, in km/h."""
        hours = window.number * SLOT_S / 3600
        time: dict[str, Any] = {"hours": hours, "hour_of_day": int(hours % 24), "upper": UPPER, "typical": TYPICAL}
        stay = np.log(window.events / window.vehicles)[:, None]
        cells, counts = len(window.cells), (window.events, window.vehicles.astype(float))
        unread = Releases(window.cells, window.places, np.zeros(cells), np.full(cells, np.inf), *counts, stay)
        mean, deviation = self._released(window, foretell(self.state, unread, **time))
        read = Releases(
            window.cells,
            window.places,
            mean,
            deviation / np.sqrt(2),
            *counts,
            stay,
            normal=self.mechanism.gaussian,
        )
        self.state, map_ = smooth(self.state, read, **time)
        left = OPEN_REACH * self.left_open
        low, high = np.hypot(map_.value - map_.low, left), np.hypot(map_.high - map_.value, left)
        return map_.value, np.maximum(map_.value - low, 0.0), np.minimum(map_.value + high, UPPER), deviation

    def _released(self, window: Window, foretold: Any) -> tuple[FloatArray, FloatArray]:
        """(Mean, deviation of its noise and of what clipping leaves open) as it is released."""
        if not self.mechanism.gaussian:
            program = self._program(window, np.full(len(window.cells), UPPER), np.ones(len(window.cells)))
            scale = (
                allocate(program, np.full(len(window.users), round(BUDGET * 1e6 / WINDOWS))).scales
                * QUANTUM
                / window.events
            )
            return window.truth + self.noise.laplace(size=len(scale)) * scale, scale * np.sqrt(2)
        low, high, response = self._ranges(window, foretold)
        self.left_open = response.open
        program = self._program(window, high - low, response.gain)
        allocation = allocate_gaussian(program, self.allowances(window))
        for user, charge in zip(window.users.tolist(), allocation.charges.tolist(), strict=True):
            self.spent[user] = self.spent.get(user, 0) + charge
        sigma = allocation.scales * QUANTUM / window.events
        users = np.clip(window.means, low[window.row], high[window.row])
        clipped = np.bincount(window.row, weights=window.samples * users) / window.events
        clipped += self.noise.normal(size=len(sigma)) * sigma
        wide = np.array([self.edge.get(cell, 1.0) for cell in window.cells.tolist()])
        wide = widened(wide, clipped, response, (high - low) / 2, sigma)
        self.edge.update(zip(window.cells.tolist(), wide.tolist(), strict=True))
        return response.undone(clipped), np.hypot(sigma / response.gain, response.open)

    def _ranges(self, window: Window, foretold: Any) -> tuple[FloatArray, FloatArray, Response]:
        ends = np.zeros(len(window.cells), np.int64), np.full(len(window.cells), round(UPPER / QUANTUM))
        if self.mechanism.residual:
            whole = self._program(window, ends[1] * QUANTUM, np.ones(len(window.cells)))
            noise = allocate_gaussian(whole, self.allowances(window)).scales / window.events
            wide = np.array([self.edge.get(cell, 1.0) for cell in window.cells.tolist()])
            forecast = Forecast(foretold.value / QUANTUM, foretold.deviation / QUANTUM, wide)
            ends = choose_ranges(forecast, noise, spread=SPREAD * UPPER / QUANTUM, top=round(UPPER / QUANTUM))
        low, high = (np.asarray(end * QUANTUM, dtype=np.float64) for end in ends)
        return low, high, Response.of(foretold.value, low, high, SPREAD * UPPER, UPPER)

    def _program(self, window: Window, width: FloatArray, gain: FloatArray) -> Sensitivities:
        delta = window.samples * np.round(width / QUANTUM).astype(np.int64)[window.row]
        return Sensitivities(window.row, window.user, delta, 1 / gain, len(window.users))


def maps(
    windows: list[Window], mechanism: Mechanism, seed: int
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """The map of every window."""
    living = Map(mechanism, np.random.default_rng(seed))
    return [living.release(window) for window in windows]


def others(windows: list[Window]) -> list[FloatArray]:
    """Of each window, the exact mean of each of its cells in all other windows; that of all cells where there is
    none."""
    cells = np.unique(np.concatenate([w.cells for w in windows]))
    total, events = np.zeros((2, len(cells)))
    for w in windows:
        at = np.searchsorted(cells, w.cells)
        total[at] += w.events * w.truth
        events[at] += w.events
    means = []
    for w in windows:
        at = np.searchsorted(cells, w.cells)
        rest, n = total[at] - w.events * w.truth, events[at] - w.events
        means.append(np.where(n > 0, rest / np.maximum(n, 1), total.sum() / events.sum()))
    return means


def scores(windows: list[Window], drawn: list[Any], typical: list[FloatArray]) -> dict[str, float]:
    """What the module's docstring lists, without the incident."""
    truth, events = (np.concatenate([getattr(w, name) for w in windows]) for name in ("truth", "events"))
    value, low, high = (np.concatenate([each[i] for each in drawn]) for i in range(3))
    share, half = events / events.sum(), (high - low) / 2
    order = np.argsort(half)
    covers = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    off = np.square(np.concatenate(typical) - truth) @ share
    return {
        "half": float(half[order][np.searchsorted(np.cumsum(share[order]), 0.5)]),
        "useful": float(share[np.abs(value - truth) <= 5].sum()),
        "mae": float(share @ np.abs(value - truth)),
        "by events": float(share[covers].sum()),
        "by cells": float(covers.mean()),
        "skill": float(1 - np.square(value - truth) @ share / off),
    }


def oracle(windows: list[Window], deviations: list[FloatArray], typical: list[FloatArray], seed: int) -> list[Any]:
    """Maps of the same noise beside the exact mean of the other windows, whose error by busyness is known, too."""
    rng, events = np.random.default_rng(seed), np.concatenate([w.events for w in windows])
    error = np.square(np.concatenate(typical) - np.concatenate([w.truth for w in windows]))
    edges = np.quantile(events, np.linspace(0, 1, 13)[1:-1])
    classes = np.searchsorted(edges, events)
    variance = np.bincount(classes, weights=error) / np.maximum(np.bincount(classes), 1)
    drawn = []
    for w, deviation, mean in zip(windows, deviations, typical, strict=True):
        prior, noise = variance[np.searchsorted(edges, w.events)], np.square(deviation)
        seen = w.truth + rng.normal(size=len(deviation)) * deviation
        value, reach = (mean * noise + seen * prior) / (prior + noise), 1.96 * np.sqrt(prior * noise / (prior + noise))
        drawn.append((value, value - reach, value + reach))
    return drawn


def incident(events: Events) -> tuple[Events, npt.NDArray[np.uint64], int]:
    """The events with a planted incident, its cells, and the number of its first window."""
    start = np.floor(events.time.max() / 86400) * 86400 + 8 * 3600
    during = (events.time >= start) & (events.time < start + 3600)
    part = ((events.time - start) // SLOT_S).astype(np.int64)
    cells, count = np.unique(events.cell[during], return_counts=True)
    chosen: list[int] = []
    for cell in cells[np.argsort(-count, kind="stable")][:60].tolist():
        here = during & (events.cell == cell)
        always = len(np.unique(part[here])) == 3600 // SLOT_S and events.speed[here].mean() > 10
        if always and all(h3.grid_distance(cell, other) >= 3 for other in chosen) and len(chosen) < 10:
            chosen.append(cell)
    hit = during & np.isin(events.cell, np.array(chosen, dtype=np.uint64))
    slowed = events._replace(speed=np.where(hit, events.speed * 0.4, events.speed))
    return slowed, np.array(chosen, dtype=np.uint64), int(start // SLOT_S)


def seen(events: Events, mechanism: Mechanism, seeds: int = 2) -> list[float]:
    """Share of the drop that the map shows after 15, 30 and 60 minutes: the same noise with and without the
    incident."""
    slowed, cells, first = incident(events)
    with_it, without = windows_of(slowed), windows_of(events)
    at = [next(i for i, w in enumerate(without) if w.number == first + later) for later in (0, 1, 3)]
    shown, true = np.zeros((2, 3))
    for seed in range(seeds):
        pair = maps(without[: at[-1] + 1], mechanism, seed), maps(with_it[: at[-1] + 1], mechanism, seed)
        for k, i in enumerate(at):
            hit = np.isin(without[i].cells, cells)
            shown[k] += (pair[0][i][0] - pair[1][i][0])[hit].sum()
            true[k] += (without[i].truth - with_it[i].truth)[hit].sum()
    return [float(share) for share in shown / true]


def run(quick: bool) -> dict[str, Any]:
    """Figures of each feed of :data:`DAYS` (quick: of one) for each mechanism, and for the oracle."""
    figures: dict[str, Any] = {}
    for name in DAYS[3:4] if quick else DAYS:
        day, _, times = name.partition(":")
        events = cloned(read(day), float(times)) if times else read(day)
        windows = windows_of(events)
        typical = others(windows)
        feed: dict[str, Any] = {"vehicles_on_the_road": float(np.median([len(w.users) for w in windows]))}
        for mechanism in MECHANISMS:
            drawn = maps(windows, mechanism, 0)
            feed[mechanism.name] = scores(windows, drawn, typical) | {"seen_15_30_60_min": seen(events, mechanism)}
        best = oracle(windows, [each[3] for each in drawn], typical, 0)
        figures[name] = feed | {"oracle": scores(windows, best, typical)}
    return figures
