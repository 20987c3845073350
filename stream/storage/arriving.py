"""A batch of one partition on its way to Redis, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.storage.scripts import Argument

_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose bits look random."""


class Behind(Exception):  # noqa: N818 - an answer of the state, not a fault
    """The batch begins beyond ``stored``, the next offset in Redis, so reading must continue from there."""

    def __init__(self, partition: str, stored: int) -> None:
        super().__init__(f"state of {partition} ends at offset {stored}")
        self.stored = stored


class Appended(NamedTuple):
    """Numbers of rows of one call: stored, stored before, late.

    ``skewed``: late rows that were in time by the broker's timestamp, although the partition had been read past that time. The
    clocks of brokers and Redis then differ by more than is allowed. ``overtaken``, ``beyond``: rows that sums do not count, because an
    event of their user that counts is as late in event time, or because their user has as many events as may count.
    """

    appended: int
    duplicates: int
    late: int
    skewed: int = 0
    overtaken: int = 0
    beyond: int = 0

    def plus(self, **more: int) -> Appended:
        """These numbers and ``more``."""
        return self._replace(**{name: getattr(self, name) + number for name, number in more.items()})


class Arrivals(NamedTuple):
    """When the broker appended the messages of a batch, µs UTC; the times do not decrease.

    ``rows``: time of each row, shape (n,). ``last``: time of the last message, even if it gave no row. ``deadline``: function
    from the start of a slot (epoch seconds) to the time until which its rows are in time.
    """

    rows: NDArray[np.int64]
    last: int
    deadline: Callable[[int], int]


@dataclass(frozen=True)
class Arriving:
    """Offsets ``first`` to ``following`` - 1 of ``partition``: their ``rows``, each with its offset and timeslot start, (n,).

    Offsets do not descend; the rows of one message share its offset.
    """

    partition: str
    first: int
    following: int
    rows: NDArray[np.void]
    offsets: NDArray[np.int64]
    slots: NDArray[np.int64]
    arrivals: Arrivals | None

    @property
    def facts(self) -> list[Argument]:
        """What a script is told of a batch: first and next offset, largest event time, append time of the last message."""
        largest = str(int(self.rows["time"].max())) if len(self.rows) else ""
        return [self.first, self.following, largest, "" if self.arrivals is None else self.arrivals.last]

    def by_slot(self) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
        """Each distinct slot with the indices of its rows, in order."""
        if len(self.slots) and (self.slots == self.slots[0]).all():
            yield int(self.slots[0]), slice(None)
            return
        order = np.argsort(self.slots, kind="stable")
        distinct, start = np.unique(self.slots[order], return_index=True)
        yield from zip(distinct.tolist(), np.split(order, start[1:]), strict=bool(len(distinct)))

    def in_time(self, slot: int, chosen: NDArray[np.int64] | slice) -> tuple[str, NDArray[np.void]]:
        """(Deadline of the slot in µs, '' for none; those of its ``chosen`` rows that were appended by then)."""
        if self.arrivals is None:
            return "", self.rows[chosen]
        deadline = self.arrivals.deadline(slot)
        return str(deadline), self.rows[chosen][: np.searchsorted(self.arrivals.rows[chosen], deadline, side="right")]

    @property
    def are_in_time(self) -> NDArray[np.bool_]:
        """Whether each row was appended by the deadline of its slot, (n,)."""
        if self.arrivals is None:
            return np.ones(len(self.rows), dtype=bool)
        slots, of_row = np.unique(self.slots, return_inverse=True)
        deadlines = np.array([self.arrivals.deadline(slot) for slot in slots.tolist()], dtype=np.int64)
        return np.asarray(self.arrivals.rows <= deadlines[of_row])

    def head(self, pairs: int) -> Arriving:
        """The batch up to the end of the message with the last row of its first ``pairs`` pairs of user and cell."""
        if len(self.rows) <= pairs:
            return self
        pair = self.rows["user"] * _MIXER + self.rows["cell"]  # two that become equal make the head a little longer
        first = np.sort(np.unique(pair, return_index=True)[1])
        if len(first) <= pairs:
            return self
        end = int(np.searchsorted(self.offsets, self.offsets[first[pairs] - 1], side="right"))
        return self if end == len(self.rows) else self._part(0, end, self.first, int(self.offsets[end - 1]) + 1)

    def after(self, offset: int) -> Arriving | None:
        """The batch from ``offset`` on; None if it ends before."""
        if offset >= self.following:
            return None
        begin = int(np.searchsorted(self.offsets, offset))
        return self._part(begin, len(self.rows), offset, self.following)

    def _part(self, begin: int, end: int, first: int, following: int) -> Arriving:
        arrivals = self.arrivals
        if arrivals is not None:
            times = arrivals.rows[begin:end]
            last = arrivals.last if following == self.following else int(times[-1])
            arrivals = Arrivals(times, last, arrivals.deadline)
        return Arriving(
            self.partition,
            first,
            following,
            self.rows[begin:end],
            self.offsets[begin:end],
            self.slots[begin:end],
            arrivals,
        )
