"""An append-only file may end anywhere inside its last transaction: a step that is then repeated counts once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, ResponseError

from stream.local import RedisServer, end_process, find_redis, spawn
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.release_store import Carried, CommitOutcome, ReleaseStore
from stream.windows import Period
from tests.support.builders import SLOT
from tests.support.nightly import nightly_but
from tests.support.redis_scripts import altered_script

KEYS = FeedKeys("bus")
PERIOD = Period(SLOT, SLOT + 86_400, "2017-03-21")
USERS = np.array([7, 8], dtype=np.uint64)


async def charge(redis: Redis) -> Any:
    """Two users pay 30 and 40 for their second window."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.generation()
    assert generation is not None
    return await ledger.charge(SLOT + 3600, PERIOD, generation, USERS, np.array([30, 40]), 100, plan="second")


async def commit(redis: Redis) -> CommitOutcome:
    """The second window is committed."""
    return await ReleaseStore(redis, "bus").commit(
        SLOT + 3600, b"bytes", Carried(b"m1", b"l1"), Carried(b"m2", b"l2"), "second", 2
    )


async def history(redis: Redis) -> None:
    """One window charged and committed, as the past of either step."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    assert not len(await ledger.charge(SLOT, PERIOD, generation, USERS, np.array([5, 6]), 100, plan="first"))
    first = await ReleaseStore(redis, "bus").commit(SLOT, b"old", Carried(), Carried(b"m1", b"l1"), "first", 1)
    assert first is CommitOutcome.COMMITTED
    assert await ReleaseStore(redis, "bus").store_plan(SLOT + 3600, b"second") == b"second"


async def everything(redis: Redis) -> dict[bytes, Any]:
    """The state that the steps write."""
    state: dict[bytes, Any] = {}
    for key in await redis.keys("hv:*"):
        state[key] = await (redis.hgetall(key) if await redis.type(key) == b"hash" else redis.get(key))
        if key.endswith(b":progress"):
            del state[key][b"moved"]  # the time at which it was done
    return state


@dataclass
class Loadable:
    """A server that reloads its append-only file on request, as it does at a start."""

    redis: Redis
    log: Path

    async def load(self, log: bytes) -> dict[bytes, Any]:
        """Replay ``log``; what is stored then."""
        self.log.write_bytes(log)
        with suppress(ResponseError):  # a torn log is loaded up to its last whole transaction, and cut there
            await self.redis.execute_command("DEBUG", "LOADAOF")
        return await everything(self.redis)


@pytest.fixture
async def loadable(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loadable]:
    socket = tmp_path_factory.mktemp("redis") / "redis.sock"  # its path has at most 107 bytes
    command = [find_redis(), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    command += ["--dir", str(tmp_path), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "local"]
    process = spawn(command, tmp_path / "server.log")
    client = Redis.from_url(f"unix://{socket}")
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                await client.ping()
                break
            except ConnectionError:
                assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
                await asyncio.sleep(0.05)
        (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
        yield Loadable(client, log)
    finally:
        await client.aclose()
        end_process(process, 10)


Step = Callable[[Redis], Awaitable[Any]]


async def past_of(step: Step, redis: Redis) -> dict[bytes, Any]:
    """Everything that comes before ``step``."""
    await history(redis)
    if step is commit:
        await charge(redis)
    return await everything(redis)


@pytest.mark.parametrize("stride", nightly_but([7], [7, 1]))
@pytest.mark.parametrize("step", [charge, commit])
async def test_a_log_cut_at_any_byte_of_the_last_transaction_counts_it_once_after_it_was_done_again(
    step: Step, loadable: Loadable, stride: int
) -> None:
    """Every seventh byte in every run."""
    before = await past_of(step, loadable.redis)
    start = loadable.log.stat().st_size
    await step(loadable.redis)
    after, log = await everything(loadable.redis), loadable.log.read_bytes()
    assert before != after
    for end in (*range(start, len(log), stride), len(log)):
        assert await loadable.load(log[:end]) in (before, after), f"part of it was replayed from {end - start} bytes"
        await step(loadable.redis)
        assert await everything(loadable.redis) == after, f"done again after {end - start} bytes of it"


@pytest.mark.parametrize("step", [charge, commit])
async def test_effects_that_are_replayed_twice_count_once(step: Step, loadable: Loadable) -> None:
    """A log whose end was written twice, or restored over a newer state: every command sets a value."""
    await past_of(step, loadable.redis)
    start = loadable.log.stat().st_size
    await step(loadable.redis)
    after, log = await everything(loadable.redis), loadable.log.read_bytes()
    assert b"INCR" not in log
    assert await loadable.load(log + log[start:]) == after


async def test_with_increments_a_log_that_is_replayed_twice_counts_twice(loadable: Loadable) -> None:
    """The planted bug."""
    await past_of(commit, loadable.redis)
    start = loadable.log.stat().st_size
    store = ReleaseStore(loadable.redis, "bus")
    with altered_script("commit", "redis.call('SET', KEYS[5], ARGV[6])", "redis.call('INCR', KEYS[5])"):
        await store.commit(SLOT + 3600, b"bytes", Carried(b"m1", b"l1"), Carried(b"m2", b"l2"), "second", 2)
    log = loadable.log.read_bytes()
    assert (await loadable.load(log + log[start:]))[KEYS.sequence.encode()] == b"3"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
async def test_a_server_that_starts_with_a_torn_log_counts_the_transaction_once_after_it_was_done_again(
    share: float, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis")
    server.start()
    client = Redis.from_url(server.url)
    await past_of(commit, client)
    (log,) = (tmp_path / "redis" / "appendonlydir").glob("*.incr.aof")
    start = log.stat().st_size
    await commit(client)
    after = await everything(client)
    server.kill()
    whole = log.read_bytes()
    log.write_bytes(whole[: start + int(share * (len(whole) - start))])
    await client.aclose()
    server.start()
    client = Redis.from_url(server.url)
    await commit(client)
    assert await everything(client) == after
    await client.aclose()
    server.stop()
