"""Measures how the mean mechanisms scale with samples per user and with users, and what CHOP-USER saves at equal error.

The experiments of [M] (arXiv 2401.15906) and [C] (arXiv 2405.06261) on synthetic data: one cell, heavy-tailed samples
per user, values around a level of each user's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from dpcore.contributions import Counts
from dpcore.noise import Noise
from dpcore.suppression import suppress, unsuppressed_noise
from stream.statistics.values.cell_statistics import MECHANISMS

UPPER = 6500
USERS = 40
EPSILON_MICRO = 1_000_000
SPREAD_OF_USERS, SPREAD_OF_SAMPLES = 150.0, 600.0
"""Quanta (0.01 km/h): users differ by 1.5 km/h, samples of one user by 6 km/h, around 23 km/h."""


@dataclass(frozen=True)
class Sizes:
    factors: tuple[int, ...]
    trials: int


FULL = Sizes(factors=(1, 3, 10, 30, 100), trials=40)
QUICK = Sizes(factors=(1, 10), trials=4)


def one_cell(users: int, factor: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(samples per user, values sorted by user): ``factor`` times a heavy-tailed number of samples each."""
    rng = np.random.default_rng(seed)
    samples = factor * np.clip(rng.pareto(1.5, users) * 3 + 1, 1, 40).astype(np.int64)
    level = 2300 + rng.normal(0, SPREAD_OF_USERS, users)
    values = np.repeat(level, samples) + rng.normal(0, SPREAD_OF_SAMPLES, samples.sum())
    return samples, np.clip(np.rint(values), 0, UPPER).astype(np.int64)


def errors(users: int, factor: int, trials: int) -> dict[str, float]:
    """Mean absolute error of every mechanism in km/h against the mean of all samples."""
    noise, worst = Noise(), {}
    cells = [one_cell(users, factor, seed) for seed in range(4)]
    for name, mechanism in MECHANISMS.items():
        total = 0.0
        for samples, values in cells:
            made = mechanism(UPPER)
            plan = made.plan(samples, EPSILON_MICRO)
            truth = values.mean()
            total += sum(abs(made.release(values, plan, noise).value - truth) for _ in range(trials // len(cells)))
        worst[name] = total / (trials // len(cells) * len(cells)) / 100
    return worst


def scaling(sizes: Sizes) -> dict[str, dict[int, dict[str, float]]]:
    """Errors by factor: more samples per user, and more users."""
    by_kind: dict[str, dict[int, dict[str, float]]] = {"samples": {}, "users": {}}
    for factor in shown(sizes.factors, "scaling"):
        by_kind["samples"][factor] = errors(USERS, factor, sizes.trials)
        by_kind["users"][factor] = errors(USERS * factor, 1, sizes.trials)
    return by_kind


def city(seed: int = 1, users: int = 300, cells: int = 115) -> Counts:
    """Counts of a synthetic morning: users in 1 to 40 of the cells, busy ones more often."""
    rng = np.random.default_rng(seed)
    popularity = rng.pareto(1.0, cells) + 0.05
    popularity /= popularity.sum()
    visits = [
        np.sort(rng.choice(cells, size=min(int(rng.integers(1, 41)), cells), replace=False, p=popularity))
        for _ in range(users)
    ]
    pair_user = np.repeat(np.arange(users), [len(v) for v in visits])
    pair_cell = np.concatenate(visits)
    order = np.lexsort((pair_user, pair_cell))
    used, pair_cell = np.unique(pair_cell[order], return_inverse=True)
    samples = rng.integers(1, 8, len(order))
    return Counts(used.astype(np.uint64), np.arange(users, dtype=np.uint64), pair_cell, pair_user[order], samples)


def suppression(epsilons: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)) -> list[dict[str, float]]:
    """Total loss K·ε of the busiest user, before and after CHOP-USER, at the same worst-case error per cell."""
    counts = city()
    rows = []
    for epsilon in epsilons:
        threshold = unsuppressed_noise(counts, epsilon * 1e6)
        suppressed = suppress(counts, epsilon * 1e6, threshold=threshold)
        rows.append(
            {
                "epsilon": epsilon,
                "before": suppressed.max_cells_before * epsilon,
                "after": suppressed.max_cells * epsilon,
                "threshold": threshold,
                "worst_error": suppressed.worst_error,
            }
        )
    return rows


def run(quick: bool) -> dict[str, Any]:
    """Error of the mean mechanisms by factor, and the busiest user's loss by ε."""
    return {"scaling": scaling(QUICK if quick else FULL), "suppression": suppression()}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``scaling.svg`` and ``suppression.svg``."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(10, 4), layout="constrained")
    for axes, (kind, table) in zip(sheet.subplots(1, 2, sharey=True), figures["scaling"].items(), strict=True):
        for name in MECHANISMS:
            axes.plot(list(table), [row[name] for row in table.values()], marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=f"factor on {kind}", title=f"{kind} scaling, ε = 1")
    sheet.axes[0].set_ylabel("mean absolute error, km/h")
    sheet.axes[0].legend(fontsize=8)
    sheet.savefig(folder / "scaling.svg")
    sheet = Figure(figsize=(5, 4), layout="constrained")
    axes = sheet.subplots()
    epsilon = [row["epsilon"] for row in figures["suppression"]]
    axes.plot(epsilon, [row["before"] for row in figures["suppression"]], marker="o", label="K·ε, nothing suppressed")
    axes.plot(epsilon, [row["after"] for row in figures["suppression"]], marker="o", label="K·ε after CHOP-USER")
    axes.set(xscale="log", yscale="log", xlabel="ε per cell", ylabel="loss of the busiest user")
    axes.legend()
    sheet.savefig(folder / "suppression.svg")
