"""Spatial mechanisms: black-box ε over all cells at once, and exact ε of every private choice.

Black box: ``N`` fits per neighbour on a recorded tape, half of them choose the event and half test it at α = 1e-4. At ε
= 1 a count drawn with the whole budget is bounded by about 0.6, with a quarter of the scale by about 2.4 (its true loss
is 4); a user's four points noised as one give the same. Where the budget is shared among levels and answers are made
consistent, the bounds are lower and the planted bugs larger. Tapes are recorded, so nothing here is left to chance.
Exact: probabilities of the exponential mechanism from its integer costs, over every neighbour of small grids.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpcore.spatial import Domain, E2EPriv, Rectangles
from dpcore.spatial.htf import RankedCells, split_costs, split_sensitivity
from dpcore.spatial.partition import box_sums, image_of, whole
from dpcore.spatial.trees import Candidates, median_costs
from tests.audit.blackbox import Pooled, assert_private, epsilon_lower_bound
from tests.dpcore.spatial.mechanisms import choice_loss, every_mechanism
from tests.support.nightly import nightly_but
from tests.support.tapes import recorded, tape

N = 600
EPSILON = 1.0
MICRO = 1_000_000
POINTS = 4
"""Points of the user who comes or goes."""
DOMAIN = Domain.unit_cells(4, 4)
CELLS = Rectangles.of_cells([[i, i, j, j] for i in range(4) for j in range(4)])
QUERIES = Rectangles.of_cells([[0, 1, 0, 1], [0, 3, 2, 3], [1, 2, 0, 3]])
MECHANISMS = every_mechanism((1, 2, 4), QUERIES)


# "auto relative" is "sparse relative" draw by draw: that goal needs no total, so the whole budget goes to the
# hierarchy.
@pytest.mark.parametrize(
    "name", nightly_but(["ug", "privlet"], [name for name in MECHANISMS if name != "auto relative"])
)
def test_a_black_box_finds_no_more_than_epsilon(name):
    """Answers for all 16 cells with and without a user's points, all of them in one corner."""
    without = np.zeros((4, 4), dtype=np.int64)
    without[2, 1] = 3
    present, sides = without.copy(), []
    present[0, 0] = POINTS
    for seed, counts in enumerate((present, without)):
        noise = Pooled(tape(seed))
        fits = (MECHANISMS[name].fit(counts, DOMAIN, MICRO, noise, POINTS) for _ in range(N))
        sides.append([fit.answers(CELLS) for fit in fits])
    assert_private(epsilon_lower_bound(*sides), EPSILON)


def worst_loss(costs_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], rate: float, points: int) -> float:
    """Largest loss of a choice over 40 random 4 × 4 grids and every neighbour with ``points`` more in a cell."""
    rng, worst = np.random.default_rng(5), 0.0
    for _ in range(40):
        counts = rng.poisson(rng.choice([0.2, 1.0, 5.0]), (4, 4)).astype(np.int64)
        base = costs_of(counts)
        for cell in range(16):
            more = counts.copy()
            more.ravel()[cell] += points
            worst = max(worst, choice_loss(base, costs_of(more), rate))
    return worst


def htf_costs(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    boxes = whole(DOMAIN)
    return split_costs(RankedCells.of(counts), image_of(counts), boxes, Candidates.of(boxes, 0))


def kd_costs(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    boxes = whole(DOMAIN)
    return median_costs(image_of(counts), boxes, Candidates.of(boxes, 0))


def e2epriv_costs(objective: Any) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
    mechanism = E2EPriv((1, 2, 4), QUERIES, objective=objective, rho=2.0, expected_points=10)
    return lambda counts: mechanism.costs(counts, DOMAIN, 1.0, 10)


CHOICES: dict[str, tuple[Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], Callable[[int], int]]] = {
    "htf cuts": (htf_costs, split_sensitivity),
    "kd medians": (kd_costs, lambda points: points),
    "e2epriv sizes": (e2epriv_costs("weighted"), E2EPriv.cost_sensitivity),
    "e2epriv sizes, relative": (e2epriv_costs("relative"), E2EPriv.cost_sensitivity),
}
"""Costs, and their sensitivity by the points of a user."""


@pytest.mark.parametrize("name", CHOICES)
def test_every_private_choice_loses_at_most_its_share_exactly(name):
    """Of one point of a user and of four."""
    costs, sensitivity = CHOICES[name]
    for points in (1, POINTS):
        assert 0 < worst_loss(costs, 1.0 / (2 * sensitivity(points)), points) <= 1.0


@pytest.mark.parametrize("name", ["ag", "quadtree", "kdtree", "htf", "sparse"])
def test_levels_of_a_tree_are_disjoint_so_that_one_point_moves_one_count_of_each(name):
    """Brute force: every cell of a 4 × 4 grid, on the boxes of a drawn tree."""
    counts = np.random.default_rng(6).integers(0, 40, (4, 4))
    tree = MECHANISMS[name].tree(counts, DOMAIN, MICRO, recorded(7), 1)
    base = box_sums(image_of(counts), tree.boxes)
    for cell in range(16):
        more = counts.copy()
        more.ravel()[cell] += 1
        change = box_sums(image_of(more), tree.boxes) - base
        for level in tree.levels:
            assert np.abs(change[level]).sum() <= 1
        touched = np.flatnonzero(change)
        assert tree.spent[touched].sum() == MICRO, "the user of this point pays exactly the budget"
