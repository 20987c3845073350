"""E2EPriv: choose the grid size privately, then release that grid. Relation "participation", s points per user.

To be proved: the draw is ε-DP. Proof: N̂, the choice and the grid share ε (:meth:`E2EPriv.split`). The cost of a size
is its mean error over what one point can change in it, in integers of 1/:data:`QUANTUM`; a user changes it by at most
:meth:`E2EPriv.cost_sensitivity`, rounding included. Weights are functions of public numbers and of N̂, never of the
counts. By weighted error a point in cell c changes R_t − d_t of query t by A_t(c) − B_t(c), the shares of its block and
of its cell that the query covers, and the noise term not at all. So the mean moves by at most Σ_t |A_t(c) − B_t(c)|/w_t
over the number of queries (:meth:`E2EPriv.point_changes`), for the worst cell and size: a function of public numbers
and of N̂. Tested: tests/dpcore/spatial/test_mechanisms.py and test_errata.py (by brute force),
tests/audit/test_spatial_audit.py.

Its private baseline Heuristic is :class:`~dpcore.spatial.grids.UniformGrid`; the others are in
``bench/not_private.py``. Source: [E], with the sensitivities of research/errata.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid, cuts
from dpcore.spatial.grids import noisy_grid, noisy_total, require_share
from dpcore.spatial.histogram import GridHistogram
from dpcore.spatial.mechanism import SpatialMechanism, choose
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import Rectangles, answer, axis_overlaps, overlap_norms

Objective = Literal["weighted", "relative"]

QUANTUM = 2**16
"""Cost units per one point's change of the mean error."""
LEAST_SHARPNESS = 2.0
"""Least ε₁/2Δ, in nats per unit of relative error, at which a size is chosen by the relative objective."""
_LEAST_PART = 2**-7
"""Least part of the mean of 1/w_t that counts as one point's change, so that costs stay exact in floating point."""
_ROUNDING = 2
"""Units that rounding to integers (1) and the floating point before it (1) may add between neighbours."""


@dataclass(frozen=True)
class E2EPriv(SpatialMechanism):
    """Candidate ``sizes`` (g × g blocks) and tuning ``queries``, both public.

    ``expected_points``: a public n̂ for the weights; without it ``total_share`` of the budget buys a DP count.
    ``objective`` "weighted": mean of error over w_t = max(ρ, n̂·area_t); "relative": error over max(true count, ρ), cut
    at ``cap``. ρ = max(``rho``, ``rho_share``·n̂): a ρ that is small beside n̂ makes the relative objective so
    sensitive that the choice is nearly random. Where even then it could hardly tell sizes apart
    (:data:`LEAST_SHARPNESS`), "weighted" takes its place; that is decided by n̂ and ε alone. ``size_share``: the part
    of the rest that the choice spends.
    """

    sizes: tuple[int, ...]
    queries: Rectangles
    objective: Objective = "weighted"
    rho: float = 20.0
    rho_share: float = 0.01
    cap: float = 4.0
    size_share: float = 0.2
    total_share: float = 0.02
    expected_points: int | None = None

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ParameterError(f"grid sizes {self.sizes}; give at least one, each at least 1")
        if not len(self.queries):
            raise ParameterError("no tuning queries; give at least one")
        if self.objective not in ("weighted", "relative"):
            raise ParameterError(f"objective {self.objective!r}; give weighted or relative")
        if not (math.isfinite(self.rho) and self.rho > 0 and math.isfinite(self.cap) and self.cap > 0):
            raise ParameterError(f"rho {self.rho} and cap {self.cap} must be finite and above 0")
        if not 0 <= self.rho_share <= 1:
            raise ParameterError(f"rho_share {self.rho_share} is outside 0..1; give the part of all points that rho is")
        if self.expected_points is not None and self.expected_points < 0:
            raise ParameterError(f"{self.expected_points} expected points; give 0 or more")
        require_share("size_share", self.size_share)
        require_share("total_share", self.total_share)

    @staticmethod
    def cost_sensitivity(points_per_user: int) -> int:
        """Most by which a user changes any of :meth:`costs`."""
        return points_per_user * QUANTUM + _ROUNDING

    def split(self, epsilon_micro: int) -> BudgetSplit:
        """Shares for the total (absent where it is public), the size and the histogram."""
        rest = [self.size_share, 1 - self.size_share]
        if self.expected_points is None:
            rest = [self.total_share, *(share * (1 - self.total_share) for share in rest)]
        return BudgetSplit.by_weights(epsilon_micro, rest)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram at ``epsilon_micro`` µε; raises ``QueryError``. Source: [E]."""
        self.queries.require_inside(domain)
        split = self.split(epsilon_micro)
        *first, size_micro, data_micro = split.shares
        total = noisy_total(counts, first[0], points_per_user, noise) if first else (self.expected_points or 0)
        objective = self.effective_objective(total, size_micro, points_per_user)
        costs = self.costs(counts, domain, points_per_user * MICRO / data_micro, total, objective)
        size = self.sizes[choose(costs, size_micro, self.cost_sensitivity(points_per_user), noise)]
        return noisy_grid(counts, domain, data_micro, noise, points_per_user, size)

    def floor(self, total: int) -> float:
        """ρ for ``total`` points."""
        return max(self.rho, self.rho_share * total)

    def weights(self, domain: Domain, total: int) -> FloatArray:
        """What the objective divides each query's error by, (Q,): its points if ``total`` lay evenly, at least ρ."""
        return np.asarray(np.maximum(self.floor(total), total * self.queries.areas() / domain.cells))

    def effective_objective(self, total: int, size_micro: int, points_per_user: int) -> Objective:
        """The objective that the choice uses: "weighted" also where "relative" could hardly tell sizes apart.

        ``total``: the public or noisy n̂; ``size_micro``: budget of the choice in µε.
        """
        sharpness = size_micro / MICRO * self.floor(total) / (2 * (1 + self.cap) * points_per_user)
        return "weighted" if self.objective == "weighted" or sharpness < LEAST_SHARPNESS else "relative"

    def costs(
        self, counts: IntGrid, domain: Domain, scale: float, total: int, objective: Objective | None = None
    ) -> IntGrid:
        """Integer cost of each size, shape (sizes,): mean error over its exact per-point sensitivity, in 1/QUANTUM.

        ``scale``: the noise scale of the histogram to come, ``total``: the public or noisy n̂.
        """
        errors, sensitivity = self.errors(counts, domain, scale, total, objective)
        return np.rint(errors * (QUANTUM / sensitivity)).astype(np.int64)

    def errors(
        self, counts: IntGrid, domain: Domain, scale: float, total: int, objective: Objective | None = None
    ) -> tuple[FloatArray, float]:
        """Exact mean error of each size, shape (sizes,), and what one point can change in it. Never for publication."""
        image = image_of(counts)
        truth = answer(image, self.queries)
        rho, weight = self.floor(total), self.weights(domain, total)
        errors: list[float] = []
        point_change: list[float] = []
        for size in self.sizes:
            x_edges, y_edges = cuts(domain.rows, size), cuts(domain.columns, size)
            histogram = self.queries.in_blocks(x_edges, y_edges)
            deviation = np.abs(answer(image[np.ix_(x_edges, y_edges)], histogram) - truth)
            norms = overlap_norms(self.queries, x_edges, y_edges)
            noise = norms.noise_term(scale)
            if (objective or self.objective) == "weighted":
                errors.append(float(np.mean((deviation + noise) / weight)))
            else:
                floor = np.maximum(truth, rho)
                errors.append(float(np.mean(np.minimum(deviation / floor, self.cap) + noise / floor)))
                point_change.append(float(np.mean((1 + self.cap) / rho + noise / (rho * (rho + 1)))))
        return np.array(errors), max(point_change or self.point_changes(domain, total))

    def point_changes(self, domain: Domain, total: int) -> FloatArray:
        """The most that one point can change in the weighted error of each size by these very queries, shape (sizes,).

        Σ_t |A − B|/w_t in cell c is at most Σ_t (A + B − 2·min(a_x, b_x)·min(a_y, b_y))/w_t, where A = a_x·a_y and B =
        b_x·b_y are products of shares along the axes; both are equal but in cells that an edge of the query cuts on
        both axes. Each term is a product of two matrices. At least :data:`_LEAST_PART` of the mean of 1/w_t.
        """
        queries, weight = self.queries, self.weights(domain, total)
        part = 1 / (weight * len(queries))
        cell_x = axis_overlaps(np.arange(domain.rows + 1), queries.x0, queries.x1)
        cell_y = axis_overlaps(np.arange(domain.columns + 1), queries.y0, queries.y1)
        of_cells, changes = (cell_x.T * part) @ cell_y, []
        for size in self.sizes:
            x_edges, y_edges = cuts(domain.rows, size), cuts(domain.columns, size)
            block_x = axis_overlaps(x_edges, queries.x0, queries.x1)
            block_y = axis_overlaps(y_edges, queries.y0, queries.y1)
            along_x = np.minimum(np.repeat(block_x, np.diff(x_edges), axis=1), cell_x)
            along_y = np.minimum(np.repeat(block_y, np.diff(y_edges), axis=1), cell_y)
            of_blocks = np.repeat((block_x.T * part) @ block_y, np.diff(x_edges), axis=0)
            moved = of_cells - 2 * ((along_x.T * part) @ along_y)
            moved += np.repeat(of_blocks, np.diff(y_edges), axis=1)
            changes.append(float(moved.max()) * (1 + 1e-9))
        return np.maximum(changes, float(part.sum()) * _LEAST_PART)
