"""What a mechanism hands back: a noisy value, its noise scale and a 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass


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
