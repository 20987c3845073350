"""If Redis loses charges, the number of committed windows in the close markers reveals it. Real Kafka and Redis."""

import asyncio
import itertools
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from redis.asyncio import Redis

from stream.app.doctor import retention_finding
from stream.config import Config
from stream.local import REPO_ROOT, RedisServer, free_port
from stream.messages.message import WINDOW, Message
from stream.messages.topics import create_topics
from stream.protocol import close_process, markers
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import LedgerCheck, verify_ledger
from stream.protocol.markers import read_markers
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.statistics.plan import decode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, SetBackError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from tests.support import hourly
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, random_rows
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.stored_rows import back_up, set_back, store
from tests.support.topics_reader import read_all

HOUR = 3600
PERIOD = "2017-03-21"


@dataclass
class Deployment:
    """A feed with a Redis of its own that can be copied and set back, and hours with rows to release."""

    config: Config
    server: RedisServer
    folder: Path

    async def fill(self, hours: int) -> None:
        client = Redis.from_url(self.server.url)
        await Ledger(client, self.config.feed.name).start_generation(birth=0)
        state, sent = RowStore(client, self.config.feed.name), 0
        for hour in range(hours):
            rows, n = random_rows(hour, 60, slot=SLOT + hour * HOUR), 60
            slots = np.full(n, SLOT + hour * HOUR)
            await state.append("bus/0", sent, sent + n, rows, np.arange(sent, sent + n), slots)
            sent += n
        await client.aclose()

    async def release(self, *hours: int) -> list[close_process.CloseReport]:
        return await close_windows(self.config, [SLOT + hour * HOUR for hour in hours])

    async def spent(self) -> tuple[int, int]:
        client = Redis.from_url(self.server.url)
        try:
            return await Ledger(client, self.config.feed.name).total(PERIOD)
        finally:
            await client.aclose()

    async def verify(self) -> str:
        client = Redis.from_url(self.server.url)
        try:
            return await verify_ledger(self.config, client)
        finally:
            await client.aclose()

    async def published(self) -> list[dict[str, Any]]:
        """Every close marker, in order of publication."""
        records = await read_all(self.config.kafka.bootstrap, self.config.feed.name)
        return [json.loads(record.value) for record in records if record.topic == WINDOW]

    def backup(self) -> None:
        back_up(self.server, self.folder / "backup")

    def set_back(self) -> None:
        set_back(self.server, self.folder / "backup")


@pytest.fixture
async def deployment(
    kafka: str, redis_binary: str | None, tmp_path: Path, topic_name: str
) -> AsyncIterator[Deployment]:
    with RedisServer(tmp_path / "redis", binary=redis_binary) as server:
        overrides = {
            "feed.name": topic_name,
            "feed.topic": topic_name,
            "kafka.bootstrap": kafka,
            "kafka.group": topic_name,
            "redis.url": server.url,
        }
        config = bus_config(tmp_path, **overrides, **PLAINLY_PLANNED)
        await create_topics(config)
        yield Deployment(config, server, tmp_path)


@pytest.mark.parametrize("set_back", [True, False])
async def test_a_restored_backup_releases_and_charges_nothing_and_without_it_the_numbers_go_on(deployment, set_back):
    await deployment.fill(4)
    assert [report.failure for report in await deployment.release(0)] == [None]
    deployment.backup()
    assert [report.failure for report in await deployment.release(1, 2)] == [None, None]
    if set_back:
        deployment.set_back()
    close_process.begin_anew()  # as in another process, which has not seen the markers
    before = await deployment.spent()
    reports = await deployment.release(3)
    markers_now = await deployment.published()
    if not set_back:
        assert reports[0].failure is None
        assert [marker["sequence"] for marker in markers_now] == [1, 2, 3, 4]
        assert (await deployment.spent())[1] > before[1]
        assert await deployment.verify()
        return
    assert reports[0].failure == "ledger"
    assert "3 windows of this feed were committed, Redis remembers 1" in reports[0].reason
    assert "append-only file" in reports[0].reason
    with pytest.raises(SetBackError) as refused:
        await deployment.verify()
    assert (refused.value.remembered, refused.value.committed) == (1, 3)
    assert [marker["sequence"] for marker in markers_now] == [1, 2, 3]
    assert await deployment.spent() == before


async def test_keys_put_back_under_a_running_redis_are_noticed_by_a_running_worker(deployment):
    """Neither the process of Redis nor its replication history changes; only the number of windows reveals that it was
    set back.
    """
    await deployment.fill(3)
    client = Redis.from_url(deployment.server.url)
    await deployment.release(0)
    older = {key: await client.dump(key) for key in await client.keys()}
    await deployment.release(1)
    await client.flushall()
    for key, value in older.items():
        await client.restore(key, 0, value)
    await client.aclose()
    before = await deployment.spent()
    (report,) = await deployment.release(2)
    assert report.failure == "ledger"
    assert "2 windows of this feed were committed, Redis remembers 1" in report.reason
    assert await deployment.spent() == before
    assert len(await deployment.published()) == 2


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
        (report,) = await deployment.release(0)
    assert report.failure == "publish"
    if set_back:
        deployment.set_back()
    (report,) = await deployment.release(0)
    assert report.failure == ("ledger" if set_back else None)
    bodies = defaultdict(set)
    for record in await read_all(deployment.config.kafka.bootstrap, deployment.config.feed.name):
        bodies[dict(record.headers)["ce_id"]].add(record.value)
    assert all(len(values) == 1 for values in bodies.values()), "a second draw is out"
    assert len(await deployment.published()) == (0 if set_back else 1)


@pytest.mark.parametrize("own", [0, 1], ids=["the same window", "another window"])
async def test_a_redis_set_back_after_the_last_look_at_the_markers_publishes_nothing_that_they_contradict(
    deployment, monkeypatch, own
):
    """Between the check of this worker and its commit, another one releases a window and Redis loses it. Only the topic
    shows it.
    """
    await deployment.fill(2)
    client = Redis.from_url(deployment.server.url)
    look, looks = LedgerCheck.verify, []

    async def overtaken(self: LedgerCheck) -> None:
        await look(self)
        looks.append(1)
        if len(looks) == 1:
            older = {key: await client.dump(key) for key in await client.keys()}
            assert [report.failure for report in await deployment.release(0)] == [None]
            await client.flushall()
            for key, value in older.items():
                await client.restore(key, 0, value)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerCheck, "verify", overtaken)
        (report,) = await deployment.release(own, 1 - own)  # the other one would be refused, too, so it is not tried
    await client.aclose()
    assert (report.failure, report.blocks) == ("ledger", True), report
    assert [marker["sequence"] for marker in await deployment.published()] == [1]
    bodies = defaultdict(set)
    for record in await read_all(deployment.config.kafka.bootstrap, deployment.config.feed.name):
        bodies[dict(record.headers)["ce_id"]].add(record.value)
    assert all(len(values) == 1 for values in bodies.values()), "a second draw is out"


async def test_a_release_whose_commit_redis_lost_while_it_was_published_is_not_recorded(redis, tmp_path):
    """The record alone would satisfy the next check of the close markers, and so hide that charges are lost."""
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(1, 80))
    older: dict[bytes, bytes] = {}

    async def set_back(step: str) -> None:
        if step == "draw":
            older.update({key: await redis.dump(key) for key in await redis.keys()})
        if step == "confirm":
            await redis.flushall()
            for key, value in older.items():
                await redis.restore(key, 0, value)

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


async def test_a_draw_of_a_plan_whose_own_charges_are_gone_is_never_committed_though_everybody_paid_something(
    redis, tmp_path
):
    """As many users have paid as the plan charges, but less, for an earlier plan. Comparing their number would not
    reveal it.
    """
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(5, 80))
    publisher, paid = Collected(), FeedKeys("bus").charged(SLOT)
    charged: list[tuple[int, int]] = []

    async def older(step: str) -> None:
        if step == "draw":
            charges = await redis.hgetall(paid)
            assert charges.pop(b"plan") == decode_plan(await redis.get(FeedKeys("bus").plan(SLOT))).digest.encode()
            charged.extend((1, int(charge)) for charge in charges.values())
            await redis.hdel(paid, "plan")
            await redis.hset(paid, mapping={user: int(charge) - 1 for user, charge in charges.items()})
            await redis.hset(FeedKeys("bus").ledger(PERIOD), mapping={user: int(c) - 1 for user, c in charges.items()})

    with pytest.raises(LedgerError, match="are gone"):
        await protocol_of(redis, config, publisher, after_step=older).close(SLOT)
    assert publisher.messages == []
    await protocol_of(redis, config, publisher).close(SLOT)
    assert publisher.messages
    assert (await Ledger(redis, "bus").total(PERIOD)) == tuple(map(sum, zip(*charged, strict=True)))


async def test_a_window_committed_but_not_published_keeps_its_number_and_is_no_reason_to_refuse(deployment):
    await deployment.fill(2)
    config = deployment.config
    client = Redis.from_url(config.redis.url)
    await close_until(protocol_of(client, config, Collected()), SLOT, "commit")
    assert await verify_ledger(config, client)
    await client.aclose()
    assert await deployment.published() == []
    assert [report.failure for report in await deployment.release(0, 1)] == [None, None]
    assert [marker["sequence"] for marker in await deployment.published()] == [1, 2]


async def test_two_redis_behind_one_feed_stop_each_other(deployment, redis_binary, tmp_path):
    """Workers on two machines have a Redis each. Two ledgers would grant every user two budgets."""
    with RedisServer(tmp_path / "other", binary=redis_binary) as server:
        settings = deployment.config.redis.model_copy(update={"url": server.url})
        other = Deployment(deployment.config.model_copy(update={"redis": settings}), server, tmp_path)
        await deployment.fill(2)
        await other.fill(2)
        assert await deployment.verify() != await other.verify()
        assert [report.failure for report in await deployment.release(0)] == [None]
        (report,) = await other.release(1)
        assert report.failure == "ledger"
        assert "two Redis serve one feed" in report.reason
        assert [report.failure for report in await deployment.release(1)] == [None]


async def test_a_worker_that_starts_while_another_releases_is_never_refused(deployment):
    """The topic is read before Redis, and one call looks for a window among the released and the committed ones."""
    hours = range(8)
    await deployment.fill(len(hours))
    done = asyncio.Event()

    async def release() -> list[close_process.CloseReport]:
        reports = await deployment.release(*hours)
        done.set()
        return reports

    async def start() -> int:
        for starts in itertools.count():
            if done.is_set():
                return starts
            await deployment.verify()
        raise AssertionError

    reports, *starts = await asyncio.gather(release(), start(), start())
    assert [report.failure for report in reports] == [None] * len(hours)
    assert sum(starts) > len(hours)


def marker_of(start: int, sequence: int, generation: str = "g", digest: str = "d") -> bytes:
    texts = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (start, start + HOUR)]
    body: dict[str, Any] = {"window": dict(zip(("start", "end"), texts, strict=True)), "generation": generation}
    return msgspec.json.encode(body | {"digest": digest, "sequence": sequence})


@asynccontextmanager
async def own_topic(
    kafka: str, name: str, partitions: int, settings: dict[str, str] | None = None
) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings or {})])
    try:
        yield admin
    finally:
        await admin.close()


async def send(config: Config, topic: str, *sent: tuple[int, int, bytes]) -> None:
    """``sent``: partition, start of the window, value."""
    producer = make_producer(config.kafka)
    await producer.start()
    for partition, start, value in sent:
        moment = (start + HOUR) * 1000
        await producer.send_and_wait(topic, value, key=b"bus", partition=partition, timestamp_ms=moment)
    await producer.stop()


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


async def test_another_window_under_the_last_number_is_refused(private, topic_name, redis):
    """Redis was set back and then released other windows. The numbers of windows are equal, but the windows differ."""
    await redis.set(FeedKeys("bus").generation, "g")
    await redis.set(FeedKeys("bus").sequence, 1)
    window = {"messages": 1}
    await redis.hset(FeedKeys("bus").closed, str(SLOT), msgspec.json.encode(window | {"digest": "other"}))
    async with own_topic(private.kafka.bootstrap, topic_name, 1):
        await send(private, topic_name, (0, SLOT, marker_of(SLOT, 1)))
        with pytest.raises(LedgerError, match="older state"):
            await verify_ledger(private, redis)
        await redis.hset(FeedKeys("bus").closed, str(SLOT), msgspec.json.encode(window | {"digest": "d"}))
        assert await verify_ledger(private, redis) == "g"


async def test_what_is_no_close_marker_stops_releases_with_its_place(private, topic_name, redis):
    async with own_topic(private.kafka.bootstrap, topic_name, 1):
        await send(private, topic_name, (0, SLOT, b"{}"))
        with pytest.raises(LedgerError, match="offset 0 holds something that is not a close marker"):
            await verify_ledger(private, redis)


async def worker_command(hexveil: Sequence[str], deployment: Deployment) -> subprocess.CompletedProcess[str]:
    """Run ``hexveil worker`` until it ends by itself."""
    config = deployment.config
    env = os.environ | {
        "PYTHONPATH": str(REPO_ROOT),
        "HEXVEIL_FEED__NAME": config.feed.name,
        "HEXVEIL_FEED__TOPIC": config.feed.topic,
        "HEXVEIL_KAFKA__BOOTSTRAP": config.kafka.bootstrap,
        "HEXVEIL_KAFKA__GROUP": config.kafka.group,
        "HEXVEIL_REDIS__URL": deployment.server.url,
        "HEXVEIL_OPERATOR__PORT": str(free_port()),
        "HEXVEIL_PRIVACY__USER_KEY_FILE": str(config.privacy.user_key_file),
    }
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    return await asyncio.to_thread(
        subprocess.run, command, env=env, cwd=deployment.folder, capture_output=True, text=True, timeout=60
    )


async def test_the_worker_command_ends_with_1_on_a_set_back_redis_says_both_numbers_and_reads_nothing(
    hexveil, deployment
):
    await deployment.fill(2)
    await deployment.release(0)
    deployment.backup()
    await deployment.release(1)
    deployment.set_back()
    before = await deployment.spent()
    worker = await worker_command(hexveil, deployment)
    assert worker.returncode == 1
    last = json.loads(worker.stderr.splitlines()[-1])
    assert last["reason"].startswith("2 windows of this feed were committed, Redis remembers 1")
    assert "{" not in last["reason"]
    assert await deployment.spent() == before
    assert len(await deployment.published()) == 2


async def test_the_worker_command_ends_with_1_under_another_user_key(hexveil, deployment):
    client = Redis.from_url(deployment.server.url)
    await RowStore(client, deployment.config.feed.name).claim_key("another")
    await client.aclose()
    worker = await worker_command(hexveil, deployment)
    assert worker.returncode == 1, worker.stderr
    assert "privacy.user_key_file" in worker.stderr.splitlines()[-1]
    assert await deployment.published() == []


async def test_doctor_wants_close_markers_to_outlive_the_period_whose_charges_they_vouch_for(kafka, topic_name):
    for days, least, ok in ((2, 1, True), (2, 8, False), (9, 8, True), (-1, 8, True)):
        name, retention = f"{topic_name}{days}.{least}", days * 86_400_000 if days > 0 else -1
        async with own_topic(kafka, name, 1, {"retention.ms": str(retention), "cleanup.policy": "delete"}) as admin:
            while "policy ?" in (finding := await retention_finding(admin, name, timedelta(days=least))).found:
                await asyncio.sleep(0.1)  # the topic was made a moment ago
        assert finding.ok == ok, (days, least, finding)
        assert str(least * 86_400_000) in finding.remedy
