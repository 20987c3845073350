"""The demo as a newcomer runs it: releases arrive, Ctrl-C ends it cleanly, and if Java is missing the message names the
remedy.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from unittest import mock
from urllib.request import urlopen
from zoneinfo import ZoneInfo

import psutil
import pytest
from playwright.async_api import async_playwright, expect

from dpcore.relation import NeighbouringRelation
from stream.cli.demo import Feeding, Setup
from stream.cli.demo_view import DemoWindow, Releases, report
from stream.cli.options import choose_config, load_to_release
from stream.local.server import RedisServer
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from tests.stream.serve.browser import ARGUMENTS, CHROMIUM, PATIENCE_MS
from tests.support.environment import fetched

_WINDOW = {"start": "2017-03-21T12:00:00Z", "end": "2017-03-21T13:00:00Z"}


def _statistic(value: float, low: float, high: float, unit: str = "km/h") -> dict[str, object]:
    return {"value": value, "raw": value, "clamped": False, "scale": 1.0, "interval": [low, high], "unit": unit}


def _cell(cell: str, events: int, value: float, half: float) -> bytes:
    body = {"feed": "bus", "window": _WINDOW, "cell": cell, "resolution": 7, "relation": "values", "epsilon": 2.0}
    body |= {"status": "published", "events": events, "users": 3, "mean": _statistic(value, value - half, value + half)}
    return json.dumps(body).encode()


def _marker(messages: int) -> bytes:
    period = {"start": "2017-03-21T05:00:00Z", "end": "2017-03-22T05:00:00Z", "timezone": "America/Chicago"}
    body = {"feed": "bus", "window": _WINDOW, "relation": "values", "epsilon": 2.0, "budget": 48.0, "period": period}
    body |= {"clipping": {"lower": 0, "upper": 65, "unit": "km/h"}, "resolution": 7, "statistics": ["mean"]}
    body |= {"messages": messages, "digest": f"sha256:{'0' * 64}"}
    return json.dumps(body | {"generation": "8f14e45f-ceea-467f-a0e6-9a0f4b5a5d21", "sequence": 1}).encode()


def _view() -> Releases:
    releases = Releases(ZoneInfo("America/Chicago"))
    releases.add(WINDOW, {"ce_id": b"m"}, _marker(2))
    releases.add(HEXAGON_SPEED, {"ce_id": b"a"}, _cell("87283472bffffff", 40, 23.0, 4.0))
    return releases


def test_a_window_is_shown_once_all_its_messages_arrived_in_any_order():
    releases = _view()
    assert releases.lines() == []
    releases.add(HEXAGON_SPEED, {"ce_id": b"b"}, _cell("872834728ffffff", 10, 30.0, 8.0))
    (line,) = releases.lines()
    assert line.startswith("03-21 07:00–08:00  2 cells (0 suppressed)  busiest 87283472bffffff (40 events)")
    assert "mean 23.0 (19–27) km/h  all cells (median) ± 6.0  ε 2" in line


def test_the_estimate_leads():
    releases = Releases(ZoneInfo("America/Chicago"))
    releases.add(WINDOW, {"ce_id": b"m"}, _marker(1))
    cell = json.loads(_cell("87283472bffffff", 40, 23.0, 14.0))
    cell["post_processed"] = {"mean": {"method": "kalman", "value": 20.0, "interval": [17.0, 23.0], "unit": "km/h"}}
    releases.add(HEXAGON_SPEED, {"ce_id": b"a"}, json.dumps(cell).encode())
    (line,) = releases.lines()
    assert "mean 20.0 (17–23) km/h  all cells (median) ± 3.0" in line


def test_repeats_and_messages_that_fail_their_schema_are_counted_and_not_shown():
    releases = _view()
    releases.add(HEXAGON_SPEED, {"ce_id": b"a"}, _cell("87283472bffffff", 40, 23.0, 4.0))
    releases.add(HEXAGON_SPEED, {"ce_id": b"c"}, b'{"feed": "bus"}')
    rejected = {"feed": "bus", "reason": "not-json", "topic": "t", "partition": 0}
    rejected |= {"first_offset": 4, "last_offset": 9, "count": 5}
    releases.add(REJECTED, {"ce_id": b"r"}, json.dumps(rejected).encode())
    assert (releases.duplicates, releases.invalid) == (1, 1)
    assert releases.refused == {"not-json": 5}
    assert "duplicates by ce_id: 1" in releases.summary()
    assert "failing their JSON Schema: 1 (hexveil.hexagon-speed.v1: " in releases.summary()


def test_a_window_with_a_histogram_waits_for_it():
    domain = {"south": 30.0, "west": -98.0, "north": 31.0, "east": -97.0, "rows": 2, "columns": 2}
    grid = {"kind": "grid", "x_edges": [0, 2], "y_edges": [0, 1, 2], "counts": [[30, 12]], "variances": 2.0}
    body = {"feed": "bus", "window": _WINDOW, "relation": "participation", "epsilon": 1.0, "mechanism": "ug"}
    body |= {"fixes_per_user": 1, "domain": domain, "structure": grid | {"noise": "independent"}}
    releases = _view()
    assert releases.lines() == []
    releases.add(SPATIAL_HISTOGRAM, {"ce_id": b"h"}, json.dumps(body).encode())
    assert len(releases.lines()) == 1


def _until_dashboard(stderr: IO[str]) -> list[str]:
    """Lines up to the one with the dashboard's address."""
    lines: list[str] = []
    while not (lines and lines[-1].startswith("Dashboard: ")):
        lines.append(stderr.readline())
        assert lines[-1], "the demo ended before its dashboard was there"
    return lines


_NAMES = "StreetAvenueRing"
"""Letters of the names of the simulated city's streets, avenues and ring roads."""
_WRITTEN = """
  window.written = '';
  const pen = OffscreenCanvasRenderingContext2D.prototype;
  const fill = pen.fillText;
  pen.fillText = function (text, ...place) {
    window.written += text;
    return fill.call(this, text, ...place);
  };
"""


async def _letters_on_the_map(address: str) -> str:
    """The letters of which the map has drawn an image, so as to write names with them."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        page = await browser.new_page()
        await page.add_init_script(_WRITTEN)
        await page.goto(address)
        await page.wait_for_selector("html[data-ready=true]", timeout=PATIENCE_MS)
        await expect(page.locator(".maplibregl-ctrl-attrib")).to_contain_text(
            "20 seconds of the clock stand for 15 minutes"
        )
        done = "names => [...names].every((letter) => window.written.includes(letter))"
        await page.wait_for_function(done, arg=_NAMES, timeout=PATIENCE_MS)
        letters: str = await page.evaluate("window.written")
        await browser.close()
    return letters


@pytest.mark.parametrize("chosen", ["nowhere", "environment", "file"])
def test_a_street_map_that_the_operator_chose_is_shown_instead_of_the_simulated_one(tmp_path, repo_root, chosen):
    ours, file = tmp_path / "ours.pmtiles", tmp_path / "hexveil.toml"
    text = (repo_root / "config" / "bus-fleet.toml").read_text()
    line = f'basemap = "{ours}"'
    file.write_text(text.replace('# basemap = "city.pmtiles"', line) if chosen == "file" else text)
    with mock.patch.dict(os.environ, {"HEXVEIL_PUBLIC__BASEMAP": str(ours)} if chosen == "environment" else {}):
        configured = choose_config(file)
        setup = Setup(configured, NeighbouringRelation.VALUES, [], Feeding(60), tmp_path)
        basemap = setup.config(RedisServer(tmp_path / "redis")).public.basemap
        assert load_to_release(configured).public.basemap == basemap, "its processes show the same"
    assert basemap == (None if chosen == "nowhere" else ours)
    assert (tmp_path / "streets.geojson").exists() == (chosen == "nowhere")


def _started(command: Sequence[str], repo_root: Path, *arguments: str, **settings: str) -> subprocess.Popen[str]:
    """A demo, as the head of a group of processes."""
    return subprocess.Popen(
        [*command, "demo", *arguments],
        cwd=repo_root,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


_ALONE = (sys.executable, "-m", "stream")
"""Where the demo's own processes matter, it is no fork: this is their parent and the head of their group."""


def _ctrl_c_ends(demo: subprocess.Popen[str], processes: int) -> None:
    """A demo that released something ends with a summary, and leaves none of its children, which are this many or
    more."""
    children = psutil.Process(demo.pid).children(recursive=True)
    os.killpg(demo.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    rest, errors = demo.communicate(timeout=60)
    assert demo.returncode == 0, errors
    assert "Windows closed: " in rest
    assert "failing their JSON Schema: 0" in rest
    assert "events sent: " in rest
    assert "The map against what the city knows" in rest or "have no whole window in common yet" in rest
    assert "ρ" in rest.partition("Never publish:")[2]
    assert "Traceback" not in errors
    assert len(children) >= processes
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


@pytest.mark.nightly
def test_with_kafka_streets_are_shown_and_ctrl_c_ends_with_a_summary_and_leaves_no_process(repo_root):
    with _started(_ALONE, repo_root, "--kafka") as demo:
        said = _until_dashboard(demo.stderr)
        assert "Traceback" not in "".join(said)
        assert "cells" in demo.stdout.readline()
        address = said[-1].removeprefix("Dashboard: ").strip()
        assert b"Maple Avenue" in fetched(f"{address}api/v1/streets")
        _ctrl_c_ends(demo, processes=5)


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.nightly
@pytest.mark.usefixtures("without_java")
def test_without_java_the_same_city_is_released_and_its_dashboard_shows_windows_and_streets_while_the_demo_runs(
    repo_root,
):
    """Both demos have the same dashboard, and a browser costs as much as the rest, so only this one is looked at."""
    with _started(_ALONE, repo_root) as demo:
        said = _until_dashboard(demo.stderr)
        assert "Traceback" not in "".join(said)
        (why,) = [line for line in said if "Kafka needs Java" in line]
        assert "run without Kafka" in why
        address = said[-1].removeprefix("Dashboard: ").strip()
        first = demo.stdout.readline()
        assert "cells (0 suppressed)" in first
        window = json.loads(fetched(f"{address}api/v1/hexagons"))
        assert window["complete"]
        assert len(window["hexagons"]) > 300
        places = {place["cell"]: place["name"] for place in json.loads(fetched(f"{address}api/v1/places"))["cells"]}
        assert sum(places.get(hexagon["cell"]) is not None for hexagon in window["hexagons"]) > 100
        assert b"Maple Avenue" in fetched(f"{address}api/v1/streets")
        letters = asyncio.run(_letters_on_the_map(address)) if CHROMIUM else _NAMES
        assert set(_NAMES) <= set(letters)
        _ctrl_c_ends(demo, processes=3)


@pytest.mark.usefixtures("without_java")
def test_a_demo_that_insists_on_kafka_says_what_to_install_and_how_to_do_without(hexveil, repo_root):
    command = [*hexveil, "demo", "--kafka"]
    done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "apt-get install default-jre-headless" in done.stderr
    assert "hexveil demo --no-kafka" in done.stderr


@pytest.mark.parametrize(("kafka", "seconds"), [("--kafka", 30), ("--no-kafka", 15)], ids=["--kafka", "--no-kafka"])
def test_buses_are_shown_until_the_seconds_are_over(hexveil, repo_root, kafka, seconds):
    """A busy machine that releases nothing in so many seconds is given more."""
    shown = ["06:00–06:15", "Windows closed: "]
    for longer in (1, 4, 16):
        command = [*hexveil, "demo", "--seconds", str(seconds * longer), kafka, "--fleet", "60"]
        done = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if all(text in done.stdout for text in shown):
            break
    else:
        raise AssertionError(f"{shown} were not shown: {done.stdout}")
    assert "failing their JSON Schema: 0" in done.stdout
    assert "events sent: " in done.stdout


def test_sigterm_ends_a_demo_of_buses_with_a_summary_as_ctrl_c_does_and_its_dashboard(hexveil, repo_root):
    with _started(hexveil, repo_root, "--no-kafka", "--fleet", "60") as demo:
        address = _until_dashboard(demo.stderr)[-1].removeprefix("Dashboard: ").strip()
        assert "06:00–06:15" in demo.stdout.readline(), "the live map of a small fleet"
        demo.send_signal(signal.SIGTERM)
        rest, errors = demo.communicate(timeout=60)
    assert demo.returncode == 0, errors
    assert "Windows closed: " in rest
    with pytest.raises(OSError, match="refused"):
        urlopen(address)


_QUARTERS = [f"2026-03-03T07:{minute:02d}:00Z" for minute in range(4)]


def test_the_report_counts_events_near_the_truth_and_the_drop_that_an_incident_left_on_the_map(tmp_path):
    """Of 100 events in each of four windows 60 are in a hexagon that is shown and 40 in one that is not. From the third
    window on the first falls from 30 to 10 km/h; the map shows half of it, then all."""
    truth, views = tmp_path / "truth.ndjson", []
    for number, (start, true, shown) in enumerate(zip(_QUARTERS, (30, 30, 10, 10), (30, 30, 20, 10), strict=True)):
        line = {"start": start, "cells": {"a": [60, true], "b": [40, 20]}, "incident": ["a"] if number > 1 else None}
        with truth.open("a") as file:
            file.write(json.dumps(line) + "\n")
        views.append(
            DemoWindow(start, start.replace(":00Z", ":20Z"), means={"a": shown, "c": 5.0}, arrived=number * 20)
        )
    said = report(views, truth)
    assert "one every 20.0 s, 20.0 s at most" in said
    assert "hexagons with an estimate: 2" in said
    assert "45% of the events, 60% in the newest window" in said
    assert "from 30 to 10 km/h; the map showed 50%, 100%" in said
