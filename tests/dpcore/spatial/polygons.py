"""Convex polygons in exact arithmetic, the independent definition of which components of a grid a region meets. A
black-box audit of Euler histograms at the users who change them most: their regions all cover one vertex of the grid.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.declared import declared_regions
from dpcore.spatial.domain import Domain
from dpcore.spatial.euler import Euler
from tests.audit.blackbox import log_ratio

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


def meets(polygon: list[Point], low: Point, high: Point) -> bool:
    """Whether the polygon's interior meets the open box."""
    if any(max(p[a] for p in polygon) <= low[a] or min(p[a] for p in polygon) >= high[a] for a in (0, 1)):
        return False
    inside = clipped(polygon, low, high)
    return sum(turn(inside[0], a, b) for a, b in pairwise(inside[1:])) > 0


coordinate = st.integers(-2, 22).map(lambda quarter: Fraction(quarter, 4))
corners_strategy = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=7)
USERS_PER_SIDE = 200
AUDIT_ALPHA = 2e-4


def euler_lower_bound(euler: Euler, epsilon: float, fits: int, *, copies: int = 1) -> float:
    """Lower bound of ε at confidence 1 − AUDIT_ALPHA from ``fits`` times 40 000 trials of a user present or absent.

    Each user declares ``copies`` times a diamond around a vertex of their own. Disjoint 2 × 2 blocks with a margin are
    independent trials: the noise is. The event "all nine components of the vertex are at least the copies" has the
    largest likelihood ratio there is, e^ε exactly where the whole sensitivity is used.
    """
    domain = grid(3 * USERS_PER_SIDE, 3 * USERS_PER_SIDE)
    corner = np.arange(USERS_PER_SIDE) * 3 + 1.0
    x, y = (c.ravel() for c in np.meshgrid(corner, corner, indexing="ij"))
    diamonds = np.stack([x, y], axis=1)[:, None, :] + np.array([(-0.3, 0), (0.3, 0), (0, -0.3), (0, 0.3)])
    user = np.repeat(np.arange(len(diamonds)), copies)
    present = declared_regions(list(diamonds[user]), user, diameter=1.0, per_user=euler.regions_per_user).regions
    hits = []
    for regions in (present, declared_regions([], [], diameter=1.0).regions):
        drawn = [euler.fit(regions, domain, round(epsilon * MICRO), Noise()).components for _ in range(fits)]
        blocks = [[h[a::6, b::6][:USERS_PER_SIDE, :USERS_PER_SIDE] for a in range(3) for b in range(3)] for h in drawn]
        hits.append(sum(int((np.stack(nine) >= copies).all(axis=0).sum()) for nine in blocks))
    trials = fits * USERS_PER_SIDE**2
    return float(log_ratio(np.array(hits[:1]), trials, np.array(hits[1:]), trials, AUDIT_ALPHA)[0])
