"""Mass and moments of normal densities times Laplace ones, and of normal densities above 0."""

from __future__ import annotations

import numpy as np
import scipy

from dpcore.arrays import FloatArray


def tilted(
    mean: FloatArray, variance: FloatArray, observed: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Log mass, mean, variance) of N(mean, variance) times the Laplace density: a mixture of two normals, one for
    quantities above what was ``observed`` and one for those below.
    """
    sd, offset = np.sqrt(variance), mean - observed
    drift = variance / scale
    (log_above, log_below), (above, below), (above_variance, below_variance) = truncated(
        np.array([(offset - drift) / sd, -(offset + drift) / sd])
    )
    log_above, log_below = log_above - offset / scale, log_below + offset / scale
    top = np.logaddexp(log_above, log_below)
    share = np.exp(log_above - top)
    mean_above, mean_below = sd * above, -(sd * below)
    centre = share * mean_above + (1 - share) * mean_below
    spread = share * (variance * above_variance) + (1 - share) * (variance * below_variance)
    spread = spread + share * (1 - share) * (mean_above - mean_below) ** 2
    log_mass = top + variance / (2 * np.square(scale)) - np.log(2 * scale)
    return log_mass, observed + centre, np.maximum(spread, 1e-12 * variance)


def truncated(mean: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Log mass, mean, variance) of a normal variable of this mean and variance 1 where it is above 0, in the shape of
    ``mean``."""
    hazard = np.sqrt(2 / np.pi) / scipy.special.erfcx(-mean / np.sqrt(2))
    return scipy.special.log_ndtr(mean), mean + hazard, 1 - hazard * (hazard + mean)


def tilted_quantile(
    mean: FloatArray, variance: FloatArray, observed: FloatArray, scale: FloatArray, share: float
) -> FloatArray:
    """The number below which N(mean, variance) times the Laplace density has this ``share`` of its mass, (n,): by the
    inverse of the normal distribution on the side of ``observed`` where it lies. An infinite scale leaves the normal
    distribution.
    """
    sd = np.sqrt(variance)
    above, below = (mean - variance / scale - observed) / sd, (mean + variance / scale - observed) / sd
    log_above = scipy.special.log_ndtr(above) - (mean - observed) / scale
    log_below = scipy.special.log_ndtr(-below) + (mean - observed) / scale
    top = np.logaddexp(log_above, log_below)
    mass_below = np.exp(log_below - top)
    # The share of the lower side's own mass, in logarithms because that mass may be tiny; else the upper tail's.
    in_lower = np.minimum(np.log(share) + top - log_below, 0.0) + scipy.special.log_ndtr(-below)
    in_upper = np.minimum(np.log1p(-share) + top - log_above, 0.0) + scipy.special.log_ndtr(above)
    lower = sd * (below + scipy.special.ndtri_exp(in_lower))
    upper = sd * (above - scipy.special.ndtri_exp(in_upper))
    return np.asarray(observed + np.where(share < mass_below, np.minimum(lower, 0.0), np.maximum(upper, 0.0)))
