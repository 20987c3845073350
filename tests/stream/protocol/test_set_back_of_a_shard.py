"""A window is released once, with every row, to whichever earlier state the shard of a partition is set back between
two steps.

A shard that takes over has done the first of what its master did, so its states are those that the partition was in.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.protocol.due_windows import DueWindows, RowsOfCluster
from stream.protocol.parts import statistics_of
from stream.protocol.release_protocol import ReleaseProtocol
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import AppendTimes, Behind, ReadThrough, RowStore
from stream.storage.sealed_rows import NotSealedError
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, in_order, random_rows
from tests.support.closing import Collected, Stopped

NAMES, N, HOUR = ("bus/0", "bus/1"), 20, 3600
AFTER_US = (SLOT + 24 * HOUR) * 1_000_000
LOGS = {name: np.split(in_order(random_rows(number, 2 * N, slot=SLOT)), 2) for number, name in enumerate(NAMES)}
STATES = ("nothing", "opened", "half of the rows", "all rows", "read to the end", "sealed")
STEPS = ("seal", "read", "plan", "charge", "commit", "publish", "confirm")


async def store_from(state: RowStore, name: str, batch: int) -> None:
    """What a reader does that has stored the partition before."""
    while batch < len(LOGS[name]):
        rows, first = LOGS[name][batch], batch * N
        at = int(rows["time"].max())
        arrivals = AppendTimes(np.full(N, at), at, lambda slot: (slot + HOUR) * 1_000_000 + 60_000_000)
        given = first, first + N, rows, np.arange(first, first + N), np.full(N, SLOT), arrivals
        try:
            await state.append(name, *given, begun=batch > 0)
            batch += 1
        except Behind as behind:
            batch = behind.stored // N


async def read_on(state: RowStore) -> None:
    """A look at the ends, which reads again what was lost."""
    ends = [ReadThrough(name, 2 * N, 2 * N, AFTER_US) for name in NAMES]
    while behind := await state.read_through(ends):
        for name, offset in behind.items():
            await store_from(state, name, offset // N)


class Shard:
    """The keys of one partition, and the states in which they were."""

    def __init__(self, redis: Redis, config: Config) -> None:
        part = PartKeys(FeedKeys.of(config), NAMES[1])
        self._redis, self._states = redis, dict[str, dict[str, bytes]]()
        self._names = [part.progress, part.slots, part.sealed, part.rows(SLOT)]

    async def remember(self, name: str) -> None:
        dumps = {key: await self._redis.dump(key) for key in self._names}
        self._states[name] = {key: dump for key, dump in dumps.items() if dump is not None}

    async def set_back(self, name: str) -> None:
        await self._redis.delete(*self._names)
        for key, dump in self._states[name].items():
            await self._redis.restore(key, 0, dump)


def protocol(redis: Redis, config: Config, publisher: Collected) -> ReleaseProtocol:
    rows, store, ledger = RowStore.of(redis, config), ReleaseStore.of(redis, config), Ledger.of(redis, config)
    due = RowsOfCluster(DueWindows(config, rows, store, ledger))
    return ReleaseProtocol.connect(statistics_of(config), redis, due, ledger, publisher, Noise())


async def fill(redis: Redis, config: Config) -> tuple[RowStore, Shard]:
    await redis.flushall()
    state, shard = RowStore.of(redis, config), Shard(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    await state.list_partitions(NAMES, AFTER_US)
    await shard.remember("nothing")
    await store_from(state, NAMES[0], 0)
    await state.move(NAMES[1], 0, 0)
    await shard.remember("opened")
    rows, at = LOGS[NAMES[1]][0], int(LOGS[NAMES[1]][0]["time"].max())
    arrivals = AppendTimes(np.full(N, at), at, lambda slot: (slot + HOUR) * 1_000_000 + 60_000_000)
    await state.append(NAMES[1], 0, N, rows, np.arange(N), np.full(N, SLOT), arrivals)
    await shard.remember("half of the rows")
    await store_from(state, NAMES[1], 1)
    await shard.remember("all rows")
    await read_on(state)
    await shard.remember("read to the end")
    return state, shard


async def outcome(redis: Redis, config: Config, publisher: Collected) -> tuple[Any, ...]:
    bodies = {message.value for message in publisher.messages}  # a release that is repeated has the same bytes
    counts = sorted((body.get("cell", ""), body.get("events"), body.get("users")) for body in map(json.loads, bodies))
    return counts, await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key)


async def closed_with_set_back(
    redis: Redis, config: Config, publisher: Collected, back: str, step: str, *, killed: bool
) -> tuple[RowStore, int]:
    """Close the window while the shard is set back after ``step`` of the first attempt, whose worker may be killed
    then.

    Returns how often the window had to wait.
    """
    state, shard = await fill(redis, config)

    async def set_back(reached: str) -> None:
        if reached == step:
            await shard.remember("sealed")
            await shard.set_back(back)
            if killed:
                raise Stopped

    with suppress(Stopped):
        try:
            await replace(protocol(redis, config, publisher), after_step=set_back).close(SLOT)
        except NotSealedError:
            await read_on(state)
            return state, 1 + await waits(redis, config, publisher, state)
    return state, await waits(redis, config, publisher, state)


async def waits(redis: Redis, config: Config, publisher: Collected, state: RowStore) -> int:
    """How often the window has to be read again before it is released."""
    try:
        await protocol(redis, config, publisher).close(SLOT)
    except NotSealedError:
        await read_on(state)
        await protocol(redis, config, publisher).close(SLOT)
        return 1
    return 0


@pytest.mark.parametrize("killed", [False, True], ids=["and the worker goes on", "and the worker is killed"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_window_is_released_once_with_every_row_wherever_a_shard_is_set_back(
    redis: Redis, tmp_path: Path, step: str, killed: bool
) -> None:
    config, expected = bus_config(tmp_path, **PLAINLY_PLANNED), Collected()
    await redis.config_set("appendfsync", "no")
    await fill(redis, config)
    await protocol(redis, config, expected).close(SLOT)
    right = await outcome(redis, config, expected)
    assert sum(events or 0 for _, events, _ in right[0]) == 4 * N
    waited = set()
    for back in STATES:
        publisher = Collected()
        state, times = await closed_with_set_back(redis, config, publisher, back, step, killed=killed)
        waited |= {back} if times else set()
        assert await outcome(redis, config, publisher) == right, back
        await read_on(state)
        for slot in (await state.look()).slots:
            await protocol(redis, config, publisher).close(slot)
        assert (await state.look()).slots == []
        assert await outcome(redis, config, publisher) == right, back
    unread = set(STATES[: STATES.index("read to the end")])
    if killed:  # the next attempt seals and reads again, unless the bytes are committed
        assert waited == (unread if step in STEPS[: STEPS.index("commit")] else set())
    else:
        assert waited == (unread | {"read to the end"} if step == "seal" else set()), "afterwards it has read all rows"
    await redis.config_set("appendfsync", "always")
