"""Bias and error of smoothed means under "participation" at resolution 7, where noise hides most of a cell. NOT
PRIVATE.

Each day is released with and without the mean of the area, with noise from recorded tapes. Errors are those of
``hexveil evaluate``: against the mean over samples of each visited cell, weighted by events. Beside them stands what
readers would get who know more than any release says: the true mean of all events of the window, and, cell by cell, the
true number of users, the true mean of the day and the best standard deviation of cells around it.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cities import KINDS, rows_of
from bench.defaults import CITY_SEED, path_of
from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from dpcore.noise import Noise
from dpcore.participation import UNIT
from stream.config import Config
from stream.diagnosis.reading import read_recording
from stream.evaluation.evaluate import PlannedWindow, planned_windows
from stream.evaluation.tuning import Recording
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.statistics.participation.draw import exact_integers
from stream.statistics.pipeline import area_body, post_process
from stream.statistics.residual_clipping import with_ranges
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import exact_values
from stream.statistics.window_release import speed_of

DAYS = ("2015-09-06", "2016-11-25", "2017-03-16", "2017-03-21", "2016-11-26")
HELD_OUT = ("2017-03-21", "2016-11-26")
"""Days that were not looked at while shares and the model were chosen."""
SHARES = {0.25: (1, 1), 0.5: (1, 1), 1.0: (3, 1), 2.0: (3, 1)}
"""Relative shares of the cells and of the area by ε, as advised."""
DRAWS = 2
UPPER = 65.0
"""U in km/h."""
SPREADS = tuple(itertools.product((3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0), (2.0, 4.0)))
"""Standard deviations in km/h of cells around the day's mean, and of a window with one user around its cell's."""
Part = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.bool_]]
"""Errors, events, and whether the interval holds the truth, of the visited cells of one draw."""
BOX = {"south": 30.15, "west": -97.95, "north": 30.55, "east": -97.55}


def config_of(epsilon: float, shares: tuple[int, int], folder: Path) -> Config:
    """Hourly riders at resolution 7; the user key, in ``folder``, is always the same."""
    key = folder / "key"
    if not key.exists():
        key.write_bytes(bytes(KEY_BYTES))
        key.chmod(0o600)
    settings = {
        "privacy.user_key_file": str(key),
        "privacy.epsilon": epsilon,
        "privacy.budget": 96.0,
        "hexagons.resolution": 7,
        "participation.weight": "share",
        "participation.area_share": round(4 * shares[1] / shares[0]),
        "speed.statistics": ("mean",),
        "feed.domain": BOX,
    }
    return hourly_config("riders", **settings)


def recording_of(feed: str, config: Config) -> Recording:
    """A generated city, or the fixes of a recorded day that lie in the box."""
    if feed in KINDS:
        return Recording(rows_of(feed, CITY_SEED))
    file_format = "capmetro-2015" if feed < "2016" else "capmetro"
    return Recording(read_recording(config, recordings() / path_of(feed), file_format)[0])


def measured(feed: str, epsilon: float, shares: tuple[int, int], draws: int) -> dict[str, float]:
    """Bias, error and coverage of one day under these shares."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(epsilon, shares, Path(folder))
        windows = recording_of(feed, config).windows(config)
    parts: list[Part] = []
    memories: list[Memory | None] = [None] * draws
    for planned in planned_windows(config, windows):
        for number in range(draws):
            noise = Noise(np.random.default_rng([number, planned.plan.window.start]).bytes)
            part, memories[number] = _smoothed(planned, memories[number], noise)
            parts.append(part)
    error, weight, covered = (np.concatenate(column) for column in zip(*parts, strict=True))
    share = weight / weight.sum()
    return {
        "bias_km_h": round(float(share @ error), 2),
        "mae_km_h": round(float(share @ np.abs(error)), 2),
        "covers_cells_percent": round(100 * float(covered.mean()), 1),
        "covers_events_percent": round(100 * float(share @ covered), 1),
    }


def _smoothed(planned: PlannedWindow, memory: Memory | None, noise: Noise) -> tuple[Part, Memory | None]:
    """One draw of one window, and the memory after it."""
    plan, counts = with_ranges(planned.plan, memory), planned.contributions.counts
    speed = speed_of(plan.terms)
    columns = speed.draw(plan, planned.contributions, noise)
    bodies = speed.body(plan, counts, columns)
    derived, after = post_process(plan, bodies, memory, area_body(columns, plan.terms.value))
    listed = np.isin(counts.cells, plan.cells)
    at = np.searchsorted(plan.cells, counts.cells[listed])
    truth = exact_values(plan, planned.contributions)["mean"][listed]
    events, estimate = counts.by_cell(counts.samples)[listed].astype(float), derived["mean"]
    assert estimate.interval is not None, "smoothed means have intervals"
    low, high = estimate.interval
    covered = (low[at] <= truth) & (truth <= high[at])
    return (estimate.value[at] - truth, events, covered), after


@dataclass(frozen=True)
class Truth:
    """Exact numbers of the W windows and C listed cells of a day: ``users``, ``sums`` of their speeds as shares of U,
    ``means`` in km/h and ``events``, (W, C) each.
    """

    users: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]
    means: npt.NDArray[np.float64]
    events: npt.NDArray[np.float64]

    @classmethod
    def of(cls, feed: str) -> Truth:
        """The truth of a feed."""
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(2.0, (1, 0), Path(folder))
            windows = recording_of(feed, config).windows(config)
        rows = [_exact(planned) for planned in planned_windows(config, windows)]
        return cls(*(np.array(column) for column in zip(*rows, strict=True)))

    def error(self, estimate: npt.NDArray[np.float64]) -> float:
        """Mean absolute error of an estimate of every mean, weighted by events."""
        return float((self.events * np.abs(estimate - self.means)).sum() / self.events.sum())

    def windows_known(self) -> float:
        """Error of the true mean of each window's events in place of every cell's."""
        known = (self.events * self.means).sum(axis=1) / self.events.sum(axis=1)
        return self.error(np.broadcast_to(known[:, None], self.means.shape))

    def cells_known(self, epsilon: float, draws: int) -> float:
        """Error of the best reader in :data:`SPREADS` who knows users and the day's mean; all of ε is the cells'."""
        return min(self._read(epsilon, spread, draws) for spread in SPREADS)

    def _read(self, epsilon: float, spread: tuple[float, float], draws: int) -> float:
        day = float((self.events * self.means).sum() / self.events.sum())
        level, users = day / UPPER, np.maximum(self.users, 1e-6)
        variance = np.square(UPPER / users) * 2 / epsilon**2 * ((1 - level) ** 2 + level**2)
        errors = []
        for seed in range(draws):
            noise = np.random.default_rng(seed).laplace(scale=1 / epsilon, size=(2, *users.shape))
            off = UPPER * (self.sums + noise[1] - level * (self.users + noise.sum(axis=0))) / users
            errors.append(self.error(np.clip(day + filtered(off, variance, users, spread), 0, UPPER)))
        return float(np.mean(errors))


def filtered(
    off: npt.NDArray[np.float64],
    noise_variance: npt.NDArray[np.float64],
    users: npt.NDArray[np.float64],
    spread: tuple[float, float],
) -> npt.NDArray[np.float64]:
    """What a Kalman filter of each cell says in each window, from what was seen so far; all (W, C)."""
    lasting, passing = spread
    mean, variance, said = np.zeros(off.shape[1]), np.full(off.shape[1], lasting**2), []
    for seen, noisy, present in zip(off, noise_variance, users, strict=True):
        now = variance + passing**2 / np.maximum(present, 0.3)
        said.append(mean + now / (now + noisy) * (seen - mean))
        gain = variance / (now + noisy)
        mean, variance = mean + gain * (seen - mean), variance * (1 - gain)
    return np.array(said)


def _exact(planned: PlannedWindow) -> tuple[npt.NDArray[np.float64], ...]:
    """Users, sums, means and events of the listed cells of a window."""
    plan, counts = planned.plan, planned.contributions.counts
    below, above = exact_integers(plan, planned.contributions) / UNIT
    means, events = np.zeros(len(plan.cells)), np.zeros(len(plan.cells))
    listed = np.isin(counts.cells, plan.cells)
    at = np.searchsorted(plan.cells, counts.cells[listed])
    means[at] = exact_values(plan, planned.contributions)["mean"][listed]
    events[at] = counts.by_cell(counts.samples)[listed]
    return below + above, above, means, events


def run(quick: bool) -> dict[str, Any]:
    """Figures of every day and ε, with and without the mean of the area."""
    feeds, draws = (("dense and slow",), 1) if quick else (DAYS, DRAWS)
    if missing := absent(*(path_of(feed) for feed in feeds if feed[0].isdigit())):
        return {"skipped": missing}
    epsilons = (2.0,) if quick else tuple(SHARES)
    truths = {feed: Truth.of(feed) for feed in feeds}
    cases = list(itertools.product(feeds, epsilons))
    return {
        "draws": draws,
        "windows_known_km_h": {feed: round(truth.windows_known(), 2) for feed, truth in truths.items()},
        "days": [
            {
                "feed": feed,
                "seen": feed not in HELD_OUT,
                "epsilon": epsilon,
                "cells_known_km_h": round(truths[feed].cells_known(epsilon, draws), 2),
                "without": measured(feed, epsilon, (1, 0), draws),
                "with_area": measured(feed, epsilon, SHARES[epsilon], draws),
            }
            for feed, epsilon in shown(cases, "weak signals")
        ],
    }
