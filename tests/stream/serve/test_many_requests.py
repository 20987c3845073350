"""Whoever asks for many different answers at once waits alone: others get theirs, and the memory stays bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestClient, TestServer

from stream.messages.lines import line_of
from stream.messages.message import HEXAGON_SPEED
from stream.serve import hexagons, histograms
from stream.serve.api import make_app
from stream.serve.city.areas import centre_of
from stream.serve.reading.files import FileSource
from stream.serve.window_store import View
from tests.stream.serve.made_windows import START, windows_of, with_histograms
from tests.stream.serve.serving import ready, released, serving_file
from tests.stream.serve.taking import arrivals, outcomes
from tests.support.builders import bus_config

FEED = {"feed.name": "bus"}
WINDOWS = 30
CHEAP = ("/api/v1/feeds", f"/api/v1/windows/{START}", "/ogc", "/dashboard/settings", "/api/v1/hexagons")
"""Paths of answers that are small, or kept because everybody asks for them."""


def boxes(path: str, count: int) -> list[str]:
    """The same answer for ``count`` boxes."""
    return [f"{path}bbox=-98,30,-97.{400 + number},30.6" for number in range(count)]


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestClient[Any, Any]]:
    """The service over many windows; of each kind of answer one is made at a time, and none waits."""
    for module, name in ((hexagons, "MOST_WAITING"), (hexagons, "MOST_SELECTED"), (histograms, "MOST_WAITING")):
        monkeypatch.setattr(module, name, 1)
    first, _ = with_histograms(tmp_path, FEED)
    _, *others = windows_of(tmp_path, FEED, WINDOWS)
    releases = tmp_path / "releases.ndjson"
    releases.write_text("".join(line_of(message) for window in (first, *others) for message in window))
    async with serving_file(bus_config(tmp_path, **FEED), releases) as made:
        yield made


def of_cells(cell: str, start: Callable[[int], str]) -> dict[str, list[str]]:
    """Different requests for each kind of answer of which there are many."""
    return {
        "boxes": boxes("/api/v1/hexagons?", WINDOWS),
        "resolutions": [f"/api/v1/hexagons?resolution={number}" for number in range(16)],
        "windows": [f"/api/v1/hexagons?window={start(number)}" for number in range(WINDOWS)],
        "features": [f"/api/v1/hexagons?format=geojson&window={start(number)}" for number in range(WINDOWS)],
        "files": [f"/api/v1/windows/{start(number)}/download.csv" for number in range(WINDOWS)],
        "pasts": [f"/api/v1/cells/{cell}?limit={number}" for number in range(1, WINDOWS + 1)],
        "lists": [f"/api/v1/windows?limit={number}" for number in range(1, WINDOWS + 1)],
        "counts": boxes(f"/api/v1/histograms/{START}/count?mechanism=ug&", WINDOWS),
    }


async def test_of_each_kind_of_answer_few_are_made_or_wait_and_what_is_kept_needs_no_turn(
    client: TestClient[Any, Any],
) -> None:
    listed = (await (await client.get("/api/v1/windows")).json())["windows"]
    starts = [window["window"]["start"] for window in listed]
    cell = (await (await client.get("/api/v1/hexagons")).json())["hexagons"][0]["cell"]
    for kind, (kept, *paths) in of_cells(cell, starts.__getitem__).items():
        assert (await client.get(kept)).status == 200
        answers = await asyncio.gather(*(client.get(path) for path in (*paths, *[kept] * 5)))
        assert {answer.status for answer in answers[len(paths) :]} == {200}, kind
        refused = [answer for answer in answers if answer.status == 503]
        assert {answer.status for answer in answers} == {200, 503}, kind
        assert {answer.headers["Retry-After"] for answer in refused} == {"5"}, kind
        assert (await client.get(paths[-1])).status == 200, kind


async def test_while_somebody_asks_for_many_boxes_others_get_what_is_cheap_and_a_box_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_back, making, most = threading.Event(), 0, 0

    def slowly(*given: Any) -> tuple[float, float]:
        nonlocal making, most
        making += 1
        most = max(most, making)
        held_back.wait(60)
        making -= 1
        return centre_of(*given)

    monkeypatch.setattr(hexagons, "centre_of", slowly)
    releases = tmp_path / "releases.ndjson"
    releases.write_text("".join(map(line_of, released(tmp_path, **FEED))))
    own, *flood = boxes("/api/v1/hexagons?", 100)
    async with (
        TestClient(TestServer(make_app(bus_config(tmp_path, **FEED), source=FileSource(releases)))) as client,
        ClientSession(client.make_url("/"), connector=TCPConnector(local_addr=("127.0.0.2", 0))) as other,
    ):
        await ready(client)
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
        assert statuses.count(200) <= hexagons.MOST_SELECTED
        assert most == 1


@pytest.mark.parametrize("is_complete", [False, True])
def test_all_who_wait_for_a_window_share_one_list_of_its_values(tmp_path: Path, is_complete: bool) -> None:
    messages, view = released(tmp_path, **FEED), View()
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
