"""Complete windows as files: the tables of their messages, with names, kinds and refusals."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from stream.messages.message import HEXAGON_SPEED
from stream.messages.tables import table_of
from stream.serve.hexagons import MAX_RANGE_BYTES, MAX_WAITING
from tests.stream.serve.city import CELLS, USUAL_DAY, city_config, window, windows
from tests.stream.serve.serving import released, serving
from tests.support.builders import bus_config

START = "2017-03-21T12:00:00Z"


async def test_complete_windows_are_downloaded_and_incomplete_ones_refused(
    kafka: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages = released(tmp_path, **overrides)
    values = [message.value for message in messages if message.topic == HEXAGON_SPEED]
    path = f"/api/v1/windows/{START}/download"
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        for suffix, kind in (
            ("csv", "text/csv"),
            ("geojson", "application/geo+json"),
            ("parquet", "application/vnd.apache.parquet"),
        ):
            answer = await client.get(f"{path}.{suffix}")
            assert answer.status == 200
            assert answer.content_type == kind
            assert await answer.read() == table_of(values, suffix)
            named = f'attachment; filename="hexveil-{topic_name}-20170321T120000Z.{suffix}"'
            assert answer.headers["Content-Disposition"] == named
            again = await client.get(f"{path}.{suffix}", headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        unknown = await client.get(path.replace("T12", "T13") + ".csv")
        assert unknown.status == 404
    other = f"{topic_name}-x"
    overrides["feed.name"] = other
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    messages = released(tmp_path, **overrides)
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        absent = await client.get(f"{path}.parquet")
        assert absent.status == 501
        assert "hexveil[parquet]" in (await absent.json())["detail"]
        range_of = await client.get(f"/api/v1/download.parquet?from={START}&to=2017-03-21T13:00:00Z")
        assert range_of.status == 501
        assert (await (await client.get("/dashboard/settings")).json())["parquet"] is False
    overrides["feed.name"] = f"{topic_name}-y"
    messages = released(tmp_path, **overrides)
    async with serving(bus_config(tmp_path, **overrides), messages[1:]) as client:
        early = await client.get(f"{path}.csv")
        assert (early.status, early.content_type) == (409, "application/problem+json")


def spanning(first: int, last: int) -> str:
    """The query of a range, in hours from the first window."""
    return f"from=2017-03-21T{12 + first:02}:00:00Z&to=2017-03-21T{12 + last:02}:00:00Z"


async def test_a_range_is_every_complete_window_that_begins_in_it_oldest_first(
    kafka: str, tmp_path: Path, topic_name: str
) -> None:
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    hours = [window(config, hour) for hour in range(4)]
    unfinished = window(config, 4)[1:]
    values = [m.value for messages in hours[1:3] for m in messages if m.topic == HEXAGON_SPEED]
    async with serving(config, [*hours[1], *hours[0], *hours[3], *hours[2], *unfinished]) as client:
        for suffix in ("csv", "geojson", "parquet"):
            answer = await client.get(f"/api/v1/download.{suffix}?{spanning(1, 3)}")
            assert answer.status == 200
            assert await answer.read() == table_of(values, suffix)
            assert answer.headers["Content-Disposition"].endswith(f'-20170321T130000Z-20170321T150000Z.{suffix}"')
            assert answer.headers["Cache-Control"] == "public, no-cache"
        everything = await client.get(f"/api/v1/download.csv?{spanning(0, 9)}")
        assert len((await everything.text()).splitlines()) == 1 + 4 * len(CELLS)
        for query in (spanning(4, 5), spanning(3, 1), spanning(1, 1)):
            assert (await client.get(f"/api/v1/download.csv?{query}")).status == 404
        assert (await client.get(f"/api/v1/download.csv?from={START}")).status == 400


async def test_a_range_that_is_too_large_is_refused_with_its_bound(
    tmp_path: Path, kafka: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_RANGE_BYTES == 16 << 20
    monkeypatch.setattr("stream.serve.hexagons.MAX_RANGE_BYTES", 5_000)
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    async with serving(config, windows(config, [USUAL_DAY] * 3)) as client:
        refused = await client.get(f"/api/v1/download.csv?{spanning(0, 9)}")
        assert refused.status == 413
        assert "above 5000" in (await refused.json())["title"]
        assert (await client.get(f"/api/v1/download.csv?{spanning(0, 1)}")).status == 200


async def test_ranges_are_written_one_at_a_time_and_few_wait(
    tmp_path: Path, kafka: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = city_config(tmp_path, **{"feed.name": topic_name, "kafka.bootstrap": kafka})
    writing, most = 0, 0
    held_back = threading.Event()

    def slowly(values: Sequence[bytes], suffix: str) -> bytes:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        held_back.wait(60)
        writing -= 1
        return json.dumps([len(values), suffix]).encode()

    monkeypatch.setattr("stream.serve.hexagons.table_of", slowly)
    async with serving(config, windows(config, [USUAL_DAY] * 8)) as client:
        asked = [
            asyncio.create_task(client.get(f"/api/v1/download.csv?{spanning(0, last)}"))
            for last in range(1, MAX_WAITING + 4)
        ]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in done} == {503}
        held_back.set()
        statuses = sorted([(await task).status for task in asked])
        assert statuses == [200] * MAX_WAITING + [503] * 3
        assert most == 1
        held_back.clear()
        asked = [
            asyncio.create_task(client.get(f"/api/v1/download.csv?{spanning(1, last)}"))
            for last in range(2, MAX_WAITING + 3)
        ]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert (await client.get(f"/api/v1/download.csv?{spanning(0, 1)}")).status == 200, "what is kept needs no turn"
        held_back.set()
        await asyncio.wait(asked)
