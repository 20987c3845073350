"""Means over the windows of a range: of every cell and, where an area is named, of its cells together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec
from aiohttp import web

from stream.config.geojson import Position
from stream.serve import parameters as p
from stream.serve.city.areas import Area, PolygonArea
from stream.serve.city.combining import CellNumbers, combined, inside, numbers_of
from stream.serve.close_marker import Bounds, CloseMarker, marker_of
from stream.serve.hexagons import known_area
from stream.serve.local_time import local_start
from stream.serve.operations import get
from stream.serve.ranges import MAX_RANGE_BYTES, MAX_WAITING
from stream.serve.responses import JSON, Answers, Problem, key_of
from stream.serve.turns import Turns
from stream.serve.window_store import View, WindowView

DayKind = Literal["workday", "saturday", "sunday", "weekend"]
DAY_KINDS: dict[str, frozenset[int]] = {
    "workday": frozenset(range(5)),
    "saturday": frozenset({5}),
    "sunday": frozenset({6}),
    "weekend": frozenset({5, 6}),
}
"""Days of the week of each kind, Monday 0."""


class Means:
    """Puts the releases of one cell in many windows together: their noise is independent, so its mean is narrower than
    each.

    A mean is weighted by the events of the windows or, under "participation", by their users, as that of an area is by
    its cells. A merged cell is another one where it excludes other cells.
    """

    def __init__(self, view: View, answers: Answers, areas: dict[str, Area]) -> None:
        self._view, self._answers, self._areas = view, answers, areas
        self._turns = Turns("means", MAX_WAITING, 30)

    @get(
        "/means", "listMeans", {JSON: "MeanList"},
        p.FEED, p.FROM, p.TO, p.DAYS, p.HOURS, p.AREA_QUERY, p.RING_QUERY, tag="Hexagons", errors=(404, 413),
    )  # fmt: skip
    async def answer(
        self,
        request: web.Request,
        feed: str,
        first: str,
        last: str,
        days: str | None,
        hours: tuple[int, int] | None,
        area: str | None,
        ring: list[Position] | None,
    ) -> web.Response:
        """Means of the cells over the windows of a range, and of an area's cells together."""
        named = None if area is None else known_area(self._areas, area)
        of = Range(feed, first, last, days, hours)
        windows, within = chosen(self._view, of)
        if ring is not None and area is not None:
            raise Problem(400, "area and ring are both given", "give one of them")
        where = PolygonArea("", [[ring]]) if ring is not None else named

        def make() -> bytes:
            return msgspec.json.encode(of.said(windows) | _means(windows, where, within))

        key = key_of("means", [window.tag for window in windows], first, last, area, ring)
        return await self._turns.answer(self._answers, request, key, make, JSON)


class Range(NamedTuple):
    """Which windows are put together: those that begin in [first, last), on such days and in such local hours."""

    feed: str
    first: str
    last: str
    days: str | None
    hours: tuple[int, int] | None

    def said(self, windows: Sequence[WindowView]) -> dict[str, Any]:
        """What every answer begins with."""
        return {"feed": self.feed, "from": self.first, "to": self.last, "windows": len(windows)}


def chosen(view: View, of: Range) -> tuple[list[WindowView], Bounds]:
    """The complete windows to put together, and the bounds of their values; 404 without any, 413 for too many."""
    windows = [w for w in view.ordered(of.feed) if w.complete and of.first <= w.start < of.last]
    marked = [(window, marker) for window in windows if (marker := marker_of(window)) is not None]
    alike = [one for one in marked if _is_asked(*one, of) and _settings(one[1]) == _settings(marked[0][1])]
    if not alike:
        remedy = "see /api/v1/windows for starts; choose a longer range, or other days or hours"
        raise Problem(404, f"no window of feed {of.feed!r} begins then", remedy)
    size = sum(window.size for window, _ in alike)
    if size > MAX_RANGE_BYTES:
        title = f"the {len(alike)} windows of this range hold {size} bytes, above {MAX_RANGE_BYTES}"
        raise Problem(413, title, "ask for a shorter range, or for fewer hours")
    return [window for window, _ in alike], alike[0][1].clipping


def _is_asked(window: WindowView, marker: CloseMarker, of: Range) -> bool:
    local: datetime = local_start(window.start, marker.period.timezone)
    on_day = of.days is None or local.weekday() in DAY_KINDS[of.days]
    return on_day and (of.hours is None or of.hours[0] <= local.hour < of.hours[1])


def _settings(marker: CloseMarker) -> tuple[Any, ...]:
    """What must be alike: windows of other settings than the newest one are left out."""
    return marker.relation, marker.value, msgspec.structs.astuple(marker.clipping)


Releases = dict[tuple[str, tuple[str, ...]], list[CellNumbers]]
"""Of each cell and what it excludes, what windows released."""


def releases_of(windows: Sequence[WindowView], area: Area | None = None) -> Releases:
    """What the windows released of the cells of an area, or of all."""
    releases: Releases = defaultdict(list)
    for window in windows:
        cells = numbers_of(window.in_order())
        for cell in cells if area is None else inside(area, cells):
            releases[cell.cell, tuple(sorted(cell.excludes))].append(cell)
    return releases


def _means(windows: list[WindowView], area: Area | None, within: Bounds) -> dict[str, Any]:
    releases = releases_of(windows, area)
    rows = [_row(cell, excludes, seen, within) for (cell, excludes), seen in sorted(releases.items())]
    if area is None:
        return {"cells": rows, "together": None}
    everything = [cell for seen in releases.values() for cell in seen]
    return {"cells": rows, "together": _of(combined(everything, within))}


def _row(cell: str, excludes: tuple[str, ...], seen: list[CellNumbers], within: Bounds) -> dict[str, Any]:
    return {"cell": cell, "excludes": list(excludes), "windows": len(seen)} | _of(combined(seen, within))


def _of(together: dict[str, Any]) -> dict[str, Any]:
    """Without the estimate: a model's errors do not average out over windows."""
    return {name: together[name] for name in ("events", "users", "mean")}
