"""The dashboard's three views: the estimate, what is typical of the hour, and what noise leaves of their difference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.async_api import Browser, Page, expect

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import Message
from stream.statistics.merging import by_planned_cells
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
from tests.stream.serve.city import BUSY, CELLS, JAM, UNCERTAIN, USUAL_DAY, Cell, bodies, city_config, rows_of_city
from tests.stream.serve.pages import page_of
from tests.support.builders import SLOT
from tests.support.nightly import nightly
from tests.support.releasing import build_messages, planned

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]
VIEWS = ("Now", "Typical", "Difference")
WIDE = {"width": 1920, "height": 1080}


def remembered(config: Config, *cities: Mapping[str, Cell]) -> list[Message]:
    """Windows of an hour each, of which every one knows what the one before it released."""
    messages, memory = [], None
    for hour, there in enumerate(cities):
        plan, contributions = planned(config, rows_of_city(hour, there), slot=SLOT + hour * 3600)
        noise = Noise(np.random.default_rng(hour).bytes)
        made, memory = build_messages(plan, by_planned_cells(plan, contributions), noise, memory)
        messages += made
    return messages


async def shades(page: Page, cell: str) -> int:
    """How far the colour of a cell is from grey."""
    middle = sorted(await pixels(page, cell), key=sum)[128]
    return max(middle) - min(middle)


@pytest.mark.parametrize(("size", "colours"), [(PHONE, "dark"), nightly(LAPTOP, "light"), nightly(WIDE, "dark")])
async def test_three_views_and_of_the_difference_only_what_noise_does_not_explain_has_a_colour(
    browser: Browser, tmp_path: Path, size: dict[str, int], colours: str
) -> None:
    """The noise is a tape. UNCERTAIN is off, too, but its errors explain that."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"]})
    messages = remembered(config, *[USUAL_DAY] * 3, {**JAM, UNCERTAIN: Cell(2, 1, 35.0)})
    body = bodies(messages[-len(CELLS) - 1 :])
    options: dict[str, Any] = {"size": size, "color_scheme": colours}
    async with page_of(browser, config, messages, "#at=10/30.27/-97.7", **options) as (page, _):
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
        for cell, clear in ((BUSY, True), (UNCERTAIN, False)):
            low, high = body[cell]["post_processed"]["deviation"]["interval"]
            assert (low * high > 0) == clear, "the message says the same"
        await page.locator("#table-button").click()
        row = page.locator("#table-scroll tbody tr").filter(has_text=BUSY)
        await expect(row).to_contain_text(re.compile(r"\d\d % slower than typical"))
        await row.locator("button").click()
        value = body[BUSY]["post_processed"]["typical"]["value"]
        await expect(page.locator("#details")).to_contain_text(f"Typical at this hour: {value:.0f} km/h")


@pytest.mark.parametrize(("size", "kind"), [(PHONE, "typical"), (LAPTOP, "live"), nightly(WIDE, "typical")])
async def test_a_map_is_called_what_it_is(
    browser: Browser, tmp_path: Path, size: dict[str, int], kind: Literal["live", "typical"]
) -> None:
    """To the page it is five minutes after the newest window. Whatever is on display, what is typical is not called
    live, nor the reverse."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"], "public.map": kind})
    messages, label = remembered(config, *[USUAL_DAY] * 3), "Typical: not live. The last window ended 5 minutes ago"
    newest = datetime.fromtimestamp(SLOT + 3 * 3600 + 300, UTC)
    async with page_of(browser, config, messages, size=size, clock=newest) as (page, client):
        badge, views = page.locator("#badge"), [page.get_by_role("radio", name=name, exact=True) for name in VIEWS[:2]]
        if size == PHONE:
            await page.locator("#controls-fold summary").click()
        for view in views if kind == "live" else views[::-1]:
            if not await view.is_checked():
                before = await paint_count(page)
                await view.check()
                await painted(page, before)
            is_typical = view is views[1]
            await expect(badge).to_have_attribute("data-state", "typical" if is_typical else "live")
            await expect(badge).to_have_text(label if is_typical else re.compile("^Up to date"))
            await expect(page.locator("#legend")).to_contain_text("Typical at this hour" if is_typical else "km/h")
            await expect(page.locator("#legend", has_text="This map is for what is typical")).to_have_count(
                int(kind == "typical" and not is_typical)
            )
        await page.locator("#about-button").click()
        about = page.locator("#about-body", has_text="This map is typical, not live")
        await expect(about).to_have_count(int(kind == "typical"))
        feeds = (await (await client.get("/api/v1/feeds")).json())["feeds"]
        answers = [await (await client.get(f"/api/v1/hexagons?format={form}")).json() for form in ("json", "geojson")]
        assert [answer["map"] for answer in (*feeds, *answers)] == [kind] * 3
