"""Charges in nρ are never below the loss, and the stated ε lies between the discrete Gaussian's own and the simple
bound. Charges of Gaussian noise in nρ hold exactly for every user, whatever the solver did; the scales are close to the
optimum."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.accounting import NANO, epsilon_of_rho, gaussian_losses, gaussian_ratio, rho_of, rho_of_pure
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from tests.dpcore.programs import from_dense, matrices, optimum, overcharged


def test_a_scale_never_falls_short_of_its_rho_and_wastes_next_to_nothing():
    assert gaussian_ratio(0, 7) == (0, 1), "no noise for what nobody can move"
    for sensitivity, rho in itertools.product([1, 5, 32_500, 10**9], [7, 12_345, 10**6, 10**9, 5 * 10**11]):
        exact = Fraction(NANO * sensitivity**2, 2 * rho)
        if exact > 2**80:
            with pytest.raises(OverflowBoundError):
                gaussian_ratio(sensitivity, rho)
            continue
        t, s = gaussian_ratio(sensitivity, rho)
        assert 1 <= t <= 2**40
        assert Fraction(t * t, s * s) >= exact
        assert float(Fraction(t * t, s * s) / exact) < 1 + 2**-14
        assert gaussian_losses(np.array([sensitivity]), t, s)[0] <= rho


def test_losses_are_the_exact_ones_rounded_up():
    deltas = np.array([[0, 1, 7], [32_500, 7, 2**38]])
    for t, s in [(1, 1), (2**40, 1), (123_457, 2**9)]:
        if s * 2**38 / t > 2**20:
            with pytest.raises(OverflowBoundError):
                gaussian_losses(deltas, t, s)
            continue
        got = gaussian_losses(deltas, t, s)
        exact = [math.ceil(Fraction(NANO * d * d * s * s, 2 * t * t)) for d in deltas.ravel().tolist()]
        assert got.ravel().tolist() == exact
        assert got.shape == deltas.shape
    assert gaussian_losses(np.zeros(3, dtype=int), 0, 1).tolist() == [0, 0, 0]
    assert exact_rho_charges(from_dense(np.array([[1]])), np.array([1]), np.array([1])) == [NANO // 2]
    with pytest.raises(ParameterError):
        gaussian_losses(np.array([1]), 0, 1)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 2.0, 16.0, 100.0])
def test_rho_of_is_the_most_that_converts_to_epsilon(epsilon):
    rho = rho_of(epsilon, 1e-6)
    assert epsilon_of_rho(rho, 1e-6) <= epsilon
    assert epsilon_of_rho(rho + max(rho // 10_000, 200), 1e-6) > epsilon


def test_more_rho_or_less_delta_is_more_epsilon():
    grid = [epsilon_of_rho(rho, 1e-6) for rho in np.geomspace(1, 10**11, 200).astype(int).tolist()]
    assert grid == sorted(grid)
    assert epsilon_of_rho(10**7, 1e-7) > epsilon_of_rho(10**7, 1e-6)


@pytest.mark.parametrize("micro", [1, 1_000, 500_000, 2_000_000, 9_000_000])
def test_the_rho_of_a_pure_release_bounds_its_renyi_divergence_at_every_order(micro):
    """Worst case of ε-DP: randomised response; orders 1.01 to 500."""
    epsilon, rho = micro / 1e6, rho_of_pure(micro) / NANO
    p = 1 / (1 + math.exp(epsilon))
    for order in (1.01, 1.5, 2, 4, 16, 100, 500):
        log_terms = np.array(
            [order * math.log1p(-p) + (1 - order) * math.log(p), order * math.log(p) + (1 - order) * math.log1p(-p)]
        )
        divergence = float(np.logaddexp.reduce(log_terms)) / (order - 1)
        assert divergence <= order * rho * (1 + 1e-9) + 1e-12
    if micro == 500_000:
        assert rho_of_pure(micro) == 125_000_000
        assert rho_of_pure(micro + 1) > 125_000_000


@given(matrices, st.integers(0, 2**32), st.sampled_from([40, 1000, 10**7, 10**10]))
def test_no_user_ever_loses_more_than_their_charge_nor_is_charged_more_than_their_allowance(matrix, seed, most):
    rng = np.random.default_rng(seed)
    allowances = rng.integers(20, most, matrix.shape[1])
    sensitivities = from_dense(matrix, rng.uniform(0.01, 100, len(matrix)))
    allocation = allocate_gaussian(sensitivities, allowances)
    assert np.all(allocation.charges <= allowances)
    assert not overcharged(matrix, allocation, gaussian=True)
    assert np.all((allocation.numerator > 0) == matrix.any(axis=1))


def test_scales_are_within_a_thousandth_of_the_optimum_which_a_general_solver_finds():
    rng = np.random.default_rng(5)
    for _ in range(8):
        matrix = rng.integers(0, 30, (4, 6))
        matrix[:, 0] += 1
        weight, beta = rng.uniform(1, 5, 4), rng.integers(10**8, 10**9, 6)
        least = optimum(matrix**2, weight, 2e-9 * beta, 0.5)
        allocation = allocate_gaussian(from_dense(matrix, weight), beta)
        assert least * (1 - 1e-3) <= allocation.bound <= least * (1 + 1e-6), "the bound lies close below the optimum"
        assert least * (1 - 1e-6) <= allocation.objective <= least * (1 + 1e-3)


def test_a_lone_user_in_one_cell_spends_all_of_their_allowance_on_the_scale_of_the_formula():
    """A second cell that weighs next to nothing costs them 1 nρ."""
    allowance = rho_of(12.0, 1e-6) // 96
    for cells, weight in ((1, [1.0]), (2, [1.0, 1e-20])):
        allocation = allocate_gaussian(from_dense(np.full((cells, 1), 800), np.array(weight)), np.array([allowance]))
        formula = 800 / np.sqrt(2e-9 * np.array([allowance, 1]))
        assert allocation.scales == pytest.approx(formula[:cells], rel=1e-6)
        assert allowance - 10 <= allocation.charges[0] <= allowance
