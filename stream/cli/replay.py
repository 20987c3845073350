"""``hexveil replay``: sends a recording to Kafka, or releases it without Kafka."""

from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from stream.cli.feeding import SnapshotReport, SummaryAsJson, feed_kafka, parse_pace, why_no_event
from stream.cli.options import ConfigFile, Force, Recordings, UsersAreEvents, choose_config, load_to_release, stop
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
from stream.config.feed import derived_speed_note
from stream.diagnosis.reading import Accepted, recognised
from stream.sources.derived_events import DerivedEvents, with_speeds
from stream.sources.lines import STDIN, RecordingError
from stream.sources.recording import Order, Replay, together


def command(
    files: Recordings,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="canonical, capmetro, capmetro-2015, itms or declared; default: that of the feed."
        ),
    ] = None,
    speed: Annotated[str, typer.Option(help="Multiple of the recorded pace, or 'max'.")] = "max",
    order: Annotated[
        str, typer.Option(help="'time': sorted by event time, like a live feed; 'file': as in the file.")
    ] = "time",
    offline: Annotated[
        bool, typer.Option(help="Release the recording here, without Kafka; releases go to stdout, or to --out.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Offline: file for the releases. .ndjson holds all messages; .csv, .geojson and .parquet the hexagons."
        ),
    ] = None,
    force: Force = False,
    start: From = None,
    end: Until = None,
    state: LedgerFolder = None,
    any_speed: AnySpeed = False,
    users_are_events: UsersAreEvents = False,
    config: ConfigFile = None,
    as_json: SummaryAsJson = False,
) -> None:
    """Send a recording to the feed's Kafka topic, or release it without Kafka (--offline)."""
    file = together(files)
    if offline and (speed != "max" or order != "time"):
        raise typer.BadParameter(
            "--speed and --order are for what is sent to Kafka; --offline releases all of a recording at once, or what "
            "--from and --until name",
            param_hint="--offline",
        )
    _check_options(file, order, offline, out, start, end, state)
    pace, accepted = parse_pace(speed), Accepted(any_speed, users_are_events)
    settings = (load_to_release if offline else load_config)(choose_config(config, silent=as_json))
    file_format = file_format or settings.feed.recorded_format
    note = derived_speed_note(settings.relation, settings.feed.speeds)
    if offline:
        if note is not None and not as_json:
            typer.echo(f"Note: {note}", err=True)
        options = ReleaseOptions(state, out, force, accepted, as_json)
        release_offline(settings, file, file_format, named_span(settings, start, end), options)
        return
    from stream.sources.delivery import Pacer  # slow to import; what is released offline does not need it

    if settings.feed.derives_speeds and order == "file":
        raise RecordingError(
            f"feed.speeds is {settings.feed.speeds!r}, and speeds are derived in order of time; leave out --order "
            "file, and what is read is sorted to its end before any event is sent"
        )
    source = Replay(file, file_format, settings.feed, order=cast("Order", order))
    send = partial(
        feed_kafka,
        settings,
        pacer=Pacer(pace),
        as_json=as_json,
    )
    if not settings.feed.derives_speeds:
        send(recognised(source, settings, file, file_format, accepted=accepted, note=_note))
        return
    events = DerivedEvents(settings.feed, settings.slotting)
    report = SnapshotReport(events, note, as_json, on_stderr=False, unit="blocks")
    blocks = with_speeds(source, events)
    try:
        blocks = recognised(blocks, settings, file, "canonical", accepted=accepted, note=_note)
    except RecordingError as error:
        stop(error if events.tally.events else f"{file}: {why_no_event(events)}")
    send(blocks, reading=report.facts)
    if not as_json:
        report.summary()


def _note(sentence: str) -> None:
    typer.echo(f"Note: {sentence}", err=True)


def _check_options(
    file: Path, order: str, offline: bool, out: Path | None, start: str | None, end: str | None, state: Path | None
) -> None:
    if order not in ("time", "file"):
        raise typer.BadParameter(f"{order!r} is neither 'time' nor 'file'", param_hint="--order")
    check_span(start, end)
    if not offline and (start or state or out):
        raise typer.BadParameter("--from, --until, --state and --out belong to --offline", param_hint="--offline")
    if file != STDIN and out is not None and out.exists() and file.exists() and out.samefile(file):
        raise typer.BadParameter(f"{out} is the recording itself", param_hint="--out")
