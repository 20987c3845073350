"""Percentiles with intervals from noisy level-uniform trees over the bins of many cells: post-processing, it costs nothing.

The trees come from :mod:`dpcore.distribution` (relation "values", the total is public) and :mod:`dpcore.participation`
(the total is a noisy number of its own). Intervals follow from the exact variances of the consistent prefix counts, so no
randomness is spent after the draw. Source: [T], mechanisms S12 and S13.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy

from dpcore._prefix_counts import prefix_deviations, prefixes
from dpcore.contributions import IntArray
from dpcore.errors import ParameterError
from dpcore.level_tree import FloatArray, LevelTree, choose_tree, consistent_leaves
from dpcore.scales import checked_upper

ONE_SIDED = 2.12
"""97.5 % quantile over standard deviation of one Laplace variable; sums of independent ones have less."""
_RATIO_STEP = 0.01
_CHUNK = 128


def bin_edges(upper: int, bins: int) -> IntArray:
    """First value of each bin, and ``upper`` + 1: shape (K+1,), K = min(bins, U + 1) equal bins of 0..U."""
    k = min(_checked_bins(bins), checked_upper(upper) + 1)
    edges: IntArray = -(-np.arange(k + 1, dtype=np.int64) * (upper + 1) // k)
    return edges


def bin_tree(upper: int, bins: int) -> LevelTree:
    """The tree of least error over the bins of :func:`bin_edges`."""
    return choose_tree(len(bin_edges(upper, bins)) - 1)


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

    def deviation(self, p: float = 0.0) -> FloatArray:
        """Standard deviation of the noise in (prefix before monotonicity) − p·total, shape (C, K+1), in counts."""
        everything = np.column_stack([self.root_scale, self.scales])
        unit = np.max(everything, axis=1)
        ratio = np.round(everything / np.where(unit > 0, unit, 1.0)[:, None] / _RATIO_STEP) * _RATIO_STEP
        distinct, which = np.unique(ratio, axis=0, return_inverse=True)
        rows = [prefix_deviations(self.tree, distinct[i : i + _CHUNK], p) for i in range(0, len(distinct), _CHUNK)]
        return np.asarray(np.concatenate(rows)[which.ravel()] * unit[:, None])


def consistent_cells(
    tree: LevelTree, edges: IntArray, root: tuple[FloatArray, FloatArray], noisy: list[FloatArray], scales: FloatArray
) -> CDFs:
    """Distributions of C cells from ``noisy`` levels of Laplace ``scales`` (C, h), in counts: post-processing.

    ``root``: totals (C,) and the scale of their noise (that of Laplace noise of equal deviation), 0 where they are
    public. A noisy total is made consistent with the levels, and taken as at least 1.
    """
    known, root_scale = root
    leaves = consistent_leaves(tree, known, 2 * np.square(root_scale), noisy, 2 * np.square(scales))
    linear = prefixes(leaves)
    n = np.where(root_scale > 0, np.maximum(linear[:, -1], 1.0), known)
    prefix = np.zeros_like(linear)
    for row, raw, top in zip(prefix, linear, n, strict=True):
        row[1:] = np.clip(scipy.optimize.isotonic_regression(raw[1:]).x, 0.0, top)
    prefix[:, -1] = n
    return CDFs(tree, edges, n, prefix, linear, scales, root_scale)


def _checked_bins(bins: int) -> int:
    if not 1 <= bins <= 65536:
        raise ParameterError(f"{bins} bins are outside 1..65536; give fewer")
    return bins
