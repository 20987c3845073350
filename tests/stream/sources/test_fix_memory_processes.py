"""Processes that are killed and started again beside each other send one feed to Kafka, with the speeds of one process.

The agency shows each snapshot until its fixes are kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.ingestion.pseudonyms import load_user_key
from stream.local import REPO_ROOT
from stream.storage.keys import FeedKeys
from stream.storage.last_fixes import FIX
from tests.stream.sources.agency import DELHI, Agency, answer, fleet, reader
from tests.stream.sources.gtfs import START
from tests.support.builders import bus_fleet_file
from tests.support.feeding import create_topic
from tests.support.topics_reader import PARTITIONS, stored

STEPS = 7
PATIENCE_S = 120


class City:
    """An agency that answers with the snapshot of the present step, which a test sets."""

    def __init__(self) -> None:
        self.step = 0
        self.agency = Agency([self._answer])

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        answer(200, fleet(self.step))(handler)


class Pair:
    """Two processes of ``hexveil gtfs-rt`` on one address; each can be killed and started."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None]

    def start(self, which: int) -> None:
        """Start it, if it does not run."""
        if self.processes[which] is None:
            self.processes[which] = subprocess.Popen(self._command, cwd=REPO_ROOT, env=self._environment)

    def kill(self, which: int) -> None:
        """Kill it with SIGKILL, whatever it does."""
        process, self.processes[which] = self.processes[which], None
        if process is not None:
            process.kill()
            process.wait()


@pytest.fixture
async def topic(kafka: str, topic_name: str) -> str:
    await create_topic(kafka, topic_name, PARTITIONS)
    return topic_name


async def test_killed_restarted_and_doubled_processes_send_the_speeds_of_one_that_never_ended(
    hexveil: Sequence[str], kafka: str, redis: Redis, redis_url: str, topic: str, tmp_path: Path
) -> None:
    alone, rng, city = reader(), random.Random(11), City()
    wanted = {value for step in range(STEPS) for value in alone.events(fleet(step)).values}
    config = bus_fleet_file(tmp_path, DELHI)
    environment = os.environ | {
        "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
        "HEXVEIL_REDIS__URL": redis_url,
        "HEXVEIL_FEED__TOPIC": topic,
        "HEXVEIL_FEED__TIMEZONE": "Asia/Kolkata",
        "HEXVEIL_PRIVACY__USER_KEY_FILE": str(tmp_path / "user.key"),
    }
    command = [*hexveil, "gtfs-rt", city.agency.url, "--config", str(config), "--interval", "1s"]
    load_user_key(tmp_path / "user.key")
    pair = Pair(command, environment)
    with city.agency:
        try:
            async with asyncio.timeout(PATIENCE_S):
                for step in range(STEPS):
                    city.step = step
                    pair.start(step % 2)
                    if rng.random() < 0.5:
                        pair.start(1 - step % 2)
                    await asyncio.sleep(rng.uniform(0, 2))
                    pair.kill(step % 2)
                    pair.start(step % 2)
                    while await newest_kept(redis) < START + 30 * step - 2:
                        await asyncio.sleep(0.05)
                    pair.kill(step % 2)
        finally:
            pair.kill(0)
            pair.kill(1)
    sent = [value for part in await stored(kafka, topic) for _, value in part]
    assert set(sent) == wanted, "whatever was sent twice has the same bytes"
    assert len(wanted) == 3 * (STEPS - 1)
    assert all(json.loads(value)["derived"] for value in sent)


async def newest_kept(redis: Redis) -> float:
    """Seconds of the newest fix that is kept; 0 if none is."""
    keys = FeedKeys("bus")
    octets = [text for turn in (0, 1) for text in await redis.hvals(keys.last_fixes(turn))]
    return float(np.frombuffer(b"".join(octets), FIX)["time"].max(initial=0)) / 1e6
