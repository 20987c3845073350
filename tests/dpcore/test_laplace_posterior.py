"""Expectation propagation under Laplace noise: against quadrature, against what is known exactly, and against
Gaussians."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior, truncated


@pytest.mark.parametrize("observed", [-30.0, -2.0, 0.0, 0.5, 7.0, 200.0])
@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0, 100.0])
def test_one_observation_is_exact(observed: float, scale: float) -> None:
    def exponent(x: float) -> float:
        return -(x**2) / 18 - abs(x - observed) / scale

    low, high = min(-40.0, observed - 60 * scale), max(40.0, observed + 60 * scale)
    peaks = sorted({p for p in (0.0, observed, 9 / scale, -9 / scale) if low < p < high})
    top = max(map(exponent, peaks))

    def density(x: float) -> float:
        return float(np.exp(exponent(x) - top))

    def moment(power: int) -> float:
        edges = [low, *peaks, high]
        return sum(
            integrate.quad(lambda x: x**power * density(x), a, b, epsabs=0, limit=200)[0]
            for a, b in itertools.pairwise(edges)
        )

    mass = moment(0)
    posterior = laplace_posterior(np.array([[9.0]]), np.array([observed]), np.array([scale]))
    assert posterior.mean[0] == pytest.approx(moment(1) / mass, abs=1e-3)
    assert posterior.variance[0] == pytest.approx(moment(2) / mass - (moment(1) / mass) ** 2, rel=1e-2, abs=1e-6)
    log_mass = np.log(mass / np.sqrt(18 * np.pi) / (2 * scale)) + top
    assert posterior.log_evidence == pytest.approx(log_mass, abs=1e-3)


def test_two_correlated_quantities_agree_with_quadrature() -> None:
    covariance = np.array([[4.0, 3.0], [3.0, 9.0]])
    observed, scales = np.array([1.0, -4.0]), np.array([1.0, 2.0])
    x, y = np.meshgrid(np.linspace(-14, 14, 1601), np.linspace(-20, 20, 1601), indexing="ij")
    inverse = np.linalg.inv(covariance)
    form = inverse[0, 0] * x * x + 2 * inverse[0, 1] * x * y + inverse[1, 1] * y * y
    density = np.exp(-form / 2 - abs(x - 1) / 1 - abs(y + 4) / 2) / (2 * np.pi * np.sqrt(np.linalg.det(covariance)) * 8)
    mass = density.sum() * (28 / 1600) * (40 / 1600)
    weight = density / density.sum()
    mean = np.array([(weight * x).sum(), (weight * y).sum()])
    variance = np.array([(weight * x * x).sum(), (weight * y * y).sum()]) - mean**2
    posterior = laplace_posterior(covariance, observed, scales)
    assert posterior.mean == pytest.approx(mean, abs=0.03)
    assert posterior.variance == pytest.approx(variance, rel=0.03)
    assert posterior.log_evidence == pytest.approx(np.log(mass), abs=0.03)


def test_no_noise_returns_what_was_observed_and_boundless_noise_the_prior() -> None:
    rng = np.random.default_rng(1)
    root = rng.normal(size=(30, 30))
    covariance = root @ root.T + np.eye(30)
    observed = root @ rng.normal(size=30)
    exact = laplace_posterior(covariance, observed, np.zeros(30))
    assert exact.mean == pytest.approx(observed, abs=0.05)
    blind = laplace_posterior(covariance, observed, np.full(30, 1e9))
    assert blind.mean == pytest.approx(np.zeros(30), abs=1e-3)
    assert blind.variance == pytest.approx(np.diag(covariance), rel=1e-3)


def test_reading_laplace_noise_as_gaussian_costs_accuracy() -> None:
    """One level seen 40 times, n = 300 worlds: the error falls by a tenth at least; intervals cover 92 to 98 %."""
    rng = np.random.default_rng(2)
    covariance = np.full((40, 40), 100.0) + np.eye(40)
    ours, gaussian, covered = [], [], []
    for _ in range(300):
        truth = 10 * rng.normal() + rng.normal(size=40)
        seen = truth + rng.laplace(size=40) * 20
        posterior = laplace_posterior(covariance, seen, np.full(40, 20.0))
        gain = np.linalg.solve(covariance + 800 * np.eye(40), covariance)
        ours.append(np.abs(posterior.mean - truth).mean())
        gaussian.append(np.abs(gain.T @ seen - truth).mean())
        covered.append(np.abs(posterior.mean - truth) <= 1.96 * np.sqrt(posterior.variance))
    assert np.mean(ours) < 0.9 * np.mean(gaussian)
    assert 0.92 < np.mean(covered) < 0.98


@pytest.mark.parametrize(
    ("covariance", "observed", "scales"),
    [
        (np.eye(2), np.zeros(1), np.ones(1)),
        (np.eye(1), np.array([np.nan]), np.ones(1)),
        (np.eye(1), np.zeros(1), np.array([-1.0])),
        (np.eye(1), np.zeros(1), np.array([np.inf])),
        (np.zeros((1, 1)), np.zeros(1), np.ones(1)),
    ],
)
def test_bad_input_is_refused(covariance: np.ndarray, observed: np.ndarray, scales: np.ndarray) -> None:
    with pytest.raises(ParameterError):
        laplace_posterior(covariance, observed, scales)


@pytest.mark.parametrize("mean", [-4.0, -0.3, 0.0, 2.5, 9.0])
def test_a_truncated_normal_has_the_moments_that_scipy_gives_it(mean: float) -> None:
    log_mass, first, variance = (column[0] for column in truncated(np.array([mean])))
    above = stats.truncnorm(-mean, np.inf, loc=mean)
    assert log_mass == pytest.approx(stats.norm.logsf(0, loc=mean))
    assert first == pytest.approx(above.mean())
    assert variance == pytest.approx(above.var(), rel=1e-6)
