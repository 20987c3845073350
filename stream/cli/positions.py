"""``hexveil gtfs-rt``, ``siri-vm`` and ``hfp``: positions, live or stored, go to Kafka, a file or a release."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.feeding import (
    EventsFile,
    Feed,
    Offline,
    SnapshotReport,
    Speeds,
    SummaryAsJson,
    feed_kafka,
    live_speed_note,
    parse_pace,
    run_live,
    speed_source,
    why_no_event,
)
from stream.cli.options import (
    FAILED,
    ConfigFile,
    Force,
    UsersAreEvents,
    choose_config,
    load_to_release,
    secret_text,
    stop,
)
from stream.cli.releasing import (
    AnySpeed,
    From,
    LedgerFolder,
    ReleaseOptions,
    Until,
    check_span,
    named_span,
    release_offline,
)
from stream.config import load_config
from stream.config.section import parse_duration
from stream.config.servers import redacted
from stream.diagnosis.reading import Accepted
from stream.diagnosis.snapshots import events_of, files_of, reader_of
from stream.sources.delivery import Pacer, in_background
from stream.sources.hfp import EVERY_POSITION, HighFrequencyPositions
from stream.sources.lines import STDIN, RecordingError
from stream.sources.messages import Messages
from stream.sources.polling import Poller, PollSettings, Sink, poll
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import LARGEST_SNAPSHOT


def snapshot_command(form: str, what: str) -> Callable[..., None]:
    """The command that feeds the service with snapshots of one form. ``what``: its help."""

    def feed_snapshots(
        sources: Annotated[
            list[str],
            typer.Argument(
                metavar="URL|FILE|FOLDER...",
                help="One address, or files and folders of stored snapshots; '-' is one snapshot on standard input.",
            ),
        ],
        speeds: Speeds = None,
        interval: Annotated[str, typer.Option(help="Time between two requests, 1s to 1h.")] = "15s",
        header: Annotated[
            list[str] | None,
            typer.Option(
                help="Request header NAME=FILE. The file contains the value of the header, such as an API key, and "
                "nothing else."
            ),
        ] = None,
        query: Annotated[
            list[str] | None,
            typer.Option(help="Like --header, for a key that the agency expects in the address: ?NAME=…"),
        ] = None,
        pace: Annotated[
            str, typer.Option(help="For stored snapshots: multiple of their original pace, or 'max'.")
        ] = "max",
        out: EventsFile = None,
        offline: Offline = False,
        start: From = None,
        end: Until = None,
        state: LedgerFolder = None,
        force: Force = False,
        any_speed: AnySpeed = False,
        users_are_events: UsersAreEvents = False,
        once: Annotated[bool, typer.Option(help="For an address: stop after one snapshot.")] = False,
        config: ConfigFile = None,
        as_json: SummaryAsJson = False,
    ) -> None:
        speed_of_stored = parse_pace(pace)
        live = any(source.lower().startswith(("http://", "https://")) for source in sources)
        _check_options(offline, live, out, start, end, state)
        try:
            settings = (load_to_release if offline else load_config)(choose_config(config, silent=as_json))
            source_of_speeds = speed_source(speeds, settings.feed)
            reader = reader_of(form, settings, source_of_speeds)
            polling = PollSettings(
                interval_s=parse_duration(interval).total_seconds(),
                largest=LARGEST_SNAPSHOT,
                headers=dict(_secret("--header", text) for text in header or []),
                query=dict(_secret("--query", text) for text in query or []),
            )
            span = named_span(settings, start, end)
        except ValueError as error:
            stop(error)
        note = live_speed_note(settings, source_of_speeds)
        report = SnapshotReport(reader, note, as_json, on_stderr=str(out) == "-")
        if live:
            if len(sources) > 1:
                stop("give one address, or any number of files and folders; run one command for each feed")
            feed = _polling(reader, sources[0], polling, once=once)
            run_live(settings, feed, redacted(sources[0]), out, offline=offline, force=force)
            report.summary()
            return
        files = _files([Path(source) for source in sources])
        if out is not None and str(out) != "-":
            _check_file(out, files, force=force or offline)
        blocks = events_of(files, reader, report.problems)
        if offline:
            options = ReleaseOptions(state, out, force, Accepted(any_speed, users_are_events, reader), as_json)
            try:
                release_offline(settings, Path("the snapshots"), "canonical", span, options, blocks, report.facts)
            except RecordingError as error:
                stop(error if reader.tally.events else why_no_event(reader))
        elif out is not None:
            _write(blocks, out)
            report.summary()
        else:
            feed_kafka(
                settings,
                in_background(blocks),
                Pacer(speed_of_stored),
                as_json=as_json,
                reading=report.facts,
            )
        if not as_json and (offline or out is None):
            report.summary()
        report.end(len(files))

    feed_snapshots.__doc__ = what
    return feed_snapshots


def _check_options(
    offline: bool, live: bool, out: Path | None, start: str | None, end: str | None, state: Path | None
) -> None:
    check_span(start, end)
    if (start or state) and (live or not offline):
        raise typer.BadParameter(
            "--from, --until and --state are for stored snapshots with --offline", param_hint="--from"
        )


def _check_file(out: Path, files: list[Path], *, force: bool) -> None:
    """Refuse a file of ``--out`` that is one of the snapshots, or that exists, unless ``force``."""
    if not os.path.exists(out):
        return
    if any(os.path.exists(file) and out.samefile(file) for file in files):
        raise typer.BadParameter(f"{out} is one of the snapshots", param_hint="--out")
    if os.path.isfile(out) and not force:
        stop(f"{out} exists; name another file, or overwrite it with --force")


def _polling(reader: SnapshotEvents, url: str, settings: PollSettings, *, once: bool) -> Feed:
    try:
        poller = Poller(url, settings)
    except ValueError as error:
        stop(error)
    return lambda sink, stopping: poll(reader, poller, settings, sink, stopping, once=once)


def _secret(option: str, text: str) -> tuple[str, str]:
    """Name and value of ``NAME=FILE``. Raises :class:`ValueError`, which never shows the value."""
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(
            f"{option} {name!r}: write NAME=FILE; store the secret in a file, because others can see the command line"
        )
    value = secret_text(f"{option} {name}:", Path(path))
    if not value or any(ord(letter) < 32 for letter in value):
        raise ValueError(f"{option} {name}: {path} is empty or holds more than one line")
    return name, value


def _files(paths: list[Path]) -> list[Path]:
    for path in paths:
        if not os.path.exists(path) and path != STDIN:  # it may also be a pipe, as shells make of <(…)
            stop(f"{redacted(str(path))} is neither a file, nor a folder, nor an http or https address")
    files = [file for path in paths for file in files_of(path)]
    if not files:
        stop(f"{paths[0]} is a folder without files; name one that contains snapshots")
    return files


def _write(blocks: Iterator[Messages], out: Path) -> None:
    try:
        with nullcontext(sys.stdout.buffer) if str(out) == "-" else out.open("wb") as file:
            for block in blocks:
                file.writelines(value + b"\n" for value in block.values)
    except OSError as error:
        stop(f"{out}: {error.strerror or error}", FAILED)


gtfs_rt = snapshot_command(
    "GTFS-realtime", "Send VehiclePositions (GTFS-realtime) to the service. Missing speeds are derived from positions."
)
siri_vm = snapshot_command(
    "SIRI-VM", "Send Vehicle Monitoring (SIRI-VM) to the service. Missing speeds are derived from positions."
)


def hfp(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The broker: mqtts://HOST[:PORT], or mqtt:// without TLS.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Topic filter, with + and #; may be repeated. Default: {EVERY_POSITION}", show_default=False
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="File of the CA that signed the broker's certificate. Default: the system's.")
    ] = None,
    login: Annotated[Path | None, typer.Option(help="File with USER:PASSWORD in one line, and nothing else.")] = None,
    speeds: Speeds = None,
    out: EventsFile = None,
    offline: Offline = False,
    force: Force = False,
    once: Annotated[bool, typer.Option(help="Stop after the first events.")] = False,
    config: ConfigFile = None,
    as_json: SummaryAsJson = False,
) -> None:
    """Send vehicle positions from an MQTT broker (HFP) to the service. Missing speeds are derived from positions."""
    try:
        from stream.sources.mqtt import Broker, Following
    except ModuleNotFoundError as error:
        stop(f"{error.name}, which speaks MQTT, is not installed: pip install 'hexveil[mqtt]'")
    try:
        settings = (load_to_release if offline else load_config)(choose_config(config, silent=as_json))
        source_of_speeds = speed_source(speeds, settings.feed)
        reader = HighFrequencyPositions(settings.feed, settings.slotting, source_of_speeds, settings.relation)
        broker = Broker(address, tuple(topic or [EVERY_POSITION]), ca, None if login is None else _login(login))
        broker.tls()
    except ValueError as error:
        stop(error)
    note = live_speed_note(settings, source_of_speeds)
    report = SnapshotReport(reader, note, as_json, on_stderr=str(out) == "-", unit="messages")

    async def feed(sink: Sink, stopping: asyncio.Event) -> None:
        following = Following(reader, broker, sink, stopping)
        try:
            await following.run(once=once)
        finally:
            reader.tally.refused += following.refused

    run_live(settings, feed, address, out, offline=offline, force=force)
    report.summary()


def _login(path: Path) -> tuple[str, str]:
    """User and password in a file. Raises :class:`ValueError`, which never shows them."""
    text = secret_text("--login", path)
    user, separator, password = text.partition(":")
    if not (user and separator and password) or not text.isprintable():
        raise ValueError(f"--login {path}: write USER:PASSWORD in one line, and nothing else")
    return user, password
