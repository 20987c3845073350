"""Cells whose released speeds crowd ``value.upper`` are marked in messages, files, table and card: a planner who
prints a modelled 24 km/h of a motorway sees that it is "24 or more".
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.async_api import Browser, expect
from pyarrow import parquet

from dpcore.noise import Noise
from stream.messages.message import HEXAGON_SPEED, Message, estimates_of, validator
from stream.messages.tables import table_of
from stream.serve.city.combining import combined, numbers_of
from stream.serve.city.ways import estimates, travel
from stream.serve.window_store import Clipping
from tests.stream.serve.browser import needs_chromium
from tests.stream.serve.city import BUSY, STEADY, UNCERTAIN, USUAL_DAY, Cell, city_config, rows_of_city
from tests.stream.serve.pages import page_of
from tests.support.participating import riders
from tests.support.releasing import released

KM_H = Clipping(0.0, 65.0)
MOTORWAY = {**USUAL_DAY, UNCERTAIN: Cell(6, 2, 85.0)}


def motorway(tmp_path: Path) -> list[Message]:
    """Modelled means, of which one is on a motorway."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"]})
    return released(config, rows_of_city(0, MOTORWAY), Noise(np.random.default_rng(2).bytes))


def test_a_motorway_is_marked_in_message_estimate_and_files_and_no_other_cell_is(tmp_path: Path) -> None:
    values = [message.value for message in motorway(tmp_path) if message.topic == HEXAGON_SPEED]
    bodies = {body["cell"]: body for body in map(json.loads, values)}
    for cell, body in bodies.items():
        validator(HEXAGON_SPEED).validate(body)
        assert body.get("mean", {}).get("at_bound", False) == (cell == UNCERTAIN), body
    leading = estimates_of(bodies[UNCERTAIN])
    assert leading is not None
    assert (leading["mean"]["method"], leading["mean"]["at_bound"]) == ("kalman", True)
    (row,) = (row for row in csv.DictReader(io.StringIO(table_of(values, "csv").decode())) if row["cell"] == UNCERTAIN)
    assert row["estimate_mean_at_bound"] == row["mean_at_bound"] == "true"
    flags = parquet.read_table(io.BytesIO(table_of(values, "parquet"))).column("estimate_mean_at_bound").to_pylist()
    assert sorted(map(str, flags)) == ["None", "None", "None", "True"]
    unmarked = parquet.read_table(io.BytesIO(table_of([values[0]], "parquet")))
    assert str(unmarked.schema.field("mean_at_bound").type) == "bool"


def test_areas_and_ways_are_marked_where_a_tenth_of_them_is_at_the_bound(tmp_path: Path) -> None:
    values = [message.value for message in motorway(tmp_path) if message.topic == HEXAGON_SPEED]
    cells = {cell.cell: cell for cell in numbers_of(values)}
    few, many = combined(list(cells.values()), KM_H), combined([cells[UNCERTAIN]], KM_H)
    assert [part.get("at_bound") for part in (few["mean"], few["estimate"])] == [None, None]
    assert [part["at_bound"] for part in (many["mean"], many["estimate"])] == [True, True]
    for metres, marked in ((1_000.0, None), (1_200.0, True)):
        way = [(UNCERTAIN, 0.0, metres), (BUSY, metres, 11_000.0)]
        assert (
            travel(way, (0.0, 11_000.0), cells.keys(), {"now": estimates(cells.values(), "mean")}, {})["now"].get(
                "at_bound"
            )
            is marked
        )


def test_where_users_are_protected_the_mark_follows_from_the_released_message_and_the_public_range(
    tmp_path: Path,
) -> None:
    """So it tells nothing more. Where nobody is estimated, means are noise anywhere in the range, and none is
    marked."""
    city = {BUSY: Cell(400, 2, 85.0), STEADY: Cell(400, 2, 20.0), UNCERTAIN: Cell(25, 1, 60.0)}
    messages = released(riders(tmp_path), rows_of_city(0, city), Noise(np.random.default_rng(3).bytes))
    bodies = [json.loads(message.value) for message in messages if message.topic == HEXAGON_SPEED]
    assert sum(estimates_of(body) is None for body in bodies) > 100
    marked = {body["cell"] for body in bodies if body["mean"].get("at_bound")}
    follows = {body["cell"] for body in bodies if estimates_of(body) is not None and _crowds(body)}
    assert marked == follows
    assert BUSY in marked
    assert STEADY not in marked


def _crowds(body: dict[str, Any]) -> bool:
    bounds = body.get("clipping", {"lower": 0.0, "upper": 65.0})
    middle = (bounds["lower"] + bounds["upper"]) / 2
    return bool(body["mean"]["interval"][1] >= bounds["upper"] and body["mean"]["raw"] >= middle)


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_table_and_card_say_that_it_is_so_much_or_more(browser: Browser, tmp_path: Path) -> None:
    config = city_config(tmp_path)
    async with page_of(browser, config, motorway(tmp_path), color_scheme="light") as (page, _):
        await page.locator("#table-button").click()
        rows = page.locator("#table-scroll tbody tr")
        await expect(rows.filter(has_text="≥")).to_have_count(1)
        await rows.filter(has_text="≥").locator("button").click()
        card = page.locator("#details")
        await expect(card.locator(".reading").first).to_contain_text("≥")
        await expect(card).to_contain_text("so true values may be higher. Values above 65 km/h count as 65.")
