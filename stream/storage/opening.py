"""A partition takes rows only once it was opened, so that whoever seals a window knows of it.

Who opens it names it first and reads the feed's seals then; who seals a window writes the feed's seal first and reads
the names then. So in every order one of them seals the window in this partition. The offset at which the partition
begins is noted before the first row, so a partition whose shard lost it is known by its note, and is read again from
there.
"""

from __future__ import annotations

import uuid
from typing import Any

from redis.asyncio import Redis

from stream.storage.keys import FeedKeys, PartKeys

_NAME = """
-- KEYS: opened, sealed, released windows, end of the retired periods; ARGV: partition Returns the note, the mark, and
-- the windows that the partition seals as it begins: all that are sealed. Rows of a partition that was lost come again,
-- so it seals what is released only.
redis.call('HSETNX', KEYS[1], ARGV[1], '')
local note, sealed = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('SMEMBERS', KEYS[2])
if note ~= '' then
  local released = {}
  for _, slot in ipairs(sealed) do
    if redis.call('HEXISTS', KEYS[3], slot) == 1 then released[#released + 1] = slot end
  end
  sealed = released
end
return {note, redis.call('GET', KEYS[4]) or '0', sealed}
"""
_PREPARE = """
-- KEYS: progress, sealed; ARGV: opener, mark, windows. Returns who opens the partition; nothing if it has begun.
if redis.call('HEXISTS', KEYS[1], 'offset') == 1 then return nil end
redis.call('HSETNX', KEYS[1], 'opener', ARGV[1])
redis.call('HSETNX', KEYS[1], 'mark', ARGV[2])
local now = redis.call('TIME')
for i = 3, #ARGV do redis.call('HSETNX', KEYS[2], ARGV[i], string.format('%d%06d', now[1], now[2])) end
return redis.call('HGET', KEYS[1], 'opener')
"""
_NOTE = "if redis.call('HGET', KEYS[1], ARGV[1]) == '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end"
_BEGIN = """
-- KEYS: progress, sealed; ARGV: offset, opener, mark, windows
-- If the partition was not prepared by the opener that is noted, its shard lost it.
if redis.call('HEXISTS', KEYS[1], 'offset') == 1 then return end
if redis.call('HGET', KEYS[1], 'opener') ~= ARGV[2] then
  redis.call('DEL', KEYS[2])
  local now = redis.call('TIME')
  for i = 4, #ARGV do redis.call('HSET', KEYS[2], ARGV[i], string.format('%d%06d', now[1], now[2])) end
end
redis.call('HSET', KEYS[1], 'offset', ARGV[1], 'mark', ARGV[3])
"""


class Opening:
    """Opens partitions of one feed. Every step may be repeated, by several workers at once."""

    def __init__(self, redis: Redis, keys: FeedKeys) -> None:
        self._redis: Any = redis
        self._keys = keys

    async def open(self, partition: str, first_offset: int) -> None:
        """Let ``partition`` take rows from ``first_offset`` on, or from the noted offset if it was opened before and
        lost."""
        named, part = self._keys, PartKeys(self._keys, partition)
        while True:
            keys = [named.opened, named.sealed, named.closed, named.retired]
            note, mark, sealed = await self._redis.eval(_NAME, len(keys), *keys, partition)
            if note:
                offset, _, opener = note.partition(b" ")
                await self._redis.eval(_BEGIN, 2, part.progress, part.sealed, offset, opener, mark, *sealed)
                return
            mine = uuid.uuid4().hex
            opener = await self._redis.eval(_PREPARE, 2, part.progress, part.sealed, mine, mark, *sealed)
            if opener is None:
                return
            await self._redis.eval(_NOTE, 1, named.opened, partition, f"{first_offset} {opener.decode()}")
