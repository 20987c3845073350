"""Levy and quantile clipping: selection exact and of sensitivity 1, charges cover every range, choice by counts."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.scales import noise_ratio
from dpcore.single_cell.mean import GRID, ArrayAveraging, ArrayPlan, array_averages
from dpcore.single_cell.range_mean import (
    AutoMean,
    Baseline,
    EpsilonQuantile,
    FixedQuantile,
    Levy,
    PooledMinimax,
    range_bins,
    select_quantiles,
    select_range,
)
from tests.dpcore.silence import Silence
from tests.support.nightly import nightly_but
from tests.support.tapes import recorded


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


MECHANISMS = [Levy, FixedQuantile, EpsilonQuantile]
ALPHA = 1e-6
MANY = np.full(40, 60)
"""Counts for which 4τ < U, so that Levy narrows the range."""


def p_value(drawn: np.ndarray, probability: np.ndarray) -> float:
    used = probability * len(drawn) > 5
    expected = np.append(probability[used], probability[~used].sum()) * len(drawn)
    observed = np.bincount(drawn, minlength=len(probability)).astype(float)
    observed = np.append(observed[used], observed[~used].sum())
    keep = expected > 5
    return float(stats.chi2.sf(((observed - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1))


@pytest.mark.parametrize(("column", "ranks"), [([3, 3, 9, 14], [4, 36]), ([], [0]), ([0, 20], [10]), ([20, 20], [15])])
def test_quantiles_have_exactly_the_stated_distribution(column, ranks):
    """χ² on n = 40 000 draws at α = 1e-6; with the ranks one off it would fail with power above 0.999."""
    upper, micro, n = 20, 3_000_000, 40_000
    y = np.arange(upper + 1)
    values = np.array(column, dtype=np.int64)[None, :]
    below, up_to = (values < y[:, None]).sum(axis=1), (values <= y[:, None]).sum(axis=1)
    tiled = np.repeat(np.array(ranks), n)
    drawn = select_quantiles(np.array(column, dtype=np.int64), upper, tiled, micro, Noise()).reshape(len(ranks), n)
    for row, rank in zip(drawn, ranks, strict=True):
        target = rank / 10
        law = np.exp(-micro / 1e6 * np.maximum(np.maximum(below - target, target - up_to), 0) / 2)
        assert p_value(row, law / law.sum()) > ALPHA


def test_a_value_that_many_share_is_found_and_gaps_alone_would_not_find_it():
    """Recorded draws. Median of 40 % zeros and 60 % at 37, ε = 4: 37; by gaps between values it lies anywhere above."""
    column, n, noise = np.repeat(ints(0, 37), (40, 60)), 200, recorded(1)
    drawn = select_quantiles(column, 100, np.full(n, 500), 4 * MICRO, noise)
    assert np.mean(drawn == 37) > 0.95
    # Planted bug: the cost is |#{z <= y} − r| at every y, as printed for gaps.
    y = np.arange(101)
    law = np.exp(-4 * np.abs((column[None, :] <= y[:, None]).sum(axis=1) - 50) / 2)
    assert law[37] / law.sum() < 0.05


def test_ranges_have_exactly_the_stated_distribution():
    column, half_bin, n = np.array([2, 5, 11, 12, 19, 38]), 3, 30_000
    ranges = range_bins(40, half_bin)
    slot = column // 6
    costs = np.array([max((slot < i).sum(), (slot > i).sum()) for i in range(len(ranges))])
    law = np.exp(-1.5 * costs / 2)
    noise = Noise()
    index = {tuple(r): i for i, r in enumerate(ranges.tolist())}
    drawn = np.array([index[select_range(column, 40, half_bin, 1_500_000, noise)] for _ in range(n // 10)])
    assert p_value(drawn, law / law.sum()) > ALPHA
    assert p_value(drawn, np.full(len(law), 1 / len(law))) < ALPHA


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 30), min_size=2, max_size=9), st.integers(4, 4_000_000))
def test_the_charge_covers_the_loss_at_every_range(seed, samples, micro):
    """Changing one user: integer change of the clipped sum / scale + selection <= their charge <= ε."""
    rng, upper = np.random.default_rng(seed), 20
    m = np.array(samples)
    for mechanism in (Levy(upper), FixedQuantile(upper), EpsilonQuantile(upper)):
        plan = mechanism.plan(m, micro)
        if isinstance(plan, ArrayPlan):
            continue
        values = rng.integers(0, upper + 1, int(m.sum()))
        user = int(rng.integers(len(m)))
        other = values.copy()
        start = int(m[:user].sum())
        other[start : start + m[user]] = rng.choice([0, upper])
        one, two = (array_averages(v, m, plan.grouping, upper) for v in (values, other))
        ranges = range_bins(GRID * upper, plan.half_bin).tolist() if isinstance(mechanism, Levy) else []
        ranges = ranges or [sorted(rng.integers(0, GRID * upper + 1, 2).tolist()) for _ in range(5)]
        for low, high in ranges:
            moved = abs(int(np.clip(one, low, high).sum()) - int(np.clip(two, low, high).sum()))
            t, s = noise_ratio(min(high - low, plan.largest), plan.mean_micro)
            loss = Fraction(moved * s * MICRO, t) if moved else Fraction(0)
            assert loss + plan.range_micro <= plan.charges[user]
        assert plan.charges.max() <= micro == plan.range_micro + plan.mean_micro


def test_levy_narrows_the_noise_when_counts_allow_and_is_array_averaging_otherwise():
    plan = Levy(800).plan(MANY, MICRO)
    assert 4 * plan.half_bin < GRID * 800
    tau = 800 * math.sqrt(math.log(2 * 40 / 0.05) / (2 * 60))
    assert plan.half_bin == math.ceil(GRID * tau)
    few = Levy(800).plan(np.array([2, 1, 1]), MICRO)
    assert few.numerator == ArrayAveraging(800).plan(np.array([2, 1, 1]), MICRO).numerator


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_concentrated_averages_are_found_and_released_near_the_truth(mechanism):
    """n = 300 draws, ε = 4: the mean of the noisy means is within 12 quanta of 200 (standard error below 2)."""
    rng = np.random.default_rng(5)
    m = np.full(80, 60)
    values = np.clip(rng.normal(200, 60, int(m.sum())), 0, 800).astype(np.int64)
    plan = mechanism(800).plan(m, 4 * MICRO)
    noise = Noise()
    draws = [mechanism(800).release(values, plan, noise) for _ in range(300)]
    assert np.mean([e.raw for e in draws]) == pytest.approx(200, abs=12)
    s3 = ArrayAveraging(800).plan(m, 4 * MICRO).scale
    assert np.median([e.scale for e in draws]) < 2 * s3 * (0.95 if mechanism is Levy else 0.65)
    assert all(e.bias_bound <= 800 for e in draws)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_bias_bound_holds_for_extreme_values(mechanism):
    values = np.repeat(np.where(np.arange(40) % 2, 800, 0), 60)
    plan = mechanism(800).plan(MANY, MICRO)
    for _ in range(50):
        drawn = mechanism(800).release(values, plan, Silence())
        assert abs(drawn.raw - 400) <= drawn.bias_bound + 1e-9 <= plan.bias_bound + 1e-9


def test_auto_takes_the_least_predicted_error_and_says_which():
    m = np.array([1, 2, 30, 200])
    chosen = AutoMean(800).plan(m, MICRO)
    others = [M(800).plan(m, MICRO).predicted_error for M in (Baseline, PooledMinimax, ArrayAveraging)]
    assert chosen.predicted_error <= min(others)
    # Equal counts: nothing is dropped and few users leave little to choose from but the plain mean.
    assert isinstance(AutoMean(800).plan(np.array([3, 3]), 8 * MICRO).mechanism, Baseline)
    # Very many samples of few users: a private range is worth its cost.
    assert isinstance(
        AutoMean(800).plan(np.full(60, 5000), 2 * MICRO).mechanism, Levy | FixedQuantile | EpsilonQuantile
    )


def _kinds(users: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(Samples per user, values) of three kinds: easy (alike), spread evenly over [0, U], and every user at 0 or U."""
    rng = np.random.default_rng(seed)
    m = np.clip(rng.pareto(1.5, users) * 3 + 1, 1, 40).astype(np.int64)
    near = np.repeat(2300 + rng.normal(0, 150, users), m) + rng.normal(0, 600, m.sum())
    return {
        "easy": (m, np.clip(np.rint(near), 0, 6500).astype(np.int64)),
        "uniform": (m, rng.integers(0, 6501, m.sum())),
        "extreme": (m, np.repeat(rng.choice([0, 6500], users), m).astype(np.int64)),
    }


@pytest.mark.parametrize("users", nightly_but([40], [40, 400]))
def test_auto_is_never_far_from_the_best_mechanism_on_three_kinds_of_data(users):
    """Mean error of 30 recorded draws, ε = 1, relative to the best of all six: under 3 on each kind, under 1.5 on most.

    The planted choice, Baseline always, loses by more than 3 on easy data.
    """
    ratios, baseline = {}, {}
    for kind, (m, values) in _kinds(users, 1).items():
        truth, error = values.mean(), {}
        for M in (Baseline, PooledMinimax, ArrayAveraging, *MECHANISMS, AutoMean):
            noise = recorded(7)
            made: Any = M(6500)
            plan = made.plan(m, MICRO)
            error[M] = np.mean([abs(made.release(values, plan, noise).value - truth) for _ in range(30)])
        best = min(value for M, value in error.items() if M is not AutoMean)
        ratios[kind], baseline[kind] = error[AutoMean] / best, error[Baseline] / best
    assert max(ratios.values()) < 3, ratios
    assert np.median(list(ratios.values())) < 1.5, ratios
    assert baseline["easy"] > 3


@pytest.mark.parametrize(("capacity", "used"), [(1, 2), (2, 2), (4, 4), (6, 5), (100_000, 5)])
def test_a_capacity_that_is_given_is_moved_to_what_users_have(capacity, used):
    samples = np.array([2, 5])
    for mechanism in (ArrayAveraging(10, capacity), FixedQuantile(10, capacity), EpsilonQuantile(10, capacity)):
        assert mechanism.plan(samples, MICRO).grouping.capacity == used


def test_fixed_quantiles_lie_where_they_are_set_and_elsewhere_are_refused():
    samples = np.full(40, 3)
    ranks = [FixedQuantile(10, percent=percent).plan(samples, MICRO).rank for percent in (10, 25, 49)]
    assert ranks == [FixedQuantile(10).plan(samples, MICRO).rank, 100, 196]
    assert ranks[0] == 40, "in tenths of an array"
    for percent in (0, 50):
        with pytest.raises(ParameterError, match=r"outside 1\.\.49"):
            FixedQuantile(10, percent=percent)
