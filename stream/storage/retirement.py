"""Deletes from Redis what can never be released again: charges of old periods, and everything about their windows.

The mark ``retired`` is set before anything is deleted and only grows. The calls that charge and that store rows check
it. So no period can be charged after its charges were deleted, whatever clocks, configurations or other workers say.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
from redis.asyncio import Redis

from stream.storage.client import Call, each, run
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.release_store import Released
from stream.windows import Slotting

_CHUNK = 1_000


class Retirement:
    """Deletes the past of a feed from Redis. Every step may be repeated, and may be interrupted anywhere."""

    def __init__(self, redis: Redis, feed: str, slotting: Slotting, shared_ledger: str | None = None) -> None:
        self._redis: Any = redis
        self._keys = FeedKeys(feed, shared_ledger)
        self._slotting = slotting

    async def retire(self, boundary: int) -> int | None:
        """Retire all periods that began before ``boundary`` (epoch seconds), which is the start of a period.

        Periods of a shared ledger are retired once each of its feeds has asked for it. Returns the start of the oldest
        period that is not retired; None if none is. The record of the window that was committed last is kept, because
        it reveals whether Redis was set back.
        """
        redis, named = self._redis, self._keys
        if named.shared_ledger is None:
            boundary = int(await run(redis, "mark_retired", [named.retired], boundary))
        else:
            mark = await run(redis, "wish_retired", [named.retired, named.feeds], boundary, named.feed)
            if mark is None:
                return None
            boundary = int(mark)
        sealed = [int(slot) async for slot in redis.sscan_iter(named.sealed, count=_CHUNK)]
        released = await self._released()
        aside = [int(slot) for slot in await redis.hkeys(named.set_aside)]
        # As long as anything of a window or its period is stored, one of these three keys names the window, so they are
        # deleted last; each partition names those of which it has rows.
        old = sorted({slot for slot in (*sealed, *released, *aside) if slot < boundary})
        await self._unlink(old)
        await self._retire_rows(boundary)
        await self._retire_blocks(boundary)
        newest = max(released.values(), default=0)
        for part in _parts(old):
            await redis.hdel(named.set_aside, *part)
            if gone := [slot for slot in part if released.get(slot, newest) < newest]:
                await redis.hdel(named.closed, *gone)
            await redis.srem(named.sealed, *part)
        return boundary

    async def _released(self) -> dict[int, int]:
        """The number of each released window, by its timeslot."""
        records = self._redis.hscan_iter(self._keys.closed, count=_CHUNK)
        return {int(slot): msgspec.json.decode(record, type=Released).sequence async for slot, record in records}

    async def _retire_rows(self, boundary: int) -> None:
        """Delete the rows and seals of old windows in every partition, which takes no more rows of them from now on."""
        named = self._keys
        names = {*await self._redis.hkeys(named.opened), *await self._redis.hkeys(named.partitions)}
        parts = [PartKeys(named, name.decode()) for name in sorted(names)]
        left = [
            ((part.progress, slots), rows, b"0")
            for part in parts
            for slots, rows in ((part.slots, part.rows(0).removesuffix("0")), (part.sealed, ""))
        ]
        while left:
            calls: list[Call] = [(keys, [boundary, cursor, _CHUNK, rows]) for keys, rows, cursor in left]
            cursors = await each(self._redis, "retire_slots", calls)
            left = [
                (keys, rows, cursor) for (keys, rows, _), cursor in zip(left, cursors, strict=True) if cursor != b"0"
            ]

    async def _retire_blocks(self, boundary: int) -> None:
        """Delete the charges of blocks that ended by ``boundary``. Each names itself until they are gone."""
        named = self._keys
        for block, end in (await self._redis.hgetall(named.blocks)).items():
            if int(end) <= boundary:
                await self._redis.unlink(named.ledger(block.decode()), named.terms(block.decode()))
                await self._redis.hdel(named.blocks, block)

    async def _unlink(self, slots: list[int]) -> None:
        """Delete the charges and terms of the periods of ``slots``, and plan, charges and bytes of their windows."""
        named = self._keys
        periods = {self._slotting.period_of(slot).key for slot in slots}
        keys = [key for period in sorted(periods) for key in (named.ledger(period), named.terms(period))]
        for slot in slots:
            keys += [named.plan(slot), named.charged(slot), named.outbox(slot)]
        for part in _parts(keys):
            await self._redis.unlink(*part)


def _parts(names: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(names)
    while part := list(islice(left, _CHUNK)):
        yield part
