"""Polygons, lines and points of GeoJSON documents (RFC 7946), with every coordinate checked. Pure."""

import json
from typing import Any

Position = tuple[float, float]
"""Longitude and latitude in degrees, in GeoJSON's order."""
Polygon = list[list[Position]]
"""Rings: the outer one, then holes."""


def shapes(document: Any) -> list[tuple[str, Any]]:
    """Geometries of a Polygon, MultiPolygon, Feature or FeatureCollection, each with its position in the file."""
    kind = document.get("type") if isinstance(document, dict) else None
    if kind != "FeatureCollection":
        return [("the geometry", document.get("geometry") if kind == "Feature" else document)]
    features = document.get("features")
    if not isinstance(features, list) or not features:
        raise ValueError("its FeatureCollection has no features; give one Feature or more")
    return [
        (f"features[{n}]", feature.get("geometry") if isinstance(feature, dict) else None)
        for n, feature in enumerate(features)
    ]


def polygons_of(shape: Any, where: str) -> list[Polygon]:
    """Polygons of the geometry at ``where``. Raises :class:`ValueError` that says what is wrong, and the remedy."""
    kind = shape.get("type") if isinstance(shape, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise ValueError(f"{where} is {shown(kind)}; give Polygons or MultiPolygons, each with an area")
    coordinates = shape.get("coordinates")
    parts = [coordinates] if kind == "Polygon" else coordinates
    if not isinstance(parts, list) or not parts or not all(isinstance(rings, list) and rings for rings in parts):
        raise ValueError(f"{where} has no coordinates; write a list of rings of [longitude, latitude]")
    return [[_ring(ring, f"{where}, ring {n}") for n, ring in enumerate(rings)] for rings in parts]


def lines_of(shape: Any, where: str) -> list[list[Position]]:
    """Lines of a LineString or MultiLineString; the points of a Point or MultiPoint as lines of one position.

    Raises :class:`ValueError` that says what is wrong there, and the remedy.
    """
    kind = shape.get("type") if isinstance(shape, dict) else None
    if kind not in ("Point", "MultiPoint", "LineString", "MultiLineString"):
        raise ValueError(f"{where} is {shown(kind)}; give LineStrings, MultiLineStrings, Points or MultiPoints")
    coordinates = shape.get("coordinates")
    if kind == "Point":
        return [[_position(coordinates, where)]]
    parts = [coordinates] if kind == "LineString" else coordinates
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"{where} has no coordinates; write a list of positions [longitude, latitude]")
    if kind == "MultiPoint":
        return [[_position(part, f"{where}, position {n}")] for n, part in enumerate(parts)]
    return [_line(part, f"{where}, line {n}") for n, part in enumerate(parts)]


def _line(positions: Any, where: str) -> list[Position]:
    if not isinstance(positions, list) or len(positions) < 2:
        raise ValueError(f"{where} is {shown(positions)}; write two or more positions [longitude, latitude]")
    return [_position(position, f"{where}, position {n}") for n, position in enumerate(positions)]


def _ring(positions: Any, where: str) -> list[Position]:
    if not isinstance(positions, list):
        raise ValueError(f"{where} is {shown(positions)}; write a list of positions [longitude, latitude]")
    ring = [_position(position, f"{where}, position {n}") for n, position in enumerate(positions)]
    if len(set(ring)) < 3:
        raise ValueError(f"{where} has {len(set(ring))} different positions and no area; give three or more")
    return ring


def _position(position: Any, where: str) -> Position:
    numbers = position[:2] if isinstance(position, list) else []
    if len(numbers) != 2 or any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in numbers):
        raise ValueError(f"{where} is {shown(position)}; write [longitude, latitude], two numbers of degrees")
    longitude, latitude = numbers
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise ValueError(
            f"{where} is {shown(position)}, not a place on Earth; write longitude first, from -180 to 180, then "
            "latitude, from -90 to 90"
        )
    return float(longitude), float(latitude)


def shown(value: Any) -> str:
    """The value as a message quotes it."""
    if isinstance(value, (list, dict)) and len(value) > 3:
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python formats
        return "too large"
    return text if len(text) <= 60 else f"{text[:59]}…"


def by_number(route: str) -> tuple[int, str]:
    """A key for sorting: numbered routes by number, before the others."""
    return (int(route) if route.isdecimal() and len(route) < 10 else 1 << 40), route
