"""Handlers for speeds and travel times along the lines of routes: in one window, and as means over a range.

Speed and travel time along the lines of a route in one window, from the estimates of the cells that they cross. Pure.

A line is cut where it leaves a cell. With L metres in a cell of v km/h the way takes the sum of 3.6·L/v seconds. The
errors of cells may depend on each other, and one that a line crosses twice errs twice alike, so they are not averaged
out: the interval of the time goes from all cells at the upper ends of their intervals to all at the lower ends. It
holds if the errors of cells are jointly normal, whatever their correlation. Where a lower end is (nearly) 0, the time
has no upper end. Where much of the way is in cells at the bound of speeds, the speed is to be read as "or more", the
time as "or less" (``at_bound``).
"""

import io
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import h3
import msgspec
import numpy as np
from aiohttp import web

from stream.config import Config
from stream.config.geojson import Position
from stream.config.value import SPEED
from stream.messages.cells import Cell, Estimate, cells_of, estimates_of
from stream.messages.tables import write_lines
from stream.serve.city.combining import combined, is_crowded
from stream.serve.city.places import Places
from stream.serve.city.scheduled import ScheduledService, hours_of
from stream.serve.hexagons import known_window
from stream.serve.means import Range, chosen, releases_of
from stream.serve.operations import get
from stream.serve.responses import CSV, JSON, MOST_WAITING, Answers, Problem, Turns, key_of
from stream.serve.window_store import View, WindowView, stated_by

SHORTEST_M = 20.0
"""A piece that crosses an edge of a cell belongs to the cell in which it begins, if it is no longer."""
NEAR_M, BESIDE_M = 150.0, 80.0
"""How far from a line a stop may be that somebody names, and one that is listed as a stop of it."""
SLOWEST_KMH = 0.5
"""Slower estimates say nothing about a travel time."""
_METRES = 111_195.0
"""Metres of a degree of latitude."""

Piece = tuple[str, float, float]
"""A piece of a line, in its direction: its cell, and the metres from the start of the line to its ends."""


def pieces_of(line: Sequence[Position], resolution: int) -> list[Piece]:
    """The line cut into pieces that lie in one cell each."""
    pieces: list[Piece] = []
    at = 0.0
    for a, b in pairwise(line):
        waiting, begun = [(a, b, _cell(a, resolution), _cell(b, resolution))], len(pieces)
        while waiting:
            a, b, first, last = waiting.pop()
            wide = math.cos(math.radians((a[1] + b[1]) / 2))
            length = math.hypot((b[0] - a[0]) * wide, b[1] - a[1]) * _METRES
            if first != last and length > SHORTEST_M:
                middle = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
                between = _cell(middle, resolution)
                waiting += [(middle, b, between, last), (a, middle, first, between)]
                continue
            # Parts of one straight line in one cell are one piece.
            start = pieces.pop()[1] if len(pieces) > begun and pieces[-1][0] == first else at
            pieces.append((first, start, at + length))
            at += length
    return pieces


def along(line: Sequence[Position], place: Position, near: float = NEAR_M) -> float | None:
    """Metres from the start of the line to its point nearest to a place; None if that is not within ``near`` metres."""
    nearest, at, best = near, 0.0, None
    for a, b in pairwise(line):
        wide = math.cos(math.radians(a[1])) * _METRES
        dx, dy = (b[0] - a[0]) * wide, (b[1] - a[1]) * _METRES
        px, py = (place[0] - a[0]) * wide, (place[1] - a[1]) * _METRES
        length = math.hypot(dx, dy)
        share = min(max((px * dx + py * dy) / length**2, 0.0), 1.0) if length else 0.0
        away = math.hypot(px - share * dx, py - share * dy)
        if away <= nearest:
            nearest, best = away, at + share * length
        at += length
    return best


class Span(NamedTuple):
    """A speed in km/h with the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    at_bound: bool = False


Speeds = Mapping[str, Span]
"""Of released cells."""
Kinds = Mapping[str, Speeds]
"""By what they are: now, typical, or the mean of a range."""
Planned = Mapping[str, float]
"""Scheduled km/h of released cells."""
Between = tuple[str | None, str | None]
"""The stops from and to which a way leads; None for the ends of the line."""


def estimates(cells: Iterable[Cell], name: Literal["mean", "typical"]) -> Speeds:
    """The leading estimates of that name."""
    known: Iterable[tuple[str, Estimate | None]]
    known = ((cell.cell, getattr(estimates_of(cell), name, None)) for cell in cells)
    return {cell: Span(one.value, *one.interval, one.at_bound) for cell, one in known if one and one.interval}


def stops_along(line: Sequence[Position], stops: Mapping[str, Sequence[Position]]) -> list[str]:
    """The names of stops beside a line, in its direction, each once."""
    slack = BESIDE_M / _METRES / math.cos(math.radians(line[0][1]))
    lngs, lats = zip(*line, strict=True)
    near = [
        (name, place)
        for name, places in stops.items()
        for place in places
        if min(lngs) - slack <= place[0] <= max(lngs) + slack and min(lats) - slack <= place[1] <= max(lats) + slack
    ]
    passed = [(at, name) for name, place in near if (at := along(line, place, BESIDE_M)) is not None]
    return list(dict.fromkeys(name for _, name in sorted(passed)))


def travel(
    pieces: Sequence[Piece], part: tuple[float, float], cells: Collection[str], kinds: Kinds, scheduled: Planned
) -> dict[str, Any]:
    """What is known of the ``part`` of a line, in metres from its start; ``cells`` were released.

    ``kinds``: speeds by what they are. The measured part lies in cells of which the first kind is known; each other
    kind, and what is ``scheduled`` in km/h, is stated where it is known of all these cells.
    """
    first = next(iter(kinds.values()))
    metres = {cell: length for cell, length in _metres(pieces, part, cells).items() if _is_known(first.get(cell))}
    said: dict[str, Any] = {"metres": round(part[1] - part[0]), "measured_metres": round(sum(metres.values()))}
    for name, speeds in kinds.items():
        is_whole = bool(metres) and all(_is_known(speeds.get(cell)) for cell in metres)
        said[name] = _with_intervals(metres, speeds) if is_whole else None
    is_timed = bool(metres) and metres.keys() <= scheduled.keys()
    return said | {"scheduled": _stated(metres, {cell: scheduled[cell] for cell in metres}) if is_timed else None}


def _is_known(span: Span | None) -> bool:
    return span is not None and span.value >= SLOWEST_KMH


def _metres(pieces: Sequence[Piece], part: tuple[float, float], cells: Collection[str]) -> dict[str, float]:
    """The metres of a part of a line in each released cell; what lies in several, in the finest of them."""
    metres: dict[str, float] = defaultdict(float)
    resolutions = sorted({h3.get_resolution(cell) for cell in cells}, reverse=True)
    for cell, start, end in pieces:
        length = min(end, part[1]) - max(start, part[0])
        parents = (h3.cell_to_parent(cell, one) for one in resolutions if one <= h3.get_resolution(cell))
        released = next((parent for parent in parents if parent in cells), None) if length > 0 else None
        if released is not None:
            metres[released] += length
    return metres


def _with_intervals(metres: Mapping[str, float], speeds: Speeds) -> dict[str, Any]:
    """Minutes and km/h, each with its interval; without an upper end where a cell may stand still."""
    fastest = _stated(metres, {cell: speeds[cell].high for cell in metres})
    lower = {cell: speeds[cell].low for cell in metres}
    slowest = _stated(metres, lower) if min(lower.values()) >= SLOWEST_KMH else {"minutes": None, "km_h": 0.0}
    crowded = is_crowded((length, speeds[cell].at_bound) for cell, length in metres.items())
    said = _stated(metres, {cell: speeds[cell].value for cell in metres}) | ({"at_bound": True} if crowded else {})
    return said | {
        f"{name}_interval": [one[name], other[name]]
        for name, one, other in (("minutes", fastest, slowest), ("km_h", slowest, fastest))
    }


def _stated(metres: Mapping[str, float], speeds: Mapping[str, float]) -> dict[str, Any]:
    """Minutes for the way, and the speed along it in km/h."""
    minutes = sum(length * 0.06 / speeds[cell] for cell, length in metres.items())
    return {"minutes": round(minutes, 2), "km_h": round(0.06 * sum(metres.values()) / minutes, 2)}


def _cell(place: Position, resolution: int) -> str:
    return str(h3.latlng_to_cell(place[1], place[0], resolution))


MOST_CUT = 2_000
"""Lines of routes that are kept cut at the edges of cells, and those whose stops are kept."""
KINDS = {"json": JSON, "csv": CSV}
"""Media type of each format."""

Body = dict[str, Any]


class Ways:
    """What the released cells say of the way along each line of a route, between two stops or from end to end."""

    def __init__(self, config: Config, view: View, answers: Answers, places: Places, service: ScheduledService) -> None:
        self._view, self._answers, self._service = view, answers, service
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
        "feed", "window", "from_stop", "to_stop", "table", tag="Places",
    )  # fmt: skip
    async def speed(
        self, request: web.Request, route: str, feed: str, window: str | None, form: str, **stops: str | None
    ) -> web.Response:
        """Speed and travel time along each line of a route in one window, by estimates of the cells that it crosses."""
        between = self._between(route, **stops)
        known = known_window(self._view, window, feed)
        _require_speeds(known)
        values, said = known.in_order(), {"route": route} | known.stated

        def make() -> bytes:
            cells = cells_of(values)
            kinds = {"now": estimates(cells, "mean"), "typical": estimates(cells, "typical")}
            planned = self._planned([known], ((cell.cell, cell.excludes) for cell in cells))
            lines = self._along(route, {cell.cell for cell in cells}, kinds, planned, between)
            return _written(said, lines, form)

        key = key_of("route", route, between, form, known.tag)
        return await self._turns.answer(self._answers, request, key, make, KINDS[form])

    @get(
        "/routes/{route}/means", "getRouteMeans", {JSON: "RouteMeans", CSV: None},
        "feed", "from", "to", "days", "hours", "from_stop", "to_stop", "table", tag="Places",
    )  # fmt: skip
    async def means(
        self, request: web.Request, route: str, from_stop: str | None, to_stop: str | None, form: str, **asked: Any
    ) -> web.Response:
        """The same by the means of the cells over the windows of a range."""
        between = self._between(route, from_stop, to_stop)
        of = Range(**asked)
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
            lines = self._along(route, means.keys(), {"mean": means}, planned, between)
            return _written({"route": route} | of.said(windows), lines, form)

        key = key_of("route means", route, between, form, of, [window.tag for window in windows])
        return await self._turns.answer(self._answers, request, key, make, KINDS[form])

    def _between(self, route: str, from_stop: str | None, to_stop: str | None) -> Between:
        """The two stops; 404 where one of them or the route is not known."""
        if route not in self._lines:
            title = f"there are no lines of a route {route[:80]!r}"
            raise Problem(404, title, "see /api/v1/routes for those that have")
        for name in (from_stop, to_stop):
            if name is not None and name not in self._stops_at:
                raise Problem(404, f"there is no stop {name[:80]!r}", "see /api/v1/stops for the names that are known")
        return from_stop, to_stop

    def _planned(self, windows: Collection[WindowView], cells: Iterable[tuple[str, Any]]) -> Mapping[str, float]:
        """Scheduled km/h of released cells in the hours of the windows."""
        if any(window.feed != self._feed for window in windows):
            return {}
        hours = np.sum([hours_of(window.start, window.end, self._zone) for window in windows], axis=0)
        return {row["cell"]: row["value"] for row in self._service.speeds(hours, cells)}

    def _along(
        self, route: str, cells: Collection[str], kinds: Kinds, planned: Planned, between: Between
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
    if (name := stated_by(window).value) != SPEED:
        raise Problem(404, f"{name} of feed {window.feed!r} is no speed", "ask for the cells of the feed")


def _written(said: Body, lines: list[Body], form: str) -> bytes:
    """The answer as JSON, or one row per line as CSV."""
    if form == "json":
        return msgspec.json.encode(said | {"lines": lines})
    rows = [_row(said, line) for line in lines]
    out = io.BytesIO()
    write_lines(rows, list(dict.fromkeys(name for row in rows for name in row)), out)
    return out.getvalue()


def _row(said: Body, line: Body) -> Body:
    """A line with its numbers, each with its unit in its name."""
    row = {name: value for name, value in said.items() if name not in ("window", "complete")}
    row |= {f"window_{end}": moment for end, moment in said.get("window", {}).items()}
    row |= {name: line[name] for name in ("line", "from_stop", "to_stop", "metres", "measured_metres")}
    for kind in ("now", "typical", "mean", "scheduled"):
        if kind in line:
            numbers = line[kind] or {}
            row |= {} if kind == "scheduled" else {f"{kind}_at_bound": numbers.get("at_bound")}
            for name in ("minutes", "km_h"):
                ends = ("", "_low", "_high") if kind != "scheduled" else ("",)
                known = [numbers.get(name), *numbers.get(f"{name}_interval", (None, None))]
                row |= {f"{kind}_{name}{end}": number for end, number in zip(ends, known, strict=False)}
    return row
