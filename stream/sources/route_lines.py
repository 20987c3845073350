"""Lines of routes for a map: those parts of a schedule's lines that lie in a box, simplified until they fit a bound.
Pure.

Source: Douglas and Peucker (1973), the algorithm that keeps every point farther than a tolerance from the simplified
line.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.earth import EARTH_M
from stream.config.section import BoundingBox
from stream.sources.schedule import Point, Schedule

MOST_POINTS = 400_000
"""Points of all lines together; ``hexveil serve`` takes a few more."""
_TOLERANCE_M = 10.0
"""Tolerance in metres; doubled until the lines have at most the wanted number of points."""

_LONGEST_PART = 2_000
"""Points of a line that is simplified at once: a line on which each point is a corner takes time by their square."""


def route_lines(
    schedule: Schedule, domain: BoundingBox, most_points: int = MOST_POINTS
) -> dict[str, list[list[Point]]]:
    """By name of route its lines in ``domain``, each once, with at most ``most_points`` points (latitude, longitude) in
    all."""
    parts: dict[str, set[tuple[Point, ...]]] = {}
    for route, lines in schedule.lines.items():
        inside = {tuple(part) for line in lines for part in _inside(line, domain)}
        if inside:
            parts.setdefault(schedule.routes[route], set()).update(inside)
    whole = {route: [np.array(part) for part in sorted(lines)] for route, lines in parts.items()}
    # Straight lines have two points each: with more lines than that leaves room for, no tolerance is enough.
    tolerance = _TOLERANCE_M if 2 * sum(map(len, whole.values())) <= most_points else math.inf
    while True:
        simple = {route: [simplified(line, tolerance) for line in lines] for route, lines in whole.items()}
        count = sum(len(line) for lines in simple.values() for line in lines)
        if count <= most_points or tolerance > EARTH_M:
            break
        tolerance *= 2
    longest = [(-len(ends), number, ends) for number, ends in enumerate(simple.values())]
    heapq.heapify(longest)
    while count > most_points:  # every line is straight by now: the longest lists lose their ends
        _, number, ends = longest[0]
        count -= len(ends.pop())
        heapq.heapreplace(longest, (-len(ends), number, ends))
    return {route: [[(lat, lng) for lat, lng in line.tolist()] for line in lines] for route, lines in simple.items()}


def _inside(line: list[Point], domain: BoundingBox) -> Iterator[list[Point]]:
    """Longest runs of at least two points in ``domain``, without repetitions of a point and without jumps over the
    antimeridian.

    They are cut at :data:`_LONGEST_PART` points.
    """
    run: list[Point] = []
    for lat, lng in line:
        point = (round(lat, 6), round(lng, 6))
        inside = domain.contains(lat, lng)
        if run and (not inside or abs(point[1] - run[-1][1]) > 180):
            if len(run) > 1:
                yield run
            run = []
        if len(run) == _LONGEST_PART:
            yield run
            run = run[-1:]
        if inside and (not run or run[-1] != point):
            run.append(point)
    if len(run) > 1:
        yield run


def simplified(line: FloatArray, tolerance_m: float) -> FloatArray:
    """The points (n, 2; latitude, longitude) of which no dropped one is farther than ``tolerance_m`` from the line of
    the others."""
    scale = math.radians(1) * EARTH_M * np.array([1.0, math.cos(math.radians(float(line[:, 0].mean())))])
    metres = line * scale
    keep = np.zeros(len(line), dtype=bool)
    keep[[0, -1]] = True
    pending = [(0, len(line) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        away = _distance(metres[first + 1 : last], metres[first], metres[last])
        farthest = int(away.argmax())
        if away[farthest] > tolerance_m:
            middle = first + 1 + farthest
            keep[middle] = True
            pending += [(first, middle), (middle, last)]
    return line[keep]


def _distance(points: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
    """Distance of each point from the segment."""
    along = end - start
    square = float(along @ along)
    share = np.zeros(len(points)) if square == 0 else ((points - start) @ along / square).clip(0, 1)
    return np.asarray(np.linalg.norm(points - start - share[:, None] * along, axis=1))
