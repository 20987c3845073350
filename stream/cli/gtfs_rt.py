"""``hexveil gtfs-rt``: sends an agency's VehiclePositions, from its address or from stored snapshots, to Kafka or a file."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.feeding import feed_kafka, parse_pace, refuse
from stream.cli.options import FAILED, UNREACHABLE, AsJson, ConfigFile, choose_config
from stream.config import Config, ConfigError, load_config
from stream.config.durations import parse_duration
from stream.sources.delivery import DeliveryError, Pacer
from stream.sources.messages import Messages

if TYPE_CHECKING:
    from stream.sources.gtfs_rt import GtfsRealtime, SpeedSource


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("gtfs-rt")(gtfs_rt_command)


def gtfs_rt_command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="URL|FILE|FOLDER...", help="One address, or files and folders of stored snapshots."),
    ],
    speeds: Annotated[
        str,
        typer.Option(
            help="'missing': derive missing speeds from positions; 'derived': derive all; 'reported': derive none."
        ),
    ] = "missing",
    interval: Annotated[str, typer.Option(help="Time between two requests, 1s to 1h.")] = "15s",
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="Request header NAME=FILE. The file contains the value of the header, such as an API key, and nothing else."
        ),
    ] = None,
    pace: Annotated[str, typer.Option(help="For stored snapshots: multiple of their original pace, or 'max'.")] = "max",
    out: Annotated[
        Path | None, typer.Option(help="Write canonical events as NDJSON to this file instead of Kafka ('-': stdout).")
    ] = None,
    once: Annotated[bool, typer.Option(help="For an address: stop after one snapshot.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Send VehiclePositions (GTFS-realtime) to the service. Missing speeds are derived from positions."""
    speed_of_stored = parse_pace(pace)
    try:
        from stream.sources.gtfs_rt import SPEED_SOURCES, GtfsRealtime
    except ModuleNotFoundError as error:
        raise refuse(
            f"{error.name}, which reads GTFS-realtime, is not installed: pip install 'hexveil[gtfs]'"
        ) from None
    if speeds not in SPEED_SOURCES:
        raise typer.BadParameter(f"{speeds!r} is none of {', '.join(SPEED_SOURCES)}", param_hint="--speeds")
    try:
        settings = load_config(choose_config(config))
        reader = GtfsRealtime(settings.feed, settings.slotting, cast("SpeedSource", speeds))
        seconds = parse_duration(interval).total_seconds()
        headers = dict(_secret_header(text) for text in header or [])
    except (ConfigError, ValueError) as error:
        raise refuse(error) from None
    if settings.relation == NeighbouringRelation.VALUES and speeds != "reported":
        typer.echo(
            "Note: positions and times are public under relation 'values', so a derived speed is public as well and is "
            "not protected. To protect derived speeds, use relation 'participation'.",
            err=True,
        )
    if any(_is_address(source) for source in sources):
        if len(sources) > 1:
            raise refuse("give one address, or any number of files and folders; run one command for each feed")
        _live(settings, reader, sources[0], seconds, headers, out, once, as_json)
    else:
        _stored(settings, reader, [Path(source) for source in sources], Pacer(speed_of_stored), out, as_json)


def _is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _secret_header(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(
            f"--header {name!r}: write NAME=FILE; store the secret in a file, because others can see the command line"
        )
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--header {name}: {path}: {error}; name a readable text file") from None
    if not value or any(ord(letter) < 32 for letter in value):
        raise ValueError(f"--header {name}: {path} is empty or holds more than one line")
    return name, value


def _files(paths: list[Path]) -> list[Path]:
    """Files in order of name, folders opened one level deep."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        elif path.is_file():
            files.append(path)
        else:
            raise refuse(f"{path} is neither a file, nor a folder, nor an http or https address")
    if not files:
        raise refuse(f"{paths[0]} is a folder without files; name one that contains snapshots")
    return files


def _snapshots(files: list[Path], reader: GtfsRealtime, problems: list[str]) -> Iterator[Messages]:
    """The new events of each file. A file that is not a snapshot is skipped and added to ``problems``."""
    from stream.sources.vehicle_positions import LARGEST_SNAPSHOT, SnapshotError

    for path in files:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                body = file.read(LARGEST_SNAPSHOT + 1)
            messages = reader.events(body)
        except (OSError, EOFError, SnapshotError) as error:
            problems.append(f"{path}: {error}")
            continue
        if messages.values:
            yield messages


def _stored(
    config: Config, reader: GtfsRealtime, paths: list[Path], pacer: Pacer, out: Path | None, as_json: bool
) -> None:
    files, problems = _files(paths), list[str]()
    blocks = _snapshots(files, reader, problems)
    if out is None:
        feed_kafka(
            config, blocks, pacer, limit=None, share_read=lambda: reader.tally.snapshots / len(files), as_json=as_json
        )
    else:
        _write(blocks, out)
    _tell(reader, as_json and out is not None)
    for problem in problems[:5]:
        typer.echo(f"hexveil: {problem}", err=True)
    if not reader.tally.events:
        raise refuse(f"{len(files)} file(s), {len(problems)} of them unreadable, gave no event: {_why_none(reader)}")
    if problems:
        raise refuse(f"{len(problems)} of {len(files)} files are not snapshots", FAILED)


def _why_none(reader: GtfsRealtime) -> str:
    tally = reader.tally
    if tally.without_speed:
        return (
            f"{tally.without_speed} vehicles have no speed; a derived one needs two snapshots of the vehicle, "
            "8 s to 5 min apart, in one ledger period"
        )
    if tally.refused:
        return "vehicles refused: " + ", ".join(f"{count} {reason}" for reason, count in tally.refused.most_common(5))
    return "is this VehiclePositions, not TripUpdates or Alerts?"


def _write(blocks: Iterator[Messages], out: Path) -> None:
    try:
        with nullcontext(sys.stdout.buffer) if str(out) == "-" else out.open("wb") as file:
            for block in blocks:
                file.writelines(value + b"\n" for value in block.values)
    except OSError as error:
        raise refuse(f"{out}: {error.strerror or error}", FAILED) from None


def _tell(reader: GtfsRealtime, as_json: bool) -> None:
    tally = reader.tally
    if as_json:
        typer.echo(json.dumps(asdict(tally)), err=True)
    else:
        refused = ", ".join(f"{count} {reason}" for reason, count in tally.refused.most_common())
        typer.echo(
            f"{tally.snapshots} snapshots: {tally.events} events, {tally.derived} with a derived speed; "
            f"{tally.repeated} repeated, {tally.without_speed} without any speed"
            + (f"; refused: {refused}" if refused else ""),
            err=True,
        )
    if tally.reported_speeds_are_wrong:
        typer.echo(
            f"Of {tally.driving} vehicles that moved, {tally.driving_but_reported_still} reported a speed of 0, so the feed's "
            "speeds cannot be right. Use --speeds derived.",
            err=True,
        )


def _live(
    config: Config,
    reader: GtfsRealtime,
    url: str,
    interval_s: float,
    headers: dict[str, str],
    out: Path | None,
    once: bool,
    as_json: bool,
) -> None:
    from stream.sources.live import FileSink, KafkaSink, poll
    from stream.sources.polling import FetchError, Poller, PollSettings
    from stream.sources.vehicle_positions import LARGEST_SNAPSHOT

    try:
        settings = PollSettings(interval_s=interval_s, largest=LARGEST_SNAPSHOT, headers=headers)
        poller = Poller(url, settings)
    except ValueError as error:
        raise refuse(error) from None

    async def run() -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        sink = KafkaSink(config, stopping) if out is None else FileSink(out)
        await poll(reader, poller, settings, sink, stopping, once=once)

    try:
        asyncio.run(run())
    except (FetchError, DeliveryError) as error:
        raise refuse(error, UNREACHABLE) from None
    _tell(reader, as_json)
