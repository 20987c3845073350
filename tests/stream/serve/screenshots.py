"""The pictures of the documents: ``python -m tests.stream.serve.screenshots RELEASES CONFIG FOLDER [BASEMAP]``.

RELEASES is what ``hexveil replay --offline`` wrote with CONFIG. The messages go through a broker of this machine to the
service, and Chromium's clock stands at five minutes after the end of the newest window.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Page

from stream.config import load_config
from stream.local import KafkaServer
from stream.messages.message import WINDOW, Message
from stream.messages.topics import create_topics
from stream.serve.api import make_app
from stream.serve.static_files import check_basemap
from tests.stream.serve.browser import LAPTOP, PHONE, chromium, opened, place_of
from tests.stream.serve.serving import publish, ready

SETTLED_MS = 2_000


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
            for name, size, colours, place in (
                ("light", LAPTOP, "light", "#colours=absolute"),
                ("dark", LAPTOP, "dark", ""),
                ("phone", PHONE, "light", "#colours=absolute"),
            ):
                async with opened(browser, origin, place, size=size, color_scheme=colours, clock=clock) as page:
                    await compose(page, name, busiest)
                    await page.screenshot(path=folder / f"dashboard-{name}.png")


async def compose(page: Page, name: str, busiest: str) -> None:
    """What each picture shows besides the map."""
    await page.wait_for_timeout(SETTLED_MS)
    if name == "light":
        await page.mouse.move(*await place_of(page, busiest))
    elif name == "dark":
        await page.mouse.click(*await place_of(page, busiest))
        await page.wait_for_selector("#details .uplot")
    await page.wait_for_timeout(SETTLED_MS)


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    asyncio.run(take(given[0], given[1], given[2], given[3] if len(given) > 3 else None))
