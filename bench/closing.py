"""What closing a window costs: CPU seconds of its pure steps as rows, users, cells and pairs grow, and how fast they
grow.

Rows in, message bytes out: everything between Redis and Kafka (arrange, plan, draw, compose), under the hourly
configurations. Each series multiplies one size and keeps the others, so its exponent is that of one size. Made-up users
are the worst case that a sender can choose; their cells are limited by ``window.max_cells_per_user``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h3
import numpy as np

from bench.hourly import hourly_config
from bench.progress import shown
from dpcore.noise import Noise
from stream.config import Config
from stream.protocol.release_protocol import statistics_of
from stream.statistics.plan import Allowance, Due
from stream.storage.row_store import ROW

SLOT = 1_490_097_600
"""2017-03-21 12:00 UTC."""
BOX = {"south": 30.1, "west": -97.9, "north": 30.5, "east": -97.5}
_SETTLED = 0.25
"""CPU seconds of a whole window below which fixed costs hide growth: exponents are fitted above it."""


@dataclass(frozen=True)
class Sizes:
    """``steps`` doublings of what grows, in windows that are ``scale`` times as large; users and cells are divided by
    ``part``."""

    steps: int
    scale: int
    part: int


FULL = Sizes(steps=5, scale=8, part=1)
QUICK = Sizes(steps=2, scale=1, part=10)


@cache
def hexagons(number: int, resolution: int) -> np.ndarray:
    """Ids of ``number`` neighbouring hexagons of one resolution."""
    middle = h3.latlng_to_cell(30.3, -97.7, resolution)
    rings = next(k for k in range(10_000) if 3 * k * (k + 1) + 1 >= number)
    return np.array([h3.str_to_int(cell) for cell in h3.grid_disk(middle, rings)], dtype=np.uint64)[:number]


def window_rows(users: int, cells: int, cells_per_user: int, rows_per_pair: int, resolution: int) -> np.ndarray:
    """Rows of ``users`` in ``cells_per_user`` of ``cells`` each, ``rows_per_pair`` in each of them on average."""
    rng = np.random.default_rng(1)
    offset = rng.integers(0, cells, users)
    cell = (offset[:, None] + np.arange(cells_per_user) * max(cells // cells_per_user, 1)) % cells
    samples = rng.integers(1, 2 * rows_per_pair, cell.size)
    rows = np.zeros(int(samples.sum()), dtype=ROW)
    rows["cell"] = hexagons(cells, resolution)[np.repeat(cell.ravel(), samples)]
    user = np.repeat(np.repeat(np.arange(users), cells_per_user), samples)
    rows["user"] = 1 + user.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    within = np.arange(len(rows)) - np.searchsorted(user, user)
    own = np.bincount(user, minlength=users)[user]
    rows["time"] = SLOT * 1_000_000 + within * 3_600_000_000 // own
    rows["value"] = rng.integers(0, 6500, len(rows))
    rows["lat"] = ((BOX["south"] + rng.random(len(rows)) * 0.4) * 1e7).astype(np.int64)
    rows["lng"] = ((BOX["west"] + rng.random(len(rows)) * 0.4) * 1e7).astype(np.int64)
    return rows[rng.permutation(len(rows))]


def hourly(name: str, folder: Path, **settings: Any) -> Config:
    """An hourly configuration with hexagons small enough for thousands of them."""
    given: dict[str, Any] = {
        "privacy.user_key_file": str(folder / "user.key"),
        "hexagons.resolution": 9 if name == "bus-fleet" else 7,
        "speed.post_processing": ["kalman"] if name == "bus-fleet" else [],
    }
    return hourly_config(name, **(given | settings))


def close(config: Config, rows: np.ndarray) -> dict[str, Any]:
    """CPU seconds of every pure step of one window, and its sizes."""
    statistics, window = statistics_of(config), config.slotting.window(SLOT)
    due = Due(statistics.terms, window, "benchmark")
    seconds: dict[str, float] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        seconds[step] = time.process_time() - start
        return result

    contributions = timed("arrange", lambda: statistics.arrange(rows, window))
    left = np.full(contributions.counts.n_users, config.privacy.ledger_budget, dtype=np.int64)
    allowance = Allowance(left, config.privacy.ledger_budget)
    plan = timed("plan", lambda: statistics.plan(contributions, due, allowance))
    drawn = timed("draw", lambda: statistics.draw(plan, contributions, Noise()))
    timed("compose", lambda: statistics.compose(plan, drawn, b"", 1))
    counts = contributions.counts
    sizes = {"rows": len(rows), "users": counts.n_users, "cells": counts.n_cells, "pairs": len(counts.samples)}
    return (
        sizes
        | {"cut_short": [] if plan.values is None else list(plan.values.cut_short), "close": sum(seconds.values())}
        | seconds
    )


def closed_twice(config: Config, rows: np.ndarray) -> dict[str, Any]:
    """As :func:`close`, the quicker of two times: others on the machine only add to it."""
    return min(close(config, rows), close(config, rows), key=lambda figures: figures["close"])


def exponent(windows: list[dict[str, Any]], size: str) -> float | None:
    """Slope of log CPU seconds over log ``size``, where fixed costs no longer hide it.

    Windows in which other steps were cut short are fitted apart, and the steepest slope counts; None without two alike.
    """
    slopes = []
    for cut_short in {tuple(window["cut_short"]) for window in windows}:
        alike = [w for w in windows if tuple(w["cut_short"]) == cut_short and w["close"] >= _SETTLED]
        if len({window[size] for window in alike}) > 1:
            logs = np.log([[window[size], window["close"]] for window in alike])
            slopes.append(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]))
    return max(slopes, default=None)


def series_of(sizes: Sizes, folder: Path) -> dict[str, tuple[str, list[tuple[Config, dict[str, int]]]]]:
    """For each series the size that grows, and the configuration and shape of each of its windows."""
    values, riders = hourly("bus-fleet", folder), hourly("riders", folder)
    euler: dict[str, Any] = {
        "histogram.mechanisms": ["euler"],
        "histogram.epsilon": 1.0,
        "histogram.euler": {"rows": 8, "columns": 8},
        "histogram.domain": BOX,
        "privacy.budget": 96.0,
    }
    grown, scale = [2**k for k in range(sizes.steps)], sizes.scale

    def shape(users: int, cells: int, cells_per_user: int, rows_per_pair: int) -> dict[str, int]:
        users, cells = users // sizes.part, max(cells // sizes.part, cells_per_user)
        return {"users": users, "cells": cells, "cells_per_user": cells_per_user, "rows_per_pair": rows_per_pair}

    made_up = [125 * k for k in grown] if sizes is FULL else [20, 40]
    return {
        "rows": ("rows", [(values, shape(400, 300, 10, 8 * scale * k)) for k in grown]),
        "users": ("users", [(values, shape(500 * scale * k, 500, 5, 2)) for k in grown]),
        "cells": ("cells", [(values, shape(40 * scale * k, 100 * scale * k, 5, 2)) for k in grown]),
        "pairs": ("pairs", [(values, shape(2_000, 500, 4 * k, 2)) for k in grown]),
        "made_up_users": ("pairs", [(values, shape(10 * sizes.part, cells, cells, 1)) for cells in made_up]),
        "many_users": ("users", [(values, shape(15_625 * scale * scale, 250 * scale, 5, 2))]),
        "participation": ("rows", [(riders, shape(2_500 * scale * k, 200, 5, 4)) for k in grown]),
        "euler": ("rows", [(hourly("bus-fleet", folder, **euler), shape(50, 50, 5, 8 * scale * k)) for k in grown]),
    }


def run(quick: bool) -> dict[str, Any]:
    """Every window of every series with its sizes and CPU seconds, and the exponent of each series."""
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        close(hourly("bus-fleet", Path(folder)), window_rows(20, 20, 5, 2, 9))  # imports and first calls count nowhere
        series = series_of(QUICK if quick else FULL, Path(folder))
        for name, (size, windows) in shown(series.items(), "closing"):
            closed = [
                closed_twice(config, window_rows(**shape, resolution=config.hexagons.resolution))
                for config, shape in windows
            ]
            figures[name] = {"grows": size, "exponent": exponent(closed, size), "windows": closed}
    return {"closing": figures}
