"""Rows of a feed in Redis, by timeslot, with offsets and watermarks. Rows are stored exactly once, even if redelivered.

A batch of one partition becomes one blob per timeslot, appended by one Lua call that also moves the partition's offset;
rows below the stored offset are skipped, so a second delivery changes nothing, even with other batch boundaries or by a
former owner of the partition. A batch that begins beyond the stored offset is refused, so nothing is skipped if Redis
was set back. Sealed slots, and slots of retired periods, take no more rows, and no slot takes rows that the broker
appended after its deadline. The call that stores the rows decides this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis

from stream.config import Config
from stream.storage.keys import FeedKeys
from stream.storage.ledger import AFRESH
from stream.windows import PartitionTime

ROW = np.dtype(
    [("cell", "<u8"), ("user", "<u8"), ("time", "<i8"), ("lat", "<i4"), ("lng", "<i4"), ("value", "<i4")], align=False
)
"""One event in Redis: 36 bytes; time in µs UTC, lat and lng in 1e-7 degree, value in quanta."""

_PLACELESS = [name for name in ROW.names or () if name not in ("lat", "lng")]
PLACELESS_ROW = np.dtype([(name, ROW[name]) for name in _PLACELESS])
"""What is read of an event where no statistic needs its position: 28 bytes."""

_BYTES_PER_READ = 2**21
"""About what one read asks Redis for, which serves nobody else meanwhile: 2 MiB take it a millisecond."""
_BLOBS_PER_READ = 512
"""Most blobs of one read, because after a quiet night they may be a thousand times as long as those before."""

_MOVE = """
-- Of a partition that Redis lost, it stored no offset: the reader begins with it at 0.
if (redis.call('HGET', KEYS[1], ARGV[1]) or '0') == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
"""


class StateError(RuntimeError):
    """This worker must not write to the state of the feed; the message says why and what to do."""


class Behind(Exception):  # noqa: N818 - an answer of the state, not a fault
    """The batch begins beyond ``stored``, the next offset in Redis, so reading must continue from there."""

    def __init__(self, partition: str, stored: int) -> None:
        super().__init__(f"state of {partition} ends at offset {stored}")
        self.stored = stored


_READ_THROUGH = """
-- KEYS: offsets, read; ARGV per partition: name, offset that the reader stored up to ('' = none), its position, time (µs)
-- A position may lie beyond what was stored: marks of transactions take offsets. Returns each partition of which the store
-- knows less than the reader stored, and the offset up to which it does, with nothing written for it.
local behind = {}
for i = 1, #ARGV, 4 do
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  if ARGV[i + 1] ~= '' and (not known or tonumber(known) < tonumber(ARGV[i + 1])) then
    behind[#behind + 1] = ARGV[i]
    behind[#behind + 1] = known or '0'
  else
    if not known or tonumber(known) < tonumber(ARGV[i + 2]) then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2]) end
    local read = redis.call('HGET', KEYS[2], ARGV[i])
    if not read or tonumber(read) < tonumber(ARGV[i + 3]) then redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 3]) end
  end
end
return behind
"""

_LIST = """
-- KEYS: partitions, seen; ARGV: time (µs), then every partition of the topic
redis.call('DEL', KEYS[1])
for i = 2, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
  redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[1])
end
"""

_ADVANCE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
"""


class Appended(NamedTuple):
    """Numbers of rows of one call: stored, stored before, late.

    ``skewed``: late rows that were in time by the broker's timestamp, although the partition had been read past that time. The
    clocks of brokers and Redis then differ by more than is allowed.
    """

    appended: int
    duplicates: int
    late: int
    skewed: int = 0


class Arrivals(NamedTuple):
    """When the broker appended the messages of a batch, µs UTC; the times do not decrease.

    ``rows``: time of each row, shape (n,). ``last``: time of the last message, even if it gave no row. ``deadline``: function
    from the start of a slot (epoch seconds) to the time until which its rows are in time.
    """

    rows: NDArray[np.int64]
    last: int
    deadline: Callable[[int], int]


class ReadThrough(NamedTuple):
    """A partition that was read to its end.

    ``stored``: the next offset that the reader stored (None: none yet). ``position``: the offset at which reading continues.
    ``time_us``: everything appended before this time (µs UTC) lies before ``position``.
    """

    partition: str
    stored: int | None
    position: int
    time_us: int


class RowStore:
    """Rows, offsets and watermarks of one feed; all keys share one hash slot."""

    def __init__(self, redis: Redis, feed: str, shared_ledger: str | None = None) -> None:
        self._redis: Any = redis  # typed by redis-py as answering str too; this client answers bytes
        self._keys = FeedKeys(feed, shared_ledger)
        script = resources.files("stream.storage").joinpath("lua", "append.lua").read_text(encoding="utf-8")
        self._append = redis.register_script(script)

    @classmethod
    def of(cls, redis: Redis, config: Config) -> Self:
        """The rows of a configured feed."""
        return cls(redis, config.feed.name, config.shared_ledger)

    async def now_us(self) -> int:
        """Redis's clock, µs UTC, which is the same for all workers."""
        seconds, micros = await self._redis.time()
        return int(seconds) * 1_000_000 + int(micros)

    async def append(
        self,
        partition: str,
        first_offset: int,
        next_offset: int,
        rows: NDArray[np.void],
        offsets: NDArray[np.int64],
        slots: NDArray[np.int64],
        arrivals: Arrivals | None = None,
        *,
        begun: bool = False,
    ) -> Appended:
        """Append ``rows`` with their message ``offsets`` and timeslot starts ``slots``, all of shape (n,).

        Offsets do not descend; the events of one message share its offset, and all of them are in one call.

        The batch covers offsets first_offset..next_offset-1 of ``partition`` ("topic/number"), including rejected
        messages and offsets without a message. Rows that were appended after the deadline of their slot are late; without
        ``arrivals``, only rows of sealed slots are. ``begun``: the reader has stored this partition before, so Redis must know
        it. Raises :class:`Behind` if earlier offsets are missing in Redis.
        """
        named = self._keys
        largest = str(int(rows["time"].max())) if len(rows) else ""
        keys = [named.offsets, named.watermarks, named.seen, named.read, named.slots, named.sealed, named.retired]
        args: list[str | int | bytes] = [partition, first_offset, next_offset, largest]
        args += ["" if arrivals is None else arrivals.last, int(begun)]
        for slot, part in _by_slot(slots):
            keys.append(named.rows(slot))
            in_time, deadline = rows[part], ""
            if arrivals is not None:
                deadline = str(arrivals.deadline(slot))
                in_time = in_time[: np.searchsorted(arrivals.rows[part], int(deadline), side="right")]
            args += [slot, deadline, in_time.tobytes(), offsets[part].astype("<i8").tobytes()]
        answer = await self._append(keys=keys, args=args)
        if len(answer) == 1:
            raise Behind(partition, answer[0])
        return Appended(*answer)

    async def read_through(self, partitions: Sequence[ReadThrough]) -> dict[str, int]:
        """Record partitions that were read to their end.

        Returns those of which Redis lost rows that had been stored, each with the offset from which it must be read again.
        """
        if not partitions:
            return {}
        arguments = [("" if part is None else part) for entry in partitions for part in entry]
        behind = await self._redis.eval(_READ_THROUGH, 2, self._keys.offsets, self._keys.read, *arguments)
        return {name.decode(): int(offset) for name, offset in zip(behind[::2], behind[1::2], strict=True)}

    async def list_partitions(self, partitions: Iterable[str], time_us: int) -> None:
        """Record which partitions the topic had at ``time_us`` (µs UTC). Windows wait for each of them."""
        await self._redis.eval(_LIST, 2, self._keys.partitions, self._keys.seen, time_us, *partitions)

    async def claim_key(self, fingerprint: str) -> None:
        """Bind the feed, or its shared ledger, to one user key, because with two keys a user would have two pseudonyms and two budgets.

        Raises :class:`StateError` if the feed is bound to another key.
        """
        await self._redis.set(self._keys.user_key, fingerprint, nx=True)
        known = await self._redis.get(self._keys.user_key)
        if known is None or known.decode() != fingerprint:
            raise StateError(
                "the pseudonyms in Redis were made with another user key than this worker's; give every worker of the feed, "
                f"and of the feeds that share its ledger, the same privacy.user_key_file. {AFRESH}"
            )

    async def has_key(self) -> bool:
        """Whether the feed is bound to a user key yet."""
        return bool(await self._redis.exists(self._keys.user_key))

    async def move(self, partition: str, stored: int, offset: int) -> None:
        """Continue ``partition`` at ``offset``, because its log no longer has ``stored``. No change if another worker did so."""
        await self._redis.eval(_MOVE, 1, self._keys.offsets, partition, stored, offset)

    async def next_offsets(self) -> dict[str, int]:
        """The next offset to store of each partition."""
        offsets = await self._redis.hgetall(self._keys.offsets)
        return {partition.decode(): int(offset) for partition, offset in offsets.items()}

    async def partition_times(self) -> dict[str, PartitionTime]:
        """How far each partition of the topic was read, at most up to the time when the topic was last listed."""
        named = self._keys
        async with self._redis.pipeline(transaction=True) as pipe:
            for key in (named.partitions, named.watermarks, named.seen, named.read):
                pipe.hgetall(key)
            listed, largest, moved, read = await pipe.execute()
        return {
            partition.decode(): PartitionTime(
                int(largest[partition]) if partition in largest else None,
                int(moved.get(partition, time_us)),
                min(int(read.get(partition, 0)), int(time_us)),
            )
            for partition, time_us in listed.items()
        }

    async def open_slots(self) -> list[int]:
        """Starts of timeslots with rows, oldest first."""
        return [int(slot) for slot in await self._redis.zrange(self._keys.slots, 0, -1)]

    async def first_slot(self, default: int) -> int:
        """Under "participation": the oldest slot that may not be released yet; ``default`` when the feed starts."""
        await self._redis.set(self._keys.first_slot, default, nx=True)
        return int(await self._redis.get(self._keys.first_slot))

    async def advance_first_slot(self, slot: int, following: int) -> None:
        """Record that everything before ``following`` is released. No change if another worker has moved on already."""
        await self._redis.eval(_ADVANCE, 1, self._keys.first_slot, slot, following)

    async def in_progress(self, slot: int) -> bool:
        """Whether the slot is planned or committed, but not released yet."""
        return bool(await self._redis.exists(self._keys.plan(slot), self._keys.outbox(slot)))

    async def is_closed(self, slot: int) -> bool:
        """Whether the slot was released."""
        return bool(await self._redis.hexists(self._keys.closed, str(slot)))

    async def seal(self, slot: int) -> None:
        """Seal ``slot``: later rows are late, and the stored rows are those that will be released."""
        await self._redis.sadd(self._keys.sealed, slot)

    async def read_rows(self, slot: int, *, positions: bool = True) -> NDArray[np.void]:
        """Every row of ``slot``, in order of arrival; without lat and lng if ``positions`` are not needed."""
        key, kind = self._keys.rows(slot), ROW if positions else PLACELESS_ROW
        stored, blobs, size = bytearray(), 0, 0
        while True:
            # A worker's blobs are mostly of one kind of size, so those that come are as long as those that came.
            step = min(max(_BYTES_PER_READ * blobs // max(size, 1), 1), 2 * max(blobs, 1), _BLOBS_PER_READ)
            read = await self._redis.lrange(key, blobs, blobs + step - 1)
            if not read:
                return np.frombuffer(stored, dtype=kind)
            rows = np.frombuffer(b"".join(read), dtype=ROW)
            blobs, size = blobs + len(read), size + rows.nbytes
            stored += (rows if positions else rows[_PLACELESS].astype(PLACELESS_ROW)).data.cast("B")

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of a released slot. The slot stays sealed."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.unlink(self._keys.rows(slot))
            pipe.zrem(self._keys.slots, slot)
            await pipe.execute()


def _by_slot(slots: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
    """Each distinct slot with the indices of its rows, in order."""
    if len(slots) and (slots == slots[0]).all():
        yield int(slots[0]), slice(None)
        return
    order = np.argsort(slots, kind="stable")
    distinct, start = np.unique(slots[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, start[1:]), strict=bool(len(distinct)))
