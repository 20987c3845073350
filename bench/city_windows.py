"""What it costs to close the window of a big city: from its rows in Redis to its committed bytes, with a real Redis.

Each window is closed in a process of its own, which reports its processor seconds by step and the most memory that it
held until the end of each. A worker keeps its closing process for all windows, so importing scipy is a figure of its
own. Redis reports the processor seconds and the longest command of the same time: while a command runs, nothing else is
served. Its length is by the clock, so on a busy machine it includes waiting for a processor.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from redis.asyncio import Redis

from bench.closing import BOX, SLOT, hourly, window_rows
from bench.progress import shown
from dpcore.noise import Noise
from stream.config import Config
from stream.local.kafka import REPO_ROOT
from stream.local.server import RedisServer
from stream.messages.message import Message
from stream.protocol.release_protocol import ReleaseProtocol, statistics_of
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore

_BATCH = 10_000
"""Rows of one append, as the worker makes them."""


@dataclass(frozen=True)
class City:
    """``cells_per_user`` of 2 000 cells are visited by each user, with ``rows_per_pair`` rows in each on average."""

    users: int
    cells_per_user: int
    rows_per_pair: int
    cells: int = 2_000
    feed: str = "bus-fleet"
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, folder: Path) -> Config:
        """The hourly configuration with the settings of this city."""
        return hourly(self.feed, folder, **self.settings)


PERCENTILES = ["mean", "variance", "p15", "p50", "p85"]
_HISTOGRAM = {
    "histogram.mechanisms": ["auto"],
    "histogram.epsilon": 1.0,
    "histogram.domain": BOX,
    "privacy.budget": 96.0,
}
CITIES = {
    "3.6 M rows": City(10_000, 36, 10),
    "14.4 M rows": City(40_000, 36, 10),
    "10 M rows of 1 M users": City(1_000_000, 5, 2),
    "percentiles": City(10_000, 36, 10, settings={"speed.statistics": PERCENTILES}),
    "histogram": City(10_000, 36, 10, settings=_HISTOGRAM),
    "participation, share": City(10_000, 36, 10, feed="riders"),
    "participation, sample": City(
        10_000, 36, 10, feed="riders", settings={"participation.weight": "sample", "speed.clipping": "none"}
    ),
    "participation, percentiles": City(10_000, 36, 10, feed="riders", settings={"speed.statistics": PERCENTILES}),
}
QUICK = {"values": City(200, 6, 2, cells=100), "participation": City(200, 6, 2, cells=100, feed="riders")}


class _Nowhere:
    """Publishes nothing: a window is committed, not released."""

    async def publish(self, messages: Sequence[Message]) -> None:
        raise NotImplementedError

    async def confirm(self, messages: Sequence[Message]) -> None:
        raise NotImplementedError


async def store(url: str, feed: str, rows: np.ndarray) -> None:
    """Append ``rows`` in batches of one partition."""
    async with Redis.from_url(url) as redis:
        kept = RowStore(redis, feed)
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            offsets, slots = np.arange(start, start + len(part)), np.full(len(part), SLOT)
            await kept.append("bench.positions/0", start, start + len(part), part, offsets, slots)


def import_scipy() -> float:
    """CPU seconds to import what closing uses of scipy, which the first window of a process pays for all others."""
    start = time.process_time()
    for part in ("linalg", "sparse", "special"):
        importlib.import_module(f"scipy.{part}")
    return time.process_time() - start


async def commit(config: Config, url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Commit the window; CPU seconds of each step, and the most memory until its end in MB."""
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}
    last = time.process_time()

    def done(step: str) -> None:
        nonlocal last
        seconds[step], last = time.process_time() - last, time.process_time()
        peaks[step] = peak_megabytes()

    async with Redis.from_url(url) as redis:
        ledger = Ledger(redis, config.feed.name)
        await ledger.start_generation(birth=0)
        protocol = ReleaseProtocol(
            statistics_of(config), redis, RowStore.of(redis, config), ledger, _Nowhere(), Noise(), after_step=done
        )
        await protocol.commit(SLOT)
    return seconds, peaks


def peak_megabytes() -> float:
    """Most memory that this process held since it began; Linux only."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


async def _watched(url: str, close: list[str]) -> dict[str, Any]:
    """Run ``close`` and return its report, with what Redis did meanwhile."""
    async with Redis.from_url(url) as redis:
        await redis.config_set("slowlog-log-slower-than", 1_000)
        await redis.config_set("slowlog-max-len", 10_000)
        await redis.slowlog_reset()
        before = await redis.info("cpu")
        finished = await asyncio.to_thread(subprocess.run, close, stdout=subprocess.PIPE, check=True, cwd=REPO_ROOT)
        after = await redis.info("cpu")
        slowest = max(await redis.slowlog_get(10_000), key=lambda entry: entry["duration"], default=None)
    used = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    longest = (
        {}
        if slowest is None
        else {
            "redis_longest_ms": slowest["duration"] / 1000,
            "redis_longest": slowest["command"][:40].decode(errors="replace"),
        }
    )
    report: dict[str, Any] = json.loads(finished.stdout)
    return report | {"redis_seconds": used} | longest


def close_city(city: City) -> dict[str, Any]:
    """Figures of one city's window."""
    with TemporaryDirectory() as folder, RedisServer() as server:
        config = city.config(Path(folder))
        rows = window_rows(city.users, city.cells, city.cells_per_user, city.rows_per_pair, config.hexagons.resolution)
        asyncio.run(store(server.url, config.feed.name, rows))
        sizes = {"rows": len(rows), "users": city.users, "pairs": city.users * city.cells_per_user}
        del rows
        return sizes | closed(city, server.url, folder)


def closed(city: City, url: str, folder: str) -> dict[str, Any]:
    """Figures of closing the window that is stored there."""
    close = [sys.executable, "-m", "bench.city_windows", url, folder, json.dumps(asdict(city))]
    return asyncio.run(_watched(url, close))


def run(quick: bool) -> dict[str, Any]:
    """Figures of every city's window."""
    cities = QUICK if quick else CITIES
    return {"city_windows": {name: close_city(city) for name, city in shown(cities.items(), "city_windows")}}


def _close_here(url: str, folder: str, city: str) -> None:
    config, imports = City(**json.loads(city)).config(Path(folder)), import_scipy()
    seconds, peaks = asyncio.run(commit(config, url))
    memory = {"peak_mb": peak_megabytes(), "peaks_mb": peaks}
    print(json.dumps({"imports": imports, "close": sum(seconds.values())} | seconds | memory))


if __name__ == "__main__":
    _close_here(*sys.argv[1:])
