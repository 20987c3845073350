"""What a leader has appended but does not show yet, because it waits for a follower, is neither missed nor late."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.cluster import ClusterMetadata
from redis.asyncio import Redis

from bench.faults.site import brokers
from stream.config.servers import KafkaConfig
from stream.ingestion.log_ends import log_ends
from stream.local import KafkaServer
from stream.messages.message import WINDOW
from stream.messages.topics import INPUT_SETTINGS
from stream.protocol.markers import read_markers
from stream.storage.row_store import RowStore
from stream.windows import CLOCK_MARGIN_US, read_through
from tests.support.feeding import administering, until
from tests.support.ingesting import Ingesting
from tests.support.live_events import event, every_speed

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
    pair: list[KafkaServer], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    pair: list[KafkaServer], redis: Redis, redis_url: str, topic_name: str
) -> None:
    leader = pair[LEADER - 1].bootstrap
    partition = await create(leader, topic_name, INPUT_SETTINGS)
    rows, settings = RowStore(redis, "bus"), {"lateness": "append-time", "slot": "2s", "allowed_delay": "2s"}

    def read_to(moment: float) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return (read_through(await rows.partition_times()) or 0) > moment * 1e6

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
