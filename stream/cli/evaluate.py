"""``hexveil evaluate``: compares releases of a recording with its true values. Its output is not private."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.options import (
    NOT_PRIVATE,
    AsJson,
    ConfigFile,
    ExpectedRelation,
    FileFormat,
    Recordings,
    UsersAreEvents,
    check_plot,
    choose_config,
    load_to_release,
    progress_bars,
    reading_bar,
    stop,
    warn_of_true_values,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stream.config import Chosen, Config

    Windows = dict[int, npt.NDArray[np.void]]


T = TypeVar("T")


def command(
    files: Recordings,
    config: ConfigFile = None,
    relation: ExpectedRelation = None,
    file_format: FileFormat = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of draws of noise per window.")] = 5,
    mechanisms: Annotated[
        str, typer.Option(help="'configured', 'all', or names separated by commas; under 'participation' pure,zcdp.")
    ] = "configured",
    sweep: Annotated[str | None, typer.Option(help="Repeat for each value, like epsilon=0.5,1,2,4.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--plot", help="With --live: draw busy cells over the day into this file (PNG, SVG or PDF)."),
    ] = None,
    histograms: Annotated[
        bool, typer.Option("--histograms", help="Evaluate the spatial histograms; --sweep then changes their epsilon.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Judge the live map: its skill against the typical map, and how soon it shows a planted incident.",
        ),
    ] = False,
    users_are_events: UsersAreEvents = False,
    as_json: AsJson = False,
) -> None:
    """Measure the error of mechanisms on a recording, before going live. The output is NOT private: do not publish
    it."""
    from stream.offline import split_by_slot

    if live and histograms:
        stop("--live needs the means; leave out --histograms")
    if figure is not None:
        if not live:
            stop("--plot draws the live map; add --live")
        check_plot(figure)
    settings = choose_settings(config, relation)[1]
    names = _mechanisms(settings, mechanisms)
    rows = read_rows(settings, files, file_format or settings.feed.recorded_format, users_are_events=users_are_events)
    judge = _judged_histograms if histograms else _judged_live if live else _judged_means
    try:
        judged = judge(settings, names, sweep, split_by_slot(rows, settings), trials)
    except ValueError as error:  # an accounting that the configuration does not allow
        stop(error)
    if figure is not None:
        try:
            judged.draw(figure)
        except OSError as error:
            stop(f"cannot write {figure}: {error}")
    if as_json:
        told = {"private": False, "warning": NOT_PRIVATE, "recording": " ".join(map(str, files)), "trials": trials}
        typer.echo(json.dumps(told | judged.facts, allow_nan=False))
        return
    warn_of_true_values()
    judged.show()


class _Judgement(NamedTuple):
    """What was found: for machines, for people, as a figure."""

    facts: dict[str, Any]
    show: Callable[[], None]
    draw: Callable[[Path], None] = lambda figure: None


def choose_settings(config: Path | None, relation: NeighbouringRelation | None) -> tuple[Chosen, Config]:
    """The chosen configuration and its file; exit 2 if its relation is not the one asked for."""
    chosen = choose_config(config, relation)
    settings = load_to_release(chosen)
    if relation is not None and settings.relation != relation:
        stop(f"{chosen.file} has relation {settings.relation.value!r}, not {relation.value!r}; name another file")
    return chosen, settings


def _mechanisms(settings: Config, mechanisms: str) -> list[str]:
    from stream.evaluation.evaluate import variant_names

    known = variant_names(settings)
    names = known if mechanisms == "all" else mechanisms.split(",")
    unknown = sorted(set(names) - set(known) - {"configured"})
    if unknown:
        stop(
            f"no mechanism {', '.join(unknown)} under relation '{settings.relation}'; choose from configured, "
            f"{', '.join(known)}"
        )
    return names


def read_rows(settings: Config, files: list[Path], file_format: str, *, users_are_events: bool) -> npt.NDArray[np.void]:
    """Rows of the recording, events or snapshots; exit 2 if it cannot be read, has no events, or no users."""
    from stream.diagnosis.reading import Accepted, judged, read_recording, require_events
    from stream.diagnosis.snapshots import read_snapshots, snapshots_in
    from stream.sources.lines import STDIN
    from stream.sources.recording import together

    accepted = Accepted(any_speed=True, users_are_events=users_are_events)
    try:
        path = together(files)
        snapshots = None if path == STDIN else snapshots_in(path)
        if snapshots is None:
            with reading_bar() as on_progress:
                rows, refusals = read_recording(settings, path, file_format, on_progress)
        else:
            rows, refusals, reader = read_snapshots(settings, path, snapshots[1])
            accepted, file_format = replace(accepted, reader=reader), "canonical"
        require_events(path, refusals)
        for note in judged(rows, refusals, settings, path, file_format, accepted):
            typer.echo(f"Note: {note}", err=True)
    except OSError as error:
        stop(error)
    return rows


def _runs(settings: Config, names: list[str], sweep: str | None) -> list[tuple[str, Config]]:
    """Every named variant at every epsilon of ``sweep``; exit 2 for an epsilon that no configuration may have."""
    from stream.evaluation.evaluate import variants, with_epsilon

    return [
        run
        for epsilon in _values(sweep, settings.privacy.epsilon)
        for run in variants(settings if sweep is None else _at(epsilon, with_epsilon, settings), names)
    ]


def _each(runs: list[tuple[str, Config]], steps: int, score: Callable[[str, Config, Callable[[], None]], T]) -> list[T]:
    with progress_bars() as bars:
        task = bars.add_task("evaluating", total=len(runs) * steps)
        return [score(name, variant, lambda: bars.advance(task)) for name, variant in runs]


def _judged_means(settings: Config, names: list[str], sweep: str | None, windows: Windows, trials: int) -> _Judgement:
    from stream.cli.evaluate_report import print_scores
    from stream.evaluation.evaluate import evaluate

    runs = _runs(settings, names, sweep)
    each = _each(runs, len(windows), lambda name, variant, on: evaluate(variant, windows, trials, name, on))
    scores = list(chain.from_iterable(each))
    return _Judgement({"scores": [asdict(score) for score in scores]}, lambda: print_scores(scores))


def _judged_live(settings: Config, names: list[str], sweep: str | None, windows: Windows, draws: int) -> _Judgement:
    from stream.cli.evaluate_report import plot_live, print_live_scores
    from stream.evaluation.live import LiveScore, evaluate_live
    from stream.evaluation.living import exact_windows

    if "mean" not in settings.speed.statistics:
        stop("speed.statistics has no mean, which --live is about; add it")
    if not settings.value.is_speed:
        stop("--live plants vehicles that slow down, and value.name is no speed; leave --live out")

    def score(name: str, variant: Config, on_window: Callable[[], None]) -> LiveScore:
        return evaluate_live(variant, exact_windows(variant, windows), draws, name, on_window)

    scores = _each(_runs(settings, names, sweep), len(windows) * draws, score)
    best = max(scores, key=lambda score: score.skill)
    facts = [score.facts() for score in scores]
    return _Judgement({"live": facts}, lambda: print_live_scores(scores), lambda figure: plot_live(best, figure))


def _judged_histograms(
    settings: Config, names: list[str], sweep: str | None, windows: Windows, trials: int
) -> _Judgement:
    from stream.cli.evaluate_report import print_histogram_scores
    from stream.evaluation.histograms import evaluate_histograms, with_histogram_epsilon

    if settings.histogram is None:
        stop("the configuration has no section [histogram]; add one, as the comments in the shipped files show")
    epsilons = _values(sweep, settings.histogram.epsilon)
    runs = [("", _at(epsilon, with_histogram_epsilon, settings)) for epsilon in epsilons]
    each = _each(runs, len(windows), lambda _, variant, on: evaluate_histograms(variant, windows, trials, on))
    scores = list(chain.from_iterable(each))
    facts = {"histograms": [asdict(score) for score in scores]}
    return _Judgement(facts, lambda: print_histogram_scores(scores))


def _values(sweep: str | None, present: float) -> list[float]:
    if sweep is None:
        return [present]
    name, _, text = sweep.partition("=")
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if name != "epsilon" or not values or not all(0 < value < math.inf for value in values):
        stop(f"cannot sweep {sweep!r}; write epsilon=0.5,1,2,4 with positive numbers")
    return values


def _at(epsilon: float, change: Callable[[Config, float], Config], settings: Config) -> Config:
    """``settings`` after a ``change`` to ``epsilon``; exit 2 if it is beyond what a configuration may say."""
    from stream.config import ConfigError

    try:
        return change(settings, epsilon)
    except ConfigError as error:
        stop(f"cannot sweep epsilon={epsilon:g}: {error}")
