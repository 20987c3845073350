"""Regions that users declare: whatever the polygons are, a user changes the counts by r·(2k+1)² at most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpcore.spatial.declared import MAX_COORDINATE, MAX_DECLARED_CORNERS, declared_regions
from dpcore.spatial.domain import Domain
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.queries import Rectangles
from dpcore.spatial.regions import MAX_CORNERS, Footprints, RegionError, Regions
from tests.dpcore.spatial.polygons import grid
from tests.dpcore.spatial.vertex_audit import epsilon_lower_bound

Polygon = list[tuple[float, float]]

TRIANGLE: Polygon = [(1.2, 1.3), (1.8, 1.1), (1.4, 1.9)]


def counts(polygons: list[Any], user: list[int], diameter: float, per_user: int) -> npt.NDArray[np.int64]:
    """Component counts of what was declared, on 4 × 4 cells of side 1."""
    regions = declared_regions(polygons, user, diameter=diameter, per_user=per_user).regions
    return Footprints.of(regions, grid(4, 4), diameter).total()


def test_every_choice_of_polygons_changes_the_counts_at_most_by_the_sensitivity_which_is_attained() -> None:
    """All polygons of at most three corners half a cell apart, then all users of up to three of their distinct
    footprints."""
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
        chosen = shapes if declared < 3 else [square, *shapes[:: len(shapes) // 8]]
        # In which order they stand matters only if not all of them count.
        all_users = (
            product(chosen, repeat=declared) if declared > per_user else combinations_with_replacement(chosen, declared)
        )
        worst = 0
        for mine in all_users:
            after = counts([TRIANGLE, *mine], [7] + [1] * declared, 1.0, per_user)
            worst = max(worst, int(np.abs(after - others).sum()))
        assert worst == bound == 9 * per_user


@dataclass(frozen=True)
class OneRegionPaid(Euler):
    """The planted bug: the sensitivity of one region, whatever a user may declare."""

    def sensitivity(self, domain: Domain) -> int:
        return Footprints.sensitivity(domain, self.diameter)


def test_the_audit_finds_no_more_than_epsilon_in_two_regions_of_a_user() -> None:
    # n = 80 000 users, about 250 and 34 hits: the bound is 1.1 ± 0.2 at ε = 2, and above 2 with α < 2·10⁻⁴.
    assert 0.3 < epsilon_lower_bound(Euler(1.0, regions_per_user=2), 2.0, 2, copies=2) <= 2.0


def test_the_audit_catches_a_sensitivity_of_one_region_where_users_have_three() -> None:
    # n = 40 000 users; the true loss is 4.5 at ε = 1.5. Some 160 hits, and 2, of which 8 would be too many: power >
    # 0.99.
    assert epsilon_lower_bound(OneRegionPaid(1.0, regions_per_user=3), 1.5, 1, copies=3) > 1.5


def test_a_declared_polygon_counts_wherever_its_hull_is() -> None:
    notched = [(0.5, 0.5), (3.5, 0.5), (3.5, 3.5), (2.0, 0.6), (0.5, 3.5)]
    answers = EulerHistogram(grid(4, 4), counts([notched], [3], 9.0, 1), 0.0, "noisy").answers
    assert answers(Rectangles.of_cells([[0, 3, 0, 3], [1, 2, 2, 2], [0, 0, 0, 0]])).tolist() == [1, 1, 1]
    turned = counts([notched[::-1]], [3], 9.0, 1)
    assert turned.tolist() == counts([notched], [3], 9.0, 1).tolist(), "the direction of a polygon does not matter"


def test_a_polygon_of_many_corners_keeps_the_outermost_and_a_wide_one_is_shrunk() -> None:
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


def test_hostile_polygons_are_refused_by_themselves_with_value_bound_and_remedy() -> None:
    polygons = [*(polygon for polygon, _ in HOSTILE.values()), TRIANGLE]
    declared = declared_regions(polygons, [1] * len(polygons), diameter=9.0)
    assert list(declared.refused) == list(range(len(HOSTILE)))
    for sentence, (_, expected) in zip(declared.refused.values(), HOSTILE.values(), strict=True):
        with pytest.raises(RegionError, match=expected):
            raise RegionError(sentence)
    assert declared.regions.x.tolist() == [x for x, _ in TRIANGLE], "the same user's next polygon counts"


def test_what_others_declare_changes_no_region_of_a_user() -> None:
    rng = np.random.default_rng(2)
    mine = [rng.normal(0, scale, (n, 2)) for scale, n in ((1, 5), (40, 200), (0, 3))]
    theirs = [rng.normal(9, 3, (n, 2)) for n in (70, 1, 4000)] + [np.full((2, 2), np.nan)]
    alone = declared_regions(mine, [1, 1, 1], diameter=2.0, per_user=2).regions
    mixed = declared_regions(
        [theirs[0], mine[0], *theirs[1:3], mine[1], theirs[3], mine[2]], [2, 1, 3, 2, 1, 1, 1], diameter=2.0, per_user=2
    ).regions
    corners = np.repeat(mixed.user == 1, np.diff(mixed.start))
    assert (mixed.x[corners].tolist(), mixed.y[corners].tolist()) == (alone.x.tolist(), alone.y.tolist())


def test_the_largest_coordinates_still_meet_only_what_they_may() -> None:
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
def test_parameters_that_do_not_fit_are_refused(
    polygons: list[Polygon], user: list[float], diameter: float, per_user: int, expected: str
) -> None:
    with pytest.raises(RegionError, match=expected):
        declared_regions(polygons, user, diameter=diameter, per_user=per_user)


def test_nothing_declared_is_no_region() -> None:
    assert len(declared_regions([], [], diameter=1.0).regions) == len(Regions.of_polygons([])) == 0
