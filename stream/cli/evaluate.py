"""``hexveil evaluate``: compares releases of a recording with its true values. Its output is not private."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
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
    show,
    stop,
    table_of,
    warn_of_true_values,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.table import Table

    from stream.config import Chosen, Config
    from stream.evaluation.live import LiveScore
    from stream.evaluation.scores import HistogramScore, Score

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
        header = {"private": False, "warning": NOT_PRIVATE, "recording": " ".join(map(str, files)), "trials": trials}
        typer.echo(json.dumps(header | judged.facts, allow_nan=False))
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
    from stream.evaluation.evaluate import ACCOUNTINGS, VARIANTS

    known = list(VARIANTS if settings.relation == NeighbouringRelation.VALUES else ACCOUNTINGS)
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
    from stream.evaluation.evaluate import evaluate

    runs = _runs(settings, names, sweep)
    each = _each(runs, len(windows), lambda name, variant, on: evaluate(variant, windows, trials, name, on))
    scores = list(chain.from_iterable(each))
    return _Judgement({"scores": [asdict(score) for score in scores]}, lambda: _print_means(scores))


def _judged_live(settings: Config, names: list[str], sweep: str | None, windows: Windows, draws: int) -> _Judgement:
    from stream.evaluation.live import evaluate_live
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
    return _Judgement({"live": facts}, lambda: _print_live(scores), lambda figure: _plot_live(best, figure))


def _judged_histograms(
    settings: Config, names: list[str], sweep: str | None, windows: Windows, trials: int
) -> _Judgement:
    from stream.evaluation.histograms import evaluate_histograms, with_histogram_epsilon

    if settings.histogram is None:
        stop("the configuration has no section [histogram]; add one, as the comments in the shipped files show")
    epsilons = _values(sweep, settings.histogram.epsilon)
    runs = [("", _at(epsilon, with_histogram_epsilon, settings)) for epsilon in epsilons]
    each = _each(runs, len(windows), lambda _, variant, on: evaluate_histograms(variant, windows, trials, on))
    scores = list(chain.from_iterable(each))
    facts = {"histograms": [asdict(score) for score in scores]}
    return _Judgement(facts, lambda: _print_histograms(scores))


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


def _print_histograms(scores: list[HistogramScore]) -> None:
    """Print one row per mechanism, family of ranges and epsilon."""
    table = table_of(
        scores,
        {"mechanism": lambda score: score.mechanism, "ranges": lambda score: score.ranges},
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "counted": lambda score: f"{score.counted:.0f}",
            "MAE": lambda score: f"{score.mae:.1f}",
            "relative": lambda score: f"{score.relative:.1%}",
            "its median": lambda score: f"{score.relative_median:.1%}",
            "95 % width": lambda score: _number(score.width, ".0f"),
            "covers": lambda score: _number(score.coverage, ".1%", ""),
            "least class": lambda score: _number(min(score.covered.values(), default=None), ".1%", ""),
            "seconds": lambda score: f"{score.seconds:.1f}",
        },
        "Error of range counts against the truth (NOT PRIVATE)",
    )
    show(table, width=140)


def _print_means(scores: list[Score]) -> None:
    """Errors of every estimator, then charges and wall time of every run, then the worst cells."""
    of_runs: dict[tuple[str, float], Score] = {}
    for score in scores:
        of_runs.setdefault((score.mechanism, score.epsilon), score)
    errors = table_of(
        scores,
        {
            "mechanism": lambda score: score.mechanism,
            "statistic": lambda score: score.statistic,
            "estimator": lambda score: score.estimator,
        },
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "MAE": lambda score: _number(score.mae, _decimals(score)),
            "RMSE": lambda score: _number(score.rmse, _decimals(score)),
            "bias": lambda score: _number(score.bias, f"+{_decimals(score)}"),
            "noise": lambda score: _number(score.noise, ".2f", ""),
            "E": lambda score: _number(score.worst_error, ".1f", ""),
            "unit": lambda score: score.unit,
            "95 % covers": lambda score: _number(score.coverage, ".1%", ""),
            "released events": lambda score: f"{score.released:.0%}",
            "useful events": lambda score: _number(score.useful_coverage, ".0%", ""),
            "useful cells": lambda score: _number(score.useful_cells, ".0%", ""),
        },
        "Error against the truth, weighted by events (NOT PRIVATE)",
    )
    runs = table_of(
        of_runs.values(),
        {"mechanism": lambda score: score.mechanism},
        {
            "ε": lambda score: f"{score.epsilon:g}",
            "unit": lambda score: score.charges.unit,
            "min": lambda score: f"{score.charges.least:.0f}",
            "p5": lambda score: f"{score.charges.p5:.0f}",
            "median": lambda score: f"{score.charges.median:.0f}",
            "p95": lambda score: f"{score.charges.p95:.0f}",
            "max": lambda score: f"{score.charges.most:.0f}",
            "duality gap": lambda score: _number(score.duality_gap, ".1e", ""),
            "windows": lambda score: str(score.windows),
            "plans": _plans,
            "cells": lambda score: str(score.cells),
            "seconds": lambda score: f"{score.seconds:.1f}",
        },
        "Runs: charges of users in a window (NOT PRIVATE), duality gap of the noise scales, wall time",
    )
    show(errors, runs)
    if known := [score for score in scores if score.cell_coverage]:
        show(_worst_cells(known))


_WORST = 5
"""Cells that are named of each estimator."""


def _worst_cells(scores: list[Score]) -> Table:
    """The cells whose intervals miss the mean most often; clipped speeds are those that a release can tell."""
    missed = [f"{sum(c.covers_measured < 0.5 for c in s.cell_coverage)} of {len(s.cell_coverage)}" for s in scores]
    return table_of(
        [(score, cell) for score in scores for cell in score.cell_coverage[:_WORST]],
        {
            "mechanism": lambda row: row[0].mechanism,
            "estimator": lambda row: row[0].estimator,
            "cell": lambda row: row[1].cell,
        },
        {
            "ε": lambda row: f"{row[0].epsilon:g}",
            "releases": lambda row: str(row[1].releases),
            "events": lambda row: str(row[1].events),
            "shown": lambda row: f"{row[1].shown:.1f}",
            "clipped": lambda row: f"{row[1].clipped:.1f}",
            "measured": lambda row: f"{row[1].measured:.1f}",
            "covers clipped": lambda row: f"{row[1].covers_clipped:.0%}",
            "covers measured": lambda row: f"{row[1].covers_measured:.0%}",
        },
        "Worst cells: 95 % intervals of the mean that hold the truth, clipped and measured (NOT PRIVATE)",
        f"Cells that miss most times, of each estimator in turn: {', '.join(missed)}.",
    )


def _decimals(score: Score) -> str:
    return ".3f" if score.statistic == "distribution" else ".2f"


def _number(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else f"{value:{form}}"


def _plans(score: Score) -> str:
    """What the windows' plans retained, and the most cells of one user before and after."""
    if not score.plans:
        return ""
    before, after = score.most_cells
    return ", ".join(f"{name} {windows}" for name, windows in score.plans.items()) + f"; K {before} → {after}"


def _print_live(scores: Sequence[LiveScore]) -> None:
    """One row for each configuration; then what skill is measured against, and what was planted."""
    minutes = () if (incident := scores[0].incident) is None else incident.minutes

    def seen(window: int) -> Callable[[LiveScore], str]:
        return lambda score: (
            "" if score.incident is None else f"{score.incident.seen[window]:.0%}, {score.incident.flagged[window]:.0%}"
        )

    table = table_of(
        scores,
        {"mechanism": lambda score: score.mechanism},
        {
            "ε a period": lambda score: f"{score.budget:.3g}",
            "shown": lambda score: f"{score.shown:.0%}",
            "MAE": lambda score: _number(score.mae, ".1f"),
            "useful": lambda score: f"{score.useful:.0%}",
            "half-width": lambda score: "-" if score.half_width is None else f"±{score.half_width:.1f}",
            "covers events": lambda score: _number(score.covers_events, ".1%"),
            "covers cells": lambda score: _number(score.covers_cells, ".1%"),
            "skill": lambda score: f"{score.skill:+.2f}",
            "oracle": lambda score: f"{score.oracle:+.2f}",
        }
        | {f"{each:g} min": seen(window) for window, each in enumerate(minutes)},
        "The live map against the truth, weighted by events (NOT PRIVATE)",
        _explained(scores[0]),
    )
    show(table)


def _explained(score: LiveScore) -> str:
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


def _plot_live(score: LiveScore, path: Path) -> None:
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
