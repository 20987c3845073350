"""Calibration of modelled intervals by the releases themselves: post-processing of released values, so it costs nothing.

A model foretells the mean of a cell from all *other* releases of the window, and from the past: a normal distribution. The
cell's own release, with its known Laplace noise, tests that. If the model's variance is too small by a factor c, releases are most
likely under the variance times c. For each class of cells, by their events, the evidence of every factor of a fixed grid is
added up over cells, and over windows if the caller keeps it. The interval is that of the exact posterior of a normal
distribution, its variance times the class's factor, beside the cell's own release. The model's value stays as it is.

Calibration is one-sided: no factor is below 1. An interval that claims 95 % and covers less is false; one that covers more is
only wide. Few released values may by chance look closer to the model than the truth is, so evidence from them may widen an
interval, never narrow it.

Proof that this is post-processing: nothing comes in but the prediction, the released means, their stated scales and the
events. A prediction is made of the same of this window and of earlier ones. Events are public ("values"), or themselves
released with noise that was paid for ("participation"). So the result is a function of the transcript that anybody could
compute, and functions of a private transcript lose nothing (Dwork and Roth, *The Algorithmic Foundations of Differential
Privacy*, 2014, proposition 2.1). It is deterministic.

Source of the idea: innovations test a filter's variances, Durbin and Koopman (2012), section 2.12. Laplace noise and classes are
ours. Where noise is much larger than the model's error, no factor can be learnt; there the prior rules, about 1.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpcore._tilted_normal import tilted, tilted_quantile
from dpcore.errors import ParameterError

FloatArray = npt.NDArray[np.float64]

CLASSES = (1, 4, 12, 40, 120, 400)
"""Least number of events of a cell in each class."""
FACTORS = tuple(2.0 ** (step / 2) for step in range(13))
"""Candidate factors on the model's variance, from 1: evidence never narrows an interval."""
PRIOR_SPREAD = 1.0
"""Scale of the half-normal prior of log₂ of the factor: most likely the model is right."""
SHARED = 0.1
"""Weight of the evidence of all other classes in each class."""
MOST_PER_CELL = 8.0
"""The most by which one release counts against a factor, in natural logarithms: a freak cell must not decide for its class."""
FINEST_SCALE = 1e-3
"""Smaller scales are raised to this share of the prediction's standard deviation; the difference is too small to matter."""


class Prediction(NamedTuple):
    """What a model says about the mean of each cell without the cell's own release: ``mean``, ``variance``, (C,)."""

    mean: FloatArray
    variance: FloatArray

    @classmethod
    def without_own(
        cls, value: FloatArray, variance: FloatArray, site_precision: FloatArray, site_shift: FloatArray
    ) -> Prediction:
        """The posterior ``value`` and ``variance`` without each cell's own site, a Gaussian of that precision and of the mean
        shift / precision (:mod:`dpcore.laplace_posterior`); 0 where a cell's release did not enter its posterior.
        """
        rest = np.maximum(1 / variance - site_precision, 1e-9 / variance)
        return cls((value / variance - site_shift) / rest, 1 / rest)


class Observed(NamedTuple):
    """Released ``means``, their Laplace ``scales`` (infinite where nothing was released) and the ``events`` of the cells, (C,)."""

    means: FloatArray
    scales: FloatArray
    events: FloatArray


def _no_evidence() -> FloatArray:
    return np.zeros((len(CLASSES), len(FACTORS)))


@dataclass(frozen=True)
class Calibration:
    """What releases said about the model so far. ``evidence``: (classes, factors), natural logarithms up to a constant of the
    class. Raises :class:`ParameterError` for another shape, and for what is not finite.
    """

    evidence: FloatArray = field(default_factory=_no_evidence)

    def __post_init__(self) -> None:
        if self.evidence.shape != (len(CLASSES), len(FACTORS)) or not np.all(np.isfinite(self.evidence)):
            raise ParameterError(
                f"evidence of shape {self.evidence.shape} is not {len(CLASSES)} × {len(FACTORS)} finite numbers"
            )

    def faded(self, share: float) -> Calibration:
        """This calibration with only a ``share`` of its evidence, because traffic changes."""
        return Calibration(self.evidence * share)

    def after(self, prediction: Prediction, observed: Observed) -> Calibration:
        """This calibration with the evidence of one window's releases added; cells without a release add none."""
        known = np.isfinite(observed.scales)
        mean, variance = prediction.mean[known], prediction.variance[known]
        means, scales = observed.means[known], _usable(observed.scales[known], variance)
        likely = np.zeros((len(FACTORS), len(means)))
        for row, factor in zip(likely, FACTORS, strict=True):
            row[:] = tilted(mean, factor * variance, means, scales)[0]
        likely = np.maximum(likely - likely.max(axis=0, initial=-np.inf), -MOST_PER_CELL)
        added = np.zeros_like(self.evidence)
        np.add.at(added, class_of(observed.events[known]), likely.T)
        return Calibration(self.evidence + added)

    @property
    def factors(self) -> FloatArray:
        """The factor of each class, (classes,), at least 1: from the mean of its logarithm given the evidence."""
        logs = np.log2(FACTORS)
        shared = self.evidence + SHARED * (self.evidence.sum(axis=0) - self.evidence)
        shared = shared - 0.5 * (logs / PRIOR_SPREAD) ** 2
        weight = np.exp(shared - shared.max(axis=1, keepdims=True))
        weight = weight / weight.sum(axis=1, keepdims=True)
        return np.asarray(2.0 ** (weight @ logs))

    def interval(self, prediction: Prediction, observed: Observed) -> tuple[FloatArray, FloatArray]:
        """The ends of the 95 % interval of every cell, (C,): quantiles of the calibrated posterior beside its own release."""
        variance = prediction.variance * self.factors[class_of(observed.events)]
        known = np.isfinite(observed.scales)
        means = np.where(known, observed.means, prediction.mean)
        scales = np.where(known, _usable(observed.scales, variance), np.inf)
        low, high = (tilted_quantile(prediction.mean, variance, means, scales, share) for share in (0.025, 0.975))
        return low, high

    def estimate(
        self, value: FloatArray, prediction: Prediction, observed: Observed, upper: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The model's own ``value`` of every cell, (C,), and the ends of its interval, which holds it: clipped to [0, ``upper``]."""
        low, high = self.interval(prediction, observed)
        value, low, high = np.clip([value, np.minimum(low, value), np.maximum(high, value)], 0.0, upper)
        return value, low, high


def class_of(events: FloatArray) -> npt.NDArray[np.int64]:
    """Class of each number of events, (C,)."""
    return np.maximum(np.searchsorted(CLASSES, events, side="right") - 1, 0)


def _usable(scales: FloatArray, variance: FloatArray) -> FloatArray:
    return np.maximum(scales, FINEST_SCALE * np.sqrt(variance))
