"""The statistics of every cell under relation "values", and their noise scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpcore.arrays import IntArray
from dpcore.distribution import Distribution
from dpcore.mean import Mean
from dpcore.moving_mean import MovingMean
from dpcore.residual import ResidualMean
from dpcore.scales import LaplaceScales
from dpcore.variance import Variance
from stream.statistics.columns import MOVING_MEAN, VARIANCE_GRID, needs_distribution
from stream.statistics.plan import Plan
from stream.statistics.residual_clipping import Ranges, response_of
from stream.terms import MOVING_QUANTA, SpeedTerms

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
