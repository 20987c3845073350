"""The dashboard's three views: the estimate, what is typical of the hour, and what noise leaves of their difference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.stream.serve.browser import (
    LAPTOP,
    PHONE,
    fields,
    needs_chromium,
    no_violation,
    paint_count,
    painted,
    pixels,
)
from tests.stream.serve.city import (
    BUSY,
    CELLS,
    JAM,
    STEADY,
    UNCERTAIN,
    USUAL_DAY,
    Cell,
    bodies,
    city_config,
    remembered,
)
from tests.stream.serve.pages import page_of
from tests.support.nightly import nightly

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]
VIEWS = ("Now", "Typical", "Difference")
WIDE = {"width": 1920, "height": 1080}


async def shades(page: Page, cell: str) -> int:
    """How far the colour of a cell is from grey."""
    middle = sorted(await pixels(page, cell), key=sum)[128]
    return max(middle) - min(middle)


def is_clear(hexagon: dict[str, Any]) -> bool:
    return "clear_error" in ((hexagon["estimate"] or {}).get("deviation") or {})


async def test_the_colours_of_the_difference_are_the_verdict_of_the_api_and_nothing_else(
    browser: Browser, tmp_path: Path
) -> None:
    """Whatever it is: the same numbers with the verdicts turned around have the colours turned around."""
    messages = remembered(city_config(tmp_path, **{"speed.post_processing": ["kalman"]}), *[USUAL_DAY] * 3, JAM)
    turned: dict[str, bool] = {}

    async def turn(route: Route) -> None:
        body = await (await route.fetch()).json()
        for hexagon in body["hexagons"]:
            if deviation := (hexagon["estimate"] or {}).get("deviation"):
                turned[hexagon["cell"]] = not is_clear(hexagon)
                deviation.pop("clear_error", None)
                if turned[hexagon["cell"]]:
                    deviation["clear_error"] = 0.01
        await route.fulfill(json=body)

    config = city_config(tmp_path)
    async with page_of(browser, config, messages, "#colours=difference&at=10/30.27/-97.7") as (page, _):
        assert await shades(page, STEADY) < 24 < await shades(page, BUSY)
        await page.route("**/api/v1/hexagons*", turn)
        await page.reload()
        await page.wait_for_selector("html[data-ready]")
        assert (turned[STEADY], turned[BUSY]) == (True, False)
        assert await shades(page, BUSY) < 24 < await shades(page, STEADY)


@pytest.mark.parametrize(("size", "colours"), [(PHONE, "dark"), nightly(LAPTOP, "light"), nightly(WIDE, "dark")])
async def test_three_views_and_of_the_difference_only_what_noise_does_not_explain_has_a_colour(
    browser: Browser, tmp_path: Path, size: dict[str, int], colours: str
) -> None:
    """The noise is a tape. UNCERTAIN is off, too, but its errors explain that."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"]})
    messages = remembered(config, *[USUAL_DAY] * 3, {**JAM, UNCERTAIN: Cell(2, 1, 35.0)})
    body = bodies(messages[-len(CELLS) - 1 :])
    options: dict[str, Any] = {"size": size, "color_scheme": colours}
    async with page_of(browser, config, messages, "#at=10/30.27/-97.7", **options) as (page, client):
        if size == PHONE:
            await page.locator("#controls-fold summary").click()
        now, typical, difference = (page.get_by_role("radio", name=name, exact=True) for name in VIEWS)
        await expect(now).to_be_checked()
        before = await paint_count(page)
        await typical.check()
        await painted(page, before)
        await expect(page.locator("#legend h3")).to_have_text("Typical at this hour, km/h")
        assert (await fields(page))["colours"] == "typical"
        await no_violation(page)
        before = await paint_count(page)
        await difference.check()
        await painted(page, before)
        await expect(page.locator("#legend h3")).to_have_text("Compared with what is typical at this hour")
        await no_violation(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        if size == PHONE:
            await page.locator("#controls-fold summary").click()
        assert await shades(page, UNCERTAIN) < 24 < await shades(page, BUSY)
        answer = await (await client.get("/api/v1/hexagons")).json()
        assert {one["cell"] for one in answer["hexagons"] if is_clear(one)} == {BUSY}
        for cell, clear in ((BUSY, True), (UNCERTAIN, False)):
            low, high = body[cell]["post_processed"]["deviation"]["interval"]
            assert (low * high > 0) == clear, "the message says the same"
        await page.locator("#table-button").click()
        row = page.locator("#table-scroll tbody tr").filter(has_text=BUSY)
        await expect(row).to_contain_text(re.compile(r"\d\d % slower than typical"))
        await row.locator("button").click()
        value = body[BUSY]["post_processed"]["typical"]["value"]
        await expect(page.locator("#details")).to_contain_text(f"Typical at this hour: {value:.0f} km/h")
