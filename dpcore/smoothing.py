"""Temporal smoothing of a cell's releases: post-processing of released values, so it costs nothing.

Model: mean of cell g in window t = level of the whole area + effects of public covariates (all random walks; the level
also returns to its profile over the day) + the cell's lasting deviation, correlated in space + a passing one + what
sampling n events leaves. Releases add Laplace noise of known scale. One Kalman step per window: the past is read as one
Gaussian observation per cell that fades with time, the window's noise by expectation propagation. What is not known of
the model is averaged over a fixed grid by its evidence. The caller keeps the state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg

from dpcore.errors import ParameterError
from dpcore.laplace_posterior import laplace_posterior
from dpcore.shrinkage import local_kilometres

FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]

SLOTS = 24
"""Entries of the daily profile of the area's level."""
MOST_INFORMATIVE = 400
"""Cells of the window, and of the past, that inform the others; the noisiest beyond are only predicted."""
MOST_CELLS = 5_000
"""Cells that a state remembers."""
FORGOTTEN = 0.01
"""A cell is forgotten once it says less than this share of what the model assumes anyway."""
OLDEST_HOURS = 336.0
"""A state older than two weeks is forgotten as a whole."""


@dataclass(frozen=True)
class Dynamics:
    """Parameters; standard deviations as shares of the range U, times in hours. Tuples are averaged over."""

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
    """What the past says. ``precision``, ``shift``: (K,), the lasting deviation of each cell as a Gaussian of that
    precision and mean shift / precision. ``trend`` (1 + k,): level, effects; ``profile`` (24,): infinite variance = unseen.

    ``places``: (K, 2) latitude and longitude in degrees. In the unit of U; ``hours``: time of the state.
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
        if self.profile.shape != (SLOTS,) or self.profile_variance.shape != (SLOTS,):
            raise ParameterError(f"a state's profile has {SLOTS} hours")
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
    """Released means of one window with their Laplace scales (inf = not released), and numbers of events, (C,).

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
class _Fit:
    """One member of the grid: posterior of cells and trend, and what each release says alone."""

    log_evidence: float
    value: FloatArray
    variance: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    site_precision: FloatArray
    site_shift: FloatArray
    sampling: FloatArray
    event: float


def smooth(
    state: SmoothingState | None,
    releases: Releases,
    *,
    hours: float,
    slot: int,
    upper: float,
    dynamics: Dynamics | None = None,
) -> tuple[SmoothingState, Smoothed]:
    """One Kalman step with the releases of one window: the new state and the smoothed means.

    ``hours``: the window's time on any continuous clock, not before the state's; ``slot``: its hour of the local day,
    0..23; ``upper``: U. Raises :class:`ParameterError`.
    """
    d = dynamics or Dynamics()
    _validate(state, releases, hours, slot, upper)
    effects = releases.covariates.shape[1]
    if not len(releases.cells):
        empty = np.zeros(0)
        return _aged(state, effects, hours, upper, d), Smoothed(empty, empty, empty)
    past = _aged(state, effects, hours, upper, d)
    trend, covariance = _returned_to_profile(past, slot, upper, d)
    weight = releases.events / releases.events.sum()
    design = np.column_stack([np.ones(len(weight)), releases.covariates - weight @ releases.covariates])
    fits = _fits(past, releases, trend, covariance, design, upper, d)
    evidence = np.array([fit.log_evidence for fit in fits])
    share = _shares(evidence)
    value = _average(share, [fit.value for fit in fits])
    # Busy cells say more of an event's spread than quiet ones, and less of the quiet: intervals rest on the widest.
    cautious = _shares(np.where([fit.event == max(d.event) for fit in fits], evidence, -np.inf))
    variance = _average(cautious, [fit.variance + np.square(fit.value - value) for fit in fits])
    trend = _average(share, [fit.trend for fit in fits])
    covariance = _average(
        share, [fit.trend_covariance + np.outer(fit.trend - trend, fit.trend - trend) for fit in fits]
    )
    precision = _average(share, [fit.site_precision for fit in fits])
    shift = _average(share, [fit.site_shift for fit in fits])
    own = _average(share, [fit.sampling for fit in fits]) + (d.passing * upper) ** 2
    own = own + np.einsum("ij,jk,ik->i", design, covariance, design)
    new = _remembered(past, releases, precision, shift, design @ trend, own, upper, d)
    profile, profile_variance = past.profile.copy(), past.profile_variance.copy()
    profile[slot], profile_variance[slot] = trend[0], covariance[0, 0]
    error = np.sqrt(np.maximum(variance, 0.0))
    bounded = np.clip([value, value - 1.96 * error, value + 1.96 * error], 0.0, upper)
    smoothed = Smoothed(bounded[0], bounded[1], bounded[2])
    return SmoothingState(*new, trend, covariance, profile, profile_variance, hours), smoothed


def _validate(state: SmoothingState | None, releases: Releases, hours: float, slot: int, upper: float) -> None:
    if not upper > 0:
        raise ParameterError(f"upper bound {upper} is not above 0")
    if not 0 <= slot < SLOTS:
        raise ParameterError(f"slot {slot} is not an hour of the day; give 0..{SLOTS - 1}")
    if state is not None and hours < state.hours:
        raise ParameterError(f"window at {hours} h lies before the state at {state.hours} h; smooth windows in order")
    if state is not None and len(state.trend) != 1 + releases.covariates.shape[1]:
        raise ParameterError(
            f"the state knows {len(state.trend) - 1} covariates, the window {releases.covariates.shape[1]}; start anew"
        )


def _shares(log_evidence: FloatArray) -> FloatArray:
    share = np.exp(log_evidence - log_evidence.max())
    return np.asarray(share / share.sum())


def _average(share: FloatArray, columns: list[FloatArray]) -> FloatArray:
    return np.asarray(np.tensordot(share, np.array(columns), axes=1))


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
            np.zeros(SLOTS),
            np.full(SLOTS, np.inf),
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


def _returned_to_profile(past: SmoothingState, slot: int, upper: float, d: Dynamics) -> tuple[FloatArray, FloatArray]:
    """(Trend, covariance) after the same hour of earlier days is read as an observation of the level."""
    usual = float(past.profile_variance[slot]) + (d.profile_drift * upper) ** 2
    gain = past.trend_covariance[:, 0] / (past.trend_covariance[0, 0] + usual)
    if not np.isfinite(usual):
        return past.trend, past.trend_covariance
    trend = past.trend + gain * (past.profile[slot] - past.trend[0])
    return trend, past.trend_covariance - np.outer(gain, past.trend_covariance[0])


def _fits(
    past: SmoothingState,
    releases: Releases,
    trend: FloatArray,
    trend_covariance: FloatArray,
    design: FloatArray,
    upper: float,
    d: Dynamics,
) -> list[_Fit]:
    """The window's posterior under every member of the grid."""
    told = np.sort(np.argsort(-past.precision, kind="stable")[:MOST_INFORMATIVE])
    seen = np.sort(np.argsort(releases.scales, kind="stable")[:MOST_INFORMATIVE])
    seen = seen[releases.known[seen]]
    T = len(told)
    distance, same = _relations(past, told, releases, seen)
    said = past.shift[told] / past.precision[told]
    tried = trend_covariance @ design.T
    unseen = _unseen_sites(releases, upper)
    fits = []
    for field, length in itertools.product(d.field, d.length_km):
        near = np.exp(-distance / length)
        lasting = (field * upper) ** 2 * near + (d.own * upper) ** 2 * same
        factor = linalg.cho_factor(lasting[:T, :T] + np.diag(1 / past.precision[told]), lower=True)
        gain = linalg.cho_solve(factor, lasting[T:, :T].T)
        expected = design @ trend + gain.T @ said
        common = lasting[T:, T:] - gain.T @ lasting[T:, :T].T[:, seen] + design @ tried[:, seen]
        common = common + (d.passing * upper) ** 2 * near[T:, T:]
        alone = (field**2 + d.own**2 + d.passing**2) * upper**2 - np.einsum("ji,ij->i", gain, lasting[T:, :T])
        alone = alone + np.einsum("ij,ji->i", design, tried)
        for event in d.event:
            sampling = (event * upper) ** 2 / (releases.events + (event / d.quiet) ** 2)
            prior = common.copy()
            prior[seen, np.arange(len(seen))] += sampling[seen]
            sites = laplace_posterior(prior[seen], (releases.means - expected)[seen], releases.scales[seen])
            factor = linalg.cho_factor(prior[seen] + np.diag(1 / sites.site_precision), lower=True)
            weights = linalg.cho_solve(factor, sites.site_shift / sites.site_precision)
            precision, shift = unseen[0].copy(), unseen[1].copy()
            precision[seen] = sites.site_precision
            shift[seen] = sites.site_shift + sites.site_precision * expected[seen]
            fits.append(
                _Fit(
                    sites.log_evidence,
                    expected + prior @ weights,
                    alone + sampling - np.einsum("ij,ji->i", prior, linalg.cho_solve(factor, prior.T)),
                    trend + tried[:, seen] @ weights,
                    trend_covariance - tried[:, seen] @ linalg.cho_solve(factor, tried[:, seen].T),
                    precision,
                    shift,
                    sampling,
                    event,
                )
            )
    return fits


def _relations(
    past: SmoothingState, told: IntArray, releases: Releases, seen: IntArray
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """(Distance in km, same cell): cells of the past and of the window, (T + C), against those that inform, (T + S)."""
    places = np.concatenate([past.places[told], releases.places])
    cells = np.concatenate([past.cells[told], releases.cells])
    inform = np.concatenate([np.arange(len(told)), len(told) + seen])
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
    past: SmoothingState,
    releases: Releases,
    precision: FloatArray,
    shift: FloatArray,
    trend: FloatArray,
    own: FloatArray,
    upper: float,
    d: Dynamics,
) -> tuple[IdArray, FloatArray, FloatArray, FloatArray]:
    """(Cells, places, precision, shift): what the past and this window say of each cell's lasting deviation.

    ``own``: (C,) variance of a cell's mean around trend and lasting deviation.
    """
    cells = np.union1d(past.cells, releases.cells)
    places = np.zeros((len(cells), 2))
    total, moved = np.zeros(len(cells)), np.zeros(len(cells))
    before, now = np.searchsorted(cells, past.cells), np.searchsorted(cells, releases.cells)
    places[before], places[now] = past.places, releases.places
    total[before], moved[before] = past.precision, past.shift
    told = precision > 0
    fresh = np.zeros(len(precision))
    fresh[told] = 1 / (1 / precision[told] + own[told])
    total[now] += fresh
    moved[now[told]] += fresh[told] * (shift[told] / precision[told] - trend[told])
    kept = _informative(total, upper, d)
    return cells[kept], places[kept], total[kept], moved[kept]


def _informative(precision: FloatArray, upper: float, d: Dynamics) -> IntArray:
    """Ascending positions of the cells that are remembered."""
    assumed = (max(d.field) ** 2 + d.own**2) * upper**2
    kept = np.flatnonzero(precision * assumed >= FORGOTTEN)
    return np.sort(kept[np.argsort(-precision[kept], kind="stable")[:MOST_CELLS]])
