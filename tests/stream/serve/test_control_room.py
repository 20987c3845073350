"""What a control room adds: windows played one after the other, several feeds in one page, and screens of every
width."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from stream.config import Config
from tests.stream.serve.browser import (
    DESKTOP,
    HIGH_WALL,
    LAPTOP,
    LOOKS,
    PHONE,
    WALL,
    fields,
    needs_chromium,
    no_violation,
    reloaded,
    shows,
    table_row,
)
from tests.stream.serve.city import BUSY, JAM, JAM_RULE, USUAL_DAY, city_config, window, windows
from tests.stream.serve.made_places import city_files
from tests.stream.serve.serving import CUT, OUTSIDE, origin_of, page_of
from tests.support.nightly import nightly, nightly_but
from tests.support.tapes import recording

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

STARTS = [f"2017-03-21T{12 + hour}:00:00Z" for hour in range(5)]
AT = "10.00/30.2500/-97.7000"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return city_config(tmp_path, **{"feed.name": "day-bus"})


WATCH = """() => {
  globalThis.shown = [];
  globalThis.times = [];
  new MutationObserver(() => {
    const { window } = document.documentElement.dataset;
    if (globalThis.shown.at(-1) === window) return;
    globalThis.shown.push(window);
    globalThis.times.push(performance.now());
  }).observe(document.documentElement, { attributeFilter: ['data-painted'] });
}"""


async def test_a_range_is_played_by_key_in_order_and_no_faster_after_a_window_that_came_late(browser, config):
    async def late(route: Route) -> None:
        await asyncio.sleep(2.5)
        await route.continue_()

    place = f"#from={STARTS[1]}&to={STARTS[4]}"
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 5), place) as (page, _):
        await page.emulate_media(reduced_motion="no-preference")
        await page.route(lambda url: "/api/v1/hexagons" in url and quote(STARTS[2]) in url, late)
        await page.evaluate(WATCH)
        await page.locator("#map canvas").focus()
        await page.keyboard.press("p")
        play = page.locator("#play")
        await expect(play).to_have_accessible_name("Stop playing")
        await expect(play).to_have_accessible_name("Play the windows")
        assert await page.evaluate("shown") == STARTS[1:4]
        times = await page.evaluate("times")
        assert min(later - earlier for earlier, later in pairwise(times)) >= 990, times
        said = await fields(page)
        assert (said["from"], said["to"], said["window"]) == (STARTS[1], STARTS[4], STARTS[3])
        await play.click()
        await shows(page, 2)
        await play.click()
        await expect(play).to_have_accessible_name("Play the windows")
        await expect(page.locator("#status")).to_contain_text("4 cells")


@pytest.mark.nightly
@LOOKS
async def test_the_range_is_chosen_by_keyboard_kept_in_the_address_and_linked_as_files(browser, config, look):
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 4), **look) as (page, client):
        summary = page.locator("#range summary")
        await summary.focus()
        await page.keyboard.press("Enter")
        await page.locator("#range select[name=from]").select_option(STARTS[1])
        await page.locator("#range").locator("select[name=to]").select_option(STARTS[3])
        await no_violation(page)
        assert await page.evaluate(OFF_SCREEN, "#range-body") == []
        await page.keyboard.press("Escape")
        await expect(summary).to_be_focused()
        await page.locator("#downloads summary").click()
        address = await page.locator("#download-list a[href*='from=']", has_text="CSV").get_attribute("href")
        answer = await client.get(f"/{address}")
        assert answer.status == 200
        assert set(re.findall(r"2017-03-21T\d\d:00:00Z", await answer.text())) == set(STARTS[1:4])
        said = await fields(page)
        assert (said["from"], said["to"]) == (STARTS[1], STARTS[3])
        await reloaded(page)
        await summary.click()
        await expect(page.locator("#range select[name=from]")).to_have_value(STARTS[1])
        await expect(page.locator("#play")).to_have_accessible_name("Play the windows")


@pytest.mark.nightly
async def test_a_move_by_hand_stops_the_playing_and_a_range_without_windows_cannot_be_played(browser, config):
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 4)) as (page, client):
        await page.locator("#play").click()
        await shows(page, 0)
        await page.locator("#later").click()
        await expect(page.locator("#play")).to_have_accessible_name("Play the windows")
        await page.goto(f"{origin_of(client)}/?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z")
        await expect(page.locator("#play")).to_be_disabled()
        await page.locator("#range summary").click()
        await expect(page.locator("#range-body .problem")).to_have_text("no window")


@LOOKS
async def test_another_feed_is_picked_by_keyboard_and_stays_in_the_address(browser, config, tmp_path, look):
    night = city_config(tmp_path, **{"feed.name": "night-bus"})
    messages = [*windows(config, [USUAL_DAY] * 5), *windows(night, [JAM] * 4)]
    async with page_of(browser, config, messages, f"#at={AT}&colours=now&values=raw", **look) as (page, _):
        picker = page.get_by_role("combobox", name="Feed")
        await expect(picker).to_have_value("day-bus")
        await expect(picker.locator("option")).to_have_text(["day-bus", "night-bus"])
        await no_violation(page)
        await picker.focus()
        await page.keyboard.press("ArrowDown")
        await expect(picker).to_have_value("night-bus")
        assert "feed" not in await fields(page), "an arrow key chooses, Enter loads"
        await page.keyboard.press("Enter")
        await shows(page, 3)
        await expect(picker).to_have_value("night-bus")
        said = await fields(page)
        assert (said["feed"], said["at"], said["colours"], said["values"]) == ("night-bus", AT, "now", "raw")
        await expect(await table_row(page, BUSY)).to_contain_text(re.compile(r"1[23]\.\d"))
        await reloaded(page)
        await expect(picker).to_have_value("night-bus")


@pytest.mark.nightly
async def test_a_page_that_is_opened_while_serve_still_reads_offers_the_feeds_that_were_read(browser, config, tmp_path):
    messages = [*window(config, 0), *window(city_config(tmp_path, **{"feed.name": "night-bus"}), 0)]
    answered = 0

    async def only_one_feed_yet(route: Route) -> None:
        nonlocal answered
        answered += 1
        settings = await (await route.fetch()).json()
        await route.fulfill(json=settings | ({"feeds": ["day-bus"]} if answered == 1 else {}))

    async with page_of(browser, config, messages) as (page, _):
        await page.route("**/dashboard/settings", only_one_feed_yet)
        await reloaded(page)
        await expect(page.locator("#feed option")).to_have_text(["day-bus", "night-bus"])


@pytest.mark.nightly
async def test_with_one_feed_there_is_no_picker_and_a_feed_without_windows_is_named_as_such(browser, config):
    async with page_of(browser, config, window(config, 0)) as (page, client):
        await expect(page.locator("#feed")).to_be_hidden()
        await page.goto(f"{origin_of(client)}/?feed=elsewhere")
        await expect(page.locator("#empty")).to_contain_text("The link names the feed elsewhere")
        await expect(page.locator("#feed")).to_be_visible()
        await page.goto(f"{origin_of(client)}/?feed=%3Cscript%3E")
        await shows(page, 0)


MONTHS_LATER = datetime(2017, 12, 25, 12, tzinfo=UTC)
NARROW_DESKTOP = {"width": 1000, "height": 700}
BAR = "document.querySelector('.bar').getBoundingClientRect().height"
STALE = {
    "en": "9 months ago",
    "de": "vor 9 Monaten",
    "es": "hace 9 meses",
    "fr": "il y a 9 mois",
    "pl": "9 miesięcy temu",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=nightly_but(["de"], STALE))
async def translated(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Page]]:
    """A language and the page of all its tests, with alerts, search and two feeds."""
    folder, language = tmp_path_factory.mktemp("city"), request.param
    config = city_config(folder, **{"feed.name": "day-bus", "public.alerts": [JAM_RULE]} | city_files(folder))
    other = city_config(folder, **{"feed.name": "night-bus"})
    with recording(request.node.nodeid):
        messages = [*windows(config, [USUAL_DAY, JAM]), *window(other, 0)]
    options: dict[str, Any] = {"size": LAPTOP, "locale": language, "clock": MONTHS_LATER}
    async with page_of(browser, config, messages, **options) as (page, _):
        yield language, page


async def test_with_alerts_search_and_feeds_the_badge_is_whole_and_a_laptop_has_one_row_of_buttons(translated):
    language, page = translated
    await page.set_viewport_size(LAPTOP)  # type: ignore[arg-type]
    await expect(page.locator("html")).to_have_attribute("lang", language)
    await expect(page.locator("#badge-text")).to_contain_text(STALE[language])
    await expect(page.locator("#alerts-count")).to_have_text("1")
    for name in ("#feed", "#search", "#alerts", "#badge"):
        await expect(page.locator(name)).to_be_visible()
    for size, highest in ((LAPTOP, 52), (NARROW_DESKTOP, 52), (PHONE, 180)):
        await page.set_viewport_size(size)  # type: ignore[arg-type]
        assert await page.evaluate(OUTSIDE) == []
        assert await page.evaluate(CUT) == []
        assert await page.evaluate(BAR) <= highest
        if size is not NARROW_DESKTOP:
            await no_violation(page)


OFF_SCREEN = """(name) => [...document.querySelectorAll(`${name}, ${name} *`)]
  .filter((element) => element.checkVisibility() && !element.closest('option'))
  .filter((element) => {
    const { left, right, top } = element.getBoundingClientRect();
    const isCut = element.scrollWidth > element.clientWidth && getComputedStyle(element).overflowX === 'hidden';
    return left < 0 || right > innerWidth || top < 0 || isCut;
  })
  .map((element) => element.outerHTML.slice(0, 80))"""
"""Parts of an element that reach out of the screen to a side or above, or are cut."""
TABLET = {"width": 720, "height": 900}
MENUS = {"#search": "#search-body", "#alerts": "#alerts-list", "#downloads": "#download-list", "#range": "#range-body"}


async def test_every_menu_can_be_read_on_a_phone_and_a_tablet(translated):
    _, page = translated
    for size in (TABLET, PHONE):
        await page.set_viewport_size(size)  # type: ignore[arg-type]
        for menu, body in MENUS.items():
            await page.locator(f"{menu} > summary").click()
            await expect(page.locator(f"{body} > *").first).to_be_visible()
            assert await page.evaluate(OFF_SCREEN, body) == [], menu
            if size is PHONE:
                await no_violation(page)
            await page.locator(f"{menu} > summary").click()
    await page.locator("#about-button").click()
    assert await page.evaluate(OFF_SCREEN, "#about-body") == []
    await page.keyboard.press("Escape")


SMALL = """() => document.querySelector('.bar').append(...['a', 'b'].map((name) => Object.assign(
  document.createElement('button'), { ariaLabel: name, style: 'all: unset; width: 9px; height: 9px' })))"""


@pytest.mark.nightly
async def test_two_buttons_that_are_too_small_to_be_hit_are_found(browser, config):
    async with page_of(browser, config, window(config, 0)) as (page, _):
        await no_violation(page)
        await page.evaluate(SMALL)
        with pytest.raises(AssertionError, match="target-size"):
            await no_violation(page)


SMALLEST_LETTERS = """() => {
  const size = (element) => parseFloat(getComputedStyle(element).fontSize) * (element.currentCSSZoom ?? 1);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let least = Infinity;
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    const shown = walker.currentNode.data.trim() && parent.checkVisibility() && parent.getClientRects().length;
    if (shown && !parent.closest('.hidden, .skip, svg, .segments legend')) least = Math.min(least, size(parent));
  }
  return least;
}"""


@pytest.mark.parametrize(
    ("place", "letters", "screens"),
    [
        ("", 11, [(PHONE, "dark"), (DESKTOP, "light"), (LAPTOP, "light"), (LAPTOP, "dark")]),
        nightly("&large=on", 17, [(WALL, "light"), (HIGH_WALL, "dark")]),
    ],
    ids=["390-1024-and-1280", "3840"],
)
async def test_nothing_overflows_and_letters_can_be_read_on_every_screen(browser, config, place, letters, screens):
    place = f"#cell={BUSY}{place}"
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 4), place) as (page, _):
        for size, colours in screens:
            await page.set_viewport_size(size)  # type: ignore[arg-type]
            await page.emulate_media(color_scheme=colours)
            await expect(page.locator(f"html[data-theme={colours}]")).to_be_visible()
            await expect(page.locator("#details figcaption")).to_contain_text("4 windows")
            assert await page.evaluate(OUTSIDE) == []
            assert await page.evaluate(SMALLEST_LETTERS) >= letters
            await no_violation(page)


LEGEND = "(({ scrollHeight, clientHeight }) => [scrollHeight, clientHeight])(document.querySelector('#controls'))"
CHOOSERS = ("#statistics", "#schemes", "#kinds", "#units", "#day")


@pytest.mark.nightly
async def test_a_wall_shows_the_legend_whole_without_choosers_nobody_can_reach(browser, config):
    """Against another day, whose legend is the longest, in the longest language."""
    place = "#large=on&colours=day&day=2017-03-21&values=raw"
    days = [message for hour in (0, 24) for message in window(config, hour)]
    async with page_of(browser, config, days, place, locale="de") as (page, _):
        await expect(page.locator("#legend li")).to_have_count(7)
        for size in (WALL, HIGH_WALL):
            await page.set_viewport_size(size)  # type: ignore[arg-type]
            for name in CHOOSERS:
                await expect(page.locator(name)).to_be_hidden()
            whole, shown = await page.evaluate(LEGEND)
            assert whole <= shown
        await page.locator("#large-button").click()
        await expect(page.locator("#schemes")).to_be_visible()
