"""Integers of relation "participation": bins are never more than values, and samples count in a listed cell or not at
all."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.cdf import bin_edges
from dpcore.contributions import Contributions
from dpcore.errors import ParameterError
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
