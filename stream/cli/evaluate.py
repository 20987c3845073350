"""``hexveil evaluate``: error of the releases against the truth, over a recording. Not private."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stream.cli.options import USAGE, AsJson, ConfigFile, choose_config, read_config, stop

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stream.config import Config
    from stream.evaluation.histograms import HistogramScore
    from stream.evaluation.scores import Score


class Relation(StrEnum):
    """What neighbouring histories differ in."""

    values = "values"
    participation = "participation"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("evaluate")
    def evaluate_recording(
        file: Annotated[Path, typer.Argument(help="CSV or NDJSON, plain or .gz.")],
        config: ConfigFile = None,
        relation: Annotated[
            Relation | None, typer.Option(help="Which guarantee: refused if the configuration has the other one.")
        ] = None,
        file_format: Annotated[
            str | None, typer.Option("--format", help="Format of the file; default: the feed's.")
        ] = None,
        trials: Annotated[int, typer.Option(min=1, help="Draws of noise per window.")] = 5,
        mechanisms: Annotated[
            str,
            typer.Option(help="'configured', 'all', or names separated by commas; under 'participation' pure,zcdp."),
        ] = "configured",
        statistics: Annotated[
            str | None, typer.Option(help="mean,variance,p15,p50,p85: those instead of the configuration's.")
        ] = None,
        sweep: Annotated[str | None, typer.Option(help="epsilon=0.5,1,2,4: repeat for each value.")] = None,
        window: Annotated[
            str | None, typer.Option(help="Only the window that starts then (2017-03-21T12:00:00Z).")
        ] = None,
        figure: Annotated[
            Path | None, typer.Option("--plot", help="Write error against epsilon and a map of error (PNG or SVG).")
        ] = None,
        histograms: Annotated[
            bool, typer.Option("--histograms", help="Judge the spatial histograms; --sweep then means theirs.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Judge mechanisms on a recording before going live. Its output is NOT private and must not be published."""
        from stream.evaluation.evaluate import NOT_PRIVATE, evaluate, report, variant_names, variants, with_epsilon
        from stream.ingestion.pseudonyms import UserKeyError
        from stream.offline import read_recording, split_by_slot
        from stream.sources.lines import RecordingError
        from stream.sources.recognition import require_events
        from stream.statistics.participation.public_cells import public_cells
        from stream.windows import utc_text

        overrides = {"speed.statistics": statistics.split(",")} if statistics else {}
        chosen = choose_config(config, relation)
        settings = read_config(chosen, **overrides)
        if relation is not None and settings.relation != relation.value:
            stop(
                f"{chosen.file} has relation {settings.relation.value!r}, not {relation.value!r}; name another file",
                USAGE,
            )
        names = (
            ["configured"]
            if mechanisms == "configured"
            else variant_names(settings)
            if mechanisms == "all"
            else mechanisms.split(",")
        )
        known = variant_names(settings)
        unknown = sorted(set(names) - set(known) - {"configured"})
        if unknown:
            stop(
                f"no mechanism {', '.join(unknown)} under relation '{settings.relation}'; choose among configured, "
                f"{', '.join(known)}",
                USAGE,
            )
        try:
            rows, refusals = read_recording(settings, file, file_format or settings.feed.format)
            require_events(file, len(rows), refusals)
        except (RecordingError, UserKeyError) as error:
            stop(str(error), USAGE)
        windows = split_by_slot(rows, settings)
        if window is not None:
            windows = {slot: part for slot, part in windows.items() if utc_text(slot) == window}
        if not windows:
            stop(f"no window starts at {window}; name the start of one that has events", USAGE)
        try:
            if settings.participation is not None:
                public_cells(settings)
            if histograms:
                _judge_histograms(settings, windows, trials, sweep, str(file), as_json)
                return
            runs = [
                (name, variant)
                for epsilon in _values(sweep, settings.privacy.epsilon)
                for name, variant in variants(settings if sweep is None else with_epsilon(settings, epsilon), names)
            ]
        except ValueError as error:  # an epsilon out of bounds, an area that gives no cells
            stop(str(error), USAGE)
        scores = []
        with _progress() as bars:
            task = bars.add_task("evaluating", total=len(runs) * len(windows))
            for name, variant in runs:
                scores += evaluate(variant, windows, trials, name, lambda: bars.advance(task))
        if figure is not None:
            _write_plot(scores, figure)
        if as_json:
            typer.echo(json.dumps(report(str(file), trials, scores)))
            return
        typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)
        _print(scores)


def _judge_histograms(
    settings: Config,
    windows: dict[int, npt.NDArray[np.void]],
    trials: int,
    sweep: str | None,
    source: str,
    as_json: bool,
) -> None:
    from stream.evaluation.evaluate import NOT_PRIVATE
    from stream.evaluation.histograms import evaluate_histograms, with_histogram_epsilon

    if settings.histogram is None:
        stop("the configuration has no [histogram]; add the section, as the comments of the shipped files show", USAGE)
    epsilons = _values(sweep, settings.histogram.epsilon)
    scores: list[HistogramScore] = []
    with _progress() as bars:
        task = bars.add_task("evaluating", total=len(epsilons) * len(windows))
        for epsilon in epsilons:
            chosen = with_histogram_epsilon(settings, epsilon)
            scores += evaluate_histograms(chosen, windows, trials, lambda: bars.advance(task))
    if as_json:
        said = {"private": False, "warning": NOT_PRIVATE, "recording": source, "trials": trials}
        typer.echo(json.dumps(said | {"histograms": [asdict(score) for score in scores]}))
        return
    typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)
    table = Table(title="Error of range counts against the truth (NOT PRIVATE)")
    for name in ("mechanism", "ranges"):
        table.add_column(name)
    for name in ("ε", "counted", "MAE", "relative", "its median", "95 % width", "covers", "least class", "seconds"):
        table.add_column(name, justify="right")
    for score in scores:
        table.add_row(
            score.mechanism,
            score.ranges,
            f"{score.epsilon:g}",
            f"{score.counted:.0f}",
            f"{score.mae:.1f}",
            f"{score.relative:.1%}",
            f"{score.relative_median:.1%}",
            "-" if score.width is None else f"{score.width:.0f}",
            _percent(score.coverage, 1),
            _percent(min(score.covered.values(), default=None), 1),
            f"{score.seconds:.1f}",
        )
    Console(width=None if Console().is_terminal else 140).print(table)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _values(sweep: str | None, present: float) -> list[float]:
    if sweep is None:
        return [present]
    name, _, text = sweep.partition("=")
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if name != "epsilon" or not values or min(values) <= 0:
        stop(f"cannot sweep {sweep!r}; write epsilon=0.5,1,2,4 with positive numbers", USAGE)
    return values


def _print(scores: list[Score]) -> None:
    width = None if Console().is_terminal else 160
    errors = Table(title="Error against the truth, weighted by events (NOT PRIVATE)")
    for name in ("mechanism", "statistic", "estimator"):
        errors.add_column(name)
    for name in ("ε", "MAE", "RMSE", "bias", "noise", "unit", "95 % covers", "useful events", "useful cells"):
        errors.add_column(name, justify="right")
    runs = Table(title="Runs: charges of users in a window (NOT PRIVATE), duality gap of the noise scales, wall time")
    runs.add_column("mechanism")
    for name in ("ε", "unit", "min", "p5", "median", "p95", "max", "duality gap", "windows", "cells", "seconds"):
        runs.add_column(name, justify="right")
    seen = set()
    for score in scores:
        digits = 3 if score.statistic == "distribution" else 2
        errors.add_row(
            score.mechanism,
            score.statistic,
            score.estimator,
            f"{score.epsilon:g}",
            f"{score.mae:.{digits}f}",
            f"{score.rmse:.{digits}f}",
            f"{score.bias:+.{digits}f}",
            "" if score.noise is None else f"{score.noise:.2f}",
            score.unit,
            _percent(score.coverage, 1),
            _percent(score.useful_coverage),
            _percent(score.useful_cells),
        )
        if (score.mechanism, score.epsilon) not in seen:
            seen.add((score.mechanism, score.epsilon))
            charges = score.charges
            spread = (charges.least, charges.p5, charges.median, charges.p95, charges.most)
            gap = "" if score.duality_gap is None else f"{score.duality_gap:.1e}"
            runs.add_row(
                score.mechanism,
                f"{score.epsilon:g}",
                charges.unit,
                *(f"{charge:.0f}" for charge in spread),
                gap,
                str(score.windows),
                str(score.cells),
                f"{score.seconds:.1f}",
            )
    console = Console(width=width)
    console.print(errors)
    console.print(runs)


def _percent(share: float | None, digits: int = 0) -> str:
    return "" if share is None else f"{share:.{digits}%}"


def _write_plot(scores: list[Score], path: Path) -> None:
    from stream.cli.evaluate_plot import plot

    try:
        plot(scores, path)
    except ImportError:
        stop("plots need matplotlib: pip install 'hexveil[plot]'", USAGE)
    except (OSError, ValueError) as error:
        stop(f"cannot write {path}: {error}; name a .png, .svg or .pdf in a folder that exists", USAGE)
