"""Rows in Redis from which a test closes windows. How often scripts ran."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.app.worker import Worker
from stream.config import Config
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, ReadThrough, RowStore
from stream.windows import read_through
from tests.support.builders import SLOT, random_rows


def runs_of_scripts(commands: dict[str, Any]) -> int:
    """How often scripts ran, by Redis's statistics of ``commands``: a digest that it did not know ran nothing."""
    named = [commands.get(f"cmdstat_{name}", {}) for name in ("eval", "evalsha")]
    return sum(stats.get("calls", 0) - stats.get("failed_calls", 0) for stats in named)


HOUR = 3600


async def fill(redis: Redis, config: Config, hours: int) -> None:
    await Ledger.of(redis, config).start_generation(birth=0)
    store = RowStore.of(redis, config)
    for hour in range(hours):
        rows, first = random_rows(hour, 60, slot=SLOT + hour * HOUR), hour * 60
        slots = np.full(60, SLOT + hour * HOUR)
        await store.append("t/0", first, first + 60, rows, np.arange(first, first + 60), slots)


async def rows_in(redis: Redis, feed: str, slot: int) -> np.ndarray:
    """The rows of a window that is not sealed yet, in order of partitions."""
    keys = FeedKeys(feed)
    names = sorted(await redis.hkeys(keys.opened))
    blobs = [await redis.lrange(PartKeys(keys, name.decode()).rows(slot), 0, -1) for name in names]
    return np.frombuffer(b"".join(blob for part in blobs for blob in part), ROW)


async def stored_rows(redis: Redis) -> list[bytes]:
    """The rows of all windows of feed "bus" that are open, sorted."""
    parts = [await rows_in(redis, "bus", slot) for slot in await RowStore(redis, "bus").open_slots()]
    return sorted(row.tobytes() for part in parts for row in part)


def all_read(redis: Redis, count: int) -> Callable[[], Awaitable[bool]]:
    """To wait until so many messages of feed "bus" were read."""

    async def check() -> bool:
        return sum((await RowStore(redis, "bus").next_offsets()).values()) >= count

    return check


def read_to(redis: Redis, moment: float) -> Callable[[], Awaitable[bool]]:
    """To wait until everything of feed "bus" was read that was appended by this moment, seconds."""

    async def check() -> bool:
        return (read_through((await RowStore(redis, "bus").look()).times) or 0) > moment * 1e6

    return check


def listed(redis: Redis, partitions: int) -> Callable[[], Awaitable[bool]]:
    """To wait until so many partitions of feed "bus" are known."""

    async def check() -> bool:
        return len((await RowStore(redis, "bus").look()).times) == partitions

    return check


class Clock:
    """The clock of the store, s UTC: two hours after the start of the first window, or where a test puts it."""

    now = float(SLOT + 2 * HOUR)

    def rules(self, patch: pytest.MonkeyPatch) -> None:
        async def now_us(_: RowStore) -> int:
            return round(self.now * 1e6)

        patch.setattr(RowStore, "now_us", now_us)


async def due(config: Config, partition: str = "t/0") -> list[int]:
    """The windows that a worker finds due which has read the feed up to now."""
    worker = Worker(config)
    try:
        now, stored = await worker.rows.now_us(), (await worker.rows.next_offsets())[partition]
        await worker.rows.list_partitions([partition], now)
        assert await worker.rows.read_through([ReadThrough(partition, stored, stored, now)]) == {}
        return await worker.due_slots()
    finally:
        await worker.redis.aclose()


async def dump(redis: Redis) -> dict[bytes, bytes]:
    """All that is stored, for :func:`put_back`."""
    return {key: await redis.dump(key) for key in await redis.keys()}


async def put_back(redis: Redis, older: dict[bytes, bytes]) -> None:
    """Let a running Redis hold what it held when :func:`dump` was called, and nothing else."""
    async with redis.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in older.items():
            pipe.restore(key, 0, value)
        await pipe.execute()


async def store(redis: Redis, config: Config, rows: np.ndarray, slot: int = SLOT) -> RowStore:
    state = RowStore.of(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    n = len(rows)
    await state.append("bus/0", 0, n, rows, np.arange(n), np.full(n, slot))
    return state
