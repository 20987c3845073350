"""Scheduled speeds over the API and in the browser: "slower than scheduled", by the noise of the released mean alone.
Cells whose released speeds crowd ``value.upper`` are marked in messages, files, table and card: a planner who prints a
modelled 24 km/h of a motorway sees that it is "24 or more"."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pytest
from playwright.async_api import expect
from pyarrow import parquet

from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.messages.cells import Clipping, cells_of, estimates_in
from stream.messages.message import HEXAGON_SPEED, Message, validator
from stream.messages.tables import table_of
from stream.serve.city.combining import combined
from stream.serve.city.places import Scheduled, ScheduledCell, ScheduledDays, read_places
from stream.serve.city.scheduled import ScheduledService, hours_of
from stream.serve.city.ways import estimates, travel
from tests.stream.serve.browser import (
    LOOKS,
    PHONE,
    colour_of,
    fields,
    needs_chromium,
    no_violation,
    reloaded,
    repainted,
    table_row,
)
from tests.stream.serve.city import (
    BUSY,
    CELLS,
    LONELY,
    STEADY,
    UNCERTAIN,
    USUAL_DAY,
    Cell,
    bodies,
    city_config,
    rows_of_city,
    window,
)
from tests.stream.serve.serving import json_of, page_of, serving
from tests.support.builders import riders
from tests.support.releasing import released

DAYS = {"workday": 1, "saturday": 1, "sunday": 1}
SEVEN = ((0, 7),)
"""Working days at 07:00."""


def hours(speed: float, slots: tuple[tuple[int, int], ...] = SEVEN, seconds: int = 3600) -> list[list[int]]:
    """Rows of cells with a service of ``speed`` km/h."""
    return [[day, hour, round(speed * seconds / 3.6), seconds] for day, hour in slots]


def service(cells: dict[str, list[list[int]]], resolution: int, days: dict[str, int] | None = None) -> ScheduledService:
    rows = [ScheduledCell(cell, [tuple(row) for row in listed]) for cell, listed in cells.items()]  # type: ignore[misc]
    return ScheduledService(Scheduled(ScheduledDays(**(days or DAYS)), rows), resolution)


def at_seven() -> np.ndarray:
    return hours_of("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z", "America/Chicago")


def test_a_window_counts_each_local_hour_as_long_as_it_lies_in_it_also_where_the_clocks_change():
    assert np.argwhere(at_seven()).tolist() == [[0, 7]]
    quarter = hours_of("2017-03-18T04:50:00Z", "2017-03-18T05:20:00Z", "America/Chicago")
    assert (quarter[0, 23], quarter[1, 0]) == pytest.approx((1 / 6, 1 / 3))
    spring = hours_of("2017-03-12T06:00:00Z", "2017-03-12T10:00:00Z", "America/Chicago")
    assert spring[2, :6].tolist() == [1, 1, 0, 1, 1, 0]
    autumn = hours_of("2017-11-05T05:00:00Z", "2017-11-05T09:00:00Z", "America/Chicago")
    assert autumn[2, :4].tolist() == [1, 2, 1, 0]
    assert hours_of("2017-03-12T06:30:00Z", "2017-03-12T07:00:00Z", "Asia/Kolkata")[2, 12] == 0.5
    assert hours_of("2000-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "UTC").sum() == 0


def test_a_merged_cell_has_all_distance_by_all_time_of_the_parts_that_were_not_released_apart():
    parent = h3.cell_to_parent(BUSY, 6)
    fast, slow, apart = h3.cell_to_children(parent, 7)[:3]
    known = service({fast: hours(60, seconds=600), slow: hours(10, seconds=5400), apart: hours(90)}, 7)
    merged = known.speeds(at_seven(), [(parent, [apart])])
    assert merged == [{"cell": parent, "value": pytest.approx(15.0, abs=0.01), "unit": "km/h"}]
    both = known.speeds(at_seven(), [(parent, [apart]), (apart, [])])
    assert [row["cell"] for row in both] == [parent, apart]
    assert both[1]["value"] == pytest.approx(90, abs=0.01)
    whole = known.speeds(at_seven(), [(h3.cell_to_parent(parent, 4), [])])
    assert whole[0]["value"] == pytest.approx((60 / 6 + 10 * 1.5 + 90) / (1 / 6 + 1.5 + 1), abs=0.01)


def test_in_a_window_over_two_kinds_of_day_each_day_weighs_alike_however_many_of_its_kind_there_are():
    """From Friday 23:00 to Saturday 01:00: 600 m in 2 minutes, then in 10, each day; five workdays to one Saturday in
    the file."""
    known = service({BUSY: [[0, 23, 5 * 600, 5 * 120], [1, 0, 600, 600]]}, 7, DAYS | {"workday": 5})
    window = hours_of("2017-03-18T04:00:00Z", "2017-03-18T06:00:00Z", "America/Chicago")
    assert known.speeds(window, [(BUSY, [])])[0]["value"] == pytest.approx(3.6 * 1200 / 720)


def test_a_cell_has_no_scheduled_speed_without_service_or_where_its_area_is_smaller_than_the_timetables_cells():
    known = service({BUSY: hours(30)}, 7)
    child = h3.cell_to_center_child(BUSY, 8)
    parent = h3.cell_to_parent(BUSY, 6)
    assert known.speeds(at_seven(), [(child, [])]) == []
    assert known.speeds(at_seven(), [(parent, [child])]) == []
    assert known.speeds(at_seven(), [(STEADY, [])]) == []
    assert known.speeds(np.roll(at_seven(), 1), [(BUSY, [])]) == []
    assert known.speeds(np.zeros((3, 24)), [(BUSY, [])]) == []
    assert not service({}, 7)
    slow = service({BUSY: [[0, 7, 10, 10_800]]}, 7)
    assert slow.speeds(at_seven(), [(BUSY, [])]) == [], "it rounds to nothing"
    assert json.loads(slow.table())["cells"][0]["workday"] == {}


@pytest.mark.parametrize(
    ("scheduled", "said"),
    [
        ({"days": ["workday"], "cells": []}, "days"),
        ({"days": {"workday": 5, "saturday": 1}, "cells": []}, "sunday"),
        ({"days": DAYS | {"sunday": 0}, "cells": []}, ">= 1"),
        ({"cells": [{"cell": BUSY, "hours": [[3, 7, 1, 1]]}]}, "<= 2"),
        ({"cells": [{"cell": BUSY, "hours": [[0, 24, 1, 1]]}]}, "<= 23"),
        ({"cells": [{"cell": BUSY, "hours": [[0, 7, 1, 0]]}]}, ">= 1"),
        ({"cells": [{"cell": BUSY, "hours": [[0, 7, 1e300, 1]]}]}, "int"),
        ({"cells": [{"cell": BUSY, "hours": [[0, 7, 1, 1], [0, 7, 2, 2]]}]}, "scheduled twice"),
        ({"cells": [{"cell": BUSY, "hours": []}, {"cell": BUSY, "hours": []}]}, "listed twice"),
        ({"cells": [{"cell": h3.cell_to_parent(BUSY, 6), "hours": []}]}, "not of resolution 7"),
        ({"cells": [{"cell": "x", "hours": []}]}, "no H3 cell"),
    ],
)
def test_a_wrong_table_of_scheduled_speeds_is_refused_with_its_reason(tmp_path, scheduled, said):
    table = {"days": DAYS, **scheduled}
    path = tmp_path / "places.json"
    path.write_text(json.dumps({"resolution": 7, "cells": [], "scheduled": table}), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_places(path)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """BUSY is scheduled at twice its speed, STEADY at 45 km/h as it drives, LONELY at 20; UNCERTAIN has no service at
    07:00."""
    return scheduled_config(tmp_path, 45.0)


def scheduled_config(tmp_path: Path, steady: float, **overrides: str) -> Config:
    cells = {BUSY: hours(44), STEADY: hours(steady), LONELY: hours(20), UNCERTAIN: hours(30, ((0, 8), (2, 7)))}
    table = {"days": DAYS, "cells": [{"cell": cell, "hours": listed} for cell, listed in cells.items()]}
    body = {"resolution": 7, "cells": [{"cell": cell, "name": f"Stop {cell}"} for cell in CELLS], "scheduled": table}
    (tmp_path / "places.json").write_text(json.dumps(body), encoding="utf-8")
    return city_config(tmp_path, **{"feed.name": "bus", "public.places": str(tmp_path / "places.json")} | overrides)


async def test_scheduled_speeds_are_answered_by_cell_and_hour_and_for_the_released_cells_of_a_window(
    tmp_path, own_feed
):
    config = scheduled_config(tmp_path, 45.0, **own_feed)
    async with serving(config, window(config, 0)) as client:
        assert (await json_of(client, "/dashboard/settings"))["scheduled"] is True
        table = await json_of(client, "/api/v1/scheduled")
        assert (table["resolution"], table["unit"]) == (7, "km/h")
        rows = {row["cell"]: row for row in table["cells"]}
        assert rows[UNCERTAIN]["workday"] == {"8": pytest.approx(30, abs=0.01)}
        assert rows[UNCERTAIN]["sunday"] == {"7": pytest.approx(30, abs=0.01)}
        path = "/api/v1/windows/2017-03-21T12:00:00Z/scheduled"
        answer = await client.get(path)
        speeds = {row["cell"]: row["value"] for row in (await answer.json())["cells"]}
        expected = {BUSY: 44, STEADY: 45, LONELY: 20}
        assert speeds == {cell: pytest.approx(speed, abs=0.01) for cell, speed in expected.items()}
        again = await client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status == 304
        await json_of(client, "/api/v1/windows/2001-01-01T00:00:00Z/scheduled", 404)


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
@LOOKS
async def test_only_cells_whose_difference_from_the_timetable_noise_does_not_explain_have_a_colour(
    browser, config, tmp_path, look
):
    """STEADY is scheduled at what was released of it, so no draw can make the test fail."""
    messages = window(config, 0)
    scheduled_config(tmp_path, bodies(messages)[STEADY]["mean"]["value"])
    async with page_of(browser, config, messages, "#at=10/30.27/-97.7", **look) as (page, _):
        if look["size"] == PHONE:
            await page.locator("#controls-fold summary").click()
        await page.get_by_role("radio", name="Difference").check()
        async with repainted(page):
            await page.get_by_role("combobox", name="Compared with").select_option("scheduled")
        legend = page.locator("#legend")
        await expect(legend.locator("h3")).to_have_text("Compared with the timetable in these hours")
        await expect(legend).to_contain_text("no scheduled speed that can be compared with")
        assert (await fields(page))["colours"] == "scheduled"
        await no_violation(page)
        if look["size"] == PHONE:
            await page.locator("#controls-fold summary").click()
        else:
            red = await colour_of(page, BUSY)
            assert red[0] > 150 > red[1]
        busy, steady, uncertain = [await table_row(page, cell) for cell in (BUSY, STEADY, UNCERTAIN)]
        await expect(page.locator("#table-scroll thead")).to_contain_text("Against schedule")
        await expect(busy).to_contain_text(re.compile(r"(4[89]|5[012]) % slower than scheduled"))
        await expect(steady).to_contain_text("within the noise")
        await expect(uncertain).not_to_contain_text("scheduled")
        await busy.locator("button").click()
        details = page.locator("#details")
        await expect(details).to_contain_text("Scheduled in these hours: 44.0 km/h")
        await expect(details).to_contain_text(
            re.compile(r"% slower than scheduled: −2[12]\.\d ± \d\.\d km/h as released, the error being noise")
        )
        await no_violation(page)
        await reloaded(page)
        await expect(legend.locator("h3")).to_have_text("Compared with the timetable in these hours")


@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.nightly
async def test_a_timetable_that_fails_is_said_and_does_not_keep_the_window_from_the_screen(browser, config, tmp_path):
    messages = [message for hour in (0, 1) for message in window(config, hour)]
    scheduled_config(tmp_path, bodies(messages)[STEADY]["mean"]["value"])
    async with page_of(browser, config, messages, "#colours=scheduled", errors=True) as (page, _):
        await page.route("**/scheduled*", lambda route: route.abort())
        await page.get_by_role("button", name="Earlier window").click()
        await expect(page.locator("#notice")).to_have_text(
            "The scheduled speeds are not available: the server does not answer."
        )
        await expect(page.locator("#legend")).not_to_contain_text("scheduled")
        await expect(page.locator("#window-text")).to_contain_text("07:00–08:00")
        await page.unroute("**/scheduled*")
        await page.get_by_role("radio", name="Difference").check(force=True)
        await expect(page.locator("#legend h3")).to_have_text("Compared with the timetable in these hours")


KM_H = Clipping(0.0, 65.0)
MOTORWAY = {**USUAL_DAY, UNCERTAIN: Cell(6, 2, 85.0)}


def motorway(tmp_path: Path) -> list[Message]:
    """Modelled means, of which one is on a motorway."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"]})
    return released(config, rows_of_city(0, MOTORWAY), Noise(np.random.default_rng(2).bytes))


def test_a_motorway_is_marked_in_message_estimate_and_files_and_no_other_cell_is(tmp_path):
    values = [message.value for message in motorway(tmp_path) if message.topic == HEXAGON_SPEED]
    bodies = {body["cell"]: body for body in map(json.loads, values)}
    for cell, body in bodies.items():
        validator(HEXAGON_SPEED).validate(body)
        assert body.get("mean", {}).get("at_bound", False) == (cell == UNCERTAIN), body
    leading = estimates_in(bodies[UNCERTAIN])
    assert leading is not None
    assert (leading["mean"]["method"], leading["mean"]["at_bound"]) == ("kalman", True)
    (row,) = (row for row in csv.DictReader(io.StringIO(table_of(values, "csv").decode())) if row["cell"] == UNCERTAIN)
    assert row["estimate_mean_at_bound"] == row["mean_at_bound"] == "true"
    flags = parquet.read_table(io.BytesIO(table_of(values, "parquet"))).column("estimate_mean_at_bound").to_pylist()
    assert sorted(map(str, flags)) == ["None", "None", "None", "True"]
    unmarked = parquet.read_table(io.BytesIO(table_of([values[0]], "parquet")))
    assert str(unmarked.schema.field("mean_at_bound").type) == "bool"


def test_areas_and_ways_are_marked_where_a_tenth_of_them_is_at_the_bound(tmp_path):
    values = [message.value for message in motorway(tmp_path) if message.topic == HEXAGON_SPEED]
    cells = {cell.cell: cell for cell in cells_of(values)}
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


def test_where_users_are_protected_the_mark_follows_from_the_released_message_and_the_public_range(tmp_path):
    """So it tells nothing more. Where nobody is estimated, means are noise anywhere in the range, and none is
    marked."""
    city = {BUSY: Cell(400, 2, 85.0), STEADY: Cell(400, 2, 20.0), UNCERTAIN: Cell(25, 1, 60.0)}
    messages = released(riders(tmp_path), rows_of_city(0, city), Noise(np.random.default_rng(3).bytes))
    bodies = [json.loads(message.value) for message in messages if message.topic == HEXAGON_SPEED]
    assert sum(estimates_in(body) is None for body in bodies) > 100
    marked = {body["cell"] for body in bodies if body["mean"].get("at_bound")}
    follows = {body["cell"] for body in bodies if estimates_in(body) is not None and _crowds(body)}
    assert marked == follows
    assert BUSY in marked
    assert STEADY not in marked


def _crowds(body: dict[str, Any]) -> bool:
    bounds = body.get("clipping", {"lower": 0.0, "upper": 65.0})
    middle = (bounds["lower"] + bounds["upper"]) / 2
    return bool(body["mean"]["interval"][1] >= bounds["upper"] and body["mean"]["raw"] >= middle)


@pytest.mark.nightly
@needs_chromium
@pytest.mark.asyncio(loop_scope="session")
async def test_table_and_card_say_that_it_is_so_much_or_more(browser, tmp_path):
    config = city_config(tmp_path)
    async with page_of(browser, config, motorway(tmp_path), color_scheme="light") as (page, _):
        row = await table_row(page, "≥")
        await expect(row).to_have_count(1)
        await row.locator("button").click()
        card = page.locator("#details")
        await expect(card.locator(".reading").first).to_contain_text("≥")
        await expect(card).to_contain_text("so true values may be higher. Values above 65 km/h count as 65.")
