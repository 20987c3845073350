"""Prints and draws what an evaluation found. Not private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream.cli.options import columns, show

if TYPE_CHECKING:
    from rich.table import Table

    from stream.evaluation.live import LiveScore
    from stream.evaluation.living import Response
    from stream.evaluation.scores import HistogramScore, Score


_ERRORS = (
    "ε", "MAE", "RMSE", "bias", "noise", "E", "unit", "95 % covers", "released events", "useful events", "useful cells",
)  # fmt: skip
"""Columns of :func:`_errors` that are numbers."""


def print_histogram_scores(scores: list[HistogramScore]) -> None:
    """Print one row per mechanism, family of ranges and epsilon."""
    table = columns(
        "Error of range counts against the truth (NOT PRIVATE)",
        ("mechanism", "ranges"),
        ("ε", "counted", "MAE", "relative", "its median", "95 % width", "covers", "least class", "seconds"),
    )
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
    show(table, width=140)


def print_scores(scores: list[Score]) -> None:
    """Errors of every estimator, then charges and wall time of every run."""
    errors = columns(
        "Error against the truth, weighted by events (NOT PRIVATE)", ("mechanism", "statistic", "estimator"), _ERRORS
    )
    runs = columns(
        "Runs: charges of users in a window (NOT PRIVATE), duality gap of the noise scales, wall time",
        ("mechanism",),
        ("ε", "unit", "min", "p5", "median", "p95", "max", "duality gap", "windows", "plans", "cells", "seconds"),
    )
    for score in scores:
        errors.add_row(*_errors(score))
    of_runs: dict[tuple[str, float], Score] = {}
    for score in scores:
        of_runs.setdefault((score.mechanism, score.epsilon), score)
    for score in of_runs.values():
        runs.add_row(*_run(score))
    cells = _worst_cells(scores)
    show(errors, runs, *([cells] if cells.row_count else []))


_WORST = 5
"""Cells that are named of each estimator."""


def _worst_cells(scores: list[Score]) -> Table:
    """The cells whose intervals miss the mean most often; clipped speeds are those that a release can tell."""
    table = columns(
        "Worst cells: 95 % intervals of the mean that hold the truth, clipped and measured (NOT PRIVATE)",
        ("mechanism", "estimator", "cell"),
        ("ε", "releases", "events", "shown", "clipped", "measured", "covers clipped", "covers measured"),
    )
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
    return table


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


def live_report(scores: Sequence[LiveScore], source: str, draws: int) -> dict[str, Any]:
    """The scores as JSON, marked as not private."""
    from stream.evaluation.evaluate import NOT_PRIVATE

    facts = [score.facts() for score in scores]
    return {"private": False, "warning": NOT_PRIVATE, "recording": source, "trials": draws, "live": facts}


_OF_LIFE = ("ε a period", "shown", "MAE", "useful", "half-width", "covers events", "covers cells", "skill", "oracle")


def print_live_scores(scores: Sequence[LiveScore]) -> None:
    """One row for each configuration; then what skill is measured against, and what was planted."""
    first = scores[0]
    minutes = () if first.incident is None else first.incident.minutes
    table = columns(
        "The live map against the truth, weighted by events (NOT PRIVATE)",
        ("mechanism",),
        [*_OF_LIFE, *(f"{each:g} min" for each in minutes)],
        _explained(first),
    )
    for score in scores:
        table.add_row(
            score.mechanism,
            f"{score.budget:.3g}",
            f"{score.shown:.0%}",
            _number(score.mae, ".1f"),
            f"{score.useful:.0%}",
            _number(score.half_width, ".1f", "±"),
            _number(score.covers_events, ".1%"),
            _number(score.covers_cells, ".1%"),
            f"{score.skill:+.2f}",
            f"{score.oracle:+.2f}",
            *_seen(score.incident),
        )
    show(table)


def _seen(incident: Response | None) -> list[str]:
    if incident is None:
        return []
    return [f"{seen:.0%}, {flagged:.0%}" for seen, flagged in zip(incident.seen, incident.flagged, strict=True)]


def _number(value: float | None, form: str, before: str = "") -> str:
    return "-" if value is None else f"{before}{value:{form}}"


def _explained(score: LiveScore) -> str:
    """The last sentences of the table."""
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


_COLUMNS = 8
"""Number of legend entries in a column."""


def plot(scores: Sequence[Score], path: Path) -> None:
    """Write the figure (the suffix is the format); a score has an error. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    measured = [score for score in scores if score.mae is not None]
    means = [score for score in measured if score.statistic == "mean"] or measured
    swept = len({score.epsilon for score in means}) > 1
    mapped = [score for score in means if score.map]
    figure = Figure(figsize=(15 if mapped else 8, 7), layout="constrained")
    panels = figure.subplots(1, 2 if mapped else 1, squeeze=False)[0]
    figure.suptitle("NOT PRIVATE: evaluation against true values", color="firebrick", fontweight="bold")
    (_against_epsilon if swept else _by_mechanism)(panels[0], means)
    if mapped:
        _map(figure, panels[1], max(mapped, key=lambda score: score.useful_coverage or 0.0))
    figure.savefig(path)


def _label(score: Score) -> str:
    return f"{score.mechanism}, {score.estimator}"


def _mae(score: Score) -> float:
    """The error of a score that has one."""
    assert score.mae is not None
    return score.mae


def _against_epsilon(axes: Any, scores: Sequence[Score]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for score in scores:
        lines.setdefault(_label(score), []).append((score.epsilon, _mae(score)))
    for label, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
    axes.set(xlabel="epsilon per user and window", ylabel=_error_label(scores), xscale="log", yscale="log")
    epsilons = sorted({score.epsilon for score in scores})
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=math.ceil(len(lines) / _COLUMNS))


def _by_mechanism(axes: Any, scores: Sequence[Score]) -> None:
    ordered = sorted(scores, key=_mae, reverse=True)
    bars = axes.barh(range(len(ordered)), [_mae(score) for score in ordered], color="steelblue")
    axes.bar_label(bars, [f"{_mae(score):.1f}" for score in ordered], padding=2, fontsize="small")
    axes.set_yticks(range(len(ordered)), [_label(score) for score in ordered], fontsize="small")
    axes.set(xlabel=_error_label(scores), title=f"epsilon {ordered[0].epsilon:g} per user and window")


def _error_label(scores: Sequence[Score]) -> str:
    return f"event-weighted error of the {scores[0].statistic}, {scores[0].unit}"


def _map(figure: Any, axes: Any, score: Score) -> None:
    """Hexagons coloured by their error; the scale ends at four times what is useful, which the bar shows."""
    import h3
    from matplotlib.collections import PolyCollection

    outlines = [[(lng, lat) for lat, lng in h3.cell_to_boundary(cell.cell)] for cell in score.map]
    hexagons = PolyCollection(outlines, cmap="viridis_r", edgecolors="white", linewidths=0.4)
    hexagons.set_array([cell.mae for cell in score.map])
    hexagons.set_clim(0, 4 * score.useful)
    axes.add_collection(hexagons)
    axes.autoscale_view()
    axes.set_aspect(1 / math.cos(math.radians(outlines[0][0][1])))
    axes.set(
        xlabel="longitude, degrees",
        ylabel="latitude, degrees",
        title=f"error of each cell: {_label(score)}, epsilon {score.epsilon:g}",
    )
    axes.locator_params(axis="x", nbins=4)
    figure.colorbar(hexagons, ax=axes, extend="max", shrink=0.8, label=f"mean absolute error, {score.unit}")
