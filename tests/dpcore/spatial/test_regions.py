"""Footprints are exactly the components whose interior a region's interior meets; extraction is local and bounded.
Regions that users declare: whatever the polygons are, a user changes the counts by r·(2k+1)² at most."""

import math
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.declared import MAX_COORDINATE, MAX_DECLARED_CORNERS, declared_regions
from dpcore.spatial.domain import Domain
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.queries import Rectangles
from dpcore.spatial.regions import (
    MAX_CORNERS,
    MAX_DENSITY_FIXES,
    MAX_NEAREST,
    Footprints,
    RegionError,
    Regions,
    extract_regions,
)
from tests.audit.blackbox import epsilon_lower_bound
from tests.dpcore.spatial.polygons import Point, corners_strategy, euler_lower_bound, grid, hull, meets, turn


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
def test_footprints_are_the_components_whose_interior_meets_the_regions(groups):
    # Quarter cells put many corners and sides exactly on grid lines, where open and closed differ.
    regions = Regions.of_polygons([np.array(group, dtype=float) for group in groups])
    totals = Footprints.of(regions, grid(5, 5), 100.0).total()
    assert totals.tolist() == sum(oracle(group, 5, 5) for group in groups).tolist()


@given(corners_strategy, st.sampled_from([0.3, 0.8, 1.0, 1.5, 2.0, 3.0]))
def test_no_region_meets_more_components_than_the_sensitivity(corners, diameter):
    domain = grid(6, 5)
    regions = Regions.of_polygons([np.array(corners, dtype=float)])
    totals = Footprints.of(regions, domain, diameter).total()
    k = int(np.ceil(diameter))
    assert Footprints.sensitivity(domain, diameter) == (2 * k + 1) ** 2
    assert totals.sum() <= (2 * k + 1) ** 2


@pytest.mark.parametrize(
    ("diameter", "half", "centre"), [(0.01, 0.003, 5.0), (1.0, 0.3, 5.0), (2.0, 0.7, 5.5), (3.0, 1.05, 5.0)]
)
def test_the_sensitivity_is_attained(diameter, half, centre):
    square, k = [(centre + half * a, centre + half * b) for a in (-1, 1) for b in (-1, 1)], math.ceil(diameter)
    assert 2 * half * 2**0.5 < diameter
    elsewhere = [(x - 4.0, y - 4.0) for x, y in square]
    here, there = (
        Footprints.of(Regions.of_polygons([of]), grid(10, 10), diameter).total() for of in (square, elsewhere)
    )
    assert here.sum() == (2 * k + 1) ** 2 == Footprints.sensitivity(grid(10, 10), diameter)
    assert k == 1 or here.sum() < 4.5 * (k + 1) * k, "[B] prints a bound that is not attained"
    if k == 1:
        assert np.abs(here - there).sum() == 2 * here.sum(), (
            "[B], Definition 3: replacing moves twice what removing does"
        )


def test_counting_closed_touching_would_break_the_sensitivity():
    # A side of length B along a grid line: its closed set touches 5 × 3 components, its interior is empty: one face.
    flat = [(2.0, 3.0), (3.0, 3.0)]
    closed = 5 * 3
    assert closed > Footprints.sensitivity(grid(6, 6), 1.0) == 9
    assert Footprints.of(Regions.of_polygons([flat]), grid(6, 6), 1.0).total().sum() == 1


def test_cells_that_are_not_square_have_a_sensitivity_per_axis():
    domain = Domain(0.0, 0.0, 10.0, 30.0, 10, 10)  # cells of 1 × 3
    assert Footprints.reach(domain, 3.0) == (3, 1)
    assert Footprints.sensitivity(domain, 3.0) == 7 * 3


def test_what_lies_outside_the_box_is_cut_off():
    corners = [(-1.5, -1.5), (-1.5, 1.5), (1.5, -1.5), (1.5, 1.5)]
    far = [(1e12, -1e15), (1e12, 0.0), (-1e300, 5.0)]
    totals = Footprints.of(Regions.of_polygons([corners, far]), grid(6, 6), 5.0).total()
    assert totals[:3, :3].tolist() == [[1] * 3] * 3
    assert totals.sum() == 9


@settings(max_examples=60)
@given(st.lists(corners_strategy, min_size=1, max_size=5), st.floats(0.01, 50))
def test_shrinking_bounds_the_diameter_and_keeps_smaller_regions(groups, bound):
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


def test_a_far_fix_moves_a_region_that_is_shrunk_and_not_one_whose_far_fixes_are_discarded():
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


def test_all_users_at_once_are_as_each_user_by_the_definition():
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


@pytest.mark.parametrize("shape", ["disc", "ring", "line", "one place"])
def test_regions_of_5760_fixes_have_few_corners_and_reach_nearly_as_far_as_all_fixes(shape):
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


def test_regions_in_parts_meet_what_they_meet_together(monkeypatch):
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


def test_only_the_first_regions_of_a_user_count():
    square = np.array([(0.2, 0.2), (0.8, 0.2), (0.2, 0.8)])
    regions = Regions.of_polygons([square, square + 1, square + 2, square + 3], user=[1, 2, 1, 1])
    assert regions.at_most(2).user.tolist() == [1, 2, 1]
    assert regions.at_most(1).x.tolist() == regions.x[:6].tolist()
    assert regions.at_most(5) is regions


def test_bad_input_is_a_typed_error():
    one, length = (np.zeros(1, np.int64), np.zeros(1), np.zeros(1)), {"nearest": 3, "bandwidth": 1.0}
    for build in [
        lambda: Regions.of_polygons([[(0, 0)]], user=[1, 2]),
        lambda: Regions.of_polygons([[(0, 0)]]).shrunk(0.0),
        lambda: Footprints.sensitivity(grid(3, 3), float("inf")),
        lambda: extract_regions(*one, **length | {"nearest": 0}),
        lambda: extract_regions(*one, **length | {"nearest": 5761}),
        lambda: extract_regions(*one, **length | {"bandwidth": 0.0}),
        lambda: extract_regions(*one, **length, discard_beyond=np.nan),
        lambda: extract_regions(np.zeros(2, np.int64), *one[1:], **length),
        lambda: extract_regions(one[0], np.array([np.inf]), one[2], **length),
    ]:
        with pytest.raises(RegionError):
            build()


Polygon = list[tuple[float, float]]
TRIANGLE: Polygon = [(1.2, 1.3), (1.8, 1.1), (1.4, 1.9)]


def counts(polygons: list[Any], user: list[int], diameter: float, per_user: int) -> npt.NDArray[np.int64]:
    """Component counts of what was declared, on 4 × 4 cells of side 1."""
    regions = declared_regions(polygons, user, diameter=diameter, per_user=per_user).regions
    return Footprints.of(regions, grid(4, 4), diameter).total()


def test_every_choice_of_polygons_changes_the_counts_at_most_by_the_sensitivity_which_is_attained():
    """All polygons of at most three corners half a cell apart, all users of one of their distinct footprints, then of
    two or three of some of them."""
    lattice = [(0.75 + x / 2, 0.75 + y / 2) for x, y in product(range(5), repeat=2)]
    polygons = [list(corners) for n in (1, 2, 3) for corners in combinations(lattice, n)]
    distinct: dict[bytes, Polygon] = {}
    for polygon in polygons:
        distinct.setdefault(counts([polygon], [0], 1.0, 1).tobytes(), polygon)
    square = [(1.7, 1.7), (2.3, 1.7), (2.3, 2.3), (1.7, 2.3)]
    shapes = [*distinct.values(), square]
    assert len(shapes) > 30
    others = counts([TRIANGLE], [7], 1.0, 2)
    for per_user, declared in ((1, 1), (1, 2), (2, 2), (2, 3)):
        bound = Euler(1.0, regions_per_user=per_user).sensitivity(grid(4, 4))
        chosen = shapes if declared == 1 else [square, *shapes[:: len(shapes) // 8]]
        # In which order they stand matters only if not all of them count.
        all_users = (
            product(chosen, repeat=declared) if declared > per_user else combinations_with_replacement(chosen, declared)
        )
        worst = 0
        for mine in all_users:
            after = counts([TRIANGLE, *mine], [7] + [1] * declared, 1.0, per_user)
            worst = max(worst, int(np.abs(after - others).sum()))
        assert worst == bound == 9 * per_user


def test_the_audit_finds_no_more_than_epsilon_in_two_regions_of_a_user():
    # n = 80 000 users, about 250 and 34 hits: the bound is 1.1 ± 0.2 at ε = 2, and above 2 with α < 2·10⁻⁴.
    assert 0.3 < euler_lower_bound(Euler(1.0, regions_per_user=2), 2.0, 2, copies=2) <= 2.0


def test_the_audit_finds_no_more_than_its_share_in_the_number_of_three_regions():
    """Half of ε = 2 pays for the total: n = 1 000 fits each, above 1 with α = 10⁻⁴."""
    euler = Euler(1.0, total_share=0.5, regions_per_user=3)
    sides = (declared_regions([TRIANGLE] * n, [1] * n, diameter=1.0, per_user=3).regions for n in (3, 0))
    totals = [[euler.fit(of, grid(2, 2), 2 * MICRO, Noise()).total.value for _ in range(1000)] for of in sides]
    bound = epsilon_lower_bound(*totals)
    assert 0.5 < bound.epsilon <= 1.0, bound


def test_a_declared_polygon_counts_wherever_its_hull_is():
    notched = [(0.5, 0.5), (3.5, 0.5), (3.5, 3.5), (2.0, 0.6), (0.5, 3.5)]
    answers = EulerHistogram(grid(4, 4), counts([notched], [3], 9.0, 1), 0.0, "noisy").answers
    assert answers(Rectangles.of_cells([[0, 3, 0, 3], [1, 2, 2, 2], [0, 0, 0, 0]])).tolist() == [1, 1, 1]
    turned = counts([notched[::-1]], [3], 9.0, 1)
    assert turned.tolist() == counts([notched], [3], 9.0, 1).tolist(), "the direction of a polygon does not matter"


def test_a_polygon_of_many_corners_keeps_the_outermost_and_a_wide_one_is_shrunk():
    angle = np.linspace(0, 2 * np.pi, 1000, endpoint=False)
    star = np.column_stack([np.cos(angle), np.sin(angle)]) * np.where(np.arange(1000) % 2, 0.5, 1.0)[:, None]
    regions = declared_regions([star * 100, TRIANGLE], [5, 4], diameter=30.0).regions
    assert regions.user.tolist() == [5, 4]
    assert regions.start.tolist() == [0, MAX_CORNERS, MAX_CORNERS + 3]
    assert 29.9 < regions.diameters()[0] <= 30.0
    assert np.column_stack([regions.x, regions.y])[MAX_CORNERS:].tolist() == [list(corner) for corner in TRIANGLE]


HOSTILE: dict[str, tuple[Any, str]] = {
    "text": ("POLYGON((0 0))", "no pairs of real numbers; give x and y"),
    "corners of different length": ([(0, 1), (2,)], "no pairs of real numbers; give x and y"),
    "no number": ([(0, 1), (None, "a")], "no pairs of real numbers; give x and y"),
    "a number too large for a float": ([(0, 10**400)], "no pairs of real numbers; give x and y"),
    "nothing": (None, "no pairs of real numbers; give x and y"),
    "one number": (7, r"shape \(\).*give x and y"),
    "numbers as text": ([("1", "2")], "no pairs of real numbers; give x and y"),
    "complex numbers": (np.array([[1 + 2j, 3]]), "no pairs of real numbers; give x and y"),
    "no corner": (np.zeros((0, 2)), "0 corners; give 1 to 4096"),
    "three dimensions": ([(0, 1, 2)], r"shape \(1, 3\).*\(corners, 2\)"),
    "too many corners": (np.zeros((MAX_DECLARED_CORNERS + 1, 2)), "4097 corners; give 1 to 4096"),
    "NaN": ([(0.0, np.nan)], "a coordinate of nan; give finite"),
    "infinity": ([(0.0, -np.inf)], "a coordinate of inf; give finite"),
    "far away": ([(0.0, 1.1 * MAX_COORDINATE)], r"a coordinate of 1.1e\+09; give finite ones of at most 1e\+09"),
}


def test_hostile_polygons_are_refused_by_themselves_with_value_bound_and_remedy():
    polygons = [*(polygon for polygon, _ in HOSTILE.values()), TRIANGLE]
    declared = declared_regions(polygons, [1] * len(polygons), diameter=9.0)
    assert list(declared.refused) == list(range(len(HOSTILE)))
    for sentence, (_, expected) in zip(declared.refused.values(), HOSTILE.values(), strict=True):
        with pytest.raises(RegionError, match=expected):
            raise RegionError(sentence)
    assert declared.regions.x.tolist() == [x for x, _ in TRIANGLE], "the same user's next polygon counts"


def test_what_others_declare_changes_no_region_of_a_user():
    rng = np.random.default_rng(2)
    mine = [rng.normal(0, scale, (n, 2)) for scale, n in ((1, 5), (40, 200), (0, 3))]
    theirs = [rng.normal(9, 3, (n, 2)) for n in (70, 1, 4000)] + [np.full((2, 2), np.nan)]
    alone = declared_regions(mine, [1, 1, 1], diameter=2.0, per_user=2).regions
    mixed = declared_regions(
        [theirs[0], mine[0], *theirs[1:3], mine[1], theirs[3], mine[2]], [2, 1, 3, 2, 1, 1, 1], diameter=2.0, per_user=2
    ).regions
    corners = np.repeat(mixed.user == 1, np.diff(mixed.start))
    assert (mixed.x[corners].tolist(), mixed.y[corners].tolist()) == (alone.x.tolist(), alone.y.tolist())


def test_the_largest_coordinates_still_meet_only_what_they_may():
    far = [(MAX_COORDINATE, -MAX_COORDINATE), (-MAX_COORDINATE, MAX_COORDINATE), (0.0, MAX_COORDINATE)]
    assert counts([far], [1], 1.0, 1).sum() <= 9


@pytest.mark.parametrize(
    ("polygons", "user", "diameter", "per_user", "expected"),
    [
        ([TRIANGLE], [1, 2], 1.0, 1, r"1 polygons and users of shape \(2,\); give one integer per polygon"),
        ([TRIANGLE], [0.5], 1.0, 1, "give one integer per polygon"),
        ([TRIANGLE], [1], 1.0, 0, "0 regions per user; give at least 1"),
        ([TRIANGLE], [1], 0.0, 1, "diameter 0.0 is not a positive length"),
        ([], [], float("nan"), 1, "diameter nan is not a positive length"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(polygons, user, diameter, per_user, expected):
    with pytest.raises(RegionError, match=expected):
        declared_regions(polygons, user, diameter=diameter, per_user=per_user)


def test_nothing_declared_is_no_region():
    assert len(declared_regions([], [], diameter=1.0).regions) == len(Regions.of_polygons([])) == 0
