"""Stored snapshots, whose arrival is not known: one whose clock was ahead is noticed by its neighbours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from stream.sources.snapshots import Snapshot

Name = TypeVar("Name")

AHEAD_US = 60_000_000
"""A header that is later than those of both neighbours by more than this is wrong. Old documents that come late differ by less."""


def without_clocks_ahead(snapshots: Iterable[tuple[Name, Snapshot]]) -> Iterator[tuple[Name, Snapshot]]:
    """The snapshots, in the order in which they were stored, each with its name.

    Where a header is :data:`AHEAD_US` later than those of both neighbours, vehicles that are later than these are left out, and
    count as refused. One snapshot is held back, to see the next.
    """
    before: Snapshot | None = None
    held: tuple[Name, Snapshot] | None = None
    for name, snapshot in snapshots:
        if held is not None:
            yield held[0], _judged(before, held[1], snapshot)
            before = held[1]
        held = name, snapshot
    if held is not None:
        yield held


def _judged(before: Snapshot | None, snapshot: Snapshot, after: Snapshot) -> Snapshot:
    if before is None or before.header is None or snapshot.header is None or after.header is None:
        return snapshot
    latest = max(before.header, after.header)
    return snapshot.until(latest) if snapshot.header > latest + AHEAD_US else snapshot
