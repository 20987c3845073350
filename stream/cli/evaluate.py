"""``hexveil evaluate``: error of the releases against the truth, over a recording. Not private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stream.cli.options import DEFAULT_CONFIG, USAGE, AsJson, ConfigFile, read_config, stop


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("evaluate")
    def evaluate_recording(
        file: Annotated[Path, typer.Argument(help="CSV or NDJSON, plain or .gz.")],
        config: ConfigFile = DEFAULT_CONFIG,
        file_format: Annotated[
            str | None, typer.Option("--format", help="Format of the file; default: the feed's.")
        ] = None,
        trials: Annotated[int, typer.Option(min=1, help="Draws of noise per window.")] = 5,
        mechanisms: Annotated[
            str, typer.Option(help="'configured', 'all', or names separated by commas.")
        ] = "configured",
        sweep: Annotated[str | None, typer.Option(help="epsilon=0.5,1,2,4: repeat for each value.")] = None,
        window: Annotated[
            str | None, typer.Option(help="Only the window that starts then (2017-03-21T12:00:00Z).")
        ] = None,
        plot: Annotated[Path | None, typer.Option(help="Write a plot of error against epsilon (PNG or SVG).")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Judge mechanisms on a recording before going live. Its output is NOT private and must not be published."""
        from stream.evaluate import NOT_PRIVATE, VARIANTS, evaluate, report, variants, with_epsilon
        from stream.offline import read_recording, split_by_slot
        from stream.sources.lines import RecordingError
        from stream.windows import utc_text

        settings = read_config(config)
        names = (
            ["configured"]
            if mechanisms == "configured"
            else list(VARIANTS)
            if mechanisms == "all"
            else mechanisms.split(",")
        )
        unknown = sorted(set(names) - set(VARIANTS) - {"configured"})
        if unknown:
            stop(f"no mechanism {', '.join(unknown)}; choose among configured, {', '.join(VARIANTS)}", USAGE)
        try:
            rows, _ = read_recording(settings, file, file_format or settings.feed.format)
        except RecordingError as error:
            stop(str(error), USAGE)
        windows = split_by_slot(rows, settings)
        if window is not None:
            windows = {slot: part for slot, part in windows.items() if utc_text(slot) == window}
        if not windows:
            stop("no events to evaluate: an empty recording, or no window of that start", USAGE)
        runs = [
            (name, with_epsilon(chosen, epsilon))
            for epsilon in _values(sweep, settings.privacy.epsilon)
            for name, chosen in variants(settings, names)
        ]
        scores = []
        with Progress(
            console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal
        ) as bars:
            task = bars.add_task("evaluating", total=len(runs) * len(windows))
            for name, chosen in runs:
                scores += evaluate(chosen, windows, trials, name, lambda: bars.advance(task))
        if plot is not None:
            _plot(scores, plot)
        if as_json:
            typer.echo(json.dumps(report(str(file), trials, scores)))
            return
        typer.secho(NOT_PRIVATE, err=True, fg=typer.colors.RED, bold=True)
        _print(scores)


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


def _print(scores: list[Any]) -> None:
    table = Table(title="Event-weighted error against the truth (not private)")
    for column in (
        "mechanism",
        "statistic",
        "estimator",
        "ε",
        "MAE",
        "RMSE",
        "bias",
        "noise",
        "coverage",
        "useful",
        "s",
    ):
        table.add_column(column, justify="left" if column in ("mechanism", "statistic", "estimator") else "right")
    for score in scores:
        table.add_row(
            score.mechanism,
            score.statistic,
            score.estimator,
            f"{score.epsilon:g}",
            f"{score.mae:.2f}",
            f"{score.rmse:.2f}",
            f"{score.bias:+.2f}",
            "" if score.noise is None else f"{score.noise:.2f}",
            "" if score.coverage is None else f"{score.coverage:.1%}",
            "" if score.useful_coverage is None else f"{score.useful_coverage:.0%}",
            f"{score.seconds:.1f}",
        )
    Console(width=None if Console().is_terminal else 150).print(table)


def _plot(scores: list[Any], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        stop("plots need matplotlib: pip install 'hexveil[plot]'", USAGE)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for score in scores:
        if score.statistic == "mean":
            lines.setdefault((score.mechanism, score.estimator), []).append((score.epsilon, score.mae))
    for (mechanism, estimator), points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=f"{mechanism}, {estimator}")
    axes.set(
        xlabel="epsilon per user and window",
        ylabel="event-weighted error of the mean, km/h",
        xscale="log",
        yscale="log",
    )
    axes.set_title("Not private: evaluation against true values")
    axes.legend()
    figure.savefig(path)
