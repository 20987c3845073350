"""Bayesian averaging over a fixed grid of candidate models: each weighs as much as its evidence. Post-processing.

Shrinkage and smoothing do not know all parameters of their models. They compute the posterior under every candidate of
a small public grid and average. Source: Hoeting et al., "Bayesian Model Averaging: A Tutorial" (1999), equations 1 to
4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray


@dataclass(frozen=True)
class EvidenceWeights:
    """Weights of M candidates, each set adding up to 1. ``shares``: (M,), of all candidates, for means; ``cautious``:
    (M,), of the cautious candidates alone, for variances.
    """

    shares: FloatArray
    cautious: FloatArray

    @classmethod
    def of(cls, log_evidence: Sequence[float], cautious: Sequence[bool]) -> EvidenceWeights:
        """Weights from the natural logarithms of the evidence, (M,). Only the ``cautious`` candidates, (M,), enter
        variances: busy cells say more about the spread of events than quiet ones do, and would make the intervals of
        the quiet ones too short.
        """
        return cls(evidence_shares(np.array(log_evidence)), evidence_shares(np.where(cautious, log_evidence, -np.inf)))

    def mixture(self, candidates: Iterable[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
        """(Mean, variance) of C quantities, (C,) each, from those of every candidate. The variance includes how far the
        candidates' means lie from the average.
        """
        means, variances = zip(*candidates, strict=True)
        value = average(self.shares, means)
        spread = [variance + np.square(mean - value) for mean, variance in zip(means, variances, strict=True)]
        return value, average(self.cautious, spread)


def evidence_shares(log_evidence: FloatArray) -> FloatArray:
    """Weights in proportion to the evidence, shape (M,), from its natural logarithms; -inf leaves a candidate out."""
    share = np.exp(log_evidence - log_evidence.max())
    return np.asarray(share / share.sum())


def average(shares: FloatArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Average of M arrays of one shape by their ``shares`` (M,)."""
    return np.asarray(np.tensordot(shares, np.array(columns), axes=1))
