"""Mean of moving reports under relation "values": both the sum and the number of them are protected, so both carry
noise.

A report moves if its value is at least the public threshold v. With Δ = U − v, two integers of a cell are released,
summed over its retained samples that move: S = Σ (2x − v − U) and M = Σ Δ. The mean of moving reports is (v + U)/2 +
Δ·S/(2M), their number M/Δ.

To be proved: if all values of one user change, (S, M) of cell g moves in L1 norm, and hence in L2 norm, by at most
:meth:`MovingMean.sensitivities` of their pair there, 2·Δ·Γ. With independent discrete Laplace noise of one scale b_g on
both they therefore lose at most Σ_g 2ΔΓ/b_g, and :func:`~dpcore.allocation.exact_charges` of
:meth:`~dpcore.mean.CellStatistic.rows` are never below that; with discrete Gaussian noise of scale σ_g at most Σ_g
(2ΔΓ)²/(2σ_g²). Proof: one sample adds nothing where it stands, and (s, Δ) with |s| <= Δ where it moves. From standing
to moving that is a change of |s| + Δ <= 2Δ, from moving to moving one of |s − s'| + 0 <= 2Δ. Γ samples: the triangle
inequality. Noise of scale b on two integers that move by (d, e) costs (|d| + |e|)/b, Gaussian noise (d² + e²)/(2σ²),
and cells' noises are independent, so costs add up. So the number costs nothing beside the sum; alone, S would need the
same noise. Tested: by brute force in ``tests/dpcore/test_mean.py``, on the shipped path in
``tests/audit/test_values_audit.py``.

Neighbours differ in the values of one user; Γ and the scales are functions of public counts, and v is a constant. Which
of their reports move is protected, as values are. Source: mechanism S7 for a pair of numbers.
"""

from dataclasses import dataclass

import numpy as np

from dpcore._whole_numbers import whole_number
from dpcore.allocation import checked_retained
from dpcore.arrays import FloatArray, IntArray
from dpcore.bernstein import Ratio, ratio_of
from dpcore.contributions import Contributions, Counts
from dpcore.errors import ParameterError
from dpcore.mean import CellStatistic
from dpcore.scales import check_clipped, checked_upper


@dataclass(frozen=True)
class MovingMean(CellStatistic):
    """``upper``: U in quanta. ``least``: v, where moving begins. Raises :class:`ParameterError` unless 0 < v < U."""

    upper: int
    least: int

    def __post_init__(self) -> None:
        if not 0 < whole_number("least", self.least) < checked_upper(self.upper):
            raise ParameterError(f"moving from {self.least} quanta on is not within (0, {self.upper}); raise the bound")

    @property
    def span(self) -> int:
        """Δ = U − v."""
        return self.upper - self.least

    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """L1 sensitivity 2·Δ·Γ of both numbers over ``retained`` samples (P,) for each pair, in quanta; shape (P,)."""
        checked_retained(counts, retained)
        return retained * (2 * self.span)

    def integers(self, kept: Contributions) -> IntArray:
        """S and M of the retained values per cell, shape (2, C): what noise is added to; never to be shown.

        Raises :class:`ParameterError` for values that were clipped to more than ``upper``.
        """
        check_clipped(kept.upper, self.upper)
        least, both = self.least, self.least + self.upper
        sums = kept.cell_totals(lambda x: np.where(x >= least, 2 * x - both, 0))
        return np.array([sums, kept.cell_totals(lambda x: np.where(x >= least, self.span, 0))])

    def number(self, noisy: IntArray) -> FloatArray:
        """Number of moving reports, shape (C,), from the noisy (2, C)."""
        return np.asarray(noisy[1] / self.span)

    def mean(self, noisy: IntArray, deviations: FloatArray, quantile: float) -> Ratio:
        """Share of the way from v to U at which the mean lies, from the noisy (2, C); Fieller's interval.
        Post-processing.

        ``deviations``: standard deviation of the noise of each number, (C,); ``quantile``: of them on each side.
        """
        half, whole = np.array([0.5, 0.5]), np.array([0.0, 1.0])
        return ratio_of(noisy / self.span, deviations / self.span, half, whole, 0.5, 1.0, quantile)

    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Integers in the full range of S of each cell if all reports move, shape (C,)."""
        return np.maximum(counts.by_cell(retained) * (2 * self.span), 1).astype(np.float64)
