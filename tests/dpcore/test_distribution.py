"""Distributions of cells under relation "values": sensitivities by brute force, counts, and what is public. Modelled
percentiles: of the one clipped normal law that has the given mean and variance, wherever noise has carried these."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpcore.allocation import allocate, exact_charges
from dpcore.bernstein import NoisyPolynomials, polynomials
from dpcore.budget import MICRO
from dpcore.cdf import ONE_SIDED, bin_edges
from dpcore.contributions import Contributions
from dpcore.distribution import Distribution
from dpcore.level_tree import LevelTree
from dpcore.modelled_percentiles import BLOCK, MEAN_SHARES, VARIANCE_SHARES, percentiles, shrunken_variances
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales
from tests.dpcore.programs import group, in_one_cell, worst_changes
from tests.dpcore.silence import Silence


@pytest.mark.parametrize("samples", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("tree", [LevelTree(4, (2, 2)), LevelTree(4, (4,))])
def test_no_user_moves_any_level_more_than_their_sensitivity_and_one_moves_it_as_much(samples, tree):
    """Exhaustive over values in 4 bins."""
    distribution, counts = Distribution(3, 4), group(in_one_cell(samples), 3).counts
    claimed = distribution.sensitivities(counts, counts.samples).tolist()
    for level in range(len(tree.factors)):
        worst = worst_changes(samples, (0, 1, 2, 3), 3, lambda of, at=level: tree.levels(distribution.integers(of))[at])
        assert worst == claimed == [2 * m for m in samples]


def test_charges_are_the_loss_over_all_cells_and_levels_within_the_allowance_and_levels_share_by_their_branching():
    rng = np.random.default_rng(3)
    cell, user = rng.integers(0, 4, 200).astype(np.uint64), rng.integers(0, 9, 200).astype(np.uint64)
    counts = Contributions.group(cell, user, np.arange(200), np.zeros(200, np.int64), upper=6500).counts
    distribution = Distribution(6500, 50)
    rows = distribution.rows(counts, counts.samples)
    solved = allocate(rows, np.full(counts.n_users, MICRO))
    shape = (counts.n_cells, distribution.tree.height)
    scales = LaplaceScales(solved.numerator.reshape(shape), solved.denominator.reshape(shape))
    charges = exact_charges(rows, solved.numerator, solved.denominator)
    loss = [Fraction(0)] * counts.n_users
    for g, u, gamma in zip(counts.pair_cell, counts.pair_user, counts.samples.tolist(), strict=True):
        for t, s in zip(scales.numerator[g].tolist(), scales.denominator[g].tolist(), strict=True):
            loss[u] += Fraction(2 * gamma * s * MICRO, t)
    entries = counts.by_user(np.ones(len(counts.samples), np.int64)) * distribution.tree.height
    assert all(
        exact <= charge < exact + n for exact, charge, n in zip(loss, charges.tolist(), entries.tolist(), strict=True)
    )
    assert (charges <= MICRO).all()
    assert distribution.tree.factors == (6, 9)
    assert scales.values[:, 0] / scales.values[:, 1] == pytest.approx((8 / 5) ** (1 / 3), rel=0.02)


def test_many_cells_at_once_have_the_counts_of_each():
    rng = np.random.default_rng(4)
    cell, user, value = rng.integers(0, 5, 300), rng.integers(0, 20, 300), rng.integers(0, 90, 300)
    ids = cell.astype(np.uint64), user.astype(np.uint64)
    counted = Distribution(80, 16).integers(Contributions.group(*ids, np.arange(300), value, upper=80))
    edges = bin_edges(80, 16)
    for c in range(5):
        clipped = np.clip(value[cell == c], 0, 80)
        assert counted[c].tolist() == np.histogram(clipped, bins=edges)[0].tolist()


def test_a_released_distribution_is_monotone_and_ends_at_the_public_total_whatever_the_noise():
    values = (100, 200, 300, 700, 720, 10, 20, 30, 40)
    rows = in_one_cell((3, 2, 4))
    contributions = group([(c, u, k, v) for (c, u, k, _), v in zip(rows, values, strict=True)], 800)
    distribution = Distribution(800, 64)
    scales = LaplaceScales(np.full((1, 2), 5), np.ones((1, 2), dtype=np.int64))
    _, drawn = distribution.draw(contributions, scales, Noise())
    assert (np.diff(drawn.prefix) >= 0).all()
    assert drawn.prefix[0, 0] == 0
    assert drawn.prefix[0, -1] == drawn.total[0] == 9
    _, quiet = distribution.draw(contributions, scales, Silence())
    assert quiet.prefix[0, 1:-1] == pytest.approx([(contributions.values < e).sum() for e in quiet.edges[1:-1]])
    assert quiet.percentile(50)[0][0] == pytest.approx(np.median(contributions.values), abs=800 / 64 + 1)


UPPER = 6500
UNIT = 2**20


def test_the_numbers_of_every_value_are_non_negative_and_sum_to_its_weight():
    for degree, upper in itertools.product([0, 1, 2], [1, 2, 7, 6500, 100_000]):
        values = np.unique(np.linspace(0, upper, 5000).astype(np.int64))
        for weight in (0, 1, 2, 3, 1000, UNIT):
            parts = polynomials(values, np.full(len(values), weight), upper, degree)
            assert parts.shape == (degree + 1, len(values))
            assert (parts >= 0).all()
            assert (parts.sum(axis=0) == weight).all()


def test_count_mean_and_variance_without_noise_are_those_of_the_values():
    rng = np.random.default_rng(1)
    values, weights = rng.integers(0, UPPER + 1, 4000), rng.integers(0, UNIT, 4000)
    values[:1000] = rng.choice([0, 1, UPPER // 2, UPPER - 1, UPPER], 1000)
    share = weights / weights.sum()
    mean = share @ (values / UPPER)
    for degree in (1, 2):
        sums = polynomials(values, weights, UPPER, degree).sum(axis=1, keepdims=True) / UNIT
        noisy = NoisyPolynomials(sums, 0.0)
        assert noisy.count[0] * UNIT == weights.sum()
        assert noisy.mean(ONE_SIDED).value[0] == pytest.approx(mean, abs=1e-6)
    assert noisy.variance(ONE_SIDED).value[0] == pytest.approx(share @ (values / UPPER - mean) ** 2, abs=1e-6)
    assert noisy.variance(ONE_SIDED).low[0] == pytest.approx(noisy.variance(ONE_SIDED).high[0])


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("count", [0.0, 2.0, 9.0, 300.0])
def test_the_95_percent_interval_holds_the_ratio_whatever_the_count(degree, count):
    """n = 20 000 cells, α = 1e-6 on each side; exact noise. Fieller's set is neither short nor, far from 0, long."""
    n, scale = 20_000, 2.0
    x = np.array([0.1, 0.8, 0.7])
    w = count / 3
    forms = np.array([1 - x, x]) if degree == 1 else np.array([(1 - x) ** 2, 2 * x * (1 - x), x**2])
    true = forms.sum(axis=1) * w
    drawn = Noise().discrete_laplace(int(scale * 1000), 1, size=n * (degree + 1)).reshape(degree + 1, n) / 1000
    noisy = NoisyPolynomials(true[:, None] + drawn, float(np.sqrt(2) * scale))
    for power in range(1, degree + 1):
        ratio, truth = (noisy.mean(ONE_SIDED), x.mean()) if power == 1 else (noisy.variance(2.61), x.var())
        covered = int(((ratio.low <= truth + 1e-9) & (truth - 1e-9 <= ratio.high)).sum())
        assert stats.binomtest(covered, n, 0.95, "less").pvalue > 1e-6
        if count == 300.0:
            assert power == 2 or covered < 0.975 * n
            assert np.std(ratio.value) == pytest.approx(np.median(ratio.deviation), rel=0.1)


TOP = 65.0
USUAL = (15.0, 50.0, 85.0)
EVERYWHERE = (np.arange(40_000) + 0.5) / 400
"""Percents in the middle of 40 000 equal parts: the average over them is an integral over the law."""


def laws() -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of laws over all that is offered, in km/h and (km/h)²."""
    mean, share = (
        column.ravel()
        for column in np.meshgrid(
            TOP * np.array([MEAN_SHARES[0], 0.02, 0.2, 0.5, 0.7, 0.95, MEAN_SHARES[1]]),
            np.array([VARIANCE_SHARES[0], 0.02, 0.2, 0.5, 0.9, VARIANCE_SHARES[1]]),
        )
    )
    return mean, share * mean * (TOP - mean)


def test_the_law_has_the_given_mean_and_variance_everywhere():
    """By sums over equal parts, which err where a thousandth of the law holds most of its mean or variance."""
    mean, variance = laws()
    values = percentiles(mean, variance, upper=TOP, percents=EVERYWHERE)
    assert values.mean(axis=0) == pytest.approx(mean, rel=2e-3, abs=1e-3)
    assert values.var(axis=0) == pytest.approx(variance, rel=1e-2)


def test_percentiles_are_those_of_samples_of_such_speeds():
    """n = 200 000 samples: percentiles of them have standard errors below 0.06 km/h, so 0.4 is refuted in one of 10^10
    runs."""
    samples = np.clip(np.random.default_rng(5).normal(12.0, 18.0, 200_000), 0.0, TOP)
    modelled = percentiles(np.array([samples.mean()]), np.array([samples.var()]), upper=TOP, percents=USUAL)
    assert modelled[:, 0] == pytest.approx(np.percentile(samples, USUAL), abs=0.4)
    assert modelled[0, 0] == 0.0, "more than 15 % stand"


def test_percentiles_ascend_lie_in_the_range_and_mirror_when_speeds_do():
    mean, variance = laws()
    percents = EVERYWHERE[::40]
    values = percentiles(mean, variance, upper=TOP, percents=percents)
    assert (np.diff(values, axis=0) >= 0).all()
    assert (values >= 0).all()
    assert (values <= TOP).all()
    mirrored = percentiles(TOP - mean, variance, upper=TOP, percents=100 - percents)
    assert mirrored == pytest.approx(TOP - values, abs=1e-4)


def test_moments_that_no_law_has_are_moved_to_the_nearest_that_one_has():
    for mean, variance in itertools.product([-3.0, 0.0, 20.0, TOP, 80.0], [-900.0, 0.0, 2000.0]):
        inside = np.clip(mean, TOP * MEAN_SHARES[0], TOP * MEAN_SHARES[1])
        room = inside * (TOP - inside)
        given, moved = (
            percentiles(np.array([m]), np.array([v]), upper=TOP, percents=USUAL)
            for m, v in (
                (mean, variance),
                (inside, np.clip(variance, VARIANCE_SHARES[0] * room, VARIANCE_SHARES[1] * room)),
            )
        )
        assert np.isfinite(given).all()
        assert given == pytest.approx(moved, abs=1e-6)
        if mean == 20.0:
            narrow, wide = 3.0, 60.0
            assert (given[2] - given[0] < narrow) if variance <= 0 else (given[2] - given[0] > wide)


def test_a_cell_has_the_same_percentiles_whatever_cells_stand_beside_it():
    rng = np.random.default_rng(3)
    mean = rng.uniform(0, TOP, BLOCK + 7)
    variance = rng.uniform(0, 1, BLOCK + 7) * mean * (TOP - mean)
    together = percentiles(mean, variance, upper=TOP, percents=USUAL)
    chosen = np.array([0, BLOCK - 1, BLOCK, BLOCK + 6])
    alone = percentiles(mean[chosen], variance[chosen], upper=TOP, percents=USUAL)
    assert alone == pytest.approx(together[:, chosen], abs=1e-6)
    assert percentiles(np.zeros(0), np.zeros(0), upper=TOP, percents=USUAL).shape == (3, 0)


def test_variances_that_noise_explains_become_their_level_and_others_stay():
    """n = 400 cells, seeded: released errors are 100 in root mean square, the level's own below 12."""
    rng = np.random.default_rng(7)
    noise = np.full(400, 100.0)
    equal = shrunken_variances(150 + rng.normal(0, noise), noise)
    assert np.sqrt(np.square(equal - 150).mean()) < 30
    differing = rng.choice([50.0, 1000.0], 400)
    shrunken = shrunken_variances(differing + rng.normal(0, 1.0, 400), np.ones(400))
    assert shrunken == pytest.approx(differing, abs=5)


def test_cells_in_doubt_move_further_than_cells_of_little_noise():
    rng = np.random.default_rng(9)
    true, noise = rng.normal(300, 60, 300), np.where(np.arange(300) % 2, 400.0, 20.0)
    released = true + rng.normal(0, noise)
    shrunken = shrunken_variances(released, noise)
    quiet, loud = noise < 100, noise > 100
    assert np.abs(shrunken - true)[loud].mean() < np.abs(released - true)[loud].mean() / 4
    assert np.abs(shrunken - released)[quiet].max() < 60


def test_a_variance_without_noise_stays_and_says_nothing_about_others():
    assert shrunken_variances(np.array([7.0, 9.0]), np.zeros(2)).tolist() == [7.0, 9.0]
    noisy = np.array([100.0, 300.0])
    alone = shrunken_variances(noisy, np.array([50.0, 50.0]))
    beside = shrunken_variances(np.append(noisy, 0.0), np.array([50.0, 50.0, 0.0]))
    assert beside.tolist() == [*alone.tolist(), 0.0]
    assert len(shrunken_variances(np.zeros(0), np.zeros(0))) == 0
