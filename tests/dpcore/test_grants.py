"""Rolling grants never add up to more than the budget, and are nobody else's."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import BudgetError
from dpcore.grants import rolling_grants


def _spend(grants, budget: int, seed: int, users: int = 5, windows: int = 40) -> np.ndarray:
    """What each user has spent after a period in which they charge random shares of ``grants``, often all."""
    rng, spent = np.random.default_rng(seed), np.zeros(users, dtype=np.int64)
    for window in range(windows):
        share = rng.choice([0.0, 0.5, 1.0], users)
        spent += np.floor(share * grants(budget, spent, windows - window)).astype(np.int64)
    return spent


@pytest.mark.parametrize("budget", [0, 1, 39, 10**6])
def test_grants_of_a_period_add_up_to_the_budget_at_most(budget):
    assert max(_spend(rolling_grants, budget, seed).max() for seed in range(50)) <= budget


def test_a_grant_of_another_user_is_caught():
    def of_the_neighbour(budget, spent, left):
        return rolling_grants(budget, np.roll(spent, 1), left)

    assert max(_spend(of_the_neighbour, 10**6, seed).max() for seed in range(50)) > 10**6


def test_whoever_was_absent_gets_what_they_did_not_spend_and_the_last_window_gets_all():
    spent = np.array([0, 400, 1000, 1500])
    assert rolling_grants(1000, spent, 4).tolist() == [250, 150, 0, 0]
    assert rolling_grants(1000, spent, 0).tolist() == [1000, 600, 0, 0]
    assert rolling_grants(1000, spent, np.array([1, 2, 3, 4])).tolist() == [1000, 300, 0, 0]


def test_a_damaged_ledger_is_refused():
    with pytest.raises(BudgetError, match="damaged"):
        rolling_grants(1000, np.array([-1]), 4)
    with pytest.raises(BudgetError, match="integers"):
        rolling_grants(1000, np.array([0.5]), 4)
