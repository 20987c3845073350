"""Adds batches of a partition to sums. The script that stores a piece decides what of it is late, and whether it is stored at all.

A piece is computed from its rows and from what the store said of their users. Where the store knows more, it says so and writes
nothing, and the piece is computed anew: an event is added once, whatever is delivered again, and wherever batches begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis

from stream.storage.arriving import Appended, Arriving, Behind
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.opening import Opening
from stream.storage.scripts import Argument, Script
from stream.storage.stored_sums import HEAD, NOBODY, SumTerms, counted, packed

Form = Literal["rows", "sums"]
"""What a partition holds of a window."""

_PAIRS_AT_ONCE = 1_000
"""Pairs of one piece, unless a message has more: while they are added, which takes some milliseconds, Redis serves nobody else."""
_ADDED, _SKEWED = 0, 2
"""Verdicts of the script on a slot; the other one is that its rows are late."""
_FORMS_KEPT = 4_096
"""Windows of partitions of which it is remembered that they hold the other form."""


class _Users(NamedTuple):
    """What the store knows of some users of a window, :data:`HEAD`, and how many events of one may count."""

    known: NDArray[np.void]
    most: int


class _OfSlot(NamedTuple):
    """The rows of one slot: what the script is told of them; how many there are, in time, and counting; why others do not count."""

    args: list[Argument]
    rows: int
    in_time: int
    counts: int
    overtaken: int = 0
    beyond: int = 0


class AddingSums:
    """Adds batches to sums, or to rows where a window holds them. ``form``: that of windows that hold nothing yet."""

    def __init__(self, redis: Redis, keys: FeedKeys, opening: Opening, terms: SumTerms, form: Form) -> None:
        self._keys, self._opening, self._terms, self.form = keys, opening, terms, form
        self._script = Script(redis, "moving.lua", "add_sums.lua")
        self._other: dict[tuple[str, int], Form] = {}

    def note(self, partition: str, slot: int, form: Form) -> None:
        """Remember which form a window holds, so that its next batch is made so at once."""
        if len(self._other) >= _FORMS_KEPT:
            self._other.clear()
        self._other[partition, slot] = form

    def knows(self, batch: Arriving) -> bool:
        """Whether a window of the batch holds another form than new ones do."""
        return bool(self._other) and any((batch.partition, slot) in self._other for slot, _ in batch.by_slot())

    async def add(self, batch: Arriving, *, begun: bool) -> Appended:
        """Add ``batch``, in pieces. Raises :class:`Behind` if earlier offsets are missing in Redis."""
        total, asked, left = Appended(0, 0, 0), dict[int, _Users](), batch
        while True:
            piece = left.head(_PAIRS_AT_ONCE)
            slots = list(piece.by_slot())
            parts = [self._of_slot(piece, slot, chosen, asked.get(slot)) for slot, chosen in slots]
            part = PartKeys(self._keys, piece.partition)
            keys = [part.progress, part.slots, part.sealed, *(part.rows(slot) for slot, _ in slots)]
            args: list[Argument] = [*piece.facts, *self._terms, *(arg for of_slot in parts for arg in of_slot.args)]
            answer = await self._script.run(keys, args)
            if not answer:
                await self._opening.open(piece.partition, 0 if begun else piece.first)
            elif answer[0] == b"known":
                asked |= dict(_users(answer[1:]))
            elif len(answer) == 2 and answer[1] in (b"rows", b"sums"):
                self.note(piece.partition, int(answer[0]), answer[1].decode())
            else:
                following = piece.following
                if answer[0] == b"stored":
                    total = _with(total, parts, answer[1:])
                elif answer[0] < left.first:
                    raise Behind(batch.partition, answer[0])
                else:
                    following = answer[0]
                    total = total.plus(duplicates=int(np.searchsorted(left.offsets, following)))
                rest = left.after(following)
                if rest is None:
                    return total
                left, asked = rest, {}

    def _of_slot(self, piece: Arriving, slot: int, chosen: NDArray[np.int64] | slice, users: _Users | None) -> _OfSlot:
        deadline, in_time = piece.in_time(slot, chosen)
        rows = len(piece.offsets[chosen])
        args: list[Argument] = [slot, deadline, len(in_time), int(piece.offsets[chosen][0])]
        if self._other.get((piece.partition, slot), self.form) == "rows":
            return _OfSlot([*args, in_time.tobytes(), b"", b"", b""], rows, len(in_time), len(in_time))
        known, most = users or _Users(NOBODY, self._terms.most)
        which = counted(in_time["user"], in_time["time"].astype(np.int64), known, most)
        counting = in_time[which.counts]
        args += [b"", *packed(counting, self._terms.upper)]
        return _OfSlot(args, rows, len(in_time), len(counting), which.overtaken, which.beyond)


def _users(answer: list[Any]) -> Iterator[tuple[int, _Users]]:
    for slot, most, known in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
        yield int(slot), _Users(np.frombuffer(known, dtype=HEAD), int(most))


def _with(total: Appended, parts: list[_OfSlot], verdicts: list[int]) -> Appended:
    """``total`` and the rows of a piece that was stored."""
    for part, verdict in zip(parts, verdicts, strict=True):
        if verdict == _ADDED:
            total = total.plus(
                appended=part.counts, late=part.rows - part.in_time, overtaken=part.overtaken, beyond=part.beyond
            )
        else:
            total = total.plus(late=part.rows, skewed=part.in_time if verdict == _SKEWED else 0)
    return total
