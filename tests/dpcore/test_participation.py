"""Integers of relation "participation": bins are never more than values, and samples count in a listed cell or not at
all."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.budget import rolling_grants
from dpcore.cdf import bin_edges
from dpcore.contributions import Contributions
from dpcore.errors import BudgetError, ParameterError
from dpcore.level_tree import LevelTree
from dpcore.participation import UNIT, Layout, PublicCells, Weight, integers


def layout(upper: int, bins: int, *, percentiles: bool = True, weight: Weight = "user") -> Layout:
    return Layout.of(mean=True, variance=False, percentiles=percentiles, weight=weight, upper=upper, bins=bins)


def ids(*cells: int) -> np.ndarray:
    return np.array(cells, dtype=np.uint64)


@pytest.mark.parametrize("bins", [4, 6, 10, 4096])
def test_the_leaves_of_every_tree_are_the_bins_of_its_edges_also_where_more_bins_than_values_are_asked_for(
    bins: int,
) -> None:
    """Values 0 … 5: six bins at most, of one value each. Every value is found in its own bin of its own cell."""
    asked = layout(5, bins)
    edges = bin_edges(5, bins)
    assert asked.tree is not None
    assert asked.tree.bins == len(edges) - 1 == min(bins, 6)
    values = np.arange(6)
    kept = Contributions.group(ids(7, 7, 7, 9, 9, 9), ids(*range(6)), values, values, upper=5)
    exact = integers(asked, kept, PublicCells(ids(7, 8, 9)))
    assert exact.shape == (asked.rows.sum(), 3)
    leaves = exact[-asked.tree.real_nodes()[-1] :] // UNIT
    for column, own in zip(leaves.T, (values[:3], values[:0], values[3:]), strict=True):
        assert column.tolist() == np.histogram(own, bins=edges)[0].tolist()


def test_a_layout_with_more_bins_than_values_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"7 bins has more of them than the 6 values; use Layout\.of"):
        Layout(1, users=False, tree=LevelTree(7, (7,)), weight="user", upper=5)


@pytest.mark.parametrize("weight", ["share", "user", "sample"])
@pytest.mark.parametrize("unlisted", [1, 5, 12])
def test_samples_of_an_unlisted_cell_are_refused_instead_of_counted_in_the_next_listed_one(
    unlisted: int, weight: Weight
) -> None:
    """Pairs without samples, as users' own choice leaves them, may lie anywhere."""
    asked, public = layout(100, 4, weight=weight), PublicCells(ids(2, 9))
    kept = Contributions.group(ids(unlisted, 9), ids(1, 2), np.arange(2), np.array([50, 50]), upper=100)
    with pytest.raises(ParameterError, match=r"none of the 2 listed cells; keep what Participation\.own_choice keeps"):
        integers(asked, kept, public)
    without = kept.retain(np.where(kept.counts.cells[kept.counts.pair_cell] == 9, 1, 0))
    alone = Contributions.group(ids(9), ids(2), np.array([1]), np.array([50]), upper=100)
    assert integers(asked, without, public).tolist() == integers(asked, alone, public).tolist()


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
