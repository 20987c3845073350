"""Whether the intervals of means hold the truth, judged cell by cell. NOT PRIVATE: it is computed from true values.

Weighted by events, or pooled over cells, a few cells whose intervals always miss do not show. A hexagon of a motorway
is such a cell: most of its speeds are above ``value.upper``, so the clipped mean, which is released, is far below the
mean. So every cell is judged by both: the mean of its clipped speeds, and that of its speeds as they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray, IdArray
from dpcore.contributions import Contributions
from stream.messages.message import cell_text
from stream.terms import QUANTUM

_ROUNDING = 1e-9
"""Tolerance for floats: a number this close to the end of an interval counts as inside."""


@dataclass(frozen=True)
class CellCoverage:
    """One cell over windows and draws: number of ``releases`` and ``events`` of all of them; means over events, in
    km/h, of the ``shown`` value, of ``clipped`` and of ``measured`` speeds; shares of 95 % intervals that hold the mean
    of either.
    """

    cell: str
    releases: int
    events: int
    shown: float
    clipped: float
    measured: float
    covers_clipped: float
    covers_measured: float


class Verdicts:
    """Rows (cell, events, shown, clipped, measured, covers clipped, covers measured) of windows and draws, as they
    come."""

    def __init__(self) -> None:
        self._cells: list[IdArray] = []
        self._rows: list[FloatArray] = []

    def add(
        self, cells: IdArray, events: FloatArray, shown: FloatArray, interval: FloatArray, truths: FloatArray
    ) -> None:
        """Released ``cells`` (n,) with the ``interval`` as it is released, (2, n), and ``truths`` (2, n): the mean of
        clipped and of measured speeds, in km/h.
        """
        low, high = interval
        covers = (low - _ROUNDING <= truths) & (truths <= high + _ROUNDING)
        self._cells.append(cells)
        self._rows.append(np.stack([events, shown, *truths, *covers.astype(np.float64)]))

    def by_cell(self) -> tuple[CellCoverage, ...]:
        """Every cell, those first whose intervals miss the mean of measured speeds most often; of equal ones the
        busiest."""
        if not self._cells:
            return ()
        cells, index = np.unique(np.concatenate(self._cells), return_inverse=True)
        events, shown, clipped, measured, *covers = np.concatenate(self._rows, axis=1)

        def summed(column: FloatArray) -> FloatArray:
            return np.asarray(np.bincount(index, weights=column, minlength=len(cells)), dtype=np.float64)

        releases, total = np.bincount(index, minlength=len(cells)), summed(events)
        means = [summed(column * events) / total for column in (shown, clipped, measured)]
        shares = [summed(column) / releases for column in covers]
        order = np.lexsort((-total, shares[1]))
        columns = (cells, releases, total.astype(np.int64), *means, *shares)
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        return tuple(CellCoverage(cell_text(cell), *numbers) for cell, *numbers in rows)


def means_of(contributions: Contributions) -> FloatArray:
    """The mean over samples of each cell, shape (C,), in km/h."""
    counts = contributions.counts
    return contributions.cell_sums() * QUANTUM / counts.by_cell(counts.samples)
