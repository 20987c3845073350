"""A batch of one partition on its way to Redis, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.storage.scripts import Argument


class Behind(Exception):  # noqa: N818 - an answer of the state, not a fault
    """The batch begins beyond ``stored``, the next offset in Redis, so reading must continue from there."""

    def __init__(self, partition: str, stored: int) -> None:
        super().__init__(f"state of {partition} ends at offset {stored}")
        self.stored = stored


class Appended(NamedTuple):
    """Numbers of rows of one call: stored, stored before, late.

    ``skewed``: late rows that were in time by the broker's timestamp, although the partition had been read past that
    time. The clocks of brokers and Redis then differ by more than is allowed.
    """

    appended: int
    duplicates: int
    late: int
    skewed: int = 0


class AppendTimes(NamedTuple):
    """When the broker appended the messages of a batch, µs UTC; the times do not decrease.

    ``rows``: time of each row, shape (n,). ``last``: time of the last message, even if it gave no row. ``deadline``:
    function from the start of a slot (epoch seconds) to the time until which its rows are in time.
    """

    rows: NDArray[np.int64]
    last: int
    deadline: Callable[[int], int]


@dataclass(frozen=True)
class PartitionBatch:
    """Offsets ``first`` to ``following`` - 1 of ``partition``: their ``rows``, each with its offset and timeslot start,
    (n,).

    Offsets do not descend; the rows of one message share its offset.
    """

    partition: str
    first: int
    following: int
    rows: NDArray[np.void]
    offsets: NDArray[np.int64]
    slots: NDArray[np.int64]
    arrivals: AppendTimes | None

    @property
    def facts(self) -> list[Argument]:
        """What a script is told of a batch: first and next offset, largest event time, append time of the last
        message."""
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
