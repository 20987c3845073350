"""``hexveil serve FILE``: the service follows files of releases as they grow, and survives anything that is written
into them. The styles of config/gis, applied to the layers that a GIS reads from the service."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import psutil
import pyogrio
import pytest
from aiohttp.test_utils import TestClient

from stream.local.kafka import REPO_ROOT
from stream.local.server import free_port
from stream.messages.lines import MAX_LINE, line_of
from stream.messages.message import Message, rejected_message
from stream.serve.api import SERVICE
from stream.serve.reading.files import Follower, feed_in
from tests.stream.serve.made_windows import windows_of, with_histograms
from tests.stream.serve.serving import append, json_of, released, served, serving, serving_file
from tests.support import hourly
from tests.support.builders import bus_config
from tests.support.environment import fetched
from tests.support.feeding import until_true

PATIENCE_SECONDS = 20.0


def counted(client: TestClient, name: str) -> float:
    return client.server.app[SERVICE].metrics.registry.get_sample_value(f"hexveil_public_{name}_total") or 0.0


async def are_read(client: TestClient, *hours: str) -> None:
    """Wait until as many windows became complete; they begin at these hours."""
    await until_true(lambda: counted(client, "windows") == len(hours), PATIENCE_SECONDS)
    windows = (await json_of(client, "/api/v1/windows"))["windows"]
    assert [window["window"]["start"][11:13] for window in windows if window["complete"]] == [*reversed(hours)]


@asynccontextmanager
async def following(tmp_path: Path, *windows: Iterable[Message]) -> AsyncIterator[tuple[TestClient, Path]]:
    file = tmp_path / "releases.ndjson"
    append(file, *windows)
    async with serving_file(bus_config(tmp_path), file) as client:
        yield client, file


PATHS = ("windows", "hexagons", "histograms", "hexagons?format=geojson", "windows/2017-03-21T12:00:00Z/download.csv")


async def answers(client: TestClient) -> dict[str, Any]:
    return {path: await (await client.get(f"/api/v1/{path}")).read() for path in PATHS}


async def test_a_file_is_served_as_the_topics_with_the_same_messages_are(tmp_path, own_feed):
    windows = windows_of(tmp_path, 2, **own_feed)
    config, messages = bus_config(tmp_path, **own_feed), [*windows[0], *windows[1]]
    async with serving(config, messages) as by_topics, served(config, messages) as by_file:
        answered = await answers(by_topics), await answers(by_file)
    for both in answered:  # a marker's number is its place among the markers of all feeds
        both["windows"] = [{**w, "event_id": 0} for w in json.loads(both["windows"])["windows"]]
        hexagons = json.loads(both["hexagons"])
        both["hexagons"] = {**hexagons, "event_id": 0}
    assert answered[0] == answered[1]
    assert len(answered[0]["windows"]) == 2


async def test_windows_appear_as_the_file_grows_and_a_half_written_line_waits_for_its_end(tmp_path):
    first, second = windows_of(tmp_path, 2)
    async with following(tmp_path, first) as (client, file):
        await are_read(client, "12")
        stream = await client.get("/api/v1/stream?after=0")
        rest = "".join(map(line_of, second))
        with file.open("a") as out:
            for place in range(0, len(rest), 997):
                out.write(rest[place : place + 997])
                out.flush()
                await asyncio.sleep(0.01)
        await are_read(client, "12", "13")
        assert counted(client, "messages_invalid") == 0
        received = b""
        async with asyncio.timeout(120):
            while received.count(b"event: window") < 2:
                received += await stream.content.readany()
        assert received.index(b"id: 1\n") < received.index(b"id: 2\n")


async def test_a_rotated_file_is_read_to_its_end_and_then_the_one_that_took_its_name(tmp_path):
    first, second, third = windows_of(tmp_path, 3)
    async with following(tmp_path, first) as (client, file):
        file.rename(tmp_path / "releases.1")
        append(tmp_path / "releases.1", second)
        with (tmp_path / "releases.1").open("a") as out:
            out.write('{"topic":"hexveil.win')
        await asyncio.sleep(0.6)
        append(file, third)
        await are_read(client, "12", "13", "14")
        assert counted(client, "messages_invalid") == 1, "the line that its file ended in the middle of"


@pytest.mark.parametrize("longer", [False, True])
async def test_a_truncated_file_is_read_anew_and_known_windows_stay(tmp_path, longer):
    first, second, third = windows_of(tmp_path, 3)
    async with following(tmp_path, first) as (client, file):
        with file.open("r+") as out:  # in place: the same file, shorter or longer than what was read
            out.truncate(0)
            text = "".join(map(line_of, [*second, *third] if longer else second))
            out.write(text if longer else text[:-200])
        await asyncio.sleep(0.6)
        if not longer:
            with file.open("r+") as out:
                out.truncate(0)
            await asyncio.sleep(0.6)
            append(file, second, third)
        await are_read(client, "12", "13", "14")


HOSTILE = [
    b"",
    b"\xff\xfe",
    b"{",
    b"null",
    b"[" * 100_000,
    b'{"topic":"hexveil.window.v1"}',
    b'{"topic":"hexveil.window.v1","headers":{},"value":{}}',
    b'{"topic":"hexveil.window.v1","headers":{"ce_id":"x"},"value":{}}',
    b'{"topic":"hexveil.window.v1","headers":{"ce_id":7},"value":{}}',
    b'{"topic":"x","headers":{"ce_id":"x"},"value":null}',
    b'{"topic":"hexveil.hexagon-speed.v1","headers":{"ce_id":"x"},"value":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
]


async def test_forged_lines_are_counted_unlike_reports_of_rejected_input_and_windows_after_them_are_served(tmp_path):
    first, second = windows_of(tmp_path, 2)
    report = rejected_message("bus", "not-json", "bus.positions", 0, 1, 2, 2)
    async with following(tmp_path, first) as (client, file):
        with file.open("ab") as out:
            out.write(b"\n".join(HOSTILE) + b"\n")
        append(file, [report], second)
        await are_read(client, "12", "13")
        assert counted(client, "messages_invalid") == len(HOSTILE) - 1, "an empty line is nothing"


async def test_a_line_of_200_megabytes_is_passed_over_without_being_kept(tmp_path):
    first, second = windows_of(tmp_path, 2)
    async with following(tmp_path, first) as (client, file):
        before = psutil.Process().memory_info().rss
        with file.open("ab") as out:
            for _ in range(200):
                out.write(b'{"a":' * 200_000)
        await until_true(lambda: counted(client, "messages_invalid") == 1, PATIENCE_SECONDS)
        with file.open("ab") as out:
            out.write(b"\n")
        append(file, second)
        highest = 0
        while counted(client, "windows") < 2:
            highest = max(highest, psutil.Process().memory_info().rss - before)
            await asyncio.sleep(0.02)
        assert highest < 20 << 20
        assert counted(client, "messages_invalid") == 1


def test_a_line_is_kept_whole_up_to_its_bound_and_counted_once_beyond(tmp_path):
    file = tmp_path / "x.ndjson"
    file.write_bytes(b"a" * MAX_LINE + b"\n" + b"b" * (3 * MAX_LINE) + b"\nc\n")
    follower = Follower(file)
    lines = []
    while follower.position < file.stat().st_size:
        lines += follower.lines()
    assert [(line[:1], len(line)) for line in lines] == [(b"a", MAX_LINE), (b"c", 1)]
    assert follower.passed_over == 1
    follower.close()


async def test_every_file_of_a_folder_is_read_and_new_ones_too(tmp_path):
    first, second, third = windows_of(tmp_path, 3)
    folder = tmp_path / "releases"
    folder.mkdir()
    append(folder / "b.ndjson", second)
    append(folder / "a.ndjson", first)
    (folder / "notes.txt").write_text("nothing\n")
    os.mkfifo(folder / "pipe.ndjson")
    async with serving_file(bus_config(tmp_path), folder) as client:
        await are_read(client, "12", "13")
        append(folder / "c.ndjson", third)
        await are_read(client, "12", "13", "14")
        (folder / "a.ndjson").unlink()
        await asyncio.sleep(0.6)
        await are_read(client, "12", "13", "14")
        listed = (await json_of(client, "/api/v1/windows"))["windows"]
        assert [window["event_id"] for window in listed] == [3, 2, 1]
        assert counted(client, "messages_invalid") == 0


FIX = json.dumps({"user": "a", "time": 1_490_097_600_000, "lat": 30.2, "lng": -97.7, "speed": 12.0}) + "\n"
NO_RELEASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda file: None, "no such file"),
    "a recording": (lambda file: file.write_text(FIX), "no releases"),
    "a pipe": (os.mkfifo, "neither a file nor a folder"),
}


@pytest.mark.parametrize(("make", "said"), NO_RELEASES.values(), ids=NO_RELEASES)
def test_what_holds_no_releases_is_refused_with_the_command_that_makes_some(hexveil, tmp_path, make, said):
    make(tmp_path / "day.ndjson")
    command = [*hexveil, "serve", str(tmp_path / "day.ndjson"), "--config", str(hourly.BUS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=REPO_ROOT, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "--out" in done.stderr


def test_the_feed_of_a_file_is_that_of_its_first_release(tmp_path):
    file = tmp_path / "r.ndjson"
    file.write_text("")
    assert feed_in(file) is None
    file.write_text("rubbish\n")
    append(file, released(tmp_path, **{"feed.name": "riders"}))
    assert feed_in(file) == "riders"


def test_a_replayed_recording_and_serve_are_all_that_a_dashboard_needs(hexveil, tmp_path):
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(REPO_ROOT), "HEXVEIL_PUBLIC__PORT": str(port)}
    environment |= {"HEXVEIL_KAFKA__BOOTSTRAP": "127.0.0.1:9", "HEXVEIL_REDIS__URL": "redis://127.0.0.1:9/0"}
    (tmp_path / "day.ndjson").write_text(FIX)
    config = ("--config", str(hourly.BUS))
    replay = [*hexveil, "replay", "day.ndjson", "--offline", "--out", "releases.ndjson", *config]
    subprocess.run(replay, cwd=tmp_path, env=environment, check=True)
    with subprocess.Popen([*hexveil, "serve", "releases.ndjson", *config], cwd=tmp_path, env=environment) as serve:
        try:
            body = json.loads(fetched(f"http://127.0.0.1:{port}/api/v1/hexagons"))
            assert body["complete"] is True
            assert len(body["hexagons"]) == 1
            assert b"<html" in fetched(f"http://127.0.0.1:{port}/")
        finally:
            serve.send_signal(signal.SIGINT)
    assert serve.returncode == 0


SLD, OGC = "{http://www.opengis.net/sld}", "{http://www.opengis.net/ogc}"
SOURCES = REPO_ROOT / "stream" / "serve" / "dashboard" / "src"
READ = {"hexagons": ("OAPIF:{}ogc", "bus.newest"), "heat": ("{}api/v1/heat?mechanism=ag",)}
"""What ogr2ogr reads: an address, and a layer of several."""
OPERATORS = {"PropertyIsGreaterThanOrEqualTo": ">=", "PropertyIsLessThan": "<", "PropertyIsLessThanOrEqualTo": "<="}


def sql(part: Xml.Element) -> str:
    """A filter of a style in SQL."""
    tag, inside = part.tag.removeprefix(OGC), [sql(child) for child in part]
    if tag in ("PropertyName", "Literal"):
        return f'"{part.text}"' if tag == "PropertyName" else str(float(part.text or ""))
    between = {"And": " AND ", "Sub": " - "}.get(tag) or f" {OPERATORS[tag]} "
    return f"({between.join(inside)})"


def rules(name: str) -> dict[str, str]:
    """The colour of each rule, and for which features it is, in SQL."""
    listed = Xml.parse(REPO_ROOT / "config" / "gis" / f"{name}.sld").iter(f"{SLD}Rule")
    return {str(rule.findtext(f".//{SLD}CssParameter")): sql(rule.find(f"{OGC}Filter/*")) for rule in listed}  # type: ignore[arg-type]


def ramp(name: str) -> list[str]:
    (line,) = re.findall(rf"{name} = \[(.*)\]", (SOURCES / "palette.ts").read_text(encoding="utf-8"))
    return re.findall("#[0-9a-f]{6}", line)


@pytest.mark.skipif(shutil.which("ogr2ogr") is None, reason="no ogr2ogr; Debian: apt-get install gdal-bin")
@pytest.mark.parametrize("name", READ)
async def test_every_feature_has_the_one_colour_of_its_value_and_what_is_unsure_is_fainter(tmp_path, name):
    messages, _ = with_histograms(tmp_path)
    read = tmp_path / "read.gpkg"
    async with served(bus_config(tmp_path), messages) as client:
        command = ["ogr2ogr", str(read), *(word.format(client.make_url("/")) for word in READ[name])]
        assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0

    def matching(where: str) -> int:
        return len(pyogrio.raw.read(read, where=where, columns=[], read_geometry=True)[2])

    *coloured, faint = rules(name).values()
    valued = matching('"estimate_mean" IS NOT NULL' if name == "hexagons" else '"density" >= 1')
    assert valued > 0
    assert sum(map(matching, coloured)) == valued
    assert matching(" OR ".join(coloured)) == valued, "no feature has two"
    assert matching(faint) > 0


def test_classes_and_colours_are_those_of_the_dashboard():
    viridis = ramp("VIRIDIS")
    hexagons, heat = rules("hexagons"), rules("heat")
    assert list(heat)[:-1] == ramp("YL_OR_RD")
    classes = len(hexagons) - 1
    assert list(hexagons)[:-1] == [viridis[round(at * 9 / (classes - 1))] for at in range(classes)]
    ends = [[float(end) for end in re.findall(r"= ?([\d.]+)|< ([\d.]+)", text)[0] if end] for text in hexagons.values()]
    (speeds,) = re.findall(r"SPEEDS = \{ 'km/h': \[([\d, ]+)\]", (SOURCES / "statistics.ts").read_text("utf-8"))
    assert [end for (end,) in ends[1:-1]] == [float(end) for end in speeds.split(",")][: classes - 1]
    assert all(a < b for (a,), (b,) in pairwise(ends[:-1]))


async def test_a_complete_window_takes_nothing_more_and_other_numbers_of_it_change_no_answer(tmp_path):
    window = released(tmp_path)
    other = [message._replace(value=message.value.replace(b'"epsilon":2.0', b'"epsilon":2.5')) for message in window]
    async with following(tmp_path, window) as (client, file):
        before = await answers(client)
        append(file, other, window)
        for name in ("messages_invalid", "messages_duplicate"):
            await until_true(lambda name=name: counted(client, name) == len(window), PATIENCE_SECONDS)
        assert await answers(client) == before
