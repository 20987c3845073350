"""Posterior of the counts of a tree's nodes of one level, each 0 or exponential around what its place suggests.

How often a count is which, nodes in like places learn together, by expectation maximisation.

How evenly thin space holds its points, measured from the draws of a tree at each of its scales.

A leaf says how many points it holds, not where inside. How evenly they lie there is judged by how evenly the leaves of
its level share what their parents hold: streets are as uneven at one scale as at the next, and so is a plain even. One
leaf's noise hides that; all leaves of a level together show it. Dense nodes are divided, so they do not count as leaves
here, and a dense middle does not make the space around it uneven.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.spatial.partition import Tree

UNEVEN_BOX = 3.0
"""The box as a whole is even where its parts' counts have a mean square of at most this multiple of their squared mean,
as if all points lay on a third of it. Nothing is dropped there."""
MEASURED = 11.0
"""Squared count of the box's parts together, in variances of its noise, that is needed to measure that (to about ±0.5
for 16 of them)."""
EVEN = 1.5
"""Unevenness up to which nothing of a level is dropped."""
KEPT, DROPPED = 2.5, 4.0
"""Unevenness up to which thin leaves keep their whole count, and from which they keep nothing; between these, a share.
The share is no step, because noise moves the unevenness by some tenths."""
SIBLINGS = 4
"""Fewest leaves of one parent that show how uneven they are."""
DENSE = 3.0
"""Mean of siblings, in standard deviations of one, above which the last level's are dense: it divides none."""
SIGMAS = 3.0
"""Standard deviations of noise that the squared counts must exceed to be measured."""


def unevenness(tree: Tree, z: FloatArray, variance: FloatArray) -> FloatArray:
    """Mean square of leaf siblings' counts over their squared mean, of all siblings of a level together, shape
    (levels,).

    ``z``, ``variance``: unbiased counts of the nodes and of their noise. A level where noise hides it, or leaves have
    too few siblings, is as even as the one above or below if that is even; else its ratio is infinite. On the last
    level, where dense nodes are leaves too, dense siblings are left out.
    """
    ratio, leaf = np.full(len(tree.levels), np.inf), ~tree.parents
    for depth, level in enumerate(tree.levels[1:], start=1):
        thin = level[leaf[level]]
        number, total, noise, square = (
            np.bincount(tree.parent[thin], weights=each)
            for each in (np.ones(len(thin)), z[thin], variance[thin], z[thin] ** 2)
        )
        several = number >= SIBLINGS
        if len(thin) == len(level):
            several &= total <= DENSE * np.sqrt(number * noise)
        squared = float((total**2 - noise)[several].sum())
        if squared > SIGMAS * math.sqrt(2 * float((noise[several] ** 2).sum())):
            ratio[depth] = float((number * (square - noise))[several].sum()) / squared
    return _of_nearest_level(ratio)


def _of_nearest_level(ratio: FloatArray) -> FloatArray:
    """``ratio`` with those that are not known, which are infinite, taken from the next known one above, else below,
    where that is even.
    """
    known = np.isfinite(ratio)
    above = np.maximum.accumulate(np.where(known, np.arange(len(ratio)), -1))
    nearest = ratio[np.where(above < 0, int(np.argmax(known)), above)]
    return np.where(known | (nearest <= EVEN), nearest, np.inf)


def even_box(tree: Tree, z: FloatArray, variance: FloatArray) -> bool:
    """Whether the root's children are known to differ by little."""
    children = np.flatnonzero(tree.parent == 0)
    noise = float(variance[children].sum())
    total, square = float(z[children].sum()) ** 2, float((z[children] ** 2).sum())
    if len(children) < SIBLINGS or total <= MEASURED * noise:
        return False
    return len(children) * (square - noise) <= UNEVEN_BOX * (total - noise)


def kept_share(uneven: float) -> float:
    """Share of its count that a thin leaf keeps on a level as ``uneven``, from 0 to 1."""
    return float(np.interp(uneven, (KEPT, DROPPED), (1.0, 0.0)))


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

    def put(self, nodes: IntArray, estimates: "Estimates") -> None:
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
