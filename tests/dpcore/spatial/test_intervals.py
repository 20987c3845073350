"""Intervals of range counts hold the truth at every count, for every mechanism; the noise they rest on is exact."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpcore.noise import Noise
from dpcore.spatial import Domain, Rectangles, histogram_from_release
from dpcore.spatial.euler import Euler
from dpcore.spatial.euler_inference import infer
from dpcore.spatial.grids import inverse_haar
from dpcore.spatial.histogram import HistogramError
from dpcore.spatial.mechanism import laplace_variance
from dpcore.spatial.partition import Tree, image_of
from dpcore.spatial.queries import answer
from dpcore.spatial.range_noise import (
    NoisySums,
    TreeNoise,
    TreeNoiseError,
    between,
    haar_share,
    independent_tails,
    spread_tails,
)
from dpcore.spatial.regions import Regions
from dpcore.spatial.release import rounded
from stream.diagnosis.reading import read_recording
from stream.offline import split_by_slot
from tests.dpcore.spatial.mechanisms import every_mechanism, leaves_below
from tests.support.builders import bus_config
from tests.support.nightly import nightly_but
from tests.support.tapes import Geometric, recorded

CELLS = 32
DOMAIN = Domain.unit_cells(CELLS, CELLS)
CLASSES = ((0, 0), (1, 5), (6, 20), (21, 100), (101, 10**9))
"""Of true counts, ends included."""
EPSILONS = (100_000, 500_000, 1_000_000, 4_000_000)
DRAWS = 30
"""Per mechanism and ε, two ranges of each class from each draw."""
FLOOR = 0.93
ALPHA = 1e-4
"""H0: in every class 93 % of intervals or more hold the truth. It is rejected where so few of n ranges with at least
one held have P <= ALPHA. At a true coverage of 75 % and n = 240, H0 is kept with P < 1e-4. Noise is recorded: a verdict
never changes."""


def town(seed: int) -> np.ndarray:
    """One dense depot cell, clusters, a road and single points far out: uneven inside blocks of any size."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(DOMAIN.shape, dtype=np.int64)
    middle = rng.integers(6, 26, 2)
    counts[tuple(middle)] += 40
    for centre, points in ((middle, 250), (rng.integers(2, 30, 2), 60)):
        np.add.at(counts, tuple(np.clip(np.rint(rng.normal(centre[:, None], 1.5, (2, points))), 0, 31).astype(int)), 1)
    np.add.at(counts, (np.full(40, middle[0]), rng.integers(0, 32, 40)), 1)
    np.add.at(counts, tuple(rng.integers(0, 32, (2, 12))), 1)
    return counts


def ranges_by_class(counts: np.ndarray, seed: int) -> list[Rectangles]:
    """Per class of true counts up to 300 ranges, from one cell to the whole box, anywhere and beside points."""
    rng = np.random.default_rng(seed)
    side = np.minimum(2 ** rng.integers(0, 6, (2, 6000)), CELLS)
    anywhere, beside = rng.integers(0, CELLS, (2, 3000)), np.array(np.nonzero(counts))
    beside = beside[:, rng.integers(0, beside.shape[1], 3000)] - rng.integers(0, 3, (2, 3000))
    low = np.clip(np.concatenate([anywhere, beside], axis=1), 0, CELLS - side)
    ranges = Rectangles.of_cells(np.column_stack([low[0], low[0] + side[0] - 1, low[1], low[1] + side[1] - 1]))
    truth = answer(image_of(counts), ranges)
    chosen = [np.flatnonzero((truth >= least) & (truth <= most))[:300] for least, most in CLASSES]
    return [Rectangles(ranges.x0[at], ranges.x1[at], ranges.y0[at], ranges.y1[at]) for at in chosen]


def assert_held(name: str, towns: list[np.ndarray]) -> None:
    """Over ε and draws of other towns, enough intervals of each class hold the truth."""
    kept, n = np.zeros(len(CLASSES), dtype=np.int64), 2 * DRAWS * len(EPSILONS)
    asked_of = [(image_of(counts), ranges_by_class(counts, seed)) for seed, counts in enumerate(towns)]
    for epsilon, draw in itertools.product(EPSILONS, range(DRAWS)):
        at = draw % len(towns)
        histogram = MECHANISMS[name].fit(towns[at], DOMAIN, epsilon, Geometric([epsilon, draw]))
        rng, (image, by_class) = np.random.default_rng([draw, epsilon]), asked_of[at]
        chosen = [(ranges, rng.integers(0, len(ranges), 2)) for ranges in by_class]
        asked = Rectangles(*(np.concatenate([getattr(r, side)[at] for r, at in chosen]) for side in SIDES))
        kept += histogram.intervals(asked).hold(answer(image, asked)).reshape(-1, 2).sum(axis=1)
    needed = int(stats.binom.ppf(ALPHA, n, FLOOR))
    for hits, (least, most) in zip(kept, CLASSES, strict=True):
        assert hits >= needed, f"{least} to {most}: {hits} of {n} held, below {needed}: P <= {ALPHA} at {FLOOR:.0%}"


SIDES = ("x0", "x1", "y0", "y1")
MECHANISMS = every_mechanism((2, 4, 8, 16, 32), ranges_by_class(town(0), 0)[3])
OFFERED = (
    "ag",
    "auto relative",
    "e2epriv",
    "htf",
    "kdtree",
    "privlet",
    "quadtree",
    "singular",
    "sparse",
    "ug",
    "uniform",
)
"""One of each kind that the service offers; the others differ in budgets and choices alone. On this grid "auto" is
"sparse" draw by draw."""


@pytest.mark.parametrize("name", nightly_but(["htf", "privlet", "sparse", "ug"], OFFERED))
def test_intervals_hold_the_truth_in_every_class_of_counts(name):
    assert_held(name, [town(seed) for seed in range(10)])


@pytest.fixture(scope="module")
def hours(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """Where the buses of Austin were last in each hour of a recorded morning."""
    config, counts = bus_config(tmp_path_factory.mktemp("key")), []
    rows, _ = read_recording(config, shared_data / "capmetro" / "2017-03-21.csv.gz", "capmetro")
    for of_hour in split_by_slot(np.sort(rows, order="time"), config).values():
        last = of_hour[::-1][np.unique(of_hour["user"][::-1], return_index=True)[1]]
        box = [[30.1, 30.6], [-98.0, -97.5]]
        counts.append(np.histogram2d(last["lat"] / 1e7, last["lng"] / 1e7, CELLS, box)[0].astype(np.int64))
    return [each for each in counts if each.sum() > 150]


@pytest.mark.parametrize("name", nightly_but(["htf"], OFFERED))
def test_intervals_hold_the_number_of_recorded_vehicles(name, hours):
    assert len(hours) >= 5
    assert_held(name, hours)


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.0, 4.0])
@pytest.mark.parametrize("number", [1, 2, 5, 40])
def test_bounds_of_independent_noise_are_the_least_that_keep_their_promise(epsilon, number):
    above = partial(beyond, law_of((1,) * number, (variance_of(epsilon),) * number))
    tails = independent_tails(np.array([number]), variance_of(epsilon))
    alone, up, down = (int(bound[0]) for bound in (tails.alone, tails.up, tails.down))
    assert above(down) <= 0.025 < above(down - 1)
    assert above(up) + above(down) <= 0.05 < above(up - 1) + above(down) or up == 0
    assert above(alone) <= 0.05
    assert alone <= up <= down


CRITICAL = (0.97, 1.4, 1.9, 2.4, 2.42, 2.76, 2.9, 3.94, 4.7, 4.8, 5.2, 6.0)
"""ε at which continuous quantiles of one draw, or of one cell's sum over a tree, lie just below a step of the noise."""
FAMILY = [*np.arange(0.05, 6.5, 0.01), *CRITICAL]
"""ε of one draw; sums that are compared with it have its variance."""
PARTS = 12
"""Weights of draws below are multiples of 1/PARTS, so that laws of weighted sums are exact."""
ROUNDING = 1e-12
"""Of sums of probabilities in floating point."""


def variance_of(epsilon: float) -> float:
    """Of one discrete Laplace draw."""
    return float(1 / (math.cosh(epsilon) - 1))


def masses(epsilon: float, reach: int) -> np.ndarray:
    """P(X = k) of one discrete Laplace draw, for k from −reach to reach."""
    q = math.exp(-epsilon)
    return np.asarray((1 - q) / (1 + q) * q ** np.abs(np.arange(-reach, reach + 1)))


def beyond(law: np.ndarray, bound: float, steps: int = 1) -> float:
    """P(S > bound) where law[k] = P(S = k/steps)."""
    return float(law[math.floor(bound * steps + 1e-9) + 1 : len(law) // 2].sum())


def law_of(weights: tuple[int, ...], variances: tuple[float, ...]) -> np.ndarray:
    """Exact law of Σ weights/PARTS·X of independent discrete Laplace draws X, by its characteristic function: entry k
    is the probability of k/PARTS.
    """
    size = 2 ** math.ceil(
        math.log2(64 + 40 * math.sqrt(sum(w**2 * v for w, v in zip(weights, variances, strict=True))))
    )
    angle = 2 * math.pi * np.arange(size // 2 + 1) / size
    factor = np.ones(len(angle))
    for (weight, variance), number in Counter(zip(weights, variances, strict=True)).items():
        factor /= (1 + variance * (1 - np.cos(weight * angle))) ** number
    return np.asarray(np.fft.irfft(factor, size))


def assert_bounded(sums: list[tuple[tuple[int, ...], tuple[float, ...]]]) -> None:
    """P(|S| > up) and P(S > alone) are 5 % at most; S are weighted sums, each of weights in PARTS and variances."""
    variance = [sum((w / PARTS) ** 2 * v for w, v in zip(*one, strict=True)) for one in sums]
    tails, laws = spread_tails(np.array(variance)), [law_of(*one) for one in sums]
    for law, up, alone in zip(laws, tails.up, tails.alone, strict=True):
        assert 2 * beyond(law, up, PARTS) <= 0.05 + ROUNDING
        assert beyond(law, alone, PARTS) <= 0.05 + ROUNDING


def test_the_bound_of_one_draw_is_the_least_whole_number_at_every_epsilon():
    epsilon = np.array(FAMILY)
    variance, q = 1 / (np.cosh(epsilon) - 1), np.exp(-epsilon)
    tails = spread_tails(variance)

    def missed(bound: np.ndarray) -> np.ndarray:
        """P(|X| > bound)."""
        return np.asarray(2 * q ** (np.floor(bound) + 1) / (1 + q))

    assert (missed(tails.up) <= 0.05 + ROUNDING).all()
    assert (missed(tails.alone) <= 0.1 + ROUNDING).all()
    # Where the bound is 1 by Chebyshev, one draw alone would do with 0, but a sum of draws of its variance would not.
    assert (missed(tails.up - 1)[tails.up > 1] > 0.05).all()
    continuous = missed(math.log(20) / math.sqrt(2) * np.sqrt(variance))
    assert continuous.max() > 0.16, "quantiles of continuous noise are caught"


@pytest.mark.parametrize("epsilon", CRITICAL)
def test_bounds_hold_for_weighted_sums_that_have_the_variance_of_a_critical_draw(epsilon):
    rng, total = np.random.default_rng(round(epsilon * 100)), variance_of(epsilon)
    sums = []
    for share in (0.25, 0.5, 1.0, 1.2):
        variance = share * total
        sums += [((w,) * n, (variance * (PARTS / w) ** 2 / n,) * n) for w in range(3, PARTS + 1) for n in (1, 2, 4, 50)]
        for _ in range(40):
            weights = rng.integers(1, PARTS + 1, rng.integers(2, 7))
            shares = rng.dirichlet(np.full(len(weights), 0.5))
            sums.append((tuple(weights.tolist()), tuple((variance * shares * (PARTS / weights) ** 2).tolist())))
    assert_bounded(sums)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 16, 300])
def test_bounds_hold_for_sums_of_equal_draws_of_any_variance(number):
    variances = np.concatenate([np.arange(0.005, 0.8, 0.001), np.exp(np.linspace(math.log(0.8), math.log(400), 250))])
    assert_bounded([((PARTS,) * number, (v / number,) * number) for v in variances])


def missed_between(epsilon: float, blocks: int, truth: int) -> float:
    """Exact probability that an interval misses the ``truth``, all of it in the one inner block of the ``blocks`` of
    independent noise that a range touches: the worst case, where both sums are as near to it as they may be.
    """
    reach = 40 + round(20 / epsilon)
    draw = masses(epsilon, reach)
    rest = np.array([1.0])
    for number in range(blocks - 1):
        rest = np.convolve(rest, draw, mode="same" if number else "full")
    of_inner, of_rest = (axis.ravel() for axis in np.meshgrid(*[np.arange(-reach, reach + 1)] * 2, indexing="ij"))
    ones = np.ones(len(of_inner), dtype=np.int64)
    inner_tails, outer_tails = (independent_tails(n * ones, variance_of(epsilon)) for n in (1, blocks))
    inner = NoisySums((truth + of_inner).astype(float), ones, inner_tails)
    outer = NoisySums((truth + of_inner + of_rest).astype(float), np.full(len(ones), blocks), outer_tails)
    return float(np.outer(draw, rest).ravel()[~between(inner, outer).hold(np.full(len(ones), float(truth)))].sum())


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.4, 1.9, 2.4, 2.9, 5.2])
def test_the_two_sides_of_a_range_that_cuts_blocks_miss_with_5_per_cent_together(epsilon):
    for blocks, truth in itertools.product((2, 4, 9), (0, 1, 2, 4, 8, 100)):
        assert missed_between(epsilon, blocks, truth) <= 0.05 + ROUNDING, (blocks, truth)


def test_one_sum_has_on_its_upper_side_what_the_lower_one_leaves():
    tails = independent_tails(np.array([1]), variance_of(1.0))
    assert tails.up[0] < tails.down[0]
    sums = NoisySums(np.array([100.0]), np.array([1]), tails)
    assert between(sums, sums).low[0] == 100 - tails.up[0]
    assert between(sums, replace(sums, parts=np.array([2]))).low[0] == 100 - tails.down[0]


def test_no_noise_and_noise_of_many_thousands_are_bounded_too():
    tails = independent_tails(np.array([0, 3]), laplace_variance(1_000_000, 1))
    assert (tails.alone[0], tails.up[0], tails.down[0]) == (0, 0, 0)
    assert not independent_tails(np.array([5]), 0.0).down.any()
    wide = independent_tails(np.array([1]), laplace_variance(100, 1))
    assert wide.down[0] == pytest.approx(math.log(20) * 1e4, rel=0.01)
    assert wide.alone[0] == pytest.approx(math.log(10) * 1e4, rel=0.01)


@pytest.mark.parametrize("cells", [1, 5, 8, 13])
def test_the_share_of_haar_noise_in_a_range_is_that_of_the_transform(cells):
    size = 1 << (cells - 1).bit_length()
    effect = np.array([inverse_haar(np.eye(size)[:, [k]])[:, 0] for k in range(size)])
    low, high = np.array([(a, b) for a in range(cells) for b in range(a + 1, cells + 1)]).T
    expected = [(effect[:, a:b].sum(axis=1) ** 2).sum() for a, b in zip(low, high, strict=True)]
    assert haar_share(cells, low, high) == pytest.approx(expected)


def uneven_tree() -> Tree:
    """Root with a leaf and two inner nodes, of three and two leaves."""
    boxes = np.array([[0, 6, 0, 1], [0, 1, 0, 1], [1, 4, 0, 1], [4, 6, 0, 1], *([k, k + 1, 0, 1] for k in range(1, 6))])
    parent = np.array([-1, 0, 0, 0, 2, 2, 2, 3, 3])
    variances = np.array([9.0, 1.0, 4.0, 2.0, 3.0, 1.0, 5.0, 2.0, 0.5])
    return Tree(boxes, parent, np.array([0, 1, 4, 9]), np.zeros(9), variances, np.ones(9, dtype=np.int64))


def test_variances_of_leaves_together_are_those_of_dense_least_squares():
    tree = uneven_tree()
    members = leaves_below(tree)
    covariance = np.linalg.inv(members.T @ np.diag(1 / tree.variances) @ members)
    noise = tree.least_squares().noise
    weights = np.random.default_rng(3).random((20, members.shape[1]))
    weights[0] = 1
    assert noise.variances(weights) == pytest.approx(np.einsum("qi,ij,qj->q", weights, covariance, weights))
    again = TreeNoise.from_release(json.loads(json.dumps(noise.to_release())))
    assert again.variances(weights) == pytest.approx(noise.variances(weights))


def test_a_range_takes_no_draw_of_a_tree_with_a_weight_above_1():
    """Sums of weights from the root on are potentials of a network of resistors, between those of its ends, 0 and 1."""
    tree = uneven_tree()
    members = leaves_below(tree)
    precision = members.T / tree.variances
    estimates = np.linalg.solve(precision @ members, precision)
    ranges = np.array(list(itertools.product([0.0, 1.0], repeat=members.shape[1])))
    assert np.abs(ranges @ estimates).max() <= 1 + ROUNDING


@pytest.mark.parametrize(
    ("children", "drawn"),
    [
        ([], []),
        ([1], [1.0]),
        ([1, 1], [1.0, 1.0]),
        ([2, 0, 0], [1.0, 0.0, 1.0]),
        ([2, 0, -1, 1], [1.0] * 4),
        ([0, 1], [1.0, 1.0]),
    ],
)
def test_numbers_that_are_no_tree_are_refused(children, drawn):
    with pytest.raises(TreeNoiseError):
        TreeNoise(np.array(children, dtype=np.int64), np.array(drawn))


def test_a_release_without_a_known_noise_gives_no_interval():
    ranges = Rectangles.of_cells([[0, 3, 0, 3]])
    for name in ("ug", "quadtree", "privlet", "sparse"):
        document = rounded(MECHANISMS[name].fit(town(1), DOMAIN, 1_000_000, Noise())).to_release()
        assert histogram_from_release(document).intervals(ranges) is not None
        del document["structure"]["noise"]
        assert histogram_from_release(document).intervals(ranges) is None
        document["structure"]["noise"] = "pink"
        with pytest.raises(HistogramError, match="pink"):
            histogram_from_release(document)


def test_a_noise_of_other_leaves_than_the_parts_is_refused():
    histogram = uneven_tree().least_squares().histogram(Domain.unit_cells(6, 1))
    with pytest.raises(HistogramError, match="leaves of their noise"):
        replace(histogram, noise=TreeNoise(np.array([2, 0, 0]), np.ones(3)))


def test_intervals_are_whole_never_empty_and_hold_0_where_noise_carries_counts_below_it():
    counts = np.array([-50.0, -3.2, 0.0, 1.4, 4.0, 30.0])
    for variance in (0.0, 0.01, 2.0, 400.0):
        sums = NoisySums(counts, np.ones(6, dtype=np.int64), spread_tails(np.full(6, variance)))
        intervals = between(sums, sums)
        assert (intervals.low >= 0).all()
        assert (intervals.low <= intervals.high).all()
        assert np.array_equal(intervals.low, np.rint(intervals.low))
        assert np.array_equal(intervals.high, np.rint(intervals.high))
        assert intervals.hold(np.zeros(6))[:3].all()


def test_regions_have_intervals_after_inference_while_the_draws_before_it_are_known():
    """n = 30 draws · 36 ranges of an empty town, which inference answers too high; 95 % less five standard errors of
    independent draws of one range is 93 %.
    """
    domain = Domain.unit_cells(8, 8)
    nobody = Regions.of_polygons([])
    ranges = Rectangles.of_cells([[a, b, 0, 7] for a in range(8) for b in range(a, 8)])
    hits = []
    for seed in range(30):
        released = Euler(1.0, inference="covert").fit(nobody, domain, 1_000_000, recorded(seed))
        assert released.grade == "covert"
        hits.append(released.intervals(ranges).hold(np.zeros(len(ranges))).mean())
        back = histogram_from_release(json.loads(json.dumps(rounded(released).to_release())))
        assert np.array_equal(back.intervals(ranges).high, released.intervals(ranges).high)
        assert replace(released, drawn=None).intervals(ranges) is None
        assert np.array_equal(infer(released.drawn).components, released.components)
    assert np.mean(hits) > 0.93
