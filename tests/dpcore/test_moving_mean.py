"""Means of moving reports: joint sensitivity of sum and number by brute force, charges, and the mean that they give."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from dpcore.cdf import ONE_SIDED
from dpcore.contributions import Contributions
from dpcore.errors import ParameterError
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales
from tests.dpcore.worst_changes import group
from tests.support.tapes import tape

VALUES = (0, 2, 3, 5, 7, 10)
"""Standing at 0 and 2, moving from 3 on, U = 10; 3 and 10 are the ends between which a moving value can change."""


def worst(number: MovingMean, rows: list[tuple[int, int, int, int]], user: int) -> Fraction:
    """Largest L1 change of both integers of one cell by the values of one user, whatever the others' are (they add
    up)."""
    mine = [at for at, (_, owner, _, _) in enumerate(rows) if owner == user]
    seen = set()
    for own in itertools.product(VALUES, repeat=len(mine)):
        values = dict(zip(mine, own, strict=True))
        changed = [(c, u, k, values.get(at, 10)) for at, (c, u, k, _) in enumerate(rows)]
        seen.add(tuple(number.integers(group(changed, 10))[:, 0].tolist()))
    return max(Fraction(abs(a - c) + abs(b - d)) for (a, b), (c, d) in itertools.product(seen, repeat=2))


@pytest.mark.parametrize("samples", [(1,), (2, 1), (3, 2), (4, 1)])
def test_sum_and_number_together_move_by_the_sensitivity_and_no_more(samples: tuple[int, ...]) -> None:
    number = MovingMean(10, 3)
    rows = [(1, user, k, 0) for user, m in enumerate(samples) for k in range(m)]
    counts = group(rows, 10).counts
    claimed = number.sensitivities(counts, counts.samples).tolist()
    assert [worst(number, rows, user) for user in range(len(samples))] == claimed == [14 * m for m in samples]


def test_a_user_is_charged_for_both_numbers_in_each_of_their_cells() -> None:
    counts = group([(1, 1, 0, 0), (1, 1, 1, 0), (2, 1, 2, 0), (2, 2, 3, 0)], 10).counts
    scales = LaplaceScales(np.array([140, 70]), np.array([1, 1]))
    assert MovingMean(10, 3).charges(counts, counts.samples, scales).tolist() == [200_000 + 200_000, 200_000]


def test_without_noise_the_mean_is_that_of_moving_reports_alone_and_the_number_theirs() -> None:
    number = MovingMean(10, 3)
    kept = group([(1, 1, 0, 0), (1, 1, 1, 2), (1, 2, 2, 4), (1, 2, 3, 9), (2, 1, 4, 1)], 10)
    noisy = number.draw(kept, np.zeros((2, 2), dtype=np.int64))
    assert number.number(noisy).tolist() == [2.0, 0.0]
    ratio = number.mean(noisy, np.full(2, 1e-9), ONE_SIDED)
    assert 3 + 7 * ratio.value[0] == pytest.approx(6.5)
    assert (ratio.low[1], ratio.high[1]) == (0.0, 1.0), "where none moves, nothing is known"


def test_the_interval_of_the_mean_holds_it_in_95_of_100_draws_also_where_few_move() -> None:
    """16 cells of 4 to 64 moving reports and as many standing, 4 000 draws: 64 000 intervals, at least 95 % less 5
    standard errors."""
    number, movers, rng = MovingMean(6500, 500), np.arange(4, 65, 4), np.random.default_rng(1)
    cell = np.repeat(np.arange(len(movers)), 2 * movers)
    value = np.where(np.arange(len(cell)) % 2, rng.integers(500, 6500, len(cell)), 0)
    user = np.arange(len(cell), dtype=np.uint64)
    kept = Contributions.group(cell.astype(np.uint64), user, np.arange(len(cell)), value, upper=6500)
    truth = [(kept.values[cell == g][kept.values[cell == g] > 0].mean() - 500) / 6000 for g in range(len(movers))]
    scale = LaplaceScales(np.full((2, 1), 12_000), np.ones((2, 1), dtype=np.int64))
    noise, inside = Noise(tape(3)), 0
    for _ in range(4000):
        drawn = np.broadcast_to(scale.numerator, (2, len(movers)))
        noisy = number.draw(kept, noise.discrete_laplace(drawn))
        ratio = number.mean(noisy, np.full(len(movers), 12_000 * np.sqrt(2)), ONE_SIDED)
        inside += int(((ratio.low <= truth) & (truth <= ratio.high)).sum())
    share = inside / (4000 * len(movers))
    assert 0.95 - 5 * np.sqrt(0.05 * 0.95 / (4000 * len(movers))) <= share <= 0.99


@pytest.mark.parametrize(("upper", "least"), [(10, 0), (10, 10), (10, -1), (500, 700)])
def test_a_threshold_that_everything_or_nothing_passes_is_refused(upper: int, least: int) -> None:
    with pytest.raises(ParameterError, match="moving from"):
        MovingMean(upper, least)
