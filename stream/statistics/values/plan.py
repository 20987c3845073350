"""Relation "values": counts are public and only measured values are protected. The plan.

Everything in it is a function of public counts, the configuration and the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.allocation import Allocation, Sensitivities, allocate, histogram_rows, stack, uniform_allocation
from dpcore.cdf import bin_tree
from dpcore.clipping import choose_clipping
from dpcore.contributions import Counts
from dpcore.errors import BudgetError
from dpcore.level_tree import LevelTree
from dpcore.moments import mean_clipping_bias, mean_rows, sum_cap, variance_clipping_bias, variance_rows
from dpcore.noise import interval_half_width
from dpcore.resolution import regroup
from dpcore.suppression import STATISTICS, sweep_chop_user
from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH, Statistic
from stream.statistics.merging import merge_hexagons
from stream.statistics.plan import PERCENTS, VARIANCE_GRID, Plan, counts_digest
from stream.statistics.values.cell_means import cell_epsilon, plan_cell_means
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

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
    t = by_group(allocation.numerator, statistics, counts.n_cells)["mean"][:, 0]
    s = by_group(allocation.denominator, statistics, counts.n_cells)["mean"][:, 0]
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
        "distribution": lambda: _distribution_rows(counts, retained, bin_tree(upper, cdf_bins)),
    }
    return stack([rows[group]() for group in groups(statistics)])


def groups(statistics: Sequence[str]) -> list[str]:
    """What noise is added to, in the order of the plan's scales: mean, variance, one distribution for all percentiles."""
    found = [name for name in ("mean", "variance") if name in statistics]
    return [*found, "distribution"] if any(name in PERCENTS for name in statistics) else found


def by_group(column: npt.NDArray[Any], statistics: Sequence[str], n_cells: int) -> dict[str, npt.NDArray[Any]]:
    """The plan's flat column of scales as (C, 1) for mean and variance and (C, h) for the distribution's levels."""
    found, start = {}, 0
    for group in groups(statistics):
        width = (len(column) - start) // max(n_cells, 1) if group == "distribution" else 1
        found[group] = column[start : start + n_cells * width].reshape(n_cells, width)
        start += n_cells * width
    return found


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
    error, scales = 0.0, by_group(numerator / np.maximum(denominator, 1), statistics, counts.n_cells)
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
