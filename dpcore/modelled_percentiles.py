"""Percentiles that a model reads from released means and variances: post-processing, so they cost nothing.

Model: a speed is a normal variable that is clipped to [0, U]. Whatever is below 0 stands and has speed 0, as vehicles
at traffic lights do; whatever is above U counts as U, as the service clips it. Of all such laws one has a given mean m
in (0, U) and a given variance v with 0 < v < m(U − m). Proof: at one mean, the quantile functions of two of them cross
once, so the law with the larger deviation σ is larger in convex order, and its variance is larger; v → 0 as σ → 0, and
v → m(U − m), which only speeds of 0 and U have, as σ → ∞. At one σ the mean grows with the location. No constant here
was fitted to a recording. What a model says has no interval: how far traffic is from its shape is not known.

Tested: moments by integrals over the percentiles, in ``tests/dpcore/test_distribution.py``. Source: moments of
a censored normal variable, as in Tobin, Econometrica 26 (1958); scoring for the variance between cells, as in any
random-effects model.
"""

from collections.abc import Sequence

import numpy as np
import scipy

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError

MEAN_SHARES = (0.001, 0.999)
"""Means below or above these shares of U are read as these."""
VARIANCE_SHARES = (0.001, 0.98)
"""Variances beyond these shares of m(U − m) are read as these: speeds hardly differ, or nearly all are 0 or U."""
BLOCK = 10_000
"""Cells that are solved at a time, so that memory does not grow with the cells."""
_WIDEST = 100.0
"""A deviation, in U, above that of every law within these shares: the widest has 28.1."""
_HALVINGS, _STEPS, _CLOSE = 28, 100, 1e-9
"""Rounds of the bisection over deviations; the most steps of Newton's method to a location; the step, in deviations,
after which it ends."""
_ROUNDS = 20
"""Rounds of scoring, which end in the level and the variance between cells."""


def percentiles(means: FloatArray, variances: FloatArray, *, upper: float, percents: Sequence[float]) -> FloatArray:
    """The ``percents`` in (0, 100) of the clipped normal law of each of C cells, shape (K, C), in the unit of ``upper``
    (U).

    ``means``, ``variances``: (C,), in the unit of U and in its square. Noise carries them where no law has them. Such
    means are moved to :data:`MEAN_SHARES` of U, and variances to :data:`VARIANCE_SHARES` of m(U − m). Where the
    variance is noise alone, below 0 or above m(U − m), the percentiles thus say that speeds hardly differ, or that
    nearly all are 0 or U: shrink variances first (:func:`shrunken_variances`). Raises :class:`ParameterError`.
    """
    if len(means) != len(variances) or not np.all(np.isfinite([means, variances])) or not upper > 0:
        raise ParameterError("need one finite mean and one finite variance per cell, and upper > 0")
    if not all(0 < percent < 100 for percent in percents):
        raise ParameterError(f"percents {list(percents)} must lie above 0 and below 100")
    standard = scipy.special.ndtri(np.array(percents, dtype=np.float64) / 100)[:, None]
    table = np.zeros((len(percents), len(means)))
    for start in range(0, len(means), BLOCK):
        block = slice(start, start + BLOCK)
        location, deviation = _law(means[block] / upper, variances[block] / upper**2)
        table[:, block] = upper * np.clip(location + deviation * standard, 0.0, 1.0)
    return table


def shrunken_variances(variances: FloatArray, deviations: FloatArray) -> FloatArray:
    """Released ``variances`` (C,) moved towards their common level, as far as noise of standard ``deviations`` (C,)
    explains how they differ (empirical Bayes): shape (C,), in their unit.

    Level and variance between cells have the largest likelihood under normal noise, as far as some rounds of scoring
    bring them there. Cells without noise stay as they are and say nothing about the others. Raises
    :class:`ParameterError`.
    """
    if len(variances) != len(deviations) or not np.all(np.isfinite([variances, deviations])) or np.any(deviations < 0):
        raise ParameterError("need one finite variance and one finite deviation >= 0 per cell")
    noisy = deviations > 0
    if not noisy.any():
        return variances
    released, noise = variances[noisy], np.square(deviations[noisy])
    between, level = 0.0, 0.0
    for _ in range(_ROUNDS):
        precision = 1 / (noise + between)
        level = np.average(released, weights=precision)
        between = max(np.average(np.square(released - level) - noise, weights=np.square(precision)), 0.0)
    shrunken = variances.copy()
    shrunken[noisy] = level + (released - level) * between / (between + noise)
    return shrunken


def _law(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(Location, deviation), in U, of the normal variable that clipped to [0, 1] has this ``mean`` and ``variance``.

    Clipping never adds variance, so the deviation is at least that of what is clipped; the rest is bisection.
    """
    mean = np.clip(mean, *MEAN_SHARES)
    room = mean * (1 - mean)
    variance = np.clip(variance, VARIANCE_SHARES[0] * room, VARIANCE_SHARES[1] * room)
    mirrored = mean > 0.5
    mean = np.where(mirrored, 1 - mean, mean)
    low, high = np.log(variance) / 2, np.full(len(mean), np.log(_WIDEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        wide = _clipped(_location(mean, np.exp(middle)), np.exp(middle))[1] > variance
        low, high = np.where(wide, low, middle), np.where(wide, middle, high)
    deviation = np.exp((low + high) / 2)
    location = _location(mean, deviation)
    return np.where(mirrored, 1 - location, location), deviation


def _location(mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """The location at which the clipped variable has this ``mean``, at most 1/2.

    Up to the location 1/2 the mean is convex in the location, so Newton's steps from there never pass the solution.
    """
    location = np.full(len(mean), 0.5)
    for _ in range(_STEPS):
        reached, _, inside = _clipped(location, deviation)
        step = (reached - mean) / inside
        location = location - step
        if np.all(np.abs(step) < _CLOSE * deviation):
            break
    return location


def _clipped(location: FloatArray, deviation: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Mean, variance, mass strictly inside) of a normal variable clipped to [0, 1]."""
    below, above = -location / deviation, (1 - location) / deviation
    inside, top = scipy.special.ndtr(above) - scipy.special.ndtr(below), scipy.special.ndtr(-above)
    at_below, at_above = (np.exp(-np.square(end) / 2) / np.sqrt(2 * np.pi) for end in (below, above))
    first = location * inside + deviation * (at_below - at_above)
    second = location * first + deviation**2 * inside - deviation * at_above
    mean = first + top
    return mean, second + top - np.square(mean), inside
