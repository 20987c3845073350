"""Expectation propagation under Laplace noise: against quadrature, against what is known exactly, and against
Gaussians."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from dpcore._smoothing_fit import EvidenceWeights, average, evidence_shares
from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior, truncated
from dpcore.occupancy import NoisyCounts, Occupancy, Users, users_in


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


CELLS, SCALE = 300, 4.0
"""Cells of a city, and the scale of the Laplace noise of each of two numbers per cell: ε = 0.25."""
NUMBERS = 2 * SCALE**2 * 2
"""Variance of the noise of a count, a sum of two numbers."""
NOTHING = Occupancy(np.zeros(CELLS), 0.0, 0.0, 0.0)


def windows(seed: int, hours: int):
    """True users of 300 cells, of which a quarter are ever visited, and noisy numbers (2, C) at a mean speed of U/4."""
    rng = np.random.default_rng(seed)
    usual = np.where(rng.random(CELLS) < 0.25, rng.gamma(1.0, 4.0, CELLS), 0.0)
    for _ in range(hours):
        users = rng.poisson(usual).astype(float)
        yield users, np.array([0.75, 0.25])[:, None] * users + rng.laplace(size=(2, CELLS)) * SCALE


def leaning(seed: int, expected_users) -> float:
    """Share of U by which a city's mean, of 12 windows, is off: least squares of the numerators on
    ``expected_users``."""
    past, top, bottom = NOTHING, 0.0, 0.0
    for _, numbers in windows(seed, 12):
        now = NoisyCounts(numbers.sum(axis=0), NUMBERS, 2)
        expected = expected_users(past, now)
        top += expected @ (numbers[1] - numbers[0]) / 2
        bottom += expected @ expected
        past = past.faded(1.0).after(now)
    return top / bottom + 0.5 - 0.25


def test_the_mean_over_expected_users_does_not_lean_to_the_middle_and_over_noisy_counts_it_does():
    """10 cities at ε = 0.25, whose mean is U/4: off by at most 3 % of U; the twin divides by counts that look large."""
    ours = [leaning(seed, lambda past, now: users_in(past, now).mean) for seed in range(10)]
    ratios = [leaning(seed, lambda past, now: np.where(now.counts > 3 * SCALE, now.counts, 0.0)) for seed in range(10)]
    assert abs(np.mean(ours)) <= 0.03
    assert np.mean(ratios) > 0.1, "noisy counts do not lean either, so this test shows nothing"


def test_expected_users_are_calibrated():
    """Over 10 cities: the sum of expected users is that of users within 15 %, and so is the sum of their products."""
    expected, products, squares, users = 0.0, 0.0, 0.0, 0.0
    for seed in range(10):
        past = NOTHING
        *earlier, (true, last) = windows(seed, 8)
        for _, numbers in earlier:
            past = past.faded(1.0).after(NoisyCounts(numbers.sum(axis=0), NUMBERS, 2))
        mean = users_in(past, NoisyCounts(last.sum(axis=0), NUMBERS, 2)).mean
        expected, users = expected + mean.sum(), users + true.sum()
        products, squares = products + mean @ true, squares + mean @ mean
    assert expected == pytest.approx(users, rel=0.15)
    assert products == pytest.approx(squares, rel=0.15)


def test_without_noise_users_are_what_was_counted():
    users = np.arange(12.0)
    now = NoisyCounts(users, 1e-8, 2)
    assert users_in(None, now).mean == pytest.approx(users, abs=1e-2)
    past = Occupancy(np.zeros(12), 0.0, 0.0, 0.0).after(now)
    assert users_in(past, NoisyCounts(users[::-1].copy(), 1e-8, 2)).mean[2:-2] == pytest.approx(
        users[::-1][2:-2], abs=1e-2
    )


@pytest.mark.parametrize("damaged", [(np.array([np.nan]), 0.0, 0.0, 0.0), (np.zeros(1), -1.0, 0.0, 0.0)])
def test_damaged_knowledge_is_refused(damaged):
    with pytest.raises(ParameterError):
        Occupancy(*damaged)


def test_a_count_of_all_users_moves_cells_by_what_is_not_known_of_them_and_an_uncertain_one_does_not() -> None:
    users = Users(np.array([10.0, 5.0, 0.0]), np.array([4.0, 1.0, 0.0]))
    assert users.adding_up_to(20.0, 0.0).mean == pytest.approx([14.0, 6.0, 0.0])
    assert users.adding_up_to(20.0, 1e12).mean == pytest.approx(users.mean)
    assert users.adding_up_to(20.0, 0.0).variance == pytest.approx([0.8, 0.8, 0.0])
    assert users.adding_up_to(-100.0, 0.0).mean.min() == 0.0
    known = Users(np.ones(3), np.zeros(3))
    assert known.adding_up_to(9.0, 1.0) is known
