"""Temporal smoothing of the released means of cells: post-processing of released values, so it costs nothing.

The model: the mean of a cell in a window is the sum of the level of the whole area, the effects of public covariates,
the cell's lasting deviation, passing deviations, and what sampling n events of m users leaves. Level and effects are
random walks; the level also returns to its profile over the day. Lasting deviations are correlated in space. Passing
ones are that of the window, correlated likewise, and that of the cell, which fades within hours (AR(1)). A release
adds noise of known scale. A release of all cells together observes the weighted sum of their means.

The typical mean is the sum of level, effects and lasting deviation before the window's releases are read.

The method: one Kalman step per window. The past is kept as one Gaussian observation of each cell's lasting deviation,
which fades with time. The window's Laplace noise is read by expectation propagation (:mod:`dpcore.laplace_posterior`);
noise of ratios of several noisy numbers is read as normal. Parameters that nobody knows are averaged over a fixed grid
(:mod:`dpcore._smoothing_fit`). Each release tests what the model says without it, which calibrates the intervals
(:mod:`dpcore.interval_calibration`). The caller keeps the state between windows. Source: Durbin and Koopman, *Time
Series Analysis by State Space Methods* (2012), chapter 4, for the Kalman step; Rasmussen and Williams, *Gaussian
Processes for Machine Learning* (2006), section 2.2, for the spatial field.
"""

from dataclasses import dataclass, replace

import numpy as np

from dpcore._smoothing_fit import MOST_INFORMATIVE, Posterior, Window, averaged, fits_of, priors_of, typical_of
from dpcore._smoothing_model import HOURS_OF_DAY, AreaMean, Dynamics, Releases, SmoothingState
from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.errors import ParameterError
from dpcore.interval_calibration import Calibration, Observed, apart, class_of

__all__ = [
    "FORGOTTEN",
    "HOURS_OF_DAY",
    "MOST_CELLS",
    "MOST_INFORMATIVE",
    "OLDEST_HOURS",
    "AreaMean",
    "Dynamics",
    "FloatArray",
    "Foretold",
    "IdArray",
    "IntArray",
    "Releases",
    "Smoothed",
    "SmoothingState",
    "foretell",
    "smooth",
]

MOST_CELLS = 5_000
"""Most cells that a state remembers."""
FORGOTTEN = 0.01
"""A cell is forgotten once the precision of its past is below this share of the precision of the model's prior."""
CALIBRATION_HOURS = 12.0
"""After so many hours the evidence that calibrates intervals has faded to 1/e. Errors of a model are alike from day to
day, so that more windows would make a calibration surer than it may be: with three days of evidence, coverage fell to
80 % in some classes."""
OLDEST_HOURS = 336.0
"""A state older than two weeks is forgotten as a whole."""


@dataclass(frozen=True)
class Smoothed:
    """Post-processed means: ``value``, ``low``, ``high`` (95 %, calibrated by releases), shape (C,), in the unit of U,
    and what was ``typical`` of each cell at this hour before the window was released.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    typical: "Foretold"


def smooth(
    state: SmoothingState | None,
    releases: Releases,
    *,
    hours: float,
    hour_of_day: int,
    upper: float,
    typical: float | None = None,
    dynamics: Dynamics | None = None,
) -> tuple[SmoothingState, Smoothed]:
    """One Kalman step with the releases of one window: the new state and the smoothed means.

    ``hours``: the window's time on any continuous clock, not before the state's; ``hour_of_day``: its hour of the local
    day, 0..23; ``upper``: U; ``typical``: the level that is expected before any window, None: U/3, give or
    take as much. Raises :class:`ParameterError`.
    """
    d = dynamics or Dynamics()
    _validate(state, releases, hours, hour_of_day, upper)
    past = _aged(state, releases.covariates.shape[1], hours, upper, typical, d)
    if not len(releases.cells):
        empty = np.zeros(0)
        return past, Smoothed(empty, empty, empty, Foretold(empty, empty))
    window = Window.of(past, releases, _recalled(state, hours, hour_of_day), upper, d)
    priors = priors_of(window, d)
    posterior, prediction = averaged(fits_of(window, priors, d), d)
    away = _apart(window, d)
    observed = Observed(releases.means, releases.scales, releases.events, releases.normal, away)
    calibration = past.calibration.after(prediction, observed)
    profile, profile_variance = past.profile.copy(), past.profile_variance.copy()
    profile[hour_of_day], profile_variance[hour_of_day] = posterior.trend[0], posterior.trend_covariance[0, 0]
    cells = _remembered(past, window, posterior, d)
    new = SmoothingState(
        *cells, posterior.trend, posterior.trend_covariance, profile, profile_variance, hours, calibration
    )
    usual, variance = typical_of(priors)
    known = Foretold(np.clip(usual, 0.0, upper), np.sqrt(variance))
    return new, Smoothed(*calibration.estimate(posterior.value, prediction, observed, upper), known)


@dataclass(frozen=True)
class Foretold:
    """What the past says about the mean of each cell in a window, before anything of it is released: ``value`` and
    ``deviation``, the standard deviation of the cell's mean around it, (C,), in the unit of U.
    """

    value: FloatArray
    deviation: FloatArray

    def interval(self, upper: float) -> tuple[FloatArray, FloatArray]:
        """The ends of the 95 % interval of the mean of each cell, (C,), within [0, ``upper``]."""
        reach = _NORMAL * self.deviation
        low, high = np.clip([self.value - reach, self.value + reach], 0.0, upper)
        return low, high


_NORMAL = 1.96


def foretell(
    state: SmoothingState | None,
    at: Releases,
    *,
    hours: float,
    hour_of_day: int,
    upper: float,
    typical: float | None = None,
    dynamics: Dynamics | None = None,
) -> Foretold:
    """The forecast of a window's means from the ``state`` before it: level at this hour, effects of covariates, lasting
    deviations.

    ``at``: cells, places, events and covariates of the window; its means and scales are not read. All members of the
    grid count alike. The rest is as in :func:`smooth`, and so are the errors.
    """
    d = dynamics or Dynamics()
    _validate(state, at, hours, hour_of_day, upper)
    past = _aged(state, at.covariates.shape[1], hours, upper, typical, d)
    C = len(at.cells)
    if not C:
        return Foretold(np.zeros(0), np.zeros(0))
    nothing = replace(at, means=np.zeros(C), scales=np.full(C, np.inf), area=None)
    window = Window.of(past, nothing, _recalled(state, hours, hour_of_day), upper, d)
    posterior, _ = averaged(fits_of(window, priors_of(window, d), d), d)
    factors = past.calibration.factors[class_of(at.events)]
    variance = posterior.variance * factors + _apart(window, d)
    return Foretold(np.clip(posterior.value, 0.0, upper), np.sqrt(variance))


def _apart(window: Window, d: Dynamics) -> FloatArray:
    """Variance of how far the cells lie apart, (C,), as far as their own past leaves it open."""
    left = 1 / (1 + window.precision * d.lasting * window.upper**2)
    return apart(window.releases.events, d.quiet, window.upper, left)


def _recalled(state: SmoothingState | None, hours: float, hour_of_day: int) -> int | None:
    """The hour of the day whose profile says something new; None within the hour in which it was written, because the
    level already holds what it says.
    """
    return None if state is not None and int(hours) == int(state.hours) else hour_of_day


def _validate(state: SmoothingState | None, releases: Releases, hours: float, hour_of_day: int, upper: float) -> None:
    if not upper > 0:
        raise ParameterError(f"upper bound {upper} is not above 0")
    if not 0 <= hour_of_day < HOURS_OF_DAY:
        raise ParameterError(f"{hour_of_day} is not an hour of the day; give 0..{HOURS_OF_DAY - 1}")
    if state is not None and hours < state.hours:
        raise ParameterError(f"window at {hours} h lies before the state at {state.hours} h; smooth windows in order")
    if state is not None and len(state.trend) != 1 + releases.covariates.shape[1]:
        raise ParameterError(
            f"the state knows {len(state.trend) - 1} covariates, the window {releases.covariates.shape[1]}; start anew"
        )


def _aged(
    state: SmoothingState | None, effects: int, hours: float, upper: float, typical: float | None, d: Dynamics
) -> SmoothingState:
    """The state at ``hours`` before anything of then is known: deviations faded, level and effect walked on."""
    if state is None or hours - state.hours > OLDEST_HOURS:
        level, deviation = (d.level * upper, d.level * upper) if typical is None else (typical, d.typical * typical)
        return SmoothingState(
            np.zeros(0, dtype=np.uint64),
            np.zeros((0, 2)),
            np.zeros(0),
            np.zeros(0),
            np.zeros(0),
            np.zeros(0),
            np.append(level, np.zeros(effects)),
            np.diag(np.square([deviation, *effects * [d.effect * upper]])),
            np.zeros(HOURS_OF_DAY),
            np.full(HOURS_OF_DAY, np.inf),
            hours,
            Calibration(usual=d.usual),
        )
    passed = hours - state.hours
    faded, passing = np.exp(-passed / d.memory_hours), np.exp(-passed / d.passing_hours)
    own = (d.passing * upper) ** 2
    walked = np.diag(np.square([d.level_drift * upper, *effects * [d.effect_drift * upper]])) * passed
    kept = _informative(state.precision * faded, upper, d)
    return SmoothingState(
        state.cells[kept],
        state.places[kept],
        state.precision[kept] * faded,
        state.shift[kept] * faded,
        state.passing[kept] * passing,
        own + (state.passing_variance[kept] - own) * passing**2,
        state.trend,
        state.trend_covariance + walked,
        state.profile,
        state.profile_variance,
        hours,
        replace(state.calibration.faded(float(np.exp(-passed / CALIBRATION_HOURS))), usual=d.usual),
    )


def _remembered(
    past: SmoothingState, window: Window, posterior: Posterior, d: Dynamics
) -> tuple[IdArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """(Cells, places, precision, shift, passing, its variance): what the past and this window say about the deviations
    of each cell.
    """
    releases, design = window.releases, window.design
    # What a cell's mean scatters around its trend and its lasting deviation.
    own = posterior.sampling + (d.shared**2 + d.passing**2) * window.upper**2
    own = own + np.einsum("ij,jk,ik->i", design, posterior.trend_covariance, design)
    precision, trend = posterior.site_precision, design @ posterior.trend
    cells = np.union1d(past.cells, releases.cells)
    places = np.zeros((len(cells), 2))
    total, moved, passing = np.zeros((3, len(cells)))
    variance = np.full(len(cells), (d.passing * window.upper) ** 2)
    before, now = np.searchsorted(cells, past.cells), np.searchsorted(cells, releases.cells)
    places[before], places[now] = past.places, releases.places
    total[before], moved[before] = past.precision, past.shift
    for column, old, new in (
        (passing, past.passing, posterior.passing),
        (variance, past.passing_variance, posterior.passing_variance),
    ):
        column[before], column[now] = old, new
    released = precision > 0
    fresh = np.zeros(len(precision))
    fresh[released] = 1 / (1 / precision[released] + own[released])
    total[now] += fresh
    deviation = posterior.site_shift[released] / precision[released] - trend[released]
    moved[now[released]] += fresh[released] * deviation
    kept = _informative(total, window.upper, d)
    return cells[kept], places[kept], total[kept], moved[kept], passing[kept], variance[kept]


def _informative(precision: FloatArray, upper: float, d: Dynamics) -> IntArray:
    """Ascending positions of the cells that are remembered."""
    kept = np.flatnonzero(precision * (d.lasting * upper**2) >= FORGOTTEN)
    return np.sort(kept[np.argsort(-precision[kept], kind="stable")[:MOST_CELLS]])
