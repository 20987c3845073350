"""What the commands that read snapshots of positions share: live or stored, they go to Kafka or a file, or are released here."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.feeding import feed_kafka, parse_pace, refuse
from stream.cli.interrupts import stopped_by_signals
from stream.cli.options import FAILED, UNREACHABLE, AsJson, ConfigFile, choose_config, load_to_release
from stream.cli.releasing import ReleaseOptions, check_span, named_span, release_offline
from stream.config import Config, ConfigError, load_config
from stream.config.durations import parse_duration
from stream.config.feed import FeedConfig
from stream.sources.delivery import DeliveryError, Pacer
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.polling import FetchError, Poller, PollSettings
from stream.sources.snapshot_events import SPEED_SOURCES, SnapshotEvents, SpeedSource
from stream.sources.snapshots import LARGEST_SNAPSHOT, SnapshotError
from stream.windows import Slotting, SpanError, Window

if TYPE_CHECKING:
    from stream.sources.live import Sink


MakeReader = Callable[[FeedConfig, Slotting, SpeedSource], SnapshotEvents]
"""Makes the reader of one format, for a feed with these periods and source of speeds."""


# long: it holds the command, which is long
def snapshot_command(make_reader: MakeReader) -> Callable[..., None]:
    """The command that feeds the service with snapshots of one format."""

    # long: one argument for each option
    def feed_snapshots(
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
        query: Annotated[
            list[str] | None,
            typer.Option(help="Like --header, for a key that the agency expects in the address: ?NAME=…"),
        ] = None,
        pace: Annotated[
            str, typer.Option(help="For stored snapshots: multiple of their original pace, or 'max'.")
        ] = "max",
        out: Annotated[
            Path | None,
            typer.Option(
                help="Write canonical events as NDJSON to this file instead of Kafka ('-': stdout). With --offline: the releases."
            ),
        ] = None,
        offline: Annotated[bool, typer.Option(help="Release the events here, without Kafka; see --out.")] = False,
        start: Annotated[
            str | None, typer.Option("--from", help="Offline, stored snapshots: start of the first timeslot.")
        ] = None,
        end: Annotated[str | None, typer.Option("--until", help="Offline: end of the last timeslot.")] = None,
        state: Annotated[
            Path | None, typer.Option(help="Offline, stored snapshots: folder of a ledger that is kept after the run.")
        ] = None,
        force: Annotated[bool, typer.Option("--force", help="Offline: overwrite the file of --out.")] = False,
        any_speed: Annotated[
            bool,
            typer.Option("--any-speed", help="Offline, stored snapshots: accept speeds that positions contradict."),
        ] = False,
        once: Annotated[bool, typer.Option(help="For an address: stop after one snapshot.")] = False,
        config: ConfigFile = None,
        as_json: AsJson = False,
    ) -> None:
        speed_of_stored = parse_pace(pace)
        if speeds not in SPEED_SOURCES:
            raise typer.BadParameter(f"{speeds!r} is none of {', '.join(SPEED_SOURCES)}", param_hint="--speeds")
        live = any(_is_address(source) for source in sources)
        _check_options(offline, live, out, start, end, state)
        try:
            settings = (load_to_release if offline else load_config)(choose_config(config))
            reader = make_reader(settings.feed, settings.slotting, cast("SpeedSource", speeds))
            polling = PollSettings(
                interval_s=parse_duration(interval).total_seconds(),
                largest=LARGEST_SNAPSHOT,
                headers=dict(_secret("--header", text) for text in header or []),
                query=dict(_secret("--query", text) for text in query or []),
            )
            span = named_span(settings, start, end)
        except (ConfigError, ValueError) as error:
            raise refuse(error) from None
        if settings.relation == NeighbouringRelation.VALUES and speeds != "reported":
            typer.echo(
                "Note: positions and times are public under relation 'values', so a derived speed is public as well and is "
                "not protected. To protect derived speeds, use relation 'participation'.",
                err=True,
            )
        if live:
            if len(sources) > 1:
                raise refuse("give one address, or any number of files and folders; run one command for each feed")
            if offline:
                assert out is not None
                _live_offline(settings, reader, sources[0], polling, out, once=once, force=force)
            else:
                _live(settings, reader, sources[0], polling, out, once=once)
            _tell(reader, as_json)
            return
        files, problems = _files([Path(source) for source in sources]), list[str]()
        blocks = _snapshots(files, reader, problems)
        if offline:
            options = ReleaseOptions(state, out, force, any_speed or not reader.declares_unit, as_json)
            _release(settings, reader, blocks, span, options)
        elif out is not None:
            _write(blocks, out)
        else:
            read = lambda: reader.tally.snapshots / len(files)  # noqa: E731
            feed_kafka(settings, blocks, Pacer(speed_of_stored), limit=None, share_read=read, as_json=as_json)
        _tell(reader, as_json and out is not None)
        _tell_problems(reader, files, problems)

    return feed_snapshots


def _is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _check_options(
    offline: bool, live: bool, out: Path | None, start: str | None, end: str | None, state: Path | None
) -> None:
    """Raises :class:`typer.BadParameter` for options that contradict each other."""
    check_span(start, end)
    if (start or state) and (live or not offline):
        raise typer.BadParameter(
            "--from, --until and --state are for stored snapshots with --offline", param_hint="--from"
        )
    if offline and live and (out is None or out.suffix != ".ndjson"):
        raise typer.BadParameter("with --offline and an address, name a file like releases.ndjson", param_hint="--out")


def _secret(option: str, text: str) -> tuple[str, str]:
    """Name and value of ``NAME=FILE``. Raises :class:`ValueError`, which never shows the value."""
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(
            f"{option} {name!r}: write NAME=FILE; store the secret in a file, because others can see the command line"
        )
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {name}: {path}: {error}; name a readable text file") from None
    if not value or any(ord(letter) < 32 for letter in value):
        raise ValueError(f"{option} {name}: {path} is empty or holds more than one line")
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


def _snapshots(files: list[Path], reader: SnapshotEvents, problems: list[str]) -> Iterator[Messages]:
    """The new events of each file. A file that is not a snapshot is skipped and added to ``problems``."""
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


def _release(
    config: Config,
    reader: SnapshotEvents,
    blocks: Iterator[Messages],
    span: Window | None,
    options: ReleaseOptions,
) -> None:
    try:
        release_offline(config, Path("the snapshots"), "canonical", span, options, blocks)
    except (RecordingError, SpanError) as error:
        raise refuse(error if reader.tally.events or isinstance(error, SpanError) else _why_none(reader)) from None


def _tell_problems(reader: SnapshotEvents, files: list[Path], problems: list[str]) -> None:
    """Name files that are no snapshots. Exit 2 if no event was read, 1 if some files were not."""
    for problem in problems[:5]:
        typer.echo(f"hexveil: {problem}", err=True)
    if not reader.tally.events:
        raise refuse(f"{len(files)} file(s), {len(problems)} of them unreadable, gave no event: {_why_none(reader)}")
    if problems:
        raise refuse(f"{len(problems)} of {len(files)} files are not snapshots", FAILED)


def _why_none(reader: SnapshotEvents) -> str:
    tally = reader.tally
    if tally.without_speed:
        return (
            f"{tally.without_speed} vehicles have no speed; a derived one needs two snapshots of the vehicle, "
            "8 s to 5 min apart, in one ledger period"
        )
    if tally.refused:
        return "vehicles refused: " + ", ".join(f"{count} {reason}" for reason, count in tally.refused.most_common(5))
    return "are these vehicle positions, and not stop times or alerts?"


def _write(blocks: Iterator[Messages], out: Path) -> None:
    try:
        with nullcontext(sys.stdout.buffer) if str(out) == "-" else out.open("wb") as file:
            for block in blocks:
                file.writelines(value + b"\n" for value in block.values)
    except OSError as error:
        raise refuse(f"{out}: {error.strerror or error}", FAILED) from None


def _tell(reader: SnapshotEvents, as_json: bool) -> None:
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
    config: Config, reader: SnapshotEvents, url: str, settings: PollSettings, out: Path | None, *, once: bool
) -> None:
    from stream.sources.live import FileSink, KafkaSink

    def sink(stopping: asyncio.Event) -> Sink:
        return KafkaSink(config, stopping) if out is None else FileSink(out)

    _poll(reader, url, settings, sink, once=once)


def _live_offline(
    config: Config, reader: SnapshotEvents, url: str, settings: PollSettings, out: Path, *, once: bool, force: bool
) -> None:
    """Release the windows of a live feed on this machine, each when it is over."""
    from concurrent.futures.process import BrokenProcessPool

    from redis.exceptions import RedisError

    from stream.embedded import EmbeddedError, EmbeddedSink
    from stream.ingestion.pseudonyms import UserKeyError
    from stream.local import LocalServerError, RedisServer
    from stream.storage.ledger import LedgerError
    from stream.storage.row_store import StateError

    if out.exists() and not force:
        raise refuse(
            f"{out} exists, and its releases cannot be drawn again; name another file, or overwrite it with --force"
        )
    try:
        out.write_bytes(b"")
    except OSError as error:
        raise refuse(f"{out}: {error.strerror or error}; --out needs a folder that you may write to") from None
    try:
        with tempfile.TemporaryDirectory(prefix="hexveil-") as scratch, RedisServer(Path(scratch)) as server:
            embedded = config.model_copy(update={"redis": config.redis.model_copy(update={"url": server.url})})
            _poll(reader, url, settings, lambda stopping: EmbeddedSink(embedded, out, stopping), once=once)
    except UserKeyError as error:
        raise refuse(error) from None
    except (EmbeddedError, LedgerError, LocalServerError, StateError) as error:
        raise refuse(error, FAILED) from None
    except (BrokenProcessPool, RedisError, OSError) as error:
        raise refuse(f"the release of {url} ended: {error}; what {out} contains was released", FAILED) from None


def _poll(
    reader: SnapshotEvents,
    url: str,
    settings: PollSettings,
    sink: Callable[[asyncio.Event], Sink],
    *,
    once: bool,
) -> None:
    """Feed a sink from an address until Ctrl-C. Exits 3 if the address or Kafka does not answer at the start."""
    from stream.sources.live import poll

    try:
        poller = Poller(url, settings)
    except ValueError as error:
        raise refuse(error) from None

    async def run() -> None:
        stopping = stopped_by_signals()
        await poll(reader, poller, settings, sink(stopping), stopping, once=once)

    try:
        asyncio.run(run())
    except (FetchError, DeliveryError) as error:
        raise refuse(error, UNREACHABLE) from None
