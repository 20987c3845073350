"""The samplers draw from exactly the stated distributions; a wrong scale or a biased sign is caught."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.noise import Groups, Noise, interval_half_width
from tests.support.tapes import Geometric

N = 200_000
"""Samples per test. A scale off by 1 % moves E|X| by about 4 standard errors at this size (power > 0.97 at α)."""
ALPHA = 1e-6
"""False alarm rate of each test, two-sided."""
SCALES = [(1, 1), (3, 7), (7, 3), (50, 1), (65_000, 1), (2**32 + 1, 2**20)]


def p_value(samples: np.ndarray, t: int, s: int) -> float:
    """χ² of binned samples against the exact law, bins of expected count >= 50, tails pooled."""
    a = math.exp(-s / t)

    def cdf(x: np.ndarray) -> np.ndarray:
        return np.where(x >= 0, 1 - a ** (np.abs(x) + 1) / (1 + a), a ** np.abs(x) / (1 + a))

    edges = np.unique(np.round(stats.laplace.ppf(np.linspace(0.002, 0.998, 80), scale=t / s)).astype(np.int64))
    observed = np.histogram(samples, bins=[-(2**62), *(edges + 0.5).tolist(), 2**62])[0]
    probability = np.diff(np.concatenate([[0.0], cdf(edges), [1.0]]))
    keep = probability * len(samples) >= 50
    observed = np.append(observed[keep], observed[~keep].sum())
    probability = np.append(probability[keep], probability[~keep].sum())
    expected = probability * len(samples)
    used = expected > 0
    return float(stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), used.sum() - 1))


@pytest.mark.parametrize("batch", [10_000, N], ids=["by rejection", "by inversion"])
@pytest.mark.parametrize(("t", "s"), SCALES)
def test_discrete_laplace_has_its_exact_distribution(t: int, s: int, batch: int) -> None:
    noise = Noise()
    x = np.concatenate([noise.discrete_laplace(t, s, batch) for _ in range(N // batch)])
    assert p_value(x, t, s) > ALPHA


@pytest.mark.parametrize(("t", "s"), SCALES)
def test_geometric_draws_that_tests_take_for_it_have_the_same_distribution(t: int, s: int) -> None:
    assert p_value(Geometric(1).discrete_laplace(t, s, N), t, s) > ALPHA


@pytest.mark.parametrize("bug", ["half scale", "positive zero twice", "one sided"])
def test_a_planted_bug_in_the_sampler_is_caught(bug: str) -> None:
    noise = Noise()
    broken: dict[str, Callable[[], np.ndarray]] = {
        "half scale": lambda: noise.discrete_laplace(7, 6, N),
        "positive zero twice": lambda: (
            np.where(
                noise.below(2, N) == 1,
                -np.abs(noise.discrete_laplace(7, 3, N)),
                np.abs(noise.discrete_laplace(7, 3, N)),
            )
            * (noise.below(20, N) > 0)
        ),
        "one sided": lambda: np.abs(noise.discrete_laplace(7, 3, N)),
    }
    assert p_value(broken[bug](), 7, 3) < ALPHA


def test_a_column_of_scales_gives_each_entry_its_own() -> None:
    scales = np.array([1, 10, 100, 1000])
    x = Noise().discrete_laplace(np.repeat(scales, 50_000)).reshape(4, -1)
    for row, t in zip(x, scales.tolist(), strict=True):
        assert p_value(row, t, 1) > ALPHA


def test_intervals_are_the_smallest_that_hold_95_percent() -> None:
    for t, s in SCALES:
        a = math.exp(-s / t)
        w = float(interval_half_width(t, s))
        assert 1 - 2 * a ** (w + 1) / (1 + a) >= 0.95 - 1e-9
        assert w == 0 or 1 - 2 * a**w / (1 + a) < 0.95 + 1e-9


@pytest.mark.parametrize("weights", [None, [1, 0, 3, 9]])
def test_the_exponential_mechanism_selects_by_its_exact_law_in_every_group(weights: list[int] | None) -> None:
    costs, k = np.array([0, 1, 2, 5]), 60_000
    ragged = None if weights is None else np.tile(weights, k)
    got = Noise().exponential(np.tile(costs, k), 1, 2, offsets=np.arange(0, 4 * k + 1, 4), weights=ragged)
    law = np.exp(-costs / 2) * (1 if weights is None else np.array(weights))
    law /= law.sum()
    observed, expected = np.bincount(got, minlength=4)[law > 0], k * law[law > 0]
    assert np.bincount(got, minlength=4)[law == 0].sum() == 0
    assert stats.chisquare(observed, expected).pvalue > ALPHA
    wrong = np.exp(-costs.astype(float)) / np.exp(-costs.astype(float)).sum()
    if weights is None:
        assert stats.chisquare(observed, k * wrong).pvalue < ALPHA, "twice the exponent must be noticed"


def test_a_proposal_falls_on_each_candidate_as_often_as_its_weight_says() -> None:
    """Uniform integers 0 … 9 of two groups, one draw each: every candidate gets as many of them as its weight."""
    weights = np.array([1, 0, 3, 6, 2, 8])
    groups = Groups.of(np.zeros(6, dtype=np.int64), np.array([0, 4, 6]), weights)
    assert groups.total.tolist() == [10, 10]
    proposed = groups.candidates(np.repeat([0, 1], 10), np.tile(np.arange(10), 2))
    assert np.bincount(proposed, minlength=6).tolist() == weights.tolist()


def test_excess_is_measured_from_the_least_cost_that_can_be_chosen() -> None:
    groups = Groups.of(np.array([5, -9, 7, 4]), np.array([0, 3, 4]), np.array([1, 0, 1, 2]))
    assert groups.excess.tolist() == [0, 0, 2, 0]


def test_a_selection_with_one_good_candidate_among_many_ends_quickly() -> None:
    costs = np.full(100_000, 40)
    costs[777] = 0
    assert Noise().exponential(costs, 1, 1)[0] == 777


def test_no_costs_are_too_far_apart_to_choose_by_and_the_least_two_keep_their_law() -> None:
    """Costs and the largest ratio that leave int64 together. n = 60 000 draws between costs 0 and 1 at ε = ln 3, α =
    1e-6."""
    for numerator in (1, 4, 10**9, 2**61):
        assert Noise().exponential(np.array([2**62, 0, 2**61]), numerator, 1)[0] == 1
    k, numerator = 60_000, round(math.log(3) * 2**40)
    got = Noise().exponential(np.tile([0, 1, 2**62], k), numerator, 2**40, offsets=np.arange(0, 3 * k + 1, 3))
    assert got.max() == 1
    assert stats.binomtest(int((got == 0).sum()), k, 0.75).pvalue > ALPHA


def test_entropy_decides_everything() -> None:
    def tape(seed: int) -> Noise:
        return Noise(np.random.default_rng(seed).bytes)

    assert (tape(1).discrete_laplace(50, 1, 1000) == tape(1).discrete_laplace(50, 1, 1000)).all()
    assert (tape(1).discrete_laplace(50, 1, 1000) != tape(2).discrete_laplace(50, 1, 1000)).any()


def test_bounded_integers_are_uniform_for_bounds_that_do_not_divide_the_word() -> None:
    x = Noise().below(3 * 2**61, 100_000)
    assert stats.binomtest(int((x >= 2**62).sum()), 100_000, 1 / 3).pvalue > ALPHA
    y = Noise().below(np.full(100_000, 7))
    assert stats.chisquare(np.bincount(y, minlength=7)).pvalue > ALPHA


def test_parameters_out_of_bounds_are_refused_with_a_remedy() -> None:
    noise = Noise()
    for call in (
        lambda: noise.discrete_laplace(0, 1, 1),
        lambda: noise.discrete_laplace(2**40 + 1, 1, 1),
        lambda: noise.discrete_laplace(1, 0, 1),
        lambda: noise.below(0),
        lambda: noise.exponential(np.array([], dtype=int), 1, 1),
        lambda: noise.exponential(np.array([1]), 1, 1, weights=np.array([0])),
        lambda: noise.exponential(np.array([1]), 1, 1, weights=np.array([-1])),
        lambda: noise.exponential(np.array([1]), 2**62, 1),
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(OverflowBoundError):
        noise.exponential(np.array([0, 1]), 1, 1, weights=np.array([2**61, 2**61]))
