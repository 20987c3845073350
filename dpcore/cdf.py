"""Distributions with bands and percentiles with intervals, from noisy level-uniform trees over the bins of many cells.

The trees come from :mod:`dpcore.distribution` (relation "values", the total is public) and :mod:`dpcore.participation`
(the total is a noisy number of its own). To be proved: what this module computes costs nothing. Proof: it reads the
noisy trees, which were paid for, the public edges and the constant noise scales, and nothing else; a function of a
private release loses nothing (Dwork and Roth, *The Algorithmic Foundations of Differential Privacy*, 2014, proposition
2.1). So the whole distribution may be published beside its percentiles. Intervals and bands follow from the exact
variances of the consistent prefix counts. Source: [T], mechanisms S12 and S13; bands as Fieller (JRSS B 16, 1954) and
monotone.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import ParameterError
from dpcore.level_tree import LevelTree, choose_tree, consistent_leaves
from dpcore.scales import checked_upper

DRAWS, QUANTILE = 4000, 0.96
"""Simulated trees of a critical value, and the quantile of theirs that is taken for the 95 % one."""
_SEED = 0x5EED
_AT_ONCE = 2**22
"""Numbers in an array at most."""


@lru_cache(maxsize=256)
def prefix_moments(tree: LevelTree, scales: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """Variance of the noise of the prefix counts 0..K, and its covariance with that of the total: (K+1,) each.

    Exact, for Laplace ``scales`` (1+h) of root and levels: the consistency applied to each node's noise by itself.
    """
    by_node = _by_node(tree, scales)
    variance, covariance = np.zeros((2, tree.bins + 1))
    step = max(1, _AT_ONCE // math.prod(tree.factors))
    for start in range(0, len(by_node), step):
        rows = min(step, len(by_node) - start)
        alone = _prefix_noise(tree, scales, np.eye(rows, len(by_node), start))
        weight = 2 * by_node[start : start + rows] ** 2
        variance += weight @ alone**2
        covariance += (weight * alone[:, -1]) @ alone
    if scales[0] == 0:
        variance[-1], covariance[:] = 0.0, 0.0
    return variance, covariance


@lru_cache(maxsize=256)
def critical_value(tree: LevelTree, scales: tuple[float, ...]) -> float:
    """How many standard deviations the share that strays most is off, at most, in 95 % of trees.

    A share F_j of the total strays by |P_j − F_j·P_K| over the deviation of that; P: noise of the prefix counts, with
    Laplace ``scales`` (1+h) of root and levels. Under a noisy total, each F_j in [0, 1] counts with the value at which
    it strays most, so the result holds for every distribution.

    The quantile is simulated: that of :data:`DRAWS` trees at :data:`QUANTILE` falls short of the true one at 0.95 with
    a probability of 0.002. Its random numbers have a fixed seed and meet no data: they compute a constant of the tree.
    """
    if tree.bins == 1:
        return 0.0
    by_node, rng, worst = _by_node(tree, scales), np.random.default_rng(_SEED), []
    step = max(1, _AT_ONCE // sum(math.prod(tree.factors[: i + 1]) for i in range(tree.height)))
    for start in range(0, DRAWS, step):
        added = rng.laplace(size=(min(step, DRAWS - start), len(by_node))) * by_node
        noise = _prefix_noise(tree, scales, added)
        worst.append(straying(noise, *prefix_moments(tree, scales)).max(axis=1))
    return float(np.quantile(np.concatenate(worst), QUANTILE))


def straying(noise: FloatArray, variance: FloatArray, covariance: FloatArray) -> FloatArray:
    """The most of |P_j − f·P_K| in deviations over f in [0, 1], of every draw and inner prefix: (n, K−1)."""
    total, own, v = noise[:, -1:], noise[:, 1:-1], variance[1:-1]
    at_zero = np.abs(own) / np.sqrt(v)
    if variance[-1] == 0:
        return np.asarray(at_zero)
    c, w = covariance[1:-1], variance[-1]
    at_one = np.abs(own - total) / np.sqrt(v - 2 * c + w)
    # Over all real f the most is Mahalanobis' distance of (P_j, P_K), at f = above/below.
    above, below, spread = c * own - v * total, w * own - c * total, v * w - c**2
    anywhere = np.sqrt((w * own**2 - 2 * c * own * total + v * total**2) / spread)
    inside = (above * below > 0) & (np.abs(above) < np.abs(below))
    return np.asarray(np.where(inside, anywhere, np.maximum(at_zero, at_one)))


def _by_node(tree: LevelTree, scales: tuple[float, ...]) -> FloatArray:
    """The scale of the root and of every node that has noise, level by level."""
    return np.repeat(np.array(scales), [1, *tree.real_nodes()])


def _prefix_noise(tree: LevelTree, scales: tuple[float, ...], noise: FloatArray) -> FloatArray:
    """What ``noise`` (n, nodes) of root and nodes makes of the prefix counts after consistency: (n, K+1)."""
    variances = np.tile(2 * np.square(scales), (len(noise), 1))
    levels, start = [], 1
    for nodes, real in zip(tree.levels(np.zeros((1, tree.bins), dtype=np.int64)), tree.real_nodes(), strict=True):
        level = np.zeros((len(noise), nodes.shape[1]))
        level[:, :real] = noise[:, start : start + real]
        levels.append(level)
        start += real
    return prefixes(consistent_leaves(tree, noise[:, 0], variances[:, 0], levels, variances[:, 1:]))


def prefixes(leaves: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, …, K leaves of each row: shape (n, K) gives (n, K + 1)."""
    return np.concatenate([np.zeros((len(leaves), 1)), np.cumsum(leaves, axis=1)], axis=1)


ONE_SIDED = 2.12
"""97.5 % quantile over standard deviation of one Laplace variable; sums of independent ones have less."""
MAX_KINDS = 4
"""Kinds of trees, by the ratios of their scales, whose moments and critical values are computed; others are made so."""
_RATIO_STEP = 0.01


def bin_edges(upper: int, bins: int) -> IntArray:
    """First value of each bin, and ``upper`` + 1: shape (K+1,), K = min(bins, U + 1) equal bins of 0..U."""
    if not 1 <= bins <= 65536:
        raise ParameterError(f"{bins} bins are outside 1..65536; give fewer")
    k = min(bins, checked_upper(upper) + 1)
    edges: IntArray = -(-np.arange(k + 1, dtype=np.int64) * (upper + 1) // k)
    return edges


def bin_tree(upper: int, bins: int) -> LevelTree:
    """The tree of least error over the bins of :func:`bin_edges`."""
    return choose_tree(len(bin_edges(upper, bins)) - 1)


class Shares(NamedTuple):
    """The share of a cell's values up to the top of each bin, shape (C, K) each.

    ``value``: monotone, from 0 to 1; the last is 1. ``raw``: before that, with noise of standard ``deviation``.
    [``low``, ``high``]: a simultaneous 95 % band for the noise, monotone, around ``value``: with a probability of at
    least 95 % it holds the shares of all K bins at once.
    """

    value: FloatArray
    raw: FloatArray
    deviation: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class CDFs:
    """Released distributions of C cells over K bins with ``edges`` (K+1,), in quanta.

    ``prefix`` (C, K+1): monotone counts below each edge, 0..``total`` (C,). ``linear`` (C, K+1): the same before
    monotonicity. ``scales`` (C, h) of the levels and ``root_scale`` (C,), 0 where the total is public.
    """

    tree: LevelTree
    edges: IntArray
    total: FloatArray
    prefix: FloatArray
    linear: FloatArray
    scales: FloatArray = field(repr=False)
    root_scale: FloatArray = field(repr=False)

    def percentile(self, percent: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, low and high of the ``percent`` percentile of every cell, shape (C,) each, in quanta.

        [low, high] holds every bin that neither of two one-sided 97.5 % tests on the prefix counts at its edges
        rejects as the bin of the ⌈p·N⌉-th value, so it covers that value with at least 95 %.
        """
        if not 0 < percent < 100:
            raise ParameterError(f"percentile {percent} is outside (0, 100); give one inside")
        p, k = percent / 100, self.tree.bins
        target = (p * self.total)[:, None]
        at = np.minimum((self.prefix[:, 1:] < target).sum(axis=1), k - 1)
        row = np.arange(len(at))
        below, above = self.prefix[row, at], self.prefix[row, at + 1]
        rise = np.where(above > below, above - below, 1.0)
        part = np.clip((target[:, 0] - below) / rise, 0.0, 1.0)
        value = self.edges[at] + part * (self.edges[at + 1] - self.edges[at])
        slack = ONE_SIDED * self.deviation(p) + 1e-9 * np.maximum(self.total, 1.0)[:, None]
        shifted = self.linear - p * self.linear[:, -1:]
        possible = (shifted[:, 1:] + slack[:, 1:] >= 0) & (shifted[:, :-1] - slack[:, :-1] < 0)
        possible[row, at] = True
        first = possible.argmax(axis=1)
        last = k - 1 - possible[:, ::-1].argmax(axis=1)
        top = float(self.edges[-1] - 1)
        return np.minimum(value, top), self.edges[first].astype(float), np.minimum(self.edges[last + 1], top)

    def shares(self) -> Shares:
        """The distribution of every cell.

        The band holds the shares that the largest deviation of a tree allows, 95 % of the time, at all bins: |P_j −
        F_j·P_K| is at most :func:`~dpcore.cdf.critical_value` deviations. It is made monotone, as the shares
        are, which leaves out no distribution that was in it.
        """
        total, value = self.linear[:, -1:], self.prefix[:, 1:] / np.maximum(self.prefix[:, -1:], 1e-9)
        units = np.maximum(self.total, 1e-9)[:, None]
        low, high = self._possible_shares(total)
        low, high = np.maximum.accumulate(low, axis=1), np.minimum.accumulate(high[:, ::-1], axis=1)[:, ::-1]
        deviation = self.deviation(np.column_stack([np.zeros(len(value)), value]))[:, 1:] / units
        return Shares(value, self.linear[:, 1:] / units, deviation, np.minimum(low, value), np.maximum(high, value))

    def _possible_shares(self, total: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The least and the largest share f in [0, 1] of each bin with |P_j − f·P_K| within the critical value, (C, K).

        The roots of a·f² − 2·b·f + d, and [0, 1] where that opens downwards: then even the total may be 0.
        """
        (variance, covariance), own = self._moments, self.linear
        square = np.square(self._critical)[:, None]
        a, b = total**2 - square * variance[:, -1:], own * total - square * covariance
        root = np.sqrt(np.maximum(b**2 - a * (own**2 - square * variance), 0.0))
        ends = [np.divide(b + sign * root, a, out=np.full_like(b, 0.0), where=a > 0) for sign in (-1, 1)]
        low, high = np.where(a > 0, np.clip(ends, 0.0, 1.0), np.array([0.0, 1.0])[:, None, None])
        low[:, -1], high[:, -1] = 1.0, 1.0
        return low[:, 1:], high[:, 1:]

    def deviation(self, p: float | FloatArray = 0.0) -> FloatArray:
        """Standard deviation of the noise in (prefix before monotonicity) − p·total, shape (C, K+1), in counts."""
        variance, covariance = self._moments
        return np.asarray(np.sqrt(np.maximum(variance - 2 * p * covariance + p**2 * variance[:, -1:], 0.0)))

    @cached_property
    def _kinds(self) -> tuple[list[tuple[float, ...]], npt.NDArray[np.intp], FloatArray]:
        """Distinct scales (1+h) of root and levels, parts of the largest, that of each cell (C,), and its unit (C,)."""
        ratio, unit = _ratios(np.column_stack([self.root_scale, self.scales]))
        distinct, which = np.unique(ratio, axis=0, return_inverse=True)
        return [tuple(row) for row in distinct.tolist()], which.ravel(), unit

    @cached_property
    def _moments(self) -> tuple[FloatArray, FloatArray]:
        """Variance of each prefix's noise, and its covariance with the total's, (C, K+1) each, in squared counts."""
        kinds, which, unit = self._kinds
        by_kind = np.array([prefix_moments(self.tree, scales) for scales in kinds])
        variance, covariance = by_kind.swapaxes(0, 1)[:, which] * np.square(unit)[:, None]
        return variance, covariance

    @cached_property
    def _critical(self) -> FloatArray:
        """The critical value of each cell's band, (C,)."""
        kinds, which, _ = self._kinds
        return np.array([critical_value(self.tree, scales) for scales in kinds])[which]


def consistent_cells(
    tree: LevelTree, edges: IntArray, root: tuple[FloatArray, FloatArray], noisy: list[FloatArray], scales: FloatArray
) -> CDFs:
    """Distributions of C cells from ``noisy`` levels of Laplace ``scales`` (C, h), in counts: post-processing.

    ``root``: totals (C,) and the scale of their noise (that of Laplace noise of equal deviation), 0 where they are
    public. A noisy total is made consistent with the levels, and taken as at least 1. Where the ratios of the scales
    differ from cell to cell, some cells are treated as if they had more noise than they have (:func:`of_few_kinds`).
    """
    known, root_scale = root
    assumed = of_few_kinds(np.column_stack([root_scale, scales]))
    root_scale, scales = assumed[:, 0], assumed[:, 1:]
    leaves = consistent_leaves(tree, known, 2 * np.square(root_scale), noisy, 2 * np.square(scales))
    linear = prefixes(leaves)
    n = np.where(root_scale > 0, np.maximum(linear[:, -1], 1.0), known)
    prefix = np.zeros_like(linear)
    for row, raw in zip(prefix, linear, strict=True):
        row[1:] = scipy.optimize.isotonic_regression(raw[1:]).x
    np.clip(prefix[:, 1:], 0.0, n[:, None], out=prefix[:, 1:])
    prefix[:, -1] = n
    return CDFs(tree, edges, n, prefix, linear, scales, root_scale)


def of_few_kinds(scales: FloatArray) -> FloatArray:
    """``scales`` (C, 1+h) of root and levels, larger for the rarest kinds of cells where there are more than
    :data:`MAX_KINDS`.

    A kind is a combination of ratios of a cell's scales. Its moments and critical value take up to seconds, so their
    number is bounded: the rarest kinds are taken as one, with the largest of their ratios at each level. Scales of 0
    stay 0, so kinds with zeros in other places stay apart.

    To be proved: deviations, intervals and bands hold for scales that are larger than those of the noise. Proof: a
    Laplace variable of a larger scale is the sum of one of a smaller scale and an independent one, and what is computed
    from the noise is linear, with weights that follow from the assumed scales. By Anderson's inequality (Proc. AMS 6,
    1955), as the noise has a symmetric log-concave density, a symmetric convex set, such as a band, holds the noise at
    least as often without the independent part as with it.
    """
    ratio, unit = _ratios(scales)
    kinds, which, cells = np.unique(ratio, axis=0, return_inverse=True, return_counts=True)
    if len(kinds) <= MAX_KINDS:
        return scales
    rare = np.isin(which.ravel(), np.argsort(-cells, kind="stable")[MAX_KINDS - 1 :])
    exact = scales[rare] / unit[rare, None]
    most = np.ceil(exact.max(axis=0) / _RATIO_STEP - 1e-9) * _RATIO_STEP
    assumed = scales.copy()
    assumed[rare] = np.where(exact > 0, np.maximum(most * unit[rare, None], scales[rare]), 0.0)
    return assumed


def _ratios(scales: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``scales`` (C, 1+h) as parts of each cell's largest, rounded up to steps so that no noise is taken as less than
    it is, and 0 where they are 0; and that largest, its unit (C,).
    """
    unit = np.max(scales, axis=1)
    unit = np.where(unit > 0, unit, 1.0)
    steps = np.ceil(scales / unit[:, None] / _RATIO_STEP - 1e-9)
    return np.where(scales > 0, np.maximum(steps, 1), 0) * _RATIO_STEP, unit
