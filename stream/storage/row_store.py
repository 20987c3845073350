"""Rows of a feed in Redis, by partition and timeslot, with offsets and times. Rows are stored exactly once, even if
redelivered.

A batch of one partition becomes one blob per timeslot, appended by one Lua call that also moves the partition's offset;
rows below the stored offset are skipped, so a second delivery changes nothing, even with other batch boundaries or by a
former owner of the partition. A batch that begins beyond the stored offset is refused, so nothing is skipped if Redis
was set back. Sealed slots, and slots of retired periods, take no more rows, and no slot takes rows that the broker
appended after its deadline. The call that stores the rows decides this. All that it touches is on the partition's
shard.

A partition takes rows only once it was opened, so that whoever seals a window knows of it.

Who opens it names it first and reads the feed's seals then; who seals a window writes the feed's seal first and reads
the names then. So in every order one of them seals the window in this partition. The offset at which the partition
begins is noted before the first row, so a partition whose shard lost it is known by its note, and is read again from
there.

Nothing of a window is read before every partition has sealed it, and each read states the seal that it saw. So what was
read is all that the partitions stored before their seals, also if a shard was set back meanwhile: then its seal is
gone, or it is another one.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpcore.arrays import IntArray
from stream.storage.client import Argument, Call, each, run
from stream.storage.keys import OfFeed, PartKeys
from stream.storage.ledger import AFRESH
from stream.windows import PartitionTime, utc_text

ROW = np.dtype(
    [("cell", "<u8"), ("user", "<u8"), ("time", "<i8"), ("lat", "<i4"), ("lng", "<i4"), ("value", "<i4")], align=False
)
"""One event in Redis: 36 bytes; time in µs UTC, lat and lng in 1e-7 degree, value in quanta."""

_PLACELESS = [name for name in ROW.names or () if name not in ("lat", "lng")]
PLACELESS_ROW = np.dtype([(name, ROW[name]) for name in _PLACELESS])
"""The part of a row, 28 bytes, that is read where no statistic needs positions."""

_BYTES_PER_READ = 2**19
"""What one read of a partition takes at least, unless fewer are left: it takes Redis about a millisecond, in which it
serves nobody else."""
_BLOBS_PER_READ = 2_000
"""Most blobs of one read: those of a quiet feed have a row each, and a MiB of them would take ten times as long."""
_PARTITIONS_AT_ONCE = 16
"""Partitions that are read at once: with half a MiB each, what is on its way stays small beside a window."""


class NotSealedError(RuntimeError):
    """A partition does not hold what the window was found due by, or lost its seal: it is read again."""

    def __init__(self, slot: int, partitions: list[str]) -> None:
        named = ", ".join(partitions[:5]) + (" and others" if len(partitions) > 5 else "")
        super().__init__(
            f"window {utc_text(slot)} is not sealed in {named or 'any partition'}: what a shard lost when it was set "
            "back is read again first"
        )


class _Place(NamedTuple):
    """Where reading a partition goes on: its number, the seal that was seen, and the next blob."""

    number: int
    seal: bytes | None
    blob: int


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

    rows: IntArray
    last: int
    deadline: Callable[[int], int]


def by_slot(slots: IntArray) -> Iterator[tuple[int, IntArray | slice]]:
    """Each distinct start of a timeslot among ``slots`` (n,), oldest first, with the indices of its rows, in order."""
    if len(slots) and (slots == slots[0]).all():
        yield int(slots[0]), slice(None)
        return
    order = np.argsort(slots, kind="stable")
    distinct, start = np.unique(slots[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, start[1:]), strict=bool(len(distinct)))


class KnownPartition(NamedTuple):
    """What the feed's shard knows of a partition.

    ``restart``: the offset from which it is read again should its shard be lost; None before it was opened. ``gone``:
    whether the topic no longer has it.
    """

    restart: int | None
    gone: bool


class StateError(RuntimeError):
    """This worker must not write to the state of the feed; the message says why and what to do."""


class ReadThrough(NamedTuple):
    """A partition that was read to its end.

    ``stored``: the next offset that the reader stored (None: none yet). ``position``: the offset at which reading
    continues. ``time_us``: everything appended before this time (µs UTC) lies before ``position``.
    """

    partition: str
    stored: int | None
    position: int
    time_us: int


class Look(NamedTuple):
    """What a look at all partitions saw: how far each partition of the topic was read, at most up to the time when the
    topic was last listed; the next offset of each that is opened; and the starts of timeslots with rows, oldest first.
    """

    times: dict[str, PartitionTime]
    offsets: dict[str, int]
    slots: list[int]


class RowStore(OfFeed):
    """Rows, offsets and times of one feed. The keys of each partition are on one shard, the feed's own on another.

    Windows are sealed, read and deleted in all partitions; each of these calls may be repeated.
    """

    async def now_us(self) -> int:
        """The clock of the feed's shard, µs UTC, which is the same for all workers."""
        seconds, micros = await run(self._redis, "clock", [self._keys.partitions])
        return int(seconds) * 1_000_000 + int(micros)

    async def append(
        self,
        partition: str,
        first_offset: int,
        next_offset: int,
        rows: NDArray[np.void],
        offsets: IntArray,
        slots: IntArray,
        arrivals: AppendTimes | None = None,
        *,
        begun: bool = False,
    ) -> Appended:
        """Append ``rows`` with their message ``offsets`` and timeslot starts ``slots``, all of shape (n,).

        Offsets do not descend; the events of one message share its offset, and all of them are in one call.

        The batch covers offsets first_offset..next_offset-1 of ``partition`` ("topic/number"), including refused
        messages and offsets without a message. Rows that were appended after the deadline of their slot are late;
        without ``arrivals``, only rows of sealed slots are. ``begun``: the reader has stored this partition before, so
        Redis must know it. Raises :class:`Behind` if earlier offsets are missing in Redis.
        """
        part, largest = PartKeys(self._keys, partition), str(int(rows["time"].max())) if len(rows) else ""
        keys: list[str] = [part.progress, part.slots, part.sealed]
        args: list[Argument] = [first_offset, next_offset, largest, "" if arrivals is None else arrivals.last]
        for slot, chosen in by_slot(slots):
            keys.append(part.rows(slot))
            deadline: int | str = ""
            in_time = rows[chosen]
            if arrivals is not None:
                deadline = arrivals.deadline(slot)
                in_time = in_time[: np.searchsorted(arrivals.rows[chosen], deadline, side="right")]
            args += [slot, deadline, in_time.tobytes(), offsets[chosen].astype("<i8").tobytes()]
        while not (answer := await run(self._redis, "append", keys, *args)):
            await self.open(partition, 0 if begun else first_offset)
        if len(answer) == 1:
            raise Behind(partition, answer[0])
        return Appended(*answer)

    async def open(self, partition: str, first_offset: int) -> None:
        """Let ``partition`` take rows from ``first_offset`` on, or from the noted one if it was opened and lost.

        Every step may be repeated, by several workers at once.
        """
        named, part = self._keys, PartKeys(self._keys, partition)
        while True:
            keys = [named.opened, named.sealed, named.closed, named.retired]
            note, mark, sealed = await run(self._redis, "name_partition", keys, partition)
            if note:
                offset, _, opener = note.partition(b" ")
                await run(self._redis, "begin_part", [part.progress, part.sealed], offset, opener, mark, *sealed)
                return
            mine = uuid.uuid4().hex
            opener = await run(self._redis, "prepare_part", [part.progress, part.sealed], mine, mark, *sealed)
            if opener is None:
                return
            await run(self._redis, "note_opener", [named.opened], partition, f"{first_offset} {opener.decode()}")

    async def read_through(self, partitions: Sequence[ReadThrough]) -> dict[str, int]:
        """Record partitions that were read to their end.

        Returns those of which Redis lost rows that had been stored, each with the offset from which it must be read
        again.
        """
        behind, restarts, left = dict[str, int](), dict[str, str](), list(partitions)
        while left:
            mark = await self._redis.get(self._keys.retired) or b"0"
            parts = [PartKeys(self._keys, entry.partition) for entry in left]
            facts = [
                ["" if entry.stored is None else entry.stored, entry.position, entry.time_us, mark] for entry in left
            ]
            calls = [([part.progress, part.slots], fact) for part, fact in zip(parts, facts, strict=True)]
            unopened = []
            for entry, answer in zip(left, await each(self._redis, "read_through", calls), strict=True):
                if not answer:
                    await self.open(entry.partition, entry.position if entry.stored is None else 0)
                    unopened.append(entry)
                elif answer[0]:
                    restarts[entry.partition] = answer[1].decode()
                else:
                    behind[entry.partition] = int(answer[1])
            left = unopened
        if restarts:
            notes = [part for pair in restarts.items() for part in pair]
            await run(self._redis, "restart_partitions", [self._keys.opened], *notes)
        return behind

    async def list_partitions(self, partitions: Iterable[str], time_us: int) -> None:
        """Record which partitions the topic had at ``time_us`` (µs UTC). Windows wait for each of them."""
        named = self._keys
        await run(self._redis, "list_partitions", [named.partitions, named.seen, named.gone], time_us, *partitions)

    async def claim_key(self, fingerprint: str) -> None:
        """Bind the feed, or its shared ledger, to one user key, because with two keys a user would have two pseudonyms
        and two budgets.

        Raises :class:`StateError` if the feed is bound to another key.
        """
        await self._redis.set(self._keys.user_key, fingerprint, nx=True)
        known = await self._redis.get(self._keys.user_key)
        if known is None or known.decode() != fingerprint:
            raise StateError(
                "the pseudonyms in Redis were made with another user key than this worker's; give every worker of the "
                f"feed, and of the feeds that share its ledger, the same privacy.user_key_file. {AFRESH}"
            )

    async def has_key(self) -> bool:
        """Whether the feed is bound to a user key yet."""
        return bool(await self._redis.exists(self._keys.user_key))

    async def move(self, partition: str, stored: int, offset: int) -> None:
        """Continue ``partition`` at ``offset``, because its log lost ``stored``. No change if another worker did so."""
        await self.open(partition, stored)
        await run(self._redis, "move_offset", [PartKeys(self._keys, partition).progress], stored, offset)

    async def read_until(self, partition: str) -> int:
        """All that was appended to ``partition`` until then (µs UTC) was read, or is gone; 0 if nothing was read."""
        return int(await self._redis.hget(PartKeys(self._keys, partition).progress, "read") or 0)

    async def next_offsets(self) -> dict[str, int]:
        """The next offset to store of each opened partition; of one that its shard lost, where to read again."""
        partitions = await self.partitions()
        stored = await self._each_part(partitions, "offset")
        next_ = {name: known.restart for name, known in partitions.items()}
        next_ |= {name: int(offset) for name, offset in stored.items() if offset is not None}
        return {name: offset for name, offset in next_.items() if offset is not None}

    async def _each_part(self, partitions: dict[str, KnownPartition], script: str) -> dict[str, Any]:
        parts = [PartKeys(self._keys, name) for name in partitions]
        if not parts:
            return {}
        answers = await each(self._redis, script, [([part.progress, part.slots], []) for part in parts])
        return dict(zip(partitions, answers, strict=True))

    async def look(self) -> Look:
        """Look at all partitions."""
        named = self._keys
        *answers, opened = await run(self._redis, "look", [named.partitions, named.seen, named.opened])
        listed, seen = map(_pairs, answers)
        parts = await self._each_part(_known(opened, listed, ()), "look_part")
        times = {}
        for name, listed_us in listed.items():
            _, read, event, moved = parts[name.decode()][0]
            moved_us, read_us = int(moved or seen.get(name) or listed_us), min(int(read or 0), int(listed_us))
            times[name.decode()] = PartitionTime(None if event is None else int(event), moved_us, read_us)
        offsets = {name: int(progress[0]) for name, (progress, _) in parts.items() if progress[0] is not None}
        return Look(times, offsets, sorted({int(slot) for _, slots in parts.values() for slot in slots}))

    async def open_slots(self) -> list[int]:
        """Starts of timeslots with rows, oldest first; also of windows that were set aside."""
        return (await self.look()).slots

    async def first_slot(self, default: int) -> int:
        """Under "participation": the oldest slot that may not be released yet; ``default`` where none is recorded."""
        return int(await self._redis.get(self._keys.first_slot) or default)

    async def advance_first_slot(self, slot: int, following: int) -> None:
        """Record that everything before ``following`` is released. No change if another than ``slot`` is recorded,
        because another worker has moved on already."""
        await run(self._redis, "advance_first_slot", [self._keys.first_slot], slot, following)

    async def in_progress(self, slot: int) -> bool:
        """Whether the slot is planned or committed, but not released yet."""
        return bool(await self._redis.exists(self._keys.plan(slot), self._keys.outbox(slot)))

    async def is_closed(self, slot: int) -> bool:
        """Whether the slot was released."""
        return bool(await self._redis.hexists(self._keys.closed, str(slot)))

    async def partitions(self) -> dict[str, KnownPartition]:
        """The partitions that may hold rows."""
        named = self._keys
        return _known(*await run(self._redis, "partitions", [named.opened, named.partitions, named.gone]))

    async def seal_others(self, slot: int) -> dict[str, KnownPartition]:
        """Seal ``slot`` in partitions that are opened later. Returns the others, which may hold rows."""
        named = self._keys
        keys = [named.opened, named.partitions, named.gone, named.sealed]
        return _known(*await run(self._redis, "seal", keys, slot))

    async def seal(self, slot: int, least: Mapping[str, int] | None = None) -> None:
        """Seal ``slot`` in every partition: later rows are late, and the stored rows are those that will be released.

        ``least``: next offsets by which the window was found due; a partition that stored less is not sealed, because
        its shard was set back since. Raises :class:`NotSealedError` if a partition is not sealed.
        """
        partitions, bounds = await self.seal_others(slot), least or {}
        calls: list[Call] = []
        for name, known in partitions.items():
            part = PartKeys(self._keys, name)
            keys = [part.progress, part.sealed, *([part.slots] if known.gone else [])]
            calls.append((keys, [slot, bounds.get(name, ""), int(known.restart is not None)]))
        answers = await each(self._redis, "seal_part", calls) if calls else []
        if refused := [name for name, sealed in zip(partitions, answers, strict=True) if not sealed]:
            raise NotSealedError(slot, refused)

    async def read(self, slot: int, *, positions: bool = True) -> NDArray[np.void]:
        """Every row of ``slot``, in order of partitions and arrival, without lat and lng if ``positions`` are not
        needed.

        Raises :class:`NotSealedError` unless every partition has sealed it.
        """
        stored, names = bytearray(), list(partitions := await self.partitions())
        waiting = [_Place(number, None, 0) for number in range(len(names))]
        while waiting:
            turn, waiting = waiting[:_PARTITIONS_AT_ONCE], waiting[_PARTITIONS_AT_ONCE:]
            calls: list[Call] = []
            for place in turn:
                part = PartKeys(self._keys, name := names[place.number])
                keys = [part.sealed, part.rows(slot), *([part.slots] if partitions[name].gone else [])]
                calls.append((keys, [slot, place.blob, _BYTES_PER_READ, _BLOBS_PER_READ]))
            left = []
            for place, answer in zip(turn, await each(self._redis, "read_part", calls), strict=True):
                if not answer or place.seal not in (None, answer[0]):
                    raise NotSealedError(slot, [names[place.number]])
                seal, last, *blobs = answer
                rows = np.frombuffer(b"".join(blobs), dtype=ROW)
                stored += (rows if positions else rows[_PLACELESS].astype(PLACELESS_ROW)).data.cast("B")
                if not last:
                    left.append(_Place(place.number, seal, place.blob + len(blobs)))
            waiting = left + waiting
        return np.frombuffer(stored, dtype=ROW if positions else PLACELESS_ROW)

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of a released slot. It stays sealed; where a shard is away it is deleted later."""
        await self._drop(slot, await self.partitions())

    async def discard(self, slot: int) -> None:
        """Delete the rows of a slot that is never released, and let no more of it come."""
        await self._drop(slot, await self.seal_others(slot))

    async def _drop(self, slot: int, partitions: dict[str, KnownPartition]) -> None:
        calls: list[Call] = []
        for name, known in partitions.items():
            part = PartKeys(self._keys, name)
            calls.append(([part.slots, part.sealed, part.rows(slot)], [slot, int(not known.gone)]))
        if calls:
            await each(self._redis, "drop_part", calls)


def _pairs(hash_: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(hash_[::2], hash_[1::2], strict=True))


def _known(opened: Sequence[bytes], listed: Iterable[bytes], gone: Iterable[bytes]) -> dict[str, KnownPartition]:
    """The partitions that were ever opened or are listed, in order of their names."""
    notes, left = _pairs(opened), set(gone)
    restarts = {name: int(note.split(b" ")[0]) if (note := notes.get(name)) else None for name in {*notes, *listed}}
    return {name.decode(): KnownPartition(restarts[name], name in left) for name in sorted(restarts)}
