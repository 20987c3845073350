"""Shapes of released cells, the same for every reader. Pure.

Cells may be merged into their H3 parents (:mod:`stream.statistics.merging`). An H3 parent is no union of its children:
its hexagon leaves some of them out and covers parts of others. What was merged are the children. So a cell that is
coarser than the finest of its window has the shape of its children of that resolution, without the finer cells that
were released apart from it. The shapes of a window's cells neither overlap nor leave gaps.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import h3

from stream.messages.cells import Cell

MOST_KEPT = 1 << 15
"""Shapes that are kept: those of one window are mostly those of the next one, too."""


class Place(NamedTuple):
    """A released cell, the finer cells that were released apart from it, and the resolution of its outline."""

    cell: str
    excludes: tuple[str, ...] = ()
    finest: int = 0


def places_of(cells: Sequence[Cell]) -> list[Place]:
    """The places of the cells of one window, in the same order; all are needed to know the finest resolution."""
    finest = max((h3.get_resolution(part) for one in cells for part in (one.cell, *one.excludes)), default=0)
    return [Place(one.cell, one.excludes, finest) for one in cells]


@lru_cache(MOST_KEPT)
def parts_of(place: Place) -> tuple[str, ...]:
    """The cells of which the shape is made: the cell itself, or what is left of its children."""
    if h3.get_resolution(place.cell) >= place.finest:
        return (place.cell,)
    apart = {part for cell in place.excludes for part in h3.cell_to_children(cell, place.finest)}
    return tuple(part for part in h3.cell_to_children(place.cell, place.finest) if part not in apart)


@lru_cache(MOST_KEPT)
def geometry_of(place: Place) -> dict[str, Any]:
    """GeoJSON (RFC 7946): a Polygon or, where a cell was merged, a MultiPolygon. Longitudes go on beyond 180°."""
    parts = parts_of(place)
    if parts == (place.cell,):
        return {"type": "Polygon", "coordinates": [ring_of(place.cell)]}
    polygons = h3.cells_to_h3shape(parts, tight=False).__geo_interface__["coordinates"]
    rings = [[_eastward([list(point) for point in ring]) for ring in polygon] for polygon in polygons]
    return {"type": "MultiPolygon", "coordinates": rings}


def ring_of(cell: str) -> list[list[float]]:
    """Longitude and latitude of a hexagon's corners, counter-clockwise, the first again at the end.

    If it crosses 180°, its longitudes continue beyond 180°.
    """
    ring = _eastward([[lng, lat] for lat, lng in h3.cell_to_boundary(cell)])
    return [*ring, ring[0]]


def _eastward(ring: list[list[float]]) -> list[list[float]]:
    if max(lng for lng, _ in ring) - min(lng for lng, _ in ring) <= 180:
        return ring
    return [[lng + 360 if lng < 0 else lng, lat] for lng, lat in ring]


def centre_of(cell: str, excludes: Sequence[str]) -> tuple[float, float]:
    """Latitude and longitude of the centre of a cell, or of the part nearest to it that was not released apart.

    It decides where a cell belongs, in areas and in boxes, so that one that was merged counts once.
    """
    part = _remaining(cell, set(excludes), max(map(h3.get_resolution, excludes))) if excludes else cell
    lat, lng = h3.cell_to_latlng(part or cell)
    return lat, lng


def _remaining(cell: str, apart: set[str], finest: int) -> str | None:
    """The cell if nothing at its centre is in ``apart``, else the nearest part of which this is true; None if all is
    apart.

    Only parts around cells of ``apart`` are looked at, so that one that is much smaller costs no more.
    """
    levels = range(h3.get_resolution(cell) + 1, finest + 1)
    if not any(h3.cell_to_center_child(cell, level) in apart for level in levels):
        return cell
    middle = h3.cell_to_latlng(cell)
    parts = sorted(
        h3.cell_to_children(cell), key=lambda part: h3.great_circle_distance(middle, h3.cell_to_latlng(part))
    )
    nearest = (_remaining(part, apart, finest) for part in parts if part not in apart)
    return next((part for part in nearest if part is not None), None)
