"""How many users each cell has, from the noisy counts of many windows: post-processing of released values, so it costs
nothing.

Where the noise of a count is as large as the count, a ratio of two noisy numbers leans to the middle of its range, and
cells that are kept because their count looks large are those whose noise was. So a ratio is taken over the count's
*posterior mean* instead. For a sum q = n·s + noise and a posterior of n, q over the mean of n is an observation of s
without bias, whatever the signal is, because the noise of q does not depend on that of the count. Its variance is the
noise of q and what is not known of n.

The model: a cell has its lasting number of users, times a factor of the window that all cells share, and scatters
around that. Lasting numbers are distributed over cells in a way that nobody knows; the releases show it (empirical
Bayes: the weights of a grid of numbers, by expectation maximisation). Source: Kiefer and Wolfowitz, "Consistency of the
Maximum Likelihood Estimator in the Presence of Infinitely Many Incidental Parameters" (1956); Koenker and Mizera,
"Convex Optimization, Shape Constraints, and Compound Decisions" (2014), for the grid. A sum of k Laplace variables is
variance-gamma distributed: Madan and Seneta (1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError

MEMORY_HOURS = 12.0
"""After so many hours a window counts 1/e beside a new one in the lasting number of users."""
FORGOTTEN_HOURS = 2 * MEMORY_HOURS
"""After a gap of more hours earlier windows are not used: fading alone would leave their average as certain."""
STEPS = 24
"""Numbers of users in the grid, beside 0."""
ROUNDS = 60
"""Rounds of expectation maximisation."""
SCATTER = 0.5
"""Standard deviation of a cell's users in one window, as a share of the lasting number, beside Poisson's."""
SHARED_SCATTER = 0.7
"""Standard deviation of the factor that all cells of a window share."""
_LEAST_FACTOR = 0.02
_FARTHEST = 1e8
"""Scales of noise; the Bessel function of much larger numbers is not computed."""
_NEARLY_NORMAL = 20.0
"""Sums of so many Laplace variables are read as normal."""


class NoisyCounts(NamedTuple):
    """Noisy ``counts`` (C,) of one window; the ``variance`` of their noise, which is a sum of ``terms`` Laplace
    variables (infinitely many: normal).
    """

    counts: FloatArray
    variance: float
    terms: float


@dataclass(frozen=True)
class Occupancy:
    """What earlier windows said about the lasting number of users of each cell: precision-weighted sums that fade.

    ``total``: (C,), of the counts. ``precision``: of the weights; ``square``: of their squares times variances;
    ``fourth``: of the fourth powers, times the excess kurtosis that noise of so many terms has. Raises
    :class:`ParameterError`.
    """

    total: FloatArray
    precision: float
    square: float
    fourth: float

    def __post_init__(self) -> None:
        sums = (self.precision, self.square, self.fourth)
        if self.total.ndim != 1 or not (
            np.all(np.isfinite(self.total)) and np.all(np.isfinite(sums)) and min(sums) >= 0
        ):
            raise ParameterError("what is known of the users of cells must be finite and its sums 0 or more")

    def after(self, now: NoisyCounts) -> Occupancy:
        """This knowledge with one window's counts added."""
        weight = 1 / now.variance
        return Occupancy(
            self.total + weight * now.counts,
            self.precision + weight,
            self.square + weight,
            self.fourth + weight**2 / now.terms,
        )

    def faded(self, hours: float) -> Occupancy:
        """This knowledge after ``hours`` without a window."""
        share = float(np.exp(-hours / MEMORY_HOURS))
        return Occupancy(self.total * share, self.precision * share, self.square * share**2, self.fourth * share**4)

    def pooled(self) -> NoisyCounts | None:
        """The faded average of the counts; None if nothing is left of it."""
        if self.precision < 1e-12:
            return None
        terms = np.inf if self.fourth == 0 else self.square**2 / self.fourth
        return NoisyCounts(self.total / self.precision, self.square / self.precision**2, float(terms))


class Users(NamedTuple):
    """Posterior ``mean`` and ``variance`` of the users in each cell of a window, (C,)."""

    mean: FloatArray
    variance: FloatArray

    def adding_up_to(self, count: float, variance: float) -> Users:
        """The same users once a noisy ``count`` of them all is known, whose noise has this ``variance``."""
        spread = float(self.variance.sum())
        if spread <= 0:
            return self
        gain = spread / (spread + variance)
        moved = self.mean + self.variance * (gain * (count - self.mean.sum()) / spread)
        return Users(np.maximum(moved, 0.0), self.variance * (1 - gain * self.variance / spread))


def users_in(past: Occupancy | None, now: NoisyCounts) -> Users:
    """Posterior of the number of users in each cell, (C,), from the noisy counts of this window and of the ``past``."""
    pooled = None if past is None else past.pooled()
    if pooled is None:
        usual, before = _grid(now), np.zeros(1)
    else:
        grid = _grid(pooled)
        before = _log_density(pooled.counts[:, None] - grid, pooled.variance, pooled.terms)
        usual = _shared_factor(_shares(before) @ grid, now) * grid
    scatter = np.square(SCATTER * usual) + usual
    whole = now.variance + scatter
    share = _shares(before + _log_density(now.counts[:, None] - usual, whole, now.terms))
    gain = scatter / whole
    each = usual + gain * (now.counts[:, None] - usual)
    mean = np.sum(share * each, axis=1)
    spread = np.sum(share * (np.square(each) + scatter * (1 - gain)), axis=1)
    return Users(np.maximum(mean, 0.0), np.maximum(spread - np.square(mean), 0.0))


def _shared_factor(lasting: FloatArray, now: NoisyCounts) -> float:
    """Users of the window for each that the cells usually have: least squares, and 1 where noise hides it."""
    own = np.square(SCATTER * lasting) + lasting
    weight = lasting / (now.variance + own)
    prior = 1 / SHARED_SCATTER**2
    factor = float((weight @ now.counts + prior) / (weight @ lasting + prior))
    return max(factor, _LEAST_FACTOR)


def _grid(counted: NoisyCounts) -> FloatArray:
    """Candidate numbers of users, (1 + STEPS,): 0, and geometric steps up to the largest count."""
    deviation = np.sqrt(counted.variance)
    top = max(float(counted.counts.max(initial=0.0)), deviation)
    return np.append(0.0, np.geomspace(min(0.05, deviation / 20), top, STEPS))


def _shares(likely: FloatArray) -> FloatArray:
    """Posterior probability of each grid point in each cell, (C, G), from log likelihoods (C, G), under the weights of
    the grid that make the releases most likely.
    """
    likely = np.exp(likely - likely.max(axis=1, keepdims=True))
    weights = np.full(likely.shape[1], 1 / likely.shape[1])
    share = likely
    for _ in range(ROUNDS):
        share = likely * weights
        share = share / share.sum(axis=1, keepdims=True)
        weights = share.mean(axis=0)
    return np.asarray(share)


def _log_density(off: FloatArray, variance: float | FloatArray, terms: float) -> FloatArray:
    """Logarithm of the density, up to a constant, of noise of this ``variance``, a sum of so many Laplace ``terms``."""
    if terms > _NEARLY_NORMAL:
        return np.asarray(-0.5 * np.square(off) / variance - 0.5 * np.log(variance))
    scale = np.sqrt(variance / (2 * terms))
    x = np.clip(np.abs(off) / scale, 1e-6, _FARTHEST)
    order = terms - 0.5
    return np.asarray(order * np.log(x) + np.log(scipy.special.kve(order, x)) - x - np.log(scale))
