"""BestFit: pack users' samples into arrays of bounded length, the pseudo-users of the mean mechanisms.

Depends on counts only, so it is free under relation "values" and not valid under "participation": without one user the
others would be packed differently. Source: [M] arXiv 2401.15906, mechanisms S2.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import IntArray
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.single_cell.cell import checked_samples

MAX_CAPACITY = 2**22
"""Largest m_UB: packing takes memory and time in proportion to it."""


@dataclass(frozen=True)
class Grouping:
    """``retained``: Γ per user, shape (L,); ``array``: the array that holds all of them, shape (L,); ``fill``: samples
    per array, shape (K̄,); ``capacity``: m_UB. Users keep their first samples in time.
    """

    retained: IntArray
    array: IntArray
    fill: IntArray
    capacity: int

    @property
    def n_arrays(self) -> int:
        """K̄, the arrays opened."""
        return len(self.fill)

    def sensitivities(self, upper: int) -> IntArray:
        """⌈upper·Γ/fill⌉ per user, shape (L,): most that their values move ⌊array average⌋ (of values in 0..upper).

        |⌊a⌋ − ⌊b⌋| <= ⌈|a − b|⌉, so rounding each average down costs nothing beyond the ceiling.
        """
        ceiling: IntArray = -(-(upper * self.retained) // self.fill[self.array])
        return ceiling

    def bias_bound(self, n_total: int) -> float:
        """½·Σ|w − 1/N| over all ``n_total`` samples, w the weight of a sample in the mean of array averages.

        Times U it is the worst-case bias of that mean.
        """
        kept = np.abs(1.0 / self.n_arrays - self.fill / n_total).sum()
        return float(0.5 * (kept + (n_total - int(self.retained.sum())) / n_total))


def bestfit(samples: IntArray, capacity: int) -> Grouping:
    """Put min(m, ``capacity``) samples of every user, in the given (public) order, into the fullest array with room.

    ``samples``: shape (L,), m >= 1. Ties go to the lowest array; where none has room a new one opens. Relation
    "values". Raises :class:`ParameterError` for no users, m < 1, or a capacity outside [min m, max m].
    """
    m = checked_samples(samples)
    if not int(m.min()) <= capacity <= int(m.max()):
        raise ParameterError(
            f"m_UB {capacity} is outside [{m.min()}, {m.max()}], the samples per user; give one inside"
        )
    _check_capacity(capacity)
    retained = np.minimum(m, capacity)
    buckets: dict[int, list[int]] = defaultdict(list)
    occupied = 0
    array: list[int] = []
    fill: list[int] = []
    for amount in retained.tolist():
        # Bit f of ``occupied`` says that some array holds exactly f samples; the highest usable bit is the fullest.
        fullest = (occupied & ((1 << (capacity - amount + 1)) - 1)).bit_length() - 1
        if fullest < 0:
            chosen, fullest = len(fill), 0
            fill.append(0)
        else:
            chosen = heapq.heappop(buckets[fullest])
            if not buckets[fullest]:
                occupied &= ~(1 << fullest)
        array.append(chosen)
        fill[chosen] = fullest + amount
        heapq.heappush(buckets[fullest + amount], chosen)
        occupied |= 1 << (fullest + amount)
    return Grouping(retained, np.array(array, dtype=np.int64), np.array(fill, dtype=np.int64), capacity)


def _check_capacity(capacity: int) -> None:
    if capacity > MAX_CAPACITY:
        raise OverflowBoundError(
            f"m_UB {capacity} is above {MAX_CAPACITY}; give a smaller one, or split the cell into shorter timeslots"
        )


def bestfit_within(samples: IntArray, capacity: int) -> Grouping:
    """:func:`bestfit` at the m_UB nearest to ``capacity``, at least 1, that lies in [min m, max m]."""
    m = checked_samples(samples)
    if capacity < 1:
        raise ParameterError(f"m_UB {capacity} holds no sample; give at least 1")
    return bestfit(m, min(max(capacity, int(m.min())), int(m.max())))


def lower_median(samples: IntArray) -> int:
    """The ⌈L/2⌉-th smallest m: the capacity of Array-Averaging."""
    m = checked_samples(samples)
    return int(np.sort(m)[(len(m) - 1) // 2])


def widest_grouping(samples: IntArray) -> Grouping:
    """The grouping that maximises K̄·√m_UB over every m_UB in [min m, max m]; ties to the smaller m_UB."""
    m = np.sort(checked_samples(samples))
    _check_capacity(int(m[-1]))
    capacity = np.arange(int(m[0]), int(m[-1]) + 1)
    fewer = np.searchsorted(m, capacity, side="right")
    clipped = np.append(0, np.cumsum(m))[fewer] + capacity * (len(m) - fewer)
    # At most one array is at most half full, which bounds K̄ without packing: the most promising are packed first.
    # In floating point, so that no product overflows, and a hair larger than rounding could make it too small.
    most_arrays = np.minimum(len(m), 2 * clipped // capacity + 1).astype(np.float64)
    bound = most_arrays**2 * capacity * (1 + 1e-9)
    best: Grouping | None = None
    best_score = 0
    for at in np.argsort(-bound, kind="stable").tolist():
        if bound[at] < best_score:
            break
        grouping = bestfit(samples, int(capacity[at]))
        score = grouping.n_arrays**2 * grouping.capacity
        if best is None or (score, -grouping.capacity) > (best_score, -best.capacity):
            best, best_score = grouping, score
    assert best is not None
    return best
