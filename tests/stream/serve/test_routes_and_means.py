"""Travel times along routes, and means over a range of windows, from released numbers alone."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pytest
from aiohttp.test_utils import TestClient

from stream.messages.lines import line_of
from stream.serve.city.combining import numbers_of
from stream.serve.city.routes import along, pieces_of, travel
from tests.stream.serve.city import BUSY, UNCERTAIN, city_config, window
from tests.stream.serve.made_places import STOP, city_files
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
            numbers = {one.cell: one for one in numbers_of(values)}
            low, high = travel(pieces, (0.0, 5000.0), numbers, {})["now"]["minutes_interval"]
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
    for path in (f"{ranged}&days=weekend", f"{ranged}&area=nowhere"):
        await get(client, f"/api/v1/means?{path}", 404)
    for path in ("hours=9-7", "hours=7-25", "days=holiday"):
        await get(client, f"/api/v1/means?{ranged}&{path}", 400)
