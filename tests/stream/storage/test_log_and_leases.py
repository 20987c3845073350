"""What serves big windows changes no row and no charge: reading in parts, leaving positions out, charging many at once.
A lease has one owner at a time, is renewed while its owner lives, and expires after its owner ended. Real Redis. An
append-only file may end anywhere inside its last transaction: a step that is then repeated counts once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stream.local.server import RedisServer, find_redis
from stream.statistics.plan import PlanError
from stream.statistics.window_rows import WindowRows
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.lease import Lease
from stream.storage.ledger import Ledger
from stream.storage.release_store import Carried, CommitOutcome, ReleaseStore
from stream.storage.row_store import ROW, RowStore
from stream.terms import Terms
from stream.windows import Period
from tests.support.builders import SLOT, bus_config, located_rows, with_histograms
from tests.support.nightly import nightly_but
from tests.support.releasing import planned_with_fixes
from tests.support.stored_rows import runs_of_scripts

PERIOD = Period(0, 86_400, "p")


async def test_batches_of_any_size_are_read_back_in_order_with_and_without_positions(redis):
    """10 MiB in batches of 1 row to 40 000 rows, so that one read asks for several blobs, and several reads for all."""
    lengths, state, end = [1, 40_000, 1, 2, *[3_000] * 80, 1], RowStore(redis, "bus"), 0
    rows = np.zeros(sum(lengths), dtype=ROW)
    for at, name in enumerate(ROW.names or ()):
        rows[name] = np.arange(len(rows)) * (at + 1) % 2**31
    for n in lengths:
        batch, offsets = rows[end : end + n], np.arange(end, end + n)
        assert (await state.append("t/0", end, end + n, batch, offsets, np.full(n, SLOT))).appended == n
        end += n
    await state.seal(SLOT)
    assert (await state.read(SLOT)).tobytes() == rows.tobytes()
    placeless = await state.read(SLOT, positions=False)
    assert placeless.dtype.names == ("cell", "user", "time", "value")
    assert placeless.tolist() == rows[list(placeless.dtype.names)].tolist()


async def test_a_quiet_night_makes_no_read_of_the_rush_hour_longer(redis):
    """After 5 000 blobs of one row, a read by their size alone would ask for 10 000 more, whatever these hold."""
    await RowStore(redis, "bus").move("t/0", 0, 0)
    await RowStore(redis, "bus").seal(SLOT)
    await redis.rpush(PartKeys(FeedKeys("bus"), "t/0").rows(SLOT), *[bytes(ROW.itemsize)] * 5_000)
    await redis.config_resetstat()
    assert len(await RowStore(redis, "bus").read(SLOT)) == 5_000
    commands = await redis.info("commandstats")
    assert commands["cmdstat_lrange"]["calls"] > 12, "10 if each read asks for twice as many as all before it"
    assert runs_of_scripts(commands) == 1 + 3, "a call reads 2 000 blobs at most: it would take Redis too long"


async def test_a_call_that_names_a_user_twice_charges_nobody(redis):
    """Balances are read once for all users of a call, so a user named twice would pay for one of both only."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    users = np.array([7, 8, 7], dtype=np.uint64)
    with pytest.raises(ResponseError, match="TWICE"):
        await ledger.charge(1, PERIOD, generation, users, np.array([1, 2, 2]), 9)
    assert not (await ledger.spent("p", users, besides=0)).any()


def test_histograms_that_were_planned_meanwhile_are_not_drawn_from_rows_without_positions(tmp_path):
    rows = located_rows(5, 200)
    plan, _, _ = planned_with_fixes(with_histograms("values", tmp_path, ["ug"]), rows)
    placeless = rows[["cell", "user", "time", "value"]]
    window = WindowRows.of(placeless, Terms.of(bus_config(tmp_path)).reading)
    with pytest.raises(PlanError, match="without positions"):
        window.as_planned(plan)


KEY = FeedKeys("bus").lease


async def test_one_owner_holds_it_renews_it_and_gives_it_back_to_the_next(redis):
    mine, other = (Lease(redis, KEY, seconds=3.0) for _ in range(2))
    async with mine.hold() as acquired:
        assert acquired
        for _ in range(2):
            await asyncio.sleep(2.0)
            async with other.hold() as second:
                assert not second
            assert await redis.exists(KEY), "who does not hold it must not give it back"
    async with other.hold() as acquired:
        assert acquired


async def test_a_lease_that_redis_forgot_stops_nobody_and_a_killed_owner_is_followed_after_its_seconds(redis):
    async with Lease(redis, KEY, seconds=0.3).hold() as acquired:
        assert acquired
        await redis.flushall()
        await asyncio.sleep(0.5)
    dead = Lease(redis, KEY, seconds=0.5)
    holding = dead.hold()
    assert await holding.__aenter__()
    await redis.set(KEY, "killed", px=300)  # its process is gone, so nothing renews the lease
    await asyncio.sleep(0.5)
    async with Lease(redis, KEY).hold() as acquired:
        assert acquired
        assert await holding.__aexit__(None, None, None) is not True
        assert await redis.exists(KEY), "an owner whose lease ran out must not take the next one's"


TODAY = Period(SLOT, SLOT + 86_400, "2017-03-21")
USERS = np.array([7, 8], dtype=np.uint64)


async def charge(redis: Redis) -> Any:
    """Two users pay 30 and 40 for their second window."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.generation()
    assert generation is not None
    return await ledger.charge(SLOT + 3600, TODAY, generation, USERS, np.array([30, 40]), 100, plan="second")


async def commit(redis: Redis) -> CommitOutcome:
    """The second window is committed."""
    return await ReleaseStore(redis, "bus").commit(
        SLOT + 3600, b"bytes", Carried(b"m1", b"l1"), Carried(b"m2", b"l2"), "second", 2
    )


async def history(redis: Redis) -> None:
    """One window charged and committed, as the past of either step."""
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    assert not len(await ledger.charge(SLOT, TODAY, generation, USERS, np.array([5, 6]), 100, plan="first"))
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


@pytest.fixture
async def loadable(tmp_path: Path) -> AsyncIterator[tuple[Redis, Path]]:
    """A server that reloads its append-only file on request, as it does at a start, and the file."""
    binary = tmp_path / "server"
    binary.write_text(f'#!/bin/sh\nexec {find_redis()} "$@" --enable-debug-command local\n')
    binary.chmod(0o700)
    with RedisServer(tmp_path / "redis", binary=str(binary)) as server:
        async with Redis.from_url(server.url) as client:
            (log,) = (tmp_path / "redis" / "appendonlydir").glob("*.incr.aof")
            yield client, log


async def loaded(redis: Redis, log: Path, content: bytes) -> dict[bytes, Any]:
    """What is stored after ``content`` was replayed."""
    log.write_bytes(content)
    with suppress(ResponseError):  # a torn log is loaded up to its last whole transaction, and cut there
        await redis.execute_command("DEBUG", "LOADAOF")
    return await everything(redis)


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
    step, loadable, stride
):
    """Every seventh byte in every run. So does a log whose end was written twice, or restored over a newer state: every
    command sets a value."""
    redis, log = loadable
    before = await past_of(step, redis)
    start = log.stat().st_size
    await step(redis)
    after, whole = await everything(redis), log.read_bytes()
    assert before != after
    for end in (*range(start, len(whole), stride), len(whole)):
        assert await loaded(redis, log, whole[:end]) in (before, after), f"{end - start} bytes: a part was replayed"
        await step(redis)
        assert await everything(redis) == after, f"done again after {end - start} bytes of it"
    assert b"INCR" not in whole
    assert await loaded(redis, log, whole + whole[start:]) == after


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
async def test_a_server_that_starts_with_a_torn_log_counts_the_transaction_once_after_it_was_done_again(
    share, tmp_path
):
    with RedisServer(tmp_path / "redis") as server:
        async with Redis.from_url(server.url) as client:
            await past_of(commit, client)
            (log,) = (tmp_path / "redis" / "appendonlydir").glob("*.incr.aof")
            start = log.stat().st_size
            await commit(client)
            after = await everything(client)
        server.kill()
        whole = log.read_bytes()
        log.write_bytes(whole[: start + int(share * (len(whole) - start))])
        server.start()
        async with Redis.from_url(server.url) as client:
            await commit(client)
            assert await everything(client) == after
