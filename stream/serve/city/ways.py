"""Handlers for speeds and travel times along the lines of routes: in one window, and as means over a range."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import h3
import msgspec
import numpy as np
from aiohttp import web

from stream.config import Config
from stream.config.geojson import Position
from stream.config.value import SPEED
from stream.serve import parameters as p
from stream.serve.cell_history import ENOUGH, Usual
from stream.serve.city.combining import CellNumbers, combined, numbers_of
from stream.serve.city.places import Places
from stream.serve.city.routes import Span, Speeds, along, estimates, pieces_of, stops_along, travel
from stream.serve.city.scheduled import ScheduledService, hours_of
from stream.serve.close_marker import marker_of
from stream.serve.hexagons import known_window
from stream.serve.means import Range, chosen, releases_of
from stream.serve.operations import get
from stream.serve.responses import CSV, JSON, Answers, Problem, key_of
from stream.serve.turns import MOST_WAITING, Turns
from stream.serve.window_store import View, WindowView

MOST_CUT = 2_000
"""Lines of routes that are kept cut at the edges of cells, and those whose stops are kept."""
KINDS = {"json": JSON, "csv": CSV}
"""Media type of each format."""

Body = dict[str, Any]


class Ways:
    """What the released cells say of the way along each line of a route, between two stops or from end to end."""

    def __init__(
        self, config: Config, view: View, answers: Answers, places: Places, service: ScheduledService, usual: Usual
    ) -> None:
        self._view, self._answers, self._usual, self._service = view, answers, usual, service
        self._feed, self._zone = config.feed.name, config.feed.timezone
        self._turns = Turns("routes", MOST_WAITING)
        self._lines = {route.route: route.lines for route in places.lines}
        self._stops_at: dict[str, list[Position]] = defaultdict(list)
        for stop in places.stops:
            self._stops_at[stop.name].append((stop.lng, stop.lat))
        self._pieces = lru_cache(MOST_CUT)(lambda route, at, finest: pieces_of(self._lines[route][at], finest))
        self._stops = lru_cache(MOST_CUT)(lambda route, at: stops_along(self._lines[route][at], self._stops_at))

    @get(
        "/routes/{route}/speed", "getRouteSpeed", {JSON: "RouteSpeed", CSV: None},
        p.ROUTE_PATH, p.FEED, p.WINDOW_QUERY, p.FROM_STOP, p.TO_STOP, p.TABLE, tag="Places", errors=(404,),
    )  # fmt: skip
    async def speed(
        self,
        request: web.Request,
        route: str,
        feed: str,
        window: str | None,
        from_stop: str | None,
        to_stop: str | None,
        form: str,
    ) -> web.Response:
        """Speed and travel time along each line of a route in one window, by the estimates of the cells that it
        crosses."""
        self._check(route, from_stop, to_stop)
        known = known_window(self._view, window, feed)
        _require_speeds(known)
        values, summary = known.in_order(), known.summary()
        earlier = self._usual.earlier(self._view, known)

        def make() -> bytes:
            cells = numbers_of(values)
            kinds = {"now": estimates(cells, "mean"), "typical": self._typical(known, earlier, cells)}
            planned = self._planned([known], ((cell.cell, cell.excludes) for cell in cells))
            said = {"route": route} | {name: summary[name] for name in ("feed", "window", "complete")}
            lines = self._along(route, {cell.cell for cell in cells}, kinds, planned, (from_stop, to_stop))
            return _written(said, lines, form)

        others = [other.tag for other in earlier]
        key = key_of("route", route, from_stop, to_stop, form, known.tag, others)
        return await self._turns.answer(self._answers, request, key, make, KINDS[form])

    @get(
        "/routes/{route}/means", "getRouteMeans", {JSON: "RouteMeans", CSV: None},
        p.ROUTE_PATH, p.FEED, p.FROM, p.TO, p.DAYS, p.HOURS, p.FROM_STOP, p.TO_STOP, p.TABLE,
        tag="Places", errors=(404, 413),
    )  # fmt: skip
    async def means(
        self,
        request: web.Request,
        route: str,
        feed: str,
        first: str,
        last: str,
        days: str | None,
        hours: tuple[int, int] | None,
        from_stop: str | None,
        to_stop: str | None,
        form: str,
    ) -> web.Response:
        """The same by the means of the cells over the windows of a range."""
        self._check(route, from_stop, to_stop)
        of = Range(feed, first, last, days, hours)
        windows, within = chosen(self._view, of)
        _require_speeds(windows[0])

        def make() -> bytes:
            releases = releases_of(windows)
            means: dict[str, Span] = {}
            for (cell, _), seen in sorted(releases.items(), key=lambda item: len(item[1])):
                if mean := combined(seen, within)["mean"]:
                    low, high = mean["interval"]
                    means[cell] = Span(mean["value"], low, high, mean.get("at_bound", False))
            planned = self._planned(windows, releases)
            lines = self._along(route, means.keys(), {"mean": means}, planned, (from_stop, to_stop))
            return _written({"route": route} | of.said(windows), lines, form)

        tags = [window.tag for window in windows]
        key = key_of("route means", route, from_stop, to_stop, form, first, last, tags)
        return await self._turns.answer(self._answers, request, key, make, KINDS[form])

    def _check(self, route: str, *stops: str | None) -> None:
        if route not in self._lines:
            raise Problem(
                404, f"there are no lines of a route {route[:80]!r}", "see /api/v1/routes for those that have"
            )
        for name in stops:
            if name is not None and name not in self._stops_at:
                raise Problem(404, f"there is no stop {name[:80]!r}", "see /api/v1/stops for the names that are known")

    def _typical(self, window: WindowView, earlier: list[WindowView], cells: Collection[CellNumbers]) -> Speeds:
        """What the messages call typical or, where they do not, the mean of earlier releases at the same local time."""
        released = estimates(cells, "typical")
        if released or len(earlier) < ENOUGH:
            return released
        return {cell: Span(*mean) for cell, mean in self._usual.means(window, earlier).items()}

    def _planned(self, windows: Collection[WindowView], cells: Iterable[tuple[str, Any]]) -> Mapping[str, float]:
        """Scheduled km/h of released cells in the hours of the windows."""
        if any(window.feed != self._feed for window in windows):
            return {}
        hours = np.sum([hours_of(window.start, window.end, self._zone) for window in windows], axis=0)
        return {row["cell"]: row["value"] for row in self._service.speeds(hours, cells)}

    def _along(
        self,
        route: str,
        cells: Collection[str],
        kinds: Mapping[str, Speeds],
        planned: Mapping[str, float],
        between: tuple[str | None, str | None],
    ) -> list[Body]:
        """Of each line that leads from one stop to the other, what is known of the way."""
        finest = max(map(h3.get_resolution, cells), default=0)
        ways = []
        for at, line in enumerate(self._lines[route]):
            pieces, stops = self._pieces(route, at, finest), self._stops(route, at)
            start, end = self._place(line, between[0], 0.0), self._place(line, between[1], pieces[-1][2])
            if start is not None and end is not None and start < end:
                ends = {"from": list(line[0]), "to": list(line[-1])}
                named = [
                    stop or (stops[where] if stops else None) for stop, where in zip(between, (0, -1), strict=True)
                ]
                names = {"from_stop": named[0], "to_stop": named[1], "stops": stops}
                ways.append({"line": at} | ends | names | travel(pieces, (start, end), cells, kinds, planned))
        return ways

    def _place(self, line: list[Position], stop: str | None, otherwise: float) -> float | None:
        """How far along the line a stop is; None if the line does not pass it."""
        if stop is None:
            return otherwise
        places = (along(line, place) for place in self._stops_at[stop])
        return next((place for place in places if place is not None), None)


def _require_speeds(window: WindowView) -> None:
    """404 for a window of another value, from which no travel time follows."""
    if (marker := marker_of(window)) is not None and marker.value != SPEED:
        raise Problem(404, f"{marker.value} of feed {window.feed!r} is no speed", "ask for the cells of the feed")


def _written(said: Body, lines: list[Body], form: str) -> bytes:
    """The answer as JSON, or one row per line as CSV."""
    if form == "json":
        return msgspec.json.encode(said | {"lines": lines})
    rows = [_row(said, line) for line in lines]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _row(said: Body, line: Body) -> Body:
    """A line with its numbers, each with its unit in its name."""
    row = {name: value for name, value in said.items() if name not in ("window", "complete")}
    row |= {f"window_{end}": moment for end, moment in said.get("window", {}).items()}
    row |= {name: line[name] for name in ("line", "from_stop", "to_stop", "metres", "measured_metres")}
    for kind in ("now", "typical", "mean", "scheduled"):
        if kind in line:
            numbers = line[kind] or {}
            row |= {} if kind == "scheduled" else {f"{kind}_at_bound": "true" if numbers.get("at_bound") else None}
            for name in ("minutes", "km_h"):
                ends = ("", "_low", "_high") if kind != "scheduled" else ("",)
                known = [numbers.get(name), *numbers.get(f"{name}_interval", (None, None))]
                row |= {f"{kind}_{name}{end}": number for end, number in zip(ends, known, strict=False)}
    return row
