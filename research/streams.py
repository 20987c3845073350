"""Published mechanisms for streams beside ours, at equal user-level loss on the same windows. NOT PRIVATE: it knows the
truth.

``python -m research streams``. Relation "values", 15 minutes, H3 resolution 7, (12, 10⁻⁶) for each vehicle and day.

**How they are charged.** FAST and PeGaSus protect one event, RescueDP and ToPS any w windows. Here one vehicle's whole
day is protected, so all of them get what ours has: discrete Gaussian noise counted in ρ, each vehicle's own exact loss
over all cells of a window (:mod:`dpcore.gaussian_allocation`), and what a vehicle did not spend rolls over to later
windows (:mod:`dpcore.budget`). A mechanism that samples every n-th window leaves its vehicles n times as much for it.
Noise is drawn by numpy. All of them, as ours, expect 20 ± 15 km/h where nothing was read. Parameters of each are the
best of a small search by MAE on the feed itself, which favours them.

- **FAST** (Fan, Xiong, CIKM 2012; TKDE 2014): a Kalman filter of a random walk for each cell, and a PID controller that
samples it more seldom while predictions are right. Searched: process variance, number of samples a day.
- **PeGaSus** (Chen, Machanavajjhala, Hay, Miklau, CCS 2017): perturb; group the latest windows of a cell while they
deviate little, by a second noisy series that takes a fifth of the loss; smooth over the group. Searched: deviation,
average or median.
- **RescueDP** (Wang, Zhang, Lu, Wang, Qin, Ren, INFOCOM 2016): cells with little data and alike estimates are grouped
and perturbed as one; FAST's filter and controller for each cell. Searched: size of a group, process variance.
- **ToPS** (Wang, Chen, Zhang, Su, Li, Li, Jha, CCS 2021): values are clipped to a high quantile, here an exact one that
costs nothing; perturb; smooth by a moving average. Its hierarchy answers sums over time, which a live map does not ask.
Searched: quantile, length.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from dpcore.accounting import rho_of
from dpcore.allocation import Sensitivities
from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.budget import rolling_grants
from dpcore.gaussian_allocation import allocate_gaussian
from dpcore.relation import NeighbouringRelation
from research.live_feeds import VALUES, config_of, windows_of
from stream.evaluation.live import LiveScore, evaluate_live, judge
from stream.evaluation.living import Exact, Shown

FEEDS = ("2016-11-26", "2017-03-21", "2017-03-21:10", "city:300")
UPPER, QUANTUM, TYPICAL = 65.0, 0.01, 20.0
SLOT_S, WINDOWS = 900, 96
BUDGET = rho_of(12.0, 1e-6)


@dataclass
class Peer:
    """The ledger and the noise of all peers. ``series``: state of each cell. ``rate``: share of its windows that a cell
    is sampled in."""

    seed: int
    utc_offset_s: int
    rate: float = 1.0
    spent: Counter[int] = field(default_factory=Counter)
    day: int = -1
    series: dict[int, Any] = field(default_factory=dict)

    def forked(self) -> Self:
        """The same as it is now."""
        return deepcopy(self)

    def release(self, window: Exact) -> Shown:
        """What the mechanism shows of the next window."""
        raise NotImplementedError

    def perturbed(
        self, window: Exact, group: IntArray, upper: float = UPPER, share: float = 1.0, salt: int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """(Noisy mean, its deviation) of each group of cells, shape (G,), in km/h; its users pay.

        ``group``: (H,) of each cell, -1 for one that is not read. ``share``: of the users' grants.
        """
        number = (window.slot + self.utc_offset_s) // SLOT_S
        if number // WINDOWS != self.day:
            self.day, self.spent = number // WINDOWS, Counter()
        events = np.bincount(group[group >= 0], weights=window.events[group >= 0]).astype(np.float64)
        program, users = _program(window, group, round(upper / QUANTUM), events)
        left = max(1, round((WINDOWS - number % WINDOWS) * self.rate))
        grants = rolling_grants(BUDGET, np.array([self.spent[user] for user in users], dtype=np.int64), left)
        allocation = allocate_gaussian(program, np.maximum((grants * share).astype(np.int64), 1000))
        self.spent.update(dict(zip(users, allocation.charges.tolist(), strict=True)))
        sigma = allocation.scales * QUANTUM / events
        normal = np.random.default_rng([self.seed, window.slot, salt]).normal(size=len(events))
        return _means(window, group, upper, events) + sigma * normal, sigma


def _program(window: Exact, group: IntArray, upper: int, events: FloatArray) -> tuple[Sensitivities, list[int]]:
    """What each user may move of the sum of each group, in quanta, and who they are; ``events``: of each group."""
    counts = window.rows.counts
    of_pair = group[counts.pair_cell]
    read = np.flatnonzero(of_pair >= 0)
    pairs, index = np.unique(of_pair[read] * counts.n_users + counts.pair_user[read], return_inverse=True)
    samples = np.bincount(index, weights=counts.samples[read]).astype(np.int64)
    users, user = np.unique(pairs % counts.n_users, return_inverse=True)
    program = Sensitivities(pairs // counts.n_users, user, samples * upper, 1 / events, len(users))
    return program, counts.users[users].tolist()


def _means(window: Exact, group: IntArray, upper: float, events: FloatArray) -> FloatArray:
    """The mean of each group's speeds, clipped to ``upper``, in km/h."""
    counts = window.rows.counts
    of_sample = group[np.repeat(counts.pair_cell, counts.samples)]
    speeds = np.clip(window.rows.contributions.quanta * QUANTUM, 0.0, upper)[of_sample >= 0]
    return np.asarray(np.bincount(of_sample[of_sample >= 0], weights=speeds) / events)


def _shown(value: FloatArray, deviation: FloatArray) -> Shown:
    reach = 1.96 * deviation
    return Shown(
        np.clip(value, 0, UPPER), np.clip(value - reach, 0, UPPER), np.clip(value + reach, 0, UPPER), deviation
    )


@dataclass
class Filtered:
    """A cell under FAST: estimate and variance, at which window; interval to the next sample, and the controller's
    errors."""

    value: float = TYPICAL
    variance: float = 225.0
    at: int = 0
    interval: float = 1.0
    due: int = 0
    errors: tuple[float, ...] = ()

    def predicted(self, now: int, process: float) -> float:
        """The variance of the prediction."""
        return self.variance + process * (now - self.at if self.at else 0)

    def corrected(self, read: float, noise: float, now: int, process: float, *, controlled: bool) -> None:
        """Kalman's correction by a reading with variance ``noise``, then the PID controller with the paper's gains."""
        prior = self.predicted(now, process)
        gain = prior / (prior + noise)
        new = self.value + gain * (read - self.value)
        feedback = abs(new - self.value) / max(abs(new), 1.0)
        self.value, self.variance, self.at = new, (1 - gain) * prior, now
        if controlled:
            self.errors = (*self.errors, feedback)[-5:]
            pid = 0.9 * feedback + 0.1 * float(np.mean(self.errors))
            self.interval = max(1.0, self.interval + 2 * (1 - np.exp((pid - 0.1) / 0.1)))
        self.due = now + round(self.interval)


@dataclass
class Fast(Peer):
    """FAST. ``process``: variance of a cell's change from window to window, (km/h)²."""

    process: float = 4.0
    least_events: float = 0.0
    """RescueDP: cells with fewer events are grouped until they have so many."""

    def release(self, window: Exact) -> Shown:
        """Sample the cells that are due, correct their filters, and show all."""
        now = window.slot // SLOT_S
        series = [self.series.setdefault(cell, Filtered()) for cell in window.cells.tolist()]
        due = np.array([each.due <= now for each in series])
        if due.any():
            group = self._groups(window, due, np.array([each.value for each in series]))
            read, noise = self.perturbed(window, group)
            for i in np.flatnonzero(due).tolist():
                at, controlled = group[i], self.rate < 1
                series[i].corrected(read[at], noise[at] ** 2, now, self.process, controlled=controlled)
        value = np.array([each.value for each in series])
        return _shown(value, np.sqrt([each.predicted(now, self.process) for each in series]))

    def _groups(self, window: Exact, due: BoolArray, value: FloatArray) -> IntArray:
        group, size, last = np.full(len(due), -1), 0.0, -1
        small = window.events < self.least_events
        for i in np.lexsort((value, small)).tolist():
            if not due[i]:
                continue
            if not small[i] or size >= self.least_events or last < 0:
                last, size = last + 1, 0.0
            group[i], size = last, (size + window.events[i] if small[i] else np.inf)
        return group


@dataclass
class Pegasus(Peer):
    """PeGaSus. ``deviation``: of the latest group of a cell, in km/h."""

    deviation: float = 10.0
    median: bool = False

    def release(self, window: Exact) -> Shown:
        """Perturb, group by the second series, smooth over the group."""
        every = np.arange(len(window.cells))
        read, noise = self.perturbed(window, every, share=0.8)
        second, _ = self.perturbed(window, every, share=0.2, salt=1)
        shown = np.zeros((2, len(every)))
        for i, cell in enumerate(window.cells.tolist()):
            group = self.series.setdefault(cell, [])
            if group and np.abs(second[i] - np.mean([each[2] for each in group])) > self.deviation:
                group.clear()
            group.append((read[i], noise[i], second[i]))
            values, weights = np.array([g[0] for g in group]), np.array([g[1] ** -2 for g in group])
            shown[:, i] = np.median(values) if self.median else weights @ values / weights.sum(), weights.sum() ** -0.5
        return _shown(*_with_expectation(*shown))


def _with_expectation(value: FloatArray, deviation: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A smoothed series beside the expected level, weighted by their variances."""
    weight = 225.0 / (225.0 + np.square(deviation))
    return TYPICAL + weight * (value - TYPICAL), 15.0 * np.sqrt(1 - weight)


@dataclass
class Tops(Peer):
    """ToPS. ``upper``: clipped to, in km/h; ``length``: windows of the moving average."""

    upper: float = UPPER
    length: int = 4

    def release(self, window: Exact) -> Shown:
        """Clip, perturb, smooth."""
        read, noise = self.perturbed(window, np.arange(len(window.cells)), upper=self.upper)
        shown = np.zeros((2, len(read)))
        for i, cell in enumerate(window.cells.tolist()):
            past = self.series.setdefault(cell, [])
            past.append((read[i], noise[i]))
            values, deviations = np.array(past[-self.length :]).T
            shown[:, i] = values.mean(), np.sqrt(np.square(deviations).sum()) / len(values)
        return _shown(*_with_expectation(*shown))


def candidates(windows: list[Exact]) -> Iterator[tuple[str, str, type[Peer], dict[str, Any]]]:
    """(Mechanism, parameters in words, class, arguments) of the search."""
    for process, samples in itertools.product((0.03, 0.1, 0.3, 1.0, 4.0), (24, 48, 96)):
        yield "FAST", f"variance {process:g}, {samples} samples", Fast, {"process": process, "rate": samples / 96}
    for deviation, median in itertools.product((5.0, 20.0, 80.0, 320.0), (False, True)):
        words = f"deviation {deviation:g}, {'median' if median else 'average'}"
        yield "PeGaSus", words, Pegasus, {"deviation": deviation, "median": median}
    for process, events in itertools.product((0.03, 0.1, 0.3, 1.0), (20.0, 60.0, 200.0)):
        words = f"variance {process:g}, groups of {events:g}"
        yield "RescueDP", words, Fast, {"process": process, "least_events": events}
    speeds = np.concatenate([window.rows.contributions.quanta for window in windows]) * QUANTUM
    for share, length in itertools.product((0.85, 0.95, 1.0), (4, 12, 48)):
        upper = float(np.quantile(speeds, share))
        yield "ToPS", f"quantile {share:g}, {length} windows", Tops, {"upper": max(upper, 5.0), "length": length}


def run(quick: bool) -> dict[str, Any]:
    """MAE, skill and response of ours and of each peer at its best parameters, by feed."""
    return {feed: compared(feed, 1 if quick else 2) for feed in (FEEDS[1:2] if quick else FEEDS)}


def compared(feed: str, draws: int) -> dict[str, Any]:
    """The figures of one feed; the search has one draw."""
    config = config_of(feed, NeighbouringRelation.VALUES, VALUES["and residual"])
    windows = windows_of(feed, config)
    local = -6 * 3600 if feed.startswith(("2016", "city")) else -5 * 3600
    figures = {"ours": _figures(evaluate_live(config, windows, draws)) | {"parameters": "as shipped"}}
    best: dict[str, tuple[float, str, type[Peer], dict[str, Any]]] = {}
    for name, words, kind, given in candidates(windows):
        print(feed, name, words, file=sys.stderr)
        score = judge(config, windows, [kind(0, local, **given)], name)
        assert score.mae is not None, "peers show every cell"
        best[name] = min(best.get(name, (np.inf, "", kind, given)), (score.mae, words, kind, given), key=lambda b: b[0])
    for name, (_, words, kind, given) in best.items():
        score = judge(config, windows, [kind(seed, local, **given) for seed in range(1, 1 + draws)], name)
        figures[name] = _figures(score) | {"parameters": words}
    return figures


def _figures(score: LiveScore) -> dict[str, Any]:
    seen = [] if score.incident is None else [round(share, 3) for share in score.incident.seen]
    return {"mae": score.mae, "skill": score.skill, "seen": seen}
