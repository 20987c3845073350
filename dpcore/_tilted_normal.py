"""Mass and moments of normal densities times Laplace ones, and of normal densities above 0."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

FloatArray = npt.NDArray[np.float64]


def tilted(
    mean: FloatArray, variance: FloatArray, observed: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Log mass, mean, variance) of N(mean, variance) times the Laplace density: a mixture of two normals, one for
    quantities above what was ``observed`` and one for those below.
    """
    sd, offset = np.sqrt(variance), mean - observed
    log_above, above, above_variance = truncated((offset - variance / scale) / sd)
    log_below, below, below_variance = truncated(-(offset + variance / scale) / sd)
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
    """(Log mass, mean, variance) of a normal variable of this mean and variance 1 where it is above 0, (n,) each."""
    hazard = np.sqrt(2 / np.pi) / special.erfcx(-mean / np.sqrt(2))
    return special.log_ndtr(mean), mean + hazard, 1 - hazard * (hazard + mean)
