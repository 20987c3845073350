"""Only the broker's clock decides which events are in time, whoever reads them and when, and whatever else is sent.
Real servers.
"""

import asyncio
import contextlib
import json
import time
from datetime import timedelta

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewPartitions
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.local import RedisServer
from stream.messages.topics import INPUT_SETTINGS
from stream.storage.row_store import RowStore
from stream.windows import PartitionTime, read_through, watermark
from tests.support.feeding import START_MS, administering, create_topic, produce, until
from tests.support.ingesting import Ingesting
from tests.support.live_events import event, every_speed, speeds

LIVE = {"lateness": "append-time", "slot": "2s", "allowed_delay": "1s"}
SLOT, DELAY = 2, 1
PATIENT = LIVE | {"allowed_delay": "60s"}
"""For events that have to be appended in time on a busy machine, too."""


async def appended_in_time(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """Values of the events that the broker appended by their windows' deadlines, by slot, from the topic alone.

    A busy machine may append some of them later than the test meant.
    """
    values: dict[int, list[int]] = {}
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        ends = await consumer.end_offsets(list(consumer.assignment()))
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    body = json.loads(record.value)
                    slot = body["time"] // 1000 // SLOT * SLOT
                    if record.timestamp <= (slot + SLOT + DELAY) * 1000:
                        values.setdefault(slot, []).append(round(body["speed"] * 100))
    finally:
        await consumer.stop()
    return {slot: sorted(slot_values) for slot, slot_values in values.items()}


def read_to(redis: Redis, moment: float):
    async def check() -> bool:
        return (read_through(await RowStore(redis, "bus").partition_times()) or 0) > moment * 1e6

    return check


@pytest.fixture
async def live(kafka: str, topic_name: str) -> str:
    await create_topic(kafka, topic_name, 2, INPUT_SETTINGS)
    return topic_name


async def test_a_worker_that_comes_back_late_takes_what_was_appended_in_time_and_nothing_else(
    kafka, redis, redis_url, live, monkeypatch
):
    """A short downtime: events are appended in time, then too late, then a flood. A worker whose clock is ahead reads
    them all.
    """
    start = int(time.time()) // SLOT * SLOT + SLOT
    await asyncio.sleep(start - time.time())
    await produce(kafka, live, [event("early", start + 0.1, 1), event("other", start + 0.2, 2)], 2)
    await asyncio.sleep(start + SLOT + 0.5 - time.time())
    await produce(kafka, live, [event("delayed", start + 1.9, 3)], 2)
    await asyncio.sleep(start + SLOT + DELAY + 0.5 - time.time())
    flood = [event("flood", start + SLOT + 0.5 + i / 10_000, 5) for i in range(5_000)]
    await produce(kafka, live, [*flood, event("late", start + 1.9, 4)], 2)
    real = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real[0]() + 3600)
    monkeypatch.setattr(time, "time_ns", lambda: real[1]() + 3600 * 10**9)
    in_time = await appended_in_time(kafka, live)
    assert 400 not in in_time.get(start, []), "the late one was sent after its deadline"
    async with Ingesting(live, kafka, redis_url, **LIVE) as ingesting:
        await until(read_to(redis, start + SLOT + DELAY))
        assert (await speeds(redis)).get(start) == in_time.get(start), "in time by the broker's clock, read or not"
        await until(read_to(redis, start + 2 * SLOT + DELAY))
        assert await speeds(redis) == in_time
        late = 3 + 1 + len(flood) - sum(map(len, in_time.values()))
        assert (ingesting.count("events_late_total"), ingesting.count("events_skewed_total")) == (late, 0)
        monkeypatch.undo()
        assert await RowStore(redis, "bus").partition_times()
        assert (read_through(await RowStore(redis, "bus").partition_times()) or 0) < time.time() * 1e6, (
            "no window early"
        )


async def test_times_ahead_are_judged_by_when_a_message_was_appended_not_by_when_it_is_read(
    kafka, redis, redis_url, live, monkeypatch
):
    monkeypatch.setattr("stream.ingestion.decoding.MAX_FUTURE", timedelta(seconds=1))
    now, ahead = time.time(), 6
    await produce(kafka, live, [event("fast", now + ahead, 1), event("good", now, 2)], 2)
    await asyncio.sleep(now + ahead - time.time())  # a reader's clock has caught up with the fast one
    async with Ingesting(live, kafka, redis_url, **PATIENT) as ingesting:
        await until(read_to(redis, now + ahead))
    assert ingesting.metrics.registry.get_sample_value("hexveil_events_rejected_total", {"reason": "in-future"}) == 1
    assert await every_speed(redis) == [200]


async def test_old_hours_open_no_windows_in_a_live_feed(kafka, redis, redis_url, live):
    now = time.time()
    old = [event("flood", now - 3600 * hours, 1) for hours in range(1, 300_000, 37)]
    await produce(kafka, live, [*old, event("good", now, 2)], 2)
    async with Ingesting(live, kafka, redis_url, **PATIENT):
        await until(read_to(redis, now))
    assert list((await speeds(redis)).values()) == [[200]]


async def test_a_topic_whose_messages_bear_no_stamp_of_the_broker_is_refused_message_by_message(
    kafka, redis, redis_url, topic_name
):
    await create_topic(kafka, topic_name, 2)
    now = time.time()
    await produce(kafka, topic_name, [event("a", now), b"rubbish"], 2)
    async with Ingesting(topic_name, kafka, redis_url, **LIVE) as ingesting:

        async def refused() -> bool:
            sample_value = ingesting.metrics.registry.get_sample_value
            return sample_value("hexveil_events_rejected_total", {"reason": "not-stamped"}) == 1

        await until(refused)
    assert await speeds(redis) == {}


async def test_windows_wait_for_a_partition_that_was_added_and_take_what_it_holds(kafka, redis, redis_url, live):
    async with Ingesting(live, kafka, redis_url, **PATIENT):
        await until(read_to(redis, time.time() - 5))
        async with administering(kafka) as admin:
            await admin.create_partitions({live: NewPartitions(3)})

        async def listed() -> bool:
            return len(await RowStore(redis, "bus").partition_times()) == 3

        await until(listed)
        now = time.time()
        await produce(kafka, live, [event(str(i), now, i) for i in range(6)], 3)
        await until(read_to(redis, now + SLOT + DELAY))
        assert await every_speed(redis) == [0, 100, 200, 300, 400, 500]


RECORDED = {"idle_timeout": "2s", "allowed_delay": "1s", "slot": "1h"}
HOUR_MS = 3_600_000


def hour(number: int, user: str, count: int = 20) -> list[bytes]:
    moments = np.linspace(0, HOUR_MS - 1000, count) + START_MS + number * HOUR_MS
    return [event(user, moment / 1000) for moment in moments.tolist()]


@contextlib.asynccontextmanager
async def closing_as_a_worker_would(url: str, window, sealed: set[int]):
    """Seal every window that is due, over and over; Redis may be away meanwhile."""
    over = asyncio.Event()  # not a cancellation: the client of Redis may lose it while Redis is away
    closer = asyncio.create_task(_close_until(over, url, window, sealed))
    try:
        yield
    finally:
        over.set()
        await closer


async def _close_until(over: asyncio.Event, url: str, window, sealed: set[int]) -> None:
    async with Redis.from_url(url) as redis:
        state = RowStore(redis, "bus")
        while not over.is_set():
            with contextlib.suppress(RedisError, OSError):
                times, now = await state.partition_times(), await state.now_us()
                mark = watermark(times, now, window.allowed_delay, window.idle_timeout)
                for slot in await state.open_slots():
                    if mark is not None and (slot + 3600) * 1_000_000 <= mark and slot not in sealed:
                        await state.seal(slot)
                        sealed.add(slot)
            await asyncio.sleep(0.02)


async def test_an_outage_of_redis_longer_than_the_idle_timeout_makes_nothing_late(kafka, topic_name, tmp_path):
    """Each partition continues where it was. The first one that stores rows again must not close windows of the
    others.
    """
    await create_topic(kafka, topic_name, 3)
    with RedisServer(tmp_path / "redis") as server:
        sealed: set[int] = set()
        async with (
            Ingesting(topic_name, kafka, server.url, **RECORDED) as ingesting,
            closing_as_a_worker_would(server.url, ingesting.config.window, sealed),
        ):
            async with Redis.from_url(server.url) as before:
                for partition in range(3):
                    await produce(kafka, topic_name, hour(0, f"bus-{partition}"), 1, first=0)
                await until(lambda: _stored(before, 60))
            server.kill()
            for number in range(1, 5):
                for user in range(30):
                    await produce(kafka, topic_name, hour(number, f"bus-{user}", 40), 3, first=user)
            await asyncio.sleep(4)
            server.start()
            async with Redis.from_url(server.url) as after:
                await until(lambda: _stored(after, 60 + 4 * 30 * 40))
            assert ingesting.count("events_late_total") == 0
            assert ingesting.count("events_ingested_total") == 60 + 4 * 30 * 40


async def _stored(redis: Redis, count: int) -> bool:
    return sum((await RowStore(redis, "bus").next_offsets()).values()) >= count


async def test_one_vehicle_with_a_stuck_clock_alone_in_its_partition_holds_a_recording_up_for_the_idle_timeout_only(
    kafka, redis, redis_url, topic_name
):
    await create_topic(kafka, topic_name, 2)
    sealed: set[int] = set()
    async with (
        Ingesting(topic_name, kafka, redis_url, **RECORDED) as ingesting,
        closing_as_a_worker_would(redis_url, ingesting.config.window, sealed),
    ):
        begin, sent = time.monotonic(), 0
        while START_MS // 1000 not in sealed:
            await produce(kafka, topic_name, [event("stuck", START_MS / 1000)], 1)
            # The others go on through the second hour, so that their partition is never idle.
            await produce(kafka, topic_name, [event("good", (START_MS + HOUR_MS + 1000 * sent) / 1000)], 2, first=1)
            sent += 1
            await asyncio.sleep(0.2)
            assert time.monotonic() - begin < 60, "held open"


def test_a_partition_that_is_not_listed_closes_nothing():
    assert read_through({"t/0": PartitionTime(None, 0, 0)}) == 0
