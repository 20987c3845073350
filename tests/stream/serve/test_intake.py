"""While the service takes in releases, whatever their size, the event loop continues to answer readers. What is
answered while a window becomes complete says so, and is not taken for what is answered afterwards."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import h3
from aiohttp.test_utils import TestClient, TestServer

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
from tests.support.builders import SLOT
from tests.support.feeding import until_true

HOUR = Window(SLOT, SLOT + 3600)


def large_window(tmp_path: Path) -> list[Message]:
    """A window of 2 000 small messages, one per cell, and three histograms of 300 kB, with its marker last."""
    *small, marker = released(tmp_path)
    feed, body = "bus", json.loads(small[0].value)
    chosen = sorted(h3.grid_disk(h3.latlng_to_cell(30.27, -97.74, 10), 100))[:2_000]
    made = [window_message(HEXAGON_SPEED, feed, HOUR, cell, cell, body | {"cell": cell}) for cell in chosen]
    body = json.loads(histogram_message(feed, "ug").value)
    side = 400
    body["domain"] |= {"rows": side, "columns": side}
    edges, row = list(range(side + 1)), [column % 7 for column in range(side)]
    grid = {"kind": "grid", "x_edges": edges, "y_edges": edges, "counts": [row] * side, "variances": 2.0}
    body["structure"] = grid
    for mechanism in ("m1", "m2", "m3"):
        made.append(window_message(SPATIAL_HISTOGRAM, feed, HOUR, mechanism, feed, body | {"mechanism": mechanism}))
    promise = {"messages": len(made), "digest": digest(message.value for message in made)}
    return [*made, window_message(WINDOW, feed, HOUR, "close", feed, json.loads(marker.value) | promise)]


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


async def test_messages_are_checked_in_order_and_in_bounded_pieces_and_never_in_the_thread_of_the_event_loop(
    tmp_path, monkeypatch
):
    """How long readers wait while much is taken in depends on the machine; where the work is done does not."""
    threads: set[str] = set()
    pieces: list[list[Arrival]] = []
    in_thread = Intake.in_thread

    async def noted(self: Intake, work: Callable[[Argument], Result], argument: Argument) -> Result:
        if isinstance(argument, list):
            pieces.append(argument)
        return await in_thread(self, work, argument)

    def checked(topic: str, ce_id: str, value: bytes, number: int) -> Received | None:
        threads.add(threading.current_thread().name)
        return received(topic, ce_id, value, number)

    monkeypatch.setattr(Intake, "in_thread", noted)
    monkeypatch.setattr("stream.serve.reading.intake.received", checked)
    messages = arrivals(large_window(tmp_path), 1)
    async with taking(PublicMetrics()) as (intake, announced):
        await intake.take(messages)
    assert [arrival for piece in pieces for arrival in piece] == messages
    assert len(pieces) >= 7
    assert all(len(piece) == 1 or sum(len(a.value) for a in piece) <= PIECE_BYTES for piece in pieces)
    assert [window.complete for window in announced] == [True]
    assert {name.partition("_")[0] for name in threads} == {"intake"}


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
    body, long, view = json.loads(marker.value), "u" * MAX_LISTED_BYTES, View()
    body["period"] |= {"timezone": long}
    summary = json.loads(histogram_message("bus", "ug").value) | {"mechanism": long}
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


def test_windows_that_differ_in_anything_that_answers_say_have_different_tags():
    made = [
        WindowView(feed, start, end, number=number, complete=complete)
        for feed in ("bus", "tram")
        for start, end in ((START, "2017-03-21T13:00:00Z"), (START, "2017-03-21T14:00:00Z"), ("x", "y"))
        for number in (None, 1, 2)
        for complete in (False, True)
    ]
    assert len({one.tag for one in made}) == len(made)


ANSWERS = [
    f"/api/v1/hexagons?window={START}",
    f"/api/v1/hexagons?resolution=7&window={START}",
    f"/api/v1/area?ring={ring(0.01)}&window={START}",
    f"/api/v1/areas/{quote(WEST_SIDE, safe='')}?window={START}",
    f"/api/v1/windows/{START}/scheduled",
]


async def test_an_answer_from_before_a_window_is_complete_has_another_tag_than_the_one_afterwards(
    tmp_path, monkeypatch
):
    """All messages of the window are there, but its digest is not checked before the event is set."""
    checked, agrees = threading.Event(), WindowView.agrees

    def later(self: WindowView) -> bool:
        checked.wait(60)
        return agrees(self)

    monkeypatch.setattr(WindowView, "agrees", later)
    config = city_config(tmp_path, **city_files(tmp_path))
    append(tmp_path / "releases.ndjson", window(config, 0))
    source = FileSource(tmp_path / "releases.ndjson")
    async with TestClient(TestServer(make_app(config, source=source))) as client:
        try:
            await until_true(lambda: any(one.marker for one in client.server.app[SERVICE].view.windows.values()))
            before = [await client.get(path) for path in ANSWERS]
            assert (await client.get("/healthz")).status == 200, "while releases are taken in"
            assert [(await answer.json())["complete"] for answer in before] == [False] * len(ANSWERS)
        finally:
            checked.set()
        await ready(client)
        for path, answer in zip(ANSWERS, before, strict=True):
            after = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
            assert (await after.json())["complete"] is True, path
