"""Bad input to spatial histograms is a typed error with value, bound and remedy, or a documented result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpcore.budget import BudgetSplit
from dpcore.errors import BudgetError, DPError, ParameterError
from dpcore.noise import Noise
from dpcore.spatial import HTF, Auto, Domain, KdTree, Rectangles, SparseHierarchy, Uniform, UniformGrid
from dpcore.spatial.domain import DomainError
from dpcore.spatial.euler import Euler
from dpcore.spatial.histogram import HistogramError, SparseReading
from dpcore.spatial.queries import QueryError
from dpcore.spatial.regions import Footprints, RegionError, Regions
from tests.dpcore.silence import Silence

BOX = Domain(30.0, -98.0, 31.0, -97.0, 8, 8)
EMPTY = np.zeros((8, 8), dtype=np.int64)


def fitted(points: Any, epsilon: int = 10**6, users: int = 1) -> Any:
    return SparseHierarchy().fit(np.asarray(points), BOX, epsilon, Noise(), users)


REFUSED: dict[str, tuple[Callable[[], Any], type[DPError], str]] = {
    "NaN among the points": (lambda: fitted([[30.5, math.nan]]), DomainError, "NaN or infinite.*first.*drop them"),
    "infinite points": (lambda: fitted([[math.inf, -97.5]]), DomainError, "NaN or infinite.*first.*drop them"),
    "points in three dimensions": (lambda: fitted([[1.0, 2.0, 3.0]]), DomainError, r"shape \(1, 3\).*\(N, 2\)"),
    "counts of another shape": (lambda: fitted(np.zeros((3, 3), np.int64)), DomainError, r"\(3, 3\).*\(8, 8\).*give"),
    "negative counts": (lambda: fitted(EMPTY - 1), DomainError, "-1.*0 or more"),
    "a box without height": (lambda: Domain(1, 0, 1, 1), DomainError, "no area.*south < north"),
    "a box turned over": (lambda: Domain(0, 500, 1, 0), DomainError, "no area.*west < east"),
    "a box without bounds": (lambda: Domain(0, 0, math.inf, 1), DomainError, "not finite.*give"),
    "no rows": (lambda: Domain(0, 0, 1, 1, 0, 4), DomainError, "0 × 4.*at least 1 × 1"),
    "less than no columns": (lambda: Domain(0, 0, 1, 1, 4, -1), DomainError, "4 × -1.*at least 1 × 1"),
    "a grid beyond memory": (lambda: Domain(0, 0, 1, 1, 2**14, 2**14), DomainError, "exceeds 67108864.*coarser"),
    "shares that do not add up": (lambda: BudgetSplit(4, (1, 2)), BudgetError, "add up to 3, not 4.*correct"),
    "a share of nothing": (lambda: BudgetSplit(3, (0, 3)), BudgetError, "at least 1 µε.*larger epsilon"),
    "a share that is no number": (lambda: BudgetSplit.by_weights(9, [1, math.nan]), BudgetError, "nan.*finite"),
    "a budget too small to share": (lambda: UniformGrid().fit(EMPTY, BOX, 10, Noise()), BudgetError, "at least 1 µε"),
    "no budget": (lambda: fitted(EMPTY, 0), BudgetError, "0 µε.*at least 1"),
    "no points per user": (lambda: fitted(EMPTY, users=0), ParameterError, "0 points per user.*at least 1"),
    "shares above the whole": (lambda: HTF(height_share=0.6, split_share=0.4), ParameterError, "nothing for counts"),
    "a tree too high": (lambda: KdTree(max_height=27), ParameterError, r"27.*1\.\.26"),
    "an unknown goal": (lambda: Auto("median"), ParameterError, "'median'.*absolute or relative"),
    # type: ignore[arg-type]
    "a query outside": (
        lambda: fitted(EMPTY).answers(Rectangles([0], [9], [0], [1])),
        QueryError,
        "outside.*8 × 8.*cut it",
    ),
    "a query outside in degrees": (
        lambda: Rectangles.of_boxes(BOX, [[29.9, -98, 30.5, -97.5]]),
        QueryError,
        "outside.*cut it",
    ),
    "an inverted query": (lambda: Rectangles([2], [1], [0], [1]), QueryError, "inverted.*x0 <= x1"),
    "a query without an end": (lambda: Rectangles([0], [math.nan], [0], [1]), QueryError, "NaN.*finite"),
    "queries of unequal columns": (lambda: Rectangles([0, 1], [1], [0], [1]), QueryError, "differ in length.*one"),
    "a region without corners": (lambda: Regions.of_polygons([np.zeros((0, 2))]), RegionError, "1 to 64 corners"),
    "a region with too many corners": (lambda: Regions.of_polygons([np.zeros((65, 2))]), RegionError, "hull"),
    "a region with a NaN corner": (lambda: Regions.of_polygons([[(0.0, math.nan)]]), RegionError, "NaN.*reject"),
    "regions of no size": (lambda: Euler(0.0), ParameterError, "0.0.*positive.*bound B"),
    "a query through cells of an Euler histogram": (
        lambda: Euler(0.1).fit(Regions.of_polygons([]), BOX, 10**6, Noise()).answers(Rectangles([0.5], [1], [0], [1])),
        QueryError,
        "whole cells",
    ),
    "a sparse reading below zero": (
        lambda: SparseReading(np.array([-1.0]), np.ones(1), 1.0),
        HistogramError,
        "0 or more",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_value_bound_and_remedy(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=f"(?s){message}"):
        call()


def test_points_outside_the_box_contribute_nothing_and_are_only_counted() -> None:
    inside, outside = [[30.5, -97.5]], [[30.5, -97.5], [29.0, -97.5], [30.5, -97.0], [31.0, -98.0]]
    assert BOX.count(np.array(outside)).outside == 3
    whole = Rectangles([0], [8], [0], [8])
    for points in (inside, outside):
        assert Uniform().fit(np.array(points), BOX, 10**6, Silence()).answers(whole)[0] == 1


@pytest.mark.parametrize("points", [np.zeros((0, 2)), np.array([]), EMPTY])
def test_no_points_is_a_histogram_of_noise_like_any_other(points: Any) -> None:
    whole = Rectangles([0], [8], [0], [8])
    assert fitted(points, 10**9).answers(whole)[0] == pytest.approx(0, abs=3)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 0, 2, 1]])
def test_a_region_is_the_hull_of_its_corners_whatever_their_order(order: list[int]) -> None:
    """A self-crossing outline is the hull of its corners."""
    corners = np.array([(1.2, 1.2), (1.2, 2.8), (2.8, 2.8), (2.8, 1.2)])
    footprint = Footprints.of(Regions.of_polygons([corners[order]]), Domain.unit_cells(5, 5), 3.0).total()
    assert footprint[2:6, 2:6].sum() == 9
    assert footprint.sum() == 9


def test_a_region_that_is_not_convex_is_its_hull() -> None:
    arrow, hull = [(0.2, 0.2), (1.5, 1.4), (0.2, 2.8), (2.8, 1.5)], [(0.2, 0.2), (0.2, 2.8), (2.8, 1.5)]
    of = [Footprints.of(Regions.of_polygons([p]), Domain.unit_cells(4, 4), 3.0).total() for p in (arrow, hull)]
    assert np.array_equal(*of)


def test_a_diameter_below_a_cell_still_meets_the_nine_components_of_a_vertex() -> None:
    domain = Domain.unit_cells(4, 4)
    assert Footprints.sensitivity(domain, 0.01) == 9
    tiny = [(2.0 + dx, 2.0 + dy) for dx, dy in ((-1e-3, 0), (1e-3, 0), (0, -1e-3), (0, 1e-3))]
    assert Footprints.of(Regions.of_polygons([tiny]), domain, 0.01).total().sum() == 9


@pytest.mark.parametrize("shape", [(1, 500), (500, 1), (3, 700)])
def test_an_elongated_domain_is_cut_along_the_axis_that_has_lines(shape: tuple[int, int]) -> None:
    counts = np.zeros(shape, dtype=np.int64)
    counts.ravel()[: counts.size // 3] = 50
    domain, whole = Domain.unit_cells(*shape), Rectangles([0], [shape[0]], [0], [shape[1]])
    for mechanism in (HTF(), KdTree(), SparseHierarchy(), SparseHierarchy(goal="relative"), Auto(), UniformGrid()):
        histogram = mechanism.fit(counts, domain, 10**9, Noise())
        assert histogram.answers(whole)[0] == pytest.approx(counts.sum(), rel=0.01)
    cells = Domain(0.0, 0.0, 1.0, 100.0, 10, 10)
    assert Footprints.sensitivity(cells, 1.0) == (2 * 10 + 1) * (2 * 1 + 1)
