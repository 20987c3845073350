"""What ``hexveil evaluate --live`` prints and draws. Not private."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from stream.evaluation.evaluate import NOT_PRIVATE

if TYPE_CHECKING:
    from stream.evaluation.incident import Response
    from stream.evaluation.live import LiveScore


def live_report(scores: Sequence[LiveScore], source: str, draws: int) -> dict[str, Any]:
    """The scores as JSON, marked as not private."""
    facts = [score.facts() for score in scores]
    return {"private": False, "warning": NOT_PRIVATE, "recording": source, "trials": draws, "live": facts}


def print_live_scores(scores: Sequence[LiveScore]) -> None:
    """One row for each configuration; then what skill is measured against, and what was planted."""
    first = scores[0]
    table = Table(title="The live map against the truth, weighted by events (NOT PRIVATE)", caption=_explained(first))
    table.add_column("mechanism")
    for name in (
        "ε a period",
        "shown",
        "MAE",
        "useful",
        "half-width",
        "covers events",
        "covers cells",
        "skill",
        "oracle",
    ):
        table.add_column(name, justify="right")
    for minutes in () if first.incident is None else first.incident.minutes:
        table.add_column(f"{minutes:g} min", justify="right")
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
    Console(width=None if Console().is_terminal else 160).print(table)


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
