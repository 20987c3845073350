"""Which feeds may join a shared ledger and what a feed that is refused leaves behind. How a feed leaves a shared
ledger: not before it has published what it charged, whatever its worker does meanwhile."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as blocking
from aiokafka import AIOKafkaProducer, TopicPartition
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.app.doctor import ledger_finding
from stream.cli import app
from stream.config.servers import KafkaConfig
from stream.ingestion.pseudonyms import load_user_key
from stream.local import KafkaServer
from stream.local.kafka import write_identity
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.offline import claim_feed, replay_offline
from stream.protocol.markers import Published, read_markers
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError
from stream.storage.retirement import Retirement
from stream.storage.shared_ledger import NO_TOPIC, Common, SharedLedger
from stream.windows import Window
from tests.support.builders import SLOT, bus_config
from tests.support.city import HOUR, City
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.feeding import administering
from tests.support.sharing import BUDGET, LEDGER, PERIOD, each_stored, sharing, sharing_file, spent, stored


async def joined(city: City) -> list[str]:
    async with Redis.from_url(city.server.url) as client:
        return list(await SharedLedger(client, "any", str(city.bus.shared_ledger)).feeds())


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
    reason = await city.release(tram, 0)
    assert reason is not None
    assert "to the topic with identity" in reason
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
    assert await joined(city) == [city.bus.feed.name]
    async with Redis.from_url(city.server.url) as client:
        stated = await SharedLedger(client, "any", str(city.bus.shared_ledger)).budgets()
    assert list(stated) == [city.bus.feed.name]


async def test_doctor_of_a_shared_ledger_writes_nothing(city):
    async with Redis.from_url(city.server.url) as client:
        finding = await ledger_finding(city.tram, client)
        assert finding.ok, finding
        assert "no feed has joined" in finding.found
        assert await client.keys() == []
        await city.verify(city.bus)
        before = {key: await client.dump(key) for key in await client.keys()}
        finding = await ledger_finding(city.tram, client)
        assert finding.ok, finding
        assert f"'{city.tram.feed.name}' joins when its worker starts" in finding.found
        assert {key: await client.dump(key) for key in await client.keys()} == before


async def sent(city: City, feed: str, value: dict[str, Any] | bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=city.bus.kafka.bootstrap) as producer:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await producer.send_and_wait(WINDOW, body, key=feed.encode())


async def test_a_bad_marker_of_an_unrelated_feed_stops_nobody_and_one_of_a_member_stops_all(city):
    await city.fill()
    unrelated = city.bus.feed.name + "x"
    for value in (b"\xff", b"[]", b"null", b'{"ledger": 5}', {"window": 1}, {"ledger": "another", "window": 1}):
        await sent(city, unrelated, value)
    assert await city.release(city.bus, 0) is None
    await city.verify(city.tram)
    await sent(city, city.tram.feed.name, b"{")
    reason = await city.release(city.bus, 1)
    assert reason is not None
    assert "not a close marker" in reason


async def test_a_bad_marker_that_names_the_ledger_stops_it_whoever_sent_it(city):
    await sent(city, city.bus.feed.name + "x", {"ledger": city.bus.shared_ledger, "generation": 1})
    with pytest.raises(LedgerError, match="not a close marker"):
        await city.verify(city.bus)


def events(folder: Path, name: str, field: str) -> Path:
    file = folder / name
    lines = [
        {"user": "one", field: f"v{n % 3}", "time": (SLOT + n) * 1000, "lat": 30.2, "lng": -97.7, "speed": n % 50.0}
        for n in range(60)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_recordings_that_name_their_users_in_another_field_are_refused(tmp_path):
    bus, _ = sharing(tmp_path)
    fields = {"user": "fleet", "time": "time", "lat": "lat", "lng": "lng", "value": "speed", "time_format": "epoch-ms"}
    settings = {"privacy.epsilon": 1.5, "privacy.budget": BUDGET / 1e6, "ledger.name": LEDGER, "feed.name": "tram"}
    tram = bus_config(tmp_path, **settings, **{"feed.topic": "tram", "feed.format": "declared", "feed.fields": fields})
    span, state, out = Window(SLOT, SLOT + HOUR), tmp_path / "ledger", io.StringIO()
    replay_offline(bus, events(tmp_path, "bus.ndjson", "user"), "canonical", out, span=span, state=state)
    released = out.getvalue()
    with pytest.raises(LedgerError, match="field 'user' names, in this feed it is field 'fleet'"):
        replay_offline(tram, events(tmp_path, "tram.ndjson", "fleet"), "declared", out, span=span, state=state)
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


@pytest.mark.parametrize("last", ["charge", "commit", "publish"])
async def test_a_feed_leaves_once_it_has_published_what_it_charged_and_holds_nothing_any_more(redis, tmp_path, last):
    bus, tram = sharing(tmp_path)
    await each_stored(redis, bus, tram)
    shared, ledger = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, last)
    with pytest.raises(LedgerError, match="charged or committed and not published: 2017-03-21T12:00:00Z"):
        await shared.leave("tram")
    assert list(await shared.feeds()) == ["bus", "tram"]
    await protocol_of(redis, tram, Collected()).close(SLOT)
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
    shared, ledger, publisher = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram), Collected()
    await stored(redis, tram, 1)
    await ledger.start_generation(birth=0)

    async def leave(step: str) -> None:
        if step == last:
            await shared.leave("tram")

    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, publisher, after_step=leave).close(SLOT)
    assert await redis.exists(FeedKeys.of(tram).plan(SLOT))
    await ledger.start_generation()  # its worker looks again
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, publisher).close(SLOT)
    assert await ledger.total(PERIOD) == (0, 0)
    assert publisher.messages == []
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
    await protocol_of(redis, bus, Collected()).close(SLOT)
    await ledger.start_generation()
    with pytest.raises(BeforeBirthError):
        await protocol_of(redis, tram, Collected()).close(SLOT)
    await ledger.adopt(tram.slotting.period_of(SLOT).start)
    await protocol_of(redis, tram, Collected()).close(SLOT)
    assert BUDGET / 2 < max((await spent(redis, tram)).values()) <= BUDGET


async def test_a_window_that_some_users_have_paid_for_keeps_its_feed(redis, tmp_path):
    """A worker that was killed between two calls of one charge."""
    _, tram = sharing(tmp_path)
    await stored(redis, tram, 1)
    shared, ledger, keys = SharedLedger(redis, "bus", LEDGER), Ledger.of(redis, tram), FeedKeys.of(tram)
    await ledger.start_generation(birth=0)
    await close_until(protocol_of(redis, tram, Collected()), SLOT, "charge")
    await redis.hdel(keys.charged(SLOT), "plan")
    with pytest.raises(LedgerError, match="charged or committed and not published"):
        await shared.leave("tram")


async def test_a_feed_that_left_joins_again_with_a_birth_of_its_own(city):
    await city.fill()
    assert await city.release(city.tram, 0) is None
    async with Redis.from_url(city.server.url) as client:
        ledger, name = Ledger.of(client, city.tram), city.tram.feed.name
        await SharedLedger(client, "any", str(city.tram.shared_ledger)).leave(name)
        before = (await client.time())[0]
        await city.verify(city.tram)
        assert (await ledger.birth() or 0) >= before
        assert name in await SharedLedger(client, "any", str(city.tram.shared_ledger)).feeds()
    reason = await city.release(city.tram, 1)
    assert reason is not None
    assert "began before" in reason


def test_leaving_asks_for_a_confirmation(redis_url, redis, tmp_path):
    file = sharing_file(tmp_path)
    keys = FeedKeys("tram", LEDGER)
    with blocking.Redis.from_url(redis_url) as client:
        client.hset(keys.feeds, "tram", 0)
        command = ["ledger", "leave", "tram", "--config", str(file)]
        environment = {"HEXVEIL_REDIS__URL": redis_url}
        asked = CliRunner().invoke(app, command, env=environment)
        assert asked.exit_code == 2
        assert "repeat the" in asked.output
        assert client.hexists(keys.feeds, "tram")
        done = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert done.exit_code == 0, done.output
        assert not client.hexists(keys.feeds, "tram")
        again = CliRunner().invoke(app, [*command, "--yes"], env=environment)
        assert again.exit_code == 1
        assert "did not join" in again.output
