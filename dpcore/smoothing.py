"""Temporal smoothing of the released means of cells: post-processing of released values, so it costs nothing.

The model: the mean of a cell in a window is the sum of the level of the whole area, the effects of public covariates, the
cell's lasting deviation, a passing deviation, and what sampling n events leaves. Level and effects are random walks; the
level also returns to its profile over the day. Deviations are correlated in space. A release adds Laplace noise of known scale.

The method: one Kalman step per window. The past is kept as one Gaussian observation of each cell's lasting deviation, which
fades with time. The window's Laplace noise is read by expectation propagation (:mod:`dpcore.laplace_posterior`). Parameters
that nobody knows are averaged over a fixed grid (:mod:`dpcore.model_averaging`). The caller keeps the state between windows.
Source: Durbin and Koopman, *Time Series Analysis by State Space Methods* (2012), chapter 4, for the Kalman step; Rasmussen and
Williams, *Gaussian Processes for Machine Learning* (2006), section 2.2, for the spatial field.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior
from dpcore.model_averaging import ModelAverage, average
from dpcore.shrinkage import local_kilometres

FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]

HOURS_OF_DAY = 24
"""Entries of the daily profile of the area's level."""
MOST_INFORMATIVE = 400
"""Most cells of the window, and most of the past, that inform the others; the noisier ones are only predicted."""
MOST_CELLS = 5_000
"""Most cells that a state remembers."""
FORGOTTEN = 0.01
"""A cell is forgotten once the precision of its past is below this share of the precision of the model's prior."""
OLDEST_HOURS = 336.0
"""A state older than two weeks is forgotten as a whole."""


@dataclass(frozen=True)
class Dynamics:
    """Parameters of the model. Standard deviations are shares of the range U; a tuple is a grid that is averaged over.

    ``level``, ``effect``: of the area's level and of each covariate's effect, before any window; ``level_drift``,
    ``effect_drift``: of their walk in one hour; ``profile_drift``: of the level at one hour of the day, from day to day.
    ``field``: of the lasting deviation that neighbours share, with the correlation length ``length_km`` in km; ``own``: of the
    part that is the cell's own; ``passing``: of the deviation of one window. After ``memory_hours`` the past of a cell has
    faded to 1/e. ``event``: of one event around its cell's mean; ``quiet``: of the mean of a cell with next to no events.
    """

    level: float = 0.5
    level_drift: float = 0.01
    profile_drift: float = 0.05
    effect: float = 0.15
    effect_drift: float = 0.01
    memory_hours: float = 72.0
    field: tuple[float, ...] = (0.02, 0.06)
    length_km: tuple[float, ...] = (4.0,)
    own: float = 0.02
    passing: float = 0.02
    event: tuple[float, ...] = (0.3, 0.8)
    quiet: float = 0.5


@dataclass(frozen=True)
class SmoothingState:
    """What past windows tell about K cells and the area, in the unit of U.

    ``precision``, ``shift``: (K,), the lasting deviation of each cell as a Gaussian of that precision and mean
    shift / precision. ``trend`` (1 + k,): level and effects. ``profile`` (24,): the level at each hour of the day, with an
    infinite variance where no window was seen. ``places``: (K, 2) latitude and longitude in degrees. ``hours``: time of the
    state. Raises :class:`ParameterError` for columns that do not fit or are not finite.
    """

    cells: IdArray
    places: FloatArray
    precision: FloatArray
    shift: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    profile: FloatArray
    profile_variance: FloatArray
    hours: float

    def __post_init__(self) -> None:
        K = len(self.cells)
        if self.places.shape != (K, 2) or self.precision.shape != (K,) or self.shift.shape != (K,):
            raise ParameterError(f"a state of {K} cells needs one place, precision and shift for each")
        if self.trend.ndim != 1 or self.trend_covariance.shape != 2 * self.trend.shape:
            raise ParameterError("a state's trend needs one mean and its covariance for the level and each effect")
        if self.profile.shape != (HOURS_OF_DAY,) or self.profile_variance.shape != (HOURS_OF_DAY,):
            raise ParameterError(f"a state's profile has {HOURS_OF_DAY} hours")
        finite = (self.places, self.precision, self.shift, self.trend, self.trend_covariance, self.profile, self.hours)
        if not all(np.all(np.isfinite(column)) for column in finite):
            raise ParameterError("a state must be finite")
        if np.any(self.cells[1:] <= self.cells[:-1]) or np.any(self.precision <= 0):
            raise ParameterError("a state's cells ascend without repeats and its precisions are above 0")
        if not (np.all(self.profile_variance >= 0) and np.all(linalg.eigvalsh(self.trend_covariance) > 0)):
            raise ParameterError("a state's variances must be above 0")


@dataclass(frozen=True)
class Smoothed:
    """Post-processed means: ``value``, ``low``, ``high`` (95 % under the model), shape (C,), in the unit of U."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Releases:
    """Released means of one window, their Laplace scales (infinite where nothing was released) and numbers of events, (C,).

    ``cells`` ascend; ``places``: (C, 2) degrees; ``covariates``: (C, k) public columns, zeros for none.
    """

    cells: IdArray
    places: FloatArray
    means: FloatArray
    scales: FloatArray
    events: FloatArray
    covariates: FloatArray

    def __post_init__(self) -> None:
        C = len(self.cells)
        columns = (self.means, self.scales, self.events)
        whole = self.places.shape == (C, 2) and self.covariates.ndim == 2 and len(self.covariates) == C
        if not whole or any(column.shape != (C,) for column in columns):
            raise ParameterError(f"need one place, mean, scale, count and row of covariates for each of the {C} cells")
        if np.any(self.cells[1:] <= self.cells[:-1]) or not (np.all(self.scales >= 0) and np.all(self.events >= 1)):
            raise ParameterError("cells must ascend without repeats, scales be >= 0 and counts >= 1")
        if not (np.all(np.isfinite(self.means[self.known])) and np.all(np.isfinite(self.covariates))):
            raise ParameterError("a released mean is not finite; give unreleased cells an infinite scale")

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Cells with a release."""
        return np.isfinite(self.scales)


@dataclass(frozen=True)
class _Window:
    """The releases of one window beside the past: what all members of the grid share.

    T remembered cells and S released ones inform the others. ``past_mean``, ``past_variance``: (T,), the lasting deviation of
    each as far as its own history tells; ``seen``: (S,), positions of the released ones among the window's C cells;
    ``distance``: (T + C, T + S) in km, and whether two of them are the ``same`` cell. ``design``: (C, 1 + k), how level and
    effects enter each mean; ``trend`` (1 + k,) and its covariance: level and effects before the window.
    """

    releases: Releases
    past_mean: FloatArray
    past_variance: FloatArray
    seen: IntArray
    distance: FloatArray
    same: npt.NDArray[np.bool_]
    design: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    upper: float

    @classmethod
    def of(cls, past: SmoothingState, releases: Releases, hour_of_day: int, upper: float, d: Dynamics) -> _Window:
        """Choose the cells that inform the others, and read the level's profile at ``hour_of_day``."""
        remembered = np.sort(np.argsort(-past.precision, kind="stable")[:MOST_INFORMATIVE])
        seen = np.sort(np.argsort(releases.scales, kind="stable")[:MOST_INFORMATIVE])
        seen = seen[releases.known[seen]]
        weight = releases.events / releases.events.sum()
        return cls(
            releases,
            past.shift[remembered] / past.precision[remembered],
            1 / past.precision[remembered],
            seen,
            *_relations(past, remembered, releases, seen),
            np.column_stack([np.ones(len(weight)), releases.covariates - weight @ releases.covariates]),
            *_returned_to_profile(past, hour_of_day, upper, d),
            upper,
        )


@dataclass(frozen=True)
class _Prior:
    """A member of the grid before the window's releases, sampling left out: mean and variance of each cell, (C,), and the
    covariance of each with those that inform the others, (C, S).
    """

    mean: FloatArray
    variance: FloatArray
    covariance: FloatArray


@dataclass(frozen=True)
class _Posterior:
    """Mean ``value`` and variance of each cell, (C,); trend and its covariance; what each release says alone, as a Gaussian
    of ``site_precision`` and mean ``site_shift``/``site_precision``, (C,); variance that ``sampling`` its events leaves, (C,).
    """

    value: FloatArray
    variance: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    site_precision: FloatArray
    site_shift: FloatArray
    sampling: FloatArray


@dataclass(frozen=True)
class _Fit:
    """One member of the grid, its standard deviation of one ``event`` as a share of U, and how well it explains the window."""

    event: float
    log_evidence: float
    posterior: _Posterior


def smooth(
    state: SmoothingState | None,
    releases: Releases,
    *,
    hours: float,
    hour_of_day: int,
    upper: float,
    dynamics: Dynamics | None = None,
) -> tuple[SmoothingState, Smoothed]:
    """One Kalman step with the releases of one window: the new state and the smoothed means.

    ``hours``: the window's time on any continuous clock, not before the state's; ``hour_of_day``: its hour of the local day,
    0..23; ``upper``: U. Raises :class:`ParameterError`.
    """
    d = dynamics or Dynamics()
    _validate(state, releases, hours, hour_of_day, upper)
    past = _aged(state, releases.covariates.shape[1], hours, upper, d)
    if not len(releases.cells):
        empty = np.zeros(0)
        return past, Smoothed(empty, empty, empty)
    window = _Window.of(past, releases, hour_of_day, upper, d)
    fits = _fits(window, d)
    averaged = ModelAverage.of(
        [fit.log_evidence for fit in fits],
        [fit.posterior.value for fit in fits],
        [fit.posterior.variance for fit in fits],
        [fit.event == max(d.event) for fit in fits],
    )
    posterior = _averaged(averaged, [fit.posterior for fit in fits])
    profile, profile_variance = past.profile.copy(), past.profile_variance.copy()
    profile[hour_of_day], profile_variance[hour_of_day] = posterior.trend[0], posterior.trend_covariance[0, 0]
    cells = _remembered(past, window, posterior, d)
    new = SmoothingState(*cells, posterior.trend, posterior.trend_covariance, profile, profile_variance, hours)
    return new, Smoothed(*averaged.interval(upper))


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


def _aged(state: SmoothingState | None, effects: int, hours: float, upper: float, d: Dynamics) -> SmoothingState:
    """The state at ``hours`` before anything of then is known: deviations faded, level and effect walked on."""
    if state is None or hours - state.hours > OLDEST_HOURS:
        return SmoothingState(
            np.zeros(0, dtype=np.uint64),
            np.zeros((0, 2)),
            np.zeros(0),
            np.zeros(0),
            np.append(upper / 2, np.zeros(effects)),
            np.diag(np.square([d.level * upper, *effects * [d.effect * upper]])),
            np.zeros(HOURS_OF_DAY),
            np.full(HOURS_OF_DAY, np.inf),
            hours,
        )
    passed = hours - state.hours
    faded = np.exp(-passed / d.memory_hours)
    walked = np.diag(np.square([d.level_drift * upper, *effects * [d.effect_drift * upper]])) * passed
    kept = _informative(state.precision * faded, upper, d)
    return SmoothingState(
        state.cells[kept],
        state.places[kept],
        state.precision[kept] * faded,
        state.shift[kept] * faded,
        state.trend,
        state.trend_covariance + walked,
        state.profile,
        state.profile_variance,
        hours,
    )


def _returned_to_profile(
    past: SmoothingState, hour_of_day: int, upper: float, d: Dynamics
) -> tuple[FloatArray, FloatArray]:
    """(Trend, covariance) after the same hour of earlier days is read as an observation of the level."""
    usual = float(past.profile_variance[hour_of_day]) + (d.profile_drift * upper) ** 2
    gain = past.trend_covariance[:, 0] / (past.trend_covariance[0, 0] + usual)
    if not np.isfinite(usual):
        return past.trend, past.trend_covariance
    trend = past.trend + gain * (past.profile[hour_of_day] - past.trend[0])
    return trend, past.trend_covariance - np.outer(gain, past.trend_covariance[0])


def _fits(window: _Window, d: Dynamics) -> list[_Fit]:
    """The window's posterior under every member of the grid."""
    return [
        _fit(window, prior, event, d)
        for prior in (_prior(window, field, length, d) for field, length in itertools.product(d.field, d.length_km))
        for event in d.event
    ]


def _prior(window: _Window, field: float, length: float, d: Dynamics) -> _Prior:
    """What the past and the trend say, for one standard deviation ``field`` (a share of U) and correlation ``length`` (km):
    kriging of the lasting deviations, to which trend and passing deviations add their uncertainty.
    """
    T, upper = len(window.past_mean), window.upper
    near = np.exp(-window.distance / length)
    lasting = (field * upper) ** 2 * near + (d.own * upper) ** 2 * window.same
    factor = linalg.cho_factor(lasting[:T, :T] + np.diag(window.past_variance), lower=True)
    gain = linalg.cho_solve(factor, lasting[T:, :T].T)
    from_trend = window.trend_covariance @ window.design.T
    covariance = lasting[T:, T:] - gain.T @ lasting[T:, :T].T[:, window.seen]
    covariance = covariance + window.design @ from_trend[:, window.seen] + (d.passing * upper) ** 2 * near[T:, T:]
    variance = (field**2 + d.own**2 + d.passing**2) * upper**2 - np.einsum("ji,ij->i", gain, lasting[T:, :T])
    variance = variance + np.einsum("ij,ji->i", window.design, from_trend)
    return _Prior(window.design @ window.trend + gain.T @ window.past_mean, variance, covariance)


def _fit(window: _Window, prior: _Prior, event: float, d: Dynamics) -> _Fit:
    """The posterior of one member of the grid, whose single events have the standard deviation ``event`` (a share of U)."""
    releases, seen = window.releases, window.seen
    sampling = (event * window.upper) ** 2 / (releases.events + (event / d.quiet) ** 2)
    covariance = prior.covariance.copy()
    covariance[seen, np.arange(len(seen))] += sampling[seen]
    sites = laplace_posterior(covariance[seen], (releases.means - prior.mean)[seen], releases.scales[seen])
    factor = linalg.cho_factor(covariance[seen] + np.diag(1 / sites.site_precision), lower=True)
    weights = linalg.cho_solve(factor, sites.site_shift / sites.site_precision)
    precision, shift = _unseen_sites(releases, window.upper)
    precision[seen] = sites.site_precision
    shift[seen] = sites.site_shift + sites.site_precision * prior.mean[seen]
    from_trend = (window.trend_covariance @ window.design.T)[:, seen]
    posterior = _Posterior(
        prior.mean + covariance @ weights,
        prior.variance + sampling - np.einsum("ij,ji->i", covariance, linalg.cho_solve(factor, covariance.T)),
        window.trend + from_trend @ weights,
        window.trend_covariance - from_trend @ linalg.cho_solve(factor, from_trend.T),
        precision,
        shift,
        sampling,
    )
    return _Fit(event, sites.log_evidence, posterior)


def _averaged(averaged: ModelAverage, posteriors: list[_Posterior]) -> _Posterior:
    """The posteriors of all members of the grid as one, each weighing as much as its evidence."""
    shares = averaged.shares
    trend = average(shares, [each.trend for each in posteriors])
    covariance = average(
        shares, [each.trend_covariance + np.outer(each.trend - trend, each.trend - trend) for each in posteriors]
    )
    precision = average(shares, [each.site_precision for each in posteriors])
    shift = average(shares, [each.site_shift for each in posteriors])
    sampling = average(shares, [each.sampling for each in posteriors])
    return _Posterior(averaged.value, averaged.variance, trend, covariance, precision, shift, sampling)


def _relations(
    past: SmoothingState, remembered: IntArray, releases: Releases, seen: IntArray
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """(Distance in km, same cell): cells of the past and of the window, (T + C), against those that inform, (T + S)."""
    places = np.concatenate([past.places[remembered], releases.places])
    cells = np.concatenate([past.cells[remembered], releases.cells])
    inform = np.concatenate([np.arange(len(remembered)), len(remembered) + seen])
    at = local_kilometres(places[:, 0], places[:, 1])
    distance = np.sqrt(np.square(at[:, None, :] - at[None, inform, :]).sum(axis=2))
    return distance, cells[:, None] == cells[None, inform]


def _unseen_sites(releases: Releases, upper: float) -> tuple[FloatArray, FloatArray]:
    """(Precision, shift) of every release read as Gaussian noise of the same variance: for those that only remember."""
    precision = np.zeros(len(releases.cells))
    known = releases.known
    precision[known] = 1 / np.maximum(2 * np.square(releases.scales[known]), 1e-9 * upper**2)
    shift = np.zeros(len(precision))
    shift[known] = precision[known] * releases.means[known]
    return precision, shift


def _remembered(
    past: SmoothingState, window: _Window, posterior: _Posterior, d: Dynamics
) -> tuple[IdArray, FloatArray, FloatArray, FloatArray]:
    """(Cells, places, precision, shift): what the past and this window say about each cell's lasting deviation."""
    releases, design = window.releases, window.design
    # What a cell's mean scatters around its trend and its lasting deviation.
    own = posterior.sampling + (d.passing * window.upper) ** 2
    own = own + np.einsum("ij,jk,ik->i", design, posterior.trend_covariance, design)
    precision, trend = posterior.site_precision, design @ posterior.trend
    cells = np.union1d(past.cells, releases.cells)
    places = np.zeros((len(cells), 2))
    total, moved = np.zeros(len(cells)), np.zeros(len(cells))
    before, now = np.searchsorted(cells, past.cells), np.searchsorted(cells, releases.cells)
    places[before], places[now] = past.places, releases.places
    total[before], moved[before] = past.precision, past.shift
    released = precision > 0
    fresh = np.zeros(len(precision))
    fresh[released] = 1 / (1 / precision[released] + own[released])
    total[now] += fresh
    deviation = posterior.site_shift[released] / precision[released] - trend[released]
    moved[now[released]] += fresh[released] * deviation
    kept = _informative(total, window.upper, d)
    return cells[kept], places[kept], total[kept], moved[kept]


def _informative(precision: FloatArray, upper: float, d: Dynamics) -> IntArray:
    """Ascending positions of the cells that are remembered."""
    assumed = (max(d.field) ** 2 + d.own**2) * upper**2
    kept = np.flatnonzero(precision * assumed >= FORGOTTEN)
    return np.sort(kept[np.argsort(-precision[kept], kind="stable")[:MOST_CELLS]])
