"""Mean of one cell with a privately chosen clipping range (Levy, quantile clipping), and the choice among mechanisms.

Array averages concentrate, so a small part of the budget buys a narrow range, and the noise shrinks with it.

To be proved: if all values of one user change, they lose at most their ``charges`` in the plan. Proof: all their values
lie in one array, so one entry of the averages changes. Its range costs ``range_micro``, by the exact exponential
mechanism on integer columns, each entry of which belongs to one unit of protection. Given a range of width w the
clipped sum moves by at most min(w, c), c their sensitivity, under noise for min(w, max c); the charge takes the width
at which that ratio is largest, the narrowest that can be drawn. Both draws add up. Which mechanism :class:`AutoMean`
takes follows from public counts. Tested: tests/dpcore/single_cell/test_range_mean.py (charges at every range),
tests/audit/test_single_cell_audit.py (exactly and on samples).

Neighbours differ in the values of one user; counts are public. Source: [M] arXiv 2401.15906, mechanisms S5, S6.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.scales import check_total, checked_micro, checked_upper, noise_ratio
from dpcore.single_cell.cell import Estimate, Grouping, bestfit_within, checked_samples, noisy_estimate, widest_grouping
from dpcore.single_cell.mean import (
    GRID,
    SAMPLE_SHARE,
    USER_SHARE,
    ArrayAveraging,
    ArrayPlan,
    Baseline,
    MeanPlan,
    PooledMinimax,
    array_averages,
    rounding_bias,
    usual_grouping_bias,
)

RANK_UNIT = 10
"""Target ranks are given in tenths, so 0.1·K̄ is an integer."""


def select_quantiles(column: IntArray, upper: int, ranks: IntArray, epsilon_micro: int, noise: Noise) -> IntArray:
    """Private integers y in 0..``upper``, one per target rank, each at ``epsilon_micro`` for a change of one value.

    ``column``: shape (K,), integers in [0, ``upper``]. ``ranks``: shape (q,), in tenths of a value. P(y) ∝
    exp(−ε·c(y)/2), c the distance of the rank r from [#{z < y}, #{z <= y}]. So a value that many entries share is a
    candidate of its own; a choice among the gaps between values alone would never find it (``research/errata.md``). A
    gap is drawn with its number of integers as weight, then an integer in it uniformly. Exact. Neighbours differ in one
    value; adding one costs the same.
    """
    micro, top = checked_micro(epsilon_micro), checked_upper(upper)
    if len(column) and (int(column.min()) < 0 or int(column.max()) > top):
        raise ParameterError(f"values outside [0, {top}] would break the sensitivity; clip them first")
    distinct, multiplicity = np.unique(np.asarray(column, dtype=np.int64), return_counts=True)
    # In turn: the gap below the first value, that value, the gap above it, the next value, …
    start = np.append(0, np.column_stack([distinct, distinct + 1]).ravel())
    size = np.diff(np.append(start, top + 1))
    up_to = np.repeat(RANK_UNIT * np.append(0, np.cumsum(multiplicity)), 2)
    below, above = up_to[:-1], up_to[1:]
    target = np.asarray(ranks, dtype=np.int64)[:, None]
    costs = np.maximum(np.maximum(below - target, target - above), 0)
    offsets = np.arange(len(target) + 1, dtype=np.int64) * len(start)
    chosen = noise.exponential(
        costs.ravel(), micro, 2 * RANK_UNIT * MICRO, offsets=offsets, weights=np.tile(size, len(target))
    )
    return np.asarray(start[chosen] + noise.below(size[chosen]))


def range_bins(upper: int, half_bin: int) -> IntArray:
    """Candidate ranges [x − 2τ, x + 2τ] ∩ [0, ``upper``], x centres of bins of width 2τ; shape (⌈U/2τ⌉, 2). Public."""
    if half_bin < 1:
        raise ParameterError(f"half a bin is {half_bin} quanta; give at least 1")
    n_bins = max(-(-checked_upper(upper) // (2 * half_bin)), 1)
    centre = (2 * np.arange(n_bins, dtype=np.int64) + 1) * half_bin
    return np.stack([np.maximum(centre - 2 * half_bin, 0), np.minimum(centre + 2 * half_bin, upper)], axis=1)


def select_range(column: IntArray, upper: int, half_bin: int, epsilon_micro: int, noise: Noise) -> tuple[int, int]:
    """Private range [a, b] of :func:`range_bins` around the median of ``column`` (K,), for a change of one entry.

    Entries are snapped to bins; P(x) ∝ exp(−ε·c(x)/2), c = max(entries below, entries above), of sensitivity 1. Exact.
    """
    ranges = range_bins(upper, half_bin)
    filled = np.bincount(np.minimum(column // (2 * half_bin), len(ranges) - 1), minlength=len(ranges)).astype(np.int64)
    up_to = np.cumsum(filled)
    costs = np.maximum(up_to - filled, len(column) - up_to)
    chosen = int(noise.exponential(costs, checked_micro(epsilon_micro), 2 * MICRO)[0])
    return int(ranges[chosen, 0]), int(ranges[chosen, 1])


@dataclass(frozen=True)
class RangePlan:
    """Public part of a mean over a private range; integers in 1/GRID quantum.

    ``sensitivities``: shape (L,), most that each user moves their array's average, before the range narrows it. The
    range costs ``range_micro`` in all, the mean ``mean_micro``.
    ``charges``: µε (L,), an upper bound over every range that can be drawn. ``bias_bound``: quanta, over every range as
    well. ``half_bin``: τ. ``rank``: lower quantile in tenths of an array. ``predicted_error``: quanta, see
    :class:`AutoMean`.
    """

    samples: IntArray
    grouping: Grouping
    sensitivities: IntArray
    range_micro: int
    mean_micro: int
    half_bin: int
    rank: int
    charges: IntArray
    grouping_bias: float
    bias_bound: float
    predicted_error: float

    @property
    def retained(self) -> IntArray:
        """Γ, shape (L,)."""
        return self.grouping.retained

    @cached_property
    def largest(self) -> int:
        """Largest of ``sensitivities``."""
        return int(self.sensitivities.max())


def mean_within(averages: IntArray, low: int, high: int, upper: int, plan: RangePlan, noise: Noise) -> Estimate:
    """Mean of the averages clipped to [``low``, ``high``], noised for that range; bias bound for the range drawn."""
    t, s = noise_ratio(min(high - low, plan.largest), plan.mean_micro)
    bias = plan.grouping_bias + max(low, GRID * upper - high) / GRID
    statistic = int(np.minimum(np.maximum(averages, low), high).sum())
    return noisy_estimate(statistic, t, s, GRID * plan.grouping.n_arrays, upper, min(bias, float(upper)), noise)


GAMMA = 0.05
"""γ: chance that some array average lies further than τ from its mean, if samples are independent."""


def _concentration(upper: int, grouping: Grouping) -> int:
    """τ = U·√(ln(2K̄/γ)/(2·m_UB)) in 1/GRID quantum, rounded up, at least 1."""
    spread = math.sqrt(math.log(2 * grouping.n_arrays / GAMMA) / (2 * grouping.capacity))
    return max(1, math.ceil(GRID * upper * spread))


def _scale(plan_sensitivity: int, width: float, n_arrays: int, mean_micro: int) -> float:
    return min(width, plan_sensitivity) * MICRO / mean_micro / (GRID * n_arrays)


def _range_plan(
    upper: int,
    samples: IntArray,
    grouping: Grouping,
    micro: tuple[int, int],
    narrowest: int,
    predicted: float,
    rank: int = 0,
) -> RangePlan:
    range_micro, mean_micro = micro
    sensitivities = grouping.sensitivities(GRID * upper)
    largest = int(sensitivities.max())
    # Their share min(w, c)/min(w, max c) of the mean's ε falls as the range w widens: the narrowest range bounds it.
    share = np.minimum(sensitivities, narrowest) * mean_micro
    own = -(-share // max(min(largest, narrowest), 1)) if narrowest else np.full(len(samples), mean_micro)
    charges = np.where(sensitivities > 0, own + range_micro, 0).astype(np.int64)
    bias = upper * grouping.bias_bound(int(samples.sum())) + rounding_bias(grouping)
    return RangePlan(
        samples=samples,
        grouping=grouping,
        sensitivities=sensitivities,
        range_micro=range_micro,
        mean_micro=mean_micro,
        half_bin=_concentration(upper, grouping),
        rank=rank,
        charges=charges,
        grouping_bias=bias,
        bias_bound=min(float(upper), bias + upper - narrowest / GRID),
        predicted_error=usual_grouping_bias(upper, samples, grouping) + predicted,
    )


@dataclass(frozen=True)
class Levy:
    """ε/2 for a range of width 4τ around the median array average, ε/2 for the clipped mean (S5). ``upper``: quanta.

    m_UB (``capacity``) maximises K̄·√m_UB unless it is given; it is then moved into [min m, max m].
    Where 4τ >= U the range could not help: the plan is Array-Averaging's with the whole ε, decided by counts alone.
    """

    upper: int
    capacity: int | None = None

    def plan(self, samples: IntArray, epsilon_micro: int) -> RangePlan | ArrayPlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        upper, m, micro = self.upper, checked_samples(samples), checked_micro(epsilon_micro)
        grouping = _checked_grouping(upper, m, self.capacity)
        half_bin = _concentration(upper, grouping)
        if 4 * half_bin >= GRID * upper or micro < 2:
            return ArrayAveraging(self.upper, self.capacity).plan(m, micro)
        ranges = range_bins(GRID * upper, half_bin)
        range_micro = micro // 2
        # A range far from the median costs K̄ instead of at most K̄/2.
        miss = min(1.0, len(ranges) * math.exp(-range_micro / MICRO * grouping.n_arrays / 4))
        largest = int(grouping.sensitivities(GRID * upper).max())
        predicted = _scale(largest, 4 * half_bin, grouping.n_arrays, micro - range_micro) + miss * upper
        narrowest = int((ranges[:, 1] - ranges[:, 0]).min())
        return _range_plan(upper, m, grouping, (range_micro, micro - range_micro), narrowest, predicted)

    def release(self, values: IntArray, plan: RangePlan | ArrayPlan, noise: Noise) -> Estimate:
        """Draw range and mean of ``values`` (N,), quanta sorted by (user, time); in quanta. Relation "values"."""
        if isinstance(plan, ArrayPlan):
            return ArrayAveraging(self.upper, self.capacity).release(values, plan, noise)
        averages = array_averages(values, plan.samples, plan.grouping, self.upper)
        low, high = select_range(averages, GRID * self.upper, plan.half_bin, plan.range_micro, noise)
        return mean_within(averages, low, high, self.upper, plan, noise)


def _usual_width(upper: int, samples: IntArray, grouping: Grouping) -> float:
    """Where four in five array averages of usual values lie: 2.56 standard deviations, in 1/GRID quantum, at most U."""
    users = np.bincount(grouping.array, weights=np.square(grouping.retained), minlength=grouping.n_arrays)
    variance = USER_SHARE**2 * users / np.square(grouping.fill) + SAMPLE_SHARE**2 / grouping.fill
    return min(2.56 * math.sqrt(float(variance.mean())), 1.0) * GRID * upper


def _quantile_plan(upper: int, samples: IntArray, micro: int, grouping: Grouping, rank: int) -> RangePlan:
    end_micro = micro // 4
    if end_micro < 1:
        raise ParameterError(f"{micro} µε cannot be split in four; give at least 4")
    mean_micro = micro - 2 * end_micro
    n, width = grouping.n_arrays, _usual_width(upper, samples, grouping)
    largest = int(grouping.sensitivities(GRID * upper).max())
    ends = rank / RANK_UNIT
    # An end lands outside the averages if U − width wins against exp(−ε·r/8) of the mass inside.
    outside = min(1.0, 2 * GRID * upper / max(width, 1) * math.exp(-end_micro / MICRO * ends / 2))
    narrow, wide = _scale(largest, width, n, mean_micro), _scale(largest, GRID * upper, n, mean_micro)
    predicted = (1 - outside) * narrow + outside * wide + min(ends / n, 0.5) * width / GRID
    return _range_plan(upper, samples, grouping, (2 * end_micro, mean_micro), 0, predicted, rank)


@dataclass(frozen=True)
class _Quantile:
    upper: int
    capacity: int | None = None

    def release(self, values: IntArray, plan: RangePlan, noise: Noise) -> Estimate:
        """Draw range and mean of ``values`` (N,), quanta sorted by (user, time); in quanta. Relation "values"."""
        averages = array_averages(values, plan.samples, plan.grouping, self.upper)
        ranks = np.array([plan.rank, RANK_UNIT * plan.grouping.n_arrays - plan.rank], dtype=np.int64)
        low, high = np.sort(select_quantiles(averages, GRID * self.upper, ranks, plan.range_micro // 2, noise)).tolist()
        return mean_within(averages, low, high, self.upper, plan, noise)


@dataclass(frozen=True)
class FixedQuantile(_Quantile):
    """ε/4 for each end of a range between the 10 % and 90 % array averages, ε/2 for the clipped mean (S6).

    ``upper``: quanta. Helps only where the range comes out narrower than U/2; m_UB (``capacity``) as in :class:`Levy`.
    ``percent``: of the lower end, 1 to 49 instead of 10, and its mirror above. The choice of an end costs the same at
    any rank.
    """

    percent: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.percent <= 49:
            raise ParameterError(f"percent {self.percent} is outside 1..49; give where the lower end of the range lies")

    def plan(self, samples: IntArray, epsilon_micro: int) -> RangePlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        grouping = _checked_grouping(self.upper, samples, self.capacity)
        rank = RANK_UNIT * grouping.n_arrays * self.percent // 100
        return _quantile_plan(self.upper, checked_samples(samples), checked_micro(epsilon_micro), grouping, rank)


class EpsilonQuantile(_Quantile):
    """As :class:`FixedQuantile` with ends at rank min(2/ε, K̄/2) and its mirror (S6). ``upper``: quanta."""

    def plan(self, samples: IntArray, epsilon_micro: int) -> RangePlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        grouping, micro = _checked_grouping(self.upper, samples, self.capacity), checked_micro(epsilon_micro)
        rank = min(2 * RANK_UNIT * MICRO // micro, RANK_UNIT * grouping.n_arrays // 2)
        return _quantile_plan(self.upper, checked_samples(samples), micro, grouping, rank)


@dataclass(frozen=True)
class Choice:
    """The mechanism that :class:`AutoMean` chose, and its plan. Public, as both come from counts."""

    mechanism: Baseline | ArrayAveraging | PooledMinimax | Levy | FixedQuantile | EpsilonQuantile
    plan: MeanPlan | RangePlan

    @property
    def charges(self) -> IntArray:
        """µε per user, shape (L,)."""
        return self.plan.charges

    @property
    def bias_bound(self) -> float:
        """Worst-case clipping bias, quanta."""
        return self.plan.bias_bound

    @property
    def predicted_error(self) -> float:
        """Quanta."""
        return self.plan.predicted_error


@dataclass(frozen=True)
class AutoMean:
    """The mechanism of least predicted error among S1, S3–S6, from public counts. ``upper``: U in quanta.

    The prediction adds the bias of dropped samples and unequal weights to the noise scale, for the values that
    :func:`dpcore.single_cell.mean.usual_bias` assumes; for S5 and S6 it adds what a wrongly drawn range would cost. The
    worst case would not do: for the worst values the mechanism that keeps all samples looks best nearly always. A wrong
    guess costs accuracy, never privacy. Ties go to the simpler mechanism. ``capacity`` and ``percent`` are those of the
    mechanisms that have them.
    """

    upper: int
    capacity: int | None = None
    percent: int = 10

    def plan(self, samples: IntArray, epsilon_micro: int) -> Choice:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        u, capacity = self.upper, self.capacity
        simple = (Baseline(u), PooledMinimax(u), ArrayAveraging(u, capacity))
        choices = [Choice(mechanism, mechanism.plan(samples, epsilon_micro)) for mechanism in simple]
        if epsilon_micro >= 4:
            narrowed = (Levy(u, capacity), FixedQuantile(u, capacity, self.percent), EpsilonQuantile(u, capacity))
            choices += [Choice(mechanism, mechanism.plan(samples, epsilon_micro)) for mechanism in narrowed]
        return min(choices, key=lambda choice: choice.predicted_error)

    def release(self, values: IntArray, plan: Choice, noise: Noise) -> Estimate:
        """Draw by the chosen mechanism, from ``values`` (N,), quanta sorted by (user, time). Relation "values"."""
        return plan.mechanism.release(values, plan.plan, noise)  # type: ignore[arg-type]


def _checked_grouping(upper: int, samples: IntArray, capacity: int | None) -> Grouping:
    m = checked_samples(samples)
    check_total(int(m.sum()), GRID * checked_upper(upper))
    return widest_grouping(m) if capacity is None else bestfit_within(m, capacity)
