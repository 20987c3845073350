"""Contributions as ragged columns: who (user) gave how many values to which cell, and the values.

Values are integers on a public grid (quanta), clipped to [0, U] before anything is summed. Under relation "values"
:class:`Counts` is public; under "participation" nothing here is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import IdArray, IntArray
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.event_order import indexed, ordered, since_earliest

MAX_TOTAL = 2**62
"""Every integer sum of values must stay below this."""
_AT_ONCE = 2**18
"""Values that are widened, squared and added at a time, since all of them would take as much memory as the values."""


@dataclass(frozen=True)
class Counts:
    """Samples per (cell, user) pair; P pairs sorted by (cell, user), C cells and L users sorted by identifier.

    ``samples`` may hold 0 for a pair that suppression removed.
    """

    cells: IdArray
    users: IdArray
    pair_cell: IntArray
    pair_user: IntArray
    samples: IntArray

    @property
    def n_cells(self) -> int:
        """C."""
        return len(self.cells)

    @property
    def n_users(self) -> int:
        """L."""
        return len(self.users)

    @cached_property
    def cell_start(self) -> IntArray:
        """Shape (C+1,): pairs of cell g are ``cell_start[g]:cell_start[g+1]``."""
        return np.searchsorted(self.pair_cell, np.arange(self.n_cells + 1)).astype(np.int64)

    def by_cell(self, column: IntArray) -> IntArray:
        """Sums of a pair column per cell, shape (C,)."""
        return _segment_sums(column, self.cell_start)

    def by_user(self, column: IntArray) -> IntArray:
        """Sums of a pair column per user, shape (L,)."""
        sums = np.zeros(self.n_users, dtype=np.int64)
        np.add.at(sums, self.pair_user, column)  # bincount would add in floating point
        return sums

    def max_by_cell(self, column: IntArray) -> IntArray:
        """Largest entry of a pair column per cell, shape (C,); every cell has at least one pair."""
        return np.maximum.reduceat(column, self.cell_start[:-1]) if len(column) else np.zeros(self.n_cells, np.int64)

    def most_cells(self, samples: IntArray) -> int:
        """Most cells in which one user has ``samples`` (P,)."""
        return int(np.bincount(self.pair_user[samples > 0]).max(initial=0))


@dataclass(frozen=True)
class Contributions:
    """Values behind :class:`Counts`: N ``quanta`` in [0, ``upper``] and their times, sorted by (cell, user, time).

    Quanta are kept in 32 bits where ``upper`` permits that, and are widened before anything is computed with them.
    Times are kept ``since`` the ``earliest``, in 32 bits where they fit.
    """

    counts: Counts
    quanta: npt.NDArray[np.int32] | IntArray
    since: npt.NDArray[np.uint32] | IntArray
    earliest: int
    pair_start: IntArray
    upper: int

    @classmethod
    def group(cls, cell: IdArray, user: IdArray, time: IntArray, value: npt.NDArray[Any], *, upper: int) -> Self:
        """Group N events (columns of shape (N,)), clipping each value to [0, ``upper``] quanta.

        Raises :class:`ParameterError` for columns of unequal length or ``upper`` < 0, :class:`OverflowBoundError` if
        N·upper could leave int64.
        """
        if upper < 0:
            raise ParameterError(f"upper bound {upper} quanta is negative; give 0 or more")
        n = len(value)
        if not len(cell) == len(user) == len(time) == n:
            raise ParameterError(f"columns of {len(cell)}, {len(user)}, {len(time)} and {n} rows; give equal lengths")
        if n * max(upper, 1) >= MAX_TOTAL:
            raise OverflowBoundError(f"{n} values of up to {upper} quanta could exceed 2^62; use a coarser quantum")
        (cells, of_cell), (users, of_user) = indexed(cell), indexed(user)
        pair = of_cell.astype(np.int64)
        pair *= len(users)
        pair += of_user
        earliest, since = since_earliest(time)
        order, first, pair = ordered(pair, since, value)
        pair_start = np.append(first, n).astype(np.int64)
        counts = Counts(cells, users, *np.divmod(pair, max(len(users), 1)), np.diff(pair_start))
        since = since[order]
        quanta: npt.NDArray[Any] = np.ascontiguousarray(value)[order]
        np.clip(quanta, 0, min(upper, np.iinfo(quanta.dtype).max), out=quanta)
        quanta = quanta.astype(np.int32 if upper < 2**31 else np.int64, copy=False)
        return cls(counts, quanta, since, earliest, pair_start, upper)

    @property
    def values(self) -> IntArray:
        """The quanta in 64 bits, shape (N,), made anew."""
        return self.quanta.astype(np.int64)

    @property
    def times(self) -> IntArray:
        """The times in 64 bits, shape (N,), made anew."""
        return self.since.astype(np.int64) + self.earliest

    def regroup(self, renamed: IdArray) -> "Contributions":
        """The same events with cell g called ``renamed[g]``, shape (C,); a user's in cells of one name are one pair."""
        counts = self.counts
        if len(renamed) != counts.n_cells:
            raise ParameterError(f"{len(renamed)} names for {counts.n_cells} cells; give one for each")
        cell = np.repeat(renamed[counts.pair_cell], counts.samples)
        user = np.repeat(counts.users[counts.pair_user], counts.samples)
        return Contributions.group(cell, user, self.times, self.quanta, upper=self.upper)

    def retain(self, samples: IntArray) -> "Contributions":
        """The first ``samples[p]`` values of every pair p, in time order; pairs with 0 stay, empty."""
        available = self.counts.samples
        if len(samples) != len(available) or np.any((samples < 0) | (samples > available)):
            raise ParameterError(
                "retained counts must lie between 0 and the samples of each pair; plan from these counts"
            )
        if np.array_equal(samples, available):
            return self
        position = np.arange(len(self.quanta)) - np.repeat(self.pair_start[:-1], available)
        keep = position < np.repeat(samples, available)
        counts = replace(self.counts, samples=samples.astype(np.int64))
        pair_start = np.append(0, np.cumsum(samples)).astype(np.int64)
        return replace(self, counts=counts, quanta=self.quanta[keep], since=self.since[keep], pair_start=pair_start)

    @property
    def pair_sums(self) -> IntArray:
        """Σx of each pair in quanta, shape (P,)."""
        return _segment_sums(self.quanta, self.pair_start)

    def cell_sums(self, caps: IntArray | None = None) -> IntArray:
        """Σx per cell in quanta, shape (C,); with ``caps``, shape (C,), no user adds more than that to each cell."""
        if caps is None:
            return _segment_sums(self.quanta, self.pair_start[self.counts.cell_start])
        return self.counts.by_cell(np.minimum(self.pair_sums, caps[self.counts.pair_cell]))

    def cell_squares(self) -> IntArray:
        """Σx² per cell in quanta², shape (C,); raises :class:`OverflowBoundError` where that could leave int64."""
        n, upper = len(self.quanta), self.upper
        if n * max(upper, 1) ** 2 >= MAX_TOTAL:
            raise OverflowBoundError(
                f"squares of {n} values of up to {upper} quanta could exceed 2^62; coarser quantum"
            )
        return self.cell_totals(np.square)

    def cell_totals(self, of: Callable[[IntArray], IntArray]) -> IntArray:
        """Σ of(x) per cell, shape (C,); ``of`` is given some of the values, in 64 bits, at a time."""
        bounds, totals = self.pair_start[self.counts.cell_start], np.zeros(self.counts.n_cells, np.int64)
        for first, end in stretches(bounds):
            values = self.quanta[bounds[first] : bounds[end]].astype(np.int64)
            totals[first:end] = _segment_sums(of(values), bounds[first : end + 1] - bounds[first])
        return totals


def _segment_sums(column: npt.NDArray[Any], start: IntArray) -> IntArray:
    """Sums of ``column[start[i]:start[i+1]]`` in 64 bits; segments may be empty, and together they are the column."""
    sums = np.zeros(len(start) - 1, dtype=np.int64)
    for first, end in stretches(start):
        wide, begin = column[start[first] : start[end]].astype(np.int64, copy=False), start[first:end] - start[first]
        filled = np.diff(start[first : end + 1]) > 0
        if filled.any():
            sums[first:end][filled] = np.add.reduceat(wide, begin[filled])
    return sums


def stretches(start: IntArray) -> Iterator[tuple[int, int]]:
    """(First segment, end) of stretches that hold :data:`_AT_ONCE` values or less, or one segment that holds more."""
    first = 0
    while first < len(start) - 1:
        end = max(first + 1, int(np.searchsorted(start, start[first] + _AT_ONCE, side="right")) - 1)
        yield first, end
        first = end
