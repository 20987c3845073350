"""Auto chooses by public facts where they suffice, else by a DP count, and spends exactly the budget either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcore.spatial import Auto, Domain, GridHistogram, PartitionHistogram, Singular, SparseHierarchy
from dpcore.spatial.hierarchy import SMALL_CELLS
from tests.dpcore.silence import Silence

SMALL, LARGE = Domain.unit_cells(16, 16), Domain.unit_cells(17, 16)


@pytest.mark.parametrize(
    ("mechanism", "domain", "shares"),
    [
        (Auto(), SMALL, (20_000, 980_000)),
        (Auto(expected_points=500), SMALL, (1_000_000,)),
        (Auto("relative"), SMALL, (1_000_000,)),
        (Auto(), LARGE, (1_000_000,)),
    ],
)
def test_only_a_choice_that_needs_the_number_of_points_pays_for_it(
    mechanism: Auto, domain: Domain, shares: tuple[int, ...]
) -> None:
    split = mechanism.split(domain, 1_000_000)
    assert split.shares == shares
    assert sum(split.shares) == 1_000_000


@pytest.mark.parametrize(
    ("goal", "domain", "total", "points", "expected"),
    [
        ("absolute", SMALL, SMALL_CELLS, 1, Singular()),
        ("absolute", SMALL, SMALL_CELLS - 1, 1, SparseHierarchy()),
        ("absolute", SMALL, SMALL_CELLS, 2, SparseHierarchy()),
        ("absolute", LARGE, 10**9, 1, SparseHierarchy()),
        ("relative", SMALL, 10**9, 1, SparseHierarchy(goal="relative")),
        ("absolute", SMALL, 0, 1, SparseHierarchy()),
    ],
)
def test_the_choice_follows_goal_cells_and_points_per_cell(
    goal: Any, domain: Domain, total: int, points: int, expected: Any
) -> None:
    assert Auto(goal).choose(domain, total, 1_000_000, points) == expected


class Recorded(Silence):
    """Noise of 0 that records the scales with which it is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[tuple[Any, Any]] = []

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        self.scales.append((numerator, denominator))
        return super().discrete_laplace(numerator, denominator, size)


def test_the_count_is_drawn_at_its_share_and_the_cells_at_the_rest() -> None:
    """With noise 0 the scales of the draws are recorded: each is s·10⁶/share in lowest terms."""
    noise = Recorded()
    histogram = Auto().fit(np.full((16, 16), 3, dtype=np.int64), SMALL, 1_000_000, noise)
    assert isinstance(histogram, GridHistogram)
    assert [n / d for n, d in noise.scales] == [pytest.approx(1 / 0.02), pytest.approx(1 / 0.98)]


def test_few_points_on_a_small_grid_are_left_to_the_hierarchy() -> None:
    assert isinstance(Auto().fit(np.zeros((16, 16), dtype=np.int64), SMALL, 1_000_000, Silence()), PartitionHistogram)
