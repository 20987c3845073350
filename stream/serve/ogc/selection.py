"""Which features a request of OGC API - Features selects: by place, by time, and where a page begins. Pure functions.

Source: OGC 17-069r4, "OGC API - Features - Part 1: Core", sections 7.15.3 (bbox) and 7.15.4 (datetime).

In which box the features of a collection lie. Pure functions.

Source: OGC 17-069r4, "OGC API - Features - Part 1: Core", requirement /req/core/fc-md-extent: the extent includes every
geometry of the collection.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import h3

from stream.messages.shapes import ring_of

Ring = Sequence[Sequence[float]]

_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE)
_OPEN = ("", "..")
_ID = re.compile(r"(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})Z-([0-9a-f]{15})", re.ASCII)


class Interval(NamedTuple):
    """From ``first`` to ``last``, both included, in seconds since 1970; infinite where it is open."""

    first: float
    last: float


class Bounds(NamedTuple):
    """West, south, east and north in degrees. Where west is above east, the box crosses 180°."""

    west: float
    south: float
    east: float
    north: float


def read_interval(text: str) -> Interval:
    """A moment, or two with ``/`` between them, either may be left open; :class:`ValueError` for anything else."""
    parts = text.split("/")
    if len(parts) > 2 or all(part in _OPEN for part in parts):
        raise ValueError("is neither a time in RFC 3339 nor an interval of two, one of which may be '..'")
    first, last = (parts[0], parts[-1]) if len(parts) == 2 else (text, text)
    interval = Interval(_seconds(first, -float("inf")), _seconds(last, float("inf")))
    if interval.first > interval.last:
        raise ValueError("ends before it begins")
    return interval


def _seconds(text: str, where_open: float) -> float:
    if text in _OPEN:
        return where_open
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError("is neither a time in RFC 3339 nor an interval of two, one of which may be '..'") from None


def is_during(start: str, end: str, interval: Interval) -> bool:
    """Whether a window, which holds its start and not its end, shares a moment with the interval."""
    began, ended = (datetime.fromisoformat(moment).timestamp() for moment in (start, end))
    return began <= interval.last and ended > interval.first


def item_id(start: str, cell: str) -> str:
    """Identifier of a cell's release in the window that starts then."""
    return f"{start.replace('-', '').replace(':', '')}-{cell}"


def read_item_id(text: str) -> tuple[str, str]:
    """Start of the window and cell of an identifier; :class:`ValueError` if it is none."""
    matched = _ID.fullmatch(text)
    if matched is None or not h3.is_valid_cell(matched[7]):
        raise ValueError("is no identifier of a feature, like 20170321T120000Z-87489e342ffffff")
    year, month, day, hour, minute, second, cell = matched.groups()
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}Z", cell


def meets(ring: Ring, bounds: Bounds) -> bool:
    """Whether a convex ring shares a point with the box. A ring that crosses 180° has longitudes above it."""
    boxes = [bounds]
    if bounds.west > bounds.east:
        boxes = [bounds._replace(east=180.0), bounds._replace(west=-180.0)]
    return any(
        _overlap(ring, box) or _overlap(ring, box._replace(west=box.west + 360, east=box.east + 360)) for box in boxes
    )


def _overlap(ring: Ring, box: Bounds) -> bool:
    """Two convex outlines share a point unless a line along a side of one of them parts them."""
    east, north = [point[0] for point in ring], [point[1] for point in ring]
    if max(east) < box.west or min(east) > box.east or max(north) < box.south or min(north) > box.north:
        return False
    corners = [(x, y) for x in (box.west, box.east) for y in (box.south, box.north)]
    for (x, y), (to_x, to_y) in pairwise(ring):
        # The ring runs counter-clockwise: what lies right of a side lies outside.
        if all((to_x - x) * (corner_y - y) < (to_y - y) * (corner_x - x) for corner_x, corner_y in corners):
            return False
    return True


GLOBE = Bounds(-180.0, -90.0, 180.0, 90.0)
MOST_KEPT = 1 << 16
"""Hexagons whose boxes are kept, some 20 MB: those of one window are mostly those of the next one, too."""


def bounds_of(cells: Iterable[str]) -> Bounds | None:
    """The box around hexagons, or None without any. Where one of them crosses 180°, it goes around the globe."""
    boxes = [_box_of(cell) for cell in cells]
    return _union(boxes) if boxes else None


def extent_of(bounds: Iterable[Bounds | None], domain: Bounds | None) -> Bounds:
    """The box around the ``bounds`` of windows and the feed's ``domain``; the globe where neither is known.

    A domain that no window touches is left out: the releases are of another place than the one that is configured.
    """
    windows = [box for box in bounds if box is not None]
    if domain is not None and (not windows or any(_touch(box, domain) for box in windows)):
        windows.append(domain)
    return _union(windows) if windows else GLOBE


@lru_cache(maxsize=MOST_KEPT)
def _box_of(cell: str) -> Bounds:
    east, north = zip(*ring_of(cell), strict=True)
    if max(east) > GLOBE.east:
        return Bounds(GLOBE.west, min(north), GLOBE.east, max(north))
    return Bounds(min(east), min(north), max(east), max(north))


def _union(boxes: Sequence[Bounds]) -> Bounds:
    west, south, east, north = zip(*boxes, strict=True)
    return Bounds(min(west), min(south), max(east), max(north))


def _touch(a: Bounds, b: Bounds) -> bool:
    return a.west <= b.east and b.west <= a.east and a.south <= b.north and b.south <= a.north
