"""Means over the windows of a range: of every cell, or those of an area, and of all of them together.

Released estimates as series: the newest ones for Prometheus, and those of a range as rows of JSON.

They are what the API says of areas, routes and cells anyway, computed from released messages alone, and no metrics of
the service: these name nobody and no place (:mod:`stream.serve.metrics`). Who asks chooses which, at most
:data:`stream.serve.parameters.MOST_NAMES`, so the number of series is bounded.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from stream.config.geojson import Position
from stream.messages.cells import Cell, Clipping, cells_of
from stream.serve import parameters as p
from stream.serve.city.areas import Area, PolygonArea
from stream.serve.city.combining import combined, inside
from stream.serve.hexagons import MAX_WAITING, begun_in, bounded, known_area
from stream.serve.operations import get
from stream.serve.responses import JSON, MOST_WAITING, Answers, Problem, Turns, key_of
from stream.serve.window_store import CloseMarker, View, WindowView, local_start, stated_by

DAY_KINDS: dict[str, frozenset[int]] = {
    "workday": frozenset(range(5)),
    "saturday": frozenset({5}),
    "sunday": frozenset({6}),
    "weekend": frozenset({5, 6}),
}
"""Days of the week of each kind, Monday 0."""


ALL = "all"
"""The name of all cells together."""
TEXT = "text/plain"


class Means:
    """Puts the releases of one cell in many windows together: their noise is independent, so its mean is narrower than
    each.

    A mean is weighted by the events of the windows or, under "participation", by their users, as that of an area is by
    its cells. A merged cell is another one where it excludes other cells.
    """

    def __init__(self, view: View, answers: Answers, areas: dict[str, Area]) -> None:
        self._view, self._answers, self._areas = view, answers, areas
        self._turns, self._newest = Turns("means and series", MAX_WAITING, 30), Turns("newest estimates", MOST_WAITING)

    @get(
        "/means", "listMeans", {JSON: "MeanList"},
        "feed", "from", "to", "days", "hours", "area", "in_ring", tag="Hexagons",
    )  # fmt: skip
    async def answer(
        self, request: web.Request, area: str | None, ring: list[Position] | None, **asked: Any
    ) -> web.Response:
        """Means of the cells over the windows of a range, and of all of them together."""
        named = None if area is None else known_area(self._areas, area)
        of = Range(**asked)
        windows, within = chosen(self._view, of)
        if ring is not None and area is not None:
            raise Problem(400, "area and ring are both given", "give one of them")
        where = PolygonArea("", [[ring]]) if ring is not None else named

        def make() -> bytes:
            return msgspec.json.encode(of.said(windows) | _means(windows, where, within))

        key = key_of("means", [window.tag for window in windows], of, area, ring)
        return await self._turns.answer(self._answers, request, key, make, JSON)

    @get("/series/newest", "scrapeSeries", {TEXT: None}, "feed", "names", tag="Series")
    async def newest(self, request: web.Request, feed: str, names: list[str] | None) -> web.Response:
        """The same of the newest complete window, in the text format of Prometheus."""
        named, window = self._named(names), self._view.find(None, feed)
        key = key_of("newest series", feed, names, None if window is None else window.tag)
        return await self._newest.answer(self._answers, request, key, lambda: _text(feed, named, window), TEXT)

    @get("/series", "listSeries", {JSON: "SeriesList"}, "feed", "from", "to", "names", tag="Series")
    async def rows(self, request: web.Request, names: list[str] | None, **asked: Any) -> web.Response:
        """Leading means of areas, routes and cells in the windows of a range, a row for each."""
        named, of = self._named(names), Range(**asked)
        windows, _ = chosen(self._view, of)

        def make() -> bytes:
            rows = [row for window in reversed(windows) for row in _rows(named, window)]
            return msgspec.json.encode(of.said(windows) | {"rows": rows})

        key = key_of("series", names, of, [window.tag for window in windows])
        return await self._turns.answer(self._answers, request, key, make, JSON)

    def _named(self, names: list[str] | None) -> "list[Named]":
        """What was asked for; by default all cells, and as many areas and routes as are allowed."""
        if names is not None:
            return [self._one(name) for name in dict.fromkeys(names)]
        areas = (Named(area.kind, area.name, area) for area in self._areas.values())
        return [Named(ALL, ALL), *areas][: p.MOST_NAMES]

    def _one(self, name: str) -> "Named":
        if name == ALL:
            return Named(ALL, ALL)
        if name not in self._areas and len(name) == 15 and set(name) <= set("0123456789abcdef"):
            return Named("cell", name)
        area = known_area(self._areas, name)
        return Named(area.kind, name, area)


class Range(NamedTuple):
    """Which windows are put together: those that begin in [first, last), on such days and in such local hours."""

    feed: str
    first: str
    last: str
    days: str | None = None
    hours: tuple[int, int] | None = None

    def said(self, windows: Sequence[WindowView]) -> dict[str, Any]:
        """What every answer begins with."""
        return {"feed": self.feed, "from": self.first, "to": self.last, "windows": len(windows)}


def chosen(view: View, of: Range) -> tuple[list[WindowView], Clipping]:
    """The complete windows to put together, and the bounds of their values; 404 without any, 413 for too many."""
    marked = [(window, stated_by(window)) for window in begun_in(view, of.feed, of.first, of.last)]
    alike = [one for one in marked if _is_asked(*one, of) and _settings(one[1]) == _settings(marked[0][1])]
    return bounded(of.feed, [window for window, _ in alike]), alike[0][1].clipping


def _is_asked(window: WindowView, marker: CloseMarker, of: Range) -> bool:
    local: datetime = local_start(window.start, marker.period.timezone)
    on_day = of.days is None or local.weekday() in DAY_KINDS[of.days]
    return on_day and (of.hours is None or of.hours[0] <= local.hour < of.hours[1])


def _settings(marker: CloseMarker) -> tuple[Any, ...]:
    """What must be alike: windows of other settings than the newest one are left out."""
    return marker.relation, marker.value, msgspec.structs.astuple(marker.clipping)


Releases = dict[tuple[str, tuple[str, ...]], list[Cell]]
"""What windows released of each cell and the cells that it excludes."""


def releases_of(windows: Sequence[WindowView], area: Area | None = None) -> Releases:
    """What the windows released of the cells of an area, or of all."""
    releases: Releases = defaultdict(list)
    for window in windows:
        cells = cells_of(window.in_order())
        for cell in cells if area is None else inside(area, cells):
            releases[cell.cell, tuple(sorted(cell.excludes))].append(cell)
    return releases


def _means(windows: list[WindowView], area: Area | None, within: Clipping) -> dict[str, Any]:
    releases = releases_of(windows, area)
    rows = [
        {"cell": cell, "excludes": excludes, "windows": len(seen)} | _of(combined(seen, within))
        for (cell, excludes), seen in sorted(releases.items())
    ]
    everything = [cell for seen in releases.values() for cell in seen]
    return {"cells": rows, "together": _of(combined(everything, within))}


def _of(together: dict[str, Any]) -> dict[str, Any]:
    """Without the estimate: a model's errors do not average out over windows."""
    return {name: together[name] for name in ("events", "users", "mean")}


class Named(NamedTuple):
    """What a series is of: cells that an area holds, one cell where there is no area, or all of them."""

    kind: str
    name: str
    area: Area | None = None

    def of(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of the released cells that it is made of."""
        if self.area is not None:
            return inside(self.area, cells)
        return [cell for cell in cells if self.kind == ALL or cell.cell == self.name]


def _rows(named: Sequence[Named], window: WindowView) -> list[dict[str, Any]]:
    """The rows of each name that has an estimate."""
    cells, within, rows = cells_of(window.in_order()), stated_by(window).clipping, []
    for one in named:
        if estimate := combined(one.of(cells), within)["estimate"]:
            low, high = estimate["interval"]
            about = {"time": window.end, "kind": one.kind, "name": one.name, "unit": estimate["unit"]}
            rows.append(about | {"method": estimate["method"], "mean": estimate["value"], "low": low, "high": high})
    return rows


def _text(feed: str, named: Sequence[Named], window: WindowView | None) -> bytes:
    registry = CollectorRegistry()
    labels = ["feed", "kind", "name", "unit"]
    gauges = {
        column: Gauge(f"hexveil_released_{column}", f"{meaning}.", labels, registry=registry)
        for column, meaning in (
            ("mean", "Leading mean"),
            ("low", "Lower end of its 95 % interval"),
            ("high", "Upper end of its 95 % interval"),
        )
    }
    ended = Gauge("hexveil_released_window_end_seconds", "End of their window, unix time.", ["feed"], registry=registry)
    if window is not None:
        ended.labels(feed).set(datetime.fromisoformat(window.end).timestamp())
        for row in _rows(named, window):
            for column, gauge in gauges.items():
                gauge.labels(feed, *(row[label] for label in labels[1:])).set(row[column])
    return generate_latest(registry)
