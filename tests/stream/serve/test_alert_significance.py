"""The false-alarm rate that a rule states is kept, whatever the exact means are.

Noise is recorded. n, α and power of each test stand beside it.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpcore.arrays import FloatArray
from dpcore.bernstein import NoisyPolynomials
from dpcore.gaussian import discrete_gaussian
from dpcore.noise import Noise
from stream.serve.alerts.rules import (
    ROUNDED,
    chance_below,
    chance_ratio_below,
    chance_slower,
    gaussian_tail,
    laplace_tail,
    level,
)

HOUR = 3600.0
CELLS, DAYS, A_DAY = 200, 40, 2.0
WINDOWS = DAYS * 24
MISTAKE = 1e-4
"""α: probability that a test of a correct rate fails."""

Level = Callable[[float, float, int], float]


def uncorrected(false_alarms_per_day: float, seconds: float, cells: int) -> float:
    """The planted bug: as if there were one cell only."""
    return level(false_alarms_per_day, seconds, 1)


def laplace(shape: tuple[int, ...], quanta: int) -> FloatArray:
    """Discrete Laplace noise in km/h, of scale ``quanta`` · 0.001 km/h."""
    return Noise().discrete_laplace(quanta, size=math.prod(shape)).reshape(shape) * 0.001


def false_alarms(chances: FloatArray, level_of: Level) -> tuple[int, int]:
    """(False alarms in windows of the given ``chances`` (W, C), most that a correct rate gives with probability 1 −
    α)."""
    windows, cells = chances.shape
    alarms = int((chances <= level_of(A_DAY, HOUR, cells)).sum())
    return alarms, int(stats.poisson.isf(MISTAKE, A_DAY * windows / 24))


@pytest.mark.parametrize("level_of", [level, uncorrected], ids=["corrected", "planted-bug"])
def test_a_rule_below_errs_no_more_often_than_it_states_unless_it_forgets_the_cells(level_of):
    """192 000 cells whose exact mean is the limit itself: the worst case. 80 false alarms are expected, power 1 against
    ×200."""
    values = np.round(20.0 + laplace((WINDOWS, CELLS), 1500), 3)
    chances = np.array([chance_below(row, np.full(CELLS, 1.5), 20.0) for row in values])
    alarms, most = false_alarms(chances, level_of)
    assert (alarms <= most) == (level_of is level)
    if level_of is level:
        assert alarms > 0.6 * A_DAY * DAYS, "the bound is not far above the rate"


@pytest.mark.parametrize(
    ("level_of", "known"),
    [(level, 1.0), (uncorrected, 1.0), (level, 1e-9)],
    ids=["corrected", "planted-no-cells", "planted-usual-without-noise"],
)
def test_a_rule_against_usual_errs_no_more_often_than_it_states(level_of, known):
    """n = 48 000 cells in ten days, 20 false alarms at most are expected; the exact mean is exactly 5 km/h below usual.

    Usual has most of the noise: that of four windows of scales 2.4 to 3.6 km/h, beside which the window itself has 0.2
    km/h. A bound that takes only the share ``known`` of the earlier scales, which leaves their weights, knows nothing
    of it: power 1.
    """
    widths = np.array([2400, 3000, 3600, 2700])
    exact = np.array([28.0, 31.0, 30.0, 33.0])
    weights = widths**-2.0 / (widths**-2.0).sum()
    chances = np.empty((WINDOWS // 4, CELLS))
    now = exact @ weights - 5.0 + laplace(chances.shape, 200)
    past = exact[:, None, None] + np.array([laplace(chances.shape, width) for width in widths])
    scales = np.repeat(known * widths[:, None] / 1000, CELLS, axis=1)
    for row in range(len(chances)):
        chances[row], _, _ = chance_slower((now[row], np.full(CELLS, 0.2)), (past[:, row], scales), 1.0, 5.0)
    alarms, most = false_alarms(chances, level_of)
    assert (alarms <= most) == (level_of is level and known == 1.0)


@pytest.mark.parametrize("gaussian", [False, True], ids=["laplace", "gauss"])
@pytest.mark.parametrize("degree", [1, 2])
def test_a_rule_below_holds_for_ratios_of_noisy_numbers(degree, gaussian):
    """n = 20 000 cells of 12 users whose exact mean is the limit; at level 1e-3 at most 20 alarms are expected."""
    n, share, count, scale = 20_000, 0.4, 12.0, 1.5
    exact = count * stats.binom.pmf(np.arange(degree + 1), degree, share)
    size, quanta = (degree + 1) * n, int(scale * 1000)
    integers = (
        discrete_gaussian(Noise(), quanta, size=size) if gaussian else Noise().discrete_laplace(quanta, size=size)
    )
    noise = integers / 1000
    sums = NoisyPolynomials(exact[:, None] + noise.reshape(degree + 1, n), scale * (1 if gaussian else math.sqrt(2)))
    scales = np.full(n, scale * math.sqrt(degree + 1))
    chances = chance_ratio_below(
        sums.mean(1.96).value, np.round(sums.count, 1), scales, np.full(n, share), degree=degree, gaussian=gaussian
    )
    assert (chances <= 1e-3).sum() <= stats.binom.isf(MISTAKE, n, 1e-3)
    assert (chances <= 0.2).sum() > 0, "the bound is not trivial"


def exact_tail(t: float, scales: FloatArray) -> float:
    """P(Σ Lᵢ >= t) for distinct Laplace scales, by partial fractions of their characteristic function."""
    squares = scales**2
    parts = [square / (square - np.delete(squares, i)) for i, square in enumerate(squares)]
    return sum(0.5 * math.exp(-t / b) * float(np.prod(part)) for b, part in zip(scales, parts, strict=True))


@pytest.mark.parametrize(
    "scales", [(1.0,), (1.0, 0.3), (1.0, 0.9, 0.2), (0.2, 1.0, 0.35, 0.25, 0.3)], ids=lambda scales: str(len(scales))
)
def test_the_tail_of_laplace_noise_is_bounded_and_closely(scales):
    distances = np.linspace(3.0, 30.0, 28)
    bound = laplace_tail(distances, np.repeat(np.array(scales)[:, None], len(distances), axis=1))
    exact = np.array([exact_tail(float(t), np.array(scales)) for t in distances])
    assert np.all(bound >= exact * (1 - 1e-9))
    assert np.all(bound < 3 * exact)


def test_equal_scales_and_no_noise_are_bounded_too_and_what_rounding_explains_is_no_alarm():
    """Of two equal scales b the exact tail is (2 + t/b)/4 · exp(−t/b)."""
    t = np.array([10.0])
    two = laplace_tail(t, np.ones((2, 1)))[0]
    assert (2 + 10) / 4 * math.exp(-10) <= two < 1e-2
    assert laplace_tail(t, np.zeros((2, 1)))[0] == 1.0
    assert laplace_tail(-t, np.ones((1, 1)))[0] == 1.0
    assert stats.norm.sf(3.0) <= gaussian_tail(np.array([3.0]), np.array([1.0]))[0] < 0.02
    assert chance_below(np.array([20.0 - ROUNDED]), np.array([1e-6]), 20.0)[0] == 1.0


def test_fewer_than_three_earlier_windows_say_nothing():
    now, earlier = (np.zeros(1), np.full(1, 0.1)), (np.full((2, 1), 50.0), np.full((2, 1), 0.1))
    chance, usual, _ = chance_slower(now, earlier, 1.0, 5.0)
    assert chance[0] == 1.0
    assert math.isnan(usual[0])
