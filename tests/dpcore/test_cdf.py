"""Tree CDF: sensitivities by brute force, least squares, variances by simulation, percentiles and their intervals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpcore.budget import MICRO
from dpcore.cdf import (
    ONE_SIDED,
    USER_WEIGHT,
    CDFs,
    ParticipationCDF,
    TreeCDF,
    _deviations,
    bin_edges,
    cell_histograms,
    release_cells,
)
from dpcore.contributions import Contributions
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.level_tree import LevelTree, choose_tree, consistent_leaves, split_budget
from dpcore.noise import Noise
from tests.dpcore.silence import Silence

ALPHA = 1e-6


@pytest.mark.parametrize(
    ("bins", "factors"),
    [(50, (6, 9)), (64, (8, 8)), (100, (9, 12)), (128, (11, 12)), (256, (16, 16)), (1000, (9, 10, 12))],
)
def test_the_search_finds_the_known_best_factors(bins: int, factors: tuple[int, ...]) -> None:
    assert choose_tree(bins).factors == factors


def test_small_trees_are_flat() -> None:
    assert all(choose_tree(bins).factors == (bins,) for bins in range(1, 49))


@pytest.mark.parametrize("tree", [LevelTree(50, (6, 9)), LevelTree(17, (3, 2, 3)), LevelTree(9, (9,))])
def test_digit_sums_count_the_nodes_of_every_prefix(tree: LevelTree) -> None:
    expected = [
        sum(t // span % n for t in range(tree.bins)) for n, span in zip(tree.factors, tree.leaves_below(), strict=True)
    ]
    assert tree.digit_sums() == expected


def test_padding_beats_the_exact_square_when_prefixes_are_counted() -> None:
    square, padded = LevelTree(100, (10, 10)), LevelTree(100, (9, 12))

    def printed(tree: LevelTree) -> float:
        return math.prod(tree.factors) * sum((n - 1) / s**2 for n, s in zip(tree.factors, tree.shares(), strict=True))

    assert padded.prefix_error() < square.prefix_error()
    assert printed(padded) > printed(square)


def test_padding_by_more_than_eight_percent_wins_before_consistency_and_loses_after() -> None:
    """Brute force over every tree of two levels: 7·10 has the least prefix error at K = 64, 8·8 the least released one."""

    def released(tree: LevelTree) -> float:
        scales = np.concatenate([[0.0], 1 / tree.shares()])[None]
        return float(np.square(_deviations(tree, scales, 0.0)).sum() / 2)

    trees = {(a, b): LevelTree(64, (a, b)) for a in range(2, 17) for b in range(2, 17) if 64 <= a * b <= 96}
    before = {factors: tree.prefix_error() for factors, tree in trees.items()}
    after = {factors: released(tree) for factors, tree in trees.items()}
    assert min(before, key=before.__getitem__) == (7, 10)
    assert min(after, key=after.__getitem__) == (8, 8)
    assert choose_tree(64).factors == (8, 8)
    for factors, first, second in (((7, 10), 1769, 625), ((8, 8), 1792, 602)):
        assert round(before[factors]) == first
        assert round(after[factors]) == second
    chosen, exact = released(LevelTree(100, (9, 12))), released(LevelTree(100, (10, 10)))
    assert 1 < chosen / exact < 1.04


def test_cube_root_budgets_beat_every_other_split_on_a_grid() -> None:
    tree = LevelTree(100, (5, 20))
    errors = {
        share: sum((n - 1) / e**2 for n, e in zip((5, 20), (share, 1 - share), strict=True))
        for share in np.arange(1, 99) / 100
    }
    best = min(errors, key=errors.__getitem__)
    assert tree.shares()[0] == pytest.approx(best, abs=0.01)
    parts = split_budget(1_000_003, tree.shares())
    assert parts.sum() == 1_000_003
    with pytest.raises(BudgetError):
        split_budget(1, tree.shares())


@pytest.mark.parametrize("weight", ["sample", "user"])
@pytest.mark.parametrize("samples", [(1, 1), (2, 1), (3, 2)])
def test_no_user_moves_any_level_more_than_his_sensitivity(weight: Any, samples: tuple[int, ...]) -> None:
    """Exhaustive over values in 4 bins, tree 2·2."""
    m = np.array(samples)
    mechanism = TreeCDF(3, 4, weight=weight)
    plan = mechanism.plan(m, 900_000)
    tree = LevelTree(4, (2, 2))
    owner = np.repeat(np.arange(len(m)), m)
    levels = {}
    for values in itertools.product(range(4), repeat=int(m.sum())):
        histogram = np.diff(mechanism.release(np.array(values), plan, Silence()).linear * plan.unit, axis=1)
        levels[values] = [level.round().astype(int) for level in tree.levels(histogram.round().astype(np.int64))]
    for user in range(len(m)):
        worst = [0, 0]
        for one, two in itertools.product(levels, repeat=2):
            if all(a == b for a, b, o in zip(one, two, owner, strict=True) if o != user):
                worst = [
                    max(w, int(np.abs(x - y).sum())) for w, x, y in zip(worst, levels[one], levels[two], strict=True)
                ]
        assert max(worst) == plan.sensitivities[user]
        loss = sum(
            Fraction(max(worst) * int(s) * MICRO, int(t)) for t, s in zip(plan.numerator, plan.denominator, strict=True)
        )
        assert loss <= plan.charges[user] <= 900_000


@pytest.mark.parametrize("weight", ["sample", "user"])
def test_under_participation_all_of_a_user_moves_any_level_by_the_sensitivity_at_most(weight: Any) -> None:
    mechanism = ParticipationCDF(7, capacity=2, bins=4, weight=weight)
    plan = mechanism.plan(2 * MICRO)
    tree = LevelTree(4, (2, 2))
    rest, others = np.array([1, 6, 3]), np.array([2, 1])
    without = mechanism.release(rest, others, plan, Silence()).linear * plan.unit
    for own in itertools.product(range(8), repeat=3):
        joined = mechanism.release(np.append(own, rest), np.append(3, others), plan, Silence()).linear * plan.unit
        moved = np.diff(joined - without, axis=1).round().astype(np.int64)
        assert max(int(np.abs(level).sum()) for level in tree.levels(moved)) <= plan.sensitivity
        assert abs(joined[0, -1] - without[0, -1]) == pytest.approx(plan.sensitivity)
    assert plan.charge <= 2 * MICRO


def test_two_passes_are_the_weighted_least_squares_solution() -> None:
    """Against the normal equations, with padding leaves and levels of different noise; total known and unknown."""
    rng, tree = np.random.default_rng(1), LevelTree(10, (3, 2, 2))
    real = tree.real_nodes()
    levels = [rng.normal(size=(1, math.prod(tree.factors[: i + 1]))) for i in range(3)]
    for level, r in zip(levels, real, strict=True):
        level[:, r:] = 0
    variances, root = np.array([[0.5, 2.0, 1.3]]), np.array([4.2])
    rows, targets, weights = [], [], []
    for i, (span, r) in enumerate(zip(tree.leaves_below(), real, strict=True)):
        for node in range(r):
            rows.append([1.0 if node * span <= leaf < (node + 1) * span else 0.0 for leaf in range(10)])
            targets.append(levels[i][0, node])
            weights.append(1 / math.sqrt(variances[0, i]))
    for root_variance in (1e-12, 0.7):
        a = np.array([*rows, [1.0] * 10]) * np.append(weights, 1 / math.sqrt(root_variance))[:, None]
        b = np.append(targets, root[0]) * np.append(weights, 1 / math.sqrt(root_variance))
        expected = np.linalg.lstsq(a, b, rcond=None)[0]
        given = 0.0 if root_variance < 1e-9 else root_variance
        found = consistent_leaves(tree, root, np.array([given]), levels, variances)
        assert found[0] == pytest.approx(expected, abs=1e-5)
    fixed = consistent_leaves(tree, root, np.zeros(1), levels, variances)
    assert fixed.sum() == pytest.approx(4.2)


@pytest.mark.parametrize("participation", [False, True])
def test_stated_deviations_are_those_of_the_noise(participation: bool) -> None:
    """n = 6000 draws; a deviation off by 6 % would show at 5 standard errors of a Laplace-like variance."""
    n, tree = 6000, LevelTree(20, (4, 6))
    histograms = np.tile(np.arange(20), (n, 1))
    scales = np.tile([[40, 70]], (n, 1)), np.ones((n, 2), dtype=np.int64)
    root = (np.full(n, 50), np.ones(n, dtype=np.int64)) if participation else None
    edges = bin_edges(99, 20)
    drawn = release_cells(tree, edges, histograms, scales, Noise(), root)
    for p in (0.0, 0.5):
        noise = drawn.linear - p * drawn.linear[:, -1:]
        stated = drawn.deviation(p)[0]
        assert noise.std(axis=0) == pytest.approx(stated, rel=0.06, abs=1e-6)
        tail = np.quantile(noise, 0.975, axis=0) - noise.mean(axis=0)
        assert (tail <= ONE_SIDED * stated * 1.08 + 1e-9).all()


SHAPES = {
    "normal": lambda rng: np.clip(rng.normal(300, 80, 700), 0, 800),
    "two peaks": lambda rng: np.append(rng.integers(0, 30, 300), rng.integers(500, 520, 400)),
    "all equal": lambda rng: np.full(500, 400),
    "all zero": lambda rng: np.zeros(500),
    "uniform": lambda rng: rng.integers(0, 801, 900),
}


def coverage(released: CDFs, values: np.ndarray, percent: int) -> tuple[int, int]:
    truth = np.sort(values)[math.ceil(percent / 100 * len(values)) - 1]
    _, low, high = released.percentile(percent)
    return int(((low <= truth) & (truth <= high)).sum()), len(low)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bins", [20, 64])
@pytest.mark.parametrize("scale", [4, 40])
def test_percentile_intervals_cover_at_least_94_percent(shape: str, bins: int, scale: int) -> None:
    """n = 400 cells, one call; fails if coverage is below 94 % with p < 1e-6 (power > 0.99 against 85 %)."""
    values = SHAPES[shape](np.random.default_rng(7)).astype(np.int64)
    edges, tree = bin_edges(800, bins), choose_tree(bins)
    histogram = np.bincount(np.searchsorted(edges, values, side="right") - 1, minlength=bins)
    scales = np.full((400, tree.height), scale), np.ones((400, tree.height), dtype=np.int64)
    released = release_cells(tree, edges, np.tile(histogram, (400, 1)), scales, Noise())
    for percent in (15, 50, 85):
        hit, n = coverage(released, values, percent)
        assert stats.binomtest(hit, n, 0.94, alternative="less").pvalue > ALPHA
    # Planted bug: the intervals believe a twentieth of the noise; it must be noticed.
    if shape == "uniform" and scale == 4:
        wrong = release_cells(tree, edges, np.tile(histogram, (400, 1)), (20 * scales[0], scales[1]), Noise())
        lying = CDFs(tree, edges, wrong.total, wrong.prefix, wrong.linear, wrong.scales / 20, wrong.root_scale)
        hit, n = coverage(lying, values, 50)
        assert stats.binomtest(hit, n, 0.94, alternative="less").pvalue < ALPHA


def test_distributions_are_monotone_and_end_at_the_public_total() -> None:
    rng = np.random.default_rng(2)
    m = rng.integers(1, 6, 30)
    values = rng.integers(0, 801, int(m.sum()))
    released = TreeCDF(800, 64).release(values, TreeCDF(800, 64).plan(m, MICRO // 2), Noise())
    assert (np.diff(released.prefix) >= 0).all()
    assert released.prefix[0, 0] == 0
    assert released.prefix[0, -1] == released.total[0] == m.sum()
    quiet = TreeCDF(800, 64).release(values, TreeCDF(800, 64).plan(m, 10**9), Silence())
    assert quiet.prefix[0, 1:-1] == pytest.approx([(values < e).sum() for e in quiet.edges[1:-1]])
    assert quiet.estimate(50).value == pytest.approx(np.median(values), abs=800 / 64 + 1)


def test_many_cells_at_once_have_the_histograms_of_each() -> None:
    rng = np.random.default_rng(4)
    cell, user, value = rng.integers(0, 5, 300), rng.integers(0, 20, 300), rng.integers(0, 90, 300)
    ids = cell.astype(np.uint64), user.astype(np.uint64)
    grouped = Contributions.group(*ids, np.arange(300), value, upper=80)
    found = cell_histograms(grouped, 16)
    edges = bin_edges(80, 16)
    for c in range(5):
        clipped = np.clip(value[cell == c], 0, 80)
        assert found[c].tolist() == np.histogram(clipped, bins=edges)[0].tolist()


def test_a_capacity_drops_later_samples_and_bounds_the_bias() -> None:
    m, mechanism = np.array([4, 1]), TreeCDF(7, 8, capacity=2)
    plan = mechanism.plan(m, MICRO)
    assert plan.sensitivities.tolist() == [4, 2]
    assert plan.bias_bound == pytest.approx(2 / 5)
    assert plan.charges[1] * 2 == pytest.approx(plan.charges[0], abs=2)
    kept = mechanism.release(np.array([0, 1, 7, 7, 2]), plan, Silence())
    assert kept.total[0] == 3
    assert kept.prefix[0].tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]


def test_every_user_weighs_the_same_with_user_weights() -> None:
    m, mechanism = np.array([9, 1]), TreeCDF(7, 8, weight="user")
    plan = mechanism.plan(m, MICRO)
    assert plan.sensitivities.tolist() == [2 * USER_WEIGHT] * 2
    released = mechanism.release(np.array([0] * 9 + [7]), plan, Silence())
    assert released.total[0] == 2
    assert released.prefix[0, 1] == pytest.approx(1.0)


def test_a_single_value_range_is_released_without_noise_or_charge() -> None:
    plan = TreeCDF(0).plan(np.array([2, 3]), MICRO)
    assert plan.charges.tolist() == [0, 0]
    drawn = TreeCDF(0).release(np.zeros(5, dtype=np.int64), plan, Noise()).estimate(50)
    assert (drawn.value, drawn.low, drawn.high) == (0, 0, 0)


@pytest.mark.parametrize("samples", [(1,), (5,), (1, 1)])
def test_tiny_cells_release_within_the_range(samples: tuple[int, ...]) -> None:
    m = np.array(samples)
    plan = TreeCDF(800).plan(m, MICRO)
    drawn = TreeCDF(800).release(np.full(int(m.sum()), 800), plan, Noise())
    for percent in (15, 50, 85):
        e = drawn.estimate(percent)
        assert 0 <= e.low <= e.value <= e.high <= 800


def test_nobody_at_all_still_releases_under_participation() -> None:
    mechanism = ParticipationCDF(800, capacity=3)
    nobody = np.zeros(0, dtype=np.int64)
    e = mechanism.release(nobody, nobody, mechanism.plan(MICRO), Noise()).estimate(50)
    assert 0 <= e.low <= e.value <= e.high <= 800


@pytest.mark.parametrize(
    ("upper", "bins", "samples", "micro", "error"),
    [
        (800, 64, [], MICRO, ParameterError),
        (800, 0, [1], MICRO, ParameterError),
        (800, 10**6, [1], MICRO, ParameterError),
        (-1, 64, [1], MICRO, ParameterError),
        (800, 64, [0], MICRO, ParameterError),
        (800, 64, [1], 1, BudgetError),
        (800, 64, [1], math.nan, BudgetError),
        (800, 64, [2**61, 2**61], MICRO, OverflowBoundError),
    ],
)
def test_bad_input_is_refused(upper: int, bins: int, samples: list[int], micro: Any, error: type[DPError]) -> None:
    with pytest.raises(error):
        TreeCDF(upper, bins).plan(np.array(samples, dtype=np.int64), micro)


def test_bad_capacities_values_and_percentiles_are_refused() -> None:
    for capacity in (0, 4):
        with pytest.raises(ParameterError):
            TreeCDF(800, capacity=capacity).plan(np.array([3]), MICRO)
    with pytest.raises(ParameterError):
        ParticipationCDF(800, capacity=0).plan(MICRO)
    plan = TreeCDF(800).plan(np.array([2]), MICRO)
    with pytest.raises(ParameterError):
        TreeCDF(800).release(np.array([1.0, math.nan]), plan, Noise())
    released = TreeCDF(800).release(np.array([1, 2]), plan, Noise())
    for percent in (0, 100, math.nan):
        with pytest.raises(ParameterError):
            released.percentile(percent)
    with pytest.raises(ParameterError):
        release_cells(
            choose_tree(4), bin_edges(7, 4), np.zeros((1, 3), dtype=np.int64), (np.ones((1, 1)),) * 2, Noise()
        )
