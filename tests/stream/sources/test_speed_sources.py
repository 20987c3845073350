"""Whatever ``--speeds`` and ``feed.speeds`` say, a live command does one of them, and says where the other is
published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.cli.live import live_speed_note
from tests.stream.sources.agency import DELHI
from tests.stream.sources.gtfs import START, snapshot_bytes
from tests.support.builders import bus_config, bus_fleet_file, riders_config

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
