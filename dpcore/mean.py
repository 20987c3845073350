"""Mean of every cell under relation "values": Σx of the cell plus noise of an allocated scale, over the public count n.

To be proved: if all values of one user change, Σx of cell g moves by at most :meth:`Mean.sensitivities` of their pair
there, Δ = min(U·Γ, T), where T is the cap of the cell. With independent discrete Laplace noise of scale b_g in each
cell they therefore lose at most Σ_g Δ/b_g, and :func:`~dpcore.allocation.exact_charges` of
:meth:`~CellStatistic.rows` are never below that. Proof: each of their Γ retained values was clipped to [0, U], so
their sum lies in [0, U·Γ]; capped, in [0, T]. An integer that moves by d under noise of scale b costs d/b, and the
cells' noises are independent, so their costs add up. Tested: by brute force in ``tests/dpcore/test_mean.py``, on the
shipped path in ``tests/audit/test_values_audit.py`` and, where hexagons are merged, in
``tests/stream/statistics/test_pipeline.py``.

Neighbours differ in the values of one user; counts, hence n, Γ, the caps and the scales, are public. Integers are sums
of quanta. Source: [C] arXiv 2405.06261, mechanisms S7, S14.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dpcore.allocation import Sensitivities, checked_retained
from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import MAX_TOTAL, Contributions, Counts
from dpcore.errors import ParameterError
from dpcore.scales import check_clipped, checked_upper


class CellStatistic(ABC):
    """Integers of every cell that one user moves by a known amount at most, and the noise that is added to them."""

    @abstractmethod
    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """Δ of the integers of a cell for each of its pairs, by ``retained`` samples (P,); shape (P,)."""

    @abstractmethod
    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Integers in the full range of the statistic of each cell, shape (C,): noise over it is an error in ranges."""

    @abstractmethod
    def integers(self, kept: Contributions) -> IntArray:
        """What noise is added to, cells last; never to be shown."""

    def rows(self, counts: Counts, retained: IntArray) -> Sensitivities:
        """Rows of the allocation, one per cell; weight = events per full range, so that units compare."""
        weight = counts.by_cell(counts.samples) / self.full_ranges(counts, retained)
        return Sensitivities.of_pairs(counts, self.sensitivities(counts, retained), weight)

    def draw(self, kept: Contributions, noise: IntArray) -> IntArray:
        """The integers with ``noise`` of their shape: one draw of the scales that were charged for."""
        return self.integers(kept) + noise

    def clipping_bias(self, total: IntArray, retained: IntArray) -> FloatArray:
        """Worst-case bias of the statistic of n of N samples in full ranges, shape (C,): that of a mean."""
        return clipping_bias(total, retained)


@dataclass(frozen=True)
class Mean(CellStatistic):
    """``upper``: U in quanta. ``caps``: most that one user adds to Σx of each cell, in quanta, shape (C,); None for no
    caps.

    Raises :class:`ParameterError` unless they are 0 or more, ``upper`` an integer.
    """

    upper: int
    caps: IntArray | None = None

    def __post_init__(self) -> None:
        checked_upper(self.upper)
        if self.caps is not None and np.any(self.caps < 0):
            raise ParameterError(f"a cap of {self.caps.min()} quanta is below 0; give 0 or more")

    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """Δ of Σx over ``retained`` samples (P,) for each pair, in quanta: U·Γ, at most the cell's cap; shape (P,)."""
        checked_retained(counts, retained)
        self._check_caps(counts)
        delta: IntArray = retained * self.upper
        return delta if self.caps is None else np.minimum(delta, self.caps[counts.pair_cell])

    def integers(self, kept: Contributions) -> IntArray:
        """Σx of the retained values per cell, shape (C,): what noise is added to; never to be shown.

        Raises :class:`ParameterError` for values that were clipped to more than ``upper``.
        """
        check_clipped(kept.upper, self.upper)
        self._check_caps(kept.counts)
        return kept.cell_sums(self.caps)

    def unit(self, counts: Counts, quantum: float) -> FloatArray:
        """Mean per unit of the integer, shape (C,): ``quantum`` over n, the samples of each cell in ``counts``."""
        return np.asarray(quantum / np.maximum(counts.by_cell(counts.samples), 1))

    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Integers in the full range U·n of Σx, shape (C,)."""
        return np.maximum(counts.by_cell(retained) * self.upper, 1).astype(np.float64)

    def _check_caps(self, counts: Counts) -> None:
        if self.caps is not None and len(self.caps) != counts.n_cells:
            raise ParameterError(f"{len(self.caps)} caps for {counts.n_cells} cells; give one for each")


def clipping_bias(total: IntArray, retained: IntArray) -> FloatArray:
    """Worst-case bias 1 − n/N of a mean over n ``retained`` of N ``total`` samples, in ranges U, shape (C,)."""
    return np.asarray(1.0 - retained / np.maximum(total, 1))


def sum_caps(counts: Counts, upper: int, share: float, widths: FloatArray) -> IntArray:
    """Most that one user adds to Σx of each cell, in quanta, shape (C,): ``share``·U·m̄·width, at least U. Public.

    Speed times time is distance, and a cell is only so wide: who stays long in it drove slowly. So long stays need not
    be given room for U throughout. ``widths``: of the cells, (C,), in any one unit; m̄: mean over pairs of samples per
    width. Raises :class:`ParameterError` for a share or widths not above 0.
    """
    if not (np.isfinite(share) and share > 0):
        raise ParameterError(f"a cap of {share} mean contributions is not above 0; give a positive share or no cap")
    if len(widths) != counts.n_cells or not np.all(np.isfinite(widths) & (widths > 0)):
        raise ParameterError(f"need a finite width above 0 for each of {counts.n_cells} cells")
    present = counts.samples > 0
    if not present.any():
        return np.full(counts.n_cells, upper, dtype=np.int64)
    stay = float(np.mean(counts.samples[present] / widths[counts.pair_cell[present]]))
    return np.clip(np.ceil(share * upper * stay * widths), upper, MAX_TOTAL).astype(np.int64)
