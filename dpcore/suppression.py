"""CHOP-USER: drop users from cells, by public counts, so that nobody is in too many cells (relation "values" only).

The paper's uniform accounting charges every user for the largest number of cells anyone visits. Suppression lowers
that number: level by level, every user in the most cells leaves the cell that costs least. With the paper's threshold
the worst predicted error over cells stays under what plain noise would have cost. A sweep instead keeps ε and tries all
such numbers, for the least worst error, or for the least error that its caller predicts. Every error compared counts as
one evaluation: the cost of a run is stated in them, never in seconds. Source: "Improving the Privacy Loss Under
User-Level DP Composition for Fixed Estimation Error" (arXiv 2405.06261), with the errors of :func:`worst_case_error`.
Not valid under relation "participation": it reads counts.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from dpcore import mean, variance
from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.contributions import Counts
from dpcore.errors import BudgetError, ParameterError

Statistic = Literal["mean", "variance"]
Objective = Callable[[IntArray], float]
"""Retained samples (P,) -> predicted error of a plan that retains them."""
Error = Callable[[int, int, int], float]
"""Error of one cell: (samples N, samples retained n ≥ 1, most retained of one user L) -> worst case, U = 1."""
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
    for k in _limits_tried(counts.most_cells(counts.samples)):
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
    table: "CellTable",
    epsilon_micro: float,
    statistics: Sequence[Statistic],
    min_users: int,
    stop_at: int,
    threshold: float,
    max_evaluations: float,
    by_events: bool = False,
) -> Suppression:
    epsilon = epsilon_micro / MICRO
    error = departure_error("mean" in statistics, "variance" in statistics, epsilon)

    def of_events(total: int, retained: int, largest: int) -> float:
        """What a sum over events loses by the cell, at most one full range of each statistic."""
        return total * min(len(statistics), error(total, retained, largest))

    run = LevelRun(table, of_events if by_events else error, min_users, max_evaluations)
    before, level = run.run(threshold, max(stop_at, 1))
    samples = np.where(np.frombuffer(run.active, dtype=np.uint8) > 0, table.counts.samples, 0)
    bias, noise = worst_case_error(*_cell_columns(table.counts, samples), epsilon, statistics)
    worst = float((bias + noise).max(initial=0.0))
    return Suppression(samples, before, level, epsilon_micro, worst, run.evaluations)


def _validate(epsilon_micro: float, statistics: Sequence[Statistic], min_users: int) -> None:
    if not (np.isfinite(epsilon_micro) and epsilon_micro > 0):
        raise BudgetError(f"epsilon of {epsilon_micro} µε is not above 0; give a positive number")
    if not statistics or set(statistics) - set(STATISTICS):
        raise ParameterError(f"statistics {tuple(statistics)} must be a choice of {STATISTICS}; give at least one")
    if min_users < 1:
        raise ParameterError(f"min_users {min_users} would allow an emptied cell; give at least 1")


def _cell_columns(counts: Counts, samples: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    total, retained, largest = counts.by_cell(counts.samples), counts.by_cell(samples), counts.max_by_cell(samples)
    live = total > 0
    return total[live], retained[live], largest[live]


class CostLimitError(RuntimeError):
    """A run would take more evaluations than it may; its decisions so far are discarded."""


def departure_error(of_mean: bool, of_variance: bool, epsilon: float) -> Error:
    """Scalar form of :func:`worst_case_error`: clipping bias plus noise scale of one cell.

    ``epsilon`` is shared equally by the statistics. Scalars, because a run computes one cell at a time. Each term is
    one quotient of integers, correctly rounded, so what grows as n falls grows in floating point, too.
    """
    per_share = (of_mean + of_variance) / epsilon

    def error(total: int, retained: int, largest: int) -> float:
        summed = 1 - retained / total + largest / retained * per_share if of_mean else 0.0
        if of_variance:
            j = largest if 2 * largest <= retained else retained // 2
            noise = j * (retained - j) / (retained * retained)
            kept = retained if 2 * retained > total else total // 2
            summed += kept * (total - kept) / (total * total) + noise * per_share
        return summed

    return error


@dataclass(frozen=True)
class CellTable:
    """Public counts as lists, made once and read by every run: P pairs by (cell, user), as in :class:`Counts`.

    ``ranked``: pairs of a cell, its largest contributors first; those of cell g are ``start[g]:start[g+1]``.
    ``pairs_of``: pairs of each user, lowest cell first. A list index costs a tenth of an array index.
    """

    counts: Counts
    cell: list[int]
    samples: list[int]
    total: list[int]
    users: list[int]
    ranked: list[int]
    start: list[int]
    pairs_of: list[list[int]]

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """The table of ``counts``; pairs without samples belong to no user."""
        samples = counts.samples
        sampled = samples > 0
        # Stable, so the pairs of a user ascend by cell and the first of equal errors is that of the lowest cell.
        by_user = np.argsort(counts.pair_user, kind="stable")
        by_user = by_user[sampled[by_user]]
        ends = np.cumsum(np.bincount(counts.pair_user[by_user], minlength=counts.n_users)).tolist()
        pairs = by_user.tolist()
        top = int(samples.max(initial=0))
        return cls(
            counts,
            counts.pair_cell.tolist(),
            samples.tolist(),
            counts.by_cell(samples).tolist(),
            counts.by_cell(sampled.astype(np.int64)).tolist(),
            np.argsort(counts.pair_cell * (top + 1) + (top - samples), kind="stable").tolist(),
            counts.cell_start.tolist(),
            [pairs[a:b] for a, b in itertools.pairwise([0, *ends])],
        )


class LevelRun:
    """The users who are still in each cell. A cell's two largest retained counts are found by sorted order with lazy
    deletion.

    ``errors``: of each cell, until somebody leaves it, its errors without one user by how many samples that one has; 0
    stands for the largest contributor.
    """

    def __init__(self, table: CellTable, error: Error, min_users: int, max_evaluations: float) -> None:
        self.table, self.error, self.min_users = table, error, min_users
        self.max_evaluations, self.evaluations = max_evaluations, 0
        self.retained = list(table.total)
        self.users = list(table.users)
        self.active = bytearray((table.counts.samples > 0).tobytes())
        self.at = table.start[:-1]
        self.first = [table.ranked[at] for at in self.at]
        self.second = list(self.first)
        self.largest = [table.samples[pair] for pair in self.first]
        self.runner_up = list(self.largest)
        for g in range(len(self.at)):
            self._find_second(g)
        self.errors: list[dict[int, float]] = [{} for _ in self.at]
        self.left: dict[int, list[int]] = {}
        """The pairs in which each user still is, from their first turn on."""

    def _find_second(self, cell: int) -> None:
        """Find the next active pair of ``cell`` in descending order of samples; −1 if there is none."""
        end, ranked, active = self.table.start[cell + 1], self.table.ranked, self.active
        at = self.at[cell] + 1
        while at < end and not active[ranked[at]]:
            at += 1
        self.at[cell] = at
        self.second[cell] = ranked[at] if at < end else -1
        self.runner_up[cell] = self.table.samples[ranked[at]] if at < end else 0

    def without(self, pair: int) -> tuple[int, int, int]:
        """(N, n, most of one user) of the cell of ``pair`` once that pair has left it."""
        g = self.table.cell[pair]
        largest = self.runner_up[g] if self.first[g] == pair else self.largest[g]
        return self.table.total[g], self.retained[g] - self.table.samples[pair], largest

    def run(self, threshold: float, stop_at: int) -> tuple[int, int]:
        """(Most cells per user before, after): whole levels of users by index, until ``stop_at`` or the first that
        fails.

        Raises :class:`CostLimitError`.
        """
        size = np.array([len(pairs) for pairs in self.table.pairs_of], dtype=np.int64)
        before = level = int(size.max(initial=0))
        order = np.argsort(size, kind="stable")
        first = np.searchsorted(size[order], np.arange(before + 2)).tolist()
        waiting: list[int] = []
        while level > stop_at:
            newcomers = order[first[level] : first[level + 1]].tolist()
            waiting = sorted(waiting + newcomers) if waiting else newcomers
            if not self._suppress_one_each(waiting, threshold):
                break
            level -= 1
        return before, level

    def _suppress_one_each(self, waiting: Sequence[int], threshold: float) -> bool:
        """Take every user of a level out of one cell, in order; on the first who cannot, undo the level: False."""
        done: list[int] = []
        for user in waiting:
            if user not in self.left:
                self.left[user] = list(self.table.pairs_of[user])
            pairs = self.left[user]
            pair, error = self._cheapest(pairs)
            if self.evaluations > self.max_evaluations:
                raise CostLimitError("the run was stopped at its limit of evaluations; allow more or try fewer limits")
            if pair < 0 or error > threshold:
                # Only activity is restored: nothing is evaluated after a failed level.
                for earlier in done:
                    self.active[earlier] = 1
                return False
            self._take_out(pair)
            pairs.remove(pair)
            done.append(pair)
        return True

    def _cheapest(self, pairs: Sequence[int]) -> tuple[int, float]:
        """(The pair whose suppression costs least, its error): the lowest cell on ties, −1 where none may go."""
        best, least = -1, math.inf
        self.evaluations += len(pairs)
        # The lists are looked up once: this is where the time goes.
        cell_of, samples, first, errors = self.table.cell, self.table.samples, self.first, self.errors
        users, min_users = self.users, self.min_users
        for pair in pairs:
            g = cell_of[pair]
            if users[g] > min_users:
                leaving = 0 if first[g] == pair else samples[pair]
                error = errors[g].get(leaving)
                if error is None:
                    error = errors[g][leaving] = self.error(*self.without(pair))
                if error < least:
                    best, least = pair, error
        return best, least

    def _take_out(self, pair: int) -> None:
        """Suppress ``pair``."""
        g = self.table.cell[pair]
        first = self.first[g]
        self.active[pair] = 0
        self.errors[g] = {}
        self.retained[g] -= self.table.samples[pair]
        self.users[g] -= 1
        if pair == first:
            self.first[g], self.largest[g] = self.second[g], self.runner_up[g]
        if pair in (first, self.second[g]):
            self._find_second(g)
