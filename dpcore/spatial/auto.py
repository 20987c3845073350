"""Auto: choose a mechanism by public facts, and by a DP count of the points where these do not suffice.

To be proved: the draw is ε-DP (relation "participation"). Proof: the count, where it is needed, and the chosen
mechanism share ε (:meth:`Auto.split`); the choice depends on public facts and on that count alone. Tested:
tests/dpcore/spatial/test_auto.py.

Measured (research/experiments.md): on grids of more than :data:`SMALL_CELLS` cells the sparse hierarchy is best or near
it whatever the data. On smaller grids, where cells hold a point or more per 1/ε on average, its levels cost more than
they save: noise on every cell is then best in squared error.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.grids import Singular, noisy_total, require_share
from dpcore.spatial.hierarchy import SparseHierarchy
from dpcore.spatial.histogram import Histogram
from dpcore.spatial.mechanism import SpatialMechanism
from dpcore.spatial.posterior import Goal, require_goal

SMALL_CELLS = 256
"""Cells of the largest grid whose mechanism depends on the number of points."""


@dataclass(frozen=True)
class Auto(SpatialMechanism):
    """Chooses by goal, cells and ε·N̂ per cell. ``expected_points``: a public N̂; without it, and only where the choice
    depends on it, ``total_share`` of the budget buys a DP count.
    """

    goal: Goal = "absolute"
    expected_points: int | None = None
    total_share: float = 0.02

    def __post_init__(self) -> None:
        require_goal(self.goal)
        require_share("total_share", self.total_share)
        if self.expected_points is not None and self.expected_points < 0:
            raise ParameterError(f"{self.expected_points} expected points; give 0 or more")

    def needs_total(self, domain: Domain) -> bool:
        """Whether the choice depends on the number of points: public."""
        return self.goal == "absolute" and domain.cells <= SMALL_CELLS

    def split(self, domain: Domain, epsilon_micro: int) -> BudgetSplit:
        """Shares for the total (only where it is needed and not public) and for the histogram."""
        if self.needs_total(domain) and self.expected_points is None:
            return BudgetSplit.by_weights(epsilon_micro, [self.total_share, 1 - self.total_share])
        return BudgetSplit(epsilon_micro, (epsilon_micro,))

    def choose(self, domain: Domain, total: int, epsilon_micro: int, points_per_user: int = 1) -> SpatialMechanism:
        """The mechanism for a public or noisy ``total`` of points at ``epsilon_micro`` for the histogram."""
        if self.needs_total(domain) and total * epsilon_micro >= MICRO * points_per_user * domain.cells:
            return Singular()
        return SparseHierarchy(goal=self.goal)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> Histogram:
        """Histogram at ``epsilon_micro`` µε."""
        *first, rest = self.split(domain, epsilon_micro).shares
        total = noisy_total(counts, first[0], points_per_user, noise) if first else (self.expected_points or 0)
        return self.choose(domain, total, rest, points_per_user).draw(counts, domain, rest, noise, points_per_user)
