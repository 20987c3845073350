"""The release protocol against real Redis and real Kafka, interrupted after every step."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis

from stream.local import RedisServer
from stream.messages.message import HEXAGON_SPEED, WINDOW, digest
from stream.messages.topics import create_topics
from stream.protocol import markers
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.publishing import KafkaPublisher, make_producer
from stream.protocol.release_protocol import STEPS
from stream.statistics.plan import PlanError
from stream.statistics.smoothing_state import decode_memory, encode_memory, identity
from stream.statistics.window_release import WindowStatistics
from stream.statistics.window_rows import contributions_of
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import RowStore
from stream.windows import Period
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.protocol_child import exit_code
from tests.support.recalling import recalled
from tests.support.releasing import planned
from tests.support.stored_rows import store
from tests.support.topics_reader import read_all


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_killed_after_any_step_leaves_a_window_that_is_released_once_with_the_same_bytes(
    step: str, kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
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


async def test_the_bytes_that_leave_are_the_committed_ones_and_a_second_draw_is_thrown_away(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(2, 200))
    redraws: list[int] = []
    rival, mine = Collected(), Collected()
    other = protocol_of(redis, config, rival)

    async def overtaken(step: str) -> None:
        if step == "draw":
            await close_until(other, SLOT, "commit")

    closing = protocol_of(redis, config, mine, after_step=overtaken, on_redraw=lambda: redraws.append(1))
    await closing.close(SLOT)
    committed = protocol_of(redis, config, rival)
    assert redraws == [1]
    assert (await committed.store.released(SLOT)).messages == len(mine.messages)
    users = contributions_of(random_rows(2, 200), config.value.upper_quanta).counts.n_users
    total = (await Ledger(redis, config.feed.name).total("2017-03-21"))[1]
    assert total <= users * config.privacy.epsilon_micro, "two draws of one plan were charged twice"


async def test_a_lost_ledger_generation_stops_the_release_before_anything_is_drawn(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(3, 50))
    await redis.delete(FeedKeys("bus").generation)
    publisher = Collected()
    with pytest.raises(LedgerError, match="append-only"):
        await protocol_of(redis, config, publisher).close(SLOT)
    assert publisher.messages == []
    assert await redis.get(FeedKeys("bus").outbox(SLOT)) is None


async def test_start_up_refuses_a_redis_that_forgot_or_was_set_back(
    kafka: str, redis: Redis, tmp_path: Path, topic_name: str
) -> None:
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


async def test_a_redis_set_back_under_a_running_worker_releases_nothing_more(
    kafka: str, redis_binary: str | None, tmp_path: Path, topic_name: str
) -> None:
    """After a failover or a restore under a running worker, the window would be drawn again, without its earlier
    charges.
    """
    with RedisServer(tmp_path / "redis", binary=redis_binary) as server:
        overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": server.url}
        config = bus_config(tmp_path, **overrides)
        await create_topics(config)
        client = Redis.from_url(server.url)
        await store(client, config, random_rows(4, 60))
        await client.aclose()
        shutil.copytree(tmp_path / "redis", tmp_path / "older")
        (report,) = await close_windows(config, [SLOT])
        assert report.failure is None
        (report,) = await close_windows(config, [SLOT])
        assert report.failure is None, "a restart of nothing is no reason to refuse"
        server.stop()
        shutil.rmtree(tmp_path / "redis" / "appendonlydir")
        shutil.copytree(tmp_path / "older" / "appendonlydir", tmp_path / "redis" / "appendonlydir")
        server.start()
        (report,) = await close_windows(config, [SLOT])
        assert report.failure == "ledger"
        assert "older state" in report.reason
    markers = [record for record in await read_all(kafka, topic_name) if record.topic == WINDOW]
    assert len(markers) == 1


async def test_charges_lost_between_charge_and_commit_release_nothing_until_they_are_made_again(
    kafka: str, redis_binary: str | None, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis returns without the charges while noise is drawn: the draw is discarded, and the window is charged and
    drawn again.
    """
    with RedisServer(tmp_path / "redis", binary=redis_binary) as server:
        config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": server.url})
        await create_topics(config)
        client = Redis.from_url(server.url)
        await store(client, config, random_rows(4, 60))
        await client.aclose()
        shutil.copytree(tmp_path / "redis", tmp_path / "older")
        draws: list[int] = []

        def set_back(*arguments):
            draws.append(1)
            if len(draws) == 1:
                server.stop()
                shutil.rmtree(tmp_path / "redis" / "appendonlydir")
                shutil.copytree(tmp_path / "older" / "appendonlydir", tmp_path / "redis" / "appendonlydir")
                server.start()
            return shipped(*arguments)

        shipped = WindowStatistics.draw
        monkeypatch.setattr(WindowStatistics, "draw", set_back)
        (report,) = await close_windows(config, [SLOT])
        assert report.failure in ("ledger", "redis")
        assert not [record for record in await read_all(kafka, topic_name) if record.topic == WINDOW]
        (report,) = await close_windows(config, [SLOT])
        assert report.failure is None
        client = Redis.from_url(server.url)
        users, charged = await Ledger(client, topic_name).total("2017-03-21")
        await client.aclose()
    assert len(draws) == 2
    assert users == contributions_of(random_rows(4, 60), config.value.upper_quanta).counts.n_users
    assert charged > 0


async def test_a_draw_whose_charges_are_gone_is_never_committed(redis: Redis, tmp_path: Path) -> None:
    """After the charge, a replica takes over that has the plan and the rows, but not the charges."""
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(5, 80))
    publisher = Collected()
    lost: list[str] = []

    async def forget(step: str) -> None:
        if step == "draw" and not lost:
            lost.append(step)
            await redis.delete(FeedKeys("bus").ledger("2017-03-21"), FeedKeys("bus").charged(SLOT))

    worker = protocol_of(redis, config, publisher, after_step=forget)
    with pytest.raises(LedgerError, match="are gone"):
        await worker.close(SLOT)
    assert publisher.messages == []
    assert await redis.get(FeedKeys("bus").outbox(SLOT)) is None
    await worker.close(SLOT)
    assert publisher.messages
    users = contributions_of(random_rows(5, 80), config.value.upper_quanta).counts.n_users
    assert (await Ledger(redis, "bus").total("2017-03-21"))[0] == users


async def test_a_redis_that_may_evict_the_ledger_is_refused(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
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
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
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
    kafka: str, redis: Redis, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the topic nobody knows whether the feed released anything, so an empty Redis may be one that lost its
    ledger.
    """
    monkeypatch.setattr(markers, "WINDOW", topic_name)
    monkeypatch.setattr(markers, "TOPIC_SECONDS", 1.0)
    config = bus_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    with pytest.raises(LedgerError, match="hexveil topics create"):
        await verify_ledger(config, redis)
    assert await Ledger(redis, topic_name).generation() is None


async def test_rows_that_change_after_the_plan_are_never_drawn(redis: Redis, tmp_path: Path) -> None:
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
async def test_a_speed_bound_raised_between_plan_and_draw_holds_from_the_next_window_on(
    redis: Redis, tmp_path: Path, relation: str
) -> None:
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


async def test_a_budget_spent_between_plan_and_charge_makes_a_new_plan_without_that_user(
    redis: Redis, tmp_path: Path
) -> None:
    config = bus_config(tmp_path)
    rows = random_rows(6, 120)
    await store(redis, config, rows)
    victim = str(int(rows["user"][0]))
    budget = config.privacy.ledger_budget
    seen: list[str] = []

    async def spend(step: str) -> None:
        seen.append(step)
        if step == "plan" and seen.count("plan") == 1:
            await redis.hset(FeedKeys("bus").ledger("2017-03-21"), victim, budget)

    publisher = Collected()
    await protocol_of(redis, config, publisher, after_step=spend).close(SLOT)
    assert seen.count("plan") == 2
    assert int(await redis.hget(FeedKeys("bus").ledger("2017-03-21"), victim)) == budget


async def test_a_user_without_a_full_grant_contributes_nothing_and_pays_nothing(redis: Redis, tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    rows = random_rows(7, 120)
    counts = contributions_of(rows, config.value.upper_quanta).counts
    left = np.full(counts.n_users, config.privacy.epsilon_micro)
    left[3] -= 1
    plan, _ = planned(config, rows, left)
    charges = plan.charges
    retained = plan.retained
    assert charges[3] == 0
    assert retained[counts.pair_user == 3].sum() == 0
    assert (charges <= config.privacy.epsilon_micro).all()
    assert charges[charges > 0].size == counts.n_users - 1


async def test_charges_are_paid_once_however_often_they_are_sent_and_never_beyond_the_budget(redis: Redis) -> None:
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


async def test_a_refused_user_changes_nobody_elses_charge(redis: Redis) -> None:
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


async def test_a_worker_that_falls_asleep_before_its_commit_cannot_release_a_window_again(
    redis: Redis, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("moment", ["seal", "read", "plan", "charge"])
async def test_a_worker_overtaken_anywhere_publishes_nothing_of_its_own_and_charges_nobody_again(
    redis: Redis, tmp_path: Path, moment: str
) -> None:
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(9, 150))
    other, late = Collected(), Collected()
    totals = []

    async def overtaken(step: str) -> None:
        if step == moment and not other.messages:
            await protocol_of(redis, config, other).close(SLOT)
            totals.append(await Ledger(redis, "bus").total("2017-03-21"))

    await protocol_of(redis, config, late, after_step=overtaken).close(SLOT)
    assert late.messages == []
    assert await Ledger(redis, "bus").total("2017-03-21") == totals[0]


async def test_periods_cannot_be_divided_anew_under_a_kept_ledger(redis: Redis) -> None:
    ledger = Ledger(redis, "bus")
    await ledger.claim_policy("periods of 1 day")
    await ledger.claim_policy("periods of 1 day")
    with pytest.raises(LedgerError, match="spent budgets would be forgotten"):
        await ledger.claim_policy("periods of 12 hours")
