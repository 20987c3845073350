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
from stream.storage.scripts import run


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
