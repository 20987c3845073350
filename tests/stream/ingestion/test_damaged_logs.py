"""What a broker's disk damages or loses of a log is left out, and nothing else is, and nothing counts twice. Real Kafka
and Redis. What a leader has appended but does not show yet, because it waits for a follower, is neither missed nor
late."""

import asyncio
import contextlib
import json
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.cluster import ClusterMetadata

from bench.faults.site import brokers
from stream.config.servers import KafkaConfig
from stream.ingestion.log_ends import log_ends
from stream.local import KafkaServer
from stream.messages.message import WINDOW
from stream.messages.topics import INPUT_SETTINGS
from stream.protocol.markers import read_markers
from stream.storage.row_store import RowStore
from stream.windows import CLOCK_MARGIN_US, read_through
from tests.support.feeding import administering, create_topic, until
from tests.support.ingesting import Ingesting
from tests.support.live_events import event, every_speed, send_batch

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

        async def is_at(offset: int) -> bool:
            return await RowStore(redis, "bus").next_offsets() == {f"{topic_name}/0": offset}

        await until(lambda: is_at(6))
        server.kill()
        log = log_of(server.folder, topic_name, 0)
        os.truncate(log, ends_of_batches(log)[4])
        server.start()
        await until(lambda: is_at(4))
        await send(server, topic_name, 0, 50)
        await until(lambda: is_at(5))
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

        async def everything_is_read() -> bool:
            offsets = await RowStore(redis, "bus").next_offsets()
            return [offset for _, offset in sorted(offsets.items())] == [6, 6, 6, 6, 2, 6]

        await until(everything_is_read)
        await send(server, topic_name, 1, 19)

        async def and_what_comes_later() -> bool:
            return (await RowStore(redis, "bus").next_offsets())[f"{topic_name}/1"] == 7

        await until(and_what_comes_later)
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
        await admin.create_topics(
            [NewTopic(topic, -1, -1, replica_assignments={0: [LEADER, FOLLOWER]}, topic_configs=settings)]
        )
    return TopicPartition(topic, 0)


@contextlib.asynccontextmanager
async def producing(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    """A producer that waits for the leader alone."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@contextlib.asynccontextmanager
async def reading(bootstrap: str, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


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
    async with reading(leader, topic_name) as consumer:
        async with producing(leader) as producer:
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
    rows, settings = RowStore(redis, "bus"), {"lateness": "append-time", "slot": "2s", "allowed_delay": "2s"}

    def read_to(moment: float) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return (read_through((await rows.look()).times) or 0) > moment * 1e6

        return check

    async with (
        Ingesting(topic_name, leader, redis_url, **settings) as ingesting,
        producing(leader) as producer,
        reading(leader, topic_name) as consumer,
    ):
        await producer.send_and_wait(topic_name, event("first", time.time(), 1))
        await until(read_to(time.time()))
        with dead(pair[FOLLOWER - 1]):
            sent = time.time()
            await producer.send_and_wait(topic_name, event("second", sent, 2))
            deadline = sent + 2 + 2 + CLOCK_MARGIN_US / 1e6 + 1.5
            is_hidden = True
            while is_hidden and time.time() < deadline:
                is_read = await read_to(sent)()
                # Asked second: the leader may give the follower up, and show the event, at any moment.
                is_hidden = await shows(consumer, partition, 1)
                assert not (is_hidden and is_read), "not everything that was appended by then was read"
                await asyncio.sleep(0.2)
        await until(read_to(sent + 4))
        assert sorted(await every_speed(redis)) == [100, 200]
        assert (ingesting.count("events_late_total"), ingesting.count("events_skewed_total")) == (0, 0)


async def test_of_a_topic_that_is_made_anew_everything_is_read_although_its_offsets_were_read_before(
    kafka, redis, redis_url, topic_name
):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        for anew in range(2):
            await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
            values = [event("a", time.time(), 10 * anew + speed) for speed in range(5 - anew)]
            await send_batch(kafka, topic_name, None, values)
            async with Ingesting(topic_name, kafka, redis_url, lateness="append-time"):

                async def is_read(count: int = len(values)) -> bool:
                    return await RowStore(redis, "bus").next_offsets() == {f"{topic_name}/0": count}

                await until(is_read)
            await admin.delete_topics([topic_name])
    finally:
        await admin.close()
    assert await every_speed(redis) == [0, 100, 200, 300, 400, 1000, 1100, 1200, 1300]
