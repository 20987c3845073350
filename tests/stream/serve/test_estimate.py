"""Every reader shows the same leading estimate of a cell: the smoothed mean where "riders" are released."""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import h3
import numpy as np
import pytest
from playwright.async_api import Browser, expect
from pyarrow import parquet

from dpcore.noise import Noise
from stream.cli.demo_view import Releases
from stream.config import Config
from stream.messages.estimate import estimates_of, with_estimates
from stream.messages.lines import line_of
from stream.messages.message import HEXAGON_SPEED, Message
from stream.messages.tables import row_of
from tests.stream.serve.browser import needs_chromium, pixels, place_of
from tests.stream.serve.city import BUSY, STEADY, UNCERTAIN, Cell, rows_of_city
from tests.stream.serve.pages import page_of
from tests.stream.serve.serving import serving_file
from tests.support.participating import riders
from tests.support.releasing import released

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


def test_the_modelled_mean_leads_then_the_released_one() -> None:
    drawn = {"value": 30.0, "raw": 30.0, "interval": [20.0, 40.0], "unit": "km/h", "scale": 3.0, "clamped": False}
    modelled = {"method": "m", "value": 25.0, "interval": [22.0, 28.0], "unit": "km/h"}
    body: dict[str, Any] = {"status": "published", "users": 5, "mean": drawn, "p50": drawn}
    leading = []
    for models in (
        {},
        {"mean": modelled},
    ):
        estimates = estimates_of(body | {"post_processed": models})
        assert estimates is not None
        leading.append((estimates["mean"]["method"], estimates["mean"]["value"]))
        assert estimates["p50"] == {"value": 30.0, "interval": [20.0, 40.0], "unit": "km/h", "method": "released"}
    assert leading == [("released", 30.0), ("m", 25.0)]
    assert estimates_of(body | {"status": "suppressed"}) is None


@pytest.mark.parametrize(("accounting", "bound"), [({}, 14.142), ({"accounting": "zcdp"}, 10.0)])
def test_nobody_is_estimated_where_the_released_users_are_within_their_noise(
    accounting: dict[str, str], bound: float
) -> None:
    """One standard deviation of noise of scale 10; exact numbers have none."""
    for raw, anybody in ((bound - 0.1, False), (bound + 0.1, True), (-40.0, False)):
        users = {"raw": raw, "value": max(raw, 0.0), "scale": 10.0}
        assert (estimates_of({"status": "published", "users": users} | accounting) is not None) == anybody


@pytest.mark.asyncio(loop_scope="session")
async def test_every_reader_holds_the_same_number(tmp_path: Path) -> None:
    config, messages = few_riders(tmp_path)
    values = {json.loads(m.value)["cell"]: m.value for m in messages if m.topic == HEXAGON_SPEED}
    expected = {cell: (estimates_of(json.loads(value)) or {}).get("mean") for cell, value in values.items()}
    assert expected[BUSY] is not None
    assert expected[BUSY]["method"] == "kalman"
    assert expected[BUSY] | {} == json.loads(values[BUSY])["post_processed"]["mean"]
    assert 0.6 * len(values) < sum(mean is None for mean in expected.values())
    releases = tmp_path / "releases.ndjson"
    releases.write_text("".join(map(line_of, messages)), encoding="utf-8")
    seen: dict[str, dict[str, Any]] = {}

    def rows(reader: str, flat: list[dict[str, Any]]) -> None:
        seen[reader] = {row["cell"]: _of_row(row) for row in flat}

    def bodies(reader: str, read_as: list[dict[str, Any]]) -> None:
        means = {body["cell"]: (body["estimate"] or {}).get("mean") for body in read_as}
        seen[reader] = {
            cell: mean and [mean["value"], *mean["interval"], mean["method"]] for cell, mean in means.items()
        }

    async with serving_file(config, releases) as client:

        async def read(path: str) -> bytes:
            answer = await client.get(path)
            assert answer.status == 200, path
            return await answer.read()

        answer = await read("/api/v1/hexagons")
        assert with_estimates(values[BUSY]) in answer
        listed = json.loads(answer)["hexagons"]
        bodies("map, table, search", listed)
        whole = json.loads(await read("/api/v1/hexagons?format=geojson"))["features"]
        bodies("geojson", [one["properties"] for one in whole])
        bodies("history", [json.loads(await read(f"/api/v1/cells/{cell}"))["releases"][0] for cell in values])
        start = listed[0]["window"]["start"]
        path = f"/api/v1/windows/{start}/download"
        rows("csv", list(csv.DictReader(io.StringIO((await read(f"{path}.csv")).decode()))))
        rows("parquet", parquet.read_table(io.BytesIO(await read(f"{path}.parquet"))).to_pylist())
        downloaded = json.loads(await read(f"{path}.geojson"))["features"]
        rows("download", [one["properties"] for one in downloaded])
        features = json.loads(await read(f"/ogc/collections/{config.feed.name}.newest/items?limit=1000"))["features"]
        rows("ogc", [one["properties"] for one in features])
        areas = {}
        for cell in values:
            lat, lng = h3.cell_to_latlng(cell)
            ring = ",".join(f"{x:.5f},{y:.5f}" for x, y in _square(lng, lat))
            area = json.loads(await read(f"/api/v1/area?ring={ring}"))
            assert area["hexagons"] == [cell]
            mean = area["estimate"]
            areas[cell] = mean and [
                round(mean["value"], 3),
                *(round(end, 3) for end in mean["interval"]),
                mean["method"],
            ]
    rows("file", [row_of(value) for value in values.values()])
    wanted = {cell: mean and [mean["value"], *mean["interval"], mean["method"]] for cell, mean in expected.items()}
    for reader, read_as in seen.items():
        assert read_as.keys() == wanted.keys(), reader
        for cell, mean in wanted.items():
            assert read_as[cell] == mean, (reader, cell)
    # An area leads with what was released where the noise alone is narrower.
    assert areas[BUSY] == wanted[BUSY] or areas[BUSY][3] == "released"
    demo = Releases(ZoneInfo("America/Chicago"))
    for message in messages:
        demo.add(message.topic, dict(message.headers), message.value)
    busiest = expected[BUSY]
    assert f"modelled mean {busiest['value']:.1f} ({busiest['interval'][0]:.0f}–" in demo.lines()[0]


def _of_row(row: dict[str, Any]) -> list[Any] | None:
    """Value, interval and method; None where they are empty."""
    *numbers, method = [row.get(f"estimate_mean{part}") for part in ("", "_low", "_high", "_method")]
    return [*map(float, numbers), method] if method else None


def _square(lng: float, lat: float) -> list[tuple[float, float]]:
    return [(lng + x, lat + y) for x, y in ((-0.002, -0.002), (0.002, -0.002), (0.002, 0.002), (-0.002, 0.002))]


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_map_has_the_colours_of_the_smoothed_mean_and_none_where_nobody_is_estimated(
    browser: Browser, tmp_path: Path
) -> None:
    config, messages = few_riders(tmp_path)
    bodies = {body["cell"]: body for body in (json.loads(m.value) for m in messages if m.topic == HEXAGON_SPEED)}
    empty = next(cell for cell, body in bodies.items() if estimates_of(body) is None and cell not in CROWDED)
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
            seen = sorted(await pixels(page, cell), key=sum)[128]
            assert max(abs(a - b) for a, b in zip(seen, wanted, strict=True)) < 6, (cell, smoothed, seen)
        assert indexes[UNCERTAIN][0] != indexes[UNCERTAIN][1], "the noise was to tell the two apart"
        assert sorted(await pixels(page, empty), key=sum)[128] == LAND
        await page.mouse.move(*await place_of(page, empty))
        await expect(page.locator("#tooltip .reading")).to_have_text("Nobody is estimated here in this window.")


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_the_foot_of_the_table_adds_raw_users_not_clamped_ones(browser: Browser, tmp_path: Path) -> None:
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
