"""A domain across the meridian of 180 degrees, where west is greater than east: events, histograms and ranges."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.spatial import Domain
from dpcore.spatial.domain import DomainError
from stream.config.section import BoundingBox
from stream.messages.range_query import RangeError, parse_box
from stream.serve.hexagons import within

FIJI = BoundingBox(south=-20, west=176, north=-15, east=-178)
POINTS = np.array([[-17.0, 177.0], [-17.0, -179.0], [-17.0, 0.0], [-17.0, -177.9], [-17.0, 175.9]])


def test_a_point_lies_in_the_box_on_both_sides_of_the_meridian_and_nowhere_else() -> None:
    assert [FIJI.contains(lat, lng) for lat, lng in POINTS] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("west", "east", "meets", "holds"),
    [(179, -179, True, True), (177, 179, True, True), (-180, -179, True, True), (170, 177, True, False), (-178.5, 10,
    True, False), (0, 10, False, False)],
)  # fmt: skip
def test_boxes_are_compared_around_the_globe(west: float, east: float, meets: bool, holds: bool) -> None:
    other = BoundingBox(south=-18, west=west, north=-16, east=east)
    assert (FIJI.meets(other), other.meets(FIJI), FIJI.holds(other)) == (meets, meets, holds)


def test_a_grid_of_six_columns_counts_eastwards_over_the_meridian() -> None:
    domain = Domain(FIJI.south, FIJI.west, FIJI.north, FIJI.east, 1, 6)
    counted = domain.count(POINTS)
    assert counted.counts.tolist() == [[0, 1, 0, 0, 0, 1]]
    assert counted.outside == 3
    assert domain.in_metres().east == pytest.approx(Domain(-20, 0, -15, 6).in_metres().east)
    assert Domain.from_release(domain.to_release()) == domain


def test_a_box_in_metres_is_not_turned_around() -> None:
    with pytest.raises(DomainError, match="no area"):
        Domain(0, 5_000, 10, 1_000)


def test_a_range_may_lie_across_the_meridian_and_one_without_width_is_none() -> None:
    assert parse_box("177,-18,-179,-16") == (177, -18, -179, -16)
    with pytest.raises(RangeError, match="is not a box"):
        parse_box("177,-18,177,-16")
    assert within((177, -18, -179, -16), -17, -179.5)
    assert not within((177, -18, -179, -16), -17, 0)
