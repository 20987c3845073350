"""Grouping of events into (cell, user) pairs is the sort by (cell, user, time, value), whichever way it is sorted."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.contributions import Contributions

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
