"""Level-uniform trees over K bins: which tree, how to split a budget over its levels, and consistent node counts.

Everything works on many cells at once: level i is an array of shape (C, nodes), C cells. Padding leaves beyond K are
publicly empty: they get no noise and are known to be 0. Source: [T] *Optimal Tree-Based Mechanisms for DP Approximate
CDFs*, mechanisms S12.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import BudgetError, ParameterError
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales, checked_micro

MAX_BRANCHING = 16
"""Largest branching of a tree with more than one level."""
MAX_PADDING_PERCENT = 8
"""Most padding leaves, in percent of K."""


@dataclass(frozen=True)
class LevelTree:
    """``bins``: K; ``factors``: n_1..n_h, branching from the root, with product >= K."""

    bins: int
    factors: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bins < 1 or not self.factors or min(self.factors) < 1 or math.prod(self.factors) < self.bins:
            raise ParameterError(f"branching {self.factors} does not cover {self.bins} bins; raise a factor")

    @property
    def height(self) -> int:
        """h, the noised levels below the root."""
        return len(self.factors)

    def leaves_below(self) -> list[int]:
        """Leaves under one node of each level 1..h."""
        return [math.prod(self.factors[i + 1 :]) for i in range(self.height)]

    def real_nodes(self) -> list[int]:
        """Nodes of each level 1..h that are not all padding; they come first."""
        return [-(-self.bins // span) for span in self.leaves_below()]

    def shares(self) -> FloatArray:
        """Levels' budget shares (h,): ∝ (n_i − 1)^(1/3), which minimises Σ(n_i − 1)/ε_i² at Σε_i fixed."""
        weights = np.array([(n - 1) ** (1 / 3) for n in self.factors])
        return np.asarray(weights / weights.sum()) if weights.any() else np.full(len(weights), 1.0 / len(weights))

    def digit_sums(self) -> list[int]:
        """Nodes of each level that the prefixes 0..K−1 add up, in total: Σ_t of the t's i-th mixed-radix digit."""
        sums = []
        for n, span in zip(self.factors, self.leaves_below(), strict=True):
            periods, rest = divmod(self.bins, span * n)
            whole, part = divmod(rest, span)
            sums.append(periods * span * n * (n - 1) // 2 + span * whole * (whole - 1) // 2 + part * whole)
        return sums

    def prefix_error(self) -> float:
        """Σ over the prefixes of their error before consistency, in units of 2Δ²/ε², with :meth:`shares`."""
        return float(sum(d / s**2 for d, s in zip(self.digit_sums(), self.shares(), strict=True) if d))

    def levels(self, histogram: IntArray) -> list[IntArray]:
        """Node counts of the levels 1..h from ``histogram`` (C, K): arrays (C, nodes), padding included as 0."""
        padded = np.zeros((len(histogram), math.prod(self.factors)), dtype=np.int64)
        padded[:, : self.bins] = histogram
        return [padded.reshape(len(histogram), -1, span).sum(axis=2) for span in self.leaves_below()]


@lru_cache(maxsize=64)
def choose_tree(bins: int) -> LevelTree:
    """The tree over ``bins`` leaves of least total prefix error; ties to fewer levels.

    Exhaustive over ordered factors of product >= ``bins``, at most 8 % padding and branching at most 16; the flat tree
    always competes. Raises :class:`ParameterError` for ``bins`` outside 1..65536.
    """
    if not 1 <= bins <= 65536:
        raise ParameterError(f"{bins} bins are outside 1..65536; give fewer")
    flat = LevelTree(bins, (bins,))
    trees = [flat] + [LevelTree(bins, factors) for factors in _factors(bins, ())]
    return min(trees, key=lambda tree: (round(tree.prefix_error(), 6), tree.height))


def _factors(bins: int, prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Ordered factors in 2..16, at least two and at most five, whose product pads ``bins`` by at most 8 %."""
    product = math.prod(prefix)
    if product >= bins:
        if len(prefix) > 1 and product * 100 <= bins * (100 + MAX_PADDING_PERCENT):
            yield prefix
        return
    if len(prefix) == 5:
        return
    for n in range(2, MAX_BRANCHING + 1):
        yield from _factors(bins, (*prefix, n))


def split_budget(epsilon_micro: int, shares: FloatArray) -> IntArray:
    """µε per level, shape of ``shares``, summing to ``epsilon_micro`` exactly, each at least 1.

    Raises :class:`BudgetError` where there are more levels than µε.
    """
    micro = checked_micro(epsilon_micro)
    if micro < len(shares):
        raise BudgetError(f"{micro} µε cannot be split over {len(shares)} levels; give at least {len(shares)}")
    parts = np.maximum(np.floor(shares * micro).astype(np.int64), 1)
    parts[np.argmax(parts)] += micro - int(parts.sum())
    return parts


def noisy_levels(tree: LevelTree, levels: Sequence[IntArray], scales: LaplaceScales, noise: Noise) -> list[FloatArray]:
    """``levels`` (C, nodes) plus discrete Laplace noise of ``scales`` (C, h) on the real nodes, all of it in one batch.

    Raises :class:`ParameterError` where they do not belong to ``tree``.
    """
    if any(len(level) != len(scales.numerator) for level in levels) or scales.numerator.shape[1:] != (tree.height,):
        raise ParameterError(
            f"scales of shape {scales.numerator.shape} do not fit {len(levels[0])} cells of {tree.height} levels; "
            "give one for each level of each cell"
        )
    real = tree.real_nodes()
    flat = np.concatenate([level[:, :r] for level, r in zip(levels, real, strict=True)], axis=1)
    by_node = LaplaceScales(np.repeat(scales.numerator, real, axis=1), np.repeat(scales.denominator, real, axis=1))
    flat = flat + by_node.draw(noise)
    ends = np.cumsum(real)
    noisy = []
    for level, r, end in zip(levels, real, ends, strict=True):
        full = np.zeros(level.shape)
        full[:, :r] = flat[:, end - r : end]
        noisy.append(full)
    return noisy


def consistent_leaves(
    tree: LevelTree, root: FloatArray, root_variance: FloatArray, levels: Sequence[FloatArray], variances: FloatArray
) -> FloatArray:
    """Least-squares leaf counts (C, K) from noisy ``levels`` (C, nodes) whose noise variance is ``variances`` (C, h).

    ``root`` (C,) and ``root_variance`` (C,): 0 where the total is known. Two passes: up, each node is weighed against
    the sum of its children by precision; down, the residual is distributed over the children by their variances.
    """
    estimate, spread = _from_below(tree, levels, variances)
    top, _ = _weighed(root, root_variance, estimate[0].sum(axis=1), spread[0].sum(axis=1))
    above = top[:, None]
    for children, slack in zip(estimate, spread, strict=True):
        above = _distributed(above, children, slack)
    return above[:, : tree.bins]


def _from_below(
    tree: LevelTree, levels: Sequence[FloatArray], variances: FloatArray
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Best estimate of each node from its own count and those below, and its variance: one array (C, nodes) a level."""
    estimate, spread = [], []
    for i, (level, real) in enumerate(zip(levels, tree.real_nodes(), strict=True)):
        estimate.append(np.asarray(level, dtype=np.float64))
        spread.append(np.zeros(level.shape))
        spread[i][:, :real] = variances[:, i : i + 1]
    for i in range(tree.height - 2, -1, -1):
        shape = len(variances), -1, tree.factors[i + 1]
        total, slack = estimate[i + 1].reshape(shape).sum(axis=2), spread[i + 1].reshape(shape).sum(axis=2)
        estimate[i], spread[i] = _weighed(estimate[i], spread[i], total, slack)
    return estimate, spread


def _distributed(above: FloatArray, children: FloatArray, slack: FloatArray) -> FloatArray:
    """``children`` (C, nodes) moved in proportion to their variances ``slack`` to add up to the level ``above``."""
    shape = *above.shape, -1
    children, slack = children.reshape(shape), slack.reshape(shape)
    total = slack.sum(axis=2, keepdims=True)
    share = np.divide(slack, total, out=np.zeros_like(slack), where=total > 0)
    residual = above[:, :, None] - children.sum(axis=2, keepdims=True)
    return np.asarray((children + residual * share).reshape(len(above), -1))


def _weighed(y: FloatArray, v: FloatArray, z: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Precision-weighted mean of ``y`` (variance v) and ``z`` (variance w), and its variance; y if both are known."""
    both = v + w
    scaled = np.where(both > 0, both, 1.0)
    return np.where(both > 0, (y * w + z * v) / scaled, y), v * w / scaled
