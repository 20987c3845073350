"""Draws an evaluation: error against epsilon or by mechanism, beside a map of the errors of the most useful one. Not
private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h3

from stream.evaluation.scores import Score

_COLUMNS = 8
"""Number of legend entries in a column."""


def plot(scores: Sequence[Score], path: Path) -> None:
    """Write the figure (the suffix names the format); at least one score has an error. Raises ImportError without
    matplotlib."""
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
