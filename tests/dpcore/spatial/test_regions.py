"""Footprints are exactly the components whose interior a region's interior meets; extraction is local and bounded."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.spatial.domain import Domain
from dpcore.spatial.regions import (
    MAX_CORNERS,
    MAX_DENSITY_FIXES,
    MAX_NEAREST,
    Footprints,
    RegionError,
    Regions,
    extract_regions,
)
from tests.dpcore.spatial.polygons import Point, corners_strategy, grid, hull, meets, turn


def oracle(corners: list[Point], rows: int, columns: int) -> npt.NDArray[np.int64]:
    """Components whose open set meets the interior of the hull, one by one: two sides of every edge, all four of a
    vertex.

    An open convex set meets an open edge iff it has area on both sides within the two faces *and* crosses it: tested by
    a thin box around it; likewise for a vertex.
    """
    polygon = hull(corners)
    thin = Fraction(1, 10**12)
    components = np.zeros((2 * rows - 1, 2 * columns - 1), dtype=np.int64)
    if len(polygon) < 3:
        middle = [sum(p[axis] for p in corners) / len(corners) for axis in (0, 1)]
        x, y = int(middle[0] // 1), int(middle[1] // 1)
        if 0 <= x < rows and 0 <= y < columns:
            components[2 * x, 2 * y] = 1
        return components
    for i in range(2 * rows - 1):
        for j in range(2 * columns - 1):
            x, y = Fraction(i // 2 + i % 2), Fraction(j // 2 + j % 2)
            if i % 2 == 0 and j % 2 == 0:
                components[i, j] = meets(polygon, (x, y), (x + 1, y + 1))
            elif i % 2 and j % 2:
                components[i, j] = all(
                    turn(a, b, (x, y)) > 0 for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True)
                )
            elif i % 2:
                components[i, j] = all(meets(polygon, (x - thin * (1 - s), y), (x + thin * s, y + 1)) for s in (0, 1))
            else:
                components[i, j] = all(meets(polygon, (x, y - thin * (1 - s)), (x + 1, y + thin * s)) for s in (0, 1))
    return components


@settings(max_examples=80)
@given(st.lists(corners_strategy, min_size=1, max_size=4))
def test_footprints_are_the_components_whose_interior_meets_the_regions(groups: list[list[Point]]) -> None:
    # Quarter cells put many corners and sides exactly on grid lines, where open and closed differ.
    regions = Regions.of_polygons([np.array(group, dtype=float) for group in groups])
    totals = Footprints.of(regions, grid(5, 5), 100.0).total()
    assert totals.tolist() == sum(oracle(group, 5, 5) for group in groups).tolist()


@settings(max_examples=150)
@given(corners_strategy, st.sampled_from([0.3, 0.8, 1.0, 1.5, 2.0, 3.0]))
def test_no_region_meets_more_components_than_the_sensitivity(corners: list[Point], diameter: float) -> None:
    domain = grid(6, 5)
    regions = Regions.of_polygons([np.array(corners, dtype=float)])
    totals = Footprints.of(regions, domain, diameter).total()
    k = int(np.ceil(diameter))
    assert Footprints.sensitivity(domain, diameter) == (2 * k + 1) ** 2
    assert totals.sum() <= (2 * k + 1) ** 2


@pytest.mark.parametrize(("k", "half", "centre"), [(1, 0.3, 5.0), (2, 0.7, 5.5), (3, 1.05, 5.0)])
def test_the_sensitivity_is_attained(k: int, half: float, centre: float) -> None:
    square = [(centre + half * a, centre + half * b) for a in (-1, 1) for b in (-1, 1)]
    assert 2 * half * 2**0.5 < k
    totals = Footprints.of(Regions.of_polygons([square]), grid(10, 10), float(k)).total()
    assert totals.sum() == (2 * k + 1) ** 2 == Footprints.sensitivity(grid(10, 10), float(k))


def test_counting_closed_touching_would_break_the_sensitivity() -> None:
    # A side of length B along a grid line: its closed set touches 5 × 3 components, its interior is empty: one face.
    flat = [(2.0, 3.0), (3.0, 3.0)]
    closed = 5 * 3
    assert closed > Footprints.sensitivity(grid(6, 6), 1.0) == 9
    assert Footprints.of(Regions.of_polygons([flat]), grid(6, 6), 1.0).total().sum() == 1


def test_cells_that_are_not_square_have_a_sensitivity_per_axis() -> None:
    domain = Domain(0.0, 0.0, 10.0, 30.0, 10, 10)  # cells of 1 × 3
    assert Footprints.reach(domain, 3.0) == (3, 1)
    assert Footprints.sensitivity(domain, 3.0) == 7 * 3


@pytest.mark.parametrize("corners", [[(2.5, 3.5)], [(2.0, 3.0)], [(2.2, 3.2), (2.8, 3.8)], [(2.5, 3.5)] * 5])
def test_a_point_and_a_flat_hull_are_one_face(corners: list[tuple[float, float]]) -> None:
    totals = Footprints.of(Regions.of_polygons([corners]), grid(6, 6), 1.0).total()
    assert totals[4, 6] == totals.sum() == 1


def test_what_lies_outside_the_box_is_cut_off() -> None:
    corners = [(-1.5, -1.5), (-1.5, 1.5), (1.5, -1.5), (1.5, 1.5)]
    far = [(1e12, -1e15), (1e12, 0.0), (-1e300, 5.0)]
    totals = Footprints.of(Regions.of_polygons([corners, far]), grid(6, 6), 5.0).total()
    assert totals[:3, :3].tolist() == [[1] * 3] * 3
    assert totals.sum() == 9


@settings(max_examples=60)
@given(st.lists(corners_strategy, min_size=1, max_size=5), st.floats(0.01, 50))
def test_shrinking_bounds_the_diameter_and_keeps_smaller_regions(groups: list[list[Point]], bound: float) -> None:
    regions = Regions.of_polygons([np.array(group, dtype=float) for group in groups])
    shrunk = regions.shrunk(bound)
    exact = [
        max([float(np.hypot(float(a[0] - b[0]), float(a[1] - b[1]))) for a, b in combinations(g, 2)], default=0.0)
        for g in groups
    ]
    assert regions.diameters() == pytest.approx(exact)
    assert (shrunk.diameters() <= bound).all()
    for index in np.flatnonzero(np.array(exact) < bound * 0.999):
        part = slice(regions.start[index], regions.start[index + 1])
        assert (shrunk.x[part] == regions.x[part]).all()


def test_extraction_takes_the_nearest_fixes_to_the_densest_place_of_each_user() -> None:
    rng = np.random.default_rng(5)
    home, work = rng.normal([10, 10], 0.1, (30, 2)), rng.normal([50, 50], 5, (40, 2))
    other = rng.normal([80, 20], 0.1, (8, 2))
    points = np.concatenate([work, home, other])
    user = np.array([7] * 70 + [3] * 8)
    shuffled = rng.permutation(78)
    regions = extract_regions(user[shuffled], *points[shuffled].T, nearest=12, bandwidth=0.5)
    assert regions.user.tolist() == [3, 7]
    assert np.diff(regions.start).tolist() == [8, 12]
    assert np.hypot(regions.x[8:] - 10, regions.y[8:] - 10).max() < 1
    alone = extract_regions(user[user == 7], *points[user == 7].T, nearest=12, bandwidth=0.5)
    assert sorted(alone.x) == sorted(regions.x[8:]), "nobody else's fixes matter"


def test_a_far_fix_moves_a_region_that_is_shrunk_and_not_one_whose_far_fixes_are_discarded() -> None:
    """[B] discards fixes outside the diameter B = 1; we shrink by default. Another user's fixes matter to neither."""
    near = 2.5 + 0.4 * np.array([(0, 0), (0.01, 0), (0, 0.01), (1, 0), (0, 1), (-0.7, -0.7)])
    points, user = np.vstack([near, [(2.5, 3.4)], near + 1]), np.repeat([1, 2], [7, 6])

    def region(fixes: slice, discard_beyond: float) -> tuple[Regions, list[list[int]]]:
        regions = extract_regions(
            user[fixes], *points[fixes].T, nearest=MAX_NEAREST, bandwidth=0.1, discard_beyond=discard_beyond
        )
        mine = Regions(regions.start[:2], *(c[: regions.start[1]] for c in (regions.x, regions.y)), regions.user[:1])
        return mine, Footprints.of(mine, grid(5, 5), 1.0).total().tolist()

    without_it, with_it = slice(6), slice(7)
    assert region(with_it, 1.0)[1] == region(without_it, 1.0)[1] == region(slice(13), 1.0)[1]
    assert region(with_it, 1.0)[0].diameters()[0] <= 1.0 < region(with_it, np.inf)[0].diameters()[0]
    assert region(with_it, np.inf)[1] != region(without_it, np.inf)[1]


def test_all_users_at_once_are_as_each_user_by_the_definition() -> None:
    """300 users of 1 to 700 fixes, many of them at equal places: mode of the density of the evenly spaced, then the
    nearest."""
    rng = np.random.default_rng(6)
    fixes = np.minimum(rng.geometric(0.03, 300), 700)
    fixes[:3] = 1, MAX_DENSITY_FIXES + 1, 700
    points = rng.normal(10, 2, (fixes.sum(), 2)).round(1)
    user = np.repeat(rng.permutation(300), fixes)
    regions = extract_regions(user, *points.T, nearest=9, bandwidth=0.7)
    for index, one in enumerate(np.unique(user).tolist()):
        own = points[user == one]
        sample = own[:: -(-len(own) // MAX_DENSITY_FIXES)]
        squared = ((sample[:, None] - sample[None]) ** 2).sum(axis=2)
        mode = sample[np.argmax(np.exp(-squared / (2 * 0.7**2)).sum(axis=1))]
        expected = own[np.argsort(((own - mode) ** 2).sum(axis=1), kind="stable")[:9]]
        part = slice(regions.start[index], regions.start[index + 1])
        assert regions.user[index] == one
        assert np.array_equal(np.column_stack([regions.x[part], regions.y[part]]), expected)


def test_a_user_with_very_many_fixes_is_sampled() -> None:
    x = np.random.default_rng(0).normal(3.0, 0.2, 50_000)
    regions = extract_regions(np.zeros(50_000, np.int64), x, x, nearest=MAX_CORNERS, bandwidth=0.1)
    assert len(regions.x) == MAX_CORNERS


@pytest.mark.parametrize("shape", ["disc", "ring", "line", "one place"])
def test_regions_of_5760_fixes_have_few_corners_and_reach_nearly_as_far_as_all_fixes(shape: str) -> None:
    """Five users apart from each other, one of them with few fixes; reach in 1 000 directions, against all fixes."""
    rng, sizes = np.random.default_rng(4), [MAX_NEAREST, 40, MAX_NEAREST, 65, 2000]
    user = np.repeat(np.arange(5), sizes)
    angle = rng.uniform(0, 2 * np.pi, len(user))
    radius = {"disc": np.sqrt(rng.uniform(0, 1, len(user))), "ring": np.ones(len(user))}.get(shape, angle)
    points = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    if shape in ("line", "one place"):
        points = np.outer(angle * (shape == "line"), [1.0, 0.7])
    points += 50 * user[:, None]
    mixed = rng.permutation(len(user))
    regions = extract_regions(user[mixed], *points[mixed].T, nearest=MAX_NEAREST, bandwidth=0.3)
    directions = rng.normal(size=(1000, 2))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for one in range(5):
        part, all_of_them = slice(regions.start[one], regions.start[one + 1]), points[user == one]
        corners = np.column_stack([regions.x[part], regions.y[part]])
        assert 1 <= len(corners) <= min(sizes[one], MAX_CORNERS)
        short = (all_of_them @ directions.T).max(axis=0) - (corners @ directions.T).max(axis=0)
        diameter = np.ptp(all_of_them @ directions.T, axis=0).max()
        assert short.min() >= -1e-9
        assert short.max() <= np.tan(np.pi / 64) / 2 * diameter + 1e-9
        if sizes[one] <= MAX_CORNERS:
            assert len(corners) == sizes[one]


def test_regions_in_parts_meet_what_they_meet_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    polygons = [rng.uniform(0, 6, 2) + rng.normal(0, 0.6, (int(n), 2)) for n in rng.integers(1, 40, 200)]
    regions, domain = Regions.of_polygons(polygons), Domain(0.0, 0.0, 6.0, 6.0, 6, 6)
    together, widest = Footprints.of(regions, domain, 1.0), regions.diameters()
    assert len(list(regions.parts())) == 1
    monkeypatch.setattr("dpcore.spatial.regions.PAIRS_AT_ONCE", 3_000)
    assert len(list(regions.parts())) > 10
    apart = Footprints.of(regions, domain, 1.0)
    for name in ("region", "row", "low", "high"):
        assert getattr(apart, name).tolist() == getattr(together, name).tolist()
    assert regions.diameters().tolist() == widest.tolist()


def test_only_the_first_regions_of_a_user_count() -> None:
    square = np.array([(0.2, 0.2), (0.8, 0.2), (0.2, 0.8)])
    regions = Regions.of_polygons([square, square + 1, square + 2, square + 3], user=[1, 2, 1, 1])
    assert regions.at_most(2).user.tolist() == [1, 2, 1]
    assert regions.at_most(1).x.tolist() == regions.x[:6].tolist()
    assert regions.at_most(5) is regions


def test_no_region_is_no_footprint() -> None:
    assert Footprints.of(Regions.of_polygons([]), grid(3, 3), 1.0).total().sum() == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: Regions.of_polygons([[]]),
        lambda: Regions.of_polygons([[(np.nan, 1.0)]]),
        lambda: Regions.of_polygons([np.zeros((MAX_CORNERS + 1, 2))]),
        lambda: Regions.of_polygons([[(0, 0)]], user=[1, 2]),
        lambda: Regions.of_polygons([[(0, 0)]]).shrunk(0.0),
        lambda: Footprints.sensitivity(grid(3, 3), float("inf")),
        lambda: extract_regions(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), nearest=0, bandwidth=1.0),
        lambda: extract_regions(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), nearest=5761, bandwidth=1.0),
        lambda: extract_regions(np.zeros(1, np.int64), np.zeros(1), np.zeros(1), nearest=3, bandwidth=0.0),
        lambda: extract_regions(
            np.zeros(1, np.int64), np.zeros(1), np.zeros(1), nearest=3, bandwidth=1.0, discard_beyond=np.nan
        ),
        lambda: extract_regions(np.zeros(2, np.int64), np.zeros(1), np.zeros(1), nearest=3, bandwidth=1.0),
        lambda: extract_regions(np.zeros(1, np.int64), np.array([np.inf]), np.zeros(1), nearest=3, bandwidth=1.0),
    ],
)
def test_bad_input_is_a_typed_error(build: object) -> None:
    with pytest.raises(RegionError):
        build()  # type: ignore[operator]
