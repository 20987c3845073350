"""Measures [C]'s figures of CHOP-USER: the busiest user's loss K·ε against ε·max|𝒢_ℓ|, and the error at a fixed loss.

Error fixed, the paper's form: at ε per cell, users are dropped from cells while no cell's predicted error passes the
largest noise term before, so K falls at the same error. Loss fixed, the service's form: at the same total ε, K is
chosen for the least worst error. Counts alone decide both, so nothing is drawn. Errors are those of a mean alone, or of
a mean and a variance that share ε, as [C] releases them.

Over a day, with a budget for all of it: the error over events that the planner predicts for the mean, where each hour
is planned alone with its part of the budget, where grants roll over the hours of service, and where the day is planned
at once by its true counts, which no timetable foretells better.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bench.hourly import hourly_config
from bench.progress import shown
from bench.recordings import absences, absent, path_of_day
from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.contributions import Counts
from dpcore.suppression import STATISTICS, Objective, Statistic, suppress, sweep_chop_user, unsuppressed_noise
from research.papers.recorded_hour import RECORDING, day_of, recorded_hour, recorded_hours
from research.scaling import city
from stream.statistics.values.plan import PublicWindow, decide
from stream.terms import Terms

EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Per cell where the error is fixed, and in total where the loss is."""
QUICK = (0.1, 1.0)
ESTIMATED: dict[str, tuple[Statistic, ...]] = {"mean": ("mean",), "mean and variance": STATISTICS}
"""What is released of each cell; its statistics share ε."""
DRAWS = 10
"""Draws of what is random: the samples of users beside a heavy hitter, and the order of users."""

DAYS = ("2015-09-06", "2016-11-24", "2016-11-25", "2016-11-26", "2016-11-27", "2017-03-16", "2017-03-21")
BUDGETS = (12, 48)
"""ε of a vehicle and day."""


def heavy_hitter(samples: npt.NDArray[np.int64] | None = None, heavy: int = 20) -> Counts:
    """Users in one cell each, with ``samples`` (cells, users), and one user with ``heavy`` samples in every cell.

    Without ``samples``: 40 users in each of 12 cells with 5 samples each.
    """
    light = np.full((12, 40), 5) if samples is None else samples
    cells, users = light.shape
    pair_user = np.column_stack([np.arange(light.size).reshape(light.shape), np.full(cells, light.size)]).ravel()
    counts = np.column_stack([light, np.full(cells, heavy)]).ravel()
    names = np.arange(light.size + 1, dtype=np.uint64)
    return Counts(np.arange(cells, dtype=np.uint64), names, np.repeat(np.arange(cells), users + 1), pair_user, counts)


def uneven_heavy_hitter(seed: int) -> Counts:
    """A heavy hitter of 10 samples in each of 12 cells, each with 40 others of 1 to 5 samples at random."""
    return heavy_hitter(np.random.default_rng(seed).integers(1, 6, (12, 40)), heavy=10)


def in_another_order(counts: Counts, seed: int) -> Counts:
    """The same pairs, the order of users, by which ties are decided, at random."""
    users = np.random.default_rng(seed).permutation(counts.n_users)[counts.pair_user]
    by_pair = np.lexsort((users, counts.pair_cell))
    return Counts(counts.cells, counts.users, counts.pair_cell, users[by_pair], counts.samples[by_pair])


def cells_after(drawn: list[Counts], epsilons: tuple[float, ...]) -> dict[str, Any]:
    """What is estimated → ε → K after suppression at a fixed error, in ascending order over ``drawn``."""
    return {
        estimated: {
            epsilon: sorted(error_fixed(counts, epsilon, statistics)["cells_after"] for counts in drawn)
            for epsilon in epsilons
        }
        for estimated, statistics in ESTIMATED.items()
    }


def error_fixed(counts: Counts, epsilon: float, statistics: tuple[Statistic, ...]) -> dict[str, float]:
    """K and K·ε of the busiest user before and after, at ``epsilon`` per cell and no larger worst error."""
    threshold = unsuppressed_noise(counts, epsilon * MICRO, statistics=statistics)
    after = suppress(counts, epsilon * MICRO, statistics=statistics, threshold=threshold)
    return {
        "cells_before": after.max_cells_before,
        "cells_after": after.max_cells,
        "loss_before": round(after.max_cells_before * epsilon, 4),
        "loss_after": round(after.max_cells * epsilon, 4),
        "worst_error_before": round(threshold, 4),
        "worst_error_after": round(after.worst_error, 4),
    }


def loss_fixed(counts: Counts, epsilon: float, statistics: tuple[Statistic, ...]) -> dict[str, float]:
    """K and the worst error before and after, at a total loss of ``epsilon``; errors in the unit U = 1."""
    after = sweep_chop_user(counts, round(epsilon * MICRO), statistics=statistics)
    before = unsuppressed_noise(counts, epsilon * MICRO / after.max_cells_before, statistics=statistics)
    return {
        "cells_before": after.max_cells_before,
        "cells_after": after.max_cells,
        "worst_error_before": round(before, 4),
        "worst_error_after": round(after.worst_error, 4),
    }


def of_a_day(hours: Sequence[Counts], epsilon: int) -> dict[str, Any]:
    """Predicted error of the mean over all events in km/h, by allocation and by what is planned at once: each of 24
    hours or the day, retaining all or suppressed; rolling over the ``hours`` with events; and K before and after.
    """
    terms, day, micro = Terms.of(hourly_config("bus-fleet")).speed, day_of(hours), epsilon * MICRO
    speeds = {
        allocation: msgspec.structs.replace(terms, allocation=allocation, statistics=("mean",), sum_cap=0.0)
        for allocation in ("uniform", "exact-loss")
    }

    def alone(counts: Counts, allowances: IntArray, allocation: str) -> Objective:
        window = PublicWindow(counts, counts.samples, speeds[allocation], None, allowances)
        return lambda samples: decide(window, samples).error

    errors: dict[str, float] = {}
    cells = {}
    for name in speeds:
        for of, parts, grant in (("hours", hours, micro // 24), ("day", [day], micro)):
            for counts in parts:
                error = alone(counts, np.full(counts.n_users, grant), name)
                best = sweep_chop_user(counts, grant, statistics=["mean"], max_evaluations=2**62, objective=error)
                for label, samples in ((f"{name}, {of}", counts.samples), (f"{name}, {of}, suppressed", best.samples)):
                    errors[label] = errors.get(label, 0.0) + error(samples)
        cells[name] = [best.max_cells_before, best.max_cells]
    left = np.full(day.n_users, micro)
    for number, counts in enumerate(hours):
        at = np.searchsorted(day.users, counts.users)
        window = PublicWindow(counts, counts.samples, speeds["exact-loss"], None, left[at] // (len(hours) - number))
        decision = decide(window, counts.samples)
        left[at] -= decision.charges
        errors["exact-loss, rolling"] = errors.get("exact-loss, rolling", 0.0) + decision.error
    scale = terms.upper / day.samples.sum()
    return {name: round(error * scale, 2) for name, error in errors.items()} | {"cells of a vehicle": cells}


def run(quick: bool) -> dict[str, Any]:
    """``sets``: set → what is estimated → form → ε → figures; ``draws``: :func:`cells_after` of heavy hitters among
    uneven users, and of the recorded hour with its users in other orders; ``days``: day → ε → :func:`of_a_day`.
    """
    epsilons = QUICK if quick else EPSILONS
    sets = {"generated city": city(), "heavy hitter": heavy_hitter()}
    without = absences(RECORDING)
    if not without:
        sets["recorded hour"] = recorded_hour().counts
        if not quick:
            sets["recorded day"] = day_of([hour.counts for hour in recorded_hours()])
    figures = {
        name: {
            estimated: {
                "error fixed": {epsilon: error_fixed(counts, epsilon, statistics) for epsilon in epsilons},
                "loss fixed": {epsilon: loss_fixed(counts, epsilon, statistics) for epsilon in epsilons},
            }
            for estimated, statistics in ESTIMATED.items()
        }
        for name, counts in shown(sets.items(), "CHOP-USER")
    }
    drawn = {"heavy hitter": [uneven_heavy_hitter(seed) for seed in range(DRAWS)]}
    if not without:
        drawn["recorded hour"] = [in_another_order(sets["recorded hour"], seed) for seed in range(DRAWS)]
    draws = {name: cells_after(counts, epsilons) for name, counts in drawn.items()}
    days = () if quick or absent(*map(path_of_day, DAYS)) else DAYS
    over_days = {
        day: {epsilon: of_a_day([hour.counts for hour in recorded_hours(day)], epsilon) for epsilon in BUDGETS}
        for day in shown(days, "days")
    }
    return {"sets": figures, "draws": draws, "days": over_days} | without


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-suppression.svg``: loss at a fixed error above, worst error at a fixed loss below, a column per set."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 7), layout="constrained")
    panels = sheet.subplots(2, len(sets), squeeze=False)
    for column, (name, by_statistics) in enumerate(sets.items()):
        for row, (form, what, axis) in enumerate(
            [("error fixed", "loss", "ε per cell"), ("loss fixed", "worst_error", "ε in total")]
        ):
            axes = panels[row][column]
            _draw(axes, {estimated: forms[form] for estimated, forms in by_statistics.items()}, what)
            axes.set(xscale="log", yscale="log", title=f"{name}, {form}", xlabel=axis, ylabel=what.replace("_", " "))
    sheet.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    sheet.savefig(folder / "papers-suppression.svg")


def _draw(axes: Any, tables: dict[str, Any], what: str) -> None:
    """``what`` before and after suppression by ε, a style of line for each that is estimated."""
    for (estimated, table), style in zip(tables.items(), ("-", "--"), strict=True):
        for when, colour in (("before", "C0"), ("after", "C1")):
            values = [figure[f"{what}_{when}"] for figure in table.values()]
            label = f"{estimated}, {when} suppression"
            axes.plot(list(map(float, table)), values, style, color=colour, marker="o", label=label)
