"""Tables contain everything that the messages contain, and common readers of their formats can read them."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from stream.messages.message import HEXAGON_SPEED, Message
from stream.messages.tables import ALWAYS, TOTALS, rows_of, table_of
from tests.stream.serve.serving import released

START = "2017-03-21T12:00:00Z"


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages if message.topic == HEXAGON_SPEED]


def leaves(body: Any) -> list[Any]:
    """Every scalar and every distribution's list of a message."""
    if isinstance(body, dict):
        return [leaf for value in body.values() for leaf in leaves(value)]
    if isinstance(body, list) and len(body) == 2:
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
            raw, interval = row[f"{name}_raw_to_average"], [row[f"{name}_low"], row[f"{name}_high"]]
            columns = [row[name], raw, interval, row[f"{name}_unit"]]
            assert columns == [said["value"], said["raw"], said["interval"], said["unit"]]
        if "p50" in statistics:
            assert row["cdf"] == body["cdf"]["value"]
            assert len(row["cdf_at"]) == len(row["cdf_low"]) == len(row["cdf_high"]) == 32
        assert row["post_processed_mean"] == body["post_processed"]["mean"]["value"]
        missing = [leaf for leaf in leaves(body) if leaf not in row.values()]
        assert not missing


def test_cells_that_say_less_have_empty_fields_and_the_same_columns(tmp_path: Path) -> None:
    messages = values(released(tmp_path, rows=60, **{"speed.min_users": 8}))
    statuses = [json.loads(value)["status"] for value in messages]
    assert {"published", "suppressed"} <= set(statuses)
    rows = list(csv.DictReader(io.StringIO(table_of(messages, "csv").decode())))
    assert [row["status"] for row in rows] == statuses
    for row in rows:
        assert (row["mean"] == "") == (row["status"] == "suppressed")


def test_the_three_formats_hold_the_same_table(tmp_path: Path) -> None:
    messages = values(released(tmp_path))
    rows = rows_of(messages)
    read = list(csv.DictReader(io.StringIO(table_of(messages, "csv").decode())))
    table = parquet.read_table(io.BytesIO(table_of(messages, "parquet")))
    features = json.loads(table_of(messages, "geojson"))["features"]
    assert [*rows[0], *TOTALS] == list(read[0]) == table.column_names
    assert [{name: feature["properties"][name] for name in rows[0]} for feature in features] == rows
    for row, line, column in zip(rows, read, table.to_pylist(), strict=True):
        assert float(line["mean_raw_to_average"]) == row["mean_raw_to_average"] == column["mean_raw_to_average"]
        assert line["mean_clamped"] == str(row["mean_clamped"]).lower()
        assert column["window_start"] == datetime(2017, 3, 21, 12, tzinfo=UTC)
        assert column["events"] == row["events"] == int(line["events"])


def test_every_row_has_the_total_of_its_window_by_raw_values_although_empty_cells_are_clamped_to_zero(
    tmp_path: Path,
) -> None:
    """Laplace noise of scale 3 in 300 empty cells: clamped values add up to some 300 · 3/2; 95 % of raw sums are within
    2.12 · σ."""
    (body,) = [json.loads(value) for value in values(released(tmp_path))][:1]
    generator = np.random.default_rng(7)
    raws = generator.laplace(0.0, 3.0, 300).round(1).tolist()
    noisy = [
        body
        | {
            "users": {
                "value": max(raw, 0.0),
                "raw": raw,
                "clamped": raw < 0,
                "scale": 3.0,
                "interval": [0, 9],
                "unit": "1",
            }
        }
        for raw in raws
    ]
    messages = [json.dumps(one).encode() for one in noisy]
    table = parquet.read_table(io.BytesIO(table_of(messages, "parquet")))
    (total,) = {(row["window_users"], row["window_users_low"], row["window_users_high"]) for row in table.to_pylist()}
    reach = 2.12 * 3.0 * (2 * 300) ** 0.5
    assert total[0] == pytest.approx(max(sum(raws), 0.0), abs=0.1)
    assert total[2] == pytest.approx(sum(raws) + reach, abs=0.2)
    assert total[1] == 0.0
    assert sum(one["users"]["value"] for one in noisy) > total[2], "what a planner would get"
    read = list(csv.DictReader(io.StringIO(table_of(messages, "csv").decode())))
    assert {float(row["window_users"]) for row in read} == {total[0]}
    assert {(row["window_events"], row["window_events_low"]) for row in read} == {(str(300 * body["events"]), "")}
    for name, said in (("users_raw_to_add", "add"), ("users", "add that one"), ("window_users", "never add it")):
        assert said in table.schema.field(name).metadata[b"description"].decode()


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
        csv.DictReader(io.StringIO(table_of(messages, "csv").decode())),
        parquet.read_table(io.BytesIO(table_of(messages, "parquet"))).to_pylist(),
        strict=True,
    ):
        here = row["cell"] == first["cell"]
        for suffix, value in said.items():
            name = f"post_processed_later{suffix}"
            assert row[name] == column[name] == (value if here else None)
            written = {"_of": "a b", "_on": "true"}.get(suffix, str(value))
            assert line[name] == (written if here else "")


def test_an_estimate_without_an_interval_has_no_columns_for_one(tmp_path: Path) -> None:
    modelling = {"speed.statistics": ["mean", "variance"], "speed.post_processing": ["clipped-normal"]}
    messages = values(released(tmp_path, **modelling))
    table = parquet.read_table(io.BytesIO(table_of(messages, "parquet")))
    columns = sorted(name for name in table.column_names if name.startswith("post_processed_p50"))
    assert columns == ["post_processed_p50", "post_processed_p50_method", "post_processed_p50_unit"]
    for value, line, column in zip(
        messages, csv.DictReader(io.StringIO(table_of(messages, "csv").decode())), table.to_pylist(), strict=True
    ):
        modelled = json.loads(value)["post_processed"]["p50"]
        assert column["post_processed_p50"] == float(line["post_processed_p50"]) == modelled["value"]
        assert column["post_processed_p50_method"] == line["post_processed_p50_method"] == "clipped-normal"


def test_hexagons_are_closed_rings_that_run_counter_clockwise(tmp_path: Path) -> None:
    for feature in json.loads(table_of(values(released(tmp_path)), "geojson"))["features"]:
        (ring,) = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert sum((x1 - x0) * (y1 + y0) for (x0, y0), (x1, y1) in pairwise(ring)) < 0


def test_parquet_says_beside_each_column_which_value_may_be_averaged(tmp_path: Path) -> None:
    schema = parquet.read_table(io.BytesIO(table_of(values(released(tmp_path)), "parquet"))).schema
    assert b"average or model this one" in schema.field("mean_raw_to_average").metadata[b"description"]
    assert b"biased" in schema.field("mean").metadata[b"description"]
    units = {field.name: field.metadata[b"unit"] for field in schema if b"unit" in (field.metadata or {})}
    assert {units[name] for name in ("mean", "mean_raw_to_average", "mean_scale", "estimate_mean_low")} == {b"km/h"}
    assert not {"mean_unit", "mean_mechanism", "mean_clamped", "latitude"} & units.keys()


def test_a_window_without_cells_is_a_table_without_rows() -> None:
    assert table_of([], "csv").decode().strip().split(",") == [*ALWAYS, *TOTALS]
    assert json.loads(table_of([], "geojson")) == {"type": "FeatureCollection", "features": []}
    assert parquet.read_table(io.BytesIO(table_of([], "parquet"))).num_rows == 0
