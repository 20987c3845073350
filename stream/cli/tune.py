"""``hexveil tune``: the least budget under which a recording's map is as good as wanted. Its output is not private.

Writes the configuration that ``hexveil tune`` chose. An old file stays until the new one reads as it should.
"""

import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeVar

import typer

from stream.cli.evaluate import choose_settings, read_rows
from stream.cli.options import (
    FAILED,
    NOT_PRIVATE,
    AsJson,
    ConfigFile,
    ExpectedRelation,
    FileFormat,
    Force,
    Recordings,
    UsersAreEvents,
    load_to_release,
    progress_bars,
    require_new,
    stop,
    warn_of_true_values,
    write_text,
)
from stream.config import Chosen, Config, ConfigError
from stream.config.loading import origins
from stream.config.rewriting import rewritten, toml
from stream.config.section import parse_duration
from stream.evaluation.leading import DropWant, Want
from stream.evaluation.tuning import Trial, terms_of


def check_target(path: Path, *, force: bool) -> None:
    """Exit 2 if ``path`` cannot be written, before anything is computed for it."""
    require_new(path, force=force)
    if (path.exists() and not path.is_file()) or not os.access(path.resolve().parent, os.W_OK):
        stop(f"{path}: name a file in a folder that you may write to")
    chosen = {("privacy", name) for name in ("epsilon", "budget", "windows")}
    overriding = [name for key, name in origins(Config, os.environ).items() if key in chosen]
    if overriding:
        stop(f"{', '.join(overriding)} would override what {path} is to say; unset it, or leave out --write")


def keys_for(chosen: Trial, config: Config, source: str, most: float) -> dict[str, Any]:
    """Dotted keys that turn ``source``, the configuration's text, into the choice. ``most``: ε of a period.

    Keys are compared with the text alone, because ``config`` may have others from the environment.
    """
    changes = {
        key: value
        for key, value in chosen.setting.keys().items()
        if value is not None and not _says(source, config, key, value)
    }
    return terms_of(config, chosen, most) | changes


def _says(source: str, config: Config, key: str, value: Any) -> bool:
    """Whether the text has ``value`` at ``key``, or by default."""
    section, _, name = key.partition(".")
    default = type(getattr(config, section)).model_fields[name].default
    given = tomllib.loads(source).get(section, {}).get(name, default)
    if isinstance(value, timedelta) and isinstance(given, str):
        try:
            given = parse_duration(given)
        except ValueError:
            return False
    return bool((tuple(given) if isinstance(given, list) else given) == value)


def write_chosen(
    path: Path, source: str, keys: Mapping[str, Any], expected: Mapping[str, Any], want: Want | DropWant, *, force: bool
) -> None:
    """Write ``source`` with other values at ``keys``. Exit 2 with the reason, and with any old file as it was, if it
    cannot be written, is no valid configuration, or is not read with the ``expected`` values of dotted keys. Never
    replaces a file without ``force``.
    """
    try:
        text = rewritten(source, keys, "by hexveil tune")
        with TemporaryDirectory() as folder:
            draft = Path(folder) / path.name
            draft.write_text(text, encoding="utf-8")
            _verify(draft, path, expected)
    except ConfigError as error:
        stop(f"{path} is not written. {error}")
    require_new(path, force=force)
    write_text(path, text)
    typer.echo(
        f"{path} written for {want}. What it says follows from the recording, so treat it as public. Check feed.name "
        f"and the paths in it, then run: hexveil check --config {path}",
        err=True,
    )


def _verify(draft: Path, path: Path, expected: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` unless the draft of ``path`` is read with the ``expected`` values of dotted keys."""
    try:
        loaded = load_to_release(Chosen(draft, path.parent, "written by hexveil tune"))
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(draft), str(path))) from None
    wrong = [
        f"{key} = {toml(_value_at(loaded, key))} instead of {toml(value)}"
        for key, value in expected.items()
        if _value_at(loaded, key) != value
    ]
    if wrong:
        raise ConfigError(f"It would be read as {'; '.join(wrong)}; unset the variables HEXVEIL_… that override it")


def _value_at(config: Config, key: str) -> Any:
    """Value of a dotted key, as the configuration file gives it; None in a section that there is not."""
    section, _, name = key.partition(".")
    values = getattr(config, section)
    return None if values is None else values.model_dump(by_alias=True)[name]


T = TypeVar("T")

_EXPECTED_TRIALS = 60
"""Length of the progress bar; a search rarely needs more."""


def command(
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
    write: Annotated[Path | None, typer.Option(help="Write the chosen configuration to this file.")] = None,
    force: Force = False,
    users_are_events: UsersAreEvents = False,
    as_json: AsJson = False,
) -> None:
    """Find the least budget and the settings whose map is as good as wanted. The output is NOT private: do not publish
    it."""
    from stream.cli import tune_report
    from stream.evaluation.drop_tuning import DropSearch
    from stream.evaluation.tuning import Search

    if not math.isfinite(budget):
        stop(f"--budget {budget} is not a number; write one like 12")
    if write is not None:
        check_target(write, force=force)
    chosen_file, settings = choose_settings(config, relation)
    _check_no_horizon(settings)
    source = chosen_file.file.read_text(encoding="utf-8")
    wanted = _wanted(want, settings)
    grids = _resolutions(resolutions, settings), _slots(slots, settings)
    rows = read_rows(settings, files, file_format or settings.feed.recorded_format, users_are_events=users_are_events)
    asked = {"recording": " ".join(map(str, files)), "budget": budget, "draws": draws}
    if isinstance(wanted, DropWant):
        short = {timedelta(minutes=minutes) for minutes in (5, 10, 15, 30)} | {settings.window.slot}
        fit = sorted(slot for slot in short if not settings.privacy.period % slot)
        live = grids[0], grids[1] if slots else fit
        result = _searched(
            lambda trial: f"H3 {trial.grid[0]}, {trial.grid[1]}, {trial.way}, budget {trial.budget:.3g}",
            lambda advance: DropSearch(chosen_file.file, rows, wanted, budget, draws, advance).run(
                *live, finest=finest
            ),
        )
        keys = {} if result.chosen is None else result.chosen.keys
        expected = tune_report.expected_of(keys)
        facts, print_all = tune_report.drop_report(result, wanted), tune_report.print_drop_tuning
        reached, print_report = result.chosen is not None, partial(print_all, result, wanted, budget)
    else:
        tuning = _searched(
            lambda trial: f"H3 {trial.grid[0]}, {trial.grid[1]}, ε {trial.outcome.epsilon:g}",
            lambda advance: Search(settings, rows, wanted, budget, draws, advance).run(*grids, finest=finest),
        )
        keys = {} if tuning.chosen is None else keys_for(tuning.chosen, settings, source, budget)
        expected = {} if tuning.chosen is None else tuning.chosen.setting.keys() | keys
        facts = tune_report.report(tuning, wanted, settings, keys)
        reached, print_report = (
            tuning.chosen is not None,
            partial(tune_report.print_tuning, tuning, wanted, budget, settings, keys),
        )
    warn_of_true_values()
    if as_json:
        typer.echo(json.dumps({"private": False, "warning": NOT_PRIVATE} | asked | facts, allow_nan=False))
    else:
        print_report()
    if not reached:
        raise typer.Exit(FAILED)
    if write is not None:
        write_chosen(write, source, keys, expected, wanted, force=force)


def _check_no_horizon(settings: Config) -> None:
    """Exit 2 with a horizon: which of its periods a user is in decides what is left, and a search knows one."""
    if settings.privacy.horizon is not None:
        stop(
            "tune searches the budget of one period and does not know privacy.horizon; take the horizon out to tune, "
            "put it back with at least the budget that tune chooses, and see by hexveil evaluate what it costs"
        )


def _wanted(text: str, settings: Config) -> Want | DropWant:
    if "mean" not in settings.speed.statistics:
        stop(f"speed.statistics {list(settings.speed.statistics)} has no mean, which --want is about; add it")
    try:
        value = settings.value
        drop = DropWant.parse(text, value.upper) if value.is_speed else None
        return Want.parse(text, value.upper - value.lower, value.unit) if drop is None else drop
    except ValueError as error:
        stop(f"--want: {error}")


def _resolutions(text: str | None, settings: Config) -> list[int]:
    if text is None:
        configured = settings.hexagons.resolution
        return [resolution for resolution in range(configured - 1, configured + 2) if 0 <= resolution <= 15]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 2 and int(part) <= 15 for part in parts):
        stop(f"--resolutions {text!r} must be whole numbers from 0 to 15; write them like 6,7,8")
    return sorted({int(part) for part in parts})


def _slots(text: str | None, settings: Config) -> list[timedelta]:
    """The timeslots of the search, ascending; exit 2 for one that the configuration could not have."""
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


def _searched(described: Callable[[Any], str], run: Callable[[Callable[[Any], None]], T]) -> T:
    with progress_bars() as bars:
        task = bars.add_task("tuning", total=_EXPECTED_TRIALS)
        return run(lambda trial: bars.update(task, advance=1, description=described(trial)))
