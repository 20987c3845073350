"""A real worker publishes spatial histograms, and the API and ``hexveil query`` answer ranges from what it
published."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from redis.asyncio import Redis

from dpcore.spatial import Rectangles, histogram_from_release
from stream.config import load_config
from stream.local import free_port
from stream.messages.message import OUTPUT_TOPICS, SPATIAL_HISTOGRAM, WINDOW
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from tests.stream.serve.serving import serving
from tests.support import hourly
from tests.support.builders import SLOT
from tests.support.environment import worker_environment
from tests.support.feeding import create_topic, produce
from tests.support.topics_reader import read_all

BOX = {"south": 30.1, "west": -97.9, "north": 30.5, "east": -97.5}
SETTINGS = {
    "mechanisms": ["auto", "euler", "ug"],
    "epsilon": 1.5,
    "domain": BOX,
    "rows": 16,
    "columns": 16,
    "euler": {},
}


def events(users: int = 40) -> list[bytes]:
    """Two hours; every fourth user stays outside the box."""
    rng = np.random.default_rng(4)
    encoded = []
    for user in range(users):
        for _ in range(20):
            lat = rng.uniform(30.6, 30.8) if user % 4 == 0 else rng.uniform(30.15, 30.45)
            moment = SLOT * 1000 + int(rng.integers(0, 7_200_000))
            place = {"lat": lat, "lng": rng.uniform(-97.8, -97.6)}
            encoded.append(json.dumps({"user": f"bus-{user}", "time": moment, "speed": 30.0} | place).encode())
    return encoded


async def test_what_the_worker_publishes_is_charged_complete_and_answered_by_the_api_and_from_a_file(
    hexveil: Sequence[str], kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"window.lateness": "event-time", "window.idle_timeout": "4s", "histogram": json.dumps(SETTINGS)}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **settings)
    bus = hourly.BUS
    await create_topic(kafka, topic_name, 2)
    subprocess.run([*hexveil, "topics", "create", "--config", str(bus)], env=env, cwd=tmp_path, check=True)
    adopt = ["ledger", "adopt", "--config", str(bus), "--since", "2017-03-21", "--no-other-ledger"]
    subprocess.run([*hexveil, *adopt], env=env, cwd=tmp_path, check=True)
    log = (tmp_path / "worker.log").open("w")
    worker = subprocess.Popen([*hexveil, "worker", "--config", str(bus)], env=env, cwd=tmp_path, stderr=log)
    try:
        await produce(kafka, topic_name, events(), 2)
        deadline = time.monotonic() + 120
        while await redis.hlen(FeedKeys(topic_name).closed) < 2:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            await asyncio.sleep(0.5)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    config = load_config(
        bus,
        **{"feed.name": topic_name, "kafka.bootstrap": kafka, "histogram": SETTINGS},
        **{"privacy.user_key_file": str(tmp_path / "user.key")},
    )
    users, total = await Ledger(redis, topic_name).total("2017-03-21")
    per_window = config.privacy.epsilon_micro, config.histogram_grant
    assert (users, total) == (40, 2 * (40 * per_window[0] + 30 * per_window[1])), "30 of 40 are ever in the box"

    records = await read_all(kafka, topic_name, OUTPUT_TOPICS)
    histograms = [json.loads(record.value) for record in records if record.topic == SPATIAL_HISTOGRAM]
    assert sorted((one["window"]["start"], one["mechanism"]) for one in histograms) == [
        (start, name) for start in ("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z") for name in ("auto", "euler", "ug")
    ]
    file = tmp_path / "releases.ndjson"
    file.write_text("".join(record.value.decode() + "\n" for record in records if record.topic != WINDOW))
    async with serving(config) as client:
        listed = (await (await client.get("/api/v1/histograms")).json())["windows"]
        assert [(window["window"]["start"], window["complete"]) for window in listed] == [
            ("2017-03-21T13:00:00Z", True),
            ("2017-03-21T12:00:00Z", True),
        ]
        for release in histograms:
            start, name = release["window"]["start"], release["mechanism"]
            got = await client.get(f"/api/v1/histograms/{start}/{name}")
            assert await got.json() == release
            asked = {"bbox": "-97.85,30.2,-97.6,30.45", "mechanism": name}
            answer = await client.get(f"/api/v1/histograms/{start}/count", params=asked)
            assert answer.status == 200, await answer.text()
            body = await answer.json()
            west, south, east, north = body["bbox"]
            assert west <= -97.85 < -97.6 <= east
            assert name == "euler" or body["bbox"] == [-97.85, 30.2, -97.6, 30.45]
            histogram = histogram_from_release(release)
            ranges = Rectangles.of_boxes(histogram.domain, [[south, west, north, east]])
            if name == "euler":
                ranges = Rectangles(*(np.rint(side) for side in (ranges.x0, ranges.x1, ranges.y0, ranges.y1)))
            assert abs(body["raw"] - histogram.answers(ranges)[0]) < 1e-6
            assert body["interval"][0] <= body["value"] <= body["interval"][1]
            command = [*hexveil, "query", str(file), "--bbox", asked["bbox"], "--window", start, "--mechanism", name]
            same = subprocess.run([*command, "--json"], env=env, cwd=tmp_path, check=True, capture_output=True)
            assert json.loads(same.stdout)["answers"] == [body]
