"""Where ingestion spends its processor time: the cost of each step per event, and of other ways to do it, in one
process.

The steps are measured apart, in turns, on batches of the events of ``bench.ingest``, and each figure is the least of
its turns. So ratios mean something on a busy machine, and seconds do not. Network, rebalancing and waiting are in none
of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiokafka.consumer.fetcher as fetcher
import h3.api.numpy_int as h3
import msgspec
import numpy as np
from aiokafka import TopicPartition
from aiokafka.record import MemoryRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from redis.asyncio import Redis

from bench.ingest import config_of, synthetic_event
from bench.progress import shown
from stream.config import Config
from stream.ingestion.bounded import BoundedConsumer, FeedRecord
from stream.ingestion.decoding import Batch, Decoder
from stream.ingestion.formats import feed_format
from stream.ingestion.pseudonyms import Pseudonyms
from stream.ingestion.reader import BATCH_MESSAGES
from stream.local.server import RedisServer
from stream.storage.row_store import RowStore

_KEY, _NOW_US = bytes(32), 1_620_450_000_000_000
_PARTITION = TopicPartition("bench.positions", 0)
_FETCHED = 1_000
"""Messages of one stored batch, as producers make them."""


@dataclass(frozen=True)
class Sizes:
    events: int
    repeats: int


FULL = Sizes(events=BATCH_MESSAGES, repeats=7)
QUICK = Sizes(events=500, repeats=1)


def stored_batches(values: list[bytes]) -> list[bytes]:
    """``values`` as the broker stores and sends them, not compressed."""
    batches = []
    for begin in range(0, len(values), _FETCHED):
        part = values[begin : begin + _FETCHED]
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for offset, value in enumerate(part):
            builder.append(offset, _NOW_US // 1000, None, value, [])
        batches.append(bytes(builder.build()))
    return batches


def unpacked(batches: list[bytes], limits: Any) -> list[FeedRecord]:
    """The records of stored batches, as the consumer makes them. ``limits``: its deserializer, which marks what is
    bounded."""
    records: list[FeedRecord] = []
    for stored in batches:
        reading: Any = fetcher.PartitionRecords(
            _PARTITION, MemoryRecords(stored), [], 0, None, limits, True, fetcher.READ_UNCOMMITTED
        )
        records += reading
    return records


async def limits_of(config: Config) -> Any:
    """The deserializer of a consumer that was never started."""
    return BoundedConsumer(config.kafka, None).kafka._value_deserializer


def steps(config: Config, values: list[bytes], limits: Any) -> dict[str, Callable[[], Any]]:
    """The steps of ingestion until a batch is ready for Redis, and other ways of three of them."""
    form, pseudonyms, decoder = feed_format(config.feed), Pseudonyms(_KEY), Decoder(config, _KEY)
    resolution, slotting = config.hexagons.resolution, config.slotting
    fixes, stored, in_lines = list(map(form.decode, values)), stored_batches(values), lines_decoder(config)
    users, times, lats, lngs, speeds = (list(map(getter, fixes)) for getter in form.getters)
    positions, time_us = list(zip(lats, lngs, strict=True)), np.array([moment.timestamp() for moment in times]) * 1e6
    memo = {position: h3.latlng_to_cell(*position, resolution) for position in positions}
    n = len(values)

    def columns() -> None:
        for getter in form.getters:
            list(map(getter, fixes))
        np.rint(np.array([moment.timestamp() for moment in times]) * 1e6).astype(np.int64)
        np.array(lats), np.array(lngs), np.array(speeds)

    return {
        "unpack records": lambda: unpacked(stored, limits),
        "decode JSON": lambda: list(map(form.decode, values)),
        "columns": columns,
        "pseudonyms": lambda: np.fromiter(map(pseudonyms.__getitem__, users), np.uint64, n),
        "cells": lambda: np.fromiter((h3.latlng_to_cell(lat, lng, resolution) for lat, lng in positions), np.uint64, n),
        "timeslots": lambda: slotting.slot_starts(time_us.astype(np.int64)),
        "all from message to batch": lambda: decoder.decode(values, _NOW_US),
        "decode JSON, all lines at once": lambda: in_lines(b"\n".join(values)),
        "cells, memo that knows all": lambda: np.fromiter(map(memo.__getitem__, positions), np.uint64, n),
    }


def lines_decoder(config: Config) -> Callable[[bytes], list[Any]]:
    """A decoder of events one a line, in one call."""
    struct = type(feed_format(config.feed).decode(synthetic_event(random.Random(1), 0)))
    return msgspec.json.Decoder(struct).decode_lines


async def append(config: Config, url: str, batch: Batch, repeats: int) -> tuple[float, float]:
    """Least processor seconds of this process to append ``batch``; and the mean ones that Redis itself took."""
    least, offsets = np.inf, np.arange(len(batch.rows))
    async with Redis.from_url(url) as redis:
        rows = RowStore.of(redis, config)
        before = await redis.info("cpu")
        for turn in range(repeats):
            begin = turn * len(offsets)
            spent = time.process_time()
            await rows.append("topic/0", begin, begin + len(offsets), batch.rows, offsets + begin, batch.slots)
            least = min(least, time.process_time() - spent)
        after = await redis.info("cpu")
    server = sum(after[key] - before[key] for key in ("used_cpu_user", "used_cpu_sys"))
    return least, server / repeats


def run(quick: bool) -> dict[str, Any]:
    """Nanoseconds of processor time per event of each step, and the rate that their sum allows."""
    sizes, rng = QUICK if quick else FULL, random.Random(1)
    values = [synthetic_event(rng, 8 * 3600 + number * 3600 // sizes.events) for number in range(sizes.events)]
    with RedisServer(appendfsync="always") as server:
        config = config_of("127.0.0.1:1", server.url)
        work, least = steps(config, values, asyncio.run(limits_of(config))), dict[str, float]()
        for _ in shown(range(sizes.repeats), "ingest_steps"):
            for name, job in work.items():
                spent = time.process_time()
                job()
                least[name] = min(least.get(name, np.inf), time.process_time() - spent)
        batch = Decoder(config, _KEY).decode(values, _NOW_US)
        least["append, this process"], server_seconds = asyncio.run(append(config, server.url, batch, sizes.repeats))
    whole = least["unpack records"] + least["all from message to batch"] + least["append, this process"]
    per_event = {name: round(seconds / sizes.events * 1e9) for name, seconds in least.items()}
    return {
        "events": sizes.events,
        "accepted": len(batch.rows),
        "ns_per_event": per_event | {"append, Redis": round(server_seconds / sizes.events * 1e9)},
        "per_second_per_core_at_most": round(sizes.events / whole),
    }
