"""Measures how long the dashboard takes to show a new window of 10 000 hexagons and 20 000 pieces of lines that carry
their colours, in Chromium with software rendering.

Windows of generated cells go through a real broker and the real service to one open page. ``update`` is the time from
the event of a new window until the map is painted; ``fetch`` the part of it until the values have arrived; ``change``
the time for other colours of the same window; ``longest_task`` the longest time in which the page did not react to
input; ``first`` the time from opening the page, with nothing in its cache, until its first map is painted.
``first_processor`` and ``update_processor``: the processor time of Chromium meanwhile, which says more where other work
shares the machine. ``frames_per_second``: how often the page was drawn while a pointer dragged the map; ``frame_page``
and ``frame_graphics``: the processor time of such a frame in the process of the page and in that of graphics. With a
graphics processor, the first remains.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h3
import numpy as np
from aiohttp.test_utils import TestClient, TestServer
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from bench.configuration import bench_config
from bench.progress import shown
from bench.publishing import deliver
from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.local.kafka import KafkaServer
from stream.local.server import LocalServerError
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message, digest, window_message
from stream.messages.topics import create_topics
from stream.protocol.publishing import make_producer
from stream.serve.api import make_app
from stream.windows import Window, utc_text

EARLIER = 4
"""Windows that exist before the page is opened. With fewer, there is no usual speed for the colours."""
RESOLUTION = 8
START = 1_780_000_000 // 3600 * 3600
WEEK = 7 * 86_400
"""Seconds. Windows are a week apart, because usual is of the same hour and weekday."""
ARGUMENTS = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
)
NO_CHROMIUM = "no chromium on PATH; Debian: apt-get install chromium-headless-shell"
_LONG_TASKS = """() => {
  window.longest = 0;
  new PerformanceObserver((list) => list.getEntries().forEach((task) => (window.longest = Math.max(window.longest, task.duration))))
    .observe({ entryTypes: ['longtask'] });
}"""  # noqa: E501
_COUNT_FRAMES = """() => {
  window.frames_drawn = 0;
  window.counting_since = performance.now();
  const count = () => { window.frames_drawn += 1; window.next_frame = requestAnimationFrame(count); };
  window.next_frame = requestAnimationFrame(count);
}"""
_FRAMES = """() => {
  cancelAnimationFrame(window.next_frame);
  return [window.frames_drawn, window.frames_drawn / (performance.now() - window.counting_since) * 1000];
}"""
_FIRST = (
    "() => { const [first] = performance.getEntriesByName('hexveil:update'); return first.startTime + first.duration; }"
)


@dataclass(frozen=True)
class Sizes:
    """``lines``: streets across all hexagons, which leave one every 0.8 km. ``drags``: steps of 16 ms in which the map
    is dragged."""

    hexagons: int
    lines: int
    repeats: int
    drags: int


FULL = Sizes(hexagons=10_000, lines=180, repeats=9, drags=180)
QUICK = Sizes(hexagons=500, lines=10, repeats=1, drags=20)


def streets(count: int) -> dict[str, Any]:
    """A file of places with as many lines of some 90 km, half of them from west to east and half from south to
    north."""
    at = np.linspace(-0.42, 0.42, max(count // 2, 1)).tolist()
    lines = [[(-97.74 - 0.48, 30.27 + y), (-97.74 + 0.48, 30.27 + y)] for y in at]
    lines += [[(-97.74 + x, 30.27 - 0.42), (-97.74 + x, 30.27 + 0.42)] for x in at]
    return {"resolution": RESOLUTION, "cells": [], "lines": [{"route": "1", "lines": lines}]}


def config_of(bootstrap: str, folder: Path, lines: int) -> Config:
    """The configuration of a feed of means over a large area."""
    (folder / "places.json").write_text(json.dumps(streets(lines)), encoding="utf-8")
    return bench_config(
        feed={"domain": {"south": 29.5, "west": -98.7, "north": 31.0, "east": -96.8}},
        privacy={"user_key_file": folder / "user.key"},
        hexagons={"resolution": RESOLUTION},
        speed={"statistics": ["mean"]},
        kafka={"bootstrap": bootstrap},
        public={"port": 0, "places": str(folder / "places.json")},
    )


def window_of(week: int, hexagons: int) -> list[Message]:
    """A released window of ``hexagons`` cells with intervals of all widths."""
    rng = np.random.default_rng(week)
    cells = sorted(h3.grid_disk(h3.latlng_to_cell(30.27, -97.74, RESOLUTION), 58))[:hexagons]
    window = Window(START + week * WEEK, START + week * WEEK + 3600)
    bounds = {"start": utc_text(window.start), "end": utc_text(window.end)}
    speeds, scales = rng.uniform(8, 55, len(cells)).round(2).tolist(), rng.gamma(2, 1.0, len(cells)).round(4).tolist()
    common = {"resolution": RESOLUTION, "relation": "values", "epsilon": 2.0}
    messages = []
    for cell, speed, scale in zip(cells, speeds, scales, strict=True):
        low, high = max(speed - 3 * scale, 0.0), min(speed + 3 * scale, 65.0)
        mean = {"value": speed, "raw": speed, "clamped": False, "scale": scale, "interval": [low, high], "unit": "km/h"}
        body = {
            "feed": "bench",
            "window": bounds,
            "cell": cell,
            **common,
            "status": "published",
            "events": 90,
            "users": 20,
        }
        messages.append(window_message(HEXAGON_SPEED, "bench", window, cell, cell, body | {"mean": mean}))
    day = window.start // 86_400 * 86_400
    marker = {
        "feed": "bench",
        "window": bounds,
        **common,
        "budget": 48.0,
        "period": {"start": utc_text(day), "end": utc_text(day + 86_400), "timezone": "UTC"},
        "clipping": {"lower": 0.0, "upper": 65.0, "unit": "km/h"},
        "statistics": ["mean"],
        "messages": len(messages),
        "digest": digest(message.value for message in messages),
        "generation": "11111111-1111-4111-8111-111111111111",
        "sequence": week + 1,
    }
    return [*messages, window_message(WINDOW, "bench", window, "close", "bench", marker)]


async def publish(bootstrap: str, messages: list[Message]) -> None:
    producer = make_producer(KafkaConfig(bootstrap=bootstrap))
    await producer.start()
    try:
        await deliver(producer, messages)
    finally:
        await producer.stop()


Processors = dict[tuple[str, int], float]
"""Milliseconds of processor time of each of Chromium's processes, by its kind and number."""


async def processors(session: CDPSession) -> Processors:
    """What the processes that are there have taken so far."""
    answer = await session.send("SystemInfo.getProcessInfo")
    return {(process["type"], process["id"]): 1000 * process["cpuTime"] for process in answer["processInfo"]}


def spent(before: Processors, after: Processors, kind: str | None = None) -> float:
    """Processor time between the two, of all processes or of one kind; processes that ended meanwhile do not count."""
    took = {process: milliseconds - before.get(process, 0.0) for process, milliseconds in after.items()}
    return sum(milliseconds for (of, _), milliseconds in took.items() if kind in (None, of))


async def measure(page: Page, session: CDPSession, bootstrap: str, sizes: Sizes) -> dict[str, list[float]]:
    """Milliseconds of each kind, one per repeat."""
    kinds = ("update", "update_processor", "fetch", "change", "longest_task")
    milliseconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for week in shown(range(EARLIER, EARLIER + sizes.repeats), "dashboard"):
        await page.evaluate("() => { performance.clearMeasures(); window.longest = 0; }")
        before = await processors(session)
        await publish(bootstrap, window_of(week, sizes.hexagons))
        await page.wait_for_selector(f'html[data-window="{utc_text(START + week * WEEK)}"]', timeout=120_000)
        milliseconds["update_processor"].append(spent(before, await processors(session)))
        for choice in ("mph", "km/h"):  # classes are round in the unit, so colours change
            painted = await page.evaluate("document.documentElement.dataset.painted")
            await page.locator(f"input[value='{choice}']").check(force=True)
            await page.wait_for_function("before => document.documentElement.dataset.painted !== before", arg=painted)
        await page.wait_for_timeout(200)
        for kind in ("update", "fetch", "change"):
            milliseconds[kind].append(
                await page.evaluate("kind => performance.getEntriesByName(`hexveil:${kind}`)[0].duration", kind)
            )
        milliseconds["longest_task"].append(await page.evaluate("window.longest"))
    return milliseconds


async def open_page(browser: Browser, address: str, newest: str) -> tuple[Page, float]:
    """The page with the newest window painted, and the milliseconds that it took."""
    page = await browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    await page.goto(address)
    await page.wait_for_selector(f'html[data-window="{newest}"]', timeout=120_000)
    return page, await page.evaluate(_FIRST)


async def open_pages(
    browser: Browser, session: CDPSession, address: str, repeats: int
) -> tuple[Page, dict[str, list[float]]]:
    """Open the page that often; the last one, and milliseconds of each kind, one per repeat."""
    newest = utc_text(START + (EARLIER - 1) * WEEK)
    milliseconds: dict[str, list[float]] = {"first": [], "first_processor": []}
    pages: list[Page] = []
    for _ in range(repeats):
        for last in pages[-1:]:
            await last.close()
        before = await processors(session)
        page, first = await open_page(browser, address, newest)
        milliseconds["first"].append(first)
        milliseconds["first_processor"].append(spent(before, await processors(session)))
        pages.append(page)
    return pages[-1], milliseconds


async def pan(page: Page, session: CDPSession, drags: int) -> dict[str, float]:
    """Frames per second, and milliseconds of processor time of each, while the map is dragged in so many steps."""
    await page.mouse.move(640, 400)
    before = await processors(session)
    await page.mouse.down()
    await page.evaluate(_COUNT_FRAMES)
    for step in range(drags):
        await page.mouse.move(640 + 200 * math.sin(step / 20), 400 + 120 * math.sin(step / 13))
        await page.wait_for_timeout(16)
    await page.wait_for_function("window.frames_drawn > 0")
    count, per_second = await page.evaluate(_FRAMES)
    after = await processors(session)
    await page.mouse.up()
    of_frame = {name: spent(before, after, kind) / count for name, kind in (("page", "renderer"), ("graphics", "GPU"))}
    return {
        "frames_per_second": round(per_second, 1),
        "frame_page_ms": round(of_frame["page"], 1),
        "frame_graphics_ms": round(of_frame["graphics"], 1),
    }


def find_chromium() -> str | None:
    """The program, or None; without windows and tabs, where it is there, because that opens a page at half the cost."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


async def dashboard(sizes: Sizes) -> dict[str, Any]:
    chromium = find_chromium()
    if chromium is None:
        raise LocalServerError(NO_CHROMIUM)
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        config = config_of(kafka.bootstrap, Path(folder), sizes.lines)
        await create_topics(config)
        for week in range(EARLIER):
            await publish(kafka.bootstrap, window_of(week, sizes.hexagons))
        async with TestClient(TestServer(make_app(config))) as client, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
            session = await browser.new_browser_cdp_session()
            page, first = await open_pages(browser, session, str(client.make_url("/#hexagons=on")), sizes.repeats)
            frames = await pan(page, session, sizes.drags)
            await page.evaluate(_LONG_TASKS)
            milliseconds = first | await measure(page, session, kafka.bootstrap, sizes)
            version = browser.version
            await browser.close()
    return {
        "hexagons": sizes.hexagons,
        "lines": sizes.lines,
        "repeats": sizes.repeats,
        "chromium": version,
        **frames,
        **{
            f"{kind}_ms": {"median": round(statistics.median(times)), "best": round(min(times))}
            for kind, times in milliseconds.items()
        },
    }


def run(quick: bool) -> dict[str, Any]:
    """Median and best milliseconds of each kind."""
    return asyncio.run(dashboard(QUICK if quick else FULL))
