"""Partitions whose shards may be away or set back: a reader that goes on from where Redis is, and a close that waits
for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.config import Config
from stream.protocol.due_windows import DueWindows
from stream.protocol.release_protocol import ReleaseProtocol
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import AppendTimes, Behind, NotSealedError, ReadThrough, RowStore
from tests.support.builders import SLOT
from tests.support.closing import protocol_of

N, HOUR = 20, 3600
"""Rows of a batch, which are of one window of an hour."""
AFTER_US = (SLOT + 24 * HOUR) * 1_000_000
"""When everything of these windows was read, µs UTC."""
Log = Sequence[np.ndarray]
"""The batches of a partition."""


async def outlasting(call: Callable[[], Awaitable[Any]], seconds: float = 40.0) -> Any:
    """The answer of ``call``, repeated as a worker repeats it while a shard is away or has to be read again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except (RedisError, OSError, NotSealedError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def read_on(state: RowStore, name: str, log: Log, first: int) -> None:
    """Store what lies in the log from batch ``first`` on, as a reader does: from where Redis is."""
    following = first
    while following < len(log):
        rows, begins = log[following], following * N
        slot, at = int(rows["time"][0]) // 3_600_000_000 * HOUR, int(rows["time"].max())
        arrivals = AppendTimes(np.full(N, at), at, lambda slot: (slot + HOUR) * 1_000_000 + 60_000_000)
        batch = begins, begins + N, rows, np.arange(begins, begins + N), np.full(N, slot), arrivals
        try:
            await outlasting(partial(state.append, name, *batch, begun=first > 0))
            following += 1
        except Behind as behind:
            following = behind.stored // N


async def note_ends(state: RowStore, logs: Mapping[str, Log]) -> None:
    """As a reader does that was at the ends of all partitions; it reads again what a shard lost."""
    ends = [ReadThrough(name, len(log) * N, len(log) * N, AFTER_US) for name, log in logs.items()]
    while behind := await outlasting(partial(state.read_through, ends)):
        for name, offset in behind.items():
            await read_on(state, name, logs[name], offset // N)


def closing(redis: Redis, config: Config, publisher: Any, **hooks: Any) -> ReleaseProtocol:
    """The release protocol, as the closing process connects it on a cluster."""
    rows, store, ledger = RowStore.of(redis, config), ReleaseStore.of(redis, config), Ledger.of(redis, config)
    return protocol_of(redis, config, publisher, sealing=DueWindows(config, rows, store, ledger).seal, **hooks)
