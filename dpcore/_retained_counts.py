"""The two families of retained counts among which :mod:`dpcore.clipping` chooses in each cell, each searched
exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.contributions import Counts, IntArray

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Ascending:
    """The pairs of every cell in ascending order of a key: ``order`` (P,), and the ``cell`` of each in that order."""

    counts: Counts
    order: IntArray
    cell: IntArray

    @classmethod
    def by(cls, counts: Counts, key: npt.NDArray[np.int64] | FloatArray) -> _Ascending:
        """Sort by ``key`` (P,) within each cell."""
        order = np.lexsort((key, counts.pair_cell))
        return cls(counts, order, counts.pair_cell[order])

    def running(self, column: FloatArray) -> FloatArray:
        """Sum of a sorted column over the pairs of a cell up to and including each."""
        start = self.counts.cell_start[:-1]
        summed = np.cumsum(column)
        return np.asarray(summed - (summed[start] - column[start])[self.cell])

    def best(self, cost: FloatArray) -> tuple[IntArray, FloatArray]:
        """(Position, cost), (C,) each, of the cheapest cut of every cell; the last of equal ones, which retains
        most."""
        start = self.counts.cell_start[:-1]
        least = np.minimum.reduceat(cost, start)
        at = np.where(cost == least[self.cell], np.arange(len(cost)), -1)
        return np.maximum.reduceat(at, start), least

    def restored(self, column: IntArray) -> IntArray:
        """A sorted column in the order of the pairs."""
        out = np.empty_like(column)
        out[self.order] = column
        return out


def capped(counts: Counts, total: IntArray, price: FloatArray, bias_weight: float) -> tuple[IntArray, FloatArray]:
    """(Retained counts (P,), cost (C,)): everybody's first k samples, k the best of the numbers that pairs of the cell
    have."""
    pairs = _Ascending.by(counts, counts.samples)
    samples, cell = counts.samples[pairs.order], pairs.cell
    m, y = samples.astype(np.float64), price[pairs.order]
    end = counts.cell_start[1:]
    # Those later in the order keep as many samples as this pair has.
    later = end[cell] - 1 - np.arange(len(m))
    n = pairs.running(m) + m * later
    paid = pairs.running(m * y) + m * (pairs.running(y)[end - 1][cell] - pairs.running(y))
    cut, least = pairs.best(_cost(total[cell], n, paid, bias_weight))
    return pairs.restored(np.minimum(samples, samples[cut][cell])), least


def cheapest(
    counts: Counts, total: IntArray, price: FloatArray, bias_weight: float, min_users: int
) -> tuple[IntArray, FloatArray]:
    """(Retained counts (P,), cost (C,)): all samples of the users of least ``price``, the best number of them, at least
    ``min_users``.
    """
    pairs = _Ascending.by(counts, price)
    samples, cell = counts.samples[pairs.order], pairs.cell
    m = samples.astype(np.float64)
    n, paid = pairs.running(m), pairs.running(m * price[pairs.order])
    cost = _cost(total[cell], n, paid, bias_weight)
    cost[pairs.running((m > 0).astype(np.float64)) < min_users] = np.inf
    cut, least = pairs.best(cost)
    return pairs.restored(np.where(np.arange(len(m)) <= cut[cell], samples, 0)), least


def _cost(total: IntArray, retained: FloatArray, paid: FloatArray, bias_weight: float) -> FloatArray:
    """Clipping bias and noise of each cut, (P,), in ranges U: ``total`` samples of its cell, those ``retained``, and
    what is ``paid`` for them, Σ y·Γ; infinite where nothing is retained.
    """
    N = total.astype(np.float64)
    cost = bias_weight * (N - retained) + 2 * np.sqrt(np.maximum(N * paid / np.maximum(retained, 1), 0))
    return np.where(retained < 1, np.inf, cost)
