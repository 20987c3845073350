"""``python -m bench NAME``: runs one benchmark and prints its figures as JSON."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated, Any

import typer

from stream.cli.options import FAILED, UNREACHABLE, AsJson, stop
from stream.local.server import LocalServerError

BENCHMARKS = {
    "city_windows": "processor time, memory and Redis's longest command to close a city's window, from its rows to its "
    "bytes",
    "closing": "processor time to close a window as rows, users, cells and pairs grow, and the growth exponents",
    "dashboard": "time until Chromium has painted a new window of 10 000 hexagons",
    "defaults": "how useful the maps of the shipped configurations are, how often their intervals hold the truth, and "
    "for which budget",
    "faults": "hundreds of faults against real servers, and an independent check of everything that was released",
    "fuzz": "mutated inputs for everything that reads bytes: errors, wrong answers, hangs, memory (--target, "
    "--seconds)",
    "ingest": "events per second from Kafka into durable Redis state, compared with a plain Faust agent and, if "
    "installed, stream engines",
    "ingest_steps": "processor time of each step of ingestion per event, and of other ways to do it",
    "intervals": "how often intervals of modelled means contain the true mean, by class of events per cell, and their "
    "widths",
    "latency": "from the producer to durable state, and from the end of a window's delay to readers of the map, at 10, "
    "50 and 90 % of capacity",
    "libraries": "means per hexagon of one hour, and noise, compared with OpenDP and, if installed, PipelineDP",
    "mechanisms": "speed of noise, CHOP-USER and exact-loss allocation on 10⁶ pairs",
    "range_intervals": "how often intervals of range counts contain the true number, by class of counts, and their "
    "widths",
    "ratios": "processor time as a multiple of plain work in the same run; fails if it grew by more than 30 %",
    "snapshots": "a snapshot of GTFS-realtime, from its bytes to the acknowledgements of Kafka",
    "soak": "memory of every process over time under a steady flow, and its slope (--seconds, --rate)",
    "spatial": "accuracy of spatial histograms compared with published mechanisms, and their speed",
    "sse": "a thousand event streams on one core",
    "two_workers": "messages that two workers of one feed publish twice, with and without the lease",
    "workers": "processor time per million events when 1, 2 and 4 workers share 16 partitions",
}
"""Name of each benchmark, which is its module in ``bench``, and what it measures."""
EPILOG = "\n\n".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
_FAULTS = ("regressions", "violations")
"""Figures that list what must not be."""


app = typer.Typer(pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def main(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            envvar="HEXVEIL_BENCH_QUICK",
            help="Use small sizes, which take seconds. Do not quote these figures.",
        ),
    ] = False,
    target: Annotated[str | None, typer.Option("--target", help="Only this reader (fuzz).")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Length of the run, or of each target (fuzz, soak).")
    ] = None,
    rate: Annotated[int | None, typer.Option("--rate", min=1, help="Events per second (soak).")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one benchmark and print its figures as JSON.

    Benchmarks that need recordings look for them in the folder named by HEXVEIL_DATA. They skip what they do not
    find.
    """
    if name not in BENCHMARKS:
        stop(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    try:
        module = import_module(f"bench.{name}")
    except ModuleNotFoundError as error:
        stop(f"benchmark {name!r} needs {error.name}: pip install -e '.[dev]'")
    chosen = {"target": target, "seconds": seconds, "rate": rate}
    figures = _measured(name, module, quick, {key: value for key, value in chosen.items() if value is not None})
    if "skipped" in figures:
        typer.secho(f"skipped: {figures['skipped']}", err=True, fg=typer.colors.YELLOW)
    typer.echo(json.dumps({"benchmark": name, "quick": quick} | figures, indent=None if as_json else 2))
    if sentences := [sentence for what in _FAULTS for sentence in figures.get(what, [])]:
        stop("\n".join(sentences), FAILED)


def _measured(name: str, module: Any, quick: bool, options: dict[str, Any]) -> dict[str, Any]:
    for option in options:
        if f"--{option}" not in BENCHMARKS[name]:
            stop(f"benchmark {name!r} has no --{option}; leave it out")
    targets = getattr(module, "TARGETS", ())
    if options.get("target", next(iter(targets), None)) not in (targets or (None,)):
        stop(f"benchmark {name!r} has no target {options['target']!r}; choose one of {', '.join(targets)}")
    try:
        figures: dict[str, Any] = module.run(quick, **options)
    except LocalServerError as error:
        stop(error, UNREACHABLE)
    return figures


if __name__ == "__main__":
    app(prog_name="python -m bench")
