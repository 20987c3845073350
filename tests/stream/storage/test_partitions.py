"""A partition that is opened, sealed, lost or gone: no row of it is counted twice, forgotten, or missing from a window
that is read. The keys of feeds that share a ledger, and when its periods are retired."""

import ast
import asyncio
import fnmatch
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import redis as blocking
from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import NoScriptError

from stream.app.services import Retiring
from stream.app.worker import Worker
from stream.local.kafka import REPO_ROOT
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, RetiredError
from stream.storage.retirement import Retirement
from stream.storage.row_store import ROW, Appended, Behind, NotSealedError, ReadThrough, RowStore
from stream.windows import Period, Slotting
from tests.support.command import run
from tests.support.sharing import LEDGER, sharing, sharing_file
from tests.support.stored_rows import fill

KEYS, HOUR = FeedKeys("bus"), 3600
PART = PartKeys(KEYS, "t/0")


async def append(
    state: RowStore, first: int, n: int, slot: int = 0, *, partition: str = "t/0", begun: bool = False
) -> Appended:
    rows = np.zeros(n, dtype=ROW)
    rows["user"], rows["time"] = np.arange(first, first + n), slot * 1_000_000
    return await state.append(
        partition, first, first + n, rows, rows["user"].astype(np.int64), np.full(n, slot), begun=begun
    )


async def lose(redis: Redis, part: PartKeys = PART) -> None:
    """What remains of a partition if its shard is set back to before it was opened."""
    for key in [part.progress, part.sealed, part.slots, *[part.rows(slot * HOUR) for slot in range(4)]]:
        await redis.delete(key)


async def users(state: RowStore, slot: int) -> list[int]:
    await state.seal(slot)
    return (await state.read(slot))["user"].tolist()


async def test_a_lost_partition_is_read_again_from_where_it_began_and_only_released_windows_stay_sealed(redis):
    state = RowStore(redis, "bus")
    for hour in range(3):
        await append(state, 10 + 5 * hour, 5, hour * HOUR)
    await state.seal(0)
    await state.seal(HOUR)
    await redis.hset(KEYS.closed, "0", "{}")
    await lose(redis)
    with pytest.raises(NotSealedError, match="t/0"):
        await state.seal(2 * HOUR)
    assert await state.next_offsets() == {"t/0": 10}
    with pytest.raises(Behind) as behind:
        await append(state, 25, 5, 3 * HOUR, begun=True)
    assert behind.value.stored == 10
    assert (await append(state, 10, 5, 0)).late == 5, "it was released"
    assert (await append(state, 15, 5, HOUR)).appended == 5, "it was sealed, but its rows are lost"
    assert (await append(state, 20, 5, 2 * HOUR)).appended == 5
    assert await users(state, HOUR) == list(range(15, 20))


async def test_a_name_that_the_feeds_shard_lost_is_put_back_and_a_listed_partition_is_sealed_and_read_until_then(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0"], 10**15)
    await append(state, 0, 10)
    await redis.delete(KEYS.opened)
    assert await users(state, 0) == list(range(10))
    await append(state, 10, 5, HOUR)
    assert await state.read_through([ReadThrough("t/0", 15, 15, 77)]) == {}
    await state.list_partitions([], 10**15)
    assert await users(state, HOUR) == list(range(10, 15))
    await lose(redis)
    assert await state.next_offsets() == {"t/0": 0}


async def test_a_lost_partition_is_read_again_only_from_the_first_row_that_was_not_released(redis):
    """So what a cut log no longer has counts as lost only if it was not released."""
    state = RowStore(redis, "bus")
    for hour in range(3):
        await append(state, 5 * hour, 5, hour * HOUR)
    await state.drop_rows(0)
    await state.read_through([ReadThrough("t/0", 15, 15, 77)])
    await state.drop_rows(HOUR)  # which no look at the ends has seen
    await lose(redis)
    assert await state.next_offsets() == {"t/0": 5}


async def test_a_partition_that_the_topic_no_longer_has_is_sealed_where_it_has_rows_only(redis):
    state = RowStore(redis, "bus")
    await state.list_partitions(["t/0", "t/1"], 1)
    await append(state, 0, 5, 0, partition="t/0")
    await append(state, 0, 5, HOUR, partition="t/1")
    await state.list_partitions(["t/0"], 2)
    assert await users(state, 0) == list(range(5))
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 0
    assert await users(state, HOUR) == list(range(5))
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 1
    await state.drop_rows(HOUR)
    await state.list_partitions(["t/0", "t/1"], 3)
    await state.seal(2 * HOUR)
    assert await redis.hlen(PartKeys(KEYS, "t/1").sealed) == 2, "the topic has it again"


async def test_rows_are_read_only_under_one_seal(redis):
    """A shard that is set back while its rows are read has lost the seal, or has another one."""
    state = RowStore(redis, "bus")
    await append(state, 0, 5)
    with pytest.raises(NotSealedError):
        await state.read(0)
    await state.seal(0)
    await redis.rpush(PART.rows(0), *[bytes(ROW.itemsize * 60_000)] * 4)  # 8 MiB: several reads
    evaluate, reads = redis.eval, 0

    async def resealed(script: str, *given: Any) -> Any:
        nonlocal reads
        if PART.rows(0) in given:
            reads += 1
            await redis.hset(PART.sealed, "0", reads)
        return await evaluate(script, *given)

    async def unknown(*given: Any) -> Any:
        raise NoScriptError

    client = SimpleNamespace(eval=resealed, evalsha=unknown, register_script=redis.register_script)
    with pytest.raises(NotSealedError):
        await RowStore(client, "bus").read(0)
    assert reads == 2


class Turns:
    """A client whose calls wait until it is their turn, so that two coroutines run in one order of many."""

    def __init__(self, redis: Redis, name: str, order: list[str], turned: asyncio.Condition) -> None:
        self._redis, self._name, self._order, self._turned = redis, name, order, turned

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._redis, name)
        return (lambda *given: self._in_turn(lambda: call(*given))) if name in ("eval", "evalsha") else call

    async def _in_turn(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async with self._turned:
            await self._turned.wait_for(lambda: self._name not in self._order or self._order[0] == self._name)
            if self._order and self._order[0] == self._name:
                self._order.pop(0)
            try:
                return await call()
            finally:
                self._turned.notify_all()


async def test_in_every_order_of_opening_and_sealing_what_is_stored_is_read(redis):
    """In every order of the calls of one who opens a partition, and one who seals and reads."""
    await redis.config_set("appendfsync", "no")

    async def ended(name: str, order: list[str], turned: asyncio.Condition, work: Awaitable[Any]) -> Any:
        """The result of ``work``, after which no turn waits for ``name``; None if it was not sealed."""
        try:
            return await work
        except NotSealedError:
            return None
        finally:
            async with turned:
                order[:] = [other for other in order if other != name]
                turned.notify_all()

    for places in itertools.combinations(range(10), 3):
        await redis.flushall()
        order, turned = ["seals" if place in places else "opens" for place in range(10)], asyncio.Condition()
        opens, seals = (RowStore(Turns(redis, name, order, turned), "bus") for name in ("opens", "seals"))
        stored, rows = await asyncio.gather(
            ended("opens", order, turned, append(opens, 0, 5)), ended("seals", order, turned, users(seals, 0))
        )
        assert rows is None or len(rows) == stored.appended, places
    await redis.config_set("appendfsync", "always")


BUS, TRAM = FeedKeys("bus", LEDGER), FeedKeys("tram", LEDGER)
COMMON = {"user_key", "generation", "retired", "policy", "commits", "feeds", "ledger", "terms", "blocks"}
COMMON |= {"budgets", "user_field", "marker_topic"}
FIRST, DAY = 1_490_054_400, 86_400
"""2017-03-21 00:00 UTC, and seconds of a day."""
SLOTTING = Slotting(timedelta(hours=1), timedelta(days=1), "UTC")
USERS, CHARGES = np.arange(3, dtype=np.uint64), np.ones(3, dtype=np.int64)


def period(day: int) -> Period:
    """The day ``day`` days after 2017-03-21."""
    return SLOTTING.period_of(FIRST + day * DAY)


def named(keys: FeedKeys) -> dict[str, str]:
    """Every key of a feed, by its name here."""
    names = {}
    for name in vars(FeedKeys):
        if name.startswith("_") or name in ("of", "beside", "shared_ledger"):
            continue
        key = getattr(keys, name)
        names[name] = key if isinstance(key, str) else key(7)
    return names


def test_feeds_of_a_ledger_have_its_keys_in_common_in_one_hash_slot_and_no_feed_of_its_own_ledger_has_one_of_them():
    both = named(BUS), named(TRAM)
    assert {name for name in both[0] if both[0][name] == both[1][name]} == COMMON
    assert len({*both[0].values()}) == len(both[0]), "two keys of a feed have one name"
    shared = {*both[0].values(), *both[1].values()}
    assert len({key_slot(key.encode()) for key in shared}) == 1
    for feed in ("bus", "tram", LEDGER, "ledger", "feed"):
        assert shared.isdisjoint(named(FeedKeys(feed)).values())


def acl_patterns(keys: FeedKeys) -> list[str]:
    """What docs/security.md grants to the workers of a feed."""
    own = "{bus}" if keys.shared_ledger is None else "{ledger:NAME}"
    page = (REPO_ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    patterns = next(pair for pair in re.findall(r"(~hv:\S+ ~hv:\S+?)[ `]", page) if own in pair)
    old, new = ("bus", keys.feed) if keys.shared_ledger is None else ("NAME", keys.shared_ledger)
    return [pattern[1:].replace(old, new) for pattern in patterns.split()]


def test_what_a_feed_is_granted_reaches_all_of_its_keys_and_none_of_another_feeds():
    """Whatever their names are; no name has a colon."""
    owns = [FeedKeys(name) for name in ("bus", "ledger", "part", "ledger-part", "feed", "b")]
    shared = [FeedKeys(name, ledger) for name in ("bus", "ledger") for ledger in ("city", "bus", "part")]
    for keys in [*owns, *shared]:
        patterns = acl_patterns(keys)
        for other in [*owns, *shared]:
            part = PartKeys(other, "part/0")
            names = {*named(other).values(), part.progress, part.slots, part.sealed, part.rows(7)}
            reached = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
            one_ledger = keys.shared_ledger is not None and keys.shared_ledger == other.shared_ledger
            assert reached == (names if keys == other or one_ledger else set()), (keys, other)


def test_partitions_are_spread_over_shards_and_each_is_on_one():
    slots = set()
    for number in range(12):
        part = PartKeys(FeedKeys("bus"), f"bus/{number}")
        mine = {key_slot(key.encode()) for key in (part.progress, part.slots, part.sealed, part.rows(7))}
        assert len(mine) == 1
        slots |= mine
    assert len({slot * 3 // 16_384 for slot in slots}) == 3


def test_no_part_of_the_service_names_a_feed_without_the_ledger_that_it_shares():
    """``Ledger(redis, config.feed.name)`` would give a feed of a shared ledger budgets of its own; ``Ledger.of``
    cannot."""
    bare = []
    for file in (REPO_ROOT / "stream").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            least = {"Ledger": 3, "RowStore": 3, "ReleaseStore": 3, "FeedKeys": 2, "Retirement": 4}
            if len(node.args) < least.get(node.func.id, 0):
                bare.append(f"{file.relative_to(REPO_ROOT)}:{node.lineno}")
    assert bare == []


async def charge(redis: Redis, feed: str, day: int, hour: int = 0) -> None:
    ledger = Ledger(redis, feed, LEDGER)
    slot = period(day).start + hour * 3600
    generation = await ledger.start_generation(birth=0)
    await ledger.charge(slot, period(day), generation, USERS, CHARGES, 10)
    await redis.sadd(FeedKeys(feed, LEDGER).sealed, slot)


async def test_a_period_is_retired_only_once_every_feed_has_asked_for_it(redis):
    for day in range(4):
        for feed in ("bus", "tram"):
            await charge(redis, feed, day)
    retiring = {feed: Retirement(redis, feed, SLOTTING, LEDGER) for feed in ("bus", "tram")}
    ledger = Ledger(redis, "bus", LEDGER)
    assert await retiring["bus"].retire(period(3).start) is None
    assert await ledger.retired() is None
    assert len(await ledger.periods()) == 4
    assert await retiring["tram"].retire(period(1).start) == period(1).start
    assert await ledger.periods() == [period(day).key for day in (1, 2, 3)]
    assert await retiring["bus"].retire(period(3).start) == period(1).start
    await charge(redis, "tram", 1, hour=1)
    for feed in ("bus", "tram"):
        with pytest.raises(RetiredError):
            await charge(redis, feed, 0, hour=1)
    assert await retiring["tram"].retire(period(2).start) == period(2).start
    assert await ledger.periods() == [period(day).key for day in (2, 3)]


async def test_a_feed_that_joins_later_holds_periods_from_then_on_and_brings_none_back(redis):
    for day in range(3):
        await charge(redis, "bus", day)
    alone = Retirement(redis, "bus", SLOTTING, LEDGER)
    assert await alone.retire(period(1).start) == period(1).start
    tram = Ledger(redis, "tram", LEDGER)
    await tram.start_generation()
    assert await alone.retire(period(2).start) == period(1).start
    await tram.adopt(0)
    with pytest.raises(RetiredError):
        await charge(redis, "tram", 0)
    await charge(redis, "tram", 1)
    assert (await tram.total(period(1).key)) == (3, 6)


async def test_a_worker_asks_for_its_feed_and_deletes_once_the_other_feed_has_asked(redis, redis_url, tmp_path):
    both = sharing(tmp_path, **{"redis.url": redis_url, "window.lateness": "event-time", "window.max_age": "1d"})
    now, marks = (await redis.time())[0], []
    for config in both:
        await fill(redis, config, 1)
        part = PartKeys(FeedKeys.of(config), "t/0")
        await redis.delete(part.slots)
        await redis.hset(part.progress, mapping={"event": now * 1_000_000, "moved": now * 1_000_000})
        await redis.hset(FeedKeys.of(config).partitions, "t/0", now * 1_000_000)
    for config in both:
        worker = Worker(config)
        async with aclosing(worker.redis):
            await Retiring(worker).retire()
            marks.append(await worker.ledger.retired())
    assert marks[0] is None
    assert marks[1] is not None
    assert FIRST < marks[1] < now - DAY


def test_show_names_the_feeds_whose_charges_it_adds_up(redis_url, redis, tmp_path):
    bus, _ = sharing(tmp_path)
    with blocking.Redis.from_url(redis_url) as client:
        client.hset(BUS.ledger("2017-03-21"), mapping={"1": 1_500_000, "2": 500_000})
        client.hset(BUS.feeds, mapping={"bus": 0, "tram": 0})
        client.set(BUS.policy, bus.ledger_policy)
    env = {"HEXVEIL_REDIS__URL": redis_url, "HEXVEIL_FEED__NAME": "tram"}
    shown = run("ledger", "show", "--json", "--config", sharing_file(tmp_path), env=env)
    assert json.loads(shown.stdout) == {"2017-03-21": {"users": 2, "micro_epsilon": 2_000_000}}
    assert "all feeds that share ledger 'city': bus, tram" in shown.stderr
