"""What the dashboard says and still does where the browser or the connection fails it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from stream.messages.lines import line_of
from tests.stream.serve.browser import PATIENCE_MS, needs_chromium
from tests.stream.serve.city import CELLS, city_config, window
from tests.stream.serve.pages import page_of
from tests.stream.serve.serving import origin_of, serving_file

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

NO_WEBGL = """const got = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return kind.startsWith('webgl') ? null : got.call(this, kind, ...rest);
};"""
SEEN = """seen => {
  Object.defineProperty(document, 'hidden', { get: () => !seen, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""
MORE_THAN_CONNECTIONS = 7
"""A browser has six connections for all tabs of a server that speaks HTTP/1.1."""


async def shows(page: Page, hour: int) -> None:
    await page.wait_for_selector(f'html[data-window="2017-03-21T{12 + hour:02}:00:00Z"]', timeout=PATIENCE_MS)


async def test_without_webgl_the_page_says_so_and_everything_but_the_map_works(
    browser: Browser, tmp_path: Path
) -> None:
    config = city_config(tmp_path)
    messages = [message for hour in range(2) for message in window(config, hour)]
    async with page_of(browser, config, messages, init=NO_WEBGL) as (page, _):
        await expect(page.locator("#map .mapless")).to_contain_text("it has no WebGL")
        await expect(page.locator("#table-scroll tbody tr")).to_have_count(len(CELLS))
        await page.locator("#earlier").click()
        await shows(page, 0)
        await page.locator("#table-scroll tbody button").first.click()
        await expect(page.locator("#details .reading")).to_be_visible()
        assert await page.locator("#empty").is_hidden()


LOSE = "document.querySelector('#map canvas').getContext('webgl2').getExtension('WEBGL_lose_context').loseContext()"
"""A graphics processor that is gone for good: nobody restores the context."""


async def test_a_map_that_lost_its_graphics_for_good_says_so(browser: Browser, tmp_path: Path) -> None:
    async with page_of(browser, city_config(tmp_path), window(city_config(tmp_path), 0)) as (page, _):
        await shows(page, 0)
        await page.evaluate(LOSE)
        await expect(page.locator("#notice")).to_contain_text("graphics processor did not come back", timeout=60_000)


@pytest.mark.nightly
async def test_more_tabs_than_connections_all_show_new_windows_once_they_are_looked_at(
    browser: Browser, tmp_path: Path
) -> None:
    config, releases = city_config(tmp_path), tmp_path / "releases.ndjson"
    releases.write_text("".join(map(line_of, window(config, 0))), encoding="utf-8")
    async with (
        serving_file(config, releases) as client,
        await browser.new_context(viewport={"width": 400, "height": 300}) as context,
    ):
        pages: list[Page] = []
        for _ in range(MORE_THAN_CONNECTIONS):
            page = await context.new_page()
            await page.goto(origin_of(client))
            await shows(page, 0)
            pages.append(page)
            await page.evaluate(SEEN, False)
        *hidden, last = pages
        await last.evaluate(SEEN, True)
        with releases.open("a", encoding="utf-8") as file:
            file.write("".join(map(line_of, window(config, 1))))
        await shows(last, 1)
        assert await hidden[0].get_attribute("html", "data-window") == "2017-03-21T12:00:00Z"
        await hidden[0].evaluate(SEEN, True)
        await shows(hidden[0], 1)
        # A window that is announced and cannot be fetched turns the pill, though the stream is there.
        await last.route("**/api/v1/hexagons?*", lambda route: route.abort())
        with releases.open("a", encoding="utf-8") as file:
            file.write("".join(map(line_of, window(config, 2))))
        await expect(last.locator("#badge")).to_have_attribute("data-state", "offline")
        await expect(last.locator("#badge")).to_contain_text("The newest window cannot be read")
        await last.unroute("**/api/v1/hexagons?*")
        await shows(last, 2)
        await expect(last.locator("#badge")).to_have_attribute("data-state", "stale")
