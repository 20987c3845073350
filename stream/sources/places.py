"""Place names and routes of H3 cells from a GTFS schedule. Public facts: they depend on no event, and cost no budget.
Pure.

A cell is named after the stops in it: the most frequent name, and of equally frequent ones the nearest to its centre.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import h3

from stream.config.geojson import by_number
from stream.config.section import BoundingBox
from stream.sources.route_lines import route_lines
from stream.sources.schedule import Point, Schedule, ScheduleError, Stop

MOST_SAMPLES = 20_000_000
"""Points along lines that are looked up; a city has a million."""
MOST_STOPS = 100_000
"""Stops that are listed by name, as many as ``hexveil serve`` takes."""
PER_EDGE = 20
"""Points along a line for each edge length of a cell: a cell that a line cuts by less than a twentieth of that may be
missed."""


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
    """The cells of a schedule that lie wholly in ``domain``. Raises :class:`ScheduleError` for more lines than a city
    has."""
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
    """Stops with a name in ``domain``, in order of name; of platforms with the same name within some 100 m the
    first."""
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


def as_features(chart: Places) -> dict[str, Any]:
    """The places as GeoJSON: the outlines of the cells."""
    return _collection(
        (place.cell, {"cell": place.cell, "name": place.name, "stops": place.stops, "routes": list(place.routes)})
        for place in chart.cells
    )


def as_area(chart: Places) -> dict[str, Any]:
    """The public cell list for ``participation.geojson``: the outlines of the cells that routes cross."""
    return _collection((place.cell, {"cell": place.cell}) for place in chart.cells if place.routes)


def _collection(cells: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {
        "type": "FeatureCollection",
        "features": [
            {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [_ring(cell)]},
                "properties": properties,
            }
            for cell, properties in cells
        ],
    }


def _ring(cell: str) -> list[list[float]]:
    corners = [[round(lng, 7), round(lat, 7)] for lat, lng in h3.cell_to_boundary(cell)]
    return [*corners, corners[0]]
