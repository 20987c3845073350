"""Prefix counts of consistent trees: the exact moments of their noise, and how far all of them stray together."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpcore.level_tree import FloatArray, LevelTree, consistent_leaves

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
