"""A city one can recognise: names, lines, search and named areas, over the API and in a real browser. The street map
that the documented command makes of an extract of OpenStreetMap."""

import csv
import io
import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h3
import pyogrio
import pytest
from playwright.async_api import Page, expect

from stream.config import Config
from stream.local.kafka import REPO_ROOT
from stream.serve.static_files import check_basemap
from tests.docs.pages import blocks
from tests.stream.serve.browser import (
    DESKTOP,
    LOOKS,
    PHONE,
    apart,
    box_of,
    fields,
    needs_chromium,
    no_violation,
    opened,
    pixels,
    pixels_of,
    place_of,
    reloaded,
    revisit,
    table_row,
)
from tests.stream.serve.city import BUSY, CELLS, LONELY, STEADY, UNCERTAIN, bodies, city_config, window
from tests.stream.serve.made_places import ARABIC, HOSTILE, STOP, STOP_NORTH, WEST_SIDE, city_files
from tests.stream.serve.serving import in_sight, json_of, origin_of, page_of, served

PAGE = REPO_ROOT / "docs" / "dashboard.md"


def street_map(folder: Path, ways: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """The archive, of roads by their tag ``highway``: latitude and longitude of their corners."""
    (folder / "city.osm").write_text(_extract(ways), encoding="utf-8")
    (text,) = (block.text for block in blocks(PAGE) if block.text.startswith("ogr2ogr -f PMTiles"))
    command = shlex.split(text.replace("city.osm.pbf", "city.osm").replace("\\\n", ""))
    if _writes_archives():
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    else:  # GDAL below 3.8: what the same options mean to the library of Python's GDAL
        _written_by_python(folder, command)
    return folder / "city.pmtiles"


def _extract(ways: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    corners = [corner for way in ways.values() for corner in way]
    lines = [f'<node id="{at}" lat="{lat}" lon="{lng}"/>' for at, (lat, lng) in enumerate(corners, 1)]
    last = 0
    for number, (kind, way) in enumerate(ways.items(), 1):
        nodes = "".join(f'<nd ref="{at}"/>' for at in range(last + 1, last + 1 + len(way)))
        lines.append(f'<way id="{number}">{nodes}<tag k="highway" v="{kind}"/></way>')
        last += len(way)
    return f'<osm version="0.6">{"".join(lines)}</osm>'


def _writes_archives() -> bool:
    known = shutil.which("ogr2ogr") and subprocess.run(["ogr2ogr", "--formats"], capture_output=True, text=True).stdout
    return "PMTiles" in (known or "")


def _written_by_python(folder: Path, command: Sequence[str]) -> None:
    assert command[:5] == ["ogr2ogr", "-f", "PMTiles", "city.pmtiles", "city.osm"]
    names, values = command[5::2], command[6::2]
    options = dict(value.split("=") for name, value in zip(names, values, strict=True) if name == "-dsco")
    said = {name: value for name, value in zip(names, values, strict=True) if name != "-dsco"}
    assert set(said) == {"-sql", "-nln"}
    meta, _, shapes, columns = pyogrio.raw.read(folder / "city.osm", sql=said["-sql"])
    pyogrio.raw.write(
        folder / "city.pmtiles",
        shapes,
        columns,
        meta["fields"],
        layer=said["-nln"],
        driver="PMTiles",
        geometry_type=meta["geometry_type"],
        crs=meta["crs"],
        dataset_options=options,
    )


pytestmark = pytest.mark.asyncio(loop_scope="session")
CENTRE = h3.cell_to_latlng(BUSY)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return city_config(tmp_path, **city_files(tmp_path))


async def test_places_routes_stops_and_areas_are_answered_with_entity_tags(config):
    messages = window(config, 0)
    async with served(config, messages) as client:
        settings = await json_of(client, "/dashboard/settings")
        assert [settings[name] for name in ("places", "lines", "network", "areas")] == [True] * 4
        answers: dict[str, Any] = {}
        for name in ("places", "routes", "streets", "stops", "areas"):
            answer = await client.get(f"/api/v1/{name}")
            assert answer.status == 200
            again = await client.get(f"/api/v1/{name}", headers={"If-None-Match": answer.headers["ETag"]})
            assert again.status == 304
            answers[name] = json.loads(await answer.read())
            assert (await client.get(f"/api/v1/{name}?feed=other")).status == 400
        assert answers["places"]["cells"][0] == {
            "cell": BUSY,
            "name": HOSTILE,
            "stops": 2,
            "routes": ["10", "<b>2</b>"],
        }
        assert answers["routes"]["features"][0]["properties"] == {"route": "10"}
        assert answers["stops"]["features"][0]["geometry"]["type"] == "Point"
        listed = [(area["name"], area["kind"]) for area in answers["areas"]["areas"]]
        assert listed == [(WEST_SIDE, "polygon"), ("route:10", "route"), ("route:<b>2</b>", "route")]


async def test_an_area_gives_the_released_statistics_of_its_cells_together(config):
    messages = window(config, 0)
    released = bodies(messages)
    async with served(config, messages) as client:
        inside = await json_of(client, f"/api/v1/areas/{quote(WEST_SIDE, safe='')}")
        assert inside["hexagons"] == sorted([BUSY, STEADY])
        means = {cell: released[cell]["mean"] for cell in (BUSY, STEADY)}
        events = {cell: released[cell]["events"] for cell in (BUSY, STEADY)}
        mean = sum(events[cell] * means[cell]["raw"] for cell in means) / sum(events.values())
        assert inside["mean"]["raw"] == pytest.approx(mean)
        assert inside["events"] == {"value": sum(events.values()), "interval": None}
        assert (inside["cells"], inside["published"], inside["geometry"]["type"]) == (2, 2, "MultiPolygon")
        corridor = await json_of(client, "/api/v1/areas/route:10?window=2017-03-21T12:00:00Z")
        assert corridor["hexagons"] == sorted([BUSY, UNCERTAIN])
        low, high = corridor["mean"]["interval"]
        assert low < corridor["mean"]["value"] < high
        file = await client.get("/api/v1/windows/2017-03-21T12:00:00Z/areas.csv")
        rows = {row["area"]: row for row in csv.DictReader(io.StringIO(await file.text()))}
        assert list(rows) == [WEST_SIDE, "route:10", "route:<b>2</b>"]
        numbers = [float(rows["route:10"][name]) for name in ("mean_raw_to_average", "mean_low", "mean_high")]
        assert numbers == pytest.approx([corridor["mean"]["raw"], low, high], abs=0.001)
        assert (rows[WEST_SIDE]["events"], rows[WEST_SIDE]["events_low"]) == (f"{sum(events.values()):.1f}", "")
        for path in ("none", "route:", "%00", "..%2F..", "x" * 400, "route:10?window=2001-01-01T00:00:00Z"):
            problem = await client.get(f"/api/v1/areas/{path}")
            assert (problem.status, problem.content_type) == (404, "application/problem+json"), path


async def test_without_files_the_lists_are_empty_and_the_page_offers_nothing(tmp_path):
    async with served(city_config(tmp_path), []) as client:
        assert await json_of(client, "/api/v1/places") == {"resolution": None, "cells": []}
        assert await json_of(client, "/api/v1/areas") == {"areas": []}
        settings = await json_of(client, "/dashboard/settings")
        assert not any(settings[name] for name in ("places", "lines", "areas"))


@needs_chromium
@LOOKS
async def test_cells_are_called_by_their_places_and_hostile_names_stay_words(browser, config, look):
    async with page_of(browser, config, window(config, 0), **look) as (page, _):
        if look["size"] == DESKTOP:
            await page.mouse.move(*await place_of(page, BUSY))
            await expect(page.locator("#tooltip .name")).to_have_text(HOSTILE)
        await page.locator("#table-button").click()
        rows = page.locator("#table-scroll tbody tr")
        await expect(rows).to_have_count(len(CELLS))
        for cell, name in {
            BUSY: HOSTILE,
            STEADY: ARABIC.replace("\u202e", ""),
            UNCERTAIN: "on routes 10",
            LONELY: LONELY,
        }.items():
            row = rows.filter(has_text=cell)
            await expect(row.locator("th")).to_contain_text(name)
        await expect(rows.filter(has_text=UNCERTAIN).locator("th bdi")).to_have_text("10")
        await no_violation(page)
        await rows.filter(has_text=BUSY).locator("button").click()
        await expect(page.locator("#details h2 .name")).to_have_text(HOSTILE)
        await expect(page.locator("#details h2 code")).to_have_text(BUSY)
        await expect(page.locator("#details")).to_contain_text("Routes that cross it: 10, <b>2</b>")
        await expect(page.locator("#details bdi")).to_have_text([HOSTILE, "10", "<b>2</b>"])
        await page.locator("#table-close").click()
        await page.locator("#search-button").click()
        await expect(page.locator("#search-results li bdi")).to_have_text([WEST_SIDE, "10", "<b>2</b>"])
        await expect(page.locator("#search-results li").nth(1)).to_contain_text("Route 10")
        await no_violation(page)
        assert await page.locator("img[src=x], li b").count() == 0
        assert await page.title() == "Hexveil"


@needs_chromium
async def test_a_place_stop_route_area_and_index_are_found_by_keyboard_and_stay_in_the_address_and_on_the_map(
    browser, config
):
    place = f"?area={quote(WEST_SIDE, safe='')}#hexagons=on"
    async with page_of(browser, config, window(config, 0), place) as (page, _):
        await expect(page.locator("#details h2")).to_have_text(WEST_SIDE)
        await page.locator("#details-close").click()
        await expect(page.locator("#details")).to_be_hidden()
        assert "area" not in page.url
        await find(page, "/", "شارع")
        await expect(page.locator("#details code")).to_have_text(STEADY)
        await find(page, "/", "congress 7th")
        await expect(page.locator("#details code")).to_have_text(BUSY)
        await find(page, "/", LONELY)
        await expect(page.locator("#details code")).to_have_text(LONELY)
        await find(page, "/", "sud")
        await expect(page.locator("#details h2")).to_have_text(WEST_SIDE)
        await expect(page.locator("#area-mean")).to_contain_text("km/h, 95 % interval")
        assert (await fields(page))["area"] == WEST_SIDE
        await find(page, "/", "route 10")
        await expect(page.locator("#details h2")).to_have_text("Route 10")
        await expect(page.locator("#details")).to_contain_text("2 published of 2 cells that the route crosses")
        await reloaded(page)
        await expect(page.locator("#details h2")).to_have_text("Route 10")
        await expect(page.locator("#area-mean")).to_contain_text("km/h, 95 % interval")
        await page.locator("#map canvas").focus()
        await page.keyboard.press("/")
        await page.locator("#search-input").fill("nowhere at all")
        await expect(page.locator("#search-body")).to_contain_text("Nothing of that name")
        await page.keyboard.press("Escape")
        await expect(page.locator("#search-input")).to_be_hidden()
        await marks_a_stop(page)


async def find(page: Page, key: str, query: str) -> None:
    """Open the search by its key, type, and choose the first answer."""
    await page.locator("#map canvas").focus()
    await page.keyboard.press(key)
    await expect(page.locator("#search-input")).to_be_focused()
    await page.locator("#search-input").fill(query)
    await expect(page.locator("#search-results li").first).to_be_visible()
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("#search-results li[aria-selected=true]")).to_have_count(1)
    await page.keyboard.press("Enter")


def corners_of(west: float, south: float, east: float, north: float) -> list[tuple[float, float]]:
    return [(lat, lng) for lat in (south, north) for lng in (west, east)]


SOUTH, NORTH = CENTRE[0] - 0.02, h3.cell_to_latlng(STEADY)[0] + 0.02
ADDRESSES = {
    f"?area={quote(WEST_SIDE, safe='')}": corners_of(-97.8, SOUTH, -97.6, NORTH),
    "?area=route:10": [corner for cell in (BUSY, UNCERTAIN) for corner in h3.cell_to_boundary(cell)],
    "#area=-97.9,30.1,-97.5,30.5": corners_of(-97.9, 30.1, -97.5, 30.5),
    "#area=Mine&ring=-97.73,30.18,-97.67,30.18,-97.7,30.28": [(30.18, -97.73), (30.18, -97.67), (30.28, -97.7)],
}
"""Areas of addresses that name no place, with their corners."""


@pytest.mark.nightly
@needs_chromium
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_an_address_with_an_area_and_no_place_shows_the_area_whole(browser, config, size):
    first, *_ = ADDRESSES
    async with page_of(browser, config, window(config, 0), first, size=size) as (page, _):
        widths = []
        for place, corners in ADDRESSES.items():
            if place != first:
                await revisit(page, place)
            await expect(page.locator("#area-mean")).to_contain_text("km/h")
            seen = await pixels_of(page, corners)
            assert all(await in_sight(page, seen)), (place, seen)
            widths.append(max(x for x, _ in seen) - min(x for x, _ in seen))
            at = "11.00/30.3000/-97.9000"
            await revisit(page, f"{place.replace('?', '#')}&at={at}")
            await expect(page.locator("#area-mean")).to_contain_text("km/h")
            assert (await fields(page))["at"] == at
        assert min(widths) > size["width"] / 12, "no area is a speck"


async def marks_a_stop(page: Page) -> None:
    """A stop that is searched is marked with its name where it is until something else is chosen."""
    await find(page, "/", STOP)
    await expect(page.locator("#details code").first).to_have_text(BUSY)
    await expect(page.locator("#spot")).to_have_text(f"{STOP} lies in this cell.")
    await expect(page.locator("#status")).to_have_text(f"{STOP} lies in this cell.")
    mark = page.get_by_role("img", name=STOP)
    await expect(mark).to_have_text(STOP)
    box = await box_of(mark)
    (pixel,) = await pixels_of(page, [(CENTRE[0] + STOP_NORTH, CENTRE[1])])
    assert (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) == pytest.approx(pixel, abs=2)
    assert await in_sight(page, [pixel]) == [True]
    inside = sorted(h3.grid_disk(h3.cell_to_center_child(BUSY, 10), 6))
    patches = [max(map(min, await pixels(page, cell, 1))) for cell in inside[:: len(inside) // 12]]
    assert sorted(patches)[len(patches) // 2] < 200, "the hexagon is drawn, not the land"
    await no_violation(page)
    await find(page, "/", LONELY)
    await expect(page.locator("#details code").first).to_have_text(LONELY)
    await expect(mark).to_have_count(0)
    await find(page, "/", STOP)
    await expect(mark).to_have_count(1)
    await find(page, "/", "route 10")
    await expect(page.locator("#details h2")).to_have_text("Route 10")
    await expect(mark).to_have_count(0)
    await find(page, "/", STOP)
    await page.locator("#details-close").click()
    await expect(mark).to_have_count(0)


@pytest.mark.nightly
@needs_chromium
async def test_a_phone_marks_a_stop_that_is_searched_and_says_that_the_area_of_an_address_is_unknown(browser, config):
    options: dict[str, Any] = {"size": PHONE, "errors": True}
    async with page_of(browser, config, window(config, 0), "#hexagons=on", **options) as (page, _):
        await marks_a_stop(page)
        await revisit(page, f"?area={quote('<script>document.title=1</script>')}")
        await expect(page.locator("#details .problem")).to_contain_text("there is no area")
        assert await page.title() == "Hexveil"


@needs_chromium
async def test_roads_of_a_basemap_streets_and_sensors_carry_the_colours_of_their_cells(browser, tmp_path):
    """A road runs through BUSY, a path through UNCERTAIN; a street and a sensor are in STEADY."""
    busy, steady, uncertain = map(h3.cell_to_latlng, (BUSY, STEADY, UNCERTAIN))
    roads = {"primary": busy, "path": uncertain}
    tiles = street_map(tmp_path, {kind: [(lat, lng - 0.01), (lat, lng + 0.01)] for kind, (lat, lng) in roads.items()})
    ends = [[steady[1] - 0.01, steady[0]], [steady[1] + 0.01, steady[0]]]
    shapes = [
        {"type": "LineString", "coordinates": ends},
        {"type": "Point", "coordinates": [steady[1], steady[0] - 0.005]},
    ]
    features = [{"type": "Feature", "geometry": shape, "properties": {}} for shape in shapes]
    streets = tmp_path / "streets.geojson"
    streets.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    config = city_config(tmp_path, **{"public.streets": str(streets)})
    async with (
        served(config, window(config, 0), check_basemap(tiles)) as client,
        opened(browser, origin_of(client), f"#at=13/{busy[0]:.4f}/{busy[1]:.4f}", color_scheme="light") as page,
    ):
        far: dict[str, list[int]] = {}
        sensors: dict[str, int] = {}
        for cell, speed in ((BUSY, 22.0), (STEADY, 45.0), (UNCERTAIN, 30.0)):
            await (await table_row(page, cell)).locator("button").click()
            await page.locator("#table-close").click()
            await page.locator("#details-close").click()
            await page.wait_for_timeout(1000)
            picture = await pixels(page, cell, 140)
            column = picture[50::140]  # beside the number
            colour = {22.0: (0x26, 0x82, 0x8E), 45.0: (0xB5, 0xDE, 0x2B), 30.0: (0x35, 0xB7, 0x79)}[speed]
            alike = [apart(pixel, colour) < 25 for pixel in column]
            sensors[cell] = sum(apart(pixel, colour) < 25 for pixel in picture[70::140][110:])
            far[cell] = [alike.count(True), sum(a != b for a, b in itertools.pairwise(alike))]
        assert 3 <= far[BUSY][0] <= 20, far
        assert far[BUSY][1] == 2, far
        assert far[UNCERTAIN][0] == 0, "nobody drives on a path"
        assert far[STEADY][0] >= 3, far
        assert sensors[STEADY] > 8, sensors
        assert sensors[BUSY] == 0, sensors
        assert len((await (await client.get("/api/v1/streets")).json())["features"]) == 2


@pytest.mark.nightly
@needs_chromium
async def test_streets_carry_the_colour_of_their_cell_with_or_without_hexagons(browser, config):
    place, side = f"#at=13/{CENTRE[0]:.4f}/{CENTRE[1]:.4f}", 60
    class_20_25, land = (0x26, 0x82, 0x8E), (0xEE, 0xF0, 0xF1)

    async def seen(page: Page) -> list[bool]:
        """Whether the street through BUSY and the ground beside it have its colour; anything else is bare ground."""
        await page.wait_for_timeout(500)
        square = await pixels(page, BUSY, side)
        row = square[side * (side // 2 - 14) :]  # above the number
        coloured = []
        for colour in (row[side // 2], row[2]):
            far = [apart(colour, other) for other in (class_20_25, land)]
            assert min(far) < 25, colour
            coloured.append(far[0] < far[1])
        return coloured

    async with page_of(browser, config, window(config, 0), place, color_scheme="light") as (page, _):
        lines, hexagons = (page.get_by_role("checkbox", name=name) for name in ("Streets and routes", "Hexagons"))
        await expect(lines).to_be_checked()
        await expect(hexagons).not_to_be_checked()
        assert await seen(page) == [True, False]
        await hexagons.press("Space")
        await expect(hexagons).to_be_checked()
        assert await seen(page) == [True, True]
        assert (await fields(page))["hexagons"] == "on"
        await hexagons.press("Space")
        await lines.press("Space")
        await expect(lines).not_to_be_checked()
        assert await seen(page) == [True, True], "without lines, hexagons are all there is"
        assert (await fields(page))["lines"] == "off"
        await revisit(page, "#area=route:10")
        await expect(page.locator("#ways")).to_contain_text(
            re.compile(r"[\d.]+ km, \d+ % measuredNow[\d.]+ \([\d.]+–[\d.]+\)\d+ \(\d+–\d+\)")
        )
