"""Contributions as ragged columns: who (user) gave how many values to which cell, and the values.

Values are integers on a public grid (quanta), clipped to [0, U] before anything is summed. Under relation "values"
:class:`Counts` is public; under "participation" nothing here is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpcore.errors import OverflowBoundError, ParameterError

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]

MAX_TOTAL = 2**62
"""Every integer sum of values must stay below this."""


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


@dataclass(frozen=True)
class Contributions:
    """Values behind :class:`Counts`: N quanta in [0, ``upper``] and their times, sorted by (cell, user, time)."""

    counts: Counts
    values: IntArray
    times: IntArray
    pair_start: IntArray
    upper: int

    @classmethod
    def group(cls, cell: IdArray, user: IdArray, time: IntArray, value: IntArray, *, upper: int) -> Contributions:
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
        cells = np.unique(cell)
        of_cell = np.searchsorted(cells, cell)  # few cells: quicker than the inverse that unique makes
        users, of_user = np.unique(user, return_inverse=True)
        pair = of_cell.astype(np.int64) * len(users) + of_user
        order = _order(pair, time.astype(np.int64), value)
        pair = pair[order]
        new_pair = np.ones(n, dtype=bool)
        new_pair[1:] = pair[1:] != pair[:-1]
        first = np.flatnonzero(new_pair)
        pair_start = np.append(first, n).astype(np.int64)
        pair_cell, pair_user = np.divmod(pair[first], max(len(users), 1))
        counts = Counts(cells, users, pair_cell, pair_user, np.diff(pair_start))
        values = np.clip(value[order].astype(np.int64), 0, upper)
        return cls(counts, values, time[order].astype(np.int64), pair_start, upper)

    def regroup(self, renamed: IdArray) -> Contributions:
        """The same events with cell g called ``renamed[g]``, shape (C,); a user's in cells of one name are one pair."""
        counts = self.counts
        if len(renamed) != counts.n_cells:
            raise ParameterError(f"{len(renamed)} names for {counts.n_cells} cells; give one for each")
        cell = np.repeat(renamed[counts.pair_cell], counts.samples)
        user = np.repeat(counts.users[counts.pair_user], counts.samples)
        return Contributions.group(cell, user, self.times, self.values, upper=self.upper)

    def retain(self, samples: IntArray) -> Contributions:
        """The first ``samples[p]`` values of every pair p, in time order; pairs with 0 stay, empty."""
        available = self.counts.samples
        if len(samples) != len(available) or np.any((samples < 0) | (samples > available)):
            raise ParameterError(
                "retained counts must lie between 0 and the samples of each pair; plan from these counts"
            )
        position = np.arange(len(self.values)) - np.repeat(self.pair_start[:-1], available)
        keep = position < np.repeat(samples, available)
        counts = Counts(
            self.counts.cells, self.counts.users, self.counts.pair_cell, self.counts.pair_user, samples.astype(np.int64)
        )
        return Contributions(
            counts, self.values[keep], self.times[keep], np.append(0, np.cumsum(samples)).astype(np.int64), self.upper
        )

    def cell_sums(self, cap: int | None = None) -> IntArray:
        """Σx per cell in quanta, shape (C,); with ``cap`` no user adds more than that to a cell."""
        if cap is None:
            return _segment_sums(self.values, self.pair_start[self.counts.cell_start])
        return self.counts.by_cell(np.minimum(_segment_sums(self.values, self.pair_start), cap))

    def cell_squares(self) -> IntArray:
        """Σx² per cell in quanta², shape (C,); raises :class:`OverflowBoundError` where that could leave int64."""
        if len(self.values) * max(self.upper, 1) ** 2 >= MAX_TOTAL:
            raise OverflowBoundError(
                f"squares of {len(self.values)} values of up to {self.upper} quanta could exceed 2^62; coarser quantum"
            )
        return _segment_sums(self.values * self.values, self.pair_start[self.counts.cell_start])


def _order(pair: IntArray, time: IntArray, value: IntArray) -> IntArray:
    """Order by (pair, time, value), shape (N,): by one packed key where pairs and times fit into 63 bits and none repeats.

    Sorting one key is ten times as fast as sorting by several.
    """
    if not len(pair):
        return np.zeros(0, dtype=np.int64)
    start = time.min()
    bits = int(time.max() - start).bit_length()
    if int(pair.max()).bit_length() + bits <= 63:
        packed = (pair << bits) | (time - start)
        order: IntArray = np.argsort(packed)
        packed = packed[order]
        if not np.any(packed[1:] == packed[:-1]):
            return order
    return np.lexsort((value, time, pair))


def _segment_sums(column: IntArray, start: IntArray) -> IntArray:
    total = np.append(0, np.cumsum(column, dtype=np.int64))
    sums: IntArray = total[start[1:]] - total[start[:-1]]
    return sums
