"""BestFit: equal to the definition, never overfull, and the printed divisor K is refuted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.errors import ParameterError
from dpcore.single_cell.cell import bestfit, lower_median, widest_grouping

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


@settings(max_examples=300)
@given(COUNTS, st.integers(0, 8))
def test_bestfit_is_the_definition(samples: list[int], step: int) -> None:
    capacity = min(min(samples) + step, max(samples))
    grouping = bestfit(np.array(samples), capacity)
    array, fill = naive(samples, capacity)
    assert grouping.array.tolist() == array
    assert grouping.fill.tolist() == fill
    assert grouping.fill.max() <= capacity
    # At most one array is at most half full: two such would have been one.
    assert (2 * grouping.fill <= capacity).sum() <= 1


@settings(max_examples=100)
@given(COUNTS)
def test_the_widest_grouping_is_the_best_of_all_capacities(samples: list[int]) -> None:
    every = [bestfit(np.array(samples), c) for c in range(min(samples), max(samples) + 1)]
    best = max(g.n_arrays**2 * g.capacity for g in every)
    chosen = widest_grouping(np.array(samples))
    assert chosen.n_arrays**2 * chosen.capacity == best
    assert chosen.capacity == next(g.capacity for g in every if g.n_arrays**2 * g.capacity == best)


def test_sensitivities_and_bias_are_the_worst_by_brute_force() -> None:
    upper, samples = 4, np.array([1, 3, 2])
    grouping = bestfit(samples, 3)
    owner = np.repeat(np.arange(3), samples)
    worst, bias = np.zeros(3, int), 0.0
    means = {}
    for values in itertools.product((0, upper), repeat=6):
        vector = np.array(values)
        sums = np.bincount(grouping.array[owner], vector, minlength=grouping.n_arrays).astype(int)
        means[values] = sums // grouping.fill
        bias = max(bias, abs((sums / grouping.fill).mean() - vector.mean()))
    for user in range(3):
        for one, two in itertools.product(means, repeat=2):
            if all(a == b for a, b, o in zip(one, two, owner, strict=True) if o != user):
                worst[user] = max(worst[user], int(np.abs(means[one] - means[two]).sum()))
    assert (worst <= grouping.sensitivities(upper)).all()
    assert worst.max() == grouping.sensitivities(upper).max()
    assert bias == pytest.approx(upper * grouping.bias_bound(6))


def test_dividing_by_the_printed_k_releases_one_and_a_half_times_the_bound() -> None:
    samples, capacity = np.array([2, 2, 2]), 3
    fills = naive(samples.tolist(), capacity)[1]
    printed = int(np.minimum(samples, capacity).sum()) // capacity
    assert (printed, len(fills)) == (2, 3)
    assert len(fills) * 1.0 / printed == 1.5


def test_the_printed_clipping_bias_is_that_of_a_pooled_mean_and_array_averages_have_more() -> None:
    """[M] prints U(1 − ΣΓ/Σm). With m = (3, 1) and arrays of 3 nothing is clipped, so it is 0; but one sample weighs ½,
    not ¼."""
    samples = np.array([3, 1])
    grouping = bestfit(samples, 3)
    assert 1 - grouping.retained.sum() / samples.sum() == 0
    averages = np.array([0.0, 1.0])  # the values of the second user are U = 1, all others 0
    assert averages.mean() - 1 / 4 == grouping.bias_bound(4) == 0.25


@pytest.mark.parametrize(("samples", "capacity"), [([2, 5], 1), ([2, 5], 6), ([], 1), ([0, 3], 1), ([1.5, 2.0], 1)])
def test_out_of_bounds_is_refused(samples: list[float], capacity: int) -> None:
    with pytest.raises(ParameterError):
        bestfit(np.array(samples), capacity)


def test_the_lower_median_is_lower() -> None:
    assert lower_median(np.array([1, 2, 3, 4])) == 2
    assert lower_median(np.array([7])) == 7
