"""Speed of the mechanisms on one core: noise per sample, CHOP-USER and exact-loss allocation on 10⁶ pairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.progress import shown
from dpcore.allocation import allocate
from dpcore.contributions import Counts
from dpcore.mean import Mean
from dpcore.noise import Noise
from dpcore.suppression import suppress, unsuppressed_noise

CELLS, CELLS_PER_USER, MOST_CELLS = 300, 5.6, 46
ALLOWANCE = 2_000_000
"""A user's loss in a window, in µε."""


@dataclass(frozen=True)
class Sizes:
    samples: int
    users: int
    repeats: int


FULL = Sizes(samples=100_000, users=200_000, repeats=3)
QUICK = Sizes(samples=10_000, users=4_000, repeats=1)


def synthetic_counts(users: int, seed: int = 1) -> Counts:
    """About 5 (user, cell) pairs per user; cells differ in popularity, and few users are in many cells."""
    rng = np.random.default_rng(seed)
    visits = np.minimum(rng.geometric(1 / CELLS_PER_USER, users), MOST_CELLS)
    popularity = rng.pareto(1.5, CELLS) + 0.2
    cell = rng.choice(CELLS, size=int(visits.sum()), p=popularity / popularity.sum())
    pair = np.unique(cell.astype(np.int64) * users + np.repeat(np.arange(users), visits))
    cells, pair_cell = np.unique(pair // users, return_inverse=True)
    seen, pair_user = np.unique(pair % users, return_inverse=True)
    samples = rng.geometric(0.2, len(pair)).astype(np.int64)
    return Counts(cells.astype(np.uint64), seen.astype(np.uint64), pair_cell, pair_user, samples)


def best_of(times: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """(Least CPU seconds, last result) of ``times`` runs."""
    least, result = np.inf, None
    for _ in range(times):
        start = time.process_time()
        result = work()
        least = min(least, time.process_time() - start)
    return least, result


def run(quick: bool) -> dict[str, Any]:
    """CPU seconds and ns per sample, best of some runs, with what was computed."""
    sizes = QUICK if quick else FULL
    counts, noise, grant = synthetic_counts(sizes.users), Noise(), ALLOWANCE / MOST_CELLS
    rows, allowances = Mean(100).rows(counts, counts.samples), np.full(counts.n_users, ALLOWANCE)
    of_mean, of_both = unsuppressed_noise(counts, grant, ("mean",)), unsuppressed_noise(counts, grant)
    work: dict[str, Callable[[], Any]] = {
        "noise": lambda: noise.discrete_laplace(123_456_789, 1000, size=sizes.samples),
        "chop": lambda: suppress(counts, grant, statistics=("mean",), stop_at=17, threshold=of_mean),
        "deep": lambda: suppress(counts, grant, statistics=("mean",), threshold=of_mean),
        "both": lambda: suppress(counts, grant, threshold=of_both),
        "allocation": lambda: allocate(rows, allowances),
    }
    timed = {name: best_of(sizes.repeats, job) for name, job in shown(work.items(), "mechanisms")}
    suppression, allocation = timed["chop"][1], timed["allocation"][1]
    return {
        "noise_ns_per_sample": timed["noise"][0] / sizes.samples * 1e9,
        "pairs": len(counts.samples),
        "chop_user_seconds": timed["chop"][0],
        "chop_user_cells_before": suppression.max_cells_before,
        "chop_user_cells_after": suppression.max_cells,
        "chop_user_to_the_end_seconds": timed["deep"][0],
        "chop_user_mean_and_variance_to_the_end_seconds": timed["both"][0],
        "allocation_seconds": timed["allocation"][0],
        "allocation_gap": allocation.gap,
    }
