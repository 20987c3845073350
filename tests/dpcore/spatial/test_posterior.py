"""Sparse readings: exact posteriors, counts that are zero where space is empty, and no more than post-processing."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

from dpcore.arrays import FloatArray
from dpcore.spatial import HTF, Domain, Rectangles, SparseHierarchy, histogram_from_release
from dpcore.spatial._mixture import Mixture, Nodes, gaussian_parts, laplace_parts, unevenness
from dpcore.spatial.histogram import HistogramError, PartitionHistogram, SparseReading, paint
from dpcore.spatial.partition import LevelDraws, Tree, image_of, split_boxes
from dpcore.spatial.posterior import TRUSTED, Surroundings, both_readings
from dpcore.spatial.queries import answer
from dpcore.spatial.release import rounded
from tests.dpcore.spatial.mechanisms import assert_alike, random_rectangles
from tests.support.tapes import recorded

DOMAIN = Domain.unit_cells(64, 64)


def town(seed: int = 1, points: int = 60_000) -> np.ndarray:
    """Points fill one quarter of the box densely; the other three are empty."""
    rng = np.random.default_rng(seed)
    x, y = np.clip(rng.normal(12, 4, (2, points)), 0, 24).astype(int)
    counts = np.zeros(DOMAIN.shape, dtype=np.int64)
    np.add.at(counts, (x, y), 1)
    return counts


@pytest.mark.parametrize("y", [-3.0, -0.2, 0.7, 4.0])
@pytest.mark.parametrize("scale", [0.2, 1 / np.sqrt(2), 0.71, 3.0, 40.0])
@pytest.mark.parametrize(
    ("parts", "density"), [(laplace_parts, stats.laplace(scale=1 / np.sqrt(2)).pdf), (gaussian_parts, stats.norm.pdf)]
)
def test_evidence_and_moments_equal_numerical_integration(parts, density, y, scale):
    evidence, first, second = parts(np.array([y]), np.array([[scale]]))
    pieces = [
        [
            integrate.quad(lambda x, p=p: x**p * np.exp(-x / scale) / scale * density(y - x), a, b, epsabs=1e-13)[0]
            for a, b in ((0.0, max(y, 0.0)), (max(y, 0.0), max(y, 0.0) + 60.0))
        ]
        for p in range(3)
    ]
    total, one, two = (sum(piece) for piece in pieces)
    assert evidence[:, 0] == pytest.approx([density(y), total], rel=1e-2)
    assert first[0, 0] == pytest.approx(one / total, rel=1e-2)
    assert second[0, 0] == pytest.approx(two / total, rel=1e-2)


@pytest.mark.parametrize("mechanism", [SparseHierarchy(), HTF()], ids=["sparse", "htf"])
@pytest.mark.parametrize("points", [0, 1, 60_000])
@pytest.mark.parametrize("reading", [0, 1], ids=["sparse", "expected"])
def test_both_readings_are_not_negative_and_children_add_up_to_their_parent_or_less_where_sparse(
    mechanism, points, reading
):
    tree = mechanism.tree(town(2, points), DOMAIN, 200_000, recorded(3), 1)
    counts = both_readings(tree)[reading]
    assert np.isfinite(counts).all()
    assert counts.min() >= 0
    sums = np.bincount(tree.parent[1:], weights=counts[1:], minlength=len(counts))
    something = np.flatnonzero(tree.parents & (sums > 0))
    assert np.all(sums[something] <= counts[something] * (1 + 1e-3) + 1e-6)
    if reading == 1:
        assert np.allclose(sums[something], counts[something], rtol=1e-3, atol=1e-6)


def test_a_histogram_with_both_readings_takes_less_than_300_bytes_a_cell_while_it_is_made():
    """512 × 512 cells of about six points, so that nearly every cell is a node of its own."""
    counts = np.random.default_rng(1).poisson(6, (512, 512))
    tracemalloc.start()
    SparseHierarchy(goal="relative").fit(counts, Domain.unit_cells(512, 512), 1_000_000, recorded(6))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * counts.size


def test_a_ring_holds_the_density_of_one_box_size_on_every_side_within_the_grid():
    """Every box of a 3 × 4 division of a 6 × 8 grid, cell by cell."""
    rng = np.random.default_rng(5)
    boxes, _ = split_boxes(np.array([[0, 6, 0, 8]]), np.array([3]))
    density = rng.uniform(0, 4, len(boxes))
    cells = np.zeros((6, 8))
    for (x0, x1, y0, y1), each in zip(boxes, density, strict=True):
        cells[x0:x1, y0:y1] = each
    areas = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2])
    rings = Surroundings.of(paint((6, 8), boxes), boxes).at_density(density, density * areas)
    for (x0, x1, y0, y1), area, ring in zip(boxes, areas, rings, strict=True):
        around = np.zeros((6, 8), dtype=bool)
        around[max(2 * x0 - x1, 0) : 2 * x1 - x0, max(2 * y0 - y1, 0) : 2 * y1 - y0] = True
        around[x0:x1, y0:y1] = False
        assert ring == pytest.approx(cells[around].mean() * area)


def test_every_node_learns_in_exactly_one_group_of_like_places():
    rng = np.random.default_rng(6)
    n = 500
    columns = [10 ** rng.uniform(-3, 3, n) for _ in range(4)]
    nodes = Nodes(*columns, np.full(n, 4), rng.random(n) < 0.5, 3.0)
    groups = nodes.groups()
    assert sorted(np.concatenate(groups).tolist()) == list(range(n))
    assert all(len(set(nodes.inner[group].tolist())) == 1 for group in groups)
    assert len(groups) > 50


@pytest.mark.parametrize(("zero", "empty"), [(0.999, True), (0.1, False), (0.0, False)])
def test_a_node_is_dropped_where_it_is_surely_empty_and_kept_where_it_surely_is_not(zero, empty):
    """A count of 0 with weight ``zero``, else of 30 ± 1 standard deviations of noise, one point each."""
    posterior = Mixture(np.array([[zero], [1 - zero]]), np.array([[30.0]]), np.array([[901.0]]))
    assert posterior.mean == pytest.approx([30 * (1 - zero)])
    assert posterior.variance == pytest.approx([901 * (1 - zero) - (30 * (1 - zero)) ** 2])
    assert posterior.better_empty(np.ones(1), 20.0).tolist() == [empty]


def unpaid(counts: FloatArray, variances: FloatArray) -> LevelDraws:
    """Draws of one level without any budget."""
    return LevelDraws(counts, variances, np.zeros(len(counts), dtype=np.int64), np.ones(len(counts), dtype=bool))


def test_one_child_does_not_take_all_the_noise_of_a_parent_in_empty_space():
    """Beside a full quarter, one whose own draw is 49 ± 10 over children that hold nothing, one of them drawn as 11 ±
    2.
    """
    root = np.array([[0, 8, 0, 8]])
    quarters, above = split_boxes(root, 2)
    cells, parent = split_boxes(quarters, 4)
    drawn = np.where(parent == 0, 1000.0, np.tile([1.0, -1.0], 32))
    drawn[np.flatnonzero(parent == 3)[5]] = 11.0
    noise = {1: np.full(64, 4.0), 4: np.full(4, 100.0)}
    tree = Tree.of_levels(
        [
            (root, np.array([-1]), unpaid(np.array([16_049.0]), np.array([400.0]))),
            (quarters, above, unpaid(np.array([16_000.0, 0.0, 0.0, 49.0]), noise[4])),
            (cells, parent, unpaid(drawn, noise[1])),
        ]
    )
    leaves = both_readings(tree)[0][tree.leaves]
    assert np.count_nonzero(leaves[parent == 3]) <= 1
    assert leaves[parent == 3].sum() <= 20
    assert leaves[parent == 0].sum() == pytest.approx(16_000, rel=0.01)


def test_empty_space_is_exactly_zero_under_the_relative_goal_and_noise_under_the_absolute_one():
    """Recorded noise, ε = 0.1: 20 releases, queries in the empty three quarters of the box."""
    corners = np.random.default_rng(4).integers(32, 57, (200, 2))
    queries = Rectangles.of_cells(np.column_stack([corners[:, 0], corners[:, 0] + 7, corners[:, 1], corners[:, 1] + 7]))
    zeros, noisy = 0, 0
    for seed in range(20):
        relative = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 100_000, recorded(seed)).answers(queries)
        absolute = SparseHierarchy().fit(town(), DOMAIN, 100_000, recorded(seed)).answers(queries)
        zeros += int((relative == 0).sum())
        noisy += int((np.abs(absolute) < 1e-9).sum())
    assert zeros >= 0.95 * 20 * 200
    assert noisy <= 0.05 * 20 * 200


def test_the_relative_goal_lowers_the_relative_error_of_the_same_draws():
    """Recorded noise: the drawn tree is the same under both goals, and only the counts computed from it differ."""
    queries = random_rectangles(5, 64, 500)
    truth = answer(image_of(town()), queries)
    for mechanism in (SparseHierarchy, HTF):
        errors = {}
        for goal in ("absolute", "relative"):
            answers = mechanism(goal=goal).fit(town(), DOMAIN, 100_000, recorded(6)).answers(queries)
            errors[goal] = (np.abs(answers - truth) / np.maximum(truth, 20)).mean()
        assert errors["relative"] < 0.8 * errors["absolute"]


def spread(even: int, town: int, on_streets: int) -> np.ndarray:
    """128 × 128 cells: so many points ``even``ly over the whole, densely in a corner, and along two streets, one cell
    wide."""
    rng = np.random.default_rng(3)
    counts = np.zeros((128, 128), dtype=np.int64)
    np.add.at(counts, tuple(rng.integers(0, 128, (2, even))), 1)
    np.add.at(counts, (rng.integers(0, 128, on_streets // 2), 77), 1)
    np.add.at(counts, (91, rng.integers(0, 128, on_streets // 2)), 1)
    np.add.at(counts, tuple(rng.integers(3, 20, (2, town))), 1)
    return counts


def relative_errors(counts: np.ndarray, epsilon_micro: int) -> tuple[float, float]:
    """(relative, absolute): mean error relative to max(count, 20) on the same draws of five tapes, answers to 400
    squares of 20 × 20."""
    x, y = np.random.default_rng(4).integers(0, 109, (2, 400))
    squares = Rectangles.of_cells(np.column_stack([x, x + 19, y, y + 19]))
    truth, total = answer(image_of(counts), squares), np.zeros(2)
    for seed in range(5):
        drawn = SparseHierarchy(goal="relative").fit(counts, Domain.unit_cells(128, 128), epsilon_micro, recorded(seed))
        for at, histogram in enumerate((drawn, replace(drawn, sparse=None))):
            total[at] += (np.abs(histogram.answers(squares) - truth) / np.maximum(truth, 20)).mean()
    return total[0] / 5, total[1] / 5


@pytest.mark.parametrize(
    ("even", "town", "on_streets", "epsilon_micro", "most"),
    [
        (6_000, 0, 0, 200_000, 1.05),
        (6_000, 0, 0, 50_000, 1.05),
        (6_000, 30_000, 0, 50_000, 1.05),
        (6_000, 30_000, 0, 200_000, 1.05),
        (0, 30_000, 3_000, 200_000, 0.75),
    ],
    ids=["even", "even, which the whole box shows", "beside a town", "beside a town, less noise", "streets"],
)
def test_thin_space_is_read_as_empty_where_it_is_not_even(even, town, on_streets, epsilon_micro, most):
    """Recorded noise, five releases: reading even space as empty would err more, keeping all around streets, too."""
    relative, absolute = relative_errors(spread(even, town, on_streets), epsilon_micro)
    assert relative < most * absolute


def of_sixteen_leaves_and_a_town(leaves: FloatArray) -> Tree:
    """A root whose first child is divided, and whose other 15 are ``leaves``, all known to ±2."""
    root = np.array([[0, 16, 0, 16]])
    children, above = split_boxes(root, 4)
    cells, parent = split_boxes(children[:1], 4)
    return Tree.of_levels(
        [
            (root, np.array([-1]), unpaid(np.array([9_000.0]), np.array([4.0]))),
            (children, above, unpaid(np.append(8_000.0, leaves), np.full(16, 4.0))),
            (cells, parent, unpaid(np.full(16, 500.0), np.full(16, 4.0))),
        ]
    )


@pytest.mark.parametrize(
    ("leaves", "uneven"),
    [
        (np.full(15, 60.0), 1.0),
        (np.append(np.full(5, 180.0), np.zeros(10)), 3.0),
        (np.append(900.0, np.zeros(14)), 15.0),
        (np.tile([2.0, -2.0, 0.0], 5), np.inf),
    ],
    ids=["even", "on a third", "in one", "noise"],
)
def test_unevenness_is_that_of_leaves_without_their_divided_sibling(leaves, uneven):
    tree = of_sixteen_leaves_and_a_town(leaves)
    measured = unevenness(tree, tree.counts, tree.variances)
    assert measured[1] == pytest.approx(uneven, rel=0.01)
    assert measured[2] == (measured[1] if uneven < 1.5 else np.inf)


def test_unevenness_of_noisy_leaves_is_that_of_their_counts():
    """100 draws of leaves of which a third hold 90 points ± 30 each: 3.0 on average ± 0.1. The twin that forgets the
    noise finds more.
    """
    rng = np.random.default_rng(8)
    leaves = np.append(np.full(5, 90.0), np.zeros(10))
    measured: dict[float, list[float]] = {900.0: [], 1e-9: []}
    for _ in range(100):
        drawn = leaves + rng.laplace(0, 30 / np.sqrt(2), 15)
        tree = of_sixteen_leaves_and_a_town(drawn)
        for variance, ratios in measured.items():
            ratios.append(unevenness(tree, tree.counts, np.full(len(tree.counts), variance))[1])
    finite = [each for each in measured[900.0] if np.isfinite(each)]
    assert len(finite) >= 50
    assert np.median(finite) == pytest.approx(3.0, abs=0.5)
    assert np.median(measured[1e-9]) > 3.5


def test_large_answers_for_relative_error_are_expected_counts_and_all_are_whole():
    histogram = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 1_000_000, recorded(7))
    queries = Rectangles([0, 0, 30], [64, 63, 31], [0, 0, 5], [64, 64, 6])
    expected, sparse = (
        replace(histogram, counts=counts, sparse=None).answers(queries)
        for counts in (histogram.sparse.expected, histogram.sparse.counts)
    )
    answers = histogram.answers(queries)
    large = np.minimum(expected, sparse) >= TRUSTED
    assert list(large) == [True, True, False]
    assert np.array_equal(answers[large], np.rint(expected[large]))
    assert np.array_equal(answers[~large], np.rint(sparse[~large]))


def test_expected_counts_err_less_than_unbiased_ones_on_large_answers():
    """Recorded noise: 20 releases of one town, queries that hold 300 points or more."""
    queries = random_rectangles(9, 64, 500)
    truth = answer(image_of(town()), queries)
    large = truth >= 300
    error = {"unbiased": 0.0, "expected": 0.0}
    for seed in range(20):
        histogram = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 100_000, recorded(100 + seed))
        for name, counts in (("unbiased", histogram.counts), ("expected", histogram.sparse.expected)):
            answers = replace(histogram, counts=counts, sparse=None).answers(queries)
            error[name] += float((np.abs(answers - truth)[large] / truth[large]).mean())
    assert error["expected"] < 0.95 * error["unbiased"], error


def test_a_sparse_reading_survives_its_release_and_a_broken_one_is_refused():
    histogram = SparseHierarchy(goal="relative").fit(town(), DOMAIN, 100_000, recorded(8), points_per_user=3)
    assert histogram.sparse.below == TRUSTED * 3 / 0.1
    published = rounded(histogram)
    back = histogram_from_release(json.loads(json.dumps(published.to_release())))
    queries = Rectangles([0, 10, 40.5], [64, 20, 50], [0, 3, 40], [64, 9.25, 60])
    assert_alike(published, back, queries)
    of_two = SparseReading(np.ones(2), np.ones(2), 1.0)
    for broken in (
        lambda: SparseReading(np.ones(1), np.array([-1.0]), 10.0),
        lambda: SparseReading(np.ones(1), np.ones(2), 10.0),
        lambda: PartitionHistogram(Domain.unit_cells(2, 2), np.array([[0, 2, 0, 2]]), np.ones(1), np.ones(1), of_two),
    ):
        with pytest.raises(HistogramError):
            broken()
