"""The public list of cells under relation "participation". Each of them gets a message in every window, visited or not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import h3
import numpy as np
import numpy.typing as npt

from stream.config import Config, ConfigError
from stream.geojson import Polygon
from stream.statistics.distributions import require_publishable
from stream.statistics.participation.area import Box, bounding_km2, read_area

IdArray = npt.NDArray[np.uint64]


def public_cells(config: Config) -> IdArray:
    """H3 ids (C,), ascending: cells whose centre lies in the configured polygon, or else in ``feed.domain``.

    Raises :class:`ConfigError` for a file that is not a GeoJSON area, an area outside ``feed.domain`` or without cells, or
    more cells than ``participation.max_cells`` or than the messages of their distributions may have.
    """
    settings = config.participation
    assert settings is not None, "the configuration has the section under this relation"
    domain = Box(**config.feed.domain.model_dump())
    cells = _polyfill(domain, settings.geojson, config.hexagons.resolution, settings.max_cells)
    require_publishable(config, len(cells))
    return cells


@lru_cache(maxsize=8)
def _polyfill(domain: Box, geojson: Path | None, resolution: int, max_cells: int) -> IdArray:
    south, west, north, east = domain
    whole: list[Polygon] = [[[(west, south), (east, south), (east, north), (west, north), (west, south)]]]
    polygons = whole if geojson is None else read_area(geojson, domain)
    expected = sum(map(bounding_km2, polygons)) / h3.average_hexagon_area(resolution, "km^2")
    # Estimate from the bounding boxes first, so that a typing error does not enumerate the cells of a continent.
    if expected > 20 * max_cells:
        raise _too_many(f"about {expected:.0f}", max_cells, resolution)
    shapes = [{"type": "Polygon", "coordinates": polygon} for polygon in polygons]
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
