"""Compares Hexveil with libraries for differential privacy: mean speed per hexagon for one hour of a simulated city.

All use relation "participation" and pure ε, the same public list of cells, the same speed bound and the same number of
cells per user. Hexveil runs as in service: windows, ledger, commit. The OpenDP program keeps a user's busiest cells,
divides the user over them as Hexveil does, and adds noise to sums and to counts. PipelineDP bounds contributions by
itself. The error is against the mean of all fixes of a cell, over cells with several users. OpenDP and PipelineDP spend
the whole ε on the mean; Hexveil also releases count and variance from it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import h3

import dpcore
from bench.hourly import FILES
from bench.progress import shown
from dpcore.noise import Noise

EPSILON, CELLS_PER_USER, UPPER_BOUND, RESOLUTION, USERS_TO_COUNT = 2.0, 8, 65.0, 6, 5
START, END = "2026-03-02T12:00:00Z", "2026-03-02T07:00"
"""An hour: its start in UTC, its end in the feed's zone."""
QUANTUM = 0.01
"""Unit of the integers that OpenDP adds noise to, in km/h."""
WHOLE_USER = 10**6
"""What one user adds to all counts together, in the integers that OpenDP adds noise to."""

Fixes = list[tuple[str, str, float]]
"""(user, cell, speed in km/h)."""


@dataclass(frozen=True)
class Sizes:
    vehicles: int
    trials: int
    samples: int


FULL = Sizes(vehicles=300, trials=20, samples=100_000)
QUICK = Sizes(vehicles=40, trials=1, samples=1_000)


def run(quick: bool) -> dict[str, Any]:
    """CPU seconds, error and version by library, or that it is not installed; nanoseconds of one discrete Laplace
    sample."""
    sizes = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="hexveil-libraries-") as folder:
        file = Path(folder) / "hour.ndjson"
        _hexveil(
            folder, "simulate", "--vehicles", str(sizes.vehicles), "--start", START, "--duration", "1h", "--pace",
            "max",
            "--clean", "--out", str(file),
        )  # fmt: skip
        fixes = read(file)
        peers: dict[str, Callable[[], dict[str, float]]] = {
            "hexveil": lambda: hexveil_means(folder, file),
            "opendp": lambda: opendp_means(fixes),
            "pipeline-dp": lambda: pipeline_dp_means(fixes),
        }
        figures = {name: measured(name, release, fixes, sizes.trials) for name, release in peers.items()}
    return {"fixes": len(fixes), "means": figures, "ns_per_sample": noise(sizes.samples)}


def read(file: Path) -> Fixes:
    """The fixes of a canonical recording."""
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(e["user"], h3.latlng_to_cell(e["lat"], e["lng"], RESOLUTION), e["speed"]) for e in events]


def measured(name: str, means: Callable[[], dict[str, float]], fixes: Fixes, trials: int) -> dict[str, Any]:
    """Least CPU seconds, of children too, and root mean squared error of ``trials`` releases."""
    try:
        installed = dpcore.__version__ if name == "hexveil" else version(name)
    except PackageNotFoundError:
        return {"skipped": "not installed"}
    truth, users = _truth(fixes)
    squares, seconds = [], []
    for _ in shown(range(trials), name):
        began = sum(os.times()[:4])
        released = means()
        seconds.append(sum(os.times()[:4]) - began)
        squares += [(released[cell] - truth[cell]) ** 2 for cell in truth if users[cell] >= USERS_TO_COUNT]
    return {
        "version": installed,
        "cpu_seconds": round(min(seconds), 2),
        "rmse_km_h": round(math.sqrt(sum(squares) / len(squares)), 2),
    }


def _truth(fixes: Fixes) -> tuple[dict[str, float], dict[str, int]]:
    speeds, users = defaultdict(list), defaultdict(set)
    for user, cell, speed in fixes:
        speeds[cell].append(speed)
        users[cell].add(user)
    means = {cell: sum(measured) / len(measured) for cell, measured in speeds.items()}
    return means, {cell: len(visitors) for cell, visitors in users.items()}


def _hexveil(folder: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "stream", *arguments, "--config", "hexveil.toml"]
    shutil.copy(FILES["riders"], Path(folder) / "hexveil.toml")
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def hexveil_means(folder: str, file: Path) -> dict[str, float]:
    """Released means of the hourly configuration of riders, with fresh budgets."""
    lines = _hexveil(
        folder, "replay", str(file), "--offline", "--from", "2026-03-02T06:00", "--until", END
    ).splitlines()
    bodies = [json.loads(line)["value"] for line in lines if '"hexveil.hexagon-speed.v1"' in line]
    return {body["cell"]: body["mean"]["value"] for body in bodies}


def opendp_means(fixes: Fixes) -> dict[str, float]:
    """Sums and counts of users' means, every user divided over their cells, by OpenDP's integer Laplace mechanism.

    One user adds 1 to all counts together and at most U to all sums together; each of the two has half of ε.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    cells = sorted({cell for _, cell, _ in fixes})
    sums, counts = _divided_over_cells(fixes)
    top = round(UPPER_BOUND / QUANTUM)
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    of_sums = dp.m.make_laplace(*space, scale=2 * top / EPSILON)
    of_counts = dp.m.make_laplace(*space, scale=2 * WHOLE_USER / EPSILON)
    noisy = zip(
        cells, of_sums([sums[cell] for cell in cells]), of_counts([counts[cell] for cell in cells]), strict=True
    )
    return {cell: min(max(total * WHOLE_USER / max(count, 1), 0), top) * QUANTUM for cell, total, count in noisy}


def _divided_over_cells(fixes: Fixes) -> tuple[Counter[str], Counter[str]]:
    """By cell: Σ share × mean of its users in quanta, and Σ share in 1/WHOLE_USER, both rounded down user by user.

    A user's share of a cell is that of their fixes there, over the :data:`CELLS_PER_USER` cells where they have most.
    """
    by_user: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for user, cell, speed in fixes:
        by_user[user][cell].append(min(max(speed, 0.0), UPPER_BOUND))
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for visited in by_user.values():
        kept = sorted(visited, key=lambda cell: -len(visited[cell]))[:CELLS_PER_USER]
        fixes_kept = sum(len(visited[cell]) for cell in kept)
        for cell in kept:
            share = len(visited[cell]) / fixes_kept
            sums[cell] += math.floor(share * sum(visited[cell]) / len(visited[cell]) / QUANTUM)
            counts[cell] += math.floor(share * WHOLE_USER)
    return sums, counts


def pipeline_dp_means(fixes: Fixes) -> dict[str, float]:
    """Means by PipelineDP's local back end, Laplace noise, public cells."""
    import pipeline_dp

    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=EPSILON, total_delta=0)
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda fix: fix[0],
        partition_extractor=lambda fix: fix[1],
        value_extractor=lambda fix: fix[2],
    )
    params = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.MEAN],
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        max_partitions_contributed=CELLS_PER_USER,
        max_contributions_per_partition=_fixes_kept(fixes),
        min_value=0.0,
        max_value=UPPER_BOUND,
    )
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    cells = sorted({cell for _, cell, _ in fixes})
    result = engine.aggregate(fixes, params, extractors, public_partitions=cells)
    accountant.compute_budgets()
    return {cell: min(max(metrics.mean, 0.0), UPPER_BOUND) for cell, metrics in result}


def _fixes_kept(fixes: Fixes) -> int:
    """The median number of fixes of a user in a cell: a bound that somebody who knows the fleet would choose."""
    visits = sorted(Counter((user, cell) for user, cell, _ in fixes).values())
    return visits[len(visits) // 2]


def noise(samples: int) -> dict[str, float | str]:
    """Nanoseconds of one exact discrete Laplace sample of scale 3.5."""
    ours = Noise()
    nanoseconds: dict[str, float | str] = {"dpcore": _ns(lambda: ours.discrete_laplace(7, 2, size=samples), samples)}
    try:
        import opendp.prelude as dp
    except ImportError:
        return nanoseconds | {"opendp": "not installed"}
    dp.enable_features("contrib")
    theirs = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), scale=3.5)
    nothing = [0] * samples
    return nanoseconds | {"opendp": _ns(lambda: theirs(nothing), samples)}


def _ns(draw: Callable[[], object], samples: int) -> float:
    least = math.inf
    for _ in range(3):
        began = time.process_time()
        draw()
        least = min(least, time.process_time() - began)
    return round(least / samples * 1e9)
