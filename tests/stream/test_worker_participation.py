"""A real worker under relation "participation": every window on the tick, visited or not, all of one shape."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from aiokafka import AIOKafkaProducer

from stream.cells import public_cells
from stream.config import load_config
from stream.local import REPO_ROOT, free_port
from stream.releases import HEXAGON_SPEED, REJECTED, WINDOW
from tests.stream.topics_reader import read_all

_DOMAIN = '{"south": 30.2, "west": -97.75, "north": 30.3, "east": -97.6}'


async def test_every_window_is_released_on_the_tick_with_the_same_number_of_messages_visited_or_not(
    kafka: str, redis: object, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    env = os.environ | {
        "PYTHONPATH": str(REPO_ROOT),
        "HEXVEIL_FEED__NAME": topic_name,
        "HEXVEIL_FEED__TOPIC": topic_name,
        "HEXVEIL_FEED__DOMAIN": _DOMAIN,
        "HEXVEIL_HEXAGONS__RESOLUTION": "7",
        "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
        "HEXVEIL_KAFKA__GROUP": topic_name,
        "HEXVEIL_REDIS__URL": redis_url,
        "HEXVEIL_OPERATOR__PORT": str(free_port()),
        "HEXVEIL_PRIVACY__USER_KEY_FILE": str(tmp_path / "user.key"),
        "HEXVEIL_WINDOW__SLOT": "3s",
        "HEXVEIL_WINDOW__ALLOWED_DELAY": "1s",
    }
    riders = str(REPO_ROOT / "config" / "riders.toml")
    hexveil = [sys.executable, "-m", "stream"]
    subprocess.run([*hexveil, "topics", "create", "--config", riders], env=env, cwd=tmp_path, check=True)
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen([*hexveil, "worker", "--config", riders], env=env, cwd=tmp_path, stderr=log)
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    markers: list[dict[str, object]] = []
    try:
        deadline = time.monotonic() + 60
        sent = 0
        while len(markers) < 4:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            if sent < 3:
                event = {"user": "u", "time": int(time.time() * 1000), "lat": 30.25, "lng": -97.7, "speed": 30}
                await producer.send_and_wait(topic_name, json.dumps(event).encode())
                await producer.send_and_wait(topic_name, b"not json")
                sent += 1
            await asyncio.sleep(1)
            records = await read_all(kafka, topic_name)
            markers = [json.loads(record.value) for record in records if record.topic == WINDOW]
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
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
