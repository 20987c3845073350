"""What the dashboard says and still does where the browser or the connection fails it. The dashboard's three views: the
estimate, what is typical of the hour, and what noise leaves of their difference. How often the map is drawn for one
window: each frame costs all its pixels where no graphics processor is. Numbers on cells and lines, and a spatial
histogram as a heat map and as a layer of a GIS."""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from typing import Any

import h3
import pytest
from playwright.async_api import Page, Route, expect

from bench.dashboard import streets, window_of
from tests.stream.serve.browser import (
    HIGH_WALL,
    LAPTOP,
    PHONE,
    fields,
    needs_chromium,
    no_violation,
    pixels,
    pixels_of,
    reloaded,
    repainted,
    revisit,
    shade_of,
    shows,
    step,
    table_row,
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
    window,
    windows,
)
from tests.stream.serve.made_windows import with_histograms
from tests.stream.serve.serving import append, fits_every_screen, in_sight, json_of, origin_of, page_of, serving_file
from tests.support.builders import SLOT
from tests.support.nightly import nightly

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


async def test_without_webgl_the_page_says_so_and_everything_but_the_map_works(browser, tmp_path):
    config = city_config(tmp_path)
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 2), init=NO_WEBGL) as (page, _):
        await expect(page.locator("#map .mapless")).to_contain_text("it has no WebGL")
        await expect(page.locator("#table-scroll tbody tr")).to_have_count(len(CELLS))
        await page.locator("#earlier").click()
        await shows(page, 0)
        await page.locator("#table-scroll tbody button").first.click()
        await expect(page.locator("#details .reading")).to_be_visible()
        assert await page.locator("#empty").is_hidden()


@pytest.mark.nightly
async def test_more_tabs_than_connections_all_show_new_windows_once_they_are_looked_at(browser, tmp_path):
    config, releases = city_config(tmp_path), tmp_path / "releases.ndjson"
    append(releases, window(config, 0))
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
        append(releases, window(config, 1))
        await shows(last, 1)
        assert await hidden[0].get_attribute("html", "data-window") == "2017-03-21T12:00:00Z"
        await hidden[0].evaluate(SEEN, True)
        await shows(hidden[0], 1)
        # A window that is announced and cannot be fetched turns the pill, though the stream is there.
        await last.route("**/api/v1/hexagons?*", lambda route: route.abort())
        append(releases, window(config, 2))
        await expect(last.locator("#badge")).to_have_attribute("data-state", "offline")
        await expect(last.locator("#badge")).to_contain_text("The newest window cannot be read")
        await last.unroute("**/api/v1/hexagons?*")
        await shows(last, 2)
        await expect(last.locator("#badge")).to_have_attribute("data-state", "stale")


VIEWS = ("Now", "Typical", "Difference")
WIDE = {"width": 1920, "height": 1080}


def is_clear(hexagon: dict[str, Any]) -> bool:
    return "clear_error" in ((hexagon["estimate"] or {}).get("deviation") or {})


async def test_the_colours_of_the_difference_are_the_verdict_of_the_api_and_nothing_else(browser, tmp_path):
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
        assert await shade_of(page, STEADY) < 24 < await shade_of(page, BUSY)
        await page.route("**/api/v1/hexagons*", turn)
        await reloaded(page)
        assert (turned[STEADY], turned[BUSY]) == (True, False)
        assert await shade_of(page, BUSY) < 24 < await shade_of(page, STEADY)


@pytest.mark.parametrize(("size", "colours"), [(PHONE, "dark"), nightly(LAPTOP, "light"), nightly(WIDE, "dark")])
async def test_three_views_and_of_the_difference_only_what_noise_does_not_explain_has_a_colour(
    browser, tmp_path, size, colours
):
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
        async with repainted(page):
            await typical.check()
        await expect(page.locator("#legend h3")).to_have_text("Typical at this hour, km/h")
        assert (await fields(page))["colours"] == "typical"
        await no_violation(page)
        async with repainted(page):
            await difference.check()
        await expect(page.locator("#legend h3")).to_have_text("Compared with what is typical at this hour")
        await no_violation(page)
        if size == PHONE:
            await page.locator("#controls-fold summary").click()
        assert await shade_of(page, UNCERTAIN) < 24 < await shade_of(page, BUSY)
        hexagons = (await json_of(client, "/api/v1/hexagons"))["hexagons"]
        assert {one["cell"] for one in hexagons if is_clear(one)} == {BUSY}
        for cell, clear in ((BUSY, True), (UNCERTAIN, False)):
            low, high = body[cell]["post_processed"]["deviation"]["interval"]
            assert (low * high > 0) == clear, "the message says the same"
        row = await table_row(page, BUSY)
        await expect(row).to_contain_text(re.compile(r"\d\d % slower than typical"))
        await row.locator("button").click()
        value = body[BUSY]["post_processed"]["typical"]["value"]
        await expect(page.locator("#details")).to_contain_text(f"Typical at this hour: {value:.0f} km/h")


@pytest.mark.parametrize(
    ("size", "kind"), [(PHONE, "typical"), (LAPTOP, "live"), nightly(WIDE, "typical"), nightly(HIGH_WALL, "live")]
)
async def test_a_map_is_called_what_it_is(browser, tmp_path, size, kind):
    """To the server it is five minutes after the newest window. Whatever is on display, what is typical is not called
    live, nor the reverse."""
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"], "public.map": kind})
    messages, label = remembered(config, *[USUAL_DAY] * 3), "Typical: not live. The last window ended 5 minutes ago"
    newest = datetime.fromtimestamp(SLOT + 3 * 3600 + 300, UTC)
    async with page_of(browser, config, messages, size=size, clock=newest) as (page, client):
        corners = await pixels_of(page, [corner for cell in CELLS for corner in h3.cell_to_boundary(cell)])
        assert all(await in_sight(page, corners)), "the first view holds every cell"
        badge, views = page.locator("#badge"), [page.get_by_role("radio", name=name, exact=True) for name in VIEWS[:2]]
        if size == PHONE:
            await page.locator("#controls-fold summary").click()
        for view in views if kind == "live" else views[::-1]:
            if not await view.is_checked():
                async with repainted(page):
                    await view.check()
            is_typical = view is views[1]
            await expect(badge).to_have_attribute("data-state", "typical" if is_typical else "live")
            await expect(badge).to_have_text(label if is_typical else "Up to date: the last window ended 5 minutes ago")
            await expect(page.locator("#legend")).to_contain_text("Typical at this hour" if is_typical else "km/h")
            await expect(page.locator("#legend", has_text="This map is for what is typical")).to_have_count(
                int(kind == "typical" and not is_typical)
            )
        await page.emulate_media(reduced_motion="no-preference")
        assert await page.evaluate("document.getAnimations().length") == 0, "a page that waits would draw all the time"
        await page.locator("#about-button").click()
        about = page.locator("#about-body", has_text="This map is typical, not live")
        await expect(about).to_have_count(int(kind == "typical"))
        feeds = (await json_of(client, "/api/v1/feeds"))["feeds"]
        answers = [await json_of(client, f"/api/v1/hexagons?format={form}") for form in ("json", "geojson")]
        assert [answer["map"] for answer in (*feeds, *answers)] == [kind] * 3


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


async def frames_of_a_window(page: Page) -> int:
    await page.evaluate(CALM)
    await page.evaluate("window.drawn = 0")
    await step(page, "Earlier window")
    await page.evaluate(CALM)
    return await page.evaluate("window.drawn")


async def without_waiting(route: Route) -> None:
    """The page whose map draws a frame for every tile that is ready, as MapLibre does."""
    answer = await route.fetch()
    page, count = re.subn(r",\([^{};]*\)&&(super\.triggerRepaint\(\))", r",\1", await answer.text())
    assert count == 1
    await route.fulfill(response=answer, body=page)


async def test_a_window_of_lines_and_hexagons_costs_one_frame_and_another_one_where_they_have_numbers(
    browser, tmp_path
):
    (tmp_path / "places.json").write_text(json.dumps(streets(20)), encoding="utf-8")
    config = city_config(tmp_path, **{"feed.name": "bench", "public.places": str(tmp_path / "places.json")})
    messages = [message for week in range(4) for message in window_of(week, 300)]
    chosen = json.loads(messages[150].value)["cell"]
    lat, lng = h3.cell_to_latlng(chosen)
    far, near = (f"#hexagons=on&cell={chosen}&at={zoom}/{lat}/{lng}" for zoom in (FAR, NEAR))
    async with page_of(browser, config, messages, far, init=COUNT) as (page, _):
        assert [await frames_of_a_window(page) for _ in range(2)] == [1, 1]
        await revisit(page, near)
        assert [await frames_of_a_window(page) for _ in range(2)] == [2, 2]
        await page.route("**/assets/index-*.js", without_waiting)
        await reloaded(page)
        assert await frames_of_a_window(page) > 2


async def test_a_histogram_is_a_heat_map_in_place_of_speeds_and_a_layer_for_gis(browser, tmp_path):
    messages, _ = with_histograms(tmp_path)
    config = city_config(tmp_path, **{"feed.name": "bus"})
    async with page_of(browser, config, messages, size=LAPTOP, color_scheme="light") as (page, client):
        before = await page.locator("#map").screenshot()
        await page.get_by_role("checkbox", name="Heat map of users").check()
        await expect(page.locator("#legend h3")).to_have_text("Users per km²")
        await page.wait_for_timeout(500)
        assert await page.locator("#map").screenshot() != before
        assert (await fields(page))["heat"] == "on"
        await fits_every_screen(page)
        await no_violation(page)
        async with repainted(page):
            await page.get_by_role("button", name="Dark colours").click()
        await no_violation(page)
        async with client.get("/api/v1/heat") as answer:
            assert answer.status == 400, "it has three, so one has to be named"
        path = tmp_path / "heat.geojson"
        async with client.get("/api/v1/heat?mechanism=ag") as answer:
            path.write_bytes(await answer.read())
    assert json.loads(path.read_text())["about"]["mechanism"] == "ag"
    if shutil.which("ogrinfo"):
        said = subprocess.run(["ogrinfo", "-so", "-al", path], capture_output=True, text=True, check=True).stdout
        assert "Feature Count: 4096" in said
        assert "density: Real" in said


async def test_large_cells_have_their_numbers_on_them_and_small_ones_none(browser, tmp_path):
    """Letters are as dark as the text; no class of speed in a window with one is."""
    config = city_config(tmp_path, **{"feed.name": "bus"})

    async def letters(page: Page) -> int:
        await page.wait_for_timeout(500)
        return sum(max(pixel) < 70 for pixel in await pixels(page, BUSY, 24))

    place = "#at=12/{:.4f}/{:.4f}".format(*h3.cell_to_latlng(BUSY))
    async with page_of(browser, config, window(config, 0), place, size=LAPTOP, color_scheme="light") as (page, _):
        assert await letters(page) > 15
        for _ in range(2):
            await page.get_by_role("button", name="Zoom out").click()
        await page.wait_for_function("location.hash.includes('at=10.00/')")
        assert await letters(page) == 0
