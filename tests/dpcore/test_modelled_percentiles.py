"""Modelled percentiles: of the one clipped normal law that has the given mean and variance, wherever noise has carried
these."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.modelled_percentiles import BLOCK, MEAN_SHARES, VARIANCE_SHARES, percentiles, shrunken_variances

UPPER = 65.0
USUAL = (15.0, 50.0, 85.0)
EVERYWHERE = (np.arange(40_000) + 0.5) / 400
"""Percents in the middle of 40 000 equal parts: the average over them is an integral over the law."""


def laws() -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of laws over all that is offered, in km/h and (km/h)²."""
    mean, share = (
        column.ravel()
        for column in np.meshgrid(
            UPPER * np.array([MEAN_SHARES[0], 0.02, 0.2, 0.5, 0.7, 0.95, MEAN_SHARES[1]]),
            np.array([VARIANCE_SHARES[0], 0.02, 0.2, 0.5, 0.9, VARIANCE_SHARES[1]]),
        )
    )
    return mean, share * mean * (UPPER - mean)


def test_the_law_has_the_given_mean_and_variance_everywhere() -> None:
    """By sums over equal parts, which err where a thousandth of the law holds most of its mean or variance."""
    mean, variance = laws()
    values = percentiles(mean, variance, upper=UPPER, percents=EVERYWHERE)
    assert values.mean(axis=0) == pytest.approx(mean, rel=2e-3, abs=1e-3)
    assert values.var(axis=0) == pytest.approx(variance, rel=1e-2)


def test_a_law_whose_variance_is_taken_for_its_standard_deviation_is_caught_by_its_moments() -> None:
    """Planted bug."""
    mean, variance = laws()
    values = percentiles(mean, np.sqrt(variance), upper=UPPER, percents=EVERYWHERE)
    assert np.abs(values.var(axis=0) / variance - 1).max() > 0.5


def test_percentiles_are_those_of_samples_of_such_speeds() -> None:
    """n = 200 000 samples: percentiles of them have standard errors below 0.06 km/h, so 0.4 is refuted in one of 10^10
    runs."""
    samples = np.clip(np.random.default_rng(5).normal(12.0, 18.0, 200_000), 0.0, UPPER)
    modelled = percentiles(np.array([samples.mean()]), np.array([samples.var()]), upper=UPPER, percents=USUAL)
    assert modelled[:, 0] == pytest.approx(np.percentile(samples, USUAL), abs=0.4)
    assert modelled[0, 0] == 0.0, "more than 15 % stand"


def test_percentiles_ascend_lie_in_the_range_and_mirror_when_speeds_do() -> None:
    mean, variance = laws()
    percents = EVERYWHERE[::40]
    values = percentiles(mean, variance, upper=UPPER, percents=percents)
    assert (np.diff(values, axis=0) >= 0).all()
    assert (values >= 0).all()
    assert (values <= UPPER).all()
    mirrored = percentiles(UPPER - mean, variance, upper=UPPER, percents=100 - percents)
    assert mirrored == pytest.approx(UPPER - values, abs=1e-4)


@pytest.mark.parametrize("mean", [-3.0, 0.0, 20.0, UPPER, 80.0])
@pytest.mark.parametrize("variance", [-900.0, 0.0, 2000.0])
def test_moments_that_no_law_has_are_moved_to_the_nearest_that_one_has(mean: float, variance: float) -> None:
    inside = np.clip(mean, UPPER * MEAN_SHARES[0], UPPER * MEAN_SHARES[1])
    room = inside * (UPPER - inside)
    given, moved = (
        percentiles(np.array([m]), np.array([v]), upper=UPPER, percents=USUAL)
        for m, v in (
            (mean, variance),
            (inside, np.clip(variance, VARIANCE_SHARES[0] * room, VARIANCE_SHARES[1] * room)),
        )
    )
    assert np.isfinite(given).all()
    assert given == pytest.approx(moved, abs=1e-6)
    if mean == 20.0:
        narrow, wide = 3.0, 60.0
        assert (given[2] - given[0] < narrow) if variance <= 0 else (given[2] - given[0] > wide)


def test_a_cell_has_the_same_percentiles_whatever_cells_stand_beside_it() -> None:
    rng = np.random.default_rng(3)
    mean = rng.uniform(0, UPPER, BLOCK + 7)
    variance = rng.uniform(0, 1, BLOCK + 7) * mean * (UPPER - mean)
    together = percentiles(mean, variance, upper=UPPER, percents=USUAL)
    chosen = np.array([0, BLOCK - 1, BLOCK, BLOCK + 6])
    alone = percentiles(mean[chosen], variance[chosen], upper=UPPER, percents=USUAL)
    assert alone == pytest.approx(together[:, chosen], abs=1e-6)
    assert percentiles(np.zeros(0), np.zeros(0), upper=UPPER, percents=USUAL).shape == (3, 0)


def test_variances_that_noise_explains_become_their_level_and_others_stay() -> None:
    """n = 400 cells, seeded: released errors are 100 in root mean square, the level's own below 12."""
    rng = np.random.default_rng(7)
    noise = np.full(400, 100.0)
    equal = shrunken_variances(150 + rng.normal(0, noise), noise)
    assert np.sqrt(np.square(equal - 150).mean()) < 30
    differing = rng.choice([50.0, 1000.0], 400)
    shrunken = shrunken_variances(differing + rng.normal(0, 1.0, 400), np.ones(400))
    assert shrunken == pytest.approx(differing, abs=5)


def test_cells_in_doubt_move_further_than_cells_of_little_noise() -> None:
    rng = np.random.default_rng(9)
    true, noise = rng.normal(300, 60, 300), np.where(np.arange(300) % 2, 400.0, 20.0)
    released = true + rng.normal(0, noise)
    shrunken = shrunken_variances(released, noise)
    quiet, loud = noise < 100, noise > 100
    assert np.abs(shrunken - true)[loud].mean() < np.abs(released - true)[loud].mean() / 4
    assert np.abs(shrunken - released)[quiet].max() < 60


def test_a_variance_without_noise_stays_and_says_nothing_about_others() -> None:
    assert shrunken_variances(np.array([7.0, 9.0]), np.zeros(2)).tolist() == [7.0, 9.0]
    noisy = np.array([100.0, 300.0])
    alone = shrunken_variances(noisy, np.array([50.0, 50.0]))
    beside = shrunken_variances(np.append(noisy, 0.0), np.array([50.0, 50.0, 0.0]))
    assert beside.tolist() == [*alone.tolist(), 0.0]
    assert len(shrunken_variances(np.zeros(0), np.zeros(0))) == 0


@pytest.mark.parametrize(
    ("means", "variances", "upper", "percents"),
    [
        ([1.0, 2.0], [1.0], UPPER, USUAL),
        ([np.nan], [1.0], UPPER, USUAL),
        ([1.0], [np.inf], UPPER, USUAL),
        ([1.0], [1.0], 0.0, USUAL),
        ([1.0], [1.0], UPPER, (0.0,)),
        ([1.0], [1.0], UPPER, (100.0,)),
    ],
)
def test_what_is_no_moment_or_percent_is_refused(
    means: list[float], variances: list[float], upper: float, percents: tuple[float, ...]
) -> None:
    with pytest.raises(ParameterError):
        percentiles(np.array(means), np.array(variances), upper=upper, percents=percents)


@pytest.mark.parametrize("deviations", [[1.0], [-1.0, 1.0], [np.inf, 1.0]])
def test_what_is_no_deviation_is_refused(deviations: list[float]) -> None:
    with pytest.raises(ParameterError):
        shrunken_variances(np.ones(2), np.array(deviations))
