"""1/n variances of cells: sensitivity and clipping bias by brute force, the printed mistakes, exactness."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.variance import Variance, clipping_bias, worst_change
from tests.dpcore.worst_changes import group, worst_changes


@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("samples", [(1,), (1, 1), (2, 1), (1, 2, 2), (3, 1, 1), (4, 2)])
def test_the_sensitivity_is_the_worst_change_over_all_values_of_one_user(samples: tuple[int, ...], grid: int) -> None:
    """Exhaustive over values in {0, U/2, U}; the worst case of a convex function sits at its corners."""
    variance = Variance(10, grid)
    rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
    counts = group(rows, 10).counts
    claimed, worst = variance.sensitivities(counts, counts.samples), worst_changes(rows, variance.integers, 10)
    assert (worst <= claimed).all()
    assert (claimed - worst <= 1).all(), "looser than the rounding explains"


def test_the_printed_item_level_variance_sensitivity_is_wrong() -> None:
    """U²(L−1)/L would be L times too large: the true item-level value is U²(L−1)/L²."""
    upper, users = 100, 3
    counts = group([(1, user, 0, 0) for user in range(users)], upper).counts
    expected = Fraction(upper**2 * (users - 1), users**2)
    assert set(Variance(upper, 1).sensitivities(counts, counts.samples).tolist()) == {int(-(-expected // 1))}


def test_the_two_cases_of_the_clipping_bias_are_printed_the_wrong_way_round() -> None:
    """N = 4, n = 3: the worst bias is 3·U²/16. The formula printed for n > N/2, U²⌊N/2⌋⌈N/2⌉/N², gives 4·U²/16."""
    values = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    worst = np.abs(values.var(axis=1) - values[:, :3].var(axis=1)).max()
    assert worst == pytest.approx(3 * (4 - 3) / 16)
    assert worst < 2 * 2 / 16


@pytest.mark.parametrize("total", range(1, 9))
def test_clipping_bias_is_the_worst_case_by_brute_force(total: int) -> None:
    for kept in range(1, total + 1):
        values = np.array(list(itertools.product((0.0, 1.0), repeat=total)))
        worst = np.abs(values.var(axis=1) - values[:, :kept].var(axis=1)).max()
        assert worst == pytest.approx(clipping_bias(np.array([total]), np.array([kept]))[0])


@pytest.mark.parametrize("n", range(1, 9))
def test_the_worst_change_of_one_user_is_that_of_the_sensitivity(n: int) -> None:
    for own in range(1, n + 1):
        rows = [(1, 0, k, 0) for k in range(own)] + [(1, 1, k, 0) for k in range(n - own)]
        counts = group(rows, 1).counts
        delta = int(Variance(1000, 1).sensitivities(counts, counts.samples)[0])
        assert delta - 1 <= 10**6 * worst_change(np.array([n]), np.array([own]))[0] <= delta + 1e-6


def test_variances_of_large_values_are_exact_and_one_sample_has_none() -> None:
    rng = np.random.default_rng(5)
    cell, value = np.repeat(np.arange(3), (1, 2, 500)).astype(np.uint64), rng.integers(0, 2**24, 503)
    contributions = Contributions.group(cell, np.arange(503).astype(np.uint64), np.arange(503), value, upper=2**24)
    exact = [
        sum((Fraction(int(x)) - Fraction(sum(map(int, v)), len(v))) ** 2 for x in v) / len(v)
        for v in (value[:1], value[1:3], value[3:])
    ]
    assert Variance(2**24, 100).integers(contributions).tolist() == [int(x // 100) for x in exact]
    assert not Variance(2**24, 100).sensitivities(contributions.counts, contributions.counts.samples)[0]
