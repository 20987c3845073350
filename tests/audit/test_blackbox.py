"""The audit itself, on mechanisms whose ε is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpcore.noise import Noise
from tests.audit.blackbox import N, Replayed, assert_caught, assert_private, epsilon_lower_bound, half_scale


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_bound_is_below_the_true_epsilon_and_not_far_below(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    one, other = rng.laplace(0, 1 / epsilon, 4 * N), rng.laplace(1, 1 / epsilon, 4 * N)
    bound = epsilon_lower_bound(one, other)
    assert 0.55 * epsilon < bound.epsilon <= epsilon


def test_false_alarms_are_no_more_frequent_than_alpha_says() -> None:
    """n = 300 audits of randomised response at α = 0.05 on a recorded tape; H0 "15 alarms on average" is tested at
    1e-6.

    An audit that refuted three times as often as it says is noticed with power 0.91, five times as often with 1 - 1e-7.
    """
    rng, epsilon = np.random.default_rng(2), 1.0
    truth = np.exp(epsilon) / (1 + np.exp(epsilon))
    alarms = 0
    for _ in range(300):
        one, other = rng.random(400) < truth, rng.random(400) >= truth
        alarms += epsilon_lower_bound(one, other, alpha=0.05).epsilon > epsilon
    assert stats.binomtest(alarms, 300, 0.05, alternative="greater").pvalue > 1e-6


def test_equal_inputs_give_no_evidence_and_disjoint_outputs_give_much() -> None:
    rng = np.random.default_rng(1)
    assert epsilon_lower_bound(rng.normal(size=N), rng.normal(size=N)).epsilon < 0.1
    assert epsilon_lower_bound(np.zeros(N), np.ones(N)).epsilon > 5


def test_losses_spread_over_columns_are_added_up() -> None:
    """Five columns at ε = 0.4 each: no single column can exceed 0.4."""
    rng = np.random.default_rng(1)
    one, other = rng.laplace(0, 2.5, (4 * N, 5)), rng.laplace(1, 2.5, (4 * N, 5))
    assert 0.41 < epsilon_lower_bound(one, other).epsilon <= 2.0


SENSITIVITY, SCALE = 3, (3, 1)
"""ε = 1."""


def test_discrete_laplace_is_private_and_half_the_scale_is_not() -> None:
    for noise, check in ((Noise(), assert_private), (half_scale(), assert_caught)):
        one = noise.discrete_laplace(*SCALE, N)
        other = SENSITIVITY + noise.discrete_laplace(*SCALE, N)
        check(epsilon_lower_bound(one, other), 1.0)


def test_reusing_a_seed_for_two_numbers_is_caught() -> None:
    """One user moves the first of two released numbers only; their difference must still be noisy.

    n = 400 with replayed noise, whose difference tells for certain: the bound is then above 2.8 with power 1.
    """

    def outputs(shift: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.column_stack([shift + one, shift + one - other])

    def fresh(shift: int) -> np.ndarray:
        return outputs(shift, *(Noise().discrete_laplace(*SCALE, N) for _ in range(2)))

    def replayed(shift: int) -> np.ndarray:
        pairs = [[noise.discrete_laplace(*SCALE, 1)[0] for noise in Replayed().fresh()] for _ in range(400)]
        return outputs(shift, *np.array(pairs).T)

    assert_private(epsilon_lower_bound(fresh(0), fresh(SENSITIVITY)), 1.0)
    assert_caught(epsilon_lower_bound(replayed(0), replayed(SENSITIVITY)), 1.0)


@pytest.mark.false_alarm(2e-6)
@pytest.mark.parametrize("scale", [1, 7, 40])
def test_opendp_draws_from_the_same_distribution(scale: int) -> None:
    """Two-sample χ², n = 20 000 of theirs, fresh in every run, α = 1e-6; a scale 20 % off fails with power > 1 -
    1e-6."""
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l1_distance(T=int)
    theirs = np.array(opendp.m.make_laplace(*space, scale=float(scale))([0] * 20_000))
    ours = Noise().discrete_laplace(scale, 1, 20_000)
    wrong = Noise().discrete_laplace(12 * scale, 10, 20_000)

    def p_value(a: np.ndarray, b: np.ndarray) -> float:
        edges = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 25)))
        table = np.array([np.histogram(side, bins=[-np.inf, *edges[1:-1] + 0.5, np.inf])[0] for side in (a, b)])
        return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 10]).pvalue)

    assert p_value(ours, theirs) > 1e-6
    assert p_value(wrong, theirs) < 1e-6
