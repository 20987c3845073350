"""Reads GeoJSON files of a public area, checks every coordinate, and compares them with ``feed.domain``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from dpcore.earth import EARTH_M
from stream.config import ConfigError

Position = tuple[float, float]
"""Longitude and latitude in degrees, in GeoJSON's order."""
Polygon = list[list[Position]]
"""Rings: the outer one, then holes."""


class Box(NamedTuple):
    """Public box in degrees."""

    south: float
    west: float
    north: float
    east: float


def read_area(path: Path, domain: Box) -> list[Polygon]:
    """Polygons of a GeoJSON file (Polygon, MultiPolygon, Feature or FeatureCollection of them), inside ``domain``.

    Raises :class:`ConfigError` naming what is wrong, where in the file, and the remedy.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"participation.geojson {path}: {error.strerror}; name a readable GeoJSON file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"participation.geojson {path} is not GeoJSON ({error}); write a Polygon or MultiPolygon"
        ) from None
    try:
        polygons = [polygon for where, shape in _shapes(document) for polygon in _polygons(shape, where)]
        _check_inside([position for polygon in polygons for position in polygon[0]], domain)
    except ValueError as error:
        raise ConfigError(f"participation.geojson {path} is no GeoJSON area for this feed: {error}") from None
    return polygons


def _shapes(document: Any) -> list[tuple[str, Any]]:
    """Geometries of a file, each with its position in the file."""
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


def _polygons(shape: Any, where: str) -> list[Polygon]:
    kind = shape.get("type") if isinstance(shape, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise ValueError(f"{where} is {_shown(kind)}; give Polygons or MultiPolygons, each with an area")
    coordinates = shape.get("coordinates")
    parts = [coordinates] if kind == "Polygon" else coordinates
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"{where} has no coordinates; write a list of rings of [longitude, latitude]")
    return [_polygon(part, where) for part in parts]


def _polygon(rings: Any, where: str) -> Polygon:
    if not isinstance(rings, list) or not rings:
        raise ValueError(f"{where} has no coordinates; write a list of rings of [longitude, latitude]")
    return [_ring(ring, f"{where}, ring {n}") for n, ring in enumerate(rings)]


def _ring(positions: Any, where: str) -> list[Position]:
    if not isinstance(positions, list):
        raise ValueError(f"{where} is {_shown(positions)}; write a list of positions [longitude, latitude]")
    ring = [_position(position, f"{where}, position {n}") for n, position in enumerate(positions)]
    if len(set(ring)) < 3:
        raise ValueError(f"{where} has {len(set(ring))} different positions and no area; give three or more")
    return ring


def _position(position: Any, where: str) -> Position:
    numbers = position[:2] if isinstance(position, list) else []
    if len(numbers) != 2 or any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in numbers):
        raise ValueError(f"{where} is {_shown(position)}; write [longitude, latitude], two numbers of degrees")
    longitude, latitude = numbers
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise ValueError(
            f"{where} is {_shown(position)}, not a place on Earth; write longitude first, from -180 to 180, then latitude, "
            "from -90 to 90"
        )
    return float(longitude), float(latitude)


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) and len(value) > 3:
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python formats
        return "too large"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _check_inside(positions: list[Position], domain: Box) -> None:
    """Raise :class:`ValueError` for positions outside ``domain``, where every fix is rejected and cells would stay empty."""
    outside = [position for position in positions if not _inside(position, domain)]
    if not outside:
        return
    swapped = all(_inside((latitude, longitude), domain) for longitude, latitude in positions)
    longitude, latitude = outside[0]
    raise ValueError(
        f"{len(outside)} of {len(positions)} positions lie outside feed.domain, where every fix is rejected, the first at "
        f"longitude {longitude:g}, latitude {latitude:g}; "
        + (
            "write longitude first: all would be inside"
            if swapped
            else f"make the area smaller or the domain larger (now south {domain.south:g}, west {domain.west:g}, north "
            f"{domain.north:g}, east {domain.east:g})"
        )
    )


def _inside(position: Position, domain: Box) -> bool:
    longitude, latitude = position
    return domain.south <= latitude <= domain.north and domain.west <= longitude <= domain.east


def bounding_km2(polygon: Polygon) -> float:
    """Area of the box around a polygon."""
    longitudes, latitudes = [x for x, _ in polygon[0]], [y for _, y in polygon[0]]
    south, north = min(latitudes), max(latitudes)
    middle = math.cos(math.radians((south + north) / 2))
    return (north - south) * (max(longitudes) - min(longitudes)) * middle * (math.radians(1) * EARTH_M / 1000) ** 2
