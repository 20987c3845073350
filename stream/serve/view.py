"""What the output topics say, in memory: windows, their cells, whether they are complete. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec

from stream.releases import HEXAGON_SPEED, WINDOW, digest

MAX_WINDOWS = 24 * 35
"""Windows kept; older ones are forgotten, newest first to stay."""


class _Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: str
    end: str


class _Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: float
    raw: float
    clamped: bool
    scale: float
    interval: tuple[float, float]
    unit: str


class _Derived(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None


class HexagonSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A release of one cell; as ``schemas/hexveil.hexagon-speed.v1.json``."""

    feed: str
    window: _Bounds
    cell: str
    resolution: int
    relation: Literal["values", "participation"]
    epsilon: float
    status: Literal["published", "suppressed"]
    events: int | _Estimate
    users: int | _Estimate
    mean: _Estimate | msgspec.UnsetType = msgspec.UNSET
    variance: _Estimate | msgspec.UnsetType = msgspec.UNSET
    p15: _Estimate | msgspec.UnsetType = msgspec.UNSET
    p50: _Estimate | msgspec.UnsetType = msgspec.UNSET
    p85: _Estimate | msgspec.UnsetType = msgspec.UNSET
    post_processed: dict[str, _Derived] | msgspec.UnsetType = msgspec.UNSET
    accounting: Literal["zcdp"] | msgspec.UnsetType = msgspec.UNSET
    rho: float | msgspec.UnsetType = msgspec.UNSET
    delta: float | msgspec.UnsetType = msgspec.UNSET


class _Period(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: str
    end: str
    timezone: str


class _Clipping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lower: float
    upper: float
    unit: str


class CloseMarker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A close marker; as ``schemas/hexveil.window.v1.json``."""

    feed: str
    window: _Bounds
    relation: Literal["values", "participation"]
    epsilon: float
    budget: float
    period: _Period
    clipping: _Clipping
    resolution: int
    statistics: list[str]
    messages: int
    digest: str
    generation: str
    accounting: Literal["zcdp"] | msgspec.UnsetType = msgspec.UNSET
    rho: float | msgspec.UnsetType = msgspec.UNSET
    rho_budget: float | msgspec.UnsetType = msgspec.UNSET
    delta: float | msgspec.UnsetType = msgspec.UNSET


@dataclass
class WindowView:
    """One window of one feed: raw message bytes by cell, and its marker once that arrived."""

    feed: str
    start: str
    end: str
    cells: dict[str, bytes] = field(default_factory=dict)
    marker: bytes | None = None
    complete: bool = False

    def check(self) -> bool:
        """Whether marker, count and digest agree with the cells; remembers a yes."""
        if not self.complete and self.marker is not None:
            said = msgspec.json.decode(self.marker, type=CloseMarker)
            in_order = [self.cells[cell] for cell in sorted(self.cells, key=lambda text: int(text, 16))]
            self.complete = said.messages == len(in_order) and said.digest == digest(in_order)
        return self.complete

    def summary(self) -> dict[str, Any]:
        """The window without its cells."""
        known = None if self.marker is None else msgspec.json.decode(self.marker)
        bounds = {"start": self.start, "end": self.end}
        return {
            "feed": self.feed,
            "window": bounds,
            "complete": self.complete,
            "cells": len(self.cells),
            "marker": known,
        }


class View:
    """All windows by (feed, start); a message counts once per ``ce_id`` and only if it fits its schema."""

    def __init__(self, max_windows: int = MAX_WINDOWS) -> None:
        self._max = max_windows
        self._seen: set[str] = set()
        self.windows: dict[tuple[str, str], WindowView] = {}
        self.completed: list[WindowView] = []
        self.forgotten = 0

    def add(self, topic: str, ce_id: str, value: bytes) -> Literal["taken", "duplicate", "invalid", "completed"]:
        """Take one message of an output topic."""
        kind = {HEXAGON_SPEED: HexagonSpeed, WINDOW: CloseMarker}.get(topic)
        if kind is None:
            return "invalid"
        try:
            body = msgspec.json.decode(value, type=kind)
            for moment in (body.window.start, body.window.end):
                datetime.fromisoformat(moment)
            if isinstance(body, HexagonSpeed):
                int(body.cell, 16)
        except (msgspec.DecodeError, ValueError):
            return "invalid"
        if ce_id in self._seen:
            return "duplicate"
        self._seen.add(ce_id)
        key = (body.feed, body.window.start)
        window = self.windows.setdefault(key, WindowView(body.feed, body.window.start, body.window.end))
        if isinstance(body, HexagonSpeed):
            window.cells[body.cell] = value
        else:
            window.marker = value
        if window.complete or not window.check():
            return "taken"
        self.completed.append(window)
        self._forget()
        return "completed"

    def _forget(self) -> None:
        while len(self.completed) > self._max:
            old = self.completed.pop(0)
            self.forgotten += 1
            self.windows.pop((old.feed, old.start), None)

    def ordered(self) -> list[WindowView]:
        """All windows, newest first."""
        return sorted(self.windows.values(), key=lambda window: (window.start, window.feed), reverse=True)

    def find(self, start: str | None, feed: str | None) -> WindowView | None:
        """The window of that start, or the newest complete one."""
        for window in self.ordered():
            if (feed is None or window.feed == feed) and (window.start == start if start else window.complete):
                return window
        return None

    def history(self, cell: str, feed: str | None) -> list[dict[str, Any]]:
        """Every release of one cell in complete windows, oldest first."""
        found = [
            window
            for window in reversed(self.ordered())
            if window.complete and cell in window.cells and (feed is None or window.feed == feed)
        ]
        return [msgspec.json.decode(window.cells[cell]) for window in found]
