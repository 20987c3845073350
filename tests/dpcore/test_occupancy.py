"""The expected users of cells: exact without noise, calibrated with it, and ratios over them do not lean to the
middle."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.occupancy import NoisyCounts, Occupancy, Users, users_in

CELLS, SCALE = 300, 4.0
"""Cells of a city, and the scale of the Laplace noise of each of two numbers per cell: ε = 0.25."""
NUMBERS = 2 * SCALE**2 * 2
"""Variance of the noise of a count, a sum of two numbers."""
NOTHING = Occupancy(np.zeros(CELLS), 0.0, 0.0, 0.0)


def windows(seed: int, hours: int):
    """True users of 300 cells, of which a quarter are ever visited, and noisy numbers (2, C) at a mean speed of U/4."""
    rng = np.random.default_rng(seed)
    usual = np.where(rng.random(CELLS) < 0.25, rng.gamma(1.0, 4.0, CELLS), 0.0)
    for _ in range(hours):
        users = rng.poisson(usual).astype(float)
        yield users, np.array([0.75, 0.25])[:, None] * users + rng.laplace(size=(2, CELLS)) * SCALE


def leaning(seed: int, expected_users) -> float:
    """Share of U by which a city's mean, of 12 windows, is off: least squares of the numerators on
    ``expected_users``."""
    past, top, bottom = NOTHING, 0.0, 0.0
    for _, numbers in windows(seed, 12):
        now = NoisyCounts(numbers.sum(axis=0), NUMBERS, 2)
        expected = expected_users(past, now)
        top += expected @ (numbers[1] - numbers[0]) / 2
        bottom += expected @ expected
        past = past.faded(1.0).after(now)
    return top / bottom + 0.5 - 0.25


def test_the_mean_over_expected_users_does_not_lean_to_the_middle_and_over_noisy_counts_it_does():
    """10 cities at ε = 0.25, whose mean is U/4: off by at most 3 % of U; the twin divides by counts that look large."""
    ours = [leaning(seed, lambda past, now: users_in(past, now).mean) for seed in range(10)]
    ratios = [leaning(seed, lambda past, now: np.where(now.counts > 3 * SCALE, now.counts, 0.0)) for seed in range(10)]
    assert abs(np.mean(ours)) <= 0.03
    assert np.mean(ratios) > 0.1, "noisy counts do not lean either, so this test shows nothing"


def test_expected_users_are_calibrated():
    """Over 10 cities: the sum of expected users is that of users within 15 %, and so is the sum of their products."""
    expected, products, squares, users = 0.0, 0.0, 0.0, 0.0
    for seed in range(10):
        past = NOTHING
        *earlier, (true, last) = windows(seed, 8)
        for _, numbers in earlier:
            past = past.faded(1.0).after(NoisyCounts(numbers.sum(axis=0), NUMBERS, 2))
        mean = users_in(past, NoisyCounts(last.sum(axis=0), NUMBERS, 2)).mean
        expected, users = expected + mean.sum(), users + true.sum()
        products, squares = products + mean @ true, squares + mean @ mean
    assert expected == pytest.approx(users, rel=0.15)
    assert products == pytest.approx(squares, rel=0.15)


def test_without_noise_users_are_what_was_counted():
    users = np.arange(12.0)
    now = NoisyCounts(users, 1e-8, 2)
    assert users_in(None, now).mean == pytest.approx(users, abs=1e-2)
    past = Occupancy(np.zeros(12), 0.0, 0.0, 0.0).after(now)
    assert users_in(past, NoisyCounts(users[::-1].copy(), 1e-8, 2)).mean[2:-2] == pytest.approx(
        users[::-1][2:-2], abs=1e-2
    )


@pytest.mark.parametrize("damaged", [(np.array([np.nan]), 0.0, 0.0, 0.0), (np.zeros(1), -1.0, 0.0, 0.0)])
def test_damaged_knowledge_is_refused(damaged):
    with pytest.raises(ParameterError):
        Occupancy(*damaged)


def test_a_count_of_all_users_moves_cells_by_what_is_not_known_of_them_and_an_uncertain_one_does_not() -> None:
    users = Users(np.array([10.0, 5.0, 0.0]), np.array([4.0, 1.0, 0.0]))
    assert users.adding_up_to(20.0, 0.0).mean == pytest.approx([14.0, 6.0, 0.0])
    assert users.adding_up_to(20.0, 1e12).mean == pytest.approx(users.mean)
    assert users.adding_up_to(20.0, 0.0).variance == pytest.approx([0.8, 0.8, 0.0])
    assert users.adding_up_to(-100.0, 0.0).mean.min() == 0.0
    known = Users(np.ones(3), np.zeros(3))
    assert known.adding_up_to(9.0, 1.0) is known
