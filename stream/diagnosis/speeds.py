"""Compares the reported speeds of a recording with its positions, and names the unit that would fit. Pure.

Over consecutive fixes of a vehicle, distance over time is its mean speed in between, a little too low because streets
wind. The mean of reported speeds estimates the same. On recordings of buses every 2 to 4 minutes the quotient is 1.00
to 1.20, and over 200 steps of them in order of time 0.88 to 1.48. So there are two grades: outside 0.6 to 1.75 the
speeds contradict the positions; outside 0.8 to 1.45 they are doubtful if another unit would bring them inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcore.earth import great_circle_m
from stream.config.feed import SPEED_TO_KMH, SpeedUnit
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.storage.row_store import ROW

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEAST_S, MOST_S, FASTEST_KMH = 8.0, 300.0, 130.0
"""Pairs of fixes that are compared: seconds between them, and the highest speed that is not an error of position."""
LEAST_PAIRS = 200
MOVES_KMH = 3.0
"""Vehicles that are slower in the mean stand."""
_LARGEST_REPORTED = 650.0
"""Higher reported speeds count as this, so that one absurd value does not decide."""
_WRONG_BELOW, _WRONG_ABOVE = 0.6, 1.75
_FITS_ABOVE, _FITS_BELOW = 0.8, 1.45
_CHECKED_ROWS = 100_000
ABOVE_BOUND = 0.1
"""Share of speeds above ``speed.upper_bound`` that is said."""
MOST_ROWS = 20_000
"""Rows that are taken between two judgements, and vehicles whose last fix is kept."""
MOST_STEPS = 2 * LEAST_PAIRS
"""Steps that are judged: the newest."""
_APART_US = round(LEAST_S * 1e6)
_KEPT_US = 900_000_000


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
    """Mean speeds in km/h over ``pairs`` steps: as reported, and from positions. ``units``: others that would fit, the
    likeliest first."""

    pairs: int
    reported: float
    derived: float
    units: tuple[SpeedUnit, ...] = ()

    @property
    def unit(self) -> SpeedUnit | None:
        """The likeliest other unit that would fit."""
        return self.units[0] if self.units else None

    @property
    def ratio(self) -> float:
        """Reported over derived."""
        return self.reported / self.derived if self.derived > 0 else float("nan")

    @property
    def is_compared(self) -> bool:
        """Whether there are enough steps, and vehicles move."""
        return self.pairs >= LEAST_PAIRS and self.derived >= MOVES_KMH

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

    def sentence(self, declared: SpeedUnit) -> str:
        """What contradicts what, and the likely cause."""
        text = (
            f"if the reported speeds are in {declared}, they are {self.reported:.3g} km/h in the mean, but positions "
            "give "
            f"{self.derived:.3g} km/h over the same {self.pairs} steps"
        )
        if self.units:
            return f"{text}. {'Perhaps' if self.is_doubtful else 'Likely'} the speeds are in {' or '.join(self.units)}"
        if self.reported < 0.05 * self.derived:
            return f"{text}. Likely the feed reports no real speeds"
        return f"{text}. No known unit fits"


def check_speeds(moves: Steps, speed_kmh: FloatArray, declared: SpeedUnit) -> SpeedCheck:
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


def check_rows(rows: NDArray[np.void], declared: SpeedUnit) -> SpeedCheck:
    """Like :func:`check_speeds`, for the first 100 000 rows of a feed whose speeds are declared in this unit."""
    rows = rows[:_CHECKED_ROWS]
    rows = rows[np.lexsort((rows["time"], rows["user"]))]
    moves = steps(rows["user"], rows["time"].astype(np.int64), rows["lat"] * 1e-7, rows["lng"] * 1e-7)
    return check_speeds(moves, rows["value"] * SPEED_QUANTUM_KMH, declared)


def speed_problem(rows: NDArray[np.void], declared: SpeedUnit, remedy: str) -> tuple[str, bool] | None:
    """Why the speeds of a recording cannot be right, or are doubtful, with the remedy; None if they agree with the
    positions.

    And whether it is to be refused: if they cannot be right, and another unit would fit. ``remedy``: what sets the
    unit.
    """
    check = check_rows(rows, declared)
    if not (check.contradicts or check.is_doubtful):
        return None
    remedy = remedy.format(repr(check.unit)) if check.unit else "hexveil inspect says more"
    if len(check.units) > 1 or check.is_doubtful:
        remedy = f"ask whoever runs the feed, and {remedy}"
    return f"{check.sentence(declared)}: {remedy}.", check.contradicts and check.unit is not None


def bound_problem(quanta: NDArray[np.number], upper_quanta: int) -> str | None:
    """Says so if a tenth of the speeds or more are above ``speed.upper_bound``."""
    share = float((quanta > upper_quanta).mean()) if len(quanta) else 0.0
    if share < ABOVE_BOUND:
        return None
    return (
        f"{share:.0%} of the speeds are above speed.upper_bound, {upper_quanta * SPEED_QUANTUM_KMH:g} km/h, and count "
        "as it: "
        "set it to what vehicles of the place may drive, or correct the unit."
    )


class SpeedDoubts:
    """What the newest steps of a feed say about its speeds.

    Steps are kept by their number and not by time, so that a small fleet, or one that reports seldom, is judged later
    but is judged. Of more than ``MOST_ROWS`` vehicles, those with the lowest pseudonyms are followed, and pseudonyms
    are random.
    """

    def __init__(self, unit: SpeedUnit) -> None:
        """``unit``: in which the speeds of the feed are read."""
        self._unit = unit
        self._rows, self._filled = np.zeros(MOST_ROWS, dtype=ROW), 0
        self._last = np.zeros(0, dtype=ROW)
        """The last fix of each vehicle, sorted by pseudonym."""
        self._steps = np.zeros((0, 3))
        """Seconds, metres, and reported km/h at the end; shape (at most MOST_STEPS, 3)."""
        self._wrong: SpeedCheck | None = None
        self._newer = 0
        """Number of steps after those that contradicted or were doubtful."""

    def take(self, rows: NDArray[np.void]) -> None:
        """Take rows of the feed, as many as there is room for until the next judgement."""
        taken = rows[: len(self._rows) - self._filled]
        self._rows[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)

    def judged(self) -> SpeedCheck | None:
        """The comparison, if speeds contradict positions or are doubtful. It is withdrawn once 200 newer steps are
        neither."""
        if self._filled:
            self._move()
        seconds, metres, reported = self._steps.T
        check = check_speeds(Steps(np.arange(len(seconds)), seconds, metres), reported, self._unit)
        if check.contradicts or check.is_doubtful:
            self._wrong, self._newer = check, 0
        elif check.is_compared and self._newer >= LEAST_PAIRS:
            self._wrong = None
        return self._wrong

    def _move(self) -> None:
        """Make steps of the rows that were taken."""
        taken = self._rows[: self._filled]
        oldest = np.median(taken["time"]) - _KEPT_US
        rows = np.concatenate([self._last, taken])
        rows = rows[np.lexsort((rows["time"], rows["user"]))]
        rows = rows[_first(rows["user"], rows["time"] // _APART_US)]  # of fixes every second, one in 8 s
        moves = steps(rows["user"], rows["time"], rows["lat"] * 1e-7, rows["lng"] * 1e-7)
        order = np.argsort(rows["time"][moves.at], kind="stable")
        order = order[moves.comparable[order]]
        reported = rows["value"][moves.at] * SPEED_QUANTUM_KMH
        made = np.column_stack([moves.seconds, moves.metres, reported])[order]
        self._steps = np.concatenate([self._steps, made])[-MOST_STEPS:]
        self._newer += len(made)
        last = rows[_first(rows["user"][::-1])[::-1]]
        self._last, self._filled = last[last["time"] >= oldest][:MOST_ROWS].copy(), 0


def _first(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """For sorted columns, whether a row is the first with its values."""
    first = np.ones(len(columns[0]), dtype=bool)
    first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return first
