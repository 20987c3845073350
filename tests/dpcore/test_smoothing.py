"""Kalman smoothing: exact limits, learning over time, intervals that cover as claimed, and a state that never goes
back.
"""

from dataclasses import replace

import numpy as np
import pytest

from dpcore._smoothing_fit import Window, fit_of, prior_of, unseen_sites
from dpcore.errors import ParameterError
from dpcore.interval_calibration import apart, class_of
from dpcore.smoothing import MOST_CELLS, OLDEST_HOURS, AreaMean, Dynamics, Releases, SmoothingState, foretell, smooth

UPPER = 80.0
CELLS = np.arange(40, dtype=np.uint64)
PLACES = np.random.default_rng(0).uniform([30.1, -97.9], [30.5, -97.5], (40, 2))


def step(
    state: SmoothingState | None, means, scales, events, *, t: float, hour_of_day: int | None = None, cells=slice(None)
):
    """One window at hour ``t`` with no covariate."""
    size = len(CELLS[cells])
    columns = (means, scales, events, events)
    wide = [np.broadcast_to(np.asarray(column, dtype=np.float64), (size,)) for column in columns]
    releases = Releases(CELLS[cells], PLACES[cells], *wide, np.zeros((size, 1)))
    return smooth(state, releases, hours=t, hour_of_day=t % 24 if hour_of_day is None else hour_of_day, upper=UPPER)


def day(rng: np.random.Generator, windows: int, scale: float):
    """True means and releases of 40 cells: lasting deviations, a daily wave of the level, sampling noise."""
    deviation = rng.normal(size=40) * 8
    for t in range(windows):
        events = rng.integers(20, 200, 40)
        truth = np.clip(30 + 5 * np.sin(t * np.pi / 12) + deviation + 16 * rng.normal(size=40) / np.sqrt(events), 0, 80)
        yield t, events, truth, np.full(40, scale), truth + rng.laplace(size=40) * scale


def test_without_noise_the_released_values_come_back():
    state = None
    for t, events, truth, _, _ in day(np.random.default_rng(1), 5, 0.0):
        state, posterior = step(state, truth, 0.0, events, t=t)
        assert posterior.value == pytest.approx(truth, abs=0.1)


def test_error_falls_with_history_and_intervals_cover_about_95_percent():
    """2 days of 24 windows of 40 cells; coverage within 0.92..0.99."""
    rng = np.random.default_rng(2)
    error, covered, raw = np.zeros(24), 0.0, 0.0
    for _ in range(2):
        state = None
        for t, events, truth, scales, means in day(rng, 24, 10.0):
            state, posterior = step(state, means, scales, events, t=t)
            error[t] += np.abs(posterior.value - truth).mean() / 2
            raw += np.abs(means - truth).mean() / 48
            covered += ((posterior.low <= truth) & (truth <= posterior.high)).mean() / 48
    assert error[-6:].mean() < 0.75 * error[0]
    assert error[-6:].mean() < 0.4 * raw
    assert 0.92 < covered < 0.99


def test_a_cell_that_comes_back_is_remembered_and_fades():
    means = np.full(40, 30.0)
    means[7] = 60.0
    state, _ = step(None, means, 0.1, 1000, t=0)
    rest = CELLS != 7
    state, _ = step(state, means[rest], 0.1, 1000, t=1, cells=rest)
    unknown = np.where(rest, 0.1, np.inf)
    soon, late = (step(state, means, unknown, 1000, t=1 + gap, hour_of_day=2)[1].value[7] for gap in (1, 1000))
    assert soon > 32
    assert late == pytest.approx(30, abs=3)


def test_yesterdays_hour_informs_the_level():
    state = None
    for t in range(36):
        state, _ = step(state, 20.0 if t % 24 < 12 else 50.0, 0.1, 500, t=t)
    before, after = (
        step(state, 0.0, np.inf, 500, t=36, hour_of_day=hour_of_day)[1].value.mean() for hour_of_day in (11, 12)
    )
    assert after > before + 0.3


def test_windows_of_one_hour_do_not_read_the_profile_that_they_wrote():
    """Four windows a quarter of an hour apart that release nothing know no more of the level than one."""
    state, sure = None, []
    for quarter in range(4):
        state, _ = step(state, 0.0, np.inf, 50, t=5 + quarter / 4, hour_of_day=5)
        sure.append(state.trend_covariance[0, 0])
    assert np.all(np.diff(sure) >= 0), sure


def test_the_state_is_bounded_and_forgets_what_no_longer_says_anything():
    n = MOST_CELLS + 500
    ids = np.arange(n, dtype=np.uint64)
    places = np.random.default_rng(4).uniform([30.1, -97.9], [30.5, -97.5], (n, 2))
    releases = Releases(ids, places, np.full(n, 30.0), np.linspace(1, 20, n), *2 * [np.full(n, 50.0)], np.zeros((n, 1)))
    state, _ = smooth(None, releases, hours=0, hour_of_day=0, upper=UPPER)
    assert len(state.cells) == MOST_CELLS
    empty = Releases(ids[:0], places[:0], *(np.zeros(0) for _ in range(4)), np.zeros((0, 1)))
    later, much_later = (
        smooth(state, empty, hours=hours, hour_of_day=0, upper=UPPER)[0] for hours in (150, OLDEST_HOURS + 1)
    )
    assert len(later.cells) < MOST_CELLS
    assert len(much_later.cells) == 0
    assert np.isinf(much_later.profile_variance).all()


def test_refuses_windows_out_of_order_and_bad_columns():
    one = np.ones(40)
    state, _ = step(None, one, 1.0, 1, t=5)
    for says, means, events, changed in (
        ("in order", one, 1, {"t": 4}),
        ("hour of the day", one, 1, {"hour_of_day": 24}),
        ("ascend", one, 1, {"cells": slice(None, None, -1)}),
        ("not finite", one * np.nan, 1, {}),
        ("counts >= 1", one, 0, {}),
    ):
        with pytest.raises(ParameterError, match=says):
            step(state, means, 1.0, events, **{"t": 6} | changed)


def test_unseen_sites_have_the_variance_of_their_laplace_noise_and_the_unreleased_say_nothing():
    columns = (np.array([5.0, 7.0, 0.0]), np.array([2.0, 0.5, np.inf]), np.ones(3), np.ones(3), np.zeros((3, 0)))
    precision, shift = unseen_sites(Releases(CELLS[:3], PLACES[:3], *columns), 65.0)
    assert 1 / precision[:2] == pytest.approx([8.0, 0.5])
    assert shift[:2] / precision[:2] == pytest.approx([5.0, 7.0])
    assert (precision[2], shift[2]) == (0.0, 0.0)


def window_beside_a_past() -> tuple[SmoothingState, Window]:
    """Six cells with a release (one of them without a value) beside five remembered ones, three of them the same
    cells."""
    rng = np.random.default_rng(11)
    past = SmoothingState(
        CELLS[:5],
        PLACES[:5],
        rng.uniform(0.05, 2.0, 5),
        rng.normal(size=5),
        rng.normal(size=5),
        rng.uniform(0.5, 4.0, 5),
        np.array([35.0, 2.0]),
        np.diag([30.0, 9.0]),
        np.zeros(24),
        np.full(24, np.inf),
        0.0,
    )
    scales = np.array([3.0, 1.0, np.inf, 8.0, 0.5, 2.0])
    events = np.array([5.0, 40.0, 7.0, 90.0, 1.0, 300.0])
    columns = (rng.uniform(20, 50, 6), scales, events, np.ceil(events / 3), rng.normal(size=(6, 1)))
    releases = Releases(CELLS[2:8], PLACES[2:8], *columns)
    return past, Window.of(past, releases, 3, UPPER, Dynamics())


def joint(window: Window, past: SmoothingState, field: float, length: float) -> tuple[np.ndarray, np.ndarray]:
    """(Mean, covariance) of the window's six cells given the past, by conditioning the joint normal distribution of
    all."""
    d, cells, places = Dynamics(), np.append(CELLS[:5], CELLS[2:8]), np.concatenate([PLACES[:5], PLACES[2:8]])
    middle = np.cos(np.radians(places[:, 0].mean()))
    at = 6371.0 * np.radians(np.column_stack([places[:, 1] * middle, places[:, 0]]))
    near = np.exp(-np.linalg.norm(at[:, None] - at[None], axis=2) / length)
    lasting = UPPER**2 * (field**2 * near + d.own**2 * (cells[:, None] == cells[None]))
    gain = lasting[5:, :5] @ np.linalg.inv(lasting[:5, :5] + np.diag(1 / past.precision))
    passing, variance = np.zeros(6), np.full(6, (d.passing * UPPER) ** 2)
    passing[:3], variance[:3] = past.passing[2:], past.passing_variance[2:]
    mean = window.design @ past.trend + gain @ (past.shift / past.precision) + passing
    covariance = lasting[5:, 5:] - gain @ lasting[:5, 5:] + window.design @ past.trend_covariance @ window.design.T
    return mean, covariance + (d.shared * UPPER) ** 2 * near[5:, 5:] + np.diag(variance)


def sampling(window: Window, event: float) -> np.ndarray:
    """Covariance of the means of the window's cells by their events and users."""
    releases = window.releases
    return UPPER**2 * np.diag(event**2 / releases.events + Dynamics().user ** 2 / releases.users)


def test_what_the_past_says_of_a_window_is_the_conditional_normal_distribution():
    past, window = window_beside_a_past()
    prior, (mean, covariance) = prior_of(window, 0.06, 4.0, Dynamics()), joint(window, past, 0.06, 4.0)
    assert window.seen.tolist() == [0, 1, 3, 4, 5], "an unreleased cell informs no other"
    assert prior.mean == pytest.approx(mean)
    assert prior.variance == pytest.approx(np.diag(covariance))
    assert prior.covariance == pytest.approx(covariance[:, window.seen])


def test_a_forecast_is_what_the_past_says_averaged_over_the_grid_and_reads_no_release():
    """By the joint normal distribution of every member of the grid; the widest single event decides the deviation."""
    past, window = window_beside_a_past()
    releases, d = window.releases, Dynamics()
    members = [joint(window, past, field, 4.0) for field in d.field]
    value = np.mean([mean for mean, _ in members], axis=0)
    wide = [np.diag(cov + sampling(window, max(d.event))) + np.square(mean - value) for mean, cov in members]
    other = replace(releases, means=releases.means + 30.0, scales=releases.scales / 7)
    for read in (releases, other):
        foretold = foretell(past, read, hours=0.0, hour_of_day=3, upper=UPPER)
        assert foretold.value == pytest.approx(value)
        factors = past.calibration.factors[class_of(releases.events)]
        left = 1 / (1 + np.append(past.precision[2:], np.zeros(3)) * (0.06**2 + d.own**2) * UPPER**2)
        away = apart(releases.events, d.quiet, UPPER, left)
        assert foretold.deviation == pytest.approx(np.sqrt(np.mean(wide, axis=0) * factors + away))
    low, high = foretold.interval(UPPER)
    assert (low + high)[(low > 0) & (high < UPPER)] == pytest.approx((2 * value)[(low > 0) & (high < UPPER)])


def test_what_is_typical_is_the_forecast_without_passing_deviations_and_sampling():
    past, window = window_beside_a_past()
    still, d = replace(past, passing=np.zeros(5)), Dynamics(usual=0.0)
    _, smoothed = smooth(past, window.releases, hours=0.0, hour_of_day=3, upper=UPPER)
    wanted = foretell(still, window.releases, hours=0.0, hour_of_day=3, upper=UPPER, dynamics=d)
    assert smoothed.typical.value == pytest.approx(wanted.value)
    assert np.all(smoothed.typical.deviation < wanted.deviation)


def test_the_interval_of_what_is_typical_holds_what_a_cell_is_at_its_hour_day_after_day():
    """Three days; each cell's hours are 2.9 off the area's, which no state learns. Coverage of the third day."""
    rng, state, covered = np.random.default_rng(3), None, []
    own, hours = rng.normal(size=40) * 4, rng.normal(size=(24, 40)) * 2.9
    for t in range(72):
        usual = 30 + 5 * np.sin(t * np.pi / 12) + own + hours[t % 24]
        means = usual + 2 * rng.normal(size=40) + rng.laplace(size=40) * 2.0
        state, shown = step(state, means, 2.0, 400, t=t)
        low, high = shown.typical.interval(UPPER)
        covered.append(((low <= usual) & (usual <= high)).mean())
    assert 0.93 < np.mean(covered[48:]) < 0.995


def test_a_deviation_of_one_cell_fades_within_hours_and_leaves_the_typical_mean_nearly_as_it_was():
    """A jam of an hour in one cell: it is shown, foretold for the next window, and forgotten three hours later."""
    state = None
    for hour in range(48):
        state, _ = step(state, np.full(40, 30.0), 1.0, 1000, t=hour)
    jam = np.where(CELLS == 5, 15.0, 30.0)
    state, shown = step(state, jam, 1.0, 1000, t=48)
    _, next_one = step(state, 0.0, np.inf, 1000, t=49)
    _, later = step(state, 0.0, np.inf, 1000, t=54)
    assert shown.value[5] < 25
    assert shown.value[5] < next_one.value[5] < 29
    assert later.value[5] > next_one.value[5] + 0.2
    assert next_one.typical.value[5] > 27


def test_a_fit_is_the_normal_posterior_given_what_each_release_says_alone():
    """The released cells' sites, as Gaussian observations of the joint distribution, give cells and trend."""
    past, window = window_beside_a_past()
    mean, covariance = joint(window, past, 0.06, 4.0)
    fit = fit_of(window, prior_of(window, 0.06, 4.0, Dynamics()), 0.3, Dynamics())
    posterior, seen = fit.posterior, window.seen
    covariance = covariance + sampling(window, 0.3)
    gain = covariance[:, seen] @ np.linalg.inv(
        covariance[np.ix_(seen, seen)] + np.diag(1 / posterior.site_precision[seen])
    )
    observed = posterior.site_shift[seen] / posterior.site_precision[seen]
    assert posterior.value == pytest.approx(mean + gain @ (observed - mean[seen]))
    assert posterior.variance == pytest.approx(np.diag(covariance - gain @ covariance[seen]))
    assert posterior.site_precision[2] == 0.0, "an unreleased cell says nothing"
    with_trend = past.trend_covariance @ window.design[seen].T
    residual = np.linalg.solve(
        covariance[np.ix_(seen, seen)] + np.diag(1 / posterior.site_precision[seen]), observed - mean[seen]
    )
    assert posterior.trend == pytest.approx(past.trend + with_trend @ residual)


@pytest.mark.parametrize("of_unseen", [0.0, 0.3])
def test_the_area_is_one_more_normal_observation_of_the_weighted_sum_of_the_means(of_unseen):
    """Cell 2 informs no other: the area sees what the trend says of it, and a deviation of its own that nobody
    knows."""
    past, window = window_beside_a_past()
    weights = (1 - of_unseen) * np.array([0.1, 0.4, 0.0, 0.2, 0.25, 0.05])
    weights[2] = of_unseen
    window = replace(window, releases=replace(window.releases, normal=True, area=AreaMean(31.0, 1.5, weights)))
    posterior = fit_of(window, prior_of(window, 0.06, 4.0, Dynamics()), 0.3, Dynamics()).posterior
    mean, covariance = joint(window, past, 0.06, 4.0)
    covariance = covariance + sampling(window, 0.3)
    design, level = window.design, past.trend_covariance
    # Level and effect, the six cells, and cell 2 as the area sees it; then what is observed of them.
    with_trend, seen_by_area = design @ level, np.append(covariance[:, [0, 1, 3, 4, 5]], np.zeros((6, 1)), axis=1)
    seen_by_area[:, 5] = design @ level @ design[2]
    among = seen_by_area[[0, 1, 3, 4, 5, 2]]
    among[5] = np.append(among[:5, 5], design[2] @ level @ design[2] + (0.06 * UPPER) ** 2)
    observing = np.vstack([np.eye(6)[:5], weights[[0, 1, 3, 4, 5, 2]]])
    noise = np.append(2 * np.square(window.releases.scales[window.seen]), 2 * 1.5**2)
    inverse = np.linalg.inv(observing @ among @ observing.T + np.diag(noise))
    off = np.append(window.releases.means[window.seen] - mean[window.seen], 31.0 - weights @ mean)
    gain = seen_by_area @ observing.T @ inverse
    of_trend = np.column_stack([with_trend[[0, 1, 3, 4, 5]].T, level @ design[2]]) @ observing.T
    assert posterior.value == pytest.approx(mean + gain @ off)
    assert posterior.variance == pytest.approx(np.diag(covariance - gain @ observing @ seen_by_area.T))
    assert posterior.trend == pytest.approx(past.trend + of_trend @ inverse @ off)
    assert posterior.trend_covariance == pytest.approx(level - of_trend @ inverse @ of_trend.T)


BUSY = np.repeat([20.0, 2.0], 20)
"""Users in each of 40 cells."""


def weighted_bias(area: AreaMean | None) -> float:
    """Bias, weighted by users, of the mean of 24 hours: busy cells have 15 km/h, say most and are slow; quiet ones have
    35."""
    rng, state, truth = np.random.default_rng(7), None, np.where(BUSY > 10, 15.0, 35.0)
    for hour in range(24):
        scales = 300 / BUSY
        columns = (truth + rng.laplace(size=40) * scales, scales, BUSY, BUSY, np.zeros((40, 1)))
        releases = Releases(CELLS, PLACES, *columns, normal=True, area=area)
        state, posterior = smooth(state, releases, hours=hour, hour_of_day=hour, upper=UPPER)
    return float(BUSY @ (posterior.value - truth) / BUSY.sum())


def test_a_release_of_the_area_leaves_no_bias_of_the_mean_weighted_by_users():
    weights = BUSY / BUSY.sum()
    true = float(weights @ np.where(BUSY > 10, 15.0, 35.0))
    assert abs(weighted_bias(AreaMean(true, 1.0, weights))) < 0.5
    assert abs(weighted_bias(None)) > 0.5, "without it, the bias is larger"


def test_cells_that_do_not_inform_count_in_the_area(monkeypatch):
    """Ten of 40 cells inform the others; the area's exact mean is 50, where cells say nothing."""
    monkeypatch.setattr("dpcore._smoothing_fit.MOST_INFORMATIVE", 10)
    area = AreaMean(50.0, 0.0, np.full(40, 1 / 40))
    columns = (np.full(40, 20.0), np.full(40, 1e4), *2 * [np.full(40, 5.0)], np.zeros((40, 1)))
    releases = Releases(CELLS, PLACES, *columns, normal=True, area=area)
    _, posterior = smooth(None, releases, hours=0, hour_of_day=0, upper=UPPER)
    assert posterior.value.mean() == pytest.approx(50.0, abs=1.0)


def test_an_area_that_does_not_fit_its_cells_is_refused():
    columns = (np.full(40, 20.0), *3 * [np.ones(40)], np.zeros((40, 1)))
    for mean, weights in ((20.0, np.full(40, 0.5)), (np.nan, np.full(40, 1 / 40)), (20.0, np.ones(1))):
        with pytest.raises(ParameterError, match="area"):
            Releases(CELLS, PLACES, *columns, area=AreaMean(mean, 1.0, weights))
