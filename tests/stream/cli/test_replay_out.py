"""``hexveil replay --offline --out``: releases in the format of the suffix, never over those of an earlier run. Where
``hexveil gtfs-rt`` and ``hexveil siri-vm`` write the events of stored snapshots: never over what they read, nor
unasked. Sensors on buses, from the simulator to releases, files, alerts and the API: the unit is everywhere, and no
speed is."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from stream.config import load_config
from stream.local.kafka import REPO_ROOT
from stream.messages.lines import ReleaseFileError, release_file
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message
from stream.offline import LinePublisher
from tests.stream.serve.serving import released, serving_file
from tests.stream.sources.agency import DELHI, START, snapshot_bytes
from tests.support import hourly
from tests.support.builders import bus_fleet_file
from tests.support.command import run
from tests.support.schemas import validate

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


ENVIRONMENT = {"PYTHONPATH": str(REPO_ROOT), "PATH": "/usr/bin:/bin"}
Replay = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def replay(hexveil: Sequence[str], day: Path) -> Replay:
    """Replays the day offline, with options and variables."""

    def replayed(*arguments: str, stdout: int = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = ["replay", str(day), "--offline", *arguments, "--config", BUS], ENVIRONMENT | variables
        return subprocess.run([*hexveil, *command], env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)

    return replayed


def csv_rows(file: Path) -> list[Any]:
    return list(csv.DictReader(file.open()))


ROWS: dict[str, Callable[[Path], list[Any]]] = {
    "csv": csv_rows,
    "geojson": lambda file: [feature["properties"] for feature in json.loads(file.read_text())["features"]],
    "parquet": lambda file: list(parquet.read_table(file).to_pylist()),
}


@pytest.mark.parametrize("suffix", ROWS)
def test_a_table_holds_a_row_per_cell_of_every_window_and_nothing_else_is_left(day, tmp_path, suffix, replay):
    done = replay("--out", f"releases.{suffix}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "2 windows released, 0 released before, 6 messages in" in done.stderr
    assert f"releases.{suffix}" in done.stderr
    rows = ROWS[suffix](tmp_path / f"releases.{suffix}")
    assert len(rows) == 4
    assert len({(str(row["window_start"]), row["cell"]) for row in rows}) == 4
    assert {row["relation"] for row in rows} == {"values"}
    assert "post_processed_mean" in rows[0]
    assert {path.name for path in tmp_path.iterdir()} == {"day.ndjson", f"releases.{suffix}"}


def test_lines_in_a_file_are_those_of_stdout_and_no_run_overwrites_another_unasked(tmp_path, replay):
    done = replay("--out", "releases.ndjson")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "releases.ndjson").read_text()
    assert [json.loads(line)["topic"] for line in text.splitlines()] == [HEXAGON_SPEED, HEXAGON_SPEED, WINDOW] * 2
    again = replay("--out", "releases.ndjson")
    assert again.returncode == 2
    assert (
        "releases.ndjson exists, and its releases cannot be drawn again; name another file, or overwrite it with "
        "--force" in again.stderr
    )
    assert (tmp_path / "releases.ndjson").read_text() == text
    assert replay("--out", "releases.ndjson", "--force").returncode == 0
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
def test_a_file_that_cannot_be_written_is_wrong_usage_and_says_why(day, arguments, remedy):
    before = day.read_bytes()
    done = run("replay", day, "--config", BUS, *arguments, code=2)
    assert remedy in " ".join(done.output.replace("│", " ").split())
    assert day.read_bytes() == before


def test_without_pyarrow_parquet_is_refused_before_anything_is_released(day, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = run("replay", day, "--offline", "--config", BUS, "--out", "r.parquet", code=2)
    assert "hexveil[parquet]" in refused.stderr
    assert not list(tmp_path.glob("r.parquet*"))


async def test_a_run_that_fails_leaves_a_table_of_what_was_released_and_no_file_where_nothing_was(tmp_path):
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


async def test_the_lines_of_a_run_that_was_killed_before_its_table_are_kept_from_the_next(tmp_path):
    messages = released(tmp_path)
    left = tmp_path / "r.csv.lines.ndjson"
    with left.open("w") as out:
        await LinePublisher(out).publish(messages)
    with pytest.raises(ReleaseFileError, match=r"r\.csv\.lines\.ndjson exists"), release_file(tmp_path / "r.csv"):
        pass
    assert len(left.read_text().splitlines()) == len(messages)


def test_windows_of_which_only_the_marker_is_written_are_counted_as_withheld(replay):
    done = replay(HEXVEIL_PRIVACY__EPSILON="0.000001")
    assert [json.loads(line)["value"]["withheld"] for line in done.stdout.splitlines()] == [True, True]
    assert "0 windows released, 2 withheld" in done.stderr


def test_a_reader_of_stdout_that_ends_early_is_named_not_the_folder_of_the_ledger(replay):
    reading, writing = os.pipe()
    os.close(reading)
    done = replay("--state", "ledger", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("hexveil: stdout: its reader ended before all was written, and what was written")


def test_what_a_terminal_cannot_show_is_written_as_its_number(day):
    command = [sys.executable, "-m", "stream", "inspect", str(day), "--config", BUS]
    variables = ENVIRONMENT | {"PYTHONIOENCODING": "latin-1"}  # no variable of Python's own has effect in a fork
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.returncode, "hexveil inspect \\u2026 --write" in done.stdout) == (0, True), done.stderr


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one snapshot, in the working folder, beside a configuration."""
    monkeypatch.chdir(tmp_path)
    bus_fleet_file(tmp_path, DELHI)
    folder = tmp_path / "stored"
    folder.mkdir()
    (folder / "0.pb").write_bytes(snapshot_bytes([("a", START, 28.61, 77.21, 7.5)]))
    return folder


def gtfs_rt(*arguments: str, code: int = 0) -> str:
    return run("gtfs-rt", *arguments, "--config", "hexveil.toml", code=code).output


@pytest.mark.parametrize("extra", [[], ["--force"], ["--offline", "--force"]])
@pytest.mark.parametrize("source", ["stored", "stored/0.pb"])
def test_the_file_of_out_is_none_of_the_snapshots(stored, source, extra):
    snapshot = stored / "0.pb"
    before = snapshot.read_bytes()
    Path("link.ndjson").symlink_to(snapshot)
    for out in ("stored/0.pb", "link.ndjson"):
        assert "is one of the snapshots" in gtfs_rt(source, "--out", out, *extra, code=2)
        assert snapshot.read_bytes() == before


def test_events_of_an_earlier_run_are_overwritten_only_if_asked(stored):
    gtfs_rt("stored", "--out", "events.ndjson")
    events = Path("events.ndjson").read_bytes()
    assert events.count(b"\n") == 1
    Path("events.ndjson").write_bytes(b"kept")
    assert "overwrite it with --force" in gtfs_rt("stored", "--out", "events.ndjson", code=2)
    assert Path("events.ndjson").read_bytes() == b"kept"
    gtfs_rt("stored", "--out", "events.ndjson", "--force")
    assert Path("events.ndjson").read_bytes() == events
    gtfs_rt("stored", "--out", "/dev/null")  # a device needs no --force


EXAMPLE = REPO_ROOT / "examples" / "air-quality.toml"
UNIT = "µg/m³"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's commands with fewer buses, in a folder with the example: readings, releases, and these as tables."""
    made = tmp_path_factory.mktemp("air")
    config = made / "air.toml"
    config.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    start, readings = "2026-11-20T07:00:00-06:00", made / "day.ndjson"
    run("simulate", "--config", config, "--start", start, "--duration", "3h", "--vehicles", 120, "--out", readings)
    for suffix in ("ndjson", "csv", "geojson", "parquet"):
        out = made / f"releases.{suffix}"
        run("replay", readings, "--config", config, "--offline", "--out", out)
    return made


async def test_the_commands_of_the_page_show_dust_in_every_release_file_and_alert(folder):
    lines = [json.loads(line) for line in (folder / "releases.ndjson").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        validate(line["topic"], line["value"])
    bodies = [line["value"] for line in lines]
    markers = [body for body in bodies if "generation" in body]
    assert [(body["value"], body["clipping"]) for body in markers] == [
        ("PM2.5", {"lower": 0.0, "upper": 100.0, "unit": UNIT})
    ] * 3
    means = [body["mean"] for body in bodies if "mean" in body]
    assert {mean["unit"] for mean in means} == {UNIT}
    assert np.mean([mean["raw"] for mean in means]) > 10, "the field of the simulator, not zeros"
    with (folder / "releases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["estimate_mean_unit"] for row in rows if row["estimate_mean"]} == {UNIT}
    features = json.loads((folder / "releases.geojson").read_text(encoding="utf-8"))["features"]
    assert {one["properties"]["mean_unit"] for one in features if one["properties"]["mean"] is not None} == {UNIT}
    fields = parquet.read_schema(folder / "releases.parquet")
    assert {fields.field(name).metadata[b"unit"].decode() for name in ("mean", "mean_scale", "estimate_mean")} == {UNIT}
    said = "\n".join(line for line in json.dumps(bodies, ensure_ascii=False).split(",") if "km" in line)
    assert not said, "nothing of it is a speed"
    async with serving_file(load_config(folder / "air.toml"), folder / "releases.ndjson") as client:
        alerts = await (await client.get("/api/v1/alerts")).json()
        assert [(rule["above"], rule["unit"]) for rule in alerts["rules"]] == [(40.0, UNIT)]
        listed = (await (await client.get("/ogc/collections")).json())["collections"]
        assert all(f"Statistics of PM2.5 ({UNIT}) in H3 hexagons" in one["description"] for one in listed)
        items = await (await client.get(f"/ogc/collections/{listed[0]['id']}/items?limit=50")).json()
        assert {one["properties"]["estimate_mean_unit"] for one in items["features"]} <= {UNIT, None}
        (start,) = {marker["window"]["start"] for marker in markers[:1]}
        together = await (await client.get(f"/api/v1/means?from={start}&to=2026-11-21T00:00:00Z")).json()
        assert {cell["mean"]["unit"] for cell in together["cells"] if cell["mean"]} == {UNIT}


def test_what_the_commands_say_of_another_value_is_in_its_unit(folder):
    config = folder / "air.toml"
    checked, sheet = run("check", "--config", config).output, folder / "promise.html"
    assert "Worst-case error E of a mean: 100 µg/m³" in checked
    assert "measured speeds" not in checked
    run("check", "--config", config, "--sheet", sheet)
    report = run("evaluate", folder / "day.ndjson", "--config", config, "--trials", 1, "--json").stdout
    scores = json.loads(report)["scores"]
    assert {score["unit"] for score in scores} == {UNIT}
    assert all(score["released"] <= 1 for score in scores), "what is typical is no estimate of the window"
