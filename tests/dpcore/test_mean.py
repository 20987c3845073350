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
from dpcore.contributions import Contributions
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.mean import Mean, clipping_bias, sum_cap
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
    upper = 10
    for user, m in enumerate(samples):
        sums: dict[bool, list[int]] = {True: [], False: []}
        for own in itertools.product((0, 5, 10), repeat=m):
            rows = [(1, u, k, own[k] if u == user else upper) for u, count in enumerate(samples) for k in range(count)]
            contributions = group(rows, upper)
            claimed = int(Mean(upper, cap).sensitivities(contributions.counts, contributions.counts.samples)[user])
            for capped in sums:
                sums[capped].append(int(Mean(upper, cap if capped else None).integers(contributions)[0]))
        assert max(sums[True]) - min(sums[True]) == claimed == min(cap, upper * m)
        if cap < upper * m:
            assert max(sums[False]) - min(sums[False]) > claimed, (
                "planted bug: charged for the cap, released without it"
            )


def test_the_cap_is_a_share_of_the_mean_contribution_and_never_below_one_sample() -> None:
    counts = group([(1, 1, k, 0) for k in range(9)] + [(1, 2, 0, 0)], 100).counts
    assert sum_cap(counts, 100, 0.7) == 350
    assert sum_cap(counts, 100, 0.01) == 100
    assert Mean(100, 350).rows(counts, counts.samples).delta.tolist() == [350, 100]
    with pytest.raises(ParameterError, match="above 0"):
        sum_cap(counts, 100, 0.0)


@settings(max_examples=300, deadline=None)
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
    for statistic in (Mean(upper), Mean(upper, 7000), Variance(upper, grid)):
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
    assert to_micro(0.1, round_up=False) == to_micro(0.1, round_up=True) == 100_000


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), "x", 1e-9])
def test_budgets_that_mean_nothing_are_refused(epsilon: float | str) -> None:
    with pytest.raises(BudgetError) as caught:
        to_micro(epsilon, round_up=False)
    assert isinstance(caught.value, DPError)
    assert "give" in str(caught.value)
