"""The simulated agency publishes what the adapter reads."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from stream.config.feed import FeedConfig
from stream.local import free_port
from stream.sources.agency import SimulatedAgency, simulated_clock
from stream.sources.simulate import Simulation
from stream.sources.vehicle_positions import GtfsRealtime, decode_snapshot
from stream.windows import Slotting

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


def test_the_command_that_a_city_types_reads_the_agency_that_the_simulator_serves(
    hexveil: Sequence[str], repo_root: Path
) -> None:
    port, yesterday = free_port(), datetime.now(UTC) - timedelta(days=1)
    served = [*hexveil, "simulate", "--serve", str(port), "--pace", "600", "--start", yesterday.isoformat()]
    address = f"http://127.0.0.1:{port}/vehicle-positions.pb"
    with subprocess.Popen(served, cwd=repo_root) as agency:
        command = [*hexveil, "gtfs-rt", address, "--interval", "1s", "--out", "-"]
        with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE) as feed:
            assert feed.stdout is not None
            event = json.loads(feed.stdout.readline())
            feed.send_signal(signal.SIGINT)
            feed.communicate(timeout=60)
        agency.send_signal(signal.SIGINT)
    assert (feed.returncode, agency.returncode) == (0, 0)
    assert event["user"].startswith("bus-")
    assert {"time", "lat", "lng", "speed"} <= set(event)
