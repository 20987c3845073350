"""What a tuning prints, draws and gives as JSON. Not private."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from stream.cli.options import USAGE, stop
from stream.config import Config
from stream.config.rewriting import toml
from stream.config.section import duration_text
from stream.evaluation.evaluate import NOT_PRIVATE
from stream.evaluation.tuning import EPSILONS, HONEST, Grid, Trial, Tuning
from stream.evaluation.wants import Want

_NO_MATPLOTLIB = "plots need matplotlib: pip install 'hexveil[plot]'"


def report(
    tuning: Tuning,
    want: Want,
    budget: float,
    config: Config,
    keys: Mapping[str, Any],
    source: str,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """The tuning as JSON, marked as not private. ``half_width`` is null where too few events are in released cells.

    ``keys``: dotted keys of the configuration that the choice sets.
    """
    return {
        "private": False,
        "warning": NOT_PRIVATE,
        "recording": source,
        "want": {"half_width": want.half_width, "unit": want.unit, "share": want.share},
        "budget": budget,
        "period": duration_text(config.privacy.period),
        "relation": config.relation,
        "draws": draws,
        "seed": seed,
        "chosen": _facts(tuning.chosen),
        "configuration": None if tuning.chosen is None else {key: toml(value) for key, value in keys.items()},
        "nearest": _facts(tuning.nearest),
        "needed": _facts(tuning.beyond),
        "grids": [_of_grid(grid, trial) for grid, trial in tuning.grids.items()],
        "skipped": [_of_grid(grid, None) | {"reason": reason} for grid, reason in tuning.skipped.items()],
        "tried": [_facts(trial) for trial in tuning.trials],
    }


def _of_grid(grid: Grid, trial: Trial | None) -> dict[str, Any]:
    return {"resolution": grid[0], "slot": duration_text(grid[1]), "least": _facts(trial)}


def _facts(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    setting, outcome = trial.setting, trial.outcome
    return {
        "resolution": setting.resolution,
        "slot": duration_text(setting.slot),
        "statistics": list(setting.statistics),
        "clipping": setting.clipping,
        "suppression": setting.suppression,
        "merge_until": setting.merge_until,
        "coarsest_resolution": setting.coarsest_resolution,
        "weight": setting.weight,
        "cells_per_user": setting.cells_per_user,
        "epsilon": outcome.epsilon,
        "budget": outcome.budget,
        "half_width": outcome.half_width if math.isfinite(outcome.half_width) else None,
        "share": outcome.share,
        "covered": outcome.covered,
        "reaches": trial.reaches,
        "confirming": trial.confirming,
    }


def print_tuning(tuning: Tuning, want: Want, budget: float, config: Config, keys: Mapping[str, Any]) -> None:
    """The table of what was tried, then the result in a few sentences. ``keys``: as for :func:`report`."""
    Console(width=None if Console().is_terminal else 160).print(_table(tuning, want))
    for reason in sorted(set(tuning.skipped.values())):
        grids = "; ".join(
            f"H3 {grid[0]}, {duration_text(grid[1])}" for grid, why in tuning.skipped.items() if why == reason
        )
        typer.echo(f"Not tried, because {reason}: {grids}")
    if tuning.chosen is not None:
        _say_chosen(tuning.chosen, want, config, keys)
        return
    typer.echo(f"\nNothing reaches {want} within a budget of {budget:g} {_per_period(config)}.")
    for trial, what in ((tuning.nearest, "The nearest within the budget"), (tuning.beyond, "What is needed")):
        if trial is not None:
            typer.echo(f"{what}: {_sentence(trial, want)}")
    if tuning.beyond is None and tuning.costed is not None:
        resolution, slot = tuning.costed
        typer.echo(f"No ε up to {EPSILONS[-1]:g} suffices on H3 {resolution}, {duration_text(slot)}.")
    typer.echo("Raise --budget, want less, or add a coarser grid with --resolutions and --slots.")


def _per_period(config: Config) -> str:
    period = duration_text(config.privacy.period)
    return "a day" if period == "1d" else f"per {period}"


def _say_chosen(chosen: Trial, want: Want, config: Config, keys: Mapping[str, Any]) -> None:
    typer.echo(f"\nThe least budget that reaches {want}: {chosen.outcome.budget:.4g} {_per_period(config)}.")
    typer.echo(_sentence(chosen, want))
    for key, value in keys.items():
        typer.echo(f"  {key} = {toml(value)}")
    if chosen.outcome.covered < HONEST:
        typer.echo(
            f"Beware: only {chosen.outcome.covered:.0%} of the events are in cells whose 95 % interval holds the "
            "truth. Compare with "
            "hexveil evaluate, or use speed.post_processing = []."
        )


def _sentence(trial: Trial, want: Want) -> str:
    outcome = trial.outcome
    return (
        f"budget {outcome.budget:.3g}, ε {outcome.epsilon:g}, H3 {trial.grid[0]}, {duration_text(trial.grid[1])}, "
        f"{trial.setting.words}: {outcome.share:.1%} of events within ±{want.half_width:g} {want.unit}, "
        f"{want.share:.0%} within "
        f"±{outcome.half_width:.1f}; the interval holds the truth for {outcome.covered:.1%}"
    )


def _table(tuning: Tuning, want: Want) -> Table:
    """One row for each setting: the chosen trial, else the cheapest that reaches the want, else the one that comes
    nearest."""
    table = Table(title=f"Least budget of each setting for {want} (NOT PRIVATE)")
    for name in ("H3", "slot", "settings"):
        table.add_column(name)
    for name in ("ε", "budget", "half-width", "share of events", "covers", ""):
        table.add_column(name, justify="right")
    for trial in _decisive(tuning):
        outcome = trial.outcome
        table.add_row(
            str(trial.grid[0]),
            duration_text(trial.grid[1]),
            trial.setting.words,
            f"{outcome.epsilon:g}",
            f"{outcome.budget:.3g}",
            f"±{outcome.half_width:.1f}",
            f"{outcome.share:.1%}",
            f"{outcome.covered:.1%}",
            _verdict(trial, tuning),
        )
    return table


def _verdict(trial: Trial, tuning: Tuning) -> str:
    """The last column of a row."""
    if trial is tuning.chosen:
        return "chosen"
    refuted = {(other.setting, other.level) for other in tuning.trials if other.confirming and not other.reaches}
    if trial.reaches and (trial.setting, trial.level) in refuted:
        return "not confirmed"
    return "reaches" if trial.reaches else ""


def _decisive(tuning: Tuning) -> list[Trial]:
    best: dict[Any, Trial] = {}
    for trial in tuning.trials:
        best[trial.setting] = min(best.get(trial.setting, trial), trial, key=_rank)
    if tuning.chosen is not None:
        best[tuning.chosen.setting] = tuning.chosen
    return sorted(best.values(), key=lambda trial: (trial.grid[0], -trial.grid[1], *_rank(trial)))


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.reaches, trial.outcome.budget if trial.reaches else trial.outcome.half_width


def check_plot(path: Path) -> None:
    """Exit 2 if no plot can be drawn into ``path``, before anything is computed for it."""
    if find_spec("matplotlib") is None:
        stop(_NO_MATPLOTLIB, USAGE)
    if path.suffix.lower() not in {".png", ".svg", ".pdf"} or path.is_dir() or not path.parent.is_dir():
        stop(f"cannot write {path}; name a .png, .svg or .pdf in a folder that exists", USAGE)


def write_plot(tuning: Tuning, want: Want, path: Path) -> None:
    """Draw the share of events within the wanted half-width against the budget, a line for each grid; exit 2 if it
    cannot be."""
    try:
        _plot(tuning, want, path)
    except ImportError:
        stop(_NO_MATPLOTLIB, USAGE)
    except (OSError, ValueError) as error:
        stop(f"cannot write {path}: {error}; name a .png, .svg or .pdf in a folder that exists", USAGE)


def _plot(tuning: Tuning, want: Want, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    figure.suptitle("NOT PRIVATE: simulated on true values", color="firebrick", fontweight="bold")
    lines: dict[Grid, list[Trial]] = {}
    for trial in tuning.trials:
        if trial.confirming:
            continue  # a line shows one noise
        lines.setdefault(trial.grid, []).append(trial)
    for (resolution, slot), trials in sorted(lines.items()):
        first = min((trial for trial in trials if trial.reaches), key=_rank, default=trials[0]).setting
        points = sorted((trial.outcome.budget, 100 * trial.outcome.share) for trial in trials if trial.setting == first)
        axes.plot(*zip(*points, strict=True), marker="o", label=f"H3 {resolution}, {duration_text(slot)}")
    axes.axhline(100 * want.share, color="grey", linestyle="--")
    axes.set(
        xscale="log",
        xlabel="budget of a period, ε",
        ylabel=f"events within ±{want.half_width:g} {want.unit}, %",
        ylim=(0, 102),
    )
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)
