"""While the service takes in releases, whatever their size, the event loop continues to answer readers. What is
answered while a window becomes complete says so, and is not taken for what is answered afterwards."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h3
import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, Message, digest, window_message
from stream.serve.api import SERVICE, make_app
from stream.serve.metrics import PublicMetrics
from stream.serve.reading.files import FileSource
from stream.serve.reading.intake import PIECE_BYTES, Argument, Arrival, Intake, Result
from stream.serve.received import MAX_ID_BYTES, MAX_LISTED_BYTES, Received, received
from stream.serve.window_store import View, WindowView
from stream.windows import Window
from tests.stream.serve.city import BUSY, city_config, window
from tests.stream.serve.made_places import WEST_SIDE, city_files
from tests.stream.serve.made_windows import START, arrivals, histogram_message, outcomes
from tests.stream.serve.serving import append, ready, released
from tests.support.builders import SLOT, bus_config

HOUR = Window(SLOT, SLOT + 3600)
GRID_SIDE = 400
"""Cells along each side of a large histogram, whose message then has about 300 kB."""
MOST_SECONDS = 240
"""How long a machine that is busy with other things may take to read a large file."""


def large_window(tmp_path: Path, cells: int, histograms: int) -> list[Message]:
    """A window of small messages, one per cell, and large ones, one per histogram, with its marker last."""
    *small, marker = released(tmp_path)
    feed, body = "bus", json.loads(small[0].value)
    chosen = sorted(h3.grid_disk(h3.latlng_to_cell(30.27, -97.74, 10), 100))[:cells]
    made = [window_message(HEXAGON_SPEED, feed, HOUR, cell, cell, body | {"cell": cell}) for cell in chosen]
    body = json.loads(histogram_message(feed, "ug").value)
    body["domain"] |= {"rows": GRID_SIDE, "columns": GRID_SIDE}
    edges, row = list(range(GRID_SIDE + 1)), [column % 7 for column in range(GRID_SIDE)]
    grid = {"kind": "grid", "x_edges": edges, "y_edges": edges, "counts": [row] * GRID_SIDE, "variances": 2.0}
    body["structure"] = grid
    for mechanism in (f"m{number:04d}" for number in range(histograms)):
        made.append(window_message(SPATIAL_HISTOGRAM, feed, HOUR, mechanism, feed, body | {"mechanism": mechanism}))
    promise = {"messages": len(made), "digest": digest(message.value for message in made)}
    return [*made, window_message(WINDOW, feed, HOUR, "close", feed, json.loads(marker.value) | promise)]


async def test_no_message_is_checked_in_the_thread_of_the_event_loop(tmp_path, monkeypatch):
    """How long readers wait while 50 MB are taken in depends on the machine; where the work is done does not."""
    threads: set[str] = set()

    def noted(topic: str, ce_id: str, value: bytes, number: int) -> Received | None:
        threads.add(threading.current_thread().name)
        return received(topic, ce_id, value, number)

    monkeypatch.setattr("stream.serve.reading.intake.received", noted)
    releases = tmp_path / "releases.ndjson"
    append(releases, large_window(tmp_path, cells=2_000, histograms=3))
    app = make_app(bus_config(tmp_path), source=FileSource(releases))
    async with asyncio.timeout(MOST_SECONDS), TestClient(TestServer(app)) as client:
        while not app[SERVICE].view.completed("bus"):
            assert (await client.get("/healthz")).status == 200
            await asyncio.sleep(0.05)
    assert threads
    assert all(name.startswith("intake") for name in threads)


@asynccontextmanager
async def taking(metrics: PublicMetrics) -> AsyncIterator[tuple[Intake, list[WindowView]]]:
    """An intake that has caught up, and the windows that it announces."""
    announced: list[WindowView] = []
    intake = Intake(View(), metrics, "bus", announced.append)
    intake.caught_up.set()
    try:
        yield intake, announced
    finally:
        intake.close()


async def test_messages_are_checked_in_their_order_and_in_pieces_of_bounded_size(tmp_path, monkeypatch):
    pieces: list[list[Arrival]] = []
    in_thread = Intake.in_thread

    async def noted(self: Intake, work: Callable[[Argument], Result], argument: Argument) -> Result:
        if isinstance(argument, list):
            pieces.append(argument)
        return await in_thread(self, work, argument)

    monkeypatch.setattr(Intake, "in_thread", noted)
    messages = arrivals(large_window(tmp_path, cells=2_000, histograms=3), 1)
    async with taking(PublicMetrics()) as (intake, announced):
        await intake.take(messages)
    assert [arrival for piece in pieces for arrival in piece] == messages
    assert len(pieces) >= 7
    assert all(len(piece) == 1 or sum(len(a.value) for a in piece) <= PIECE_BYTES for piece in pieces)
    assert [window.complete for window in announced] == [True]


async def test_readers_who_ask_for_much_do_not_hold_up_the_intake(tmp_path):
    end = threading.Event()
    asked = [asyncio.create_task(asyncio.to_thread(end.wait)) for _ in range(200)]
    async with taking(PublicMetrics()) as (intake, announced):
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(120):
                await intake.take(arrivals(released(tmp_path), 1))
            assert len(announced) == 1
        finally:
            end.set()
            await asyncio.gather(*asked)


async def test_the_newest_window_is_of_the_configured_feed_in_whichever_order_windows_arrive(tmp_path):
    metrics, ends = PublicMetrics(), []
    async with taking(metrics) as (intake, _):
        for feed, hour in (("bus", 1), ("bus", 0), ("tram", 3), ("bus", 2)):
            messages = window(city_config(tmp_path, **{"feed.name": feed}), hour)
            assert (await intake.take(arrivals(messages, 1)))[-1] == "completed"
            ends.append(metrics.registry.get_sample_value("hexveil_public_last_window_seconds"))
    assert ends == [SLOT + hours * 3600 for hours in (2, 2, 2, 3)]


def test_a_marker_a_summary_or_an_identifier_that_is_too_long_is_refused_and_none_of_it_kept(tmp_path):
    *cells, marker = released(tmp_path)
    histogram = histogram_message("bus", "ug")
    long = "u" * MAX_LISTED_BYTES
    body = json.loads(marker.value)
    body["period"] |= {"timezone": long}
    view, summary = View(), json.loads(histogram.value) | {"mechanism": long}
    refused = [
        Arrival(WINDOW, marker.ce_id, json.dumps(body).encode(), 1),
        Arrival(SPATIAL_HISTOGRAM, "x", json.dumps(summary).encode(), 0),
        Arrival(HEXAGON_SPEED, "x" * (MAX_ID_BYTES + 1), cells[0].value, 0),
    ]
    assert set(outcomes(view, refused)) == {"invalid"}
    assert not view.windows
    assert outcomes(view, arrivals(cells[:1])) == ["taken"]


def ring(half: float) -> str:
    """A box around BUSY, as the corners of a drawn area."""
    lat, lng = h3.cell_to_latlng(BUSY)
    return ",".join(
        f"{lng + east * half:.5f},{lat + north * half:.5f}" for east, north in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    )


@asynccontextmanager
async def before_the_digest(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[TestClient[Any, Any], threading.Event]]:
    """The service with all messages of a window, of which it has not checked the digest before the event is set."""
    checked, agreeing = threading.Event(), WindowView.agreeing

    def later(self: WindowView) -> list[bytes] | None:
        checked.wait(60)
        return agreeing(self)

    monkeypatch.setattr(WindowView, "agreeing", later)
    releases = tmp_path / "releases.ndjson"
    append(releases, window(config, 0))
    async with TestClient(TestServer(make_app(config, source=FileSource(releases)))) as client:
        try:
            async with asyncio.timeout(60):
                while (await state_of(client)) is None:
                    await asyncio.sleep(0.02)
            yield client, checked
        finally:
            checked.set()


async def state_of(client: TestClient[Any, Any]) -> bool | None:
    """Whether the window is complete; None before its marker came."""
    answer = await client.get(f"/api/v1/windows/{START}")
    body = await answer.json()
    return None if answer.status == 404 or body["marker"] is None else bool(body["complete"])


def test_windows_that_differ_in_anything_that_answers_say_have_different_tags():
    made = [
        WindowView(feed, start, end, number=number, complete=complete)
        for feed in ("bus", "tram")
        for start, end in ((START, "2017-03-21T13:00:00Z"), (START, "2017-03-21T14:00:00Z"), ("x", "y"))
        for number in (None, 1, 2)
        for complete in (False, True)
    ]
    assert len({one.tag for one in made}) == len(made)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/hexagons?",
        "/api/v1/hexagons?resolution=7&",
        f"/api/v1/area?ring={ring(0.01)}&",
        f"/api/v1/areas/{quote(WEST_SIDE, safe='')}?",
        f"/api/v1/windows/{START}/scheduled?",
    ],
)
async def test_an_answer_from_before_a_window_is_complete_has_another_tag_than_the_one_afterwards(
    tmp_path, monkeypatch, path
):
    asked = path.rstrip("?&") if "scheduled" in path else f"{path}window={START}"
    config = city_config(tmp_path, **city_files(tmp_path))
    async with before_the_digest(config, tmp_path, monkeypatch) as (client, checked):
        before = await client.get(asked)
        assert (await before.json())["complete"] is False
        checked.set()
        await ready(client)
        after = await client.get(asked, headers={"If-None-Match": before.headers["ETag"]})
        assert (await after.json())["complete"] is True
