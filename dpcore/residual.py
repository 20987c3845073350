"""Residual clipping: each user's mean in a cell is clipped to a range around what earlier releases foretell (S16).

To be proved: if all values of one user change, the integer of cell g moves by at most
:meth:`ResidualMean.sensitivities` of their pair there, Δ = Γ·(upper − lower). The ranges are post-processing of earlier
releases, hence public. Proof: the Γ retained values of the user add S; what they contribute is S clipped to [Γ·lower,
Γ·upper], an interval of length Δ. Under "participation" no sensitivity depends on a range
(:mod:`dpcore.participation`). Tested: by brute force in ``tests/dpcore/test_contributions.py``, where a range that
follows the true data moves by more.

A narrow range has less noise, but the clipped mean moves by less than the mean. Model: means of users in a cell are
normal with standard deviation ``spread``, clipped to [0, U] because whoever stands has speed 0. Then the clipped mean
is a known function of the mean, and :class:`Response` undoes it to first order at the forecast: without the bounds 0
and U its gain is erf(κ/√2) for a range of ±κ spreads. Users are not quite like the model; what the undoing leaves open
goes into the interval. Source: mechanism S16; moments of a censored normal variable as in Tobin, Econometrica 26
(1958).
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import scipy

from dpcore.allocation import checked_retained
from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Contributions, Counts
from dpcore.errors import ParameterError
from dpcore.mean import CellStatistic
from dpcore.scales import check_clipped, checked_upper

KAPPAS = (0.25, 0.4, 0.6, 0.85, 1.2, 1.7, 2.4, np.inf)
"""Candidate half ranges, in spreads of users; the last is no clipping."""
OPEN_SHARE = 0.18
"""What the undoing leaves open in a very narrow range, as a share of the spread: root mean square over cells of eight
users or more of CapMetro's 2015-09-06, 2016-11-25 and 2017-03-16 (0.13 to 0.19); it falls as
exp(−κ²/:data:`OPEN_FALL`)."""
OPEN_FALL = 2.2
LASTING = 1.5
"""Weight of that error beside noise when a range is chosen, because it stays from window to window and noise does
not."""
LEAST_GAIN = 0.05
WIDEST = 8.0
"""Most by which a range is widened, in steps of 2, after releases at its edge."""
_AT_EDGE, _INSIDE = 0.6, 0.4
"""Shares of the half range: a clipped mean that is further off by one deviation of its noise widens the next range, one
that is nearer narrows it."""


@dataclass(frozen=True)
class ResidualMean(CellStatistic):
    """Σ of users' clipped sums per cell, relation "values". ``lower``, ``upper``: shape (C,), quanta, 0 <= lower <
    upper <= ``top``, U.

    ``gain``: of each cell's :class:`Response`, (C,): noise counts as so much more in what is released. Raises
    :class:`ParameterError`.
    """

    lower: IntArray
    upper: IntArray
    top: int
    gain: FloatArray

    def __post_init__(self) -> None:
        checked_upper(self.top)
        if not len(self.lower) == len(self.upper) == len(self.gain):
            raise ParameterError("ranges need a lower end, an upper end and a gain for each cell")
        if np.any(self.lower < 0) or np.any(self.upper <= self.lower) or np.any(self.upper > self.top):
            raise ParameterError(f"a range is empty or not within [0, {self.top}] quanta")
        if not np.all((self.gain > 0) & (self.gain <= 1)):
            raise ParameterError("gains must be above 0 and at most 1")

    def sensitivities(self, counts: Counts, retained: IntArray) -> IntArray:
        """Δ of the clipped sum over ``retained`` samples (P,) for each pair, in quanta: Γ·(upper − lower); shape
        (P,)."""
        checked_retained(counts, retained)
        self._check_cells(counts)
        return retained * (self.upper - self.lower)[counts.pair_cell]

    def full_ranges(self, counts: Counts, retained: IntArray) -> FloatArray:
        """Integers in the full range U of the undone mean of each cell, shape (C,)."""
        return np.maximum(counts.by_cell(retained) * self.top * self.gain, 1.0)

    def integers(self, kept: Contributions) -> IntArray:
        """Σ of the clipped sums per cell, shape (C,): what noise is added to; never to be shown.

        Raises :class:`ParameterError` for values that were clipped to more than ``top``.
        """
        check_clipped(kept.upper, self.top)
        self._check_cells(kept.counts)
        counts = kept.counts
        low, high = (end[counts.pair_cell] * counts.samples for end in (self.lower, self.upper))
        return counts.by_cell(np.clip(kept.pair_sums, low, high))

    def unit(self, counts: Counts, quantum: float) -> FloatArray:
        """Clipped mean per unit of the integer, shape (C,): ``quantum`` over the samples of each cell in ``counts``."""
        return np.asarray(quantum / np.maximum(counts.by_cell(counts.samples), 1))

    def _check_cells(self, counts: Counts) -> None:
        if len(self.lower) != counts.n_cells:
            raise ParameterError(f"{len(self.lower)} ranges for {counts.n_cells} cells; give one for each")


class Forecast(NamedTuple):
    """What earlier releases say about the mean of each cell, (C,): ``mean`` and ``deviation``, its standard deviation;
    ``widening``: by which factor ranges are wider, at least 1 (:func:`widened`). All in one unit.
    """

    mean: FloatArray
    deviation: FloatArray
    widening: FloatArray


@dataclass(frozen=True)
class Response:
    """How the clipped mean of each cell follows its mean near the forecast, (C,): ``forecast`` → ``expected``, slope
    ``gain``.

    ``open``: standard deviation of what the undoing leaves open. One unit throughout.
    """

    forecast: FloatArray
    expected: FloatArray
    gain: FloatArray
    open: FloatArray

    @classmethod
    def of(cls, forecast: FloatArray, lower: FloatArray, upper: FloatArray, spread: float, top: float) -> Self:
        """Of users' means that are normal with deviation ``spread``, clipped to [0, ``top``], around the ``forecast``
        (C,)."""
        middle = np.clip(forecast, 0.02 * top, 0.98 * top)
        location = _location(middle, spread, top)
        inside, free = _between(location, lower, upper, spread), _between(location, 0.0, top, spread)
        gain = np.clip(inside / np.maximum(free, LEAST_GAIN), LEAST_GAIN, 1.0)
        whole = (lower <= 0) & (upper >= top)
        kappa = (upper - lower) / 2 / spread
        left = OPEN_SHARE * spread * np.exp(-np.square(kappa) / OPEN_FALL)
        expected = np.where(whole, middle, _clipped_mean(location, lower, upper, spread))
        return cls(middle, expected, np.where(whole, 1.0, gain), np.where(whole, 0.0, left))

    def undone(self, clipped: FloatArray) -> FloatArray:
        """The mean of each cell from its clipped one, (C,)."""
        return np.asarray(self.forecast + (clipped - self.expected) / self.gain)


def choose_ranges(forecast: Forecast, noise: FloatArray, *, spread: float, top: int) -> tuple[IntArray, IntArray]:
    """(Lower, upper) ends of each cell's range in quanta, (C,), of least predicted error: noise against what stays
    open.

    ``noise``: (C,), standard deviation of the noise of the mean without clipping, public; it falls with the range. Read
    beside the forecast of variance v, noise s and error b leave v·(s² + b²)/(v + s² + b²), b once more by how much it
    lasts. ``forecast`` and ``spread`` in quanta. Raises :class:`ParameterError`.
    """
    if not (spread > 0 and top > 0 and np.all(np.isfinite(forecast.mean)) and np.all(np.isfinite(forecast.deviation))):
        raise ParameterError("ranges need a finite forecast, deviations of 0 or more, and a spread and U above 0")
    middle, prior = np.clip(forecast.mean, 0.0, top), np.square(forecast.deviation)
    least = np.full(len(middle), np.inf)
    lower, upper = np.zeros(len(middle)), np.full(len(middle), float(top))
    for kappa in KAPPAS:
        reach = np.minimum(kappa * spread * forecast.widening, float(top))
        low, high = np.floor(np.clip(middle - reach, 0.0, top - 1)), np.ceil(np.clip(middle + reach, 1.0, top))
        response = Response.of(middle, low, high, spread, float(top))
        error = _predicted_error(prior, noise * (high - low) / top, response)
        better = error < least
        least, lower, upper = (np.where(better, new, old) for new, old in ((error, least), (low, lower), (high, upper)))
    return lower.astype(np.int64), upper.astype(np.int64)


def _predicted_error(prior: FloatArray, noise: FloatArray, response: Response) -> FloatArray:
    """Of the estimate of each cell, (C,), a variance: ``noise`` is the clipped mean's."""
    left = np.square(response.open)
    weight = prior / (prior + np.square(noise / response.gain) + left + _NOTHING)
    return np.asarray((1 - weight) * prior + (LASTING - 1) * np.square(weight) * left)


_NOTHING = 1e-300


def widened(
    widening: FloatArray, clipped: FloatArray, response: Response, half: FloatArray, noise: FloatArray
) -> FloatArray:
    """The ``widening`` (C,) for the next window: doubled where the released ``clipped`` mean lies at the edge of its
    range, so that a jam is seen; halved where it lies well inside. ``half``: half ranges; ``noise``: deviation of the
    clipped mean's noise, (C,).
    """
    off = np.abs(clipped - response.expected)
    wider = np.where(off > _AT_EDGE * half + noise, widening * 2, widening)
    return np.clip(np.where(off < _INSIDE * half, wider / 2, wider), 1.0, WIDEST)


def _location(mean: FloatArray, spread: float, top: float) -> FloatArray:
    """Location of the normal law whose mean, clipped to [0, top], is ``mean``: Newton's steps, at most one spread
    each."""
    location = mean.copy()
    for _ in range(_NEWTON):
        slope = np.maximum(_between(location, 0.0, top, spread), 0.02)
        step = (_clipped_mean(location, 0.0, top, spread) - mean) / slope
        location = location - np.clip(step, -spread, spread)
    return location


_NEWTON = 30


def _between(location: FloatArray, low: FloatArray | float, high: FloatArray | float, spread: float) -> FloatArray:
    """Share of a normal law between ``low`` and ``high``."""
    ndtr = scipy.special.ndtr
    return np.asarray(ndtr((high - location) / spread) - ndtr((low - location) / spread))


def _clipped_mean(location: FloatArray, low: FloatArray | float, high: FloatArray | float, spread: float) -> FloatArray:
    """Mean of a normal variable that is clipped to [``low``, ``high``]."""
    a, b = (low - location) / spread, (high - location) / spread
    ndtr = scipy.special.ndtr
    density = (np.exp(-np.square(a) / 2) - np.exp(-np.square(b) / 2)) / np.sqrt(2 * np.pi)
    return np.asarray(low * ndtr(a) + high * ndtr(-b) + location * (ndtr(b) - ndtr(a)) + spread * density)
