"""Means of one cell: black-box ε on worst-case neighbours.

n, α and power as in :mod:`tests.audit.blackbox`, ε = 1 unless a test says otherwise.
"""

from typing import Any

import numpy as np
import pytest

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import AutoMean, EpsilonQuantile, FixedQuantile, Levy, RangePlan
from tests.audit.blackbox import (
    FloatArray,
    N,
    assert_private,
    epsilon_lower_bound,
    samples,
)
from tests.support.nightly import nightly

UPPER = 40


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


@pytest.mark.parametrize("make", [nightly(Baseline), nightly(PooledMinimax), ArrayAveraging, nightly(AutoMean)])
def test_single_cell_mechanisms_are_private(make):
    mechanism, m = make(UPPER), np.array([3, 1, 2])
    plan = mechanism.plan(m, MICRO)
    user = int(np.argmax(plan.charges))
    pair = neighbours(m, user)
    assert_private(audited(mechanism, plan, pair), plan.charges[user] / MICRO)


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
