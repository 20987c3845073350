"""What a tuning prints, draws and gives as JSON. Not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from stream.cli.options import columns, show, stop
from stream.config import Config
from stream.config.rewriting import toml
from stream.config.section import duration_text
from stream.evaluation.evaluate import NOT_PRIVATE
from stream.evaluation.leading import DropWant, Want
from stream.evaluation.tuning import EPSILONS, HONEST, Grid, Trial, Tuning

if TYPE_CHECKING:
    from rich.table import Table

    from stream.evaluation.drop_tuning import DropTrial, DropTuning

T = TypeVar("T")

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
    wanted = {"half_width": want.half_width, "unit": want.unit, "share": want.share}
    return _head(source, wanted, budget, draws, seed) | {
        "period": duration_text(config.privacy.period),
        "relation": config.relation,
        "chosen": _facts(tuning.chosen),
        "configuration": None if tuning.chosen is None else {key: toml(value) for key, value in keys.items()},
        "nearest": _facts(tuning.nearest),
        "needed": _facts(tuning.beyond),
        "grids": [_of_grid(grid, trial) for grid, trial in tuning.grids.items()],
        "skipped": [_of_grid(grid, None) | {"reason": reason} for grid, reason in tuning.skipped.items()],
        "tried": [_facts(trial) for trial in tuning.trials],
    }


def _head(source: str, want: dict[str, Any], budget: float, draws: int, seed: int) -> dict[str, Any]:
    """How a report begins."""
    asked = {"recording": source, "want": want, "budget": budget, "draws": draws, "seed": seed}
    return {"private": False, "warning": NOT_PRIVATE} | asked


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
    show(_table(tuning, want))
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
            "truth. Compare with hexveil evaluate, or use speed.post_processing = []."
        )


def _sentence(trial: Trial, want: Want) -> str:
    outcome = trial.outcome
    return (
        f"budget {outcome.budget:.3g}, ε {outcome.epsilon:g}, H3 {trial.grid[0]}, {duration_text(trial.grid[1])}, "
        f"{trial.setting.words}: {outcome.share:.1%} of events within ±{want.half_width:g} {want.unit}, "
        f"{want.share:.0%} within ±{outcome.half_width:.1f}; the interval holds the truth for {outcome.covered:.1%}"
    )


def _table(tuning: Tuning, want: Want) -> Table:
    """One row for each setting: the chosen trial, else the cheapest that reaches the want, else the nearest."""
    table = columns(
        f"Least budget of each setting for {want} (NOT PRIVATE)",
        ("H3", "slot", "settings"),
        ("ε", "budget", "half-width", "share of events", "covers", ""),
    )
    decisive = _best(tuning.trials, tuning.chosen, lambda trial: trial.setting, _rank)
    for trial in sorted(decisive, key=lambda trial: (trial.grid[0], -trial.grid[1], *_rank(trial))):
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


def _best(trials: Iterable[T], chosen: T | None, kind: Callable[[T], Any], rank: Callable[[T], Any]) -> list[T]:
    """Of each kind of trial the one of lowest rank, or the chosen one."""
    best: dict[Any, T] = {}
    for trial in trials:
        best[kind(trial)] = min(best.get(kind(trial), trial), trial, key=rank)
    return list((best | ({} if chosen is None else {kind(chosen): chosen})).values())


def _rank(trial: Trial) -> tuple[bool, float]:
    return not trial.reaches, trial.outcome.budget if trial.reaches else trial.outcome.half_width


def check_plot(path: Path) -> None:
    """Exit 2 if no plot can be drawn into ``path``, before anything is computed for it."""
    if find_spec("matplotlib") is None:
        stop(_NO_MATPLOTLIB)
    if path.suffix.lower() not in {".png", ".svg", ".pdf"} or path.is_dir() or not path.parent.is_dir():
        stop(f"cannot write {path}; name a .png, .svg or .pdf in a folder that exists")


def write_plot(tuning: Tuning, want: Want, path: Path) -> None:
    """Draw the share of events within the wanted half-width against the budget, a line a grid; exit 2 if it fails."""
    try:
        _plot(tuning, want, path)
    except ImportError:
        stop(_NO_MATPLOTLIB)
    except (OSError, ValueError) as error:
        stop(f"cannot write {path}: {error}; name a .png, .svg or .pdf in a folder that exists")


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


def live_slots(settings: Config) -> list[timedelta]:
    """Timeslots that are tried by default: 5, 10, 15 and 30 minutes, and the configured one."""
    short = {timedelta(minutes=minutes) for minutes in (5, 10, 15, 30)} | {settings.window.slot}
    return sorted(slot for slot in short if not settings.privacy.period % slot)


def drop_report(
    tuning: DropTuning, want: DropWant, budget: float, source: str, draws: int, seed: int
) -> dict[str, Any]:
    """The tuning as JSON, marked as not private."""
    wanted = {"drop_km_h": want.drop, "minutes": want.minutes, "share_of_cells": want.share}
    return _head(source, wanted, budget, draws, seed) | {
        "chosen": _drop_facts(tuning.chosen),
        "configuration": None if tuning.chosen is None else _written(tuning.chosen),
        "nearest": _drop_facts(tuning.nearest),
        "skipped": [_grid(*grid) | {"way": way, "reason": why} for (grid, way), why in tuning.skipped.items()],
        "tried": [_drop_facts(trial) for trial in tuning.trials],
    }


def _grid(resolution: int, slot: timedelta) -> dict[str, Any]:
    return {"resolution": resolution, "slot": duration_text(slot)}


def _written(trial: DropTrial) -> dict[str, str]:
    return {key: "" if value is None else toml(value) for key, value in trial.keys.items()}


def _drop_facts(trial: DropTrial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    names = ("way", "budget", "seen", "flagged", "covered", "reaches")
    return _grid(*trial.grid) | {name: getattr(trial, name) for name in names}


def print_drop_tuning(tuning: DropTuning, want: DropWant, budget: float) -> None:
    """The table of what was tried, then the result in a few sentences."""
    table = columns(
        f"Least budget to {want} (NOT PRIVATE)",
        ("H3", "slot", "accounting, admission, clipping"),
        ("budget", "drop seen", "cells that show it", "covers", ""),
    )
    decisive = _best(tuning.trials, tuning.chosen, lambda trial: (trial.grid, trial.way), _drop_rank)
    for trial in sorted(decisive, key=lambda trial: (*trial.grid, _drop_rank(trial))):
        table.add_row(
            str(trial.grid[0]),
            duration_text(trial.grid[1]),
            trial.way,
            f"{trial.budget:.3g}",
            *(f"{share:.0%}" for share in (trial.seen, trial.flagged, trial.covered)),
            "chosen" if trial is tuning.chosen else "reaches" if trial.reaches else "",
        )
    show(table, width=140)
    for reason in sorted(set(tuning.skipped.values())):
        places = [place for place, why in tuning.skipped.items() if why == reason]
        grids = "; ".join(f"H3 {r}, {duration_text(slot)}{way and f', {way}'}" for (r, slot), way in places)
        typer.echo(f"Not tried, because {reason}: {grids}")
    if tuning.chosen is not None:
        typer.echo(f"\nThe least budget to {want}: {tuning.chosen.budget:.3g} a period, with {tuning.chosen.way}.")
        for key, value in tuning.chosen.keys.items():
            typer.echo(f"  {key} = {toml(value)}" if value is not None else f"  without {key}")
        return
    typer.echo(f"\nNothing reaches the wish to {want} within a budget of {budget:g} a period.")
    if (near := tuning.nearest) is not None:
        where = f"H3 {near.grid[0]}, {duration_text(near.grid[1])}, {near.way}"
        typer.echo(f"The nearest: {where}: {near.flagged:.0%} of cells show it.")
    typer.echo("Raise --budget, want less, or add coarser hexagons with --resolutions and other --slots.")


def _drop_rank(trial: DropTrial) -> tuple[bool, float]:
    return not trial.reaches, trial.budget if trial.reaches else -trial.flagged


def expected_of(trial: DropTrial) -> dict[str, Any]:
    """Dotted keys that a written configuration must be read with; the privacy section is checked by being loaded."""
    given = {key: value for key, value in trial.keys.items() if not key.startswith("privacy.")}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
