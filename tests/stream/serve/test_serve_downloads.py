"""Complete windows as files: the tables of their messages, with names, kinds and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stream.messages.message import HEXAGON_SPEED
from stream.messages.tables import table_of
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
            assert "immutable" in answer.headers["Cache-Control"]
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
    overrides["feed.name"] = f"{topic_name}-y"
    messages = released(tmp_path, **overrides)
    async with serving(bus_config(tmp_path, **overrides), messages[1:]) as client:
        early = await client.get(f"{path}.csv")
        assert (early.status, early.content_type) == (409, "application/problem+json")
