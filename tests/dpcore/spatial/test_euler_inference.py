"""Counts nearest to the draws of an Euler histogram in the largest deviation, and counts that are only truncated."""

from __future__ import annotations

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
from dpcore.spatial.regions import Regions
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


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 3), (5, 7), (9, 9)])
def test_the_largest_deviation_is_that_of_the_linear_program_rounded_up(shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    noisy = rng.integers(-9, 10, shape) + 4 * rng.integers(0, 2)
    nearest = nearest_in_max_norm(noisy)
    assert is_consistent(nearest)
    assert np.abs(nearest - noisy).max() == np.ceil(program_distance(noisy) - 1e-6)


def test_counts_that_contradict_nothing_stay_and_the_draws_are_left_alone() -> None:
    true = np.array([[3, 2, 4], [1, 0, 2], [5, 2, 2]])
    before = true.copy()
    assert (nearest_in_max_norm(true) == true).all()
    broken = np.array([[0, 8, 0], [0, 20, 0], [0, 0, 0]])
    assert nearest_in_max_norm(broken).max() == 10
    assert (broken[1, 1], broken[0, 0]) == (20, 0)
    assert (true == before).all()


def test_truncated_counts_are_the_draws_without_what_is_below_0_and_keep_their_intervals() -> None:
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
    one, two = (histogram.intervals(ranges) for histogram in (drawn, again))
    assert one is not None
    assert two is not None
    assert (one.low.tolist(), one.high.tolist()) == (two.low.tolist(), two.high.tolist())
    assert (again.answers(ranges) == released.answers(ranges)).all()
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


def test_where_a_grid_is_too_large_for_a_program_what_needs_none_is_done() -> None:
    domain = Domain(0.0, 0.0, 129.0, 129.0, 129, 129)
    nobody = Regions.of_polygons([])
    ways: tuple[Inference, ...] = ("truncated", "max-norm", "covert")
    grades = [Euler(1.0, inference=way).fit(nobody, domain, MICRO, Noise()).grade for way in ways]
    assert grades == ["truncated", "consistent", "noisy"]
