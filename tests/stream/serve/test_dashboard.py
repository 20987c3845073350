"""The dashboard in a real browser, on the real service, over a real broker where windows arrive.

The city's noise is recorded, and fresh noise would hardly ever fail a test (``HEXVEIL_FRESH_NOISE``). BUSY and STEADY
have scales below 0.1 km/h and lie 2 km/h or more from the nearest class break. The interval of UNCERTAIN is 10.8 km/h
wide; classes near it are 10 wide at most, and wider ones are 14 scales away. So a wrong class has a probability below
1e-6.
"""

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import h3
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient
from playwright.async_api import Browser, Page, expect

from stream.config import Config
from stream.messages.message import Message
from stream.messages.topics import create_topics
from stream.serve.api import make_app
from stream.serve.static_files import check_basemap
from tests.stream.serve.browser import (
    DESKTOP,
    PHONE,
    apart,
    box_of,
    colour_of,
    fields,
    needs_chromium,
    no_violation,
    opened,
    pixels,
    place_of,
    reloaded,
    repainted,
    revisit,
    shows,
)
from tests.stream.serve.city import (
    BUSY,
    CELLS,
    JAM,
    LONELY,
    STEADY,
    UNCERTAIN,
    USUAL_DAY,
    bodies,
    city_config,
    closed,
    window,
    windows,
)
from tests.stream.serve.made_windows import histogram_message
from tests.stream.serve.serving import followed, origin_of, page_of, publish, served
from tests.support.nightly import nightly
from tests.support.street_tiles import archive
from tests.support.tapes import recording

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="session")]

READING = re.compile(r"^[\d.]+ km/h, 95 % interval [\d.]+–[\d.]+, noise from privacyas released$")
"""A displayed number, and the symbol that says what kind of number it is."""
VIRIDIS_20_25 = (0x26, 0x82, 0x8E)
NEAR = "#at=11/30.25/-97.7"


@pytest.fixture
def on_kafka(tmp_path: Path, own_feed: dict[str, str]) -> Config:
    """Of a feed to which a test adds windows."""
    return city_config(tmp_path, **own_feed)


class Shown(NamedTuple):
    """A window on a page, and the service that it comes from."""

    page: Page
    client: TestClient
    messages: list[Message]


def shared(released: Callable[[Config], list[Message]], place: str = "", **options: Any) -> Any:
    """A page that tests share which only look at it."""

    @pytest_asyncio.fixture(scope="module", loop_scope="session")
    async def shared_page(
        request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Shown]:
        config = city_config(tmp_path_factory.mktemp("city"))
        with recording(request.node.nodeid):
            messages = released(config)
        async with page_of(browser, config, messages, place, **options) as (page, client):
            yield Shown(page, client, messages)

    return shared_page


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def what_was_opened_is_closed(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """On the pages that tests share."""
    yield
    for page in (shown.page for shown in request.node.funcargs.values() if isinstance(shown, Shown)):
        await page.keyboard.press("Escape")
        for close in ("#details-close", "#table-close"):
            if await page.locator(close).is_visible():
                await page.locator(close).click()
        await page.evaluate("document.querySelectorAll('details[open]').forEach((opened) => (opened.open = false))")
        await page.mouse.move(1, 1)


KINDS = ("histograms", "values", "zcdp", "participation", "withheld")
"""What the windows of :func:`kinds` are of, one an hour."""


def windows_of_kinds(config: Config) -> list[Message]:
    """A window of each of :data:`KINDS`."""
    zcdp = {"accounting": "zcdp", "rho": 0.05, "rho_budget": 0.4, "delta": 1e-6}
    (*first, marker), *others = (window(config, hour) for hour in range(len(KINDS)))
    histograms = [histogram_message(config.feed.name, mechanism) for mechanism in ("htf", "ug")]
    plain, under_zcdp, under_participation, withheld = others
    return [
        *closed([*first, *histograms], marker, histogram_epsilon=2.0, mechanisms=["htf", "ug"]),
        *plain,
        *closed(under_zcdp[:-1], under_zcdp[-1], **zcdp),
        *closed(under_participation[:-1], under_participation[-1], relation="participation"),
        *closed([], withheld[-1], withheld=True),
    ]


shown = shared(lambda config: window(config, 0))
day = shared(lambda config: windows(config, [USUAL_DAY] * 4 + [JAM]), NEAR, color_scheme="light")
"""Five windows, of which the last has a jam, on a page that shows the last of them and BUSY and STEADY."""
kinds = shared(windows_of_kinds)
"""Windows of every kind, of which :func:`turn_to` says which is on the screen."""


async def turn_to(page: Page, kind: str) -> None:
    """Show the window of this kind."""
    hour = KINDS.index(kind)
    await page.locator("#slider").fill(str(hour))
    await shows(page, hour)


def text_of(body: dict[str, Any]) -> str:
    """The text that the dashboard shows for a released mean."""
    mean = body["mean"]
    low, high = mean["interval"]
    digits = 1 if high - low < 4 else 0
    return f"{mean['value']:.{digits}f} km/h, 95 % interval {low:.{digits}f}–{high:.{digits}f}, noise from privacy"


async def choose(page: Page, label: str) -> None:
    """Choose a segment and wait until it is on the screen."""
    async with repainted(page):
        await page.get_by_role("radio", name=label, exact=True).check(force=True)


async def measure(page: Page, west: float, south: float, east: float, north: float) -> None:
    """Ask for the numbers of a box."""
    await page.get_by_role("button", name="Measure an area").click()
    for side, value in {"West": west, "South": south, "East": east, "North": north}.items():
        await page.get_by_label(side, exact=True).fill(str(value))
    await page.get_by_role("button", name="Measure", exact=True).click()


async def test_released_cells_are_shown_with_their_intervals_and_the_suppressed_as_not_published(shown):
    page, released = shown.page, bodies(shown.messages)
    await page.get_by_role("button", name="Cells as a table").click()
    rows = page.locator("#table-scroll tbody tr")
    await expect(rows).to_have_count(len(CELLS))
    for cell in CELLS:
        row = rows.filter(has_text=cell)
        if released[cell]["status"] == "suppressed":
            await expect(row).to_contain_text("not published")
        else:
            await expect(row).to_contain_text(re.search(r"interval (\S+),", text_of(released[cell]))[1])  # type: ignore[index]
    await expect(page.locator("#legend")).to_contain_text("not published")


async def test_the_tooltip_says_value_interval_and_noise(shown):
    page, released = shown.page, bodies(shown.messages)
    for cell in (BUSY, UNCERTAIN):
        await page.mouse.move(*await place_of(page, cell))
        reading = page.locator("#tooltip .reading")
        await expect(reading).to_have_text(f"{text_of(released[cell])}as released")
        await expect(reading).to_have_text(READING)
    await page.mouse.move(*await place_of(page, LONELY))
    await expect(page.locator("#tooltip")).to_contain_text("Not published")
    await expect(page.locator("#tooltip")).to_contain_text("Too few users: 1 user reported here")


async def test_a_cell_fades_when_its_interval_spans_more_than_one_class_and_is_hatched_if_not_published(shown):
    land = (0xEE, 0xF0, 0xF1)
    busy, uncertain = [await colour_of(shown.page, cell, below=20) for cell in (BUSY, UNCERTAIN)]
    assert apart(busy, [0.92 * a + 0.08 * b for a, b in zip(VIRIDIS_20_25, land, strict=True)]) < 6, busy
    assert apart(uncertain, land) < 0.85 * apart(busy, land)
    for cell, hatched in ((LONELY, True), (BUSY, False)):
        light = [sum(pixel) for pixel in await pixels(shown.page, cell, below=20)]
        assert (max(light) - min(light) > 100) == hatched


async def test_neither_what_is_typical_nor_a_statistic_can_be_chosen_that_was_not_released(day):
    page = day.page
    await revisit(page, f"{NEAR}&colours=typical&statistic=p85")
    await shows(page, 4)
    await expect(page.get_by_role("radio", name="Typical", exact=True)).to_be_disabled()
    await expect(page.get_by_role("radio", name="Now", exact=True)).to_be_checked()
    await expect(page.locator("#statistics input[value=p85]")).to_be_disabled()
    await expect(page.locator("#statistics input[value=mean]")).to_be_checked()
    await expect(page.locator("#statistics")).to_be_hidden()  # the only one needs no chooser


async def test_every_statistic_can_be_chosen(browser, tmp_path):
    overrides = {"privacy.epsilon": 100.0, "privacy.budget": 2400.0}
    config = city_config(tmp_path, **overrides, **{"speed.statistics": ["mean", "variance", "p50", "p85"]})
    messages = window(config, 0)
    released = bodies(messages)
    async with page_of(browser, config, messages) as (page, _):
        await page.mouse.click(*await place_of(page, STEADY))
        for label, name in (("Median speed (p50)", "p50"), ("85th percentile of speed (p85)", "p85")):
            await choose(page, label)
            assert (await fields(page))["statistic"] == name
            await expect(page.locator("#details .reading")).to_contain_text(
                f"{released[STEADY][name]['value']:.1f} km/h"
            )
        await choose(page, "Spread: standard deviation of the values")
        spread = released[STEADY]["variance"]["value"] ** 0.5
        await expect(page.locator("#details .reading")).to_contain_text(f"{spread:.1f} km/h")
        await expect(page.get_by_role("radio", name="Typical")).to_be_disabled()


@pytest.mark.nightly
async def test_a_percentile_that_is_modelled_alone_is_marked_and_has_no_interval(browser, tmp_path):
    changed = {"speed.statistics": ["mean", "variance"], "speed.post_processing": ["clipped-normal"]}
    config = city_config(tmp_path, **changed)
    messages = windows(config, [USUAL_DAY] * 4)
    async with page_of(browser, config, messages) as (page, _):
        await page.mouse.click(*await place_of(page, STEADY))
        await choose(page, "Median speed (p50)")
        assert (await fields(page))["statistic"] == "p50"
        reading = page.locator("#details .reading")
        value = bodies(messages)[STEADY]["post_processed"]["p50"]["value"]
        await expect(reading).to_contain_text(f"{value:.0f} km/h; no interval is given for a modelled percentile")
        await expect(reading.locator(".chip")).to_have_text("modelled")
        await expect(page.locator("#details table")).to_contain_text("by mean and spread")
        await expect(page.locator("#details figcaption")).to_contain_text("No interval is given")
        await expect(page.get_by_role("radio", name="Typical")).to_be_disabled()
        await expect(page.get_by_role("radio", name="As released")).to_be_disabled()
        await expect(page.locator("#legend")).to_contain_text("Every cell is faint")


async def test_windows_arrive_live_wait_while_paused_and_live_returns(browser, on_kafka):
    config = on_kafka
    async with followed(browser, config, windows(config, [USUAL_DAY] * 2)) as page:
        slider, live = page.get_by_role("slider", name="Window"), page.locator("#live-button")
        await shows(page, 1)
        await publish(config.kafka.bootstrap, window(config, 2))
        await shows(page, 2)
        await expect(live).to_have_attribute("aria-pressed", "true")
        await slider.focus()
        await slider.press("Home")
        await shows(page, 0)
        await expect(live).to_have_text("Paused")
        await publish(config.kafka.bootstrap, window(config, 3))
        await expect(slider).to_have_attribute("max", "3")
        await expect(page.locator("#window-text")).to_contain_text("07:00–08:00")
        await expect(page.locator("#window-text .zone")).to_have_text("America/Chicago")
        await live.click()
        await shows(page, 3)
        await expect(live).to_have_text("Following")
        await page.get_by_role("button", name="Earlier window").click()
        await shows(page, 2)


async def test_the_badge_says_how_old_the_newest_window_is(shown):
    page = shown.page
    await expect(page.locator("#badge")).to_have_attribute("data-state", "stale")
    await expect(page.locator("#badge")).to_contain_text(re.compile(r"Stale: the last window ended \d+ years ago"))


async def test_an_address_shows_the_same_place_window_and_statistic_again_or_says_that_its_window_is_gone(browser, day):
    place = f"#at=12.50/30.2500/-97.7000&window=2017-03-21T13:00:00Z&statistic=mean&colours=now&cell={STEADY}"
    async with opened(browser, origin_of(day.client), place) as page:
        await shows(page, 1)
        again = await fields(page)
        assert f"#{'&'.join(f'{name}={value}' for name, value in again.items())}" == place
        await expect(page.locator("#details code")).to_have_text(STEADY)
        await expect(page.locator("#live-text")).to_have_text("Paused")
        await page.locator("#map canvas").press("+")
        await page.wait_for_function("!location.hash.includes('at=12.50')")
        moved = await fields(page)
        await reloaded(page)
        assert await fields(page) == moved
        await revisit(page, "#window=2016-01-01T00:00:00Z")
        await expect(page.locator("#empty")).to_contain_text("This window is not kept here")
        assert await page.evaluate("document.documentElement.dataset.window") == ""


@pytest.mark.nightly
async def test_an_address_of_a_window_that_is_gone_says_so_and_shows_no_other(browser, on_kafka):
    place, config = "#window=2016-01-01T00:00:00Z", on_kafka
    async with followed(browser, config, windows(config, [USUAL_DAY] * 2), place) as page:
        card = page.locator("#empty")
        await expect(card).to_contain_text("This window is not kept here")
        await expect(card).to_contain_text("the window of Thu, 31 Dec 2015, 18:00 (America/Chicago)")
        await expect(card).to_contain_text("now those from Tue, 21 Mar 2017, 07:00")
        await expect(page.locator("#controls")).to_be_hidden()
        assert await page.evaluate("document.documentElement.dataset.window") == ""
        light = [sum(pixel) for pixel in await pixels(page, BUSY)] if "at" in await fields(page) else [0]
        assert max(light) - min(light) < 60
        await expect(page.locator("#live-text")).to_have_text("Paused")
        await publish(config.kafka.bootstrap, window(config, 2))
        await expect(page.get_by_role("slider", name="Window")).to_have_attribute("max", "2")
        await expect(card).to_be_visible()
        assert page.url.endswith(place)
        await no_violation(page)
        await page.get_by_role("button", name="Show the newest window").click()
        await shows(page, 2)
        await expect(card).to_be_hidden()
        await expect(page.locator("#live-text")).to_have_text("Following")


async def test_a_withheld_window_says_why_it_is_empty(kinds):
    page = kinds.page
    await turn_to(page, "withheld")
    await expect(page.locator("#empty")).to_contain_text("This window was withheld")
    await page.get_by_role("button", name="Earlier window").click()
    await shows(page, KINDS.index("withheld") - 1)
    await expect(page.locator("#empty")).to_be_hidden()


async def test_an_area_is_in_the_address_and_comes_back_with_it(day):
    page = day.page
    await measure(page, -97.8, 30.15, -97.6, 30.23)
    await expect(page.locator("#area-mean")).to_have_text(READING)
    assert (await fields(page))["area"] == "-97.8,30.15,-97.6,30.23"
    await expect(page.locator("#details")).to_contain_text("published of 1 cells")
    await reloaded(page)
    await expect(page.locator("#details")).to_contain_text("published of 1 cells")
    await expect(page.get_by_label("North", exact=True)).to_have_value("30.23000")
    await page.locator("#details-close").click()
    assert "area" not in await fields(page)


async def test_a_box_on_the_map_answers_with_interval_and_says_what_it_lacks(shown):
    page = shown.page
    await page.get_by_role("button", name="Measure an area").click()
    (x0, y0), (x1, y1) = await place_of(page, BUSY, (-60, 60)), await place_of(page, STEADY, (60, -60))
    await page.mouse.move(x0, y0)
    await page.mouse.down()
    await page.mouse.move(x1, y1, steps=3)
    await page.mouse.up()
    await expect(page.locator("#area-mean")).to_have_text(READING)
    await expect(page.locator("#details")).to_contain_text("Mean over the 2 published of 2 cells")
    await expect(page.locator("#details")).to_contain_text(
        "Events in these cells: 260 (exact, because counts are public). Every report counts, over whole cells."
    )
    await expect(page.locator("#histogram-count")).to_contain_text("no spatial histogram")


def whole(number: float) -> str:
    """As the page writes it: a half goes away from zero, and a narrow space stands before every three digits."""
    return f"{Decimal(number).quantize(Decimal(1), ROUND_HALF_UP):,}".replace(",", "\u202f")


@pytest.mark.nightly
async def test_a_box_is_counted_by_every_spatial_histogram_of_the_window(browser, config):
    *cells, marker = window(config, 0)
    histograms = [histogram_message(config.feed.name, mechanism) for mechanism in ("htf", "ug")]
    # Chromium calls the refusal at the end an error.
    async with page_of(browser, config, closed([*cells, *histograms], marker), errors=True) as (page, client):
        await measure(page, -97.8, 30.2, -97.6, 30.4)
        for mechanism in ("htf", "ug"):
            query = {"bbox": "-97.8,30.2,-97.6,30.4", "mechanism": mechanism}
            answer = await (await client.get("/api/v1/histograms/2017-03-21T12:00:00Z/count", params=query)).json()
            low, high = answer["interval"]
            assert low <= answer["value"] <= high
            said = f"histogram Users whose last position was in the box, by the spatial histogram ({mechanism}): "
            said += f"{whole(answer['value'])}, 95 % interval {whole(low)}–{whole(high)}."
            await expect(page.locator("#histogram-count")).to_contain_text(said)
        await page.get_by_label("West", exact=True).fill("-100")
        await page.get_by_role("button", name="Measure", exact=True).click()
        await expect(page.locator("#histogram-count")).to_contain_text("lies outside the histogram's domain")


async def test_the_window_and_a_range_are_downloaded_by_the_links_in_every_format(day):
    page = day.page
    await page.locator("#downloads summary").click()
    await page.locator("#download-list").get_by_label("From").select_option("2017-03-21T14:00:00Z")
    links = page.locator("#download-list a")
    await expect(links).to_have_text(["CSV", "Parquet", "GeoJSON"] * 2)
    await no_violation(page)
    answers = [await day.client.get(f"/{await link.get_attribute('href')}") for link in await links.all()]
    assert {answer.status for answer in answers} == {200}
    assert all("attachment" in answer.headers["Content-Disposition"] for answer in answers)
    assert [len((await answers[n].text()).splitlines()) for n in (0, 3)] == [1 + len(CELLS), 1 + 3 * len(CELLS)]


@pytest.mark.nightly
async def test_parquet_is_offered_only_where_the_server_can_write_it(browser, config, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    async with page_of(browser, config, window(config, 0)) as (page, _):
        await page.locator("#downloads summary").click()
        await expect(page.locator("#download-list a")).to_have_text(["CSV", "GeoJSON"] * 2)


@pytest.mark.nightly
async def test_speeds_are_said_in_mph_where_the_reader_wants_them_and_so_they_stay(day):
    page = day.page
    mean = bodies(day.messages)[BUSY]["mean"]["value"]  # of the last window
    await revisit(page, f"#at=11/30.25/-97.7&cell={BUSY}")
    await expect(page.locator("#legend h3")).to_have_text("km/h")
    await choose(page, "mph")
    for _ in range(2):
        said = re.compile(rf"^{round(mean / 1.609344, 1):.1f} mph, 95 % interval")
        await expect(page.locator("#details .reading")).to_have_text(said)
        await expect(page.locator("#legend h3")).to_have_text("mph")
        await expect(page.locator("#legend li").nth(1)).to_have_text("5–10")
        await expect(page.locator(".maplibregl-ctrl-scale")).to_have_text(re.compile("mi|ft"))
        await reloaded(page)
    await no_violation(page)
    await choose(page, "km/h")
    await expect(page.locator("#details .reading")).to_contain_text("km/h")


PROMISED = {
    "values": (
        "values",
        "18 for one user, over all cells and statistics together",
        "432 for one user: everything published in 24 hours is",
        "above 65 km/h",
        "one user (vehicle or device) for one period of 24 hours",
        'Relation "values" does not hide where users were.',
        "Trusted curator.",
        "The numbers of events and users are exact",
    ),
    "histograms": (
        "18 for one user, over all cells",
        "htf, ug: ε 2 together, in addition",
        "18 + 2 = 20 of the budget",
    ),
    "participation": ("Random noise was added to every number",),
    "zcdp": ("0.05 for one user", "0.4 for one user", "δ 0.000001"),
}
"""What "About the noise" says, by the kind of window."""


@pytest.mark.parametrize("kind", PROMISED)
async def test_about_the_noise_says_what_the_marker_promises_and_nothing_that_it_does_not(kinds, kind):
    page, said = kinds.page, kinds.page.locator("#about")
    await turn_to(page, kind)
    await page.get_by_role("button", name="About the noise").click()
    for text in PROMISED[kind]:
        await expect(said).to_contain_text(text)
    if kind == "values":
        for text in ("zCDP", "every number"):
            await expect(said).not_to_contain_text(text, use_inner_text=True)
    await no_violation(page)
    await page.keyboard.press("Escape")
    await expect(said).to_be_hidden()
    if kind == "histograms":
        await expect(page.locator("#legend")).to_contain_text("spatial histograms (htf, ug)")


@pytest.mark.parametrize(
    ("relation", "speeds", "feed"),
    [
        ("values", "missing", "bus"),
        nightly("values", "reported", "bus"),
        ("participation", "derived", "bus"),
        nightly("values", "derived", "another"),
    ],
)
async def test_legend_and_about_the_noise_say_which_speeds_are_derived_and_that_values_does_not_protect_them(
    browser, config, relation, speeds, feed
):
    """Of another feed than the configured one the page does not know."""
    *cells, marker = window(config, 0)
    name = config.feed.name if feed == "bus" else feed
    described = config.model_copy(update={"feed": config.feed.model_copy(update={"speeds": speeds, "name": name})})
    messages = closed(cells, marker, relation=relation)
    async with page_of(browser, described, messages, f"?feed={config.feed.name}") as (page, _):
        await page.get_by_role("button", name="About the noise").click()
        for said in (page.locator("#legend"), page.locator("#about")):
            for text, is_said in (
                ("reports no speed, the feed is configured to compute it", speeds == "missing"),
                ("configured to compute every speed from two positions", speeds == "derived" and feed == "bus"),
                ("Only “participation” would protect it", speeds == "missing" and relation == "values"),
            ):
                expected = expect(said)
                await (expected.to_contain_text if is_said else expected.not_to_contain_text)(text)
        await no_violation(page)


async def test_everything_can_be_done_by_keyboard(day):
    page = day.page
    await revisit(page, NEAR)
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    canvas = page.locator("#map canvas")
    await canvas.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#details code")).to_have_text(STEADY)
    await page.keyboard.press(",")
    await shows(page, 3)
    await page.keyboard.press("l")
    await shows(page, 4)
    await page.keyboard.press("t")
    first = page.locator("#table-scroll tbody tr").nth(0).locator("button")
    await expect(first).to_be_focused()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    chosen = await page.locator("#table-scroll tbody tr").nth(1).locator("button").inner_text()
    await expect(page.locator("#details code")).to_have_text(chosen)
    await page.keyboard.press("Escape")
    await expect(page.locator("#table-panel")).to_be_hidden()
    await expect(canvas).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.locator("#about")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#about")).to_be_hidden()
    await canvas.focus()
    await page.keyboard.press("a")
    await page.get_by_role("button", name="Measure", exact=True).press("Enter")
    await expect(page.locator("#area-mean")).to_have_text(READING)


@pytest.mark.parametrize(
    ("size", "colours"),
    [(PHONE, "dark"), nightly(DESKTOP, "light"), nightly(DESKTOP, "dark"), nightly(PHONE, "light")],
    ids=["phone-dark", "desktop-light", "desktop-dark", "phone-light"],
)
async def test_axe_finds_no_violation_and_all_of_the_page_fits(browser, tmp_path, size, colours):
    config = city_config(tmp_path, **{"speed.post_processing": ["kalman"]})
    options: dict[str, Any] = {"size": size, "color_scheme": colours, "has_touch": size is PHONE}
    async with page_of(browser, config, windows(config, [USUAL_DAY] * 4), f"#cell={BUSY}", **options) as (page, _):
        await expect(page.locator("html")).to_have_attribute("data-theme", colours)
        await expect(page.locator("#details figcaption")).to_contain_text("4 windows since Tue, 21 Mar 2017")
        await expect(page.locator("#details .uplot canvas")).to_be_visible()
        await expect(page.locator("#details table")).to_contain_text("by earlier windows and neighbours")
        await no_violation(page)
        await page.locator("#details-close").click()
        for name in ("#badge", "#live-button", "#slider", "#controls", "#table-button", "#about-button"):
            box = await box_of(page.locator(name))
            assert box["x"] >= 0, name
            assert box["x"] + box["width"] <= size["width"], name
            assert box["y"] + box["height"] <= size["height"], name
        if size is PHONE:
            await page.touchscreen.tap(*await place_of(page, STEADY))
            await expect(page.locator("#details code")).to_have_text(STEADY)
            await expect(page.locator("#details .reading")).to_be_visible()
            await page.locator("#details-close").click()
        await page.get_by_role("button", name="Cells as a table").click()
        await no_violation(page)
        await page.locator("#table-close").click()
        await page.get_by_role("button", name="Measure an area").click()
        await no_violation(page)
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="About the noise").click()
        await no_violation(page)


@pytest.mark.nightly
async def test_dark_follows_the_system_and_the_button_overrules_it(browser, config):
    async with page_of(browser, config, window(config, 0), color_scheme="dark") as (page, _):
        root = page.locator("html")
        await expect(root).to_have_attribute("data-theme", "dark")
        dark = await pixels(page, LONELY)
        await page.emulate_media(color_scheme="light")
        await expect(root).to_have_attribute("data-theme", "light")
        await page.get_by_role("button", name="Dark colours").click()
        await expect(root).to_have_attribute("data-theme", "dark")
        await reloaded(page)
        await expect(root).to_have_attribute("data-theme", "dark")
        assert max(map(max, dark)) < 200


STATUSES = """() => performance.getEntriesByType('resource')
  .filter(({ name }) => name.endsWith('/dashboard/basemap.pmtiles'))
  .map(({ responseStatus }) => responseStatus)"""


@pytest.mark.parametrize(
    ("colours", "attribution"),
    [
        nightly("light", "<a href='https://example.org'>A made-up city</a>"),
        ("dark", "&lt;a href=&quot;https://example.org&quot; style=&quot;inset:0&quot;&gt;A made-up city&lt;/a&gt;"),
    ],
)
async def test_a_basemap_is_read_by_ranges_and_its_streets_lie_on_the_hexagons(
    browser, config, tmp_path, colours, attribution
):
    lat, lng = h3.cell_to_latlng(BUSY)
    street = [(lat - 0.05, lng - 0.2), (lat, lng), (lat + 0.05, lng + 0.2)]
    tiles = archive(tmp_path / "city.pmtiles", [(street, {})], range(9, 10), attribution)
    async with (
        served(config, window(config, 0), check_basemap(tiles)) as client,
        opened(browser, origin_of(client), color_scheme=colours, errors=True) as page,
    ):
        assert set(await page.evaluate(STATUSES)) == {206}
        await expect(page.locator(".maplibregl-ctrl-attrib")).to_contain_text("A made-up city")
        assert await page.locator(".maplibregl-ctrl-attrib a").count() == 0
        seen = [sum(pixel) for pixel in await pixels(page, BUSY)]
        assert max(seen) - min(seen) > 15
        await page.route("**/dashboard/basemap.pmtiles", lambda route: route.abort())
        async with repainted(page):
            await page.get_by_role("button", name="Dark colours").click()
        land = sum(max(await pixels(page, h3.latlng_to_cell(30.35, -97.9, 7))))
        assert (land > 600) == (colours == "dark"), "the map changes its theme though the server does not answer"


@pytest.mark.nightly
async def test_names_of_streets_are_written_without_a_font_of_the_server_and_larger_on_a_wall(
    browser, config, tmp_path
):
    """The same street without and with its name, from left to right or from right to left, where nothing else is. On
    a wall the letters cover (20 / 12)² as many pixels."""
    empty = h3.latlng_to_cell(30.6, -97.7, 7)
    lat, lng = h3.cell_to_latlng(empty)
    ends, tiles = [(lat, lng - 0.2), (lat, lng + 0.2)], tmp_path / "city.pmtiles"
    place, seen, inked = f"#at=11/{lat:.4f}/{lng:.4f}", [], []
    archive(tiles, [(ends, {})], range(9, 12))
    async with (
        served(config, window(config, 0), check_basemap(tiles)) as client,
        opened(browser, origin_of(client), place, color_scheme="light") as page,
    ):
        for name, large in (("", ""), ("שדרות רוטשילד", ""), ("Longest Street", ""), ("Longest Street", "&large=on")):
            archive(tiles, [(ends, {"name": name} if name else {})], range(9, 12))
            await revisit(page, f"{place}{large}")
            await page.wait_for_timeout(500)
            seen.append([sum(pixel) for pixel in await pixels(page, empty, 400)])
            inked.append(sum(sum(pixel) < 300 for pixel in await pixels(page, empty, 200)))
    without, *named, _ = seen
    for picture in named:
        assert sum(abs(a - b) > 60 for a, b in zip(without, picture, strict=True)) > 200
    *_, small, large_letters = inked
    assert small > 20
    assert large_letters > 1.8 * small


async def test_a_light_cell_on_light_land_has_an_outline_that_can_be_seen(day):
    """Neither the cell of 45 km/h nor the land nor its grid is as dark in red, green and blue."""
    seen = await pixels(day.page, STEADY, 400)
    assert sum(max(pixel) < 190 for pixel in seen) > 100


async def test_hostile_words_in_messages_and_addresses_stay_words(browser, config):
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    *cells, marker = window(config, 0)
    changed = []
    for message in cells:
        body = json.loads(message.value)
        if "mean" in body:
            mean = body["mean"]
            derived = {"method": hostile, "value": mean["value"], "interval": mean["interval"], "unit": "km/h"}
            body["post_processed"] = {"mean": derived}
        changed.append(message._replace(value=json.dumps(body).encode()))
    period = json.loads(marker.value)["period"] | {"timezone": hostile}
    place = f"#cell={hostile}&window={hostile}"
    async with page_of(browser, config, closed(changed, marker, period=period), place) as (page, _):
        await page.mouse.click(*await place_of(page, BUSY))
        await expect(page.locator("#details .reading")).to_contain_text("modelled")
        await page.get_by_role("button", name="About the noise").click()
        await expect(page.locator("#window-text .zone")).to_have_text("UTC")
        await expect(page.locator("#about")).to_contain_text("(UTC)")
        assert await page.locator("img[src=x]").count() == 0
        assert await page.locator("body script:not([src])").count() == 0
        assert await page.title() == "Hexveil"


async def test_before_the_first_window_and_without_its_server_the_page_says_so_and_then_follows_again(
    browser, on_kafka, unused_tcp_port
):
    """A screen reader is told when windows stop, and not every few seconds which one is shown."""
    config = on_kafka
    await create_topics(config)
    origin = f"http://127.0.0.1:{unused_tcp_port}"
    first = await started(config, unused_tcp_port)
    async with opened(browser, origin, errors=True) as page:
        badge, status = page.locator("#badge"), page.locator("#status")
        await expect(page.locator("#empty")).to_contain_text("No window was released yet")
        await publish(config.kafka.bootstrap, window(config, 0))
        await shows(page, 0)
        await expect(page.locator("#empty")).to_be_hidden()
        await expect(page.locator("#window-text")).to_have_attribute("aria-live", "off")
        await expect(status).to_contain_text("Tue, 21 Mar 2017, 07:00–08:00")
        await first.cleanup()
        await expect(badge).to_have_attribute("data-state", "offline")
        await expect(status).to_have_text(await page.locator("#badge-text").inner_text())
        await publish(config.kafka.bootstrap, window(config, 1))
        second = await started(config, unused_tcp_port)
        try:
            await shows(page, 1)
            await expect(badge).not_to_have_attribute("data-state", "offline")
            await publish(config.kafka.bootstrap, window(config, 2))
            await shows(page, 2)
        finally:
            await second.cleanup()


async def started(config: Config, port: int) -> web.AppRunner:
    runner = web.AppRunner(make_app(config), shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner


ALERT = {"light": (0xA3, 0x00, 0x7A), "dark": (0xFF, 0x7A, 0xD9)}
"""Colour of the outline of a cell that a rule names."""


def outlined(seen: list[tuple[int, int, int]], colour: tuple[int, int, int]) -> bool:
    return sum(apart(pixel, colour) < 24 for pixel in seen) > 40


async def test_an_alert_is_outlined_listed_and_explained_in_the_language_of_the_reader(browser, tmp_path):
    rule = {"name": "stau", "below": 18.0, "false_alarms_per_day": 0.5}
    config = city_config(tmp_path, **{"public.alerts": [rule]})
    options: dict[str, Any] = {"place": "#at=10/30.25/-97.7", "locale": "pl-PL", "color_scheme": "dark"}
    async with page_of(browser, config, windows(config, [USUAL_DAY, JAM]), **options) as (page, _):
        root = page.locator("html")
        await expect(root).to_have_attribute("lang", "pl")
        await expect(page.locator("#live-text")).to_have_text("Na bieżąco")
        await page.locator("#language").select_option("de")
        await expect(root).to_have_attribute("lang", "de")
        await shows(page, 1)
        await expect(page.locator("#alerts-count")).to_have_text("1")
        assert outlined(await pixels(page, BUSY, 120), ALERT["dark"])
        assert not outlined(await pixels(page, LONELY, 60), ALERT["dark"])
        await page.locator("#alerts summary").click()
        said = page.locator("#alerts-list")
        await expect(said).to_contain_text("stau: Mittelwert unter 18,0 km/h")
        await expect(said).to_contain_text("höchstens 0,5 Fehlalarme am Tag, in allen 4 Zellen zusammen.")
        await no_violation(page)
        await page.locator("#theme-button").click()
        await no_violation(page)
        await said.get_by_role("button").click()
        await expect(page.locator("#details code")).to_have_text(BUSY)
        await expect(page.locator("#details .alert")).to_contain_text("der genaue Mittelwert liegt unter 18,0")
        await no_violation(page)
        await expect(page.locator("#status")).to_contain_text("1 Warnung.")
        await page.get_by_role("button", name="Früheres Zeitfenster").click()
        await shows(page, 0)
        await expect(page.locator("#alerts-count")).to_have_text("")
        await expect(said).to_contain_text("Keine Regel nennt eine Zelle")


@pytest.mark.nightly
async def test_the_page_fits_a_wall_paper_and_languages_that_run_from_right_to_left(browser, config):
    async with page_of(browser, config, window(config, 0), "#at=10/30.25/-97.7") as (page, _):
        await expect(page.locator("#alerts")).to_be_hidden()
        small = await box_of(page.locator("#window-text"))
        await page.locator("#map canvas").press("w")
        await expect(page.locator("#about-button")).to_be_hidden()
        large = await box_of(page.locator("#window-text"))
        assert large["height"] > 1.4 * small["height"]
        assert (await fields(page))["large"] == "on"
        await page.reload()
        await page.wait_for_selector("html[data-ready][data-large='true']")
        await no_violation(page)
        await page.locator("#large-button").click()
        await page.evaluate("document.documentElement.dir = 'rtl'")
        controls = await box_of(page.locator("#controls"))
        assert controls["x"] + controls["width"] == pytest.approx(DESKTOP["width"] - 14, abs=1)
        assert await page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
        await page.emulate_media(media="print")
        await expect(page.locator("#about-button")).to_be_hidden()
        await expect(page.locator("#legend")).to_be_visible()
        await expect(page.locator("#window-text")).to_contain_text("America/Chicago")
