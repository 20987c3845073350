"""Kalman smoothing: exact limits, learning over time, honest intervals, and a state that only goes forward."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.smoothing import MOST_CELLS, OLDEST_HOURS, Releases, SmoothingState, _unseen_sites, smooth

UPPER = 80.0
CELLS = np.arange(40, dtype=np.uint64)
PLACES = np.random.default_rng(0).uniform([30.1, -97.9], [30.5, -97.5], (40, 2))


def step(state: SmoothingState | None, means, scales, events, *, t: int, slot: int | None = None, cells=slice(None)):
    """One window at hour ``t`` with no covariate."""
    size = len(CELLS[cells])
    wide = [np.broadcast_to(np.asarray(column, dtype=np.float64), (size,)) for column in (means, scales, events)]
    releases = Releases(CELLS[cells], PLACES[cells], *wide, np.zeros((size, 1)))
    return smooth(state, releases, hours=t, slot=t % 24 if slot is None else slot, upper=UPPER)


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
        state, found = step(state, truth, 0.0, events, t=t)
        assert found.value == pytest.approx(truth, abs=0.1)


def test_error_falls_with_history_and_intervals_cover_about_95_percent():
    """2 days of 24 windows of 40 cells; coverage within 0.92..0.99."""
    rng = np.random.default_rng(2)
    error, covered, raw = np.zeros(24), 0.0, 0.0
    for _ in range(2):
        state = None
        for t, events, truth, scales, means in day(rng, 24, 10.0):
            state, found = step(state, means, scales, events, t=t)
            error[t] += np.abs(found.value - truth).mean() / 2
            raw += np.abs(means - truth).mean() / 48
            covered += ((found.low <= truth) & (truth <= found.high)).mean() / 48
    assert error[-6:].mean() < 0.75 * error[0]
    assert error[-6:].mean() < 0.4 * raw
    assert 0.92 < covered < 0.99


def test_understated_noise_is_caught_by_the_coverage():
    """The planted bug: scales an eighth of the truth."""
    rng = np.random.default_rng(3)
    covered = 0.0
    for _ in range(2):
        state = None
        for t, events, truth, scales, means in day(rng, 24, 10.0):
            state, found = step(state, means, scales / 8, events, t=t)
            covered += ((found.low <= truth) & (truth <= found.high)).mean() / 48
    assert covered < 0.9


def test_a_cell_that_comes_back_is_remembered_and_fades():
    means = np.full(40, 30.0)
    means[7] = 60.0
    state, _ = step(None, means, 0.1, 1000, t=0)
    rest = CELLS != 7
    state, _ = step(state, means[rest], 0.1, 1000, t=1, cells=rest)
    unknown = np.where(rest, 0.1, np.inf)
    soon, late = (step(state, means, unknown, 1000, t=1 + gap, slot=2)[1].value[7] for gap in (1, 1000))
    assert soon > 32
    assert late == pytest.approx(30, abs=3)


def test_yesterdays_hour_informs_the_level():
    state = None
    for t in range(36):
        state, _ = step(state, 20.0 if t % 24 < 12 else 50.0, 0.1, 500, t=t)
    before, after = (step(state, 0.0, np.inf, 500, t=36, slot=slot)[1].value.mean() for slot in (11, 12))
    assert after > before + 0.3


def test_the_state_is_bounded_and_forgets_what_no_longer_says_anything():
    n = MOST_CELLS + 500
    ids = np.arange(n, dtype=np.uint64)
    places = np.random.default_rng(4).uniform([30.1, -97.9], [30.5, -97.5], (n, 2))
    releases = Releases(ids, places, np.full(n, 30.0), np.linspace(1, 20, n), np.full(n, 50.0), np.zeros((n, 1)))
    state, _ = smooth(None, releases, hours=0, slot=0, upper=UPPER)
    assert len(state.cells) == MOST_CELLS
    empty = Releases(ids[:0], places[:0], *(np.zeros(0) for _ in range(3)), np.zeros((0, 1)))
    later, much_later = (smooth(state, empty, hours=hours, slot=0, upper=UPPER)[0] for hours in (150, OLDEST_HOURS + 1))
    assert len(later.cells) < MOST_CELLS
    assert len(much_later.cells) == 0
    assert np.isinf(much_later.profile_variance).all()


def test_refuses_windows_out_of_order_and_bad_columns():
    one = np.ones(40)
    state, _ = step(None, one, 1.0, 1, t=5)
    with pytest.raises(ParameterError, match="in order"):
        step(state, one, 1.0, 1, t=4)
    with pytest.raises(ParameterError, match="hour of the day"):
        step(state, one, 1.0, 1, t=6, slot=24)
    with pytest.raises(ParameterError, match="ascend"):
        step(None, one, 1.0, 1, t=6, cells=slice(None, None, -1))
    with pytest.raises(ParameterError, match="not finite"):
        step(None, one * np.nan, 1.0, 1, t=6)
    with pytest.raises(ParameterError, match="counts >= 1"):
        step(None, one, 1.0, 0, t=6)


def test_unseen_sites_have_the_variance_of_their_laplace_noise_and_the_unreleased_say_nothing():
    releases = Releases(
        np.arange(3, dtype=np.uint64),
        np.zeros((3, 2)),
        np.array([5.0, 7.0, 0.0]),
        np.array([2.0, 0.5, np.inf]),
        np.ones(3),
        np.zeros((3, 0)),
    )
    precision, shift = _unseen_sites(releases, 65.0)
    assert 1 / precision[:2] == pytest.approx([8.0, 0.5])
    assert shift[:2] / precision[:2] == pytest.approx([5.0, 7.0])
    assert (precision[2], shift[2]) == (0.0, 0.0)
