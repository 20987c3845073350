"""A page that is left open: what it must not collect, what it must find again, and whose clock it goes by."""

import asyncio
import json
import re
from pathlib import Path

import h3
import pytest
from playwright.async_api import Route, expect

from bench.dashboard import window_of
from stream.config import Config
from stream.messages.message import Message
from tests.stream.serve.browser import needs_chromium, opened, pixels, pixels_of, repainted, shows, step
from tests.stream.serve.city import BUSY, JAM, JAM_RULE, USUAL_DAY, city_config, closed, window, windows
from tests.stream.serve.made_places import city_files
from tests.stream.serve.serving import append, in_sight, origin_of, page_of, serving_file

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]


LOSE = """() => new Promise((resolve) => {
  const canvas = document.querySelector('#map canvas');
  const processor = canvas.getContext('webgl2').getExtension('WEBGL_lose_context');
  canvas.addEventListener('webglcontextlost', () => setTimeout(resolve));
  processor.loseContext();
  window.giveBack = () => processor.restoreContext();
})"""


async def test_a_graphics_processor_that_was_reset_shows_the_cells_again_and_one_that_is_gone_is_said_to_be(
    browser, config
):
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 2), "#colours=now", errors=True) as (page, _):
        before = await pixels(page, BUSY, 4)
        await page.evaluate(LOSE)
        await page.evaluate("window.giveBack()")
        await page.wait_for_function(
            "() => !document.querySelector('#map canvas').getContext('webgl2').isContextLost()"
        )
        await step(page, "Earlier window")
        assert await pixels(page, BUSY, 4) == before
        await page.evaluate(LOSE)
        async with repainted(page):
            await page.get_by_role("button", name="Dark colours").click()
            await page.get_by_role("button", name="Later window").click()
            await page.evaluate("window.giveBack()")
        assert max(map(max, await pixels(page, BUSY, 4))) > 60
        assert await pixels(page, BUSY, 4) != before
        await page.evaluate(LOSE)
        await expect(page.locator("#notice")).to_contain_text("graphics processor did not come back")


COUNT_LISTENERS = """window.listening = 0;
for (const [name, by] of [['addEventListener', 1], ['removeEventListener', -1]]) {
  const real = window[name];
  window[name] = function (type, ...rest) {
    if (type === 'dppxchange') window.listening += by;
    return real.call(window, type, ...rest);
  };
}"""


@pytest.mark.nightly
async def test_one_plot_of_a_cells_past_is_alive_however_many_windows_were_shown(browser, config):
    """uPlot keeps a listener on the window, and with it the plot and its canvas, until it is destroyed."""
    place, counts = f"#cell={BUSY}", []
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 6), place, init=COUNT_LISTENERS) as (page, _):
        for _ in range(4):
            await expect(page.locator("#details .uplot")).to_have_count(1)
            counts.append(await page.evaluate("window.listening"))
            await step(page, "Earlier window")
        assert counts[1:] == [counts[1]] * 3, counts


COUNT_SHAPES = """window.shapes = [];
const real = WebGL2RenderingContext.prototype.bufferData;
WebGL2RenderingContext.prototype.bufferData = function (target, data, ...rest) {
  if (target === this.ELEMENT_ARRAY_BUFFER && data instanceof Uint32Array) window.shapes.push(data.length / (6 * 3));
  return real.call(this, target, data, ...rest);
};"""
"""Counts the hexagons of each mesh that is sent to the graphics processor in place of the last one."""


APART, EACH = 6, 400
"""Windows that share no cell, and their cells."""


def apart(week: int) -> list[Message]:
    """The window of that week with cells that no other week has."""
    *cells, marker = window_of(week, APART * EACH)
    return closed(cells[week * EACH : (week + 1) * EACH], marker)


async def test_shapes_of_windows_that_were_left_are_dropped(browser, tmp_path):
    config = city_config(tmp_path, **{"feed.name": "bench"})
    messages = [message for week in range(APART) for message in apart(week)]
    async with page_of(browser, config, messages, "#at=8.50/30.2700/-97.7400", init=COUNT_SHAPES) as (page, _):
        for _ in range(APART - 1):
            await step(page, "Earlier window")
        shapes = await page.evaluate("window.shapes")
        assert shapes == [EACH] * APART, shapes
        cells = [json.loads(message.value)["cell"] for message in apart(0)[:-1]]
        centres = await pixels_of(page, map(h3.cell_to_latlng, cells))
        seen = [cell for cell, is_seen in zip(cells, await in_sight(page, centres), strict=True) if is_seen]
        colours = {(await pixels(page, cell, 1))[0] for cell in seen[:: len(seen) // 6]}
        assert len(colours) > 2, "the cells of the window on display are drawn"


def of_two_windows(tmp_path: Path) -> tuple[Config, Path]:
    """A server that keeps two windows, and the file that it follows, with two in it."""
    config, releases = city_config(tmp_path, **{"public.max_windows": 2}), tmp_path / "releases.ndjson"
    append(releases, windows(config, [USUAL_DAY] * 2))
    return config, releases


@pytest.mark.nightly
async def test_a_window_that_the_server_forgot_is_gone_and_no_longer_offered(browser, tmp_path):
    config, releases = of_two_windows(tmp_path)
    async with serving_file(config, releases) as client, opened(browser, origin_of(client), errors=True) as page:
        slider = page.locator("#slider")
        await expect(slider).to_have_attribute("max", "1")
        append(releases, window(config, 2))
        await expect(slider).to_have_attribute("max", "2")
        await slider.focus()
        await page.keyboard.press("Home")
        await expect(page.locator("#empty")).to_contain_text("07:00")
        await expect(page.locator("#empty-title")).to_have_text("This window is not kept here")
        await expect(slider).to_have_attribute("max", "1")
        await page.locator("#newest").click()
        await expect(page.locator("#empty")).to_be_hidden()


@pytest.mark.nightly
async def test_the_focus_is_not_lost_where_a_search_ends_or_another_window_lists_its_alerts(browser, tmp_path):
    config = city_config(tmp_path, **{"public.alerts": [JAM_RULE]} | city_files(tmp_path))
    async with page_of(browser, config, windows(config, [JAM, USUAL_DAY, JAM, JAM])) as (page, _):
        canvas, search = page.locator("#map canvas"), page.locator("#search-button")
        for opener, key in ((canvas, "/"), (search, "Enter")):
            await opener.focus()
            await page.keyboard.press(key)
            await page.locator("#search-input").fill(BUSY)
            await page.keyboard.press("Enter")
            await expect(page.locator("#details")).to_be_visible()
            await expect(opener).to_be_focused()
        alert = page.locator(f"#alerts-list button[data-alert$='{BUSY}']")
        await page.locator("#alerts-button").click()
        await alert.focus()
        for hour, focused in ((2, alert), (1, page.locator("#alerts-button"))):
            await page.evaluate("document.querySelector('#earlier').click()")
            await shows(page, hour)
            await expect(focused).to_be_focused()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.nightly
async def test_enter_counts_that_is_pressed_before_the_search_is_loaded_and_knows_its_entries_unless_more_is_typed(
    browser, tmp_path, goes_on
):
    config, loaded = city_config(tmp_path, **city_files(tmp_path)), asyncio.Event()

    async def late(route: Route) -> None:
        await loaded.wait()
        await route.continue_()

    async with page_of(browser, config, windows(config, [JAM])) as (page, _):
        await page.route(re.compile("/api/v1/stops|/search-"), late)
        await page.locator("#search-button").click()
        search = page.locator("#search-input")
        await search.fill(BUSY)
        await search.press("Enter")
        if goes_on:
            await search.press("Backspace")
        await expect(page.locator("#search-results li")).to_have_count(0)
        loaded.set()
        await expect(page.locator("#search-body")).to_be_visible(visible=goes_on)
        await expect(page.locator("#details")).to_be_visible(visible=not goes_on)


@pytest.mark.nightly
async def test_the_focus_stays_in_the_table_where_its_pages_are_turned_and_other_windows_come(browser, tmp_path):
    config = city_config(tmp_path, **{"feed.name": "bench"})
    messages = [message for week in (0, 1) for message in window_of(week, 150)]
    async with page_of(browser, config, messages) as (page, _):
        await page.locator("#table-button").click()
        forward, back = page.get_by_role("button", name="Next"), page.get_by_role("button", name="Previous")
        column = page.locator("#table-scroll thead button").nth(2)
        row = page.locator("#table-scroll tbody button").first
        await forward.press("Enter")
        await expect(back).to_be_focused()
        await back.press("Enter")
        await expect(forward).to_be_focused()
        for focused in (forward, column, row):
            await focused.focus()
            async with repainted(page):
                await page.evaluate("(later.disabled ? earlier : later).click()")
            if focused == row:
                assert await page.evaluate("document.activeElement.matches('#table-scroll tbody button')")
            else:
                await expect(focused).to_be_focused()


async def upgraded(route: Route) -> None:
    answer = await route.fetch()
    await route.fulfill(response=answer, json=await answer.json() | {"build": "another"})


HOURS_MS = 3_600_000

LOCKED = """window.bodies = [];
const real = Response.prototype.json;
Response.prototype.json = async function () {
  const body = await real.call(this);
  if (this.url.includes('/hexagons')) window.bodies.push(new WeakRef(body));
  return body;
};
window.lock = () => {
  let asked = 0;
  const awaited = new Map();
  window.requestAnimationFrame = (draw) => (awaited.set((asked += 1), draw), asked);
  window.cancelAnimationFrame = (frame) => awaited.delete(frame);
};
window.go_back = async (windows) => {
  const shown = document.querySelector('#window-text');
  for (; windows; windows -= 1) {
    const { textContent } = shown;
    document.querySelector('#earlier').click();
    while (shown.textContent === textContent) await new Promise((resolve) => setTimeout(resolve, 5));
  }
};"""
"""Remembers which answers with cells are in memory. ``lock`` ends drawing, as on a screen that is locked."""
KEPT, MISSED = 12, 16
"""Windows whose cells a page may hold, and those that are shown while its screen is locked."""


@pytest.mark.nightly
async def test_a_locked_screen_holds_no_more_windows_than_one_that_is_looked_at(browser, config):
    messages = windows(config, [USUAL_DAY] * (1 + MISSED))
    async with page_of(browser, config, messages, f"#cell={BUSY}", init=LOCKED) as (page, _):
        await expect(page.locator("#details .uplot")).to_have_count(1)
        await page.evaluate("windows => (window.lock(), window.go_back(windows))", MISSED)
        await page.request_gc()
        alive = await page.evaluate("window.bodies.filter((body) => body.deref()).length")
        assert alive <= KEPT, f"{alive} of {1 + MISSED}"


async def test_within_the_hour_an_open_page_drops_windows_that_the_server_forgot_and_becomes_that_of_an_upgraded_server(
    browser, tmp_path
):
    """It also shows the newest window, though a connection that is open and dead told it of none."""
    config, releases = of_two_windows(tmp_path)
    async with (
        serving_file(config, releases) as client,
        await browser.new_context(reduced_motion="reduce") as context,
    ):
        page = await context.new_page()
        await page.clock.install()
        await page.route("**/api/v1/stream*", lambda route: None)
        await page.goto(origin_of(client))
        await page.wait_for_selector("html[data-ready]")
        slider = page.locator("#slider")
        await expect(slider).to_have_attribute("max", "1")
        await expect(page.locator("#slider-first")).to_contain_text("07:00")
        append(releases, window(config, 2))
        while (await client.get("/api/v1/hexagons?window=2017-03-21T14:00:00Z")).status != 200:
            await asyncio.sleep(0.05)
        await page.clock.fast_forward(HOURS_MS)
        await expect(page.locator("#slider-first")).to_contain_text("08:00")
        await expect(slider).to_have_attribute("max", "1")
        await expect(page.locator("#window-text")).to_contain_text("09:00–10:00")
        await page.evaluate("window.isOld = true")
        await page.route("**/dashboard/settings", upgraded)
        await page.clock.fast_forward(HOURS_MS)
        await page.wait_for_function("() => !window.isOld && document.documentElement.dataset.ready === 'true'")


NO_STORAGE = """Object.defineProperty(window, 'localStorage', {
  get() { throw new DOMException('denied', 'SecurityError'); },
});"""


@pytest.mark.nightly
async def test_where_nothing_can_be_stored_the_theme_can_be_chosen_all_the_same(browser, config):
    """Browsers deny storage to a frame of another site."""
    async with page_of(browser, config, window(config, 0), init=NO_STORAGE) as (page, _):
        button = page.get_by_role("button", name="Dark colours")
        for theme in ("dark", "light", "dark"):
            await button.click()
            await expect(page.locator("html")).to_have_attribute("data-theme", theme)
