"""Travel times along routes, and means over a range of windows, from released numbers alone. Every reader shows the
same leading estimate of a cell: the smoothed mean where "riders" are released."""

import csv
import io
import json
import math
import re
from bisect import bisect_right
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import h3
import numpy as np
import pytest
from aiohttp.test_utils import TestClient
from playwright.async_api import expect
from pyarrow import parquet

from dpcore.noise import Noise
from stream.cli.demo_view import Releases
from stream.config import Config
from stream.messages.cells import cells_of, estimates_in, with_estimates
from stream.messages.message import HEXAGON_SPEED, Message
from stream.messages.tables import row_of
from stream.serve.city.ways import along, estimates, pieces_of, travel
from tests.stream.serve.browser import LAPTOP, apart, colour_of, fields, needs_chromium, no_violation, place_of
from tests.stream.serve.city import (
    BUSY,
    STEADY,
    UNCERTAIN,
    USUAL_DAY,
    Cell,
    city_config,
    remembered,
    rows_of_city,
    window,
)
from tests.stream.serve.made_places import STOP, city_files
from tests.stream.serve.serving import fits_every_screen, json_of, page_of, served
from tests.support.builders import riders
from tests.support.releasing import released

WINDOWS = 6
LINE = [tuple(reversed(h3.cell_to_latlng(cell))) for cell in (BUSY, UNCERTAIN)]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    """Six hourly windows from 07:00 local time on a Tuesday, and a route from BUSY to UNCERTAIN."""
    config = city_config(tmp_path, **{"feed.name": "bus"} | city_files(tmp_path))
    messages = [message for hour in range(WINDOWS) for message in window(config, hour)]
    async with served(config, messages) as made:
        yield made


def test_pieces_lie_in_one_cell_each_and_together_are_the_line():
    pieces = pieces_of(LINE, 8)
    (first_lng, first_lat), (last_lng, last_lat) = LINE
    metres = h3.great_circle_distance((first_lat, first_lng), (last_lat, last_lng), unit="m")
    assert pieces[0][1] == 0.0
    assert all(math.isclose(one[2], other[1]) for one, other in pairwise(pieces))
    assert pieces[-1][2] == pytest.approx(metres, rel=3e-3)
    for cell, start, end in pieces:
        at = (start + end) / 2 / pieces[-1][2]
        if end - start > 25:
            assert (
                h3.latlng_to_cell(first_lat + at * (last_lat - first_lat), first_lng + at * (last_lng - first_lng), 8)
                == cell
            )
    assert along(LINE, LINE[0]) == pytest.approx(0.0, abs=1e-6)
    assert along(LINE, (first_lng + 0.01, first_lat)) is None, "a stop a kilometre beside the line is not on it"


def test_the_interval_of_a_time_holds_it_however_the_errors_of_cells_depend_on_each_other():
    """n = 2 000 releases of each kind; at 95 % each, more than 130 misses have a probability below 0.001."""
    cells = [f"8{7}489e25{digit}ffffff" for digit in "1359"]
    pieces = [(cell, 1000.0 * at, 1000.0 * (at + 1)) for at, cell in enumerate([*cells, cells[0]])]
    truth, deviation, rng, n = 20.0, 2.0, np.random.default_rng(4), 2_000
    exact = sum(60 * (end - start) / 1000 / truth for _, start, end in pieces)
    for shared in (0.0, 0.7, 1.0):
        missed = 0
        for _ in range(n):
            common = rng.normal()
            errors = deviation * (math.sqrt(shared) * common + math.sqrt(1 - shared) * rng.normal(size=len(cells)))
            values = [
                json.dumps(
                    {"cell": cell, "status": "published", "users": 9, "events": 10}
                    | {"mean": _mean(truth + error, 1.96 * deviation)}
                ).encode()
                for cell, error in zip(cells, errors.tolist(), strict=True)
            ]
            known = estimates(cells_of(values), "mean")
            low, high = travel(pieces, (0.0, 5000.0), known.keys(), {"now": known}, {})["now"]["minutes_interval"]
            missed += not low <= exact <= high
        assert missed <= 130, (shared, missed)


def _mean(value: float, half: float) -> dict[str, Any]:
    interval = [value - half, value + half]
    return {"value": value, "raw": value, "scale": 1.0, "interval": interval, "unit": "km/h"}


async def test_a_route_says_how_long_its_way_takes_by_the_estimates_of_its_cells(client):
    said = await json_of(client, "/api/v1/routes/10/speed?window=2017-03-21T12:00:00Z")
    hexagons = {
        one["cell"]: one for one in (await json_of(client, "/api/v1/hexagons?window=2017-03-21T12:00:00Z"))["hexagons"]
    }
    (way,) = said["lines"]
    metres: dict[str, float] = {}
    for cell, start, end in pieces_of(LINE, 7):
        if (hexagons.get(cell) or {}).get("estimate"):
            metres[cell] = metres.get(cell, 0.0) + end - start
    assert {BUSY, UNCERTAIN} <= metres.keys()
    minutes = sum(length * 0.06 / hexagons[cell]["estimate"]["mean"]["value"] for cell, length in metres.items())
    assert way["now"]["minutes"] == pytest.approx(minutes, abs=0.01)
    assert way["measured_metres"] == pytest.approx(sum(metres.values()), abs=1)
    assert way["measured_metres"] < way["metres"], "cells between them were not released"
    low, high = way["now"]["minutes_interval"]
    assert low < minutes < high
    assert way["now"]["km_h_interval"][0] < way["now"]["km_h"] < way["now"]["km_h_interval"][1]
    assert way["scheduled"] is None
    part = (await json_of(client, f"/api/v1/routes/10/speed?from_stop={STOP.replace('/', '%2F')}"))["lines"]
    assert len(part) == 1
    assert part[0]["metres"] < way["metres"]
    assert (await json_of(client, f"/api/v1/routes/10/speed?to_stop={STOP}&from_stop={STOP}"))["lines"] == []
    for path in ("routes/none/speed", "routes/10/speed?from_stop=nowhere"):
        await json_of(client, f"/api/v1/{path}", 404)


async def test_a_mean_over_a_range_is_weighted_by_events_and_narrower_than_each(client):
    ranged = "from=2017-03-21T12:00:00Z&to=2017-03-22T00:00:00Z"
    said = await json_of(client, f"/api/v1/means?{ranged}")
    assert said["windows"] == WINDOWS
    past = [one for one in (await json_of(client, f"/api/v1/cells/{BUSY}"))["releases"] if "mean" in one]
    row = next(one for one in said["cells"] if one["cell"] == BUSY)
    mean = sum(one["events"] * one["mean"]["raw"] for one in past) / sum(one["events"] for one in past)
    assert row["mean"]["raw"] == pytest.approx(mean)
    assert (row["windows"], row["events"]["value"]) == (WINDOWS, sum(one["events"] for one in past))
    low, high = row["mean"]["interval"]
    widths = [one["mean"]["interval"][1] - one["mean"]["interval"][0] for one in past]
    assert high - low < 0.6 * min(widths), "six independent windows: about 1/√6"
    # 07:00 to 09:00 on the clocks of Austin, Tuesday.
    morning = await json_of(client, f"/api/v1/means?{ranged}&hours=7-9&days=workday&area=route:10")
    assert (morning["windows"], {one["cell"] for one in morning["cells"]}) == (2, {BUSY, UNCERTAIN})
    total = sum(one["events"]["value"] for one in morning["cells"])
    assert morning["together"]["events"]["value"] == total
    weighed = sum(one["events"]["value"] * one["mean"]["raw"] for one in morning["cells"]) / total
    assert morning["together"]["mean"]["raw"] == pytest.approx(weighed)
    lat, lng = h3.cell_to_latlng(BUSY)
    ring = ",".join(f"{x:.3f},{y:.3f}" for x, y in ((lng - 0.01, lat - 0.01), (lng + 0.01, lat), (lng, lat + 0.01)))
    drawn = await json_of(client, f"/api/v1/means?{ranged}&ring={ring}")
    assert drawn["together"]["mean"]["raw"] == pytest.approx(row["mean"]["raw"])
    await json_of(client, f"/api/v1/means?{ranged}&ring={ring}&area=route:10", 400)
    for path in (f"{ranged}&days=weekend", f"{ranged}&area=nowhere"):
        await json_of(client, f"/api/v1/means?{path}", 404)
    for path in ("hours=9-7", "hours=7-25", "days=holiday"):
        await json_of(client, f"/api/v1/means?{ranged}&{path}", 400)


async def test_a_way_is_told_now_typically_and_over_a_range_as_json_and_as_a_table(tmp_path):
    """A range of four windows is known best. Typical is what the messages call so."""
    changes = {"feed.name": "bus", "speed.post_processing": ["kalman"]}
    config = city_config(tmp_path, **changes | city_files(tmp_path))
    messages = remembered(config, *[USUAL_DAY] * 4)
    async with served(config, messages) as client:
        said = (await json_of(client, "/api/v1/routes/10/speed"))["lines"][0]
        assert said["stops"] == [STOP]
        assert (said["from_stop"], said["to_stop"]) == (STOP, STOP)
        hexagons = (await json_of(client, "/api/v1/hexagons"))["hexagons"]
        typical = {one["cell"]: one["estimate"]["typical"]["value"] for one in hexagons if one["estimate"]}
        metres = dict.fromkeys(typical, 0.0)
        for cell, start, end in pieces_of(LINE, 7):
            if cell in metres:
                metres[cell] += end - start
        minutes = sum(length * 0.06 / typical[cell] for cell, length in metres.items() if length)
        assert said["typical"]["minutes"] == pytest.approx(minutes, abs=0.01)
        ranged = "from=2017-03-21T00:00:00Z&to=2017-03-26T00:00:00Z"
        whole = await json_of(client, f"/api/v1/routes/10/means?{ranged}&days=workday&hours=7-11")
        assert whole["windows"] == 4
        widths = [np.ptp(one["km_h_interval"]) for one in (whole["lines"][0]["mean"], said["now"])]
        assert widths[0] < widths[1] / 1.6, "four independent windows: a half"
        async with client.get("/api/v1/routes/10/speed?format=csv") as answer:
            assert answer.content_type == "text/csv"
            (row,) = csv.DictReader((await answer.text()).splitlines())
        assert float(row["typical_minutes"]) == said["typical"]["minutes"]
        assert [float(row[f"now_km_h_{end}"]) for end in ("low", "high")] == said["now"]["km_h_interval"]
        assert (row["window_start"], row["from_stop"], row["scheduled_minutes"]) == ("2017-03-21T15:00:00Z", STOP, "")
        async with client.get(f"/api/v1/routes/10/means?format=csv&{ranged}") as answer:
            (row,) = csv.DictReader((await answer.text()).splitlines())
        assert (row["windows"], row["mean_minutes"]) == ("4", str(whole["lines"][0]["mean"]["minutes"]))


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_a_reader_sees_the_mean_of_a_range_and_the_way_between_two_stops_on_every_screen(browser, tmp_path):
    changes = {"feed.name": "bus", "speed.post_processing": ["kalman"]}
    config = city_config(tmp_path, **changes | city_files(tmp_path))
    messages = remembered(config, *[USUAL_DAY] * 4)
    look: dict[str, Any] = {"size": LAPTOP, "color_scheme": "light"}
    async with page_of(browser, config, messages, "#area=route:10", **look) as (page, client):
        ways = page.locator("#ways")
        await expect(ways).to_contain_text("Typical")
        await page.locator("#ways-body select[name=stop-from]").select_option(STOP)
        await expect(ways).to_contain_text(re.compile(r"→ Congress / 7th [\d.]+ km"))
        part = (await json_of(client, f"/api/v1/routes/10/speed?from_stop={STOP}"))["lines"][0]
        await expect(ways).to_contain_text(f"{part['metres'] / 1000:.1f} km")
        address = await page.locator("#ways-body a").get_attribute("href")
        async with client.get(f"/{address}") as answer:
            assert STOP in await answer.text()
        await page.locator("#range summary").click()
        await page.locator("#range select[name=days]").select_option("workday")
        await page.locator("#range select[name=first-hour]").select_option("7")
        await page.locator("#over-button").click()
        await expect(page.locator("#window-text")).to_have_text("Mean of 4 windows")
        await expect(ways).to_contain_text("Mean")
        await expect(ways).not_to_contain_text("Now")
        assert (await fields(page))["mean"] == "workday.7-24"
        await fits_every_screen(page)
        await no_violation(page)
        await page.get_by_role("button", name="Dark colours").click()
        await no_violation(page)
        await page.reload()
        await expect(page.locator("#window-text")).to_have_text("Mean of 4 windows")
        await page.locator("#live-button").click()
        await expect(page.locator("#window-text")).to_contain_text("10:00–11:00")
        assert "mean" not in await fields(page)


CROWDED = {BUSY: Cell(400, 2, 17.5), STEADY: Cell(300, 1, 27.5), UNCERTAIN: Cell(25, 1, 40.0)}
SEED = 1
"""Of noise by which the smoothed and the released mean of UNCERTAIN are of different classes."""
LAND = (0xEE, 0xF0, 0xF1)
OPACITY = {1: 0.92, 2: 0.66, 3: 0.48}
"""Of a cell by the number of classes that its interval touches; of more: 0.3."""
LEGEND = """() => [...document.querySelectorAll('#legend li')].map((row) => [row.textContent,
  row.querySelector('.swatch > span') && getComputedStyle(row.querySelector('.swatch > span')).backgroundColor])
  .filter(([, colour]) => colour)"""


def few_riders(tmp_path: Path) -> tuple[Config, list[Message]]:
    """Two cells with users and many without, under "participation" and smoothed."""
    config = riders(tmp_path)
    return config, released(config, rows_of_city(0, CROWDED), Noise(np.random.default_rng(SEED).bytes))


def test_the_modelled_mean_leads_then_the_released_one():
    drawn = {"value": 30.0, "raw": 30.0, "interval": [20.0, 40.0], "unit": "km/h", "scale": 3.0, "clamped": False}
    modelled = {"method": "m", "value": 25.0, "interval": [22.0, 28.0], "unit": "km/h"}
    body: dict[str, Any] = {"cell": BUSY, "status": "published", "users": 5, "mean": drawn, "p50": drawn}
    leading = []
    for models in ({}, {"mean": modelled}):
        estimates = estimates_in(body | {"post_processed": models})
        assert estimates is not None
        leading.append((estimates["mean"]["method"], estimates["mean"]["value"]))
        assert estimates["p50"] == {"value": 30.0, "interval": (20.0, 40.0), "unit": "km/h", "method": "released"}
    assert leading == [("released", 30.0), ("m", 25.0)]
    assert estimates_in(body | {"status": "suppressed"}) is None


@pytest.mark.parametrize(("accounting", "bound"), [({}, 14.142), ({"accounting": "zcdp"}, 10.0)])
def test_nobody_is_estimated_where_the_released_users_are_within_their_noise(accounting, bound):
    """One standard deviation of noise of scale 10; exact numbers have none."""
    for raw, anybody in ((bound - 0.1, False), (bound + 0.1, True), (-40.0, False)):
        users = {"raw": raw, "value": max(raw, 0.0), "scale": 10.0, "interval": [0.0, 40.0], "unit": "1"}
        assert (estimates_in({"cell": BUSY, "status": "published", "users": users} | accounting) is not None) == anybody


@pytest.mark.asyncio(loop_scope="session")
async def test_every_reader_holds_the_same_number(tmp_path):
    config, messages = few_riders(tmp_path)
    values = {json.loads(m.value)["cell"]: m.value for m in messages if m.topic == HEXAGON_SPEED}
    expected = {cell: (estimates_in(json.loads(value)) or {}).get("mean") for cell, value in values.items()}
    assert expected[BUSY] is not None
    assert expected[BUSY]["method"] == "kalman"
    assert json.loads(json.dumps(expected[BUSY])) == json.loads(values[BUSY])["post_processed"]["mean"]
    assert 0.6 * len(values) < sum(mean is None for mean in expected.values())
    async with served(config, messages) as client:

        async def read(path: str) -> bytes:
            return await (await client.get(path)).read()

        answer = await read("/api/v1/hexagons")
        assert with_estimates(values[BUSY], *cells_of([values[BUSY]])) in answer
        listed = json.loads(answer)["hexagons"]
        path = f"/api/v1/windows/{listed[0]['window']['start']}/download"
        whole, downloaded, features = [
            [feature["properties"] for feature in json.loads(await read(path))["features"]]
            for path in (
                "/api/v1/hexagons?format=geojson",
                f"{path}.geojson",
                f"/ogc/collections/{config.feed.name}.newest/items?limit=1000",
            )
        ]
        bodies = {
            "map, table, search": listed,
            "geojson": whole,
            "history": [json.loads(await read(f"/api/v1/cells/{cell}"))["releases"][0] for cell in values],
        }
        rows = {
            "csv": list(csv.DictReader(io.StringIO((await read(f"{path}.csv")).decode()))),
            "parquet": parquet.read_table(io.BytesIO(await read(f"{path}.parquet"))).to_pylist(),
            "download": downloaded,
            "ogc": features,
            "file": [row_of(value) for value in values.values()],
        }
        areas = {}
        for cell in values:
            lat, lng = h3.cell_to_latlng(cell)
            ring = ",".join(f"{x:.5f},{y:.5f}" for x, y in _square(lng, lat))
            area = json.loads(await read(f"/api/v1/area?ring={ring}"))
            assert area["hexagons"] == [cell]
            areas[cell] = _of_mean(area["estimate"])
    wanted = {cell: _of_mean(mean) for cell, mean in expected.items()}
    for reader, read_as in bodies.items():
        assert {body["cell"]: _of_mean((body["estimate"] or {}).get("mean")) for body in read_as} == wanted, reader
    for reader, read_as in rows.items():
        assert {row["cell"]: _of_row(row) for row in read_as} == wanted, reader
    # An area leads with what was released where the noise alone is narrower.
    assert areas[BUSY][:3] == pytest.approx(wanted[BUSY][:3], abs=5e-4) or areas[BUSY][3] == "released"
    demo = Releases(ZoneInfo("America/Chicago"))
    for message in messages:
        demo.add(message.topic, dict(message.headers), message.value)
    busiest = expected[BUSY]
    assert f"mean {busiest['value']:.1f} ({busiest['interval'][0]:.0f}–" in demo.lines()[0]


def _of_mean(mean: dict[str, Any] | None) -> Any:
    """Value, interval and method; None where they are empty."""
    return mean and [mean["value"], *mean["interval"], mean["method"]]


def _of_row(row: dict[str, Any]) -> list[Any] | None:
    *numbers, method = [row.get(f"estimate_mean{part}") for part in ("", "_low", "_high", "_method")]
    return [*map(float, numbers), method] if method else None


def _square(lng: float, lat: float) -> list[tuple[float, float]]:
    return [(lng + x, lat + y) for x, y in ((-0.002, -0.002), (0.002, -0.002), (0.002, 0.002), (-0.002, 0.002))]


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_map_has_the_colours_of_the_smoothed_mean_and_none_where_nobody_is_estimated(browser, tmp_path):
    config, messages = few_riders(tmp_path)
    bodies = {body["cell"]: body for body in (json.loads(m.value) for m in messages if m.topic == HEXAGON_SPEED)}
    empty = next(cell for cell, body in bodies.items() if estimates_in(body) is None and cell not in CROWDED)
    async with page_of(browser, config, messages, color_scheme="light") as (page, _):
        classes = [(*map(float, label.split("–")), colour) for label, colour in await page.evaluate(LEGEND)]
        ends = [high for _, high, _ in classes[:-1]]
        indexes = {}
        for cell in CROWDED:
            smoothed = bodies[cell]["post_processed"]["mean"]
            index, low, high = (bisect_right(ends, at) for at in (smoothed["value"], *smoothed["interval"]))
            indexes[cell] = index, bisect_right(ends, bodies[cell]["mean"]["value"])
            colour = [int(part) for part in re.findall(r"\d+", classes[index][2])]
            share = OPACITY.get(high - low + 1, 0.3)
            wanted = [share * a + (1 - share) * b for a, b in zip(colour, LAND, strict=True)]
            seen = await colour_of(page, cell)
            assert apart(seen, wanted) < 6, (cell, smoothed, seen)
        assert indexes[UNCERTAIN][0] != indexes[UNCERTAIN][1], "the noise was to tell the two apart"
        assert await colour_of(page, empty) == LAND
        await page.mouse.move(*await place_of(page, empty))
        await expect(page.locator("#tooltip .reading")).to_have_text("Nobody is estimated here in this window.")


@pytest.mark.nightly
@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_foot_of_the_table_adds_raw_users_not_clamped_ones(browser, tmp_path):
    config, messages = few_riders(tmp_path)
    bodies = [json.loads(message.value) for message in messages if message.topic == HEXAGON_SPEED]
    users = [body["users"] for body in bodies]
    total = sum(one["raw"] for one in users)
    error = 2.12 * np.sqrt(sum(2 * one["scale"] ** 2 for one in users))
    assert sum(one["value"] for one in users) > total + error, "what a planner would add up to"
    async with page_of(browser, config, messages, color_scheme="light") as (page, _):
        await page.locator("#table-button").click()
        foot = page.locator("#table-scroll tfoot tr")
        low, high = (f"{end:,.0f}" for end in (total - error, total + error))
        await expect(foot.locator("td").last).to_have_text(f"about {total:,.0f} (95 % interval {low}–{high})")
        await expect(foot.locator("th")).to_have_text(re.compile(f"^All {len(bodies)} cells"))
