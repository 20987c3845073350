"""The public service over what a test publishes to a real broker. The dashboard over a file of releases, and what
reaches out of a screen."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Browser, Page

from dpcore.noise import Noise
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.messages.lines import line_of
from stream.messages.message import Message
from stream.messages.topics import create_topics
from stream.protocol.publishing import make_producer
from stream.serve.api import make_app
from stream.serve.reading.files import FileSource
from tests.stream.serve.browser import box_of, opened
from tests.support.builders import bus_config, random_rows
from tests.support.releasing import build_messages, planned


def released(tmp_path: Path, rows: int = 200, **overrides: Any) -> list[Message]:
    """A window of six cells with its marker last."""
    config = bus_config(tmp_path, **overrides)
    plan, contributions = planned(config, random_rows(1, rows))
    return build_messages(plan, contributions, Noise(), None)[0]


def append(releases: Path, *windows: Iterable[Message]) -> None:
    """Add the messages of the windows to a file of releases, which is made where there is none."""
    with releases.open("a", encoding="utf-8") as file:
        file.writelines(line_of(message) for window in windows for message in window)


async def publish(bootstrap: str, messages: Iterable[Message]) -> None:
    """Send them in order."""
    producer = make_producer(KafkaConfig(bootstrap=bootstrap))
    await producer.start()
    try:
        for message in messages:
            await producer.send_and_wait(
                message.topic,
                message.value,
                key=message.key,
                headers=list(message.headers),
                timestamp_ms=message.timestamp_ms,
            )
    finally:
        await producer.stop()


async def ready(client: TestClient) -> None:
    """Wait until everything present at the start was read."""
    for _ in range(600):
        if (await client.get("/readyz")).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the service never caught up")


async def json_of(client: TestClient, path: str, status: int = 200) -> Any:
    """What the answer to this path says, which has the status."""
    async with client.get(path) as answer:
        body = await answer.json(content_type=None)
        assert answer.status == status, (path, body)
        return body


def unreading(port: int | None, path: str) -> socket.socket:
    """A client that asks and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return client


def origin_of(client: TestClient) -> str:
    """Address of the service without a path."""
    return str(client.make_url("/")).rstrip("/")


@asynccontextmanager
async def serving_file(config: Config, releases: Path, basemap: Path | None = None) -> AsyncIterator[TestClient]:
    """The service over a file or folder of releases, caught up."""
    async with TestClient(TestServer(make_app(config, basemap, FileSource(releases)))) as client:
        await ready(client)
        yield client


@asynccontextmanager
async def served(config: Config, messages: Iterable[Message], basemap: Path | None = None) -> AsyncIterator[TestClient]:
    """The service over a file with these messages, so that no other test's feeds are in it."""
    with tempfile.TemporaryDirectory() as folder:
        releases = Path(folder) / "releases.ndjson"
        append(releases, messages)
        async with serving_file(config, releases, basemap) as client:
            yield client


@asynccontextmanager
async def serving(config: Config, messages: Iterable[Message] = ()) -> AsyncIterator[TestClient]:
    """The service, caught up, after ``messages`` were published."""
    await create_topics(config)
    await publish(config.kafka.bootstrap, messages)
    async with TestClient(TestServer(make_app(config))) as client:
        await ready(client)
        yield client


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


async def fits_every_screen(page: Page) -> None:
    """Nothing of header, footer and cards reaches out of a phone, a laptop or a wall, or is cut there.

    The map is hidden meanwhile: where no graphics processor is, the pixels of a wall cost seconds.
    """
    size = page.viewport_size
    assert size is not None
    await page.evaluate("document.getElementById('map').hidden = true")
    for width, height in ((390, 844), (1280, 800), (1920, 1080), (3840, 2160)):
        await page.set_viewport_size({"width": width, "height": height})
        for reaching in (OUTSIDE, CUT):
            assert await page.evaluate(reaching) == [], width
    await page.set_viewport_size(size)
    await page.evaluate("document.getElementById('map').hidden = false")


CARDS = """() => ['controls', 'details'].map((id) => document.getElementById(id))
  .filter((card) => card.checkVisibility())
  .map((card) => card.getBoundingClientRect())
  .map(({ left, top, right, bottom }) => [left, top, right, bottom])"""


async def in_sight(page: Page, pixels: Iterable[tuple[float, float]]) -> list[bool]:
    """Of each whether it is on the map and under no card."""
    frame = await box_of(page.locator("#map"))
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
    """The dashboard over these messages."""
    async with served(config, messages) as client, opened(browser, origin_of(client), place, **options) as page:
        yield page, client


@asynccontextmanager
async def followed(browser: Browser, config: Config, messages: list[Message], place: str = "") -> AsyncIterator[Page]:
    """The dashboard over the topics of a broker."""
    async with serving(config, messages) as client, opened(browser, origin_of(client), place) as page:
        yield page
