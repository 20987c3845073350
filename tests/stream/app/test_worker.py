"""A real worker under relation "participation": every window is published at its instant, visited or not, in the same
shape. A real worker publishes spatial histograms, and the API and ``hexveil query`` answer ranges from what it
published."""

import asyncio
import itertools
import json
import subprocess
import time
from collections import Counter
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dpcore.spatial import Rectangles, histogram_from_release
from stream.config import load_config
from stream.config.public_cells import public_cells
from stream.local import free_port
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from tests.stream.serve.serving import serving
from tests.support import hourly
from tests.support.builders import SLOT, zcdp_config
from tests.support.environment import make_ready, worker_environment, working
from tests.support.feeding import create_topic, produce
from tests.support.topics_reader import read_all

_DOMAIN = '{"south": 30.2, "west": -97.75, "north": 30.3, "east": -97.6}'


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
async def test_every_window_is_released_on_the_tick_with_the_same_number_of_messages_visited_or_not(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name, accounting
):
    area = {"feed.domain": _DOMAIN, "hexagons.resolution": "7"}
    ticks = {"window.slot": "3s", "window.allowed_delay": "1s", "window.publication_margin": "5s"}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **area, **ticks)
    riders = hourly.RIDERS
    if accounting == "zcdp":
        zcdp_config(tmp_path)
        riders = tmp_path / "zcdp.toml"
    make_ready(hexveil, env, tmp_path, riders, since="2017-03-21")
    async with working(hexveil, env, tmp_path, riders), asyncio.timeout(60):
        while (markers := len(await read_all(kafka, topic_name, [WINDOW]))) < 4:
            if markers < 3:
                event = {"user": "u", "time": int(time.time() * 1000), "lat": 30.25, "lng": -97.7, "speed": 30}
                await produce(kafka, topic_name, [json.dumps(event).encode(), b"not json"], 1)
            await asyncio.sleep(1)
    records = await read_all(kafka, topic_name)
    assert not [record for record in records if record.topic == REJECTED], "a count of bad input left the boundary"
    starts = sorted(json.loads(record.value)["window"]["start"] for record in records if record.topic == WINDOW)
    seconds = [int(start[17:19]) for start in starts]
    assert all((b - a) % 60 == 3 for a, b in itertools.pairwise(seconds)), "a window was left out"
    per_window = Counter(json.loads(r.value)["window"]["start"] for r in records if r.topic == HEXAGON_SPEED)
    config = load_config(riders, **{"feed.domain": json.loads(_DOMAIN), "hexagons.resolution": 7})
    assert {per_window[start] for start in starts} == {len(public_cells(config))}
    (charge,) = (await redis.hgetall(FeedKeys(topic_name).ledger(_local_date()))).values()
    bodies = [json.loads(record.value) for record in records]
    if accounting == "pure":
        assert int(charge) % 2_000_000 == 0, "µε: a whole window each time"
        assert not any("rho" in body for body in bodies)
    else:
        assert int(charge) <= 400_001_000, "nρ"
        assert (int(charge) + 1_000) % 10**6 <= 2_000, "one cell: the whole of ρ of each window, rounded"
        assert {(body["accounting"], body["delta"], round(body["rho"], 6)) for body in bodies} == {("zcdp", 1e-6, 0.05)}
        show = [*hexveil, "ledger", "show", "--config", str(riders), "--json"]
        shown = subprocess.run(show, env=env, cwd=tmp_path, check=True, capture_output=True)
        assert json.loads(shown.stdout) == {_local_date(): {"users": 1, "nano_rho": int(charge)}}


def _local_date() -> str:
    return datetime.now(ZoneInfo("America/Chicago")).date().isoformat()


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
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    settings = {"window.lateness": "event-time", "window.idle_timeout": "4s", "histogram": json.dumps(SETTINGS)}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **settings)
    await create_topic(kafka, topic_name, 2)
    make_ready(hexveil, env, tmp_path, hourly.BUS, since="2017-03-21")
    async with working(hexveil, env, tmp_path, hourly.BUS), asyncio.timeout(120):
        await produce(kafka, topic_name, events(), 2)
        while await redis.hlen(FeedKeys(topic_name).closed) < 2:
            await asyncio.sleep(0.5)
    config = load_config(
        hourly.BUS,
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
