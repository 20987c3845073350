"""Counts nearest to the draws of an Euler histogram in the largest deviation, or only in order, and counts only
truncated."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import scipy

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.euler import Euler, EulerHistogram
from dpcore.spatial.euler_inference import Inference, infer, is_consistent, nearest_in_max_norm
from dpcore.spatial.histogram import HistogramError
from dpcore.spatial.regions import Footprints, Regions
from tests.dpcore.spatial.mechanisms import assert_alike
from tests.support.tapes import tape

Grid = npt.NDArray[np.int64]


def program_distance(noisy: Grid) -> float:
    """Least t with some consistent array within t of ``noisy``, by the linear program as the source writes it."""
    index = np.arange(noisy.size).reshape(noisy.shape)
    lesser, greater = [], []
    for grid in (index, index.T):
        for side in (grid[:-1:2], grid[2::2]):
            lesser.append(grid[1::2].ravel())
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

    domain, regions = Domain(0.0, 0.0, 4.0, 4.0, 4, 4), Regions.of_polygons([np.array([[1.2, 1.2], [1.8, 1.6]])])
    drawn = Euler(1.0).fit(regions, domain, MICRO, Noise(tape(1)))
    released = Euler(1.0, inference="truncated", total_share=0.05).fit(regions, domain, MICRO, Noise(tape(1)))
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


def test_where_a_grid_is_too_large_for_a_program_what_needs_none_is_done():
    domain = Domain(0.0, 0.0, 129.0, 129.0, 129, 129)
    nobody = Regions.of_polygons([])
    ways: tuple[Inference, ...] = ("truncated", "max-norm", "covert")
    grades = [Euler(1.0, inference=way).fit(nobody, domain, MICRO, Noise()).grade for way in ways]
    assert grades == ["truncated", "consistent", "noisy"]


def is_ordered(h: Grid) -> bool:
    """C1 and C2, and nothing about signs."""
    return is_consistent(h - h.min())


def test_ordered_counts_are_the_nearest_with_c1_and_c2_whatever_their_signs():
    """Against all arrays of 3 × 3 between the least and the greatest draw, among which a nearest one is."""
    rng = np.random.default_rng(3)
    values = np.array(list(itertools.product(range(-2, 2), repeat=9))).reshape(-1, 3, 3)
    edges = np.minimum(values[:, :-1:2], values[:, 2::2]), np.minimum(values[:, :, :-1:2], values[:, :, 2::2])
    holds = (values[:, 1::2] <= edges[0]).all(axis=(1, 2)) & (values[:, :, 1::2] <= edges[1]).all(axis=(1, 2))
    for _ in range(20):
        noisy = rng.integers(-2, 2, (3, 3))
        ordered = infer(noisy, "ordered")
        assert (ordered.grade, is_ordered(ordered.components)) == ("ordered", True)
        assert ordered.distance == np.abs(values[holds] - noisy).sum(axis=(1, 2)).min()
        assert infer(noisy - 100, "ordered").distance == ordered.distance


BOX = Domain(0.0, 0.0, 10.0, 10.0, 10, 10)


def few_regions() -> Regions:
    """60 in the box of 10 × 10 cells, most of which are empty."""
    rng = np.random.default_rng(5)
    return Regions.of_polygons([rng.random(2) * 8 + 1 + rng.normal(size=(5, 2)) * 0.2 for _ in range(60)])


def of_few_regions(inference: Inference, seed: int, share: float = 0.05) -> EulerHistogram:
    """Their release at ε = 1."""
    euler = Euler(1.0, inference=inference, total_share=share)
    return euler.fit(few_regions(), BOX, MICRO, Noise(tape(seed)))


def test_ordered_counts_stand_beside_the_draws_whose_intervals_and_unbiased_answers_they_leave_as_they_are():
    drawn, ordered = of_few_regions("none", 1), of_few_regions("ordered", 1)
    assert ordered.drawn is not None
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
