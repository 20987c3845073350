"""Grouping of events into (cell, user) pairs is the sort by (cell, user, time, value), whichever way it is sorted.
Integers of relation "participation": bins are never more than values, and samples count in a listed cell or not at all.
Residual clipping: sensitivities by brute force, the undoing against samples, and ranges that follow noise and jams."""

import numpy as np
import pytest
from scipy import optimize

from dpcore.budget import rolling_grants
from dpcore.cdf import bin_edges
from dpcore.contributions import Contributions
from dpcore.errors import ParameterError
from dpcore.event_order import indexed, ordered, since_earliest
from dpcore.participation import UNIT, Layout, PublicCells, Weight, integers
from dpcore.residual import WIDEST, Forecast, ResidualMean, Response, choose_ranges, widened
from tests.dpcore.programs import group, in_one_cell, worst_changes

UPPER = 50


@pytest.mark.parametrize("span", [3, 10_000, 2**62], ids=["repeated times", "one packed key", "too wide to pack"])
def test_events_are_grouped_as_a_literal_sort_groups_them(span):
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


@pytest.mark.parametrize("span", [1, 60, 2**20, 2**40])
@pytest.mark.parametrize("groups", [1, 5, 2**30, 2**58])
def test_events_come_in_the_order_that_sorting_by_every_column_gives(groups, span):
    """With 2^58 groups a key has no room for time, so groups are counted first; with a span of 2^40 it has room for a
    part. Many events are equal."""
    rng = np.random.default_rng([groups, span])
    for n in (0, 1, 2, 300, 5_000):
        time = rng.integers(0, max(span // 7, 1), n) * 7 + rng.integers(0, 2, n)
        group, value = rng.integers(0, groups, n), rng.integers(-3, 4, n).astype(np.int32)
        if groups > 5:
            group = rng.choice(group, n) if n else group  # some groups have several events, whatever their numbers
        expected = np.lexsort((value, time, group))
        order, first, distinct = ordered(group.copy(), since_earliest(time)[1], value)
        for column in (group, time, value):
            assert column[order].tolist() == column[expected].tolist()
        assert np.sort(order).tolist() == list(range(n))
        assert distinct.tolist() == np.unique(group).tolist()
        assert group[order][first].tolist() == distinct.tolist()


def test_times_are_kept_since_the_earliest_in_32_bits_where_they_fit():
    for span, kind in ((2**32 - 1, np.uint32), (2**32, np.int64)):
        time = np.array([-5 + span, -5, 40])
        earliest, since = since_earliest(time)
        assert (earliest, since.dtype) == (-5, kind)
        assert (since.astype(np.int64) + earliest).tolist() == time.tolist()
    assert since_earliest(np.zeros(0, dtype=np.int64))[1].size == 0


def test_ids_whose_places_collide_are_still_looked_up():
    """3 000 ids of which many share a place in the table, and ids at both ends of 64 bits."""
    rng = np.random.default_rng(3)
    ids = np.concatenate(
        [rng.integers(0, 2**64 - 1, 3_000, dtype=np.uint64), np.array([0, 2**64 - 1], dtype=np.uint64)]
    )
    column = rng.choice(ids, 200_000)
    distinct, position = indexed(column)
    assert distinct.tolist() == np.unique(column).tolist()
    assert np.array_equal(distinct[position], column)


def layout(upper: int, bins: int, *, percentiles: bool = True, weight: Weight = "user") -> Layout:
    return Layout.of(mean=True, variance=False, percentiles=percentiles, weight=weight, upper=upper, bins=bins)


def ids(*cells: int) -> np.ndarray:
    return np.array(cells, dtype=np.uint64)


@pytest.mark.parametrize("bins", [4, 6, 10, 4096])
def test_the_leaves_of_every_tree_are_the_bins_of_its_edges_also_where_more_bins_than_values_are_asked_for(bins):
    """Values 0 … 5: six bins at most, of one value each. Every value is found in its own bin of its own cell."""
    asked = layout(5, bins)
    edges = bin_edges(5, bins)
    assert asked.tree.bins == len(edges) - 1 == min(bins, 6)
    values = np.arange(6)
    kept = Contributions.group(ids(7, 7, 7, 9, 9, 9), ids(*range(6)), values, values, upper=5)
    exact = integers(asked, kept, PublicCells(ids(7, 8, 9)))
    assert exact.shape == (asked.rows.sum(), 3)
    leaves = exact[-asked.tree.real_nodes()[-1] :] // UNIT
    for column, own in zip(leaves.T, (values[:3], values[:0], values[3:]), strict=True):
        assert column.tolist() == np.histogram(own, bins=edges)[0].tolist()


@pytest.mark.parametrize("weight", ["share", "user", "sample"])
@pytest.mark.parametrize("unlisted", [1, 5, 12])
def test_samples_of_an_unlisted_cell_are_refused_instead_of_counted_in_the_next_listed_one(unlisted, weight):
    """Pairs without samples, as users' own choice leaves them, may lie anywhere."""
    asked, public = layout(100, 4, weight=weight), PublicCells(ids(2, 9))
    kept = Contributions.group(ids(unlisted, 9), ids(1, 2), np.arange(2), np.array([50, 50]), upper=100)
    with pytest.raises(ParameterError, match=r"none of the 2 listed cells; keep what Participation\.own_choice keeps"):
        integers(asked, kept, public)
    without = kept.retain(np.where(kept.counts.cells[kept.counts.pair_cell] == 9, 1, 0))
    alone = Contributions.group(ids(9), ids(2), np.array([1]), np.array([50]), upper=100)
    assert integers(asked, without, public).tolist() == integers(asked, alone, public).tolist()


@pytest.mark.parametrize("budget", [0, 1, 39, 10**6])
def test_grants_of_a_period_add_up_to_the_budget_at_most(budget):
    """250 users charge none, half or all of their grants in each of 40 windows."""
    rng, spent = np.random.default_rng(0), np.zeros(250, dtype=np.int64)
    for left in range(40, 0, -1):
        spent += np.floor(rng.choice([0.0, 0.5, 1.0], 250) * rolling_grants(budget, spent, left)).astype(np.int64)
    assert spent.max() <= budget


def test_whoever_was_absent_gets_what_they_did_not_spend_and_the_last_window_gets_all():
    spent = np.array([0, 400, 1000, 1500])
    assert rolling_grants(1000, spent, 4).tolist() == [250, 150, 0, 0]
    assert rolling_grants(1000, spent, 0).tolist() == [1000, 600, 0, 0]
    assert rolling_grants(1000, spent, np.array([1, 2, 3, 4])).tolist() == [1000, 300, 0, 0]


@pytest.mark.parametrize(("lower", "upper"), [(0, 6), (2, 4), (5, 6), (1, 5), (0, 1)])
def test_a_user_moves_a_cell_by_the_sensitivity_and_no_less_can_be_charged(lower, upper):
    mean = ResidualMean(np.array([lower]), np.array([upper]), 6, np.ones(1))
    for samples in ((1, 1), (2, 1), (3, 2)):
        counts = group(in_one_cell(samples), 6).counts
        claimed = mean.sensitivities(counts, counts.samples).tolist()
        assert worst_changes(samples, (0, 3, 4, 6), 6, mean.integers) == claimed


def test_the_undone_mean_of_normal_users_is_their_mean_and_without_undoing_it_is_not():
    """200 000 users each: standard error 0.03 before undoing, 0.2 after; 5 of them are allowed."""
    rng, spread, top = np.random.default_rng(1), 13.0, 65.0
    for forecast, shift in ((20.0, 4.0), (40.0, -5.0), (8.0, 2.0)):
        location = Response.of(np.array([forecast + shift]), np.array([0.0]), np.array([top]), spread, top)
        reach = 6.0
        lower, upper = np.array([max(forecast - reach, 0.0)]), np.array([forecast + reach])
        response = Response.of(np.array([forecast]), lower, upper, spread, top)
        users = np.clip(rng.normal(_normal_location(forecast + shift, spread, top), spread, 200_000), 0, top)
        clipped = np.array([np.clip(users, lower[0], upper[0]).mean()])
        assert location.forecast[0] == pytest.approx(users.mean(), abs=0.2)
        assert response.undone(clipped)[0] == pytest.approx(users.mean(), abs=1.0)
        assert abs(clipped[0] - users.mean()) > 1.5, "clipping alone is biased"


def _normal_location(mean: float, spread: float, top: float) -> float:
    """By a search over samples' law: integrates numerically, without the code under test."""
    grid = np.linspace(-6, 6, 4001)
    weight = np.exp(-(grid**2) / 2)

    def off(middle: float) -> float:
        return np.average(np.clip(middle + spread * grid, 0, top), weights=weight) - mean

    return float(optimize.brentq(off, -60.0, 120.0))


def test_without_bounds_the_gain_is_the_error_function():
    response = Response.of(np.array([500.0]), np.array([490.0]), np.array([510.0]), 10.0, 1000.0)
    assert response.gain[0] == pytest.approx(0.6827, abs=1e-4)
    assert response.expected[0] == pytest.approx(500.0)


def test_ranges_are_narrow_where_noise_is_large_and_whole_where_there_is_next_to_none():
    forecast = Forecast(np.full(3, 2000.0), np.full(3, 600.0), np.array([1.0, 1.0, 4.0]))
    lower, upper = choose_ranges(forecast, np.array([20_000.0, 1.0, 20_000.0]), spread=1300.0, top=6500)
    assert upper[0] - lower[0] < 6500 / 3
    assert (lower[1], upper[1]) == (0, 6500)
    assert upper[2] - lower[2] > 2 * (upper[0] - lower[0]), "a widened range is wider"


def test_a_release_at_the_edge_doubles_the_next_range_and_one_inside_halves_it():
    response = Response.of(np.full(3, 30.0), np.full(3, 20.0), np.full(3, 40.0), 13.0, 65.0)
    after = widened(
        np.array([1.0, 4.0, WIDEST]), np.array([21.0, 30.0, 40.0]), response, np.full(3, 10.0), np.full(3, 1.0)
    )
    assert after.tolist() == [2.0, 2.0, WIDEST]
