"""What the commands that read snapshots say about them, to people or to machines."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from stream.cli.feeding import refusals
from stream.cli.options import FAILED, USAGE, stop
from stream.sources.snapshot_events import SnapshotEvents

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
        unkept = f"; {tally.unkept} times a vehicle's last fixes were not kept for a restart" if tally.unkept else ""
        unkept += f"; {tally.damaged} damaged records of last fixes" if tally.damaged else ""
        earlier = f" ({tally.earlier} of them with an earlier timestamp)" if tally.earlier else ""
        typer.echo(
            f"{tally.snapshots} {self._unit}: {tally.events} events, {tally.derived} with a derived speed; "
            f"{tally.repeated} repeated{earlier}, {tally.without_speed} without any speed"
            + refusals(tally.refused)
            + unkept,
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
            "feed's "
            "speeds cannot be right. Set feed.speeds = 'derived', or give --speeds derived."
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
