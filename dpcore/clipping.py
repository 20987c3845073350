"""Joint choice of retained counts and noise scales: give up samples whose noise costs more than their bias.

Every sample that a user keeps in a cell raises their sensitivity there, and their allowance has a price (the dual
variable of :func:`dpcore.allocation.allocate`). Two steps alternate: at the present prices choose what each cell
retains; then solve for scales and prices again. A round is kept only if the predicted total error falls. Everything is
computed from counts, so this is for relation "values" only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.allocation import Allocation, Sensitivities, allocate
from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Counts
from dpcore.errors import ParameterError


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


@dataclass(frozen=True)
class Clipping:
    """``samples``: shape (P,), retained counts. Errors are Σ events·(bias + noise), in ranges U, before and after.

    ``allocation`` and ``sensitivities`` are those of the retained counts, so nothing has to be solved again.
    """

    samples: IntArray
    sensitivities: Sensitivities
    allocation: Allocation
    error_before: float
    error: float
    rounds: int

    @property
    def improvement(self) -> float:
        """Share of the predicted error that clipping removed."""
        return 1 - self.error / self.error_before if self.error_before > 0 else 0.0


def choose_clipping(
    counts: Counts,
    allowances: IntArray,
    rows: Callable[[IntArray], Sensitivities],
    *,
    bias_weight: float = 1.0,
    min_users: int = 1,
    max_rounds: int = 30,
) -> Clipping:
    """Retained counts of least Σ events·(``bias_weight``·(1 − n/N) + noise) that alternating descent finds.

    ``allowances``: shape (L,), µε. ``rows``: retained counts (P,) -> the sensitivities of every released statistic.
    ``bias_weight``: 1 charges the worst-case clipping bias of the mean; less, what is expected of it. No cell falls
    below ``min_users`` contributors. Relation "values". Raises :class:`ParameterError`, and as ``allocate``.
    """
    if not (np.isfinite(bias_weight) and bias_weight >= 0):
        raise ParameterError(f"bias weight {bias_weight} is negative; give 0 or more (1 = worst case)")
    total = counts.by_cell(counts.samples)
    samples = counts.samples
    sensitivities = rows(samples)
    allocation = allocate(sensitivities, allowances)
    best = Clipping(samples, sensitivities, allocation, allocation.objective, allocation.objective, 0)
    share = 1.0
    for round_number in range(1, max_rounds + 1):
        proposed, gain = _retain_at_prices(counts, total, best.samples, best.allocation.prices, bias_weight, min_users)
        order = np.argsort(-gain, kind="stable")[: int(np.count_nonzero(gain > 0) * share)]
        if not len(order):
            break
        chosen = np.zeros(counts.n_cells, dtype=bool)
        chosen[order] = True
        samples = np.where(chosen[counts.pair_cell], proposed, best.samples)
        sensitivities = rows(samples)
        allocation = allocate(sensitivities, allowances)
        error = allocation.objective + bias_weight * float((total - counts.by_cell(samples)).sum())
        if error < best.error:
            best = Clipping(samples, sensitivities, allocation, best.error_before, error, round_number)
        else:
            # Prices hold for small changes only: try again in the cells that gain most.
            share /= 2
    return best


def _retain_at_prices(
    counts: Counts, total: IntArray, samples: IntArray, prices: FloatArray, bias_weight: float, min_users: int
) -> tuple[IntArray, FloatArray]:
    """Retained counts (P,) and the gain (C,) of the better of two families in each cell: the first k samples of
    everybody, or all samples of the cheapest users.

    At prices y a cell with retained counts Γ adds bias_weight·(N − n) + 2·√(N·Σ y·Γ/n) to the Lagrangian (in ranges U).
    For given n that is least when the cheapest users fill n, so the second family is optimal up to one user.
    """
    price = prices[counts.pair_user]
    retained = counts.by_cell(samples)
    paid = _cell_sums(counts, price * samples)
    present = bias_weight * (total - retained) + 2 * np.sqrt(total * paid / np.maximum(retained, 1))
    by_sample, sample_cost = capped(counts, total, price, bias_weight)
    by_user, user_cost = cheapest(counts, total, price, bias_weight, min_users)
    proposed = np.where((user_cost < sample_cost)[counts.pair_cell], by_user, by_sample)
    least = np.minimum(user_cost, sample_cost)
    return proposed, np.where(np.isfinite(least), present - least, 0.0)


def _cell_sums(counts: Counts, column: FloatArray) -> FloatArray:
    return np.bincount(counts.pair_cell, weights=column, minlength=counts.n_cells).astype(np.float64)
