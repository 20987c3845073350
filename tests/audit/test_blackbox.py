"""The audit itself, on mechanisms whose ε is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.audit.blackbox import N, epsilon_lower_bound


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
