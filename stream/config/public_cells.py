"""The public list of cells under relation "participation". Each of them gets a message in every window, visited or not.

Reads GeoJSON files of a public area, checks every coordinate, and compares them with ``feed.domain``.
"""

import json
import math
from functools import lru_cache
from pathlib import Path

import h3
import numpy as np

from dpcore.arrays import IdArray
from dpcore.earth import EARTH_M
from stream.config.deployment import Config, ConfigError
from stream.config.geojson import Polygon, Position, polygons_of, shapes
from stream.config.section import BoundingBox


def read_area(path: Path, domain: BoundingBox) -> list[Polygon]:
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


def _check_inside(positions: list[Position], domain: BoundingBox) -> None:
    """Raise :class:`ValueError` for positions outside ``domain``, where every fix is refused."""
    outside = [position for position in positions if not domain.contains(position[1], position[0])]
    if not outside:
        return
    swapped = all(domain.contains(longitude, latitude) for longitude, latitude in positions)
    longitude, latitude = outside[0]
    raise ValueError(
        f"{len(outside)} of {len(positions)} positions lie outside feed.domain, where every fix is refused, the first "
        f"at longitude {longitude:g}, latitude {latitude:g}; "
        + (
            "write longitude first: all would be inside"
            if swapped
            else f"make the area smaller or the domain larger (now south {domain.south:g}, west {domain.west:g}, north "
            f"{domain.north:g}, east {domain.east:g})"
        )
    )


def bounding_km2(polygon: Polygon) -> float:
    """Area of the box around a polygon."""
    longitudes, latitudes = [x for x, _ in polygon[0]], [y for _, y in polygon[0]]
    south, north = min(latitudes), max(latitudes)
    middle = math.cos(math.radians((south + north) / 2))
    width = max(longitudes) - min(longitudes)
    width = 360 - width if width > 180 else width  # H3 takes the shorter way around the globe
    return (north - south) * width * middle * (math.radians(1) * EARTH_M / 1000) ** 2


MAX_CELLS = 20_000
"""Most public cells: every one is a message in every window."""
MAX_NUMBERS = 1_000_000
"""Most cells times bins of a window whose distributions are published: some 50 MB of messages."""


def public_cells(config: Config) -> IdArray:
    """H3 ids (C,), ascending: cells whose centre lies in the configured polygon, or else in ``feed.domain``; none under
    relation "values", where cells are those that were visited.

    Raises :class:`ConfigError` for a file that is not a GeoJSON area, an area outside ``feed.domain`` or without cells,
    or more cells than :data:`MAX_CELLS` or than the messages of their distributions may have.
    """
    settings = config.participation
    if settings is None:
        return np.zeros(0, dtype=np.uint64)
    cells = _polyfill(config.feed.domain, settings.geojson, config.hexagons.resolution)
    _require_publishable(config, len(cells))
    return cells


@lru_cache(maxsize=8)
def _polyfill(domain: BoundingBox, geojson: Path | None, resolution: int) -> IdArray:
    south, west, north, east = domain.south, domain.west, domain.north, domain.east
    whole: list[Polygon] = [[[(west, south), (east, south), (east, north), (west, north), (west, south)]]]
    polygons = whole if geojson is None else read_area(geojson, domain)
    expected = sum(map(bounding_km2, polygons)) / h3.average_hexagon_area(resolution, "km^2")
    # Estimate from the bounding boxes first, so that a typing error does not enumerate the cells of a continent.
    if expected > 20 * MAX_CELLS:
        raise _too_many(f"about {expected:.0f}", resolution)
    shapes = [{"type": "Polygon", "coordinates": polygon} for polygon in polygons]
    cells = sorted({h3.str_to_int(cell) for shape in shapes for cell in h3.geo_to_cells(shape, resolution)})
    if not cells:
        raise ConfigError(f"the public area holds no cell centre at H3 resolution {resolution}; enlarge it or raise it")
    if len(cells) > MAX_CELLS:
        raise _too_many(str(len(cells)), resolution)
    return np.array(cells, dtype=np.uint64)


def _too_many(count: str, resolution: int) -> ConfigError:
    return ConfigError(
        f"the public area holds {count} cells at H3 resolution {resolution}, more than {MAX_CELLS}; "
        "choose a smaller area or a coarser resolution (every cell is one message per window)"
    )


def _require_publishable(config: Config, cells: int) -> None:
    """Raise :class:`ConfigError` if ``cdf`` is named, but would be left out of every window for so many cells."""
    speed = config.speed
    if "cdf" not in speed.statistics:
        return
    from dpcore.cdf import bin_edges  # scipy comes with it, which other configurations save

    numbers = cells * (len(bin_edges(config.value.upper_quanta, speed.cdf_bins)) - 1)
    if numbers > MAX_NUMBERS:
        fewer = MAX_NUMBERS // cells
        remedy = f"lower speed.cdf_bins to {fewer} or choose fewer cells" if fewer > 1 else "choose fewer cells"
        raise ConfigError(
            f"distributions of {cells} public cells in {speed.cdf_bins} bins are {numbers} numbers a window, more than "
            f"{MAX_NUMBERS}; {remedy}, or leave 'cdf' out of speed.statistics"
        )
