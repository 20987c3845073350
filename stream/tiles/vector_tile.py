"""Lines, polygons and points as vector tiles: projected, clipped to each tile and encoded. Pure.

Source: "Vector Tile Specification" 2.1 (Mapbox); clipping by Liang and Barsky (1984) and by Sutherland and Hodgman
(1974).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

EXTENT = 4096
"""Units along the side of a tile."""
MARGIN = 64
"""Units around a tile that still belong to it, so that broad lines are whole at its edge."""
NORTHERNMOST = 85.0511
"""Degrees of latitude at which the map ends, here and in the south."""

Point = tuple[float, float]
_Pixel = tuple[int, int]
_LOW, _HIGH = float(-MARGIN), float(EXTENT + MARGIN)
_GEOMETRY = {"point": 1, "line": 2, "polygon": 3}
_MOVE, _DRAW, _CLOSE = 1, 2, 7
_VERSION = 2


@dataclass(frozen=True)
class Feature:
    """Something on the map: its ``corners`` (latitude, longitude), those of a polygon once, and tags, drawn from
    ``min_zoom`` on."""

    kind: Literal["point", "line", "polygon"]
    corners: Sequence[Point]
    tags: Mapping[str, str] = field(default_factory=dict)
    min_zoom: int = 0

    @cached_property
    def world(self) -> list[Point]:
        """The corners on the square map of the world with side 1, x eastward and y southward."""
        return [_projected(lat, lng) for lat, lng in self.corners]

    @cached_property
    def bounds(self) -> tuple[float, float, float, float]:
        """The smallest box around the corners on that map: its least x and y, its greatest x and y."""
        xs, ys = zip(*self.world, strict=True)
        return min(xs), min(ys), max(xs), max(ys)


def _projected(lat: float, lng: float) -> Point:
    lat = min(max(lat, -NORTHERNMOST), NORTHERNMOST)
    return lng / 360 + 0.5, 0.5 - math.asinh(math.tan(math.radians(lat))) / (2 * math.pi)


def tile_of(layers: Mapping[str, Iterable[Feature]], zoom: int, x: int, y: int) -> bytes:
    """The tile at column ``x`` and row ``y``; empty if nothing lies in it."""
    return b"".join(_layer(name, features, zoom, x, y) for name, features in layers.items())


def _layer(name: str, features: Iterable[Feature], zoom: int, x: int, y: int) -> bytes:
    keys: dict[str, int] = {}
    values: dict[str, int] = {}
    shown = (feature for feature in features if feature.min_zoom <= zoom and _meets(feature, zoom, x, y))
    encoded = b"".join(_encoded(feature, _commands(feature, zoom, x, y), keys, values) for feature in shown)
    if not encoded:
        return b""
    names = b"".join(_field(3, key.encode()) for key in keys)
    texts = b"".join(_field(4, _field(1, value.encode())) for value in values)
    extent, version = varint(5 << 3) + varint(EXTENT), varint(15 << 3) + varint(_VERSION)
    return _field(3, version + _field(1, name.encode()) + encoded + names + texts + extent)


def _encoded(feature: Feature, shape: list[int], keys: dict[str, int], values: dict[str, int]) -> bytes:
    """The feature with its tags, of which those that are new join ``keys`` and ``values``; empty without a shape."""
    if not shape:
        return b""
    pairs = [(keys.setdefault(k, len(keys)), values.setdefault(v, len(values))) for k, v in feature.tags.items()]
    tags = _field(2, _packed(number for pair in pairs for number in pair))
    return _field(2, tags + varint(3 << 3) + varint(_GEOMETRY[feature.kind]) + _field(4, _packed(shape)))


def _meets(feature: Feature, zoom: int, x: int, y: int) -> bool:
    west, north, east, south = (bound * (1 << zoom) for bound in feature.bounds)
    margin = MARGIN / EXTENT
    return west <= x + 1 + margin and east >= x - margin and north <= y + 1 + margin and south >= y - margin


def _commands(feature: Feature, zoom: int, x: int, y: int) -> list[int]:
    """The part of the feature that lies in the tile, as commands to a pen; empty if none does."""
    points = [((px * (1 << zoom) - x) * EXTENT, (py * (1 << zoom) - y) * EXTENT) for px, py in feature.world]
    if feature.kind == "polygon":
        ring = _distinct(_clipped_ring(points))
        while len(ring) > 1 and ring[0] == ring[-1]:
            ring.pop()
        area = _area(ring)
        return _stroke(ring if area > 0 else ring[::-1], (0, 0), closed=True) if area else []
    if feature.kind == "point":
        dots = _distinct(point for point in points if _is_inside(point))
        return [_MOVE | len(dots) << 3, *_steps(dots, (0, 0))] if dots else []
    commands: list[int] = []
    at = (0, 0)
    for run in map(_distinct, _clipped_line(points)):
        if len(run) > 1:
            commands += _stroke(run, at)
            at = run[-1]
    return commands


def _stroke(points: Sequence[_Pixel], at: _Pixel, closed: bool = False) -> list[int]:
    """Commands that draw through two ``points`` or more with a pen that stands ``at`` a place."""
    steps = _steps(points, at)
    commands = [_MOVE | 1 << 3, *steps[:2], _DRAW | (len(points) - 1) << 3, *steps[2:]]
    return [*commands, _CLOSE | 1 << 3] if closed else commands


def _steps(points: Sequence[_Pixel], at: _Pixel) -> list[int]:
    """Moves from ``at`` to each of the points in turn, as parameters of commands."""
    return [_zigzag(b[axis] - a[axis]) for a, b in pairwise([at, *points]) for axis in (0, 1)]


def _distinct(points: Iterable[Point]) -> list[_Pixel]:
    """The points in whole units, none twice in a row."""
    whole: list[_Pixel] = []
    for x, y in points:
        pixel = (round(x), round(y))
        if not whole or whole[-1] != pixel:
            whole.append(pixel)
    return whole


def _is_inside(point: Point) -> bool:
    return all(_LOW <= part <= _HIGH for part in point)


def _area(ring: Sequence[_Pixel]) -> int:
    """Twice the area by the surveyor's formula, with y southward: positive where a ring runs as outer rings do."""
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise([*ring, *ring[:1]]))


def _clipped_line(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The runs of a line that lie in the tile."""
    run: list[Point] = []
    for start, end in pairwise(points):
        part = _clipped_segment(start, end)
        if part is None or (run and run[-1] != part[0]):
            if run:
                yield run
            run = []
        if part is not None:
            run = [*run, part[1]] if run else list(part)
    if run:
        yield run


def _clipped_segment(start: Point, end: Point) -> tuple[Point, Point] | None:
    first, last = 0.0, 1.0
    for a, b in zip(start, end, strict=True):
        for slope, distance in ((a - b, a - _LOW), (b - a, _HIGH - a)):
            if slope == 0:
                if distance < 0:
                    return None
            elif slope < 0:
                first = max(first, distance / slope)
            else:
                last = min(last, distance / slope)
    if first > last:
        return None
    return (start if first == 0 else _between(start, end, first)), (end if last == 1 else _between(start, end, last))


def _clipped_ring(points: Sequence[Point]) -> list[Point]:
    """The part of a polygon that lies in the tile. Where that is several pieces, they hang together along the tile's
    margin."""
    ring = list(points)
    for axis, bound, sign in ((0, _LOW, 1), (0, _HIGH, -1), (1, _LOW, 1), (1, _HIGH, -1)):
        corners, ring = ring, []
        for start, end in zip([*corners[-1:], *corners[:-1]], corners, strict=True):
            before, after = (start[axis] - bound) * sign, (end[axis] - bound) * sign
            if (before < 0) != (after < 0):
                ring.append(_between(start, end, before / (before - after)))
            if after >= 0:
                ring.append(end)
    return ring


def _between(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _packed(numbers: Iterable[int]) -> bytes:
    return b"".join(map(varint, numbers))


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def varint(number: int) -> bytes:
    """A whole number from 0, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
