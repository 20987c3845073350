"""Named areas: polygons of a GeoJSON file, and the corridors of routes. Each says which released cells belong to it."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import h3
import numpy as np

from dpcore.arrays import FloatArray, IntArray
from stream.config import ConfigError
from stream.config.geojson import Polygon, by_number, polygons_of, shown
from stream.messages.shapes import centre_of
from stream.serve.city.places import Places, check_name, opened

LARGEST = 8 << 20
"""Bytes of the file of polygons."""
MOST_AREAS = 1_000
MOST_POINTS = 10_000
"""Points of one area."""
MOST_CROSSED = 10_000
"""Cells that one route may cross."""
ROUTE = "route:"
"""How the name of a corridor begins; the name of the route follows."""
_AT_ONCE = 1 << 22
"""Pairs of a cell and an edge that are compared at once."""

Released = tuple[str, Sequence[str]]
"""A released cell, and the smaller cells that were released apart from it."""


class PolygonArea:
    """Polygons; a cell belongs to them if its centre lies inside (by the even-odd rule, so that holes are outside).

    Where the centre was released apart, that of the nearest part that remains stands for it.
    """

    kind: Literal["polygon", "route"] = "polygon"

    def __init__(self, name: str, polygons: list[Polygon]) -> None:
        self.name = name
        self._polygons = polygons
        edges = [_edges(ring) for polygon in polygons for ring in polygon]
        self._edges = np.concatenate(edges)
        corners = self._edges[:, :2]
        self._box: list[float] = [*corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()]

    def holds(self, cells: Iterable[Released]) -> list[str]:
        """Those whose centre lies inside. Only cells with their centre in the box around are compared with edges."""
        west, south, east, north = self._box
        centred = ((cell, *centre_of(cell, apart)) for cell, apart in cells)
        near = [(cell, lat, lng) for cell, lat, lng in centred if west <= lng <= east and south <= lat <= north]
        if not near:
            return []
        centres = np.array([centre for _, *centre in near])
        step = max(1, _AT_ONCE // len(self._edges))
        parts = [_crossings(centres[at : at + step], self._edges) % 2 == 1 for at in range(0, len(centres), step)]
        return [cell for (cell, *_), inside in zip(near, np.concatenate(parts).tolist(), strict=True) if inside]

    def geometry(self) -> dict[str, Any]:
        """The polygons as they were given, each ring closed."""
        return {
            "type": "MultiPolygon",
            "coordinates": [[_closed(ring) for ring in polygon] for polygon in self._polygons],
        }


class Corridor:
    """The cells that a route crosses. A larger released cell belongs to it if it covers one of them, a smaller one if
    it lies in one."""

    kind: Literal["polygon", "route"] = "route"

    def __init__(self, route: str, cells: list[str], resolution: int) -> None:
        self.name = ROUTE + route
        self._cells, self._resolution = cells, resolution
        self._within: dict[int, dict[str, list[str]]] = {}
        self._outline: dict[str, Any] | None = None

    def holds(self, cells: Iterable[Released]) -> list[str]:
        """Those that cover or lie in a cell that the route crosses."""
        return [cell for cell, excludes in cells if self._holds(cell, excludes)]

    def _holds(self, cell: str, excludes: Sequence[str]) -> bool:
        level = h3.get_resolution(cell)
        if level > self._resolution:
            return h3.cell_to_parent(cell, self._resolution) in self._covering(self._resolution)
        crossed = self._covering(level).get(cell, [])
        if not excludes or not crossed:
            return bool(crossed)
        apart = {other for other in excludes if h3.get_resolution(other) <= self._resolution}
        levels = {h3.get_resolution(other) for other in apart}
        return any(not any(h3.cell_to_parent(part, one) in apart for one in levels) for part in crossed)

    def _covering(self, level: int) -> dict[str, list[str]]:
        """The cells of the corridor by the cell of ``level`` that covers them."""
        if level not in self._within:
            covering: dict[str, list[str]] = defaultdict(list)
            for cell in self._cells:
                covering[h3.cell_to_parent(cell, level)].append(cell)
            self._within[level] = dict(covering)
        return self._within[level]

    def geometry(self) -> dict[str, Any]:
        """Outline of the cells that the route crosses, made once."""
        if self._outline is None:
            self._outline = h3.cells_to_h3shape(self._cells, tight=False).__geo_interface__
        return self._outline


Area = PolygonArea | Corridor


def _edges(ring: list[tuple[float, float]]) -> FloatArray:
    """Edges (n, 4) of a ring, closed if it is not: longitude and latitude of both ends."""
    points = np.array(_closed(ring))
    return np.hstack([points[:-1], points[1:]])


def _closed(ring: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return ring if ring[0] == ring[-1] else [*ring, ring[0]]


def _crossings(centres: FloatArray, edges: FloatArray) -> IntArray:
    """How many ``edges`` a line eastward from each of ``centres`` (latitude, longitude) crosses."""
    lat, lng = centres[:, :1], centres[:, 1:]
    lng0, lat0, lng1, lat1 = edges.T
    spans = (lat0 > lat) != (lat1 > lat)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = lng0 + (lat - lat0) / (lat1 - lat0) * (lng1 - lng0)
    return np.asarray((spans & (lng < at)).sum(axis=1))


def read_areas(path: Path | None, places: Places) -> dict[str, Area]:
    """Areas by name: the polygons of the file that ``public.areas`` names, then the corridors of the routes.

    Raises :class:`ConfigError`.
    """
    areas: dict[str, Area] = {}
    if path is not None:
        remedy = "a GeoJSON FeatureCollection of Polygons, each with a property 'name'"
        with opened(path, "areas", LARGEST, remedy) as body:
            areas.update((area.name, area) for area in _polygon_areas(body))
    if places.resolution is not None:
        corridors = places.corridors()
        for route in sorted(corridors, key=by_number):
            cells = corridors[route]
            if len(cells) > MOST_CROSSED:
                raise ConfigError(
                    f"public.places: route {route[:40]!r} crosses {len(cells)} cells, more than {MOST_CROSSED}; write "
                    "the places at a coarser resolution"
                )
            areas[ROUTE + route] = Corridor(route, cells, places.resolution)
    return areas


def _polygon_areas(body: bytes) -> list[PolygonArea]:
    document = json.loads(body.decode("utf-8"))
    features = document.get("features") if isinstance(document, dict) else None
    if not isinstance(features, list) or not features:
        raise ValueError("it has no features")
    if len(features) > MOST_AREAS:
        raise ValueError(f"it has {len(features)} features, more than {MOST_AREAS}")
    areas: dict[str, PolygonArea] = {}
    for number, feature in enumerate(features):
        area = _polygon_area(feature, f"features[{number}]")
        if area.name in areas:
            raise ValueError(f"two areas are named {area.name[:40]!r}; give each a name of its own")
        areas[area.name] = area
    return list(areas.values())


def _polygon_area(feature: Any, where: str) -> PolygonArea:
    shape, properties = (
        (feature.get("geometry"), feature.get("properties")) if isinstance(feature, dict) else (None, None)
    )
    given = properties.get("name") if isinstance(properties, dict) else None
    if not isinstance(given, str):
        raise ValueError(f"the name of {where} is {shown(given)}; give a property 'name' that is a text")
    name = check_name(given, f"the name of {where}")
    if name.startswith(ROUTE):
        raise ValueError(f"{name[:40]!r} begins with {ROUTE!r}, as the corridors of routes do; choose another name")
    if not any(letter.isalpha() for letter in name):
        raise ValueError(f"{name[:40]!r} has no letter, so an address could not tell it from a box; add one")
    points = sum(1 for _ in islice(_leaves(shape), MOST_POINTS * 2 + 1)) // 2
    if points >= MOST_POINTS:
        raise ValueError(f"{name[:40]!r} has more than {MOST_POINTS} points; simplify it")
    return PolygonArea(name, polygons_of(shape, where))


def _leaves(shape: Any) -> Iterable[Any]:
    """Everything in a geometry's coordinates that is no list, one by one, so that they are counted before they are
    checked."""
    pending = [shape.get("coordinates")] if isinstance(shape, dict) else []
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        else:
            yield item
