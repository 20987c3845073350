"""Posterior of the counts of a tree's nodes of one level, each 0 or exponential around what its place suggests.

How often a count is which, nodes in like places learn together, by expectation maximisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.spatial._evenness import EVEN, kept_share

SCALES = 2.0 ** np.arange(-3, 6)
"""Means of the S exponential parts of the prior, in units of the count that the parent's density suggests. Arrays of
parts have the nodes along their last axis, so that sums over the few parts go by whole columns."""
PARENT_BINS = np.array([-3, -2, -1, -0.3, 0.4, 1.1, 2, 3, 4.5])
SURROUNDINGS_BINS = np.array([-4, -3, -2, -1, 0, 1, 2])
"""Edges of the groups of like places: logarithms of counts suggested, in standard deviations of the node's noise."""
ZERO_PSEUDO_COUNT = 5.0
ZERO_IN_EVEN_SPACE = 0.3
PART_PSEUDO_COUNT = 0.05
"""Nodes that each part of the prior is assumed to have had before: a group of few nodes is taken for empty unless its
draws say otherwise. Large leaves in even space are few and not empty: they are taken so much less."""
ITERATIONS = 30
LEARNT_FROM = 2000
"""Most nodes of one group from which expectation maximisation learns."""
CHUNK = 1024
"""Nodes computed at once, so that their arrays fit into a processor's cache."""
ZERO_ADVANTAGE = 0.75
"""A node is dropped unless keeping it promises less than this share of the error of dropping it."""
THIN = 1.0
"""Points per cell below which a large leaf is thin: it spreads fractions of points over many cells."""
LARGE = 40
"""Cells of the largest leaf that cannot be thin, since thin leaves hold more than 2·sanity points."""


@dataclass(frozen=True)
class Estimates:
    """Posterior ``mean`` and ``variance`` of nodes (n,), which of them are better taken for ``empty``, and the
    ``share`` of their counts that is kept where they are sparse.
    """

    mean: FloatArray
    variance: FloatArray
    empty: BoolArray
    share: FloatArray

    def put(self, nodes: IntArray, estimates: Estimates) -> None:
        """Write the estimates of ``nodes``."""
        self.mean[nodes], self.variance[nodes] = estimates.mean, estimates.variance
        self.empty[nodes], self.share[nodes] = estimates.empty, estimates.share


@dataclass(frozen=True)
class Nodes:
    """n nodes of one level before their own draws are read, (n,) each; counts in standard deviations of the node's
    noise.

    ``expected``, ``around``: the count at the density of the parent, and of the surroundings. ``variance``: of the
    node's noise, in points². ``inner``: it has children, so that its draw adds up many. ``uneven``: how much so the
    thin space of the level is.
    """

    drawn: FloatArray
    expected: FloatArray
    around: FloatArray
    variance: FloatArray
    area: IntArray
    inner: BoolArray
    uneven: float

    def groups(self) -> list[IntArray]:
        """Positions of the nodes in like places: these learn one prior together."""
        place = np.digitize(np.log(np.maximum(self.expected, 1e-3)), PARENT_BINS) * (len(SURROUNDINGS_BINS) + 1)
        place += np.digitize(np.log(np.maximum(self.around, 1e-4)), SURROUNDINGS_BINS)
        place = (2 * place + self.inner).astype(np.int16)
        sizes = np.bincount(place)
        return np.split(np.argsort(place, kind="stable"), np.cumsum(sizes[sizes > 0])[:-1])

    def empty_before(self, group: IntArray) -> float:
        """Empty nodes that ``group`` is assumed to have had before."""
        even = kept_share(self.uneven) if self.area[group].min() > LARGE else 0.0
        return float(ZERO_PSEUDO_COUNT ** (1 - even) * ZERO_IN_EVEN_SPACE**even)


@dataclass(frozen=True)
class Mixture:
    """Posterior of n counts: 0 or one of S exponential parts. ``weight``: (1 + S, n), columns add up to 1; ``first``
    and ``second`` moments of the parts, (S, n), in standard deviations of the noise.
    """

    weight: FloatArray
    first: FloatArray
    second: FloatArray

    @cached_property
    def mean(self) -> FloatArray:
        """Mean over all parts, (n,)."""
        return np.asarray((self.weight[1:] * self.first).sum(axis=0))

    @property
    def variance(self) -> FloatArray:
        """Variance over all parts, (n,), above 0."""
        return np.asarray(
            np.maximum((self.weight[1:] * self.second).sum(axis=0) - self.mean**2, 1e-9), dtype=np.float64
        )

    def better_empty(self, deviation: FloatArray, sanity: float) -> BoolArray:
        """Which counts are better taken for 0, (n,): the error relative to max(count, ``sanity``) that 0 promises is
        not much above that of the estimate given that there is something. ``deviation``: (n,), of the noise in points.
        """
        zero, rest = self.weight[0], self.weight[1:]
        kept = deviation * self.mean / np.maximum(1 - zero, 1e-9)
        centre, spread = self.first * deviation, np.maximum(self.second - self.first**2, 0.0) * deviation**2
        error = np.sqrt((centre - kept) ** 2 + 0.64 * spread) / np.maximum(centre, sanity)
        keeping = zero * kept / sanity + (rest * error).sum(axis=0)
        dropping = (rest * np.minimum(centre / sanity, 1.0)).sum(axis=0)
        return np.asarray(keeping > ZERO_ADVANTAGE * dropping)


def estimates_of(nodes: Nodes, sanity: float | None) -> Estimates:
    """Posterior of ``nodes``; without a ``sanity`` none is taken for empty."""
    size = len(nodes.drawn)
    mean, variance, empty, share = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool), np.ones(size)
    sanity = None if nodes.uneven <= EVEN else sanity
    for group in nodes.groups():
        parts = gaussian_parts if nodes.inner[group[0]] else laplace_parts
        sample = group[:: max(1, len(group) // LEARNT_FROM)]
        prior = _prior(parts(nodes.drawn[sample], _scales(nodes.expected[sample]))[0], nodes.empty_before(group))
        for start in range(0, len(group), CHUNK):
            at = group[start : start + CHUNK]
            evidence, first, second = parts(nodes.drawn[at], _scales(nodes.expected[at]))
            weight = evidence * prior[:, None]
            posterior = Mixture(weight / weight.sum(axis=0), first, second)
            deviation = np.sqrt(nodes.variance[at])
            mean[at] = posterior.mean * deviation
            variance[at] = posterior.variance * nodes.variance[at]
            if sanity is not None:
                empty[at] = posterior.better_empty(deviation, sanity)
    if sanity is not None:
        share[(mean < THIN * nodes.area) & (mean > 2 * sanity) & ~nodes.inner] = kept_share(nodes.uneven)
        empty |= share == 0
    mean[empty] = variance[empty] = 0.0
    return Estimates(mean, variance, empty, share)


def _scales(expected: FloatArray) -> FloatArray:
    """Means of the exponential parts where ``expected`` is suggested, in standard deviations, shape (S, n)."""
    return np.asarray(np.maximum(np.maximum(expected, 0.02) * SCALES[:, None], 0.05), dtype=np.float64)


def _prior(evidence: FloatArray, empty_before: float) -> FloatArray:
    """Shares of the parts of the prior, learnt from the nodes whose ``evidence`` this is and from so many empty ones,
    shape (1+S,).
    """
    share = np.full(len(evidence), 1 / len(evidence))
    pseudo = np.full(len(evidence), PART_PSEUDO_COUNT)
    pseudo[0] = empty_before
    for _ in range(ITERATIONS):
        # Σ over the nodes of their posterior weights share·evidence / Σ share·evidence.
        share = share * (evidence @ (1 / (share @ evidence))) + pseudo
        share /= share.sum()
    return share


def laplace_parts(y: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Evidence of 0 and of each exponential ``scale`` (1+S, n), and first and second moments (S, n), for draws ``y``
    (n,) with Laplace noise of standard deviation 1. ``scale``: (S, n).
    """
    # Where a value is not used again, the next one takes its place: fewer arrays stay in the processor's cache.
    e = math.sqrt(2)
    gap = e - 1 / scale
    # At equal rates the closed forms divide by 0: such a scale is moved by a thousandth.
    np.copysign(np.maximum(np.abs(gap), 1e-3 * e), gap, out=gap)
    a = e - gap
    up, height = np.maximum(y, 0.0), a * (e / 2)
    near = height * np.exp(a * -up)
    # Below the draw the density is ∝ exp(gap·x), above it ∝ exp(−(a+e)·x).
    per_gap = np.divide(1, gap, out=gap)
    height *= np.exp(-e * up)
    below = np.subtract(near, height, out=height)
    below *= per_gap
    edge = up * near
    edge *= per_gap
    first = edge - below * per_gap
    second = up * edge
    per_gap *= 2
    per_gap *= first
    second -= per_gap
    a += e
    step = np.divide(1, a, out=a)
    near *= np.exp(-e * np.maximum(-y, 0.0))
    above = np.multiply(near, step, out=near)
    evidence = np.empty((len(scale) + 1, len(y)))
    evidence[0] = e / 2 * np.exp(-e * np.abs(y)) + 1e-290
    total = np.add(below, above, out=evidence[1:])
    total += 1e-290
    centre = up + step
    first += above * centre
    first /= total
    above *= centre**2 + step**2
    second += above
    second /= total
    return evidence, first, second


def gaussian_parts(y: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same for Gaussian noise of standard deviation 1: draws of inner nodes add up many."""
    a = 1 / scale
    shifted = y - a
    log_mass = scipy.special.log_ndtr(shifted)
    evidence = np.exp(np.minimum(np.log(a) - a * y + a**2 / 2 + log_mass, 50.0))
    ratio = np.exp(-(shifted**2) / 2 - math.log(2 * math.pi) / 2 - log_mass)
    first = np.maximum(shifted + ratio, 0.0)
    second = np.maximum(1 + shifted * (shifted + ratio), 0.0)
    return np.vstack([np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi) + 1e-290, evidence]), first, second
