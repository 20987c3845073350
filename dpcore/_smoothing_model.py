"""The model of :mod:`dpcore.smoothing`: its parameters, the state between windows, and the releases of one window."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy

from dpcore.arrays import BoolArray, FloatArray, IdArray
from dpcore.errors import ParameterError
from dpcore.interval_calibration import QUIET, USUAL, Calibration

HOURS_OF_DAY = 24
"""Entries of the daily profile of the area's level."""


@dataclass(frozen=True)
class Dynamics:
    """Parameters of the model. Standard deviations are shares of the range U; a tuple is a grid that is averaged over.

    ``level``, ``effect``: of the area's level, which is as large, and of each covariate's effect, before any window;
    ``typical``: of the level, as a share of the typical one, where one is given; ``level_drift``, ``effect_drift``: of
    their walk in one hour; ``profile_drift``: of the level at one hour of the day, from day to day. ``field``: of the
    lasting deviation that neighbours share, with the correlation length ``length_km`` in km; ``own``: of the part that
    is the cell's own. ``shared``: of the deviation of one window, correlated like the field; ``passing``: of the cell's
    own deviation, which fades to 1/e in ``passing_hours``. After ``memory_hours`` the past of a cell has faded to 1/e.
    ``event``: of one event around its user's mean in the cell; ``user``: of the latter around the cell's mean.
    ``usual``: by which factor such models usually are off (:data:`dpcore.interval_calibration.USUAL`); ``quiet``: of
    how far a cell lies apart, for intervals alone (:func:`dpcore.interval_calibration.apart`).
    """

    level: float = 1 / 3
    typical: float = 0.25
    level_drift: float = 0.01
    profile_drift: float = 0.05
    effect: float = 0.15
    effect_drift: float = 0.01
    memory_hours: float = 72.0
    field: tuple[float, ...] = (0.02, 0.06)
    length_km: tuple[float, ...] = (4.0,)
    own: float = 0.02
    shared: float = 0.02
    passing: float = 0.03
    passing_hours: float = 1.5
    event: tuple[float, ...] = (0.2, 0.35)
    user: float = 0.15
    usual: float = USUAL
    quiet: float = QUIET

    @property
    def lasting(self) -> float:
        """Variance of a cell's lasting deviation before any window, a share of U²."""
        return max(self.field) ** 2 + self.own**2


@dataclass(frozen=True)
class SmoothingState:
    """What is known about K cells and the area from past windows, in the unit of U.

    ``precision``, ``shift``: (K,), the lasting deviation of each cell as a Gaussian of that precision and mean shift /
    precision. ``passing``, ``passing_variance``: (K,), mean and variance of its passing deviation. ``trend`` (1 + k,):
    level and effects. ``profile`` (24,): the level at each hour of the day, with an infinite variance where no window
    was seen. ``places``: (K, 2) latitude and longitude in degrees. ``hours``: time of the state. ``calibration``: how
    wide releases show intervals to be. Raises :class:`ParameterError` for columns that do not fit or are not finite.
    """

    cells: IdArray
    places: FloatArray
    precision: FloatArray
    shift: FloatArray
    passing: FloatArray
    passing_variance: FloatArray
    trend: FloatArray
    trend_covariance: FloatArray
    profile: FloatArray
    profile_variance: FloatArray
    hours: float
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        K = len(self.cells)
        columns = (self.precision, self.shift, self.passing, self.passing_variance)
        if self.places.shape != (K, 2) or any(column.shape != (K,) for column in columns):
            raise ParameterError(f"a state of {K} cells needs one place, precision, shift and deviation for each")
        if self.trend.ndim != 1 or self.trend_covariance.shape != 2 * self.trend.shape:
            raise ParameterError("a state's trend needs one mean and its covariance for the level and each effect")
        if self.profile.shape != (HOURS_OF_DAY,) or self.profile_variance.shape != (HOURS_OF_DAY,):
            raise ParameterError(f"a state's profile has {HOURS_OF_DAY} hours")
        finite = (self.places, *columns, self.trend, self.trend_covariance, self.profile, self.hours)
        if not all(np.all(np.isfinite(column)) for column in finite):
            raise ParameterError("a state must be finite")
        if np.any(self.cells[1:] <= self.cells[:-1]) or np.any(self.precision <= 0) or np.any(columns[3] < 0):
            raise ParameterError("a state's cells ascend without repeats and its precisions are above 0")
        if not (np.all(self.profile_variance >= 0) and np.all(scipy.linalg.eigvalsh(self.trend_covariance) > 0)):
            raise ParameterError("a state's variances must be above 0")


class AreaMean(NamedTuple):
    """The released ``mean`` of all cells together, in which each has one of the ``weights`` (C,), which sum to 1; the
    Laplace ``scale`` of noise of the same variance.
    """

    mean: float
    scale: float
    weights: FloatArray


@dataclass(frozen=True)
class Releases:
    """Released means of one window, their Laplace scales (infinite where nothing was released), and numbers of events
    and users, (C,).

    ``cells`` ascend; ``places``: (C, 2) degrees; ``covariates``: (C, k) public columns, zeros for none. ``normal``:
    whether the noise is read as normal, of the variance of its scale; a sum of several Laplace variables over a small
    count is nearer to that, and the reading is linear, so noise without bias leaves none. ``area``: a release of all
    cells together, if there is one.
    """

    cells: IdArray
    places: FloatArray
    means: FloatArray
    scales: FloatArray
    events: FloatArray
    users: FloatArray
    covariates: FloatArray
    normal: bool = False
    area: AreaMean | None = None

    def __post_init__(self) -> None:
        C = len(self.cells)
        columns = (self.means, self.scales, self.events, self.users)
        whole = self.places.shape == (C, 2) and self.covariates.ndim == 2 and len(self.covariates) == C
        if not whole or any(column.shape != (C,) for column in columns):
            raise ParameterError(f"need one place, mean, scale, counts and row of covariates for each of the {C} cells")
        counted = np.all(self.events >= 1) and np.all(self.users >= 1)
        if np.any(self.cells[1:] <= self.cells[:-1]) or not (np.all(self.scales >= 0) and counted):
            raise ParameterError("cells must ascend without repeats, scales be >= 0 and counts >= 1")
        if not (np.all(np.isfinite(self.means[self.known])) and np.all(np.isfinite(self.covariates))):
            raise ParameterError("a released mean is not finite; give unreleased cells an infinite scale")
        if self.area is not None:
            _check_area(self.area, C)

    @property
    def known(self) -> BoolArray:
        """Cells with a release."""
        return np.isfinite(self.scales)


def _check_area(area: AreaMean, cells: int) -> None:
    weights = area.weights
    if weights.shape != (cells,) or not (np.all(weights >= 0) and np.isclose(weights.sum(), 1.0)):
        raise ParameterError(
            f"the mean of the area needs a weight of 0 or more for each of the {cells} cells, 1 in total"
        )
    if not (np.isfinite(area.mean) and np.isfinite(area.scale) and area.scale >= 0):
        raise ParameterError("the mean of the area and its scale must be finite, the scale 0 or more")
