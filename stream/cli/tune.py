"""``hexveil tune``: the least budget under which a recording's map is as good as wanted. Its output is not private."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stream.cli.evaluate import choose_settings, read_rows
from stream.cli.options import (
    FAILED,
    AsJson,
    ConfigFile,
    ExpectedRelation,
    FileFormat,
    Recordings,
    UsersAreEvents,
    progress_bars,
    stop,
)

if TYPE_CHECKING:
    from stream.config import Config
    from stream.evaluation.wants import DropWant, Want

T = TypeVar("T")

_EXPECTED_TRIALS = 60
"""Length of the progress bar; a search rarely needs more."""


def command(  # noqa: PLR0915
    files: Recordings,
    want: Annotated[
        str,
        typer.Option(
            help="What the map must show, like '±5 km/h for 80 % of events' or "
            "'see a drop of 8 km/h within 30 min in 80 % of cells'."
        ),
    ],
    budget: Annotated[float, typer.Option(min=0.001, max=10_000, help="Largest ε of one user and period.")] = 12.0,
    resolutions: Annotated[
        str | None,
        typer.Option(help="H3 resolutions to try, like 6,7,8; default: the configured one and its neighbours."),
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(help="Timeslots to try, like 30m,1h; default: the configured one, its half, double and fourfold."),
    ] = None,
    finest: Annotated[
        bool, typer.Option("--finest", help="Choose the finest grid within the budget, not the cheapest.")
    ] = False,
    config: ConfigFile = None,
    relation: ExpectedRelation = None,
    file_format: FileFormat = None,
    draws: Annotated[int, typer.Option(min=1, max=100, help="Number of draws of noise per trial.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated noise; the same seed chooses the same.")] = 1,
    figure: Annotated[
        Path | None, typer.Option("--plot", help="Draw the share of events against the budget (PNG, SVG or PDF).")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the chosen configuration to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --write.")] = False,
    users_are_events: UsersAreEvents = False,
    as_json: AsJson = False,
) -> None:
    """Find the least budget and the settings whose map is as good as wanted. The output is NOT private: do not publish
    it."""
    from stream.cli.tune_report import (
        check_plot,
        drop_report,
        expected_of,
        live_slots,
        print_drop_tuning,
        print_tuning,
        report,
        write_plot,
    )
    from stream.cli.tune_writing import check_target, keys_for, write_chosen
    from stream.evaluation.drop_tuning import DropSearch
    from stream.evaluation.evaluate import NOT_PRIVATE
    from stream.evaluation.tuning import Search
    from stream.evaluation.wants import DropWant

    if not math.isfinite(budget):
        stop(f"--budget {budget} is not a number; write one like 12")
    if write is not None:
        check_target(write, force=force)
    if figure is not None:
        check_plot(figure)
    chosen_file, settings = choose_settings(config, relation)
    _check_no_horizon(settings)
    source = chosen_file.file.read_text(encoding="utf-8")
    wanted = _wanted(want, settings)
    grids = _resolutions(resolutions, settings), _slots(slots, settings)
    recording = " ".join(map(str, files))
    rows = read_rows(settings, files, file_format or settings.feed.recorded_format, users_are_events=users_are_events)
    if isinstance(wanted, DropWant):
        if figure is not None:
            stop("--plot draws wants of a half-width only; leave it out, or see hexveil evaluate --live --plot")
        search = DropSearch(chosen_file.file, rows, wanted, budget, draws, seed)
        live = grids[0], grids[1] if slots else live_slots(settings)
        result = _searched(
            len(live[0]) * len(live[1]) * (len(list(search.ways())) + 1),
            lambda trial: f"H3 {trial.grid[0]}, {trial.grid[1]}, {trial.way}, budget {trial.budget:.3g}",
            lambda advance: search.run(*live, advance, finest=finest),
        )
        if as_json:
            typer.echo(json.dumps(drop_report(result, wanted, budget, recording, draws, seed), allow_nan=False))
        else:
            typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)
            print_drop_tuning(result, wanted, budget)
        if result.chosen is None:
            raise typer.Exit(FAILED)
        if write is not None:
            write_chosen(write, source, result.chosen.keys, expected_of(result.chosen), wanted, force=force)
        return
    tuning = _searched(
        _EXPECTED_TRIALS,
        lambda trial: f"H3 {trial.grid[0]}, {trial.grid[1]}, ε {trial.outcome.epsilon:g}",
        lambda advance: Search(settings, rows, wanted, budget, draws, seed, advance).run(*grids, finest=finest),
    )
    typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)
    keys = {} if tuning.chosen is None else keys_for(tuning.chosen, settings, source, budget)
    if as_json:
        typer.echo(json.dumps(report(tuning, wanted, budget, settings, keys, recording, draws, seed), allow_nan=False))
    else:
        print_tuning(tuning, wanted, budget, settings, keys)
    try:
        if tuning.chosen is None:
            raise typer.Exit(FAILED)
        if write is not None:
            write_chosen(write, source, keys, tuning.chosen.setting.keys() | keys, wanted, force=force)
    finally:
        if figure is not None:
            write_plot(tuning, wanted, figure)


def _check_no_horizon(settings: Config) -> None:
    """Exit 2 with a horizon: which of its periods a user is in decides what is left, and a search knows one."""
    if settings.privacy.horizon is not None:
        stop(
            "tune searches the budget of one period and does not know privacy.horizon; take the horizon out to tune, "
            "put it back with at least the budget that tune chooses, and see by hexveil evaluate what it costs"
        )


def _wanted(text: str, settings: Config) -> Want | DropWant:
    from stream.evaluation.wants import DropWant, Want

    if "mean" not in settings.speed.statistics:
        stop(f"speed.statistics {list(settings.speed.statistics)} has no mean, which --want is about; add it")
    try:
        value = settings.value
        drop = DropWant.parse(text, value.upper) if value.is_speed else None
        return Want.parse(text, value.upper - value.lower, value.unit) if drop is None else drop
    except ValueError as error:
        stop(f"--want: {error}")


def _resolutions(text: str | None, settings: Config) -> list[int]:
    """The resolutions of the search, ascending; exit 2 for others than 0 to 15."""
    if text is None:
        configured = settings.hexagons.resolution
        return [resolution for resolution in range(configured - 1, configured + 2) if 0 <= resolution <= 15]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 2 and int(part) <= 15 for part in parts):
        stop(f"--resolutions {text!r} must be whole numbers from 0 to 15; write them like 6,7,8")
    return sorted({int(part) for part in parts})


def _slots(text: str | None, settings: Config) -> list[timedelta]:
    """The timeslots of the search, ascending; exit 2 for one that the configuration could not have."""
    from stream.config.section import parse_duration

    period, configured = settings.privacy.period, settings.window.slot
    least = settings.feed.quality.frozen or timedelta(0)
    if text is None:
        possible = {configured / 2, configured, 2 * configured, 4 * configured}
        return sorted(
            slot for slot in possible if least < slot <= period and not period % slot and not slot.microseconds
        )
    try:
        given = {parse_duration(part.strip()) for part in text.split(",")}
    except ValueError as error:
        stop(f"--slots: {error}")
    for slot in given:
        if slot <= least or slot.microseconds or period % slot:
            stop(
                f"--slots: {slot} must be whole seconds, divide privacy.period {period} and be longer than "
                f"feed.quality.frozen; write them like 30m,1h,2h"
            )
    return sorted(given)


def _searched(total: int, described: Callable[[Any], str], run: Callable[[Callable[[Any], None]], T]) -> T:
    """What a search finds, with a bar on a terminal; exit 2 if no grid can be tried."""
    from stream.config import ConfigError

    with progress_bars() as bars:
        task = bars.add_task("tuning", total=total)
        try:
            return run(lambda trial: bars.update(task, advance=1, description=described(trial)))
        except ConfigError as error:
            bars.stop()
            stop(error)
