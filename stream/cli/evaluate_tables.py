"""Prints the tables of an evaluation. Not private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from stream.evaluation.scores import HistogramScore, Score


def print_histogram_scores(scores: list[HistogramScore]) -> None:
    """Print one row per mechanism, family of ranges and epsilon."""
    table = Table(title="Error of range counts against the truth (NOT PRIVATE)")
    for name in ("mechanism", "ranges"):
        table.add_column(name)
    for name in ("ε", "counted", "MAE", "relative", "its median", "95 % width", "covers", "least class", "seconds"):
        table.add_column(name, justify="right")
    for score in scores:
        table.add_row(
            score.mechanism,
            score.ranges,
            f"{score.epsilon:g}",
            f"{score.counted:.0f}",
            f"{score.mae:.1f}",
            f"{score.relative:.1%}",
            f"{score.relative_median:.1%}",
            "-" if score.width is None else f"{score.width:.0f}",
            _percent(score.coverage, 1),
            _percent(min(score.covered.values(), default=None), 1),
            f"{score.seconds:.1f}",
        )
    Console(width=None if Console().is_terminal else 140).print(table)


def print_scores(scores: list[Score]) -> None:
    """Errors of every estimator, then charges and wall time of every run."""
    errors = Table(title="Error against the truth, weighted by events (NOT PRIVATE)")
    for name in ("mechanism", "statistic", "estimator"):
        errors.add_column(name)
    for name in ("ε", "MAE", "RMSE", "bias", "noise", "E", "unit", "95 % covers"):
        errors.add_column(name, justify="right")
    for name in ("released events", "useful events", "useful cells"):
        errors.add_column(name, justify="right")
    runs = Table(title="Runs: charges of users in a window (NOT PRIVATE), duality gap of the noise scales, wall time")
    runs.add_column("mechanism")
    for name in (
        "ε",
        "unit",
        "min",
        "p5",
        "median",
        "p95",
        "max",
        "duality gap",
        "windows",
        "plans",
        "cells",
        "seconds",
    ):
        runs.add_column(name, justify="right")
    for score in scores:
        errors.add_row(*_errors(score))
    of_runs: dict[tuple[str, float], Score] = {}
    for score in scores:
        of_runs.setdefault((score.mechanism, score.epsilon), score)
    for score in of_runs.values():
        runs.add_row(*_run(score))
    console = Console(width=None if Console().is_terminal else 160)
    console.print(errors)
    console.print(runs)
    _print_cells(console, scores)


_WORST = 5
"""Cells that are named of each estimator."""


def _print_cells(console: Console, scores: list[Score]) -> None:
    """The cells whose intervals miss the mean most often; clipped speeds are those that a release can speak of at
    all."""
    table = Table(
        title="Worst cells: 95 % intervals of the mean that hold the truth, clipped and measured (NOT PRIVATE)"
    )
    for name in ("mechanism", "estimator", "cell"):
        table.add_column(name)
    for name in ("ε", "releases", "events", "shown", "clipped", "measured", "covers clipped", "covers measured"):
        table.add_column(name, justify="right")
    for score in scores:
        known = score.cell_coverage
        if not known:
            continue
        missed = sum(one.covers_measured < 0.5 for one in known)
        for one in known[:_WORST]:
            table.add_row(
                score.mechanism,
                score.estimator,
                one.cell,
                f"{score.epsilon:g}",
                str(one.releases),
                str(one.events),
                *(f"{speed:.1f}" for speed in (one.shown, one.clipped, one.measured)),
                _percent(one.covers_clipped),
                _percent(one.covers_measured),
            )
        table.add_row(
            score.mechanism, score.estimator, f"{missed} of {len(known)} cells miss most times", end_section=True
        )
    if table.row_count:
        console.print(table)


def _errors(score: Score) -> list[str]:
    digits = 3 if score.statistic == "distribution" else 2
    return [
        score.mechanism,
        score.statistic,
        score.estimator,
        f"{score.epsilon:g}",
        "-" if score.mae is None else f"{score.mae:.{digits}f}",
        "-" if score.rmse is None else f"{score.rmse:.{digits}f}",
        "-" if score.bias is None else f"{score.bias:+.{digits}f}",
        "" if score.noise is None else f"{score.noise:.2f}",
        "" if score.worst_error is None else f"{score.worst_error:.1f}",
        score.unit,
        _percent(score.coverage, 1),
        _percent(score.released),
        _percent(score.useful_coverage),
        _percent(score.useful_cells),
    ]


def _run(score: Score) -> list[str]:
    """What all scores of one run share."""
    charges = score.charges
    spread = (charges.least, charges.p5, charges.median, charges.p95, charges.most)
    return [
        score.mechanism,
        f"{score.epsilon:g}",
        charges.unit,
        *(f"{charge:.0f}" for charge in spread),
        "" if score.duality_gap is None else f"{score.duality_gap:.1e}",
        str(score.windows),
        _plans(score),
        str(score.cells),
        f"{score.seconds:.1f}",
    ]


def _plans(score: Score) -> str:
    """What the windows' plans retained, and the most cells of one user before and after."""
    if not score.plans:
        return ""
    before, after = score.most_cells
    return ", ".join(f"{name} {windows}" for name, windows in score.plans.items()) + f"; K {before} → {after}"


def _percent(share: float | None, digits: int = 0) -> str:
    return "" if share is None else f"{share:.{digits}%}"
