"""Calibration widens a model's 95 % intervals, class by class and from releases alone, until they cover the truth as
often as they claim. It never narrows them. Intervals without calibration fail the same test.

Each coverage is of n = 4 000 cells in 20 windows with recorded noise, judged after the first 5. If an interval covers
with 95 %, the share of 3 000 leaves 93 to 97 % with probability below 10⁻⁶ (normal approximation, standard deviation
0.4 %). One that covers with 90 % or 99 % is caught with probability above 1 − 10⁻⁶.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from dpcore._tilted_normal import tilted_quantile
from dpcore.errors import ParameterError
from dpcore.interval_calibration import (
    CLASSES,
    FACTORS,
    Calibration,
    Observed,
    Prediction,
    class_of,
)

UPPER = 1e6
WINDOWS, CELLS, LEARNING = 20, 200, 5
QUIET, BUSY = 5.0, 200.0


def coverage(wrong: dict[float, float], scale: float, calibrated: bool, seed: int = 1) -> dict[float, float]:
    """Share of intervals that hold the truth, by events; the model's variance is 16 and the true one ``wrong`` times that."""
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
def test_intervals_cover_95_percent_whatever_factor_the_variance_is_too_small_by(wrong: float, scale: float) -> None:
    assert 0.93 < coverage({BUSY: wrong}, scale, calibrated=True)[BUSY] < 0.97


def test_each_class_of_events_gets_its_own_width() -> None:
    shares = coverage({QUIET: 1.0, BUSY: 6.0}, 2.0, calibrated=True)
    assert all(0.93 < share < 0.97 for share in shares.values()), shares


@pytest.mark.parametrize("wrong", [4.0, 9.0])
def test_intervals_as_the_model_foretells_them_are_caught(wrong: float) -> None:
    """The planted bug: calibration switched off."""
    assert coverage({BUSY: wrong}, 4.0, calibrated=False)[BUSY] < 0.93


@pytest.mark.parametrize("cells", [1, 20, 2_000])
def test_releases_never_narrow_an_interval_however_close_to_the_model_they_are(cells: int) -> None:
    mean, events = np.linspace(20.0, 40.0, cells), np.full(cells, BUSY)
    prediction, observed = Prediction(mean, np.full(cells, 16.0)), Observed(mean, np.full(cells, 0.5), events)
    calibration = Calibration().after(prediction, observed)
    assert np.all(calibration.factors >= 1.0)
    assert np.all(calibration.factors <= Calibration().factors)
    width, as_wide = (np.subtract(*each.interval(prediction, observed)) for each in (calibration, as_foretold()))
    assert np.all(-width >= -as_wide)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_intervals_of_a_model_twice_too_wide_still_cover_as_much(scale: float) -> None:
    wide, as_wide = (coverage({BUSY: 0.25}, scale, calibrated) for calibrated in (True, False))
    assert wide[BUSY] >= as_wide[BUSY] > 0.95


def test_without_evidence_the_factor_is_slightly_above_1() -> None:
    assert np.all((Calibration().factors > 1.0) & (Calibration().factors < 2.0))


def test_with_nothing_but_noise_the_prior_rules_and_classes_lend_each_other_evidence() -> None:
    prediction, quiet = Prediction(np.full(500, 30.0), np.full(500, 16.0)), np.full(500, QUIET)
    loud = Calibration().after(prediction, Observed(np.full(500, 31.0), np.full(500, 1e5), quiet))
    assert loud.factors == pytest.approx(Calibration().factors, rel=0.05)
    far = Calibration().after(prediction, Observed(30.0 + 40 * np.resize([-1, 1], 500), np.full(500, 1.0), quiet))
    assert far.factors[class_of(np.array([QUIET]))[0]] > 16
    assert far.factors[class_of(np.array([BUSY]))[0]] > 2 * Calibration().factors[0]


def test_evidence_fades_and_one_freak_release_does_not_decide() -> None:
    prediction = Prediction(np.full(200, 30.0), np.full(200, 16.0))
    means = 30.0 + 4 * np.random.default_rng(2).normal(size=200)
    usual = Calibration().after(prediction, Observed(means, np.full(200, 0.1), np.full(200, BUSY)))
    means[0] = 1e4
    freak = Calibration().after(prediction, Observed(means, np.full(200, 0.1), np.full(200, BUSY)))
    assert freak.factors[4] < 1.2 * usual.factors[4]
    assert usual.faded(0.0).factors == pytest.approx(Calibration().factors)


@pytest.mark.parametrize(
    ("mean", "variance", "observed", "scale"),
    [
        (0.0, 1.0, 0.5, 1.0),
        (10.0, 4.0, 30.0, 2.0),
        (10.0, 4.0, -30.0, 0.5),
        (5.0, 100.0, 6.0, 0.5),
        (5.0, 2.0, 900.0, 1.0),
    ],
)
def test_ends_of_intervals_are_quantiles_of_the_exact_posterior(
    mean: float, variance: float, observed: float, scale: float
) -> None:
    """Against numerical integration of the normal density times the Laplace density."""

    def density(x: float) -> float:
        return float(np.exp(-((x - mean) ** 2) / 2 / variance - (abs(x - observed) - abs(mean - observed)) / scale))

    lowest, highest = (mean + side * (variance / scale + 12 * variance**0.5) for side in (-1, 1))
    within = [observed] if lowest < observed < highest else None
    whole = quad(density, lowest, highest, points=within, limit=500)[0]
    columns = [np.array([number]) for number in (mean, variance, observed, scale)]
    for share in (0.025, 0.5, 0.975):
        end = float(tilted_quantile(*columns, share)[0])
        below = quad(density, lowest, end, points=within if within and observed < end else None, limit=500)[0]
        assert below / whole == pytest.approx(share, abs=1e-5)


def test_an_unreleased_cell_has_the_interval_of_the_prediction_and_says_nothing() -> None:
    prediction, observed = (
        Prediction(np.array([30.0]), np.array([4.0])),
        Observed(np.array([np.nan]), np.array([np.inf]), np.array([BUSY])),
    )
    assert np.array_equal(Calibration().after(prediction, observed).evidence, Calibration().evidence)
    (low, high), factor = Calibration().interval(prediction, observed), Calibration().factors[4]
    assert low + high == pytest.approx(60.0)
    assert high - low == pytest.approx(2 * 1.96 * 2 * np.sqrt(factor), rel=1e-3)


def test_the_published_interval_holds_the_published_value_and_both_stay_in_range() -> None:
    prediction = Prediction(np.array([30.0, -50.0, 900.0]), np.full(3, 4.0))
    observed = Observed(np.array([31.0, -60.0, 950.0]), np.full(3, 5.0), np.full(3, BUSY))
    value, low, high = Calibration().estimate(np.array([60.0, -50.0, 900.0]), prediction, observed, 80.0)
    assert value.tolist() == [60.0, 0.0, 80.0]
    assert high[0] == 60.0, "stretched to the value"
    assert np.all((low >= 0) & (low <= value) & (value <= high) & (high <= 80))


def test_evidence_of_another_shape_or_not_finite_is_refused() -> None:
    with pytest.raises(ParameterError, match="shape"):
        Calibration(np.zeros((2, 3)))
    with pytest.raises(ParameterError, match="finite"):
        Calibration(np.full((len(CLASSES), len(FACTORS)), np.nan))
