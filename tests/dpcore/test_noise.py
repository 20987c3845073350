"""The samplers draw from exactly the stated distributions, one number at a time and in wide batches; a wrong scale, a
biased sign, a bare proposal and wrong tables are caught."""

import math
from decimal import Decimal, localcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from dpcore import noise as sampler
from dpcore.gaussian import discrete_gaussian, gaussian_half_width
from dpcore.noise import PART, PARTS, WHOLE, Groups, Inversion, Noise, interval_half_width, part_tails, whole_tails
from tests.support.tapes import Geometric, recorded

N = 200_000
"""Samples per test. A scale off by 1 % moves E|X| by about 4 standard errors (power > 0.97 at α), a variance by 6."""
ALPHA = 1e-6
"""False alarm rate of each test, two-sided."""
SCALES = [(1, 1), (3, 7), (7, 3), (50, 1), (65_000, 1), (2**32 + 1, 2**20)]


def p_value(samples: np.ndarray, edges: np.ndarray, below: np.ndarray) -> float:
    """χ² of samples binned at ``edges``, up to which a sample is with probability ``below``. Bins of expected count >=
    50, the rest pooled."""
    observed = np.histogram(samples, bins=[-(2**62), *(edges + 0.5).tolist(), 2**62])[0]
    probability = np.diff([0.0, *below.tolist(), 1.0])
    keep = probability * len(samples) >= 50
    observed = np.append(observed[keep], observed[~keep].sum())
    expected = np.append(probability[keep], probability[~keep].sum()) * len(samples)
    used = expected > 0
    return float(stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), max(used.sum() - 1, 1)))


def of_laplace(samples: np.ndarray, t: int, s: int) -> float:
    """:func:`p_value` against discrete Laplace noise of scale t/s."""
    a = math.exp(-s / t)
    edges = np.unique(np.round(stats.laplace.ppf(np.linspace(0.002, 0.998, 80), scale=t / s)).astype(np.int64))
    below = np.where(edges >= 0, 1 - a ** (np.abs(edges) + 1.0) / (1 + a), a ** np.abs(edges) / (1 + a))
    return p_value(samples, edges, below)


def gaussian_law(t: int, s: int) -> tuple[np.ndarray, np.ndarray]:
    """Support and probabilities of discrete Gaussian noise of scale t/s, from the sum itself."""
    sigma = t / s
    x = np.arange(-int(12 * sigma) - 12, int(12 * sigma) + 13)
    mass = np.exp(-0.5 * (x / sigma) ** 2)
    return x, mass / mass.sum()


def of_gaussian(samples: np.ndarray, t: int, s: int) -> float:
    """:func:`p_value` against discrete Gaussian noise of scale t/s."""
    x, mass = gaussian_law(t, s)
    below = np.cumsum(mass)
    at = np.unique(np.searchsorted(below, np.linspace(0.002, 0.998, 80)))
    return p_value(samples, x[at], below[at])


@pytest.mark.parametrize("batch", [10_000, N], ids=["by rejection", "by inversion"])
@pytest.mark.parametrize(("t", "s"), [*SCALES, (2**40, 1)])
def test_discrete_laplace_has_its_exact_distribution(t, s, batch):
    noise = Noise()
    x = np.concatenate([noise.discrete_laplace(t, s, batch) for _ in range(N // batch)])
    assert of_laplace(x, t, s) > ALPHA


@pytest.mark.parametrize(("t", "s"), SCALES)
def test_geometric_draws_that_tests_take_for_it_have_the_same_distribution(t, s):
    assert of_laplace(Geometric(1).discrete_laplace(t, s, N), t, s) > ALPHA


@pytest.mark.parametrize(("t", "s"), [*SCALES, (1, 5)])
def test_discrete_gaussian_has_its_exact_distribution(t, s):
    assert of_gaussian(discrete_gaussian(Noise(), t, s, N), t, s) > ALPHA


def test_samplers_of_another_law_are_caught():
    """Of either law a scale that is 1 % short, and for the Gaussian its bare proposal, at the power stated above."""
    noise = Noise()
    assert of_laplace(noise.discrete_laplace(693, 300, 4 * N), 7, 3) < ALPHA
    assert of_gaussian(discrete_gaussian(noise, 693, 300, 4 * N), 7, 3) < ALPHA
    assert of_gaussian(noise.discrete_laplace(7_000_000, 4_242_641, N), 7, 3) < ALPHA, "Laplace of that variance"
    assert of_gaussian(np.abs(discrete_gaussian(noise, 7, 3, N)), 7, 3) < ALPHA


def test_a_column_of_scales_gives_each_entry_its_own():
    scales = np.array([1, 10, 100, 1000])
    for draw, judged in (
        (Noise().discrete_laplace, of_laplace),
        (lambda t: discrete_gaussian(Noise(), t), of_gaussian),
    ):
        for row, t in zip(draw(np.repeat(scales, 50_000)).reshape(4, -1), scales.tolist(), strict=True):
            assert judged(row, t, 1) > ALPHA
    assert discrete_gaussian(Noise(), np.ones((2, 3), dtype=int), 4).shape == (2, 3)
    assert discrete_gaussian(Noise(), 5, 1, 0).shape == (0,)


@pytest.mark.false_alarm(3e-6)
@pytest.mark.parametrize(("law", "scale"), [("laplace", 1), ("laplace", 7), ("laplace", 40), ("gaussian", 20)])
def test_opendp_draws_from_the_same_distributions(law, scale):
    """n = 20 000 of theirs, fresh in every run, α = 1e-6 twice: against the exact law, and against ours by two samples.
    A scale 20 % off fails the first with power above 1 - 1e-6."""
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    make, distance, draw, judge = {
        "laplace": (opendp.m.make_laplace, opendp.l1_distance, Noise().discrete_laplace, of_laplace),
        "gaussian": (opendp.m.make_gaussian, opendp.l2_distance, partial(discrete_gaussian, Noise()), of_gaussian),
    }[law]
    space = opendp.vector_domain(opendp.atom_domain(T=int)), distance(T=int if law == "laplace" else float)
    theirs = np.array(make(*space, scale=float(scale))([0] * 20_000))
    assert judge(theirs, scale, 1) > ALPHA
    assert stats.ks_2samp(theirs, draw(scale, 1, N)).pvalue > ALPHA
    if scale >= 7:
        assert judge(theirs, 12 * scale, 10) < ALPHA


def test_intervals_are_the_smallest_that_hold_95_percent():
    for t, s in SCALES:
        a = math.exp(-s / t)
        w = float(interval_half_width(t, s))
        assert 1 - 2 * a ** (w + 1) / (1 + a) >= 0.95 - 1e-9
        assert w == 0 or 1 - 2 * a**w / (1 + a) < 0.95 + 1e-9


def test_intervals_of_gaussians_are_the_smallest_that_hold_95_percent():
    for t, s in [*SCALES, (1, 5), (31, 1), (32, 1), (33, 1), (100, 1), (1237, 3), (9999, 1)]:
        x, mass = gaussian_law(t, s)
        w = float(gaussian_half_width(t, s))
        assert mass[np.abs(x) <= w].sum() >= 0.95 - 1e-9
        assert w == 0 or mass[np.abs(x) <= w - 1].sum() < 0.95 + 1e-9
    assert gaussian_half_width(np.array([[1, 2**40], [50, 1]])).shape == (2, 2)


@pytest.mark.parametrize("weights", [None, [1, 0, 3, 9]])
def test_the_exponential_mechanism_selects_by_its_exact_law_in_every_group(weights):
    costs, k = np.array([0, 1, 2, 5]), 60_000
    ragged = None if weights is None else np.tile(weights, k)
    got = Noise().exponential(np.tile(costs, k), 1, 2, offsets=np.arange(0, 4 * k + 1, 4), weights=ragged)
    law = np.exp(-costs / 2) * (1 if weights is None else np.array(weights))
    law /= law.sum()
    observed, expected = np.bincount(got, minlength=4)[law > 0], k * law[law > 0]
    assert np.bincount(got, minlength=4)[law == 0].sum() == 0
    assert stats.chisquare(observed, expected).pvalue > ALPHA
    wrong = np.exp(-costs.astype(float)) / np.exp(-costs.astype(float)).sum()
    if weights is None:
        assert stats.chisquare(observed, k * wrong).pvalue < ALPHA, "twice the exponent must be noticed"


def test_a_proposal_falls_on_each_candidate_as_often_as_its_weight_says():
    """Uniform integers 0 … 9 of two groups, one draw each: every candidate gets as many of them as its weight."""
    weights = np.array([1, 0, 3, 6, 2, 8])
    groups = Groups.of(np.zeros(6, dtype=np.int64), np.array([0, 4, 6]), weights)
    assert groups.total.tolist() == [10, 10]
    proposed = groups.candidates(np.repeat([0, 1], 10), np.tile(np.arange(10), 2))
    assert np.bincount(proposed, minlength=6).tolist() == weights.tolist()


def test_excess_is_measured_from_the_least_cost_that_can_be_chosen():
    groups = Groups.of(np.array([5, -9, 7, 4]), np.array([0, 3, 4]), np.array([1, 0, 1, 2]))
    assert groups.excess.tolist() == [0, 0, 2, 0]


def test_a_selection_with_one_good_candidate_among_many_ends_quickly():
    costs = np.full(100_000, 40)
    costs[777] = 0
    assert Noise().exponential(costs, 1, 1)[0] == 777


def test_no_costs_are_too_far_apart_to_choose_by_and_the_least_two_keep_their_law():
    """Costs and the largest ratio that leave int64 together. n = 60 000 draws between costs 0 and 1 at ε = ln 3, α =
    1e-6."""
    for numerator in (1, 4, 10**9, 2**61):
        assert Noise().exponential(np.array([2**62, 0, 2**61]), numerator, 1)[0] == 1
    k, numerator = 60_000, round(math.log(3) * 2**40)
    got = Noise().exponential(np.tile([0, 1, 2**62], k), numerator, 2**40, offsets=np.arange(0, 3 * k + 1, 3))
    assert got.max() == 1
    assert stats.binomtest(int((got == 0).sum()), k, 0.75).pvalue > ALPHA


def test_entropy_decides_everything():
    for draw in (Noise.discrete_laplace, discrete_gaussian):
        one, same, other = (draw(recorded(seed), 50, 1, 1000) for seed in (1, 1, 2))
        assert (one == same).all()
        assert (one != other).any()


def test_bounded_integers_are_uniform_for_bounds_that_do_not_divide_the_word():
    x = Noise().below(3 * 2**61, 100_000)
    assert stats.binomtest(int((x >= 2**62).sum()), 100_000, 1 / 3).pvalue > ALPHA
    y = Noise().below(np.full(100_000, 7))
    assert stats.chisquare(np.bincount(y, minlength=7)).pvalue > ALPHA


def tails(bits: int) -> tuple[list[int], list[int]]:
    """The tails of the whole and of the part, by decimal arithmetic with 200 digits."""
    with localcontext() as context:
        context.prec = 200
        e = Decimal(-1).exp()
        whole = [int(e**k * 2**bits) for k in range(1, bits + 1)]
        part = [int(((-Decimal(k) / PARTS).exp() - e) / (1 - e) * 2**bits) for k in range(1, PARTS)]
    return [floor for floor in whole if floor] + [0], part


@pytest.mark.parametrize("bits", [16, 64, 128, 256])
def test_the_tails_are_right_to_the_last_bit(bits):
    assert (whole_tails(bits), part_tails(bits)) == tails(bits)


@pytest.mark.parametrize(("name", "law"), [("whole", WHOLE), ("part", PART)])
def test_sixteen_bits_decide_what_they_can_and_the_rest_is_left_to_further_bits(name, law):
    """All 65 536 draws of 16 bits, completed by zeros and by ones: each end of the interval has the value of the exact
    tails."""
    floors = np.array(tails(64)[name == "part"], dtype=np.uint64)
    bits = np.arange(2**16, dtype=np.uint16)
    for fill in (2 << 16, 2**64 - 1):  # neither meets a tail, which 64 bits would not decide
        drawn = law.of(bits, lambda n, fill=fill: np.full(n, fill, dtype=np.uint64))
        r = (bits.astype(np.uint64) << np.uint64(48)) | np.uint64(fill >> 16)
        assert drawn.tolist() == (floors[None, :] > r[:, None]).sum(axis=1).tolist()


@pytest.mark.parametrize(("law", "floors"), [(WHOLE, whole_tails), (PART, part_tails)], ids=["whole", "part"])
def test_where_64_bits_meet_a_tail_further_bits_decide(law, floors):
    at = next(floor for floor in floors(64) if floor >> 48 in floors(16))
    k = floors(64).index(at) + 1
    for beyond, expected in ((0, k), (2**64 - 1, k - 1)):
        words = Mock(side_effect=np.array([[(at << 16) % 2**64], [beyond]], dtype=np.uint64))
        assert law.of(np.array([at >> 48], dtype=np.uint16), words).tolist() == [expected]


@pytest.mark.parametrize("bug", ["uniform part", "half unit"])
def test_a_planted_bug_in_the_tables_is_noticed(bug, monkeypatch):
    wrong = {
        "uniform part": lambda bits: [((PARTS - k) << bits) // PARTS for k in range(1, PARTS)],
        "half unit": lambda bits: part_tails(bits)[: PARTS // 2],
    }
    monkeypatch.setattr(sampler, "PART", Inversion(wrong[bug]))
    assert of_laplace(Noise().discrete_laplace(7_000, 3, N), 7_000, 3) < ALPHA
