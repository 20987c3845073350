"""Batches that are stored as rows and as sums, and a plain account of what sums must be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from redis.asyncio import Redis

from stream.config import Config
from stream.storage.row_store import ROW, Appended, Arrivals, RowStore
from tests.support.builders import SLOT, bus_config, random_rows

SUMMED: dict[str, Any] = {"speed.clipping": "none", "window.state": "sums"}
"""Overrides of bus-fleet.toml for ``window.state`` "sums"."""

Event = tuple[int, int, int, int]
"""Cell, user, time in µs, value in quanta."""
Pairs = dict[tuple[int, int], tuple[int, int, int]]
"""(Cell, user) -> number, Σx, Σx²."""


def both(tmp_path: Any, **overrides: Any) -> dict[str, Config]:
    """One configuration with each state of windows."""
    return {state: bus_config(tmp_path, **SUMMED | {"window.state": state} | overrides) for state in ("rows", "sums")}


def rows_of(events: Iterable[Event]) -> np.ndarray:
    return np.array([(cell, user, time, 0, 0, value) for cell, user, time, value in events], dtype=ROW)


def in_order(rows: np.ndarray) -> np.ndarray:
    """The rows in order of time, as a fleet sends them."""
    return rows[np.argsort(rows["time"], kind="stable")]


def by_partition(rows: np.ndarray, partitions: int) -> list[np.ndarray]:
    """The rows of each partition: all of a user are in one."""
    return [rows[rows["user"] % partitions == number] for number in range(partitions)]


async def deliver(
    state: RowStore,
    rows: np.ndarray,
    cuts: Sequence[int] = (),
    *,
    partition: str = "t/0",
    slot: int | None = SLOT,
    arrivals: Arrivals | None = None,
) -> Appended:
    """Append ``rows``, one for each offset from 0 on, in batches that begin at ``cuts``. ``slot`` None: by their time, hourly."""
    slots = rows["time"] // 3_600_000_000 * 3600 if slot is None else np.full(len(rows), slot)
    total = Appended(0, 0, 0)
    for first, following in itertools.pairwise([0, *cuts, len(rows)]):
        part, offsets = rows[first:following], np.arange(first, following)
        answer = await state.append(partition, first, following, part, offsets, slots[first:following], arrivals)
        total = total.plus(**answer._asdict())
    return total


async def pairs_in(state: RowStore, slot: int = SLOT) -> Pairs:
    """The sums of a window, which is sealed first."""
    await state.seal(slot)
    stored = (await state.read(slot)).sums
    if stored is None:
        return {}
    counts, sums = stored.sums.counts, stored.sums
    cells, users = counts.cells[counts.pair_cell].tolist(), counts.users[counts.pair_user].tolist()
    numbers = zip(counts.samples.tolist(), sums.sums.tolist(), sums.squares.tolist(), strict=True)
    return dict(zip(zip(cells, users, strict=True), numbers, strict=True))


def account(events: Iterable[Event], upper: int, most: int) -> tuple[Pairs, int, int]:
    """(What sums of ``events``, in order of arrival, must be; events that were overtaken; events beyond the limit)."""
    last: dict[int, int] = {}
    number: dict[int, int] = {}
    pairs: Pairs = {}
    overtaken = beyond = 0
    for cell, user, time, value in events:
        if user in last and time <= last[user]:
            overtaken += 1
        elif number.get(user, 0) == most:
            beyond += 1
        else:
            last[user], number[user] = time, number.get(user, 0) + 1
            x = min(max(value, 0), upper)
            n, total, squares = pairs.get((cell, user), (0, 0, 0))
            pairs[cell, user] = n + 1, total + x, squares + x * x
    return pairs, overtaken, beyond


def events_of(rows: np.ndarray) -> list[Event]:
    return list(zip(*(rows[name].tolist() for name in ("cell", "user", "time", "value")), strict=True))


async def fresh(redis: Redis, config: Config) -> RowStore:
    await redis.flushall()
    return RowStore.of(redis, config)


def fleet(seed: int, n: int = 600, users: int = 12) -> np.ndarray:
    """Rows of a small city in order of time."""
    return in_order(random_rows(seed, n, users))
