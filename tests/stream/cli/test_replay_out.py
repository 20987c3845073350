"""``hexveil replay --offline --out``: releases in the format of the suffix, never over those of an earlier run."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from stream.cli import app
from stream.local import REPO_ROOT
from stream.messages.lines import ReleaseFileError, release_file
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message
from stream.offline import LinePublisher
from tests.stream.serve.serving import released
from tests.support import hourly

BUS = str(hourly.BUS)
NOON_MS = 1_490_097_600_000


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two windows of three buses in two cells, in the working folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "day.ndjson"
    with file.open("w") as out:
        for minute in range(0, 120, 4):
            for bus in range(3):
                fix = {"user": f"b{bus}", "time": NOON_MS + minute * 60_000, "lat": 30.2 + 0.05 * (bus % 2)}
                out.write(json.dumps(fix | {"lng": -97.7, "speed": 20 + bus}) + "\n")
    return file


def hexveil(*arguments: str, stdout: int = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stream", *arguments, "--config", BUS]
    environment = {"PYTHONPATH": str(REPO_ROOT), "PATH": "/usr/bin:/bin"} | variables
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def replay(file: Path, *arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return hexveil("replay", str(file), "--offline", *arguments, **given)


def csv_rows(file: Path) -> list[Any]:
    return list(csv.DictReader(file.open()))


def geojson_rows(file: Path) -> list[Any]:
    return [feature["properties"] for feature in json.loads(file.read_text())["features"]]


def parquet_rows(file: Path) -> list[Any]:
    return list(parquet.read_table(file).to_pylist())


@pytest.mark.parametrize(
    ("suffix", "rows_of"), [("csv", csv_rows), ("geojson", geojson_rows), ("parquet", parquet_rows)]
)
def test_a_table_holds_a_row_per_cell_of_every_window_and_nothing_else_is_left(
    day: Path, tmp_path: Path, suffix: str, rows_of: Callable[[Path], list[Any]]
) -> None:
    done = replay(day, "--out", f"releases.{suffix}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "2 windows released, 0 released before, 6 messages in" in done.stderr
    assert f"releases.{suffix}" in done.stderr
    rows = rows_of(tmp_path / f"releases.{suffix}")
    assert len(rows) == 4
    assert len({(str(row["window_start"]), row["cell"]) for row in rows}) == 4
    assert {row["relation"] for row in rows} == {"values"}
    assert "post_processed_mean" in rows[0]
    assert {path.name for path in tmp_path.iterdir()} == {"day.ndjson", f"releases.{suffix}"}


def test_lines_in_a_file_are_those_of_stdout_and_no_run_overwrites_another_unasked(day: Path, tmp_path: Path) -> None:
    done = replay(day, "--out", "releases.ndjson")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "releases.ndjson").read_text()
    assert [json.loads(line)["topic"] for line in text.splitlines()] == [HEXAGON_SPEED, HEXAGON_SPEED, WINDOW] * 2
    again = replay(day, "--out", "releases.ndjson")
    assert again.returncode == 2
    assert (
        "releases.ndjson exists, and its releases cannot be drawn again; name another file, or overwrite it with "
        "--force" in again.stderr
    )
    assert (tmp_path / "releases.ndjson").read_text() == text
    assert replay(day, "--out", "releases.ndjson", "--force").returncode == 0
    assert (tmp_path / "releases.ndjson").read_text() != text


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--offline", "--out", "releases.xlsx"), ".ndjson, .csv, .parquet, .geojson"),
        (("--offline", "--out", "absent/releases.csv"), "No such file or directory"),
        (("--offline", "--out", "day.ndjson", "--force"), "is the recording itself"),
        (("--out", "releases.csv"), "belong to --offline"),
    ],
)
def test_a_file_that_cannot_be_written_is_wrong_usage_and_says_why(
    day: Path, arguments: tuple[str, ...], remedy: str
) -> None:
    before = day.read_bytes()
    done = CliRunner().invoke(app, ["replay", str(day), "--config", BUS, *arguments])
    assert done.exit_code == 2
    assert remedy in " ".join(done.output.replace("│", " ").split())
    assert day.read_bytes() == before


def test_without_pyarrow_parquet_is_refused_before_anything_is_released(
    day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = CliRunner().invoke(app, ["replay", str(day), "--offline", "--config", BUS, "--out", "r.parquet"])
    assert done.exit_code == 2
    assert "hexveil[parquet]" in done.stderr
    assert not list(tmp_path.glob("r.parquet*"))


async def test_a_run_that_fails_leaves_a_table_of_what_was_released_and_no_file_where_nothing_was(
    tmp_path: Path,
) -> None:
    async def fail_after(messages: list[Message], file: Path) -> None:
        with release_file(file) as out:
            await LinePublisher(out).publish(messages)
            raise RuntimeError("planted")

    messages = released(tmp_path)
    with pytest.raises(RuntimeError, match="planted"):
        await fail_after(messages, tmp_path / "some.csv")
    assert len(csv_rows(tmp_path / "some.csv")) == len(messages) - 1
    with pytest.raises(RuntimeError, match="planted"):
        await fail_after([], tmp_path / "none.csv")
    assert not list(tmp_path.glob("none*"))


async def test_the_lines_of_a_run_that_was_killed_before_its_table_are_kept_from_the_next(tmp_path: Path) -> None:
    messages = released(tmp_path)
    left = tmp_path / "r.csv.lines.ndjson"
    with left.open("w") as out:
        await LinePublisher(out).publish(messages)
    with pytest.raises(ReleaseFileError, match=r"r\.csv\.lines\.ndjson exists"), release_file(tmp_path / "r.csv"):
        pass
    assert len(left.read_text().splitlines()) == len(messages)


def test_windows_of_which_only_the_marker_is_written_are_counted_as_withheld(day: Path) -> None:
    done = replay(day, HEXVEIL_PRIVACY__EPSILON="0.000001")
    assert [json.loads(line)["value"]["withheld"] for line in done.stdout.splitlines()] == [True, True]
    assert "0 windows released, 2 withheld" in done.stderr


def test_a_reader_of_stdout_that_ends_early_is_named_not_the_folder_of_the_ledger(day: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = replay(day, "--state", "ledger", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("hexveil: stdout: its reader ended before all was written, and what was written")


def test_what_a_terminal_cannot_show_is_written_as_its_number(day: Path) -> None:
    done = hexveil("inspect", str(day), PYTHONIOENCODING="latin-1")
    assert (done.returncode, "hexveil inspect \\u2026 --write" in done.stdout) == (0, True), done.stderr
