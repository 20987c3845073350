"""Downloads say everything the messages say, in formats that their readers read."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from stream.messages.message import HEXAGON_SPEED, Message
from stream.serve.downloads import FIRST, rows_of, to_csv, to_geojson, to_parquet
from tests.stream.serve.serving import released, serving
from tests.support.builders import bus_config

START = "2017-03-21T12:00:00Z"


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages if message.topic == HEXAGON_SPEED]


def leaves(body: Any) -> list[Any]:
    """Every scalar of a message."""
    if isinstance(body, dict):
        return [leaf for value in body.values() for leaf in leaves(value)]
    if isinstance(body, list):
        return [leaf for value in body for leaf in leaves(value)]
    return [body]


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "variance", "p15", "p50", "p85"]])
def test_a_row_holds_every_number_of_its_message_and_its_schema_version(tmp_path: Path, statistics: list[str]) -> None:
    messages = values(released(tmp_path, **{"speed.statistics": statistics}))
    for row, value in zip(rows_of(messages), messages, strict=True):
        body = json.loads(value)
        assert row["schema_version"] == HEXAGON_SPEED
        assert (row["epsilon"], row["relation"], row["window_start"]) == (2.0, "values", START)
        assert (row["accounting"], row["delta"]) == ("pure", 0.0)
        for name in statistics:
            said = body[name]
            told = [row[name], row[f"{name}_raw"], [row[f"{name}_low"], row[f"{name}_high"]], row[f"{name}_unit"]]
            assert told == [said["value"], said["raw"], said["interval"], said["unit"]]
        assert row["post_processed_mean"] == body["post_processed"]["mean"]["value"]
        missing = [leaf for leaf in leaves(body) if leaf not in row.values()]
        assert not missing


def test_cells_that_say_less_have_empty_fields_and_the_same_columns(tmp_path: Path) -> None:
    messages = values(released(tmp_path, rows=60, **{"speed.min_users": 8}))
    statuses = [json.loads(value)["status"] for value in messages]
    assert {"published", "suppressed"} <= set(statuses)
    rows = list(csv.DictReader(io.StringIO(to_csv(messages).decode())))
    assert [row["status"] for row in rows] == statuses
    for row in rows:
        assert (row["mean"] == "") == (row["status"] == "suppressed")


def test_the_three_formats_hold_the_same_table(tmp_path: Path) -> None:
    messages = values(released(tmp_path))
    rows = rows_of(messages)
    read = list(csv.DictReader(io.StringIO(to_csv(messages).decode())))
    table = parquet.read_table(io.BytesIO(to_parquet(messages)))
    features = json.loads(to_geojson(messages))["features"]
    assert list(rows[0]) == list(read[0]) == table.column_names
    assert [feature["properties"] for feature in features] == rows
    for row, line, column in zip(rows, read, table.to_pylist(), strict=True):
        assert float(line["mean_raw"]) == row["mean_raw"] == column["mean_raw"]
        assert line["mean_clamped"] == str(row["mean_clamped"]).lower()
        assert column["window_start"] == datetime(2017, 3, 21, 12, tzinfo=UTC)
        assert column["events"] == row["events"] == int(line["events"])


def test_fields_that_are_yet_to_come_have_columns_too(tmp_path: Path) -> None:
    first, *others = map(json.loads, values(released(tmp_path)))
    first["post_processed"]["later"] = {
        "method": "m",
        "value": 1.5,
        "interval": [1.0, 2.0],
        "of": ["a", "b"],
        "on": True,
    }
    messages = [json.dumps(body).encode() for body in (first, *others)]
    said = {"": 1.5, "_low": 1.0, "_high": 2.0, "_method": "m", "_of": ["a", "b"], "_on": True}
    for row, line, column in zip(
        rows_of(messages),
        csv.DictReader(io.StringIO(to_csv(messages).decode())),
        parquet.read_table(io.BytesIO(to_parquet(messages))).to_pylist(),
        strict=True,
    ):
        here = row["cell"] == first["cell"]
        for suffix, value in said.items():
            name = f"post_processed_later{suffix}"
            assert row[name] == column[name] == (value if here else None)
            written = {"_of": "a b", "_on": "true"}.get(suffix, str(value))
            assert line[name] == (written if here else "")


def test_hexagons_are_closed_rings_that_run_counter_clockwise(tmp_path: Path) -> None:
    for feature in json.loads(to_geojson(values(released(tmp_path))))["features"]:
        (ring,) = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert sum((x1 - x0) * (y1 + y0) for (x0, y0), (x1, y1) in pairwise(ring)) < 0


def test_a_window_without_cells_is_a_table_without_rows() -> None:
    assert to_csv([]).decode().strip().split(",") == list(FIRST)
    assert json.loads(to_geojson([])) == {"type": "FeatureCollection", "features": []}
    assert parquet.read_table(io.BytesIO(to_parquet([]))).num_rows == 0


async def test_complete_windows_are_downloaded_and_incomplete_ones_refused(
    kafka: str, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    messages = released(tmp_path, **overrides)
    path = f"/api/v1/windows/{START}/download"
    async with serving(bus_config(tmp_path, **overrides), messages) as client:
        for suffix, kind, made in (
            ("csv", "text/csv", to_csv),
            ("geojson", "application/geo+json", to_geojson),
            ("parquet", "application/vnd.apache.parquet", to_parquet),
        ):
            answer = await client.get(f"{path}.{suffix}")
            assert answer.status == 200
            assert answer.content_type == kind
            assert await answer.read() == made(values(messages))
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
