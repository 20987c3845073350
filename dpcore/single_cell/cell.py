"""What the mechanisms of one cell have in common: losses of users, the noisy estimate, and refusals of bad input.

BestFit: pack users' samples into arrays of bounded length, the pseudo-users of the mean mechanisms.

Depends on counts only, so it is free under relation "values" and not valid under "participation": without one user the
others would be packed differently. Source: [M] arXiv 2401.15906, mechanisms S2.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.contributions import MAX_TOTAL
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.noise import Noise, interval_half_width


@dataclass(frozen=True)
class Estimate:
    """One released number. ``raw`` is the mechanism's output; ``value`` is it clamped to the public range.

    ``scale`` is the noise scale b (for Laplace noise the standard deviation is √2·b); ``low`` and ``high`` bound the
    pre-noise statistic with 95 % confidence, noise only; ``bias_bound`` is the worst-case clipping bias beside it.
    All in the unit of the statistic.
    """

    raw: float
    value: float
    scale: float
    low: float
    high: float
    clamped: bool
    bias_bound: float = 0.0


def losses(sensitivities: IntArray, numerator: int, denominator: int) -> IntArray:
    """µε each user loses to noise of scale t/s, rounded up: ⌈10⁶·Δ·s/t⌉, shape of ``sensitivities``."""
    if numerator == 0:
        if np.any(sensitivities != 0):
            raise ParameterError("no noise protects only what nobody can move; give a positive scale")
        return np.zeros(len(sensitivities), dtype=np.int64)
    if int(sensitivities.max(initial=0)) * MICRO * denominator < MAX_TOTAL:
        whole: IntArray = -(-(MICRO * denominator * sensitivities) // numerator)
        return whole
    return np.array([-(-MICRO * denominator * int(d) // numerator) for d in sensitivities], dtype=np.int64)


def noisy_estimate(
    statistic: int, numerator: int, denominator: int, unit: float, top: float, bias_bound: float, noise: Noise
) -> Estimate:
    """``statistic`` plus discrete Laplace noise of scale t/s, divided by ``unit``; the range is [0, ``top``]."""
    noisy, width, scale = int(statistic), 0.0, 0.0
    if numerator:
        noisy += int(noise.discrete_laplace(numerator, denominator, 1)[0])
        width = _half_width(numerator, denominator) / unit
        scale = numerator / denominator / unit
    raw = noisy / unit
    value = min(max(raw, 0.0), top)
    return Estimate(raw, value, scale, raw - width, raw + width, value != raw, bias_bound)


@lru_cache(maxsize=1024)
def _half_width(numerator: int, denominator: int) -> float:
    """Half the width of a 95 % interval of noise of scale t/s. Draws from one plan ask for the same again and again."""
    return float(interval_half_width(numerator, denominator))


def checked_samples(samples: IntArray) -> IntArray:
    """Counts m per user as int64, shape (L,); :class:`ParameterError` unless there are users and every m >= 1.

    :class:`OverflowBoundError` where their sum could leave int64.
    """
    m = np.asarray(samples)
    if m.ndim != 1 or len(m) == 0:
        raise ParameterError(f"counts of shape {m.shape} hold no user; an empty cell releases nothing, leave it out")
    if not np.issubdtype(m.dtype, np.integer):
        raise ParameterError(f"counts of type {m.dtype} are not integers; count samples per user")
    if int(m.min()) < 1:
        raise ParameterError(f"a user has {m.min()} samples; leave out users with fewer than 1")
    total = sum(m.tolist()) if float(m.max()) * len(m) >= MAX_TOTAL else 0
    if total >= MAX_TOTAL:
        raise OverflowBoundError(
            f"{total} samples exceed 2^62, so their sums could leave int64; split the cell, use fewer"
        )
    return m.astype(np.int64)


def checked_values(values: IntArray, samples: IntArray, upper: int) -> IntArray:
    """Values of one cell sorted by (user, time), clipped to [0, ``upper``], shape (N,).

    Clipping again here keeps the sensitivity whatever the caller did. Raises :class:`ParameterError` for values that
    are not integers (NaN is not) or are not Σm many.
    """
    x = np.asarray(values)
    if not np.issubdtype(x.dtype, np.integer):
        raise ParameterError(f"values of type {x.dtype} are not integer quanta; drop NaN, then round to the quantum")
    if x.shape != (int(samples.sum()),):
        raise ParameterError(f"values of shape {x.shape}, planned for {int(samples.sum())}; plan from the same counts")
    if x.dtype != np.int64:
        return np.clip(x, 0, upper).astype(np.int64)
    return np.minimum(np.maximum(x, 0), upper)


def retained_values(values: IntArray, samples: IntArray, retained: IntArray) -> tuple[IntArray, IntArray]:
    """The first ``retained`` values of each user in time order, and their users' indices, shape (ΣΓ,) each."""
    if int(retained.sum()) == len(values):
        return values, np.repeat(np.arange(len(samples)), samples)
    start = np.cumsum(samples) - samples
    position = np.arange(len(values)) - np.repeat(start, samples)
    keep = position < np.repeat(retained, samples)
    return values[keep], np.repeat(np.arange(len(samples)), retained)


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
