"""Travel times along routes, and means over a range of windows, from released numbers alone."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pytest
from aiohttp.test_utils import TestClient
from playwright.async_api import Browser, expect

from stream.messages.lines import line_of
from stream.serve.city.combining import numbers_of
from stream.serve.city.ways import along, estimates, pieces_of, travel
from tests.stream.serve.browser import LAPTOP, fields, needs_chromium, no_violation
from tests.stream.serve.city import BUSY, UNCERTAIN, USUAL_DAY, city_config, remembered, window
from tests.stream.serve.made_places import STOP, city_files
from tests.stream.serve.pages import CUT, OUTSIDE, page_of
from tests.stream.serve.serving import serving_file

WINDOWS = 6
LINE = [tuple(reversed(h3.cell_to_latlng(cell))) for cell in (BUSY, UNCERTAIN)]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    """Six hourly windows from 07:00 local time on a Tuesday, and a route from BUSY to UNCERTAIN."""
    config = city_config(tmp_path, **{"feed.name": "bus"} | city_files(tmp_path))
    messages = [message for hour in range(WINDOWS) for message in window(config, hour)]
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, messages)), encoding="utf-8")
    async with serving_file(config, tmp_path / "releases.ndjson") as made:
        yield made


async def get(client: TestClient, path: str, status: int = 200) -> Any:
    async with client.get(path) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json(content_type=None)


def test_pieces_lie_in_one_cell_each_and_together_are_the_line() -> None:
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


def test_the_interval_of_a_time_holds_it_however_the_errors_of_cells_depend_on_each_other() -> None:
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
                    {"cell": cell, "status": "published", "events": 10, "mean": _mean(truth + error, 1.96 * deviation)}
                ).encode()
                for cell, error in zip(cells, errors.tolist(), strict=True)
            ]
            known = estimates(numbers_of(values), "mean")
            low, high = travel(pieces, (0.0, 5000.0), known.keys(), {"now": known}, {})["now"]["minutes_interval"]
            missed += not low <= exact <= high
        assert missed <= 130, (shared, missed)


def _mean(value: float, half: float) -> dict[str, Any]:
    interval = [value - half, value + half]
    return {"value": value, "raw": value, "scale": 1.0, "interval": interval, "unit": "km/h"}


async def test_a_route_says_how_long_its_way_takes_by_the_estimates_of_its_cells(client: TestClient) -> None:
    said = await get(client, "/api/v1/routes/10/speed?window=2017-03-21T12:00:00Z")
    hexagons = {
        one["cell"]: one for one in (await get(client, "/api/v1/hexagons?window=2017-03-21T12:00:00Z"))["hexagons"]
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
    part = (await get(client, f"/api/v1/routes/10/speed?from_stop={STOP.replace('/', '%2F')}"))["lines"]
    assert len(part) == 1
    assert part[0]["metres"] < way["metres"]
    assert (await get(client, f"/api/v1/routes/10/speed?to_stop={STOP}&from_stop={STOP}"))["lines"] == []
    for path in ("routes/none/speed", "routes/10/speed?from_stop=nowhere"):
        await get(client, f"/api/v1/{path}", 404)


async def test_a_mean_over_a_range_is_weighted_by_events_and_narrower_than_each(client: TestClient) -> None:
    ranged = "from=2017-03-21T12:00:00Z&to=2017-03-22T00:00:00Z"
    said = await get(client, f"/api/v1/means?{ranged}")
    assert said["windows"] == WINDOWS
    past = [one for one in (await get(client, f"/api/v1/cells/{BUSY}"))["releases"] if "mean" in one]
    row = next(one for one in said["cells"] if one["cell"] == BUSY)
    mean = sum(one["events"] * one["mean"]["raw"] for one in past) / sum(one["events"] for one in past)
    assert row["mean"]["raw"] == pytest.approx(mean)
    assert (row["windows"], row["events"]["value"]) == (WINDOWS, sum(one["events"] for one in past))
    low, high = row["mean"]["interval"]
    widths = [one["mean"]["interval"][1] - one["mean"]["interval"][0] for one in past]
    assert high - low < 0.6 * min(widths), "six independent windows: about 1/√6"
    # 07:00 to 09:00 on the clocks of Austin, Tuesday.
    morning = await get(client, f"/api/v1/means?{ranged}&hours=7-9&days=workday&area=route:10")
    assert (morning["windows"], {one["cell"] for one in morning["cells"]}) == (2, {BUSY, UNCERTAIN})
    total = sum(one["events"]["value"] for one in morning["cells"])
    assert morning["together"]["events"]["value"] == total
    weighed = sum(one["events"]["value"] * one["mean"]["raw"] for one in morning["cells"]) / total
    assert morning["together"]["mean"]["raw"] == pytest.approx(weighed)
    lat, lng = h3.cell_to_latlng(BUSY)
    ring = ",".join(f"{x:.3f},{y:.3f}" for x, y in ((lng - 0.01, lat - 0.01), (lng + 0.01, lat), (lng, lat + 0.01)))
    drawn = await get(client, f"/api/v1/means?{ranged}&ring={ring}")
    assert drawn["together"]["mean"]["raw"] == pytest.approx(row["mean"]["raw"])
    await get(client, f"/api/v1/means?{ranged}&ring={ring}&area=route:10", 400)
    for path in (f"{ranged}&days=weekend", f"{ranged}&area=nowhere"):
        await get(client, f"/api/v1/means?{path}", 404)
    for path in ("hours=9-7", "hours=7-25", "days=holiday"):
        await get(client, f"/api/v1/means?{ranged}&{path}", 400)


async def test_a_way_is_told_now_typically_and_over_a_range_as_json_and_as_a_table(tmp_path: Path) -> None:
    """A range of four windows is known best. Typical is what the messages call so."""
    changes = {"feed.name": "bus", "speed.post_processing": ["kalman"]}
    config = city_config(tmp_path, **changes | city_files(tmp_path))
    messages = remembered(config, *[USUAL_DAY] * 4)
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, messages)), encoding="utf-8")
    async with serving_file(config, tmp_path / "releases.ndjson") as client:
        said = (await get(client, "/api/v1/routes/10/speed"))["lines"][0]
        assert said["stops"] == [STOP]
        assert (said["from_stop"], said["to_stop"]) == (STOP, STOP)
        hexagons = (await get(client, "/api/v1/hexagons"))["hexagons"]
        typical = {one["cell"]: one["estimate"]["typical"]["value"] for one in hexagons if one["estimate"]}
        metres = dict.fromkeys(typical, 0.0)
        for cell, start, end in pieces_of(LINE, 7):
            if cell in metres:
                metres[cell] += end - start
        minutes = sum(length * 0.06 / typical[cell] for cell, length in metres.items() if length)
        assert said["typical"]["minutes"] == pytest.approx(minutes, abs=0.01)
        ranged = "from=2017-03-21T00:00:00Z&to=2017-03-26T00:00:00Z"
        whole = await get(client, f"/api/v1/routes/10/means?{ranged}&days=workday&hours=7-11")
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
async def test_a_reader_sees_the_mean_of_a_range_and_the_way_between_two_stops_on_every_screen(
    browser: Browser, tmp_path: Path
) -> None:
    changes = {"feed.name": "bus", "speed.post_processing": ["kalman"]}
    config = city_config(tmp_path, **changes | city_files(tmp_path))
    messages = remembered(config, *[USUAL_DAY] * 4)
    async with page_of(browser, config, messages, "#area=route:10", size=LAPTOP, color_scheme="light") as (
        page,
        client,
    ):
        ways = page.locator("#ways")
        await expect(ways).to_contain_text("Typical")
        await page.locator("#ways-body select[name=stop-from]").select_option(STOP)
        await expect(ways).to_contain_text(re.compile(r"→ Congress / 7th [\d.]+ km"))
        part = (await get(client, f"/api/v1/routes/10/speed?from_stop={STOP}"))["lines"][0]
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
        for width, height in ((390, 844), (1280, 800), (1920, 1080), (3840, 2160)):
            await page.set_viewport_size({"width": width, "height": height})
            for reaching in (OUTSIDE, CUT):
                assert await page.evaluate(reaching) == [], width
        await no_violation(page)
        await page.get_by_role("button", name="Dark colours").click()
        await no_violation(page)
        await page.reload()
        await expect(page.locator("#window-text")).to_have_text("Mean of 4 windows")
        await page.locator("#live-button").click()
        await expect(page.locator("#window-text")).to_contain_text("10:00–11:00")
        assert "mean" not in await fields(page)
