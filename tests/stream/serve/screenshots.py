"""The pictures of the documents: ``python -m tests.stream.serve.screenshots RELEASES CONFIG FOLDER [BASEMAP]``.

RELEASES is what ``hexveil replay --offline`` wrote with CONFIG. The messages go through a broker of this machine to the
service, and Chromium's clock stands at five minutes after the end of the newest window. Pictures keep 256 colours, which
makes them a third as large. The newest window is beside the day before it.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aiohttp.test_utils import TestClient, TestServer
from PIL import Image
from playwright.async_api import Page

from stream.config import load_config
from stream.local import KafkaServer
from stream.messages.message import WINDOW, Message
from stream.messages.topics import create_topics
from stream.serve.api import make_app
from stream.serve.static_files import check_basemap
from tests.stream.serve.browser import LAPTOP, PHONE, WALL, chromium, opened, place_of
from tests.stream.serve.serving import publish, ready

SETTLED_MS = 2_000


class Picture(NamedTuple):
    """One picture: its size and theme, the address after '#', and what happens before it is taken."""

    name: str
    size: dict[str, int]
    theme: Literal["light", "dark"]
    place: str
    gesture: Literal["point", "select", "none"] = "none"


PICTURES = [
    Picture("light", LAPTOP, "light", "colours=absolute", "point"),
    Picture("dark", LAPTOP, "dark", "colours=usual&values=raw", "select"),
    Picture("day", LAPTOP, "light", "colours=day&values=raw&day={day}", "point"),
    Picture("phone", PHONE, "light", "colours=absolute"),
    Picture("phone-usual", PHONE, "dark", "colours=usual&values=raw"),
    Picture("phone-day", PHONE, "light", "colours=day&values=raw&day={day}"),
    Picture("wall", WALL, "dark", "colours=day&values=raw&day={day}&large=on"),
]


def messages_of(path: Path) -> list[Message]:
    """Lines of an offline replay, each value as the bytes that were written."""
    messages = []
    for line in path.read_text().splitlines():
        body = json.loads(line)
        value = line[line.index(',"value":') + len(',"value":') : -1].encode()
        headers = tuple((name, text.encode()) for name, text in body["headers"].items())
        moment = datetime.fromisoformat(body["headers"]["ce_time"])
        messages.append(Message(body["topic"], body["key"].encode(), value, headers, int(moment.timestamp() * 1000)))
    return messages


async def take(releases: Path, config_file: Path, folder: Path, basemap: Path | None) -> None:
    messages = messages_of(releases)
    newest = max(json.loads(m.value)["window"]["end"] for m in messages if m.topic == WINDOW)
    clock = datetime.fromisoformat(newest) + timedelta(minutes=5)
    busiest = max(
        (json.loads(m.value) for m in messages if newest in m.value.decode() and m.topic != WINDOW),
        key=lambda body: body["users"],
    )["cell"]
    with KafkaServer() as kafka:
        config = load_config(config_file, **{"kafka.bootstrap": kafka.bootstrap})
        await create_topics(config)
        await publish(kafka.bootstrap, messages)
        app = make_app(config, None if basemap is None else check_basemap(basemap))
        async with TestClient(TestServer(app)) as client, chromium() as browser:
            await ready(client)
            origin = str(client.make_url("/")).rstrip("/")
            day = (datetime.fromisoformat(newest) - timedelta(days=1)).date().isoformat()
            for picture in PICTURES:
                options: dict[str, Any] = {"size": picture.size, "color_scheme": picture.theme, "clock": clock}
                async with opened(browser, origin, "#" + picture.place.format(day=day), **options) as page:
                    await compose(page, picture, busiest)
                    save(await page.screenshot(), folder / f"dashboard-{picture.name}.png")


async def compose(page: Page, picture: Picture, busiest: str) -> None:
    """What each picture shows besides the map."""
    await page.wait_for_timeout(SETTLED_MS)
    if picture.gesture == "point":
        await page.mouse.move(*await place_of(page, busiest))
    elif picture.gesture == "select":
        await page.mouse.click(*await place_of(page, busiest))
        await page.wait_for_selector("#details .uplot")
    await page.wait_for_timeout(SETTLED_MS)


def save(picture: bytes, path: Path) -> None:
    """Write it as PNG with a palette."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    asyncio.run(take(given[0], given[1], given[2], given[3] if len(given) > 3 else None))
