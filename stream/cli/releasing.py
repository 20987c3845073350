"""What the commands that release without Kafka share: write releases to a file or stdout, and say what was released."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream.cli.options import FAILED, USAGE, reading_bar, stop
from stream.config import Config
from stream.diagnosis.reading import Accepted
from stream.messages.lines import release_file
from stream.messages.tables import ParquetMissingError
from stream.sources.messages import Messages
from stream.windows import Window

if TYPE_CHECKING:
    from stream.offline import OfflineSummary


From = Annotated[
    str | None,
    typer.Option("--from", help="Offline: start of the first timeslot, a local date or time like 2017-03-21T07:00."),
]
Until = Annotated[str | None, typer.Option("--until", help="Offline: end of the last timeslot.")]
LedgerFolder = Annotated[
    Path | None,
    typer.Option(
        help="Offline: folder of a ledger that is kept after the run. Without it, every run starts with full budgets."
    ),
]
AnySpeed = Annotated[bool, typer.Option("--any-speed", help="Accept speeds that positions contradict.")]


@dataclass(frozen=True)
class ReleaseOptions:
    """What the commands let a user choose. ``state``: folder of a ledger that is kept; ``out``: None for stdout."""

    state: Path | None
    out: Path | None
    force: bool
    accepted: Accepted
    as_json: bool


def check_span(start: str | None, end: str | None) -> None:
    """Raises :class:`typer.BadParameter` for one end of a span without the other."""
    if (start is None) != (end is None):
        raise typer.BadParameter("give both --from and --until, or neither", param_hint="--from")


def named_span(settings: Config, start: str | None, end: str | None) -> Window | None:
    """The time to release, where it is named. Raises :class:`stream.windows.SpanError`."""
    return settings.slotting.span(start, end) if start and end else None


def release_offline(
    settings: Config,
    file: Path,
    file_format: str,
    span: Window | None,
    options: ReleaseOptions,
    blocks: Iterable[Messages] | None = None,
    reading: Callable[[], dict[str, object]] = dict,
) -> None:
    """Write releases of a recording to ``options.out`` or stdout, and progress and the summary to stderr.

    With ``options.as_json`` the summary is one JSON object on stdout, or on stderr if the releases go to stdout: it
    counts true events and must not get among releases. ``blocks``: its canonical events, if ``file`` is not to be read
    for them; ``reading`` returns what the summary says about how they were read.
    """
    from stream.offline import replay_offline  # slow to import; a replay to Kafka does not need it

    out = options.out
    try:
        with (
            nullcontext(sys.stdout) if out is None else release_file(out, force=options.force) as releases,
            reading_bar() as on_progress,
        ):
            summary = replay_offline(
                settings,
                file,
                file_format,
                releases,
                span=span,
                state=options.state,
                accepted=options.accepted,
                blocks=blocks,
                on_progress=on_progress,
            )
    except ParquetMissingError:
        stop(f"{out}: Parquet needs pyarrow; pip install 'hexveil[parquet]', or write .csv")
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or Python would try again at its end, and complain
        lost = "" if options.state is None else ", and what was written before is not written again"
        stop(f"stdout: its reader ended before all was written{lost}; name a file with --out", FAILED)
    except OSError as error:
        stop(
            f"{error.filename or out or 'stdout'}: {error.strerror}; --out and --state need a folder that you may "
            "write to"
        )
    _end(summary, file, options, reading())


def _end(summary: OfflineSummary, file: Path, options: ReleaseOptions, reading: dict[str, object]) -> None:
    problem = None
    if not summary.events and (summary.refused or summary.outside):
        # Under "participation" alone: which windows are released must not depend on the recording.
        problem = f"{file}: none of its events was used, so the releases contain only noise"
    if options.as_json:
        typer.echo(json.dumps(asdict(summary) | reading | {"error": problem}), err=options.out is None)
        if problem is not None:
            raise typer.Exit(USAGE)
        if summary.set_aside:
            raise typer.Exit(FAILED)
        return
    _tell(summary, options.out)
    if problem is not None:
        stop(problem)
    if summary.set_aside:
        stop("\n".join(summary.set_aside), FAILED)


def _tell(summary: OfflineSummary, out: Path | None) -> None:
    refused = sum(summary.refused.values())
    for reason, count in summary.refused.items():
        example = f", like {summary.examples[reason]}" if reason in summary.examples else ""
        typer.echo(f"  {count} {reason}{example}", err=True)
    if summary.likely_cause is not None:
        typer.echo(summary.likely_cause, err=True)
    for note in summary.notes:
        typer.echo(f"Note: {note}", err=True)
    derived = f", {summary.derived} with a derived speed" if summary.derived else ""
    withheld = f"{len(summary.withheld)} withheld, " if summary.withheld else ""
    typer.echo(
        f"{summary.events} events ({refused} refused){derived}, {len(summary.windows)} windows released, {withheld}"
        f"{summary.already_released} released before, {summary.messages} messages in {summary.seconds:.1f} s"
        + ("" if out is None else f": {out}"),
        err=True,
    )
