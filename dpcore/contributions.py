"""Contributions as ragged columns: who (user) gave how many values to which cell, and the values.

Values are integers on a public grid (quanta), clipped to [0, U] before anything is summed. Under relation "values"
:class:`Counts` is public; under "participation" nothing here is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.errors import OverflowBoundError, ParameterError

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]

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


@dataclass(frozen=True)
class Contributions:
    """Values behind :class:`Counts`: N ``quanta`` in [0, ``upper``] and their times, sorted by (cell, user, time).

    Quanta are kept in 32 bits where ``upper`` permits that, and are widened before anything is computed with them. Times are kept
    ``since`` the ``earliest``, in 32 bits where they fit.
    """

    counts: Counts
    quanta: npt.NDArray[np.int32] | IntArray
    since: npt.NDArray[np.uint32] | IntArray
    earliest: int
    pair_start: IntArray
    upper: int

    @classmethod
    def group(
        cls, cell: IdArray, user: IdArray, time: IntArray, value: npt.NDArray[Any], *, upper: int
    ) -> Contributions:
        """Group N events (columns of shape (N,)), clipping each value to [0, ``upper``] quanta.

        Raises :class:`ParameterError` for columns of unequal length or ``upper`` < 0, :class:`OverflowBoundError` if
        N·upper could leave int64.
        """
        if upper < 0:
            raise ParameterError(f"upper bound {upper} quanta is negative; give 0 or more")
        n = len(value)
        if not len(cell) == len(user) == len(time) == n:
            raise ParameterError(f"columns of {len(cell)}, {len(user)}, {len(time)} and {n} rows; give equal lengths")
        check_values(n, upper)
        events = _Ordered.by(cell, user, time, value)
        pair_start = np.append(events.first, n).astype(np.int64)
        pair_cell, pair_user = np.divmod(events.pair, max(len(events.users), 1))
        counts = Counts(events.cells, events.users, pair_cell, pair_user, np.diff(pair_start))
        clipped = np.clip(events.value, 0, min(upper, np.iinfo(events.value.dtype).max), out=events.value)
        quanta: npt.NDArray[Any] = clipped.astype(np.int32 if upper < 2**31 else np.int64, copy=False)
        return cls(counts, quanta, events.since, events.earliest, pair_start, upper)

    @property
    def values(self) -> IntArray:
        """The quanta in 64 bits, shape (N,), made anew."""
        return self.quanta.astype(np.int64)

    @property
    def times(self) -> IntArray:
        """The times in 64 bits, shape (N,), made anew."""
        return self.since.astype(np.int64) + self.earliest

    def regroup(self, renamed: IdArray) -> Contributions:
        """The same events with cell g called ``renamed[g]``, shape (C,); a user's in cells of one name are one pair."""
        counts = self.counts
        if len(renamed) != counts.n_cells:
            raise ParameterError(f"{len(renamed)} names for {counts.n_cells} cells; give one for each")
        cell = np.repeat(renamed[counts.pair_cell], counts.samples)
        user = np.repeat(counts.users[counts.pair_user], counts.samples)
        return Contributions.group(cell, user, self.times, self.quanta, upper=self.upper)

    def retain(self, samples: IntArray) -> Contributions:
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

    def cell_sums(self, caps: IntArray | None = None) -> IntArray:
        """Σx per cell in quanta, shape (C,); with ``caps``, shape (C,), no user adds more than that to each cell."""
        if caps is None:
            return _segment_sums(self.quanta, self.pair_start[self.counts.cell_start])
        own = _segment_sums(self.quanta, self.pair_start)
        return self.counts.by_cell(np.minimum(own, caps[self.counts.pair_cell]))

    def cell_squares(self) -> IntArray:
        """Σx² per cell in quanta², shape (C,); raises :class:`OverflowBoundError` where that could leave int64."""
        check_squares(len(self.quanta), self.upper)
        bounds, squares = self.pair_start[self.counts.cell_start], np.zeros(self.counts.n_cells, np.int64)
        for first, end in stretches(bounds):
            values = self.quanta[bounds[first] : bounds[end]].astype(np.int64)
            squares[first:end] = _segment_sums(values * values, bounds[first : end + 1] - bounds[first])
        return squares


def check_values(n: int, upper: int) -> None:
    """Raise :class:`OverflowBoundError` if ``n`` values of up to ``upper`` quanta could leave int64 together."""
    if n * max(upper, 1) >= MAX_TOTAL:
        raise OverflowBoundError(f"{n} values of up to {upper} quanta could exceed 2^62; use a coarser quantum")


def check_squares(n: int, upper: int) -> None:
    """Raise :class:`OverflowBoundError` if the squares of ``n`` values of up to ``upper`` quanta could leave int64 together."""
    if n * max(upper, 1) ** 2 >= MAX_TOTAL:
        raise OverflowBoundError(f"squares of {n} values of up to {upper} quanta could exceed 2^62; coarser quantum")


def indexed(ids: IdArray | IntArray) -> tuple[Any, npt.NDArray[np.int32]]:
    """The distinct ``ids``, ascending, and the position of each entry among them, (N,); fewer than 2^31 distinct ones.

    As ``np.unique`` with its inverse, in less time and memory: one key is sorted by itself, and positions are looked up in a
    table by a hash. The few whose place in the table another id took are looked up by bisection.
    """
    ordered = np.sort(ids)
    distinct = ordered[_first_of_equal(ordered)]
    del ordered
    bits = (_PLACES_PER_ID * len(distinct)).bit_length()
    table = np.zeros(2**bits, dtype=np.int32)
    table[_places(distinct, bits)] = np.arange(len(distinct))
    position = np.empty(len(ids), dtype=np.int32)
    for start in range(0, len(ids), _BLOCK):
        block, into = np.ascontiguousarray(ids[start : start + _BLOCK]), position[start : start + _BLOCK]
        places = table[_places(block, bits)]
        missed = np.flatnonzero(distinct[places] != block)
        if len(missed):
            # In ascending order, bisection finds most of what it reads in the processor's cache.
            missed = missed[np.argsort(block[missed])]
            places[missed] = np.searchsorted(distinct, block[missed])
        into[:] = places
    return distinct, position


def _places(ids: npt.NDArray[Any], bits: int) -> IntArray:
    """The place of each id in a table of 2^``bits``, (N,)."""
    place: IdArray = ids.view(np.uint64) >> np.uint64(32)
    place ^= ids.view(np.uint64)
    place *= _MIXER
    place >>= np.uint64(64 - bits)
    return place.view(np.int64)


_BLOCK = 2**16
"""Entries that are looked up at a time: few enough for the processor's cache."""
_PLACES_PER_ID = 4
"""Least places of the table for each distinct id; at most twice as many. About one id in eight finds its place taken, or fewer."""
_MIXER = np.uint64(0xD6E8FEB86659FD93)
"""An odd number whose bits look random: the upper bits of products differ even where ids differ little."""


def in_order(user: IdArray, time: IntArray) -> IntArray:
    """The order of events by (user, time), shape (N,); that of equal ones is any. By one packed key where it has 63 bits."""
    if not len(user):
        return np.zeros(0, dtype=np.int64)
    earliest = int(time.min())
    bits = (int(time.max()) - earliest).bit_length()
    users, position = indexed(user)
    if len(users).bit_length() + bits > 63:
        return np.lexsort((time, position))
    key = position.astype(np.int64)
    key <<= bits
    key += time
    key -= earliest
    order: IntArray = np.argsort(key)
    return order


@dataclass(frozen=True)
class _Ordered:
    """N events by (cell, user, time, value): distinct ``cells`` and ``users``; times ``since`` the ``earliest`` and ``value`` in
    that order, (N,) each; for each pair its position, ``first``, and ``pair``, cell · L + user by their positions, (P,) each.
    """

    cells: IdArray
    users: IdArray
    earliest: int
    since: npt.NDArray[Any]
    value: npt.NDArray[Any]
    first: IntArray
    pair: IntArray

    @classmethod
    def by(cls, cell: IdArray, user: IdArray, time: IntArray, value: npt.NDArray[Any]) -> _Ordered:
        """Sort by one packed key: pair, upper bits of the time, number of the event. It alone is sorted, which is five times as fast as
        finding its order. Events that it leaves in doubt are few and are sorted among themselves.
        """
        (cells, of_cell), (users, of_user) = indexed(cell), indexed(user)
        key = of_cell.astype(np.int64)
        key *= len(users)
        key += of_user
        del of_cell, of_user
        numbers, named = len(key).bit_length(), None
        if int(key.max(initial=0)).bit_length() + _LEAST_TIME + numbers > 63:
            named, position = indexed(key)  # those that occur need no more bits than numbers of events
            key = position.astype(np.int64)
        earliest, since = _since_earliest(time)
        span = int(since.max(initial=0)).bit_length()
        bits = min(63 - numbers - int(key.max(initial=0)).bit_length(), span)
        key <<= bits
        key += since >> (span - bits)
        key <<= numbers
        key += np.arange(len(key), dtype=np.int32)
        key.sort()
        order = key & ((1 << numbers) - 1)
        key >>= numbers
        _break_ties(order, key, since, value)
        key >>= bits
        first = _first_of_equal(key)
        pair = key[first] if named is None else named[key[first]]
        del key
        since = since[order]
        return cls(cells, users, earliest, since, np.ascontiguousarray(value)[order], first, pair)


def _since_earliest(time: IntArray) -> tuple[int, npt.NDArray[np.uint32] | IntArray]:
    """The earliest time, and the times since then, (N,), in 32 bits where all of them fit."""
    earliest, latest = (int(time.min()), int(time.max())) if len(time) else (0, 0)
    since: npt.NDArray[Any] = np.empty(len(time), dtype=np.uint32 if latest - earliest < 2**32 else np.int64)
    return earliest, np.subtract(time, earliest, out=since, casting="unsafe")


_LEAST_TIME = 8
"""Bits of the time in a key; if they are fewer, pairs are counted first, which makes room."""


def _break_ties(order: IntArray, key: IntArray, since: npt.NDArray[Any], value: npt.NDArray[Any]) -> None:
    """Put ``order`` into the order of ``since`` and ``value`` where the sorted ``key`` is the same."""
    again = np.flatnonzero(key[1:] == key[:-1])
    if len(again):
        tied = np.union1d(again, again + 1)
        events = order[tied]
        order[tied] = events[np.lexsort((value[events], since[events], key[tied]))]


def _first_of_equal(ordered: npt.NDArray[Any]) -> IntArray:
    """Where each distinct entry of a sorted column begins."""
    new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return np.flatnonzero(new)


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
