"""Posterior of Gaussian quantities observed through Laplace noise, by expectation propagation (EP).

Reading Laplace noise as Gaussian noise of the same variance wastes up to half of its information. EP replaces the
likelihood of each observation by the Gaussian, its *site*, that gives the right mean and variance beside all the other
sites. Source: Minka, "Expectation Propagation for Approximate Bayesian Inference" (2001); Rasmussen and Williams
(2006), section 3.6, updated in parallel.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError

MOST_SWEEPS = 30
"""Most rounds over all observations; a handful is usual."""
TOLERANCE = 1e-3
"""EP stops when no posterior mean moves by more than this share of its standard deviation."""
FINEST_SCALE = 1e-3
"""Smaller scales are raised to this share of the prior's standard deviation; the difference is too small to matter."""
_DAMPING = 0.7
"""Share of its step that a site moves by, once whole steps do not halve movements: correlated sites overshoot."""
_WEAK = 1e-6
"""Sites whose precision is less than this share of their prior one: (1 - x)/precision would round away."""


@dataclass(frozen=True)
class LaplacePosterior:
    """``mean`` and ``variance`` (n,) of the quantities, and the natural logarithm of the evidence.

    ``site_precision``, ``site_shift``: (n,), the site of each observation, a Gaussian of that precision and mean
    shift / precision. A later estimate can use it in place of the observation. ``factor``: (n, n), lower Cholesky
    factor of I + √precision·covariance·√precision.
    """

    mean: FloatArray
    variance: FloatArray
    log_evidence: float
    site_precision: FloatArray
    site_shift: FloatArray
    factor: FloatArray


def laplace_posterior(covariance: FloatArray, observed: FloatArray, scales: FloatArray) -> LaplacePosterior:
    """Posterior of f ~ N(0, ``covariance`` (n, n)) from ``observed`` (n,) = f + Laplace(``scales`` (n,)).

    Scales >= 0 and finite. Post-processing: reads released values only. Raises :class:`ParameterError`.
    """
    _check(covariance, observed, scales)
    scale = np.maximum(scales, FINEST_SCALE * np.sqrt(np.diag(covariance)))
    precision = 1 / (2 * np.square(scale))
    prior = _Covariance.of(covariance)
    current = _Approximation.of(prior, precision, observed * precision)
    damping, last = 1.0, np.inf
    for _ in range(MOST_SWEEPS):
        before, current = current, _refined(prior, current, observed, scale, damping)
        moved = np.abs(current.posterior.mean - before.posterior.mean) / np.sqrt(current.posterior.variance)
        if (most := moved.max(initial=0.0)) <= TOLERANCE:
            break
        damping, last = (_DAMPING if most > last / 2 else damping), most
    log_evidence = _log_evidence(current, observed, scale)
    posterior = current.posterior
    return LaplacePosterior(
        posterior.mean, posterior.variance, log_evidence, current.precision, current.shift, posterior.factor
    )


def normal_posterior(covariance: FloatArray, observed: FloatArray, scales: FloatArray) -> LaplacePosterior:
    """The same with normal noise of the variance of Laplace noise of ``scales``: exact, and linear in ``observed``."""
    _check(covariance, observed, scales)
    precision = 1 / (2 * np.square(np.maximum(scales, FINEST_SCALE * np.sqrt(np.diag(covariance)))))
    shift = observed * precision
    posterior = _GaussianPosterior.of(_Covariance.of(covariance), precision, shift)
    log_density = 0.5 * np.log(precision / (2 * np.pi)) - 0.5 * np.square(observed) * precision
    log_evidence = float(log_density.sum()) + 0.5 * float(shift @ posterior.mean) - posterior.log_volume
    return LaplacePosterior(posterior.mean, posterior.variance, log_evidence, precision, shift, posterior.factor)


def _check(covariance: FloatArray, observed: FloatArray, scales: FloatArray) -> None:
    n = len(observed)
    if covariance.shape != (n, n) or scales.shape != (n,):
        raise ParameterError(f"{n} observations need {n} scales and a covariance of shape ({n}, {n})")
    if not (np.all(np.isfinite(observed)) and np.all(np.isfinite(scales)) and np.all(scales >= 0)):
        raise ParameterError(
            f"observations {observed[~np.isfinite(observed)][:3]} or scales "
            f"{scales[~(scales >= 0) | ~np.isfinite(scales)][:3]} are not finite or below 0; leave such cells out"
        )
    if np.any(np.diag(covariance) <= 0):
        raise ParameterError("every quantity needs a prior variance above 0")


@dataclass(frozen=True)
class _Covariance:
    """A covariance (n, n), the same in order of its columns, from which LAPACK makes its results without copies, and
    its diagonal (n,).
    """

    matrix: FloatArray
    by_column: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> Self:
        """Both orders of ``matrix``."""
        return cls(matrix, np.asfortranarray(matrix), np.diag(matrix))


@dataclass(frozen=True)
class _GaussianPosterior:
    """Beside Gaussian sites of precision P: ``mean`` and ``variance`` (n,), the Cholesky ``factor`` of I +
    √P·covariance·√P, and ``log_volume`` = ½ log |I + covariance·P|.
    """

    mean: FloatArray
    variance: FloatArray
    factor: FloatArray
    log_volume: float

    @classmethod
    def of(cls, covariance: _Covariance, precision: FloatArray, shift: FloatArray) -> Self:
        """The posterior beside sites of ``precision`` and mean ``shift``/``precision``. Its variance is the diagonal of
        (I - (I + √P·covariance·√P)⁻¹)/P. Source: Rasmussen and Williams (2006), (3.66) to (3.68). LAPACK is called
        directly: the checks of :mod:`scipy.linalg` take longer than the work for the few cells of most feeds.
        """
        root, matrix, prior = np.sqrt(precision), covariance.matrix, covariance.variance
        inner = root[:, None] * covariance.by_column * root
        np.einsum("ii->i", inner)[:] += 1.0
        factor, failed = scipy.linalg.lapack.dpotrf(inner, lower=1, overwrite_a=1)
        if failed:
            raise np.linalg.LinAlgError(f"the leading minor {failed} of a covariance plus noise is not positive")
        inverse = scipy.linalg.lapack.dtrtri(factor, lower=1)[0] if len(factor) else factor
        known = matrix @ shift
        mean = known - matrix @ (root * (inverse.T @ (inverse @ (root * known))))
        variance = (1.0 - np.einsum("ij,ij->j", inverse, inverse)) / precision
        if len(weak := np.flatnonzero(precision * prior < _WEAK)):
            half = inverse @ (root[:, None] * matrix[:, weak])
            variance[weak] = prior[weak] - np.einsum("ij,ij->j", half, half)
        return cls(mean, np.maximum(variance, 1e-12 * prior), factor, float(np.log(np.diag(factor)).sum()))


@dataclass(frozen=True)
class _Approximation:
    """The ``posterior`` while each observation counts as a Gaussian site of ``precision`` and mean
    ``shift``/``precision``, (n,), and the ``prior`` variance (n,).
    """

    prior: FloatArray
    precision: FloatArray
    shift: FloatArray
    posterior: _GaussianPosterior

    @classmethod
    def of(cls, covariance: _Covariance, precision: FloatArray, shift: FloatArray) -> Self:
        """The posterior of these sites."""
        posterior = _GaussianPosterior.of(covariance, precision, shift)
        return cls(covariance.variance, precision, shift, posterior)

    def cavity(self) -> tuple[FloatArray, FloatArray]:
        """(Mean, precision) without each quantity's own site; the others never make it less certain than its prior."""
        mean, variance = self.posterior.mean, self.posterior.variance
        rest = np.maximum(1 / variance - self.precision, 1 / self.prior)
        return (mean / variance - self.shift) / rest, rest


def _refined(
    covariance: _Covariance, current: _Approximation, observed: FloatArray, scale: FloatArray, damping: float
) -> _Approximation:
    """One sweep: every site moves by the share ``damping`` to the Gaussian with the mean and variance that its Laplace
    likelihood gives beside all the others.
    """
    mean, precision = current.cavity()
    _, tilted_mean, tilted_variance = tilted(mean, 1 / precision, observed, scale)
    # Laplace noise is log-concave, so no observation increases a variance; rounding must not do so either.
    wanted = np.maximum(1 / tilted_variance - precision, 1e-9 / np.square(scale))
    wanted_shift = tilted_mean * (wanted + precision) - mean * precision
    return _Approximation.of(
        covariance,
        (1 - damping) * current.precision + damping * wanted,
        (1 - damping) * current.shift + damping * wanted_shift,
    )


def _log_evidence(current: _Approximation, observed: FloatArray, scale: FloatArray) -> float:
    """Natural logarithm of EP's approximation to the observations' density. Source: Rasmussen and Williams, (3.65)."""
    mean, rest = current.cavity()
    precision, shift = current.precision, current.shift
    log_mass, _, _ = tilted(mean, 1 / rest, observed, scale)
    both = rest + precision
    quadratic = mean**2 * rest * precision - 2 * mean * rest * shift - shift**2
    log_evidence = log_mass + 0.5 * np.log(both / rest) + 0.5 * quadratic / both
    return float(log_evidence.sum()) + 0.5 * float(shift @ current.posterior.mean) - current.posterior.log_volume


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
    """(Log mass, mean, variance) of a normal variable of variance 1 where it is above 0, in the shape of ``mean``."""
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
