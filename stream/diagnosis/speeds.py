"""Compares the reported speeds of a recording with its positions, and names the unit that would fit. Pure.

Over consecutive fixes of a vehicle, distance over time is its mean speed in between, a little too low because streets wind.
The mean of reported speeds estimates the same. On recordings of buses every 2 to 4 minutes the quotient is 1.00 to 1.20, and
over 200 steps of them in order of time 0.88 to 1.48. So there are two grades: outside 0.6 to 1.75 the speeds contradict the
positions; outside 0.8 to 1.45 they are doubtful if another unit would bring them inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream.config.feed import SPEED_TO_KMH
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.earth import great_circle_m

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEAST_S, MOST_S, FASTEST_KMH = 8.0, 300.0, 130.0
"""Pairs of fixes that are compared: seconds between them, and the highest speed that is not an error of position."""
LEAST_PAIRS = 200
_MOVES_KMH = 3.0
_LARGEST_REPORTED = 650.0
"""Higher reported speeds count as this, so that one absurd value does not decide."""
_WRONG_BELOW, _WRONG_ABOVE = 0.6, 1.75
_FITS_ABOVE, _FITS_BELOW = 0.8, 1.45
_MOST_ROWS = 100_000


@dataclass(frozen=True)
class Steps:
    """Consecutive fixes of a vehicle. ``at``: index of the later fix in the order of vehicle and time; shape (m,)."""

    at: IntArray
    seconds: FloatArray
    metres: FloatArray

    @property
    def kmh(self) -> FloatArray:
        """Distance over time; 0 where no time passed."""
        return np.asarray(np.where(self.seconds > 0, 3.6 * self.metres / np.maximum(self.seconds, 1e-6), 0.0))

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Steps whose speed can be compared with a reported one."""
        return (self.seconds >= LEAST_S) & (self.seconds <= MOST_S) & (self.kmh <= FASTEST_KMH)


def steps(user: NDArray[np.generic], time_us: IntArray, lat: FloatArray, lng: FloatArray) -> Steps:
    """Steps between fixes that are sorted by (user, time); degrees and µs."""
    at = np.flatnonzero(user[1:] == user[:-1]) + 1
    seconds = (time_us[at] - time_us[at - 1]) / 1e6
    return Steps(at, seconds, great_circle_m(lat[at - 1], lng[at - 1], lat[at], lng[at]))


@dataclass(frozen=True)
class SpeedCheck:
    """Mean speeds in km/h over ``pairs`` steps: as reported, and from positions. ``units``: others that would fit, the likeliest first."""

    pairs: int
    reported: float
    derived: float
    units: tuple[str, ...] = ()

    @property
    def unit(self) -> str | None:
        """The likeliest other unit that would fit."""
        return self.units[0] if self.units else None

    @property
    def ratio(self) -> float:
        """Reported over derived."""
        return self.reported / self.derived if self.derived > 0 else float("nan")

    @property
    def is_compared(self) -> bool:
        """Whether there are enough steps, and vehicles move."""
        return self.pairs >= LEAST_PAIRS and self.derived >= _MOVES_KMH

    @property
    def contradicts(self) -> bool:
        """Whether the reported speeds cannot be those of the movement."""
        return self.is_compared and not _WRONG_BELOW <= self.ratio <= _WRONG_ABOVE

    @property
    def is_doubtful(self) -> bool:
        """Whether the reported speeds may be those of the movement, but would agree with it only in another unit."""
        return self.is_compared and not self.contradicts and not self.fits and self.unit is not None

    @property
    def fits(self) -> bool:
        """Whether the reported speeds agree with the movement."""
        return _FITS_ABOVE <= self.ratio <= _FITS_BELOW

    def sentence(self, declared: str) -> str:
        """What contradicts what, and the likely cause."""
        text = (
            f"if the reported speeds are in {declared}, they are {self.reported:.3g} km/h in the mean, but positions give "
            f"{self.derived:.3g} km/h over the same {self.pairs} steps"
        )
        if self.units:
            return f"{text}. {'Perhaps' if self.is_doubtful else 'Likely'} the speeds are in {' or '.join(self.units)}"
        if self.reported < 0.05 * self.derived:
            return f"{text}. Likely the feed reports no real speeds"
        return f"{text}. No known unit fits"


def check_speeds(moves: Steps, speed_kmh: FloatArray, declared: str) -> SpeedCheck:
    """Compare ``speed_kmh`` (shape (n,), read as ``declared``) with ``moves``."""
    chosen = moves.comparable
    reported = speed_kmh[moves.at[chosen]]
    known = np.isfinite(reported)
    reported = np.clip(reported[known], 0.0, _LARGEST_REPORTED)
    if not len(reported):
        return SpeedCheck(0, 0.0, 0.0)
    check = SpeedCheck(len(reported), float(reported.mean()), float(moves.kmh[chosen][known].mean()))
    if not check.is_compared or check.fits:
        return check
    quotients = {
        unit: check.ratio * kmh / SPEED_TO_KMH[declared] for unit, kmh in SPEED_TO_KMH.items() if unit != declared
    }
    fitting = (unit for unit, quotient in quotients.items() if _FITS_ABOVE <= quotient <= _FITS_BELOW)
    # mph and kn are too similar to be told apart, and vehicles on roads report mph.
    units = sorted(fitting, key=lambda unit: (unit == "kn", abs(np.log(quotients[unit] / 1.1))))
    return SpeedCheck(check.pairs, check.reported, check.derived, tuple(units))


def check_rows(rows: NDArray[np.void], declared: str) -> SpeedCheck:
    """Like :func:`check_speeds`, for the first 100 000 rows of a feed whose speeds are declared in this unit."""
    rows = rows[:_MOST_ROWS]
    rows = rows[np.lexsort((rows["time"], rows["user"]))]
    moves = steps(rows["user"], rows["time"].astype(np.int64), rows["lat"] * 1e-7, rows["lng"] * 1e-7)
    return check_speeds(moves, rows["value"] * SPEED_QUANTUM_KMH, declared)
