"""A worker says within a minute that times or speeds of its feed are read in another unit or zone than they are sent."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stream.app.doubts import FeedDoubts
from stream.config import Config
from stream.ingestion.decoding import Decoder
from stream.local import free_port
from stream.messages.topics import create_topics
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import worker_environment
from tests.support.feeding import produce

AHEAD = timedelta(hours=5, minutes=30)


def fleet(now: float, changed: Callable[[dict[str, Any], float], dict[str, Any]]) -> list[bytes]:
    """60 buses that drive north at 36 km/h and reported every 15 s in the last two and a half minutes."""
    fixes = []
    for step in range(10):
        moment = now - 15 * (10 - step)
        for bus in range(60):
            lat = 30.0 + bus / 1000 + step * 150 / 111_195
            fix = {"user": f"secret-{bus}", "time": round(moment * 1000), "lat": lat, "lng": -97.7, "speed": 36.0}
            fixes.append(json.dumps(changed(fix, moment)).encode())
    return fixes


def local(moment: float, ahead: timedelta = AHEAD) -> str:
    return (datetime.fromtimestamp(moment, UTC) + ahead).isoformat(timespec="seconds")


FAULTS: dict[str, tuple[Callable[[dict[str, Any], float], dict[str, Any]], str, str]] = {
    "speed": (lambda fix, moment: fix | {"speed": 10.0}, "speed", "they would fit m/s: set feed.speed_unit"),
    "epoch": (lambda fix, moment: fix | {"time": round(moment)}, "epoch", "time_format = 'epoch-s'"),
    "zone": (lambda fix, moment: fix | {"time": local(moment)}, "zone", "about 5 h 30 min ahead of"),
}
SOUND: dict[str, Callable[[dict[str, Any], float], dict[str, Any]]] = {
    "as declared": lambda fix, moment: fix,
    "texts": lambda fix, moment: fix | {"time": local(moment, timedelta(0))},
    "parked": lambda fix, moment: fix | {"lat": 30.2, "speed": 0.0},
}


def told(config: Config, values: list[bytes], now: float) -> dict[str, str]:
    doubts, arrived_us = FeedDoubts(config), round(now * 1e6)
    decoder = Decoder(config, bytes(32))
    for at in range(0, len(values), 50):
        part = values[at : at + 50]
        doubts.observe(part, decoder.decode(part, arrived_us), arrived_us)
    return doubts.found()


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("in_arrays", [False, True])
def test_each_fault_is_named_alone_with_its_remedy_and_without_a_value_of_any_event(
    name: str, in_arrays: bool, tmp_path: Path
) -> None:
    changed, kind, words = FAULTS[name]
    now = time.time()
    values = fleet(now, changed)
    if in_arrays:
        values = [b"[" + b",".join(values[at : at + 10]) + b"]" for at in range(0, len(values), 10)]
    reasons = told(bus_config(tmp_path), values, now)
    assert list(reasons) == [kind]
    assert words in reasons[kind]
    assert "secret" not in reasons[kind]
    assert "30." not in reasons[kind]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_feed_and_a_late_one_raise_no_doubt(name: str, tmp_path: Path) -> None:
    now = time.time()
    assert told(bus_config(tmp_path), fleet(now, SOUND[name]), now) == {}
    shuffled = random.Random(7).sample(fleet(now - 400, SOUND[name]), 600)
    assert told(bus_config(tmp_path), shuffled, now) == {}


def test_what_is_kept_is_bounded_and_a_fault_that_ends_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.app.doubts.MOST_ROWS", 300)
    config, now = bus_config(tmp_path), time.time()
    doubts, decoder = FeedDoubts(config), Decoder(config, bytes(32))
    for moment, name in ((now - 1200, "speed"), (now, "as declared")):
        values = fleet(moment, FAULTS["speed"][0] if name == "speed" else SOUND[name])
        doubts.observe(values, decoder.decode(values, round(moment * 1e6)), round(moment * 1e6))
        assert doubts.kept <= 400
    assert doubts.found() == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_worker_says_it_within_a_minute(
    kafka: str, redis_url: str, topic_name: str, tmp_path: Path, name: str
) -> None:
    changed, _, words = FAULTS[name]
    asyncio.run(create_topics(bus_config(tmp_path, **{"feed.topic": topic_name, "kafka.bootstrap": kafka})))
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name)
    command = [sys.executable, "-m", "stream", "worker", "--config", str(hourly.BUS)]
    with (
        (tmp_path / "worker.log").open("wb") as log,
        subprocess.Popen(command, env=env, cwd=tmp_path, stderr=log) as worker,
    ):
        try:
            asyncio.run(produce(kafka, topic_name, fleet(time.time(), changed), 1))
            deadline = time.monotonic() + 60
            while "misread" not in (text := (tmp_path / "worker.log").read_text()):
                assert time.monotonic() < deadline, text[-3000:]
                time.sleep(0.2)
        finally:
            worker.kill()
    assert words in text
    assert "secret-" not in text
