"""Convex polygons in exact arithmetic, the independent definition of which components of a grid a region meets."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from dpcore.spatial.domain import Domain

Point = tuple[Fraction, Fraction]


def grid(rows: int, columns: int) -> Domain:
    return Domain(0.0, 0.0, float(rows), float(columns), rows, columns)


def hull(points: list[Point]) -> list[Point]:
    """Monotone chain in exact arithmetic, counter-clockwise, no three corners on a line."""
    points = sorted(set(points))

    def half(sequence: list[Point]) -> list[Point]:
        chain: list[Point] = []
        for p in sequence:
            while len(chain) >= 2 and turn(chain[-2], chain[-1], p) <= 0:
                chain.pop()
            chain.append(p)
        return chain[:-1]

    return half(points) + half(points[::-1]) if len(points) > 2 else points


def turn(a: Point, b: Point, c: Point) -> Fraction:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def clipped(polygon: list[Point], low: Point, high: Point) -> list[Point]:
    """The convex polygon cut to a closed box, in exact arithmetic."""
    for axis, bound, sign in ((0, low[0], 1), (0, high[0], -1), (1, low[1], 1), (1, high[1], -1)):
        result: list[Point] = []
        for index, b in enumerate(polygon):
            a = polygon[index - 1]
            inside_a, inside_b = sign * (a[axis] - bound) >= 0, sign * (b[axis] - bound) >= 0
            if inside_a != inside_b:
                share = (bound - a[axis]) / (b[axis] - a[axis])
                result.append((a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])))
            if inside_b:
                result.append(b)
        polygon = result
    return polygon


def area(polygon: list[Point]) -> Fraction:
    return sum((turn(polygon[0], a, b) for a, b in pairwise(polygon[1:])), Fraction(0))


def meets(polygon: list[Point], low: Point, high: Point) -> bool:
    """Whether the polygon's interior meets the open box."""
    if any(max(p[a] for p in polygon) <= low[a] or min(p[a] for p in polygon) >= high[a] for a in (0, 1)):
        return False
    return area(clipped(polygon, low, high)) > 0


coordinate = st.integers(-2, 22).map(lambda quarter: Fraction(quarter, 4))


corners_strategy = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=7)
