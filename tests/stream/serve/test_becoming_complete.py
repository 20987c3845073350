"""What is answered while a window becomes complete says so, and is not taken for what is answered afterwards."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h3
import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream.config import Config
from stream.messages.lines import line_of
from stream.serve.api import make_app
from stream.serve.reading.files import FileSource
from stream.serve.received import received
from stream.serve.window_store import View, WindowView
from tests.stream.serve.city import BUSY, city_config, window
from tests.stream.serve.made_places import WEST_SIDE, city_files
from tests.stream.serve.serving import ready, released

START = "2017-03-21T12:00:00Z"


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
    releases.write_text("".join(map(line_of, window(config, 0))))
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


def test_a_window_that_became_complete_has_another_tag(tmp_path: Path) -> None:
    view, messages = View(), released(tmp_path, **{"feed.name": "bus"})
    for number, message in enumerate(messages, 1):
        taken = received(message.topic, message.ce_id, message.value, number)
        assert taken is not None
        assert view.put(taken) == "taken"
    (full,) = view.windows.values()
    before, cells = full.tag, full.agreeing()
    assert cells is not None
    view.finish(full, cells)
    assert full.tag != before
    assert json.loads(full.described().summary)["complete"]


def test_windows_that_differ_in_anything_that_answers_say_have_different_tags() -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked = path.rstrip("?&") if "scheduled" in path else f"{path}window={START}"
    config = city_config(tmp_path, **{"feed.name": "bus"} | city_files(tmp_path))
    async with before_the_digest(config, tmp_path, monkeypatch) as (client, checked):
        before = await client.get(asked)
        assert (await before.json())["complete"] is False
        checked.set()
        await ready(client)
        after = await client.get(asked, headers={"If-None-Match": before.headers["ETag"]})
        assert (await after.json())["complete"] is True
