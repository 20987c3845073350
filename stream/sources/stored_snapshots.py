"""Stored snapshots, whose arrival is not known: one whose clock was ahead is noticed by its neighbours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from stream.sources.snapshots import Snapshot

Name = TypeVar("Name")

AHEAD_US = 60_000_000
"""A header that is later by more than this than those of both neighbours is wrong. Old documents that come late differ by less."""


def without_clocks_ahead(snapshots: Iterable[tuple[Name, Snapshot]]) -> Iterator[tuple[Name, Snapshot]]:
    """The snapshots, in the order in which they were stored, each with its name.

    Where a header is :data:`AHEAD_US` later than those of both neighbours, vehicles that are later than these are left out, and
    count as refused. One snapshot is held back, to see the next.
    """
    before: Snapshot | None = None
    waiting: tuple[Name, Snapshot] | None = None
    for name, after in snapshots:
        if waiting is not None:
            yield waiting[0], _judged(before, waiting[1], after)
            before = waiting[1]
        waiting = name, after
    if waiting is not None:
        yield waiting


def _judged(before: Snapshot | None, snapshot: Snapshot, after: Snapshot) -> Snapshot:
    if before is None or before.header is None or snapshot.header is None or after.header is None:
        return snapshot
    latest = max(before.header, after.header)
    return snapshot.until(latest) if snapshot.header > latest + AHEAD_US else snapshot
