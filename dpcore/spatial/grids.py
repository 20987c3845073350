"""Flat baselines, uniform and adaptive grids, and Privlet, noise on the 2-D Haar coefficients.

Relation "participation", s points per user.

To be proved: each draw is ε-DP. Proof of grids: the blocks of a grid are disjoint, so their counts change by at most s
in L1, and a grid at ε′ costs ε′ (:mod:`dpcore.spatial.mechanism`). UG and AG spend a share on the total N̂ first; AG
spends the rest on two grids, the second of which depends on the first one's draws alone. The shares add up to ε.
Tested: tests/audit/test_spatial_audit.py and, for the paths of AG, tests/dpcore/spatial/test_partitions.py. Source:
[G], with N̂ paid for from the budget.

Proof of Privlet: one point changes :meth:`Privlet.sensitivity` coefficients, each by exactly 1, so the coefficients
change by s times that in L1, and have noise of that scale over ε. Tested: tests/dpcore/spatial/test_mechanisms.py (by
brute force), tests/audit/test_spatial_audit.py. Source: Xiao, Wang and Gehrke, "Differential Privacy via Wavelet
Transforms" (2011), as [H]'s baseline.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid, block_sums, cuts
from dpcore.spatial.histogram import GridHistogram
from dpcore.spatial.mechanism import SpatialMechanism, laplace_variance, noisy_counts
from dpcore.spatial.partition import LevelDraws, Tree, draw_counts, grow, image_of, split_boxes
from dpcore.spatial.posterior import TreeMechanism


def require_share(name: str, share: float) -> None:
    """Refuse a budget share outside (0, 1)."""
    if not 0 < share < 1:
        raise ParameterError(f"{name} {share} is outside (0, 1); give the part of the budget it may spend")


@dataclass(frozen=True)
class Uniform(SpatialMechanism):
    """One noisy total, spread evenly over the box."""

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram of one block at ``epsilon_micro`` µε."""
        return noisy_grid(counts, domain, epsilon_micro, noise, points_per_user, 1)


@dataclass(frozen=True)
class Singular(SpatialMechanism):
    """Laplace noise on every cell of the count grid."""

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram of all cells at ``epsilon_micro`` µε."""
        return noisy_grid(counts, domain, epsilon_micro, noise, points_per_user, max(domain.shape))


@dataclass(frozen=True)
class UniformGrid(SpatialMechanism):
    """UG: m × m blocks, m = max(1, ⌈√(N̂ε/10)⌉), N̂ from ``total_share`` of the budget."""

    total_share: float = 0.02
    constant: float = 10.0

    def __post_init__(self) -> None:
        require_share("total_share", self.total_share)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram at ``epsilon_micro`` µε. Source: [G]."""
        split = BudgetSplit.by_weights(epsilon_micro, [self.total_share, 1 - self.total_share])
        total = noisy_total(counts, split.shares[0], points_per_user, noise)
        m = grid_size(total, split.shares[1], points_per_user, self.constant)
        return noisy_grid(counts, domain, split.shares[1], noise, points_per_user, m)


@dataclass(frozen=True)
class AdaptiveGrid(TreeMechanism):
    """AG: m₁ × m₁ blocks, each cut again by its own noisy count, both levels made consistent."""

    total_share: float = 0.02
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_share("total_share", self.total_share)
        require_share("alpha", self.alpha)

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """Both levels before consistency, under a root that carries the noisy total. Source: [G]."""
        data, s = 1 - self.total_share, points_per_user
        weights = [self.total_share, data * self.alpha, data * (1 - self.alpha)]
        shares = BudgetSplit.by_weights(epsilon_micro, weights).shares

        def draw(truth: IntArray, boxes: IntArray, depth: int) -> LevelDraws:
            drawn, variances = draw_counts(truth, shares[depth], s, noise)
            spent, divided = np.full(len(boxes), shares[depth]), np.full(len(boxes), depth < 2)
            return LevelDraws(drawn.astype(np.float64), variances, spent, divided)

        def divide(boxes: IntArray, noisy: FloatArray, depth: int) -> tuple[IntArray, IntArray]:
            if depth == 0:
                m = grid_size(int(noisy[0]), shares[1] + shares[2], s)
                return split_boxes(boxes, max(10, math.ceil(m / 4)))
            parts = np.sqrt(np.maximum(noisy, 0) * (shares[2] / (5 * MICRO * s)))
            return split_boxes(boxes, np.maximum(1, np.ceil(parts)).astype(np.int64))

        return grow(image_of(counts), domain, draw, divide)


def noisy_total(counts: npt.NDArray[Any], epsilon_micro: int, points_per_user: int, noise: Noise) -> int:
    """|D| + discrete Laplace(s/ε), at least 0."""
    total = np.array([int(counts.sum())], dtype=np.int64)
    return max(0, int(noisy_counts(total, epsilon_micro, points_per_user, noise)[0]))


def grid_size(total: int, epsilon_micro: int, points_per_user: int, constant: float = 10.0) -> int:
    """UG's m = max(1, ⌈√(N̂ε/constant)⌉), ε per point of a user."""
    return max(1, math.ceil(math.sqrt(max(total, 0) * epsilon_micro / (MICRO * points_per_user * constant))))


def noisy_grid(
    counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int, size: int
) -> GridHistogram:
    """``size`` × ``size`` blocks, each with discrete Laplace(s/ε)."""
    x_edges, y_edges = cuts(domain.rows, size), cuts(domain.columns, size)
    noisy = noisy_counts(block_sums(counts, x_edges, y_edges), epsilon_micro, points_per_user, noise)
    variance = laplace_variance(epsilon_micro, points_per_user)
    return GridHistogram(domain, x_edges, y_edges, noisy.astype(np.float64), variance)


@dataclass(frozen=True)
class Privlet(SpatialMechanism):
    """Integer Haar transform along both axes; one point moves (1+log₂ rows)(1+log₂ columns) coefficients by 1.

    Coefficients are unscaled sums and differences of halves, so Privlet's weighted noise becomes one scale for all and
    its generalised sensitivity the L1 sensitivity. Axes are padded with zeros to powers of two.
    """

    @staticmethod
    def sensitivity(domain: Domain) -> int:
        """Coefficients that one point changes, each by exactly 1."""
        rows, columns = ((cells - 1).bit_length() for cells in domain.shape)
        return (1 + rows) * (1 + columns)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram of all cells at ``epsilon_micro`` µε."""
        coefficients = haar(counts)
        scale = self.sensitivity(domain) * points_per_user
        cells = inverse_haar(noisy_counts(coefficients, epsilon_micro, scale, noise).astype(np.float64))
        share = 1.0
        for size in coefficients.shape:
            levels = size.bit_length() - 1
            share *= 4.0**-levels + sum(4.0**-k for k in range(1, levels + 1))
        variance = laplace_variance(epsilon_micro, scale) * share
        edges = np.arange(domain.rows + 1), np.arange(domain.columns + 1)
        return GridHistogram(domain, *edges, cells[: domain.rows, : domain.columns], variance, "haar")


def haar(counts: IntGrid) -> IntGrid:
    """Sums and differences of halves along both axes, padded to powers of two; entry [0, 0] is the total."""
    padded = np.zeros([1 << (size - 1).bit_length() for size in counts.shape], dtype=np.int64)
    padded[: counts.shape[0], : counts.shape[1]] = counts
    for _ in range(2):
        size = padded.shape[0]
        while size > 1:
            even, odd = padded[:size:2].copy(), padded[1:size:2].copy()
            padded[: size // 2], padded[size // 2 : size] = even + odd, even - odd
            size //= 2
        padded = np.ascontiguousarray(padded.T)
    return padded


def inverse_haar(coefficients: FloatArray) -> FloatArray:
    """Cells from :func:`haar`'s coefficients."""
    cells = coefficients.copy()
    for _ in range(2):
        size = 2
        while size <= cells.shape[0]:
            total, difference = cells[: size // 2].copy(), cells[size // 2 : size].copy()
            cells[:size:2], cells[1:size:2] = (total + difference) / 2, (total - difference) / 2
            size *= 2
        cells = np.ascontiguousarray(cells.T)
    return cells
