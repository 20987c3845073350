"""The event of probability exp(−r²/(2t²)) that accepts discrete Gaussians
(:func:`dpcore.gaussian.bernoulli_exp_half_square`).
"""

from __future__ import annotations

import numpy as np

from dpcore.noise import BoolArray, IntArray, Noise


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
