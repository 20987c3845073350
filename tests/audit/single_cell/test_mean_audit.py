"""Means and variance of one cell: black-box ε on worst-case neighbours, and the planted bugs it must catch.

n, α and power as in :mod:`tests.audit.blackbox`, ε = 1 unless a test says otherwise.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpcore.single_cell.mean
import dpcore.single_cell.range_mean
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import AutoMean, EpsilonQuantile, FixedQuantile, Levy, RangePlan
from tests.audit.blackbox import (
    FloatArray,
    N,
    Pooled,
    Replayed,
    assert_caught,
    assert_caught_within,
    assert_private,
    epsilon_lower_bound,
    half_scale,
    samples,
)
from tests.support.nightly import nightly

UPPER = 40
COUNTS = np.array([2, 2, 2])


def neighbours(m: np.ndarray, user: int, upper: int = UPPER) -> tuple[np.ndarray, np.ndarray]:
    """All values 0, and all values of ``user`` at the upper bound."""
    low = np.zeros(int(m.sum()), dtype=np.int64)
    high = low.copy()
    start = int(m[:user].sum())
    high[start : start + m[user]] = upper
    return low, high


Pair = tuple[np.ndarray, np.ndarray]


def released(mechanism: Any, plan: Any, pair: Pair, noise: Noise | None = None, n: int = N) -> list[FloatArray]:
    """``n`` released means of either side."""
    return [samples(lambda source, x=x: mechanism.release(x, plan, source).raw, noise, n) for x in pair]


def audited(mechanism: Any, plan: Any, pair: Pair) -> Any:
    return epsilon_lower_bound(*released(mechanism, plan, pair))


def refuted(
    mechanism: Any, plan: Any, pair: Pair, epsilon: float = 1.0, noise: Noise | None = None, n: int = N
) -> None:
    """A planted bug is caught."""
    assert_caught_within(n, lambda draws: released(mechanism, plan, pair, noise, draws), epsilon)


@pytest.mark.parametrize("make", [nightly(Baseline), nightly(PooledMinimax), ArrayAveraging, nightly(AutoMean)])
def test_single_cell_mechanisms_are_private_and_half_the_scale_is_not(make):
    mechanism, m = make(UPPER), np.array([3, 1, 2])
    plan = mechanism.plan(m, MICRO)
    user = int(np.argmax(plan.charges))
    pair = neighbours(m, user)
    assert_private(audited(mechanism, plan, pair), plan.charges[user] / MICRO)
    refuted(mechanism, plan, pair, plan.charges[user] / MICRO, half_scale())


def test_a_sum_over_k_under_the_noise_of_k_bar_is_caught_and_the_printed_pair_is_not(monkeypatch):
    """The talk prints 1/K before the sum and in the noise. That is private, but it is not a mean. With 1/K before the
    sum and our noise of 1/K̄, the release costs ε = 1.5.
    """
    mechanism, m = ArrayAveraging(UPPER, capacity=3), np.array([2, 2, 3])
    plan = mechanism.plan(m, MICRO)
    arrays = plan.grouping.n_arrays
    divisor = int(plan.retained.sum()) // plan.grouping.capacity
    assert (divisor, arrays) == (2, 3)
    pair = neighbours(m, 0)
    assert_private(audited(mechanism, plan, pair), 1.0)
    averages = dpcore.single_cell.mean.array_averages

    def inflated(*given: Any) -> np.ndarray:
        return averages(*given) * arrays // divisor

    monkeypatch.setattr(dpcore.single_cell.mean, "array_averages", inflated)
    refuted(mechanism, plan, pair)
    printed = replace(plan, numerator=plan.numerator * arrays, denominator=plan.denominator * divisor)
    assert_private(audited(mechanism, printed, pair), 1.0)


def test_noise_replayed_for_two_cells_is_caught():
    """A user is in the first of two cells; the releases of both, with fresh and with replayed noise.

    n = 1500 with fresh noise. Replayed noise cancels in the difference, which then tells for certain: at n = 400 the
    bound is above 2.8 with power 1.
    """
    mechanism = Baseline(UPPER)
    plan = mechanism.plan(COUNTS, MICRO)
    low, high = neighbours(COUNTS, 0)

    def both(x: np.ndarray, replay: bool, n: int) -> np.ndarray:
        rows, fresh = [], (Pooled(), Pooled())
        for _ in range(n):
            first, second = Replayed().fresh() if replay else fresh
            a, b = mechanism.release(x, plan, first).raw, mechanism.release(low, plan, second).raw
            rows.append((a, a - b))
        return np.array(rows)

    assert_private(epsilon_lower_bound(both(low, False, 1500), both(high, False, 1500)), 1.0)
    assert_caught(epsilon_lower_bound(both(low, True, 400), both(high, True, 400)), 1.0)


MANY = np.full(9, 400)
"""Nine arrays of 400: enough samples for Levy to narrow the range, few enough users to have a large share."""


def split(last: int, upper: int) -> np.ndarray:
    """Four users at 0, four at the bound, the ninth at ``last``: they decide where the median lies."""
    return np.repeat(np.array([0] * 4 + [upper] * 4 + [last]), 400)


@pytest.mark.parametrize("make", [Levy, nightly(FixedQuantile), nightly(EpsilonQuantile)])
def test_private_ranges_are_private_together_with_the_mean(make):
    """ε = 2. The outputs are (mean, scale), because the scale reveals the width of the range."""
    mechanism = make(800)
    plan = mechanism.plan(MANY, 2 * MICRO)
    assert isinstance(plan, RangePlan)

    def outputs(x: np.ndarray, noise: Noise | None = None) -> np.ndarray:
        def draw(source: Noise) -> tuple[float, float]:
            drawn = mechanism.release(x, plan, source)
            return drawn.raw, drawn.scale

        return samples(draw, noise, 2000)

    pair = split(0, 800), split(800, 800)
    assert_private(epsilon_lower_bound(*(outputs(x) for x in pair)), 2.0)
