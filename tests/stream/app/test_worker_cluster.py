"""A worker on a Redis Cluster releases every window once, with every event, although a master is killed under it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from stream.local import free_port
from stream.messages.message import HEXAGON_SPEED, WINDOW
from stream.messages.topics import create_topics
from stream.storage.client import redis_client
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.row_store import RowStore
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import environment
from tests.support.feeding import create_topic
from tests.support.redis_cluster import LocalCluster, Node
from tests.support.topics_reader import read_all

EVENTS, PARTITIONS, WINDOWS = 7_000, 6, 2
"""One event a second, in two windows of an hour."""


def recording(folder: Path) -> Path:
    file, begin = folder / "hours.ndjson", 1_490_097_600_000
    events = [
        {"user": f"bus{k % 40}", "time": begin + 1_000 * k, "lat": 30.2, "lng": -97.7, "speed": 20.0 + k % 7}
        for k in range(EVENTS)
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return file


def holder_of_rows_only(cluster: LocalCluster, feed: str, topic: str) -> Node:
    keys = FeedKeys(feed)
    ledger = cluster.master_of(keys.generation)
    masters = (cluster.master_of(PartKeys(keys, f"{topic}/{number}").progress) for number in range(PARTITIONS))
    return next(node for node in masters if node is not ledger)


async def test_a_worker_releases_every_event_once_although_a_master_is_killed_while_it_reads(
    hexveil: Sequence[str], kafka: str, topic_name: str, tmp_path: Path
) -> None:
    with LocalCluster(tmp_path / "nodes") as cluster:
        settings = {
            "feed.name": topic_name,
            "feed.topic": topic_name,
            "kafka.bootstrap": kafka,
            "kafka.group": topic_name,
            **cluster.settings,
            "privacy.user_key_file": str(tmp_path / "user.key"),
            "window.lateness": "event-time",
            "window.idle_timeout": "2s",
        }
        config = bus_config(tmp_path, **settings)
        words = {"redis.cluster": json.dumps(settings["redis.cluster"]), "operator.port": str(free_port())}
        given = environment({**settings, **words, "config": str(hourly.BUS)})
        await create_topic(kafka, topic_name, PARTITIONS)
        await create_topics(config)

        async def run(*arguments: str) -> None:
            call = [*hexveil, *arguments]
            done = await asyncio.to_thread(
                subprocess.run, call, env=given, cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr

        await run("ledger", "adopt", "--since", "2017-03-21", "--no-other-ledger")
        await run("replay", str(recording(tmp_path)), "--format", "canonical")
        log = tmp_path / "worker.log"
        worker = subprocess.Popen([*hexveil, "worker"], env=given, cwd=tmp_path, stderr=log.open("w"))
        client = redis_client(config.redis)
        deadline = time.monotonic() + 90
        try:
            while not sum((await RowStore.of(client, config).next_offsets()).values()):
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                await asyncio.sleep(0.02)
            holder_of_rows_only(cluster, topic_name, topic_name).process.kill()
            while len(await read_all(kafka, topic_name, [WINDOW])) < WINDOWS:
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                await asyncio.sleep(0.3)
            cells = [json.loads(message.value) for message in await read_all(kafka, topic_name, [HEXAGON_SPEED])]
            assert sum(cell["events"] for cell in cells) == EVENTS
            assert len(await read_all(kafka, topic_name, [WINDOW])) == WINDOWS
        finally:
            worker.terminate()
            worker.wait(60)
            await client.aclose()
