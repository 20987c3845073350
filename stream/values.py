"""Relation "values": plan and draw where counts are public and only measured values are protected.

Everything in the plan is a function of public counts, the configuration and the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import h3
import numpy as np
import numpy.typing as npt

from dpcore.allocation import Allocation, Sensitivities, allocate, histogram_rows, stack, uniform_allocation
from dpcore.cdf import CDFs, bin_edges, cell_histograms, release_cells
from dpcore.clipping import choose_clipping
from dpcore.contributions import Contributions, Counts
from dpcore.errors import BudgetError
from dpcore.level_tree import LevelTree, choose_tree
from dpcore.moments import cell_variances, mean_clipping_bias, mean_rows, sum_cap, variance_clipping_bias, variance_rows
from dpcore.noise import Noise, interval_half_width
from dpcore.resolution import regroup
from dpcore.shrinkage import local_kilometres, shrink
from dpcore.suppression import STATISTICS, sweep_chop_user
from stream.cell_means import cell_epsilon, draw_cell_means, plan_cell_means
from stream.config import Config
from stream.merging import merge_hexagons
from stream.plan import DECIMALS, VARIANCE_GRID, Columns, Derived, Plan, check_rows, counts_digest
from stream.releases import cell_text
from stream.sections.speed import SPEED_QUANTUM_KMH, Statistic
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

PERCENTS = {"p15": 15.0, "p50": 50.0, "p85": 85.0}
"""The traffic engineer's percentiles."""

_MANY_PAIRS = 200_000
_FEW_LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Cells per user that the suppression sweep tries in a very large window."""


def plan_values(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    asked: IntArray | int = 0,
) -> Plan:
    """Decide who takes part, what is retained, the noise scales and every user's charge.

    ``left``: (L,) µε each user of ``counts`` has left in ``period``. A user takes part if a whole window's grant is
    left, so that one nearly exhausted user cannot inflate the noise of everybody in his cells. ``asked``: (L,) µε of
    his part in the histograms. Where there are histograms he is charged the whole allowance for speed: his exact loss
    depends on others' counts, and through later admissions that would show in histograms who else was there.
    """
    speed = config.speed
    admits = left >= config.window_grant
    merged = merge_hexagons(
        replace(counts, samples=np.where(admits[counts.pair_user], counts.samples, 0)),
        config.hexagons,
        lambda pooled: _mean_half_width(pooled, config),
    )
    if merged is not None:
        counts = regroup(counts, merged)
    admitted = np.where(admits[counts.pair_user], counts.samples, 0)
    cap = _cap(counts, admitted, config)
    decision = _least_error(counts, admitted, config, cap)
    charges = decision.charges
    if config.histogram is not None:
        charges = np.where(admits, config.privacy.epsilon_micro + asked, 0)
    return Plan(
        window=window,
        period=period,
        generation=generation,
        epsilon=config.privacy.epsilon,
        budget=config.privacy.budget,
        budget_micro=config.privacy.budget_micro,
        statistics=speed.statistics,
        cdf_bins=speed.cdf_bins,
        upper_quanta=speed.upper_quanta,
        resolution=config.hexagons.resolution,
        relation="values",
        mean_mechanism=speed.mean_mechanism,
        mean_epsilon_micro=decision.mean_epsilon_micro,
        counts_digest=counts_digest(counts),
        cells=counts.cells.astype("<u8").tobytes(),
        users=counts.users.astype("<u8").tobytes(),
        charges=charges.astype("<i8").tobytes(),
        retained=decision.retained.astype("<i8").tobytes(),
        published=(counts.by_cell(decision.retained) > 0).astype(np.uint8).tobytes(),
        numerators=decision.numerators.astype("<i8").tobytes(),
        denominators=decision.denominators.astype("<i8").tobytes(),
        sum_cap=cap or 0,
        merged=b"" if merged is None else merged.astype("<u8").tobytes(),
    )


def _cap(counts: Counts, samples: IntArray, config: Config) -> int | None:
    """Most that one user adds to a cell's Σx, in quanta; None for no cap."""
    speed = config.speed
    if speed.sum_cap == 0 or speed.mean_mechanism != "allocated":
        return None
    return sum_cap(_active_part(counts, samples), speed.upper_quanta, speed.sum_cap)


def _mean_half_width(counts: Counts, config: Config) -> FloatArray:
    """Predicted half width of each cell's 95 % interval of the mean in km/h, nothing clipped; infinite without samples."""
    statistics = config.speed.statistics
    allowances = np.full(counts.n_users, config.privacy.epsilon_micro, dtype=np.int64)
    allocation = _allocation(
        counts, counts.samples, allowances, statistics, config, _cap(counts, counts.samples, config)
    )
    t = _by_group(allocation.numerator, statistics, counts.n_cells)["mean"][:, 0]
    s = _by_group(allocation.denominator, statistics, counts.n_cells)["mean"][:, 0]
    width = np.full(counts.n_cells, np.inf)
    kept = counts.by_cell(counts.samples)
    width[t > 0] = interval_half_width(t[t > 0], s[t > 0]) * SPEED_QUANTUM_KMH / kept[t > 0]
    return width


def _enough_users(counts: Counts, samples: IntArray, min_users: int) -> IntArray:
    """``samples`` with every pair of a cell below ``min_users`` contributors set to 0: a public rule on counts."""
    contributors = counts.by_cell((samples > 0).astype(np.int64))
    return np.where(contributors[counts.pair_cell] >= min_users, samples, 0)


@dataclass(frozen=True)
class _Decision:
    """One candidate plan: retained samples (P,), scales (S·C,), charges (L,), and its predicted error in full ranges."""

    retained: IntArray
    numerators: IntArray
    denominators: IntArray
    charges: IntArray
    mean_epsilon_micro: int
    error: float


def _least_error(counts: Counts, admitted: IntArray, config: Config, cap: int | None) -> _Decision:
    """The candidate of the least predicted error among those configured; public counts only."""
    speed = config.speed
    plain = _enough_users(counts, admitted, speed.min_users)
    active = plain > 0
    part = _active_part(counts, plain)
    candidates = [plain]
    if active.any():
        proposals = []
        if speed.suppression == "chop-user":
            proposals.append(_suppressed(part, config))
        shares = speed.allocation == "exact-loss" and speed.mean_mechanism == "allocated"
        if speed.clipping == "joint" and shares and len(part.samples) <= _MANY_PAIRS:
            proposals.append(_clipped(part, config, cap))
        for samples in proposals:
            retained = np.zeros_like(plain)
            retained[active] = samples
            candidates.append(retained)
    return min(
        (_decide(counts, admitted, retained, config, cap) for retained in candidates), key=lambda found: found.error
    )


def _decide(counts: Counts, admitted: IntArray, retained: IntArray, config: Config, cap: int | None) -> _Decision:
    speed, grant = config.speed, config.privacy.epsilon_micro
    allowances = np.full(counts.n_users, grant, dtype=np.int64)
    if speed.mean_mechanism == "allocated" or "mean" not in speed.statistics:
        allocation = _allocation(counts, retained, allowances, speed.statistics, config, cap)
        t, s = allocation.numerator, allocation.denominator
        error = _predicted_error(counts, admitted, retained, t, s, speed.statistics, config)
        return _Decision(retained, t, s, allocation.charges, 0, error)
    epsilon = cell_epsilon(counts, retained, grant // len(speed.statistics))
    means = plan_cell_means(speed.mean_mechanism, counts, retained, speed.upper_quanta, epsilon)
    total, kept = counts.by_cell(admitted), counts.by_cell(retained)
    off = np.minimum(means.predicted_error / speed.upper_quanta + mean_clipping_bias(total, kept, 1.0), 1.0)
    error = float((total * off).sum())
    others = tuple(name for name in speed.statistics if name != "mean")
    charges = means.charges
    unused = np.zeros(counts.n_cells, np.int64)
    t, s = unused, unused + 1
    if others:
        allocation = _allocation(counts, retained, allowances - charges, others, config, cap)
        error += _predicted_error(
            counts, admitted, retained, allocation.numerator, allocation.denominator, others, config
        )
        charges = charges + allocation.charges
        t, s = np.append(unused, allocation.numerator), np.append(unused + 1, allocation.denominator)
    if np.any(charges > allowances):
        raise BudgetError("the charges of the single-cell means exceed a window's grant; nothing may be released")
    return _Decision(retained, t, s, charges, epsilon, error)


def _active_part(counts: Counts, samples: IntArray) -> Counts:
    """The pairs with samples, and the cells and users they name."""
    active = samples > 0
    cells, pair_cell = np.unique(counts.pair_cell[active], return_inverse=True)
    users, pair_user = np.unique(counts.pair_user[active], return_inverse=True)
    return Counts(counts.cells[cells], counts.users[users], pair_cell, pair_user, samples[active])


def _suppressed(part: Counts, config: Config) -> IntArray:
    return sweep_chop_user(
        part,
        config.privacy.epsilon_micro,
        statistics=[name for name in STATISTICS if name in config.speed.statistics] or ["mean"],
        min_users=config.speed.min_users,
        limits=_FEW_LIMITS if len(part.samples) > _MANY_PAIRS else None,
    ).samples


def _clipped(part: Counts, config: Config, cap: int | None) -> IntArray:
    allowances = np.full(part.n_users, config.privacy.epsilon_micro, dtype=np.int64)
    return choose_clipping(
        part,
        allowances,
        lambda samples: _program(part, samples, config.speed.statistics, config, cap),
        min_users=config.speed.min_users,
    ).samples


def _program(
    counts: Counts, retained: IntArray, statistics: tuple[Statistic, ...], config: Config, cap: int | None
) -> Sensitivities:
    """Sensitivities of every statistic of every cell, statistic-major."""
    upper, cdf_bins = config.speed.upper_quanta, config.speed.cdf_bins
    rows = {
        "mean": lambda: mean_rows(counts, retained, upper, cap),
        "variance": lambda: variance_rows(counts, retained, upper, VARIANCE_GRID),
        "distribution": lambda: _distribution_rows(counts, retained, _tree(upper, cdf_bins)),
    }
    return stack([rows[group]() for group in groups(statistics)])


def groups(statistics: Sequence[str]) -> list[str]:
    """What noise is added to, in the order of the plan's scales: mean, variance, one distribution for all percentiles."""
    found = [name for name in ("mean", "variance") if name in statistics]
    return [*found, "distribution"] if any(name in PERCENTS for name in statistics) else found


def _tree(upper: int, bins: int) -> LevelTree:
    return choose_tree(len(bin_edges(upper, bins)) - 1)


def _distribution_rows(counts: Counts, retained: IntArray, tree: LevelTree) -> Sensitivities:
    """Rows of every level of every cell; weights w_i ∝ (n_i − 1)^(2/3) make the optimal shares ε_i ∝ (n_i − 1)^(1/3)."""
    rows = histogram_rows(counts, retained, tree.height)
    weight = np.array([max(n - 1, 1) ** (2 / 3) for n in tree.factors])
    return replace(rows, weight=rows.weight * np.tile(weight / weight.mean(), counts.n_cells))


def _allocation(
    counts: Counts,
    retained: IntArray,
    allowances: IntArray,
    statistics: tuple[Statistic, ...],
    config: Config,
    cap: int | None,
) -> Allocation:
    solve = allocate if config.speed.allocation == "exact-loss" else uniform_allocation
    return solve(_program(counts, retained, statistics, config, cap), allowances)


def _predicted_error(
    counts: Counts,
    admitted: IntArray,
    retained: IntArray,
    numerator: IntArray,
    denominator: IntArray,
    statistics: tuple[Statistic, ...],
    config: Config,
) -> float:
    """Σ over cells and statistics of events × (noise scale + clipping bias) in full ranges, at most 1 each."""
    total, kept = counts.by_cell(admitted), counts.by_cell(retained)
    upper = config.speed.upper_quanta
    bias = {
        "mean": mean_clipping_bias(total, kept, 1.0),
        "variance": 4 * variance_clipping_bias(total, kept, 1.0),
        "distribution": mean_clipping_bias(total, kept, 1.0),
    }
    span = {
        "mean": np.maximum(kept * upper, 1),
        "variance": np.full(counts.n_cells, upper * upper / 4 / VARIANCE_GRID),
        "distribution": np.maximum(kept, 1),
    }
    error, scales = 0.0, _by_group(numerator / np.maximum(denominator, 1), statistics, counts.n_cells)
    for group, scale in scales.items():
        off = scale.sum(axis=1) / span[group] + bias[group]
        error += float((total * np.where(kept > 0, np.minimum(off, 1.0), 1.0)).sum())
    return error


def duality_gap(plan: Plan, counts: Counts, config: Config) -> float | None:
    """Relative distance of the planned scales' objective to its proved lower bound; None without an allocation program."""
    if config.speed.allocation != "exact-loss" or plan.mean_epsilon_micro or not plan.charged_users()[0].size:
        return None
    retained, allowances = np.frombuffer(plan.retained, "<i8"), np.full(counts.n_users, config.privacy.epsilon_micro)
    return _allocation(counts, retained, allowances, config.speed.statistics, config, plan.sum_cap or None).gap


def draw_values(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Draw all noise of the window in one batch; every statistic over all cells, also those not published.

    Raises :class:`PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    kept = contributions.retain(np.frombuffer(plan.retained, "<i8"))
    n_cells = kept.counts.n_cells
    numerators = _by_group(np.frombuffer(plan.numerators, "<i8"), plan.statistics, n_cells)
    denominators = _by_group(np.maximum(np.frombuffer(plan.denominators, "<i8"), 1), plan.statistics, n_cells)
    columns = {}
    moments = [group for group in numerators if group != "distribution"]
    if moments:
        t = np.array([numerators[group][:, 0] for group in moments])
        s = np.array([denominators[group][:, 0] for group in moments])
        columns = _draw_moments(plan, kept, moments, t, s, noise)
    if "distribution" in numerators:
        columns |= _draw_percentiles(plan, kept, noise)
    return {name: columns[name] for name in plan.statistics}


def _by_group(column: npt.NDArray[Any], statistics: Sequence[str], n_cells: int) -> dict[str, npt.NDArray[Any]]:
    """The plan's flat column of scales as (C, 1) for mean and variance and (C, h) for the distribution's levels."""
    found, start = {}, 0
    for group in groups(statistics):
        width = (len(column) - start) // max(n_cells, 1) if group == "distribution" else 1
        found[group] = column[start : start + n_cells * width].reshape(n_cells, width)
        start += n_cells * width
    return found


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
    t = _by_group(np.frombuffer(plan.numerators, "<i8"), plan.statistics, n_cells).get("distribution")
    if t is None:
        return np.zeros(0, dtype=np.int64), None
    s = _by_group(np.maximum(np.frombuffer(plan.denominators, "<i8"), 1), plan.statistics, n_cells)["distribution"]
    cells = np.flatnonzero(t.min(axis=1, initial=2**40) > 0)
    if not len(cells):
        return cells, None
    edges, histograms = bin_edges(plan.upper_quanta, plan.cdf_bins), cell_histograms(kept, plan.cdf_bins)[cells]
    return cells, release_cells(_tree(plan.upper_quanta, plan.cdf_bins), edges, histograms, (t[cells], s[cells]), noise)


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
        value = np.round(table[0], DECIMALS[name])
        step = 0.5 * 10.0 ** -DECIMALS[name]
        scale = (table[2] - table[1]) / 2 / math.log(20.0)
        columns[name] = Columns(value, np.clip(value, 0.0, upper), scale, table[1] - step, table[2] + step, upper)
    return columns


def _cell_means(plan: Plan, kept: Contributions, noise: Noise) -> Columns:
    drawn = draw_cell_means(plan.mean_mechanism, kept, plan.mean_epsilon_micro, noise) * SPEED_QUANTUM_KMH
    upper, decimals = plan.upper_quanta * SPEED_QUANTUM_KMH, DECIMALS["mean"]
    raw, step = np.round(drawn[0], decimals), 0.5 * 10.0**-decimals
    return Columns(raw, np.clip(raw, 0.0, upper), drawn[1], drawn[2] - step, drawn[3] + step, upper)


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


def shrink_values(plan: Plan, counts: Counts, columns: dict[str, Columns], config: Config) -> dict[str, Derived]:
    """Estimates from released values and public counts alone; they cost no budget."""
    published = np.flatnonzero(np.frombuffer(plan.published, np.uint8))
    if "mean" not in columns or "empirical-bayes" not in config.speed.post_processing or not len(published):
        return {}
    mean = columns["mean"]
    events = counts.by_cell(counts.samples)[published]
    places = np.array([h3.cell_to_latlng(cell_text(cell)) for cell in counts.cells[published].tolist()])
    found = shrink(
        mean.raw[published],
        mean.scale[published],
        events,
        upper=mean.top,
        positions_km=local_kilometres(places[:, 0], places[:, 1]),
        covariates=np.log([events, events / np.diff(counts.cell_start)[published]]).T,
    )
    spread = [np.zeros(counts.n_cells) for _ in range(3)]
    for column, values in zip(spread, (found.value, found.low, found.high), strict=True):
        column[published] = values
    return {"mean": Derived("empirical-bayes", *spread)}
