"""Where ``hexveil gtfs-rt`` and ``hexveil siri-vm`` write the events of stored snapshots: never over what they read,
nor unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from tests.stream.sources.agency import DELHI
from tests.stream.sources.gtfs import START, snapshot_bytes
from tests.support.builders import bus_fleet_file


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one snapshot, in the working folder, beside a configuration."""
    monkeypatch.chdir(tmp_path)
    bus_fleet_file(tmp_path, DELHI)
    folder = tmp_path / "stored"
    folder.mkdir()
    (folder / "0.pb").write_bytes(snapshot_bytes([("a", START, 28.61, 77.21, 7.5)]))
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["gtfs-rt", *arguments, "--config", "hexveil.toml"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("extra", [[], ["--force"], ["--offline", "--force"]])
@pytest.mark.parametrize("source", ["stored", "stored/0.pb"])
def test_the_file_of_out_is_none_of_the_snapshots(stored: Path, source: str, extra: list[str]) -> None:
    snapshot = stored / "0.pb"
    before = snapshot.read_bytes()
    Path("link.ndjson").symlink_to(snapshot)
    for out in ("stored/0.pb", "link.ndjson"):
        code, said = run(source, "--out", out, *extra)
        assert code == 2, said
        assert "is one of the snapshots" in said
        assert snapshot.read_bytes() == before


def test_events_of_an_earlier_run_are_overwritten_only_if_asked(stored: Path) -> None:
    assert run("stored", "--out", "events.ndjson")[0] == 0
    events = Path("events.ndjson").read_bytes()
    assert events.count(b"\n") == 1
    Path("events.ndjson").write_bytes(b"kept")
    code, said = run("stored", "--out", "events.ndjson")
    assert (code, Path("events.ndjson").read_bytes()) == (2, b"kept")
    assert "overwrite it with --force" in said
    assert run("stored", "--out", "events.ndjson", "--force")[0] == 0
    assert Path("events.ndjson").read_bytes() == events


def test_a_device_needs_no_force(stored: Path) -> None:
    assert run("stored", "--out", "/dev/null")[0] == 0
