"""CHOP-USER: drop users from cells, by public counts, so that nobody is in too many cells (relation "values" only).

The paper's uniform accounting charges every user for the largest number of cells anyone visits. Suppression lowers
that number. With the paper's threshold the worst predicted error over cells stays under what plain noise would have
cost. A sweep instead keeps ε and tries all such numbers, for the least worst error, or for the least error that its
caller predicts. Source: "Improving the Privacy Loss Under User-Level DP Composition for Fixed Estimation Error" (arXiv
2405.06261), with the errors of :func:`worst_case_error`. Not valid under relation "participation": it reads counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dpcore import mean, variance
from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.contributions import Counts
from dpcore.errors import BudgetError, ParameterError
from dpcore.suppression_levels import (
    Bound,
    CellTable,
    CostLimitError,
    Error,
    LevelRun,
    departure_bound,
    departure_error,
    weighted_by_events,
)

Statistic = Literal["mean", "variance"]
Objective = Callable[[IntArray], float]
"""Retained samples (P,) -> predicted error of a plan that retains them."""
STATISTICS: tuple[Statistic, ...] = ("mean", "variance")

MAX_EVALUATIONS = 2_000_000
"""Errors that a sweep may compute: some 2 s on a core. Counted, not timed, so that whoever plans decides the same."""
LEAST_OBJECTIVE_COST = 10_000
"""Evaluations that one value of an objective counts as: these, or one per pair if there are more pairs."""
_FINEST = 32
"""A sweep tries every number of cells up to this one, and above it those 1/:data:`_FINEST` of the larger one apart."""


@dataclass(frozen=True)
class Suppression:
    """What suppression decided, all of it public under relation "values".

    ``samples``: shape (P,), retained counts, 0 = suppressed. ``max_cells``: most cells per user afterwards (K).
    ``epsilon_per_cell`` in µε (not rounded). Errors are worst cases over cells, in the unit U = 1. ``complete``:
    whether everything was tried, which a sweep stops doing at its limit of evaluations; ``evaluations``: errors
    computed.
    """

    samples: IntArray
    max_cells_before: int
    max_cells: int
    epsilon_per_cell: float
    worst_error: float
    evaluations: int
    complete: bool = True


def worst_case_error(
    total: IntArray, retained: IntArray, largest: IntArray, epsilon: float, statistics: Sequence[Statistic]
) -> tuple[FloatArray, FloatArray]:
    """(Clipping bias, noise scale) per cell in the unit U = 1, summed over ``statistics`` sharing ``epsilon`` equally.

    ``total`` N, ``retained`` n and ``largest`` retained count of one user, all of shape (C,). Variance is the 1/n one.
    """
    bias, noise = np.zeros(len(total)), np.zeros(len(total))
    per_share = len(statistics) / epsilon
    if "mean" in statistics:
        bias += mean.clipping_bias(total, retained)
        noise += largest / retained * per_share
    if "variance" in statistics:
        bias += variance.clipping_bias(total, retained)
        noise += variance.worst_change(retained, largest) * per_share
    return bias, noise


def suppress(
    counts: Counts,
    epsilon_micro: float,
    *,
    statistics: Sequence[Statistic] = STATISTICS,
    min_users: int = 1,
    stop_at: int = 1,
    threshold: float = math.inf,
    max_evaluations: float = math.inf,
) -> Suppression:
    """Suppress level by level at a fixed ``epsilon_micro`` (µε) per cell, down to ``stop_at`` cells per user.

    Stops before the first level on which a cell's error would pass ``threshold`` (the paper takes
    :func:`unsuppressed_noise`), or a cell would fall below ``min_users`` contributors. Relation "values". Raises
    :class:`BudgetError`, :class:`ParameterError`, and :class:`CostLimitError` where it would take more than
    ``max_evaluations``.
    """
    _validate(epsilon_micro, statistics, min_users)
    return _run(CellTable.of(counts), epsilon_micro, statistics, min_users, stop_at, threshold, max_evaluations)


def unsuppressed_noise(counts: Counts, epsilon_micro: float, statistics: Sequence[Statistic] = STATISTICS) -> float:
    """Largest noise term over cells before anything is suppressed, in the unit U = 1: CHOP-USER's threshold."""
    _validate(epsilon_micro, statistics, 1)
    columns = _cell_columns(counts, counts.samples)
    return float(worst_case_error(*columns, epsilon_micro / MICRO, statistics)[1].max(initial=0.0))


def sweep_chop_user(
    counts: Counts,
    total_micro: int,
    *,
    statistics: Sequence[Statistic] = STATISTICS,
    min_users: int = 1,
    max_evaluations: int = MAX_EVALUATIONS,
    objective: Objective | None = None,
) -> Suppression:
    """Split ``total_micro`` (µε) over K cells, suppress down to K cells per user, keep the K of least ``objective``.

    Without an objective it is the worst error over cells, and users leave the cell whose error is least without them.
    With one, they leave the cell of least error times events, because a planner adds errors up over events. K goes from
    the present maximum down to 1 (:func:`_limits_tried`). The threshold does not bind here: a K that cannot be reached
    without emptying a cell is skipped. Ties go to the larger K (less suppressed). Where the runs would take more than
    ``max_evaluations`` together, the best of those that were finished is kept and the result is not ``complete``: a
    function of public counts, like everything here. Relation "values". Raises as :func:`suppress`.
    """
    _validate(total_micro, statistics, min_users)
    table = CellTable.of(counts)
    price = 0 if objective is None else max(LEAST_OBJECTIVE_COST, len(counts.samples))
    best, least, spent, complete = None, math.inf, 0, True
    for k in _limits_tried(_max_cells(counts)):
        allowed = max_evaluations - spent - (price if best is not None else 0)
        try:
            plan = _run(
                table, total_micro / max(k, 1), statistics, min_users, k, math.inf, allowed, objective is not None
            )
        except CostLimitError:
            complete = False
            break
        spent += plan.evaluations
        if plan.max_cells > k:
            continue
        spent += price
        error = plan.worst_error if objective is None else objective(plan.samples)
        if best is None or (error, -k) < (least, -best.max_cells):
            best, least = plan, error
    assert best is not None, "the unsuppressed plan comes first, takes no evaluation and reaches its own maximum"
    return replace(best, evaluations=spent, complete=complete)


def _limits_tried(most: int) -> list[int]:
    """Numbers of cells per user that a sweep tries, powers of two first, so that a sweep cut short saw the range."""
    limits = [most]
    while limits[-1] > 1:
        limits.append(limits[-1] - max(1, limits[-1] // _FINEST))
    strides = [2**k for k in range(len(limits).bit_length(), -1, -1)]
    return list(dict.fromkeys(k for stride in strides for k in limits[::stride]))


def _run(
    table: CellTable,
    epsilon_micro: float,
    statistics: Sequence[Statistic],
    min_users: int,
    stop_at: int,
    threshold: float,
    max_evaluations: float,
    by_events: bool = False,
) -> Suppression:
    epsilon = epsilon_micro / MICRO
    run = LevelRun(table, *_departures(epsilon, statistics, by_events), min_users, max_evaluations)
    before, level = run.run(threshold, max(stop_at, 1))
    samples = run.retained_samples()
    bias, noise = worst_case_error(*_cell_columns(table.counts, samples), epsilon, statistics)
    worst = float((bias + noise).max(initial=0.0))
    return Suppression(samples, before, level, epsilon_micro, worst, run.evaluations)


def _departures(epsilon: float, statistics: Sequence[Statistic], by_events: bool) -> tuple[Error, Bound]:
    """The error of a cell that somebody leaves, and a lower bound of its later ones."""
    chosen = ("mean" in statistics, "variance" in statistics)
    error, bound = departure_error(*chosen, epsilon), departure_bound(*chosen, epsilon)
    return weighted_by_events(error, bound, len(statistics)) if by_events else (error, bound)


def _validate(epsilon_micro: float, statistics: Sequence[Statistic], min_users: int) -> None:
    if not (np.isfinite(epsilon_micro) and epsilon_micro > 0):
        raise BudgetError(f"epsilon of {epsilon_micro} µε is not above 0; give a positive number")
    if not statistics or set(statistics) - set(STATISTICS):
        raise ParameterError(f"statistics {tuple(statistics)} must be a non-empty choice of {STATISTICS}")
    if min_users < 1:
        raise ParameterError(f"min_users {min_users} would allow an emptied cell; give at least 1")


def _max_cells(counts: Counts) -> int:
    users = counts.pair_user[counts.samples > 0]
    return int(np.bincount(users).max()) if len(users) else 0


def _cell_columns(counts: Counts, samples: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    total, retained, largest = counts.by_cell(counts.samples), counts.by_cell(samples), counts.max_by_cell(samples)
    live = total > 0
    return total[live], retained[live], largest[live]
