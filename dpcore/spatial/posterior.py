"""Empirical-Bayes counts of a tree, from its draws alone: this is post-processing, and no privacy depends on it.

Two readings: expected counts, which are posterior means, and sparse counts, which are exactly 0 where keeping a node would do
more harm than good to relative error.

The prior of a node's count is 0 or exponential around what its place suggests. How often it is which is learnt by expectation
maximisation from the nodes in like places: those for which the parent's estimate, and the draws around, stand in the same
ratio to the noise. The sparse reading sets a node to 0 where that promises the smaller error relative to
max(count, ``sanity``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.spatial.domain import Domain, FloatArray
from dpcore.spatial.histogram import PartitionHistogram, SparseReading
from dpcore.spatial.partition import IntArray, Tree
from dpcore.spatial.queries import integral_image

BoolArray = npt.NDArray[np.bool_]
Goal = Literal["absolute", "relative"]
"""What post-processing aims at: squared error, or error relative to max(count, sanity)."""
GOALS: tuple[Goal, ...] = ("absolute", "relative")

TRUSTED = 100.0
"""In s/ε: answers from this size on, about 70 standard deviations of one draw, are those of the expected counts."""

SCALES = 2.0 ** np.arange(-3, 6)
"""Means of the exponential parts of the prior, in units of the count that the parent's density suggests."""
PARENT_BINS = np.array([-3, -2, -1, -0.3, 0.4, 1.1, 2, 3, 4.5])
SURROUNDINGS_BINS = np.array([-4, -3, -2, -1, 0, 1, 2])
"""Edges of the groups of like places: logarithms of counts suggested, in standard deviations of the node's noise."""
ZERO_PSEUDO_COUNT = 5.0
PART_PSEUDO_COUNT = 0.05
"""Nodes that each part of the prior is assumed to have had before: a group of few nodes is taken for empty unless its draws
say otherwise."""
ITERATIONS = 30
LEARNT_FROM = 2000
"""Most nodes of one group from which expectation maximisation learns."""
CHUNK = 1024
"""Nodes computed at once, so that their arrays fit into a processor's cache."""
ZERO_ADVANTAGE = 0.75
"""A node is dropped unless keeping it promises less than this share of the error of dropping it."""
THIN = 1.0
"""Points per cell below which a large leaf is dropped: it would spread fractions of points over many cells."""
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


@dataclass(frozen=True)
class _Estimates:
    """Posterior ``mean`` and ``variance`` of nodes (n,), and which of them are better taken for ``empty``."""

    mean: FloatArray
    variance: FloatArray
    empty: BoolArray

    def put(self, nodes: IntArray, estimates: _Estimates) -> None:
        """Set those of ``nodes``."""
        self.mean[nodes], self.variance[nodes] = estimates.mean, estimates.variance
        self.empty[nodes] = estimates.empty


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


def _descend(tree: Tree, sanity: float | None) -> tuple[FloatArray, _Estimates]:
    """Counts from the root down, every level given the one above; none is dropped without a ``sanity``."""
    z, variance = tree.upward()
    parents, uneven = tree.parents, _uneven(tree, z, variance)
    sanity = sanity if uneven[0] else None
    estimates = _Estimates(np.zeros(len(z)), np.zeros(len(z)), np.ones(len(z), dtype=bool))
    counts = np.zeros(len(z))
    counts[0] = max(z[0], 0.0)
    stopped = np.zeros(0, dtype=np.int64)
    for level in tree.levels[1:]:
        around = _suggested(tree, z, counts, stopped, level)
        alive = level[counts[tree.parent[level]] > 0]
        if len(alive):
            above, area, deviation = tree.parent[alive], tree.areas_of(alive), np.sqrt(variance[alive])
            nodes = _Nodes(
                drawn=z[alive] / deviation,
                expected=counts[above] * area / tree.areas_of(above) / deviation,
                around=around[alive - level[0]] / deviation,
                variance=variance[alive],
                area=area,
                inner=parents[alive],
                uneven=uneven[above],
            )
            estimates.put(alive, _estimate(nodes, sanity))
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
    return _at_ring_density(_density_image(shape, tree.boxes[known], density), tree.boxes[level], drawn)


def _density_image(shape: tuple[int, int], boxes: IntArray, density: FloatArray) -> FloatArray:
    """Integral image of the grid whose cells hold the ``density`` (P,) of the one of the disjoint ``boxes`` they lie in."""
    x0, x1, y0, y1 = boxes.T
    change = np.zeros((shape[0] + 1, shape[1] + 1))
    for x, y, sign in ((x0, y0, 1), (x1, y1, 1), (x0, y1, -1), (x1, y0, -1)):
        np.add.at(change, (x, y), sign * density)
    return np.asarray(integral_image(change.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]), dtype=np.float64)


def _at_ring_density(image: FloatArray, boxes: IntArray, own: FloatArray) -> FloatArray:
    """Count of each box at the density of the ring around it, (P,): one box height and width on every side, within the grid.
    ``own``: (P,), what the box itself adds to the integral ``image``.
    """
    x0, x1, y0, y1 = boxes.T
    height, width = x1 - x0, y1 - y0
    area = height * width
    x0, x1 = np.maximum(x0 - height, 0), np.minimum(x1 + height, image.shape[0] - 1)
    y0, y1 = np.maximum(y0 - width, 0), np.minimum(y1 + width, image.shape[1] - 1)
    points = image[x1, y1] - image[x0, y1] - image[x1, y0] + image[x0, y0] - own
    ring = np.maximum((x1 - x0) * (y1 - y0) - area, 1)
    return np.asarray(np.maximum(points, 0.0) / ring * area, dtype=np.float64)


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


@dataclass(frozen=True)
class _Nodes:
    """n nodes of one level before their own draws are read, (n,) each; counts in standard deviations of the node's noise.

    ``expected``, ``around``: the count at the density of the parent, and of the surroundings. ``variance``: of the node's
    noise, in points². ``inner``: it has children, so that its draw adds up many; ``uneven``: its parent's space is.
    """

    drawn: FloatArray
    expected: FloatArray
    around: FloatArray
    variance: FloatArray
    area: IntArray
    inner: BoolArray
    uneven: BoolArray

    @property
    def deviation(self) -> FloatArray:
        """Standard deviation of the noise, in points."""
        return np.asarray(np.sqrt(self.variance), dtype=np.float64)

    def groups(self) -> list[IntArray]:
        """Positions of the nodes in like places: these learn one prior together."""
        place = np.digitize(np.log(np.maximum(self.expected, 1e-3)), PARENT_BINS) * (len(SURROUNDINGS_BINS) + 1)
        place += np.digitize(np.log(np.maximum(self.around, 1e-4)), SURROUNDINGS_BINS)
        place = 2 * place + self.inner
        order = np.argsort(place, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(place[order])) + 1)


@dataclass(frozen=True)
class _Mixture:
    """Posterior of n counts: 0 or one of S exponential parts. ``weight``: (n, 1 + S), rows add up to 1; ``first`` and
    ``second`` moments of the parts, (n, S), in standard deviations of the noise.
    """

    weight: FloatArray
    first: FloatArray
    second: FloatArray

    @cached_property
    def mean(self) -> FloatArray:
        """Mean over all parts, (n,)."""
        return np.asarray((self.weight[:, 1:] * self.first).sum(axis=1))

    @property
    def variance(self) -> FloatArray:
        """Variance over all parts, (n,), above 0."""
        return np.asarray(
            np.maximum((self.weight[:, 1:] * self.second).sum(axis=1) - self.mean**2, 1e-9), dtype=np.float64
        )

    def better_empty(self, deviation: FloatArray, sanity: float) -> BoolArray:
        """Which counts are better taken for 0, (n,): the error relative to max(count, ``sanity``) that 0 promises is not much
        above that of the estimate given that there is something. ``deviation``: (n,), of the noise in points.
        """
        unit, rest = deviation[:, None], self.weight[:, 1:]
        zero = self.weight[:, 0]
        kept = unit[:, 0] * self.mean / np.maximum(1 - zero, 1e-9)
        centre, width = self.first * unit, np.sqrt(np.maximum(self.second - self.first**2, 0.0)) * unit
        error = np.hypot(centre - kept[:, None], 0.8 * width) / np.maximum(centre, sanity)
        keeping = zero * kept / sanity + (rest * error).sum(axis=1)
        dropping = (rest * np.minimum(centre / sanity, 1.0)).sum(axis=1)
        return np.asarray(keeping > ZERO_ADVANTAGE * dropping)


def _estimate(nodes: _Nodes, sanity: float | None) -> _Estimates:
    """Posterior of ``nodes``; without a ``sanity`` none is taken for empty."""
    size, deviation = len(nodes.drawn), nodes.deviation
    mean, variance, empty = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
    for group in nodes.groups():
        parts = _gaussian_parts if nodes.inner[group[0]] else _laplace_parts
        sample = group[:: max(1, len(group) // LEARNT_FROM)]
        share = _shares(parts(nodes.drawn[sample, None], _scales(nodes.expected[sample]))[0])
        for start in range(0, len(group), CHUNK):
            at = group[start : start + CHUNK]
            evidence, first, second = parts(nodes.drawn[at, None], _scales(nodes.expected[at]))
            posterior = _Mixture(_normalised(evidence * share), first, second)
            mean[at] = posterior.mean * deviation[at]
            variance[at] = posterior.variance * nodes.variance[at]
            if sanity is not None:
                empty[at] = posterior.better_empty(deviation[at], sanity)
    if sanity is not None:
        empty |= (mean < THIN * nodes.area) & (mean > 2 * sanity) & ~nodes.inner & nodes.uneven
    return _Estimates(np.where(empty, 0.0, mean), np.where(empty, 0.0, variance), empty)


def _scales(expected: FloatArray) -> FloatArray:
    """Means of the exponential parts where ``expected`` is suggested, in standard deviations, shape (n, S)."""
    return np.asarray(np.maximum(np.maximum(expected, 0.02)[:, None] * SCALES, 0.05), dtype=np.float64)


def _shares(evidence: FloatArray) -> FloatArray:
    """Shares of the parts of the prior, learnt from the nodes whose ``evidence`` this is, shape (1+S,)."""
    share = np.full(evidence.shape[1], 1 / evidence.shape[1])
    pseudo = np.full(evidence.shape[1], PART_PSEUDO_COUNT)
    pseudo[0] = ZERO_PSEUDO_COUNT
    for _ in range(ITERATIONS):
        share = _normalised(evidence * share).sum(axis=0) + pseudo
        share /= share.sum()
    return share


def _normalised(weight: FloatArray) -> FloatArray:
    """Rows that add up to 1."""
    return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


def _laplace_parts(y: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Evidence of 0 and of each exponential ``scale`` (n, 1+S), and first and second moments (n, S), for a draw ``y``
    with Laplace noise of standard deviation 1.
    """
    e = math.sqrt(2)
    gap = e - 1 / scale
    # At equal rates the closed forms divide by 0: such a scale is moved by a thousandth.
    gap = np.copysign(np.maximum(np.abs(gap), 1e-3 * e), gap)
    a = e - gap
    up = np.maximum(y, 0.0)
    height = a * (e / 2)
    near = height * np.exp(-a * up)
    # Below the draw the density is ∝ exp(gap·x), above it ∝ exp(−(a+e)·x).
    per_gap = 1 / gap
    below = (near - height * np.exp(-e * up)) * per_gap
    edge = up * near * per_gap
    below_first = edge - below * per_gap
    below_second = up * edge - 2 * per_gap * below_first
    step = 1 / (a + e)
    above, centre = near * np.exp(-e * np.maximum(-y, 0.0)) * step, up + step
    total = below + above + 1e-290
    first = (below_first + above * centre) / total
    second = (below_second + above * (centre**2 + step**2)) / total
    return np.column_stack([e / 2 * np.exp(-e * np.abs(y)) + 1e-290, total]), first, second


def _gaussian_parts(y: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same for Gaussian noise of standard deviation 1: draws of inner nodes add up many."""
    a = 1 / scale
    shifted = y - a
    log_mass = log_ndtr(shifted)
    evidence = np.exp(np.minimum(np.log(a) - a * y + a**2 / 2 + log_mass, 50.0))
    ratio = np.exp(-(shifted**2) / 2 - math.log(2 * math.pi) / 2 - log_mass)
    first = np.maximum(shifted + ratio, 0.0)
    second = np.maximum(1 + shifted * (shifted + ratio), 0.0)
    return np.column_stack([np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi) + 1e-290, evidence]), first, second


def _conform(tree: Tree, nodes: IntArray, estimates: _Estimates, counts: FloatArray) -> None:
    """Set ``counts`` of ``nodes`` to their means, moved in proportion to their variances to add up to their parents'."""
    parent = tree.parent[nodes]
    value, spread = estimates.mean[nodes], estimates.variance[nodes]
    for _ in range(CONFORMING_ROUNDS):
        gap = counts - np.bincount(parent, weights=value, minlength=len(counts))
        free = np.where((value <= 0) & (gap[parent] < 0), 0.0, spread)
        total = np.bincount(parent, weights=free, minlength=len(counts))
        value = np.maximum(value + free / np.maximum(total[parent], 1e-12) * gap[parent], 0.0)
    counts[nodes] = np.where(counts[parent] > 0, value, 0.0)
