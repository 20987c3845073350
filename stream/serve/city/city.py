"""Handlers for places, routes, stops and named areas.

Reads the file that ``public.streets`` names: GeoJSON of streets and sensors, which carry the colours.
"""

import io
import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from stream.config import Config
from stream.config.geojson import Position, lines_of, shapes
from stream.config.value import SPEED
from stream.messages.cells import cells_of
from stream.messages.tables import TO_AVERAGE, Row, flatten, write_lines
from stream.serve.city.areas import Area, PolygonArea, read_areas
from stream.serve.city.combining import combined, inside
from stream.serve.city.places import check_name, opened, read_places
from stream.serve.city.scheduled import ScheduledService, hours_of
from stream.serve.city.ways import Ways
from stream.serve.differences import from_schedule
from stream.serve.hexagons import complete_window, known_area, known_window
from stream.serve.operations import Method, get
from stream.serve.responses import CSV, GEOJSON, JSON, MOST_WAITING, Answers, Turns, attached, key_of
from stream.serve.window_store import View, WindowView, stated_by

LARGEST = 32 << 20
"""Bytes of the file."""
MOST_POINTS = 500_000
"""Points of all lines together."""


class Streets(NamedTuple):
    """``features``: GeoJSON of lines and sensors, with their names where they have some. ``attribution``: what the page
    says about them."""

    features: Sequence[dict[str, Any]] = ()
    attribution: str | None = None


def read_streets(path: Path | None) -> Streets:
    """Lines, points and names of the file; without one there are none. Raises :class:`ConfigError`."""
    if path is None:
        return Streets()
    with opened(path, "streets", LARGEST, "a GeoJSON FeatureCollection of lines or points") as body:
        document = json.loads(body.decode("utf-8"))
        features, points = [], 0
        for (where, shape), described in zip(shapes(document), document.get("features", [document]), strict=True):
            lines = lines_of(shape, where)
            points += sum(len(line) for line in lines)
            name = (described.get("properties") or {}).get("name")
            named = {"name": check_name(name, f"the name of {where}")} if isinstance(name, str) and name.strip() else {}
            features.append({"type": "Feature", "geometry": _shape(lines), "properties": named})
        if points > MOST_POINTS:
            raise ValueError(f"it has {points} points, more than {MOST_POINTS}; leave out minor streets")
        said = document.get("attribution")
        return Streets(features, check_name(said, "its attribution") if isinstance(said, str) else None)


def _shape(lines: list[list[Position]]) -> dict[str, Any]:
    if len(lines[0]) == 1:
        return {"type": "MultiPoint", "coordinates": [position for (position,) in lines]}
    return {"type": "MultiLineString", "coordinates": lines}


MOST_DRAWN = 16
"""Drawn areas that may be put together or wait at the same time. Anybody can draw any number, so their queue is their
own and short."""
DRAWN_BYTES = 4 << 20
"""Bytes of drawn areas that are kept: a share of their own, so that they push out nothing else."""


_FACTS = {
    "places": ("listPlaces", JSON, "PlaceList", "Places", "Names of cells, and the routes that cross them"),
    "routes": ("listRoutes", GEOJSON, "RouteFeatures", "Places", "Lines of the routes, simplified"),
    "streets": ("listStreets", GEOJSON, "StreetFeatures", "Places", "Lines of streets, and points of sensors"),
    "stops": ("listStops", GEOJSON, "StopFeatures", "Places", "Stops"),
    "scheduled": ("listScheduledSpeeds", JSON, "ScheduledTable", "Places", "Scheduled speeds by kind of day and hour"),
    "areas": ("listAreas", JSON, "AreaList", "Areas", "Named areas: polygons, then corridors of routes"),
}
"""What does not change while the service runs, by its path: operation, media type, schema, tag and summary."""


def _facts(method: Method) -> Method:
    for fact, (name, kind, schema, tag, summary) in _FACTS.items():
        get(f"/{fact}", name, {kind: schema}, tag=tag, summary=summary, fact=fact)(method)
    return method


class City:
    """What the operator's files say of the city, and the released statistics of its areas."""

    def __init__(self, config: Config, view: View, answers: Answers) -> None:
        """Raises :class:`stream.config.ConfigError` for a file that cannot be served."""
        self._view, self._answers = view, answers
        self._turns, self._scheduled_turns = Turns("areas", MOST_WAITING), Turns("scheduled speeds", MOST_WAITING)
        self._rings, self._ring_turns = Answers(DRAWN_BYTES, answers.sending), Turns("drawn areas", MOST_DRAWN)
        places = read_places(config.public.places)
        self.by_name = read_areas(config.public.areas, places)
        self._feed, self._zone = config.feed.name, config.feed.timezone
        streets = read_streets(config.public.streets)
        self.named, self.drawn = bool(places.cells), bool(places.lines or places.stops or streets.features)
        self.attribution = streets.attribution
        self.writes_names = any("name" in feature["properties"] for feature in streets.features)
        self._service = ScheduledService(places.scheduled, places.resolution)
        self.ways, self.timed = Ways(config, view, answers, places, self._service), bool(self._service)
        areas = [{"name": area.name, "kind": area.kind} for area in self.by_name.values()]
        bodies = {
            "places": places.table(),
            "routes": places.route_features(),
            "streets": msgspec.json.encode({"type": "FeatureCollection", "features": streets.features}),
            "stops": places.stop_features(),
            "scheduled": self._service.table(),
            "areas": msgspec.json.encode({"areas": areas}),
        }
        self._facts = {name: (body, key_of(body)) for name, body in bodies.items()}

    @_facts
    async def fact(self, request: web.Request, fact: str) -> web.Response:
        """What the operator's files say, which does not change while the service runs."""
        body, key = self._facts[fact]
        return await self._answers.ready(request, body, _FACTS[fact][1], key)

    @get("/windows/{window}/scheduled", "getScheduledSpeeds", {JSON: "ScheduledSpeeds"}, "feed", tag="Places")
    async def scheduled_in(self, request: web.Request, feed: str, window: str) -> web.Response:
        """Scheduled speeds of the released cells of one window, in its hours."""
        known = known_window(self._view, window, feed)
        key, service, values = key_of("scheduled", known.tag), self._service, known.in_order()
        said, stated = known.stated, stated_by(known)
        is_timed = feed == self._feed and stated.value == SPEED

        def make() -> bytes:
            hours = hours_of(known.start, known.end, self._zone)
            cells = cells_of(values if is_timed else [])
            speeds = service.speeds(hours, ((cell.cell, cell.excludes) for cell in cells))
            judged = from_schedule(cells, {row["cell"]: row["value"] for row in speeds}, stated.clipping.upper)
            for row in speeds:
                row["error"], row["clear"] = judged.get(row["cell"], (None, False))
            return msgspec.json.encode(said | {"cells": speeds})

        return await self._scheduled_turns.answer(self._answers, request, key, make, JSON)

    @get("/areas/{name}", "getArea", {JSON: "AreaStatistics"}, "feed", "window", tag="Areas")
    async def area(self, request: web.Request, name: str, feed: str, window: str | None) -> web.Response:
        """Released statistics of the cells of an area in one window, together."""
        area = known_area(self.by_name, name)
        known = known_window(self._view, window, feed)
        key, answers, named = key_of("area", name, known.tag), self._answers, {"name": area.name, "kind": area.kind}
        make = partial(_statistics, area, known, known.in_order(), named | known.stated)
        # A restart may bring other areas, so the answer is not immutable even for a complete window.
        return await self._turns.answer(answers, request, key, make, JSON)

    @get("/windows/{window}/areas.csv", "downloadAreas", {CSV: None}, "feed", tag="Downloads", errors=(409,))
    async def areas_file(self, request: web.Request, feed: str, window: str) -> web.Response:
        """Every named area in a complete window as csv: sums and means of its cells, with their errors."""
        known = complete_window(self._view, window, feed)
        make = partial(_areas_csv, self.by_name.values(), known.in_order(), known)
        key, headers = key_of("areas file", known.tag), attached("-areas.csv", feed, window)
        return await self._turns.answer(self._answers, request, key, make, CSV, headers)

    @get("/area", "measureArea", {JSON: "DrawnAreaStatistics"}, "ring", "feed", "window", tag="Areas")
    async def drawn_area(
        self, request: web.Request, ring: list[Position], feed: str, window: str | None
    ) -> web.Response:
        """Released statistics of the cells of a drawn area in one window, together."""
        known = known_window(self._view, window, feed)
        key, answers, area = key_of("drawn area", ring, known.tag), self._rings, PolygonArea("", [[ring]])
        make = partial(_statistics, area, known, known.in_order(), known.stated)
        return await self._ring_turns.answer(answers, request, key, make, JSON)


def _statistics(area: Area, window: WindowView, values: list[bytes], said: dict[str, Any]) -> bytes:
    belonging = inside(area, cells_of(values))
    shape = {"hexagons": [cell.cell for cell in belonging], "geometry": area.geometry()}
    return msgspec.json.encode(said | combined(belonging, stated_by(window).clipping) | shape)


_ENDS = ("", "_low", "_high")
AREA_COLUMNS = (
    *("feed", "window_start", "window_end", "area", "kind", "cells", "published"),
    *(f"{name}{end}" for name in ("events", "users") for end in _ENDS),
    *(f"mean{part}" for part in (*_ENDS, TO_AVERAGE, "_unit", "_at_bound")),
    *(f"estimate_mean{part}" for part in (*_ENDS, "_unit", "_method", "_at_bound")),
)
"""Columns of the file of areas: sums and means of their cells with 95 % intervals, which exact sums do not have."""


def _areas_csv(areas: Iterable[Area], values: list[bytes], window: WindowView) -> bytes:
    cells, within, rows = cells_of(values), stated_by(window).clipping, []
    for area in areas:
        row: Row = {"feed": window.feed, "window_start": window.start, "window_end": window.end}
        row |= {"area": area.name, "kind": area.kind}
        for name, together in combined(inside(area, cells), within).items():
            flatten(row, "estimate_mean" if name == "estimate" else name, together)
        rows.append({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()})
    out = io.BytesIO()
    write_lines(rows, AREA_COLUMNS, out)
    return out.getvalue()
