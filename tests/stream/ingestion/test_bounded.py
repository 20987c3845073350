"""A batch that would not fit is left out and reported, and what was sent before and after it arrives: on real Kafka."""

import gzip
import json
import os
import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import pytest
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.ingestion import bounded
from stream.ingestion.arrays import MAX_ARRAY_BYTES
from stream.ingestion.bounded import MAX_BATCH_BYTES, BatchTooLargeError
from stream.local import KafkaServer
from stream.messages.topics import INPUT_SETTINGS
from stream.storage.row_store import RowStore
from tests.support.feeding import create_topic, until
from tests.support.ingesting import Ingesting
from tests.support.live_batches import send_batch
from tests.support.live_events import event, every_speed

_FIRST_OFFSET, _LENGTH, _LAST_OFFSET = 0, 8, 23
"""Where a stored batch says which offset its first message has, how many bytes follow, and how many messages."""
CODECS = {
    "gzip": (gzip_encode, bounded.gzip_decode),
    "snappy": (snappy_encode, bounded.bounded(bounded.snappy_into)),
    "lz4": (lz4_encode, bounded.bounded(cramjam.lz4.decompress_into)),
    "zstd": (zstd_encode, bounded.bounded(cramjam.zstd.decompress_into)),
}


def damage(folder: Path, topic: str, partition: int, batch: int, at: int, to: bytes) -> None:
    """Overwrite bytes of a stored batch in the log of a broker; below 0, ``at`` counts from its end."""
    (log,) = folder.rglob(f"{topic}-{partition}/*.log")
    with log.open("r+b") as file:
        for _ in range(batch + 1):
            begin = file.tell()
            _, length = struct.unpack(">qi", file.read(12))
            file.seek(length, os.SEEK_CUR)
        file.seek(at, os.SEEK_CUR) if at < 0 else file.seek(begin + at)
        file.write(to)


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


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
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


async def test_what_is_damaged_in_the_log_is_left_out_and_neither_other_messages_nor_other_partitions_are(
    redis, redis_url, topic_name, tmp_path
):
    """The broker compares checksums of what it receives, and not of what it reads from its disk."""
    now = time.time()
    with KafkaServer(tmp_path / "kafka") as server:
        await create_topic(server.bootstrap, topic_name, 6, INPUT_SETTINGS)

        async def send(partition: int, *speeds: float) -> None:
            values = [event("a", now, speed) for speed in speeds]
            await send_batch(server.bootstrap, topic_name, None, values, partition)

        for partition in range(6):
            for batch in range(3):
                await send(partition, *(10 * partition + batch + message / 4 for message in range(2)))
        damage(tmp_path, topic_name, partition=0, batch=1, at=-9, to=b"#")
        damage(tmp_path, topic_name, partition=1, batch=2, at=-9, to=b"#")  # after which there is nothing yet
        damage(tmp_path, topic_name, partition=2, batch=1, at=_LAST_OFFSET, to=b"\x00\x10\x00\x00")
        damage(tmp_path, topic_name, partition=3, batch=1, at=_FIRST_OFFSET, to=b"\x00\x10\x00\x00")
        damage(
            tmp_path, topic_name, partition=4, batch=1, at=_LENGTH, to=b"\x00\x00\x00\x00"
        )  # so the broker sees no batch
        async with Ingesting(topic_name, server.bootstrap, redis_url, lateness="append-time") as ingesting:

            async def all_read() -> bool:
                return list((await RowStore(redis, "bus").next_offsets()).values()) == [6, 6, 6, 6, 2, 6]

            await until(all_read)
            await send(1, 19)

            async def and_what_comes_later() -> bool:
                return sum((await RowStore(redis, "bus").next_offsets()).values()) == 33

            await until(and_what_comes_later)
        read = [0, 0.25, 2, 2.25, 10, 10.25, 11, 11.25, 19, 20, 20.25, 22, 22.25, 30, 30.25, 32, 32.25]
        read += [40, 40.25, 50, 50.25, 51, 51.25, 52, 52.25]
        assert await every_speed(redis) == [100 * speed for speed in read]
        reports = [json.loads(report.value) for report in ingesting.reports]
        left_out = {(body["partition"], body["first_offset"], body["last_offset"], body["count"]) for body in reports}
        assert left_out == {(0, 2, 3, 2), (1, 4, 5, 2), (2, 2, 3, 2), (3, 2, 3, 2)}
        assert {body["reason"] for body in reports} == {"unreadable-batch"}


async def test_a_bomb_at_the_end_of_a_partition_holds_nothing_up(kafka, redis, redis_url, topic_name):
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    await send_batch(kafka, topic_name, "zstd", [bytes(30 << 20)])
    async with Ingesting(topic_name, kafka, redis_url, lateness="append-time"):

        async def passed() -> bool:
            times = await RowStore(redis, "bus").partition_times()
            return any(partition.read_us for partition in times.values())

        await until(passed)
    assert await RowStore(redis, "bus").next_offsets() == {f"{topic_name}/0": 1}
