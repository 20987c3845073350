"""OGC API - Features, read by GDAL, the library with which ogr2ogr and QGIS's processing read it, and by hand."""

import asyncio
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import h3
import pyogrio
import pytest
import shapely
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient
from hypothesis import given
from hypothesis import strategies as st

from stream.local.kafka import REPO_ROOT
from stream.messages.lines import line_of
from stream.messages.shapes import ring_of
from stream.serve.ogc import features as ogc
from stream.serve.ogc.selection import (
    Bounds,
    bounds_of,
    extent_of,
    is_during,
    item_id,
    meets,
    read_interval,
    read_item_id,
)
from tests.docs.pages import blocks
from tests.stream.serve.made_windows import windows_of
from tests.stream.serve.serving import json_of, origin_of, released, served, serving_file
from tests.support.builders import bus_config
from tests.support.nginx import needs_nginx, nginx

WINDOWS = 3


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    async with served(bus_config(tmp_path), chain(*windows_of(tmp_path, WINDOWS))) as made:
        yield made


def next_of(page: Any, client: TestClient) -> str | None:
    """Path and query of the next page; None after the last one."""
    onward = [link["href"] for link in page["links"] if link["rel"] == "next"]
    return onward[0].removeprefix(origin_of(client)) if onward else None


async def pages_from(client: TestClient, path: str | None) -> list[Any]:
    """That page and all that follow it."""
    pages = []
    while path is not None:
        pages.append(await json_of(client, path))
        path = next_of(pages[-1], client)
    return pages


def features_of(pages: list[Any]) -> list[Any]:
    return [feature for page in pages for feature in page["features"]]


READ = """
import json, sys
import pyogrio
import shapely
address, layer, box = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
meta, _, shapes, columns = pyogrio.raw.read(address, layer=layer, bbox=box and tuple(box))
rows = [dict(zip(meta["fields"], row)) for row in zip(*(column.tolist() for column in columns))]
outlines = [shapely.to_wkt(shape, rounding_precision=-1) for shape in shapely.from_wkb(shapes)]
layers = [name for name, _ in pyogrio.list_layers(address)]
extent = pyogrio.read_info(address, layer=layer, force_total_bounds=True)["total_bounds"]
told = {"layers": layers, "crs": meta["crs"], "rows": rows, "outlines": outlines, "extent": extent}
print(json.dumps(told, default=str))
"""


async def gdal(client: TestClient, layer: str, box: tuple[float, ...] | None = None, at: str = "") -> dict[str, Any]:
    """What GDAL reads, in a process of its own: it would wait for this one's event loop, which it would hold up.

    ``at``: the address of the service, where it is not the client's.
    """
    command = [sys.executable, "-c", READ, f"OAPIF:{at or client.make_url('/ogc')}", layer, json.dumps(box)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    read: dict[str, Any] = json.loads(output)
    return read


async def test_gdal_reads_the_newest_window_a_box_of_it_and_all_windows_as_they_were_released(client):
    said = (await json_of(client, "/api/v1/hexagons"))["hexagons"]
    read = await gdal(client, "bus.newest")
    assert sorted(read["layers"]) == ["bus.all", "bus.newest"]
    assert read["crs"] in ("EPSG:4326", "OGC:CRS84")
    assert [row["cell"] for row in read["rows"]] == [cell["cell"] for cell in said]
    assert [row["mean"] for row in read["rows"]] == [cell["mean"]["value"] for cell in said]
    assert [row["mean_low"] for row in read["rows"]] == [cell["mean"]["interval"][0] for cell in said]
    for row, shape in zip(read["rows"], read["outlines"], strict=True):
        assert shapely.from_wkt(shape).equals(outline(row["cell"])), row
    every = await gdal(client, "bus.all")
    assert len(every["rows"]) == WINDOWS * len(said)
    cells = [cell["cell"] for cell in said]
    box = outline(cells[0]).buffer(0.001).bounds
    met = [cell for cell in cells if outline(cell).intersects(shapely.box(*box))]
    assert 0 < len(met) < len(cells)
    assert [row["cell"] for row in (await gdal(client, "bus.newest", box))["rows"]] == met


@needs_nginx
async def test_gdal_reads_through_nginx_below_a_path(client, tmp_path):
    """With the configuration that the page on the API gives; every link stays below the path."""
    async with (
        nginx(tmp_path, "api.md", **{"127.0.0.1:8080": client.make_url("/").authority}) as address,
        ClientSession() as session,
    ):
        top = f"{address}/traffic"
        async with session.get(f"{top}/readyz") as answer:
            assert answer.status == 200
        async with session.get(f"{top}/ogc/collections/bus.all/items?limit=2") as answer:
            links = {link["rel"]: link["href"] for link in (await answer.json(content_type=None))["links"]}
        assert all(href.startswith(f"{top}/") for href in links.values()), links
        async with session.get(links["next"]) as answer:
            assert (await answer.json(content_type=None))["numberReturned"] == 2
        async with session.get(f"{top}/api/v1/openapi.json") as answer:
            assert (await answer.json())["servers"][0]["url"] == "/traffic"
        async with session.get(f"{top}/ogc/") as answer:
            assert str(answer.url) == f"{top}/ogc"
        read = await gdal(client, "bus.all", at=f"{top}/ogc")
        assert len(read["rows"]) == WINDOWS * len((await json_of(client, "/api/v1/hexagons"))["hexagons"])


@pytest.mark.skipif(shutil.which("ogr2ogr") is None, reason="no ogr2ogr here (Debian: apt-get install gdal-bin)")
async def test_the_documented_commands_of_ogr2ogr_write_the_newest_window_and_a_box_of_all_windows(client, tmp_path):
    (documented,) = (block for block in blocks(REPO_ROOT / "docs" / "gis.md") if "OAPIF" in block.text)
    for command in documented.text.splitlines():
        words = shlex.split(command.replace("http://127.0.0.1:8080/ogc", str(client.make_url("/ogc"))))
        process = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, stderr=subprocess.PIPE)
        _, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
    newest = [one["properties"] for one in (await json_of(client, "/ogc/collections/bus.newest/items"))["features"]]
    for row, said in zip(table_of(tmp_path / "newest.gpkg"), newest, strict=True):
        assert [row[name] for name in ("cell", "mean", "mean_low")] == [said["cell"], said["mean"], said["mean_low"]]
    cells = [one["cell"] for one in newest]
    inside = [cell for cell in cells if outline(cell).intersects(shapely.box(-97.8, 30.2, -97.7, 30.3))]
    assert 0 < len(inside) < len(cells)
    assert [row["cell"] for row in table_of(tmp_path / "box.gpkg")] == inside * WINDOWS


def table_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a GeoPackage, in order."""
    meta, _, _, columns = pyogrio.raw.read(file)
    return [dict(zip(meta["fields"], row, strict=True)) for row in zip(*columns, strict=True)]


DOMAIN = {"south": 30.21, "west": -97.72, "north": 30.5, "east": -97.5}
"""A box from which hexagons of the windows reach out at its south and west."""


@pytest.mark.parametrize(
    ("domain", "joined"),
    [(DOMAIN, True), ({"south": -10.0, "west": 20.0, "north": -9.0, "east": 21.0}, False)],
    ids=["of the releases", "of another place"],
)
async def test_gdal_is_told_a_box_around_every_hexagon_and_the_domain_if_the_releases_are_there(
    tmp_path, domain, joined
):
    config = bus_config(tmp_path, **{"feed.domain": domain})
    async with served(config, chain(*windows_of(tmp_path, 2))) as client:
        for layer in ("bus.newest", "bus.all"):
            read = await gdal(client, layer)
            shapes = [shapely.from_wkt(shape) for shape in read["outlines"]]
            box = shapely.box(domain["west"], domain["south"], domain["east"], domain["north"])
            assert not box.contains(shapely.union_all(shapes))
            assert tuple(read["extent"]) == shapely.union_all([*shapes, box] if joined else shapes).bounds
        one = await json_of(client, "/ogc/collections/bus.all")
        assert one in (await json_of(client, "/ogc/collections"))["collections"]
        assert one["extent"]["temporal"]["interval"] == [["2017-03-21T12:00:00Z", "2017-03-21T14:00:00Z"]]


async def test_the_extent_of_a_feed_that_is_not_configured_is_that_of_its_hexagons(tmp_path):
    windows = [released(tmp_path, **{"feed.name": feed}) for feed in ("bus", "tram")]
    async with served(bus_config(tmp_path, **{"feed.domain": DOMAIN}), chain(*windows)) as client:
        features = (await json_of(client, "/ogc/collections/tram.newest/items"))["features"]
        (box,) = (await json_of(client, "/ogc/collections/tram.newest"))["extent"]["spatial"]["bbox"]
        outlines = [outline(feature["properties"]["cell"]) for feature in features]
        assert tuple(box) == shapely.union_all(outlines).bounds


async def test_pages_joined_are_the_collection_whatever_their_size(client):
    whole = (await json_of(client, "/ogc/collections/bus.all/items"))["features"]
    starts = [feature["properties"]["window_start"] for feature in whole]
    assert starts == sorted(starts, reverse=True)
    for limit in (1, 4, 7, len(whole)):
        pages = await pages_from(client, f"/ogc/collections/bus.all/items?limit={limit}")
        assert all(page["numberReturned"] == len(page["features"]) <= limit for page in pages)
        assert features_of(pages) == whole, limit
    one = whole[5]
    alone = await json_of(client, f"/ogc/collections/bus.all/items/{one['id']}")
    assert {name: alone[name] for name in one} == one


async def test_a_request_looks_at_a_bounded_number_of_cells_and_the_next_page_goes_on(client, monkeypatch):
    whole = (await json_of(client, "/ogc/collections/bus.all/items"))["features"]
    wanted = whole[-1]["properties"]["cell"]
    west, south, east, north = outline(wanted).centroid.buffer(1e-4).bounds
    path = f"/ogc/collections/bus.all/items?bbox={west:.6f},{south:.6f},{east:.6f},{north:.6f}"
    expected = (await json_of(client, path))["features"]
    assert len(expected) == WINDOWS
    monkeypatch.setattr(ogc, "MOST_SCANNED", 4)
    pages = await pages_from(client, f"{path}&limit=9999")  # another request: the first one's answer is kept
    assert features_of(pages) == expected
    assert len(pages) > len(whole) // 4 - 1


async def test_a_time_selects_the_windows_that_hold_it(client):
    async def starts(text: str) -> list[str]:
        page = await json_of(client, f"/ogc/collections/bus.all/items?datetime={text}")
        return sorted({feature["properties"]["window_start"][11:13] for feature in page["features"]})

    assert await starts("2017-03-21T12:30:00Z") == ["12"]
    assert await starts("2017-03-21T13:00:00Z") == ["13"], "a window does not hold its end"
    assert await starts("2017-03-21T07:30:00.5-05:00") == ["12"]
    assert await starts("2017-03-21T13:59:59.999Z/..") == ["13", "14"]
    assert await starts("2017-03-21T13:59:59.999Z/") == ["13", "14"]
    assert await starts("/2017-03-21T12:00:00Z") == await starts("../2017-03-21T12:00:00Z") == ["12"]
    assert await starts("2018-01-01T00:00:00Z") == []


WRONG = {
    "limit": ["0", "x", "1e3", "0" * 400, "1&limit=2"],
    "bbox": ["1,2,3", "0,1,1,0", "nan,0,1,1", "0,0,1,1,1", "0,0,x,1,1,1", "1e999,0,1,1"],
    "datetime": [
        "yesterday",
        "../..",
        "2017-03-22T00:00:00Z/2017-03-21T00:00:00Z",
        "2017-02-30T00:00:00Z",
        "2017-03-21",
    ],
    "after": ["20170321T120000Z-ffffffffffffff", "99999999T999999Z-000000000000000"],
    "f": ["html"],
    "speed": ["5"],
}


async def test_a_wrong_parameter_is_refused_with_its_name(client):
    for name, text in ((name, text) for name, texts in WRONG.items() for text in texts):
        problem = await json_of(client, f"/ogc/collections/bus.all/items?{name}={text}", 400)
        assert name in problem["title"], text
        assert problem["detail"], text


async def test_what_is_not_there_is_not_found_and_a_limit_above_the_most_counts_as_the_most(client):
    for path in (
        "/ogc/collections/none.all",
        "/ogc/collections/none.newest/items",
        "/ogc/collections/bus.all/items/20170321T120000Z-872830828ffffff",
        "/ogc/collections/bus.newest/items/" + item_id("2017-03-21T12:00:00Z", "87489e342ffffff"),
    ):
        assert "/ogc/collections" in (await json_of(client, path, 404))["detail"]
    for path in ("/ogc/collections/bus", "/ogc/collections/..%2fetc", "/ogc/collections/bus.all/items/%00"):
        await json_of(client, path, 400)
    most = (await json_of(client, "/ogc/collections/bus.all/items?limit=2000"))["features"]
    assert most
    for limit in ("2001", "10001", "9" * 20, "9" * 5000, "0" * 30 + "2000"):
        assert (await json_of(client, f"/ogc/collections/bus.all/items?limit={limit}"))["features"] == most
    assert "above 0" in (await json_of(client, "/ogc/collections/bus.all/items?limit=" + "0" * 30, 400))["title"]


async def test_boxes_are_read_as_clients_write_them_and_the_landing_page_has_no_slash_of_its_own(client):
    cell = (await json_of(client, "/api/v1/hexagons"))["hexagons"][0]["cell"]
    west, south, east, north = outline(cell).centroid.buffer(1e-4).bounds
    items = "/ogc/collections/bus.newest/items?bbox="
    (expected,) = (await json_of(client, f"{items}{west},{south},{east},{north}"))["features"]
    assert expected["properties"]["cell"] == cell
    for box in (
        f"{west},{south},-10,{east},{north},1e4",
        f"{west:.10e},{south:.10e},{east:.10e},{north:.10e}".replace("+", "%2B"),
    ):
        assert (await json_of(client, f"{items}{box}"))["features"] == [expected]
    assert (await json_of(client, "/ogc/"))["title"] == "Hexveil"


async def test_pages_of_the_newest_window_stay_in_it_while_another_one_closes(tmp_path):
    first, second = windows_of(tmp_path, 2)
    releases = tmp_path / "releases.ndjson"
    releases.write_text("".join(map(line_of, first)))
    async with serving_file(bus_config(tmp_path), releases) as client:
        whole = (await json_of(client, "/ogc/collections/bus.newest/items"))["features"]
        page = await json_of(client, "/ogc/collections/bus.newest/items?limit=2")
        with releases.open("a") as out:
            out.write("".join(map(line_of, second)))
        while (await json_of(client, "/ogc/collections/bus.newest/items"))["features"] == whole:
            await asyncio.sleep(0.05)
        onward = str(next_of(page, client))
        assert features_of([page, await json_of(client, onward.replace("limit=2", "limit=99"))]) == whole
        assert "begin again" in (await json_of(client, onward.replace("20170321", "20160321"), 404))["detail"]


async def test_links_name_the_host_that_the_client_named_unless_that_is_none(client):
    async def first(host: str, forwarded: str = "", prefix: str = "") -> str:
        given = {"X-Forwarded-Proto": forwarded, "X-Forwarded-Prefix": prefix}
        headers = {"Host": host} | {name: value for name, value in given.items() if value}
        async with client.get("/ogc", headers=headers) as answer:
            return str((await answer.json())["links"][0]["href"])

    assert await first("traffic.example.org:8443") == "http://traffic.example.org:8443/ogc"
    assert await first("traffic.example.org", "https") == "https://traffic.example.org/ogc"
    assert await first("traffic.example.org", "javascript") == "http://traffic.example.org/ogc"
    assert await first("[::1]:80") == "http://[::1]:80/ogc"
    assert await first('x"><script>') == "/ogc"
    assert await first("x", prefix="/a/traffic/") == "http://x/a/traffic/ogc"
    for odd in ("//evil.example", "traffic", '/"><script>', "/a b", "/%2e"):
        assert await first("x", prefix=odd) == "http://x/ogc"


async def test_a_service_without_windows_has_empty_collections(tmp_path):
    async with served(bus_config(tmp_path), []) as client:
        (collections, _) = (await json_of(client, "/ogc/collections"))["collections"]
        assert collections["extent"]["temporal"]["interval"] == [[None, None]]
        domain = bus_config(tmp_path).feed.domain
        assert collections["extent"]["spatial"]["bbox"] == [[domain.west, domain.south, domain.east, domain.north]]
        assert (await json_of(client, "/ogc/collections/bus.newest/items"))["features"] == []


def outline(cell: str) -> shapely.Polygon:
    return shapely.Polygon([(lng, lat) for lat, lng in h3.cell_to_boundary(cell)])


DEGREES = st.floats(-0.3, 0.3)


@given(st.integers(4, 9), DEGREES, DEGREES, st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_box_meets_the_cells_that_shapely_says_it_intersects(resolution, x, y, width, height):
    cell = h3.latlng_to_cell(30.3, -97.7, resolution)
    lat, lng = h3.cell_to_latlng(cell)
    bounds = Bounds(lng + x, lat + y, lng + x + width, lat + y + height)
    shape, box = outline(cell), shapely.box(*bounds)
    if abs(shape.distance(box)) < 1e-9 and not shape.buffer(-1e-9).intersects(box):
        return  # they touch, as far as floating point can tell
    assert meets(ring_of(cell), bounds) == shape.intersects(box)


def test_boxes_and_cells_across_180_degrees_meet():
    cell = h3.latlng_to_cell(-17.0, 179.999, 5)
    assert max(lng for lng, _ in ring_of(cell)) > 180
    for bounds in (Bounds(179.9, -18, -179.9, -16), Bounds(-180, -18, -179.9, -16), Bounds(179.9, -18, 180, -16)):
        assert meets(ring_of(cell), bounds), bounds
    for bounds in (Bounds(-179, -18, 179, -16), Bounds(179.9, -10, -179.9, -9)):
        assert not meets(ring_of(cell), bounds), bounds


def test_the_extent_of_hexagons_across_180_degrees_goes_around_the_globe_and_of_nothing_is_the_globe():
    bounds = bounds_of([h3.latlng_to_cell(-17.0, 179.999, 5)])
    assert bounds is not None
    assert (bounds.west, bounds.east) == (-180, 180)
    assert -18 < bounds.south < bounds.north < -16
    assert bounds_of([]) is None
    assert extent_of([None], None) == (-180, -90, 180, 90)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)).map(lambda t: t.replace(microsecond=0, tzinfo=UTC)))
def test_an_identifier_is_read_as_it_was_written(moment):
    start, cell = moment.isoformat().replace("+00:00", "Z"), "87489e342ffffff"
    assert read_item_id(item_id(start, cell)) == (start, cell)
    assert is_during(start, "2100-01-01T00:00:00Z", read_interval(start))
