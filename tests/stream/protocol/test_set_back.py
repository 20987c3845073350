"""If Redis loses charges, the number of committed windows in the close markers reveals it. Real Kafka and Redis."""

import asyncio
import itertools
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from redis.asyncio import Redis

from stream.app.doctor import retention_finding
from stream.config import Config
from stream.local import RedisServer, free_port
from stream.messages.message import Message
from stream.protocol import close_process, markers
from stream.protocol.ledger_check import LedgerCheck, verify_ledger
from stream.protocol.markers import read_markers
from stream.protocol.publishing import KafkaPublisher, PublishError, make_producer
from stream.statistics.plan import decode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError, SetBackError
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.city import City
from tests.support.closing import Collected, close_until, protocol_of
from tests.support.environment import worker_environment
from tests.support.feeding import administering, create_topic
from tests.support.stored_rows import dump, put_back, store
from tests.support.topics_reader import read_all

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
    async with Redis.from_url(deployment.server.url) as client:
        older = await dump(client)
        assert await deployment.failures(1, 2) == [None, None]
        if back == "keys":
            await put_back(client, older)
    if back == "backup":
        deployment.set_back()
        close_process.begin_anew()
    before = await deployment.spent()
    reason = await deployment.release(deployment.bus, 3)
    if back is None:
        assert reason is None
        assert await deployment.sequences() == [1, 2, 3, 4]
        assert (await deployment.spent())[1] > before[1]
        assert await deployment.verify()
        return
    assert reason is not None
    assert "3 windows of this feed were committed, Redis remembers 1" in reason
    assert "append-only file" in reason
    with pytest.raises(SetBackError) as refused:
        await deployment.verify()
    assert (refused.value.remembered, refused.value.committed) == (1, 3)
    assert await deployment.sequences() == [1, 2, 3]
    assert await deployment.spent() == before


async def drawn_twice(config: Config) -> list[bytes]:
    """Identifiers under which messages of different content were published."""
    bodies = defaultdict(set)
    for record in await read_all(config.kafka.bootstrap, config.feed.name):
        bodies[dict(record.headers)["ce_id"]].add(record.value)
    return [name for name, values in bodies.items() if len(values) > 1]


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
        deployment.set_back()
    assert await deployment.failures(0) == ["ledger" if set_back else None]
    assert not await drawn_twice(deployment.bus)
    assert len(await deployment.markers()) == (0 if set_back else 1)


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
            older = await dump(client)
            assert await deployment.failures(0) == [None]
            await put_back(client, older)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerCheck, "verify", overtaken)
        assert await deployment.failures(own, 1 - own) == ["ledger"], "it blocks the other one, which is not tried"
    await client.aclose()
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
    async with Redis.from_url(deployment.server.url) as client:
        await close_until(protocol_of(client, deployment.bus, Collected()), SLOT, "commit")
    assert await deployment.verify()
    assert await deployment.markers() == []
    assert await deployment.failures(0, 1) == [None, None]
    assert await deployment.sequences() == [1, 2]


async def test_two_redis_behind_one_feed_stop_each_other(deployment, redis_binary, tmp_path):
    """Workers on two machines have a Redis each. Two ledgers would grant every user two budgets."""
    with RedisServer(tmp_path / "other", binary=redis_binary) as server:
        settings = deployment.bus.redis.model_copy(update={"url": server.url})
        other = City((deployment.bus.model_copy(update={"redis": settings}),), server, tmp_path)
        await deployment.fill(2)
        await other.fill(2)
        assert await deployment.verify() != await other.verify()
        assert await deployment.failures(0) == [None]
        assert "two Redis serve one feed" in str(await other.release(other.bus, 1))
        assert await deployment.failures(1) == [None]


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
    texts = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (start, start + HOUR)]
    body: dict[str, Any] = {"window": dict(zip(("start", "end"), texts, strict=True)), "generation": generation}
    return msgspec.json.encode(body | {"digest": digest, "sequence": sequence})


@asynccontextmanager
async def own_topic(
    kafka: str, name: str, partitions: int, settings: dict[str, str] | None = None
) -> AsyncIterator[AIOKafkaAdminClient]:
    await create_topic(kafka, name, partitions, settings)
    async with administering(kafka) as admin:
        yield admin


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


async def test_what_is_no_close_marker_stops_releases_with_its_place(private, topic_name, redis):
    async with own_topic(private.kafka.bootstrap, topic_name, 1):
        await send(private, topic_name, (0, SLOT, b"{}"))
        with pytest.raises(LedgerError, match="offset 0 holds something that is not a close marker"):
            await verify_ledger(private, redis)


async def worker_command(hexveil: Sequence[str], deployment: City) -> subprocess.CompletedProcess[str]:
    """Run ``hexveil worker`` until it ends by itself."""
    config = deployment.bus
    servers = config.kafka.bootstrap, deployment.server.url, free_port()
    env = worker_environment(config.privacy.user_key_file.parent, *servers, config.feed.name)
    command = [*hexveil, "worker", "--config", str(hourly.BUS)]
    return await asyncio.to_thread(
        subprocess.run, command, env=env, cwd=deployment.folder, capture_output=True, text=True, timeout=60
    )


async def test_the_worker_command_ends_with_1_on_a_set_back_redis_says_both_numbers_and_reads_nothing(
    hexveil, deployment
):
    await deployment.fill(2)
    await deployment.failures(0)
    deployment.backup()
    await deployment.failures(1)
    deployment.set_back()
    before = await deployment.spent()
    worker = await worker_command(hexveil, deployment)
    assert worker.returncode == 1
    last = json.loads(worker.stderr.splitlines()[-1])
    assert last["reason"].startswith("2 windows of this feed were committed, Redis remembers 1")
    assert "{" not in last["reason"]
    assert await deployment.spent() == before
    assert len(await deployment.markers()) == 2


async def test_the_worker_command_ends_with_1_under_another_user_key(hexveil, deployment):
    client = Redis.from_url(deployment.server.url)
    await RowStore(client, deployment.bus.feed.name).claim_key("another")
    await client.aclose()
    worker = await worker_command(hexveil, deployment)
    assert worker.returncode == 1, worker.stderr
    assert "privacy.user_key_file" in worker.stderr.splitlines()[-1]
    assert await deployment.markers() == []


async def test_doctor_wants_close_markers_to_outlive_the_period_whose_charges_they_vouch_for(kafka, topic_name):
    for days, least, ok in ((2, 1, True), (2, 8, False), (9, 8, True), (-1, 8, True)):
        name, retention = f"{topic_name}{days}.{least}", days * 86_400_000 if days > 0 else -1
        async with own_topic(kafka, name, 1, {"retention.ms": str(retention), "cleanup.policy": "delete"}) as admin:
            while "policy ?" in (finding := await retention_finding(admin, name, timedelta(days=least))).found:
                await asyncio.sleep(0.1)  # the topic was made a moment ago
        assert finding.ok == ok, (days, least, finding)
        assert str(least * 86_400_000) in finding.remedy
