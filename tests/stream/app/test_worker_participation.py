"""A real worker under relation "participation": every window is published at its instant, visited or not, in the same
shape.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis

from stream.config import load_config
from stream.config.public_cells import public_cells
from stream.local import free_port
from stream.messages.message import HEXAGON_SPEED, REJECTED, WINDOW
from stream.storage.keys import FeedKeys
from tests.support import hourly
from tests.support.builders import zcdp_config
from tests.support.environment import worker_environment
from tests.support.topics_reader import read_all

_DOMAIN = '{"south": 30.2, "west": -97.75, "north": 30.3, "east": -97.6}'


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
async def test_every_window_is_released_on_the_tick_with_the_same_number_of_messages_visited_or_not(
    hexveil: Sequence[str], kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, accounting: str
) -> None:
    area = {"feed.domain": _DOMAIN, "hexagons.resolution": "7"}
    ticks = {"window.slot": "3s", "window.allowed_delay": "1s", "window.publication_margin": "5s"}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **area, **ticks)
    riders = str(hourly.RIDERS)
    if accounting == "zcdp":
        zcdp_config(tmp_path)
        riders = str(tmp_path / "zcdp.toml")
    subprocess.run([*hexveil, "topics", "create", "--config", riders], env=env, cwd=tmp_path, check=True)
    adopt = ["ledger", "adopt", "--config", riders, "--since", "2017-03-21", "--no-other-ledger"]
    subprocess.run([*hexveil, *adopt], env=env, cwd=tmp_path, check=True)
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen([*hexveil, "worker", "--config", riders], env=env, cwd=tmp_path, stderr=log)
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    markers: list[dict[str, object]] = []
    try:
        deadline = time.monotonic() + 60
        while len(markers) < 4:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            if len(markers) < 3:
                event = {"user": "u", "time": int(time.time() * 1000), "lat": 30.25, "lng": -97.7, "speed": 30}
                await producer.send_and_wait(topic_name, json.dumps(event).encode())
                await producer.send_and_wait(topic_name, b"not json")
            await asyncio.sleep(1)
            records = await read_all(kafka, topic_name)
            markers = [json.loads(record.value) for record in records if record.topic == WINDOW]
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        await producer.stop()
    records = await read_all(kafka, topic_name)
    assert not [record for record in records if record.topic == REJECTED], "a count of bad input left the boundary"
    starts = sorted(json.loads(record.value)["window"]["start"] for record in records if record.topic == WINDOW)
    seconds = [int(start[17:19]) for start in starts]
    assert all((b - a) % 60 == 3 for a, b in itertools.pairwise(seconds)), "a window was left out"
    per_window = Counter(json.loads(r.value)["window"]["start"] for r in records if r.topic == HEXAGON_SPEED)
    expected = len(
        public_cells(
            load_config(
                riders, **{"feed.domain": json.loads(_DOMAIN), "hexagons.resolution": 7, "feed.name": topic_name}
            )
        )
    )
    assert {per_window[start] for start in starts} == {expected}
    (charge,) = (await redis.hgetall(FeedKeys(topic_name).ledger(_local_date()))).values()
    bodies = [json.loads(record.value) for record in records]
    if accounting == "pure":
        assert int(charge) % 2_000_000 == 0, "µε: a whole window each time"
        assert not any("rho" in body for body in bodies)
    else:
        assert int(charge) <= 400_001_000, "nρ"
        assert (int(charge) + 1_000) % 10**6 <= 2_000, "one cell: the whole of ρ of each window, rounded"
        assert {(body["accounting"], body["delta"], round(body["rho"], 6)) for body in bodies} == {("zcdp", 1e-6, 0.05)}
        shown = subprocess.run(
            [*hexveil, "ledger", "show", "--config", riders, "--json"],
            env=env,
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        assert json.loads(shown.stdout) == {_local_date(): {"users": 1, "nano_rho": int(charge)}}


def _local_date() -> str:
    return datetime.now(ZoneInfo("America/Chicago")).date().isoformat()
