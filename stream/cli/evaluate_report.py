"""Prints and draws what an evaluation found. Not private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stream.cli.options import show, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from stream.evaluation.live import LiveScore
    from stream.evaluation.scores import HistogramScore, Score


def print_histogram_scores(scores: list[HistogramScore]) -> None:
    """Print one row per mechanism, family of ranges and epsilon."""
    table = table_of(
        scores,
        {"mechanism": lambda score: score.mechanism, "ranges": lambda score: score.ranges},
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "counted": lambda score: f"{score.counted:.0f}",
            "MAE": lambda score: f"{score.mae:.1f}",
            "relative": lambda score: f"{score.relative:.1%}",
            "its median": lambda score: f"{score.relative_median:.1%}",
            "95 % width": lambda score: _number(score.width, ".0f"),
            "covers": lambda score: _number(score.coverage, ".1%", ""),
            "least class": lambda score: _number(min(score.covered.values(), default=None), ".1%", ""),
            "seconds": lambda score: f"{score.seconds:.1f}",
        },
        "Error of range counts against the truth (NOT PRIVATE)",
    )
    show(table, width=140)


def print_scores(scores: list[Score]) -> None:
    """Errors of every estimator, then charges and wall time of every run, then the worst cells."""
    of_runs: dict[tuple[str, float], Score] = {}
    for score in scores:
        of_runs.setdefault((score.mechanism, score.epsilon), score)
    errors = table_of(
        scores,
        {
            "mechanism": lambda score: score.mechanism,
            "statistic": lambda score: score.statistic,
            "estimator": lambda score: score.estimator,
        },
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "MAE": lambda score: _number(score.mae, _decimals(score)),
            "RMSE": lambda score: _number(score.rmse, _decimals(score)),
            "bias": lambda score: _number(score.bias, f"+{_decimals(score)}"),
            "noise": lambda score: _number(score.noise, ".2f", ""),
            "E": lambda score: _number(score.worst_error, ".1f", ""),
            "unit": lambda score: score.unit,
            "95 % covers": lambda score: _number(score.coverage, ".1%", ""),
            "released events": lambda score: f"{score.released:.0%}",
            "useful events": lambda score: _number(score.useful_coverage, ".0%", ""),
            "useful cells": lambda score: _number(score.useful_cells, ".0%", ""),
        },
        "Error against the truth, weighted by events (NOT PRIVATE)",
    )
    runs = table_of(
        of_runs.values(),
        {"mechanism": lambda score: score.mechanism},
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "unit": lambda score: score.charges.unit,
            "min": lambda score: f"{score.charges.least:.0f}",
            "p5": lambda score: f"{score.charges.p5:.0f}",
            "median": lambda score: f"{score.charges.median:.0f}",
            "p95": lambda score: f"{score.charges.p95:.0f}",
            "max": lambda score: f"{score.charges.most:.0f}",
            "duality gap": lambda score: _number(score.duality_gap, ".1e", ""),
            "windows": lambda score: str(score.windows),
            "plans": _plans,
            "cells": lambda score: str(score.cells),
            "seconds": lambda score: f"{score.seconds:.1f}",
        },
        "Runs: charges of users in a window (NOT PRIVATE), duality gap of the noise scales, wall time",
    )
    show(errors, runs)
    if known := [score for score in scores if score.cell_coverage]:
        show(_worst_cells(known))


_WORST = 5
"""Cells that are named of each estimator."""


def _worst_cells(scores: list[Score]) -> Table:
    """The cells whose intervals miss the mean most often; clipped speeds are those that a release can tell."""
    missed = [f"{sum(c.covers_measured < 0.5 for c in s.cell_coverage)} of {len(s.cell_coverage)}" for s in scores]
    return table_of(
        [(score, cell) for score in scores for cell in score.cell_coverage[:_WORST]],
        {
            "mechanism": lambda row: row[0].mechanism,
            "estimator": lambda row: row[0].estimator,
            "cell": lambda row: row[1].cell,
        },
        {
            "ε": lambda row: f"{row[0].epsilon:g}",
            "releases": lambda row: str(row[1].releases),
            "events": lambda row: str(row[1].events),
            "shown": lambda row: f"{row[1].shown:.1f}",
            "clipped": lambda row: f"{row[1].clipped:.1f}",
            "measured": lambda row: f"{row[1].measured:.1f}",
            "covers clipped": lambda row: f"{row[1].covers_clipped:.0%}",
            "covers measured": lambda row: f"{row[1].covers_measured:.0%}",
        },
        "Worst cells: 95 % intervals of the mean that hold the truth, clipped and measured (NOT PRIVATE)",
        f"Cells that miss most times, of each estimator in turn: {', '.join(missed)}.",
    )


def _decimals(score: Score) -> str:
    return ".3f" if score.statistic == "distribution" else ".2f"


def _number(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else f"{value:{form}}"


def _plans(score: Score) -> str:
    """What the windows' plans retained, and the most cells of one user before and after."""
    if not score.plans:
        return ""
    before, after = score.most_cells
    return ", ".join(f"{name} {windows}" for name, windows in score.plans.items()) + f"; K {before} → {after}"


def print_live_scores(scores: Sequence[LiveScore]) -> None:
    """One row for each configuration; then what skill is measured against, and what was planted."""
    minutes = () if (incident := scores[0].incident) is None else incident.minutes

    def seen(window: int) -> Callable[[LiveScore], str]:
        return lambda score: (
            "" if score.incident is None else f"{score.incident.seen[window]:.0%}, {score.incident.flagged[window]:.0%}"
        )

    table = table_of(
        scores,
        {"mechanism": lambda score: score.mechanism},
        {
            "ε a period": lambda score: f"{score.budget:.3g}",
            "shown": lambda score: f"{score.shown:.0%}",
            "MAE": lambda score: _number(score.mae, ".1f"),
            "useful": lambda score: f"{score.useful:.0%}",
            "half-width": lambda score: "-" if score.half_width is None else f"±{score.half_width:.1f}",
            "covers events": lambda score: _number(score.covers_events, ".1%"),
            "covers cells": lambda score: _number(score.covers_cells, ".1%"),
            "skill": lambda score: f"{score.skill:+.2f}",
            "oracle": lambda score: f"{score.oracle:+.2f}",
        }
        | {f"{each:g} min": seen(window) for window, each in enumerate(minutes)},
        "The live map against the truth, weighted by events (NOT PRIVATE)",
        _explained(scores[0]),
    )
    show(table)


def _explained(score: LiveScore) -> str:
    sentences = (
        f"{score.windows} windows with a median of {score.vehicles:g} users, {score.draws} draws; km/h. skill: 0 says "
        f"no more than the exact mean of the {score.against}, 1 is exact. oracle: an estimate of the same noise that "
        "knows this mean."
    )
    if score.incident is None:
        return sentences + " No cell is busy enough in a whole hour to plant an incident."
    return sentences + (
        f" Minutes: a planted incident, {score.incident.drop:.1f} km/h slower in {score.incident.cells} cells; share "
        "of the drop on the screen so long after it began, and share of its cells whose interval lies below what they "
        "had without it."
    )


def plot_live(score: LiveScore, path: Path) -> None:
    """Draw the busy cells over the last day. Raises ImportError without matplotlib."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 7.5), layout="constrained")
    title = f"NOT PRIVATE: {score.mechanism}, ε {score.budget:.3g} a period, skill {score.skill:+.2f}"
    figure.suptitle(title, color="firebrick", fontweight="bold")
    panels = figure.subplots(2, 3, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, curve in zip(panels, score.curves, strict=False):
        axes.fill_between(curve.hours, curve.low, curve.high, step="post", color="tab:blue", alpha=0.2, linewidth=0)
        axes.step(curve.hours, curve.estimate, where="post", color="tab:blue", label="estimate, 95 %")
        axes.step(curve.hours, curve.true, where="post", color="black", linewidth=1, label="true")
        axes.step(curve.hours, curve.typical, where="post", color="tab:orange", linestyle="--", label="typical")
        if curve.struck is not None:
            axes.axvspan(*curve.struck, color="firebrick", alpha=0.12, linewidth=0, label="planted incident")
        axes.set_title(f"{curve.cell:x}", fontsize="medium")
        axes.grid(alpha=0.3)
    for axes in panels[len(score.curves) :]:
        axes.set_visible(False)
    top = max(float(np.nanmax([curve.true, curve.typical, curve.estimate])) for curve in score.curves)
    panels[0].set_ylim(0, 1.1 * top)
    panels[0].legend(fontsize="small")
    figure.supxlabel(f"hours since {score.curves[0].begins}")
    figure.supylabel("mean speed, km/h")
    figure.savefig(path)
