"""Under "participation" and a weak signal, smoothed means lean neither to the middle of [0, U] nor to the typical
speed."""

from __future__ import annotations

from pathlib import Path

import h3.api.numpy_int as h3
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from dpcore.noise import Noise
from dpcore.occupancy import NoisyCounts, Occupancy, Users, users_in
from stream.config import Config
from stream.statistics import observed_means
from stream.statistics.columns import Derived
from stream.statistics.pipeline import post_process
from stream.statistics.smoothing_state import Memory
from stream.storage.row_store import ROW
from tests.support.builders import SLOT
from tests.support.participating import riders
from tests.support.releasing import cell_bodies, draw, planned

FloatArray = npt.NDArray[np.float64]

HOURS, VEHICLES, ROUTES = 8, 250, 25
"""A small city: every vehicle crosses a few of so many cells, of some 300 that are listed, in every hour."""
SPEED, LEANS = 12.0, 5.0
"""Mean speed in km/h, where 20 is expected, and U/2 is 32; and how far from it the mean of the last hours may lie."""


def city(hour: int) -> np.ndarray:
    """Rows of one hour: four fixes of every vehicle, on cells along a line."""
    rng = np.random.default_rng(hour)
    cells = h3.grid_path_cells(h3.latlng_to_cell(30.2, -97.8, 7), h3.latlng_to_cell(30.5, -97.6, 7))[:ROUTES]
    rows = np.zeros(4 * VEHICLES, dtype=ROW)
    rows["user"] = np.repeat(np.arange(VEHICLES) + 1, 4)
    rows["cell"] = np.asarray(cells)[rng.integers(0, len(cells), 4 * VEHICLES)]
    rows["time"] = (SLOT + 3600 * hour) * 1_000_000 + np.arange(len(rows)) * 100
    rows["value"] = np.clip(rng.normal(SPEED, 6.0, len(rows)), 0, 65) * 100
    return rows


def smoothed(
    config: Config, seed: int, hour: int, memory: Memory | None
) -> tuple[dict[str, Derived], Memory | None, FloatArray]:
    """What one hour's releases are smoothed to, with noise of a tape, the memory after it, and errors of visited cells'
    means."""
    plan, contributions = planned(config, city(hour), slot=SLOT + 3600 * hour)
    columns = draw(plan, contributions, Noise(np.random.default_rng([seed, hour]).bytes))
    derived, after = post_process(plan, cell_bodies(plan, contributions, columns), memory)
    at = np.searchsorted(plan.cells, contributions.counts.cells)
    return derived, after, derived["mean"].value[at] - SPEED


def bias(config: Config, seed: int) -> float:
    """Mean error of the smoothed means of visited cells in the second half of the hours."""
    memory, errors = None, []
    for hour in range(HOURS):
        _, memory, wrong = smoothed(config, seed, hour, memory)
        errors.append(float(wrong.mean()))
    return float(np.mean(errors[HOURS // 2 :]))


def noisy_divisors(past: Occupancy | None, now: NoisyCounts) -> Users:
    """The planted bug: a numerator is divided by the noisy count of its window."""
    return Users(np.maximum(now.counts, 1.0), np.zeros(len(now.counts)))


@pytest.fixture
def weak(tmp_path: Path) -> Config:
    settings = {"privacy.epsilon": 0.25, "privacy.budget": 6.0, "speed.statistics": ["mean"]}
    return riders(tmp_path, **settings)


def test_the_smoothed_mean_of_a_city_with_a_weak_signal_is_near_the_truth(weak: Config) -> None:
    """ε = 0.25, two tapes."""
    assert abs(np.mean([bias(weak, seed) for seed in range(2)])) <= LEANS


def test_noisy_counts_as_divisors_lean_to_the_middle(weak: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tape of the planted bug."""
    monkeypatch.setattr(observed_means, "users_in", noisy_divisors)
    assert bias(weak, 0) > LEANS


def unsure(past: Occupancy | None, now: NoisyCounts) -> Users:
    """The planted bug: releases are read as if nothing were known of the number of users, so nothing is learned."""
    return Users(users_in(past, now).mean, np.full(len(now.counts), 1e9))


def test_a_reading_that_learns_nothing_stays_at_the_typical_speed(
    weak: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tape of the planted bug."""
    monkeypatch.setattr(observed_means, "users_in", unsure)
    assert bias(weak, 0) > LEANS


@pytest.mark.parametrize(("gap", "used"), [(1, True), (25, False)])
def test_counts_of_users_are_used_after_an_hour_and_not_after_more_than_a_day(
    weak: Config, gap: int, used: bool
) -> None:
    _, memory, _ = smoothed(weak, 0, 0, None)
    assert memory is not None
    forgotten = msgspec.structs.replace(memory, counted=b"", counted_sums=(0.0, 0.0, 0.0))
    with_counts, without = (smoothed(weak, 0, gap, before)[0]["mean"].value for before in (memory, forgotten))
    assert np.array_equal(with_counts, without) != used
