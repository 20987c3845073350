"""Residual clipping: sensitivities by brute force, the undoing against samples, and ranges that follow noise and
jams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpcore.contributions import Contributions
from dpcore.errors import ParameterError
from dpcore.pair_sums import PairSums
from dpcore.residual import WIDEST, Forecast, ResidualMean, Response, choose_ranges, widened

U = 6


def _worlds(own: tuple[int, ...]) -> Contributions:
    """User 1 has the values ``own`` in cells 1, 1, 2; user 2 has fixed ones."""
    cell, user = np.array([1, 1, 2, 1, 2, 2]), np.array([1, 1, 1, 2, 2, 2])
    value = np.array([*own, 5, 0, 6])
    return Contributions.group(
        cell.astype(np.uint64), user.astype(np.uint64), np.arange(6, dtype=np.int64), value, upper=U
    )


def _most_moved(ranges) -> np.ndarray:
    """Largest change of each cell's integer over all pairs of worlds; ``ranges`` gives (lower, upper) of a world."""
    integers = []
    for own in itertools.product(range(U + 1), repeat=3):
        world = _worlds(own)
        mean = ResidualMean(*ranges(world), U, np.ones(2))
        assert np.array_equal(mean.integers(world), mean.integers(PairSums.of(world))), "sums say what values say"
        integers.append(mean.integers(world))
    return np.ptp(np.array(integers), axis=0)


def _sensitivities(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    world = _worlds((0, 0, 0))
    delta = ResidualMean(lower, upper, U, np.ones(2)).sensitivities(world.counts, world.counts.samples)
    return delta[world.counts.pair_user == 0]


@pytest.mark.parametrize(("lower", "upper"), [((0, 0), (6, 6)), ((2, 1), (4, 5)), ((5, 0), (6, 1))])
def test_a_user_moves_a_cell_by_the_sensitivity_and_no_less_can_be_charged(lower, upper):
    lower, upper = np.array(lower), np.array(upper)
    assert np.array_equal(_most_moved(lambda world: (lower, upper)), _sensitivities(lower, upper))


def test_ranges_that_follow_the_true_data_are_caught():
    def around_the_truth(world: Contributions) -> tuple[np.ndarray, np.ndarray]:
        means = world.cell_sums() // world.counts.by_cell(world.counts.samples)
        return np.clip(means - 1, 0, U - 2), np.clip(means - 1, 0, U - 2) + 2

    moved = _most_moved(around_the_truth)
    assert np.any(moved > _sensitivities(np.array([0, 0]), np.array([2, 2])))


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
    """By bisection over samples' law: integrates numerically, without the code under test."""
    grid = np.linspace(-6, 6, 4001)
    weight = np.exp(-(grid**2) / 2)
    low, high = -60.0, 120.0
    for _ in range(60):
        middle = (low + high) / 2
        value = np.average(np.clip(middle + spread * grid, 0, top), weights=weight)
        low, high = (middle, high) if value < mean else (low, middle)
    return (low + high) / 2


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


def test_ranges_that_are_none_are_refused():
    one = np.ones(1)
    for lower, upper, gain in ((3, 3, one), (-1, 3, one), (0, 7, one), (0, 3, 0 * one)):
        with pytest.raises(ParameterError):
            ResidualMean(np.array([lower]), np.array([upper]), U, gain)
