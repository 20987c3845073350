"""Averages of candidate models: weights are shares of the evidence, and the variance is that of the mixture."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore._smoothing_fit import EvidenceWeights, average, evidence_shares

LOGS = [-1000.0, -1000.0 + np.log(3.0)]
VALUES = [np.array([10.0, 40.0]), np.array([30.0, 40.0])]
VARIANCES = [np.array([4.0, 1.0]), np.array([8.0, 9.0])]


def test_shares_are_those_of_the_evidence_however_small_it_is() -> None:
    assert evidence_shares(np.array(LOGS)) == pytest.approx([0.25, 0.75])
    assert evidence_shares(np.array([-np.inf, -5000.0])) == pytest.approx([0.0, 1.0])
    assert average(np.array([0.25, 0.75]), VALUES) == pytest.approx([25.0, 40.0])


def test_mean_and_variance_are_those_of_the_mixture_of_all_candidates() -> None:
    """Law of total variance: the mean of the variances plus the variance of the means."""
    value, variance = EvidenceWeights.of(LOGS, [True, True]).mixture(zip(VALUES, VARIANCES, strict=True))
    assert value == pytest.approx([25.0, 40.0])
    assert variance == pytest.approx([0.25 * 4 + 0.75 * 8 + 0.25 * 15**2 + 0.75 * 5**2, 0.25 * 1 + 0.75 * 9])


def test_only_cautious_candidates_enter_the_variance() -> None:
    value, variance = EvidenceWeights.of(LOGS, [True, False]).mixture(zip(VALUES, VARIANCES, strict=True))
    assert value == pytest.approx([25.0, 40.0])
    assert variance == pytest.approx([4 + 15**2, 1.0])
