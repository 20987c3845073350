"""``hexveil inspect``: says what a feed holds and which configuration fits it. Its output is not private."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.feeding import iso
from stream.cli.options import UNREACHABLE, USAGE, AsJson, ConfigFile, choose_config, stop

if TYPE_CHECKING:
    from stream.config.feed import FeedConfig
    from stream.diagnosis.measures import Measures
    from stream.diagnosis.observations import Observations
    from stream.diagnosis.suggestion import Suggestion

NOT_PRIVATE = (
    "NOT PRIVATE: what follows are true facts about users. Keep it inside the trust boundary, and publish none of it."
)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("inspect")(inspect_feed)


def inspect_feed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|TOPIC|URL",
            help="Parquet, CSV, NDJSON, GTFS-realtime or SIRI-VM, or a folder of snapshots; '-' is standard input.",
        ),
    ],
    write: Annotated[Path | None, typer.Option(help="Write the suggested configuration to this file.")] = None,
    relation: Annotated[
        NeighbouringRelation | None,
        typer.Option(
            help="Relation of --write. values: scheduled transport; participation: private cars, taxis, riders."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Folder for a map and histograms; needs matplotlib.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Look at so many fixes at most.")] = 1_000_000,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --write.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Look at a feed inside the trust boundary: what it holds, its faults, and which configuration fits."""
    if write is not None and relation is None:
        raise typer.BadParameter(
            "with --write, say what is protected: values or participation", param_hint="--relation"
        )
    if write is not None and write.exists() and not force:
        stop(f"{write} exists; choose another name or pass --force", USAGE)
    feed = None if config is None else _feed(config)
    seen = _observe(source, limit, config)
    lines = _report(seen, feed, plot, as_json)
    if write is not None and relation is not None:
        _write(write, relation, lines)


def _feed(config: Path) -> FeedConfig:
    """The feed of a configuration; exit 2 if it is not sound."""
    from stream.config import ConfigError, load_config

    try:
        return load_config(choose_config(config)).feed
    except ConfigError as error:
        stop(str(error), USAGE)


def _report(seen: Observations, feed: FeedConfig | None, plot: Path | None, as_json: bool) -> list[Suggestion]:
    """Print and draw what was measured, and what ``feed`` says otherwise; returns the suggested configuration."""
    from stream.diagnosis.comparison import contradictions
    from stream.diagnosis.measures import measure
    from stream.diagnosis.suggestion import problems, suggestions

    measures = measure(seen)
    sentences, lines = problems(seen, measures), suggestions(seen, measures)
    if feed is not None:
        sentences = contradictions(seen, measures, feed) + sentences
    typer.echo(NOT_PRIVATE, err=True)
    if as_json:
        facts = {"kind": seen.kind, **measures.as_dict()}
        typer.echo(
            json.dumps(facts | {"problems": sentences, "suggestions": [vars(line) for line in lines]}, allow_nan=False)
        )
    else:
        _print(seen, measures, sentences, lines)
    if plot is not None:
        _plot(seen, measures, plot)
    return lines


def _observe(source: str, limit: int, config: Path | None) -> Observations:
    """The fixes of ``source``; exit 2 if it cannot be read, 3 if a server does not answer."""
    from stream.config import ConfigError, load_config
    from stream.diagnosis.observations import InspectionError
    from stream.diagnosis.reading import observe_answer, observe_file
    from stream.diagnosis.topic import TopicUnreachableError, observe_topic
    from stream.sources.polling import FetchError

    path = Path(source)
    try:
        if source.lower().startswith(("http://", "https://")):
            return observe_answer(asyncio.run(_fetched(source)), limit)
        if source == "-" or os.path.exists(source):  # Path.exists raises for a name that is too long
            return observe_file(path, limit)
        if "/" in source or path.suffix in (".csv", ".ndjson", ".json", ".parquet", ".pb", ".gz"):
            raise InspectionError(f"{source}: no such file")
        return asyncio.run(observe_topic(load_config(choose_config(config)).kafka, source, limit))
    except (ConfigError, InspectionError) as error:
        stop(str(error), USAGE)
    except (FetchError, TopicUnreachableError) as error:
        stop(str(error), UNREACHABLE)


async def _fetched(url: str) -> bytes:
    from stream.diagnosis.observations import InspectionError
    from stream.sources.polling import Poller, PollSettings

    try:
        poller = Poller(url, PollSettings())
    except ValueError as error:
        raise InspectionError(str(error)) from None
    async with poller:
        return await poller.fetch() or b""


def _print(seen: Observations, measures: Measures, sentences: list[str], lines: list[Suggestion]) -> None:
    for name, text in _facts(seen, measures):
        typer.echo(f"{name:>12}  {text}")
    typer.echo("\nFaults" if sentences else "\nNo faults")
    for sentence in sentences:
        typer.echo(f"  - {sentence}")
    if lines:
        typer.echo("\nA configuration that fits (hexveil inspect … --write hexveil.toml)")
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            typer.echo(f"  [{section}]")
        typer.echo(f"  {line.key} = {line.value}  # {line.reason}")


def _facts(seen: Observations, measures: Measures) -> list[tuple[str, str]]:
    speeds = measures.speeds
    unread = "".join(f"; {count} {reason}" for reason, count in measures.unread.items())
    facts = [
        ("source", f"{seen.kind}, format {seen.format!r}"),
        ("fixes", f"{measures.rows}, {measures.usable} usable{unread}"),
        ("vehicles", str(measures.vehicles)),
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
    facts += [
        (
            f"H3 {item.resolution}",
            f"{item.cells} cells; {item.cells_per_vehicle_hour:.1f} of a vehicle in an hour; {item.vehicles_per_cell_hour:.1f} "
            "vehicles in a visited one and hour",
        )
        for item in measures.densities
    ]
    return facts


def _plot(seen: Observations, measures: Measures, folder: Path) -> None:
    from stream.cli.inspect_plot import plot_feed

    try:
        folder.mkdir(parents=True, exist_ok=True)
        plot_feed(seen, measures, folder / "inspection.png")
    except ImportError:
        stop("--plot needs matplotlib: pip install 'hexveil[plot]'", USAGE)
    except OSError as error:
        stop(f"{folder}: {error.strerror or error}; name a folder that you may write to", USAGE)
    typer.echo(f"{folder / 'inspection.png'} drawn; it is not private", err=True)


def _write(path: Path, relation: NeighbouringRelation, lines: list[Suggestion]) -> None:
    from stream.config import ConfigError, find_config, load_config
    from stream.config.search import template
    from stream.diagnosis.suggestion import configuration

    if not lines:
        stop("nothing to suggest, because no fix can be used", USAGE)
    try:
        path.write_text(
            configuration(template(relation).read_text(encoding="utf-8"), lines, relation), encoding="utf-8"
        )
    except OSError as error:
        stop(f"{path}: {error.strerror or error}; name a file in a folder that you may write to", USAGE)
    remaining = {
        NeighbouringRelation.VALUES: "Set timezone, epsilon and budget in it, then run",
        NeighbouringRelation.PARTICIPATION: "Set domain (from a map, not from the recording), timezone, cells, epsilon and budget in it, then run",
    }
    typer.echo(f"{path} written. {remaining[relation]}: hexveil check --config {path}", err=True)
    if relation == NeighbouringRelation.VALUES:
        try:
            load_config(find_config(path, relation))
        except ConfigError as error:
            stop(f"it is not sound yet: {error}", USAGE)
