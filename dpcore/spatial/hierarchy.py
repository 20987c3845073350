"""Sparse hierarchy: levels of wide nodes that go on only where points are, made consistent. Relation "participation".

It joins three ideas: HTF's stops, where a node that ends draws its count with everything its path has left;
least-squares consistency with few, wide levels (Qardaji et al. 2013); and a sparse reading of empty space, for relative
error.

To be proved: it is ε-DP for s points per user. Proof: the divisions are public. Whether a node is divided is decided by
its draw. The boxes of one level are disjoint, so a box at ε′ costs a user ε′·(their points in it)/s, and every path
from the root costs exactly ε. Tested: tests/dpcore/spatial/test_partitions.py (paths),
tests/audit/test_spatial_audit.py.

:class:`Auto` chooses between it and noise on every cell, by public facts, and by a DP count of the points where these
do not suffice. To be proved: its draw is ε-DP. Proof: the count, where it is needed, and the chosen
mechanism share ε (:meth:`Auto.split`); the choice depends on public facts and on that count alone. Tested:
tests/dpcore/spatial/test_auto.py.

Measured (research/experiments.md): on grids of more than :data:`SMALL_CELLS` cells the sparse hierarchy is best or near
it whatever the data. On smaller grids, where cells hold a point or more per 1/ε on average, its levels cost more than
they save: noise on every cell is then best in squared error.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import IntArray
from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.grids import Singular, noisy_total, require_share
from dpcore.spatial.histogram import Histogram
from dpcore.spatial.mechanism import SpatialMechanism
from dpcore.spatial.partition import LevelDraws, Tree, areas, combine, draw_counts, grow, image_of, split_boxes
from dpcore.spatial.posterior import Goal, TreeMechanism, require_goal


@dataclass(frozen=True)
class SparseHierarchy(TreeMechanism):
    """``parts`` per axis and level; levels share ``stop_share`` of the budget, growing by ``growth`` per level; a node
    whose draw is below ``stop_sigmas`` standard deviations goes no deeper.

    ``goal`` "absolute" answers from consistent unbiased counts, best in squared error; "relative" carries their sparse
    reading too. Either is post-processing of the same draws.
    """

    parts: int = 4
    growth: float = 1.6
    stop_share: float = 0.5
    stop_sigmas: float = 3.0
    goal: Goal = "absolute"

    def __post_init__(self) -> None:
        if self.parts < 2:
            raise ParameterError(f"{self.parts} parts per axis; give at least 2")
        for name in ("growth", "stop_sigmas"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ParameterError(f"{name} {value}; give a finite number of 0 or more")
        if self.growth == 0:
            raise ParameterError("growth 0 leaves the deeper levels without a budget; give a number above 0")
        require_goal(self.goal)
        require_share("stop_share", self.stop_share)

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """All draws before post-processing; every path costs exactly ``epsilon_micro``."""
        shares = self.level_shares(domain, epsilon_micro)

        def draw(truth: IntArray, boxes: IntArray, depth: int) -> LevelDraws:
            last = depth == len(shares) - 1
            test = np.where(last | (areas(boxes) == 1), 0, shares[depth])
            drawn, variance = draw_counts(truth, test, points_per_user, noise)
            # The root is always divided: its draw fixes the total, and stopping there would save little.
            divided = (test > 0) & ((drawn > self.stop_sigmas * np.sqrt(variance)) | (depth == 0))
            final = np.where(divided, 0, sum(shares[depth:]) - test)
            draws = combine((drawn, variance), draw_counts(truth, final, points_per_user, noise))
            return LevelDraws(*draws, test + final, divided)

        return grow(image_of(counts), domain, draw, lambda boxes, noisy, depth: split_boxes(boxes, self.parts))

    def level_shares(self, domain: Domain, epsilon_micro: int) -> tuple[int, ...]:
        """µε of the stop tests of each level, and last what is left where a path ends: public parameters."""
        levels = 0
        while self.parts**levels < max(domain.shape):
            levels += 1
        if not levels:
            return BudgetSplit.by_weights(epsilon_micro, [1.0]).shares
        weights = [self.growth**depth for depth in range(levels)]
        scale = self.stop_share / sum(weights)
        tests = [weight * scale for weight in weights]
        return BudgetSplit.by_weights(epsilon_micro, [*tests, 1 - self.stop_share]).shares


SMALL_CELLS = 256
"""Cells of the largest grid whose mechanism depends on the number of points."""


@dataclass(frozen=True)
class Auto(SpatialMechanism):
    """Chooses by goal, cells and ε·N̂ per cell. Where the choice depends on N̂, ``total_share`` of the budget buys it."""

    goal: Goal = "absolute"
    total_share: float = 0.02

    def __post_init__(self) -> None:
        require_goal(self.goal)
        require_share("total_share", self.total_share)

    def needs_total(self, domain: Domain) -> bool:
        """Whether the choice depends on the number of points: public."""
        return self.goal == "absolute" and domain.cells <= SMALL_CELLS

    def split(self, domain: Domain, epsilon_micro: int) -> BudgetSplit:
        """Shares for the total (only where it is needed) and for the histogram."""
        if self.needs_total(domain):
            return BudgetSplit.by_weights(epsilon_micro, [self.total_share, 1 - self.total_share])
        return BudgetSplit(epsilon_micro, (epsilon_micro,))

    def choose(self, domain: Domain, total: int, epsilon_micro: int, points_per_user: int) -> SpatialMechanism:
        """The mechanism for a noisy ``total`` of points at ``epsilon_micro`` for the histogram."""
        if self.needs_total(domain) and total * epsilon_micro >= MICRO * points_per_user * domain.cells:
            return Singular()
        return SparseHierarchy(goal=self.goal)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> Histogram:
        """Histogram at ``epsilon_micro`` µε."""
        *first, rest = self.split(domain, epsilon_micro).shares
        total = noisy_total(counts, first[0], points_per_user, noise) if first else 0
        return self.choose(domain, total, rest, points_per_user).draw(counts, domain, rest, noise, points_per_user)
