"""Temporal smoothing of a cell's releases: post-processing of released values, so it costs nothing.

Model: mean of cell g in window t = level of the whole area (a random walk that returns to its profile over the day)
+ the cell's own deviation (a slowly reverting walk) + what sampling n events leaves; releases add Laplace noise of
known variance 2b². One Kalman step per window, cells independent given the area's level. The caller keeps the state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.errors import ParameterError

FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]

SLOTS = 24
"""Entries of the daily profile of the area's level."""


@dataclass(frozen=True)
class Dynamics:
    """Fixed parameters, standard deviations as shares of the range U, times in hours."""

    deviation: float = 0.1
    deviation_hours: float = 72.0
    level: float = 0.5
    level_drift: float = 0.04
    profile_drift: float = 0.05
    event: float = 0.2


@dataclass(frozen=True)
class SmoothingState:
    """What the past says: deviations (K,) of the cells seen so far, the last level, the daily profile (24,).

    Means and variances in the unit of U; a profile slot never seen has infinite variance. ``hours``: time of the state.
    """

    cells: IdArray
    deviation: FloatArray
    deviation_variance: FloatArray
    level: float
    level_variance: float
    profile: FloatArray
    profile_variance: FloatArray
    hours: float


@dataclass(frozen=True)
class Smoothed:
    """Post-processed means: ``value``, ``low``, ``high`` (95 % under the model), shape (C,), in the unit of U."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


def smooth(
    state: SmoothingState | None,
    cells: IdArray,
    means: FloatArray,
    scales: FloatArray,
    events: npt.NDArray[np.int64],
    *,
    hours: float,
    slot: int,
    upper: float,
    dynamics: Dynamics | None = None,
) -> tuple[SmoothingState, Smoothed]:
    """One Kalman step with the releases of one window (C,): the new state and the smoothed means.

    ``cells`` sorted; ``hours``: the window's time on any continuous clock, not before the state's; ``slot``: its hour
    of the local day, 0..23. Infinite scales predict. Raises :class:`ParameterError`.
    """
    d = dynamics or Dynamics()
    _validate(state, cells, means, scales, events, hours, slot, upper)
    area, area_variance = _predicted_level(state, hours, slot, upper, d)
    known, mean, variance = _predicted_deviations(state, cells, hours, upper, d)
    at = np.searchsorted(known, cells)
    prior = variance[at]
    sampling = (d.event * upper) ** 2 / events
    total = prior + sampling + 2 * np.square(scales)

    precision = float((1 / total).sum())
    gain = area_variance / (1 + area_variance * precision)
    finite = np.isfinite(total)
    residual = np.where(finite, means, 0.0) - np.where(finite, area + mean[at], 0.0)
    area += gain * float((residual / total).sum())
    area_variance = gain
    residual = np.where(finite, means - area - mean[at], 0.0)

    share = (prior + sampling) / total
    value = area + mean[at] + share * residual
    error = np.sqrt((prior + sampling) * (1 - share) + np.square(1 - share) * area_variance)
    own = prior / total
    mean[at] += own * residual
    variance[at] = prior * (1 - own) + np.square(own) * area_variance
    profile, profile_variance = _updated_profile(state, slot, area, area_variance)
    bounded = np.clip([value, value - 1.96 * error, value + 1.96 * error], 0.0, upper)
    new = SmoothingState(known, mean, variance, area, area_variance, profile, profile_variance, hours)
    return new, Smoothed(bounded[0], bounded[1], bounded[2])


def _validate(
    state: SmoothingState | None,
    cells: IdArray,
    means: FloatArray,
    scales: FloatArray,
    events: npt.NDArray[np.int64],
    hours: float,
    slot: int,
    upper: float,
) -> None:
    if not len(cells) == len(means) == len(scales) == len(events) or not upper > 0:
        raise ParameterError("need one mean, scale and count per cell, and upper > 0")
    if np.any(cells[1:] <= cells[:-1]) or np.any(scales < 0) or np.any(events < 1):
        raise ParameterError("cells must ascend without repeats, scales be >= 0 and counts >= 1")
    if np.any(np.isfinite(scales) & ~np.isfinite(means)):
        raise ParameterError("a released mean is not finite; give unreleased cells an infinite scale")
    if not 0 <= slot < SLOTS:
        raise ParameterError(f"slot {slot} is not an hour of the day; give 0..{SLOTS - 1}")
    if state is not None and hours < state.hours:
        raise ParameterError(f"window at {hours} h lies before the state at {state.hours} h; smooth windows in order")


def _predicted_level(
    state: SmoothingState | None, hours: float, slot: int, upper: float, d: Dynamics
) -> tuple[float, float]:
    """(Mean, variance) of the area's level: the last one after its walk, and the same hour of earlier days."""
    if state is None:
        return upper / 2, (d.level * upper) ** 2
    walked = state.level_variance + (d.level_drift * upper) ** 2 * (hours - state.hours)
    usual = float(state.profile_variance[slot]) + (d.profile_drift * upper) ** 2
    if not np.isfinite(usual):
        return state.level, walked
    weight = usual / (walked + usual)
    return weight * state.level + (1 - weight) * float(state.profile[slot]), weight * walked


def _predicted_deviations(
    state: SmoothingState | None, cells: IdArray, hours: float, upper: float, d: Dynamics
) -> tuple[IdArray, FloatArray, FloatArray]:
    """(Cells, mean, variance): every cell ever seen, reverted towards 0 for the time since; new cells at the prior."""
    stationary = (d.deviation * upper) ** 2
    if state is None:
        return cells, np.zeros(len(cells)), np.full(len(cells), stationary)
    known = np.union1d(state.cells, cells)
    mean, variance = np.zeros(len(known)), np.full(len(known), stationary)
    at = np.searchsorted(known, state.cells)
    kept = np.exp(-(hours - state.hours) / d.deviation_hours)
    mean[at] = kept * state.deviation
    variance[at] = kept**2 * state.deviation_variance + (1 - kept**2) * stationary
    return known, mean, variance


def _updated_profile(
    state: SmoothingState | None, slot: int, area: float, area_variance: float
) -> tuple[FloatArray, FloatArray]:
    """The profile with this window's level in its slot (which already contains the profile's own forecast)."""
    profile = np.zeros(SLOTS) if state is None else state.profile.copy()
    variance = np.full(SLOTS, np.inf) if state is None else state.profile_variance.copy()
    profile[slot], variance[slot] = area, area_variance
    return profile, variance
