"""The greedy choice of CHOP-USER: level by level, every user in the most cells leaves the cell that costs least.

:func:`departure_error` is what it minimises. A user's next cell is the least of many errors, each of which changes
whenever anybody leaves its cell. Two ways to find it give the same choices: :class:`_Scan` compares them all, which is
quickest for few cells; :class:`_Queue` keeps lower bounds that stay true until a cell's largest contributor leaves, and
computes only errors whose bound is below the least one found. Every error compared counts as one evaluation: the cost
of a run is stated in them, never in seconds. Relation "values": everything is a function of public counts.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import IntArray
from dpcore.contributions import Counts

MOST_SCANNED = 48
"""Cells of one user up to which all errors are compared each time; above, a queue is quicker (measured: 30 to 60)."""
QUEUE_COST = 4
"""Evaluations that one error in a queue counts as, for the time that it takes."""

Error = Callable[[int, int, int], float]
"""Error of one cell: (samples N, samples retained n ≥ 1, most retained of one user L) -> worst case, U = 1."""
Bound = Callable[[int, int, int, bool], float]
"""Lower bound of one cell's later errors: the same arguments, and whether n stays at or above 2·L -> the bound."""


class CostLimitError(RuntimeError):
    """A run would take more evaluations than it may; its decisions so far are discarded."""


def departure_error(of_mean: bool, of_variance: bool, epsilon: float) -> Error:
    """Scalar form of :func:`dpcore.suppression.worst_case_error`: clipping bias plus noise scale of one cell.

    ``epsilon`` is shared equally by the statistics. Scalars, because a run computes one cell at a time. Each term is
    one quotient of integers, correctly rounded, so what grows as n falls grows in floating point, too.
    """
    per_share = (of_mean + of_variance) / epsilon

    def error(total: int, retained: int, largest: int) -> float:
        summed = 1 - retained / total + largest / retained * per_share if of_mean else 0.0
        if of_variance:
            j = largest if 2 * largest <= retained else retained // 2
            noise = j * (retained - j) / (retained * retained)
            summed += _variance_bias(total, retained) + noise * per_share
        return summed

    return error


def departure_bound(of_mean: bool, of_variance: bool, epsilon: float) -> Bound:
    """Lower bound of :func:`departure_error` for every number of samples from ``largest`` to ``retained``, at this
    ``largest``.

    As samples leave, bias grows and a share L/n below a half grows towards it. Where n falls below 2·L, the noise of
    the variance follows the parity of n: 1/4 for even n, 1/4 − 1/(4n²) for odd n, which is least at the lowest odd n ≥
    L. ``wide``: n will not fall below 2·L.
    """
    per_share = (of_mean + of_variance) / epsilon

    def bound(total: int, retained: int, largest: int, wide: bool) -> float:
        least = 1 - retained / total + largest / retained * per_share if of_mean else 0.0
        if of_variance:
            odd = largest | 1
            noise = 0.25 if odd > retained or wide else (odd * odd - 1) / (4 * odd * odd)
            if 2 * largest <= retained:
                noise = min(noise, largest * (retained - largest) / (retained * retained))
            least += _variance_bias(total, retained) + noise * per_share
        return least

    return bound


def weighted_by_events(error: Error, bound: Bound, most: float) -> tuple[Error, Bound]:
    """``error`` and its ``bound`` times the events of the cell: what a sum over events loses, each at most ``most``."""

    def weighted(total: int, retained: int, largest: int) -> float:
        return total * min(most, error(total, retained, largest))

    def weighted_bound(total: int, retained: int, largest: int, wide: bool) -> float:
        return total * min(most, bound(total, retained, largest, wide))

    return weighted, weighted_bound


def _variance_bias(total: int, retained: int) -> float:
    """Scalar form of :func:`dpcore.variance.clipping_bias`."""
    if 2 * retained > total:
        return retained * (total - retained) / (total * total)
    return (total // 2) * (total - total // 2) / (total * total)


@dataclass(frozen=True)
class CellTable:
    """Public counts as lists, made once and read by every run: P pairs by (cell, user), as in :class:`Counts`.

    ``ranked``: pairs of a cell, its largest contributors first; those of cell g are ``start[g]:start[g+1]``.
    ``pairs_of``: pairs of each user, lowest cell first. A list index costs a tenth of an array index.
    """

    counts: Counts
    cell: list[int]
    user: list[int]
    samples: list[int]
    total: list[int]
    users: list[int]
    ranked: list[int]
    start: list[int]
    pairs_of: list[list[int]]

    @classmethod
    def of(cls, counts: Counts) -> CellTable:
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
            counts.pair_user.tolist(),
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

    def __init__(self, table: CellTable, error: Error, bound: Bound, min_users: int, max_evaluations: float) -> None:
        self.table, self.error, self.bound, self.min_users = table, error, bound, min_users
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
        self.leaving: dict[int, _Scan | _Queue] = {}
        self.queued: dict[int, list[int]] = {}

    def _find_second(self, cell: int) -> None:
        """Find the next active pair of ``cell`` in descending order of samples; −1 if there is none."""
        end, ranked, active = self.table.start[cell + 1], self.table.ranked, self.active
        at = self.at[cell] + 1
        while at < end and not active[ranked[at]]:
            at += 1
        self.at[cell] = at
        self.second[cell] = ranked[at] if at < end else -1
        self.runner_up[cell] = self.table.samples[ranked[at]] if at < end else 0

    def may_leave(self, pair: int) -> bool:
        """Whether the cell of ``pair`` keeps ``min_users`` without it. Once False it stays so, because users only
        leave.
        """
        return self.users[self.table.cell[pair]] > self.min_users

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
            if user not in self.leaving:
                pairs = self.table.pairs_of[user]
                self.leaving[user] = self._next_cells(pairs)
            pair, error = self.leaving[user].cheapest()
            if self.evaluations > self.max_evaluations:
                raise CostLimitError("the run was stopped at its limit of evaluations; allow more or try fewer limits")
            if pair < 0 or error > threshold:
                # Only activity is restored: nothing is evaluated after a failed level.
                for earlier in done:
                    self.active[earlier] = 1
                return False
            self._take_out(pair)
            self.leaving[user].remove(pair)
            done.append(pair)
        return True

    def _next_cells(self, pairs: Sequence[int]) -> _Scan | _Queue:
        """The scan or queue that finds the next cell of a user who is in ``pairs``."""
        if len(pairs) <= MOST_SCANNED:
            return _Scan(self, pairs)
        for pair in pairs:
            self.queued.setdefault(self.table.cell[pair], []).append(pair)
        return _Queue(self, pairs)

    def _take_out(self, pair: int) -> None:
        """Suppress ``pair``, and make queues compute those errors again that may now be below their bounds."""
        g = self.table.cell[pair]
        first, largest, runner_up = self.first[g], self.largest[g], self.runner_up[g]
        was_wide, first_was_wide = self._wide(g) if self.queued else (False, False)
        self.active[pair] = 0
        self.errors[g] = {}
        self.retained[g] -= self.table.samples[pair]
        self.users[g] -= 1
        if pair == first:
            self.first[g], self.largest[g] = self.second[g], runner_up
        if pair in (first, self.second[g]):
            self._find_second(g)
        if not self.queued:
            return
        wide, first_wide = self._wide(g)
        if self.largest[g] < largest or (was_wide and not wide):
            self._announce(self.queued.get(g, ()))
        if pair == first or self.runner_up[g] < runner_up or (first_was_wide and not first_wide):
            self._announce([self.first[g]])

    def _wide(self, cell: int) -> tuple[bool, bool]:
        """Whether n ≥ 2·L once anybody but the largest contributor of ``cell`` has left it, and once that one has."""
        retained, first = self.retained[cell], self.first[cell]
        return retained >= 3 * self.largest[cell], retained - self.table.samples[first] >= 2 * self.runner_up[cell]

    def bound_without(self, pair: int) -> float:
        """Lower bound of the error of the cell of ``pair`` without it, valid until its queue is told to compute it
        again.
        """
        g = self.table.cell[pair]
        return self.bound(*self.without(pair), self._wide(g)[self.first[g] == pair])

    def _announce(self, pairs: Sequence[int]) -> None:
        """Make queues compute the errors of ``pairs`` again, because these may have fallen below their bounds."""
        self.evaluations += len(pairs)
        for pair in pairs:
            queue = self.leaving.get(self.table.user[pair])
            if type(queue) is _Queue:
                queue.look_again(pair)

    def retained_samples(self) -> IntArray:
        """Shape (P,): samples of the pairs that are still active."""
        active = np.frombuffer(bytes(self.active), dtype=np.uint8).astype(bool)
        return np.where(active, self.table.counts.samples, 0)


class _Scan:
    """The cells of one user: all errors are compared each time."""

    def __init__(self, run: LevelRun, pairs: Sequence[int]) -> None:
        self.run, self.pairs = run, list(pairs)

    def cheapest(self) -> tuple[int, float]:
        """(The pair whose suppression costs least, its error): the lowest cell on ties, −1 where none may go."""
        run, best, least = self.run, -1, math.inf
        run.evaluations += len(self.pairs)
        # The lists are looked up once: this is where the time goes.
        cell_of, samples, first, errors = run.table.cell, run.table.samples, run.first, run.errors
        users, min_users = run.users, run.min_users
        for pair in self.pairs:
            g = cell_of[pair]
            if users[g] > min_users:
                leaving = 0 if first[g] == pair else samples[pair]
                error = errors[g].get(leaving)
                if error is None:
                    error = errors[g][leaving] = run.error(*run.without(pair))
                if error < least:
                    best, least = pair, error
        return best, least

    def remove(self, pair: int) -> None:
        """``pair`` has left."""
        self.pairs.remove(pair)


class _Queue:
    """The cells of one user by lower bounds of their errors; a pair may be in it twice, its lower entry counts."""

    def __init__(self, run: LevelRun, pairs: Sequence[int]) -> None:
        self.run = run
        self.bounds = [(-math.inf, pair) for pair in pairs]

    def cheapest(self) -> tuple[int, float]:
        """(The pair whose suppression costs least, its error): the lowest cell on ties, −1 where none may go."""
        run, best, least = self.run, -1, math.inf
        fresh: dict[int, float] = {}
        while self.bounds and self.bounds[0] <= (least, best):
            pair = heapq.heappop(self.bounds)[1]
            if pair in fresh or not run.active[pair] or not run.may_leave(pair):
                continue
            error, fresh[pair] = run.error(*run.without(pair)), run.bound_without(pair)
            if error < least or (error == least and pair < best):
                best, least = pair, error
        run.evaluations += QUEUE_COST * len(fresh)
        for pair, bound in fresh.items():
            heapq.heappush(self.bounds, (bound, pair))
        return best, least

    def look_again(self, pair: int) -> None:
        """The error of ``pair`` may have fallen below its bound."""
        heapq.heappush(self.bounds, (-math.inf, pair))

    def remove(self, pair: int) -> None:
        """``pair`` has left; its entries are passed over when they come up."""
