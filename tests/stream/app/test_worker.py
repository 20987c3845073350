"""A real worker process on a recorded day: every window once, valid messages, charges that an independent sum
confirms."""

from __future__ import annotations

import csv
import gzip
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import h3
import numpy as np
from redis.asyncio import Redis

from dpcore.contributions import Contributions
from stream.config import Config
from stream.ingestion.pseudonyms import Pseudonyms, load_user_key
from stream.local import free_port
from stream.messages.message import HEXAGON_SPEED, WINDOW
from stream.statistics.plan import Allowance
from stream.statistics.values.plan import plan_values
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import worker_environment
from tests.support.releasing import due_of
from tests.support.schemas import validate
from tests.support.topics_reader import read_all


def independent_charges(path: Path, config: Config) -> int:
    """Sum of all charges of a day, from the CSV by plain Python and exact fractions."""
    hashes = Pseudonyms(load_user_key(config.privacy.user_key_file))
    domain, slotting = config.feed.domain, config.slotting
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lat, lng = float(row["latitude"]), float(row["longitude"])
            if not (domain.south <= lat <= domain.north and domain.west <= lng <= domain.east):
                continue
            moment = round(datetime.fromisoformat(row["timestamp"]).timestamp() * 1e6)
            cell = h3.str_to_int(h3.latlng_to_cell(lat, lng, config.hexagons.resolution))
            key = (hashes[row["vehicle_id"]], moment)
            seen[key] = min(seen.get(key, (cell, 0)), (cell, 0))
    windows: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (user, moment), (cell, _) in seen.items():
        windows[slotting.window(moment // 1_000_000).start].append((cell, user, moment))
    spent: dict[int, int] = defaultdict(int)
    upper = config.value.upper_quanta
    for slot in sorted(windows):
        cells, users, moments = (np.array(column) for column in zip(*windows[slot], strict=True))
        counts = Contributions.group(
            cells.astype(np.uint64), users.astype(np.uint64), moments, np.zeros(len(cells), np.int64), upper=upper
        ).counts
        left = np.array([config.privacy.ledger_budget - spent[user] for user in counts.users.tolist()])
        plan = plan_values(counts, due_of(config, slot), Allowance(left, config.privacy.ledger_budget))
        retained = plan.retained.tolist()
        shape = (2, counts.n_cells)
        t, s = (column.reshape(shape).tolist() for column in (plan.scales.numerator, plan.scales.denominator))
        in_cell: dict[int, int] = defaultdict(int)
        for pair, cell in enumerate(counts.pair_cell.tolist()):
            in_cell[cell] += retained[pair]
        for pair, (cell, user) in enumerate(zip(counts.pair_cell.tolist(), counts.pair_user.tolist(), strict=True)):
            n, gamma = in_cell[cell], retained[pair]
            if not gamma:
                continue
            j = min(gamma, n // 2)
            variance = -(-Fraction(upper * upper * j * (n - j), n * n * 100) // 1)
            most = upper * gamma if plan.caps is None else min(upper * gamma, int(plan.caps[cell]))
            for statistic, delta in enumerate((most, variance)):
                if delta:
                    loss = Fraction(1_000_000 * delta * s[statistic][cell], t[statistic][cell])
                    spent[int(counts.users[user])] += -(-loss.numerator // loss.denominator)
    return sum(spent.values())


def test_a_recorded_day_survives_a_killed_worker_with_every_window_released_once_and_charged_right(
    hexveil: Sequence[str], kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str, shared_data: Path
) -> None:
    import asyncio

    path = shared_data / "capmetro" / "2017-03-21.csv.gz"
    port = free_port()
    recorded = {"window.lateness": "event-time", "window.idle_timeout": "4s"}
    env = worker_environment(tmp_path, kafka, redis_url, port, topic_name, **recorded)
    config = bus_config(tmp_path, **{"feed.name": topic_name, "feed.topic": topic_name, "kafka.bootstrap": kafka})
    at = ["--config", str(hourly.BUS)]
    log = (tmp_path / "worker.log").open("w")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*hexveil, "worker", *at], env=env, cwd=tmp_path, stderr=log)

    def metric(name: str) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        return next((float(line.split()[1]) for line in lines if line.startswith(name + " ")), 0.0)

    def wait_for(name: str, least: float, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while metric(name) < least:
            assert time.monotonic() < deadline, (name, metric(name), (tmp_path / "worker.log").read_text()[-3000:])
            time.sleep(0.3)

    subprocess.run([*hexveil, "topics", "create", *at], env=env, cwd=tmp_path, check=True)
    adopt = ["ledger", "adopt", *at, "--since", "2017-03-21", "--no-other-ledger"]
    subprocess.run([*hexveil, *adopt], env=env, cwd=tmp_path, check=True)
    first = start()
    try:
        replay = [*hexveil, "replay", str(path), *at, "--format", "capmetro", "--speed", "max"]
        subprocess.run(replay, env=env, cwd=tmp_path, check=True)
        wait_for("hexveil_events_ingested_total", 1000)
    finally:
        first.kill()
        first.wait()
    second = start()
    try:

        async def closed() -> int:
            return await Redis.from_url(redis_url).hlen(FeedKeys(topic_name).closed)

        deadline = time.monotonic() + 90
        while asyncio.run(closed()) < 11:
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()[-3000:]
            time.sleep(0.5)
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"user.key", "worker.log"}

    records = asyncio.run(read_all(kafka, topic_name))
    bodies = defaultdict(set)
    for record in records:
        validate(record.topic, json.loads(record.value))
        bodies[dict(record.headers)["ce_id"]].add(record.value)
    assert all(len(values) == 1 for values in bodies.values())
    markers = [json.loads(v) for k, (v,) in ((k, tuple(v)) for k, v in bodies.items()) if k.startswith(WINDOW.encode())]
    assert len({m["window"]["start"] for m in markers}) == len(markers) == 11
    assert sum(m["messages"] for m in markers) == sum(k.startswith(HEXAGON_SPEED.encode()) for k in bodies)

    async def total() -> tuple[int, int]:
        return await Ledger(Redis.from_url(redis_url), topic_name).total("2017-03-21")

    users, micro = asyncio.run(total())
    assert users == 329
    assert micro == independent_charges(path, config)
    text = (tmp_path / "worker.log").read_text()
    assert not re.search(r"(?<![\d.])2619(?!\d)", text), "a vehicle identifier reached the log"
