"""Boxes of cells and trees over them: splitting, sums, least-squares consistency.

Boxes are int64 (P, 4) rows x0, x1, y0, y1 in cells, half-open. A tree lists its nodes level by level. Neighbours differ
by all points of one user (relation "participation"). Only :func:`draw_counts` and :func:`grow`, which calls the draws
of a mechanism, see the true counts; everything else is post-processing of the draws and costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.histogram import PartitionHistogram, SparseReading
from dpcore.spatial.mechanism import laplace_variance
from dpcore.spatial.queries import integral_image
from dpcore.spatial.range_noise import PartNoise, TreeNoise

TINY = 1e-12
"""Variance of a draw whose noise is 0 in effect; keeps precisions finite."""


def whole(domain: Domain) -> IntArray:
    """The grid as one box, shape (1, 4)."""
    return np.array([[0, domain.rows, 0, domain.columns]], dtype=np.int64)


def box_sums(image: npt.NDArray[Any], boxes: IntArray) -> IntArray:
    """Sums inside boxes from an integral image, shape (P,)."""
    flat, (x0, x1, y0, y1) = image.ravel(), boxes.T
    low, high = x0 * image.shape[1], x1 * image.shape[1]
    return np.asarray(flat[high + y1] - flat[low + y1] - flat[high + y0] + flat[low + y0], dtype=np.int64)


def areas(boxes: IntArray) -> IntArray:
    """Cells inside each box, shape (P,)."""
    x0, x1, y0, y1 = boxes.T
    return np.asarray((x1 - x0) * (y1 - y0), dtype=np.int64)


def split_boxes(boxes: IntArray, parts: int | IntArray) -> tuple[IntArray, IntArray]:
    """Each box cut into at most ``parts`` nearly equal parts per axis: (children, index of the parent of each)."""
    x0, x1, y0, y1 = boxes.T
    nx, ny = np.minimum(parts, x1 - x0), np.minimum(parts, y1 - y0)
    number = nx * ny
    parent = np.repeat(np.arange(len(boxes)), number)
    within = np.arange(len(parent)) - np.repeat(np.cumsum(number) - number, number)
    i, j = within // ny[parent], within % ny[parent]
    height, width, nx, ny = (x1 - x0)[parent], (y1 - y0)[parent], nx[parent], ny[parent]
    x, y = x0[parent], y0[parent]
    edges = x + i * height // nx, x + (i + 1) * height // nx, y + j * width // ny, y + (j + 1) * width // ny
    return np.column_stack(edges), parent


def draw_counts(
    counts: IntArray, epsilons: int | IntArray, sensitivity: int, noise: Noise
) -> tuple[IntArray, FloatArray]:
    """Counts of disjoint boxes + discrete Laplace of scale ``sensitivity``/ε, ε in µε per box; (draws, variances).

    Disjoint boxes: a user's points change these counts by at most ``sensitivity`` in L1 together, so a box at ε costs
    them at most ε in the share of their points that lie in it. A share of 0 µε draws nothing: value 0, variance
    infinite.
    """
    shares = np.broadcast_to(np.asarray(epsilons, dtype=np.int64), counts.shape)
    drawn, variance = np.zeros(len(counts), dtype=np.int64), np.full(len(counts), np.inf)
    used = np.flatnonzero(shares > 0)
    if len(used):
        drawn[used] = counts[used] + np.asarray(
            noise.discrete_laplace(sensitivity * MICRO, shares[used]), dtype=np.int64
        )
        levels = np.unique(shares[used])
        variances = np.array([max(laplace_variance(int(level), sensitivity), TINY) for level in levels])
        variance[used] = variances[np.searchsorted(levels, shares[used])]
    return drawn, variance


def combine(first: tuple[Any, FloatArray], second: tuple[Any, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Two independent unbiased draws of the same counts, weighted by precision: (values, variances)."""
    (a, va), (b, vb) = first, second
    pa, pb = 1 / va, 1 / vb
    total = pa + pb
    value = np.divide(a * pa + b * pb, total, out=np.zeros(len(total)), where=total > 0)
    return value, np.divide(1.0, total, out=np.full(len(total), np.inf), where=total > 0)


@dataclass(frozen=True)
class LevelDraws:
    """What a mechanism drew for the P disjoint boxes of one level, shape (P,) each: noisy ``counts`` and their
    ``variances``, the µε ``spent`` on each box, and which boxes are ``divided`` further.
    """

    counts: FloatArray
    variances: FloatArray
    spent: IntArray
    divided: BoolArray


@dataclass(frozen=True)
class Tree:
    """M nodes by level. ``boxes`` (M, 4); ``parent`` (M,), -1 for the root; ``starts`` (levels + 1,); noisy ``counts``
    and their ``variances`` (M,), infinite where a node was not measured; ``spent`` µε drawn at each node, splits
    included; ``noise``: how the noise of the leaves' counts is correlated.
    """

    boxes: IntArray
    parent: IntArray
    starts: IntArray
    counts: FloatArray
    variances: FloatArray
    spent: IntArray
    noise: PartNoise = "independent"

    @classmethod
    def of_levels(cls, levels: list[tuple[IntArray, IntArray, LevelDraws]]) -> Self:
        """The tree of levels, each (boxes, parent of each within the level above, draws); the root's parent is -1."""
        sizes = [len(boxes) for boxes, _, _ in levels]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        parents = [parent + (starts[depth - 1] if depth else 0) for depth, (_, parent, _) in enumerate(levels)]
        return cls(
            np.concatenate([boxes for boxes, _, _ in levels]),
            np.concatenate(parents),
            starts,
            np.concatenate([draws.counts for _, _, draws in levels]),
            np.concatenate([draws.variances for _, _, draws in levels]),
            np.concatenate([draws.spent for _, _, draws in levels]),
        )

    @property
    def leaves(self) -> IntArray:
        """Indices of nodes without children."""
        return np.flatnonzero(~self.parents)

    @property
    def parents(self) -> BoolArray:
        """Which nodes have children, shape (M,)."""
        inner = np.zeros(len(self.boxes), dtype=bool)
        inner[self.parent[1:]] = True
        return inner

    @property
    def levels(self) -> list[IntArray]:
        """Indices of the nodes of every level."""
        return [np.arange(a, b) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def upward(self) -> tuple[FloatArray, FloatArray]:
        """Best unbiased estimate of each node from its own subtree, with its variance, each of shape (M,)."""
        z, v = self.counts.copy(), self.variances.copy()
        parents = self.parents
        for level in self.levels[:0:-1]:
            up = self.parent[level]
            sums, spread = (np.bincount(up, weights=column[level], minlength=len(z)) for column in (z, v))
            at = np.flatnonzero(parents[: level[0]])
            at = at[at >= up[0]]
            z[at], v[at] = combine((z[at], v[at]), (sums[at], spread[at]))
        return z, v

    def least_squares(self) -> "Tree":
        """Counts that add up along the tree: generalised least squares in two passes, with their exact variances."""
        z, v = self.upward()
        sums, spread = (np.bincount(self.parent[1:], weights=column[1:], minlength=len(z)) for column in (z, v))
        estimate, variance = z.copy(), v.copy()
        for level in range(1, len(self.starts) - 1):
            here = slice(self.starts[level], self.starts[level + 1])
            up = self.parent[here]
            share = v[here] / spread[up]
            estimate[here] = z[here] + share * (estimate[up] - sums[up])
            variance[here] = v[here] * (1 - share) + share**2 * variance[up]
        noise = TreeNoise(np.bincount(self.parent[1:], minlength=len(z)), self.variances)
        return Tree(self.boxes, self.parent, self.starts, estimate, np.maximum(variance, 0.0), self.spent, noise)

    def histogram(self, domain: Domain, sparse: SparseReading | None = None) -> PartitionHistogram:
        """The leaves as a histogram, with a ``sparse`` reading of them if there is one."""
        leaves = self.leaves
        return PartitionHistogram(
            domain, self.boxes[leaves], self.counts[leaves], self.variances[leaves], sparse, self.noise
        )


def grow(
    image: IntGrid,
    domain: Domain,
    draw: Callable[[IntArray, IntArray, int], LevelDraws],
    divide: Callable[[IntArray, FloatArray, int], tuple[IntArray, IntArray]],
) -> Tree:
    """The tree of a mechanism, from the whole box down to the level that divides none of its boxes.

    ``image``: integral image of the true counts. ``draw``: (true counts (P,), boxes (P, 4), depth) -> the level's
    draws. ``divide``: (boxes that are divided (D, 4), their noisy counts (D,), depth) -> (children, index of the parent
    of each). The mechanism answers for privacy: the boxes of one level are disjoint, so a user pays for the paths of
    their points only.
    """
    boxes, parent = whole(domain), np.array([-1], dtype=np.int64)
    levels: list[tuple[IntArray, IntArray, LevelDraws]] = []
    while True:
        depth = len(levels)
        draws = draw(box_sums(image, boxes), boxes, depth)
        levels.append((boxes, parent, draws))
        divided = np.flatnonzero(draws.divided)
        if not len(divided):
            return Tree.of_levels(levels)
        boxes, within = divide(boxes[divided], draws.counts[divided], depth)
        parent = divided[within]


def image_of(counts: IntGrid) -> IntGrid:
    """Integral image of integer counts."""
    return np.asarray(integral_image(counts), dtype=np.int64)
