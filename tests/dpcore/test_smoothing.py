"""Kalman smoothing: exact limits, learning over time, honest intervals, and a state that only goes forward."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import ParameterError
from dpcore.smoothing import smooth

UPPER = 80.0
CELLS = np.arange(40, dtype=np.uint64)


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
        state, found = smooth(state, CELLS, truth, np.zeros(40), events, hours=t, slot=t % 24, upper=UPPER)
        assert found.value == pytest.approx(truth)


def test_error_falls_with_history_and_intervals_cover_about_95_percent():
    """40 days × 24 windows × 40 cells; coverage within 0.92..0.99."""
    rng = np.random.default_rng(2)
    error, covered, raw = np.zeros(24), 0.0, 0.0
    for _ in range(40):
        state = None
        for t, events, truth, scales, means in day(rng, 24, 10.0):
            state, found = smooth(state, CELLS, means, scales, events, hours=t, slot=t, upper=UPPER)
            error[t] += np.abs(found.value - truth).mean() / 40
            raw += np.abs(means - truth).mean() / 960
            covered += ((found.low <= truth) & (truth <= found.high)).mean() / 960
    assert error[-6:].mean() < 0.6 * error[0]
    assert error[-6:].mean() < 0.4 * raw
    assert 0.92 < covered < 0.99


def test_understated_noise_is_caught_by_the_coverage():
    """The planted bug: scales an eighth of the truth."""
    rng = np.random.default_rng(3)
    covered = 0.0
    for _ in range(10):
        state = None
        for t, events, truth, scales, means in day(rng, 24, 10.0):
            state, found = smooth(state, CELLS, means, scales / 8, events, hours=t, slot=t, upper=UPPER)
            covered += ((found.low <= truth) & (truth <= found.high)).mean() / 240
    assert covered < 0.9


def test_a_cell_that_comes_back_is_remembered_and_fades():
    events = np.full(40, 1000)
    means = np.full(40, 30.0)
    means[7] = 60.0
    state, _ = smooth(None, CELLS, means, np.full(40, 0.1), events, hours=0, slot=0, upper=UPPER)
    rest = CELLS != 7
    state, _ = smooth(state, CELLS[rest], means[rest], np.full(39, 0.1), events[rest], hours=1, slot=1, upper=UPPER)
    unknown = np.where(rest, 0.1, np.inf)
    soon, late = (
        smooth(state, CELLS, means, unknown, events, hours=1 + gap, slot=2, upper=UPPER)[1].value[7]
        for gap in (1, 1000)
    )
    assert soon > 50
    assert late == pytest.approx(30, abs=2)


def test_yesterdays_hour_informs_the_level():
    state = None
    for t in range(36):
        level = 20.0 if t % 24 < 12 else 50.0
        found_state, _ = smooth(
            state, CELLS, np.full(40, level), np.full(40, 0.1), np.full(40, 500), hours=t, slot=t % 24, upper=UPPER
        )
        state = found_state
    _, found = smooth(state, CELLS, np.zeros(40), np.full(40, np.inf), np.full(40, 500), hours=36, slot=12, upper=UPPER)
    assert found.value.mean() > 30


def test_refuses_windows_out_of_order_and_bad_slots():
    one = np.ones(40)
    events = np.ones(40, dtype=np.int64)
    state, _ = smooth(None, CELLS, one, one, events, hours=5, slot=5, upper=UPPER)
    with pytest.raises(ParameterError):
        smooth(state, CELLS, one, one, events, hours=4, slot=4, upper=UPPER)
    with pytest.raises(ParameterError):
        smooth(state, CELLS, one, one, events, hours=6, slot=24, upper=UPPER)
    with pytest.raises(ParameterError):
        smooth(None, CELLS[::-1], one, one, events, hours=6, slot=6, upper=UPPER)
    with pytest.raises(ParameterError):
        smooth(None, CELLS, one * np.nan, one, events, hours=6, slot=6, upper=UPPER)
