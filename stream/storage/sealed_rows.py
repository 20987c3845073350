"""Windows whose rows are final: sealed in every partition, read from all, deleted in all.

Nothing is read before every partition has sealed the window, and each read states the seal that it saw. So what was
read is all that the partitions stored before their seals, also if a shard was set back meanwhile: then its seal is
gone, or it is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis

from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.partitions import Call, Known, each, known_partitions
from stream.windows import utc_text

ROW = np.dtype(
    [("cell", "<u8"), ("user", "<u8"), ("time", "<i8"), ("lat", "<i4"), ("lng", "<i4"), ("value", "<i4")], align=False
)
"""One event in Redis: 36 bytes; time in µs UTC, lat and lng in 1e-7 degree, value in quanta."""

_PLACELESS = [name for name in ROW.names or () if name not in ("lat", "lng")]
PLACELESS_ROW = np.dtype([(name, ROW[name]) for name in _PLACELESS])
"""What is read of an event where no statistic needs its position: 28 bytes."""

_BYTES_PER_READ = 2**19
"""What one read of a partition takes at least, unless fewer are left: it takes Redis about a millisecond, in which it
serves nobody else."""
_BLOBS_PER_READ = 2_000
"""Most blobs of one read, because those of a quiet feed have a row each, of which a MiB would take Redis ten times as
long."""
_PARTITIONS_AT_ONCE = 16
"""Partitions that are read at once: with half a MiB each, what is on its way stays small beside a window."""

_NAMES = """
-- KEYS: opened, partitions, gone
return {redis.call('HGETALL', KEYS[1]), redis.call('HKEYS', KEYS[2]), redis.call('SMEMBERS', KEYS[3])}
"""
_SEAL = f"""
-- KEYS: as below, then sealed; ARGV: window. The seal first, the names second; see stream/storage/opening.py.
redis.call('SADD', KEYS[4], ARGV[1])
{_NAMES}
"""
_SEAL_PART = """
-- KEYS: progress, sealed, and slots if the topic no longer has the partition
-- ARGV: window, offset that the partition must have stored up to ('' = any), whether its beginning is noted
-- Returns whether the partition takes no more rows of the window. Without a row of it, one that is gone needs no seal.
if KEYS[3] and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 1 end
local offset = redis.call('HGET', KEYS[1], 'offset')
if not offset and (ARGV[3] == '1' or ARGV[2] ~= '') then return 0 end
if ARGV[2] ~= '' and tonumber(offset) < tonumber(ARGV[2]) then return 0 end
local now = redis.call('TIME')
redis.call('HSETNX', KEYS[2], ARGV[1], string.format('%d%06d', now[1], now[2]))
return 1
"""
_READ_PART = """
-- KEYS: sealed, rows, and slots if the topic no longer has the partition; ARGV: window, number of its first blob, least
-- bytes, and most blobs. Returns the seal, whether these are the last blobs, and the blobs; nothing if the window is
-- not sealed.
local seal = redis.call('HGET', KEYS[1], ARGV[1])
if not seal then
  if KEYS[3] and redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return {'', 1} end
  return {}
end
local answer, size, at, step = {seal, 0}, 0, tonumber(ARGV[2]), 1
while size < tonumber(ARGV[3]) and at - tonumber(ARGV[2]) < tonumber(ARGV[4]) do
  local blobs = redis.call('LRANGE', KEYS[2], at, at + step - 1)
  for _, blob in ipairs(blobs) do
    answer[#answer + 1] = blob
    size = size + #blob
  end
  at = at + #blobs
  if #blobs < step then
    answer[2] = 1
    break
  end
  -- After a quiet night, blobs may be a thousand times as long as those before.
  step = math.min(2 * step, 16, math.max(1, math.floor((tonumber(ARGV[3]) - size) * (#answer - 2) / size)))
end
return answer
"""
_DROP_PART = """
-- KEYS: slots, sealed, rows; ARGV: window, whether the topic has the partition. A row that comes again later is late.
redis.call('UNLINK', KEYS[3])
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[2] == '1' then
  local now = redis.call('TIME')
  redis.call('HSETNX', KEYS[2], ARGV[1], string.format('%d%06d', now[1], now[2]))
end
"""


class NotSealedError(RuntimeError):
    """A partition does not hold what the window was found due by, or lost its seal: the window waits until it is read
    again."""

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


class SealedRows:
    """Seals, reads and deletes windows of one feed. Every call may be repeated."""

    def __init__(self, redis: Redis, feed: str, shared_ledger: str | None = None) -> None:
        self._redis: Any = redis  # typed by redis-py as answering str too; this client answers bytes
        self._keys = FeedKeys(feed, shared_ledger)

    async def partitions(self) -> dict[str, Known]:
        """The partitions that may hold rows."""
        named = self._keys
        return _known(*await self._redis.eval(_NAMES, 3, named.opened, named.partitions, named.gone))

    async def seal_others(self, slot: int) -> dict[str, Known]:
        """Seal ``slot`` in partitions that are opened later. Returns the others, which may hold rows."""
        named = self._keys
        keys = [named.opened, named.partitions, named.gone, named.sealed]
        return _known(*await self._redis.eval(_SEAL, len(keys), *keys, slot))

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
        answers = await each(self._redis, _SEAL_PART, calls) if calls else []
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
            calls = [self._read_call(slot, name := names[place.number], partitions[name], place.blob) for place in turn]
            left = []
            for place, answer in zip(turn, await each(self._redis, _READ_PART, calls), strict=True):
                if not answer or place.seal not in (None, answer[0]):
                    raise NotSealedError(slot, [names[place.number]])
                seal, last, *blobs = answer
                rows = np.frombuffer(b"".join(blobs), dtype=ROW)
                stored += (rows if positions else rows[_PLACELESS].astype(PLACELESS_ROW)).data.cast("B")
                if not last:
                    left.append(_Place(place.number, seal, place.blob + len(blobs)))
            waiting = left + waiting
        return np.frombuffer(stored, dtype=ROW if positions else PLACELESS_ROW)

    def _read_call(self, slot: int, partition: str, known: Known, blob: int) -> Call:
        part = PartKeys(self._keys, partition)
        keys = [part.sealed, part.rows(slot), *([part.slots] if known.gone else [])]
        return keys, [slot, blob, _BYTES_PER_READ, _BLOBS_PER_READ]

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of a released slot. It stays sealed; where a shard is away, it stays named and is deleted
        later."""
        await self._drop(slot, await self.partitions())

    async def discard(self, slot: int) -> None:
        """Delete the rows of a slot that is never released, and let no more of it come."""
        await self._drop(slot, await self.seal_others(slot))

    async def _drop(self, slot: int, partitions: dict[str, Known]) -> None:
        calls: list[Call] = []
        for name, known in partitions.items():
            part = PartKeys(self._keys, name)
            calls.append(([part.slots, part.sealed, part.rows(slot)], [slot, int(not known.gone)]))
        if calls:
            await each(self._redis, _DROP_PART, calls)


def _known(opened: list[bytes], listed: list[bytes], gone: list[bytes]) -> dict[str, Known]:
    return known_partitions(dict(zip(opened[::2], opened[1::2], strict=True)), listed, gone)
