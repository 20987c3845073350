"""The simulated agency publishes what the adapter reads, and the demo shows it from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

from stream.cli.demo_services import Feeding
from stream.config import load_config
from stream.config.feed import FeedConfig
from stream.sources.agency import SimulatedAgency, simulated_clock
from stream.sources.simulate import Simulation
from stream.sources.vehicle_positions import GtfsRealtime, decode_snapshot
from stream.windows import Slotting
from tests.support import hourly

NOON_US = 1_490_115_600_000_000
FEED = FeedConfig(
    name="bus",
    topic="bus",
    timezone="America/Chicago",
    domain={"south": 29.8, "west": -98.3, "north": 30.9, "east": -97.2},  # type: ignore[arg-type]
)


def test_snapshots_of_the_agency_are_those_of_a_city_with_its_gaps() -> None:
    agency = SimulatedAgency(Simulation(FEED, 60, NOON_US))
    source = GtfsRealtime(FEED, Slotting(timedelta(hours=1), timedelta(days=1), FEED.timezone))
    for step in range(1, 8):
        now_us = NOON_US + step * 60_000_000
        body = agency.snapshot(now_us)
        seen = decode_snapshot(body)
        assert seen.header == now_us
        assert len(set(seen.vehicles)) == len(seen.vehicles) > 20
        assert (seen.time <= now_us).all()
        assert (seen.time > now_us - 600_000_000).all()
        silent = np.array([int(name.removeprefix("bus-")) % 3 == 0 for name in seen.vehicles])
        assert np.array_equal(np.isnan(seen.speed), silent)
        source.events(body)
    assert source.tally.derived > 20
    assert not source.tally.reported_speeds_are_wrong
    assert agency.snapshot(now_us) == body, "asked again, it answers the same"


def test_the_agencys_clock_runs_at_its_pace_and_never_overtakes_the_present() -> None:
    fast = simulated_clock(time.time_ns() // 1000 - 1_000_000, 1e9)
    slow = simulated_clock(NOON_US, 100.0)
    time.sleep(0.02)
    assert fast() <= time.time_ns() // 1000
    assert NOON_US + 2_000_000 <= slow() < NOON_US + 10_000_000_000


def test_with_kafka_the_demo_polls_the_agency_by_the_command_that_a_city_types() -> None:
    commands = Feeding(None, "canonical", 8901).commands(load_config(hourly.BUS))
    assert list(commands) == ["agency", "source"]
    assert commands["source"][:2] == ["gtfs-rt", "http://127.0.0.1:8901/vehicle-positions.pb"]
    assert commands["agency"][-2:] == ["--serve", "8901"]


def test_the_demo_shows_releases_of_an_agency_that_is_polled_without_kafka(repo_root: Path) -> None:
    command = [sys.executable, "-m", "stream", "demo", "--no-kafka", "--feed", "gtfs-rt"]
    with subprocess.Popen(
        command, cwd=repo_root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        first = demo.stdout.readline()
        os.killpg(demo.pid, signal.SIGINT)
        rest, errors = demo.communicate(timeout=150)
    assert demo.returncode == 0, errors
    assert "06:00–09:00" in first
    assert "Windows closed: " in rest
    assert "failing their JSON Schema: 0" in rest
    assert "Agency: http://127.0.0.1:" in errors
    assert "hexveil gtfs-rt URL" in errors
    assert "Traceback" not in errors
    assert "does not answer" not in errors, "the agency listens before it is asked"
