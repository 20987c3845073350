"""Range queries: numbers of users in ranges given in degrees, from released spatial histograms, with 95 % intervals.

Everyone who has a release can compute them, so they cost no budget. Pure functions.

A histogram as a map: every one is read in the same way, as range queries on a raster of at most :data:`MOST_PER_SIDE`
boxes per side, whose edges are edges of the count grid. A box that cuts a block of the histogram has its share of it,
and an interval that says how little is known of a part of a block.
"""

from typing import Any

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError
from dpcore.spatial import Domain, Rectangles, histogram_from_release
from dpcore.spatial.euler import EulerHistogram
from dpcore.spatial.release import Released

Box = tuple[float, float, float, float]
"""west, south, east, north in degrees."""

_DECIMALS = 6
_HAIR = 1e-9
"""Share of a cell: an edge of a range this close to a grid line counts as lying on it."""


MAX_CELLS = 1 << 20
"""Largest number of cells of a histogram's domain: 1024 x 1024, the most that a configuration allows."""


class RangeError(ParameterError):
    """A range for which a histogram has no answer; ``remedy`` says what to ask instead."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message, self.remedy = message, remedy


def parse_box(text: str) -> Box:
    """``west,south,east,north`` in degrees; raises :class:`RangeError` for anything else, or a box without area."""
    try:
        west, south, east, north = (float(part) for part in text.split(","))
    except ValueError:
        raise RangeError(f"bbox {text!r} is not four numbers", "write west,south,east,north in degrees") from None
    if not (max(abs(west), abs(east)) <= 180 and west != east and -90 <= south < north <= 90):
        raise RangeError(
            f"bbox {text} is not a box",
            "give longitudes from -180 to 180, west first, and -90 <= south < north <= 90; west > east lies across 180 "
            "degrees",
        )
    return west, south, east, north


def read_histogram(release: dict[str, Any]) -> Released:
    """The histogram of a release. Raises :class:`ParameterError` for what is none, or has more than :data:`MAX_CELLS`
    cells."""
    domain = release["domain"]
    if domain["rows"] * domain["columns"] > MAX_CELLS:
        raise ParameterError(f"{domain['rows']} x {domain['columns']} cells are above {MAX_CELLS}")
    return histogram_from_release(release)


def count_in(release: dict[str, Any], bbox: Box, histogram: Released | None = None) -> dict[str, Any]:
    """The estimated number of users in ``bbox``, in the form of the API's answers. ``histogram``: ``release``, if
    decoded already.

    ``raw``: the histogram's answer, computed as if points lay evenly inside its blocks. ``interval`` contains the exact
    number in at least 95 % of releases, however points lie; None if the release does not describe its noise. ``value``:
    ``raw``, moved into the interval if it lies outside. Regions (euler) are counted in whole cells: the answer is for
    all cells that ``bbox`` meets, and its ``bbox`` is the box of these cells.

    Raises :class:`RangeError` for a range outside the domain, :class:`dpcore.spatial.histogram.HistogramError` for a
    release that is not a histogram.
    """
    histogram = histogram or histogram_from_release(release)
    _require_inside(bbox, histogram.domain)
    west, south, east, north = bbox
    ranges = Rectangles.of_boxes(histogram.domain, [[south, west, north, east]])
    if isinstance(histogram, EulerHistogram):
        ranges = _whole_cells(ranges)
        bbox = _degrees(ranges, histogram.domain)
    raw, intervals = float(histogram.answers(ranges)[0]), histogram.intervals(ranges)
    interval = None if intervals is None else (float(intervals.low[0]), float(intervals.high[0]))
    value = raw if interval is None else min(max(raw, interval[0]), interval[1])
    return {
        "value": round(value, _DECIMALS),
        "raw": round(raw, _DECIMALS),
        "interval": None if interval is None else [round(bound) for bound in interval],
        "unit": "1",
        "mechanism": release["mechanism"],
        "epsilon": release["epsilon"],
        "relation": release["relation"],
        "fixes_per_user": release["fixes_per_user"],
        "window": release["window"],
        "bbox": list(bbox),
    }


def _require_inside(bbox: Box, domain: Domain) -> None:
    limits = (domain.west, domain.south, domain.east, domain.north)
    west, south, east, north = bbox
    _, (begin, end) = domain.offsets(np.array([south, north]), np.array([west, east]))
    inside = {
        "west": domain.west > domain.east or west >= domain.west,
        "south": south >= domain.south,
        "east": begin < end <= domain.width,
        "north": north <= domain.north,
    }
    for k, name in enumerate(inside):
        if not inside[name]:
            raise RangeError(
                f"bbox {name} {bbox[k]:g} lies outside the histogram's domain, whose {name} is {limits[k]:g}",
                f"cut the range to bbox={','.join(f'{limit:g}' for limit in limits)}",
            )


def _whole_cells(ranges: Rectangles) -> Rectangles:
    low, high = (np.floor([ranges.x0 + _HAIR, ranges.y0 + _HAIR]), np.ceil([ranges.x1 - _HAIR, ranges.y1 - _HAIR]))
    return Rectangles(low[0], high[0], low[1], high[1])


def _degrees(ranges: Rectangles, domain: Domain) -> Box:
    def at(cells: float, start: float, end: float, size: int) -> float:
        return round(start + cells * (end - start) / size, _DECIMALS)

    def longitude(cells: float) -> float:
        degrees = at(cells, domain.west, domain.west + domain.width, domain.columns)
        return degrees - 360 if degrees > 180 else degrees

    return (
        longitude(float(ranges.y0[0])),
        at(float(ranges.x0[0]), domain.south, domain.north, domain.rows),
        longitude(float(ranges.y1[0])),
        at(float(ranges.x1[0]), domain.south, domain.north, domain.rows),
    )


MOST_PER_SIDE = 64
"""Boxes from south to north, and from west to east, at most."""


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
    columns = [*_edges_in_degrees(domain, rectangles), values, values / square_km, low, high]
    table = np.round(columns, _DECIMALS).T.tolist()
    return [_feature(row, has_interval=intervals is not None) for row in table]


def _raster(domain: Domain) -> Rectangles:
    rows, columns = (np.unique(np.linspace(0, n, min(n, MOST_PER_SIDE) + 1).round()) for n in domain.shape)
    x0, y0 = (grid.ravel() for grid in np.meshgrid(rows[:-1], columns[:-1], indexing="ij"))
    x1, y1 = (grid.ravel() for grid in np.meshgrid(rows[1:], columns[1:], indexing="ij"))
    return Rectangles(x0, x1, y0, y1)


def _edges_in_degrees(domain: Domain, boxes: Rectangles) -> list[FloatArray]:
    """West, south, east and north of each box."""
    south, north = (domain.south + at * (domain.north - domain.south) / domain.rows for at in (boxes.x0, boxes.x1))
    west, east = (domain.west + at * domain.width / domain.columns for at in (boxes.y0, boxes.y1))
    return [west, south, east, north]


def _feature(row: list[float], has_interval: bool) -> dict[str, Any]:
    west, south, east, north, value, density, low, high = row
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    ends = (round(low), round(high)) if has_interval else (None, None)
    properties = {"value": value, "low": ends[0], "high": ends[1], "density": density}
    return {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": properties}
