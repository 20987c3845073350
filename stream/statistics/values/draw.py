"""Relation "values": the draw of a planned window, and for evaluation the same statistics without noise."""

import math
from collections.abc import Sequence

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.cdf import ONE_SIDED, CDFs
from dpcore.contributions import MAX_TOTAL, Contributions
from dpcore.distribution import Distribution
from dpcore.gaussian import GaussianScales
from dpcore.mean import Mean
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.residual import ResidualMean
from dpcore.scales import LaplaceScales
from dpcore.variance import Variance
from stream.statistics.columns import (
    CDF,
    DECIMALS,
    MOVING,
    MOVING_MEAN,
    PERCENTS,
    VARIANCE_GRID,
    Columns,
    bins_of,
    share_columns,
    too_large,
)
from stream.statistics.plan import Plan, check_rows
from stream.statistics.residual_clipping import response_of
from stream.statistics.values.cell_statistics import (
    cell_mechanism,
    draw_cell_means,
    planned_statistics,
    scales_by_statistic,
)
from stream.terms import MOVING_KM_H, MOVING_QUANTA, QUANTUM


def draw_values(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Draw all noise of the window, for every statistic and all cells, including those that are not published.

    The noise of means and variance is one batch, that of the distributions another; means of a single-cell mechanism
    are drawn cell by cell. Raises :class:`PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    kept = contributions.retain(plan.retained)
    statistics = planned_statistics(plan)
    columns: dict[str, Columns] = {}
    scales = scales_by_statistic(plan.scales, statistics, kept.counts.n_cells)
    numbers = {name: number for name, number in statistics.items() if not isinstance(number, Distribution)}
    if numbers:
        law = GaussianScales if plan.gaussian else LaplaceScales
        names = [name for name, number in numbers.items() for _ in range(2 if isinstance(number, MovingMean) else 1)]
        drawn = law(
            np.array([scales[name].numerator for name in names]), np.array([scales[name].denominator for name in names])
        ).draw(noise)
        for name, number in numbers.items():
            first = names.index(name)
            if isinstance(number, MovingMean):
                columns |= _moving(plan, number, kept, drawn[first : first + 2])
            elif name == "mean" and plan.values is not None and plan.values.mean_epsilon_micro:
                columns[name] = _cell_means(plan, kept, noise)
            else:
                scaled = law(scales[name].numerator, scales[name].denominator)
                columns[name] = _numbers(name, number, plan, kept, scaled, drawn[first])
    if "distribution" in statistics:
        columns |= _distribution(plan, kept, noise)
    return {name: columns[name] for name in dict.fromkeys([*plan.terms.speed.statistics, *columns]) if name in columns}


def _numbers(
    name: str,
    number: Mean | ResidualMean | Variance,
    plan: Plan,
    kept: Contributions,
    scales: LaplaceScales | GaussianScales,
    added: IntArray,
) -> Columns:
    """Means or variances in released units, from the noise ``added`` (C,) to their integers, with 95 % intervals."""
    unit, top = number.unit(kept.counts, QUANTUM), _top(name, plan)
    value, scale, reach = number.draw(kept, added) * unit, scales.values * unit, scales.half_widths() * unit
    if (response := response_of(plan)) is not None and name == "mean":
        value, left = response.undone(value), response.open
        scale = np.hypot(scale / response.gain, left if plan.gaussian else left / math.sqrt(2.0))
        reach = np.hypot(reach / response.gain, _NORMAL * left)
    raw = np.round(value, DECIMALS[name])
    # Rounding moved the released value by up to half its granularity; the interval covers that too.
    half = np.where(reach > 0, reach + 0.5 * 10.0 ** -DECIMALS[name], 0.0)
    return Columns(raw, np.clip(raw, 0.0, top), scale, raw - half, raw + half, top)


def _moving(plan: Plan, number: MovingMean, kept: Contributions, added: IntArray) -> dict[str, Columns]:
    """Mean and number of moving reports, from the noise ``added`` (2, C) to their integers, with 95 % intervals."""
    scales = scales_by_statistic(plan.scales, planned_statistics(plan), kept.counts.n_cells)[MOVING_MEAN]
    per_scale, quantile = (1.0, _NORMAL) if plan.gaussian else (math.sqrt(2.0), ONE_SIDED)
    noisy, top = number.draw(kept, added), plan.terms.speed.upper
    ratio, span = number.mean(noisy, per_scale * scales.values, quantile), top - MOVING_KM_H
    value, low, high = (MOVING_KM_H + part * span for part in (ratio.value, ratio.low, ratio.high))
    scale, ends = ratio.deviation * span / per_scale, (MOVING_KM_H, top)
    raw, step = np.round(number.number(noisy), DECIMALS[MOVING]), 0.5 * 10.0 ** -DECIMALS[MOVING]
    half = quantile * per_scale * scales.values / number.span + step
    return {
        MOVING_MEAN: Columns.rounded(MOVING_MEAN, value, scale, (low, high), top, ends),
        MOVING: Columns(
            raw, np.maximum(raw, 0.0), scales.values / number.span, raw - half, raw + half, float(MAX_TOTAL)
        ),
    }


_NORMAL = 1.96


def _top(name: str, plan: Plan) -> float:
    """Upper bound of the public range of mean or variance, in released units."""
    upper = plan.terms.speed.upper
    return upper if name == "mean" else upper**2 / 4


def draw_distributions(plan: Plan, kept: Contributions, noise: Noise) -> tuple[IntArray, CDFs | None]:
    """(Cells with noise, as indices; their noisy distributions, None where there are no such cells or statistics)."""
    statistics = planned_statistics(plan)
    distribution = statistics.get("distribution")
    if not isinstance(distribution, Distribution):
        return np.zeros(0, dtype=np.int64), None
    scales = scales_by_statistic(plan.scales, statistics, kept.counts.n_cells)["distribution"]
    return distribution.draw(kept, scales, noise)


def _distribution(plan: Plan, kept: Contributions, noise: Noise) -> dict[str, Columns]:
    """One noisy distribution per cell, and p15, p50, p85 of it; intervals and bands at least 95 %."""
    cells, drawn = draw_distributions(plan, kept, noise)
    upper, n_cells = plan.terms.speed.upper, kept.counts.n_cells
    columns = {}
    if not too_large(plan):
        bins = bins_of(plan.terms.speed.upper_quanta, plan.terms.speed.cdf_bins)
        columns[CDF] = share_columns(drawn, cells, n_cells, bins, math.sqrt(2.0))
    for name in plan.terms.speed.statistics:
        if name not in PERCENTS:
            continue
        table = np.zeros((3, n_cells))
        if drawn is not None:
            table[:, cells] = np.array(drawn.percentile(PERCENTS[name])) * QUANTUM
        value, low, high = table
        columns[name] = Columns.rounded(name, value, (high - low) / 2 / math.log(20.0), (low, high), upper)
    return columns


def _cell_means(plan: Plan, kept: Contributions, noise: Noise) -> Columns:
    assert plan.values is not None, "means of single cells are planned under this relation alone"
    mechanism, micro = cell_mechanism(plan.terms.speed), plan.values.mean_epsilon_micro
    drawn = draw_cell_means(mechanism, kept, micro, noise) * QUANTUM
    value, scale, low, high = drawn
    return Columns.rounded("mean", value, scale, (low, high), plan.terms.speed.upper)


def exact_values(
    plan: Plan, kept: Contributions, caps: IntArray | None = None, statistics: Sequence[str] | None = None
) -> dict[str, FloatArray]:
    """Every number without noise, per cell, in released units: for evaluation inside the boundary only.

    ``caps``: the most that one user adds to Σx of each cell, in quanta, (C,); None for no caps. ``statistics``: None
    for those of the plan.
    """
    numbers: dict[str, Mean | Variance] = {
        "mean": Mean(plan.terms.speed.upper_quanta, caps),
        "variance": Variance(plan.terms.speed.upper_quanta, VARIANCE_GRID),
    }
    exact = {}
    for name in plan.terms.speed.statistics if statistics is None else statistics:
        if name == CDF:
            continue
        if name in PERCENTS:
            exact[name] = _exact_percentile(kept, PERCENTS[name]) * QUANTUM
        elif name == MOVING_MEAN:
            exact[name] = _exact_moving(kept)
        else:
            exact[name] = numbers[name].integers(kept) * numbers[name].unit(kept.counts, QUANTUM)
    return exact


def _exact_moving(kept: Contributions) -> FloatArray:
    """The mean of moving reports of each cell, in km/h; not a number where none moves."""
    total = kept.cell_totals(lambda x: np.where(x >= MOVING_QUANTA, x, 0)).astype(np.float64)
    number = kept.cell_totals(lambda x: (x >= MOVING_QUANTA).astype(np.int64))
    mean = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
    return np.asarray(mean * QUANTUM)


def _exact_percentile(kept: Contributions, percent: float) -> FloatArray:
    """The ⌈p·n⌉-th value of each cell, in quanta; 0 if the cell has no values."""
    start = kept.pair_start[kept.counts.cell_start]
    n = np.diff(start)
    cell = np.repeat(np.arange(len(n)), n)
    ordered = kept.quanta[np.lexsort((kept.quanta, cell))]
    rank = np.maximum(np.ceil(percent / 100 * n).astype(np.int64), 1) - 1
    exact = np.zeros(len(n))
    exact[n > 0] = ordered[(start[:-1] + rank)[n > 0]]
    return exact
