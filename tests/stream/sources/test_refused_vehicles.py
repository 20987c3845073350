"""A live source most of whose vehicles are refused says so and why, within a minute, and at most every five minutes.
Whatever ``--speeds`` and ``feed.speeds`` say, a live command does one of them, and says where the other is published.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from google.transit import gtfs_realtime_pb2
from structlog.testing import capture_logs
from typer.testing import CliRunner

from stream.cli import app
from stream.cli.live import live_speed_note
from stream.sources.hfp import HighFrequencyPositions, Publication
from stream.sources.snapshots import IN_FUTURE
from stream.sources.timestamps import RefusalWatch
from tests.stream.sources.agency import DELHI, FEED, HOURS, reader
from tests.stream.sources.gtfs import START, snapshot_bytes
from tests.support.builders import bus_config, bus_fleet_file, riders_config

EVERY_S = 15


def document(step: int, change: Callable[[gtfs_realtime_pb2.FeedEntity], None], vehicles: int = 20) -> bytes:
    """A snapshot of so many vehicles, each of which ``change`` may spoil."""
    message = gtfs_realtime_pb2.FeedMessage()
    message.header.gtfs_realtime_version, message.header.timestamp = "2.0", START + EVERY_S * step
    for number in range(vehicles):
        entity = message.entity.add(id=str(number))
        entity.vehicle.vehicle.id, entity.vehicle.timestamp = f"bus-{number}", START + EVERY_S * step
        entity.vehicle.position.latitude, entity.vehicle.position.longitude = 28.6, 77.2
        entity.vehicle.position.speed = 5.0
        change(entity)
    body: bytes = message.SerializeToString()
    return body


def in_milliseconds(entity: gtfs_realtime_pb2.FeedEntity) -> None:
    entity.vehicle.timestamp *= 1000


def without_a_name(entity: gtfs_realtime_pb2.FeedEntity) -> None:
    entity.vehicle.ClearField("vehicle")


def at_the_origin(entity: gtfs_realtime_pb2.FeedEntity) -> None:
    entity.vehicle.position.latitude = entity.vehicle.position.longitude = 0


def trip_update(entity: gtfs_realtime_pb2.FeedEntity) -> None:
    entity.ClearField("vehicle")
    entity.trip_update.trip.trip_id = "7"


def as_they_are(entity: gtfs_realtime_pb2.FeedEntity) -> None:
    pass


def said(change: Callable[[gtfs_realtime_pb2.FeedEntity], None], seconds: int, vehicles: int = 20) -> list[str]:
    source = reader("reported")
    with capture_logs() as logs:
        for step in range(seconds // EVERY_S + 1):
            source.events(document(step, change, vehicles), (START + EVERY_S * step) * 1_000_000)
    assert all(log["log_level"] == "warning" for log in logs)
    return [log["event"] for log in logs]


@pytest.mark.parametrize("vehicles", [4, 20, 2_000])
@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        (in_milliseconds, "time-no-epoch-seconds", "as milliseconds are"),
        (without_a_name, "no-vehicle-id", "does not name its vehicles"),
        (at_the_origin, "no-place", "exactly 0, 0"),
        (trip_update, "no-vehicle", "address of its vehicle positions"),
    ],
)
def test_a_feed_that_gives_no_event_is_said_within_a_minute_with_the_remedy(
    change: Callable[[gtfs_realtime_pb2.FeedEntity], None], reason: str, remedy: str, vehicles: int
) -> None:
    sentences = said(change, 60, vehicles)
    assert [sentence.split(":")[0] for sentence in sentences] == [f"most vehicles are refused as {reason}"]
    assert remedy in sentences[0]
    assert "bus-" not in sentences[0]


def test_it_is_said_again_after_five_minutes_and_not_before() -> None:
    assert len(said(in_milliseconds, 290)) == 1
    assert len(said(in_milliseconds, 900)) == 3


def test_a_sound_feed_and_one_with_trip_updates_beside_its_vehicles_are_no_trouble() -> None:
    def mixed(entity: gtfs_realtime_pb2.FeedEntity) -> None:
        if int(entity.id) % 4:
            trip_update(entity)

    assert said(as_they_are, 600) == []
    assert said(mixed, 600) == []


def test_a_feed_that_only_deletes_for_a_while_is_no_trouble() -> None:
    def deleted(entity: gtfs_realtime_pb2.FeedEntity) -> None:
        entity.is_deleted = True

    assert said(deleted, 600) == []


def test_a_few_vehicles_that_are_refused_beside_sound_ones_are_no_trouble() -> None:
    def every_third_at_the_origin(entity: gtfs_realtime_pb2.FeedEntity) -> None:
        if int(entity.id) % 3 == 0:
            at_the_origin(entity)

    assert said(every_third_at_the_origin, 600) == []


def test_messages_of_a_broker_are_judged_together() -> None:
    source = HighFrequencyPositions(FEED, HOURS)
    wrong = [Publication(f"/hfp/v1/journey/ongoing/bus/0018/{n:05}/1/2/x", b"{}") for n in range(60)]
    with capture_logs() as logs:
        for second in range(3):
            source.of(wrong, (START + second) * 1_000_000)
    assert [log["event"] for log in logs] == ["most vehicles are refused as unreadable"]


def test_timestamps_ahead_are_left_to_those_who_judge_clocks() -> None:
    watch = RefusalWatch()
    assert all(watch.judged(1, Counter({IN_FUTURE: 500}), START * 1_000_000 + at) is None for at in range(300))


CONFIGURED = (None, "reported", "missing", "derived")
DERIVED = {0: "reported", 1: "missing", 2: "derived"}
"""The source by the number of derived speeds of :func:`snapshots`."""


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """Two vehicles at two times, one of which reports its speed."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for step in range(2):
        fixes = [(name, START + 30 * step, 28.6 + 0.002 * step, 77.2, v) for name, v in (("a", 8.0), ("b", None))]
        (folder / f"{step}.pb").write_bytes(snapshot_bytes(fixes, START + 30 * step))
    return folder


@pytest.mark.parametrize("given", CONFIGURED)
@pytest.mark.parametrize("configured", CONFIGURED)
def test_a_live_command_obeys_its_option_then_the_configuration_and_says_each_mismatch(
    configured: str | None, given: str | None, snapshots: Path, tmp_path: Path
) -> None:
    file = bus_fleet_file(tmp_path, DELHI)
    command = ["gtfs-rt", str(snapshots), "--config", str(file), "--out", str(tmp_path / "events.ndjson"), "--json"]
    environment = {} if configured is None else {"HEXVEIL_FEED__SPEEDS": configured}
    done = CliRunner().invoke(app, [*command, *([] if given is None else ["--speeds", given])], env=environment)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    used = DERIVED[report["snapshots"]["derived"]]
    assert used == (given or configured or "missing")
    hint = f"feed.speeds is {configured or 'reported'!r}, and hexveil check, the dashboard and /api/v1/feeds say"
    is_said = [hint in note and f"set feed.speeds to {used!r}" in note for note in report["notes"]]
    assert any(is_said) == (used != (configured or "reported"))


def test_a_mismatch_is_said_under_participation_too(tmp_path: Path) -> None:
    for config in (riders_config(tmp_path), bus_config(tmp_path)):
        note = live_speed_note(config, "derived")
        assert note is not None
        assert "set feed.speeds to 'derived'" in note
        assert live_speed_note(config, "reported") is None
