"""Rows in Redis from which a test closes windows."""

from __future__ import annotations

import numpy as np
from redis.asyncio import Redis

from stream.config import Config
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.support.builders import SLOT, random_rows

HOUR = 3600


async def fill(redis: Redis, config: Config, hours: int) -> None:
    await Ledger.of(redis, config).start_generation(birth=0)
    store = RowStore.of(redis, config)
    for hour in range(hours):
        rows, first = random_rows(hour, 60, slot=SLOT + hour * HOUR), hour * 60
        slots = np.full(60, SLOT + hour * HOUR)
        await store.append("t/0", first, first + 60, rows, np.arange(first, first + 60), slots)


async def read_clock(_: RowStore) -> int:
    """Two hours after the start of the first window, µs UTC."""
    return (SLOT + 2 * HOUR) * 1_000_000


async def store(redis: Redis, config: Config, rows: np.ndarray, slot: int = SLOT) -> RowStore:
    state = RowStore.of(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    n = len(rows)
    await state.append("bus/0", 0, n, rows, np.arange(n), np.full(n, slot))
    return state
