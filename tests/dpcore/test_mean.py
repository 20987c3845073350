"""Means of cells: sensitivity by brute force, the cap, clipping, budgets and columns."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.budget import to_micro
from dpcore.contributions import Contributions, Counts
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.mean import Mean, clipping_bias, sum_caps
from dpcore.variance import Variance
from tests.dpcore.worst_changes import group, worst_changes


@pytest.mark.parametrize("samples", [(1,), (1, 1), (2, 1), (1, 2, 2), (3, 1, 1), (4, 2)])
def test_the_sensitivity_is_the_worst_change_over_all_values_of_one_user(samples: tuple[int, ...]) -> None:
    """Exhaustive over values in {0, U/2, U}."""
    mean = Mean(10)
    rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
    counts = group(rows, 10).counts
    assert (worst_changes(rows, mean.integers, 10) == mean.sensitivities(counts, counts.samples)).all()


@pytest.mark.parametrize("samples", [(1,), (2, 1), (3, 2, 1), (4, 2)])
@pytest.mark.parametrize("cap", [10, 13, 25])
def test_a_capped_sum_moves_by_at_most_its_cap(samples: tuple[int, ...], cap: int) -> None:
    """Exhaustive over values in {0, 5, U} of one user beside others at U; without the cap the claim is broken."""
    upper, caps = 10, np.array([cap])
    for user, m in enumerate(samples):
        sums: dict[bool, list[int]] = {True: [], False: []}
        for own in itertools.product((0, 5, 10), repeat=m):
            rows = [(1, u, k, own[k] if u == user else upper) for u, count in enumerate(samples) for k in range(count)]
            contributions = group(rows, upper)
            claimed = int(Mean(upper, caps).sensitivities(contributions.counts, contributions.counts.samples)[user])
            for capped in sums:
                sums[capped].append(int(Mean(upper, caps if capped else None).integers(contributions)[0]))
        assert max(sums[True]) - min(sums[True]) == claimed == min(cap, upper * m)
        if cap < upper * m:
            assert max(sums[False]) - min(sums[False]) > claimed, (
                "planted bug: charged for the cap, released without it"
            )


def test_the_cap_is_a_share_of_the_mean_contribution_and_never_below_one_sample() -> None:
    counts = group([(1, 1, k, 0) for k in range(9)] + [(1, 2, 0, 0)], 100).counts
    assert sum_caps(counts, 100, 0.7, np.ones(1)).tolist() == [350]
    assert sum_caps(counts, 100, 0.01, np.ones(1)).tolist() == [100]
    assert Mean(100, np.array([350])).rows(counts, counts.samples).delta.tolist() == [350, 100]
    with pytest.raises(ParameterError, match="above 0"):
        sum_caps(counts, 100, 0.0, np.ones(1))
    with pytest.raises(ParameterError, match="2 caps for 1 cells"):
        Mean(100, np.array([350, 350])).rows(counts, counts.samples)


def test_a_wider_cell_has_a_wider_cap_and_stays_are_compared_per_width() -> None:
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


@settings(max_examples=100)
@given(st.data())
def test_caps_that_differ_by_cell_bound_what_one_user_moves_in_each(data: st.DataObject) -> None:
    """Without them in the sum, the planted bug, some user moves a cell by more than is charged for."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n, upper, caps = 200, 100, np.array([100, 300, 900, 2700])
    cell, user, time = np.repeat(np.arange(4), n // 4).astype(np.uint64), np.zeros(n, np.uint64), np.arange(n)
    low, high = (
        Contributions.group(cell, user, time, value, upper=upper)
        for value in (np.zeros(n, np.int64), rng.integers(upper - 5, upper + 5, n))
    )
    mean = Mean(upper, caps)
    moved = np.abs(mean.integers(high) - mean.integers(low))
    assert (moved == mean.sensitivities(high.counts, high.counts.samples)).all()
    uncapped = np.abs(Mean(upper).integers(high) - Mean(upper).integers(low))
    assert (uncapped > moved).all()


@settings(max_examples=300)
@given(st.data())
def test_changing_one_users_values_moves_each_integer_by_at_most_its_sensitivity(data: st.DataObject) -> None:
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


@pytest.mark.parametrize("total", range(1, 9))
def test_clipping_bias_is_the_worst_case_by_brute_force(total: int) -> None:
    for kept in range(1, total + 1):
        values = np.array(list(itertools.product((0.0, 1.0), repeat=total)))
        worst = np.abs(values.mean(axis=1) - values[:, :kept].mean(axis=1)).max()
        assert worst == pytest.approx(clipping_bias(np.array([total]), np.array([kept]))[0])


def test_values_are_clipped_before_they_are_summed_and_the_first_in_time_are_retained() -> None:
    contributions = group([(1, 1, 3, 99), (1, 1, 1, -5), (1, 1, 2, 4), (2, 1, 0, 7)], upper=10)
    assert contributions.values.tolist() == [0, 4, 10, 7]
    assert contributions.retain(np.array([2, 0])).values.tolist() == [0, 4]
    with pytest.raises(ParameterError):
        contributions.retain(np.array([4, 0]))


def test_sums_that_could_leave_int64_are_refused() -> None:
    zeros = np.zeros(4, dtype=np.uint64)
    with pytest.raises(OverflowBoundError):
        Contributions.group(zeros, zeros, np.arange(4), np.arange(4), upper=2**61)
    contributions = Contributions.group(zeros, zeros, np.arange(4), np.arange(4), upper=2**31)
    with pytest.raises(OverflowBoundError):
        contributions.cell_squares()


@given(st.decimals(min_value="0.000001", max_value="1000000", allow_nan=False))
def test_charges_round_up_and_allowances_round_down(epsilon: Decimal) -> None:
    exact = Fraction(epsilon) * 1_000_000
    assert to_micro(epsilon, round_up=False) <= exact <= to_micro(epsilon, round_up=True)
    for tenth in (0.1, np.float64(0.1), np.float32(0.1), "0.1"):
        assert to_micro(tenth, round_up=False) == to_micro(tenth, round_up=True) == 100_000


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), "x", 1e-9])
def test_budgets_that_mean_nothing_are_refused(epsilon: float | str) -> None:
    with pytest.raises(BudgetError) as caught:
        to_micro(epsilon, round_up=False)
    assert isinstance(caught.value, DPError)
    assert "give" in str(caught.value)
