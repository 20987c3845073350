"""Count, mean and variance of values in [0, U] from numbers that sum to a user's weight: relation "participation".

The Bernstein polynomials of degree d, C(d,j)·x^j·(1−x)^(d−j) of x/U, are non-negative and sum to 1. A contribution of
weight w is therefore d + 1 numbers of L1 norm (and L2 norm at most) w, whatever its value: all of them together cost
what the count alone would. Count, Σx and Σx² are linear in their sums. Separate numbers at ε/3 each (mechanisms S13)
need 3 times the variance for the count and Σ(x−U/2)², 4.5 times for Σ(x−U/2). Polynomials as in Aldà and Rubinstein,
*The Bernstein Mechanism* (2017), where they approximate functions; here they are the statistics.
"""

from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import OverflowBoundError, ParameterError

MEAN_OF = (np.array([0.0]), np.array([0.0, 1.0]), np.array([0.0, 0.5, 1.0]))
"""Σx/U as a linear form of the sums, by degree."""
SPREAD_OF = np.array([1.0, -1.0, 1.0]) / 4
"""Σ(x/U − 1/2)² as a linear form of the sums of degree 2."""
_EXACT = 2**62


def polynomials(values: IntArray, weights: IntArray, upper: int, degree: int) -> IntArray:
    """Contributions (d+1, N) of ``values`` (N,) in [0, ``upper``] with integer ``weights`` (N,); columns sum to the
    weight.

    Rounded per value, to the nearest, so that whatever is summed is exact. ``degree`` 0 is the count, 1 adds the mean,
    2 the variance. Raises :class:`ParameterError`, and :class:`OverflowBoundError` where w·U² could leave int64.
    """
    if degree not in (0, 1, 2) or upper < 1:
        raise ParameterError(f"degree {degree} of values up to {upper} is not offered; degrees 0..2, upper >= 1")
    if np.any(weights < 0) or np.any((values < 0) | (values > upper)):
        raise ParameterError(f"weights must be 0 or more and values lie in [0, {upper}]; clip first")
    if 2 * int(weights.max(initial=0)) * upper**degree >= _EXACT:
        raise OverflowBoundError(
            f"weights up to {weights.max()} times {upper}^{degree} exceed 2^61; use a coarser quantum"
        )
    if degree == 0:
        return weights[None, :]
    if degree == 1:
        top = _rounded(weights * values, upper)
        return np.array([weights - top, top])
    both = _rounded(weights * (values * (2 * upper - values)), upper**2)
    top = _rounded(weights * (values * values), upper**2)
    return np.array([weights - both, both - top, top])


def _rounded(numerator: IntArray, denominator: int) -> IntArray:
    """Nearest integers to numerator/denominator, halves up: monotone, so that no difference of ordered terms is < 0."""
    rounded: IntArray = (2 * numerator + denominator) // (2 * denominator)
    return rounded


@dataclass(frozen=True)
class Ratio:
    """A ratio of noisy numbers per cell, shape (C,) each; ``deviation`` is that of its noise to first order."""

    value: FloatArray
    deviation: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class NoisyPolynomials:
    """Sums (d+1, C) with independent noise of standard ``deviation``, both in units of one full weight.

    Everything here is post-processing: it costs no budget.
    """

    sums: FloatArray
    deviation: float

    @property
    def degree(self) -> int:
        """d."""
        return len(self.sums) - 1

    @property
    def count(self) -> FloatArray:
        """Noisy sum of the weights, shape (C,)."""
        return np.asarray(self.sums.sum(axis=0))

    @property
    def count_deviation(self) -> float:
        """Standard deviation of :attr:`count`."""
        return self.deviation * float(np.sqrt(len(self.sums)))

    def mean(self, quantile: float) -> Ratio:
        """Σx/U over the count; the interval is Fieller's, with ``quantile`` standard deviations on each side."""
        return self._ratio(MEAN_OF[self.degree], 0.5, 1.0, quantile)

    def variance(self, quantile: float) -> Ratio:
        """Mean of (x/U − 1/2)² less the square of the mean's distance from 1/2 (degree 2).

        The interval joins those of the two, so its confidence is 1 less both their errors.
        """
        spread, mean = self._ratio(SPREAD_OF, 0.125, 0.25, quantile), self.mean(quantile)
        off, low, high = mean.value - 0.5, mean.low - 0.5, mean.high - 0.5
        least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low**2, high**2))
        form = SPREAD_OF - 2 * off[:, None] * (MEAN_OF[2] - 0.5)
        value = spread.value - off**2
        centred = form - (spread.value - 2 * off * off)[:, None]
        deviation = self.deviation * np.sqrt(np.square(centred).sum(axis=1)) / np.maximum(self.count, 1.0)
        return Ratio(value, deviation, spread.low - np.maximum(low**2, high**2), spread.high - least)

    def _ratio(self, form: FloatArray, middle: float, top: float, quantile: float) -> Ratio:
        """``form``·sums over the count."""
        return ratio_of(self.sums, self.deviation, form, np.ones(len(form)), middle, top, quantile)


def ratio_of(
    sums: FloatArray,
    deviation: float | FloatArray,
    form: FloatArray,
    over: FloatArray,
    middle: float,
    top: float,
    quantile: float,
) -> Ratio:
    """``form``·sums over the number ``over``·sums; ``sums`` (R, C) have independent noise of standard ``deviation``,
    (C,) or one for all. Taken around ``middle`` where the number is not above 1; its range is [0, ``top``]. The
    interval is Fieller's, with ``quantile`` standard deviations on each side.
    """
    n, part = over @ sums, form @ sums
    value = middle + (part - middle * n) / np.maximum(n, 1.0)
    noise = deviation * np.sqrt(np.square(form - value[:, None] * over).sum(axis=1)) / np.maximum(n, 1.0)
    # All r with (part − r·n)² <= z²·Var(noise of part − r·n), a quadratic in r.
    unit = np.square(quantile * np.asarray(deviation))
    a = n**2 - unit * float(over @ over)
    b = part * n - unit * float(form @ over)
    c = part**2 - unit * float(form @ form)
    bounded = (a > 0) & (n > 0)
    root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
    scale = np.where(bounded, a, 1.0)
    low = np.where(bounded, (b - root) / scale, 0.0)
    high = np.where(bounded, (b + root) / scale, top)
    return Ratio(value, noise, np.clip(low, 0.0, top), np.clip(high, 0.0, top))
