"""Only the broker's clock decides which events are in time, whoever reads them and when, and whatever else is sent.
Real servers. A batch that would not fit is left out and reported, and what was sent before and after it arrives: on
real Kafka."""

import asyncio
import contextlib
import gzip
import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import cramjam
import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.config.servers import KafkaConfig
from stream.diagnosis.live import newest_messages
from stream.ingestion import unpacking
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.bounded import MAX_GATHERED_BYTES, BoundedConsumer
from stream.ingestion.unpacking import MAX_BATCH_BYTES, BatchTooLargeError
from stream.local.server import RedisServer
from stream.messages.topics import INPUT_SETTINGS
from stream.storage.row_store import RowStore
from stream.windows import read_through, watermark
from tests.support.feeding import START_MS, administering, create_topic, produce, until, until_true
from tests.support.ingesting import Ingesting
from tests.support.live_events import event, every_speed, send_batch, speeds
from tests.support.nightly import nightly
from tests.support.stored_rows import all_read, listed, read_to
from tests.support.topics_reader import read_topics

LIVE = {"lateness": "append-time", "slot": "2s", "allowed_delay": "1s"}
SLOT, DELAY = 2, 1
PATIENT = LIVE | {"allowed_delay": "60s"}
"""For events that have to be appended in time on a busy machine, too."""


async def appended_in_time(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """Values of the events that the broker appended by their windows' deadlines, by slot, from the topic alone.

    A busy machine may append some of them later than the test meant.
    """
    values: dict[int, list[int]] = {}
    for record in await read_topics(bootstrap, [topic]):
        body = json.loads(record.value)
        slot = body["time"] // 1000 // SLOT * SLOT
        if record.timestamp <= (slot + SLOT + DELAY) * 1000:
            values.setdefault(slot, []).append(round(body["speed"] * 100))
    return {slot: sorted(slot_values) for slot, slot_values in values.items()}


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
        assert (await RowStore(redis, "bus").look()).times
        assert (read_through((await RowStore(redis, "bus").look()).times) or 0) < time.time() * 1e6, "no window early"


async def test_times_ahead_are_judged_by_when_a_message_was_appended_not_by_when_it_is_read(
    kafka, redis, redis_url, live, monkeypatch
):
    monkeypatch.setattr("stream.ingestion.decoding.MAX_FUTURE", timedelta(seconds=1))
    now, ahead = time.time(), 6
    await produce(kafka, live, [event("fast", now + ahead, 1), event("good", now, 2)], 2)
    await asyncio.sleep(now + ahead - time.time())  # a reader's clock has caught up with the fast one
    async with Ingesting(live, kafka, redis_url, **PATIENT) as ingesting:
        await until(read_to(redis, now + ahead))
    assert ingesting.rejected("in-future") == 1
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
        await until_true(lambda: ingesting.rejected("not-stamped") == 1, 60)
    assert await speeds(redis) == {}


async def test_windows_wait_for_a_partition_that_was_added_and_take_what_it_holds(kafka, redis, redis_url, live):
    async with Ingesting(live, kafka, redis_url, **PATIENT):
        await until(read_to(redis, time.time() - 5))
        async with administering(kafka) as admin:
            await admin.create_partitions({live: NewPartitions(3)})
        await until(listed(redis, 3))
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

    async def close() -> None:
        async with Redis.from_url(url) as redis:
            state = RowStore(redis, "bus")
            while not over.is_set():
                with contextlib.suppress(RedisError, OSError):
                    times, now = (await state.look()).times, await state.now_us()
                    mark = watermark(times, now, window.allowed_delay, window.idle_timeout) or 0
                    for slot in set(await state.open_slots()) - sealed:
                        if (slot + 3600) * 1_000_000 <= mark:
                            await state.seal(slot)
                            sealed.add(slot)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        group.create_task(close())
        try:
            yield
        finally:
            over.set()


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
                await until(all_read(before, 60))
            server.kill()
            for number in range(1, 5):
                for user in range(30):
                    await produce(kafka, topic_name, hour(number, f"bus-{user}", 40), 3, first=user)
            await asyncio.sleep(4)
            server.start()
            async with Redis.from_url(server.url) as after:
                await until(all_read(after, 60 + 4 * 30 * 40))
            assert ingesting.count("events_late_total") == 0
            assert ingesting.count("events_ingested_total") == 60 + 4 * 30 * 40


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


CODECS = {
    "gzip": (gzip_encode, unpacking.gzip_decode),
    "snappy": (snappy_encode, unpacking.bounded(unpacking.snappy_into)),
    "lz4": (lz4_encode, unpacking.bounded(cramjam.lz4.decompress_into)),
    "zstd": (zstd_encode, unpacking.bounded(cramjam.zstd.decompress_into)),
}


@pytest.mark.parametrize("codec", CODECS)
def test_the_bound_is_exact_and_damaged_bytes_are_refused(codec):
    encode, decode = CODECS[codec]
    assert len(decode(encode(bytes(MAX_BATCH_BYTES)))) == MAX_BATCH_BYTES
    with pytest.raises(BatchTooLargeError):
        decode(encode(bytes(MAX_BATCH_BYTES + 1)))
    with pytest.raises((BatchTooLargeError, ValueError, OSError, EOFError, Exception)):
        decode(b"\x00rubbish" * 50)


@pytest.mark.parametrize("codec", CODECS)
@given(st.lists(st.binary(max_size=3_000), min_size=4, max_size=4), st.integers(1, 60))
@settings(max_examples=20)
def test_threads_that_unpack_at_the_same_time_each_get_what_aiokafka_packed(codec, payloads, repeats):
    """An embedding program may read topics in several threads, each with an event loop of its own."""
    encode, decode = CODECS[codec]

    def all_equal(payload: bytes) -> bool:
        packed = encode(payload * repeats)
        return all(decode(packed) == payload * repeats for _ in range(10))

    with ThreadPoolExecutor(len(payloads)) as threads:
        assert all(threads.map(all_equal, payloads))


@pytest.mark.parametrize("codec", ["gzip", nightly("lz4"), nightly("zstd")])
async def test_a_bomb_is_left_out_with_its_position_and_holds_nothing_up_and_memory_stays(
    kafka, redis, redis_url, topic_name, codec
):
    """Between good messages, and at the end of a partition, where it is always packed by zstd."""
    await create_topic(kafka, topic_name, 3, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, codec, [event("a", now, 1)])
    await send_batch(kafka, topic_name, codec, [bytes(30 << 20)] * 6)  # some hundred kB as stored
    await send_batch(kafka, topic_name, codec, [event("b", now, 2)])
    await send_batch(kafka, topic_name, codec, [event("c", now, 3), bytes(MAX_ARRAY_BYTES + 1), b"[]"], partition=1)
    await send_batch(kafka, topic_name, None, [bytes(800_000)], partition=1)
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)], partition=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Ingesting(topic_name, kafka, redis_url, lateness="append-time") as ingesting:
        await until(all_read(redis, 8 + 4 + 1))
        await until(read_to(redis, now))
        assert await every_speed(redis) == [100, 200, 300]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown} kB more than before"
    reports = [json.loads(report.value) for report in ingesting.reports]
    refused = {
        (body["reason"], body["partition"], body["first_offset"], body["last_offset"], body["count"])
        for body in reports
    }
    unreadable = {("unreadable-batch", 0, 1, 6, 6), ("unreadable-batch", 2, 0, 0, 1)}
    assert refused == unreadable | {("too-large", 1, 1, 3, 2), ("missing-field", 1, 2, 2, 1)}


async def test_an_inspection_leaves_a_bomb_in_a_topic_out_and_says_so(kafka, topic_name):
    """90 MiB in one batch of some kB, and one message above the limit, between events of three vehicles."""
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, "zstd", [event("a", now, 1)])
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)] * 3)
    await send_batch(kafka, topic_name, "zstd", [event("b", now, 2), bytes(MAX_ARRAY_BYTES + 1)])
    await send_batch(kafka, topic_name, "gzip", [event("c", now, 3)])
    values, _, left_out = await newest_messages(KafkaConfig(bootstrap=kafka), topic_name, 1_000)
    assert len(values) == 3
    assert dict(left_out) == {"too-large": 1, "unreadable-batch": 3}


async def test_a_message_of_very_many_headers_is_left_out_with_its_batch_and_other_large_batches_are_read(
    kafka, redis, redis_url, topic_name
):
    """As objects, headers take forty times as many bytes."""
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, "gzip", [event("a", now, 1), bytes(MAX_ARRAY_BYTES)] * 5)
    await send_batch(kafka, topic_name, "zstd", [event("b", now, 2)], headers=600_000)
    await send_batch(kafka, topic_name, "lz4", [event("c", now, 3)], headers=3)
    async with Ingesting(topic_name, kafka, redis_url, lateness="append-time") as ingesting:
        await until(all_read(redis, 12))
        assert await every_speed(redis) == [100] * 5 + [300]
    reports = [json.loads(report.value) for report in ingesting.reports]
    unreadable = [body for body in reports if body["reason"] == "unreadable-batch"]
    assert [(body["first_offset"], body["last_offset"]) for body in unreadable] == [(10, 10)]


@pytest.mark.parametrize("size", [15 << 20, 30 << 20], ids=["values that are too large", "batches that are too large"])
async def test_what_is_unpacked_in_vain_counts_as_read_so_the_event_loop_is_not_blocked_by_it(kafka, topic_name, size):
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    for _ in range(5):
        await send_batch(kafka, topic_name, "gzip", [bytes(size)])
    await send_batch(kafka, topic_name, None, [b"last"])
    bounded = BoundedConsumer(KafkaConfig(bootstrap=kafka), None)
    partition, gathered = TopicPartition(topic_name, 0), list[int]()
    async with bounded.kafka:
        bounded.kafka.assign([partition])
        bounded.kafka.seek(partition, 0)
        values = list[bytes | None]()
        while b"last" not in values:
            batches = await bounded.gather(100, 1_000, lambda _, records: records[0].offset)
            values += [record.value for _, _, records in batches for record in records]
            gathered.append(bounded.bytes_read)
    assert all(size < MAX_GATHERED_BYTES + MAX_BATCH_BYTES + (1 << 20) for size in gathered)
    assert sum(gathered) >= 5 * min(size, MAX_BATCH_BYTES)


def test_many_gzip_members_with_padding_between_them_and_snappy_without_frames_are_unpacked():
    assert CODECS["snappy"][1](bytes(snappy_encode(b"abc" * 999, xerial_compatible=False))) == b"abc" * 999
    members = [gzip.compress(bytes([number % 256]) * number, mtime=0) for number in range(300)]
    packed = b"".join(member + bytes(number % 3) for number, member in enumerate(members))
    assert unpacking.gzip_decode(packed * 3) == b"".join(map(gzip.decompress, members)) * 3
    assert unpacking.gzip_decode(memoryview(packed)) == unpacking.gzip_decode(packed)
