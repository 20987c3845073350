"""Empirical-Bayes counts of a tree, from its draws alone: this is post-processing, and no privacy depends on it.

Two readings: expected counts, which are posterior means, and sparse counts, which are exactly 0 where keeping a node would do
more harm than good to relative error.

The prior of a node's count is 0 or exponential around what its place suggests. How often it is which is learnt by expectation
maximisation from the nodes in like places: those for which the parent's estimate, and the draws around, stand in the same
ratio to the noise. The sparse reading sets a node to 0 where that promises the smaller error relative to
max(count, ``sanity``).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.spatial._mixture import BoolArray, Estimates, Nodes, estimates_of
from dpcore.spatial._surroundings import at_ring_density, density_image
from dpcore.spatial.domain import Domain, FloatArray
from dpcore.spatial.histogram import PartitionHistogram, SparseReading
from dpcore.spatial.partition import IntArray, Tree

Goal = Literal["absolute", "relative"]
"""What post-processing aims at: squared error, or error relative to max(count, sanity)."""
GOALS: tuple[Goal, ...] = ("absolute", "relative")

TRUSTED = 100.0
"""In s/ε: answers from this size on, about 70 standard deviations of one draw, are those of the expected counts."""

UNEVEN = 3.0
"""Space is uneven where siblings' counts have a mean square above this multiple of their squared mean, as if all points lay on a
third of it. Most ranges inside a thin leaf then hold next to nothing. In even space they hold their share, so no thin leaf is
dropped there, and nothing at all is dropped where the box as a whole is even.
"""
MEASURED = 11.0
"""Squared count of all siblings together, in variances of its noise, that is needed to measure how uneven they are (to about
±0.5 for 16 of them). Below it they are taken to be as uneven as their parent and its siblings."""
CONFORMING_ROUNDS = 3
MOST = 3.0
"""A kept node takes over what its dropped siblings leave, but rises at most this many standard deviations above its own
posterior mean. Without the limit one child would take all the noise of a parent whose space is empty."""


def require_goal(goal: str) -> None:
    """Refuse an unknown goal."""
    if goal not in GOALS:
        raise ParameterError(f"goal {goal!r}; give absolute or relative")


def histogram_for(
    goal: Goal, tree: Tree, unbiased: Tree, domain: Domain, epsilon_micro: int, points_per_user: int
) -> PartitionHistogram:
    """Leaves of ``unbiased`` as a histogram; under "relative" with the sparse reading of the draws in ``tree``."""
    leaves = tree.leaves
    sparse = None
    if goal == "relative":
        below = TRUSTED * points_per_user * MICRO / epsilon_micro
        sparse = SparseReading(sparse_counts(tree)[leaves], expected_counts(tree)[leaves], below)
    return PartitionHistogram(
        domain, tree.boxes[leaves], unbiased.counts[leaves], unbiased.variances[leaves], sparse, unbiased.noise
    )


def expected_counts(tree: Tree) -> FloatArray:
    """Posterior means ≥ 0 of all nodes, shape (M,); children add up to their parent, except that the root keeps its count
    where everything below it is 0. ``tree``: unbiased draws with their variances, before least squares.
    """
    counts, _ = _descend(tree, None)
    return counts


def sparse_counts(tree: Tree, sanity: float = 20.0) -> FloatArray:
    """Counts ≥ 0 of all nodes, shape (M,), that are 0 in space that looks empty; children add up to their parent's count or
    less. ``sanity``: the count below which errors are measured in points, not relatively.
    """
    counts, estimates = _descend(tree, sanity)
    # A parent whose children are all empty is empty itself: its count goes to its siblings.
    parents = tree.parents
    for level in tree.levels[:0:-1]:
        inner = level[parents[level]]
        kept_children = np.bincount(tree.parent[1:], weights=~estimates.empty[1:], minlength=len(counts))[inner]
        estimates.empty[inner] |= kept_children == 0
    counts[1:] = 0.0
    for level in tree.levels[1:]:
        kept = level[~estimates.empty[level]]
        _conform(tree, kept, estimates, counts)
        counts[kept] = np.minimum(counts[kept], estimates.mean[kept] + MOST * np.sqrt(estimates.variance[kept]))
    return counts


def _descend(tree: Tree, sanity: float | None) -> tuple[FloatArray, Estimates]:
    """Counts from the root down, every level given the one above; none is dropped without a ``sanity``."""
    z, variance = tree.upward()
    parents, uneven = tree.parents, _uneven(tree, z, variance)
    sanity = sanity if uneven[0] else None
    estimates = Estimates(np.zeros(len(z)), np.zeros(len(z)), np.ones(len(z), dtype=bool))
    counts = np.zeros(len(z))
    counts[0] = max(z[0], 0.0)
    stopped = np.zeros(0, dtype=np.int64)
    for level in tree.levels[1:]:
        around = _suggested(tree, z, counts, stopped, level)
        alive = level[counts[tree.parent[level]] > 0]
        if len(alive):
            above, area, deviation = tree.parent[alive], tree.areas_of(alive), np.sqrt(variance[alive])
            nodes = Nodes(
                drawn=z[alive] / deviation,
                expected=counts[above] * area / tree.areas_of(above) / deviation,
                around=around[alive - level[0]] / deviation,
                variance=variance[alive],
                area=area,
                inner=parents[alive],
                uneven=uneven[above],
            )
            estimates.put(alive, estimates_of(nodes, sanity))
            _conform(tree, alive, estimates, counts)
        stopped = np.concatenate([stopped, level[~parents[level]]])
    return counts, estimates


def _suggested(tree: Tree, z: FloatArray, counts: FloatArray, stopped: IntArray, level: IntArray) -> FloatArray:
    """Count of each node of ``level`` at the density of the ring of its own size around it, from draws of this level; where
    the tree stopped above this level, from the estimates of the ``stopped`` nodes.
    """
    shape = int(tree.boxes[0, 1]), int(tree.boxes[0, 3])
    drawn = np.where(counts[tree.parent[level]] > 0, z[level], 0.0)
    known = np.concatenate([stopped, level])
    density = np.concatenate([counts[stopped], drawn]) / tree.areas_of(known)
    return at_ring_density(density_image(shape, tree.boxes[known], density), tree.boxes[level], drawn)


def _uneven(tree: Tree, z: FloatArray, variance: FloatArray) -> BoolArray:
    """Which nodes have children that differ by more than noise and :data:`UNEVEN`, shape (M,), from draws alone. Where noise or
    too few children hide it a node is as its parent; the root is uneven then, and so all of a binary tree.
    """
    up = tree.parent[1:]

    def below(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(up, weights=values[1:], minlength=len(z)), dtype=np.float64)

    children, noise, square = below(np.ones(len(z))), below(variance), below(z) ** 2
    uneven = np.asarray(children * (below(z**2) - noise) > UNEVEN * np.maximum(square - noise, 0.0))
    hidden = (square <= MEASURED * noise) | (children <= UNEVEN)
    uneven[0] |= hidden[0]
    for level in tree.levels[1:]:
        uneven[level] = np.where(hidden[level], uneven[tree.parent[level]], uneven[level])
    return uneven


def _conform(tree: Tree, nodes: IntArray, estimates: Estimates, counts: FloatArray) -> None:
    """Set ``counts`` of ``nodes`` to their means, moved in proportion to their variances to add up to their parents'."""
    parent = tree.parent[nodes]
    value, spread = estimates.mean[nodes], estimates.variance[nodes]
    for _ in range(CONFORMING_ROUNDS):
        gap = counts - np.bincount(parent, weights=value, minlength=len(counts))
        free = np.where((value <= 0) & (gap[parent] < 0), 0.0, spread)
        total = np.bincount(parent, weights=free, minlength=len(counts))
        value = np.maximum(value + free / np.maximum(total[parent], 1e-12) * gap[parent], 0.0)
    counts[nodes] = np.where(counts[parent] > 0, value, 0.0)
