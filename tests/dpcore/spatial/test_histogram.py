"""Domains count half-open cells, queries are exact, histograms refuse what does not tile the grid."""

import base64
import math
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpcore.budget import BudgetSplit
from dpcore.errors import BudgetError, DPError, ParameterError
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    Auto,
    Domain,
    GridHistogram,
    KdTree,
    PartitionHistogram,
    Rectangles,
    SparseHierarchy,
    Uniform,
    UniformGrid,
    histogram_from_release,
)
from dpcore.spatial.domain import DomainError, block_sums, cuts
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.histogram import HistogramError, SparseReading, paint
from dpcore.spatial.partition import split_boxes, whole
from dpcore.spatial.queries import QueryError, answer, integral_image, overlap_norms
from dpcore.spatial.range_noise import independent_tails
from dpcore.spatial.regions import RegionError, Regions
from dpcore.spatial.release import rounded
from tests.dpcore.silence import Silence


def test_queries_inside_cells_equal_the_area_weighted_sum():
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 50, (7, 5))
    low, high = np.sort(rng.random((2, 40, 2)) * [7, 5], axis=0)
    queries = Rectangles(low[:, 0], high[:, 0], low[:, 1], high[:, 1])
    answers = answer(integral_image(counts), queries)
    for q in range(40):
        ox = np.clip(np.minimum(high[q, 0], np.arange(1, 8)) - np.maximum(low[q, 0], np.arange(7)), 0, None)
        oy = np.clip(np.minimum(high[q, 1], np.arange(1, 6)) - np.maximum(low[q, 1], np.arange(5)), 0, None)
        assert answers[q] == pytest.approx(ox @ counts @ oy)
        norms = overlap_norms(queries, np.arange(8), np.arange(6))
        assert norms.l1[q] == pytest.approx(ox.sum() * oy.sum())
        assert norms.l2_squared[q] == pytest.approx((ox**2).sum() * (oy**2).sum())
    whole = overlap_norms(Rectangles([0], [16], [0], [16]), np.arange(17), np.arange(17))
    assert whole.l1[0] / math.sqrt(whole.l2_squared[0]) == 16, "[E] bounds noise by the first, loose by √cells"


def test_a_query_outside_the_box_is_refused_and_an_empty_one_is_0():
    domain = Domain.unit_cells(3, 3)
    histogram = GridHistogram(domain, cuts(3, 3), cuts(3, 3), np.ones((3, 3)), 1.0)
    with pytest.raises(QueryError):
        histogram.answers(Rectangles([0], [4], [0], [1]))
    empty = Rectangles([1, 0.5], [1, 0.5], [0, 0], [3, 3])
    intervals = histogram.intervals(empty)
    assert histogram.answers(empty).tolist() == intervals.low.tolist() == intervals.high.tolist() == [0.0, 0.0]


def test_partition_and_grid_histograms_of_the_same_blocks_agree():
    rng = np.random.default_rng(2)
    domain, x, y = Domain.unit_cells(9, 7), cuts(9, 4), cuts(7, 3)
    counts = rng.normal(5, 3, (4, 3))
    grid = GridHistogram(domain, x, y, counts, 2.0)
    boxes = np.array([[x[i], x[i + 1], y[j], y[j + 1]] for i in range(4) for j in range(3)])
    parts = PartitionHistogram(domain, boxes, counts.ravel(), np.full(12, 2.0))
    low, high = np.sort(rng.random((2, 30, 2)) * [9, 7], axis=0)
    queries = Rectangles(low[:, 0], high[:, 0], low[:, 1], high[:, 1])
    assert np.allclose(grid.answers(queries), parts.answers(queries))
    ours, theirs = grid.intervals(queries), parts.intervals(queries)
    # The quantiles of a grid's noise are exact; those of a partition are bounds that follow from its variance.
    assert np.abs(ours.low - theirs.low).max() <= 1
    assert np.abs(ours.high - theirs.high).max() <= 1
    for histogram in (grid, parts):
        assert np.allclose(histogram_from_release(histogram.to_release()).answers(queries), histogram.answers(queries))


@pytest.mark.parametrize("boxes", [[[0, 2, 0, 1]], [[0, 2, 0, 2], [1, 2, 0, 1]], [[0, 3, 0, 2]], [[0, 0, 0, 2]], []])
def test_parts_that_do_not_tile_the_grid_are_refused(boxes):
    with pytest.raises(HistogramError):
        PartitionHistogram(Domain.unit_cells(2, 2), np.array(boxes), np.ones(len(boxes)), np.ones(len(boxes)))


def test_a_document_that_is_no_histogram_is_refused():
    euler = {"kind": "euler", "components": [[1]], "variance": 1}
    one, four = (Domain.unit_cells(n, n).to_release() for n in (1, 2))
    for document in (
        {},
        {"domain": {}, "structure": {}},
        {"domain": {"south": 0}},
        {"domain": {}, "structure": {"kind": "grid"}},
        {"domain": four, "structure": euler | {"grade": "noisy"}},
        {"domain": one, "structure": euler | {"grade": "?"}},
    ):
        for read in (histogram_from_release, EulerHistogram.from_release):
            with pytest.raises((HistogramError, DomainError)):
                read(document)


def fine(counts: np.ndarray) -> GridHistogram:
    domain = Domain.unit_cells(*counts.shape)
    edges = [np.arange(length + 1) for length in counts.shape]
    return GridHistogram(domain, edges[0], edges[1], counts.astype(np.float64), 2.0)


def test_a_grid_of_many_cells_is_packed_and_comes_back_and_what_is_none_is_refused_in_little_memory():
    counts = np.random.default_rng(4).integers(-40, 300, (257, 256))
    counts[0, :2] = -(2**31), 2**31 - 1
    document = fine(counts).to_release()
    back = histogram_from_release(document)
    assert np.array_equal(back.counts, counts)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 28))).decode()
    cut = document["structure"]["counts"]["planes"][:400]
    tracemalloc.start()
    for planes in (bomb, cut, "", "no base64!", base64.b64encode(b"not compressed").decode()):
        document["structure"]["counts"] = {"least": 0, "planes": planes}
        with pytest.raises(HistogramError):
            histogram_from_release(document)
    document["structure"]["x_edges"] = list(range(200_000))  # more blocks than cells
    with pytest.raises(HistogramError):
        histogram_from_release(document)
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


def test_blocks_are_joined_only_where_packed_counts_are_too_long_and_keep_sums_and_intervals():
    """Joined blocks at the last edge of an odd number have fewer draws than are claimed, so intervals must not shrink
    as draws are added."""
    rng = np.random.default_rng(5)
    quiet, loud = fine(rng.integers(0, 9, (701, 803))), fine(rng.integers(0, 2**20, (701, 803)))
    assert rounded(quiet).to_release() == quiet.to_release()
    joined = rounded(loud)
    assert joined.counts.shape == (351, 402)
    assert np.array_equal(joined.counts, block_sums(loud.counts, joined.x_edges, joined.y_edges))
    assert (joined.draws, joined.variances) == (4, 8.0)
    every = Rectangles(*np.array([[0.0], [701.0], [0.0], [803.0]]))
    ours, theirs = joined.intervals(every), loud.intervals(every)
    assert ours.low <= theirs.low <= theirs.high <= ours.high
    for variance in (0.01, 2.0, 200.0):
        tails = independent_tails(np.arange(1, 40), variance)
        assert all((np.diff(tail) >= -1e-9).all() for tail in (tails.alone, tails.up, tails.down))


def test_block_sums_keep_the_total_and_follow_the_cuts():
    counts = np.arange(35).reshape(7, 5)
    sums = block_sums(counts, cuts(7, 3), cuts(5, 2))
    assert sums.shape == (3, 2)
    assert sums.sum() == counts.sum()
    assert sums[0, 0] == counts[:2, :2].sum()


def test_every_cell_is_in_the_part_that_covers_it():
    """Random divisions of a random grid, cell by cell; parts that are moved, repeated or left out are refused."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        shape = int(rng.integers(2, 30)), int(rng.integers(2, 30))
        boxes = whole(Domain.unit_cells(*shape))
        for _ in range(4):
            boxes = np.concatenate([split_boxes(boxes[: len(boxes) // 2 + 1], 2)[0], boxes[len(boxes) // 2 + 1 :]])
        boxes = rng.permutation(boxes)
        owner = paint(shape, boxes)
        for part, (x0, x1, y0, y1) in enumerate(boxes):
            assert (owner[x0:x1, y0:y1] == part).all()
            assert np.count_nonzero(owner == part) == (x1 - x0) * (y1 - y0)
        twice = np.concatenate([boxes[:-1], boxes[:1]])
        for wrong in (boxes[1:], np.concatenate([boxes, boxes[:1]]), twice):
            with pytest.raises(HistogramError):
                paint(shape, wrong)


def test_points_are_counted_in_half_open_cells_with_those_outside_left_out():
    """Seven, then 100 000, some on edges and a fifth outside; one that is not finite among the last is refused."""
    few = np.array([[0, 0], [1, 0], [0.999, 1], [2, 0], [0, 2], [-0.1, 0], [np.nextafter(2, 0), 1.5]])
    counted = Domain(0, 0, 2, 2, 2, 2).count(few)
    assert (counted.counts.tolist(), counted.outside) == ([[1, 1], [1, 1]], 3)
    rng = np.random.default_rng(8)
    domain, points = Domain(0.0, 0.0, 1.0, 2.0, 7, 5), rng.integers(-3, 33, (100_000, 2)) / (28.0, 15.0)
    counted = domain.count(points)
    inside = points[(points >= 0).all(axis=1) & (points[:, 0] < 1) & (points[:, 1] < 2)]
    cells = np.floor(inside * (7, 2.5)).astype(int)
    assert counted.outside == len(points) - len(inside) > 10_000
    assert [int((cells == cell).all(axis=1).sum()) for cell in np.ndindex(7, 5)] == counted.counts.ravel().tolist()
    points[-1, 1] = np.nan
    with pytest.raises(DomainError, match=r"nan\] first"):
        domain.count(points)


BOX = Domain(30.0, -98.0, 31.0, -97.0, 8, 8)
EMPTY = np.zeros((8, 8), dtype=np.int64)
NOBODY = Regions.of_polygons([])


def fitted(points: Any, epsilon: int = 10**6, users: int = 1) -> Any:
    return SparseHierarchy().fit(np.asarray(points), BOX, epsilon, Noise(), users)


REFUSED: dict[str, tuple[Callable[[], Any], type[DPError], str]] = {
    "NaN among the points": (lambda: fitted([[30.5, math.nan]]), DomainError, "NaN or infinite.*first.*drop them"),
    "infinite points": (lambda: fitted([[math.inf, -97.5]]), DomainError, "NaN or infinite.*first.*drop them"),
    "points in three dimensions": (lambda: fitted([[1.0, 2.0, 3.0]]), DomainError, r"shape \(1, 3\).*\(N, 2\)"),
    "counts of another shape": (lambda: fitted(np.zeros((3, 3), np.int64)), DomainError, r"\(3, 3\).*\(8, 8\).*give"),
    "negative counts": (lambda: fitted(EMPTY - 1), DomainError, "-1.*0 or more"),
    "a box without height": (lambda: Domain(1, 0, 1, 1), DomainError, "no area.*south < north"),
    "a box upside down": (lambda: Domain(1, 0, 0, 1), DomainError, "no area.*south < north"),
    "a box turned over": (lambda: Domain(0, 500, 1, 0), DomainError, "no area.*west < east"),
    "a box without bounds": (lambda: Domain(0, 0, math.inf, 1), DomainError, "not finite.*give"),
    "a box of NaN": (lambda: Domain(math.nan, 0, 1, 1), DomainError, "not finite.*give"),
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
    "regions of NaN": (lambda: Euler(math.nan), ParameterError, "nan.*positive.*bound B"),
    "no region per user": (lambda: Euler(1.0, regions_per_user=0), ParameterError, "0.*at least 1"),
    "an unknown inference": (lambda: Euler(1.0, inference="least squares"), ParameterError, "least squares"),
    "no budget for regions": (lambda: Euler(1.0).fit(NOBODY, BOX, 0, Noise()), ParameterError, "0 µε"),
    "a query through cells of an Euler histogram": (
        lambda: Euler(0.1).fit(NOBODY, BOX, 10**6, Noise()).answers(Rectangles([0.5], [1], [0], [1])),
        QueryError,
        "whole cells",
    ),
    "a sparse reading below zero": (
        lambda: SparseReading(np.array([-1.0]), np.ones(1), 1.0),
        HistogramError,
        "0 or more",
    ),
}


def test_bad_input_is_refused_with_value_bound_and_remedy():
    for case in REFUSED:
        call, error, message = REFUSED[case]
        with pytest.raises(error, match=f"(?s){message}"):
            call()


def test_points_outside_the_box_contribute_nothing_and_are_only_counted():
    inside, outside = [[30.5, -97.5]], [[30.5, -97.5], [29.0, -97.5], [30.5, -97.0], [31.0, -98.0]]
    assert BOX.count(np.array(outside)).outside == 3
    whole = Rectangles([0], [8], [0], [8])
    for points in (inside, outside):
        assert Uniform().fit(np.array(points), BOX, 10**6, Silence()).answers(whole)[0] == 1


@pytest.mark.parametrize("points", [np.zeros((0, 2)), np.array([]), EMPTY])
def test_no_points_is_a_histogram_of_noise_like_any_other(points):
    whole = Rectangles([0], [8], [0], [8])
    assert fitted(points, 10**9).answers(whole)[0] == pytest.approx(0, abs=3)


@pytest.mark.parametrize("shape", [(1, 500), (500, 1), (3, 700)])
def test_an_elongated_domain_is_cut_along_the_axis_that_has_lines(shape):
    counts = np.zeros(shape, dtype=np.int64)
    counts.ravel()[: counts.size // 3] = 50
    domain, whole = Domain.unit_cells(*shape), Rectangles([0], [shape[0]], [0], [shape[1]])
    for mechanism in (HTF(), KdTree(), SparseHierarchy(), SparseHierarchy(goal="relative"), Auto(), UniformGrid()):
        histogram = mechanism.fit(counts, domain, 10**9, Noise())
        assert histogram.answers(whole)[0] == pytest.approx(counts.sum(), rel=0.01)
