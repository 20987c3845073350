"""Tables contain everything that the messages contain, and common readers of their formats can read them. The shapes of
a window's cells tile its ground, for every reader, and files of all windows have the same columns. The AsyncAPI
document is valid, and accepts the same messages as the schemas."""

import csv
import io
import json
import random
import shutil
import subprocess
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import h3
import jsonschema
import numpy as np
import pyogrio
import pytest
import shapely
from pyarrow import parquet

from stream.local.kafka import REPO_ROOT
from stream.messages.cells import Cell
from stream.messages.lines import line_of
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, WINDOW, Message, digest, schema, window_message
from stream.messages.shapes import Place, centre_of, geometry_of, places_of
from stream.messages.tables import ALWAYS, TOTALS, feature, row_of, rows_of, table_of
from stream.messages.topics import document, topic_plans
from stream.windows import Window
from tests.stream.serve.city import STEADY, bodies, city_config, window
from tests.stream.serve.serving import released, serving_file
from tests.support.builders import SLOT, bus_config
from tests.support.command import run
from tests.support.schemas import mutations

START = "2017-03-21T12:00:00Z"


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages if message.topic == HEXAGON_SPEED]


def in_csv(messages: list[bytes]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_of(messages, "csv").decode())))


def in_parquet(messages: list[bytes]) -> Any:
    return parquet.read_table(io.BytesIO(table_of(messages, "parquet")))


def leaves(body: Any) -> list[Any]:
    """Every scalar and every distribution's list of a message."""
    if isinstance(body, dict):
        return [leaf for value in body.values() for leaf in leaves(value)]
    if isinstance(body, list) and len(body) == 2:
        return [leaf for value in body for leaf in leaves(value)]
    return [body]


@pytest.mark.parametrize("statistics", [["mean"], ["mean", "variance", "p15", "p50", "p85"]])
def test_a_row_holds_every_number_of_its_message_and_its_schema_version(tmp_path, statistics):
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


def test_cells_that_say_less_have_empty_fields_and_the_same_columns(tmp_path):
    messages = values(released(tmp_path, rows=60, **{"speed.min_users": 8}))
    statuses = [json.loads(value)["status"] for value in messages]
    assert {"published", "suppressed"} <= set(statuses)
    rows = in_csv(messages)
    assert [row["status"] for row in rows] == statuses
    for row in rows:
        assert (row["mean"] == "") == (row["status"] == "suppressed")


def test_the_three_formats_hold_the_same_table_whose_hexagons_are_closed_rings_counter_clockwise(tmp_path):
    messages = values(released(tmp_path))
    rows, read, table = rows_of(messages), in_csv(messages), in_parquet(messages)
    features = json.loads(table_of(messages, "geojson"))["features"]
    assert [*rows[0], *TOTALS] == list(read[0]) == table.column_names
    assert [{name: feature["properties"][name] for name in rows[0]} for feature in features] == rows
    for row, line, column in zip(rows, read, table.to_pylist(), strict=True):
        assert float(line["mean_raw_to_average"]) == row["mean_raw_to_average"] == column["mean_raw_to_average"]
        assert line["mean_clamped"] == str(row["mean_clamped"]).lower()
        assert column["window_start"] == datetime(2017, 3, 21, 12, tzinfo=UTC)
        assert column["events"] == row["events"] == int(line["events"])
    for hexagon in features:
        (ring,) = hexagon["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert sum((x1 - x0) * (y1 + y0) for (x0, y0), (x1, y1) in pairwise(ring)) < 0
    assert table_of([], "csv").decode().strip().split(",") == [*ALWAYS, *TOTALS]
    assert json.loads(table_of([], "geojson")) == {"type": "FeatureCollection", "features": []}
    assert in_parquet([]).num_rows == 0


def test_every_row_has_the_total_of_its_window_by_raw_values_although_empty_cells_are_clamped_to_zero(tmp_path):
    """Laplace noise of scale 3 in 300 empty cells: clamped values add up to some 300 · 3/2; 95 % of raw sums are within
    2.12 · σ."""
    (body,) = [json.loads(value) for value in values(released(tmp_path))][:1]
    generator = np.random.default_rng(7)
    raws = generator.laplace(0.0, 3.0, 300).round(1).tolist()
    said = {"scale": 3.0, "interval": [0, 9], "unit": "1"}
    noisy = [body | {"users": said | {"value": max(raw, 0.0), "raw": raw, "clamped": raw < 0}} for raw in raws]
    messages = [json.dumps(one).encode() for one in noisy]
    table = in_parquet(messages)
    (total,) = {(row["window_users"], row["window_users_low"], row["window_users_high"]) for row in table.to_pylist()}
    reach = 2.12 * 3.0 * (2 * 300) ** 0.5
    assert total[0] == pytest.approx(max(sum(raws), 0.0), abs=0.1)
    assert total[2] == pytest.approx(sum(raws) + reach, abs=0.2)
    assert total[1] == 0.0
    assert sum(one["users"]["value"] for one in noisy) > total[2], "what a planner would get"
    read = in_csv(messages)
    assert {float(row["window_users"]) for row in read} == {total[0]}
    assert {(row["window_events"], row["window_events_low"]) for row in read} == {(str(300 * body["events"]), "")}
    for name, said in (("users_raw_to_add", "add"), ("users", "add that one"), ("window_users", "never add it")):
        assert said in table.schema.field(name).metadata[b"description"].decode()


def test_fields_that_are_yet_to_come_have_columns_too(tmp_path):
    first, *others = map(json.loads, values(released(tmp_path)))
    later = {"method": "m", "value": 1.5, "interval": [1.0, 2.0], "of": ["a", "b"], "on": True}
    first["post_processed"]["later"] = later
    messages = [json.dumps(body).encode() for body in (first, *others)]
    said = {"": 1.5, "_low": 1.0, "_high": 2.0, "_method": "m", "_of": ["a", "b"], "_on": True}
    for row, line, column in zip(rows_of(messages), in_csv(messages), in_parquet(messages).to_pylist(), strict=True):
        here = row["cell"] == first["cell"]
        for suffix, value in said.items():
            name = f"post_processed_later{suffix}"
            assert row[name] == column[name] == (value if here else None)
            written = {"_of": "a b", "_on": "true"}.get(suffix, str(value))
            assert line[name] == (written if here else "")


def test_an_estimate_without_an_interval_has_no_columns_for_one(tmp_path):
    modelling = {"speed.statistics": ["mean", "variance"], "speed.post_processing": ["clipped-normal"]}
    messages = values(released(tmp_path, **modelling))
    table = in_parquet(messages)
    columns = sorted(name for name in table.column_names if name.startswith("post_processed_p50"))
    assert columns == ["post_processed_p50", "post_processed_p50_method", "post_processed_p50_unit"]
    for value, line, column in zip(messages, in_csv(messages), table.to_pylist(), strict=True):
        modelled = json.loads(value)["post_processed"]["p50"]
        assert column["post_processed_p50"] == float(line["post_processed_p50"]) == modelled["value"]
        assert column["post_processed_p50_method"] == line["post_processed_p50_method"] == "clipped-normal"


def test_parquet_says_beside_each_column_which_value_may_be_averaged(tmp_path):
    schema = in_parquet(values(released(tmp_path))).schema
    assert b"average or model this one" in schema.field("mean_raw_to_average").metadata[b"description"]
    assert b"biased" in schema.field("mean").metadata[b"description"]
    units = {field.name: field.metadata[b"unit"] for field in schema if b"unit" in (field.metadata or {})}
    assert {units[name] for name in ("mean", "mean_raw_to_average", "mean_scale", "estimate_mean_low")} == {b"km/h"}
    assert not {"mean_unit", "mean_mechanism", "mean_clamped", "latitude"} & units.keys()


COARSE = h3.cell_to_parent(STEADY, 5)
"""Of resolution 5; its children of 6 are kept, merged or split into those of 7, at random."""


def merged_cells(seed: int) -> dict[str, list[str]]:
    """Released cells that cover COARSE and its neighbours once, each with the finer ones that it excludes.

    As :mod:`stream.statistics.merging` does: a merged cell is the rest of a parent, whose other children have messages
    too.
    """
    chosen = random.Random(seed)
    cells: dict[str, list[str]] = {}
    for top in h3.grid_disk(COARSE, 1):
        apart: list[str] = []
        for child in h3.cell_to_children(top, 6):
            if chosen.random() < 0.5:
                continue
            split = [one for one in h3.cell_to_children(child, 7) if chosen.random() < 0.3]
            cells |= {one: [] for one in split} | ({child: split} if len(split) < 7 else {})
            apart.append(child)
        if len(apart) < 7:
            cells[top] = apart
    return cells


def messages_of(released: dict[str, list[str]], body: dict[str, Any], hour: int = 0) -> list[Message]:
    """A window of these cells, all with the numbers of ``body``, and its marker."""
    slot = Window(SLOT + 3600 * hour, SLOT + 3600 * (hour + 1))
    times = {"start": f"2017-03-21T{12 + hour}:00:00Z", "end": f"2017-03-21T{13 + hour}:00:00Z"}
    made = []
    for cell in sorted(released):
        said = body | {"cell": cell, "resolution": h3.get_resolution(cell), "window": times}
        said |= {"excludes": sorted(released[cell])} if released[cell] else {}
        made.append(window_message("hexveil.hexagon-speed.v1", "bus", slot, cell, cell, said))
    return made


@pytest.mark.parametrize("seed", range(4))
def test_the_shapes_of_a_window_overlap_nowhere_and_leave_no_gap(seed):
    released = merged_cells(seed)
    cells = [Cell(cell, "published", 1, excludes=tuple(apart)) for cell, apart in released.items()]
    shapes = [shapely.geometry.shape(geometry_of(place)) for place in places_of(cells)]
    assert all(shape.is_valid for shape in shapes)
    whole = shapely.union_all(shapes, grid_size=1e-9)
    assert sum(shape.area for shape in shapes) == pytest.approx(whole.area, rel=1e-6)
    assert not any(len(part.interiors) for part in shapely.geometry.MultiPolygon([whole]).geoms)
    for one, other in combinations(shapes, 2):
        assert one.intersection(other).area < 1e-6 * min(one.area, other.area)
    # What H3 calls the hexagon of a parent does neither, which is why it is not drawn.
    parents = [shapely.Polygon(feature(Place(cell), {})["geometry"]["coordinates"][0]) for cell in released]
    assert sum(parent.area for parent in parents) > 1.1 * whole.area


async def test_areas_that_divide_the_ground_divide_its_events(tmp_path):
    config = city_config(tmp_path, **{"feed.name": "bus"})
    body = bodies(window(config, 0))[STEADY]
    released = merged_cells(1)
    cells = messages_of(released, body)
    counted = {"messages": len(cells), "digest": digest(message.value for message in cells)}
    marker = json.loads(window(config, 0)[-1].value) | counted
    close = window_message(WINDOW, "bus", Window(SLOT, SLOT + 3600), "close", "bus", marker)
    file = tmp_path / "releases.ndjson"
    file.write_text("".join(map(line_of, [*cells, close])), encoding="utf-8")
    middle_lat, middle_lng = (round(degrees, 5) for degrees in h3.cell_to_latlng(COARSE))
    total, seen = 0, []
    async with serving_file(config, file) as client:
        for west, east in ((middle_lng - 2, middle_lng), (middle_lng, middle_lng + 2)):
            for south, north in ((middle_lat - 2, middle_lat), (middle_lat, middle_lat + 2)):
                ring = f"{west},{south},{east},{south},{east},{north},{west},{north}"
                area = await (await client.get(f"/api/v1/area?ring={ring}")).json()
                total += area["events"]["value"]
                seen += area["hexagons"]
        assert sorted(seen) == sorted(released)
        assert total == body["events"] * len(released)
        # The map's shapes are those of GeoJSON and of OGC API - Features.
        plain = (await (await client.get("/api/v1/hexagons?format=geojson")).json())["features"]
        ogc = (await (await client.get("/ogc/collections/bus.newest/items?limit=1000")).json())["features"]
        shapes = {one["properties"]["cell"]: one["geometry"] for one in ogc}
        assert {one["id"]: one["geometry"] for one in plain} == shapes
        for said in (one["properties"] for one in ogc):
            centre = centre_of(said["cell"], released[said["cell"]])
            assert (said["latitude"], said["longitude"]) == pytest.approx(centre, abs=1e-6)


def test_files_of_all_windows_have_the_same_columns_and_what_a_cell_excludes_survives_gdal(tmp_path):
    published = bodies(window(city_config(tmp_path), 0))[STEADY]
    suppressed = {name: value for name, value in published.items() if name not in ("mean", "post_processed")}
    plain = [m.value for m in messages_of({STEADY: []}, published)]
    merged = [m.value for m in messages_of({COARSE: [STEADY], STEADY: []}, published)]
    nothing = [m.value for m in messages_of({STEADY: []}, suppressed | {"status": "suppressed"})]
    columns = [sorted(rows_of(values)[0]) for values in (plain, merged, nothing)]
    assert columns[0] == columns[1] == columns[2]
    heads = {tuple(in_csv(values)[0]) for values in (plain, merged, nothing)}
    assert len(heads) == 1
    schemas = [in_parquet(values).schema for values in (plain, merged, nothing)]
    kinds = [{field.name: field.type for field in schema} for schema in schemas]
    assert kinds[0] == kinds[1] == kinds[2]
    file = tmp_path / "merged.geojson"
    file.write_bytes(table_of(merged, "geojson"))
    geopackage = tmp_path / "merged.gpkg"
    meta, _, shapes, fields = pyogrio.raw.read(file)
    pyogrio.raw.write(geopackage, shapes, fields, meta["fields"], geometry_type="Unknown", crs="EPSG:4326")
    meta, _, _, fields = pyogrio.raw.read(geopackage)
    read = dict(zip(meta["fields"], fields, strict=True))
    assert dict(zip(read["cell"], read["excludes"], strict=True)) == {COARSE: STEADY, STEADY: None}
    assert row_of(merged[0])["excludes"] in (STEADY, None)


PACKAGES = REPO_ROOT / "examples"
NEWER_THAN_DRAFT_07 = {"$anchor", "$defs", "$dynamicRef", "prefixItems", "dependentRequired", "dependentSchemas"} | {
    *("maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties")
}
needs_parser = pytest.mark.skipif(
    shutil.which("node") is None or not (PACKAGES / "node_modules" / "@asyncapi" / "parser").is_dir(),
    reason="no @asyncapi/parser in examples; run: npm ci",
)


def messages() -> dict[str, Any]:
    """The message of each topic as the AsyncAPI document has it."""
    channels = document()["channels"].values()
    return {channel["address"]: next(iter(channel["messages"].values())) for channel in channels}


def keywords(node: Any) -> set[str]:
    """Names of all members, at any depth."""
    if isinstance(node, list):
        return set().union(*map(keywords, node))
    return set(node).union(*map(keywords, node.values())) if isinstance(node, dict) else set()


def diagnostics(made: dict[str, Any], tmp_path: Path) -> list[Any]:
    """Everything that AsyncAPI's own parser reports about a document, whatever its severity."""
    file = tmp_path / "asyncapi.json"
    file.write_text(json.dumps(made))
    script = """
        import { readFileSync } from 'node:fs'
        import { Parser } from '@asyncapi/parser'
        const { diagnostics } = await new Parser().parse(readFileSync(process.argv[1], 'utf8'))
        console.log(JSON.stringify(diagnostics))
    """
    command = ["node", "--input-type=module", "--eval", script, str(file)]
    done = subprocess.run(command, cwd=PACKAGES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reported: list[Any] = json.loads(done.stdout)
    return reported


@needs_parser
def test_the_asyncapi_document_is_valid_and_its_parser_has_nothing_to_say(tmp_path):
    assert document()["asyncapi"].startswith("3.1")
    assert diagnostics(document(), tmp_path) == []


@needs_parser
@pytest.mark.nightly
def test_the_parser_finds_what_is_wrong(tmp_path):
    broken = document()
    broken["channels"]["window"]["messages"]["window"]["payload"]["properties"]["messages"]["type"] = "number of them"
    assert diagnostics(broken, tmp_path)
    unknown = document()
    unknown["operations"]["publishWindow"]["channel"]["$ref"] = "#/channels/none"
    assert diagnostics(unknown, tmp_path)


@pytest.mark.parametrize("topic", OUTPUT_TOPICS)
def test_schema_and_asyncapi_payload_take_and_refuse_the_same_values(topic):
    payload, example = messages()[topic]["payload"], messages()[topic]["examples"][0]["payload"]
    assert not keywords(payload) & NEWER_THAN_DRAFT_07
    assert keywords(schema(topic)) & NEWER_THAN_DRAFT_07 <= {"dependentRequired"}
    jsonschema.Draft7Validator.check_schema(payload)
    original, translated = jsonschema.Draft202012Validator(schema(topic)), jsonschema.Draft7Validator(payload)
    assert original.is_valid(example)
    for body in [*mutations(example), example | {"accounting": "zcdp"}, example | {"rho": 0.1}]:
        assert original.is_valid(body) == translated.is_valid(body), body


def test_the_document_names_the_topics_as_they_are_created(tmp_path):
    plans = {plan.name: plan for plan in topic_plans(bus_config(tmp_path))}
    channels = {channel["address"]: channel["bindings"]["kafka"] for channel in document()["channels"].values()}
    assert set(channels) == set(OUTPUT_TOPICS)
    for name, binding in channels.items():
        assert binding["partitions"] == plans[name].partitions
        assert binding["topicConfiguration"]["retention.ms"] == plans[name].retention_ms


def test_schemas_are_listed_and_exported(tmp_path):
    assert list(json.loads(run("schema", "list", "--json").stdout)) == list(OUTPUT_TOPICS)
    listed = run("schema", "list").stdout
    assert all(topic in listed for topic in OUTPUT_TOPICS)
    folder = tmp_path / "new" / "schemas"
    for _ in range(2):
        done = run("schema", "export", folder, "--json")
    assert sorted(map(str, folder.iterdir())) == sorted(json.loads(done.stdout))
    for topic in OUTPUT_TOPICS:
        assert json.loads((folder / f"{topic}.json").read_text()) == schema(topic)
    assert json.loads((folder / "asyncapi.json").read_text()) == document()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} cannot be written to" in run("schema", "export", tmp_path / "file", code=2).stderr
