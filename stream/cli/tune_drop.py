"""``hexveil tune --want "see a drop …"``: what it prints, writes and gives as JSON. Its output is not private."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from stream.cli.evaluate import progress_bars
from stream.cli.options import USAGE, stop
from stream.config.rewriting import toml
from stream.config.section import duration_text
from stream.evaluation.evaluate import NOT_PRIVATE

if TYPE_CHECKING:
    from stream.config import Config
    from stream.evaluation.drop_tuning import DropSearch, DropTrial, DropTuning
    from stream.evaluation.wants import DropWant


def live_slots(settings: Config) -> list[timedelta]:
    """Timeslots that are tried by default: 5, 10, 15 and 30 minutes, and the configured one."""
    short = {timedelta(minutes=minutes) for minutes in (5, 10, 15, 30)} | {settings.window.slot}
    return sorted(slot for slot in short if not settings.privacy.period % slot)


def search_drop(search: DropSearch, grids: tuple[Sequence[int], Sequence[timedelta]], *, finest: bool) -> DropTuning:
    """Run the search with a bar on a terminal; exit 2 if no grid can be tried."""
    from stream.config import ConfigError

    with progress_bars() as bars:
        expected = len(grids[0]) * len(grids[1]) * (len(list(search.ways())) + 1)
        task = bars.add_task("tuning", total=expected)

        def advance(trial: DropTrial) -> None:
            at = f"H3 {trial.grid[0]}, {trial.grid[1]}, {trial.way}, budget {trial.budget:.3g}"
            bars.update(task, advance=1, description=at)

        try:
            return search.run(*grids, advance, finest=finest)
        except ConfigError as error:
            bars.stop()
            stop(str(error), USAGE)


def drop_report(
    tuning: DropTuning, want: DropWant, budget: float, source: str, draws: int, seed: int
) -> dict[str, Any]:
    """The tuning as JSON, marked as not private."""
    return {
        "private": False,
        "warning": NOT_PRIVATE,
        "recording": source,
        "want": {"drop_km_h": want.drop, "minutes": want.minutes, "share_of_cells": want.share},
        "budget": budget,
        "draws": draws,
        "seed": seed,
        "chosen": _facts(tuning.chosen),
        "configuration": None if tuning.chosen is None else _written(tuning.chosen),
        "nearest": _facts(tuning.nearest),
        "skipped": [_grid(*grid) | {"way": way, "reason": why} for (grid, way), why in tuning.skipped.items()],
        "tried": [_facts(trial) for trial in tuning.trials],
    }


def _grid(resolution: int, slot: timedelta) -> dict[str, Any]:
    return {"resolution": resolution, "slot": duration_text(slot)}


def _written(trial: DropTrial) -> dict[str, str]:
    return {key: "" if value is None else toml(value) for key, value in trial.keys.items()}


def _facts(trial: DropTrial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    names = ("way", "budget", "seen", "flagged", "covered", "reaches")
    return _grid(*trial.grid) | {name: getattr(trial, name) for name in names}


def print_drop_tuning(tuning: DropTuning, want: DropWant, budget: float) -> None:
    """The table of what was tried, then the result in a few sentences."""
    table = Table(title=f"Least budget to {want} (NOT PRIVATE)")
    for name in ("H3", "slot", "accounting, admission, clipping"):
        table.add_column(name)
    for name in ("budget", "drop seen", "cells that show it", "covers", ""):
        table.add_column(name, justify="right")
    for trial in _decisive(tuning):
        verdict = "chosen" if trial is tuning.chosen else "reaches" if trial.reaches else ""
        table.add_row(
            str(trial.grid[0]),
            duration_text(trial.grid[1]),
            trial.way,
            f"{trial.budget:.3g}",
            *(f"{share:.0%}" for share in (trial.seen, trial.flagged, trial.covered)),
            verdict,
        )
    Console(width=None if Console().is_terminal else 140).print(table)
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


def _decisive(tuning: DropTuning) -> list[DropTrial]:
    """For each grid and way the cheapest trial that reaches the want, else the one of most budget; the chosen one."""
    best: dict[Any, DropTrial] = {}
    for trial in tuning.trials:
        best[trial.grid, trial.way] = min(best.get((trial.grid, trial.way), trial), trial, key=_rank)
    if tuning.chosen is not None:
        best[tuning.chosen.grid, tuning.chosen.way] = tuning.chosen
    return sorted(best.values(), key=lambda trial: (trial.grid[0], trial.grid[1], _rank(trial)))


def _rank(trial: DropTrial) -> tuple[bool, float]:
    return not trial.reaches, trial.budget if trial.reaches else -trial.flagged


def expected_of(trial: DropTrial) -> dict[str, Any]:
    """Dotted keys that a written configuration must be read with; the privacy section is checked by being loaded."""
    given = {key: value for key, value in trial.keys.items() if not key.startswith("privacy.")}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
