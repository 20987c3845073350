"""Calibration widens or narrows a model's 95 % intervals, class by class and from releases alone, until they cover the
truth as often as they claim, and narrows only as far as evidence insists. Intervals without calibration fail the same
test. Expectation propagation under Laplace noise: against quadrature, against what is known exactly, and against
Gaussians.

Each coverage is of n = 4 000 cells in 20 windows with recorded noise, judged after the first 5. If an interval covers
with 95 %, the share of 3 000 leaves 93 to 97 % with probability below 10⁻⁶ (normal approximation, standard deviation
0.4 %). One that covers with 90 % or 99 % is caught with probability above 1 − 10⁻⁶.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from dpcore._smoothing_fit import EvidenceWeights, average, evidence_shares
from dpcore.interval_calibration import (
    ALIKE,
    CLASSES,
    FACTORS,
    MARGIN,
    PRIOR_SPREAD,
    USUAL,
    Calibration,
    Observed,
    Prediction,
    apart,
    class_of,
)
from dpcore.laplace_posterior import laplace_posterior, tilted_quantile, truncated
from dpcore.occupancy import NoisyCounts, Occupancy, Users, users_in

UPPER = 1e6
WINDOWS, CELLS, LEARNING = 20, 200, 5
QUIET, BUSY = 5.0, 200.0


def coverage(wrong: dict[float, float], scale: float, calibrated: bool, seed: int = 1) -> dict[float, float]:
    """Share of intervals that hold the truth, by events; the model's variance is 16 and the true one ``wrong`` times
    that."""
    rng, calibration = np.random.default_rng(seed), Calibration()
    covered: dict[float, list[float]] = {events: [] for events in wrong}
    for window in range(WINDOWS):
        events = np.repeat(list(wrong), CELLS)
        sd = 4 * np.sqrt(np.repeat(list(wrong.values()), CELLS))
        mean = UPPER / 2 + rng.normal(0, 10, len(events))
        truth = mean + sd * rng.normal(size=len(events))
        scales = scale * rng.uniform(0.2, 2, len(events))
        observed = Observed(truth + scales * rng.laplace(size=len(events)), scales, events)
        prediction = Prediction(mean, np.full(len(events), 16.0))
        calibration = calibration.after(prediction, observed)
        used = calibration if calibrated else as_foretold()
        low, high = used.interval(prediction, observed)
        for each in wrong:
            inside = (low <= truth) & (truth <= high)
            covered[each] += inside[events == each].tolist() if window >= LEARNING else []
    return {events: float(np.mean(inside)) for events, inside in covered.items()}


def as_foretold() -> Calibration:
    """The planted bug: evidence that says that the model is right, whatever is released."""
    evidence = np.where(np.array(FACTORS) == 1.0, 1e6, 0.0)
    return Calibration(np.tile(evidence, (len(CLASSES), 1)))


@pytest.mark.parametrize("wrong", [1.0, 4.0, 9.0])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_intervals_cover_95_percent_whatever_factor_the_variance_is_too_small_by(wrong, scale):
    assert 0.93 < coverage({BUSY: wrong}, scale, calibrated=True)[BUSY] < 0.97


def test_each_class_of_events_gets_its_own_width():
    shares = coverage({QUIET: 1.0, BUSY: 6.0}, 2.0, calibrated=True)
    assert all(0.93 < share < 0.97 for share in shares.values()), shares


@pytest.mark.parametrize("wrong", [0.1, 0.25])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_intervals_of_a_model_too_wide_are_narrowed_and_cover_at_least_as_claimed(wrong, scale):
    narrowed, as_wide = (coverage({BUSY: wrong}, scale, calibrated)[BUSY] for calibrated in (True, False))
    assert 0.94 < narrowed < as_wide - 0.003


def test_three_releases_close_to_the_model_narrow_an_interval_little():
    """By less than 15 % of its width, which is the root of the factor."""
    mean = np.full(3, 30.0)
    prediction, observed = Prediction(mean, np.full(3, 16.0)), Observed(mean, np.full(3, 4.0), np.full(3, BUSY))
    calibration = Calibration().after(prediction, observed)
    assert np.all(calibration.factors > 0.85**2 * Calibration().factors)
    assert np.all(calibration.factors <= Calibration().factors)


def test_good_predictions_do_not_hide_bad_ones_of_the_same_class():
    """Of one cell in five the error has 9 times the variance of the others' (n = 40 000, noise as large as most
    errors). The class holds 95.4 %, and 93.5 % if one variance is read for all; over ten seeds both vary by 0.3 points
    at most, so that 94.5 % tells them apart with an α and a power of more than six standard deviations (0.1 %) each.
    """
    rng, n = np.random.default_rng(4), 40_000
    spread = np.where(np.arange(n) % 5 == 0, 3.0, 1.0)
    truth = spread * rng.normal(size=n)
    observed = Observed(truth + rng.laplace(size=n), np.ones(n), np.full(n, BUSY))
    prediction = Prediction(np.zeros(n), np.ones(n))
    low, high = Calibration().after(prediction, observed).interval(prediction, observed)
    assert np.mean((low <= truth) & (truth <= high)) > 0.945


def test_how_far_a_cell_lies_apart_depends_on_its_share_of_traffic_alone():
    events = np.array([1.0, 5.0, 20.0, 54.0])
    for times in (1, 4, 10):
        deviation = np.sqrt(apart(times * events, 0.05, 65.0)) / 65
        assert deviation == pytest.approx([0.5, 0.5, 0.05, 0.05 / 2.7**2.5])


def test_busy_cells_that_are_foretold_well_do_not_narrow_the_intervals_of_quiet_ones():
    """Releases of quiet cells are too loud to show how far these lie apart (n = 5 000). Narrowed like the model's own
    error, their intervals would hold 60 %."""
    rng, n = np.random.default_rng(6), 5_000
    events = np.repeat([BUSY, QUIET], n)
    away = np.repeat([0.0, 64.0], n)
    truth = np.sqrt(np.repeat([1.0, 1.0], n) + away) * rng.normal(size=2 * n)
    scales = np.repeat([1.0, 60.0], n)
    observed = Observed(truth + scales * rng.laplace(size=2 * n), scales, events, apart=away)
    prediction = Prediction(np.zeros(2 * n), np.full(2 * n, 16.0))
    low, high = Calibration().after(prediction, observed).interval(prediction, observed)
    assert 0.94 < ((low <= truth) & (truth <= high))[n:].mean() < 0.97


def test_without_evidence_the_factors_are_those_of_the_prior():
    """Posterior of a Gaussian chain: each class has mean and spread of all, up to the ends of the grid."""
    assert np.log2(Calibration().factors) == pytest.approx(USUAL + MARGIN * PRIOR_SPREAD, abs=0.01)


def test_the_posterior_of_classes_is_that_of_the_whole_chain():
    """Against the sum over all combinations of three factors of three classes."""
    rng = np.random.default_rng(3)
    evidence = np.zeros((len(CLASSES), len(FACTORS)))
    evidence[:3] = 3 * rng.normal(size=(3, len(FACTORS)))
    logs = np.log2(FACTORS)
    off = (logs - USUAL) / PRIOR_SPREAD
    step = np.exp(-0.5 * (off - ALIKE * off[:, None]) ** 2 / (1 - ALIKE**2))
    step, likely = step / step.sum(axis=1, keepdims=True), np.exp(evidence)
    start = np.exp(-0.5 * off**2) * likely[0]
    whole = start[:, None, None] * step[:, :, None] * likely[1][None, :, None] * (step * likely[2])[None, :, :]
    for c, others in enumerate([(1, 2), (0, 2), (0, 1)]):
        share = whole.sum(axis=others) / whole.sum()
        mean = share @ logs
        wanted = 2.0 ** (mean + MARGIN * np.sqrt(share @ logs**2 - mean**2))
        assert Calibration(evidence).factors[c] == pytest.approx(wanted, rel=1e-9)


def test_strong_evidence_that_classes_contradict_each_other_by_is_still_finite():
    evidence = np.zeros((len(CLASSES), len(FACTORS)))
    evidence[::2, 0], evidence[1::2, -1] = 1e6, 1e6
    factors = Calibration(evidence).factors
    assert factors[::2] == pytest.approx(FACTORS[0])
    assert factors[1::2] == pytest.approx(FACTORS[-1])


def test_with_nothing_but_noise_the_prior_rules_and_classes_lend_each_other_evidence():
    prediction, quiet = Prediction(np.full(500, 30.0), np.full(500, 16.0)), np.full(500, QUIET)
    loud = Calibration().after(prediction, Observed(np.full(500, 31.0), np.full(500, 1e5), quiet))
    assert loud.factors == pytest.approx(Calibration().factors, rel=0.05)
    far = Calibration().after(prediction, Observed(30.0 + 40 * np.resize([-1, 1], 500), np.full(500, 1.0), quiet))
    assert far.factors[class_of(np.array([QUIET]))[0]] > 16
    busy = class_of(np.array([BUSY]))[0]
    assert far.factors[busy] > 2 * Calibration().factors[busy]


def test_evidence_fades_and_one_freak_release_does_not_decide():
    prediction = Prediction(np.full(200, 30.0), np.full(200, 16.0))
    means = 30.0 + 4 * np.random.default_rng(2).normal(size=200)
    usual = Calibration().after(prediction, Observed(means, np.full(200, 0.1), np.full(200, BUSY)))
    means[0] = 1e4
    freak = Calibration().after(prediction, Observed(means, np.full(200, 0.1), np.full(200, BUSY)))
    assert freak.factors[4] < 1.2 * usual.factors[4]
    assert usual.faded(0.0).factors == pytest.approx(Calibration().factors)


class Joint(NamedTuple):
    """The normal density of a quantity times the Laplace one of what was observed of it, by quadrature."""

    mean: float
    variance: float
    observed: float
    scale: float

    def exponent(self, x: float) -> float:
        return -((x - self.mean) ** 2) / 2 / self.variance - abs(x - self.observed) / self.scale

    def peaks(self) -> list[float]:
        """Where pieces of the product are largest or meet."""
        pull = self.variance / self.scale
        return sorted({self.mean, self.observed, self.mean - pull, self.mean + pull})

    def moment(self, power: int, below: float = np.inf) -> float:
        """∫ x^power times the product, up to ``below``, over the product's largest value."""
        top, reach = max(map(self.exponent, self.peaks())), 12 * self.variance**0.5
        edges = [self.peaks()[0] - reach, *self.peaks(), self.peaks()[-1] + reach]
        return sum(
            quad(lambda x: x**power * np.exp(self.exponent(x) - top), a, b, epsabs=0, limit=500)[0]
            for a, b in itertools.pairwise([*(edge for edge in edges if edge < below), min(below, edges[-1])])
        )


def test_ends_of_intervals_are_quantiles_of_the_exact_posterior():
    cases = (0, 1, 0.5, 1), (10, 4, 30, 2), (10, 4, -30, 0.5), (5, 100, 6, 0.5), (5, 2, 900, 1)
    for given, share in itertools.product(cases, (0.025, 0.5, 0.975)):
        end = float(tilted_quantile(*(np.array([float(number)]) for number in given), share)[0])
        assert Joint(*given).moment(0, end) / Joint(*given).moment(0) == pytest.approx(share, abs=1e-5)


def test_an_unreleased_cell_has_the_interval_of_the_prediction_and_says_nothing():
    prediction = Prediction(np.array([30.0]), np.array([4.0]))
    observed = Observed(np.array([np.nan]), np.array([np.inf]), np.array([BUSY]))
    assert np.array_equal(Calibration().after(prediction, observed).evidence, Calibration().evidence)
    (low, high), factor = Calibration().interval(prediction, observed), Calibration().factors[4]
    assert low + high == pytest.approx(60.0)
    assert high - low == pytest.approx(2 * 1.96 * 2 * np.sqrt(factor), rel=1e-3)


def test_the_published_interval_holds_the_published_value_and_both_stay_in_range():
    prediction = Prediction(np.array([30.0, -50.0, 900.0]), np.full(3, 4.0))
    observed = Observed(np.array([31.0, -60.0, 950.0]), np.full(3, 5.0), np.full(3, BUSY))
    value, low, high = Calibration().estimate(np.array([60.0, -50.0, 900.0]), prediction, observed, 80.0)
    assert value.tolist() == [60.0, 0.0, 80.0]
    assert high[0] == 60.0, "stretched to the value"
    assert np.all((low >= 0) & (low <= value) & (value <= high) & (high <= 80))


@pytest.mark.parametrize("observed", [-30.0, -2.0, 0.0, 0.5, 7.0, 200.0])
@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0, 100.0])
def test_one_observation_is_exact(observed, scale):
    exact = Joint(0.0, 9.0, observed, scale)
    mass, mean, square = (exact.moment(power) for power in range(3))
    posterior = laplace_posterior(np.array([[9.0]]), np.array([observed]), np.array([scale]))
    assert posterior.mean[0] == pytest.approx(mean / mass, abs=1e-3)
    assert posterior.variance[0] == pytest.approx(square / mass - (mean / mass) ** 2, rel=1e-2, abs=1e-6)
    log_mass = np.log(mass / np.sqrt(18 * np.pi) / (2 * scale)) + max(map(exact.exponent, exact.peaks()))
    assert posterior.log_evidence == pytest.approx(log_mass, abs=1e-3)


def test_two_correlated_quantities_agree_with_quadrature():
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


def test_no_noise_returns_what_was_observed_and_boundless_noise_the_prior():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(30, 30))
    covariance = root @ root.T + np.eye(30)
    observed = root @ rng.normal(size=30)
    exact = laplace_posterior(covariance, observed, np.zeros(30))
    assert exact.mean == pytest.approx(observed, abs=0.05)
    blind = laplace_posterior(covariance, observed, np.full(30, 1e9))
    assert blind.mean == pytest.approx(np.zeros(30), abs=1e-3)
    assert blind.variance == pytest.approx(np.diag(covariance), rel=1e-3)


def test_reading_laplace_noise_as_gaussian_costs_accuracy():
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


@pytest.mark.parametrize("mean", [-4.0, -0.3, 0.0, 2.5, 9.0])
def test_a_truncated_normal_has_the_moments_that_scipy_gives_it(mean):
    log_mass, first, variance = (column[0] for column in truncated(np.array([mean])))
    above = stats.truncnorm(-mean, np.inf, loc=mean)
    assert log_mass == pytest.approx(stats.norm.logsf(0, loc=mean))
    assert first == pytest.approx(above.mean())
    assert variance == pytest.approx(above.var(), rel=1e-6)


def test_mean_and_variance_are_those_of_the_mixture_however_small_the_evidence_and_of_cautious_candidates_alone():
    """Law of total variance: the mean of the variances plus the variance of the means."""
    logs, values = [-1000.0, -1000.0 + np.log(3.0)], [np.array([10.0, 40.0]), np.array([30.0, 40.0])]
    variances = [np.array([4.0, 1.0]), np.array([8.0, 9.0])]
    assert evidence_shares(np.array(logs)) == pytest.approx([0.25, 0.75])
    assert evidence_shares(np.array([-np.inf, -5000.0])) == pytest.approx([0.0, 1.0])
    assert average(np.array([0.25, 0.75]), values) == pytest.approx([25.0, 40.0])
    of_all = [0.25 * 4 + 0.75 * 8 + 0.25 * 15**2 + 0.75 * 5**2, 0.25 * 1 + 0.75 * 9]
    for cautious, wanted in (([True, True], of_all), ([True, False], [4 + 15**2, 1.0])):
        value, variance = EvidenceWeights.of(logs, cautious).mixture(zip(values, variances, strict=True))
        assert value == pytest.approx([25.0, 40.0])
        assert variance == pytest.approx(wanted)


OBSERVED, SCALE = 300, 4.0
"""Cells of a city, and the scale of the Laplace noise of each of two numbers per cell: ε = 0.25."""
NUMBERS = 2 * SCALE**2 * 2
"""Variance of the noise of a count, a sum of two numbers."""
NOTHING = Occupancy(np.zeros(OBSERVED), 0.0, 0.0, 0.0)


def windows(seed: int, hours: int):
    """True users of 300 cells, of which a quarter are ever visited, and noisy numbers (2, C) at a mean speed of U/4."""
    rng = np.random.default_rng(seed)
    usual = np.where(rng.random(OBSERVED) < 0.25, rng.gamma(1.0, 4.0, OBSERVED), 0.0)
    for _ in range(hours):
        users = rng.poisson(usual).astype(float)
        yield users, np.array([0.75, 0.25])[:, None] * users + rng.laplace(size=(2, OBSERVED)) * SCALE


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


def test_a_count_of_all_users_moves_cells_by_what_is_not_known_of_them_and_an_uncertain_one_does_not():
    users = Users(np.array([10.0, 5.0, 0.0]), np.array([4.0, 1.0, 0.0]))
    assert users.adding_up_to(20.0, 0.0).mean == pytest.approx([14.0, 6.0, 0.0])
    assert users.adding_up_to(20.0, 1e12).mean == pytest.approx(users.mean)
    assert users.adding_up_to(20.0, 0.0).variance == pytest.approx([0.8, 0.8, 0.0])
    assert users.adding_up_to(-100.0, 0.0).mean.min() == 0.0
    known = Users(np.ones(3), np.zeros(3))
    assert known.adding_up_to(9.0, 1.0) is known
