"""The pictures of the documents: ``python -m tests.stream.serve.screenshots WORK [FOLDER]`` or ``make pictures``.

Of a running demo, ``dashboard-live.png``: its address instead of WORK.

WORK keeps what :mod:`tests.stream.serve.pictured_city` makes, so that a second run only takes the pictures. FOLDER:
where they are written, by default docs/images. To the page it is five minutes after the end of the newest window.
Pictures keep 256 colours, which makes them a third as large. The newest window is beside the day before it.
"""

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

from stream.serve.api import make_app
from stream.serve.reading.files import FileSource
from tests.stream.serve.browser import LAPTOP, PHONE, chromium, opened, place_of
from tests.stream.serve.pictured_city import City, city
from tests.stream.serve.serving import origin_of, ready

SETTLED_MS = 2_000


class Picture(NamedTuple):
    """One picture: its size and theme, the address after '#', and what happens before it is taken."""

    name: str
    size: dict[str, int]
    theme: Literal["light", "dark"]
    place: str
    gesture: Literal["point", "none"] = "none"
    releases: Literal["shipped", "compared"] = "compared"


DAY = "colours=day&values=raw&day={day}"
PICTURES = [
    Picture("light", LAPTOP, "light", "colours=now", "point", "shipped"),
    Picture("day", LAPTOP, "light", DAY, "point"),
    Picture("phone", PHONE, "light", "colours=now", "none", "shipped"),
    Picture("phone-difference", PHONE, "light", "colours=difference"),
    Picture("phone-day", PHONE, "light", DAY),
    Picture("phone-schedule", PHONE, "dark", "colours=scheduled&values=raw"),
]


async def take(made: City, folder: Path) -> None:
    for kind, releases in (("shipped", made.shipped), ("compared", made.compared)):
        bodies = [json.loads(line)["value"] for line in releases.read_text(encoding="utf-8").splitlines()]
        newest = max(body["window"]["end"] for body in bodies)
        clock = datetime.fromisoformat(newest) + timedelta(minutes=5)
        day = (datetime.fromisoformat(newest) - timedelta(days=1)).date().isoformat()
        last = [body for body in bodies if "cell" in body and body["window"]["end"] == newest]
        busiest = max(last, key=lambda body: body["users"])["cell"]
        app = make_app(made.config, None, FileSource(releases))
        async with TestClient(TestServer(app)) as client, chromium() as browser:
            await ready(client)
            for picture in (picture for picture in PICTURES if picture.releases == kind):
                place = "#" + picture.place.format(day=day)
                options: dict[str, Any] = {"size": picture.size, "color_scheme": picture.theme, "clock": clock}
                async with opened(browser, origin_of(client), place, **options) as page:
                    await compose(page, picture, busiest)
                    save(await page.screenshot(), folder / f"dashboard-{picture.name}.png")


async def take_live(address: str, folder: Path) -> None:
    """The picture of a demo that is running at ``address``: its newest window."""
    async with chromium() as browser, opened(browser, address.rstrip("/"), size=LAPTOP, color_scheme="light") as page:
        await page.wait_for_timeout(2 * SETTLED_MS)
        save(await page.screenshot(), folder / "dashboard-live.png")


async def compose(page: Page, picture: Picture, busiest: str) -> None:
    """What each picture shows besides the map."""
    await page.wait_for_timeout(SETTLED_MS)
    if picture.gesture == "point":
        await page.mouse.move(*await place_of(page, busiest))
    await page.wait_for_timeout(SETTLED_MS)


def save(picture: bytes, path: Path) -> None:
    """Write it as PNG with a palette."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    where, *folder = sys.argv[1:]
    pictures = Path(*folder[:1] or ["docs/images"])
    if where.startswith("http://"):
        asyncio.run(take_live(where, pictures))
    else:
        work = Path(where)
        work.mkdir(parents=True, exist_ok=True)
        asyncio.run(take(city(work), pictures))
