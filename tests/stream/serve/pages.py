"""The dashboard over a file of releases, and what reaches out of a screen."""

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient
from playwright.async_api import Browser, Page

from stream.config import Config
from stream.messages.lines import line_of
from stream.messages.message import Message
from tests.stream.serve.browser import opened
from tests.stream.serve.serving import origin_of, serving_file

OUTSIDE = """() => [...document.querySelectorAll('header *, footer *, .card, .card *')]
  .filter((element) => element.checkVisibility() && !element.closest('.hidden, .skip, legend, svg'))
  .filter((element) => {
    const { left, right } = element.getBoundingClientRect();
    const scroller = element.closest('#table-scroll, #legend, #controls, #details');
    return !scroller && (left < -1 || right > innerWidth + 1);
  })
  .map((element) => element.id || element.outerHTML.slice(0, 80))"""
"""Elements that reach out of the screen to the left or the right."""
CUT = """() => [...document.querySelectorAll('header *, footer *')]
  .filter((element) => element.checkVisibility() && !element.closest('.hidden, .skip, svg, .drop, option'))
  .filter(({ scrollWidth, clientWidth, scrollHeight, clientHeight }) =>
    (clientWidth && scrollWidth > clientWidth) || (clientHeight && scrollHeight > clientHeight + 1))
  .map((element) => `${element.id || element.outerHTML.slice(0, 80)} ${element.scrollWidth}/${element.clientWidth} ${element.scrollHeight}/${element.clientHeight}`)"""  # noqa: E501
"""Elements of header and footer that cut what is in them, with an ellipsis or without."""


CARDS = """() => ['controls', 'details'].map((id) => document.getElementById(id))
  .filter((card) => card.checkVisibility())
  .map((card) => card.getBoundingClientRect())
  .map(({ left, top, right, bottom }) => [left, top, right, bottom])"""


async def in_sight(page: Page, pixels: Iterable[tuple[float, float]]) -> list[bool]:
    """Of each whether it is on the map and under no card."""
    frame = await page.locator("#map").bounding_box()
    assert frame is not None
    cards = await page.evaluate(CARDS)
    return [
        0 <= x - frame["x"] <= frame["width"]
        and 0 <= y - frame["y"] <= frame["height"]
        and not any(left < x < right and top < y < bottom for left, top, right, bottom in cards)
        for x, y in pixels
    ]


@asynccontextmanager
async def page_of(
    browser: Browser, config: Config, messages: list[Message], place: str = "", **options: Any
) -> AsyncIterator[tuple[Page, TestClient]]:
    """The dashboard over a file with these messages, so that no other test's feeds are in it."""
    with tempfile.TemporaryDirectory() as folder:
        releases = Path(folder) / "releases.ndjson"
        releases.write_text("".join(map(line_of, messages)), encoding="utf-8")
        async with (
            serving_file(config, releases) as client,
            opened(browser, origin_of(client), place, **options) as page,
        ):
            yield page, client
