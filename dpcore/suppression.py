"""CHOP-USER: drop users from cells, by public counts, so that nobody is in too many cells (relation "values" only).

The paper's uniform accounting charges every user for the largest number of cells anyone visits. Suppression lowers
that number. With the paper's threshold the worst predicted error over cells stays under what plain noise would have cost;
the service instead keeps ε and sweeps over that number for the least error.
Source: "Improving the Privacy Loss Under User-Level DP Composition for Fixed Estimation Error" (arXiv 2405.06261),
with the errors of :func:`worst_case_error`. Not valid under relation "participation": it reads counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpcore import mean, variance
from dpcore.budget import MICRO
from dpcore.contributions import Counts, IntArray
from dpcore.errors import BudgetError, ParameterError

FloatArray = npt.NDArray[np.float64]
Statistic = Literal["mean", "variance"]
STATISTICS: tuple[Statistic, ...] = ("mean", "variance")


@dataclass(frozen=True)
class Suppression:
    """What suppression decided, all of it public under relation "values".

    ``samples``: shape (P,), retained counts, 0 = suppressed. ``max_cells``: most cells per user afterwards (K).
    ``epsilon_per_cell`` in µε (not rounded). Errors are worst cases over cells, in the unit U = 1.
    """

    samples: IntArray
    max_cells_before: int
    max_cells: int
    epsilon_per_cell: float
    worst_error: float


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
) -> Suppression:
    """Suppress level by level at a fixed ``epsilon_micro`` (µε) per cell, down to ``stop_at`` cells per user.

    Stops before the first level on which a cell's error would pass ``threshold`` (the paper takes
    :func:`unsuppressed_noise`), or a cell would fall below ``min_users`` contributors. Relation "values". Raises
    :class:`BudgetError`, :class:`ParameterError`.
    """
    _validate(epsilon_micro, statistics, min_users)
    state = _Cells(counts, epsilon_micro / MICRO, statistics, min_users)
    before, level = _run(state, threshold, max(stop_at, 1))
    samples = state.retained_samples()
    bias, noise = worst_case_error(*_cell_columns(counts, samples), state.epsilon, statistics)
    return Suppression(samples, before, level, epsilon_micro, float((bias + noise).max(initial=0.0)))


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
    limits: Sequence[int] | None = None,
) -> Suppression:
    """Split ``total_micro`` (µε) over K cells, suppress down to K cells per user, keep the K of least worst error.

    ``limits``: the values of K to try (default: every one from the present maximum down to 1). The threshold does not
    bind here: a K that cannot be reached without emptying a cell is skipped. Ties go to the larger K (less suppressed).
    Relation "values". Raises as :func:`suppress`.
    """
    _validate(total_micro, statistics, min_users)
    largest = _max_cells(counts)
    tried = sorted({k for k in (limits or range(1, largest + 1)) if 1 <= k <= largest} | {largest}, reverse=True)
    best: Suppression | None = None
    for k in tried:
        plan = suppress(counts, total_micro / max(k, 1), statistics=statistics, min_users=min_users, stop_at=k)
        if plan.max_cells <= k and (best is None or plan.worst_error < best.worst_error):
            best = plan
    assert best is not None, "the unsuppressed plan always reaches its own maximum"
    return best


def _validate(epsilon_micro: float, statistics: Sequence[Statistic], min_users: int) -> None:
    if not (np.isfinite(epsilon_micro) and epsilon_micro > 0):
        raise BudgetError(f"epsilon of {epsilon_micro} µε is not above 0; give a positive number")
    if not statistics or set(statistics) - set(STATISTICS):
        raise ParameterError(f"statistics {tuple(statistics)} must be a non-empty choice of {STATISTICS}")
    if min_users < 1:
        raise ParameterError(f"min_users {min_users} would allow an emptied cell; give at least 1")


def _max_cells(counts: Counts) -> int:
    held = counts.pair_user[counts.samples > 0]
    return int(np.bincount(held).max()) if len(held) else 0


def _run(state: _Cells, threshold: float, stop_at: int) -> tuple[int, int]:
    """(Most cells per user before, after): whole levels of users by index, until ``stop_at`` or the first that fails."""
    size = np.array([len(entries) for entries in state.entries_of], dtype=np.int64)
    before = level = int(size.max(initial=0))
    order = np.argsort(size, kind="stable")
    first = np.searchsorted(size[order], np.arange(before + 2)).tolist()
    waiting: list[int] = []
    while level > stop_at:
        newcomers = order[first[level] : first[level + 1]].tolist()
        waiting = sorted(waiting + newcomers) if waiting else newcomers
        if not state.suppress_one_each(waiting, threshold):
            break
        level -= 1
    return before, level


def _cell_columns(counts: Counts, samples: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    total, retained, largest = counts.by_cell(counts.samples), counts.by_cell(samples), counts.max_by_cell(samples)
    live = total > 0
    return total[live], retained[live], largest[live]


class _Cells:
    """Running totals per cell; the two largest retained counts by sorted order with lazy deletion.

    Plain lists: the loop is sequential by definition, and a list index costs a tenth of an array index.
    """

    def __init__(self, counts: Counts, epsilon: float, statistics: Sequence[Statistic], min_users: int) -> None:
        self.epsilon = epsilon
        self.per_share = len(statistics) / epsilon
        self.of_mean, self.of_variance = "mean" in statistics, "variance" in statistics
        self.min_users = min_users
        self.counts = counts
        samples = counts.samples
        held = samples > 0
        total = counts.by_cell(samples)
        self.total: list[int] = total.tolist()
        self.retained: list[int] = total.tolist()
        self.users: list[int] = counts.by_cell(held.astype(np.int64)).tolist()
        self.samples: list[int] = samples.tolist()
        self.active = bytearray(held.tobytes())
        # Stable, so the pairs of a user ascend by cell: a strict comparison then gives ties to the lowest cell.
        by_user = np.argsort(counts.pair_user, kind="stable")
        by_user = by_user[held[by_user]]
        start = np.append(0, np.cumsum(np.bincount(counts.pair_user[by_user], minlength=counts.n_users))).tolist()
        entries = list(
            zip(by_user.tolist(), counts.pair_cell[by_user].tolist(), samples[by_user].tolist(), strict=True)
        )
        self.entries_of: list[list[tuple[int, int, int]]] = [entries[a:b] for a, b in itertools.pairwise(start)]
        top = int(samples.max(initial=0))
        ranked = np.argsort(counts.pair_cell * (top + 1) + (top - samples), kind="stable")
        self.ranked: list[int] = ranked.tolist()
        self.end: list[int] = counts.cell_start[1:].tolist()
        self.at: list[int] = counts.cell_start[:-1].tolist()
        self.first: list[int] = ranked[counts.cell_start[:-1]].tolist()
        self.largest: list[int] = samples[ranked[counts.cell_start[:-1]]].tolist()
        self.second: list[int] = [-1] * counts.n_cells
        self.runner_up: list[int] = [0] * counts.n_cells
        for g in range(counts.n_cells):
            self._find_second(g)

    def _find_second(self, cell: int) -> None:
        """Move on to the next active pair of ``cell`` in descending order of samples; −1 at its end."""
        end, ranked, active = self.end[cell], self.ranked, self.active
        at = self.at[cell] + 1
        while at < end and not active[ranked[at]]:
            at += 1
        self.at[cell] = at
        self.second[cell] = ranked[at] if at < end else -1
        self.runner_up[cell] = self.samples[ranked[at]] if at < end else 0

    def error_without(self, entry: tuple[int, int, int]) -> float:
        """:func:`worst_case_error` of the cell of ``entry`` (pair, cell, samples) once that pair has left it.

        Scalars and no arrays: this runs once for each cell of each user of each level. A test holds it to be that function.
        """
        pair, g, m = entry
        N = self.total[g]
        n = self.retained[g] - m
        largest = self.runner_up[g] if self.first[g] == pair else self.largest[g]
        kept = n / N
        error = 1 - kept + largest / n * self.per_share if self.of_mean else 0.0
        if self.of_variance:
            share = min(largest, n // 2) / n
            bias = kept * (1 - kept) if 2 * n > N else (N // 2) * (N - N // 2) / (N * N)
            error += bias + share * (1 - share) * self.per_share
        return error

    def cheapest(self, user: int) -> tuple[tuple[int, int, int] | None, float]:
        """(The entry whose suppression costs least, its error): the lowest cell on ties, None where none may go."""
        best, least = None, math.inf
        for entry in self.entries_of[user]:
            if self.users[entry[1]] > self.min_users:
                error = self.error_without(entry)
                if error < least:
                    best, least = entry, error
        return best, least

    def suppress_one_each(self, waiting: Sequence[int], threshold: float) -> bool:
        """Take every user of a level out of one cell, in order; on the first who cannot, undo the level: False."""
        done: list[int] = []
        for user in waiting:
            entry, error = self.cheapest(user)
            if entry is None or error > threshold:
                # Only activity is restored: nothing is evaluated after a failed level.
                for pair in done:
                    self.active[pair] = 1
                return False
            self._take_out(user, entry)
            done.append(entry[0])
        return True

    def _take_out(self, user: int, entry: tuple[int, int, int]) -> None:
        pair, g, m = entry
        self.entries_of[user].remove(entry)
        self.active[pair] = 0
        self.retained[g] -= m
        self.users[g] -= 1
        if pair == self.first[g]:
            self.first[g], self.largest[g] = self.second[g], self.runner_up[g]
            self._find_second(g)
        elif pair == self.second[g]:
            self._find_second(g)

    def retained_samples(self) -> IntArray:
        held = np.frombuffer(bytes(self.active), dtype=np.uint8).astype(bool)
        return np.where(held, self.counts.samples, 0)
