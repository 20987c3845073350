"""What the commands that follow a live feed share: its events go to Kafka or a file, or are released here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stream.cli.options import FAILED, UNREACHABLE, stop, stopped_by_signals
from stream.config import Config
from stream.config.feed import FeedConfig, SpeedSource, derived_speed_note
from stream.sources.delivery import DeliveryError
from stream.sources.polling import FetchError
from stream.sources.snapshot_events import SPEED_SOURCES, SnapshotEvents

if TYPE_CHECKING:
    from stream.sources.live import Sink

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
ForceOffline = Annotated[bool, typer.Option("--force", help="Offline: overwrite the file of --out.")]
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
    if speeds not in SPEED_SOURCES:
        raise typer.BadParameter(f"{speeds!r} is none of {', '.join(SPEED_SOURCES)}", param_hint="--speeds")
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


def check_release_file(out: Path | None) -> None:
    """Raises :class:`typer.BadParameter` for a file to which no live feed can be released."""
    if out is None or out.suffix != ".ndjson":
        raise typer.BadParameter("with --offline and an address, name a file like releases.ndjson", param_hint="--out")


def run_live(
    config: Config, reader: SnapshotEvents, feed: Feed, source: str, out: Path | None, *, offline: bool, force: bool
) -> None:
    """Send a live feed to Kafka, or to the file ``out`` (``-``: stdout), until Ctrl-C; ``offline``: release it into
    that file, which :func:`check_release_file` has seen. ``source``: its name in errors.

    If it goes to Kafka, the last fixes of ``reader`` are kept in Redis under "values", because another process may go
    on with it.
    """
    from stream.sources.live import FileSink, KafkaSink

    if offline and out is not None:
        _release(config, feed, source, out, force=force)
    elif out is not None:
        try:
            _run(feed, lambda stopping: FileSink(out))
        except OSError as error:
            stop(f"{out}: {error.strerror or error}; --out needs a file that you may write to", FAILED)
    else:
        from stream.sources.fix_memory import fix_memory

        reader.remember_by(fix_memory(config))
        _run(feed, lambda stopping: KafkaSink(config, stopping))


def _release(config: Config, feed: Feed, source: str, out: Path, *, force: bool) -> None:
    """Release the windows of a live feed on this machine, each when it is over. ``source``: its name in errors."""
    from concurrent.futures.process import BrokenProcessPool

    from redis.exceptions import RedisError

    from stream.embedded import EmbeddedError, EmbeddedSink
    from stream.ingestion.pseudonyms import UserKeyError
    from stream.local import LocalServerError, RedisServer
    from stream.storage.ledger import LedgerError
    from stream.storage.row_store import StateError

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
    except UserKeyError as error:
        stop(error)
    except (EmbeddedError, LedgerError, LocalServerError, StateError) as error:
        stop(error, FAILED)
    except (BrokenProcessPool, RedisError, OSError) as error:
        stop(f"the release of {source} ended: {error}; what {out} contains was released", FAILED)


def _run(feed: Feed, sink: Callable[[asyncio.Event], Sink]) -> None:
    """Feed a sink until Ctrl-C. Exits 3 if the source or Kafka does not answer at the start."""

    async def run() -> None:
        stopping = stopped_by_signals()
        await feed(sink(stopping), stopping)

    try:
        asyncio.run(run())
    except (FetchError, DeliveryError) as error:
        stop(error, UNREACHABLE)
