"""Opens the dashboard in Debian's Chromium, waits until it is painted, and records errors and requests to other
servers.
"""

import io
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import h3
import numpy as np
import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from PIL import Image
from playwright.async_api import Browser, FloatRect, Locator, Page, Route, async_playwright, expect

from bench.dashboard import NO_CHROMIUM, find_chromium
from tests.support.nightly import nightly

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

ARGUMENTS = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-gpu-compositing",
    "--in-process-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE_MS = 120_000
"""Longest wait for anything on the page; a busy machine is slow, a broken page never gets there."""
expect.set_options(timeout=PATIENCE_MS)

DESKTOP = {"width": 1024, "height": 640}
LAPTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
WALL = {"width": 3840, "height": 1080}
HIGH_WALL = {"width": 3840, "height": 2160}
Colour = tuple[int, int, int]
TILE = 512
"""Pixels of the world's side at zoom 0."""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Debian's Chromium; every page of it is :func:`opened` with cookies, storage and settings of its own."""
    async with (
        async_playwright() as playwright,
        await playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS)) as browser,
    ):
        yield browser


async def stands_at(page: Page, moment: datetime) -> None:
    """The server's clock says ``moment``, as far as the page can see."""

    async def answer(route: Route) -> None:
        response = await route.fetch()
        date = format_datetime(moment.astimezone(UTC), usegmt=True)
        await route.fulfill(response=response, headers=response.headers | {"date": date})

    await page.route("**/dashboard/settings", answer)


@asynccontextmanager
async def opened(
    browser: Browser,
    origin: str,
    place: str = "",
    size: dict[str, int] = DESKTOP,
    errors: bool = False,
    clock: datetime | None = None,
    init: str = "",
    **options: Any,
) -> AsyncIterator[Page]:
    """The dashboard once it is painted. ``clock``: the server's, of which the screen's is a day behind. ``init``: a
    script that runs before those of the page. Fails at its end if a request went to another server or, unless
    ``errors``, an error was logged.
    """
    requests: list[str] = []
    logged: list[str] = []
    async with await browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        reduced_motion="reduce",
        **options,
    ) as context:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("console", lambda message: logged.append(message.text) if message.type == "error" else None)
        if init:
            await page.add_init_script(init)
        if clock is not None:
            await page.clock.set_fixed_time(clock - timedelta(days=1))
            await stands_at(page, clock)
        await page.goto(f"{origin}/{place}")
        await page.wait_for_selector("html[data-ready]")
        yield page
        own = (f"{origin}/", f"blob:{origin}/", "data:")
        assert not (elsewhere := [url for url in requests if not url.startswith(own)]), elsewhere
        assert errors or not logged, logged


async def revisit(page: Page, place: str) -> None:
    """Load the page anew at another place of its address, from its server. Costs half of what a new page does.

    In one step, because the page writes its own place there once the map has moved, as it does when its size is
    changed.
    """
    async with page.expect_navigation():
        await page.evaluate("place => { history.replaceState(null, '', place); location.reload(); }", f"/{place}")
    await page.wait_for_selector("html[data-ready]")


LOOKS = pytest.mark.parametrize(
    "look",
    [nightly({"size": DESKTOP, "color_scheme": "light"}), {"size": PHONE, "color_scheme": "dark"}],
    ids=["desktop-light", "phone-dark"],
)
"""Options of :func:`opened` for a screen and a theme."""
WCAG_22 = {"rules": {"target-size": {"enabled": True}}, "resultTypes": ["violations"]}
"""What axe-core leaves out unless it is asked: that targets have 24 pixels, or as much room. And that it need not
describe every element which passes a rule."""
_RUN = "options => axe.run(options).then(({ violations }) => ({ violations }))"


async def no_violation(page: Page) -> None:
    """axe-core finds nothing wrong with what is on the page now, and nothing widens it beyond the screen."""
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if not await page.evaluate("'axe' in globalThis"):
        await page.evaluate(AXE_SCRIPT)
    results = AxeResults(await page.evaluate(_RUN, WCAG_22))
    assert results.violations_count == 0, results.generate_report()


@asynccontextmanager
async def repainted(page: Page) -> AsyncIterator[None]:
    """Ends once what was done meanwhile is painted."""
    before = await page.evaluate("document.documentElement.dataset.painted ?? ''")
    yield
    await page.wait_for_function("before => document.documentElement.dataset.painted !== before", arg=before)


async def step(page: Page, name: str) -> None:
    """Press the button and wait until another window is on the screen."""
    async with repainted(page):
        await page.get_by_role("button", name=name).click()


async def shows(page: Page, hour: int) -> None:
    """Wait until the window so many hours after the first is on the screen."""
    await page.wait_for_selector(f'html[data-window="2017-03-21T{12 + hour}:00:00Z"]', timeout=PATIENCE_MS)


async def reloaded(page: Page) -> None:
    """Load the page anew at its address as it is."""
    await page.reload()
    await page.wait_for_selector("html[data-ready]")


async def fields(page: Page) -> dict[str, str]:
    """What the address says after '#'."""
    return await page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")


async def box_of(element: Locator) -> FloatRect:
    """Where it is on the screen."""
    box = await element.bounding_box()
    assert box is not None
    return box


async def table_row(page: Page, cell: str) -> Locator:
    """The row of a cell in the table, which is opened where it is closed."""
    if await page.locator("#table-panel").is_hidden():
        await page.locator("#table-button").click()
    return page.locator("#table-scroll tbody tr").filter(has_text=cell)


async def place_of(page: Page, cell: str, offset: tuple[float, float] = (0, 0)) -> tuple[float, float]:
    """The pixel at which the centre of a cell is drawn."""
    ((x, y),) = await pixels_of(page, [h3.cell_to_latlng(cell)])
    return x + offset[0], y + offset[1]


async def pixels_of(page: Page, places: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pixel at which each place is drawn, computed from the map's position in the page's address."""
    zoom, lat, lng = (float(part) for part in (await fields(page))["at"].split("/"))
    frame = await box_of(page.locator("#map"))
    size = TILE * 2**zoom
    left, top = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
    return [
        ((east - lng) / 360 * size + left, (_mercator(lat) - _mercator(north)) / (2 * math.pi) * size + top)
        for north, east in places
    ]


def _mercator(lat: float) -> float:
    return math.asinh(math.tan(math.radians(lat)))


async def pixels(page: Page, cell: str, side: int = 16, below: int = 0) -> list[Colour]:
    """Colours of a square of pixels so far ``below`` the centre of a cell, where a number may be, as they are on the
    screen."""
    x, y = await place_of(page, cell)
    y += below
    square = {"x": round(x) - side // 2, "y": round(y) - side // 2, "width": side, "height": side}
    picture = Image.open(io.BytesIO(await page.screenshot(clip=square))).convert("RGB")  # type: ignore[arg-type]
    return [tuple(colour) for colour in np.asarray(picture).reshape(-1, 3).tolist()]


async def colour_of(page: Page, cell: str, below: int = 0) -> Colour:
    """The middle one, by its light, of the colours of :func:`pixels`."""
    return sorted(await pixels(page, cell, below=below), key=sum)[128]


async def shade_of(page: Page, cell: str) -> int:
    """How far the colour of a cell is from grey, which is below 24."""
    colour = await colour_of(page, cell)
    return max(colour) - min(colour)


def apart(one: Iterable[float], other: Iterable[float]) -> float:
    """The largest difference in red, green or blue."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
