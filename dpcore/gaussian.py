"""Exact discrete Gaussian noise N_Z(0, σ²) with rational σ = t/s, vectorised over the exact samplers of
:mod:`dpcore.noise`.

Rejection from the discrete Laplace after Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy*
(2020), Algorithm 3, with the proposal's scale σ itself in place of ⌊σ⌋ + 1: P(y)/Q(y) ∝ exp(−(|y| − σ)²/(2σ²)) <= 1, so
an accepted proposal has exactly the law ∝ exp(−y²/(2σ²)). Integers and rejection only.
"""

import numpy as np
import scipy

from dpcore._whole_numbers import whole_numbers
from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.noise import Noise
from dpcore.scales import NoiseScales


def half_square_fraction(noise: Noise, r: IntArray, t: IntArray) -> BoolArray:
    """P(True) = exp(−r²/(2t²)) for 0 < r < t: CKS Algorithm 1, where Bernoulli(γ/k) is Bernoulli(r/(2kt)) and
    Bernoulli(r/t)."""
    k = 1
    accepted = np.ones(len(r), dtype=bool)
    pending = np.arange(len(r))
    while len(pending):
        going = noise.below(2 * k * t) < r
        both = np.flatnonzero(going)
        going[both] = noise.below(t[both]) < r[both]
        accepted[pending[~going]] = k % 2 == 1
        pending, r, t = pending[going], r[going], t[going]
        k += 1
    return accepted


class GaussianScales(NoiseScales):
    """Scales σ of discrete Gaussian noise."""

    def _drawn(self, noise: Noise, t: IntArray, s: IntArray) -> IntArray:
        return discrete_gaussian(noise, t, s)

    def _reach(self, t: IntArray, s: IntArray) -> FloatArray:
        return gaussian_half_width(t, s)


_HELD = 0.95
_SUMMED_UP_TO = 32.0
"""Scales below have their interval from the sum itself, others from its Euler–Maclaurin expansion (error < 1e-8)."""


def discrete_gaussian(
    noise: Noise, numerator: int | IntArray, denominator: int | IntArray = 1, size: int | None = None
) -> IntArray:
    """Integers X with P(X = x) ∝ exp(−x²/(2σ²)), σ = numerator/denominator.

    Shape (size,) or the broadcast shape of the scales. Integers 1 <= numerator <= 2^40, denominator >= 1, else
    :class:`ParameterError`.
    """
    top, bottom = whole_numbers("numerator", numerator), whole_numbers("denominator", denominator)
    t, s = np.broadcast_arrays(top, bottom) if size is None else (np.full(size, top), np.full(size, bottom))
    shape = t.shape
    t, s = t.astype(np.int64).ravel(), s.astype(np.int64).ravel()
    result = np.zeros(len(t), dtype=np.int64)
    pending = np.arange(len(t))
    while len(pending):
        tp, sp = t[pending], s[pending]
        proposal = noise.discrete_laplace(tp, sp)
        # |y|·s stays below 2^62: the Laplace magnitude is ⌊(u + t·v)/s⌋ with t·v bounded there.
        accepted = bernoulli_exp_half_square(noise, np.abs(np.abs(proposal) * sp - tp), tp)
        result[pending[accepted]] = proposal[accepted]
        pending = pending[~accepted]
    return result.reshape(shape)


def bernoulli_exp_half_square(noise: Noise, numerator: IntArray, denominator: IntArray) -> BoolArray:
    """P(True) = exp(−z²/(2t²)), elementwise, for integers z = numerator >= 0 and 1 <= t = denominator <= 2^40.

    With z = w·t + r the exponent is w²/2 + w·r/t + r²/(2t²): three independent events, none of which needs z² or t².
    """
    whole, rest = np.divmod(numerator, denominator)
    accepted = np.ones(len(numerator), dtype=bool)
    far = np.flatnonzero(whole)
    accepted[far] = noise.bernoulli_exp(whole[far] ** 2, 2)
    far = far[accepted[far]]
    accepted[far] = noise.bernoulli_exp(whole[far] * rest[far], denominator[far])
    near = np.flatnonzero(accepted & (rest > 0))
    accepted[near] = half_square_fraction(noise, rest[near], denominator[near])
    return accepted


def gaussian_half_width(numerator: int | IntArray, denominator: int | IntArray = 1) -> FloatArray:
    """Smallest integer w with P(|X| <= w) >= 0.95 for discrete Gaussian noise of scale σ = t/s, in quanta."""
    sigma = np.asarray(np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64))
    distinct, which = np.unique(sigma.ravel(), return_inverse=True)
    widths = np.empty(len(distinct))
    small = distinct < _SUMMED_UP_TO
    widths[small] = [_summed_width(float(scale)) for scale in distinct[small]]
    widths[~small] = _expanded_width(distinct[~small])
    return np.asarray(widths[which].reshape(sigma.shape))


def _summed_width(sigma: float) -> float:
    x = np.arange(int(40 * sigma) + 40)
    mass = np.exp(-0.5 * (x / sigma) ** 2)
    mass[1:] *= 2
    return float(np.searchsorted(np.cumsum(mass), _HELD * mass.sum() * (1 - 1e-12)))


def _expanded_width(sigma: FloatArray) -> FloatArray:
    """Least w whose tail Σ_{x>w} exp(−x²/2σ²) = ∫_{w+½} + f′(w+½)/24 + O(σ⁻³·f) is small enough."""
    tail = (1 - _HELD) / 2 * np.sqrt(2 * np.pi) * sigma
    width: FloatArray = np.maximum(np.floor(sigma * scipy.special.ndtri((1 + _HELD) / 2) - 0.5) - 1, 0.0)
    for _ in range(4):
        edge = (width + 0.5) / sigma
        beyond = sigma * np.sqrt(2 * np.pi) * scipy.special.ndtr(-edge) - edge / sigma * np.exp(-0.5 * edge**2) / 24
        width = np.where(beyond > tail * (1 + 1e-9), width + 1, width)
    return np.asarray(width)
