"""Bayesian averaging over a fixed grid of candidate models: each weighs as much as its evidence. Post-processing.

Shrinkage and smoothing do not know all parameters of their models. They compute the posterior under every candidate of a
small public grid and average. Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999), equations 1 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ModelAverage:
    """Average of M candidates for C quantities. ``shares``: (M,), the candidates' weights, which add up to 1; ``value`` and
    ``variance``: (C,), in the unit of the candidates.
    """

    shares: FloatArray
    value: FloatArray
    variance: FloatArray

    @classmethod
    def of(
        cls,
        log_evidence: Sequence[float],
        values: Sequence[FloatArray],
        variances: Sequence[FloatArray],
        cautious: Sequence[bool],
    ) -> ModelAverage:
        """Average the M posteriors of mean ``values`` and ``variances``, (C,) each. Only the ``cautious`` candidates, (M,),
        enter the variance: busy cells say more about the spread of events than quiet ones do, and would make the intervals
        of the quiet ones too short. The variance holds how far the candidates lie from the average, too.
        """
        shares = evidence_shares(np.array(log_evidence))
        value = average(shares, values)
        widest = evidence_shares(np.where(cautious, log_evidence, -np.inf))
        spread = [variance + np.square(mean - value) for mean, variance in zip(values, variances, strict=True)]
        return cls(shares, value, average(widest, spread))


def evidence_shares(log_evidence: FloatArray) -> FloatArray:
    """Weights in proportion to the evidence, shape (M,), from its natural logarithms; -inf leaves a candidate out."""
    share = np.exp(log_evidence - log_evidence.max())
    return np.asarray(share / share.sum())


def average(shares: FloatArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Average of M arrays of one shape by their ``shares`` (M,)."""
    return np.asarray(np.tensordot(shares, np.array(columns), axes=1))
