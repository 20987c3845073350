"""Shrinkage is the posterior mean of its model: exact limits, better than raw, intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.shrinkage import local_kilometres, shrink

UPPER = 80.0
TRIALS = 40


def city(rng: np.random.Generator, cells: int = 80):
    """A smooth field of speeds over 20 km, event counts, and Laplace releases of very unequal scales."""
    where = rng.uniform(0, 20, (cells, 2))
    distance = np.sqrt(((where[:, None] - where[None]) ** 2).sum(2))
    field = np.linalg.cholesky(64 * np.exp(-distance / 4) + 1e-6 * np.eye(cells)) @ rng.normal(size=cells)
    events = rng.geometric(0.02, cells)
    truth = np.clip(25 + field + 16 * rng.normal(size=cells) / np.sqrt(events), 0, UPPER)
    scales = 400.0 / events
    return where, events, truth, scales, truth + rng.laplace(size=cells) * scales


def test_without_noise_the_released_values_come_back():
    where, events, truth, _, _ = city(np.random.default_rng(1))
    found = shrink(truth, np.zeros(80), events, upper=UPPER, positions_km=where)
    assert found.value == pytest.approx(truth, abs=0.01)


def test_unreleased_cells_are_predicted_from_their_neighbours():
    rng = np.random.default_rng(2)
    error = {True: 0.0, False: 0.0}
    for _ in range(20):
        where, events, truth, _, _ = city(rng, 150)
        hidden = np.arange(150) % 5 == 0
        scales = np.where(hidden, np.inf, 0.5)
        means = np.where(hidden, np.nan, truth)
        for spatial in (True, False):
            found = shrink(means, scales, events, upper=UPPER, positions_km=where if spatial else None)
            assert np.all(np.isfinite(found.value))
            error[spatial] += np.abs(found.value - truth)[hidden].mean()
    assert error[True] < 0.85 * error[False]


def test_error_is_far_below_raw_and_intervals_cover_about_95_percent():
    """40 cities × 80 cells: coverage within 0.92..0.99 (sd of the mean of 3200 dependent cells < 0.01)."""
    rng = np.random.default_rng(3)
    raw = post = covered = 0.0
    for _ in range(TRIALS):
        where, events, truth, scales, means = city(rng)
        found = shrink(means, scales, events, upper=UPPER, positions_km=where)
        raw += np.abs(means - truth).mean()
        post += np.abs(found.value - truth).mean()
        covered += ((found.low <= truth) & (truth <= found.high)).mean()
    assert post < 0.5 * raw
    assert 0.92 < covered / TRIALS < 0.99


def test_half_the_stated_noise_is_caught_by_the_coverage():
    """The planted bug: an interval computed with half the scales covers too little."""
    rng = np.random.default_rng(4)
    covered = 0.0
    for _ in range(TRIALS):
        _, _, truth, scales, means = city(rng)
        found = shrink(means, scales / 8, np.full(80, 10**6), upper=UPPER)
        covered += ((found.low <= truth) & (truth <= found.high)).mean()
    assert covered / TRIALS < 0.92


def test_public_covariates_and_a_baseline_help_where_they_explain():
    rng = np.random.default_rng(5)
    errors = np.zeros(3)
    for _ in range(20):
        _, events, truth, scales, means = city(rng)
        hint = truth + rng.normal(size=80) * 2
        for i, extra in enumerate(({}, {"covariates": hint[:, None]}, {"baseline": hint})):
            errors[i] += np.abs(shrink(means, scales, events, upper=UPPER, **extra).value - truth).mean()
    assert errors[1] < 0.8 * errors[0]
    assert errors[2] < errors[1]


def test_the_order_of_cells_does_not_matter():
    where, events, _, scales, means = city(np.random.default_rng(6))
    order = np.random.default_rng(7).permutation(80)
    straight = shrink(means, scales, events, upper=UPPER, positions_km=where)
    shuffled = shrink(means[order], scales[order], events[order], upper=UPPER, positions_km=where[order])
    assert shuffled.value == pytest.approx(straight.value[order], abs=1e-6)


def test_values_stay_in_range_and_no_cell_is_an_empty_result():
    found = shrink(np.array([-500.0, 900.0]), np.array([1.0, 1.0]), np.array([5, 5]), upper=UPPER)
    assert np.all((found.value >= 0) & (found.value <= UPPER))
    assert len(shrink(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), upper=UPPER).value) == 0


def test_local_kilometres_measures_a_degree_of_latitude():
    plane = local_kilometres(np.array([30.0, 31.0]), np.array([-97.0, -97.0]))
    assert plane[1, 1] - plane[0, 1] == pytest.approx(111.19, abs=0.05)


def test_refuses_bad_input():
    one = np.ones(1)
    with pytest.raises(ParameterError):
        shrink(one, -one, np.array([1]), upper=UPPER)
    with pytest.raises(ParameterError):
        shrink(one, one, np.array([0]), upper=UPPER)
    with pytest.raises(ParameterError):
        shrink(one, one, np.array([1]), upper=UPPER, covariates=np.full((1, 1), np.nan))
    with pytest.raises(ParameterError):
        shrink(np.array([np.nan]), one, np.array([1]), upper=UPPER)
