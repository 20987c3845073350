"""1/n variance of every cell under relation "values": the exact variance on a public grid plus noise of an allocated
scale.

To be proved: if all values of one user change, the integer V = ⌊(n·Σx² − (Σx)²)/(n²·grid)⌋ of a cell moves by at most
:meth:`Variance.sensitivities` of their pair there, Δ = ⌈U²·j·(n−j)/(n²·grid)⌉ with j = min(Γ, ⌊n/2⌋). With discrete
Laplace noise of scale b_g in each cell they lose at most Σ_g Δ/b_g, and :func:`~dpcore.allocation.exact_charges` of
:meth:`~dpcore.mean.CellStatistic.rows` are never below that. Proof: the variance is convex in every value, so it is
extreme where their values are 0 or U; with i of them at U and the others' best placed it moves by at most U²·j(n−j)/n².
Rounding down: |⌊a⌋ − ⌊b⌋| <= ⌈|a − b|⌉. Costs of cells add up as in :mod:`dpcore.mean`. Tested: by brute force in
``tests/dpcore/test_mean.py``, on the shipped path in ``tests/audit/test_values_audit.py``.

Neighbours differ in the values of one user; counts are public. Source: [C] arXiv 2405.06261, mechanisms S7 (its
clipping bias cases and its item-level Δ corrected, ``research/errata.md``).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcore._whole_numbers import whole_number
from dpcore.allocation import checked_retained
from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import MAX_TOTAL, Contributions, Counts
from dpcore.errors import ParameterError
from dpcore.mean import CellStatistic
from dpcore.scales import check_clipped, checked_upper


@dataclass(frozen=True)
class Variance(CellStatistic):
    """``upper``: U in quanta. ``grid``: public granularity of the variance in quanta².

    Raises :class:`ParameterError` unless they are integers, ``upper`` of 0 or more and ``grid`` of 1 or more.
    """

    upper: int
    grid: int

    def __post_init__(self) -> None:
        checked_upper(self.upper)
        if whole_number("grid", self.grid) < 1:
            raise ParameterError(f"a grid of {self.grid} quanta² is below 1; give at least 1")

    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """Δ of the variance of ``retained`` (P,) for each pair, in units of ``grid``; 0 where n <= 1. Shape (P,)."""
        checked_retained(counts, retained)
        n = counts.by_cell(retained)[counts.pair_cell]
        j = np.minimum(retained, n // 2)
        top = int(n.max(initial=0))
        fits = (self.upper * self.upper) * max(top, 1) ** 2 * max(self.grid, 1) < MAX_TOTAL
        dtype: Any = np.int64 if fits else object
        moved = (self.upper * self.upper) * (j.astype(dtype) * (n - j).astype(dtype))
        unit = np.maximum(n.astype(dtype) * n.astype(dtype) * self.grid, 1)
        ceiling: IntArray = (-(-moved // unit)).astype(np.int64)
        return ceiling

    def integers(self, kept: Contributions) -> IntArray:
        """⌊(n·Σx² − (Σx)²)/(n²·grid)⌋ per cell, shape (C,); 0 where n = 0. Exact for any n; never to be shown.

        Raises :class:`ParameterError` for values that were clipped to more than ``upper``.
        """
        check_clipped(kept.upper, self.upper)
        n = kept.counts.by_cell(kept.counts.samples).astype(object)
        sums = kept.cell_sums().astype(object)
        squares = kept.cell_squares().astype(object)
        return np.asarray((n * squares - sums * sums) // np.maximum(n * n * self.grid, 1)).astype(np.int64)

    def unit(self, counts: Counts, quantum: float) -> FloatArray:
        """Variance per unit of the integer, shape (C,): ``quantum``² times the grid."""
        return np.full(counts.n_cells, self.grid * quantum**2)

    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Integers in the full range U²/4 of the variance, shape (C,), at least 1."""
        return np.full(counts.n_cells, max(self.upper * self.upper / 4 / self.grid, 1.0))

    def clipping_bias(self, total: IntArray, retained: IntArray) -> FloatArray:
        """Worst-case bias of a variance over n of N samples in full ranges U²/4, shape (C,)."""
        return 4 * clipping_bias(total, retained)


def clipping_bias(total: IntArray, retained: IntArray) -> FloatArray:
    """Worst-case bias of a variance over n ``retained`` of N ``total`` samples in U², shape (C,).

    n(N−n)/N² for n > N/2, else ⌊N/2⌋⌈N/2⌉/N²; 0 for n = N.
    """
    N = np.maximum(total, 1)
    kept = retained / N
    return np.asarray(np.where(2 * retained > N, kept * (1 - kept), (N // 2) * (N - N // 2) / (N * N)))


def worst_change(retained: IntArray, largest: IntArray) -> FloatArray:
    """Most that a user with ``largest`` of n ``retained`` samples moves the variance, in U²: j(n−j)/n². Shape (C,)."""
    share = np.minimum(largest, retained // 2) / retained
    return np.asarray(share * (1 - share))
