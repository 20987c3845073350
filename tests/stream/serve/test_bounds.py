"""Whatever is written into the topics, the memory and work of the service are bounded, and complete windows stay. A
street map is read by ranges of a bounded length, by clients that do not have to be trusted to read them. Whoever asks
for many different answers at once waits alone: others get theirs, and the memory stays bounded."""

import ast
import asyncio
import gzip
import itertools
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h3
import psutil
import pytest
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestClient, TestServer

from stream.local.kafka import REPO_ROOT
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, validator
from stream.messages.range_query import MAX_CELLS
from stream.serve import hexagons, histograms, sending
from stream.serve.api import make_app
from stream.serve.ogc import features as ogc
from stream.serve.reading.intake import Arrival
from stream.serve.received import received
from stream.serve.static_files import LARGEST_RANGE, PMTILES, check_basemap
from stream.serve.window_store import View
from tests.stream.serve.made_windows import (
    START,
    arrivals,
    completed,
    histogram_message,
    outcomes,
    windows_of,
    with_histograms,
)
from tests.stream.serve.serving import json_of, released, served
from tests.support.builders import bus_config


def kept(tmp_path: Path, view: View, count: int) -> list[str]:
    """The starts of ``count`` windows that the view took."""
    return [window.start for window in completed(view, *windows_of(tmp_path, count)).completed()]


def hour(number: int) -> dict[str, str]:
    return {
        "start": f"2018-{1 + number // 672:02d}-{1 + number // 24 % 28:02d}T{number % 24:02d}:00:00Z",
        "end": "2019-01-01T00:00:00Z",
    }


def flood(tmp_path: Path, count: int) -> list[Arrival]:
    """A cell of each of ``count`` windows without a close marker."""
    body = json.loads(released(tmp_path)[0].value)
    return [
        Arrival(HEXAGON_SPEED, f"f{number}", json.dumps(body | {"window": hour(number)}).encode(), 0)
        for number in range(count)
    ]


@pytest.mark.parametrize("hour", ["1969-03-21T1", "1970-03-21T1", "1999-03-21T1", "0001-03-21T1", "2017-03-41T1"])
def test_a_window_before_2000_is_refused_so_that_no_timestamp_is_negative_as_one_is_that_no_calendar_has(
    tmp_path, hour
):
    for message in released(tmp_path):
        assert received(message.topic, message.ce_id, message.value.replace(b"2017-03-21T1", hour.encode())) is None


def with_text(value: bytes, place: tuple[str | int, ...], text: str) -> bytes:
    body = node = json.loads(value)
    for part in place[:-1]:
        node = node[part]
    node[place[-1]] = "@"
    return json.dumps(body).replace('"@"', text).encode()


SCALE = ("mean", "scale")
PLACES = (
    ("epsilon",),
    ("users",),
    ("mean", "raw"),
    SCALE,
    ("variance", "value"),
    ("post_processed", "mean", "interval", 1),
)
TOO_LARGE = ("9" * 400, "1e308", "-1e308", "18446744073709551616")
NO_NOISE = ("1e-320", "1e-200", "-1")
"""Scales below any that is drawn."""
NO_CELLS = ("0" * 15, "f" * 15, "87489e342fffff0")


def test_overflowing_numbers_noise_that_is_never_drawn_unknown_cells_and_messages_without_id_are_refused(tmp_path):
    cell, *_, marker = released(tmp_path)
    wrong = [*itertools.product(PLACES, TOO_LARGE), *((SCALE, scale) for scale in NO_NOISE)]
    wrong += [(("cell",), f'"{unknown}"') for unknown in NO_CELLS]
    assert not any(map(h3.is_valid_cell, NO_CELLS))
    for place, text in wrong:
        assert received(HEXAGON_SPEED, "x", with_text(cell.value, place, text)) is None, (place, text)
    for known in (cell.value, with_text(cell.value, SCALE, "0.0")):
        assert received(HEXAGON_SPEED, "x", known) is not None
    assert received(HEXAGON_SPEED, "", cell.value) is None
    assert received(WINDOW, "x", with_text(marker.value, ("clipping", "upper"), "1e200")) is None


def test_every_message_that_was_ever_pinned_is_within_the_bounds():
    values = 0
    for file in sorted((REPO_ROOT / "tests" / "golden").glob("*.ndjson.gz")):
        with gzip.open(file) as lines:
            for line in lines:
                message = json.loads(line)
                if "topic" in message:
                    assert validator(message["topic"]).is_valid(message["value"]), file
                    values += 1
    assert values > 500


def test_messages_without_a_marker_evict_no_complete_window_and_are_forgotten_oldest_first(tmp_path):
    view = View(max_windows=8)
    known = kept(tmp_path, view, 5)
    assert set(outcomes(view, flood(tmp_path, 900))) == {"taken"}
    assert [window.start for window in view.completed()] == known
    unmarked = [window.start for window in view.windows.values() if window.marker is None]
    assert unmarked == [hour(number)["start"] for number in range(892, 900)]


def test_bytes_without_a_marker_evict_no_complete_window(tmp_path):
    most = 4 * sum(len(message.value) for message in itertools.chain(*windows_of(tmp_path, 3)))
    view = View(max_bytes=most)
    known, flooding = kept(tmp_path, view, 3), flood(tmp_path, 400)
    for first in range(0, 400, 10):
        outcomes(view, flooding[first : first + 10])
        assert sum(window.size for window in view.windows.values()) <= most
    assert [window.start for window in view.completed()] == known


def test_what_was_forgotten_is_remembered_within_bounds(tmp_path):
    view, flooding = View(max_windows=2, max_forgotten=50), flood(tmp_path, 300)
    assert outcomes(view, [*flooding, flooding[290]])[-1] == "forgotten"
    assert len(view.forgotten) == 50


def test_a_histogram_whose_parts_do_not_fit_or_that_has_more_cells_than_can_be_released_is_refused_before_it_is_built():
    body = json.loads(histogram_message("bus", "ug").value)
    assert received(SPATIAL_HISTOGRAM, "x", json.dumps(body).encode()) is not None
    body["structure"]["x_edges"][-1] += 1
    assert validator(SPATIAL_HISTOGRAM).is_valid(body)
    assert received(SPATIAL_HISTOGRAM, "x", json.dumps(body).encode()) is None
    side = 8192
    body["domain"] |= {"rows": side, "columns": side}
    body["structure"] = {"kind": "grid", "x_edges": [0, side], "y_edges": [0, side], "counts": [[1]], "variances": 2.0}
    assert side * side > MAX_CELLS
    tracemalloc.start()
    assert received(SPATIAL_HISTOGRAM, "x", json.dumps(body).encode()) is None
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


BASEMAP = "/dashboard/basemap.pmtiles"


@asynccontextmanager
async def with_basemap(folder: Path, content: bytes) -> AsyncIterator[TestClient[Any, Any]]:
    """A server over a street map of these bytes, ``city.pmtiles`` in ``folder``."""
    archive = folder / "city.pmtiles"
    archive.write_bytes(content)
    async with TestClient(TestServer(make_app(bus_config(folder), check_basemap(archive)))) as client:
        yield client


RANGES = {
    "bytes=8-15": (8, 15),
    "bytes=0-": (0, 2055),
    "bytes=8-": (8, 2055),
    "bytes=-10": (2046, 2055),
    "bytes=2000-99999999999999999999": (2000, 2055),
}


async def test_a_basemap_is_served_by_ranges_that_end_with_it_and_nobody_keeps_and_no_file_beside_it_takes_its_place(
    tmp_path,
):
    content = b"PMTiles\x03" + bytes(range(256)) * 8
    async with with_basemap(tmp_path, content) as client:
        assert (await json_of(client, "/dashboard/settings"))["basemap"] is True
        for asked, (first, last) in RANGES.items():
            answer = await client.get(BASEMAP, headers={"Range": asked})
            assert (answer.status, answer.headers["Cache-Control"]) == (206, "no-store")
            assert answer.headers["Content-Range"] == f"bytes {first}-{last}/2056"
            assert await answer.read() == content[first : last + 1]
        whole = await client.get(BASEMAP, headers={"Range": "bytes=0-7", "If-Range": '"older"'})
        assert (whole.status, await whole.read()) == (200, content), "a part of another version is of no use"
        (tmp_path / "city.pmtiles.gz").write_bytes(b"\x1f\x8b of something else")
        assert await (await client.get(BASEMAP, headers={"Accept-Encoding": "gzip"})).read() == content
        (tmp_path / "city.pmtiles").unlink()
        assert (await client.get(BASEMAP)).status == 404


NO_RANGES = {
    416: ["bytes=99999999-", "bytes=5-2", "bytes=-0", "Bytes=-00", "bytes=0-1,4-5", "bytes=a-b"],
    413: [f"bytes=0-{LARGEST_RANGE}", None],
}


async def test_ranges_that_are_none_and_too_large_ones_are_refused_with_a_remedy(tmp_path):
    async with with_basemap(tmp_path, PMTILES + bytes(LARGEST_RANGE)) as client:
        for status, asked in ((status, asked) for status, texts in NO_RANGES.items() for asked in texts):
            answer = await client.get(BASEMAP, headers={"Range": asked} if asked else {})
            assert (answer.status, answer.content_type) == (status, "application/problem+json"), asked
            assert (await answer.json())["detail"].startswith("ask for")


async def test_a_client_that_reads_nothing_of_a_basemap_holds_no_file_and_loses_its_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "STALL_SECONDS", 0.5)
    async with with_basemap(tmp_path, PMTILES + bytes(LARGEST_RANGE - len(PMTILES))) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
        writer.write(b"GET /dashboard/basemap.pmtiles HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        await asyncio.sleep(0.2)
        assert not [file.path for file in psutil.Process().open_files() if file.path.endswith("city.pmtiles")]
        async with asyncio.timeout(30):
            await asyncio.sleep(1)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(LARGEST_RANGE)
        writer.close()


WINDOWS = 30
CHEAP = ("/api/v1/feeds", f"/api/v1/windows/{START}", "/ogc", "/dashboard/settings", "/api/v1/hexagons")
"""Paths of answers that are small, or kept because everybody asks for them."""


def boxes(path: str, count: int) -> list[str]:
    """The same answer for ``count`` boxes."""
    return [f"{path}bbox=-98,30,-97.{400 + number},30.6" for number in range(count)]


async def test_of_each_kind_of_answer_few_are_made_or_wait_and_what_is_kept_needs_no_turn(tmp_path, monkeypatch):
    for module in (hexagons, histograms, ogc):
        monkeypatch.setattr(module, "MOST_WAITING", 1)
    for name in ("MOST_SELECTED", "MAX_WAITING"):
        monkeypatch.setattr(hexagons, name, 1)
    first, _ = with_histograms(tmp_path)
    _, *others = windows_of(tmp_path, WINDOWS)
    async with served(bus_config(tmp_path), itertools.chain(first, *others)) as client:
        starts = [window["window"]["start"] for window in (await json_of(client, "/api/v1/windows"))["windows"]]
        cell = (await json_of(client, "/api/v1/hexagons"))["hexagons"][0]["cell"]
        kinds = {
            "boxes": boxes("/api/v1/hexagons?", WINDOWS),
            "resolutions": [f"/api/v1/hexagons?resolution={number}" for number in range(16)],
            "windows": [f"/api/v1/hexagons?window={start}" for start in starts],
            "features": [f"/api/v1/hexagons?format=geojson&window={start}" for start in starts],
            "files": [f"/api/v1/windows/{start}/download.csv" for start in starts],
            "pasts": [f"/api/v1/cells/{cell}?limit={number}" for number in range(1, WINDOWS + 1)],
            "lists": [f"/api/v1/windows?limit={number}" for number in range(1, WINDOWS + 1)],
            "counts": boxes(f"/api/v1/histograms/{START}/count?mechanism=ug&", WINDOWS),
            "ranges": [f"/api/v1/download.csv?from={START}&to={start}" for start in starts[:-1]],
            "pages": [f"/ogc/collections/bus.all/items?limit={number}" for number in range(1, WINDOWS + 1)],
        }
        for kind, (kept, *paths) in kinds.items():
            assert (await client.get(kept)).status == 200
            answers = await asyncio.gather(*(client.get(path) for path in (*paths, *[kept] * 5)))
            assert {answer.status for answer in answers[len(paths) :]} == {200}, kind
            refused = [answer for answer in answers if answer.status == 503]
            assert {answer.status for answer in answers} == {200, 503}, kind
            assert {answer.headers["Retry-After"] for answer in refused} == {"30" if kind == "ranges" else "5"}, kind
            assert (await client.get(paths[-1])).status == 200, kind


@pytest.mark.parametrize(
    ("kind", "making_one", "most"), [("box", "centre_of", "MOST_SELECTED"), ("range", "table_of", "MAX_WAITING")]
)
async def test_while_somebody_asks_for_many_they_are_made_one_at_a_time_and_others_get_what_is_cheap_and_their_own(
    kind, making_one, most, tmp_path, monkeypatch
):
    held_back, making, at_once, make = threading.Event(), 0, 0, getattr(hexagons, making_one)

    def slowly(*given: Any) -> Any:
        nonlocal making, at_once
        making += 1
        at_once = max(at_once, making)
        held_back.wait(60)
        making -= 1
        return make(*given)

    monkeypatch.setattr(hexagons, making_one, slowly)
    starts = [f"2017-03-21T{hour}:00:00Z" for hour in range(13, 23)]
    ranges = [f"/api/v1/download.csv?from={START}&to={start}" for start in starts]
    own, *flood = boxes("/api/v1/hexagons?", 100) if kind == "box" else ranges
    async with (
        served(bus_config(tmp_path), itertools.chain(*windows_of(tmp_path, 10))) as client,
        ClientSession(client.make_url("/"), connector=TCPConnector(local_addr=("127.0.0.2", 0))) as other,
    ):
        assert (await other.get("/api/v1/hexagons")).status == 200
        asked = [asyncio.create_task(client.get(path)) for path in flood]
        try:
            async with asyncio.timeout(50):
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for path in CHEAP:
                    assert (await other.get(path)).status == 200, path
                honest = asyncio.create_task(other.get(own))
                await asyncio.sleep(0.2)
        finally:
            held_back.set()
        assert (await honest).status == 200
        statuses = [(await task).status for task in asked]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) <= getattr(hexagons, most)
        assert at_once == 1


@pytest.mark.parametrize("is_complete", [False, True])
def test_all_who_wait_for_a_window_share_one_list_of_its_values(tmp_path, is_complete):
    messages, view = released(tmp_path), View()
    outcomes(view, arrivals(messages if is_complete else messages[:2], 1))
    (window,) = view.windows.values()
    values = window.in_order()
    assert window.in_order() is values
    if not is_complete:
        outcomes(view, arrivals(messages[2:3]))
        assert len(values) == 2, "whoever waits keeps what they asked for"
        assert len(window.in_order()) == 3
        outcomes(view, arrivals(messages[3:], 1))
    assert window.complete
    assert window.in_order() == [message.value for message in messages if message.topic == HEXAGON_SPEED]


def test_the_api_makes_its_decoders_on_import():
    """msgspec resolves a type when it is decoded for the first time, and two threads that do so at once crash."""
    late = {
        (path.name, call.lineno)
        for path in [*(REPO_ROOT / "stream/serve").rglob("*.py"), REPO_ROOT / "stream/messages/cells.py"]
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and (
            call.func.attr == "Decoder"
            or (call.func.attr in ("decode", "convert") and any(k.arg == "type" for k in call.keywords))
        )
    }
    assert not late
