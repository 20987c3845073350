"""Feeds that share a ledger spend one budget, whoever is killed when, and whatever Redis forgets. Real Kafka and Redis.
A window is released once, with every row, to whichever earlier state the shard of a partition is set back between two
steps.

A shard that takes over has done the first of what its master did, so its states are those that the partition was in.
"""

import io
import json
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.config import Config
from stream.local import RedisServer
from stream.offline import replay_offline
from stream.protocol import close_process
from stream.protocol.ledger_check import LedgerCheck
from stream.protocol.release_protocol import STEPS
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError, SetBackError
from stream.storage.row_store import NotSealedError, RowStore
from stream.windows import Window
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, in_order, random_rows
from tests.support.city import HOUR, City
from tests.support.closing import Collected, Stopped, close_until, protocol_of
from tests.support.shards import AFTER_US, N, closing, note_ends, read_on
from tests.support.sharing import BUDGET, PERIOD, drawn, each_stored, sharing, spent, stored
from tests.support.stored_rows import dump, put_back


async def test_the_releases_of_two_feeds_cost_nobody_more_than_one_budget(redis, tmp_path):
    """By the plans from which they were drawn."""
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    total = await drawn(redis, bus) + await drawn(redis, tram)
    assert 0 < max(total.values()) <= BUDGET
    assert await spent(redis, bus) == total


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
    close_process.begin_anew()
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
            older = await dump(client)
            assert await city.release(city.tram, 0) is None
            await put_back(client, older)

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
        other = City((city.bus, city.tram.model_copy(update={"redis": settings})), server, tmp_path)
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


async def test_a_charge_notices_that_redis_lost_a_commit_of_another_feed_since_the_last_look(redis, tmp_path):
    bus, tram = sharing(tmp_path, **{"privacy.budget": 96.0})
    await each_stored(redis, bus, tram)
    older = await dump(redis)
    await drawn(redis, tram)
    publisher = Collected()
    worker = protocol_of(redis, bus, publisher)
    assert await worker.ledger.sequence() == 0
    await put_back(redis, older)
    with pytest.raises(SetBackError, match="1 windows of the feeds of ledger 'city' were committed, Redis remembers 0"):
        await worker.close(SLOT)
    assert publisher.messages == []
    assert await worker.ledger.periods() == []


NAMES = ("bus/0", "bus/1")
LOGS = {name: np.split(in_order(random_rows(number, 2 * N, slot=SLOT)), 2) for number, name in enumerate(NAMES)}
STATES = ("nothing", "opened", "half of the rows", "all rows", "read to the end", "sealed")
STEPS_OF_SHARDS = ("seal", "read", "plan", "charge", "commit", "publish", "confirm")


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
        for key, value in self._states[name].items():
            await self._redis.restore(key, 0, value)


async def fill(redis: Redis, config: Config) -> tuple[RowStore, Shard]:
    await redis.flushall()
    state, shard = RowStore.of(redis, config), Shard(redis, config)
    await Ledger.of(redis, config).start_generation(birth=0)
    await state.list_partitions(NAMES, AFTER_US)
    await shard.remember("nothing")
    await read_on(state, NAMES[0], LOGS[NAMES[0]], 0)
    await state.move(NAMES[1], 0, 0)
    await shard.remember("opened")
    await read_on(state, NAMES[1], LOGS[NAMES[1]][:1], 0)
    await shard.remember("half of the rows")
    await read_on(state, NAMES[1], LOGS[NAMES[1]], 1)
    await shard.remember("all rows")
    await note_ends(state, LOGS)
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

    Returns how often the window had to be read again before it was released.
    """
    state, shard = await fill(redis, config)

    async def set_back(reached: str) -> None:
        if reached == step:
            await shard.remember("sealed")
            await shard.set_back(back)
            if killed:
                raise Stopped

    waited = 0
    for hooks in ({"after_step": set_back}, {}, {}):
        try:
            await closing(redis, config, publisher, **hooks).close(SLOT)
        except Stopped:
            continue
        except NotSealedError:
            await note_ends(state, LOGS)
            waited += 1
    return state, waited


@pytest.mark.parametrize("killed", [False, True], ids=["and the worker goes on", "and the worker is killed"])
@pytest.mark.parametrize("step", STEPS_OF_SHARDS)
async def test_a_window_is_released_once_with_every_row_wherever_a_shard_is_set_back(redis, tmp_path, step, killed):
    config, expected = bus_config(tmp_path, **PLAINLY_PLANNED), Collected()
    await redis.config_set("appendfsync", "no")
    await fill(redis, config)
    await closing(redis, config, expected).close(SLOT)
    right = await outcome(redis, config, expected)
    assert sum(events or 0 for _, events, _ in right[0]) == 4 * N
    waited = set()
    for back in STATES:
        publisher = Collected()
        state, times = await closed_with_set_back(redis, config, publisher, back, step, killed=killed)
        waited |= {back} if times else set()
        assert await outcome(redis, config, publisher) == right, back
        await note_ends(state, LOGS)
        for slot in (await state.look()).slots:
            await closing(redis, config, publisher).close(slot)
        assert (await state.look()).slots == []
        assert await outcome(redis, config, publisher) == right, back
    unread = set(STATES[: STATES.index("read to the end")])
    if killed:  # the next attempt seals and reads again, unless the bytes are committed
        assert waited == (unread if step in STEPS_OF_SHARDS[: STEPS_OF_SHARDS.index("commit")] else set())
    else:
        assert waited == (unread | {"read to the end"} if step == "seal" else set()), "afterwards it has read all rows"
    await redis.config_set("appendfsync", "always")
