"""What the mechanisms of one cell have in common: losses of users, the noisy estimate, and refusals of bad input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.contributions import MAX_TOTAL
from dpcore.errors import OverflowBoundError, ParameterError
from dpcore.noise import Noise, interval_half_width


@dataclass(frozen=True)
class Estimate:
    """One released number. ``raw`` is the mechanism's output; ``value`` is it clamped to the public range.

    ``scale`` is the noise scale b (for Laplace noise the standard deviation is √2·b); ``low`` and ``high`` bound the
    pre-noise statistic with 95 % confidence, noise only; ``bias_bound`` is the worst-case clipping bias beside it.
    All in the unit of the statistic.
    """

    raw: float
    value: float
    scale: float
    low: float
    high: float
    clamped: bool
    bias_bound: float = 0.0


def losses(sensitivities: IntArray, numerator: int, denominator: int) -> IntArray:
    """µε each user loses to noise of scale t/s, rounded up: ⌈10⁶·Δ·s/t⌉, shape of ``sensitivities``."""
    if numerator == 0:
        if np.any(sensitivities != 0):
            raise ParameterError("no noise protects only what nobody can move; give a positive scale")
        return np.zeros(len(sensitivities), dtype=np.int64)
    if int(sensitivities.max(initial=0)) * MICRO * denominator < MAX_TOTAL:
        whole: IntArray = -(-(MICRO * denominator * sensitivities) // numerator)
        return whole
    return np.array([-(-MICRO * denominator * int(d) // numerator) for d in sensitivities], dtype=np.int64)


def noisy_estimate(
    statistic: int, numerator: int, denominator: int, unit: float, top: float, bias_bound: float, noise: Noise
) -> Estimate:
    """``statistic`` plus discrete Laplace noise of scale t/s, divided by ``unit``; the range is [0, ``top``]."""
    noisy, width, scale = int(statistic), 0.0, 0.0
    if numerator:
        noisy += int(noise.discrete_laplace(numerator, denominator, 1)[0])
        width = _half_width(numerator, denominator) / unit
        scale = numerator / denominator / unit
    raw = noisy / unit
    value = min(max(raw, 0.0), top)
    return Estimate(raw, value, scale, raw - width, raw + width, value != raw, bias_bound)


@lru_cache(maxsize=1024)
def _half_width(numerator: int, denominator: int) -> float:
    """Half the width of a 95 % interval of noise of scale t/s. Draws from one plan ask for the same again and again."""
    return float(interval_half_width(numerator, denominator))


def checked_samples(samples: IntArray) -> IntArray:
    """Counts m per user as int64, shape (L,); :class:`ParameterError` unless there are users and every m >= 1.

    :class:`OverflowBoundError` where their sum could leave int64.
    """
    m = np.asarray(samples)
    if m.ndim != 1 or len(m) == 0:
        raise ParameterError(f"counts of shape {m.shape} hold no user; an empty cell releases nothing, leave it out")
    if not np.issubdtype(m.dtype, np.integer):
        raise ParameterError(f"counts of type {m.dtype} are not integers; count samples per user")
    if int(m.min()) < 1:
        raise ParameterError(f"a user has {m.min()} samples; leave out users with fewer than 1")
    total = sum(m.tolist()) if float(m.max()) * len(m) >= MAX_TOTAL else 0
    if total >= MAX_TOTAL:
        raise OverflowBoundError(
            f"{total} samples exceed 2^62, so their sums could leave int64; split the cell, use fewer"
        )
    return m.astype(np.int64)


def checked_values(values: IntArray, samples: IntArray, upper: int) -> IntArray:
    """Values of one cell sorted by (user, time), clipped to [0, ``upper``], shape (N,).

    Clipping again here keeps the sensitivity whatever the caller did. Raises :class:`ParameterError` for values that
    are not integers (NaN is not) or are not Σm many.
    """
    x = np.asarray(values)
    if not np.issubdtype(x.dtype, np.integer):
        raise ParameterError(f"values of type {x.dtype} are not integer quanta; drop NaN, then round to the quantum")
    if x.shape != (int(samples.sum()),):
        raise ParameterError(f"values of shape {x.shape}, planned for {int(samples.sum())}; plan from the same counts")
    if x.dtype != np.int64:
        return np.clip(x, 0, upper).astype(np.int64)
    return np.minimum(np.maximum(x, 0), upper)


def retained_values(values: IntArray, samples: IntArray, retained: IntArray) -> tuple[IntArray, IntArray]:
    """The first ``retained`` values of each user in time order, and their users' indices, shape (ΣΓ,) each."""
    if int(retained.sum()) == len(values):
        return values, np.repeat(np.arange(len(samples)), samples)
    start = np.cumsum(samples) - samples
    position = np.arange(len(values)) - np.repeat(start, samples)
    keep = position < np.repeat(retained, samples)
    return values[keep], np.repeat(np.arange(len(samples)), retained)
