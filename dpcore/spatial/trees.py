"""Quadtree and kd-tree with uniform or geometric budgets and least-squares consistency. Relation "participation".

To be proved: a tree at ε is ε-DP for s points per user. Proof: the boxes of one level are disjoint, so each of a user's
points lies on one path from the root. A box at ε′ costs a user ε′·(their points in it)/s, for its count as for the
median of a kd-tree, whose cost |2·left − all| each point changes by 1. A box that cannot be divided draws its count
with the shares of all levels that it never reaches, so every path costs exactly ε, and so does their average over the s
points. Tested: tests/dpcore/spatial/test_partitions.py (paths, costs of medians), tests/audit/test_spatial_audit.py.
Source: Cormode et al., "Differentially Private Spatial Decompositions" (2012), as [H]'s baselines.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.grids import noisy_total, require_share
from dpcore.spatial.partition import LevelDraws, Tree, areas, box_sums, draw_counts, grow, image_of, split_boxes
from dpcore.spatial.posterior import TreeMechanism

MAX_HEIGHT = 26
"""Levels below the root; the largest grid has 2^26 cells."""


def level_weights(budget: Literal["uniform", "geometric"], height: int) -> list[float]:
    """Weights of the levels from the root (depth 0) to depth ``height``: equal, or growing by 2^(1/3) per level."""
    if budget not in ("uniform", "geometric"):
        raise ParameterError(f"level budgets {budget!r}; give uniform or geometric")
    return [1.0 if budget == "uniform" else 2.0 ** (depth / 3) for depth in range(height + 1)]


def height_of(total: int, epsilon_micro: int, points_per_user: int, highest: int) -> int:
    """clip(⌊log₂(max(1, N̂ε/10))⌋, 1, highest), ε per point of a user. Source: [H], floor instead of its rounding."""
    size = max(total, 0) * epsilon_micro / (10 * MICRO * points_per_user)
    return max(1, min(highest, math.floor(math.log2(max(1.0, size)))))


@dataclass(frozen=True)
class QuadTree(TreeMechanism):
    """Halves both axes at every level, down to ``height`` levels or single cells."""

    budget: Literal["uniform", "geometric"] = "geometric"
    height: int | None = None
    consistency: bool = True

    def __post_init__(self) -> None:
        if self.height is not None and not 0 <= self.height <= MAX_HEIGHT:
            raise ParameterError(f"height {self.height} is outside 0..{MAX_HEIGHT}; give the levels below the root")
        level_weights(self.budget, 0)

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """All levels with their draws, before consistency."""
        shares = self.level_shares(domain, epsilon_micro)

        def draw(truth: IntArray, boxes: IntArray, depth: int) -> LevelDraws:
            single = areas(boxes) == 1
            spent = np.where(single, sum(shares[depth:]), shares[depth])
            drawn, variances = draw_counts(truth, spent, points_per_user, noise)
            return LevelDraws(drawn.astype(np.float64), variances, spent, ~single & (depth < len(shares) - 1))

        return grow(image_of(counts), domain, draw, lambda boxes, noisy, depth: split_boxes(boxes, 2))

    def level_shares(self, domain: Domain, epsilon_micro: int) -> tuple[int, ...]:
        """µε of each level from the root: a function of public parameters."""
        deepest = (max(domain.shape) - 1).bit_length()
        weights = level_weights(self.budget, deepest if self.height is None else min(self.height, deepest))
        if self.budget == "geometric":  # a level of a quadtree is two of a binary tree
            weights = [weight**2 for weight in weights]
        return BudgetSplit.by_weights(epsilon_micro, weights).shares


@dataclass(frozen=True)
class Candidates:
    """Positions at which each box can be cut along one axis, the boxes one after the other; a cut at k has k lines
    before it.

    ``axis`` (P,): 0 rows, 1 columns; ``offsets`` (P+1,); ``box`` and ``k`` (C,), k = first … lines−first, ``first``
    (P,).
    """

    axis: IntArray
    first: IntArray
    offsets: IntArray
    box: IntArray
    k: IntArray

    @classmethod
    def of(cls, boxes: IntArray, parity: int, margin: float = 0.0) -> Self:
        """Cuts along axis ``parity`` where the box has more than one line of it, else along the other; at least the
        part ``margin`` of the lines, rounded down, lies on either side.
        """
        lines = np.column_stack([boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]])
        axis = np.where(lines[:, parity] > 1, parity, 1 - parity)
        lines = lines[np.arange(len(boxes)), axis]
        first = np.maximum(1, np.floor(lines * margin)).astype(np.int64)
        number = lines - 2 * first + 1
        offsets = np.concatenate([[0], np.cumsum(number)]).astype(np.int64)
        box = np.repeat(np.arange(len(boxes)), number)
        return cls(axis, first, offsets, box, np.arange(len(box)) - offsets[box] + first[box])

    def lower(self, boxes: IntArray, box: IntArray, k: IntArray) -> IntArray:
        """The parts before the cut, shape (len(box), 4)."""
        part, axis = boxes[box].copy(), self.axis[box]
        part[axis == 0, 1] = part[axis == 0, 0] + k[axis == 0]
        part[axis == 1, 3] = part[axis == 1, 2] + k[axis == 1]
        return part

    def cut(self, boxes: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
        """(Children, index of the parent of each) for the cut ``chosen`` (P,), from each box's first candidate."""
        k = chosen + self.first
        every = np.arange(len(boxes))
        first = self.lower(boxes, every, k)
        second = boxes.copy()
        rows, columns = self.axis == 0, self.axis == 1
        second[rows, 0], second[columns, 2] = first[rows, 1], first[columns, 3]
        return np.stack([first, second], axis=1).reshape(-1, 4), np.repeat(every, 2)


def median_costs(image: IntGrid, boxes: IntArray, candidates: Candidates) -> IntArray:
    """|2·left − all| for every candidate: how far its cut is from halving its box's points. A point changes it by 1."""
    left = box_sums(image, candidates.lower(boxes, candidates.box, candidates.k))
    return np.asarray(np.abs(2 * left - box_sums(image, boxes)[candidates.box]), dtype=np.int64)


@dataclass(frozen=True)
class KdTree(TreeMechanism):
    """Halves the points of a node at a private median, axes in turn; height from a DP count as for HTF.

    ``split_share`` of the budget pays for the medians, ``total_share`` for the count. The cost of a cut is
    |2·left − all|, which one point changes by 1.
    """

    budget: Literal["uniform", "geometric"] = "geometric"
    consistency: bool = True
    split_share: float = 0.3
    total_share: float = 0.01
    max_height: int = 16

    def __post_init__(self) -> None:
        require_share("split_share", self.split_share)
        require_share("total_share", self.total_share)
        if not 1 <= self.max_height <= MAX_HEIGHT:
            raise ParameterError(f"max_height {self.max_height} is outside 1..{MAX_HEIGHT}")
        level_weights(self.budget, 0)

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """All levels with their draws, before consistency; the root carries the cost of the total."""
        total_micro, split_micro, data_micro = self.parts(epsilon_micro)
        total = noisy_total(counts, total_micro, points_per_user, noise)
        height = height_of(total, epsilon_micro, points_per_user, self.max_height)
        splits, shares = self.level_shares(split_micro, data_micro, height)
        image = image_of(counts)

        def draw(truth: IntArray, boxes: IntArray, depth: int) -> LevelDraws:
            single = areas(boxes) == 1
            counting = np.where(single, sum(shares[depth:]) + sum(splits[depth:]), shares[depth])
            drawn, variances = draw_counts(truth, counting, points_per_user, noise)
            spent = counting + np.where(single, 0, splits[depth]) + (0 if depth else total_micro)
            return LevelDraws(drawn.astype(np.float64), variances, spent, ~single & (depth < height))

        def divide(boxes: IntArray, noisy: FloatArray, depth: int) -> tuple[IntArray, IntArray]:
            candidates = Candidates.of(boxes, depth % 2)
            ratio = splits[depth], 2 * points_per_user * MICRO
            chosen = noise.exponential(median_costs(image, boxes, candidates), *ratio, offsets=candidates.offsets)
            return candidates.cut(boxes, chosen)

        return grow(image, domain, draw, divide)

    def parts(self, epsilon_micro: int) -> tuple[int, ...]:
        """µε of the total, of all medians of a path, and of all its counts."""
        weights = [self.total_share, self.split_share, (1 - self.total_share) * (1 - self.split_share)]
        return BudgetSplit.by_weights(epsilon_micro, weights).shares

    def level_shares(self, split_micro: int, data_micro: int, height: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """µε of the medians and of the counts of each level from the root, in a tree of ``height``: public parameters
        decide.

        Raises ``BudgetError`` where a level would get nothing.
        """
        splits = (*BudgetSplit.by_weights(split_micro, [1.0] * height).shares, 0)
        return splits, BudgetSplit.by_weights(data_micro, level_weights(self.budget, height)).shares
