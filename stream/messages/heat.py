"""A released spatial histogram as a map: boxes with a number of users, its 95 % interval and a density. Pure.

Everyone who has a release can compute it, so it costs no budget. Every histogram is read in the same way, as range
queries on a raster of at most :data:`MOST_PER_SIDE` boxes per side, whose edges are edges of the count grid. A box that
cuts a block of the histogram has its share of it, and an interval that says how little is known of a part of a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.release import Released

MOST_PER_SIDE = 64
"""Boxes from south to north, and from west to east, at most."""
_DECIMALS = 6


def heat_of(histogram: Released) -> list[dict[str, Any]]:
    """GeoJSON features from south to north, and in each row from west to east.

    Properties: ``value`` (users, or regions of users for "euler"), ``low`` and ``high`` (95 %; None where the release
    does not describe its noise), ``density`` (per square kilometre).
    """
    domain = histogram.domain
    rectangles = _raster(domain)
    counts, intervals = histogram.answers(rectangles), histogram.intervals(rectangles)
    low, high = (np.zeros_like(counts), counts) if intervals is None else (intervals.low, intervals.high)
    values = np.clip(counts, np.maximum(low, 0.0), np.maximum(high, 0.0))
    metres = domain.in_metres()
    square_km = (metres.north - metres.south) * metres.width / metres.cells / 1e6 * rectangles.areas()
    columns = [*_degrees(domain, rectangles), values, values / square_km, low, high]
    table = np.round(columns, _DECIMALS).T.tolist()
    return [_feature(row, has_interval=intervals is not None) for row in table]


def _raster(domain: Domain) -> Rectangles:
    rows, columns = (_edges(cells) for cells in domain.shape)
    x0, y0 = (grid.ravel() for grid in np.meshgrid(rows[:-1], columns[:-1], indexing="ij"))
    x1, y1 = (grid.ravel() for grid in np.meshgrid(rows[1:], columns[1:], indexing="ij"))
    return Rectangles(x0, x1, y0, y1)


def _degrees(domain: Domain, boxes: Rectangles) -> list[FloatArray]:
    """West, south, east and north of each box."""
    south, north = (domain.south + at * (domain.north - domain.south) / domain.rows for at in (boxes.x0, boxes.x1))
    west, east = (domain.west + at * domain.width / domain.columns for at in (boxes.y0, boxes.y1))
    return [west, south, east, north]


def _edges(cells: int) -> FloatArray:
    return np.unique(np.round(np.linspace(0, cells, min(cells, MOST_PER_SIDE) + 1)))


def _feature(row: list[float], has_interval: bool) -> dict[str, Any]:
    west, south, east, north, value, density, low, high = row
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    ends = (round(low), round(high)) if has_interval else (None, None)
    properties = {"value": value, "low": ends[0], "high": ends[1], "density": density}
    return {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": properties}
