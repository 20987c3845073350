"""Feeds that share a ledger spend one budget, whoever is killed when, and whatever Redis forgets. Real Kafka and Redis.
A window is released once, with every row, to whichever earlier state the shard of a partition is set back between two
steps.

A shard that takes over has done the first of what its master did, so its states are those that the partition was in.
"""

import io
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
from stream.local import RedisServer
from stream.offline import replay_offline
from stream.protocol import close_process
from stream.protocol.due_windows import DueWindows
from stream.protocol.ledger_check import LedgerCheck
from stream.protocol.release_protocol import STEPS, ReleaseProtocol, statistics_of
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError, SetBackError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import AppendTimes, Behind, NotSealedError, ReadThrough, RowStore
from stream.windows import Window
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, in_order, random_rows
from tests.support.city import HOUR, City
from tests.support.closing import Collected, Stopped, close_until, protocol_of
from tests.support.sharing import BUDGET, LEDGER, PERIOD, drawn, each_stored, sharing, spent, stored


async def worst_of_two_feeds(redis: Redis, tmp_path: Path) -> int:
    """The most that the releases of two feeds cost one user, by the plans from which they were drawn."""
    both = sharing(tmp_path)
    await each_stored(redis, *both)
    costs = [await drawn(redis, config) for config in both]
    total = costs[0] + costs[1]
    if not any(cost > BUDGET for cost in total.values()):
        assert await spent(redis, both[0]) == total
    return max(total.values())


async def test_the_releases_of_two_feeds_cost_nobody_more_than_one_budget(redis, tmp_path):
    assert 0 < await worst_of_two_feeds(redis, tmp_path) <= BUDGET


async def test_the_audit_finds_feeds_that_each_keep_counters_of_their_own(redis, tmp_path, monkeypatch):
    """The planted bug."""
    monkeypatch.setattr(FeedKeys, "ledger", lambda self, period: f"hv:{{ledger:{LEDGER}}}:{self.feed}:{period}")
    assert await worst_of_two_feeds(redis, tmp_path) > BUDGET


@pytest.mark.parametrize("moment", ["seal", "read", "plan", "charge", "draw", "commit"])
async def test_a_feed_that_another_overtakes_plans_with_what_the_other_left(redis, tmp_path, moment):
    """Between a plan and its charge, the other feed spends what the plan would: it is replaced, and drawn without these
    users."""
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    others, steps = [], []

    async def overtaken(step: str) -> None:
        steps.append(step)
        if step == moment and not others:
            others.append(await drawn(redis, tram))

    total = await drawn(redis, bus, hook=overtaken) + others[0]
    assert 0 < max(total.values()) <= BUDGET
    assert steps.count("plan") == (2 if moment == "plan" else 1)
    paid = await spent(redis, bus)
    assert all(paid[user] >= cost for user, cost in total.items())


@pytest.mark.parametrize("last", STEPS[:-1])
async def test_a_crash_of_one_feed_charges_its_users_once_and_the_other_feed_sees_what_was_charged(
    redis, tmp_path, last
):
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    first = Collected()
    await close_until(protocol_of(redis, bus, first), SLOT, last)
    before = await spent(redis, bus)
    other = await drawn(redis, tram)
    if STEPS.index(last) >= STEPS.index("charge"):
        assert before.total() > 0
        assert await spent(redis, bus) == before + other
    again = Collected()
    await protocol_of(redis, bus, again).close(SLOT)
    after = await spent(redis, bus)
    assert max(after.values()) <= BUDGET
    if STEPS.index(last) >= STEPS.index("charge"):
        assert after == before + other, "the crash charged somebody twice"
    values = {message.ce_id: message.value for message in again.messages}
    assert all(values[message.ce_id] == message.value for message in first.messages)


async def test_markers_name_the_ledger_and_number_the_windows_of_each_feed_apart(city):
    """A number over all feeds would tell whose draw took longer."""
    await city.fill()
    for hour in range(2):
        for config in (city.bus, city.tram):
            assert await city.release(config, hour) is None
    markers = {config.feed.name: await city.markers(config) for config in (city.bus, city.tram)}
    assert [[marker["sequence"] for marker in of] for of in markers.values()] == [[1, 2], [1, 2]]
    facts = {(m["ledger"], m["generation"], m["budget"]) for of in markers.values() for m in of}
    assert facts == {(city.bus.shared_ledger, await city.verify(city.bus), 96.0)}


@pytest.mark.parametrize("own", [0, 1], ids=["the feed's own windows are known", "they are not"])
async def test_a_redis_set_back_to_before_a_charge_of_another_feed_stops_every_feed(city, own):
    """Redis knows all that this feed has published. Only the markers of the other feed show what was lost."""
    await city.fill()
    assert await city.release(city.bus, 0) is None
    city.backup()
    assert await city.release(city.tram, 0) is None
    if own:
        assert await city.release(city.bus, 1) is None
    city.set_back()
    before = await city.spent()
    for config in (city.bus, city.tram):
        reason = await city.release(config, 2)
        assert reason is not None
        assert "set back to an older state" in reason
        with pytest.raises(SetBackError):
            await city.verify(config)
    assert await city.spent() == before
    assert [len(await city.markers(config)) for config in (city.bus, city.tram)] == [1 + own, 1]


async def test_a_redis_that_lost_a_charge_of_another_feed_after_the_last_look_publishes_nothing(city, monkeypatch):
    """After this feed looked at the markers, the other one releases a window, and Redis loses it again."""
    await city.fill()
    client, look, looks = Redis.from_url(city.server.url), LedgerCheck.verify, []

    async def overtaken(self: LedgerCheck) -> None:
        await look(self)
        looks.append(1)
        if len(looks) == 1:
            older = {key: await client.dump(key) for key in await client.keys()}
            assert await city.release(city.tram, 0) is None
            await client.flushall()
            for key, value in older.items():
                await client.restore(key, 0, value)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerCheck, "verify", overtaken)
        reason = await city.release(city.bus, 0)
    await client.aclose()
    assert reason is not None
    assert "were committed, Redis remembers 0" in reason
    assert await city.markers(city.bus) == []


async def test_a_feed_without_releases_of_its_own_starts_no_ledger_where_another_feed_shows_that_it_was_lost(city):
    await city.fill()
    assert await city.release(city.tram, 0) is None
    async with Redis.from_url(city.server.url) as client:
        await client.flushall()
        close_process.begin_anew()
        for config in (city.bus, city.tram):
            with pytest.raises(
                LedgerError, match=f"feed '{city.tram.feed.name}'.*Redis holds none.*and the ledger, too"
            ):
                await city.verify(config)
        assert await client.keys() == []


async def test_two_redis_behind_one_ledger_stop_each_other(city, redis_binary, tmp_path):
    with RedisServer(tmp_path / "other", binary=redis_binary) as server:
        settings = city.tram.redis.model_copy(update={"url": server.url})
        other = City(city.bus, city.tram.model_copy(update={"redis": settings}), server, tmp_path)
        await city.fill()
        await other.fill()
        assert await city.release(city.bus, 0) is None
        reason = await other.release(other.tram, 0)
        assert reason is not None
        assert "two Redis serve one ledger" in reason


async def test_a_feed_that_joins_releases_no_window_of_a_period_that_began_before(redis, tmp_path):
    """It may have been released under another name and ledger until then."""
    bus, tram = sharing(tmp_path)
    await stored(redis, bus, 1)
    await Ledger.of(redis, tram).start_generation()
    await stored(redis, tram, 2)
    publisher = Collected()
    with pytest.raises(BeforeBirthError, match="ledger adopt"):
        await protocol_of(redis, tram, publisher).close(SLOT)
    assert publisher.messages == []
    assert max((await drawn(redis, bus)).values()) > 0
    await Ledger.of(redis, tram).adopt(0)
    await drawn(redis, tram)
    assert max((await spent(redis, tram)).values()) <= BUDGET


def test_recordings_of_two_feeds_share_the_budget_of_a_folder(tmp_path):
    file, out = tmp_path / "hour.ndjson", io.StringIO()
    rng = np.random.default_rng(1)
    events = [
        {"user": f"v{n % 3}", "time": (SLOT + n) * 1000, "lat": 30.2, "lng": -97.7, "speed": float(rng.uniform(0, 60))}
        for n in range(60)
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    span, state = Window(SLOT, SLOT + HOUR), tmp_path / "ledger"
    runs = [
        replay_offline(config, file, "canonical", out, span=span, state=state).charged[PERIOD]
        for config in sharing(tmp_path)
    ]
    assert runs[0][0] == runs[1][0] == 3
    assert 0 < runs[0][1] == runs[1][1] <= 3 * BUDGET, "the second feed spent a budget of its own"


async def test_a_window_of_one_feed_does_not_overwrite_that_of_another(redis, tmp_path):
    bus, tram = sharing(tmp_path, **{"privacy.budget": 96.0})
    for seed, config in enumerate((bus, tram)):
        await stored(redis, config, seed)
        await close_until(protocol_of(redis, config, Collected()), SLOT, "commit")
    boxes = [await redis.get(FeedKeys.of(config).outbox(SLOT)) for config in (bus, tram)]
    assert None not in boxes
    assert boxes[0] != boxes[1]


async def test_a_charge_notices_that_redis_lost_a_commit_of_another_feed_since_the_last_look(redis, tmp_path):
    bus, tram = sharing(tmp_path, **{"privacy.budget": 96.0})
    await each_stored(redis, bus, tram)
    older = {key: await redis.dump(key) for key in await redis.keys()}
    await drawn(redis, tram)
    publisher = Collected()
    worker = protocol_of(redis, bus, publisher)
    assert await worker.ledger.sequence() == 0
    await redis.flushall()
    for key, value in older.items():
        await redis.restore(key, 0, value)
    with pytest.raises(SetBackError, match="1 windows of the feeds of ledger 'city' were committed, Redis remembers 0"):
        await worker.close(SLOT)
    assert publisher.messages == []
    assert await worker.ledger.periods() == []


NAMES, N, AN_HOUR = ("bus/0", "bus/1"), 20, 3600
AFTER_US = (SLOT + 24 * AN_HOUR) * 1_000_000
LOGS = {name: np.split(in_order(random_rows(number, 2 * N, slot=SLOT)), 2) for number, name in enumerate(NAMES)}
STATES = ("nothing", "opened", "half of the rows", "all rows", "read to the end", "sealed")
STEPS_OF_SHARDS = ("seal", "read", "plan", "charge", "commit", "publish", "confirm")


async def store_from(state: RowStore, name: str, batch: int) -> None:
    """What a reader does that has stored the partition before."""
    while batch < len(LOGS[name]):
        rows, first = LOGS[name][batch], batch * N
        at = int(rows["time"].max())
        arrivals = AppendTimes(np.full(N, at), at, lambda slot: (slot + AN_HOUR) * 1_000_000 + 60_000_000)
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
    due = DueWindows(config, rows, store, ledger)
    return ReleaseProtocol(statistics_of(config), redis, rows, ledger, publisher, Noise(), sealing=due.seal)


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
    arrivals = AppendTimes(np.full(N, at), at, lambda slot: (slot + AN_HOUR) * 1_000_000 + 60_000_000)
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
@pytest.mark.parametrize("step", STEPS_OF_SHARDS)
async def test_a_window_is_released_once_with_every_row_wherever_a_shard_is_set_back(redis, tmp_path, step, killed):
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
        assert waited == (unread if step in STEPS_OF_SHARDS[: STEPS_OF_SHARDS.index("commit")] else set())
    else:
        assert waited == (unread | {"read to the end"} if step == "seal" else set()), "afterwards it has read all rows"
    await redis.config_set("appendfsync", "always")
