"""``hexveil inspect``: says what a feed holds and which configuration fits it. Its output is not private."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shlex
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.feeding import iso
from stream.cli.options import AsJson, ConfigFile, Force, check_plot, choose_config, require_new, stop, write_text

if TYPE_CHECKING:
    from stream.config import Config
    from stream.diagnosis.inspection import Inspection, Suggestion
    from stream.diagnosis.measures import Measures
    from stream.diagnosis.reading import Observations


NOT_PRIVATE = (
    "NOT PRIVATE: what follows are true facts about users. Keep it inside the trust boundary, and publish none of it."
)


def command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|TOPIC|URL",
            help="Parquet, CSV, NDJSON, GTFS-realtime or SIRI-VM, a folder of them, or several; '-' is standard input.",
        ),
    ],
    write: Annotated[Path | None, typer.Option(help="Write the suggested configuration to this file.")] = None,
    relation: Annotated[
        NeighbouringRelation | None,
        typer.Option(
            help="Relation of --write. values: scheduled transport; participation: private cars, taxis, riders."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a map and histograms into this file (PNG, SVG or PDF).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Look at so many fixes at most.")] = 1_000_000,
    force: Force = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Look at a feed inside the trust boundary: what it holds, its faults, and which configuration fits."""
    if write is not None and relation is None:
        raise typer.BadParameter(
            "with --write, say what is protected: values or participation", param_hint="--relation"
        )
    if write is not None:
        require_new(write, force=force)
    if plot is not None:
        check_plot(plot)
    from stream.config import load_config
    from stream.sources.recording import together

    given = None if config is None else load_config(choose_config(config))
    source = sources[0] if len(sources) == 1 else str(together(list(map(Path, sources))))
    report = _inspected(source, limit, given, config)
    _report(report, sources, config, as_json)
    if plot is not None:
        try:
            _plot_feed(report.seen, report.measures, plot)
        except OSError as error:
            stop(f"cannot write {plot}: {error}")
    if write is not None and relation is not None:
        _write(write, relation, report.suggestions)


def _report(report: Inspection, sources: list[str], config: Path | None, as_json: bool) -> None:
    typer.echo(NOT_PRIVATE, err=True)
    if as_json:
        facts = {
            "kind": report.seen.kind,
            **asdict(report.measures),
            "usable": report.usable,
            "refused": dict(report.refused),
        }
        suggested = [vars(line) for line in report.suggestions]
        typer.echo(json.dumps(facts | {"problems": report.problems, "suggestions": suggested}, allow_nan=False))
    else:
        _print(report, sources, config)


def _inspected(source: str, limit: int, given: Config | None, config: Path | None) -> Inspection:
    from stream.diagnosis.inspection import inspect
    from stream.diagnosis.observing import observe_file
    from stream.diagnosis.reading import InspectionError
    from stream.sources.lines import RecordingError, StandardInput

    path = Path(source)
    is_address = source.lower().startswith(("http://", "https://"))
    if is_address or source == "-":
        with tempfile.TemporaryDirectory() as folder:  # it is read more than once
            copy = Path(folder) / "the answer"
            if is_address:
                copy.write_bytes(asyncio.run(_fetched(source)))
            else:
                with StandardInput().spool() as spooled, copy.open("wb") as file:
                    shutil.copyfileobj(spooled, file)
            try:
                return inspect(observe_file(copy, limit, given), copy, given, limit)
            except (InspectionError, RecordingError) as error:
                raise InspectionError(str(error).replace(f"{folder}{os.sep}", "")) from None
    if os.path.exists(source):  # Path.exists raises for a name that is too long
        return inspect(observe_file(path, limit, given), path, given, limit)
    if "/" in source or path.suffix in (".csv", ".ndjson", ".json", ".parquet", ".pb", ".gz"):
        raise InspectionError(f"{source}: no such file")
    return _of_topic(source, limit, given, config)


def _of_topic(topic: str, limit: int, given: Config | None, config: Path | None) -> Inspection:
    from stream.config import load_config
    from stream.diagnosis.inspection import inspect
    from stream.diagnosis.live import newest_messages
    from stream.diagnosis.observing import observe_messages

    kafka = load_config(choose_config(config)).kafka
    values, arrived_us, unread = asyncio.run(newest_messages(kafka, topic, limit))
    report = inspect(observe_messages(values, arrived_us, limit, given), (values, arrived_us), given)
    return replace(report, refused=report.refused + unread)


async def _fetched(url: str) -> bytes:
    from stream.diagnosis.reading import InspectionError
    from stream.sources.polling import Poller, PollSettings

    try:
        poller = Poller(url, PollSettings())
    except ValueError as error:
        raise InspectionError(str(error)) from None
    async with poller:
        return await poller.fetch() or b""


def _print(report: Inspection, sources: list[str], config: Path | None) -> None:
    for name, text in _facts(report):
        typer.echo(f"{name:>12}  {text}")
    typer.echo("\nFaults" if report.problems else "\nNo faults")
    for sentence in report.problems:
        typer.echo(f"  - {sentence}")
    if report.suggestions:
        typer.echo("\nA configuration that fits (hexveil inspect … --write hexveil.toml)")
    shown = [line for line in report.suggestions if line.value is not None]
    for section in dict.fromkeys(line.section for line in shown):
        typer.echo(f"  [{section}]")
        for line in (line for line in shown if line.section == section):
            typer.echo(f"  {line.key} = {line.value}  # {line.reason}")
    if report.suggestions:
        typer.echo("\nNext")
        for command in _next(report, sources, config):
            typer.echo(f"  {command}")


def _next(report: Inspection, sources: list[str], config: Path | None) -> list[str]:
    """The commands that come next: write and check the configuration, then release what was inspected."""
    file, quoted = str(config or "hexveil.toml"), shlex.join(sources)
    first = [] if config else [f"hexveil inspect {quoted} --relation values --write {file}    # or participation"]
    if os.path.exists(sources[0]):
        last = f"{report.seen.command} {quoted} --offline --config {file} --out releases.ndjson"
    else:
        last = f"{report.seen.command} {quoted if report.seen.is_live else ''} --config {file}".replace("  ", " ")
    wanted = f"hexveil tune {quoted} --config {file} --want '+-8 km/h for 80 % of events' --budget 12"
    return [*first, f"hexveil check --config {file}", *([] if first else [wanted]), last][:3]


def _facts(report: Inspection) -> list[tuple[str, str]]:
    seen, measures = report.seen, report.measures
    speeds = measures.speeds
    refused = "".join(f"; {count} {reason}" for reason, count in report.refused.most_common())
    facts = [
        ("source", f"{seen.kind}, format {seen.format!r}"),
        ("events", f"{report.usable + report.refused.total()}, {report.usable} usable{refused}"),
        ("vehicles", f"{measures.vehicles}, {measures.on_road} at a time"),
    ]
    if measures.first_us is not None and measures.last_us is not None:
        facts.append(("span", f"{iso(measures.first_us)} to {iso(measures.last_us)}"))
    if measures.middle is not None:
        facts.append(
            ("place", "latitude {:.2f}, longitude {:.2f} in the median: look it up on a map".format(*measures.middle))
        )
    if measures.interval_s is not None:
        low, middle, high = measures.interval_s
        facts.append(("interval", f"{middle:g} s between fixes of a vehicle (10 % below {low:g}, 10 % above {high:g})"))
    shares = f"{speeds.known:.0%} of the fixes have one, {speeds.zero:.0%} are 0"
    if speeds.mean is not None:
        shares += f"; mean {speeds.mean:.2f}, 99 % below {speeds.p99:.2f}, in the feed's own unit"
    facts.append(("speeds", shares))
    if speeds.derived_kmh is not None:
        fits = f"; agrees in {', '.join(speeds.fits)}" if speeds.fits else "; agrees in no unit"
        facts.append(("positions", f"{speeds.derived_kmh:.1f} km/h in the mean over {speeds.pairs} steps{fits}"))
    return facts


_BINS = 60


def _plot_feed(seen: Observations, measures: Measures, path: Path) -> None:
    """Draw where the fixes are, how far apart in time, how fast."""
    import numpy as np  # slow to import, as matplotlib is
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    places, intervals, speeds = figure.subplots(1, 3)
    figure.suptitle("NOT PRIVATE: true positions and speeds", color="firebrick", fontweight="bold")
    if measures.box is not None:
        south, west, north, east = measures.box
        counts = places.hist2d(
            np.where((west > east) & (seen.lng < west), seen.lng + 360, seen.lng),
            seen.lat,
            bins=_BINS,
            range=((west, max(east + 360 * (west > east), west + 1e-3)), (south, max(north, south + 1e-3))),
            cmin=1,
        )
        figure.colorbar(counts[3], ax=places, shrink=0.8, label="fixes")
        places.locator_params(axis="x", nbins=4)
        places.set_aspect(1 / max(math.cos(math.radians((south + north) / 2)), 0.05))
    places.set(title=f"{measures.fixes} fixes of {measures.vehicles} vehicles", xlabel="longitude", ylabel="latitude")
    order = np.lexsort((seen.time_us, seen.user))
    gaps = np.diff(seen.time_us[order])[np.diff(seen.user[order]) == 0] / 1e6
    intervals.hist(np.clip(gaps[gaps > 0], 0, 600), bins=_BINS, color="steelblue")
    intervals.set(title="time between fixes of a vehicle", xlabel="seconds, 600 and more in the last bar")
    known = seen.speed[np.isfinite(seen.speed)]
    if len(known):
        top = float(np.quantile(known, 0.995)) or 1.0
        speeds.hist(np.clip(known, 0, top), bins=_BINS, color="steelblue")
    speeds.set(title="reported speeds", xlabel="in the feed's own unit")
    figure.savefig(path)


def _write(path: Path, relation: NeighbouringRelation, lines: list[Suggestion]) -> None:
    from stream.config import ConfigError, find_config, load_config
    from stream.config.search import template
    from stream.diagnosis.inspection import configuration

    if not lines:
        stop("nothing to suggest, because no fix can be used: set what the faults say in a configuration, --config")
    write_text(path, configuration(template(relation).read_text(encoding="utf-8"), lines, relation))
    remaining = {
        NeighbouringRelation.VALUES: "Set timezone and budget in it, then run",
        NeighbouringRelation.PARTICIPATION: "Set domain (from a map, not from the recording), timezone, cells and "
        "budget in it, then run",
    }
    typer.echo(f"{path} written. {remaining[relation]}: hexveil check --config {path}", err=True)
    if relation == NeighbouringRelation.VALUES:
        try:
            load_config(find_config(path, relation))
        except ConfigError as error:
            stop(f"it is not sound yet: {error}")
