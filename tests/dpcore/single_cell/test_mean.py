"""Means of one cell: sensitivities by brute force, worst-case bias, facts of the minimax m, intervals, bad input.
BestFit: equal to the definition, never overfull, and the printed divisor K is refuted."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpcore.budget import MICRO
from dpcore.errors import OverflowBoundError
from dpcore.noise import MAX_SCALE_NUMERATOR, Noise
from dpcore.scales import noise_ratio
from dpcore.single_cell.cell import bestfit, losses, lower_median, widest_grouping
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax, minimax_samples
from tests.dpcore.silence import Silence

MECHANISMS: list[Callable[[int], Any]] = [Baseline, PooledMinimax, ArrayAveraging]
ALPHA = 1e-6


def test_the_bias_bound_is_the_worst_case():
    for mechanism, samples in itertools.product(MECHANISMS, [(1,), (2, 1), (2, 2, 2), (1, 2, 3), (5, 1, 1), (6, 2)]):
        upper, m = 10, np.array(samples)
        mean = mechanism(upper)
        plan = mean.plan(m, 400_000)
        worst = max(
            abs(mean.release(np.array(values), plan, Silence()).raw - np.mean(values))
            for values in itertools.product((0, upper), repeat=int(m.sum()))
        )
        assert worst <= plan.bias_bound + 1e-9
        assert worst >= plan.bias_bound - 2 / 256


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10), st.integers(10_000, 9_000_000))
def test_the_minimax_m_is_best_among_all_and_grows_with_epsilon(samples, micro):
    m = np.array(samples)

    def cost(cap: Fraction) -> Fraction:
        kept = sum((min(Fraction(x), cap) for x in samples), Fraction(0))
        return 1 - kept / sum(samples) + cap * MICRO / (micro * kept)

    chosen = minimax_samples(m, micro)
    assert chosen in samples
    # Quarter steps: no m between the counts is better either.
    quarters = [Fraction(q, 4) for q in range(1, 4 * max(samples) + 1)]
    assert cost(Fraction(chosen)) == min(cost(Fraction(x)) for x in samples) == min(cost(q) for q in quarters)
    assert all(cost(Fraction(x)) > cost(Fraction(chosen)) for x in set(samples) if x < chosen)
    assert minimax_samples(m, 2 * micro) >= chosen


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_intervals_cover_the_statistic_as_often_as_they_say(mechanism):
    """n = 3000 draws; coverage of 95 % would be missed by 3 points with power > 0.999 at α = 1e-6."""
    rng = np.random.default_rng(3)
    m = rng.integers(1, 9, 12)
    values = rng.integers(0, 801, int(m.sum()))
    mean = mechanism(800)
    plan = mean.plan(m, 1_000_000)
    truth = mean.release(values, plan, Silence()).raw
    noise = Noise()
    draws = [mean.release(values, plan, noise) for _ in range(3000)]
    covered = sum(e.low <= truth <= e.high for e in draws)
    assert stats.binomtest(covered, 3000, 0.95).pvalue > ALPHA
    assert all(0 <= e.value <= 800 and e.clamped == (e.value != e.raw) for e in draws)
    spread = np.mean([abs(e.raw - truth) for e in draws])
    assert spread == pytest.approx(plan.scale, rel=0.12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_values_outside_the_range_are_clipped_before_they_count(mechanism):
    mean = mechanism(10)
    m = np.array([2, 1])
    plan = mean.plan(m, MICRO)
    wild = mean.release(np.array([-5, 10**12, 7]), plan, Silence())
    assert wild == mean.release(np.array([0, 10, 7]), plan, Silence())


@given(st.integers(1, 2**40), st.integers(1, 10**8))
def test_noise_never_falls_short_of_the_budget(sensitivity, micro):
    if sensitivity * MICRO > micro * MAX_SCALE_NUMERATOR:
        with pytest.raises(OverflowBoundError):
            noise_ratio(sensitivity, micro)
        return
    t, s = noise_ratio(sensitivity, micro)
    assert Fraction(t, s) >= Fraction(sensitivity * MICRO, micro)
    assert t <= MAX_SCALE_NUMERATOR
    own = np.array([sensitivity, sensitivity // 2])
    charged = losses(own, t, s)
    assert charged[0] <= micro
    assert all(c >= Fraction(d * MICRO * s, t) > c - 1 for c, d in zip(charged.tolist(), own.tolist(), strict=True))


COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=14)


def naive(samples: list[int], capacity: int) -> tuple[list[int], list[int]]:
    array, fill = [], []
    for m in samples:
        kept = min(m, capacity)
        room = [i for i, f in enumerate(fill) if f + kept <= capacity]
        if room:
            best = max(fill[i] for i in room)
            chosen = next(i for i in room if fill[i] == best)
        else:
            chosen = len(fill)
            fill.append(0)
        fill[chosen] += kept
        array.append(chosen)
    return array, fill


@given(COUNTS, st.integers(0, 8))
def test_bestfit_is_the_definition(samples, step):
    capacity = min(min(samples) + step, max(samples))
    grouping = bestfit(np.array(samples), capacity)
    array, fill = naive(samples, capacity)
    assert grouping.array.tolist() == array
    assert grouping.fill.tolist() == fill
    assert grouping.fill.max() <= capacity
    # At most one array is at most half full: two such would have been one.
    assert (2 * grouping.fill <= capacity).sum() <= 1


@given(COUNTS)
def test_the_widest_grouping_is_the_best_of_all_capacities(samples):
    every = [bestfit(np.array(samples), c) for c in range(min(samples), max(samples) + 1)]
    best = max(g.n_arrays**2 * g.capacity for g in every)
    chosen = widest_grouping(np.array(samples))
    assert chosen.n_arrays**2 * chosen.capacity == best
    assert chosen.capacity == next(g.capacity for g in every if g.n_arrays**2 * g.capacity == best)


def test_dividing_by_the_printed_k_releases_one_and_a_half_times_the_bound():
    samples, capacity = np.array([2, 2, 2]), 3
    fills = naive(samples.tolist(), capacity)[1]
    printed = int(np.minimum(samples, capacity).sum()) // capacity
    assert (printed, len(fills)) == (2, 3)
    assert len(fills) * 1.0 / printed == 1.5


def test_the_printed_clipping_bias_is_that_of_a_pooled_mean_and_array_averages_have_more():
    """[M] prints U(1 − ΣΓ/Σm). With m = (3, 1) and arrays of 3 nothing is clipped, so it is 0; but one sample weighs ½,
    not ¼."""
    samples = np.array([3, 1])
    grouping = bestfit(samples, 3)
    assert 1 - grouping.retained.sum() / samples.sum() == 0
    averages = np.array([0.0, 1.0])  # the values of the second user are U = 1, all others 0
    assert averages.mean() - 1 / 4 == grouping.bias_bound(4) == 0.25


def test_the_lower_median_is_lower():
    assert lower_median(np.array([1, 2, 3, 4])) == 2
    assert lower_median(np.array([7])) == 7
