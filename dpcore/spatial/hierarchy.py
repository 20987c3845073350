"""Sparse hierarchy: quadtree-like levels that descend only where points are, consistent and non-negative. Relation A.

It joins three ideas: HTF's stops with everything unspent drawn at the stop, the hierarchical mechanism's least-squares
consistency with few, wide levels (Qardaji et al. 2013), and zeroing of empty space on purpose where relative error
matters more than squared error.
The cuts are public, so nothing is spent on them; whether to descend is decided by DP draws alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.grids import require_share
from dpcore.spatial.histogram import PartitionHistogram
from dpcore.spatial.mechanism import BudgetSplit, require_budget
from dpcore.spatial.partition import Tree, box_sums, combine, draw_counts, image_of, split_boxes, whole

_CERTAIN = 1e-6
"""Variance given to a leaf that is declared empty, so that consistency moves the others."""


@dataclass(frozen=True)
class SparseHierarchy:
    """``parts`` per axis and level; levels share ``stop_share`` of the budget, growing by ``growth`` per level; a node
    whose draw is below ``stop_sigmas`` standard deviations goes no deeper.

    ``empty``: what happens to leaves whose draw is within ``zero_sigmas`` standard deviations of 0. "keep" leaves them,
    unbiased and best in squared error; "project" sets them to 0, and non-negative counts that keep the total share what
    they held; "drop" sets them and leaves of fewer than ``zero_density`` points per cell to 0, best in relative error.
    """

    parts: int = 4
    growth: float = 1.6
    stop_share: float = 0.5
    stop_sigmas: float = 3.0
    empty: Literal["keep", "project", "drop"] = "keep"
    zero_sigmas: float = 2.0
    zero_density: float = 1.0

    def __post_init__(self) -> None:
        if self.parts < 2:
            raise ParameterError(f"{self.parts} parts per axis; give at least 2")
        for name in ("growth", "zero_sigmas", "zero_density", "stop_sigmas"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ParameterError(f"{name} {value}; give a finite number of 0 or more")
        if self.growth == 0:
            raise ParameterError("growth 0 leaves the deeper levels without a budget; give a number above 0")
        if self.empty not in ("keep", "project", "drop"):
            raise ParameterError(f"empty {self.empty!r}; give keep, project or drop")
        require_share("stop_share", self.stop_share)

    def fit(
        self,
        points_or_counts: npt.NDArray[Any],
        domain: Domain,
        epsilon_micro: int,
        noise: Noise,
        points_per_user: int = 1,
    ) -> PartitionHistogram:
        """Histogram at ``epsilon_micro`` (A); raises ``DomainError``, ``BudgetError``."""
        require_budget(epsilon_micro, points_per_user)
        tree = self.tree(domain.counts_of(points_or_counts), domain, epsilon_micro, noise, points_per_user)
        return self.finish(tree).histogram(domain)

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """All draws before post-processing; every path costs exactly ``epsilon_micro``."""
        levels_below = 0
        while self.parts**levels_below < max(domain.shape):
            levels_below += 1
        weights = [self.growth**depth for depth in range(levels_below)]
        scale = self.stop_share / sum(weights) if weights else 0.0
        shares = BudgetSplit.by_weights(
            epsilon_micro, [*(weight * scale for weight in weights), 1 - self.stop_share if weights else 1.0]
        ).shares
        image, levels = image_of(counts), []
        boxes, parent = whole(domain), np.array([-1], dtype=np.int64)
        for depth, share in enumerate(shares):
            single = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2]) == 1
            truth = box_sums(image, boxes)
            test = np.where(single, 0, share) if depth < levels_below else np.zeros(len(boxes), dtype=np.int64)
            drawn, variance = draw_counts(truth, test, points_per_user, noise)
            # The root always descends: its draw fixes the total, and its stop would save little.
            going = (test > 0) & ((drawn > self.stop_sigmas * np.sqrt(variance)) | (depth == 0))
            final = np.where(going, 0, sum(shares[depth:]) - test)
            value, variance = combine((drawn, variance), draw_counts(truth, final, points_per_user, noise))
            levels.append((boxes, parent, value, variance, test + final))
            growing = np.flatnonzero(going)
            if not len(growing):
                break
            boxes, parent = split_boxes(boxes[growing], self.parts)
            parent = growing[parent]
        return Tree.of_levels(levels)

    def finish(self, tree: Tree) -> Tree:
        """Consistency and the treatment of empty leaves: post-processing. Variances are those before zeroing."""
        consistent = tree.least_squares()
        if self.empty == "keep":
            return consistent
        leaves = tree.leaves
        draws = tree.counts[leaves]
        empty = draws < self.zero_sigmas * np.sqrt(tree.variances[leaves])
        if self.empty == "drop":
            x0, x1, y0, y1 = tree.boxes[leaves].T
            counts = consistent.counts.copy()
            counts[leaves[empty | (draws < self.zero_density * (x1 - x0) * (y1 - y0))]] = 0.0
            return replace(consistent, counts=counts)
        counts, variances = tree.counts.copy(), tree.variances.copy()
        counts[leaves[empty]], variances[leaves[empty]] = 0.0, _CERTAIN
        zeroed = replace(tree, counts=counts, variances=variances).least_squares().non_negative()
        return replace(consistent, counts=zeroed.counts)
