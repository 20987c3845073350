"""Periods of which nothing can be released are deleted and never charged again, so a flood of users cannot grow the
ledger for ever.
"""

import asyncio
import time
from contextlib import aclosing, suppress
from datetime import timedelta

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from stream.app.services import Retiring
from stream.app.worker import Worker
from stream.config import Config
from stream.storage.client import text_of
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, RetiredError
from stream.storage.release_store import Released
from stream.storage.retirement import Retirement
from stream.storage.row_store import ReadThrough, RowStore
from stream.windows import Period, Slotting
from tests.support.builders import bus_config, random_rows, riders_config
from tests.support.closing import Stopped
from tests.support.stored_rows import Clock, runs_of_scripts

KEYS, DAY, HOUR = FeedKeys("bus"), 86_400, 3600
PART = PartKeys(KEYS, "t/0")
SLOTTING = Slotting(timedelta(hours=1), timedelta(days=1), "America/Chicago")
FIRST = 1_490_054_400
"""2017-03-21 00:00 UTC."""


def period(day: int, timezone_hours: int = 5) -> Period:
    """The local day ``day`` days after 2017-03-21, in Texas."""
    start = FIRST + timezone_hours * HOUR + day * DAY
    return Period(start, start + DAY, str(np.datetime64("2017-03-21") + day))


async def release_days(redis: Redis, feed: str, days: range, users: int) -> None:
    """Release every hour of ``days`` and charge as many users in each day, all of them new, as a flood would."""
    ledger, keys = Ledger(redis, feed), FeedKeys(feed)
    generation = await ledger.start_generation(birth=0)
    records: dict[str, bytes] = {}
    for day in days:
        ids = np.arange(users, dtype=np.uint64) + np.uint64(day * users)
        slots = [period(day).start + hour * HOUR for hour in range(24)]
        await ledger.charge(slots[0], period(day), generation, ids, np.ones(users, dtype=np.int64), 10)
        await redis.unlink(keys.charged(slots[0]))
        for hour, slot in enumerate(slots):
            records[str(slot)] = msgspec.json.encode(Released(1, "d", sequence=day * 24 + hour + 1))
    await redis.hset(keys.closed, mapping=records)
    await redis.sadd(keys.sealed, *records)


async def sizes(redis: Redis, feed: str = "bus") -> dict[str, int]:
    keys = FeedKeys(feed)
    ledgers = await Ledger(redis, feed).periods()
    users = sum([await redis.hlen(keys.ledger(name)) for name in ledgers])
    closed, sealed = await redis.hlen(keys.closed), await redis.scard(keys.sealed)
    return {"keys": await redis.dbsize(), "periods": len(ledgers), "users": users, "closed": closed, "sealed": sealed}


async def used_memory(redis: Redis) -> int:
    """Bytes that Redis holds once what was unlinked is freed."""
    while int((await redis.info("memory"))["lazyfree_pending_objects"]):
        await asyncio.sleep(0.05)
    return int((await redis.info("memory"))["used_memory"])


async def test_a_flood_of_a_hundred_thousand_fake_users_is_forgotten_with_its_periods_and_leaves_the_memory_flat(redis):
    """In each of five rounds of four days 20 000 new users are charged, who take .8 MB and more where they stay."""
    counts, used = [], []
    for day in range(0, 20, 4):
        await release_days(redis, "bus", range(day, day + 4), users=5_000)
        await Retirement(redis, "bus", SLOTTING).retire(period(day + 2).start)
        counts.append(await sizes(redis))
        used.append(await used_memory(redis))
    assert counts == [counts[0] | {"periods": 2, "users": 10_000, "closed": 48, "sealed": 48}] * 5
    assert used[-1] - used[0] < 800_000, used


async def test_what_is_forgotten_can_never_be_charged_again_even_if_it_is_adopted(redis):
    """Otherwise a larger window.max_age would grant every budget again."""
    await release_days(redis, "bus", range(2), users=3)
    ledger, users = Ledger(redis, "bus"), np.arange(3, dtype=np.uint64)
    generation = await ledger.generation() or ""
    await Retirement(redis, "bus", SLOTTING).retire(period(1).start)
    assert await ledger.adopt(0) == period(1).start
    with pytest.raises(RetiredError, match="period 2017-03-21 is retired"):
        await ledger.charge(period(0).start, period(0), generation, users, np.full(3, 10), 10)
    assert await ledger.periods() == ["2017-03-22"]
    await redis.delete(KEYS.closed)
    refused = await ledger.charge(
        period(1).start + HOUR, period(1), generation, users + np.uint64(3), np.full(3, 10), 10
    )
    assert len(refused) == 3, "the period that is kept forgot what was spent"


async def test_the_mark_never_goes_back_whoever_retires_at_once_and_the_newest_release_is_always_remembered(redis):
    await release_days(redis, "bus", range(3), users=2)
    retirement, other = (Retirement(redis, "bus", SLOTTING) for _ in range(2))
    await asyncio.gather(retirement.retire(period(1).start), other.retire(period(2).start))
    assert await Ledger(redis, "bus").retired() == period(2).start
    assert await Ledger(redis, "bus").periods() == ["2017-03-23"]
    await retirement.retire(period(40).start)
    await retirement.retire(period(1).start)
    assert int(await redis.get(KEYS.retired)) == period(40).start
    newest = period(2).start + 23 * HOUR
    assert await redis.hkeys(KEYS.closed) == [str(newest).encode()], "a set-back Redis is known by the last release"
    assert await sizes(redis) == {"keys": 4, "periods": 0, "users": 0, "closed": 1, "sealed": 0}


STEPS = 12
"""Calls to Redis that a retirement makes, at least."""


@pytest.mark.parametrize("stop", range(1, STEPS))
async def test_a_worker_killed_at_any_step_leaves_nothing_chargeable_and_the_next_finishes(
    redis, redis_url, stop, tmp_path, monkeypatch
):
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await release_days(redis, "bus", range(2), users=3)
    await leave_behind(redis, period(0).start)
    await redis.script_load(text_of("mark_retired"))  # a server that lacks it is asked twice for the first step
    retirement, calls = Retirement(redis, "bus", SLOTTING), 0

    original = type(redis).execute_command

    async def until_killed(self: Redis, *given: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise Stopped
        return await original(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(redis), "execute_command", until_killed)
        with suppress(Stopped):
            await retirement.retire(period(1).start)
    ledger, users = Ledger(redis, "bus"), np.arange(3, dtype=np.uint64)
    generation = await ledger.generation() or ""
    with pytest.raises(RetiredError):
        await ledger.charge(period(0).start, period(0), generation, users, np.full(3, 1), 10)
    await retired(config)
    assert await ledger.periods() == ["2017-03-22"]
    assert await sizes(redis) == {"keys": 8, "periods": 1, "users": 3, "closed": 24, "sealed": 24}


async def leave_behind(redis: Redis, slot: int) -> None:
    """The keys that remain of a window whose worker was killed."""
    for key in (PART.rows(slot), KEYS.outbox(slot), KEYS.plan(slot)):
        await redis.set(key, b"x")
    await redis.hset(KEYS.charged(slot), "1", 1)
    await redis.hset(KEYS.set_aside, str(slot), "why")
    await redis.hset(KEYS.opened, "t/0", "0 ")
    await redis.hset(PART.slots, str(slot), 0)


async def test_rows_of_a_retired_period_are_late_whatever_the_configuration_admits(redis):
    """Otherwise a larger max_age would fill Redis with rows that nothing may be released of."""
    await Retirement(redis, "bus", SLOTTING).retire(period(1).start)
    store, rows = RowStore(redis, "bus"), random_rows(1, 10, slot=period(0).start)
    taken = await store.append("t/0", 0, 10, rows, np.arange(10), np.full(10, period(0).start))
    assert (taken.appended, taken.late) == (0, 10)
    taken = await store.append("t/0", 10, 20, rows, np.arange(10, 20), np.full(10, period(1).start))
    assert (taken.appended, taken.late) == (10, 0)


async def test_no_call_holds_redis_for_more_than_20_ms_of_processor_where_a_month_of_minutes_is_retired(redis):
    """Processor seconds of the thread that serves commands, by the scripts that it ran: the least of two means, because
    a processor is slower beside other processes."""
    minutes, means = [FIRST + 60 * minute for minute in range(31 * 24 * 60)], []
    await redis.hset(KEYS.partitions, "t/0", "0")
    for _ in range(2):
        for start in range(0, len(minutes), 5_000):
            part = minutes[start : start + 5_000]
            await redis.hset(PART.slots, mapping={str(slot): "1" for slot in part})
            await redis.hset(PART.sealed, mapping={str(slot): "1" for slot in part})
            await redis.mset({PART.rows(slot): b"rows" for slot in part})
        await redis.hset(PART.slots, str(minutes[-1] + 60), "1")
        await redis.config_resetstat()
        before = await redis.info("cpu")
        await Retirement(redis, "bus", SLOTTING).retire(minutes[-1] + 60)
        after, calls = await redis.info("cpu"), runs_of_scripts(await redis.info("commandstats"))
        keys = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
        means.append(sum(after[key] - before[key] for key in keys) / calls)
        assert await redis.hkeys(PART.slots) == [str(minutes[-1] + 60).encode()]
        assert await redis.exists(PART.sealed, *map(PART.rows, minutes)) == 0
    assert min(means) < 0.020, means


async def test_periods_shorter_than_a_day_are_retired_one_by_one(redis):
    quarters = Slotting(timedelta(hours=1), timedelta(hours=6), "America/Chicago")
    starts = [period(0).start + 6 * HOUR * k for k in range(5)]
    for start in starts:
        await redis.hset(KEYS.ledger(quarters.period_of(start).key), "1", 1)
        await redis.sadd(KEYS.sealed, start)
    await Retirement(redis, "bus", quarters).retire(starts[3])
    assert await Ledger(redis, "bus").periods() == ["2017-03-21.3", "2017-03-22.0"]


async def released_long_ago(redis: Redis, config: Config, open_day: int | None = None) -> None:
    """A feed whose days 0 to 9 were released, with rows of ``open_day`` not yet released."""
    feed = config.feed.name
    await release_days(redis, feed, range(10), users=2)
    store, now = RowStore(redis, feed), (await redis.time())[0] * 1_000_000
    if open_day is not None:
        slot = period(open_day).start
        await redis.srem(FeedKeys(feed).sealed, slot)
        await store.append("t/0", 0, 10, random_rows(1, 10, slot=slot), np.arange(10), np.full(10, slot))
    await store.list_partitions(["t/0"], now)
    await store.read_through([ReadThrough("t/0", None, 10, now)])
    await redis.hset(PartKeys(FeedKeys(feed), "t/0").progress, "event", now)


async def retired(config: Config) -> int:
    """The start of the oldest period that a worker leaves; 0 if it leaves all."""
    worker = Worker(config)
    async with aclosing(worker.redis):
        await Retiring(worker).retire()
        return await worker.ledger.retired() or 0


RECORDED = {"window.lateness": "event-time", "window.max_age": "30d"}
FOR_EVER = RECORDED | {"window.max_age": "36500d"}


@pytest.mark.parametrize(
    ("settings", "open_day", "kept"), [({}, None, 0), ({}, 7, 3), (RECORDED, None, 0), (FOR_EVER, None, 10)]
)
async def test_a_worker_retires_what_nothing_can_come_of_and_no_window_that_waits_or_that_recordings_may_have_events_of(
    settings, open_day, kept, redis, redis_url, tmp_path
):
    config = bus_config(tmp_path, **{"redis.url": redis_url}, **settings)
    await released_long_ago(redis, config, open_day)
    await retired(config)
    assert len(await Ledger(redis, "bus").periods()) == kept
    assert len(await RowStore(redis, "bus").open_slots()) == (open_day is not None)


@pytest.mark.parametrize("clock", ["worker", "redis"])
async def test_a_clock_that_is_years_ahead_retires_nothing_that_is_still_to_come(
    clock, redis, redis_url, tmp_path, monkeypatch
):
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await released_long_ago(redis, config)
    now, ahead = (await redis.time())[0], 20 * 365 * DAY
    await redis.hset(PART.progress, "read", (now + ahead) * 1_000_000)
    if clock == "worker":
        monkeypatch.setattr(time, "time", lambda: float(now + ahead))
    else:
        wrong = Clock()
        wrong.now = float(now + ahead)
        wrong.rules(monkeypatch)
    await RowStore(redis, "bus").list_partitions(["t/0"], (now + ahead) * 1_000_000)
    assert await retired(config) <= now - DAY


async def test_a_clock_that_is_set_back_and_a_larger_max_age_open_nothing_again(
    redis, redis_url, tmp_path, monkeypatch
):
    short, long = (bus_config(tmp_path, **{"redis.url": redis_url}, **ages) for ages in (RECORDED, FOR_EVER))
    await released_long_ago(redis, short)
    mark = await retired(short)
    monkeypatch.setattr(time, "time", lambda: float(period(3).start))
    assert await retired(long) == mark > 0
    ledger, users = Ledger(redis, "bus"), np.arange(2, dtype=np.uint64)
    with pytest.raises(RetiredError):
        await ledger.charge(period(5).start, period(5), await ledger.generation() or "", users, np.full(2, 1), 10)


async def test_under_participation_no_tick_that_is_still_to_come_is_retired(redis, redis_url, tmp_path):
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    await released_long_ago(redis, config)
    keys, ledger, now = FeedKeys.of(config), Ledger.of(redis, config), (await redis.time())[0]
    await redis.set(keys.first_slot, period(5).start + 2 * HOUR)
    await retired(config)
    assert len(await ledger.periods()) == 5
    await redis.set(keys.first_slot, now)
    mark = await retired(config)
    assert await ledger.periods() == []
    assert now - timedelta(days=4).total_seconds() < mark <= now - timedelta(days=2).total_seconds()
