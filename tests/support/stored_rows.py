"""Rows in Redis from which a test closes windows."""

import numpy as np
from redis.asyncio import Redis

from stream.config import Config
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, RowStore
from tests.support.builders import SLOT, random_rows

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


async def read_clock(_: RowStore) -> int:
    """Two hours after the start of the first window, µs UTC."""
    return (SLOT + 2 * HOUR) * 1_000_000


async def store(redis: Redis, config: Config, rows: np.ndarray, slot: int = SLOT) -> RowStore:
    state = RowStore.of(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    n = len(rows)
    await state.append("bus/0", 0, n, rows, np.arange(n), np.full(n, slot))
    return state
