"""Events are in the order of group, time and ties, whatever part of the time its key has room for."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.event_order import indexed, ordered, since_earliest


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
