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
from scipy import optimize

from dpcore import gaussian_allocation as module
from dpcore.accounting import NANO, epsilon_of_rho, gaussian_losses, gaussian_ratio, rho_of, rho_of_pure
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from tests.dpcore.programs import from_dense, matrices


def hockey_stick(sigma: float, shift: int, epsilon: float) -> float:
    """Least δ of N_Z(0, σ²) against its shift at ε, from the masses themselves."""
    x = np.arange(-int(40 * sigma) - shift - 40, int(40 * sigma) + 2 * shift + 41)
    one = np.exp(-0.5 * (x / sigma) ** 2)
    other = np.exp(-0.5 * ((x - shift) / sigma) ** 2)
    total = one.sum()
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum() / total)


def test_a_scale_never_falls_short_of_its_rho_and_wastes_next_to_nothing():
    for sensitivity, rho in itertools.product([1, 5, 32_500, 10**9], [7, 12_345, 10**6, 10**9, 5 * 10**11]):
        exact = Fraction(NANO * sensitivity**2, 2 * rho)
        if exact > 2**80:
            with pytest.raises(OverflowBoundError):
                gaussian_ratio(sensitivity, rho)
            return
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
    with pytest.raises(ParameterError):
        gaussian_losses(np.array([1]), 0, 1)


def test_the_stated_epsilon_is_between_the_true_loss_and_the_simple_bound():
    for delta, rho in itertools.product([1e-5, 1e-6, 1e-9, 1e-12], [1e-5, 1e-3, 0.02, 0.125, 1.0, 4.0, 30.0]):
        epsilon = epsilon_of_rho(math.ceil(rho * NANO), delta)
        assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
        true = hockey_stick(1 / math.sqrt(2 * rho), 1, epsilon)
        assert true <= delta, "the discrete Gaussian loses more than is stated"
        tighter = hockey_stick(1 / math.sqrt(2 * rho), 1, 0.8 * epsilon)
        assert tighter > delta or rho > 1, "the stated epsilon is far from the true one"


@pytest.mark.false_alarm(0)
def test_the_conversion_agrees_with_the_published_implementation():
    """OpenDP's zCDP-to-approximate-DP map at scale 4, δ = 10⁻³ states 0.6880024554878086."""
    assert epsilon_of_rho(NANO // 32, 1e-3) == pytest.approx(0.6880024554878, abs=1.1e-6)
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=float)
    for sigma, delta in [(2.0, 1e-6), (10.0, 1e-6), (0.5, 1e-9)]:
        theirs = opendp.c.make_zCDP_to_approxDP(opendp.m.make_gaussian(*space, scale=sigma)).map(1.0).epsilon(delta)
        rho = math.ceil(NANO / (2 * sigma * sigma))
        assert theirs - 1e-9 <= epsilon_of_rho(rho, delta) <= theirs + 2e-6


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


def test_parameters_out_of_bounds_are_refused():
    for call in (
        lambda: gaussian_ratio(1, 0),
        lambda: gaussian_ratio(1, 0.5),  # type: ignore[arg-type]
        lambda: epsilon_of_rho(0, 1e-6),
        lambda: rho_of(0, 1e-6),
        lambda: rho_of_pure(-1),
    ):
        with pytest.raises(BudgetError):
            call()
    for delta in (0, 1, -1e-6, float("nan")):
        with pytest.raises(ParameterError):
            epsilon_of_rho(1, delta)
    assert gaussian_ratio(0, 5) == (0, 1)


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


def test_what_cannot_be_charged_or_bounded_is_refused():
    one = from_dense(np.array([[800]]))
    with pytest.raises(BudgetError, match="less than 2 nρ"):
        allocate_gaussian(one, np.array([1]))
    with pytest.raises(BudgetError, match="integers of nρ"):
        allocate_gaussian(one, np.array([1.5]))
    with pytest.raises(OverflowBoundError, match="exceeds 1000000000000"):
        allocate_gaussian(one, np.array([10**13]))
    with pytest.raises(OverflowBoundError, match="coarser quantum"):
        allocate_gaussian(from_dense(np.array([[2**40]])), np.array([10]))
    with pytest.raises(OverflowBoundError, match="numerators"):
        exact_rho_charges(one, np.array([0]), np.array([1]))


def test_a_lone_user_in_one_cell_spends_all_of_their_allowance_on_the_scale_of_the_formula():
    allowance = rho_of(12.0, 1e-6) // 96
    allocation = allocate_gaussian(from_dense(np.array([[800]])), np.array([allowance]))
    assert allocation.scales[0] == pytest.approx(800 / np.sqrt(2e-9 * allowance), rel=1e-6)
    assert allowance - 10 <= allocation.charges[0] <= allowance
