"""In which box the features of a collection lie. Pure functions.

Source: OGC 17-069r4, "OGC API - Features - Part 1: Core", requirement /req/core/fc-md-extent: the extent includes every
geometry of the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from stream.messages.shapes import ring_of
from stream.serve.ogc.selection import Bounds

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
    boxes = [*windows, domain] if domain is not None and _touch(windows, domain) else windows
    return _union(boxes) if boxes else GLOBE


@lru_cache(maxsize=MOST_KEPT)
def _box_of(cell: str) -> Bounds:
    east, north = zip(*ring_of(cell), strict=True)
    if max(east) > GLOBE.east:
        return Bounds(GLOBE.west, min(north), GLOBE.east, max(north))
    return Bounds(min(east), min(north), max(east), max(north))


def _union(boxes: Sequence[Bounds]) -> Bounds:
    west, south, east, north = zip(*boxes, strict=True)
    return Bounds(min(west), min(south), max(east), max(north))


def _touch(windows: list[Bounds], domain: Bounds) -> bool:
    """Whether a window touches the domain, or there is none."""
    return not windows or any(
        box.west <= domain.east and domain.west <= box.east and box.south <= domain.north and domain.south <= box.north
        for box in windows
    )
