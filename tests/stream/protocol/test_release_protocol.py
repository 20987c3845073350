"""The release protocol against real Redis and Kafka: interrupted after every step, with an error in every step, and
on a Redis that lost charges, which the number of committed windows in the close markers reveals."""

import asyncio
import itertools
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from stream.app.doctor import retention_finding
from stream.config import Config, load_config
from stream.config.servers import KafkaConfig
from stream.local.server import free_port
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, SPATIAL_HISTOGRAM, WINDOW, Message, digest
from stream.messages.topics import create_topics
from stream.protocol import close_process, markers, publishing
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.markers import read_markers
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.protocol.release_protocol import STEPS, ContentError
from stream.statistics.plan import PlanError
from stream.statistics.smoothing_state import decode_memory, encode_memory, identity
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger, LedgerError, SetBackError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.windows import Period, utc_text
from tests.support import hourly
from tests.support.builders import (
    SLOT,
    bus_config,
    located_rows,
    random_rows,
    riders,
    riders_config,
    uncommented,
    with_histograms,
)
from tests.support.closing import Collected, close_until, closed, failing, protocol_of, refused
from tests.support.environment import worker_environment
from tests.support.feeding import administering, create_topic
from tests.support.protocol_child import exit_code
from tests.support.releasing import planned_with_fixes, recalled
from tests.support.stored_rows import dump, fill, put_back, store
from tests.support.topics_reader import versions


@pytest.mark.parametrize("step", STEPS)
async def test_a_worker_killed_after_any_step_leaves_a_window_that_is_released_once_with_the_same_bytes(
    step, kafka, redis, redis_url, tmp_path, topic_name
):
    """Histograms are charged with the cells before noise is drawn, and are of the same bytes as well."""
    file, rows, key = tmp_path / "histograms.toml", located_rows(1, 400), tmp_path / "user.key"
    file.write_text(uncommented(hourly.BUS, euler=True).replace("rows = 64", "rows = 16", 1), encoding="utf-8")
    named = {"feed.name": topic_name, "kafka.bootstrap": kafka, "privacy.user_key_file": str(key)}
    config = load_config(file, **named)
    await create_topics(config)
    await store(redis, config, rows)
    run = partial(exit_code, file, topic_name, key, kafka, redis_url, SLOT)
    assert run(step) == -9
    ledger, committed = Ledger(redis, topic_name), await redis.get(FeedKeys(topic_name).outbox(SLOT))
    plan, contributions, _ = planned_with_fixes(config, rows)
    exact = contributions.counts.n_users, int(plan.charged_users()[1].sum())
    if STEPS.index(step) >= STEPS.index("charge"):
        assert await ledger.total("2017-03-21") == exact, "noise was drawn before everybody had paid for everything"
    assert run("never") == 0

    bodies = await versions(kafka, topic_name, OUTPUT_TOPICS)
    assert all(len(values) == 1 for values in bodies.values()), "one identifier with two different payloads"
    cells, histograms, markers = (
        [value for name in sorted(bodies) if name.startswith(topic) for value in bodies[name]]
        for topic in (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)
    )
    (marker,) = map(json.loads, markers)
    assert marker["mechanisms"] == [json.loads(body)["mechanism"] for body in histograms] == ["euler", "sparse"]
    assert (marker["messages"], marker["digest"]) == (len(cells) + 2, digest(cells + histograms))
    assert committed is None or all(body in committed for body in cells + histograms + markers)
    assert await ledger.total("2017-03-21") == exact
    assert await RowStore(redis, topic_name).open_slots() == []
    remembered = await redis.get(FeedKeys(topic_name).memory)
    assert remembered == encode_memory(recalled(list(map(json.loads, cells)), marker, None)), "they disagree"
    assert marker["memory"] == {"before": None, "after": identity(decode_memory(remembered))}


async def test_a_lost_ledger_generation_stops_the_release_before_anything_is_drawn(redis, tmp_path):
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(3, 50))
    await redis.delete(FeedKeys("bus").generation)
    await refused(redis, config, LedgerError, "append-only")
    assert await redis.get(FeedKeys("bus").outbox(SLOT)) is None


async def test_a_redis_that_forgot_was_set_back_or_released_another_window_since_is_refused_and_a_second_one(
    feed, redis
):
    config = feed()
    closed = FeedKeys.of(config).closed
    await store(redis, config, random_rows(4, 60))
    (report,) = await close_windows(config, [SLOT])
    assert report.failure is None
    generation = await verify_ledger(config, redis)
    ((slot, record),) = (await redis.hgetall(closed)).items()
    for other in (None, msgspec.json.encode(msgspec.json.decode(record) | {"digest": "another"})):
        await redis.delete(closed)
        if other is not None:
            await redis.hset(closed, slot, other)
        with pytest.raises(LedgerError, match="older state"):
            await verify_ledger(config, redis)
    await redis.hset(closed, slot, record)
    assert await verify_ledger(config, redis) == generation
    await redis.flushall()
    with pytest.raises(LedgerError, match="spent budgets are lost"):
        await verify_ledger(config, redis)
    await store(redis, config, random_rows(4, 60))
    (report,) = await close_windows(config, [SLOT])
    assert (report.failure, "two Redis serve one feed" in str(report.reason)) == ("ledger", True)


async def test_a_redis_that_may_evict_the_ledger_is_refused(feed, redis):
    """An eviction policy allkeys-… would delete spent budgets without an error once memory is short."""
    config = feed()
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


async def test_a_full_redis_lets_a_window_wait_and_releases_it_once_it_has_room(feed, redis):
    config = feed()
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

    async def tamper(step: str) -> None:
        if step == "seal":
            await redis.delete(PartKeys(FeedKeys("bus"), "bus/0").rows(SLOT))

    await close_until(protocol_of(redis, config, Collected()), SLOT, "charge")
    await refused(redis, config, PlanError, "changed after they were planned", after_step=tamper)


@pytest.mark.parametrize("relation", ["values", "participation"])
async def test_a_speed_bound_raised_between_plan_and_draw_holds_from_the_next_window_on(redis, tmp_path, relation):
    """The planned noise hides speeds up to the old bound. With a higher bound a user would change the sum by more than
    their charge covers.
    """
    made = {"values": bus_config, "participation": riders_config}[relation]
    before, after = made(tmp_path), made(tmp_path, **{"value.upper": 1000.0})
    await store(redis, before, random_rows(5, 80))
    await close_until(protocol_of(redis, before, Collected()), SLOT, "charge")
    *cells, marker = (json.loads(message.value) for message in await closed(redis, after))
    assert marker["clipping"]["upper"] == before.value.upper
    assert all(body["mean"]["interval"][1] <= before.value.upper for body in cells if "mean" in body)


async def test_charges_are_paid_once_however_often_they_are_sent_and_never_beyond_the_budget(redis):
    """A user who is refused changes nobody else's charge: if they did, the presence of one user would decide when the
    budget of another is spent, and the ledger's proof would fail."""
    ledger, day = Ledger(redis, "bus"), Period(SLOT, SLOT + 86_400, "p")
    generation = await ledger.start_generation(birth=0)
    users = np.arange(1, 5001, dtype=np.uint64) * np.uint64(3_000_000_000_000_001)
    charges = np.arange(1, 5001, dtype=np.int64)
    for _ in range(3):
        assert not len(await ledger.charge(SLOT, day, generation, users, charges, 10_000))
    assert (await ledger.spent("p", users, besides=0) == charges).all()
    assert (await ledger.spent("p", users, besides=SLOT) == 0).all()
    more, last = np.full(3, 5001), users[-3:]
    assert (await ledger.charge(SLOT + 3600, day, generation, last, more, 10_000)).tolist() == [int(last[2])]
    assert int((await ledger.spent("p", last, besides=0))[2]) == 5000, "a refused charge wrote something"
    assert not len(await ledger.charge(SLOT + 3600, day, generation, last[:2], more[:2], 10_000))
    assert (await ledger.spent("p", last, besides=0)).tolist() == [4998 + 5001, 4999 + 5001, 5000]
    with pytest.raises(LedgerError):
        await ledger.charge(SLOT, day, "another generation", users, charges, 10_000)


@pytest.mark.parametrize("last", ["commit", "clean"])
async def test_a_worker_overtaken_anywhere_publishes_the_bytes_of_the_other_or_nothing_and_charges_nobody_again(
    redis, tmp_path, last
):
    """After a step of this worker, another one commits the window, or releases it and cleans up. What this one draws
    is discarded unseen, histograms as well."""
    config = with_histograms("participation", tmp_path, ["ug"])
    ledger, redraws = Ledger.of(redis, config), list[str]()
    for moment in STEPS[: STEPS.index("commit")]:
        await redis.flushall()
        await store(redis, config, located_rows(8, 150))
        other, before = Collected(), list[Any]()

        async def overtaken(step: str, moment=moment, other=other, before=before) -> None:
            if step == moment and not before:
                await close_until(protocol_of(redis, config, other), SLOT, last)
                before.extend([await ledger.total(PERIOD), await ReleaseStore.of(redis, config).outbox(SLOT)])

        mine = await closed(redis, config, after_step=overtaken, on_redraw=lambda moment=moment: redraws.append(moment))
        assert [message.value for message in mine if message.value not in (before[1] or b"")] == [], moment
        assert (len(mine) > 1, len(other.messages) > 1) == (last == "commit", last == "clean"), moment
        assert await ledger.total(PERIOD) == before[0], moment
        assert not [key async for key in redis.scan_iter(match=b"*outbox*")]
    assert redraws[-1] == "draw"


async def test_a_topic_made_after_the_start_does_not_make_the_producer_forget_the_others(
    kafka, topic_name, monkeypatch
):
    old, new = f"{topic_name}-old", f"{topic_name}-new"
    monkeypatch.setattr(publishing, "OUTPUT_TOPICS", (old, new))
    await create_topic(kafka, old, 1)
    async with administering(kafka) as admin:
        while old not in await admin.list_topics():
            await asyncio.sleep(0.05)
    async with make_producer(KafkaConfig(bootstrap=kafka)) as producer, asyncio.timeout(60):
        await create_topic(kafka, new, 1)
        await asyncio.gather(*[await producer.send(topic, b"x") for topic in (old, new)])


FAILING_STEPS = (
    "rows.seal", "rows.read", "statistics.arrange", "statistics.plan", "store.store_plan",
    "charge", "ledger.charge",
    "statistics.draw", "statistics.compose", "store.commit", "publisher.publish",
    "publisher.confirm", "store.remember",
    "rows.drop_rows", "store.forget",
)  # fmt: skip


class Closed(NamedTuple):
    """What became of a window: charges, messages by ``ce_id`` with their versions, and whether it was withheld."""

    charged: tuple[int, int]
    versions: dict[str, set[bytes]]
    withheld: bool


async def disturbed(
    redis: Redis, config: Config, step: str = "", error: Exception | None = None, *, after: bool
) -> Closed:
    """Close a window once with the error, and once more without; what was set aside is taken up."""
    await redis.flushall()
    await fill(redis, config, 1)
    publisher, store = Collected(), ReleaseStore.of(redis, config)
    protocol = protocol_of(redis, config, publisher)
    if error is not None:
        *path, name = step.split(".")
        planted = failing(type(reduce(getattr, path, protocol)), name, error, after=after)
        with planted as calls, suppress(type(error), ContentError):
            await protocol.close(SLOT)
        assert calls
        for slot in await store.slots_set_aside():
            assert await store.outbox(slot) is None
            assert not publisher.messages, "what is set aside was published"
            await store.take_up(slot)
    await protocol.close(SLOT)
    published: dict[str, set[bytes]] = {}
    for message in publisher.messages:
        published.setdefault(message.ce_id, set()).add(message.value)
    (marker,) = {message.value for message in publisher.messages if message.topic == WINDOW}
    total = await Ledger.of(redis, config).total(config.slotting.period_of(SLOT).key)
    return Closed(total, published, "withheld" in json.loads(marker))


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
    undisturbed = await disturbed(redis, config, after=after)
    for step in FAILING_STEPS:
        release = await disturbed(redis, config, step, error, after=after)
        assert {len(values) for values in release.versions.values()} == {1}, step
        if release.withheld:
            assert (relation, release.charged, len(release.versions)) == ("values", (0, 0), 1), step
        else:
            assert release.charged == undisturbed.charged, step
            assert release.versions.keys() == undisturbed.versions.keys(), step


HOUR = 3600
PERIOD = "2017-03-21"


@pytest.mark.parametrize("back", ["backup", "keys", None])
async def test_a_redis_that_was_set_back_releases_and_charges_nothing_and_without_it_the_numbers_go_on(
    deployment, back
):
    """After a backup was restored, another process looks, which has not seen the markers. Keys are put back under a
    running Redis and worker: neither its process nor its replication history changes, only the number of windows shows
    it."""
    await deployment.fill(4)
    assert await deployment.failures(0) == [None]
    deployment.backup()
    older = await dump(deployment.client)
    assert await deployment.failures(1, 2) == [None, None]
    if back == "keys":
        await put_back(deployment.client, older)
    if back == "backup":
        await deployment.set_back()
        close_process.begin_anew()
    before = await deployment.spent()
    reason = await deployment.release(deployment.bus, 3)
    if back is None:
        assert reason is None
        assert await deployment.sequences() == [1, 2, 3, 4]
        assert (await deployment.spent())[1] > before[1]
        assert await deployment.verify()
        return
    assert "3 windows of this feed were committed, Redis remembers 1" in str(reason)
    assert "append-only file" in str(reason)
    with pytest.raises(SetBackError) as refused:
        await deployment.verify()
    assert (refused.value.remembered, refused.value.committed) == (1, 3)
    assert await deployment.sequences() == [1, 2, 3]
    assert await deployment.spent() == before


async def drawn_twice(config: Config) -> list[str]:
    """Identifiers under which messages of different content were published."""
    published = await versions(config.kafka.bootstrap, config.feed.name)
    return [name for name, values in published.items() if len(values) > 1]


@pytest.mark.parametrize("set_back", [True, False])
async def test_a_window_half_published_whose_commit_was_lost_is_not_drawn_again_by_the_same_worker(
    deployment, monkeypatch, set_back
):
    """Some messages are published, but not the close marker. So the topic does not show the window, but the process
    counted it.
    """
    await deployment.fill(1)
    deployment.backup()

    async def half(self: KafkaPublisher, messages: Sequence[Message]) -> None:
        for message in messages[:2]:
            await (await self.send(message))
        raise PublishError("the broker went away")

    with monkeypatch.context() as patch:
        patch.setattr(KafkaPublisher, "publish", half)
        assert await deployment.failures(0) == ["publish"]
    if set_back:
        await deployment.set_back()
    assert await deployment.failures(0) == ["ledger" if set_back else None]
    assert not await drawn_twice(deployment.bus)
    assert len(await deployment.markers()) == (0 if set_back else 1)


@pytest.mark.parametrize("own", [0, 1], ids=["the same window", "another window"])
async def test_a_redis_set_back_after_the_last_look_at_the_markers_publishes_nothing_that_they_contradict(
    deployment, own
):
    """Between the check of this worker and its commit, another one releases a window and Redis loses it. Only the topic
    shows it.
    """
    await deployment.fill(2)
    with deployment.losing_after_the_next_look(deployment.bus):
        assert await deployment.failures(own, 1 - own) == ["ledger"], "it blocks the other one, which is not tried"
    assert await deployment.sequences() == [1]
    assert not await drawn_twice(deployment.bus)


async def test_a_release_whose_commit_redis_lost_while_it_was_published_is_not_recorded(redis, tmp_path):
    """The record alone would satisfy the next check of the close markers, and so hide that charges are lost."""
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(1, 80))
    older: dict[bytes, bytes] = {}

    async def set_back(step: str) -> None:
        if step == "draw":
            older.update(await dump(redis))
        if step == "confirm":
            await put_back(redis, older)

    publisher = Collected()
    with pytest.raises(LedgerError, match="Redis lost its commit"):
        await protocol_of(redis, config, publisher, after_step=set_back).close(SLOT)
    assert publisher.messages
    assert await ReleaseStore(redis, "bus").released(SLOT) is None


async def test_committed_bytes_are_kept_until_their_release_is_recorded(redis, tmp_path):
    """Redis may be set back to before the record while a worker cleans up. Without the bytes, the window would be drawn
    again."""
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(1, 80))
    await close_until(protocol_of(redis, config, Collected()), SLOT, "confirm")
    releases = ReleaseStore(redis, "bus")
    committed = await releases.outbox(SLOT)
    await releases.forget(SLOT)
    assert await releases.outbox(SLOT) == committed is not None


async def test_a_window_committed_but_not_published_keeps_its_number_and_is_no_reason_to_refuse(deployment):
    await deployment.fill(2)
    await close_until(protocol_of(deployment.client, deployment.bus, Collected()), SLOT, "commit")
    assert await deployment.verify()
    assert await deployment.markers() == []
    assert await deployment.failures(0, 1) == [None, None]
    assert await deployment.sequences() == [1, 2]


async def test_a_worker_that_starts_while_another_releases_is_never_refused(deployment):
    """The topic is read before Redis, and one call looks for a window among the released and the committed ones."""
    hours = range(8)
    await deployment.fill(len(hours))
    done = asyncio.Event()

    async def release() -> list[str | None]:
        failures = await deployment.failures(*hours)
        done.set()
        return failures

    async def start() -> int:
        for starts in itertools.count():
            if done.is_set():
                return starts
            await deployment.verify()
        raise AssertionError

    failures, *starts = await asyncio.gather(release(), start(), start())
    assert failures == [None] * len(hours)
    assert sum(starts) > len(hours)


def marker_of(start: int, sequence: int, generation: str = "g", digest: str = "d") -> bytes:
    window = {"start": utc_text(start), "end": utc_text(start + HOUR)}
    return msgspec.json.encode({"window": window, "generation": generation, "digest": digest, "sequence": sequence})


@asynccontextmanager
async def own_topic(
    kafka: str, name: str, partitions: int, settings: dict[str, str] | None = None
) -> AsyncIterator[AIOKafkaAdminClient]:
    await create_topic(kafka, name, partitions, settings)
    async with administering(kafka) as admin:
        yield admin


async def send(config: Config, topic: str, *sent: tuple[int, int, bytes]) -> None:
    """``sent``: partition, start of the window, value."""
    async with make_producer(config.kafka) as producer:
        for partition, start, value in sent:
            moment = (start + HOUR) * 1000
            await producer.send_and_wait(topic, value, key=b"bus", partition=partition, timestamp_ms=moment)


@pytest.fixture
def private(kafka: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Markers are read from a topic of this test's own."""
    monkeypatch.setattr(markers, "WINDOW", topic_name)
    return bus_config(tmp_path, **{"kafka.bootstrap": kafka})


async def test_the_last_marker_is_the_one_of_highest_number_wherever_it_lies(private, topic_name):
    kafka = private.kafka
    async with own_topic(kafka.bootstrap, topic_name, 2):
        await send(private, topic_name, (1, 1000, marker_of(1000, 2)), (0, 5000, marker_of(5000, 1)))
        known = await read_markers(kafka, "bus")
        assert (known.last("bus").window.start, known.last("bus").sequence) == ("1970-01-01T00:16:40Z", 2)
        await send(private, topic_name, (1, 3000, marker_of(3000, 4)), (0, 2000, marker_of(2000, 3, "h")))
        again = await read_markers(kafka, "bus", known)
        assert (again.last("bus").sequence, again.generations) == (4, {"g", "h"})
        assert await read_markers(kafka, "bus") == again
        assert (await read_markers(kafka, "other")).last("other") is None


async def test_markers_that_retention_deleted_or_a_topic_made_anew_are_no_reason_to_refuse_but_what_was_seen_is_known(
    private, topic_name, redis
):
    kafka = private.kafka
    await redis.set(FeedKeys("bus").generation, "g")
    await redis.set(FeedKeys("bus").sequence, 2)
    async with own_topic(kafka.bootstrap, topic_name, 1) as admin:
        await send(private, topic_name, (0, 1000, marker_of(1000, 1)), (0, 5000, marker_of(5000, 2)))
        known = await read_markers(kafka, "bus")
        with pytest.raises(LedgerError, match="does not know it"):
            await verify_ledger(private, redis)
        await admin.delete_records({TopicPartition(topic_name, 0): RecordsToDelete(before_offset=2)})
        assert await verify_ledger(private, redis) == "g"
        assert (await read_markers(kafka, "bus", known)).last("bus").sequence == 2
        await admin.delete_topics([topic_name])
        await asyncio.sleep(1)
        await admin.create_topics([NewTopic(topic_name, 1, 1)])
        await send(private, topic_name, (0, 9000, marker_of(9000, 3)))
        assert (await read_markers(kafka, "bus", known)).last("bus").sequence == 3


async def test_what_is_no_close_marker_stops_releases_with_its_place(private, topic_name, redis):
    async with own_topic(private.kafka.bootstrap, topic_name, 1):
        await send(private, topic_name, (0, SLOT, b"{}"))
        with pytest.raises(LedgerError, match="offset 0 holds something that is not a close marker"):
            await verify_ledger(private, redis)


async def test_the_worker_command_ends_with_1_and_reads_nothing_if_redis_may_evict_knows_another_key_or_was_set_back(
    hexveil, deployment
):
    await deployment.fill(2)
    await deployment.failures(0)
    deployment.backup()
    await deployment.failures(1)
    config, before = deployment.bus, await deployment.spent()
    servers = config.kafka.bootstrap, deployment.server.url, free_port()
    env = worker_environment(config.privacy.user_key_file.parent, *servers, config.feed.name)
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]

    async def reason() -> str:
        """The reason that ``hexveil worker`` gives when it ends by itself."""
        worker = await asyncio.to_thread(
            subprocess.run, command, env=env, cwd=deployment.folder, capture_output=True, text=True, timeout=60
        )
        assert worker.returncode == 1, worker.stderr
        assert await deployment.spent() == before
        return str(json.loads(worker.stderr.splitlines()[-1])["reason"])

    await deployment.client.config_set("maxmemory", "1gb")
    await deployment.client.config_set("maxmemory-policy", "allkeys-lru")
    assert "CONFIG SET maxmemory-policy noeviction" in await reason()
    await deployment.client.config_set("maxmemory-policy", "noeviction")
    await deployment.client.set(FeedKeys.of(config).user_key, "another")
    assert "privacy.user_key_file" in await reason()
    await deployment.set_back()
    before = await deployment.spent()
    said = await reason()
    assert said.startswith("2 windows of this feed were committed, Redis remembers 1")
    assert "{" not in said
    assert len(await deployment.markers()) == 2


async def test_doctor_wants_close_markers_to_outlive_the_period_whose_charges_they_vouch_for(kafka, topic_name):
    for days, least, ok in ((2, 1, True), (2, 8, False), (9, 8, True), (-1, 8, True)):
        name, retention = f"{topic_name}{days}.{least}", days * 86_400_000 if days > 0 else -1
        async with own_topic(kafka, name, 1, {"retention.ms": str(retention), "cleanup.policy": "delete"}) as admin:
            while "policy ?" in (finding := await retention_finding(admin, name, timedelta(days=least))).found:
                await asyncio.sleep(0.1)  # the topic was made a moment ago
        assert finding.ok == ok, (days, least, finding)
        assert str(least * 86_400_000) in finding.remedy
