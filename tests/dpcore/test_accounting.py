"""Charges in nρ are never below the loss, and the stated ε lies between the discrete Gaussian's own and the simple
bound.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpcore.accounting import (
    NANO,
    epsilon_of_rho,
    gaussian_losses,
    gaussian_ratio,
    rho_of,
    rho_of_pure,
)
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError


def hockey_stick(sigma: float, shift: int, epsilon: float) -> float:
    """Least δ of N_Z(0, σ²) against its shift at ε, from the masses themselves."""
    x = np.arange(-int(40 * sigma) - shift - 40, int(40 * sigma) + 2 * shift + 41)
    one = np.exp(-0.5 * (x / sigma) ** 2)
    other = np.exp(-0.5 * ((x - shift) / sigma) ** 2)
    total = one.sum()
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum() / total)


@pytest.mark.parametrize("sensitivity", [1, 5, 32_500, 10**9])
@pytest.mark.parametrize("rho", [7, 12_345, 10**6, 10**9, 5 * 10**11])
def test_a_scale_never_falls_short_of_its_rho_and_wastes_next_to_nothing(sensitivity: int, rho: int) -> None:
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


def test_losses_are_the_exact_ones_rounded_up() -> None:
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


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("rho", [1e-5, 1e-3, 0.02, 0.125, 1.0, 4.0, 30.0])
def test_the_stated_epsilon_is_between_the_true_loss_and_the_simple_bound(rho: float, delta: float) -> None:
    epsilon = epsilon_of_rho(math.ceil(rho * NANO), delta)
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))
    true = hockey_stick(1 / math.sqrt(2 * rho), 1, epsilon)
    assert true <= delta, "the discrete Gaussian loses more than is stated"
    tighter = hockey_stick(1 / math.sqrt(2 * rho), 1, 0.8 * epsilon)
    assert tighter > delta or rho > 1, "the stated epsilon is far from the true one"


def test_half_of_a_simple_bound_is_not_enough() -> None:
    """Planted bug: ε = 2·√(ρ·ln(1/δ))/2, a forgotten factor."""
    assert hockey_stick(1 / math.sqrt(0.04), 1, math.sqrt(0.02 * math.log(1e6))) > 1e-6


def test_the_conversion_agrees_with_the_published_implementation() -> None:
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
def test_rho_of_is_the_most_that_converts_to_epsilon(epsilon: float) -> None:
    rho = rho_of(epsilon, 1e-6)
    assert epsilon_of_rho(rho, 1e-6) <= epsilon
    assert epsilon_of_rho(rho + max(rho // 10_000, 200), 1e-6) > epsilon


def test_more_rho_or_less_delta_is_more_epsilon() -> None:
    grid = [epsilon_of_rho(rho, 1e-6) for rho in np.geomspace(1, 10**11, 200).astype(int).tolist()]
    assert grid == sorted(grid)
    assert epsilon_of_rho(10**7, 1e-7) > epsilon_of_rho(10**7, 1e-6)


@pytest.mark.parametrize("micro", [1, 1_000, 500_000, 2_000_000, 9_000_000])
def test_the_rho_of_a_pure_release_bounds_its_renyi_divergence_at_every_order(micro: int) -> None:
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


def test_parameters_out_of_bounds_are_refused() -> None:
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
