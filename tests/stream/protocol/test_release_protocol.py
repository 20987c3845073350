"""The release protocol against real Redis and real Kafka, interrupted after every step. The producer of releases keeps
the leaders of all topics when a topic is added. Real broker. An error of any step, before or after its effect, neither
charges nor draws a window twice: the next attempt releases it once."""

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial, reduce
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.messages.message import HEXAGON_SPEED, WINDOW, digest
from stream.messages.topics import create_topics
from stream.protocol import markers, publishing
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.publishing import KafkaPublisher, make_producer
from stream.protocol.release_protocol import STEPS, ContentError
from stream.statistics.plan import PlanError
from stream.statistics.smoothing_state import decode_memory, encode_memory, identity
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import Period
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.participating import riders
from tests.support.protocol_child import exit_code
from tests.support.releasing import planned, recalled
from tests.support.stored_rows import fill, store
from tests.support.topics_reader import read_all


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_killed_after_any_step_leaves_a_window_that_is_released_once_with_the_same_bytes(
    step, kafka, redis, redis_url, tmp_path, topic_name
):
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    await create_topics(config)
    await store(redis, config, random_rows(1, 400))
    run = partial(exit_code, hourly.BUS, topic_name, tmp_path / "user.key", kafka, redis_url, SLOT)
    assert run(step) == -9
    ledger = Ledger(redis, topic_name)
    charged_before = await ledger.total("2017-03-21")
    if STEPS.index(step) >= STEPS.index("charge"):
        assert charged_before[1] > 0, "noise was drawn before anybody was charged"
    assert run("never") == 0

    bodies = defaultdict(set)
    for record in await read_all(kafka, topic_name):
        bodies[dict(record.headers)["ce_id"]].add(record.value)
    assert all(len(values) == 1 for values in bodies.values()), "one identifier with two different payloads"
    markers = [value for key, (value,) in ((k, tuple(v)) for k, v in bodies.items()) if key.startswith(WINDOW.encode())]
    assert len(markers) == 1
    marker = msgspec.json.decode(markers[0])
    releases = {k: next(iter(v)) for k, v in bodies.items() if k.startswith(HEXAGON_SPEED.encode())}
    assert marker["messages"] == len(releases)
    assert marker["digest"] == digest(releases[key] for key in sorted(releases))
    plan, contributions = planned(config, random_rows(1, 400))
    assert await ledger.total("2017-03-21") == (contributions.counts.n_users, int(plan.charged_users()[1].sum()))
    assert await RowStore(redis, topic_name).open_slots() == []
    window_bodies = [msgspec.json.decode(value) for _, value in sorted(releases.items())]
    remembered = await redis.get(FeedKeys(topic_name).memory)
    assert remembered == encode_memory(recalled(window_bodies, marker, None)), "memory and topic disagree"
    assert marker["memory"] == {"before": None, "after": identity(decode_memory(remembered))}


async def test_a_lost_ledger_generation_stops_the_release_before_anything_is_drawn(redis, tmp_path):
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(3, 50))
    await redis.delete(FeedKeys("bus").generation)
    publisher = Collected()
    with pytest.raises(LedgerError, match="append-only"):
        await protocol_of(redis, config, publisher).close(SLOT)
    assert publisher.messages == []
    assert await redis.get(FeedKeys("bus").outbox(SLOT)) is None


async def test_start_up_refuses_a_redis_that_forgot_or_was_set_back(kafka, redis, tmp_path, topic_name):
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    await create_topics(config)
    await store(redis, config, random_rows(4, 60))
    producer = make_producer(config.kafka)
    await producer.start()
    try:
        await protocol_of(redis, config, KafkaPublisher(producer, config.kafka)).close(SLOT)
    finally:
        await producer.stop()
    generation = await verify_ledger(config, redis)
    closed = await redis.hgetall(FeedKeys(topic_name).closed)
    await redis.delete(FeedKeys(topic_name).closed)
    with pytest.raises(LedgerError, match="older state"):
        await verify_ledger(config, redis)
    await redis.hset(FeedKeys(topic_name).closed, mapping=closed)
    assert await verify_ledger(config, redis) == generation
    await redis.flushall()
    with pytest.raises(LedgerError, match="spent budgets are lost"):
        await verify_ledger(config, redis)


async def test_a_redis_that_may_evict_the_ledger_is_refused(kafka, redis, redis_url, tmp_path, topic_name):
    """An eviction policy allkeys-… would delete spent budgets without an error once memory is short."""
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await store(redis, config, random_rows(4, 60))
    try:
        await redis.config_set("maxmemory", "1gb")
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(LedgerError, match="noeviction"):
            await verify_ledger(config, redis)
        (report,) = await close_windows(config, [SLOT])
        assert report.failure == "ledger"
        await redis.config_set("maxmemory-policy", "volatile-lru")
        await verify_ledger(config, redis)
    finally:
        await redis.config_set("maxmemory-policy", "noeviction")
        await redis.config_set("maxmemory", "0")
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None


async def test_a_full_redis_lets_a_window_wait_and_releases_it_once_it_has_room(
    kafka, redis, redis_url, tmp_path, topic_name
):
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url})
    await create_topics(config)
    await store(redis, config, random_rows(4, 60))
    await redis.config_set("maxmemory", "1")
    try:
        (report,) = await close_windows(config, [SLOT])
    finally:
        await redis.config_set("maxmemory", "0")
    assert (report.failure, report.blocks) == ("redis", True)
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None


async def test_a_broker_that_does_not_show_the_topic_of_markers_starts_no_ledger(
    kafka, redis, tmp_path, topic_name, monkeypatch
):
    """Without the topic nobody knows whether the feed released anything, so an empty Redis may be one that lost its
    ledger.
    """
    monkeypatch.setattr(markers, "WINDOW", topic_name)
    monkeypatch.setattr(markers, "TOPIC_SECONDS", 1.0)
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    with pytest.raises(LedgerError, match="hexveil topics create"):
        await verify_ledger(config, redis)
    assert await Ledger(redis, topic_name).generation() is None


async def test_rows_that_change_after_the_plan_are_never_drawn(redis, tmp_path):
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(5, 80))
    publisher = Collected()

    async def tamper(step: str) -> None:
        if step == "seal":
            await redis.delete(PartKeys(FeedKeys("bus"), "bus/0").rows(SLOT))

    await close_until(protocol_of(redis, config, publisher), SLOT, "charge")
    with pytest.raises(PlanError, match="changed after they were planned"):
        await protocol_of(redis, config, publisher, after_step=tamper).close(SLOT)
    assert publisher.messages == []


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_speed_bound_raised_between_plan_and_draw_holds_from_the_next_window_on(redis, tmp_path, relation):
    """The planned noise hides speeds up to the old bound. With a higher bound a user would change the sum by more than
    their charge covers.
    """
    made = {"values": bus_config, "participation": riders_config}[relation]
    before, after = made(tmp_path), made(tmp_path, **{"value.upper": 1000.0})
    await store(redis, before, random_rows(5, 80))
    publisher = Collected()
    await close_until(protocol_of(redis, before, publisher), SLOT, "charge")
    await protocol_of(redis, after, publisher).close(SLOT)
    *cells, marker = (json.loads(message.value) for message in publisher.messages)
    assert marker["clipping"]["upper"] == before.value.upper
    assert all(body["mean"]["interval"][1] <= before.value.upper for body in cells if "mean" in body)


async def test_charges_are_paid_once_however_often_they_are_sent_and_never_beyond_the_budget(redis):
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    users = np.arange(1, 5001, dtype=np.uint64) * np.uint64(3_000_000_000_000_001)
    charges = np.arange(1, 5001, dtype=np.int64)
    for _ in range(3):
        assert not len(await ledger.charge(SLOT, Period(SLOT, SLOT + 86_400, "p"), generation, users, charges, 10_000))
    assert (await ledger.spent("p", users, besides=0) == charges).all()
    assert (await ledger.spent("p", users, besides=SLOT) == 0).all()
    refused = await ledger.charge(
        SLOT + 3600, Period(SLOT, SLOT + 86_400, "p"), generation, users[-3:], np.full(3, 5001), 10_000
    )
    assert set(refused.tolist()) == {int(users[-1])}
    assert int((await ledger.spent("p", users[-1:], besides=0))[0]) == 5000, "a refused charge wrote something"
    with pytest.raises(LedgerError):
        await ledger.charge(SLOT, Period(SLOT, SLOT + 86_400, "p"), "another generation", users, charges, 10_000)


async def test_a_refused_user_changes_nobody_elses_charge(redis):
    """If it did, the presence of one user would decide when the budget of another is spent, and the ledger's proof
    would fail.
    """
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    users = np.array([7, 8, 9], dtype=np.uint64)
    await redis.hset(FeedKeys("bus").ledger("p"), "8", 100)
    refused = await ledger.charge(
        SLOT, Period(SLOT, SLOT + 86_400, "p"), generation, users, np.array([40, 40, 40]), 100
    )
    assert refused.tolist() == [8]
    replaced = await ledger.charge(
        SLOT, Period(SLOT, SLOT + 86_400, "p"), generation, users[[0, 2]], np.array([40, 40]), 100
    )
    assert not len(replaced)
    assert (await ledger.spent("p", users, besides=0)).tolist() == [40, 100, 40]


async def test_a_worker_that_falls_asleep_before_its_commit_cannot_release_a_window_again(redis, tmp_path):
    """Another worker releases the window and cleans up between this worker's draw and commit; this draw must be
    discarded."""
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(8, 150))
    other, late = Collected(), Collected()
    redraws: list[int] = []

    async def overtaken(step: str) -> None:
        if step == "draw":
            await protocol_of(redis, config, other).close(SLOT)

    closing = protocol_of(redis, config, late, after_step=overtaken, on_redraw=lambda: redraws.append(1))
    result = await closing.close(SLOT)
    assert late.messages == []
    assert redraws == [1]
    assert result.messages == len(other.messages)
    assert not [key async for key in redis.scan_iter(match=b"*outbox*")]


async def test_periods_cannot_be_divided_anew_under_a_kept_ledger(redis):
    ledger = Ledger(redis, "bus")
    await ledger.claim_policy("periods of 1 day")
    await ledger.claim_policy("periods of 1 day")
    with pytest.raises(LedgerError, match="spent budgets would be forgotten"):
        await ledger.claim_policy("periods of 12 hours")


async def test_a_topic_made_after_the_start_does_not_make_the_producer_forget_the_others(
    kafka, topic_name, monkeypatch
):
    old, new = f"{topic_name}-old", f"{topic_name}-new"
    monkeypatch.setattr(publishing, "OUTPUT_TOPICS", (old, new))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(old, 1, 1)])
    while old not in await admin.list_topics():
        await asyncio.sleep(0.05)
    producer = publishing.make_producer(KafkaConfig(bootstrap=kafka))
    await producer.start()
    try:
        await admin.create_topics([NewTopic(new, 1, 1)])
        async with asyncio.timeout(20):
            await asyncio.gather(*[await producer.send(topic, b"x") for topic in (old, new)])
    finally:
        await producer.stop()
        await admin.close()


FAILING_STEPS = (
    "rows.seal", "rows.read", "statistics.arrange", "statistics.plan", "store.store_plan",
    "charge", "ledger.charge",
    "statistics.draw", "statistics.compose", "store.commit", "publisher.publish",
    "publisher.confirm", "store.remember",
    "rows.drop_rows", "store.forget",
)  # fmt: skip


@contextmanager
def failing_once(owner: Any, name: str, error: Exception, *, after: bool) -> Iterator[list[str]]:
    """The first call of a method raises ``error``, before or after it did its work. Yields whether it was called."""
    original, calls = getattr(type(owner), name), []

    def fails(now: bool) -> None:
        if now and not calls:
            calls.append(name)
            raise error

    async def waiting(self: Any, *given: Any, **named: Any) -> Any:
        fails(not after)
        result = await original(self, *given, **named)
        fails(after)
        return result

    def at_once(self: Any, *given: Any, **named: Any) -> Any:
        fails(not after)
        result = original(self, *given, **named)
        fails(after)
        return result

    setattr(type(owner), name, waiting if inspect.iscoroutinefunction(original) else at_once)
    try:
        yield calls
    finally:
        setattr(type(owner), name, original)


class Closed(NamedTuple):
    """What became of a window: charges, messages by ``ce_id`` with their versions, and whether it was withheld."""

    charged: tuple[int, int]
    versions: dict[str, set[bytes]]
    withheld: bool


async def closed(
    redis: Redis, config: Config, step: str = "", error: Exception | None = None, *, after: bool
) -> Closed:
    """Close a window once with the error, and once more without; what was set aside is taken up."""
    await redis.flushall()
    await fill(redis, config, 1)
    publisher, store = Collected(), ReleaseStore.of(redis, config)
    protocol = protocol_of(redis, config, publisher)
    if error is not None:
        *path, name = step.split(".")
        planted = failing_once(reduce(getattr, path, protocol), name, error, after=after)
        with planted as calls, suppress(type(error), ContentError):
            await protocol.close(SLOT)
        assert calls
        for slot in await store.slots_set_aside():
            await store.take_up(slot)
    await protocol.close(SLOT)
    versions: dict[str, set[bytes]] = {}
    for message in publisher.messages:
        versions.setdefault(dict(message.headers)["ce_id"].decode(), set()).add(message.value)
    (marker,) = {message.value for message in publisher.messages if message.topic == WINDOW}
    total = await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key)
    return Closed(total, versions, "withheld" in json.loads(marker))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("relation", "error"),
    [
        ("values", RedisConnectionError("planted")),
        ("values", ValueError("planted")),
        ("participation", MemoryError("planted")),
    ],
    ids=["values, Redis", "values, content", "participation, content"],
)
async def test_a_window_is_charged_and_drawn_once_whichever_step_fails(redis, tmp_path, relation, error, after):
    config = bus_config(tmp_path) if relation == "values" else riders(tmp_path, **{"hexagons.resolution": 5})
    undisturbed = await closed(redis, config, after=after)
    for step in FAILING_STEPS:
        release = await closed(redis, config, step, error, after=after)
        assert {len(values) for values in release.versions.values()} == {1}, step
        if release.withheld:
            assert (relation, release.charged, len(release.versions)) == ("values", (0, 0), 1), step
        else:
            assert release.charged == undisturbed.charged, step
            assert release.versions.keys() == undisturbed.versions.keys(), step
