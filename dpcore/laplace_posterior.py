"""Posterior of Gaussian quantities observed through Laplace noise, by expectation propagation (EP).

Reading Laplace noise as Gaussian noise of the same variance wastes up to half of what it tells. EP replaces each
likelihood by the Gaussian that gives the right mean and variance beside all the others. Source: Minka, "Expectation
Propagation for Approximate Bayesian Inference" (2001); Rasmussen and Williams (2006), section 3.6, updated in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, special

from dpcore.errors import ParameterError

FloatArray = npt.NDArray[np.float64]

MOST_SWEEPS = 30
"""Rounds over all observations at most; a handful is usual."""
TOLERANCE = 1e-3
"""EP stops when no posterior mean moves by more than this share of its standard deviation."""
FINEST_SCALE = 1e-3
"""A scale below this share of the prior's standard deviation is read as this: exact for every purpose."""
_DAMPING = 0.7


@dataclass(frozen=True)
class LaplacePosterior:
    """``mean`` and ``variance`` (n,) of the quantities, and the natural logarithm of the evidence.

    ``site_precision``, ``site_shift``: (n,), what each observation alone says, as a Gaussian of that precision and mean
    shift / precision; what a later estimate needs to know of it.
    """

    mean: FloatArray
    variance: FloatArray
    log_evidence: float
    site_precision: FloatArray
    site_shift: FloatArray


def laplace_posterior(covariance: FloatArray, observed: FloatArray, scales: FloatArray) -> LaplacePosterior:
    """Posterior of f ~ N(0, ``covariance`` (n, n)) from ``observed`` (n,) = f + Laplace(``scales`` (n,)).

    Scales >= 0 and finite. Post-processing: reads released values only. Raises :class:`ParameterError`.
    """
    n = len(observed)
    if covariance.shape != (n, n) or scales.shape != (n,):
        raise ParameterError(f"{n} observations need {n} scales and a covariance of shape ({n}, {n})")
    if not (np.all(np.isfinite(observed)) and np.all(np.isfinite(scales)) and np.all(scales >= 0)):
        raise ParameterError(
            f"observations {observed[~np.isfinite(observed)][:3]} or scales {scales[~(scales >= 0) | ~np.isfinite(scales)][:3]} "
            "are not finite or below 0; leave such cells out"
        )
    prior = np.diag(covariance)
    if np.any(prior <= 0):
        raise ParameterError("every quantity needs a prior variance above 0")
    scale = np.maximum(scales, FINEST_SCALE * np.sqrt(prior))
    precision = 1 / (2 * np.square(scale))
    shift = observed * precision
    mean, variance, log_volume = _gaussian_posterior(covariance, precision, shift)
    for sweep in range(MOST_SWEEPS):
        cavity_mean, cavity_precision = _cavity(mean, variance, precision, shift, prior)
        log_mass, tilted_mean, tilted_variance = _tilted(cavity_mean, 1 / cavity_precision, observed, scale)
        # Laplace noise is log-concave, so no observation widens what is known; rounding must not either.
        floor = 1e-9 / np.square(scale)
        damping = _DAMPING if sweep else 1.0
        wanted = np.maximum(1 / tilted_variance - cavity_precision, floor)
        wanted_shift = tilted_mean * (wanted + cavity_precision) - cavity_mean * cavity_precision
        precision = (1 - damping) * precision + damping * wanted
        shift = (1 - damping) * shift + damping * wanted_shift
        before = mean
        mean, variance, log_volume = _gaussian_posterior(covariance, precision, shift)
        if np.all(np.abs(mean - before) <= TOLERANCE * np.sqrt(variance)):
            break
    cavity_mean, cavity_precision = _cavity(mean, variance, precision, shift, prior)
    log_mass, _, _ = _tilted(cavity_mean, 1 / cavity_precision, observed, scale)
    both = cavity_precision + precision
    quadratic = cavity_mean**2 * cavity_precision * precision - 2 * cavity_mean * cavity_precision * shift - shift**2
    log_evidence = log_mass + 0.5 * np.log(both / cavity_precision) + 0.5 * quadratic / both
    total = float(log_evidence.sum()) + 0.5 * float(shift @ mean) - log_volume
    return LaplacePosterior(mean, variance, total, precision, shift)


def _gaussian_posterior(
    covariance: FloatArray, precision: FloatArray, shift: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """(Mean, variance, ½ log |I + covariance·precision|) beside Gaussian sites."""
    root = np.sqrt(precision)
    factor = linalg.cholesky(np.eye(len(root)) + root[:, None] * covariance * root, lower=True)
    half = linalg.solve_triangular(factor, root[:, None] * covariance, lower=True)
    mean = covariance @ shift - half.T @ (half @ shift)
    variance = np.diag(covariance) - np.einsum("ij,ij->j", half, half)
    return mean, np.maximum(variance, 1e-12 * np.diag(covariance)), float(np.log(np.diag(factor)).sum())


def _cavity(
    mean: FloatArray, variance: FloatArray, precision: FloatArray, shift: FloatArray, prior: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(Mean, precision) without each one's own site; others never make a quantity less certain than its prior."""
    rest = np.maximum(1 / variance - precision, 1 / prior)
    return (mean / variance - shift) / rest, rest


def _tilted(
    mean: FloatArray, variance: FloatArray, observed: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Log mass, mean, variance) of N(mean, variance) times the Laplace density, a mixture of two truncated normals."""
    sd, offset = np.sqrt(variance), mean - observed
    right, left = (offset - variance / scale) / sd, (offset + variance / scale) / sd
    log_right = special.log_ndtr(right) - offset / scale
    log_left = special.log_ndtr(-left) + offset / scale
    top = np.logaddexp(log_right, log_left)
    share = np.exp(log_right - top)
    slope_right = np.sqrt(2 / np.pi) / special.erfcx(-right / np.sqrt(2))
    slope_left = np.sqrt(2 / np.pi) / special.erfcx(left / np.sqrt(2))
    mean_right, mean_left = sd * (right + slope_right), sd * (left - slope_left)
    variance_right = variance * (1 - slope_right * (slope_right + right))
    variance_left = variance * (1 - slope_left * (slope_left - left))
    tilted = share * mean_right + (1 - share) * mean_left
    spread = share * variance_right + (1 - share) * variance_left + share * (1 - share) * (mean_right - mean_left) ** 2
    log_mass = top + variance / (2 * np.square(scale)) - np.log(2 * scale)
    return log_mass, observed + tilted, np.maximum(spread, 1e-12 * variance)
