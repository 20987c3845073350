"""Bernstein sums: one user's weight bounds all their change, and count, mean and variance come out of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpcore.bernstein import NoisyPolynomials, polynomials
from dpcore.cdf import ONE_SIDED
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.noise import Noise

UPPER = 6500
UNIT = 2**20


def column(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, UPPER + 1, n)
    values[: n // 4] = rng.choice([0, 1, UPPER // 2, UPPER - 1, UPPER], n // 4)
    return values, rng.integers(0, UNIT, n)


@pytest.mark.parametrize("degree", [0, 1, 2])
@pytest.mark.parametrize("upper", [1, 2, 7, 6500, 100_000])
def test_the_numbers_of_every_value_are_non_negative_and_sum_to_its_weight(degree: int, upper: int) -> None:
    values = np.unique(np.linspace(0, upper, 5000).astype(np.int64))
    for weight in (0, 1, 2, 3, 1000, UNIT):
        parts = polynomials(values, np.full(len(values), weight), upper, degree)
        assert parts.shape == (degree + 1, len(values))
        assert (parts >= 0).all()
        assert (parts.sum(axis=0) == weight).all()


def test_count_mean_and_variance_without_noise_are_those_of_the_values() -> None:
    values, weights = column(1, 4000)
    share = weights / weights.sum()
    mean = share @ (values / UPPER)
    for degree in (1, 2):
        sums = polynomials(values, weights, UPPER, degree).sum(axis=1, keepdims=True) / UNIT
        noisy = NoisyPolynomials(sums, 0.0)
        assert noisy.count[0] * UNIT == weights.sum()
        assert noisy.mean(ONE_SIDED).value[0] == pytest.approx(mean, abs=1e-6)
    assert noisy.variance(ONE_SIDED).value[0] == pytest.approx(share @ (values / UPPER - mean) ** 2, abs=1e-6)
    assert noisy.variance(ONE_SIDED).low[0] == pytest.approx(noisy.variance(ONE_SIDED).high[0])


def test_separate_numbers_at_a_third_of_epsilon_need_3_and_4_and_a_half_times_the_variance() -> None:
    """In units of 2(Δ/ε)²: as separate numbers, count, Σ(x − 1/2) and Σ(x − 1/2)² have variances (1·3)², (1/2·3)²,
    (1/4·3)².
    """
    count, first, second = np.ones(3), np.array([-0.5, 0.0, 0.5]), np.array([0.25, -0.25, 0.25])
    apart = np.square([3.0, 1.5, 0.75])
    together = np.array([form @ form for form in (count, first, second)])
    assert apart / together == pytest.approx([3.0, 4.5, 3.0])


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("count", [0.0, 2.0, 9.0, 300.0])
def test_the_95_percent_interval_holds_the_ratio_whatever_the_count(degree: int, count: float) -> None:
    """n = 20 000 cells, α = 1e-6 on each side; exact noise. Fieller's set is neither short nor, far from 0, long."""
    n, scale = 20_000, 2.0
    x = np.array([0.1, 0.8, 0.7])
    w = count / 3
    forms = np.array([1 - x, x]) if degree == 1 else np.array([(1 - x) ** 2, 2 * x * (1 - x), x**2])
    true = forms.sum(axis=1) * w
    drawn = Noise().discrete_laplace(int(scale * 1000), 1, size=n * (degree + 1)).reshape(degree + 1, n) / 1000
    noisy = NoisyPolynomials(true[:, None] + drawn, float(np.sqrt(2) * scale))
    mean, variance = x.mean(), x.var()
    ratio = noisy.mean(ONE_SIDED)
    covered = int(((ratio.low <= mean + 1e-9) & (mean - 1e-9 <= ratio.high)).sum())
    assert stats.binomtest(covered, n, 0.95, "less").pvalue > 1e-6
    if count == 300.0:
        assert covered < 0.975 * n
        assert np.std(ratio.value) == pytest.approx(np.median(ratio.deviation), rel=0.1)
    if degree == 2:
        ratio = noisy.variance(2.61)
        covered = int(((ratio.low <= variance + 1e-9) & (variance - 1e-9 <= ratio.high)).sum())
        assert stats.binomtest(covered, n, 0.95, "less").pvalue > 1e-6
        if count == 300.0:
            assert np.std(ratio.value) == pytest.approx(np.median(ratio.deviation), rel=0.1)


def test_half_the_stated_deviation_is_caught_by_the_same_coverage() -> None:
    """Planted bug: n = 20 000; an interval of half the width covers about 78 %."""
    n = 20_000
    drawn = Noise().discrete_laplace(2000, 1, size=2 * n).reshape(2, n) / 1000
    noisy = NoisyPolynomials(np.array([[60.0], [40.0]]) + drawn, float(np.sqrt(2) * 2.0) / 2)
    ratio = noisy.mean(ONE_SIDED)
    covered = int(((ratio.low <= 0.4) & (ratio.high >= 0.4)).sum())
    assert stats.binomtest(covered, n, 0.95, "less").pvalue < 1e-6


def test_input_out_of_bounds_is_refused_and_no_values_are_no_trouble() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert polynomials(none, none, UPPER, 2).shape == (3, 0)
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(ParameterError, match="degree"):
        polynomials(one, one, UPPER, 3)
    with pytest.raises(ParameterError, match="clip"):
        polynomials(one * (UPPER + 1), one, UPPER, 1)
    with pytest.raises(ParameterError, match="clip"):
        polynomials(one, -one, UPPER, 1)
    with pytest.raises(OverflowBoundError, match="coarser"):
        polynomials(one, one * 2**40, 100_000, 2)
