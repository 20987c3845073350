"""How easily noise alone makes a released mean look as low as it does: upper bounds on tail probabilities. Pure.

A rule claims something of exact means: the mean of a cell, clipped and weighted as its window says but without noise,
is below a limit. Each function bounds the probability of a number as low as the released one if the claim does not
hold, whatever the exact means are. The noise is known: its scale was released.

**Sums of Laplace noise.** For independent Lᵢ with scales bᵢ and b = max bᵢ, and any t > 0,

    P(Σ Lᵢ ≥ t) <= ½ exp(−t/b) ∏ 1/(1 − bᵢ²/b²), without the widest in the product,        (1)

because P(L ≥ s) <= ½ exp(−s/b) for every s, and E exp(V/b) is that product for the sum V of the others; for a single L
it is exact. And Chernoff's bound, for 0 < λ < 1/b: P(Σ Lᵢ ≥ t) <= exp(−λt) ∏ 1/(1 − λ²bᵢ²). The least of them is taken.
Both hold for discrete Laplace noise, too: (1) after half a step of the grid is taken off t, which :data:`ROUNDED`
covers.

**Sums of Gaussian noise** (discrete or not): P(Σ Gᵢ ≥ t) <= exp(−t²/(2 Σ σᵢ²)) (Canonne, Kamath, Steinke 2020,
corollary 17).

**A ratio of noisy numbers** (relation "participation"): the mean is x̃ = S̃/Ñ, so x̃ as such has no known law. But the
exact mean is at least r if and only if S − rN >= 0, and S̃ − rÑ = (x̃ − r)Ñ has noise that is a sum as above (Fieller
1954).
"""

from __future__ import annotations

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.bernstein import MEAN_OF
from stream.serve.cell_history import ENOUGH

ROUNDED = 0.02
"""km/h taken off every difference: more than rounding and the grids of the noise may have moved the numbers in it."""
_COUNT_ROUNDED = 0.05
"""A released count is rounded to 0.1."""
_TILTS = (0.5, 0.8, 0.9, 0.95)
"""λb of Chernoff's bound."""
_DAY = 86_400.0


def level(false_alarms_per_day: float, seconds: float, cells: int) -> float:
    """The probability that each of the ``cells`` tests of a window of that length may err with.

    Bonferroni: expectations add up whatever depends on what, so all tests of a day err no more often than the rule
    allows.
    """
    return min(false_alarms_per_day * seconds / _DAY / max(cells, 1), 0.5)


def laplace_tail(excess: FloatArray, scales: FloatArray) -> FloatArray:
    """Bound on P(Σᵢ Lᵢ >= ``excess``), shape (C,), for independent Laplace noise of ``scales`` (N, C); scale 0 is no
    noise."""
    widest = scales.max(axis=0)
    known = (widest > 0) & (excess > 0)
    distance = np.where(known, excess, 0.0) / np.where(known, widest, 1.0)
    shares = np.square(scales / np.where(widest > 0, widest, 1.0))
    others = shares.copy()
    others[scales.argmax(axis=0), np.arange(scales.shape[1])] = 0.0
    with np.errstate(divide="ignore"):  # as wide as the widest: (1) says nothing
        bounds = [-distance - np.log(2) - np.log1p(-others).sum(axis=0)]
    bounds += [-tilt * distance - np.log1p(-(tilt**2) * shares).sum(axis=0) for tilt in _TILTS]
    return np.where(known, np.exp(np.minimum(np.min(bounds, axis=0), 0.0)), 1.0)


def gaussian_tail(excess: FloatArray, deviation: FloatArray) -> FloatArray:
    """Bound on P(G >= ``excess``), shape (C,), for a sum of independent Gaussian noise with that standard
    ``deviation``."""
    known = (deviation > 0) & (excess > 0)
    return np.where(known, np.exp(-0.5 * np.square(excess / np.where(known, deviation, 1.0))), 1.0)


def chance_below(values: FloatArray, scales: FloatArray, limit: float) -> FloatArray:
    """Of released means (C,) with Laplace noise, if the exact ones are not below ``limit``."""
    return laplace_tail(limit - values - ROUNDED, scales[None, :])


def chance_slower(
    now: tuple[FloatArray, FloatArray], earlier: tuple[FloatArray, FloatArray], share: float, less: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Chance, usual, limit), each of shape (C,), for the claim: exact mean < ``share`` · exact usual − ``less``.

    ``now``: values and scales (C,); ``earlier``: values and scales (N, C), scale 0 where a window has none of the cell.
    Usual is the mean of the earlier values weighted by precision; NaN where fewer than :data:`ENOUGH` windows know the
    cell.
    """
    values, scales = earlier
    present = scales > 0
    weights = np.where(present, 1.0 / np.square(np.where(present, scales, 1.0)), 0.0)
    total = weights.sum(axis=0)
    enough = present.sum(axis=0) >= ENOUGH
    weights = weights / np.where(enough, total, 1.0)
    usual = np.where(enough, (weights * values).sum(axis=0), np.nan)
    limit = share * usual - less
    excess = np.where(enough, limit - now[0] - 2 * ROUNDED, 0.0)
    return laplace_tail(excess, np.vstack([now[1][None, :], share * weights * scales])), usual, limit


def chance_ratio_below(
    shares: FloatArray, counts: FloatArray, scales: FloatArray, limit: FloatArray, *, degree: int, gaussian: bool
) -> FloatArray:
    """Of means (C,) that are ratios of noisy numbers, if the exact ones are not below ``limit``.

    ``shares``: released means as shares of their range; ``limit``: likewise. ``counts`` and their ``scales``: the
    denominators. Of the degree + 1 noisy sums of a cell (:mod:`dpcore.bernstein`), the count is the sum and the mean a
    form of them. A count of 1 or less says nothing.
    """
    counted = counts > 1
    excess = np.where(counted, (limit - shares) * counts - _COUNT_ROUNDED * np.abs(limit - shares), 0.0)
    parts = np.abs(MEAN_OF[degree][:, None] - limit[None, :]) * (scales / np.sqrt(degree + 1))[None, :]
    if gaussian:
        return gaussian_tail(excess, np.sqrt(np.square(parts).sum(axis=0)))
    return laplace_tail(excess, parts)
