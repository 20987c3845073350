"""1/n variance of one cell: sensitivity and bias by brute force, defined results for degenerate cells."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpcore.budget import MICRO
from dpcore.errors import BudgetError, DPError, OverflowBoundError, ParameterError
from dpcore.noise import Noise
from dpcore.variance import Variance
from tests.dpcore.silence import Silence


@pytest.mark.parametrize("capacity", [None, 1, 2])
@pytest.mark.parametrize("samples", [(2, 1), (2, 2, 1), (3, 2), (5, 2)])
def test_sensitivity_and_bias_are_the_worst_by_brute_force(samples: tuple[int, ...], capacity: int | None) -> None:
    """Exhaustive over {0, U/2, U}: convex in each value, so the corners are worst."""
    upper, m = 8, np.array(samples)
    mechanism = Variance(upper, capacity)
    plan = mechanism.plan(m, 600_000)
    owner = np.repeat(np.arange(len(m)), m)
    found, bias = {}, 0.0
    for values in itertools.product((0, 4, 8) if len(owner) < 6 else (0, 8), repeat=len(owner)):
        found[values] = mechanism.release(np.array(values), plan, Silence()).raw
        bias = max(bias, abs(found[values] - np.var(values)))
    assert bias <= plan.bias_bound + 1e-9
    assert bias >= plan.bias_bound - 1 - 1e-9
    for user in range(len(m)):
        groups: dict[tuple[int, ...], list[float]] = {}
        for values, raw in found.items():
            groups.setdefault(tuple(v for v, o in zip(values, owner, strict=True) if o != user), []).append(raw)
        worst = round(max(max(group) - min(group) for group in groups.values()))
        assert worst <= plan.sensitivities[user] <= worst + 1
        assert Fraction(worst * plan.denominator * MICRO, max(plan.numerator, 1)) <= int(plan.charges[user]) <= 600_000


def test_intervals_cover_and_the_scale_is_in_square_quanta() -> None:
    """n = 2000 draws, α = 1e-6."""
    rng = np.random.default_rng(1)
    m = rng.integers(1, 20, 30)
    values = np.clip(rng.normal(300, 80, int(m.sum())), 0, 800).astype(np.int64)
    mechanism = Variance(800, grid=4)
    plan = mechanism.plan(m, 4 * MICRO)
    truth = mechanism.release(values, plan, Silence()).raw
    assert truth == pytest.approx(values.var(), abs=4)
    noise = Noise()
    draws = [mechanism.release(values, plan, noise) for _ in range(2000)]
    assert stats.binomtest(sum(e.low <= truth <= e.high for e in draws), 2000, 0.95).pvalue > 1e-6
    assert np.mean([abs(e.raw - truth) for e in draws]) == pytest.approx(plan.scale, rel=0.15)
    assert all(0 <= e.value <= 160_000 for e in draws)


@pytest.mark.parametrize(("upper", "samples", "expected"), [(800, (1,), 0.0), (0, (3, 2), 0.0)])
def test_what_nobody_can_move_is_released_without_noise_or_charge(
    upper: int, samples: tuple[int, ...], expected: float
) -> None:
    m = np.array(samples)
    plan = Variance(upper).plan(m, MICRO)
    drawn = Variance(upper).release(np.full(int(m.sum()), 500), plan, Noise())
    assert (drawn.raw, drawn.low, drawn.high) == (expected, expected, expected)
    assert (plan.charges == 0).all()


def test_equal_values_and_one_user_get_noise_all_the_same() -> None:
    plan = Variance(800).plan(np.array([4]), MICRO)
    drawn = Variance(800).release(np.full(4, 500), plan, Noise())
    assert drawn.scale == 160_000
    assert 0 <= drawn.value <= 160_000


@pytest.mark.parametrize(
    ("mechanism", "samples", "micro", "error"),
    [
        (Variance(800), [], MICRO, ParameterError),
        (Variance(800), [0], MICRO, ParameterError),
        (Variance(-1), [2], MICRO, ParameterError),
        (Variance(800, capacity=0), [2], MICRO, ParameterError),
        (Variance(800, capacity=3), [2], MICRO, ParameterError),
        (Variance(800, grid=0), [2], MICRO, ParameterError),
        (Variance(800), [2], 0, BudgetError),
        (Variance(800), [2], math.nan, BudgetError),
        (Variance(2**31), [2], MICRO, OverflowBoundError),
    ],
)
def test_bad_input_is_refused(mechanism: Variance, samples: list[int], micro: Any, error: type[DPError]) -> None:
    with pytest.raises(error):
        mechanism.plan(np.array(samples, dtype=np.int64), micro)
