"""The statistics of every cell under relation "values", and their noise scales.

Single-cell mean mechanisms over every cell of a window: one epsilon per cell, exact charges.

A user in few cells, or with few samples in them, is charged only their exact loss there. The allocated mean
(:mod:`stream.statistics.values.plan`) shares epsilon over cells by need, and is nearly always more accurate over a
whole city.

The most that clipping can bias a release under "values". With the mean size of the noise it is the worst-case error
E.

A function of public counts and of the plan, so stating it costs nothing; the largest E of all cells is what [C] tells a
client. Of the mean: U·(1 − n/N) for N − n samples that are not retained, and Σ_ℓ max(0, U·Γ_ℓ − T)/n for a cap T of
users' sums; U where residual clipping narrows the range, because all vehicles may be outside it. Of the variance: the
two cases of :func:`dpcore.variance.clipping_bias`. Means of a single-cell mechanism: the bound of its own. Source: the
talk on [M] and [C], E_g = Σ (max bias) + E|Z|.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Contributions, Counts
from dpcore.distribution import Distribution
from dpcore.mean import Mean
from dpcore.mean import clipping_bias as mean_bias
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.residual import ResidualMean
from dpcore.scales import LaplaceScales
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import AutoMean, EpsilonQuantile, FixedQuantile, Levy
from dpcore.variance import Variance
from dpcore.variance import clipping_bias as variance_bias
from stream.statistics.columns import MOVING_MEAN, VARIANCE_GRID, needs_distribution
from stream.statistics.plan import Plan
from stream.statistics.residual_clipping import Ranges, response_of
from stream.terms import MOVING_QUANTA, QUANTUM, SpeedTerms

CellStatistic = Mean | ResidualMean | MovingMean | Variance | Distribution
CellStatistics = Mapping[str, CellStatistic]
"""Statistics by name, in the order of the plan's scales: mean, moving mean, variance, one distribution for itself and
all percentiles."""


def cell_statistics(
    names: Sequence[str], speed: SpeedTerms, caps: IntArray | None, ranges: Ranges | None = None
) -> CellStatistics:
    """The statistics behind the released ``names``. ``caps``: the most that one user adds to Σx of each cell, (C,);
    ``ranges``: to which users' means are clipped instead."""
    statistics: dict[str, CellStatistic] = {}
    if "mean" in names and ranges is not None:
        statistics["mean"] = ResidualMean(ranges.lower, ranges.upper, speed.upper_quanta, ranges.gain)
    elif "mean" in names:
        statistics["mean"] = Mean(speed.upper_quanta, caps)
    if MOVING_MEAN in names:
        statistics[MOVING_MEAN] = MovingMean(speed.upper_quanta, MOVING_QUANTA)
    if "variance" in names:
        statistics["variance"] = Variance(speed.upper_quanta, VARIANCE_GRID)
    if needs_distribution(names):
        statistics["distribution"] = Distribution(speed.upper_quanta, speed.cdf_bins)
    return statistics


def planned_statistics(plan: Plan) -> CellStatistics:
    """The statistics of a plan."""
    speed, statistics = plan.terms.speed, cell_statistics(plan.terms.speed.statistics, plan.terms.speed, plan.caps)
    if (response := response_of(plan)) is None or plan.ranges is None:
        return statistics
    lower, upper = plan.ranges
    return {**statistics, "mean": ResidualMean(lower, upper, speed.upper_quanta, response.gain)}


def scales_by_statistic(flat: LaplaceScales, statistics: CellStatistics, n_cells: int) -> dict[str, LaplaceScales]:
    """The plan's ``flat`` scales: (C,) for mean and variance, (C, h) for the h levels of the distribution."""
    scales, start = {}, 0
    for name, statistic in statistics.items():
        shape = (n_cells, statistic.tree.height) if isinstance(statistic, Distribution) else (n_cells,)
        end = start + n_cells * (shape[1] if len(shape) > 1 else 1)
        scales[name] = LaplaceScales(
            flat.numerator[start:end].reshape(shape), flat.denominator[start:end].reshape(shape)
        )
        start = end
    return scales


MECHANISMS: dict[str, Any] = {
    "baseline": Baseline,
    "array-averaging": ArrayAveraging,
    "pooled-minimax": PooledMinimax,
    "levy": Levy,
    "fixed-quantile": FixedQuantile,
    "epsilon-quantile": EpsilonQuantile,
    "auto": AutoMean,
}
"""Mechanisms by configured name: S1 and S3–S6 of the source, and "auto", which chooses by predicted error."""


def cell_mechanism(speed: SpeedTerms) -> Any:
    """The mechanism chosen for the mean of a cell."""
    return MECHANISMS[speed.mean_mechanism](speed.upper_quanta)


def cell_epsilon(counts: Counts, samples: IntArray, allowance: int) -> int:
    """µε of one cell: ``allowance`` divided by the largest number of cells of any user, rounded down."""
    return allowance // max(int(counts.by_user((samples > 0).astype(np.int64)).max(initial=1)), 1)


def plan_cell_means(
    mechanism: Any, counts: Counts, samples: IntArray, epsilon_micro: int
) -> tuple[IntArray, FloatArray]:
    """Charges (L,) in µε, and each cell's predicted worst-case error (C,) in quanta, infinite without a mean: of every
    cell with ``samples`` (P,) retained by a :func:`cell_mechanism` at ``epsilon_micro`` per cell."""
    charges = np.zeros(counts.n_users, dtype=np.int64)
    error = np.full(counts.n_cells, np.inf)
    for g in range(counts.n_cells):
        pairs = _pairs_of(counts, samples, g)
        if len(pairs):
            plan = mechanism.plan(samples[pairs], epsilon_micro)
            charges[counts.pair_user[pairs]] += plan.charges
            error[g] = plan.predicted_error
    return charges, error


def draw_cell_means(mechanism: Any, kept: Contributions, epsilon_micro: int, noise: Noise) -> FloatArray:
    """(raw, scale, low, high) of every cell, shape (4, C), in quanta; the plans are recomputed from the same counts."""
    counts, values = kept.counts, kept.values
    out = np.zeros((4, counts.n_cells))
    for g in range(counts.n_cells):
        pairs = _pairs_of(counts, counts.samples, g)
        if len(pairs):
            first, last = kept.pair_start[counts.cell_start[g]], kept.pair_start[counts.cell_start[g + 1]]
            plan = mechanism.plan(counts.samples[pairs], epsilon_micro)
            estimate = mechanism.release(values[first:last], plan, noise)
            out[:, g] = estimate.raw, estimate.scale, estimate.low, estimate.high
    return out


def _pairs_of(counts: Counts, samples: IntArray, g: int) -> IntArray:
    pairs = np.arange(counts.cell_start[g], counts.cell_start[g + 1])
    return pairs[samples[pairs] > 0]


def worst_biases(plan: Plan, counts: Counts) -> dict[str, FloatArray]:
    """Bounds for the mean in km/h and the variance in (km/h)², by cell (C,), as far as released. Relation "values"."""
    total, kept = counts.by_cell(counts.samples), counts.by_cell(plan.retained)
    speed, biases = plan.terms.speed, {}
    upper, micro = speed.upper, 0 if plan.values is None else plan.values.mean_epsilon_micro
    if "mean" in speed.statistics:
        inside = _of_mechanism(plan, counts, micro) if micro else _of_caps(plan, counts)
        biases["mean"] = np.minimum(upper * mean_bias(total, kept) + inside * QUANTUM, upper)
    if "variance" in speed.statistics:
        biases["variance"] = upper**2 * variance_bias(total, kept)
    return biases


def highest_means(plan: Plan, counts: Counts) -> FloatArray:
    """The mean of each cell in which all are as fast as counts, km/h, (C,): U, less where caps take from it. Public."""
    highest = np.full(counts.n_cells, plan.terms.speed.upper)
    return highest if plan.ranges is not None else highest - _of_caps(plan, counts) * QUANTUM


def _of_caps(plan: Plan, counts: Counts) -> FloatArray:
    """The most that caps or ranges take from the mean of retained samples, in quanta, (C,)."""
    if plan.ranges is not None:
        upper = plan.terms.speed.upper_quanta
        return np.where(plan.ranges[1] - plan.ranges[0] < upper, float(upper), 0.0)
    if plan.caps is None:
        return np.zeros(counts.n_cells)
    above = np.maximum(plan.retained * plan.terms.speed.upper_quanta - plan.caps[counts.pair_cell], 0)
    taken = np.bincount(counts.pair_cell, weights=above, minlength=counts.n_cells)
    return np.asarray(taken / np.maximum(counts.by_cell(plan.retained), 1))


def _of_mechanism(plan: Plan, counts: Counts, epsilon_micro: int) -> FloatArray:
    """The bias bound that a single-cell mechanism states for its retained samples, in quanta, (C,)."""
    mechanism, bounds = cell_mechanism(plan.terms.speed), np.zeros(counts.n_cells)
    for g in range(counts.n_cells):
        samples = plan.retained[counts.cell_start[g] : counts.cell_start[g + 1]]
        if samples.any():
            bounds[g] = mechanism.plan(samples[samples > 0], epsilon_micro).bias_bound
    return bounds
