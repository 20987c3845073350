"""Measures [M]'s comparison of mean mechanisms, as samples per user and as users grow, by two recipes of one cell.

*Levels*: users differ in their level, and samples scatter around it (the recipe of ``research.scaling``).
*Independent*, the recipe of [M] and the talk: the numbers m of a recorded cell times λ (sample scaling), or each of its
users λ times (user scaling), with independent normal values of the cell's own mean and deviation, clipped to [0, U].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from bench.recordings import absences, absent
from dpcore.budget import to_micro
from dpcore.noise import Noise
from research.papers.recorded_hour import RECORDING, recorded_hour, samples_of
from research.scaling import UPPER, one_cell
from stream.statistics.values.cell_statistics import MECHANISMS

Cell = tuple[np.ndarray, np.ndarray]
"""(Samples per user (L,), their values (N,) in quanta, sorted by user)."""
QUANTILES = (1.0, 0.75, 0.5)
"""Recorded cells: the busiest, and those at the upper quartile and the median of events, among cells of 10 users or
more, if any."""


@dataclass(frozen=True)
class Sizes:
    factors: tuple[int, ...]
    epsilons: tuple[str, ...]
    trials: int
    values: int
    """Draws of a cell's values; trials are divided among them."""


FULL = Sizes(factors=(1, 4, 16, 64), epsilons=("0.1", "0.5", "1.0"), trials=60, values=2)
QUICK = Sizes(factors=(1, 10), epsilons=("1.0",), trials=4, values=2)


def levels(kind: str, factor: int, seed: int) -> Cell:
    """A cell of 40 users, or of ``factor`` times as many, with levels of their own."""
    return one_cell(40, factor, seed) if kind == "samples" else one_cell(40 * factor, 1, seed)


def independent(samples: np.ndarray, values: np.ndarray) -> Callable[[str, int, int], Cell]:
    """The talk's recipe on the numbers ``samples`` of a recorded cell; ``values`` give mean and deviation."""

    def cell(kind: str, factor: int, seed: int) -> Cell:
        scaled = samples * factor if kind == "samples" else np.tile(samples, factor)
        drawn = np.random.default_rng(seed).normal(values.mean(), values.std(), int(scaled.sum()))
        return scaled, np.clip(np.rint(drawn), 0, UPPER).astype(np.int64)

    return cell


def recipes() -> dict[str, Callable[[str, int, int], Cell]]:
    """What makes a cell of (kind, factor, seed), by name."""
    made: dict[str, Callable[[str, int, int], Cell]] = {"levels": levels}
    if absent(RECORDING):
        return made
    hour = recorded_hour()
    users = np.bincount(hour.counts.pair_cell, minlength=hour.counts.n_cells)
    events = hour.counts.by_cell(hour.counts.samples)
    crowded = np.flatnonzero(users >= min(10, users.max()))
    ordered = crowded[np.argsort(events[crowded], kind="stable")]
    for quantile in QUANTILES:
        cell = int(ordered[round(quantile * (len(ordered) - 1))])
        made[f"independent, {users[cell]} users, {events[cell]} samples"] = independent(*samples_of(hour, cell))
    return made


def errors(
    make: Callable[[str, int, int], Cell], kind: str, factor: int, epsilon: str, sizes: Sizes
) -> dict[str, float]:
    """Mean absolute error of every mechanism in km/h against the mean of all samples."""
    micro = to_micro(epsilon, round_up=False)
    cells = [make(kind, factor, seed) for seed in range(sizes.values)]
    by_mechanism = {}
    for name, mechanism in MECHANISMS.items():
        made = mechanism(UPPER)
        planned, plan = cells[0][0], made.plan(cells[0][0], micro)
        total, trials = 0.0, 0
        for samples, values in cells:
            if not np.array_equal(samples, planned):
                planned, plan = samples, made.plan(samples, micro)
            truth = values.mean()
            for _ in range(sizes.trials // sizes.values):
                total += abs(made.release(values, plan, Noise()).value - truth)
                trials += 1
        by_mechanism[name] = round(total / trials / 100, 4)
    return by_mechanism


def run(quick: bool) -> dict[str, Any]:
    """``errors``: recipe → kind of scaling → ε → λ → mechanism → km/h."""
    sizes = QUICK if quick else FULL
    figures: dict[str, Any] = {}
    for recipe, make in recipes().items():
        for kind in ("samples", "users"):
            for epsilon in sizes.epsilons:
                by_factor = {
                    factor: errors(make, kind, factor, epsilon, sizes)
                    for factor in shown(sizes.factors, f"{recipe}, {kind}, ε = {epsilon}")
                }
                figures.setdefault(recipe, {}).setdefault(kind, {})[epsilon] = by_factor
    return {"errors": figures} | absences(RECORDING)


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-means.svg``: error against λ; rows are kinds of scaling, columns recipes, at the largest ε."""
    from matplotlib.figure import Figure

    by_recipe = figures["errors"]
    sheet = Figure(figsize=(4.2 * len(by_recipe), 7), layout="constrained")
    panels = sheet.subplots(2, len(by_recipe), squeeze=False)
    for column, (recipe, by_kind) in enumerate(by_recipe.items()):
        for row, (kind, by_epsilon) in enumerate(by_kind.items()):
            epsilon = max(by_epsilon, key=float)
            axes, table = panels[row][column], by_epsilon[epsilon]
            for name in MECHANISMS:
                axes.plot(list(map(float, table)), [cells[name] for cells in table.values()], marker="o", label=name)
            axes.set(xscale="log", yscale="log", title=f"{recipe}\n{kind} scaling, ε = {epsilon}", xlabel="λ")
    panels[0][0].set_ylabel("mean absolute error, km/h")
    panels[0][0].legend(fontsize=7)
    sheet.savefig(folder / "papers-means.svg")
