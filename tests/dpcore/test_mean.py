"""Means of cells: sensitivity by brute force, the cap, clipping, budgets and columns. Sensitivities by brute force: the
largest change of one number over all values of a small cell."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.allocation import exact_charges
from dpcore.budget import to_micro
from dpcore.cdf import ONE_SIDED
from dpcore.contributions import Contributions, Counts
from dpcore.errors import ParameterError
from dpcore.mean import Mean, sum_caps
from dpcore.moving_mean import MovingMean
from dpcore.scales import LaplaceScales
from dpcore.variance import Variance
from tests.dpcore.programs import group, in_one_cell, worst_changes
from tests.support.tapes import recorded

SAMPLES = [(1,), (1, 1), (2, 1), (1, 2, 2), (3, 1, 1), (4, 2)]
"""Samples per user of a cell."""


def claimed(statistic: Any, samples: tuple[int, ...]) -> list[int]:
    """The sensitivities that a statistic of one cell states."""
    counts = group(in_one_cell(samples), 10).counts
    return list(statistic.sensitivities(counts, counts.samples).tolist())


def test_the_sensitivity_is_the_worst_change_over_all_values_of_one_user():
    """Exhaustive over values in {0, U/2, U}; of moving reports, from 3 on, with both of their numbers together."""
    for samples in SAMPLES:
        mean, moving = Mean(10), MovingMean(10, 3)
        assert worst_changes(samples, (0, 5, 10), 10, mean.integers) == claimed(mean, samples)
        both = worst_changes(samples, (0, 3, 10), 10, moving.integers)
        assert both == claimed(moving, samples) == [14 * m for m in samples]


def test_a_capped_sum_moves_by_its_cap_where_samples_could_move_it_by_more():
    """Beside others at every value; a capped sum moves least where others fill the cell, so the claim is a bound."""
    for samples, cap in itertools.product([(1,), (2, 1), (3, 2, 1), (4, 2)], [10, 13, 25]):
        capped = Mean(10, np.array([cap]))
        worst = worst_changes(samples, (0, 5, 10), 10, capped.integers)
        assert worst == claimed(capped, samples) == [min(cap, 10 * m) for m in samples]


def test_the_cap_is_a_share_of_the_mean_contribution_and_never_below_one_sample():
    counts = group([(1, 1, k, 0) for k in range(9)] + [(1, 2, 0, 0)], 100).counts
    assert sum_caps(counts, 100, 0.7, np.ones(1)).tolist() == [350]
    assert sum_caps(counts, 100, 0.01, np.ones(1)).tolist() == [100]
    assert Mean(100, np.array([350])).rows(counts, counts.samples).delta.tolist() == [350, 100]
    with pytest.raises(ParameterError, match="above 0"):
        sum_caps(counts, 100, 0.0, np.ones(1))
    with pytest.raises(ParameterError, match="2 caps for 1 cells"):
        Mean(100, np.array([350, 350])).rows(counts, counts.samples)


def test_a_wider_cell_has_a_wider_cap_and_stays_are_compared_per_width():
    """Who crosses a cell of twice the width at the same speed has twice the samples there, and needs twice the room."""
    counts = group([(1, 1, k, 0) for k in range(10)] + [(2, 1, k, 0) for k in range(20)], 100).counts
    assert sum_caps(counts, 100, 0.7, np.array([1.0, 2.0])).tolist() == [700, 1400]
    assert sum_caps(counts, 100, 0.7, np.array([10.0, 20.0])).tolist() == [700, 1400], "any unit of width"
    alike = sum_caps(counts, 100, 0.7, np.ones(2))
    assert alike.tolist() == [1050, 1050]
    most = sum_caps(counts, 10**5, 1e12, np.array([1.0, 1e6]))
    assert (most > 0).all(), "a cap beyond int64 is no cap"
    for wrong in (np.ones(1), np.array([1.0, 0.0]), np.array([1.0, np.nan]), np.array([-1.0, 1.0])):
        with pytest.raises(ParameterError, match="width above 0"):
            sum_caps(counts, 100, 0.7, wrong)
    with pytest.raises(ParameterError, match="below 0"):
        Mean(100, np.array([5, -1]))
    nobody = Counts(counts.cells, counts.users, counts.pair_cell, counts.pair_user, 0 * counts.samples)
    assert sum_caps(nobody, 100, 0.7, np.ones(2)).tolist() == [100, 100]


@given(st.data())
def test_changing_one_users_values_moves_each_integer_by_at_most_its_sensitivity(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    upper, grid, n = 6500, 100, int(rng.integers(1, 60))
    cell, user = rng.integers(0, 4, n).astype(np.uint64), rng.integers(0, 6, n).astype(np.uint64)
    time, value = rng.permutation(n), rng.integers(-10, 9000, n)
    other = np.where(user == user[0], rng.choice([0, upper, 3000], n), value)
    one = Contributions.group(cell, user, time, value, upper=upper)
    two = Contributions.group(cell, user, time, other, upper=upper)
    retained = np.minimum(one.counts.samples, rng.integers(0, 5, len(one.counts.samples)))
    one, two = one.retain(retained), two.retain(retained)
    mine = one.counts.users[one.counts.pair_user] == user[0]
    for statistic in (
        Mean(upper),
        Mean(upper, np.linspace(6500, 9000, one.counts.n_cells).astype(np.int64)),
        Variance(upper, grid),
    ):
        allowed = one.counts.by_cell(np.where(mine, statistic.sensitivities(one.counts, retained), 0))
        assert (np.abs(statistic.integers(one) - statistic.integers(two)) <= allowed).all()


def test_values_are_clipped_before_they_are_summed_and_the_first_in_time_are_retained():
    contributions = group([(1, 1, 3, 99), (1, 1, 1, -5), (1, 1, 2, 4), (2, 1, 0, 7)], upper=10)
    assert contributions.values.tolist() == [0, 4, 10, 7]
    assert contributions.retain(np.array([2, 0])).values.tolist() == [0, 4]
    with pytest.raises(ParameterError):
        contributions.retain(np.array([4, 0]))


@given(st.decimals(min_value="0.000001", max_value="1000000", allow_nan=False))
def test_charges_round_up_and_allowances_round_down(epsilon):
    exact = Fraction(epsilon) * 1_000_000
    assert to_micro(epsilon, round_up=False) <= exact <= to_micro(epsilon, round_up=True)
    for tenth in (0.1, np.float64(0.1), np.float32(0.1), "0.1"):
        assert to_micro(tenth, round_up=False) == to_micro(tenth, round_up=True) == 100_000
    assert type(to_micro(np.int64(2), round_up=True)) is int, "a charge of numpy's would wrap around"


def test_the_sensitivity_of_a_variance_is_the_worst_change_over_all_values_of_one_user():
    """Exhaustive over values in {0, U/2, U}; the worst case of a convex function sits at its corners."""
    for grid, samples in itertools.product([1, 3], SAMPLES):
        variance = Variance(10, grid)
        worst = worst_changes(samples, (0, 5, 10), 10, variance.integers)
        assert all(0 <= c - w <= 1 for c, w in zip(claimed(variance, samples), worst, strict=True)), "only rounded up"


def test_the_printed_item_level_variance_sensitivity_is_wrong():
    """U²(L−1)/L would be L times too large: the true item-level value is U²(L−1)/L²."""
    upper, users = 100, 3
    counts = group(in_one_cell((1,) * users), upper).counts
    expected = Fraction(upper**2 * (users - 1), users**2)
    assert set(Variance(upper, 1).sensitivities(counts, counts.samples).tolist()) == {int(-(-expected // 1))}


def test_variances_of_large_values_are_exact_and_one_sample_has_none():
    rng = np.random.default_rng(5)
    cell, value = np.repeat(np.arange(3), (1, 2, 500)).astype(np.uint64), rng.integers(0, 2**24, 503)
    contributions = Contributions.group(cell, np.arange(503).astype(np.uint64), np.arange(503), value, upper=2**24)
    exact = [
        sum((Fraction(int(x)) - Fraction(sum(map(int, v)), len(v))) ** 2 for x in v) / len(v)
        for v in (value[:1], value[1:3], value[3:])
    ]
    assert Variance(2**24, 100).integers(contributions).tolist() == [int(x // 100) for x in exact]
    assert not Variance(2**24, 100).sensitivities(contributions.counts, contributions.counts.samples)[0]


def test_a_user_is_charged_for_both_numbers_in_each_of_their_cells():
    counts = group([(1, 1, 0, 0), (1, 1, 1, 0), (2, 1, 2, 0), (2, 2, 3, 0)], 10).counts
    scales = LaplaceScales(np.array([140, 70]), np.array([1, 1]))
    charges = exact_charges(MovingMean(10, 3).rows(counts, counts.samples), scales.numerator, scales.denominator)
    assert charges.tolist() == [200_000 + 200_000, 200_000]


def test_without_noise_the_mean_is_that_of_moving_reports_alone_and_the_number_theirs():
    number = MovingMean(10, 3)
    kept = group([(1, 1, 0, 0), (1, 1, 1, 2), (1, 2, 2, 3), (1, 2, 3, 9), (2, 1, 4, 1)], 10)
    noisy = number.draw(kept, np.zeros((2, 2), dtype=np.int64))
    assert number.number(noisy).tolist() == [2.0, 0.0]
    ratio = number.mean(noisy, np.full(2, 1e-9), ONE_SIDED)
    assert 3 + 7 * ratio.value[0] == pytest.approx(6.0)
    assert (ratio.low[1], ratio.high[1]) == (0.0, 1.0), "where none moves, nothing is known"


def test_the_interval_of_the_mean_holds_it_in_95_of_100_draws_also_where_few_move():
    """16 cells of 4 to 64 moving reports and as many standing, 1 000 draws: 16 000 intervals, at least 95 % less 5
    standard errors."""
    number, movers, rng = MovingMean(6500, 500), np.arange(4, 65, 4), np.random.default_rng(1)
    cell = np.repeat(np.arange(len(movers)), 2 * movers)
    value = np.where(np.arange(len(cell)) % 2, rng.integers(500, 6500, len(cell)), 0)
    user = np.arange(len(cell), dtype=np.uint64)
    kept = Contributions.group(cell.astype(np.uint64), user, np.arange(len(cell)), value, upper=6500)
    truth = [(kept.values[cell == g][kept.values[cell == g] > 0].mean() - 500) / 6000 for g in range(len(movers))]
    scale = LaplaceScales(np.full((2, 1), 12_000), np.ones((2, 1), dtype=np.int64))
    noise, inside = recorded(3), 0
    for _ in range(1000):
        drawn = np.broadcast_to(scale.numerator, (2, len(movers)))
        noisy = number.draw(kept, noise.discrete_laplace(drawn))
        ratio = number.mean(noisy, np.full(len(movers), 12_000 * np.sqrt(2)), ONE_SIDED)
        inside += int(((ratio.low <= truth) & (truth <= ratio.high)).sum())
    share = inside / (1000 * len(movers))
    assert 0.95 - 5 * np.sqrt(0.05 * 0.95 / (1000 * len(movers))) <= share <= 0.99
