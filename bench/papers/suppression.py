"""Measures [C]'s figures of CHOP-USER: the busiest user's loss K·ε against ε·max|𝒢_ℓ|, and the error at a fixed loss.

Error fixed, the paper's form: at ε per cell, users are dropped from cells while no cell's predicted error passes the largest
noise term before, so K falls at the same error. Loss fixed, the service's form: at the same total ε, K is chosen for the
least worst error. Counts alone decide both, so nothing is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.papers.recorded_hour import RECORDING, day_of, recorded_hour, recorded_hours
from bench.progress import shown
from bench.recordings import absent
from bench.scaling import city
from dpcore.budget import MICRO
from dpcore.contributions import Counts
from dpcore.suppression import suppress, sweep_chop_user, unsuppressed_noise

EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Per cell where the error is fixed, and in total where the loss is."""
QUICK = (0.1, 1.0)


def heavy_hitter(cells: int = 12, users: int = 40, samples: int = 5, heavy: int = 20) -> Counts:
    """``users`` in each cell and in no other, with ``samples`` each, and one user with ``heavy`` samples in every cell."""
    pair_cell = np.repeat(np.arange(cells), users + 1)
    own = np.arange(users * cells).reshape(cells, users)
    pair_user = np.column_stack([own, np.full(cells, users * cells)]).ravel()
    counts = np.where(pair_user == users * cells, heavy, samples)
    names = np.arange(users * cells + 1, dtype=np.uint64)
    return Counts(np.arange(cells, dtype=np.uint64), names, pair_cell, pair_user, counts)


def error_fixed(counts: Counts, epsilon: float) -> dict[str, float]:
    """K and K·ε of the busiest user before and after, at ``epsilon`` per cell and no larger worst error."""
    threshold = unsuppressed_noise(counts, epsilon * MICRO, statistics=("mean",))
    after = suppress(counts, epsilon * MICRO, statistics=("mean",), threshold=threshold)
    return {
        "cells_before": after.max_cells_before,
        "cells_after": after.max_cells,
        "loss_before": round(after.max_cells_before * epsilon, 4),
        "loss_after": round(after.max_cells * epsilon, 4),
        "worst_error_before": round(threshold, 4),
        "worst_error_after": round(after.worst_error, 4),
    }


def loss_fixed(counts: Counts, epsilon: float) -> dict[str, float]:
    """K and the worst error before and after, at a total loss of ``epsilon``; errors in the unit U = 1."""
    after = sweep_chop_user(counts, round(epsilon * MICRO), statistics=("mean",))
    before = unsuppressed_noise(counts, epsilon * MICRO / after.max_cells_before, statistics=("mean",))
    return {
        "cells_before": after.max_cells_before,
        "cells_after": after.max_cells,
        "worst_error_before": round(before, 4),
        "worst_error_after": round(after.worst_error, 4),
    }


def run(quick: bool) -> dict[str, Any]:
    """Set → form → ε → figures, for the mean alone."""
    sets = {"generated city": city(), "heavy hitter": heavy_hitter()}
    without = absent(RECORDING)
    if not without:
        sets["recorded hour"] = recorded_hour().counts
        if not quick:
            sets["recorded day"] = day_of([hour.counts for hour in recorded_hours()])
    figures = {
        name: {
            "error fixed": {epsilon: error_fixed(counts, epsilon) for epsilon in (QUICK if quick else EPSILONS)},
            "loss fixed": {epsilon: loss_fixed(counts, epsilon) for epsilon in (QUICK if quick else EPSILONS)},
        }
        for name, counts in shown(sets.items(), "CHOP-USER")
    }
    return {"sets": figures} | ({"without": without} if without else {})


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-suppression.svg``: loss at a fixed error above, worst error at a fixed loss below, a column per set."""
    from matplotlib.figure import Figure

    sets = figures["sets"]
    sheet = Figure(figsize=(4.2 * len(sets), 7), layout="constrained")
    panels = sheet.subplots(2, len(sets), squeeze=False)
    for column, (name, forms) in enumerate(sets.items()):
        for row, (form, what, axis) in enumerate(
            [("error fixed", "loss", "ε per cell"), ("loss fixed", "worst_error", "ε in total")]
        ):
            axes, table = panels[row][column], forms[form]
            for when in ("before", "after"):
                values = [figure[f"{what}_{when}"] for figure in table.values()]
                axes.plot(list(map(float, table)), values, marker="o", label=f"{when} suppression")
            axes.set(xscale="log", yscale="log", title=f"{name}, {form}", xlabel=axis, ylabel=what.replace("_", " "))
    panels[0][0].legend(fontsize=8)
    sheet.savefig(folder / "papers-suppression.svg")
