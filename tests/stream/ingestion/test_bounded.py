"""A batch that would not fit is left out and reported, and what was sent before and after it arrives: on real Kafka."""

import gzip
import json
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import cramjam
import pytest
from aiokafka import TopicPartition
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.config.servers import KafkaConfig
from stream.ingestion import unpacking
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.bounded import MAX_GATHERED_BYTES, BoundedConsumer
from stream.ingestion.unpacking import MAX_BATCH_BYTES, BatchTooLargeError
from stream.messages.topics import INPUT_SETTINGS
from stream.storage.row_store import RowStore
from tests.support.feeding import create_topic, until
from tests.support.ingesting import Ingesting
from tests.support.live_batches import send_batch
from tests.support.live_events import event, every_speed
from tests.support.nightly import nightly

CODECS = {
    "gzip": (gzip_encode, unpacking.gzip_decode),
    "snappy": (snappy_encode, unpacking.bounded(unpacking.snappy_into)),
    "lz4": (lz4_encode, unpacking.bounded(cramjam.lz4.decompress_into)),
    "zstd": (zstd_encode, unpacking.bounded(cramjam.zstd.decompress_into)),
}


@pytest.mark.parametrize("codec", CODECS)
@given(st.binary(max_size=3_000), st.integers(1, 60))
@settings(max_examples=30)
def test_what_fits_is_unpacked_as_aiokafka_packed_it(codec, payload, repeats):
    encode, decode = CODECS[codec]
    assert decode(encode(payload * repeats)) == payload * repeats


@pytest.mark.parametrize("codec", CODECS)
def test_the_bound_is_exact_and_damaged_bytes_are_refused(codec):
    encode, decode = CODECS[codec]
    assert len(decode(encode(bytes(MAX_BATCH_BYTES)))) == MAX_BATCH_BYTES
    with pytest.raises(BatchTooLargeError):
        decode(encode(bytes(MAX_BATCH_BYTES + 1)))
    with pytest.raises((BatchTooLargeError, ValueError, OSError, EOFError, Exception)):
        decode(b"\x00rubbish" * 50)


def test_snappy_without_frames_and_gzip_of_several_members_are_read():
    assert CODECS["snappy"][1](bytes(snappy_encode(b"abc" * 999, xerial_compatible=False))) == b"abc" * 999
    assert CODECS["gzip"][1](gzip.compress(b"a" * 999) + gzip.compress(b"b" * 99)) == b"a" * 999 + b"b" * 99


@pytest.mark.parametrize("codec", CODECS)
def test_threads_that_unpack_at_the_same_time_each_get_their_own_bytes(codec):
    """An embedding program may read topics in several threads, each with an event loop of its own."""
    encode, decode = CODECS[codec]
    payloads = [bytes([number]) * (100_000 + number) for number in range(4)]

    def all_equal(payload: bytes) -> bool:
        packed = encode(payload)
        return all(decode(packed) == payload for _ in range(200))

    with ThreadPoolExecutor(len(payloads)) as threads:
        assert list(threads.map(all_equal, payloads)) == [True] * len(payloads)


@pytest.mark.parametrize("codec", ["gzip", nightly("lz4"), nightly("zstd")])
async def test_a_bomb_between_good_messages_is_left_out_with_its_position_and_memory_stays(
    kafka, redis, redis_url, topic_name, codec
):
    await create_topic(kafka, topic_name, 2, INPUT_SETTINGS)
    now = time.time()
    await send_batch(kafka, topic_name, codec, [event("a", now, 1)])
    await send_batch(
        kafka, topic_name, codec, [bytes(30 << 20)] * 6
    )  # 180 MiB unpacked, a few hundred kB at most as stored
    await send_batch(kafka, topic_name, codec, [event("b", now, 2)])
    await send_batch(kafka, topic_name, codec, [event("c", now, 3), bytes(MAX_ARRAY_BYTES + 1), b"[]"], partition=1)
    await send_batch(kafka, topic_name, None, [bytes(800_000)], partition=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Ingesting(topic_name, kafka, redis_url, lateness="append-time") as ingesting:

        async def all_read() -> bool:
            return sum((await RowStore(redis, "bus").next_offsets()).values()) == 8 + 4

        await until(all_read)
        assert await every_speed(redis) == [100, 200, 300]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"{grown} kB more than before"
    reports = [json.loads(report.value) for report in ingesting.reports]
    refused = {
        (body["reason"], body["partition"], body["first_offset"], body["last_offset"], body["count"])
        for body in reports
    }
    assert refused == {
        ("unreadable-batch", 0, 1, 6, 6),
        ("too-large", 1, 1, 3, 2),
        ("missing-field", 1, 2, 2, 1),
    }


async def test_a_bomb_at_the_end_of_a_partition_holds_nothing_up(kafka, redis, redis_url, topic_name):
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)])
    async with Ingesting(topic_name, kafka, redis_url, lateness="append-time"):

        async def passed() -> bool:
            times = await RowStore(redis, "bus").partition_times()
            return any(partition.read_us for partition in times.values())

        await until(passed)
    assert await RowStore(redis, "bus").next_offsets() == {f"{topic_name}/0": 1}


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

        async def all_read() -> bool:
            return await RowStore(redis, "bus").next_offsets() == {f"{topic_name}/0": 12}

        await until(all_read)
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
    await bounded.kafka.start()
    try:
        bounded.kafka.assign([partition])
        bounded.kafka.seek(partition, 0)
        values = list[bytes | None]()
        while b"last" not in values:
            batches = await bounded.gather(100, 1_000, lambda _, records: records[0].offset)
            values += [record.value for _, _, records in batches for record in records]
            gathered.append(bounded.bytes_read)
    finally:
        await bounded.kafka.stop()
    assert all(size < MAX_GATHERED_BYTES + MAX_BATCH_BYTES + (1 << 20) for size in gathered)
    assert sum(gathered) >= 5 * min(size, MAX_BATCH_BYTES)


def test_many_gzip_members_with_padding_between_them_are_unpacked_one_after_the_other():
    members = [gzip.compress(bytes([number % 256]) * number, mtime=0) for number in range(300)]
    packed = b"".join(member + bytes(number % 3) for number, member in enumerate(members))
    assert unpacking.gzip_decode(packed * 3) == b"".join(map(gzip.decompress, members)) * 3
    assert unpacking.gzip_decode(memoryview(packed)) == unpacking.gzip_decode(packed)
