"""Relation "values": noise scales and charges for given retained samples, by one of two strategies, and their predicted
error.

*Allocated*: the convex program of :mod:`dpcore.allocation` shares every user's allowance over all cells and statistics.
*Single-cell*: a mechanism of :mod:`dpcore.single_cell` releases each mean at one ε per cell; the other statistics are
allocated what its charges left. All of this depends only on public counts, the terms and the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpcore.allocation import Allocation, allocate, stack, uniform_allocation
from dpcore.arrays import IntArray
from dpcore.contributions import Counts
from dpcore.errors import BudgetError
from dpcore.mean import clipping_bias
from dpcore.residual import ResidualMean
from dpcore.scales import LaplaceScales
from stream.statistics.residual_clipping import Ranges
from stream.statistics.values.cell_means import cell_epsilon, cell_mechanism, plan_cell_means
from stream.statistics.values.cell_statistics import CellStatistics, cell_statistics, scales_by_statistic
from stream.terms import SpeedTerms


@dataclass(frozen=True)
class PublicWindow:
    """What a decision may depend on. ``admitted``: samples (P,) of users who take part. ``caps``: most that one user
    adds to Σx of each cell, (C,). ``allowances``: µε that each user may lose by speed in this window, (L,).
    """

    counts: Counts
    admitted: IntArray
    speed: SpeedTerms
    caps: IntArray | None
    allowances: IntArray
    ranges: Ranges | None = None

    @property
    def allowance(self) -> int:
        """The one allowance of all users, where grants do not roll; 0 without users."""
        return int(self.allowances.max(initial=0))

    def statistics(self, names: Sequence[str]) -> CellStatistics:
        """The statistics behind the released ``names``."""
        statistics = cell_statistics(names, self.speed, self.caps)
        if (ranges := self.ranges) is None or "mean" not in names:
            return statistics
        return {**statistics, "mean": ResidualMean(ranges.lower, ranges.upper, self.speed.upper_quanta, ranges.gain)}


@dataclass(frozen=True)
class Decision:
    """One candidate plan: retained samples (P,), flat scales, charges (L,), and its predicted error in full ranges."""

    retained: IntArray
    scales: LaplaceScales
    charges: IntArray
    mean_epsilon_micro: int
    error: float


def decide(window: PublicWindow, retained: IntArray) -> Decision:
    """Scales and charges for ``retained`` samples (P,), by the strategy of the terms."""
    if window.speed.mean_mechanism != "allocated" and "mean" in window.speed.statistics:
        return decide_single_cell(window, retained)
    statistics = window.statistics(window.speed.statistics)
    scales, charges = allocated(window, retained, window.allowances, statistics)
    return Decision(retained, scales, charges, 0, predicted_error(window, retained, scales, statistics))


def decide_single_cell(window: PublicWindow, retained: IntArray) -> Decision:
    """Means by the terms' single-cell mechanism at one ε per cell, the other statistics allocated what is left."""
    counts, speed, allowances = window.counts, window.speed, window.allowances
    epsilon = cell_epsilon(counts, retained, window.allowance // len(window.statistics(window.speed.statistics)))
    means = plan_cell_means(cell_mechanism(speed), counts, retained, epsilon)
    total, kept = counts.by_cell(window.admitted), counts.by_cell(retained)
    off = np.minimum(means.predicted_error / speed.upper_quanta + clipping_bias(total, kept), 1.0)
    error, charges = float((total * off).sum()), means.charges
    scales = LaplaceScales(np.zeros(counts.n_cells, np.int64), np.ones(counts.n_cells, np.int64))
    others = window.statistics([name for name in window.speed.statistics if name != "mean"])
    if others:
        rest, more = allocated(window, retained, allowances - charges, others)
        error += predicted_error(window, retained, rest, others)
        charges = charges + more
        scales = LaplaceScales(
            np.append(scales.numerator, rest.numerator), np.append(scales.denominator, rest.denominator)
        )
    if np.any(charges > allowances):
        raise BudgetError("the charges of the single-cell means exceed a window's grant; nothing may be released")
    return Decision(retained, scales, charges, epsilon, error)


def solve(
    counts: Counts, retained: IntArray, allowances: IntArray, statistics: CellStatistics, speed: SpeedTerms
) -> Allocation:
    """The program of ``statistics``, rows statistic-major, solved as the terms say."""
    solver = allocate if speed.allocation == "exact-loss" else uniform_allocation
    return solver(stack([statistic.rows(counts, retained) for statistic in statistics.values()]), allowances)


def allocated(
    window: PublicWindow, retained: IntArray, allowances: IntArray, statistics: CellStatistics
) -> tuple[LaplaceScales, IntArray]:
    """(Flat scales, µε of each user (L,)): the charges are those of the statistics themselves, not of the solver.

    Raises :class:`BudgetError` where a charge exceeds its allowance: then nothing may be released with these scales.
    """
    counts = window.counts
    solution = solve(counts, retained, allowances, statistics, window.speed)
    flat = LaplaceScales(solution.numerator, solution.denominator)
    scales = scales_by_statistic(flat, statistics, counts.n_cells)
    charges = np.zeros(counts.n_users, dtype=np.int64)
    for name, statistic in statistics.items():
        charges += statistic.charges(counts, retained, scales[name])
    if np.any(charges > allowances):
        raise BudgetError("the charges of the allocated scales exceed an allowance; nothing may be released with them")
    return flat, charges


def predicted_error(window: PublicWindow, retained: IntArray, flat: LaplaceScales, statistics: CellStatistics) -> float:
    """Σ over cells and statistics of events × (noise scale + clipping bias) in full ranges, at most 1 each."""
    counts = window.counts
    total, kept = counts.by_cell(window.admitted), counts.by_cell(retained)
    error, scales = 0.0, scales_by_statistic(flat, statistics, counts.n_cells)
    for name, statistic in statistics.items():
        scale = scales[name].values
        if scale.ndim > 1:
            scale = scale.sum(axis=1)
        off = scale / statistic.full_ranges(counts, retained) + statistic.clipping_bias(total, kept)
        error += float((total * np.where(kept > 0, np.minimum(off, 1.0), 1.0)).sum())
    return error
