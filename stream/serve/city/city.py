"""Handlers for places, routes, stops and named areas.

Reads the file that ``public.streets`` names: GeoJSON of streets and sensors, which carry the colours.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from stream.config import Config, ConfigError
from stream.config.geojson import Position, lines_of, shapes
from stream.config.value import SPEED
from stream.messages.cells import cells_of
from stream.messages.tables import TO_AVERAGE, Row, flatten, write_lines
from stream.serve import parameters as p
from stream.serve.city.areas import Area, PolygonArea, read_areas
from stream.serve.city.combining import combined, inside
from stream.serve.city.places import check_name, read_bytes, read_places
from stream.serve.city.scheduled import ScheduledService, hours_of
from stream.serve.city.ways import Ways
from stream.serve.differences import from_schedule
from stream.serve.hexagons import complete_window, known_area, known_window
from stream.serve.operations import get
from stream.serve.responses import CSV, GEOJSON, JSON, MOST_WAITING, Answers, Turns, key_of
from stream.serve.window_store import View, WindowView, bounds_of, value_of

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
    try:
        document = json.loads(read_bytes(path, "streets", LARGEST).decode("utf-8"))
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
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"public.streets {path} is no file of streets: {error}; write a GeoJSON FeatureCollection of lines or "
            "points"
        ) from None


def _shape(lines: list[list[Position]]) -> dict[str, Any]:
    if len(lines[0]) == 1:
        return {"type": "MultiPoint", "coordinates": [position for (position,) in lines]}
    return {"type": "MultiLineString", "coordinates": lines}


MOST_DRAWN = 16
"""Drawn areas that may be put together or wait at the same time. Anybody can draw any number, so their queue is their
own and short."""
DRAWN_BYTES = 4 << 20
"""Bytes of drawn areas that are kept: a share of their own, so that they push out nothing else."""


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
        self._places, self._routes, self._stops = places.table(), places.route_features(), places.stop_features()
        self._streets = msgspec.json.encode({"type": "FeatureCollection", "features": streets.features})
        self.attribution = streets.attribution
        self.writes_names = any("name" in feature["properties"] for feature in streets.features)
        listed = [{"name": area.name, "kind": area.kind} for area in self.by_name.values()]
        self._list = msgspec.json.encode({"areas": listed})
        self._service = ScheduledService(places.scheduled, places.resolution)
        self.ways = Ways(config, view, answers, places, self._service)
        self.timed, self._scheduled = bool(self._service), self._service.table()
        bodies = (self._places, self._routes, self._streets, self._stops, self._list, self._scheduled)
        self._keys = {body: key_of(body) for body in bodies}

    @property
    def divided(self) -> bool:
        """Whether there are areas."""
        return bool(self.by_name)

    @get("/places", "listPlaces", {JSON: "PlaceList"}, tag="Places")
    async def places(self, request: web.Request) -> web.Response:
        """Names of cells, and the routes that cross them."""
        return await self._answer(request, self._places, JSON)

    @get("/routes", "listRoutes", {GEOJSON: "RouteFeatures"}, tag="Places")
    async def routes(self, request: web.Request) -> web.Response:
        """Lines of the routes, simplified."""
        return await self._answer(request, self._routes, GEOJSON)

    @get("/streets", "listStreets", {GEOJSON: "StreetFeatures"}, tag="Places")
    async def streets(self, request: web.Request) -> web.Response:
        """Lines of streets, and points of sensors, which carry the colours of the map."""
        return await self._answer(request, self._streets, GEOJSON)

    def _is_timed(self, window: WindowView) -> bool:
        """Whether the timetable says something about a window: it is of the configured feed, and of speeds."""
        return window.feed == self._feed and value_of(window) == SPEED

    @get("/stops", "listStops", {GEOJSON: "StopFeatures"}, tag="Places")
    async def stops(self, request: web.Request) -> web.Response:
        """Stops."""
        return await self._answer(request, self._stops, GEOJSON)

    @get("/scheduled", "listScheduledSpeeds", {JSON: "ScheduledTable"}, tag="Places")
    async def scheduled(self, request: web.Request) -> web.Response:
        """Scheduled speeds of cells by kind of day and local hour."""
        return await self._answer(request, self._scheduled, JSON)

    @get(
        "/windows/{window}/scheduled", "getScheduledSpeeds", {JSON: "ScheduledSpeeds"}, p.WINDOW_PATH, p.FEED,
        tag="Places", errors=(404,),
    )  # fmt: skip
    async def scheduled_in(self, request: web.Request, feed: str, window: str) -> web.Response:
        """Scheduled speeds of the released cells of one window, in its hours."""
        known = known_window(self._view, window, feed)
        key, service, values, summary = key_of("scheduled", known.tag), self._service, known.in_order(), known.summary()

        def make() -> bytes:
            hours = hours_of(known.start, known.end, self._zone)
            cells = cells_of(values if self._is_timed(known) else [])
            speeds = service.speeds(hours, ((cell.cell, cell.excludes) for cell in cells))
            judged = from_schedule(cells, {row["cell"]: row["value"] for row in speeds}, bounds_of(known).upper)
            for row in speeds:
                row["error"], row["clear"] = judged.get(row["cell"], (None, False))
            said = {name: summary[name] for name in ("feed", "window", "complete")}
            return msgspec.json.encode(said | {"cells": speeds})

        return await self._scheduled_turns.answer(self._answers, request, key, make, JSON)

    @get("/areas", "listAreas", {JSON: "AreaList"}, tag="Areas")
    async def areas(self, request: web.Request) -> web.Response:
        """Named areas: polygons, then corridors of routes."""
        return await self._answer(request, self._list, JSON)

    async def _answer(self, request: web.Request, body: bytes, kind: str) -> web.Response:
        return await self._answers.ready(request, body, kind, self._keys[body])

    @get(
        "/areas/{name}", "getArea", {JSON: "AreaStatistics"}, p.AREA_PATH, p.FEED, p.WINDOW_QUERY,
        tag="Areas", errors=(404,),
    )  # fmt: skip
    async def area(self, request: web.Request, name: str, feed: str, window: str | None) -> web.Response:
        """Released statistics of the cells of an area in one window, together."""
        area = known_area(self.by_name, name)
        known = known_window(self._view, window, feed)
        key, answers, named = key_of("area", name, known.tag), self._answers, {"name": area.name, "kind": area.kind}
        make = partial(_statistics, area, named, known, known.in_order(), known.summary())
        # A restart may bring other areas, so the answer is not immutable even for a complete window.
        return await self._turns.answer(answers, request, key, make, JSON)

    @get(
        "/windows/{window}/areas.csv", "downloadAreas", {CSV: None}, p.WINDOW_PATH, p.FEED,
        tag="Downloads", errors=(404, 409),
    )  # fmt: skip
    async def areas_file(self, request: web.Request, feed: str, window: str) -> web.Response:
        """Every named area in a complete window as csv: sums and means of its cells, with their errors."""
        known = complete_window(self._view, window, feed)
        make = partial(_areas_csv, self.by_name.values(), known.in_order(), known)
        name = f"hexveil-{feed}-{window.replace('-', '').replace(':', '')}-areas.csv"
        return await self._turns.answer(self._answers, request, key_of("areas file", known.tag), make, CSV, name)

    @get(
        "/area", "measureArea", {JSON: "DrawnAreaStatistics"}, p.RING, p.FEED, p.WINDOW_QUERY,
        tag="Areas", errors=(404,),
    )  # fmt: skip
    async def drawn_area(
        self, request: web.Request, ring: list[Position], feed: str, window: str | None
    ) -> web.Response:
        """Released statistics of the cells of a drawn area in one window, together."""
        known = known_window(self._view, window, feed)
        key, answers, area = key_of("drawn area", ring, known.tag), self._rings, PolygonArea("", [[ring]])
        make = partial(_statistics, area, {}, known, known.in_order(), known.summary())
        return await self._ring_turns.answer(answers, request, key, make, JSON)


def _statistics(
    area: Area, named: dict[str, str], window: WindowView, values: list[bytes], summary: dict[str, Any]
) -> bytes:
    belonging = inside(area, cells_of(values))
    said = {name: summary[name] for name in ("feed", "window", "complete")}
    return msgspec.json.encode(
        named
        | said
        | combined(belonging, bounds_of(window))
        | {"hexagons": [cell.cell for cell in belonging], "geometry": area.geometry()}
    )


_ENDS = ("", "_low", "_high")
AREA_COLUMNS = (
    *("feed", "window_start", "window_end", "area", "kind", "cells", "published"),
    *(f"{name}{end}" for name in ("events", "users") for end in _ENDS),
    *(f"mean{part}" for part in (*_ENDS, TO_AVERAGE, "_unit", "_at_bound")),
    *(f"estimate_mean{part}" for part in (*_ENDS, "_unit", "_method", "_at_bound")),
)
"""Columns of the file of areas: sums and means of their cells with 95 % intervals, which exact sums do not have."""


def _areas_csv(areas: Iterable[Area], values: list[bytes], window: WindowView) -> bytes:
    cells, within, rows = cells_of(values), bounds_of(window), []
    for area in areas:
        row: Row = {"feed": window.feed, "window_start": window.start, "window_end": window.end}
        row |= {"area": area.name, "kind": area.kind}
        for name, together in combined(inside(area, cells), within).items():
            flatten(row, "estimate_mean" if name == "estimate" else name, together)
        rows.append({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()})
    out = io.BytesIO()
    write_lines(rows, AREA_COLUMNS, out)
    return out.getvalue()
