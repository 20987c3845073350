"""What the commands that feed the service share: run until done or Ctrl-C, show progress, say what was read.

Their events go to Kafka or a file, or are released here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from stream.cli.options import FAILED, USAGE, progress_bars, stop, stopped_by_signals
from stream.config import Config
from stream.config.feed import FeedConfig, SpeedSource, derived_speed_note
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages

if TYPE_CHECKING:
    from stream.sources.delivery import Pacer, Progress  # slow to import; what is released offline does not need it
    from stream.sources.polling import Sink
    from stream.sources.snapshot_events import SnapshotEvents


def refusals(refused: Counter[str]) -> str:
    """The end of a sentence that names what was refused, the most frequent reason first; empty if nothing was."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
    return f"; refused: {reasons}" if reasons else ""


def parse_pace(text: str) -> float | None:
    """A positive multiple of the recorded pace, or None for ``max``. Raises :class:`typer.BadParameter`."""
    if text == "max":
        return None
    from stream.sources.delivery import Pacer

    try:
        return Pacer(float(text)).speed
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a positive number nor 'max'") from None


def iso(micros: int) -> str:
    """µs UTC as RFC 3339 to the second."""
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


class TooLateError(ValueError):
    """Every event would be late by the broker's clock; the message says what to do."""


def _in_time(config: Config, blocks: Iterable[Messages]) -> Iterator[Messages]:
    """Yields ``blocks``. Raises :class:`TooLateError` if even the first message would be late."""
    unchecked = config.window.lateness == "append-time"
    for block in blocks:
        if unchecked and len(block.due):
            unchecked, first = False, int(block.due.min()) // 1_000_000
            if config.slotting.window(first).end + config.window.allowed_delay.total_seconds() < time.time():
                raise TooLateError(
                    f"the first event happened at {iso(first * 1_000_000)}. With window.lateness 'append-time', an "
                    f"event is late if the broker gets it more than {config.window.allowed_delay} after the end of its "
                    "window. For a recording, set window.lateness = 'event-time' here and for the worker, or release "
                    "it without Kafka: hexveil replay --offline"
                )
        yield block


def feed_kafka(
    config: Config,
    blocks: Iterable[Messages],
    pacer: Pacer,
    *,
    as_json: bool,
    reading: Callable[[], dict[str, object]] = dict,
) -> None:
    """Deliver ``blocks`` to the feed's topic and print a summary. ``reading`` returns what its JSON says about how they
    were read.

    Exits 1 if the recording is damaged, 2 if all of it would be late, 3 if Kafka does not answer.
    """
    from stream.sources.delivery import Progress

    progress, failure, interrupted = Progress(), None, False
    began = time.monotonic()
    try:
        interrupted = asyncio.run(_deliver(config, _in_time(config, blocks), pacer, progress))
    except RecordingError as error:
        failure = error
    seconds = time.monotonic() - began
    summary: dict[str, Any] = {
        "topic": config.feed.topic,
        "events": progress.sent,
        "unread": progress.unread,
        "first": iso(progress.first_due) if progress.sent else None,
        "last": iso(progress.last_due) if progress.sent else None,
        "seconds": round(seconds, 3),
        "events_per_second": round(progress.sent / seconds),
        "interrupted": interrupted,
        "error": None if failure is None else str(failure),
    }
    if as_json:
        typer.echo(json.dumps(summary | reading()))
    else:
        span = f", recorded {summary['first']} to {summary['last']}" if progress.sent else ""
        unread = f", {progress.unread} of them unreadable, which the service will refuse" if progress.unread else ""
        rate = summary["events_per_second"]
        typer.echo(
            f"{'Stopped: ' if interrupted else ''}{progress.sent} events to {config.feed.topic} "
            f"in {seconds:.1f} s ({rate}/s){span}{unread}"
        )
    if failure is not None:
        stop(failure, FAILED)


async def _deliver(config: Config, blocks: Iterable[Messages], pacer: Pacer, progress: Progress) -> bool:
    from stream.sources.delivery import KafkaSender, deliver

    stopping, began = stopped_by_signals(), time.monotonic()
    with progress_bars() as bars:
        task = bars.add_task("sending", total=None)

        def report() -> None:
            rate = progress.sent / max(time.monotonic() - began, 1e-3)
            until = iso(progress.last_due) if progress.sent else ""
            bars.update(task, description=f"{progress.sent:,} events  {rate:,.0f}/s  {until}")

        async with KafkaSender(config.kafka, config.feed.topic) as sender:
            await deliver(blocks, sender, pacer, progress, stopped=stopping.is_set, report=report)
    return stopping.is_set()


_SHOWN = 5
"""Files without a snapshot that are named."""


class SnapshotReport:
    """What a command says about the snapshots that it read: sentences on stderr, or one JSON object and nothing else.

    ``problems``: files that are no snapshots, which the reader of files adds. ``on_stderr``: events go to stdout, where
    nothing else may be written. ``unit``: what was read.
    """

    def __init__(
        self, reader: SnapshotEvents, note: str | None, as_json: bool, *, on_stderr: bool, unit: str = "snapshots"
    ) -> None:
        self._reader, self._note, self._as_json, self._on_stderr = reader, note, as_json, on_stderr
        self._unit = unit
        self.problems: list[str] = []
        if note is not None and not as_json:
            typer.echo(f"Note: {note}", err=True)

    def facts(self) -> dict[str, object]:
        """What machines get."""
        notes = [sentence for sentence in (self._note, self._wrong_speeds()) if sentence is not None]
        tally = self._reader.tally
        counts = asdict(tally) | {"refused": dict(tally.refused)}  # asdict would count the pairs of a Counter
        return {"snapshots": counts, "notes": notes, "problems": self.problems[:_SHOWN]}

    def summary(self) -> None:
        """Say what was read."""
        tally = self._reader.tally
        if self._as_json:
            typer.echo(json.dumps(self.facts()), err=self._on_stderr)
            return
        earlier = f" ({tally.earlier} of them with an earlier timestamp)" if tally.earlier else ""
        typer.echo(
            f"{tally.snapshots} {self._unit}: {tally.events} events, {tally.derived} with a derived speed; "
            f"{tally.repeated} repeated{earlier}, {tally.without_speed} without any speed" + refusals(tally.refused),
            err=True,
        )
        wrong = self._wrong_speeds()
        if wrong is not None:
            typer.echo(wrong, err=True)

    def _wrong_speeds(self) -> str | None:
        tally = self._reader.tally
        if not tally.reported_speeds_are_wrong or self._reader.reads_no_speeds:
            return None
        return (
            f"Of {tally.driving} vehicles that moved, {tally.driving_but_reported_still} reported a speed of 0, so the "
            "feed's speeds cannot be right. Set feed.speeds = 'derived', or give --speeds derived."
        )

    def end(self, files: int) -> None:
        """Name files that are no snapshots. Exit 2 if no event was read, 1 if some files were not."""
        code, events = (FAILED if self.problems else 0), self._reader.tally.events
        if self._as_json:
            if code or not events:
                raise typer.Exit(code if events else USAGE)
            return
        for problem in self.problems[:_SHOWN]:
            typer.echo(problem, err=True)
        if not events:
            stop(
                f"{files} file(s), {len(self.problems)} of them unreadable, gave no event: {why_no_event(self._reader)}"
            )
        if code:
            stop(f"{len(self.problems)} of {files} files are not snapshots", code)


def why_no_event(reader: SnapshotEvents) -> str:
    """The likely reason why no snapshot gave an event."""
    tally = reader.tally
    if tally.without_speed:
        remedy = "; name a folder of snapshots, or the agency's address" if tally.snapshots == 1 else ""
        return (
            f"{tally.without_speed} vehicles have no speed; a derived one needs two positions of the vehicle, "
            f"8 s to 5 min apart, in one ledger period{remedy}"
        )
    if tally.refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.refused.most_common(5))
        cause = reader.cause_of_refusals
        return f"vehicles refused: {reasons}" + ("" if cause is None else f". {cause}")
    return "are these vehicle positions, and not stop times or alerts?"


Speeds = Annotated[
    str | None,
    typer.Option(
        help="'missing': derive missing speeds from positions; 'derived': derive all; 'reported': derive none. "
        "Default: feed.speeds if it is set, else 'missing'.",
        show_default=False,
    ),
]
EventsFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Write canonical events as NDJSON to this file instead of Kafka ('-': stdout); those of a live feed are "
        "appended. With --offline: the releases.",
    ),
]
Offline = Annotated[bool, typer.Option(help="Release the events here, without Kafka; see --out.")]
SummaryAsJson = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON to stdout; to stderr where events go to stdout.")
]

Feed = Callable[["Sink", asyncio.Event], Awaitable[None]]
"""Feeds a sink until the event is set."""


def speed_source(speeds: str | None, feed: FeedConfig) -> SpeedSource:
    """What ``--speeds`` names; without it, what ``feed.speeds`` says, and if that is not set, "missing".

    Raises :class:`typer.BadParameter` for any other name.
    """
    if speeds is None:
        return feed.speeds if "speeds" in feed.model_fields_set else "missing"
    if speeds not in (sources := get_args(SpeedSource)):
        raise typer.BadParameter(f"{speeds!r} is none of {', '.join(sources)}", param_hint="--speeds")
    return cast("SpeedSource", speeds)


def live_speed_note(settings: Config, speeds: SpeedSource) -> str | None:
    """What the derived speeds of a live feed mean for privacy, and that readers of its releases are told otherwise."""
    note, configured = derived_speed_note(settings.relation, speeds), settings.feed.speeds
    if speeds == configured:
        return note
    mismatch = (
        f"Here speeds are {speeds!r}, but feed.speeds is {configured!r}, and hexveil check, the dashboard and "
        f"/api/v1/feeds say what that says: set feed.speeds to {speeds!r}."
    )
    return mismatch if note is None else f"{note} {mismatch}"


def run_live(config: Config, feed: Feed, source: str, out: Path | None, *, offline: bool, force: bool) -> None:
    """Send a live feed to Kafka, or to the file ``out`` (``-``: stdout), until Ctrl-C; ``offline``: release it into
    that file. ``source``: its name in errors. Raises :class:`typer.BadParameter` for a file of another kind.
    """
    from stream.sources.polling import FileSink, KafkaSink

    if offline:
        if out is None or out.suffix != ".ndjson":
            raise typer.BadParameter(
                "with --offline and an address, name a file like releases.ndjson", param_hint="--out"
            )
        _release(config, feed, source, out, force=force)
    elif out is not None:
        try:
            _run(feed, lambda stopping: FileSink(out))
        except OSError as error:
            stop(f"{out}: {error.strerror or error}; --out needs a file that you may write to", FAILED)
    else:
        _run(feed, lambda stopping: KafkaSink(config, stopping))


def _release(config: Config, feed: Feed, source: str, out: Path, *, force: bool) -> None:
    from concurrent.futures.process import BrokenProcessPool

    from redis.exceptions import RedisError

    from stream.embedded import EmbeddedSink
    from stream.local.server import RedisServer

    if out.exists() and not force:
        stop(f"{out} exists, and its releases cannot be drawn again; name another file, or overwrite it with --force")
    try:
        out.write_bytes(b"")
    except OSError as error:
        stop(f"{out}: {error.strerror or error}; --out needs a folder that you may write to")
    try:
        with RedisServer() as server:
            embedded = config.model_copy(update={"redis": config.redis.model_copy(update={"url": server.url})})
            _run(feed, lambda stopping: EmbeddedSink(embedded, out, stopping))
    except (BrokenProcessPool, RedisError, OSError) as error:
        stop(f"the release of {source} ended: {error}; what {out} contains was released", FAILED)


def _run(feed: Feed, sink: Callable[[asyncio.Event], Sink]) -> None:
    async def run() -> None:
        stopping = stopped_by_signals()
        await feed(sink(stopping), stopping)

    asyncio.run(run())
