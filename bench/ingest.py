"""Measures events per second and core from a Kafka topic into durable Redis state, and compares with a plain Faust
agent.

Stream engines that are installed read the same topic in the same run, without durable state: see ``bench.peers``.

Hexveil and the agent read the same topic (one partition, JSON of about 330 bytes) into the same kind of Redis
(append-only file, synced on every write), each in its own process, with the same decoder, cells and pseudonyms. The
agent does what a Faust program does by default: it handles one event at a time and appends each to Redis. Rates per
core are events divided by the CPU seconds of the process; the CPU seconds of Redis and Kafka are not included.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faust
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from redis.asyncio import Redis

from bench.configuration import bench_config
from bench.peers import PEERS, cpu_seconds, installed, report
from bench.processor_time import ProcessorTime
from bench.progress import shown
from stream.config import Config
from stream.ingestion.decoding import Decoder
from stream.ingestion.reader import Ingestor
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import RedisServer
from stream.messages.message import Message
from stream.metrics import OperatorMetrics

AGENT_SECONDS = 15.0
TOPIC = "bench.positions"
_KEY = bytes(32)
PARTS = {
    "message to checked batch": r"stream/ingestion/(?!bounded|reader)",
    "records of a fetched batch": r"ingestion/bounded\.py|FetchResult|PartitionRecords",
    "reader": r"stream/ingestion/reader\.py",
    "append": r"stream/storage/|/redis/",
    "Kafka's protocol": "/aiokafka/",
    "event loop and sockets": "/asyncio/",
}
"""Parts of the ingestor's process whose processor time is told, each with the pattern of its code."""


@dataclass(frozen=True)
class Sizes:
    events: int
    repeats: int


FULL = Sizes(events=600_000, repeats=3)
QUICK = Sizes(events=500, repeats=1)


def config_of(bootstrap: str, redis_url: str) -> Config:
    """Of a city in India in the format of its feed, with recorded times."""
    domain = {"south": 20.9, "west": 72.6, "north": 21.4, "east": 73.1}
    return bench_config(
        feed={"topic": TOPIC, "format": "itms", "timezone": "Asia/Kolkata", "domain": domain},
        window={"lateness": "event-time"},
        kafka={"bootstrap": bootstrap},
        redis={"url": redis_url},
    )


def synthetic_event(rng: random.Random, second: int) -> bytes:
    """One position of a city bus in the Surat format; ``second`` of 2021-05-08, local time."""
    bus = rng.randrange(1000)
    clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    body = {
        "vehicle_label": f"M{bus}",
        "route_id": str(bus % 90),
        "id": "suratmunicipal.org/6db486cb4f720e8585ba1f45a931c63c25dbbbda/rs.iudx.org.in/surat-itms-realtime-info",
        "location": {"coordinates": [72.7 + rng.random() * 0.3, 21.0 + rng.random() * 0.3], "type": "Point"},
        "speed": round(rng.random() * 60, 1),
        "observationDateTime": f"2021-05-08T{clock}+05:30",
        "trip_id": str(14_000_000 + bus),
        "license_plate": f"GJ05NH{bus:04d}",
        "trip_delay": rng.randrange(200),
        "trip_direction": "UP",
    }
    return json.dumps(body, separators=(",", ":")).encode()


async def fill(bootstrap: str, events: int) -> float:
    """Create the topic and send one hour of events in order. Returns their mean size in bytes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, 1, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=1, linger_ms=20, max_batch_size=1 << 18)
    await producer.start()
    rng, size, sent = random.Random(1), 0, None
    try:
        for number in range(events):
            value = synthetic_event(rng, 8 * 3600 + number * 7200 // events)
            size += len(value)
            sent = await producer.send(TOPIC, value, partition=0)
        if sent is not None:
            await sent
    finally:
        await producer.stop()
    return size / events


async def batches(bootstrap: str, redis_url: str, events: int) -> None:
    """The ingestor of Hexveil's worker."""
    config, metrics = config_of(bootstrap, redis_url), OperatorMetrics()

    async def ignore(message: Message) -> None:
        raise RuntimeError(f"the bench sent something bad: {message.value!r}")

    async with Redis.from_url(redis_url) as redis:
        ingestor = Ingestor(config, redis, Decoder(config, _KEY), metrics, ignore)
        task = asyncio.create_task(ingestor.run())
        await ingestor.assigned.wait()
        cpu, wall = cpu_seconds(), time.perf_counter()
        with ProcessorTime(PARTS) as spent:
            while (metrics.registry.get_sample_value("hexveil_events_ingested_total") or 0) < events:
                await asyncio.sleep(0.01)
        report(events, cpu_seconds() - cpu, time.perf_counter() - wall, spent.seconds)
        await ingestor.stop()
        await task


def agent(bootstrap: str, redis_url: str, events: int) -> None:
    """A plain Faust agent: per event, decode, slot, and one transaction that appends the row and moves the offset."""
    config = config_of(bootstrap, redis_url)
    app = faust.App(
        "bench-agent",
        broker=f"kafka://{bootstrap}",
        store="memory://",
        autodiscover=False,
        topic_disable_leader=True,
        web_enabled=False,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
    )
    redis, decoder = Redis.from_url(redis_url), Decoder(config, _KEY)

    @app.agent(app.topic(TOPIC, value_serializer="raw"))
    async def store(stream: faust.StreamT[bytes]) -> None:
        count, cpu, wall = 0, cpu_seconds(), time.perf_counter()
        async for event in stream.events():
            batch = decoder.decode([event.value], time.time_ns() // 1000)
            slot = int(batch.slots[0])
            async with redis.pipeline(transaction=True) as pipe:
                pipe.rpush(f"rows:{slot}", batch.rows.tobytes())
                pipe.hset("offsets", f"{TOPIC}/{event.message.partition}", event.message.offset + 1)
                await pipe.execute()
            count += 1
            if count == events or time.perf_counter() - wall > AGENT_SECONDS:
                report(count, cpu_seconds() - cpu, time.perf_counter() - wall)
                os._exit(0)

    faust.Worker(
        app, loglevel="error", quiet=True, redirect_stdouts=False, override_logging=False
    ).execute_from_commandline()


def measure(way: str, bootstrap: str, events: int) -> dict[str, Any]:
    """Run one way in its own process with its own Redis. Returns events/s per core and by wall time."""
    with RedisServer(appendfsync="always") as redis:
        figures = _run(["bench.ingest", way, bootstrap, redis.url, str(events)])
        server_cpu = _cpu_of(redis.pid)
    return figures | {"redis_us_per_event": server_cpu / figures["events"] * 1e6}


def measure_peer(peer: str, bootstrap: str, events: int) -> dict[str, Any]:
    """Figures of one peer and its version; only that it is not installed, if it is not."""
    peer_version = installed(peer)
    if peer_version is None:
        return {"skipped": f"not installed: pip install {PEERS[peer]}"}
    return {"version": peer_version} | _run(["bench.peers", peer, bootstrap, TOPIC, str(events)])


def _run(command: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
            stdout=subprocess.PIPE,
            timeout=600,
            check=True,
        )
    # Faust writes terminal codes to stdout, also when it is quiet, and Pathway its log.
    counted = json.loads(next(line[line.index(b"{") :] for line in done.stdout.splitlines() if b'{"events"' in line))
    return {
        "events": counted["events"],
        "per_second_per_core": counted["events"] / counted["cpu_seconds"],
        "per_second_wall": counted["events"] / counted["wall_seconds"],
        **({"ns_per_event": _each(counted["parts"], counted["events"])} if "parts" in counted else {}),
    }


def _each(parts: dict[str, float], events: int) -> dict[str, int]:
    return {part: round(seconds / events * 1e9) for part, seconds in sorted(parts.items(), key=lambda item: -item[1])}


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(quick: bool) -> dict[str, Any]:
    """Measure every way on one topic: Hexveil as the best of several runs, the agent once for some seconds, each peer
    once."""
    sizes = QUICK if quick else FULL
    with KafkaServer() as kafka:
        size = asyncio.run(fill(kafka.bootstrap, sizes.events))
        ways = ["batches"] * sizes.repeats + ["agent"]
        *ours, plain = [measure(way, kafka.bootstrap, sizes.events) for way in shown(ways, "ingest")]
        peers = {peer: measure_peer(peer, kafka.bootstrap, sizes.events) for peer in shown(PEERS, "peers")}
    best = max(ours, key=lambda result: result["per_second_per_core"])
    return {
        "event_bytes": round(size, 1),
        "batches": best,
        "batches_per_second_per_core": [round(result["per_second_per_core"]) for result in ours],
        "faust_agent": plain,
        "ratio_per_core": best["per_second_per_core"] / plain["per_second_per_core"],
        "ratio_wall": best["per_second_wall"] / plain["per_second_wall"],
        "peers": peers,
    }


def main() -> None:
    """The process that one way runs in: ``python -m bench.ingest WAY BOOTSTRAP REDIS_URL EVENTS``."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    logging.disable(logging.WARNING)
    way, bootstrap, redis_url, events = sys.argv[1:]
    if way == "agent":
        agent(bootstrap, redis_url, int(events))
    else:
        asyncio.run(batches(bootstrap, redis_url, int(events)))


if __name__ == "__main__":
    main()
