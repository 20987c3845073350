"""A mean and a variance that are drawn from sums of pairs are those that are drawn from the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.contributions import MAX_TOTAL, Contributions
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.mean import Mean
from dpcore.pair_sums import PairSums
from dpcore.variance import Variance

UPPER = 50
EVENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(-20, 80)), max_size=60)


def contributions(events: list[tuple[int, int, int]]) -> Contributions:
    cell, user, value = np.array(events, dtype=np.int64).reshape(-1, 3).T
    return Contributions.group(
        cell.astype(np.uint64), user.astype(np.uint64), np.arange(len(cell)), value.copy(), upper=UPPER
    )


def assert_same(sums: PairSums, values: Contributions) -> None:
    for name in ("cells", "users", "pair_cell", "pair_user", "samples"):
        assert getattr(sums.counts, name).tolist() == getattr(values.counts, name).tolist(), name
    caps = np.arange(values.counts.n_cells) * 30
    noise = np.arange(values.counts.n_cells) - 2
    for statistic in (Mean(UPPER), Mean(UPPER, caps), Variance(UPPER, 3)):
        assert statistic.integers(sums).tolist() == statistic.integers(values).tolist()
        assert statistic.draw(sums, noise).tolist() == statistic.draw(values, noise).tolist()


@given(EVENTS, st.integers(0, 2**32))
def test_sums_draw_what_values_draw_also_suppressed_and_merged(events: list[tuple[int, int, int]], seed: int) -> None:
    rng, values = np.random.default_rng(seed), contributions(events)
    sums = PairSums.of(values)
    assert_same(sums, values)
    kept = np.where(rng.random(len(values.counts.samples)) < 0.6, values.counts.samples, 0)
    assert_same(sums.retain(kept), values.retain(kept))
    renamed = rng.integers(7, 10, values.counts.n_cells).astype(np.uint64)
    assert_same(sums.regroup(renamed), values.regroup(renamed))
    pairs = rng.random(len(values.counts.samples)) < 0.5
    chosen = np.repeat(pairs, values.counts.samples)
    cell = np.repeat(values.counts.cells[values.counts.pair_cell], values.counts.samples)
    user = np.repeat(values.counts.users[values.counts.pair_user], values.counts.samples)
    among = Contributions.group(cell[chosen], user[chosen], values.times[chosen], values.values[chosen], upper=UPPER)
    assert_same(sums.among(pairs), among)


@given(EVENTS, EVENTS)
def test_parts_of_a_pair_are_added(first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]) -> None:
    together = PairSums.merged(*(PairSums.of(contributions(events)) for events in (first, second)))
    assert_same(together, contributions(first + second))


def group(samples: int, total: int, squares: int, upper: int = UPPER) -> PairSums:
    one = np.ones(1, dtype=np.uint64)
    return PairSums.group(one, one, *(np.array([n]) for n in (samples, total, squares)), upper=upper)


@pytest.mark.parametrize("sums", [(1, 51, 2_601), (1, -1, 1), (2, 10, 9), (2, 60, 3_001), (-1, 0, 0)])
def test_sums_that_no_clipped_values_have_are_refused(sums: tuple[int, int, int]) -> None:
    """Sensitivities hold for values in [0, U] alone, so such sums must never be released."""
    with pytest.raises(ParameterError):
        group(*sums)


def test_sums_that_clipped_values_have_at_most_are_taken() -> None:
    assert group(2, 100, 5_000).cell_squares().tolist() == [5_000]


def test_a_part_of_a_pair_cannot_be_retained() -> None:
    with pytest.raises(ParameterError, match="whole"):
        PairSums.of(contributions([(1, 1, 5), (1, 1, 7)])).retain(np.array([1]))


def test_columns_and_names_must_fit() -> None:
    sums = PairSums.of(contributions([(1, 1, 5)]))
    with pytest.raises(ParameterError, match="2 names"):
        sums.regroup(np.array([1, 2], dtype=np.uint64))
    with pytest.raises(ParameterError, match="unequal"):
        PairSums.group(sums.counts.cells, sums.counts.users, sums.sums, sums.sums, sums.sums[:0], upper=UPPER)


def test_sums_beyond_the_proof_of_exactness_are_refused_as_those_of_values_are() -> None:
    with pytest.raises(OverflowBoundError):
        group(MAX_TOTAL // UPPER + 1, 0, 0)
    with pytest.raises(OverflowBoundError):
        group(MAX_TOTAL // UPPER**2 + 1, 0, 0).cell_squares()


def test_parts_with_different_bounds_have_the_largest_of_them() -> None:
    """A smaller one would scale the noise to values that are no bound of the others."""
    narrow, wide = (group(2, 6, 20, upper=upper) for upper in (5, 50))
    assert PairSums.merged(narrow, wide).upper == PairSums.merged(wide, narrow).upper == 50
