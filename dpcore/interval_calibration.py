"""Calibration of modelled intervals by the releases themselves: post-processing of released values, so it costs
nothing.

A model foretells the mean of a cell from all *other* releases of the window, and from the past: a normal distribution.
The cell's own release, with its known Laplace noise, tests that. If the model's variance is off by a factor c, releases
are most likely under the variance times c. For each class of cells, by their events, the evidence of every factor of a
fixed grid is added up over cells, and over windows if the caller keeps it. The interval is that of the exact posterior
of a normal distribution, its variance times the class's factor, beside the cell's own release. The model's value stays
as it is.

A factor may be above 1, which widens, or below 1, which narrows. Its prior says how far models usually are off, and
that classes next to each other are off alike. The factor in use lies :data:`MARGIN` standard deviations of the
posterior above its mean, so an interval is narrowed only as far as evidence insists. Cells of one class are not off
alike: the truth scatters more around some predictions than around others. Read as one normal distribution, the many
good predictions would hide the few bad ones, because Laplace noise shows small errors best; so the evidence is that of
a mixture of three variances of mean 1.

Quiet cells lie apart from their surroundings for good, some of them being motorways, and the less traffic they have
beside the others, the further: the same share of traffic stands for the same distance in windows of minutes and of
hours, and in fleets of any size, where the same number of events does not. Releases of one window are too loud to show
it, and what busy cells show says nothing of it, so its variance (:func:`apart`) is added to the model's and no factor
narrows it. A cell's own past does: the surer it is, the less the value leans on the surroundings.

Proof that this is post-processing: nothing comes in but the prediction, the released means, their stated scales and the
events. A prediction is made of the same of this window and of earlier ones. Events are public ("values"), or themselves
released with noise that was paid for ("participation"). So the result is a function of the transcript that anybody
could compute, and functions of a private transcript lose nothing (Dwork and Roth, *The Algorithmic Foundations of
Differential Privacy*, 2014, proposition 2.1). It is deterministic.

What it cannot do: one release tells log c with the Fisher information I(b/s), s the standard deviation of the model's
error and b the scale of the noise; 0.21 for b/s = 0.5, 0.061 for 1, 0.012 for 2, 0.0018 for 4. No unbiased estimate of
log c has a standard error below 1/√(N·I) from N releases (Cramér and Rao), and coverage stays within 93 and 97 % only
if log c is off by less than about 0.2. So a class needs some 1 600 releases at b/s = 1, and 8 500 at 2. With fewer, the
prior and the margin decide.

Sources: innovations test a filter's variances, Durbin and Koopman (2012), section 2.12; forward and backward sums over
a chain of classes, Rabiner, "A Tutorial on Hidden Markov Models" (1989), section III.A. Laplace noise, classes and the
margin are ours.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import ParameterError
from dpcore.laplace_posterior import tilted, tilted_quantile

CLASSES = (1, 4, 12, 40, 120, 400)
"""Least number of events of a cell in each class."""
FACTORS = tuple(2.0 ** (step / 2) for step in range(-8, 13))
"""Candidate factors on the model's variance."""
USUAL = -0.5
"""Prior mean of log₂ of every factor: what :data:`MARGIN` adds, so without evidence a model is as sure as it says. With
−1, 15 minutes of recorded days were covered as claimed, but only 91 % of the events of two made cities that are fast
outside; with 0, 98 to 99 % of most days. :data:`QUIET`, its slope and how the past narrows it were chosen on CapMetro's
2015-09-06, 2016-11-25 and 2017-03-16: windows of 15 minutes, one and three hours, and those of 2.5 and ten clones; on
ten clones of 2016-11-24; and on simulated cities."""
QUIET, APART_MOST = 0.05, 0.5
"""Standard deviation of how far a cell of average traffic lies apart, and the most of any cell, as shares of U."""
PRIOR_SPREAD = 1.0
"""Prior standard deviation of log₂ of every factor."""
ALIKE = 0.7
"""Prior correlation of log₂ of the factors of two neighbouring classes."""
MARGIN = 0.5
"""How many posterior standard deviations the factor in use lies above the posterior mean of its logarithm."""
UNLIKE = ((-5, 1 / 6), (-1, 2 / 3), (3, 1 / 6))
"""Variances of the cells of one class around the class's own, in steps of the grid of factors, and their weights: the
nodes of Gauss and Hermite for a log-normal variable of mean 1, whose log₂ has a standard deviation of 1.2, rounded to
the grid."""
MOST_PER_CELL = 8.0
"""The most by which one release counts against a factor, in natural logarithms: a freak cell must not decide."""
FINEST_SCALE = 1e-3
"""Smaller scales are raised to this share of the prediction's standard deviation; it is too small to matter."""


class Prediction(NamedTuple):
    """What a model says about the mean of each cell without the cell's own release: ``mean``, ``variance``, (C,)."""

    mean: FloatArray
    variance: FloatArray

    @classmethod
    def without_own(
        cls, value: FloatArray, variance: FloatArray, site_precision: FloatArray, site_shift: FloatArray
    ) -> Self:
        """The posterior ``value`` and ``variance`` without each cell's own site, a Gaussian of that precision and of
        the mean shift / precision (:mod:`dpcore.laplace_posterior`); 0 where a cell's release did not enter its
        posterior.
        """
        rest = np.maximum(1 / variance - site_precision, 1e-9 / variance)
        return cls((value / variance - site_shift) / rest, 1 / rest)


class Observed(NamedTuple):
    """Released ``means``, their Laplace ``scales`` (infinite: not released), the ``events`` of the cells, and by which
    variance they lie :func:`apart`, (C,), or that of all.
    """

    means: FloatArray
    scales: FloatArray
    events: FloatArray
    normal: bool = False
    apart: FloatArray | float = 0.0


def apart(events: FloatArray, quiet: float, upper: float, left: FloatArray | float = 1.0) -> FloatArray:
    """Variance of how far each cell, (C,), lies apart from its surroundings by its ``events``: ``quiet``, a share of
    ``upper``, in a cell of average traffic, and in one of a share r of that quiet/r^2.5, at most :data:`APART_MOST`.

    ``left``: the share of a cell's lasting variance that its past leaves open. The root of it counts, because windows
    of one feed err alike: by ``left`` itself ten clones of a day fell to 91 % of cells.
    """
    share = events / events.mean()
    return np.asarray(upper**2 * np.minimum(quiet**2 / share**5, APART_MOST**2) * np.sqrt(left))


@dataclass(frozen=True)
class Calibration:
    """What releases said about the model so far. ``evidence``: (classes, factors), natural logarithms up to a constant
    of the class. ``usual``: the prior mean of log₂ of every factor (:data:`USUAL`). Raises :class:`ParameterError` for
    another shape, and for what is not finite.
    """

    evidence: FloatArray = field(default_factory=lambda: np.zeros((len(CLASSES), len(FACTORS))))
    usual: float = USUAL

    def __post_init__(self) -> None:
        if self.evidence.shape != (len(CLASSES), len(FACTORS)) or not np.all(np.isfinite(self.evidence)):
            raise ParameterError(
                f"evidence of shape {self.evidence.shape} is not {len(CLASSES)} × {len(FACTORS)} finite numbers"
            )

    def faded(self, share: float) -> "Calibration":
        """This calibration with only a ``share`` of its evidence, because traffic changes."""
        return replace(self, evidence=self.evidence * share)

    def after(self, prediction: Prediction, observed: Observed) -> "Calibration":
        """This calibration with the evidence of one window's releases added; cells without a release add none."""
        known = np.isfinite(observed.scales)
        mean, variance = prediction.mean[known], prediction.variance[known]
        means, scales = observed.means[known], _usable(observed.scales[known], variance)
        away = np.broadcast_to(observed.apart, known.shape)[known]
        likely = _likelihoods(mean, variance, away, means, scales, normal=observed.normal)
        likely = np.maximum(likely - likely.max(axis=0, initial=-np.inf), -MOST_PER_CELL)
        added = np.zeros_like(self.evidence)
        np.add.at(added, class_of(observed.events[known]), likely.T)
        return replace(self, evidence=self.evidence + added)

    @property
    def factors(self) -> FloatArray:
        """The factor of each class, (classes,): :data:`MARGIN` above the posterior mean of its logarithm."""
        logs = np.log2(FACTORS)
        weight = _posterior_of_classes(self.evidence, logs, self.usual)
        mean = weight @ logs
        spread = np.sqrt(np.maximum(weight @ np.square(logs) - np.square(mean), 0.0))
        return np.asarray(2.0 ** (mean + MARGIN * spread))

    def interval(self, prediction: Prediction, observed: Observed) -> tuple[FloatArray, FloatArray]:
        """Ends of every cell's 95 % interval, (C,): quantiles of the calibrated posterior beside its own release."""
        variance = prediction.variance * self.factors[class_of(observed.events)] + observed.apart
        known = np.isfinite(observed.scales)
        means = np.where(known, observed.means, prediction.mean)
        scales = np.where(known, _usable(observed.scales, variance), np.inf)
        if observed.normal:
            gain = variance / (variance + 2 * np.square(scales))
            value, reach = prediction.mean + gain * (means - prediction.mean), _NORMAL * np.sqrt((1 - gain) * variance)
            return value - reach, value + reach
        low, high = (tilted_quantile(prediction.mean, variance, means, scales, share) for share in (0.025, 0.975))
        return low, high

    def estimate(
        self, value: FloatArray, prediction: Prediction, observed: Observed, upper: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The model's own ``value`` of every cell, (C,), and its interval around it, clipped to [0, ``upper``]."""
        low, high = self.interval(prediction, observed)
        value, low, high = np.clip([value, np.minimum(low, value), np.maximum(high, value)], 0.0, upper)
        return value, low, high


def class_of(events: FloatArray) -> IntArray:
    """Class of each number of events, (C,)."""
    return np.maximum(np.searchsorted(CLASSES, events, side="right") - 1, 0)


_NORMAL = 1.96
_BLOCK = 1 << 8
"""Releases whose likelihoods are computed at once, by all factors."""


def _likelihoods(
    mean: FloatArray, variance: FloatArray, away: FloatArray, means: FloatArray, scales: FloatArray, *, normal: bool
) -> FloatArray:
    """Log likelihood of every factor by each of n releases, (factors, n): a mixture over the variances of
    :data:`UNLIKE`."""
    lowest, highest = UNLIKE[0][0], UNLIKE[-1][0]
    widths = np.array([FACTORS[0] * 2.0 ** (step / 2) for step in range(lowest, highest + len(FACTORS))])[:, None]
    likely = np.zeros((len(widths), len(means)))
    for start in range(0, len(means), _BLOCK):
        block = slice(start, start + _BLOCK)
        wide = widths * variance[block] + away[block]
        if normal:
            total = wide + 2 * np.square(scales[block])
            likely[:, block] = -0.5 * (np.square(means[block] - mean[block]) / total + np.log(total))
        else:
            likely[:, block] = tilted(mean[block], wide, means[block], scales[block])[0]
    mixed = np.full((len(FACTORS), len(means)), -np.inf)
    for step, weight in UNLIKE:
        np.logaddexp(mixed, likely[step - lowest :][: len(FACTORS)] + np.log(weight), out=mixed)
    return mixed


def _posterior_of_classes(evidence: FloatArray, logs: FloatArray, usual: float) -> FloatArray:
    """Posterior of every factor in each class, (classes, factors), given the ``evidence`` of all: forward and backward
    sums over the classes, whose ``logs`` are a Gaussian chain of mean ``usual``, spread :data:`PRIOR_SPREAD` and
    correlation :data:`ALIKE`.
    """
    off = (logs - usual) / PRIOR_SPREAD
    likely = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    following = np.exp(-0.5 * np.square(off - ALIKE * off[:, None]) / (1 - ALIKE**2))
    following = following / following.sum(axis=1, keepdims=True)
    forward, backward = np.zeros_like(evidence), np.ones_like(evidence)
    forward[0] = np.exp(-0.5 * np.square(off)) * likely[0]
    for c in range(1, len(evidence)):
        forward[c] = forward[c - 1] / forward[c - 1].sum() @ following * likely[c]
    for c in range(len(evidence) - 1, 0, -1):
        before = following @ (backward[c] * likely[c])
        backward[c - 1] = before / before.sum()
    weight = forward * backward
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def _usable(scales: FloatArray, variance: FloatArray) -> FloatArray:
    return np.maximum(scales, FINEST_SCALE * np.sqrt(variance))
