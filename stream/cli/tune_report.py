"""What a tuning prints, draws and gives as JSON. Not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from stream.cli.options import show, table_of
from stream.config import Config
from stream.config.rewriting import toml
from stream.config.section import duration_text
from stream.evaluation.leading import DropWant, Want
from stream.evaluation.tuning import EPSILONS, HONEST, Grid, Trial, Tuning

if TYPE_CHECKING:
    from stream.evaluation.drop_tuning import DropTrial, DropTuning

T = TypeVar("T")


def report(tuning: Tuning, want: Want, config: Config, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The tuning as JSON. ``half_width`` is null where too few events are in released cells.

    ``keys``: dotted keys of the configuration that the choice sets.
    """
    return {
        "want": {"half_width": want.half_width, "unit": want.unit, "share": want.share},
        "period": duration_text(config.privacy.period),
        "relation": config.relation,
        "chosen": _facts(tuning.chosen),
        "configuration": None if tuning.chosen is None else {key: toml(value) for key, value in keys.items()},
        "nearest": _facts(tuning.nearest),
        "needed": _facts(tuning.beyond),
        "grids": [_grid(*grid) | {"least": _facts(trial)} for grid, trial in tuning.grids.items()],
        "skipped": [_grid(*grid) | {"least": None, "reason": reason} for grid, reason in tuning.skipped.items()],
        "tried": [_facts(trial) for trial in tuning.trials],
    }


def _grid(resolution: int, slot: timedelta) -> dict[str, Any]:
    return {"resolution": resolution, "slot": duration_text(slot)}


def _facts(trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    setting, outcome = trial.setting, trial.outcome
    chosen = ("statistics", "clipping", "suppression", "merge_until", "coarsest_resolution", "weight", "cells_per_user")
    return {
        **_grid(*trial.grid),
        **{name: getattr(setting, name) for name in chosen},
        **{name: getattr(outcome, name) for name in ("epsilon", "budget", "share", "covered")},
        "half_width": outcome.half_width if math.isfinite(outcome.half_width) else None,
        "reaches": trial.reaches,
        "confirming": trial.confirming,
    }


def _say_skipped(skipped: Mapping[str, str]) -> None:
    """``skipped``: by the words of a grid, why it was not tried."""
    for reason in sorted(set(skipped.values())):
        grids = "; ".join(grid for grid, why in skipped.items() if why == reason)
        typer.echo(f"Not tried, because {reason}: {grids}")


def _words(grid: Grid) -> str:
    return f"H3 {grid[0]}, {duration_text(grid[1])}"


def print_tuning(tuning: Tuning, want: Want, budget: float, config: Config, keys: Mapping[str, Any]) -> None:
    """The table of what was tried, then the result in a few sentences. ``keys``: as for :func:`report`."""
    decisive = _best(tuning.trials, tuning.chosen, lambda trial: trial.setting, _rank)
    table = table_of(
        sorted(decisive, key=lambda trial: (trial.grid[0], -trial.grid[1], *_rank(trial))),
        {
            "H3": lambda trial: str(trial.grid[0]),
            "slot": lambda trial: duration_text(trial.grid[1]),
            "settings": lambda trial: trial.setting.words,
        },
        {
            "ε": lambda trial: f"{trial.outcome.epsilon:g}",
            "budget": lambda trial: f"{trial.outcome.budget:.3g}",
            "half-width": lambda trial: f"±{trial.outcome.half_width:.1f}",
            "share of events": lambda trial: f"{trial.outcome.share:.1%}",
            "covers": lambda trial: f"{trial.outcome.covered:.1%}",
            "": lambda trial: _verdict(trial, tuning),
        },
        f"Least budget of each setting for {want} (NOT PRIVATE)",
    )
    show(table)
    _say_skipped({_words(grid): why for grid, why in tuning.skipped.items()})
    if tuning.chosen is not None:
        _say_chosen(tuning.chosen, want, config, keys)
        return
    typer.echo(f"\nNothing reaches {want} within a budget of {budget:g} {_per_period(config)}.")
    for trial, what in ((tuning.nearest, "The nearest within the budget"), (tuning.beyond, "What is needed")):
        if trial is not None:
            typer.echo(f"{what}: {_sentence(trial, want)}")
    if tuning.beyond is None and tuning.costed is not None:
        typer.echo(f"No ε up to {EPSILONS[-1]:g} suffices on {_words(tuning.costed)}.")
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
        f"budget {outcome.budget:.3g}, ε {outcome.epsilon:g}, {_words(trial.grid)}, "
        f"{trial.setting.words}: {outcome.share:.1%} of events within ±{want.half_width:g} {want.unit}, "
        f"{want.share:.0%} within ±{outcome.half_width:.1f}; the interval holds the truth for {outcome.covered:.1%}"
    )


def _verdict(trial: Trial, tuning: Tuning) -> str:
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


def drop_report(tuning: DropTuning, want: DropWant) -> dict[str, Any]:
    """The tuning as JSON."""
    keys = None if tuning.chosen is None else tuning.chosen.keys
    return {
        "want": {"drop_km_h": want.drop, "minutes": want.minutes, "share_of_cells": want.share},
        "chosen": _drop_facts(tuning.chosen),
        "configuration": keys and {key: "" if value is None else toml(value) for key, value in keys.items()},
        "nearest": _drop_facts(tuning.nearest),
        "skipped": [_grid(*grid) | {"way": way, "reason": why} for (grid, way), why in tuning.skipped.items()],
        "tried": [_drop_facts(trial) for trial in tuning.trials],
    }


def _drop_facts(trial: DropTrial | None) -> dict[str, Any] | None:
    names = ("way", "budget", "seen", "flagged", "covered", "reaches")
    return None if trial is None else _grid(*trial.grid) | {name: getattr(trial, name) for name in names}


def print_drop_tuning(tuning: DropTuning, want: DropWant, budget: float) -> None:
    """The table of what was tried, then the result in a few sentences."""
    decisive = _best(tuning.trials, tuning.chosen, lambda trial: (trial.grid, trial.way), _drop_rank)
    table = table_of(
        sorted(decisive, key=lambda trial: (*trial.grid, _drop_rank(trial))),
        {
            "H3": lambda trial: str(trial.grid[0]),
            "slot": lambda trial: duration_text(trial.grid[1]),
            "accounting, admission, clipping": lambda trial: trial.way,
        },
        {
            "budget": lambda trial: f"{trial.budget:.3g}",
            "drop seen": lambda trial: f"{trial.seen:.0%}",
            "cells that show it": lambda trial: f"{trial.flagged:.0%}",
            "covers": lambda trial: f"{trial.covered:.0%}",
            "": lambda trial: "chosen" if trial is tuning.chosen else "reaches" if trial.reaches else "",
        },
        f"Least budget to {want} (NOT PRIVATE)",
    )
    show(table, width=140)
    _say_skipped({_words(grid) + (way and f", {way}"): why for (grid, way), why in tuning.skipped.items()})
    if tuning.chosen is not None:
        typer.echo(f"\nThe least budget to {want}: {tuning.chosen.budget:.3g} a period, with {tuning.chosen.way}.")
        for key, value in tuning.chosen.keys.items():
            typer.echo(f"  {key} = {toml(value)}" if value is not None else f"  without {key}")
        return
    typer.echo(f"\nNothing reaches the wish to {want} within a budget of {budget:g} a period.")
    if (near := tuning.nearest) is not None:
        typer.echo(f"The nearest: {_words(near.grid)}, {near.way}: {near.flagged:.0%} of cells show it.")
    typer.echo("Raise --budget, want less, or add coarser hexagons with --resolutions and other --slots.")


def _drop_rank(trial: DropTrial) -> tuple[bool, float]:
    return not trial.reaches, trial.budget if trial.reaches else -trial.flagged


def expected_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys that a written configuration must be read with; the privacy section is checked by being loaded."""
    given = {key: value for key, value in keys.items() if not key.startswith("privacy.")}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
