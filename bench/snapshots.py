"""How long a snapshot of GTFS-realtime takes from its bytes to the acknowledgements of Kafka, with what is kept in
Redis.

The snapshot is Delhi's of the recordings, or a made one of as many vehicles. Each repetition moves every vehicle, so
that all of them give an event with a derived speed.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from google.transit import gtfs_realtime_pb2

from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import recordings
from stream.config import Config
from stream.local.kafka import KafkaServer
from stream.local.server import RedisServer
from stream.messages.topics import create_topics
from stream.sources.polling import KafkaSink
from stream.sources.vehicle_positions import GtfsRealtime

FULL, QUICK = 50, 3
"""Snapshots that are measured."""
_PARTS = ("decode", "publish", "decode_and_publish", "processor")
_VEHICLES, _STEP_S, _WARM = 1_715, 15, 3
_DELHI = {"south": 28.0, "west": 76.5, "north": 29.5, "east": 78.0}


def run(quick: bool) -> dict[str, Any]:
    """Milliseconds of a snapshot: medians and the slowest, for the whole and its parts."""
    with tempfile.TemporaryDirectory(prefix="hexveil-bench-") as folder, KafkaServer() as kafka, RedisServer() as redis:
        servers = {"kafka.bootstrap": kafka.bootstrap, "redis.url": redis.url}
        key = {"privacy.user_key_file": f"{folder}/user.key", "feed.domain": _DELHI}
        config = hourly_config("bus-fleet", **servers, **key)
        return asyncio.run(_measured(config, QUICK if quick else FULL))


async def _measured(config: Config, count: int) -> dict[str, Any]:
    await create_topics(config)
    first = _snapshot()
    reader = GtfsRealtime(config.feed, config.slotting, "derived")
    bodies = [_moved(first, step) for step in range(_WARM + count)]
    async with KafkaSink(config, asyncio.Event()) as sink:
        times = [await _timed(reader, sink, body) for body in shown(bodies, "snapshots")]
    columns = 1e3 * np.array(times[_WARM:])

    def by_part(of: Callable[[Any], Any]) -> dict[str, float]:
        return {name: round(float(of(columns[:, k])), 1) for k, name in enumerate(_PARTS)}

    return {
        "vehicles": len(first.entity),
        "events": reader.tally.events // (len(bodies) - 1),
        "bytes": len(bodies[-1]),
        "snapshots": count,
        "median_ms": by_part(np.median),
        "least_ms": by_part(np.min),
        "most_ms": by_part(np.max),
    }


async def _timed(reader: GtfsRealtime, sink: KafkaSink, body: bytes) -> tuple[float, ...]:
    """Seconds of the parts of one snapshot."""
    processor, began = time.process_time(), time.perf_counter()
    messages = await asyncio.to_thread(reader.events, body, None)
    decoded = time.perf_counter()
    await sink.take(messages)
    published = time.perf_counter()
    used = time.process_time() - processor
    return decoded - began, published - decoded, published - began, used


def _snapshot() -> Any:
    message = gtfs_realtime_pb2.FeedMessage()
    stored = recordings() / "gtfs-rt" / "delhi-2025-09-11.pb"
    if stored.is_file():
        message.ParseFromString(stored.read_bytes())
        return message
    message.header.gtfs_realtime_version = "2.0"
    message.header.timestamp = 1_757_583_616
    for number in range(_VEHICLES):
        vehicle = message.entity.add(id=str(number)).vehicle
        vehicle.vehicle.id, vehicle.timestamp = f"DL1PC{number:04}", message.header.timestamp
        vehicle.position.latitude, vehicle.position.longitude = 28.5 + number / 1e4, 77.2
    return message


def _moved(first: Any, step: int) -> bytes:
    """The snapshot so many steps later, with every vehicle 55 m farther north for each: 13 km/h."""
    message = gtfs_realtime_pb2.FeedMessage()
    message.CopyFrom(first)
    message.header.timestamp += _STEP_S * step
    for entity in message.entity:
        entity.vehicle.timestamp += _STEP_S * step
        entity.vehicle.position.latitude += 0.0005 * step
    body: bytes = message.SerializeToString()
    return body
