"""Distribution of the values of every cell under relation "values": a noisy tree of counts over public bins.

To be proved: if all values of one user change, the counts of one level of a cell's tree move by at most
:meth:`Distribution.sensitivities` of their pair there, Δ = 2Γ, in L1. With independent discrete Laplace noise of scale
b_gi on the nodes of level i of cell g they lose at most Σ_g Σ_i Δ/b_gi, and :func:`~dpcore.allocation.exact_charges` of
:meth:`Distribution.rows` are never below that. Proof: the public total of the cell stays; each of their Γ retained
values leaves one node of a level and enters another, which moves the level by 2. Nodes of a level have one scale, so an
L1 change d costs d/b; levels and cells add up. Tested: by brute force in ``tests/dpcore/test_distribution.py``, on the
shipped path in ``tests/audit/test_values_audit.py``.

Neighbours differ in the values of one user; counts are public. Source: [T], mechanisms S12, S14.
"""

from dataclasses import dataclass, replace

import numpy as np

from dpcore.allocation import Sensitivities, checked_retained
from dpcore.arrays import FloatArray, IntArray
from dpcore.cdf import CDFs, bin_edges, bin_tree, consistent_cells
from dpcore.contributions import Contributions, Counts
from dpcore.level_tree import LevelTree, noisy_levels
from dpcore.mean import clipping_bias
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales, check_clipped


@dataclass(frozen=True)
class Distribution:
    """``upper``: U in quanta. ``bins``: number K of equal bins of 0..U."""

    upper: int
    bins: int

    @property
    def tree(self) -> LevelTree:
        """The tree over the bins; each of its h levels is released."""
        return bin_tree(self.upper, self.bins)

    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """Δ of every level over ``retained`` samples (P,) for each pair, in counts: 2Γ; shape (P,)."""
        checked_retained(counts, retained)
        delta: IntArray = 2 * retained
        return delta

    def rows(self, counts: Counts, retained: IntArray) -> Sensitivities:
        """Rows of the allocation, h per cell (cell-major); weight = events per (range n of a count · h).

        Within a cell the levels weigh w_i ∝ s_i², s_i the shares of :meth:`LevelTree.shares`, which makes ε_i ∝ s_i.
        """
        tree = self.tree
        weight = counts.by_cell(counts.samples) / np.maximum(counts.by_cell(retained), 1)
        single = Sensitivities.of_pairs(counts, self.sensitivities(counts, retained), weight)
        row = (single.row[:, None] * tree.height + np.arange(tree.height)).ravel()
        order = np.argsort(row, kind="stable")
        rows = Sensitivities(
            row[order],
            np.repeat(single.user, tree.height)[order],
            np.repeat(single.delta, tree.height)[order],
            np.repeat(single.weight / tree.height, tree.height),
            single.n_users,
        )
        by_level = np.array([max(n - 1, 1) ** (2 / 3) for n in tree.factors])
        return replace(rows, weight=rows.weight * np.tile(by_level / by_level.mean(), counts.n_cells))

    def integers(self, kept: Contributions) -> IntArray:
        """Counts of the retained values per cell and bin, shape (C, K): the leaves; never to be shown.

        Raises :class:`ParameterError` for values that were clipped to more than ``upper``.
        """
        check_clipped(kept.upper, self.upper)
        edges, cells = bin_edges(self.upper, self.bins), kept.counts.n_cells
        k, cell = len(edges) - 1, np.repeat(kept.counts.pair_cell, np.diff(kept.pair_start))
        bin_of_cell = cell * k + np.searchsorted(edges, kept.quanta, side="right") - 1
        return np.bincount(bin_of_cell, minlength=cells * k).reshape(cells, k).astype(np.int64)

    def draw(self, kept: Contributions, scales: LaplaceScales, noise: Noise) -> tuple[IntArray, CDFs | None]:
        """Indices of the cells that have noise, and their distributions with noise of ``scales`` (C, h) (None without
        such cells)."""
        cells = np.flatnonzero(scales.numerator.min(axis=1, initial=2**40) > 0)
        if not len(cells):
            return cells, None
        tree, leaves = self.tree, self.integers(kept)[cells]
        planned = LaplaceScales(scales.numerator[cells], scales.denominator[cells])
        noisy = noisy_levels(tree, tree.levels(leaves), planned, noise)
        public = leaves.sum(axis=1).astype(np.float64), np.zeros(len(cells))
        return cells, consistent_cells(tree, bin_edges(self.upper, self.bins), public, noisy, planned.values)

    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Counts in the full range of a cell's distribution: n, shape (C,)."""
        return np.maximum(counts.by_cell(retained), 1).astype(np.float64)

    def clipping_bias(self, total: IntArray, retained: IntArray) -> FloatArray:
        """Most that dropping N − n samples moves the distribution, as a fraction, shape (C,)."""
        return clipping_bias(total, retained)
