"""Charges of Gaussian noise in nρ hold exactly for every user, whatever the solver did; the scales are close to the
optimum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from dpcore import gaussian_allocation as module
from dpcore.accounting import rho_of
from dpcore.errors import BudgetError, OverflowBoundError
from dpcore.gaussian import discrete_gaussian
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from dpcore.noise import Noise
from tests.dpcore.programs import from_dense, matrices


def losses(matrix: np.ndarray, numerator, denominator) -> list[Fraction]:
    """Every user's loss Σ Δ²/(2σ²) in nρ as an exact fraction, computed without the code that charges."""
    unit = [
        Fraction(10**9 * int(s) ** 2, 2 * int(t) ** 2) if t else 0 for t, s in zip(numerator, denominator, strict=True)
    ]
    return [sum((int(d) ** 2 * u for d, u in zip(column, unit, strict=True) if d), Fraction(0)) for column in matrix.T]


def overcharged(matrix: np.ndarray, allocation) -> bool:
    """Whether some user loses more than they are charged."""
    exact = losses(matrix, allocation.numerator, allocation.denominator)
    return any(loss > int(charge) for loss, charge in zip(exact, allocation.charges, strict=True))


@given(matrices, st.integers(0, 2**32), st.sampled_from([40, 1000, 10**7, 10**10]))
def test_no_user_ever_loses_more_than_their_charge_nor_is_charged_more_than_their_allowance(matrix, seed, most):
    rng = np.random.default_rng(seed)
    allowances = rng.integers(20, most, matrix.shape[1])
    sensitivities = from_dense(matrix, rng.uniform(0.01, 100, len(matrix)))
    allocation = allocate_gaussian(sensitivities, allowances)
    assert np.all(allocation.charges <= allowances)
    assert not overcharged(matrix, allocation)
    assert np.all((allocation.numerator > 0) == matrix.any(axis=1))


def _floored(s, numerator, denominator):
    cost = np.floor(1e9 * s.delta.astype(float) ** 2 * denominator[s.row] ** 2.0 / (2.0 * numerator[s.row] ** 2.0))
    return np.bincount(s.user, weights=cost, minlength=s.n_users).astype(np.int64)


def _unsquared(s, numerator, denominator):
    cost = np.ceil(1e9 * s.delta * denominator[s.row] ** 2.0 / (2.0 * numerator[s.row] ** 2.0))
    return np.bincount(s.user, weights=cost, minlength=s.n_users).astype(np.int64)


def _half_sigma(s, numerator, denominator):
    return exact_rho_charges(s, 2 * numerator, denominator)


@pytest.mark.parametrize("bug", [_floored, _unsquared, _half_sigma], ids=["rounded down", "not squared", "half σ"])
def test_a_charge_that_is_too_small_is_caught_by_the_exact_judge(bug, monkeypatch):
    monkeypatch.setattr(module, "exact_rho_charges", bug)
    matrix = np.random.default_rng(3).integers(2, 50, (6, 9))
    assert overcharged(matrix, allocate_gaussian(from_dense(matrix), np.full(9, 10**6)))


def test_scales_are_within_a_thousandth_of_the_optimum_which_a_general_solver_finds():
    rng = np.random.default_rng(5)
    for _ in range(8):
        matrix = rng.integers(0, 30, (4, 6))
        matrix[:, 0] += 1
        weight, beta = rng.uniform(1, 5, 4), rng.integers(10**8, 10**9, 6)
        even = 1 / (np.square(matrix) / (2e-9 * beta)).sum(axis=0).max() / np.ones(4)
        solution = optimize.minimize(
            lambda z, w=weight, e=even: float((w * (e * z) ** -0.5).sum()),
            np.ones(4),
            bounds=[(1e-3, None)] * 4,
            constraints={
                "type": "ineq",
                "fun": lambda z, m=matrix, b=beta, e=even: 1 - (m.T**2 @ (e * z)) / (2e-9 * b),
            },
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-13},
        )
        allocation = allocate_gaussian(from_dense(matrix, weight), beta)
        assert allocation.bound <= solution.fun * (1 + 1e-6), "the bound lies below the optimum"
        assert solution.fun * (1 - 1e-6) <= allocation.objective <= solution.fun * (1 + 1e-3)


def test_a_lone_user_in_one_cell_spends_all_of_their_allowance_on_the_scale_of_the_formula():
    allowance = rho_of(12.0, 1e-6) // 96
    allocation = allocate_gaussian(from_dense(np.array([[800]])), np.array([allowance]))
    assert allocation.scales[0] == pytest.approx(800 / np.sqrt(2e-9 * allowance), rel=1e-6)
    assert allowance - 10 <= allocation.charges[0] <= allowance


def test_the_drawn_noise_has_the_scale_that_was_charged_for():
    """10 000 draws: the standard deviation of the sample variance is σ²·√(2/n), and 5 of them are allowed (α =
    6·10⁻⁷)."""
    allocation = allocate_gaussian(from_dense(np.array([[800]])), np.array([10**8]))
    drawn = discrete_gaussian(Noise(), int(allocation.numerator[0]), int(allocation.denominator[0]), 10_000)
    assert np.var(drawn) == pytest.approx(allocation.scales[0] ** 2, rel=5 * np.sqrt(2 / 10_000))


def test_what_cannot_be_charged_or_bounded_is_refused():
    one = from_dense(np.array([[800]]))
    with pytest.raises(BudgetError, match="less than 2 nρ"):
        allocate_gaussian(one, np.array([1]))
    with pytest.raises(BudgetError, match="integers of nρ"):
        allocate_gaussian(one, np.array([1.5]))
    with pytest.raises(OverflowBoundError, match="exceeds a rho"):
        allocate_gaussian(one, np.array([10**13]))
    with pytest.raises(OverflowBoundError, match="coarser quantum"):
        allocate_gaussian(from_dense(np.array([[2**40]])), np.array([10]))
    with pytest.raises(OverflowBoundError, match="numerators"):
        exact_rho_charges(one, np.array([0]), np.array([1]))
