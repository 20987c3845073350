"""Euler histograms: exact answers, the corrected sensitivity and constraints, the privacy claimed. Counts nearest to
the draws in the largest deviation, or only in order, and counts only truncated."""

import itertools
import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.euler import Euler, EulerHistogram, Total
from dpcore.spatial.euler_inference import (
    Inference,
    Program,
    infer,
    is_consistent,
    is_covert,
    nearest_in_max_norm,
    whole_of,
)
from dpcore.spatial.histogram import HistogramError
from dpcore.spatial.queries import QueryError, Rectangles
from dpcore.spatial.regions import Footprints, Regions
from tests.dpcore.silence import Asked
from tests.dpcore.spatial.mechanisms import assert_alike
from tests.dpcore.spatial.polygons import corners_strategy, grid, hull, meets
from tests.support.tapes import recorded


def histogram(components: npt.NDArray[np.int64]) -> EulerHistogram:
    rows, columns = ((size + 1) // 2 for size in components.shape)
    return EulerHistogram(grid(rows, columns), components, 1.0, "noisy")


def every_rectangle(rows: int, columns: int) -> Rectangles:
    """All rectangles of at least one cell."""
    sides = [[(a, b) for a in range(n) for b in range(a + 1, n + 1)] for n in (rows, columns)]
    return Rectangles(*np.array([(*x, *y) for x, y in itertools.product(*sides)], dtype=float).T)


def honours_p4(components: npt.NDArray[np.int64]) -> bool:
    """Every rectangle's answer is ≥ 0 and no smaller than that of any rectangle inside it, one by one."""
    h = histogram(components)
    boxes = every_rectangle(h.domain.rows, h.domain.columns)
    answers = h.answers(boxes)
    columns = (boxes.x0, boxes.x1, boxes.y0, boxes.y1)
    x0, x1, y0, y1 = (c[:, None] for c in columns)
    inside = (x0 >= boxes.x0) & (x1 <= boxes.x1) & (y0 >= boxes.y0) & (y1 <= boxes.y1)
    return bool((answers >= 0).all() and (answers[:, None] <= answers[None, :])[inside].all())


def noisy_array(seed: int, n: int = 5, scale: float = 3.0) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, n, (30, 1, 2))
    regions = Regions.of_polygons(list(centres + rng.normal(0, 0.4, (30, 6, 2))))
    true = Footprints.of(regions, grid(n, n), 2.0).total()
    return (true + np.rint(rng.laplace(0, scale, true.shape))).astype(np.int64)


@settings(max_examples=60)
@given(st.lists(corners_strategy, min_size=1, max_size=5))
def test_a_block_of_cells_is_answered_with_the_regions_that_meet_it(groups):
    polygons = [hull(group) for group in groups]
    convex = [polygon for polygon in polygons if len(polygon) > 2]
    regions = Regions.of_polygons([np.array(polygon, dtype=float) for polygon in convex])
    components = Footprints.of(regions, grid(4, 4), 100.0).total()
    boxes = every_rectangle(4, 4)
    expected = [
        sum(meets(polygon, (x0, y0), (x1, y1)) for polygon in convex)
        for x0, x1, y0, y1 in zip(
            *(c.astype(int).tolist() for c in (boxes.x0, boxes.x1, boxes.y0, boxes.y1)), strict=True
        )
    ]
    assert histogram(components).answers(boxes).tolist() == expected
    assert is_covert(components), "true data satisfies every constraint"


def test_the_noise_has_the_scale_of_the_sensitivity():
    # n = 4 · 199² draws of scale 9/2: the mean absolute value has relative standard error 0.25 %, the standard
    # deviation 0.28 %. The bounds are eight and fourteen of them, α < 10⁻¹⁴; a sensitivity of 8 or 10 is 11 % off,
    # power > 0.999.
    domain = grid(100, 100)
    fits = [Euler(1.0).fit(Regions.of_polygons([]), domain, 2 * MICRO, Noise()) for _ in range(4)]
    drawn = np.concatenate([released.components.ravel() for released in fits])
    assert np.abs(drawn).mean() == pytest.approx(mean_absolute(9 / 2), rel=0.02)
    assert np.abs(drawn).mean() != pytest.approx(mean_absolute(8 / 2), rel=0.02), "the planted sensitivity is caught"
    assert drawn.std() == pytest.approx(math.sqrt(fits[0].variance), rel=0.04)
    assert abs(drawn.mean()) < 0.1, "nothing is truncated before inference"
    assert np.maximum(drawn, 0).mean() == pytest.approx(mean_absolute(9 / 2) / 2, rel=0.04), "as [B] truncates"


def mean_absolute(scale: float) -> float:
    """Of the discrete Laplace distribution."""
    return 2 * math.exp(-1 / scale) / (1 - math.exp(-2 / scale))


def test_consistent_counts_may_answer_minus_three_and_covertness_forbids_it():
    components = np.ones((5, 5), dtype=np.int64)
    components[1::2, 1::2] = 0
    assert histogram(components).answers(Rectangles.of_cells([0, 2, 0, 2])).tolist() == [-3.0]
    assert is_consistent(components)
    assert not is_covert(components)
    repaired = infer(components)
    assert repaired.grade == "covert"
    assert honours_p4(repaired.components)


@given(st.lists(st.integers(0, 3), min_size=15, max_size=15))
def test_the_covertness_check_is_p4_for_consistent_counts(values):
    components = np.array(values, dtype=np.int64).reshape(3, 5)
    components[::2, ::2] += 3
    components[1::2, ::2] += 1
    components[::2, 1::2] += 1
    if is_consistent(components):
        assert is_covert(components) == honours_p4(components)


@pytest.mark.parametrize("seed", range(12))
def test_inferred_counts_are_integral_and_covert_and_answer_every_rectangle_monotonely(seed):
    noisy = noisy_array(seed)
    result = infer(noisy)
    assert result.grade == "covert"
    assert honours_p4(result.components)
    assert result.distance == np.abs(result.components - noisy).sum()


def test_inference_is_the_nearest_covert_array():
    options = np.array(list(itertools.product(range(4), repeat=5)), dtype=np.int64)
    rng = np.random.default_rng(11)
    for _ in range(10):
        noisy = rng.integers(-1, 4, (1, 5))
        valid = [row for row in options if is_covert(row.reshape(1, 5))]
        best = min(int(np.abs(row - noisy[0]).sum()) for row in valid)
        assert infer(noisy.astype(np.int64)).distance == best
    square = np.array(list(itertools.product(range(3), repeat=9)), dtype=np.int64).reshape(-1, 3, 3)
    f, e, v = square[:, ::2, ::2].reshape(-1, 4), square, square[:, 1, 1]
    edges = np.stack([e[:, 0, 1], e[:, 1, 0], e[:, 1, 2], e[:, 2, 1]], axis=1)
    ends = np.array([[0, 1], [0, 2], [1, 3], [2, 3]])
    plausible = (edges <= f[:, ends].min(axis=2)).all(axis=1) & (v <= edges.min(axis=1))
    covert = np.array([array for array in square[plausible] if is_covert(array)])
    for _ in range(10):
        noisy = rng.integers(-1, 3, (3, 3))
        best = int(np.abs(covert - noisy).sum(axis=(1, 2)).min())
        assert infer(noisy.astype(np.int64)).distance == best


def test_halves_are_rounded_to_a_covert_array_at_the_same_distance(monkeypatch):
    # The average of two optimal arrays is optimal, and fractional wherever they differ.
    noisy = np.zeros((1, 5), dtype=np.int64)
    noisy[0, ::2] = 2, 1, 2
    noisy[0, 1::2] = 1, 2
    expected = infer(noisy)
    monkeypatch.setattr(Program, "relaxed", lambda self: np.array([2, 1, 1.5, 1.5, 2]))
    result = infer(noisy)
    assert result.grade == "covert"
    assert result.distance == expected.distance == 1


def test_without_a_covert_rounding_the_result_is_consistent_and_says_so(monkeypatch):
    noisy = noisy_array(3, n=4)
    relaxed = Program.relaxed
    monkeypatch.setattr(Program, "relaxed", lambda self: None if self.aux else relaxed(self))
    result = infer(noisy)
    assert result.grade == "consistent"
    assert is_consistent(result.components)
    monkeypatch.setattr(Program, "relaxed", lambda self: None)
    assert infer(noisy).grade == "noisy"


def test_the_covertness_constraints_alone_are_not_integral():
    # Integers are a whole number away from integers; this relaxation's best is not, so no integral vertex attains it.
    noisy = np.array(
        [
            [-35, 6, 8, 13, 14, 4, -5],
            [1, -9, 6, -15, 11, 18, 20],
            [2, 0, 2, 4, 7, 11, 14],
            [13, -1, 8, 13, -2, -1, -12],
            [3, 3, 8, -5, 4, 7, 5],
            [4, -4, 12, -8, 2, 6, 12],
            [-1, -1, -16, 8, 4, 10, -14],
        ]
    )
    relaxed = Program(noisy, covert=True).relaxed()
    assert np.abs(relaxed - noisy.ravel()).sum() == pytest.approx(261.5)
    assert (infer(noisy).grade, infer(noisy).distance) == ("covert", 262)


def test_large_noisy_grids_are_inferred_covertly_whether_or_not_the_relaxation_is_integral():
    for seed in range(6):
        assert infer(noisy_array(seed, n=24, scale=20.0)).grade == "covert"


def test_the_inference_that_is_asked_for_is_what_is_released_and_none_is_the_unbiased_draw():
    """The same tape: what was drawn is released as it is by default, and beside the counts after any inference."""
    domain, regions = grid(6, 6), Regions.of_polygons([[(2.5, 2.5)], [(4.5, 1.5)]])
    released = {
        inference: Euler(1.0, inference=inference).fit(regions, domain, MICRO, recorded(5))
        for inference in get_args(Inference)
    }
    drawn = Euler(1.0).fit(regions, domain, MICRO, recorded(5))
    assert (drawn.grade, drawn.drawn) == ("noisy", None)
    assert (released["none"].components == drawn.components).all()
    for inference, holds in (("consistent", is_consistent), ("covert", is_covert)):
        assert released[inference].grade == inference
        assert holds(released[inference].components)
        assert (released[inference].drawn == drawn.components).all()
    assert not is_covert(released["consistent"].components), "covertness is more than consistency"


def test_a_paid_total_changes_by_the_regions_of_a_user_whatever_they_are():
    """The alternating sum over the whole grid of 200 random pairs of neighbours, up to three regions a user."""
    rng, domain = np.random.default_rng(8), grid(7, 5)
    for _ in range(200):
        polygons = list(rng.uniform(-1, 8, (int(rng.integers(1, 6)), 1, 2)) + rng.uniform(-1.4, 1.4, (1, 6, 2)))
        own = int(rng.integers(1, min(3, len(polygons)) + 1))
        whole, without = (
            whole_of(Footprints.of(Regions.of_polygons(of), domain, 3.0).total()) for of in (polygons, polygons[own:])
        )
        assert 0 <= whole - without <= own


def test_components_and_total_have_the_noise_of_their_shares_which_add_up_to_epsilon():
    euler, noise = Euler(1.0, total_share=0.1, regions_per_user=2), Asked()
    assert euler.fit(Regions.of_polygons([]), grid(4, 4), MICRO, noise).total is not None
    assert list(map(float, noise.rates)) == pytest.approx([0.9 / 18] * 49 + [0.1 / 2])
    for budget, share in ((1, 0.05), (2, 0.5)):
        euler = Euler(1.0, total_share=share)
        if budget == 1:
            with pytest.raises(ParameterError, match="give at least 2"):
                euler.fit(Regions.of_polygons([]), grid(2, 2), budget, Noise())
        else:
            euler.fit(Regions.of_polygons([]), grid(2, 2), budget, Noise())


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_answers_without_inference_are_unbiased_and_their_intervals_hold_with_and_without_a_paid_total(share):
    """n = 120 draws of 3 081 answers, correlated: mean errors within 5 standard errors, coverage at least 93 %.

    Intervals that ignore the correction by a total are wider at the whole by 1/√(1 − share·all) > 10.
    """
    domain, boxes = grid(12, 12), every_rectangle(12, 12)
    regions = Regions.of_polygons([[(2.5, 2.5)], [(4.5, 1.5), (5.5, 1.5)]])
    true = histogram(Footprints.of(regions, domain, 1.0).total()).answers(boxes)
    euler, errors, covered = Euler(1.0, total_share=share), [], []
    for _ in range(120):
        run = euler.fit(regions, domain, MICRO, Noise())
        intervals = run.intervals(boxes)
        errors.append(run.answers(boxes) - true)
        covered.append(intervals.hold(true).mean())
    whole = int(np.argmax(true * 0 + (boxes.x1 - boxes.x0) * (boxes.y1 - boxes.y0)))
    deviation = np.std(errors, axis=0)
    assert (np.abs(np.mean(errors, axis=0)) < 5.5 * deviation / math.sqrt(120)).all()
    assert np.mean(covered) > 0.93
    if share:
        plain = replace(run, total=None).intervals(boxes)
        assert (plain.high[whole] - plain.low[whole]) > 5 * (intervals.high[whole] - intervals.low[whole])
        assert deviation[whole] == pytest.approx(math.sqrt(2) / share, rel=0.35)


@pytest.mark.parametrize("inference", ["consistent", "covert"])
def test_a_share_for_the_total_changes_nothing_that_is_inferred_and_no_inferred_count_stands_beside_a_total(inference):
    """24 × 24 cells and 200 regions: with the total as a constraint no whole numbers are found, or they contradict
    it."""
    rng = np.random.default_rng(1)
    regions = Regions.of_polygons([middle + rng.normal(size=(5, 2)) * 0.2 for middle in rng.random((200, 2)) * 24])
    paid, free = (
        Euler(1.0, inference=inference, total_share=share).fit(regions, grid(24, 24), MICRO, recorded(2))
        for share in (0.05, 0.0)
    )
    assert paid.grade == inference
    assert paid.total is None
    assert (paid.components == free.components).all()
    assert paid.variance == free.variance
    for grade in ("consistent", "covert"):
        with pytest.raises(HistogramError, match="a total beside counts"):
            replace(paid, grade=grade, total=Total(199, 800.0))


def test_an_empty_rectangle_is_zero_and_one_through_cells_is_refused():
    h = histogram(np.ones((5, 5), dtype=np.int64))
    nothing = Rectangles([1.0], [1.0], [0.0], [3.0])
    interval = h.intervals(nothing)
    assert h.answers(nothing).tolist() == interval.low.tolist() == interval.high.tolist() == [0.0]
    for bad in ((0.5, 2, 0, 1), (0, 4, 0, 1)):
        with pytest.raises(QueryError):
            h.answers(Rectangles(*(np.array([float(b)]) for b in bad)))


def test_a_grid_of_one_cell_or_one_row_works():
    for rows, columns in ((1, 1), (1, 4), (4, 1)):
        euler, region = Euler(1.0, inference="covert"), Regions.of_polygons([[(0.5, 0.5)]])
        assert euler.fit(region, grid(rows, columns), MICRO, Noise()).grade == "covert"


def test_inference_lowers_the_error_of_small_ranges_where_regions_are_dense():
    domain = grid(12, 12)
    rng = np.random.default_rng(2)
    regions = Regions.of_polygons(list(rng.normal(6, 2, (400, 1, 2)) + rng.normal(0, 0.2, (400, 5, 2))))
    true = histogram(Footprints.of(regions, domain, 1.0).total())
    boxes = every_rectangle(12, 12)
    error = {}
    for inference in ("covert", "none"):
        # Recorded tapes: both kinds see the same noise, and the comparison is the same in every run.
        tapes = [recorded(seed) for seed in range(8)]
        runs = [Euler(1.0, inference=inference).fit(regions, domain, MICRO, tape) for tape in tapes]
        error[inference] = np.mean([np.abs(run.answers(boxes) - true.answers(boxes)).mean() for run in runs])
    assert error["covert"] < error["none"]


Grid = npt.NDArray[np.int64]


def program_distance(noisy: Grid) -> float:
    """Least t with some consistent array within t of ``noisy``, by the linear program as the source writes it."""
    index = np.arange(noisy.size).reshape(noisy.shape)
    lesser, greater = [], []
    for way in (index, index.T):
        for side in (way[:-1:2], way[2::2]):
            lesser.append(way[1::2].ravel())
            greater.append(side.ravel())
    small, large = np.concatenate(lesser), np.concatenate(greater)
    order = np.zeros((len(small), noisy.size + 1))
    order[np.arange(len(small)), small], order[np.arange(len(small)), large] = 1, -1
    eye, ones = np.eye(noisy.size), np.ones((noisy.size, 1))
    within = np.vstack([np.hstack([eye, -ones]), np.hstack([-eye, -ones])])
    flat = noisy.ravel().astype(float)
    bounds = np.concatenate([np.zeros(len(small)), flat, -flat])
    cost = np.append(np.zeros(noisy.size), 1)
    return float(scipy.optimize.linprog(cost, np.vstack([order, within]), bounds, bounds=(0, None)).fun)


def test_the_largest_deviation_is_that_of_the_linear_program_rounded_up():
    for seed, shape in itertools.product(range(12), [(1, 1), (1, 5), (3, 3), (5, 7), (9, 9)]):
        rng = np.random.default_rng(seed)
        noisy = rng.integers(-9, 10, shape) + 4 * rng.integers(0, 2)
        nearest = nearest_in_max_norm(noisy)
        assert is_consistent(nearest)
        assert np.abs(nearest - noisy).max() == np.ceil(program_distance(noisy) - 1e-6)


def test_counts_that_contradict_nothing_stay_and_the_draws_are_left_alone():
    true = np.array([[3, 2, 4], [1, 0, 2], [5, 2, 2]])
    before = true.copy()
    assert (nearest_in_max_norm(true) == true).all()
    broken = np.array([[0, 8, 0], [0, 20, 0], [0, 0, 0]])
    assert nearest_in_max_norm(broken).max() == 10
    assert (broken[1, 1], broken[0, 0]) == (20, 0)
    assert (true == before).all()


def test_truncated_counts_are_the_draws_without_what_is_below_0_and_keep_their_intervals():
    noisy = np.array([[3, -2, 4], [1, -5, 2], [-1, 2, 2]])
    truncated = infer(noisy, "truncated")
    assert (truncated.components == np.maximum(noisy, 0)).all()
    assert (truncated.grade, truncated.distance) == ("truncated", 8)

    domain, regions = grid(4, 4), Regions.of_polygons([np.array([[1.2, 1.2], [1.8, 1.6]])])
    drawn = Euler(1.0).fit(regions, domain, MICRO, recorded(1))
    released = Euler(1.0, inference="truncated", total_share=0.05).fit(regions, domain, MICRO, recorded(1))
    assert (released.components == np.maximum(drawn.components, 0)).all(), "no share of ε goes to a total"
    again = EulerHistogram.from_release(released.to_release())
    ranges = Rectangles.of_cells(np.array([[0, 3, 0, 3], [1, 1, 1, 1]]))
    assert_alike(drawn, again, ranges, answers=False)
    assert_alike(released, again, ranges)
    document = released.to_release()["structure"]
    assert (document["grade"], document["reading"]) == ("noisy", "truncated"), (
        "who knows no reading has unbiased answers"
    )
    assert document["components"] == drawn.components.tolist()
    for reading, grade in (("rounded", "noisy"), ("truncated", "covert")):
        with pytest.raises(HistogramError, match="this reads truncated of noisy ones"):
            EulerHistogram.from_release(
                released.to_release() | {"structure": document | {"reading": reading, "grade": grade}}
            )
    with pytest.raises(HistogramError, match="give drawn"):
        EulerHistogram(domain, released.components, 1.0, "truncated")


def test_where_a_grid_is_too_large_for_a_program_what_needs_none_is_done_and_a_paid_total_answers():
    ways: tuple[Inference, ...] = ("truncated", "max-norm", "covert")
    nobody, eulers = Regions.of_polygons([]), [Euler(1.0, inference=way, total_share=0.05) for way in ways]
    released = [euler.fit(nobody, grid(129, 129), MICRO, Noise()) for euler in eulers]
    assert [each.grade for each in released] == ["truncated", "consistent", "noisy"]
    document = json.loads(json.dumps(released[-1].to_release()))
    assert EulerHistogram.from_release(document).total == released[-1].total is not None


def test_ordered_counts_are_the_nearest_with_c1_and_c2_whatever_their_signs():
    """Against all arrays of 3 × 3 between the least and the greatest draw, among which a nearest one is."""
    rng = np.random.default_rng(3)
    values = np.array(list(itertools.product(range(-2, 2), repeat=9))).reshape(-1, 3, 3)
    edges = np.minimum(values[:, :-1:2], values[:, 2::2]), np.minimum(values[:, :, :-1:2], values[:, :, 2::2])
    holds = (values[:, 1::2] <= edges[0]).all(axis=(1, 2)) & (values[:, :, 1::2] <= edges[1]).all(axis=(1, 2))
    for _ in range(20):
        noisy = rng.integers(-2, 2, (3, 3))
        ordered = infer(noisy, "ordered")
        components = ordered.components
        assert (ordered.grade, is_consistent(components - components.min())) == ("ordered", True)
        assert ordered.distance == np.abs(values[holds] - noisy).sum(axis=(1, 2)).min()
        assert infer(noisy - 100, "ordered").distance == ordered.distance


BOX = grid(10, 10)


def few_regions() -> Regions:
    """60 in the box of 10 × 10 cells, most of which are empty."""
    rng = np.random.default_rng(5)
    return Regions.of_polygons([rng.random(2) * 8 + 1 + rng.normal(size=(5, 2)) * 0.2 for _ in range(60)])


def of_few_regions(inference: Inference, seed: int, share: float = 0.05) -> EulerHistogram:
    """Their release at ε = 1."""
    euler = Euler(1.0, inference=inference, total_share=share)
    return euler.fit(few_regions(), BOX, MICRO, recorded(seed))


def test_ordered_counts_stand_beside_the_draws_whose_intervals_and_unbiased_answers_they_leave_as_they_are():
    drawn, ordered = of_few_regions("none", 1), of_few_regions("ordered", 1)
    assert (ordered.drawn == drawn.components).all(), "the same ε buys the same draws"
    assert ordered.total == drawn.total
    document = ordered.to_release()
    again = EulerHistogram.from_release(document)
    ranges = Rectangles.of_cells(np.array([[0, 9, 0, 9], [2, 5, 3, 9], [4, 4, 4, 4]]))
    assert_alike(drawn, again, ranges, answers=False)
    assert_alike(ordered, again, ranges)
    assert not (ordered.answers(ranges) == drawn.answers(ranges)).any()

    structure = document["structure"]
    older = {key: value for key, value in structure.items() if key != "ordered"}
    assert older == drawn.to_release()["structure"], "who does not know the ordered counts reads the draws"
    with pytest.raises(HistogramError, match="beside noisy ones"):
        EulerHistogram.from_release(document | {"structure": structure | {"grade": "covert"}})
    with pytest.raises(HistogramError, match="give drawn"):
        EulerHistogram(ordered.domain, ordered.components, 1.0, "ordered")


def test_ordered_counts_have_less_error_than_draws_and_with_a_total_not_the_excess_of_counts_without_negative_ones():
    """Mean errors of 10 tapes; the ratio is about 0.6 for squares of 3 × 3 cells, and 0.04 for the whole."""
    corners = np.array([(x, x + 2, y, y + 2) for x in range(0, 8, 2) for y in range(0, 8, 2)])
    squares, whole = Rectangles.of_cells(corners), Rectangles.of_cells(np.array([[0, 9, 0, 9]]))
    true = EulerHistogram(BOX, Footprints.of(few_regions(), BOX, 1.0).total(), 0.0, "covert")

    def error(inference: Inference, ranges: Rectangles, share: float = 0.05) -> float:
        releases = [of_few_regions(inference, seed, share) for seed in range(10)]
        return float(np.mean([np.abs(each.answers(ranges) - true.answers(ranges)) for each in releases]))

    assert error("ordered", squares) < 0.8 * error("none", squares)
    assert error("ordered", whole) < 0.2 * min(error("none", whole, 0.0), error("consistent", whole))
