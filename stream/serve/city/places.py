"""Reads the file of places that ``hexveil gtfs --out`` writes: names and routes of cells, lines of routes, stops.

Bounds and errors of the files that describe the city: whoever writes one cannot fill the memory or slip in a control
character.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import h3
import msgspec

from stream.config import ConfigError

LONGEST_NAME = 256
"""Characters of a name of a stop, route or area."""


@contextmanager
def opened(path: Path, key: str, largest: int, remedy: str) -> Iterator[bytes]:
    """The bytes of the file that the key ``public.<key>`` names.

    Raises :class:`ConfigError`, also where what is made of them raises :class:`ValueError`.
    """
    try:
        with path.open("rb") as file:
            body = file.read(largest + 1)
    except OSError as error:
        raise ConfigError(f"public.{key} {path}: {error.strerror or error}; name a readable file") from None
    if len(body) > largest:
        raise ConfigError(f"public.{key} {path} has more than {largest} bytes; leave out what the map need not show")
    try:
        yield body
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"public.{key} {path} is no file of {key}: {error}; write {remedy}") from None


_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
"""Controls that embed, override or isolate directions of text: they would reach beyond the name."""


def check_name(name: str, where: str) -> str:
    """``name`` without spaces at its ends and without controls of direction.

    Raises :class:`ValueError` for one that is empty, too long, has control characters or breaks of lines, or shows
    nothing.
    """
    name = name.translate(_DIRECTIONS).strip()
    if not name:
        raise ValueError(f"{where} is empty; give it a name")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{where} has {len(name)} characters, more than {LONGEST_NAME}; shorten it")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise ValueError(f"{where}, {name[:40]!r}, has control characters; remove them")
    if all(unicodedata.category(letter)[0] in "CZ" for letter in name):
        raise ValueError(f"{where}, {name[:40]!r}, has no visible character; give it a name")
    return name


LARGEST = 32 << 20
"""Bytes of the file."""
MOST_ROUTES = 10_000

_Lng = Annotated[float, msgspec.Meta(ge=-180, le=180)]
_Lat = Annotated[float, msgspec.Meta(ge=-90, le=90)]
_Day = Annotated[int, msgspec.Meta(ge=0, le=2)]
_Hour = Annotated[int, msgspec.Meta(ge=0, le=23)]
_Amount = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
_Days = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Line = Annotated[list[tuple[_Lng, _Lat]], msgspec.Meta(min_length=2)]


class PlaceCell(msgspec.Struct):
    """A cell with its name, the number of its stops, and the routes that cross it."""

    cell: str
    name: str | None = None
    stops: Annotated[int, msgspec.Meta(ge=0)] = 0
    routes: list[str] = []


class PlaceStop(msgspec.Struct):
    """A stop at a place in degrees."""

    name: str
    lat: _Lat
    lng: _Lng


class RouteLines(msgspec.Struct):
    """The lines of a route: points (longitude, latitude) in degrees."""

    route: str
    lines: list[_Line]


class ScheduledCell(msgspec.Struct):
    """The scheduled service in a cell: rows of (kind of day, local hour, metres, seconds)."""

    cell: str
    hours: list[tuple[_Day, _Hour, _Amount, _Amount]]


class ScheduledDays(msgspec.Struct):
    """How many days of each kind the metres and seconds are of."""

    workday: _Days
    saturday: _Days
    sunday: _Days


class Scheduled(msgspec.Struct):
    """The scheduled service of cells, summed over all ``days`` of the calendar."""

    days: ScheduledDays
    cells: list[ScheduledCell]


class Places(msgspec.Struct):
    """What the file holds; without one, nothing, and ``resolution`` is None. ``scheduled``: None if no speeds were
    scheduled, or if an earlier version wrote it."""

    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)] | None
    cells: list[PlaceCell]
    stops: list[PlaceStop] = []
    lines: list[RouteLines] = []
    scheduled: Scheduled | None = None

    def corridors(self) -> dict[str, list[str]]:
        """Cells that each route crosses."""
        crossed: dict[str, list[str]] = defaultdict(list)
        for place in self.cells:
            for route in place.routes:
                crossed[route].append(place.cell)
        return crossed

    def table(self) -> bytes:
        """Answer of ``/api/v1/places``."""
        return msgspec.json.encode({"resolution": self.resolution, "cells": self.cells})

    def route_features(self) -> bytes:
        """Answer of ``/api/v1/routes``: GeoJSON."""
        return _collection(
            ({"type": "MultiLineString", "coordinates": route.lines}, {"route": route.route}) for route in self.lines
        )

    def stop_features(self) -> bytes:
        """Answer of ``/api/v1/stops``: GeoJSON."""
        return _collection(
            ({"type": "Point", "coordinates": [stop.lng, stop.lat]}, {"name": stop.name}) for stop in self.stops
        )


def _collection(features: Any) -> bytes:
    listed = [{"type": "Feature", "geometry": shape, "properties": named} for shape, named in features]
    return msgspec.json.encode({"type": "FeatureCollection", "features": listed})


_PLACES = msgspec.json.Decoder(Places)


def read_places(path: Path | None) -> Places:
    """The places of the file that ``public.places`` names; none without one. Raises :class:`ConfigError`."""
    if path is None:
        return Places(None, [])
    with opened(path, "places", LARGEST, "one with 'hexveil gtfs FILE.zip --out places.json'") as body:
        file = _PLACES.decode(body)
        _check_cells(file)
        for stop in file.stops:
            stop.name = check_name(stop.name, "the name of a stop")
        _check_lines(file)
        _check_scheduled(file)
    return file


def _check_cells(file: Places) -> None:
    _check_indexes([place.cell for place in file.cells], file.resolution)
    for place in file.cells:
        if place.name is not None:
            place.name = check_name(place.name, f"the name of cell {place.cell}")
        place.routes = list(dict.fromkeys(_route_name(route) for route in place.routes))


def _check_indexes(cells: list[str], resolution: int | None) -> None:
    seen = set()
    for cell in cells:
        if len(cell) != 15 or cell != cell.lower() or not h3.is_valid_cell(cell):
            raise ValueError(f"{cell[:40]!r} is no H3 cell")
        if h3.get_resolution(cell) != resolution:
            raise ValueError(f"cell {cell} is not of resolution {resolution}")
        if cell in seen:
            raise ValueError(f"cell {cell} is listed twice")
        seen.add(cell)


def _check_scheduled(file: Places) -> None:
    if file.scheduled is None:
        return
    _check_indexes([row.cell for row in file.scheduled.cells], file.resolution)
    for row in file.scheduled.cells:
        if len({hour[:2] for hour in row.hours}) < len(row.hours):
            raise ValueError(f"an hour of cell {row.cell} is scheduled twice")


def _check_lines(file: Places) -> None:
    names = [_route_name(route.route) for route in file.lines]
    if len(set(names)) != len(names):
        raise ValueError("the lines of a route are listed twice; list all lines of a route together")
    for route, name in zip(file.lines, names, strict=True):
        route.route = name


@lru_cache(maxsize=MOST_ROUTES)
def _route_name(name: str) -> str:
    return check_name(name, "the name of a route")
