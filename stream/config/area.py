"""Reads GeoJSON files of a public area, checks every coordinate, and compares them with ``feed.domain``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from dpcore.earth import EARTH_M
from stream.config.deployment import ConfigError
from stream.config.geojson import Polygon, Position, polygons_of, shapes


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
        polygons = [polygon for where, shape in shapes(document) for polygon in polygons_of(shape, where)]
        _check_inside([position for polygon in polygons for position in polygon[0]], domain)
    except ValueError as error:
        raise ConfigError(f"participation.geojson {path} is no GeoJSON area for this feed: {error}") from None
    return polygons


def _check_inside(positions: list[Position], domain: Box) -> None:
    """Raise :class:`ValueError` for positions outside ``domain``, where every fix is rejected and cells would stay
    empty."""
    outside = [position for position in positions if not _inside(position, domain)]
    if not outside:
        return
    swapped = all(_inside((latitude, longitude), domain) for longitude, latitude in positions)
    longitude, latitude = outside[0]
    raise ValueError(
        f"{len(outside)} of {len(positions)} positions lie outside feed.domain, where every fix is rejected, the first "
        "at "
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
    across = (
        longitude >= domain.west or longitude <= domain.east
        if domain.west > domain.east
        else domain.west <= longitude <= domain.east
    )
    return domain.south <= latitude <= domain.north and across


def bounding_km2(polygon: Polygon) -> float:
    """Area of the box around a polygon."""
    longitudes, latitudes = [x for x, _ in polygon[0]], [y for _, y in polygon[0]]
    south, north = min(latitudes), max(latitudes)
    middle = math.cos(math.radians((south + north) / 2))
    width = max(longitudes) - min(longitudes)
    width = 360 - width if width > 180 else width  # H3 takes the shorter way around the globe
    return (north - south) * width * middle * (math.radians(1) * EARTH_M / 1000) ** 2
