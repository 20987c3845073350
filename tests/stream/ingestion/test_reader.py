"""From real Kafka to real Redis: every sound message is stored once, whichever readers join, die or return meanwhile.
Every row is stored once after redelivery to another group, and in shuffled partitions."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.ingestion.decoding import REASONS, Decoder
from stream.local import RedisServer
from stream.storage.row_store import RowStore, StateError
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
from tests.support.stored_rows import rows_in

PARTITIONS = 3


@pytest.fixture
async def topic(kafka, topic_name):
    await create_topic(kafka, topic_name, PARTITIONS)
    return topic_name


async def stored_rows(redis) -> list[bytes]:
    parts = [await rows_in(redis, "bus", slot) for slot in await RowStore(redis, "bus").open_slots()]
    return sorted(row.tobytes() for part in parts for row in part)


def all_read(redis, count: int):
    async def check() -> bool:
        return sum((await RowStore(redis, "bus").next_offsets()).values()) >= count

    return check


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


async def test_redis_may_die_and_come_back_while_the_feed_runs(kafka, topic, tmp_path):
    values = messages(6_000)
    with RedisServer(tmp_path / "redis") as server:
        async with Redis.from_url(server.url) as before, Ingesting(topic, kafka, server.url) as ingesting:
            await produce(kafka, topic, values[:2_000], PARTITIONS)
            await until(all_read(before, 2_000))
            server.kill()
            await produce(kafka, topic, values[2_000:], PARTITIONS, first=2_000)
            await asyncio.sleep(2)
            server.start()
            async with Redis.from_url(server.url) as after:
                await until(all_read(after, len(values)))
                assert await stored_rows(after) == expected_rows(ingesting.config, values)
            assert ingesting.count("redis_errors_total") >= 1


async def test_stopping_while_redis_is_away_ends_at_once_and_loses_nothing(kafka, topic, tmp_path):
    values = messages(3_000)
    with RedisServer(tmp_path / "redis") as server:
        async with asyncio.timeout(60), Ingesting(topic, kafka, server.url) as ingesting:
            await asyncio.wait_for(ingesting.ingestor.assigned.wait(), 30)
            server.kill()
            await produce(kafka, topic, values, PARTITIONS)
            await asyncio.sleep(1)
        server.start()
        async with Redis.from_url(server.url) as after, Ingesting(topic, kafka, server.url) as ingesting:
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
        older = {key: await redis.dump(key) for key in await redis.keys("*")} if copied else {}
        await produce(kafka, topic, values[copied:2_000], PARTITIONS, first=copied)
        await until(all_read(redis, 2_000))
        async with redis.pipeline(transaction=True) as pipe:
            pipe.flushall()
            for key, value in older.items():
                pipe.restore(key, 0, value)
            await pipe.execute()
        await produce(kafka, topic, values[2_000:], PARTITIONS, first=2_000)
        await until(all_read(redis, len(values)))
    assert await stored_rows(redis) == expected_rows(make_config(topic), values)


async def test_a_partition_that_redis_lost_and_whose_log_was_cut_is_read_from_where_the_log_begins(
    kafka, redis, redis_url, topic
):
    values = messages(900)
    await produce(kafka, topic, values, PARTITIONS)
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, 900))
        async with administering(kafka) as admin:
            await admin.delete_records({TopicPartition(topic, 1): RecordsToDelete(before_offset=100)})
        await redis.flushall()
        await until(all_read(redis, 900))
        assert ingesting.count("events_lost_total") == 100
    kept = [value for i, value in enumerate(values) if i % PARTITIONS != 1 or i // PARTITIONS >= 100]
    assert await stored_rows(redis) == expected_rows(make_config(topic), kept)


async def test_messages_that_retention_removed_are_counted_and_reading_goes_on(kafka, redis, redis_url, topic):
    values = messages(3_000)
    await produce(kafka, topic, values[:1_500], PARTITIONS)
    async with Ingesting(topic, kafka, redis_url):
        await until(all_read(redis, 1_500))
    await produce(kafka, topic, values[1_500:], PARTITIONS, first=1_500)
    async with administering(kafka) as admin:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=700)})
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, 3_000))
    assert ingesting.count("events_lost_total") == 200
    kept = [value for i, value in enumerate(values) if i < 1_500 or i % PARTITIONS or i // PARTITIONS >= 700]
    assert await stored_rows(redis) == expected_rows(make_config(topic), kept)


async def test_a_log_that_lost_its_beginning_before_the_first_reader_came_is_read_from_where_it_begins(
    kafka, redis, redis_url, topic
):
    values = messages(900)
    await produce(kafka, topic, values, PARTITIONS)
    async with administering(kafka) as admin:
        await admin.delete_records({TopicPartition(topic, 1): RecordsToDelete(before_offset=100)})
    async with Ingesting(topic, kafka, redis_url) as ingesting:
        await until(all_read(redis, 900))
    assert ingesting.count("events_lost_total") == 0
    kept = [value for i, value in enumerate(values) if i % PARTITIONS != 1 or i // PARTITIONS >= 100]
    assert await stored_rows(redis) == expected_rows(make_config(topic), kept)


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

        async def listed() -> bool:
            return len((await RowStore(redis, "bus").look()).times) == PARTITIONS

        await until(listed)
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
