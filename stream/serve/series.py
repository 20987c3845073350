"""Released estimates as series: the newest ones for Prometheus, and those of a range as rows of JSON.

They are what the API says of areas, routes and cells anyway, computed from released messages alone, and no metrics of
the service: these name nobody and no place (:mod:`stream.serve.metrics`). Who asks chooses which, at most
:data:`MOST_NAMES`, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from stream.serve import parameters as p
from stream.serve.city.areas import Area
from stream.serve.city.combining import CellNumbers, combined, inside, numbers_of
from stream.serve.close_marker import bounds_of
from stream.serve.hexagons import known_area
from stream.serve.means import Range, chosen
from stream.serve.operations import get
from stream.serve.parameter_texts import MOST_NAMES
from stream.serve.ranges import MAX_WAITING
from stream.serve.responses import JSON, Answers, key_of
from stream.serve.turns import MOST_WAITING, Turns
from stream.serve.window_store import View, WindowView

ALL = "all"
"""The name of all cells together."""
TEXT = "text/plain"


class Named(NamedTuple):
    """What a series is of: cells that an area holds, one cell where there is no area, or all of them."""

    kind: str
    name: str
    area: Area | None = None

    def of(self, cells: Sequence[CellNumbers]) -> list[CellNumbers]:
        """Those of the released cells that it is made of."""
        if self.area is not None:
            return inside(self.area, cells)
        return [cell for cell in cells if self.kind == ALL or cell.cell == self.name]


class Series:
    """Handlers for the leading mean of named areas, routes and cells, with its 95 % interval."""

    def __init__(self, view: View, answers: Answers, areas: dict[str, Area]) -> None:
        self._view, self._answers, self._areas = view, answers, areas
        self._newest_turns, self._turns = Turns("newest estimates", MOST_WAITING), Turns("series", MAX_WAITING, 30)

    @get("/series/newest", "scrapeSeries", {TEXT: None}, p.FEED, p.NAMES, tag="Series", errors=(404,))
    async def newest(self, request: web.Request, feed: str, names: list[str] | None) -> web.Response:
        """The same of the newest complete window, in the text format of Prometheus."""
        named, window = self._named(names), self._view.find(None, feed)
        key = key_of("newest series", feed, names, None if window is None else window.tag)
        return await self._newest_turns.answer(self._answers, request, key, lambda: _text(feed, named, window), TEXT)

    @get(
        "/series", "listSeries", {JSON: "SeriesList"}, p.FEED, p.FROM, p.TO, p.NAMES, tag="Series", errors=(404, 413),
    )  # fmt: skip
    async def rows(
        self, request: web.Request, feed: str, first: str, last: str, names: list[str] | None
    ) -> web.Response:
        """Leading means of areas, routes and cells in the windows of a range, a row for each."""
        named, of = self._named(names), Range(feed, first, last, None, None)
        windows, _ = chosen(self._view, of)

        def make() -> bytes:
            rows = [row for window in reversed(windows) for row in _rows(named, window)]
            return msgspec.json.encode(of.said(windows) | {"rows": rows})

        key = key_of("series", names, first, last, [window.tag for window in windows])
        return await self._turns.answer(self._answers, request, key, make, JSON)

    def _named(self, names: list[str] | None) -> list[Named]:
        """What was asked for; by default all cells, and as many areas and routes as are allowed."""
        if names is not None:
            return [self._one(name) for name in dict.fromkeys(names)]
        areas = (Named(area.kind, area.name, area) for area in self._areas.values())
        return [Named(ALL, ALL), *areas][:MOST_NAMES]

    def _one(self, name: str) -> Named:
        if name == ALL:
            return Named(ALL, ALL)
        if name not in self._areas and len(name) == 15 and set(name) <= set("0123456789abcdef"):
            return Named("cell", name)
        area = known_area(self._areas, name)
        return Named(area.kind, name, area)


def _rows(named: Sequence[Named], window: WindowView) -> list[dict[str, Any]]:
    """Of each name with an estimate, what is said of it."""
    cells, within, rows = numbers_of(window.in_order()), bounds_of(window), []
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
