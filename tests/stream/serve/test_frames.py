"""How often the map is drawn for one window: each frame costs all its pixels where no graphics processor is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h3
import pytest
from playwright.async_api import Browser, Page, Route

from bench.dashboard import streets, window_of
from tests.stream.serve.browser import needs_chromium, painted
from tests.stream.serve.city import city_config
from tests.stream.serve.pages import page_of

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

COUNT = """window.drawn = 0;
const real = WebGL2RenderingContext.prototype.drawElements;
let isCounted = false;
WebGL2RenderingContext.prototype.drawElements = function (...rest) {
  if (!isCounted) {
    window.drawn += 1;
    isCounted = true;
    queueMicrotask(() => (isCounted = false));
  }
  return real.apply(this, rest);
};"""
"""Counts the frames in which anything is drawn: what one callback draws is one frame."""
CALM = """async () => {
  for (let last = -1; last !== window.drawn;) {
    last = window.drawn;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}"""
FAR, NEAR = "8.5", "13"
"""Zooms at which cells have no numbers, and at which they have."""


async def frames_of_a_window(page: Page, before: str) -> int:
    await page.evaluate(CALM)
    await page.evaluate("window.drawn = 0")
    await page.get_by_role("button", name="Earlier window").click()
    await painted(page, before)
    await page.evaluate(CALM)
    return await page.evaluate("window.drawn")


async def without_waiting(route: Route) -> None:
    """The page whose map draws a frame for every tile that is ready, as MapLibre does."""
    answer = await route.fetch()
    page, count = re.subn(r",\([^{};]*\)&&(super\.triggerRepaint\(\))", r",\1", await answer.text())
    assert count == 1
    await route.fulfill(response=answer, body=page)


@pytest.mark.parametrize("zoom", [FAR, NEAR])
async def test_a_window_of_lines_and_hexagons_costs_one_frame_and_another_one_where_they_have_numbers(
    browser: Browser, tmp_path: Path, zoom: str
) -> None:
    (tmp_path / "places.json").write_text(json.dumps(streets(180)), encoding="utf-8")
    config = city_config(tmp_path, **{"feed.name": "bench", "public.places": str(tmp_path / "places.json")})
    messages = [message for week in range(4) for message in window_of(week, 300)]
    chosen = json.loads(messages[150].value)["cell"]
    lat, lng = h3.cell_to_latlng(chosen)
    place = f"#hexagons=on&cell={chosen}&at={zoom}/{lat}/{lng}"
    async with page_of(browser, config, messages, place, init=COUNT) as (page, _):
        counts = [await frames_of_a_window(page, str(before)) for before in (1, 2)]
        assert counts == [1 if zoom == FAR else 2] * 2, counts
        if zoom == NEAR:
            await page.route("**/assets/index-*.js", without_waiting)
            await page.reload()
            await page.wait_for_selector("html[data-ready]")
            assert await frames_of_a_window(page, await page.evaluate("document.documentElement.dataset.painted")) > 2
