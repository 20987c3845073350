"""Adds batches of a partition to sums. The script that stores a piece decides what of it is late, and whether it is stored at all.

A piece is computed from its rows and from what the store said of their users. Where the store knows more, it says so and writes
nothing, and the piece is computed anew: an event is added once, whatever is delivered again, and wherever batches begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from redis.asyncio import Redis

from stream.storage.arriving import Appended, Arriving, Behind
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.opening import Opening
from stream.storage.scripts import Argument, Script
from stream.storage.stored_sums import HEAD, Known, SumTerms, counted, packed

Form = Literal["rows", "sums"]
"""What a partition holds of a window."""

_PAIRS_AT_ONCE = 1_000
"""Pairs of one piece, unless a message has more: while they are added, which takes some milliseconds, Redis serves nobody else."""
_ADDED, _SKEWED = 0, 2
"""Verdicts of the script on a slot; the other one is that its rows are late."""
_FORMS_KEPT = 4_096
"""Windows of partitions of which it is remembered that they hold the other form."""


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
        total, asked, left = Appended(0, 0, 0), dict[int, Known](), batch
        while True:
            piece = left.head(_PAIRS_AT_ONCE)
            parts = self._by_slot(piece, asked)
            part = PartKeys(self._keys, piece.partition)
            keys = [part.progress, part.slots, part.sealed, *map(part.rows, parts)]
            args = [*piece.facts, *self._terms, *(arg for of_slot in parts.values() for arg in of_slot.args)]
            answer = await self._script.run(keys, args)
            if not answer:
                await self._opening.open(piece.partition, 0 if begun else piece.first)
            elif answer[0] == b"known":
                asked |= dict(_known(answer[1:]))
            elif len(answer) == 2 and answer[1] in (b"rows", b"sums"):
                self.note(piece.partition, int(answer[0]), answer[1].decode())
            else:
                following = piece.following
                if answer[0] == b"stored":
                    total = _with(total, parts.values(), answer[1:])
                elif answer[0] < left.first:
                    raise Behind(batch.partition, answer[0])
                else:
                    following = answer[0]
                    total = total.plus(duplicates=int(np.searchsorted(left.offsets, following)))
                rest = left.after(following)
                if rest is None:
                    return total
                left, asked = rest, {}

    def _by_slot(self, piece: Arriving, asked: dict[int, Known]) -> dict[int, _OfSlot]:
        """What the script is told of each slot. All slots are computed at once, as a sender may choose thousands."""
        slots, in_time = list(piece.by_slot()), piece.are_in_time
        held_as_rows = {slot for slot, _ in slots if self._form_of(piece, slot) == "rows"}
        summed = np.flatnonzero(in_time & ~np.isin(piece.slots, list(held_as_rows)))
        window, rows, terms = piece.slots[summed], piece.rows[summed], self._terms
        which = counted(window, rows["user"], rows["time"].astype(np.int64), terms.most, asked)
        sums = packed(window[which.counts], rows[which.counts], terms.upper)
        counts, beyond = np.zeros((2, len(piece.rows)), dtype=bool)
        counts[summed], beyond[summed] = which
        parts = {}
        for slot, chosen in slots:
            deadline, given = piece.in_time(slot, chosen)
            args: list[Argument] = [slot, deadline, len(given), int(piece.offsets[chosen][0])]
            number = len(piece.offsets[chosen])
            if slot in held_as_rows:
                parts[slot] = _OfSlot([*args, given.tobytes(), b"", b"", b""], number, len(given), len(given))
                continue
            counting, above = int(counts[chosen].sum()), int(beyond[chosen].sum())
            args += [b"", *sums.get(slot, (b"", b"", b""))]
            parts[slot] = _OfSlot(args, number, len(given), counting, len(given) - counting - above, above)
        return parts

    def _form_of(self, piece: Arriving, slot: int) -> Form:
        return self._other.get((piece.partition, slot), self.form)


def _known(answer: list[Any]) -> Iterator[tuple[int, Known]]:
    for slot, most, users in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
        yield int(slot), Known(np.frombuffer(users, dtype=HEAD), int(most))


def _with(total: Appended, parts: Iterable[_OfSlot], verdicts: list[int]) -> Appended:
    """``total`` and the rows of a piece that was stored."""
    for part, verdict in zip(parts, verdicts, strict=True):
        if verdict == _ADDED:
            total = total.plus(
                appended=part.counts, late=part.rows - part.in_time, overtaken=part.overtaken, beyond=part.beyond
            )
        else:
            total = total.plus(late=part.rows, skewed=part.in_time if verdict == _SKEWED else 0)
    return total
