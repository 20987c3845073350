"""What an hour of a fleet costs Redis and the worker as rows and as sums (``window.state``), from its batches to its committed bytes.

The simulator's fleets, a fix a vehicle every ``interval`` seconds, in batches of 10 000 messages of one partition, as a worker that
has much to read makes them. Processor seconds of client and server; Redis's longest command is by the clock, so on a busy machine it
includes waiting for a processor. Append-only files grow without being rewritten.

Besides, the share of stored rows that plans retain on recorded days where samples are needed: what keeping only those would save.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h3.api.numpy_int as h3
import numpy as np
from redis.asyncio import Redis

from bench.cities import bus_fleet
from bench.city_windows import PERCENTILES, City, closed
from bench.closing import SLOT
from bench.defaults import path_of
from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absent, recordings
from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.evaluation.evaluate import planned_windows
from stream.local import RedisServer
from stream.offline import read_recording, split_by_slot
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, RowStore

_BATCH = 10_000
_PARTITION = "bench.positions/0"
_SETTINGS: dict[str, Any] = {"speed.clipping": "none"}


@dataclass(frozen=True)
class Sizes:
    """A fleet, and how long it drives."""

    vehicles: int
    interval: float
    minutes: int


FLEETS = {
    "1 000 vehicles, a fix a second": Sizes(1_000, 1.0, 60),
    "10 000 vehicles, a fix every ten seconds": Sizes(10_000, 10.0, 60),
}
SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "values, percentiles": ("bus-fleet", {"speed.statistics": PERCENTILES}),
    "values, joint clipping": ("bus-fleet", {"speed.clipping": "joint"}),
    "participation, share, percentiles": ("riders", {"speed.statistics": PERCENTILES, "hexagons.resolution": 7}),
    "participation, sample": ("riders", {"participation.weight": "sample", "hexagons.resolution": 7}),
}
"""Configurations that read single events, by shipped configuration and settings."""
DAYS = ("2017-03-21", "2016-11-24")
QUICK = {"50 vehicles": Sizes(50, 10.0, 5)}


def batches(fleet: Sizes, resolution: int) -> Iterator[np.ndarray]:
    """Rows in order of time, some for each step of the simulator."""
    driving = bus_fleet(fleet.vehicles, SLOT, 1, interval=fleet.interval, tick=fleet.interval)
    for _ in range(int(fleet.minutes * 60 / fleet.interval)):
        fixes = driving.step()
        rows = np.zeros(len(fixes.vehicle), dtype=ROW)
        places = zip(fixes.lat.tolist(), fixes.lng.tolist(), strict=True)
        rows["cell"] = np.fromiter((h3.latlng_to_cell(*place, resolution) for place in places), np.uint64, len(rows))
        rows["user"] = (fixes.vehicle.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        rows["time"], rows["value"] = fixes.time, np.round(fixes.speed * 3.6 / SPEED_QUANTUM_KMH)
        inside = rows["time"] < (SLOT + 3600) * 1_000_000
        yield rows[inside][np.argsort(rows["time"][inside], kind="stable")]


async def store(config: Config, url: str, rows: np.ndarray) -> dict[str, Any]:
    """Append ``rows`` in batches; what that cost."""
    async with Redis.from_url(url, socket_timeout=600) as redis:  # to read the log of all calls may take long
        await redis.config_set("slowlog-log-slower-than", 0)
        await redis.config_set("slowlog-max-len", 100_000)
        await redis.config_set("auto-aof-rewrite-percentage", 0)
        await Ledger.of(redis, config).start_generation(birth=0)
        state, before, spent = RowStore.of(redis, config), await redis.info(), 0.0
        for begin in range(0, len(rows), _BATCH):
            part = rows[begin : begin + _BATCH]
            offsets, slots = np.arange(begin, begin + len(part)), np.full(len(part), SLOT)
            started = time.process_time()
            await state.append(_PARTITION, begin, begin + len(part), part, offsets, slots)
            spent += time.process_time() - started
        after = await redis.info()
        calls = sorted(
            entry["duration"] / 1000
            for entry in await redis.slowlog_get(100_000)
            if entry["command"].startswith(b"EVAL")
        )
        stored = await redis.memory_usage(PartKeys(FeedKeys.of(config), _PARTITION).rows(SLOT), samples=0)
    server = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    written = after["aof_current_size"] - before["aof_current_size"]
    return {
        "bytes": stored,
        "bytes_an_event": stored / len(rows),
        "append_only_bytes_an_event": written / len(rows),
        "worker_ns_an_event": round(spent / len(rows) * 1e9),
        "redis_ns_an_event": round(server / len(rows) * 1e9),
        "call_ms": {"median": calls[len(calls) // 2], "99 %": calls[len(calls) * 99 // 100], "longest": calls[-1]},
    }


def measured(rows: np.ndarray, state: str) -> dict[str, Any]:
    """Figures of one hour that is kept as ``state``."""
    city = City(0, 0, 0, settings=_SETTINGS | {"window.state": state})
    with TemporaryDirectory() as folder, RedisServer() as server:
        figures = asyncio.run(store(city.config(Path(folder)), server.url, rows))
        return figures | {"closing": closed(city, server.url, folder)}


def retained_share(day: str, shipped: str, settings: dict[str, Any]) -> float:
    """The share of a recorded day's rows that its plans retain, each window with a fresh budget."""
    with TemporaryDirectory() as folder:
        config = hourly_config(shipped, **{"privacy.user_key_file": str(Path(folder) / "user.key")}, **settings)
        rows, _ = read_recording(config, recordings() / path_of(day), "capmetro")
    windows = split_by_slot(rows, config).items()
    planned = (plan for slot, own in windows for plan in planned_windows(config, {slot: own}))
    return sum(int(window.plan.retained.sum()) for window in planned) / len(rows)


def retained(days: Sequence[str]) -> dict[str, Any]:
    """:func:`retained_share` of every day and configuration."""
    if missing := absent(*map(path_of, days)):
        return {"skipped": missing}
    return {name: {day: retained_share(day, *sampled) for day in days} for name, sampled in SAMPLED.items()}


def run(quick: bool) -> dict[str, Any]:
    """Figures of every fleet, as rows and as sums, and of what plans retain."""
    fleets, figures = QUICK if quick else FLEETS, dict[str, Any]()
    for name, fleet in shown(fleets.items(), "window_state"):
        rows = np.concatenate(list(batches(fleet, 9)))
        pairs = len(np.unique(rows[["cell", "user"]]))
        sizes = {"events": len(rows), "pairs": pairs, "users": len(np.unique(rows["user"]))}
        states = {state: measured(rows, state) for state in ("rows", "sums")}
        figures[name] = sizes | {state: one | {"bytes_a_pair": one["bytes"] / pairs} for state, one in states.items()}
    return {"window_state": figures, "retained": retained(DAYS[:1] if quick else DAYS)}
