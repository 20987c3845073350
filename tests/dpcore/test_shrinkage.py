"""Shrinkage is the posterior mean of its model: exact limits, better than raw, intervals that cover."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from dpcore import shrinkage
from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior
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
    posterior = shrink(truth, np.zeros(80), events, upper=UPPER, positions_km=where)
    assert posterior.value == pytest.approx(truth, abs=0.01)


def test_unreleased_cells_are_predicted_from_their_neighbours():
    rng = np.random.default_rng(2)
    error = {True: 0.0, False: 0.0}
    for _ in range(20):
        where, events, truth, _, _ = city(rng, 150)
        hidden = np.arange(150) % 5 == 0
        scales = np.where(hidden, np.inf, 0.5)
        means = np.where(hidden, np.nan, truth)
        for spatial in (True, False):
            posterior = shrink(means, scales, events, upper=UPPER, positions_km=where if spatial else None)
            assert np.all(np.isfinite(posterior.value))
            error[spatial] += np.abs(posterior.value - truth)[hidden].mean()
    assert error[True] < 0.85 * error[False]


def test_error_is_far_below_raw_and_intervals_cover_about_95_percent():
    """40 cities × 80 cells: coverage within 0.92..0.99 (sd of the mean of 3200 dependent cells < 0.01)."""
    rng = np.random.default_rng(3)
    raw = post = covered = 0.0
    for _ in range(TRIALS):
        where, events, truth, scales, means = city(rng)
        posterior = shrink(means, scales, events, upper=UPPER, positions_km=where)
        raw += np.abs(means - truth).mean()
        post += np.abs(posterior.value - truth).mean()
        covered += ((posterior.low <= truth) & (truth <= posterior.high)).mean()
    assert post < 0.5 * raw
    assert 0.92 < covered / TRIALS < 0.99


def test_half_the_stated_noise_is_caught_by_the_coverage():
    """The planted bug: an interval computed with half the scales covers too little."""
    rng = np.random.default_rng(4)
    covered = 0.0
    for _ in range(TRIALS):
        _, _, truth, scales, means = city(rng)
        posterior = shrink(means, scales / 8, np.full(80, 10**6), upper=UPPER)
        covered += ((posterior.low <= truth) & (truth <= posterior.high)).mean()
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


def dense(means, scales, events, where, covariate) -> np.ndarray:
    """The posterior mean by the model's covariance of all cells at once: what :func:`shrink` computes block by
    block."""
    C = len(means)
    informative = np.sort(np.argsort(scales, kind="stable")[: shrinkage.MOST_INFORMATIVE])
    centred = covariate - np.average(covariate, weights=events)
    unit = centred / np.sqrt(np.average(np.square(centred), weights=events))
    near = np.exp(-np.linalg.norm(where[:, None] - where[None], axis=2) / shrinkage.LENGTH_KM)
    logs, estimates = [], []
    for slope, field, event in itertools.product(
        shrinkage.EFFECT_SHARES, shrinkage.FIELD_SHARES, shrinkage.EVENT_SHARES
    ):
        alone = event**2 / (events + (event / shrinkage.QUIET_SHARE) ** 2) + 1e-9
        kernel = shrinkage.LEVEL_SHARE**2 + slope**2 * np.outer(unit, unit) + field**2 * near + np.diag(alone)
        known = UPPER**2 * kernel[:, informative]
        sites = laplace_posterior(known[informative], means[informative] - UPPER / 2, scales[informative])
        noise = np.diag(1 / sites.site_precision)
        said = np.linalg.solve(known[informative] + noise, sites.site_shift / sites.site_precision)
        logs.append(sites.log_evidence)
        estimates.append(UPPER / 2 + known @ said)
    share = np.exp(np.array(logs) - max(logs))
    assert len(estimates[0]) == C
    return np.clip(share / share.sum() @ np.array(estimates), 0, UPPER)


def test_block_by_block_is_the_posterior_of_all_cells_at_once(monkeypatch):
    """More cells than inform each other, in blocks that do not divide their number."""
    monkeypatch.setattr(shrinkage, "MOST_INFORMATIVE", 60)
    monkeypatch.setattr(shrinkage, "BLOCK", 37)
    where, events, _, scales, means = city(np.random.default_rng(8), 150)
    covariate = np.log(events)
    posterior = shrink(means, scales, events, upper=UPPER, positions_km=where, covariates=covariate[:, None])
    assert posterior.value == pytest.approx(dense(means, scales, events, where, covariate), abs=1e-6)


def test_memory_does_not_grow_with_the_square_of_the_cells(monkeypatch):
    """Peak of what numpy allocates for 1 000 and 4 000 cells, which one matrix over all cells would make 8 and 128
    MB."""
    monkeypatch.setattr(shrinkage, "MOST_INFORMATIVE", 40)
    rng, peak = np.random.default_rng(9), []
    for cells in (1_000, 4_000):
        where, events = rng.uniform(0, 20, (cells, 2)), rng.geometric(0.02, cells)
        tracemalloc.start()
        shrink(rng.uniform(0, UPPER, cells), 400.0 / events, events, upper=UPPER, positions_km=where)
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peak[1] < 2.5 * peak[0]
    assert peak[1] < 10e6


def test_values_stay_in_range_and_no_cell_is_an_empty_result():
    posterior = shrink(np.array([-500.0, 900.0]), np.array([1.0, 1.0]), np.array([5, 5]), upper=UPPER)
    assert np.all((posterior.value >= 0) & (posterior.value <= UPPER))
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
