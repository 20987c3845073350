"""The shapes of a window's cells tile its ground, for every reader, and files of all windows have the same columns."""

from __future__ import annotations

import csv
import io
import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import h3
import pyogrio
import pytest
import shapely
from pyarrow import parquet

from stream.messages.lines import line_of
from stream.messages.message import WINDOW, Message, digest, window_message
from stream.messages.shapes import Place, centre_of, geometry_of, places_of
from stream.messages.tables import feature, row_of, rows_of, table_of
from stream.windows import Window
from tests.stream.serve.city import STEADY, bodies, city_config, window
from tests.stream.serve.serving import serving_file
from tests.support.builders import SLOT

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
def test_the_shapes_of_a_window_overlap_nowhere_and_leave_no_gap(seed: int) -> None:
    released = merged_cells(seed)
    values = [json.dumps({"cell": cell, "excludes": apart}).encode() for cell, apart in released.items()]
    shapes = [shapely.geometry.shape(geometry_of(place)) for place in places_of(values)]
    assert all(shape.is_valid for shape in shapes)
    whole = shapely.union_all(shapes, grid_size=1e-9)
    assert sum(shape.area for shape in shapes) == pytest.approx(whole.area, rel=1e-6)
    assert not any(len(part.interiors) for part in shapely.geometry.MultiPolygon([whole]).geoms)
    for one, other in combinations(shapes, 2):
        assert one.intersection(other).area < 1e-6 * min(one.area, other.area)
    # What H3 calls the hexagon of a parent does neither, which is why it is not drawn.
    parents = [shapely.Polygon(feature(Place(cell), {})["geometry"]["coordinates"][0]) for cell in released]
    assert sum(parent.area for parent in parents) > 1.1 * whole.area


async def test_areas_that_divide_the_ground_divide_its_events(tmp_path: Path) -> None:
    config = city_config(tmp_path, **{"feed.name": "bus"})
    body = bodies(window(config, 0))[STEADY]
    released = merged_cells(1)
    cells = messages_of(released, body)
    marker = json.loads(window(config, 0)[-1].value) | {
        "messages": len(cells),
        "digest": digest(message.value for message in cells),
    }
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
        assert {one["id"]: one["geometry"] for one in plain} == {
            one["properties"]["cell"]: one["geometry"] for one in ogc
        }
        for one in ogc:
            said = one["properties"]
            assert (said["latitude"], said["longitude"]) == pytest.approx(
                centre_of(said["cell"], released[said["cell"]]), abs=1e-6
            )


def test_files_of_all_windows_have_the_same_columns_and_what_a_cell_excludes_survives_gdal(tmp_path: Path) -> None:
    published = bodies(window(city_config(tmp_path), 0))[STEADY]
    suppressed = {name: value for name, value in published.items() if name not in ("mean", "post_processed")}
    plain = [m.value for m in messages_of({STEADY: []}, published)]
    merged = [m.value for m in messages_of({COARSE: [STEADY], STEADY: []}, published)]
    nothing = [m.value for m in messages_of({STEADY: []}, suppressed | {"status": "suppressed"})]
    columns = [sorted(rows_of(values)[0]) for values in (plain, merged, nothing)]
    assert columns[0] == columns[1] == columns[2]
    heads = {next(csv.reader(io.StringIO(table_of(values, "csv").decode())))[0] for values in (plain, merged, nothing)}
    assert len(heads) == 1
    schemas = [
        parquet.read_table(io.BytesIO(table_of(values, "parquet"))).schema for values in (plain, merged, nothing)
    ]
    kinds = [{field.name: field.type for field in schema} for schema in schemas]
    assert kinds[0] == kinds[1] == kinds[2]
    file = tmp_path / "merged.geojson"
    file.write_bytes(table_of(merged, "geojson"))
    geopackage = tmp_path / "merged.gpkg"
    meta, _, shapes, fields = pyogrio.raw.read(file)
    pyogrio.raw.write(geopackage, shapes, fields, meta["fields"], geometry_type="Unknown", crs="EPSG:4326")
    meta, _, _, fields = pyogrio.raw.read(geopackage)
    read = dict(
        zip(fields[list(meta["fields"]).index("cell")], fields[list(meta["fields"]).index("excludes")], strict=True)
    )
    assert read == {COARSE: STEADY, STEADY: None}
    assert row_of(merged[0])["excludes"] in (STEADY, None)
