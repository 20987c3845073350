"""From real Kafka to real Redis: every sound message is stored once, whichever readers join, die or return meanwhile,
and whatever a broker's disk damages or loses. What a leader has appended but does not show yet is neither missed nor
late."""

import asyncio
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.cluster import ClusterMetadata
from redis.asyncio import Redis
from redis.exceptions import RedisError

from bench.faults.site import brokers
from stream.config.servers import KafkaConfig
from stream.ingestion.decoding import REASONS, Decoder
from stream.ingestion.log_ends import log_ends
from stream.local.kafka import KafkaServer
from stream.local.server import RedisServer
from stream.messages.message import WINDOW
from stream.messages.topics import INPUT_SETTINGS
from stream.protocol.markers import read_markers
from stream.storage.row_store import RowStore, StateError
from stream.windows import CLOCK_MARGIN_US
from tests.support.feeding import (
    KEY,
    NOW_US,
    administering,
    create_topic,
    expected_rows,
    make_config,
    messages,
    produce,
    until,
)
from tests.support.ingesting import Ingesting
from tests.support.live_events import event, every_speed, send_batch
from tests.support.stored_rows import all_read, dump, listed, put_back, read_to, stored_rows

PARTITIONS = 3


def read_to_offsets(redis: Redis, *offsets: int) -> Callable[[], Awaitable[bool]]:
    """To wait until Redis stores these next offsets, by partition."""

    async def check() -> bool:
        return [offset for _, offset in sorted((await RowStore(redis, "bus").next_offsets()).items())] == [*offsets]

    return check


@pytest.fixture
async def topic(kafka, topic_name):
    await create_topic(kafka, topic_name, PARTITIONS)
    return topic_name


async def test_every_good_message_is_stored_and_every_bad_one_reported_without_its_payload(
    kafka, redis, redis_url, topic
):
    values = [*messages(3000), None, b"x" * 10_000_000, b"[" * 60_000, b'{"user":"secret-plate"}']
    huge = {"max.message.bytes": "20000000"}
    async with administering(kafka) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, huge)])
    await asyncio.sleep(1)
    await produce(kafka, topic, values, PARTITIONS)
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, len(values)))
        assert ingesting.ingestor.assigned.is_set()
    config = make_config(topic)
    assert await stored_rows(redis) == expected_rows(config, values)
    batch = Decoder(config, KEY).decode(values, NOW_US)
    expected = Counter(REASONS[code].value for code in batch.reason)
    reported = Counter()
    for report in ingesting.reports:
        body = json.loads(report.value)
        assert set(body) == {"feed", "reason", "topic", "partition", "first_offset", "last_offset", "count"}
        assert b"secret-plate" not in report.value
        reported[body["reason"]] += body["count"]
    assert reported == expected
    assert {"not-json", "tombstone", "too-large", "missing-field"} <= set(reported)
    assert ingesting.count("events_ingested_total") == len(batch.rows)


async def test_redelivery_to_another_group_and_shuffled_partitions_leave_the_same_rows(kafka, redis, redis_url, topic):
    values = messages(4000)
    await produce(kafka, topic, values, PARTITIONS)
    async with Ingesting(topic, kafka, redis_url):
        await until(all_read(redis, 4000))
    once = await stored_rows(redis)
    assert once == expected_rows(make_config(topic), values)

    # The same events in another order over a new topic give the same rows in an emptied state.
    shuffled = random.Random(7).sample(values, len(values))
    await create_topic(kafka, f"{topic}-b", 5)
    await produce(kafka, f"{topic}-b", shuffled, 5)
    await redis.flushall()
    async with Ingesting(f"{topic}-b", kafka, redis_url):
        await until(all_read(redis, 4000))
    assert await stored_rows(redis) == once

    # A consumer group that is new to Kafka begins at the offset that Redis stores.
    more = messages(50, seed=1)
    await produce(kafka, f"{topic}-b", more, 5)
    async with Ingesting(f"{topic}-b", kafka, redis_url, group="unknown"):
        await until(all_read(redis, 4050))
    assert await stored_rows(redis) == expected_rows(make_config(topic), [*values, *more])


async def test_a_second_consumer_that_joins_and_leaves_mid_stream_doubles_and_loses_nothing(
    kafka, redis, redis_url, topic
):
    values = messages(30_000)

    async def feed():
        for start in range(0, len(values), 1_000):
            await produce(kafka, topic, values[start : start + 1_000], PARTITIONS, first=start)

    async with Ingesting(topic, kafka, redis_url) as first:
        feeding = asyncio.create_task(feed())
        await until(all_read(redis, 5_000))
        async with Ingesting(topic, kafka, redis_url) as second:
            await until(all_read(redis, 20_000))
            await asyncio.wait_for(second.ingestor.assigned.wait(), 60)
        await feeding
        await until(all_read(redis, len(values)))
    assert await stored_rows(redis) == expected_rows(make_config(topic), values)
    assert first.count("events_lost_total") == 0


async def test_killing_the_ingesting_process_again_and_again_doubles_and_loses_nothing(kafka, redis, redis_url, topic):
    values = messages(40_000)
    await produce(kafka, topic, values[:10_000], PARTITIONS)
    command = [sys.executable, "-m", "tests.support.ingesting", topic, kafka, redis_url]
    rng = random.Random(3)
    for part in range(1, 4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await until(all_read(redis, part * 10_000 - 9_999 + rng.randrange(5_000)))
            await produce(kafka, topic, values[part * 10_000 : (part + 1) * 10_000], PARTITIONS, first=part * 10_000)
        finally:
            process.kill()
            process.wait()
    async with Ingesting(topic, kafka, redis_url):
        await until(all_read(redis, len(values)))
    assert await stored_rows(redis) == expected_rows(make_config(topic), values)


async def test_redis_may_die_and_come_back_while_the_feed_runs_and_a_reader_that_stops_meanwhile_ends_at_once(
    kafka, topic, tmp_path
):
    values = messages(9_000)
    with RedisServer(tmp_path / "redis") as server:
        async with (
            asyncio.timeout(180),
            Redis.from_url(server.url) as before,
            Ingesting(topic, kafka, server.url) as ingesting,
        ):
            await produce(kafka, topic, values[:2_000], PARTITIONS)
            await until(all_read(before, 2_000))
            server.kill()
            await produce(kafka, topic, values[2_000:6_000], PARTITIONS, first=2_000)
            await asyncio.sleep(2)
            server.start()
            async with Redis.from_url(server.url) as after:
                await until(all_read(after, 6_000))
                assert await stored_rows(after) == expected_rows(ingesting.config, values[:6_000])
            assert ingesting.count("redis_errors_total") >= 1
            server.kill()
            await produce(kafka, topic, values[6_000:], PARTITIONS, first=6_000)
            await asyncio.sleep(1)
        server.start()
        async with Redis.from_url(server.url) as after, Ingesting(topic, kafka, server.url):
            await until(all_read(after, len(values)))
            assert await stored_rows(after) == expected_rows(ingesting.config, values)


@pytest.mark.parametrize("following", [1_000, 1, 0])
@pytest.mark.parametrize("copied", [1_000, 0])
async def test_a_redis_that_was_set_back_under_a_running_worker_is_filled_again_whatever_follows(
    kafka, redis, redis_url, topic, copied, following
):
    """``copied``: messages in the copy. ``following``: messages that come after it was restored, one or none to a
    partition."""
    values = messages(2_000 + following)
    await produce(kafka, topic, values[:copied], PARTITIONS)
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await asyncio.wait_for(ingesting.ingestor.assigned.wait(), 60)
        await until(all_read(redis, copied))
        older = await dump(redis) if copied else {}
        await produce(kafka, topic, values[copied:2_000], PARTITIONS, first=copied)
        await until(all_read(redis, 2_000))
        await put_back(redis, older)
        await produce(kafka, topic, values[2_000:], PARTITIONS, first=2_000)
        await until(all_read(redis, len(values)))
    assert await stored_rows(redis) == expected_rows(make_config(topic), values)


async def test_what_a_log_lost_is_counted_unless_no_reader_had_come_and_reading_goes_on_where_it_begins(
    kafka, redis, redis_url, topic
):
    """The log of partition 1 is cut before the first reader, between two, and while Redis lost what was read of it."""
    values = messages(2_700)

    async def cut(before: int) -> None:
        async with administering(kafka) as admin:
            await admin.delete_records({TopicPartition(topic, 1): RecordsToDelete(before_offset=before)})

    async def all_but(*missing: range) -> bool:
        lost = {PARTITIONS * offset + 1 for of in missing for offset in of}
        kept = [value for i, value in enumerate(values) if i not in lost]
        return await stored_rows(redis) == expected_rows(make_config(topic), kept)

    await produce(kafka, topic, values[:900], PARTITIONS)
    await cut(100)
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, 900))
    assert ingesting.count("events_lost_total") == 0
    await produce(kafka, topic, values[900:], PARTITIONS, first=900)
    await cut(500)
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, 2_700))
        assert ingesting.count("events_lost_total") == 200
        assert await all_but(range(100), range(300, 500))
        await cut(600)
        await redis.flushall()
        await until(all_read(redis, 2_700))
        assert ingesting.count("events_lost_total") == 200 + 600
    assert await all_but(range(600))


async def test_a_worker_with_another_user_key_does_not_start(kafka, redis, redis_url, topic):
    await RowStore(redis, "bus").claim_key("another")
    ingesting = Ingesting(topic, kafka, redis_url)
    with pytest.raises(StateError):
        await ingesting.ingestor.run()
    await ingesting.close()


async def test_windows_wait_for_partitions_that_were_assigned_but_not_read(kafka, redis, redis_url, topic):
    await produce(kafka, topic, messages(30), 1)
    async with Ingesting(topic, kafka, redis_url):
        await until(all_read(redis, 30))
        await until(listed(redis, PARTITIONS))
        times = (await RowStore(redis, "bus").look()).times
    assert sorted(times) == [f"{topic}/{number}" for number in range(PARTITIONS)]
    assert [times[f"{topic}/{number}"].max_event_us is None for number in range(PARTITIONS)] == [False, True, True]
    assert np.ptp([moment.moved_us for moment in times.values()]) < 60_000_000


async def test_no_task_of_a_reader_outlives_it_even_if_a_client_loses_a_cancellation(
    kafka, redis_url, redis, topic_name, monkeypatch
):
    """A client whose server goes away may raise that instead of its cancellation."""
    await create_topic(kafka, topic_name, 1)

    async def deaf(self) -> int:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise RedisError("the server closed the connection") from None
        return 0

    mine = asyncio.all_tasks()
    async with Ingesting(topic_name, kafka, redis_url) as ingesting:
        await ingesting.ingestor.assigned.wait()
        monkeypatch.setattr(RowStore, "now_us", deaf)
        await asyncio.sleep(2.5)
    left = {task for task in asyncio.all_tasks() - mine if task.get_coro().__qualname__.startswith("Ingestor.")}
    if left:
        _, left = await asyncio.wait(left, timeout=60)
    assert not left


FIRST_OFFSET, LENGTH, LAST_OFFSET = 0, 8, 23
"""Where a stored batch says which offset its first message has, how many bytes follow, and how many messages."""


async def send(server: KafkaServer, topic: str, partition: int, *speeds: float) -> None:
    """A batch of events."""
    await send_batch(server.bootstrap, topic, None, [event("a", time.time(), speed) for speed in speeds], partition)


def log_of(folder: Path, topic: str, partition: int) -> Path:
    """The file in which a broker stores a partition."""
    (log,) = folder.rglob(f"{topic}-{partition}/*.log")
    return log


def ends_of_batches(log: Path) -> list[int]:
    """Where each batch of a log ends, after a 0."""
    stored, ends = log.read_bytes(), [0]
    while ends[-1] + 12 <= len(stored) and (length := struct.unpack_from(">i", stored, ends[-1] + LENGTH)[0]):
        ends.append(ends[-1] + 12 + length)
    return ends


def damage(log: Path, batch: int, at: int, to: bytes) -> None:
    """Overwrite bytes of a stored batch; below 0, ``at`` counts from its end."""
    ends = ends_of_batches(log)
    with log.open("r+b") as file:
        file.seek(ends[batch] + at if at >= 0 else ends[batch + 1] + at)
        file.write(to)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker whose logs these tests damage."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as started:
        yield started


async def test_after_a_power_failure_that_cost_the_newest_messages_nothing_is_read_twice_and_new_messages_are(
    server, redis, redis_url, topic_name
):
    """Kafka leaves it to the operating system when a log reaches the disk. After its end, new messages have old
    offsets."""
    await create_topic(server.bootstrap, topic_name, 1, INPUT_SETTINGS)
    for speed in range(6):
        await send(server, topic_name, 0, speed)
    async with Ingesting(topic_name, server.bootstrap, redis_url, lateness="append-time") as ingesting:
        await until(read_to_offsets(redis, 6))
        server.kill()
        log = log_of(server.folder, topic_name, 0)
        os.truncate(log, ends_of_batches(log)[4])
        server.start()
        await until(read_to_offsets(redis, 4))
        await send(server, topic_name, 0, 50)
        await until(read_to_offsets(redis, 5))
    assert await every_speed(redis) == [0, 100, 200, 300, 400, 500, 5000]
    assert ingesting.count("events_lost_total") == 0


async def test_what_is_damaged_is_left_out_and_neither_other_messages_nor_other_partitions_are(
    server, redis, redis_url, topic_name
):
    """The broker compares checksums of what it receives, and not of what it reads from its disk.

    This test comes after the one that starts the broker again, because with these logs it might not start.
    """
    await create_topic(server.bootstrap, topic_name, 6, INPUT_SETTINGS)
    for partition in range(6):
        for batch in range(3):
            await send(server, topic_name, partition, 10 * partition + batch, 10 * partition + batch + 0.25)
    value, elsewhere, nowhere = (-9, b"#"), b"\x00\x10\x00\x00", b"\x00\x00\x00\x00"
    logs = [log_of(server.folder, topic_name, partition) for partition in range(6)]
    damage(logs[0], 1, *value)
    damage(logs[1], 2, *value)  # after which there is nothing yet
    damage(logs[2], 1, LAST_OFFSET, elsewhere)
    damage(logs[3], 1, FIRST_OFFSET, elsewhere)
    damage(logs[4], 1, LENGTH, nowhere)  # so the broker itself finds no batch there
    async with Ingesting(topic_name, server.bootstrap, redis_url, lateness="append-time") as ingesting:
        await until(read_to_offsets(redis, 6, 6, 6, 6, 2, 6))
        await send(server, topic_name, 1, 19)
        await until(read_to_offsets(redis, 6, 7, 6, 6, 2, 6))
    read = [0, 0.25, 2, 2.25, 10, 10.25, 11, 11.25, 19, 20, 20.25, 22, 22.25, 30, 30.25, 32, 32.25]
    read += [40, 40.25, 50, 50.25, 51, 51.25, 52, 52.25]
    assert await every_speed(redis) == [100 * speed for speed in read]
    reports = [json.loads(report.value) for report in ingesting.reports]
    left_out = {(body["partition"], body["first_offset"], body["last_offset"], body["count"]) for body in reports}
    assert left_out == {(0, 2, 3, 2), (1, 4, 5, 2), (2, 2, 3, 2), (3, 2, 3, 2)}
    assert {body["reason"] for body in reports} == {"unreadable-batch"}


LEADER, FOLLOWER = 1, 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KafkaServer]]:
    """Two brokers of one cluster. A dead one counts as alive for 9 s, so long its leader waits."""
    servers = brokers(tmp_path_factory.mktemp("pair"), 2)
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in reversed(servers):  # the controller last: a broker that cannot tell it waits for it
            server.stop()


@contextlib.contextmanager
def dead(server: KafkaServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


async def create(bootstrap: str, topic: str, settings: dict[str, str]) -> TopicPartition:
    async with administering(bootstrap) as admin:
        replicas = {0: [LEADER, FOLLOWER]}
        await admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=replicas, topic_configs=settings)])
    return TopicPartition(topic, 0)


async def shows(consumer: AIOKafkaConsumer, partition: TopicPartition, messages: int) -> bool:
    return bool((await consumer.end_offsets([partition]))[partition] == messages)


async def test_the_end_of_the_log_lies_behind_messages_that_are_not_shown_yet_and_a_close_marker_is_waited_for(
    pair, topic_name, monkeypatch
):
    """Else a worker whose Redis was set back would not know that its window was released."""
    leader = pair[LEADER - 1].bootstrap
    partition = await create(leader, topic_name, INPUT_SETTINGS)
    await create(leader, WINDOW, {})
    span = {"start": "2017-03-21T12:00:00Z", "end": "2017-03-21T13:00:00Z"}
    marker = {"window": span, "generation": "g", "digest": "sha256:0", "sequence": 1}
    async with AIOKafkaConsumer(topic_name, bootstrap_servers=leader) as consumer:
        async with AIOKafkaProducer(bootstrap_servers=leader, acks=1) as producer:
            await producer.send_and_wait(topic_name, b"shown")
            await until(lambda: shows(consumer, partition, 1))
            with dead(pair[FOLLOWER - 1]):
                await producer.send_and_wait(topic_name, b"not shown")
                assert await shows(consumer, partition, 1)
                assert await log_ends(consumer, [partition]) == ({partition: 2}, {})
                await producer.send_and_wait(WINDOW, json.dumps(marker).encode(), b"bus")
                markers = asyncio.create_task(read_markers(KafkaConfig(bootstrap=leader), "bus"))
                await asyncio.sleep(2)
                assert not markers.done()
        unknown = TopicPartition(topic_name, 7)
        assert await log_ends(consumer, [unknown, partition]) == ({partition: 2}, {unknown: "no leader"})
        last = (await asyncio.wait_for(markers, 60)).last("bus")
        assert last is not None
        assert last.sequence == 1
        # A follower knows its own end only, which may lie before the leader's.
        monkeypatch.setattr(ClusterMetadata, "leader_for_partition", lambda metadata, partition: FOLLOWER)
        refused = {partition: f"broker {FOLLOWER}: NotLeaderForPartitionError to replica id -1"}
        assert await log_ends(consumer, [partition]) == ({}, refused)


async def test_an_event_that_its_leader_cannot_show_until_after_the_deadline_counts_all_the_same(
    pair, redis, redis_url, topic_name
):
    leader = pair[LEADER - 1].bootstrap
    partition = await create(leader, topic_name, INPUT_SETTINGS)
    settings = {"lateness": "append-time", "slot": "2s", "allowed_delay": "2s"}
    async with (
        Ingesting(topic_name, leader, redis_url, **settings) as ingesting,
        AIOKafkaProducer(bootstrap_servers=leader, acks=1) as producer,
        AIOKafkaConsumer(topic_name, bootstrap_servers=leader) as consumer,
    ):
        await producer.send_and_wait(topic_name, event("first", time.time(), 1))
        await until(read_to(redis, time.time()))
        with dead(pair[FOLLOWER - 1]):
            sent = time.time()
            await producer.send_and_wait(topic_name, event("second", sent, 2))
            deadline = sent + 2 + 2 + CLOCK_MARGIN_US / 1e6 + 1.5
            is_hidden = True
            while is_hidden and time.time() < deadline:
                is_read = await read_to(redis, sent)()
                # Asked second: the leader may give the follower up, and show the event, at any moment.
                is_hidden = await shows(consumer, partition, 1)
                assert not (is_hidden and is_read), "not everything that was appended by then was read"
                await asyncio.sleep(0.2)
        await until(read_to(redis, sent + 4))
        assert sorted(await every_speed(redis)) == [100, 200]
        assert (ingesting.count("events_late_total"), ingesting.count("events_skewed_total")) == (0, 0)


async def test_of_a_topic_that_is_made_anew_everything_is_read_although_its_offsets_were_read_before(
    kafka, redis, redis_url, topic_name
):
    for anew in range(2):
        await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
        values = [event("a", time.time(), 10 * anew + speed) for speed in range(5 - anew)]
        await send_batch(kafka, topic_name, None, values)
        async with Ingesting(topic_name, kafka, redis_url, lateness="append-time"):
            await until(read_to_offsets(redis, len(values)))
        async with administering(kafka) as admin:
            await admin.delete_topics([topic_name])
    assert await every_speed(redis) == [0, 100, 200, 300, 400, 1000, 1100, 1200, 1300]
