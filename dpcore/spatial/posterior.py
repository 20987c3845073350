"""Empirical-Bayes counts of a tree, from its draws alone: this is post-processing, and no privacy depends on it.

Two readings: expected counts, which are posterior means, and sparse counts, which are exactly 0 where keeping a node
would do more harm than good to relative error.

The prior of a node's count is 0 or exponential around what its place suggests. How often it is which is learnt by
expectation maximisation from the nodes in like places: those for which the parent's estimate, and the draws around,
stand in the same ratio to the noise. The sparse reading sets a node to 0 where that promises the smaller error relative
to max(count, ``sanity``), unless the thin space of its level is even (:mod:`dpcore.spatial._mixture`): in even space
most ranges hold their share of a thin leaf, in uneven space next to nothing.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial._mixture import Estimates, Nodes, estimates_of, even_box, unevenness
from dpcore.spatial.domain import Domain, IndexGrid, IntGrid
from dpcore.spatial.histogram import PartitionHistogram, SparseReading, paint
from dpcore.spatial.mechanism import SpatialMechanism
from dpcore.spatial.partition import Tree, areas
from dpcore.spatial.queries import integral_image


@dataclass(frozen=True)
class Surroundings:
    """The rings around some of the boxes that tile a grid: one box height and width on every side, within the grid.

    ``owner`` (rows, columns): index of the box of each cell; ``corners`` (4, P): entries of an integral image that
    bound each ring and its box; ``area``, ``ring`` (P,): cells of the box, and of the ring alone.
    """

    owner: IndexGrid
    corners: IndexGrid
    area: IndexGrid
    ring: IndexGrid

    @classmethod
    def of(cls, owner: IndexGrid, boxes: IntArray) -> Self:
        """The rings of ``boxes`` (P, 4) in a grid whose cells are of the boxes that ``owner`` (rows, columns) says."""
        shape = owner.shape
        x0, x1, y0, y1 = boxes.T.astype(np.int32)
        height, width = x1 - x0, y1 - y0
        area = height * width
        x0, x1 = np.maximum(x0 - height, 0), np.minimum(x1 + height, shape[0])
        y0, y1 = np.maximum(y0 - width, 0), np.minimum(y1 + width, shape[1])
        low, high = x0 * (shape[1] + 1), x1 * (shape[1] + 1)
        ring = np.maximum((x1 - x0) * (y1 - y0) - area, 1)
        return cls(owner, np.stack([high + y1, low + y1, high + y0, low + y0]), area, ring)

    def at_density(self, density: FloatArray, own: FloatArray) -> FloatArray:
        """Count of each box at the density of the ring around it, (P,). ``density``: (N,), of the tiles; ``own``: (P,),
        what the box itself adds to the points of ring and box together.
        """
        image = integral_image(np.take(density, self.owner)).ravel()
        last, above, before, first = (image[corner] for corner in self.corners)
        return np.asarray(np.maximum(last - above - before + first - own, 0.0) / self.ring * self.area)


Goal = Literal["absolute", "relative"]
"""What post-processing aims at: squared error, or error relative to max(count, sanity)."""
GOALS: tuple[Goal, ...] = ("absolute", "relative")

TRUSTED = 50.0
"""Answers of this size in s/ε (about 35 standard deviations of one draw) and more are those of the expected counts."""

CONFORMING_ROUNDS = 3
MOST = 3.0
"""A kept node takes over what its dropped siblings leave, but rises at most this many standard deviations above its own
posterior mean. Without the limit one child would take all the noise of a parent whose space is empty."""


def require_goal(goal: str) -> None:
    """Refuse an unknown goal."""
    if goal not in GOALS:
        raise ParameterError(f"goal {goal!r}; give absolute or relative")


class TreeMechanism(SpatialMechanism):
    """A mechanism that draws a tree and releases its leaves, made consistent with the draws above them if
    ``consistency`` is set; under the ``goal`` "relative" with the sparse reading of the draws before that.
    """

    consistency: bool = True
    goal: Goal = "absolute"

    @abstractmethod
    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """All levels with their draws, before consistency."""

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> PartitionHistogram:
        """Histogram at ``epsilon_micro`` µε."""
        tree, sparse = self.tree(counts, domain, epsilon_micro, noise, points_per_user), None
        if self.goal == "relative":
            kept, expected = both_readings(tree)
            below = TRUSTED * points_per_user * MICRO / epsilon_micro
            sparse = SparseReading(kept[tree.leaves], expected[tree.leaves], below)
        return (tree.least_squares() if self.consistency else tree).histogram(domain, sparse)


SANITY = 20.0
"""The count below which errors are measured in points, not relatively."""


def both_readings(tree: Tree) -> tuple[FloatArray, FloatArray]:
    """Two counts ≥ 0 of all nodes, shape (M,) each: sparse ones and posterior means, level by level from the root.

    Sparse counts are 0 in space that looks empty; children add up to their parent's count or less. Posterior means add
    up, except that the root keeps its count where everything below it is 0. ``tree``: unbiased draws with their
    variances, before least squares.
    """
    evidence = _Evidence.of(tree)
    sparse, expected = _Reading.of(evidence, SANITY), _Reading.of(evidence, None)
    stopped = np.zeros(0, dtype=np.int64)
    for level, uneven in zip(tree.levels[1:], evidence.unevenness[1:], strict=True):
        known = np.concatenate([stopped, level])
        shape = int(tree.boxes[0, 1]), int(tree.boxes[0, 3])
        rings = Surroundings.of(paint(shape, tree.boxes[known]), tree.boxes[level[0] : level[-1] + 1])
        for reading in (sparse, expected):
            reading.read(level, float(uneven), stopped, rings)
        stopped = known[~evidence.parents[known]]
    return sparse.kept_alone(), expected.counts


@dataclass(frozen=True)
class _Evidence:
    """What the draws of a ``tree`` say before any prior, (M,) each: best unbiased counts ``z`` from a node's own
    subtree and their ``variance``, ``area`` in cells, and which nodes are ``parents``; the ``unevenness`` (levels,) of
    thin space.
    """

    tree: Tree
    z: FloatArray
    variance: FloatArray
    area: IntArray
    parents: BoolArray
    unevenness: FloatArray

    @classmethod
    def of(cls, tree: Tree) -> Self:
        z, variance = tree.upward()
        return cls(tree, z, variance, areas(tree.boxes), tree.parents, unevenness(tree, z, variance))


@dataclass(frozen=True)
class _Reading:
    """``counts`` (M,) and ``estimates`` of the nodes, filled level by level; none is dropped without a ``sanity``."""

    evidence: _Evidence
    sanity: float | None
    counts: FloatArray
    estimates: Estimates

    @classmethod
    def of(cls, evidence: _Evidence, sanity: float | None) -> Self:
        """The root alone."""
        nodes = len(evidence.z)
        counts = np.zeros(nodes)
        counts[0] = max(evidence.z[0], 0.0)
        estimates = Estimates(np.zeros(nodes), np.zeros(nodes), np.ones(nodes, dtype=bool), np.ones(nodes))
        even = even_box(evidence.tree, evidence.z, evidence.variance)
        return cls(evidence, None if even else sanity, counts, estimates)

    def read(self, level: IntArray, uneven: float, stopped: IntArray, rings: Surroundings) -> None:
        """Estimate the nodes of ``level``, whose thin space is so ``uneven``. ``rings``: theirs, among the ``stopped``
        nodes above them and themselves.
        """
        given, counts = self.evidence, self.counts
        around = self._suggested(level, stopped, rings)
        alive = level[counts[given.tree.parent[level]] > 0]
        if len(alive):
            above, area, deviation = given.tree.parent[alive], given.area[alive], np.sqrt(given.variance[alive])
            nodes = Nodes(
                drawn=given.z[alive] / deviation,
                expected=counts[above] * area / given.area[above] / deviation,
                around=around[alive - level[0]] / deviation,
                variance=given.variance[alive],
                area=area,
                inner=given.parents[alive],
                uneven=uneven,
            )
            self.estimates.put(alive, estimates_of(nodes, self.sanity))
            _conform(given.tree, alive, self.estimates, counts)

    def _suggested(self, level: IntArray, stopped: IntArray, rings: Surroundings) -> FloatArray:
        """Count of each node of ``level`` at the density of the ring of its own size around it, from draws of this
        level; where the tree stopped above this level, from the estimates of the ``stopped`` nodes.
        """
        counts, area = self.counts, self.evidence.area
        drawn = np.where(counts[self.evidence.tree.parent[level]] > 0, self.evidence.z[level], 0.0)
        density = np.concatenate([counts[stopped] / area[stopped], drawn / area[level]])
        return rings.at_density(density, drawn)

    def kept_alone(self) -> FloatArray:
        """Counts (M,) without the nodes that are better taken for empty."""
        tree, empty, estimates = self.evidence.tree, self.estimates.empty.copy(), self.estimates
        # A parent whose children are all empty is empty itself: its count goes to its siblings.
        for level in tree.levels[:0:-1]:
            inner = level[self.evidence.parents[level]]
            kept_children = np.bincount(tree.parent[1:], weights=~empty[1:], minlength=len(empty))[inner]
            empty[inner] |= kept_children == 0
        counts = np.zeros(len(empty))
        counts[0] = self.counts[0]
        for level in tree.levels[1:]:
            kept = level[~empty[level]]
            _conform(tree, kept, estimates, counts)
            counts[kept] = np.minimum(counts[kept], estimates.mean[kept] + MOST * np.sqrt(estimates.variance[kept]))
        return counts * estimates.share


def _conform(tree: Tree, nodes: IntArray, estimates: Estimates, counts: FloatArray) -> None:
    """Set ``counts`` of ``nodes`` to means, moved in proportion to their variances to add up to their parents'."""
    parent = tree.parent[nodes]
    if not len(nodes):
        return
    # The parents stand on one level, in order: sums are made over that part of the tree alone.
    first = int(parent[0])
    own, above = counts[first : int(parent[-1]) + 1], parent - first
    value, spread = estimates.mean[nodes], estimates.variance[nodes]
    for _ in range(CONFORMING_ROUNDS):
        gap = own - np.bincount(above, weights=value)
        stuck = np.take(gap < 0, above)
        stuck &= value <= 0
        move = np.where(stuck, 0.0, spread)
        total = np.bincount(above, weights=move)
        move *= np.take(gap / np.maximum(total, 1e-12), above)
        value += move
        np.maximum(value, 0.0, out=value)
    value[np.take(own <= 0, above)] = 0.0
    counts[nodes] = value
