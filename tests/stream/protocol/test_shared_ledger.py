"""Feeds that share a ledger spend one budget, whoever is killed when, and whatever Redis forgets. Which feeds may join
a ledger, what a feed that is refused leaves behind, and how a feed leaves: not before it has published what it charged.
A window is released once, with every row, to whichever earlier state the shard of a partition is set back between two
steps: a shard that takes over has done the first of what its master did. Real Kafka and Redis."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis as blocking
from aiokafka import AIOKafkaProducer, TopicPartition
from redis.asyncio import Redis

from stream.app.doctor import ledger_finding
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.ingestion.pseudonyms import load_user_key
from stream.local.kafka import KafkaServer, write_identity
from stream.local.server import RedisServer
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.offline import claim_feed, replay_offline
from stream.protocol import close_process
from stream.protocol.markers import Published, read_markers
from stream.protocol.release_protocol import STEPS
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError, SetBackError
from stream.storage.retirement import Retirement
from stream.storage.row_store import NotSealedError, RowStore
from stream.storage.shared_ledger import NO_TOPIC, Common, SharedLedger
from stream.windows import Window
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, in_order, random_rows
from tests.support.city import HOUR, City
from tests.support.closing import Collected, Stopped, close_until, closed, protocol_of, refused
from tests.support.command import run
from tests.support.feeding import administering
from tests.support.shards import AFTER_US, N, closing, note_ends, read_on
from tests.support.sharing import BUDGET, LEDGER, PERIOD, drawn, each_stored, sharing, sharing_file, spent, stored
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
    again = await closed(redis, bus)
    after = await spent(redis, bus)
    assert max(after.values()) <= BUDGET
    if STEPS.index(last) >= STEPS.index("charge"):
        assert after == before + other, "the crash charged somebody twice"
    values = {message.ce_id: message.value for message in again}
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
    await city.set_back()
    close_process.begin_anew()
    before = await city.spent()
    for config in (city.bus, city.tram):
        assert "set back to an older state" in str(await city.release(config, 2))
        with pytest.raises(SetBackError):
            await city.verify(config)
    assert await city.spent() == before
    assert [len(await city.markers(config)) for config in (city.bus, city.tram)] == [1 + own, 1]


async def test_a_redis_that_lost_a_charge_of_another_feed_after_the_last_look_publishes_nothing(city):
    """After this feed looked at the markers, the other one releases a window, and Redis loses it again."""
    await city.fill()
    with city.losing_after_the_next_look(city.tram):
        reason = await city.release(city.bus, 0)
    assert "were committed, Redis remembers 0" in str(reason)
    assert await city.markers(city.bus) == []


async def test_a_feed_without_releases_of_its_own_starts_no_ledger_where_another_feed_shows_that_it_was_lost(city):
    await city.fill()
    assert await city.release(city.tram, 0) is None
    await city.client.flushall()
    close_process.begin_anew()
    for config in (city.bus, city.tram):
        with pytest.raises(LedgerError, match=f"feed '{city.tram.feed.name}'.*Redis holds none.*and the ledger, too"):
            await city.verify(config)
    assert await city.client.keys() == []


async def test_two_redis_behind_one_ledger_stop_each_other(city, redis_binary, tmp_path):
    """And the first goes on."""
    with RedisServer(tmp_path / "other", binary=redis_binary) as server:
        settings = city.tram.redis.model_copy(update={"url": server.url})
        tram = city.tram.model_copy(update={"redis": settings})
        await city.fill()
        async with Redis.from_url(server.url) as client:
            await City((city.bus, tram), server, tmp_path, client).fill()
        assert await city.release(city.bus, 0) is None
        assert "two Redis serve one ledger" in str(await city.release(tram, 0))
        assert await city.release(city.bus, 1) is None


async def test_a_feed_that_joins_releases_no_window_of_a_period_that_began_before(redis, tmp_path):
    """It may have been released under another name and ledger until then."""
    bus, tram = sharing(tmp_path)
    await stored(redis, bus, 1)
    await Ledger.of(redis, tram).start_generation()
    await stored(redis, tram, 2)
    await refused(redis, tram, BeforeBirthError, "ledger adopt")
    assert max((await drawn(redis, bus)).values()) > 0
    await Ledger.of(redis, tram).adopt(0)
    await drawn(redis, tram)
    assert max((await spent(redis, tram)).values()) <= BUDGET


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


async def cluster_of(bootstrap: str) -> str:
    async with administering(bootstrap) as admin:
        return (await admin.describe_cluster())["cluster_id"]


@pytest.fixture(scope="module")
def other(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Another broker, with the cluster id of the one that the tests share."""
    folder = tmp_path_factory.mktemp("other")
    write_identity(folder / "data", node=1, cluster=asyncio.run(cluster_of(kafka)))
    with KafkaServer(folder) as server:
        yield server


async def test_a_feed_that_publishes_to_another_kafka_with_the_same_cluster_id_is_refused(city, other):
    """Container images give every cluster one id. The bus would not see there what the tram has released."""
    await city.fill()
    await city.verify(city.bus)
    assert await cluster_of(other.bootstrap) == await cluster_of(city.bus.kafka.bootstrap)
    kafka = city.tram.kafka.model_copy(update={"bootstrap": other.bootstrap})
    tram = city.tram.model_copy(update={"kafka": kafka})
    await create_topics(tram)
    with pytest.raises(LedgerError, match="to the topic with identity"):
        await city.verify(tram)
    assert "to the topic with identity" in str(await city.release(tram, 0))
    assert await city.spent() == (0, 0)
    assert await city.release(city.bus, 0) is None


async def test_a_topic_that_was_created_anew_is_read_from_its_beginning(kafka, topic_name):
    """A process that knows an earlier topic beyond the first marker of the new one must not miss it."""
    feed, ledger = f"{topic_name}-tram", topic_name
    span = {"start": "2017-03-21T12:00:00Z", "end": "2017-03-21T13:00:00Z"}
    marker = {"feed": feed, "window": span, "generation": "g", "digest": "d", "sequence": 1, "ledger": ledger}
    servers = KafkaConfig(bootstrap=kafka)
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        sent = await producer.send_and_wait(WINDOW, json.dumps(marker).encode(), key=feed.encode())
        partitions = await producer.partitions_for(WINDOW)
    beyond = {TopicPartition(WINDOW, sent.partition): sent.offset + 1}
    now = await read_markers(servers, "bus", None, ledger)
    assert now.topic
    for topic, seen in ((now.topic, False), ("of an earlier topic", True)):
        known = Published(
            positions=dict.fromkeys([TopicPartition(WINDOW, n) for n in partitions], 0) | beyond, topic=topic
        )
        again = await read_markers(servers, "bus", known, ledger)
        assert (feed in again.newest) == seen
        assert again.topic == now.topic


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy.period": "12h"}, "periods of 1 day.*periods of 12:00:00"),
        ({"feed.timezone": "Europe/Paris"}, "Chicago.*Paris"),
        ({"feed.format": "capmetro"}, "field 'user'.*field 'vehicle_id'.*ledger of its own"),
        ({"privacy.user_key_file": "other.key"}, "another user key"),
    ],
    ids=["period", "time zone", "user", "user key"],
)
async def test_a_feed_with_other_terms_is_refused_and_does_not_join(city, change, said):
    await city.verify(city.bus)
    if "privacy.user_key_file" in change:
        change = {"privacy.user_key_file": str(city.folder / "other.key")}
        load_user_key(change["privacy.user_key_file"])
    settings = {"kafka.bootstrap": city.bus.kafka.bootstrap, "redis.url": city.server.url, "privacy.budget": 3.0}
    name = city.bus.feed.name.removesuffix("bus")
    _, tram = sharing(city.folder, name, str(city.bus.shared_ledger), **settings, **change)
    with pytest.raises(LedgerError, match=f"(?s){said}"):
        await city.verify(tram)
    assert list(await city.shared.feeds()) == list(await city.shared.budgets()) == [city.bus.feed.name]


async def test_doctor_of_a_shared_ledger_writes_nothing(city):
    finding = await ledger_finding(city.tram, city.client)
    assert finding.ok, finding
    assert "no feed has joined" in finding.found
    assert await city.client.keys() == []
    await city.verify(city.bus)
    before = {key: await city.client.dump(key) for key in await city.client.keys()}
    finding = await ledger_finding(city.tram, city.client)
    assert finding.ok, finding
    assert f"'{city.tram.feed.name}' joins when its worker starts" in finding.found
    assert {key: await city.client.dump(key) for key in await city.client.keys()} == before


async def sent(city: City, feed: str, value: dict[str, Any] | bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=city.bus.kafka.bootstrap) as producer:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await producer.send_and_wait(WINDOW, body, key=feed.encode())


@pytest.mark.parametrize("of", ["a member", "the ledger"])
async def test_a_bad_marker_of_an_unrelated_feed_stops_nobody_one_of_a_member_or_of_the_ledger_stops_all(city, of):
    await city.fill()
    unrelated = city.bus.feed.name + "x"
    for value in (b"\xff", b"[]", b"null", b'{"ledger": 5}', {"window": 1}, {"ledger": "another", "window": 1}):
        await sent(city, unrelated, value)
    assert await city.release(city.bus, 0) is None
    await city.verify(city.tram)
    named = unrelated, {"ledger": city.bus.shared_ledger, "generation": 1}
    await sent(city, *(named if of == "the ledger" else (city.tram.feed.name, b"{")))
    for config in city.feeds:
        assert "not a close marker" in str(await city.release(config, 1))


def events(folder: Path, name: str, field: str) -> Path:
    file = folder / name
    lines = [
        {"user": "one", field: f"v{n % 3}", "time": (SLOT + n) * 1000, "lat": 30.2, "lng": -97.7, "speed": n % 50.0}
        for n in range(60)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_recordings_of_two_feeds_share_the_budget_of_a_folder_and_name_their_users_in_one_field(tmp_path):
    span, state, out = Window(SLOT, SLOT + HOUR), tmp_path / "ledger", io.StringIO()
    file = events(tmp_path, "hour.ndjson", "user")
    runs = [
        replay_offline(config, file, "canonical", out, span=span, state=state).charged[PERIOD]
        for config in sharing(tmp_path)
    ]
    assert runs[0][0] == runs[1][0] == 3
    assert 0 < runs[0][1] == runs[1][1] <= 3 * BUDGET, "the second feed spent a budget of its own"
    fields = {"user": "fleet", "time": "time", "lat": "lat", "lng": "lng", "value": "speed", "time_format": "epoch-ms"}
    _, other = sharing(tmp_path, **{"feed.format": "declared", "feed.fields": fields, "feed.name": "other"})
    released = out.getvalue()
    with pytest.raises(LedgerError, match="field 'user' names, in this feed it is field 'fleet'"):
        replay_offline(other, events(tmp_path, "o.ndjson", "fleet"), "declared", out, span=span, state=state)
    assert out.getvalue() == released


async def test_a_feed_without_a_topic_joins_no_ledger_whose_feeds_have_one(redis, tmp_path):
    """No worker would see what it releases."""
    bus, tram = sharing(tmp_path)
    shared = SharedLedger(redis, "bus", LEDGER)
    await shared.bind(Common("field 'user'", "an identity", "key"))
    with pytest.raises(LedgerError, match=f"identity an identity, this one to {NO_TOPIC}"):
        await claim_feed(tram, redis, "key")
    assert await shared.feeds() == {}
    await redis.flushall()
    await claim_feed(bus, redis, "key")
    await claim_feed(tram, redis, "key")
    with pytest.raises(LedgerError, match="another user key"):
        await claim_feed(tram, redis, "other")
    assert list(await shared.feeds()) == ["bus", "tram"]


@pytest.mark.parametrize("last", ["part of the charge", "charge", "commit", "publish"])
async def test_a_feed_leaves_once_it_has_published_what_it_charged_and_holds_nothing_any_more(redis, tmp_path, last):
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, last.removeprefix("part of the "))
    if last == "part of the charge":  # the worker was killed between two calls of one charge
        await redis.hdel(FeedKeys.of(tram).charged(SLOT), "plan")
    with pytest.raises(LedgerError, match="charged or committed and not published: 2017-03-21T12:00:00Z"):
        await shared.leave("tram")
    assert list(await shared.feeds()) == ["bus", "tram"]
    await closed(redis, tram)
    charged = await ledger.total("2017-03-21")
    await shared.leave("tram")
    assert list(await shared.feeds()) == ["bus"]
    assert await ledger.birth() is None
    assert await ledger.total("2017-03-21") == charged
    end = bus.slotting.period_of(SLOT).end
    assert await Retirement(redis, "bus", bus.slotting, LEDGER).retire(end) == end


@pytest.mark.parametrize("last", ["read", "plan"])
async def test_a_feed_may_leave_while_its_worker_plans_and_again_whatever_the_worker_leaves_behind(
    redis, tmp_path, last
):
    """The worker has looked before the feed left, so it stores a plan, or goes on with one that nobody has paid for.
    Nobody is charged, nothing is published, and the plan holds nobody."""
    _, tram = sharing(tmp_path)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await stored(redis, tram, 1)
    await ledger.start_generation(birth=0)

    async def leave(step: str) -> None:
        if step == last:
            await shared.leave("tram")

    await refused(redis, tram, BeforeBirthError, after_step=leave)
    assert await redis.exists(FeedKeys.of(tram).plan(SLOT))
    await ledger.start_generation()  # its worker looks again
    await refused(redis, tram, BeforeBirthError)
    assert await ledger.total(PERIOD) == (0, 0)
    await shared.leave("tram")
    assert await shared.feeds() == {}


async def test_a_plan_that_was_left_behind_is_charged_within_the_budget_if_its_period_is_adopted(redis, tmp_path):
    """The bus has spent meanwhile what the plan of the tram took to be left."""
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await ledger.start_generation(birth=0)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, "plan")
    await shared.leave("tram")
    await closed(redis, bus)
    await ledger.start_generation()
    await refused(redis, tram, BeforeBirthError)
    await ledger.adopt(tram.slotting.period_of(SLOT).start)
    await closed(redis, tram)
    assert BUDGET / 2 < max((await spent(redis, tram)).values()) <= BUDGET


async def test_a_feed_that_left_joins_again_with_a_birth_of_its_own(city):
    await city.fill()
    assert await city.release(city.tram, 0) is None
    ledger, name = Ledger.of(city.client, city.tram), city.tram.feed.name
    await city.shared.leave(name)
    before = (await city.client.time())[0]
    await city.verify(city.tram)
    assert (await ledger.birth() or 0) >= before
    assert name in await city.shared.feeds()
    assert "began before" in str(await city.release(city.tram, 1))


def test_leaving_asks_for_a_confirmation(redis_url, redis, tmp_path):
    file = sharing_file(tmp_path)
    keys = FeedKeys("tram", LEDGER)
    with blocking.Redis.from_url(redis_url) as client:
        client.hset(keys.feeds, "tram", 0)
        command, environment = ["ledger", "leave", "tram", "--config", file], {"HEXVEIL_REDIS__URL": redis_url}
        assert "repeat the" in run(*command, code=2, env=environment).output
        assert client.hexists(keys.feeds, "tram")
        run(*command, "--yes", env=environment)
        assert not client.hexists(keys.feeds, "tram")
        assert "did not join" in run(*command, "--yes", code=1, env=environment).output
