"""Place names and routes of H3 cells from a GTFS schedule. Public facts: they depend on no event, and cost no budget.
Pure.

A cell is named after the stops in it: the most frequent name, and of equally frequent ones the nearest to its centre.

Lines of routes for a map: those parts of a schedule's lines that lie in a box, simplified until they fit a bound. Pure.

Source: Douglas and Peucker (1973), the algorithm that keeps every point farther than a tolerance from the simplified
line.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import h3
import numpy as np

from dpcore.arrays import FloatArray
from dpcore.earth import EARTH_M
from stream.config.geojson import by_number
from stream.config.section import BoundingBox
from stream.sources.schedule import Point, Schedule, ScheduleError, Stop

MOST_POINTS = 400_000
"""Points of all lines together; ``hexveil serve`` takes a few more."""
_TOLERANCE_M = 10.0
"""Tolerance in metres; doubled until the lines have at most the wanted number of points."""

_LONGEST_PART = 2_000
"""Points of a line that is simplified at once: a line on which each point is a corner takes time by their square."""


def route_lines(
    schedule: Schedule, domain: BoundingBox, most_points: int = MOST_POINTS
) -> dict[str, list[list[Point]]]:
    """By name of route its lines in ``domain``, each once, with at most ``most_points`` points (latitude, longitude) in
    all."""
    parts: dict[str, set[tuple[Point, ...]]] = {}
    for route, lines in schedule.lines.items():
        inside = {tuple(part) for line in lines for part in _inside(line, domain)}
        if inside:
            parts.setdefault(schedule.routes[route], set()).update(inside)
    whole = {route: [np.array(part) for part in sorted(lines)] for route, lines in parts.items()}
    if 2 * sum(map(len, whole.values())) > most_points:
        raise ScheduleError(f"more than {most_points // 2} lines; choose a mode, or divide the schedule by agency")
    tolerance, count = _TOLERANCE_M, most_points + 1
    while count > most_points:  # straight lines have two points each
        simple = {route: [simplified(line, tolerance) for line in lines] for route, lines in whole.items()}
        count = sum(len(line) for lines in simple.values() for line in lines)
        tolerance *= 2
    return {route: [[(lat, lng) for lat, lng in line.tolist()] for line in lines] for route, lines in simple.items()}


def _inside(line: list[Point], domain: BoundingBox) -> Iterator[list[Point]]:
    """Longest runs of at least two points in ``domain``, without repetitions of a point and without jumps over the
    antimeridian.

    They are cut at :data:`_LONGEST_PART` points.
    """
    run: list[Point] = []
    for lat, lng in line:
        point = (round(lat, 6), round(lng, 6))
        inside = domain.contains(lat, lng)
        if run and (not inside or abs(point[1] - run[-1][1]) > 180):
            if len(run) > 1:
                yield run
            run = []
        if len(run) == _LONGEST_PART:
            yield run
            run = run[-1:]
        if inside and (not run or run[-1] != point):
            run.append(point)
    if len(run) > 1:
        yield run


def simplified(line: FloatArray, tolerance_m: float) -> FloatArray:
    """The points (n, 2; latitude, longitude) no dropped one of which is beyond ``tolerance_m`` from their line."""
    scale = math.radians(1) * EARTH_M * np.array([1.0, math.cos(math.radians(float(line[:, 0].mean())))])
    metres = line * scale
    keep = np.zeros(len(line), dtype=bool)
    keep[[0, -1]] = True
    pending = [(0, len(line) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        away = _distance(metres[first + 1 : last], metres[first], metres[last])
        farthest = int(away.argmax())
        if away[farthest] > tolerance_m:
            middle = first + 1 + farthest
            keep[middle] = True
            pending += [(first, middle), (middle, last)]
    return line[keep]


def _distance(points: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
    """Distance of each point from the segment."""
    along = end - start
    square = float(along @ along)
    share = np.zeros(len(points)) if square == 0 else ((points - start) @ along / square).clip(0, 1)
    return np.asarray(np.linalg.norm(points - start - share[:, None] * along, axis=1))


MOST_SAMPLES = 20_000_000
"""Points along lines that are looked up; a city has a million."""
MOST_STOPS = 100_000
"""Stops that are listed by name, as many as ``hexveil serve`` takes."""
PER_EDGE = 20
"""Points along a line for each edge length of a cell: a cell cut by less than a twentieth of it may be missed."""


@dataclass(frozen=True)
class Place:
    """A cell with its name (None without stops), the number of its stops, and the names of the routes that cross it."""

    cell: str
    name: str | None
    stops: int
    routes: tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """Cells with a stop or a route, in ascending order; ``outside``: how many lie, even in part, outside the domain.

    ``stops``: those with a name in the domain, each name once per place; ``lines``: by route its simplified lines
    there.
    """

    resolution: int
    cells: tuple[Place, ...]
    outside: int
    stops: tuple[Stop, ...] = ()
    lines: Mapping[str, list[list[Point]]] = field(default_factory=dict)


def places(schedule: Schedule, domain: BoundingBox, resolution: int) -> Places:
    """The cells of a schedule that lie wholly in ``domain``. Raises :class:`ScheduleError` for too many lines."""
    stops: dict[str, list[str]] = {}
    for number, stop in schedule.stops.items():
        stops.setdefault(h3.latlng_to_cell(stop.lat, stop.lng, resolution), []).append(number)
    routes = _crossed(schedule, resolution)
    cells = sorted(stops.keys() | routes.keys())
    inside = [cell for cell in cells if is_inside(cell, domain)]
    return Places(
        resolution,
        tuple(
            Place(
                cell,
                _name(schedule, cell, stops.get(cell, [])),
                len(stops.get(cell, [])),
                tuple(sorted(routes.get(cell, set()), key=by_number)),
            )
            for cell in inside
        ),
        len(cells) - len(inside),
        _named_stops(schedule, domain),
        route_lines(schedule, domain),
    )


def _named_stops(schedule: Schedule, domain: BoundingBox) -> tuple[Stop, ...]:
    """Stops with a name in ``domain``, in order of name; of platforms of one name within some 100 m the first."""
    chosen: dict[tuple[str, float, float], Stop] = {}
    for stop in sorted(schedule.stops.values(), key=lambda stop: (stop.name, stop.lat, stop.lng)):
        if stop.name and domain.contains(stop.lat, stop.lng):
            chosen.setdefault((stop.name, round(stop.lat, 3), round(stop.lng, 3)), stop)
    return tuple(islice(chosen.values(), MOST_STOPS))


def _crossed(schedule: Schedule, resolution: int) -> dict[str, set[str]]:
    """Names of the routes whose lines cross each cell."""
    step = h3.average_hexagon_edge_length(resolution, "m") / PER_EDGE
    routes: dict[str, set[str]] = {}
    cells_of: dict[int, set[str]] = {}
    samples = 0
    for route, lines in schedule.lines.items():
        for line in lines:
            cells = cells_of.get(id(line))  # lines that several routes share are sampled once
            if cells is None:
                cells = set()
                for lat, lng in _sampled(line, step):
                    samples += 1
                    if samples > MOST_SAMPLES:
                        raise ScheduleError(
                            "the lines are longer than those of a city; choose a coarser resolution, or divide the "
                            "schedule"
                        )
                    cells.add(h3.latlng_to_cell(lat, lng, resolution))
                cells_of[id(line)] = cells
            for cell in cells:
                routes.setdefault(cell, set()).add(schedule.routes[route])
    return routes


def _sampled(line: list[Point], step: float) -> Iterator[Point]:
    """Points along a line at most ``step`` metres apart."""
    yield line[0]
    for (lat0, lng0), (lat1, lng1) in pairwise(line):
        across = abs(lng1 - lng0) > 180  # the antimeridian, beyond which degrees jump
        metres = h3.great_circle_distance((lat0, lng0), (lat1, lng1), unit="m")
        count = 1 if across else max(1, math.ceil(metres / step))
        for k in range(1, count + 1):
            yield lat0 + (lat1 - lat0) * k / count, lng0 + (lng1 - lng0) * k / count


def _name(schedule: Schedule, cell: str, stops: list[str]) -> str | None:
    """In one pass: a cell may hold all stops of a schedule, each with a name of its own."""
    named = [stop for stop in map(schedule.stops.__getitem__, stops) if stop.name]
    names, centre = Counter(stop.name for stop in named), h3.cell_to_latlng(cell)
    most, nearest = max(names.values(), default=0), dict[str, float]()
    for stop in named:
        if names[stop.name] == most:
            metres = h3.great_circle_distance(centre, (stop.lat, stop.lng), unit="m")
            nearest[stop.name] = min(metres, nearest.get(stop.name, math.inf))
    return min(nearest, key=lambda name: (nearest[name], name), default=None)


def is_inside(cell: str, domain: BoundingBox) -> bool:
    """Whether the whole cell lies in the domain."""
    return all(domain.contains(lat, lng) for lat, lng in h3.cell_to_boundary(cell))


def as_table(chart: Places, scheduled: dict[str, Any] | None = None) -> dict[str, Any]:
    """The places as one JSON object: cells, stops and lines, as ``hexveil serve`` reads it (``public.places``).

    ``scheduled``: the scheduled speeds of cells, if any are known.
    """
    rows = [{"cell": p.cell, "name": p.name, "stops": p.stops, "routes": list(p.routes)} for p in chart.cells]
    stops = [{"name": stop.name, "lat": round(stop.lat, 6), "lng": round(stop.lng, 6)} for stop in chart.stops]
    lines = [
        {"route": route, "lines": [[[lng, lat] for lat, lng in line] for line in chart.lines[route]]}
        for route in sorted(chart.lines, key=by_number)
    ]
    table = {"resolution": chart.resolution, "cells": rows, "stops": stops, "lines": lines}
    return table if scheduled is None else table | {"scheduled": scheduled}


def as_area(chart: Places) -> dict[str, Any]:
    """The public cell list for ``participation.geojson``: the outlines of the cells that routes cross."""
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [_ring(place.cell)]},
                "properties": {"cell": place.cell},
            }
            for place in chart.cells
            if place.routes
        ],
    }


def _ring(cell: str) -> list[list[float]]:
    corners = [[round(lng, 7), round(lat, 7)] for lat, lng in h3.cell_to_boundary(cell)]
    return [*corners, corners[0]]
