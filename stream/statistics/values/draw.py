"""Relation "values": the draw of a planned window, and for evaluation the same statistics without noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpcore.cdf import CDFs, bin_edges, bin_tree, cell_histograms, release_cells
from dpcore.contributions import Contributions, Counts
from dpcore.moments import cell_variances
from dpcore.noise import Noise, interval_half_width
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.statistics.plan import DECIMALS, PERCENTS, VARIANCE_GRID, Columns, Plan, check_rows
from stream.statistics.values.cell_means import draw_cell_means
from stream.statistics.values.plan import by_group

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def draw_values(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Draw all noise of the window in one batch; every statistic over all cells, also those not published.

    Raises :class:`PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    kept = contributions.retain(np.frombuffer(plan.retained, "<i8"))
    n_cells = kept.counts.n_cells
    numerators = by_group(np.frombuffer(plan.numerators, "<i8"), plan.statistics, n_cells)
    denominators = by_group(np.maximum(np.frombuffer(plan.denominators, "<i8"), 1), plan.statistics, n_cells)
    columns = {}
    moments = [group for group in numerators if group != "distribution"]
    if moments:
        t = np.array([numerators[group][:, 0] for group in moments])
        s = np.array([denominators[group][:, 0] for group in moments])
        columns = _draw_moments(plan, kept, moments, t, s, noise)
    if "distribution" in numerators:
        columns |= _draw_percentiles(plan, kept, noise)
    return {name: columns[name] for name in plan.statistics}


def _draw_moments(
    plan: Plan, kept: Contributions, names: list[str], t: IntArray, s: IntArray, noise: Noise
) -> dict[str, Columns]:
    exact = exact_moments(names, kept, plan.sum_cap or None)
    noisy = exact.copy()
    hidden = t > 0
    noisy[hidden] += noise.discrete_laplace(t[hidden], s[hidden])
    widths = np.zeros(exact.shape)
    widths[hidden] = interval_half_width(t[hidden], s[hidden])
    columns = {}
    for index, name in enumerate(names):
        if name == "mean" and plan.mean_epsilon_micro:
            columns[name] = _cell_means(plan, kept, noise)
            continue
        unit, top = released_unit(name, plan, kept.counts)
        raw = np.round(noisy[index] * unit, DECIMALS[name])
        # Rounding moved the released value by up to half its granularity; the interval covers that too.
        half = np.where(widths[index] > 0, widths[index] * unit + 0.5 * 10.0 ** -DECIMALS[name], 0.0)
        scale = t[index] / s[index] * unit
        columns[name] = Columns(raw, np.clip(raw, 0.0, top), scale, raw - half, raw + half, top)
    return columns


def draw_distributions(plan: Plan, kept: Contributions, noise: Noise) -> tuple[IntArray, CDFs | None]:
    """(Cells with noise, as indices; their noisy distributions, None where there are no such cells or statistics)."""
    n_cells = kept.counts.n_cells
    t = by_group(np.frombuffer(plan.numerators, "<i8"), plan.statistics, n_cells).get("distribution")
    if t is None:
        return np.zeros(0, dtype=np.int64), None
    s = by_group(np.maximum(np.frombuffer(plan.denominators, "<i8"), 1), plan.statistics, n_cells)["distribution"]
    cells = np.flatnonzero(t.min(axis=1, initial=2**40) > 0)
    if not len(cells):
        return cells, None
    edges, histograms = bin_edges(plan.upper_quanta, plan.cdf_bins), cell_histograms(kept, plan.cdf_bins)[cells]
    return cells, release_cells(
        bin_tree(plan.upper_quanta, plan.cdf_bins), edges, histograms, (t[cells], s[cells]), noise
    )


def _draw_percentiles(plan: Plan, kept: Contributions, noise: Noise) -> dict[str, Columns]:
    """p15, p50, p85 of one noisy distribution per cell; intervals at least 95 %."""
    cells, drawn = draw_distributions(plan, kept, noise)
    upper, columns = plan.upper_quanta * SPEED_QUANTUM_KMH, {}
    for name in plan.statistics:
        if name not in PERCENTS:
            continue
        table = np.zeros((3, kept.counts.n_cells))
        if drawn is not None:
            table[:, cells] = np.array(drawn.percentile(PERCENTS[name])) * SPEED_QUANTUM_KMH
        value, low, high = table
        columns[name] = Columns.rounded(name, value, (high - low) / 2 / math.log(20.0), (low, high), upper)
    return columns


def _cell_means(plan: Plan, kept: Contributions, noise: Noise) -> Columns:
    drawn = draw_cell_means(plan.mean_mechanism, kept, plan.mean_epsilon_micro, noise) * SPEED_QUANTUM_KMH
    value, scale, low, high = drawn
    return Columns.rounded("mean", value, scale, (low, high), plan.upper_quanta * SPEED_QUANTUM_KMH)


def exact_moments(names: Sequence[str], kept: Contributions, cap: int | None = None) -> IntArray:
    """The integers of mean and variance that noise is added to, shape (S, C): never to be shown.

    ``cap``: most that one user adds to Σx of a cell, in quanta.
    """
    sums = {"mean": kept.cell_sums(cap), "variance": cell_variances(kept, VARIANCE_GRID)}
    return np.array([sums[name] for name in names], dtype=np.int64).reshape(len(names), kept.counts.n_cells)


def released_unit(name: str, plan: Plan, kept: Counts) -> tuple[FloatArray, float]:
    """Released units per integer of mean or variance, shape (C,), and the public upper end of its range."""
    upper = plan.upper_quanta * SPEED_QUANTUM_KMH
    if name == "mean":
        return SPEED_QUANTUM_KMH / np.maximum(kept.by_cell(kept.samples), 1), upper
    return np.full(kept.n_cells, VARIANCE_GRID * SPEED_QUANTUM_KMH**2), upper**2 / 4


def exact_values(plan: Plan, kept: Contributions, cap: int | None = None) -> dict[str, FloatArray]:
    """Every statistic without noise, per cell, in released units: for evaluation inside the boundary only."""
    found = {}
    for name in plan.statistics:
        if name in PERCENTS:
            found[name] = _exact_percentile(kept, PERCENTS[name]) * SPEED_QUANTUM_KMH
        else:
            found[name] = exact_moments([name], kept, cap)[0] * released_unit(name, plan, kept.counts)[0]
    return found


def _exact_percentile(kept: Contributions, percent: float) -> FloatArray:
    """The ⌈p·n⌉-th value of each cell, in quanta; 0 where there is none."""
    start = kept.pair_start[kept.counts.cell_start]
    n = np.diff(start)
    cell = np.repeat(np.arange(len(n)), n)
    ordered = kept.values[np.lexsort((kept.values, cell))]
    rank = np.maximum(np.ceil(percent / 100 * n).astype(np.int64), 1) - 1
    found = np.zeros(len(n))
    found[n > 0] = ordered[(start[:-1] + rank)[n > 0]]
    return found
