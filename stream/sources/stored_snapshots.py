"""Stored snapshots, whose arrival is not known: a clock that was ahead is noticed by the headers of the neighbours.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from stream.sources.snapshots import AHEAD_US, Snapshot

Name = TypeVar("Name")


def without_clocks_ahead(snapshots: Iterable[tuple[Name, Snapshot]]) -> Iterator[tuple[Name, Snapshot]]:
    """The snapshots, in the order in which they were stored, each with its name.

    Where a header is :data:`AHEAD_US` later than those of both neighbours, vehicles that are later than these are left
    out, and count as refused. Where a header is so much earlier than the one before, and the next one is earlier than
    that as well, the clock of those before was ahead: snapshots are marked until headers are as late again. One
    snapshot is held back, to see the next.
    """
    before: Snapshot | None = None
    waiting: tuple[Name, Snapshot] | None = None
    wrong_us: int | None = None
    for name, after in snapshots:
        if waiting is not None:
            snapshot = waiting[1]
            wrong_us = _wrong_header(wrong_us, before, snapshot, after)
            yield waiting[0], _marked(_judged(before, snapshot, after), wrong_us)
            before = snapshot
        waiting = name, after
    if waiting is not None:
        yield waiting[0], _marked(waiting[1], wrong_us)


def _wrong_header(known_us: int | None, before: Snapshot | None, snapshot: Snapshot, after: Snapshot) -> int | None:
    """The latest header (µs UTC) of earlier snapshots that is known to be wrong; None once headers are as late as
    that."""
    if snapshot.header is None:
        return known_us
    earlier, later = None if before is None else before.header, after.header
    if earlier is not None and later is not None and snapshot.header + AHEAD_US < earlier > later:
        known_us = max(known_us or 0, earlier)
    return None if known_us is None or snapshot.header + AHEAD_US >= known_us else known_us


def _marked(snapshot: Snapshot, wrong_us: int | None) -> Snapshot:
    return snapshot if wrong_us is None else replace(snapshot, was_set_back=True)


def _judged(before: Snapshot | None, snapshot: Snapshot, after: Snapshot) -> Snapshot:
    if before is None or before.header is None or snapshot.header is None or after.header is None:
        return snapshot
    latest = max(before.header, after.header)
    return snapshot.until(latest) if snapshot.header > latest + AHEAD_US else snapshot
