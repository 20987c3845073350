"""Places of a street map in metres, as GDAL reads them."""

from __future__ import annotations

from stream.tiles.vector_tile import Feature

EARTH_M = 20_037_508.342789244
"""Half the side of the square map of the world in metres."""


def in_metres(feature: Feature) -> list[tuple[float, float]]:
    """The corners of a feature, eastward and northward."""
    return [((2 * x - 1) * EARTH_M, (1 - 2 * y) * EARTH_M) for x, y in feature.world]
