"""Cumulative distribution of one cell or many, by a noised level-uniform tree; percentiles with intervals.

Under relation "values" the total is public and fixed; under "participation" it is a noised root. Intervals for a
percentile come from the exact variances of the consistent prefix counts, so no randomness is spent after the draw.
Source: [T], mechanisms S12 and S13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression

from dpcore.contributions import Contributions, IntArray
from dpcore.errors import ParameterError
from dpcore.level_tree import FloatArray, LevelTree, choose_tree, consistent_leaves, noisy_levels, split_budget
from dpcore.noise import Noise
from dpcore.release import Estimate
from dpcore.scales import (
    check_total,
    checked_samples,
    checked_upper,
    checked_values,
    losses,
    noise_ratio,
    retained_values,
)

USER_WEIGHT = 2**16
"""Integer weight of one user's whole histogram where every user counts the same."""
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


def cell_histograms(contributions: Contributions, bins: int) -> IntArray:
    """Counts of values per cell and bin, shape (C, K). A user moves a row by at most 2Γ in L1."""
    edges = bin_edges(contributions.upper, bins)
    counts = contributions.counts
    cell = np.repeat(counts.pair_cell, np.diff(contributions.pair_start))
    return _histograms(cell, contributions.values, edges, counts.n_cells)


def _histograms(cell: IntArray, values: IntArray, edges: IntArray, cells: int) -> IntArray:
    k = len(edges) - 1
    slot = cell * k + np.searchsorted(edges, values, side="right") - 1
    return np.bincount(slot, minlength=cells * k).reshape(cells, k).astype(np.int64)


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

    def estimate(self, percent: float, cell: int = 0) -> Estimate:
        """The percentile of one cell as an :class:`Estimate`, in quanta.

        Its ``scale`` is that of Laplace noise with the same 95 % width.
        """
        value, low, high = (float(column[cell]) for column in self.percentile(percent))
        return Estimate(value, value, (high - low) / 2 / math.log(20.0), low, high, False)

    def deviation(self, p: float = 0.0) -> FloatArray:
        """Standard deviation of the noise in (prefix before monotonicity) − p·total, shape (C, K+1), in counts."""
        everything = np.column_stack([self.root_scale, self.scales])
        unit = np.max(everything, axis=1)
        ratio = np.round(everything / np.where(unit > 0, unit, 1.0)[:, None] / _RATIO_STEP) * _RATIO_STEP
        distinct, which = np.unique(ratio, axis=0, return_inverse=True)
        rows = [_deviations(self.tree, distinct[i : i + _CHUNK], p) for i in range(0, len(distinct), _CHUNK)]
        return np.asarray(np.concatenate(rows)[which.ravel()] * unit[:, None])


def _deviations(tree: LevelTree, scales: FloatArray, p: float) -> FloatArray:
    """Deviations (R, K+1) for root and level ``scales`` (R, 1+h): the consistency applied to each node's unit noise."""
    real = tree.real_nodes()
    n_nodes, n_rows = 1 + sum(real), len(scales)
    node_scale = np.repeat(scales, [1, *real], axis=1)
    unit = np.tile(np.eye(n_nodes), (n_rows, 1))
    variances = np.repeat(2 * scales**2, n_nodes, axis=0)
    levels, start = [], 1
    for nodes, r in zip(tree.levels(np.zeros((1, tree.bins), dtype=np.int64)), real, strict=True):
        level = np.zeros((len(unit), nodes.shape[1]))
        level[:, :r] = unit[:, start : start + r]
        levels.append(level)
        start += r
    leaves = consistent_leaves(tree, unit[:, 0], variances[:, 0], levels, variances[:, 1:])
    moved = _prefixes(leaves)
    moved -= p * moved[:, -1:]
    squares = moved.reshape(n_rows, n_nodes, -1) ** 2 * 2 * node_scale[:, :, None] ** 2
    return np.asarray(np.sqrt(squares.sum(axis=1)))


def _prefixes(leaves: FloatArray) -> FloatArray:
    return np.concatenate([np.zeros((len(leaves), 1)), np.cumsum(leaves, axis=1)], axis=1)


def release_cells(
    tree: LevelTree,
    edges: IntArray,
    histograms: IntArray,
    scales: tuple[IntArray, IntArray],
    noise: Noise,
    root_scales: tuple[IntArray, IntArray] | None = None,
    unit: int = 1,
) -> CDFs:
    """Draw the distributions of C cells from ``histograms`` (C, K), in units of 1/``unit`` count.

    ``scales``: numerators and denominators (C, h), one per level. ``root_scales`` (C,): noise on the total (relation
    "participation"); without them the row sums are public and fixed (relation "values").
    """
    numerator, denominator = scales
    if histograms.ndim != 2 or histograms.shape[1] != tree.bins or numerator.shape != (len(histograms), tree.height):
        raise ParameterError(
            f"histograms {histograms.shape} and scales {numerator.shape} do not fit {tree.bins} bins, {tree.height} levels"
        )
    total = histograms.sum(axis=1)
    root_scale = np.zeros(len(total))
    if root_scales is not None:
        total = total + noise.discrete_laplace(*root_scales)
        root_scale = root_scales[0] / root_scales[1]
    noisy = noisy_levels(tree, tree.levels(histograms), numerator, denominator, noise)
    return consistent_cells(tree, edges, (total / unit, root_scale / unit), noisy, numerator / denominator, unit)


def consistent_cells(
    tree: LevelTree,
    edges: IntArray,
    root: tuple[FloatArray, FloatArray],
    noisy: list[FloatArray],
    scales: FloatArray,
    unit: int = 1,
) -> CDFs:
    """Distributions of C cells from noisy ``noisy`` levels of Laplace ``scales`` (C, h) in 1/``unit`` count: post-processing.

    ``root``: totals (C,) in counts and the scale of their noise (that of Laplace noise of equal deviation), 0 where
    they are public. A noisy total is made consistent with the levels, and taken as at least 1.
    """
    known, root_scale = root
    leaves = consistent_leaves(tree, known * unit, 2 * np.square(root_scale * unit), noisy, 2 * np.square(scales))
    linear = _prefixes(leaves) / unit
    n = np.where(root_scale > 0, np.maximum(linear[:, -1], 1.0), known)
    prefix = np.zeros_like(linear)
    for row, raw, top in zip(prefix, linear, n, strict=True):
        row[1:] = np.clip(isotonic_regression(raw[1:]).x, 0.0, top)
    prefix[:, -1] = n
    return CDFs(tree, edges, n, prefix, linear, scales / unit, root_scale)


@dataclass(frozen=True)
class CDFPlan:
    """Public part of a tree CDF. ``sensitivities``: shape (L,), L1 change of every level by one user, in 1/``unit`` count.

    ``numerator``/``denominator``: scales of the levels, shape (h,), in the same unit. ``charges``: µε (L,), Σ over levels
    of his own Δ/scale. ``bias_bound``: most that dropping samples moves the CDF, as a fraction.
    """

    samples: IntArray
    retained: IntArray
    tree: LevelTree
    unit: int
    sensitivities: IntArray
    numerator: IntArray
    denominator: IntArray
    charges: IntArray
    bias_bound: float


@dataclass(frozen=True)
class TreeCDF:
    """Distribution of one cell's values under relation "values" (S12). ``upper``: U in quanta; ``bins``: K.

    ``capacity``: most samples kept per user (None: all). ``weight``: "sample" pools all samples (Δ = 2·max Γ); "user" gives
    every user the same total weight (Δ = 2 users).
    """

    upper: int
    bins: int = 64
    capacity: int | None = None
    weight: Literal["sample", "user"] = "sample"

    def plan(self, samples: IntArray, epsilon_micro: int) -> CDFPlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        m = checked_samples(samples)
        tree = bin_tree(self.upper, self.bins)
        retained = np.minimum(m, _checked_capacity(self.capacity, m))
        unit = USER_WEIGHT if self.weight == "user" else 1
        check_total(len(m) if self.weight == "user" else int(m.sum()), 2 * unit)
        moved = np.full(len(m), unit, dtype=np.int64) if self.weight == "user" else retained
        sensitivities = 2 * moved if tree.bins > 1 else 0 * moved
        parts = split_budget(epsilon_micro, tree.shares())
        scales = [noise_ratio(int(sensitivities.max()), int(part)) for part in parts]
        charges = np.sum([losses(sensitivities, t, s) for t, s in scales], axis=0)
        numerator, denominator = np.array(scales, dtype=np.int64).T
        dropped = (m - retained) / m if self.weight == "user" else 1 - retained.sum() / m.sum()
        bias = float(np.mean(dropped))
        return CDFPlan(m, retained, tree, unit, sensitivities, numerator, denominator, charges, bias)

    def release(self, values: IntArray, plan: CDFPlan, noise: Noise) -> CDFs:
        """Draw the distribution of ``values`` (N,), quanta sorted by (user, time). Relation "values"."""
        histogram = _histogram(values, plan.samples, plan.retained, self.upper, plan.tree.bins, plan.unit)
        scales = plan.numerator[None, :], plan.denominator[None, :]
        return release_cells(plan.tree, bin_edges(self.upper, self.bins), histogram, scales, noise, unit=plan.unit)


@dataclass(frozen=True)
class ParticipationCDFPlan:
    """Public part of a tree CDF under "participation": constants, for any data. As :class:`CDFPlan`; level 0 is the root.

    ``sensitivity``: L1 change of every level by all of one user's events. ``charge``: µε for anybody who takes part.
    """

    tree: LevelTree
    capacity: int
    unit: int
    sensitivity: int
    numerator: IntArray
    denominator: IntArray
    charge: int


@dataclass(frozen=True)
class ParticipationCDF:
    """Distribution of one cell's values under relation "participation" (S12, S13). ``upper``: quanta; ``bins``: K.

    ``capacity``: most samples kept per user. ``weight``: "sample" (Δ = capacity) or "user" (Δ = one user). The total is a
    noised root; everything is normalised by the consistent total, at least 1.
    """

    upper: int
    capacity: int
    bins: int = 64
    weight: Literal["sample", "user"] = "sample"

    def plan(self, epsilon_micro: int) -> ParticipationCDFPlan:
        """Plan from the configuration alone; raises :class:`DPError` subclasses for parameters out of bounds."""
        if self.capacity < 1:
            raise ParameterError(f"capacity {self.capacity} keeps no samples; give at least 1")
        tree = bin_tree(self.upper, self.bins)
        unit = USER_WEIGHT if self.weight == "user" else 1
        sensitivity = unit if self.weight == "user" else self.capacity
        # The root enters every percentile's target once, like a level of two children.
        weights = np.append(1.0, [(n - 1) ** (1 / 3) for n in tree.factors])
        parts = split_budget(epsilon_micro, weights / weights.sum())
        scales = [noise_ratio(sensitivity, int(part)) for part in parts]
        charge = sum(int(losses(np.array([sensitivity]), t, s)[0]) for t, s in scales)
        numerator, denominator = np.array(scales, dtype=np.int64).T
        return ParticipationCDFPlan(tree, self.capacity, unit, sensitivity, numerator, denominator, charge)

    def release(self, values: IntArray, samples: IntArray, plan: ParticipationCDFPlan, noise: Noise) -> CDFs:
        """Draw from ``values`` (N,), sorted by (user, time), of users with ``samples`` (L,); both may be empty."""
        m = checked_samples(samples) if len(samples) else np.zeros(0, dtype=np.int64)
        check_total(len(m) + int(m.sum()), plan.unit)
        retained = np.minimum(m, plan.capacity)
        histogram = _histogram(values, m, retained, self.upper, plan.tree.bins, plan.unit)
        t, s = plan.numerator[None, :], plan.denominator[None, :]
        edges = bin_edges(self.upper, self.bins)
        return release_cells(
            plan.tree, edges, histogram, (t[:, 1:], s[:, 1:]), noise, (t[:, 0], s[:, 0]), unit=plan.unit
        )


def _histogram(values: IntArray, samples: IntArray, retained: IntArray, upper: int, bins: int, unit: int) -> IntArray:
    """Histogram (1, K) of the retained values; with ``unit`` > 1 every user's is scaled to integers summing to it."""
    edges = bin_edges(upper, bins)
    kept, user = retained_values(checked_values(values, samples, upper), samples, retained)
    if unit == 1:
        return _histograms(np.zeros(len(kept), dtype=np.int64), kept, edges, 1)
    own = _histograms(user, kept, edges, len(retained))
    # Rounding the running totals keeps each user's sum exact, hence Δ independent of how many samples he has.
    rounded = unit * np.cumsum(own, axis=1) // retained[:, None]
    column: IntArray = np.diff(rounded, axis=1, prepend=0).sum(axis=0, keepdims=True)
    return column


def _checked_capacity(capacity: int | None, samples: IntArray) -> int:
    largest = int(samples.max())
    if capacity is None:
        return largest
    if not 1 <= capacity <= largest:
        raise ParameterError(f"capacity {capacity} is outside [1, {largest}], the samples per user; give one inside")
    return capacity


def _checked_bins(bins: int) -> int:
    if not 1 <= bins <= 65536:
        raise ParameterError(f"{bins} bins are outside 1..65536; give fewer")
    return bins
