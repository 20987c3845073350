"""Grouping of events into (cell, user) pairs is the sort by (cell, user, time, value), whichever way it is sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.contributions import MAX_TOTAL, Contributions
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.event_order import indexed, ordered, since_earliest
from dpcore.mean import Mean
from dpcore.pair_sums import PairSums
from dpcore.variance import Variance

UPPER = 50


@pytest.mark.parametrize("span", [3, 10_000, 2**62], ids=["repeated times", "one packed key", "too wide to pack"])
def test_events_are_grouped_as_a_literal_sort_groups_them(span: int) -> None:
    """60 windows of up to 200 events: cells, users, times and values in order, values clipped, sums per user and
    cell."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        n = int(rng.integers(0, 201))
        cell = rng.choice(np.array([7, 2**63, 12], dtype=np.uint64), n)
        user = rng.integers(1, 2**64 - 1, 6, dtype=np.uint64)[rng.integers(0, 6, n)]
        time, value = rng.integers(-span, span, n), rng.integers(-10, 70, n)
        contributions = Contributions.group(cell, user, time, value, upper=UPPER)
        events = sorted(zip(cell.tolist(), user.tolist(), time.tolist(), value.tolist(), strict=True))
        counts = contributions.counts
        pair = np.repeat(np.arange(len(counts.samples)), counts.samples)
        assert counts.cells[counts.pair_cell[pair]].tolist() == [event[0] for event in events]
        assert counts.users[counts.pair_user[pair]].tolist() == [event[1] for event in events]
        assert contributions.times.tolist() == [event[2] for event in events]
        assert contributions.values.tolist() == [min(max(event[3], 0), UPPER) for event in events]
        of_user = [sum(event[1] == one for event in events) for one in counts.users.tolist()]
        assert counts.by_user(counts.samples).tolist() == of_user
        assert np.diff(contributions.pair_start).tolist() == counts.samples.tolist()


def in_doubt(rng: np.random.Generator, n: int, groups: int, span: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups, times and values of ``n`` events, among them many that are equal."""
    time = rng.integers(0, max(span // 7, 1), n) * 7 + rng.integers(0, 2, n)
    return rng.integers(0, groups, n), time, rng.integers(-3, 4, n).astype(np.int32)


@pytest.mark.parametrize("span", [1, 60, 2**20, 2**40])
@pytest.mark.parametrize("groups", [1, 5, 2**30, 2**58])
def test_events_come_in_the_order_that_sorting_by_every_column_gives(groups: int, span: int) -> None:
    """With 2^58 groups a key has no room for time, so groups are counted first; with a span of 2^40 it has room for a
    part."""
    rng = np.random.default_rng([groups, span])
    for n in (0, 1, 2, 300, 5_000):
        group, time, value = in_doubt(rng, n, groups, span)
        if groups > 5:
            group = rng.choice(group, n) if n else group  # some groups have several events, whatever their numbers
        expected = np.lexsort((value, time, group))
        order, first, distinct = ordered(group.copy(), since_earliest(time)[1], value)
        for column in (group, time, value):
            assert column[order].tolist() == column[expected].tolist()
        assert np.sort(order).tolist() == list(range(n))
        assert distinct.tolist() == np.unique(group).tolist()
        assert group[order][first].tolist() == distinct.tolist()


def test_times_are_kept_since_the_earliest_in_32_bits_where_they_fit() -> None:
    for span, kind in ((2**32 - 1, np.uint32), (2**32, np.int64)):
        time = np.array([-5 + span, -5, 40])
        earliest, since = since_earliest(time)
        assert (earliest, since.dtype) == (-5, kind)
        assert (since.astype(np.int64) + earliest).tolist() == time.tolist()
    assert since_earliest(np.zeros(0, dtype=np.int64))[1].size == 0


def test_ids_whose_places_collide_are_still_looked_up() -> None:
    """3 000 ids of which many share a place in the table, and ids at both ends of 64 bits."""
    rng = np.random.default_rng(3)
    ids = np.concatenate(
        [rng.integers(0, 2**64 - 1, 3_000, dtype=np.uint64), np.array([0, 2**64 - 1], dtype=np.uint64)]
    )
    column = rng.choice(ids, 200_000)
    distinct, position = indexed(column)
    assert distinct.tolist() == np.unique(column).tolist()
    assert np.array_equal(distinct[position], column)


MOST = 50
EVENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(-20, 80)), max_size=60)


def contributions(events: list[tuple[int, int, int]]) -> Contributions:
    cell, user, value = np.array(events, dtype=np.int64).reshape(-1, 3).T
    return Contributions.group(
        cell.astype(np.uint64), user.astype(np.uint64), np.arange(len(cell)), value.copy(), upper=MOST
    )


def assert_same(sums: PairSums, values: Contributions) -> None:
    for name in ("cells", "users", "pair_cell", "pair_user", "samples"):
        assert getattr(sums.counts, name).tolist() == getattr(values.counts, name).tolist(), name
    caps = np.arange(values.counts.n_cells) * 30
    noise = np.arange(values.counts.n_cells) - 2
    for statistic in (Mean(MOST), Mean(MOST, caps), Variance(MOST, 3)):
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
    among = Contributions.group(cell[chosen], user[chosen], values.times[chosen], values.values[chosen], upper=MOST)
    assert_same(sums.among(pairs), among)


@given(EVENTS, EVENTS)
def test_parts_of_a_pair_are_added(first: list[tuple[int, int, int]], second: list[tuple[int, int, int]]) -> None:
    together = PairSums.merged(*(PairSums.of(contributions(events)) for events in (first, second)))
    assert_same(together, contributions(first + second))


def group(samples: int, total: int, squares: int, upper: int = MOST) -> PairSums:
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
        PairSums.group(sums.counts.cells, sums.counts.users, sums.sums, sums.sums, sums.sums[:0], upper=MOST)


def test_sums_beyond_the_proof_of_exactness_are_refused_as_those_of_values_are() -> None:
    with pytest.raises(OverflowBoundError):
        group(MAX_TOTAL // MOST + 1, 0, 0)
    with pytest.raises(OverflowBoundError):
        group(MAX_TOTAL // MOST**2 + 1, 0, 0).cell_squares()


def test_parts_with_different_bounds_have_the_largest_of_them() -> None:
    """A smaller one would scale the noise to values that are no bound of the others."""
    narrow, wide = (group(2, 6, 20, upper=upper) for upper in (5, 50))
    assert PairSums.merged(narrow, wide).upper == PairSums.merged(wide, narrow).upper == 50
