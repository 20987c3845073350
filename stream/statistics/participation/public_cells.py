"""The public cell list of relation "participation": every cell of it gets a message in every window, visited or not."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import h3
import numpy as np
import numpy.typing as npt

from stream.config import Config, ConfigError

IdArray = npt.NDArray[np.uint64]


def public_cells(config: Config) -> IdArray:
    """H3 ids (C,), ascending: cells whose centre lies in the configured polygon, or else in ``feed.domain``.

    Raises :class:`ConfigError` for a file that is no GeoJSON area, an area without cells, or more cells than
    ``participation.max_cells``.
    """
    settings = config.participation
    assert settings is not None, "the configuration has the section under this relation"
    domain = config.feed.domain
    box = (domain.south, domain.west, domain.north, domain.east)
    return _polyfill(box, settings.geojson, config.hexagons.resolution, settings.max_cells)


@lru_cache(maxsize=8)
def _polyfill(box: tuple[float, float, float, float], geojson: Path | None, resolution: int, max_cells: int) -> IdArray:
    south, west, north, east = box
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    shapes = [{"type": "Polygon", "coordinates": [ring]}] if geojson is None else _areas(geojson)
    expected = sum(_bounding_km2(shape) for shape in shapes) / h3.average_hexagon_area(resolution, "km^2")
    # A first look at the bounding boxes, so that a typing error does not enumerate a continent.
    if expected > 20 * max_cells:
        raise _too_many(f"about {expected:.0f}", max_cells, resolution)
    cells = sorted({h3.str_to_int(cell) for shape in shapes for cell in h3.geo_to_cells(shape, resolution)})
    if not cells:
        raise ConfigError(f"the public area holds no cell centre at H3 resolution {resolution}; enlarge it or raise it")
    if len(cells) > max_cells:
        raise _too_many(str(len(cells)), max_cells, resolution)
    return np.array(cells, dtype=np.uint64)


def _too_many(count: str, bound: int, resolution: int) -> ConfigError:
    return ConfigError(
        f"the public area holds {count} cells at H3 resolution {resolution}, more than participation.max_cells = {bound}; "
        "choose a smaller area, a coarser resolution or a larger bound (every cell is one message per window)"
    )


def _areas(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        features = found["features"] if found["type"] == "FeatureCollection" else [found]
        shapes = [item["geometry"] if item["type"] == "Feature" else item for item in features]
        if not shapes or any(shape["type"] not in ("Polygon", "MultiPolygon") for shape in shapes):
            raise ValueError("no Polygon or MultiPolygon")
    except OSError as error:
        raise ConfigError(f"participation.geojson {path}: {error.strerror}; name a readable GeoJSON file") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"participation.geojson {path} is not a GeoJSON area ({error}); give Polygons") from None
    return shapes


def _bounding_km2(shape: dict[str, Any]) -> float:
    rings = shape["coordinates"] if shape["type"] == "Polygon" else [r for part in shape["coordinates"] for r in part]
    points = np.array([point[:2] for ring in rings for point in ring], dtype=np.float64)
    (west, south), (east, north) = points.min(axis=0), points.max(axis=0)
    middle = np.cos(np.radians((south + north) / 2))
    return float((north - south) * (east - west) * middle * 111.2**2)
