"""Compares the reported speeds of a feed with its positions, and names the unit that would fit. Pure.

Over consecutive fixes of a vehicle, distance over time is its mean speed in between, a little too low because streets
wind. The mean of reported speeds estimates the same. On recordings of buses every 2 to 4 minutes the quotient is 1.00
to 1.20, and over 200 steps of them in order of time 0.88 to 1.48. So there are two grades: outside 0.6 to 1.75 the
speeds contradict the positions; outside 0.8 to 1.45 they are doubtful if another unit would bring them inside.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.earth import great_circle_m
from stream.config.feed import SPEED_TO_KMH, SpeedUnit
from stream.config.value import QUANTUM, ValueConfig
from stream.sources.derived_speed import CAP_KMH, LEAST_S, MOST_S

LEAST_PAIRS, NEWEST = 200, 400
"""Steps without which nothing is said, and those by which a live feed is judged."""
MOVES_KMH = 3.0
"""Vehicles that are slower in the mean stand."""
_LARGEST_REPORTED = 650.0
"""Higher reported speeds count as this, so that one absurd value does not decide."""
_WRONG_BELOW, _WRONG_ABOVE = 0.6, 1.75
_FITS_ABOVE, _FITS_BELOW = 0.8, 1.45
_CHECKED_ROWS = 100_000
_ABOVE_BOUND, _OTHER_UNIT, _LEAST_OF_ONE, _LEAST_VEHICLES = 0.1, 0.1, 5, 10
"""Shares of speeds above ``value.upper`` and of vehicles in another unit that are said; steps of a vehicle, and
vehicles, without which the latter is not."""


@dataclass(frozen=True)
class Steps:
    """Consecutive fixes of a vehicle. ``at``: index of the later fix in the order of vehicle and time; shape (m,)."""

    at: IntArray
    seconds: FloatArray
    metres: FloatArray

    @cached_property
    def kmh(self) -> FloatArray:
        """Distance over time; 0 where no time passed."""
        return np.asarray(np.where(self.seconds > 0, 3.6 * self.metres / np.maximum(self.seconds, 1e-6), 0.0))

    @property
    def comparable(self) -> BoolArray:
        """Steps whose speed can be compared with a reported one."""
        return (self.seconds >= LEAST_S) & (self.seconds <= MOST_S) & (self.kmh <= CAP_KMH)


def steps(user: NDArray[np.generic], time_us: IntArray, lat: FloatArray, lng: FloatArray, apart_s: float = 0) -> Steps:
    """Steps between fixes that are sorted by (user, time); degrees and µs. ``apart_s``: of more fixes in so many
    seconds, only the first is looked at."""
    kept = np.arange(len(user))
    if apart_s and len(kept):
        first = (np.diff(user) != 0) | (np.diff(time_us // round(apart_s * 1e6)) != 0)
        kept = kept[np.concatenate([[True], first])]
    there = np.flatnonzero(user[kept[1:]] == user[kept[:-1]])
    before, at = kept[there], kept[there + 1]
    seconds = (time_us[at] - time_us[before]) / 1e6
    return Steps(at, seconds, great_circle_m(lat[before], lng[before], lat[at], lng[at]))


@dataclass(frozen=True)
class SpeedCheck:
    """Mean speeds in km/h over ``pairs`` steps: as reported, if that is in ``unit``, and from positions.

    ``others``: share of the vehicles whose speeds fit the positions in another unit, where others fit in this one.
    """

    pairs: int
    reported: float
    derived: float
    unit: SpeedUnit
    others: float = 0.0

    @property
    def ratio(self) -> float:
        """Reported over derived."""
        return self.reported / self.derived if self.derived > 0 else math.nan

    @property
    def quotients(self) -> dict[SpeedUnit, float]:
        """Reported over derived in each unit."""
        return {unit: self.ratio * kmh / SPEED_TO_KMH[self.unit] for unit, kmh in SPEED_TO_KMH.items()}

    @property
    def is_compared(self) -> bool:
        """Whether there are enough steps, and vehicles move."""
        return self.pairs >= LEAST_PAIRS and self.derived >= MOVES_KMH

    @property
    def fits(self) -> list[SpeedUnit]:
        """Units in which the speeds agree with the movement, the likeliest first.

        mph and kn are too similar to be told apart, and vehicles on roads report mph.
        """
        known = self.quotients
        fitting = [unit for unit in known if self.is_compared and _FITS_ABOVE <= known[unit] <= _FITS_BELOW]
        return sorted(fitting, key=lambda unit: (unit == "kn", abs(math.log(known[unit] / 1.1))))

    @property
    def contradicts(self) -> bool:
        """Whether the reported speeds cannot be those of the movement."""
        return self.is_compared and not _WRONG_BELOW <= self.ratio <= _WRONG_ABOVE

    @property
    def is_doubtful(self) -> bool:
        """Whether the reported speeds may be those of the movement, but would agree with it only in another unit."""
        return not self.contradicts and bool(self.fits) and self.unit not in self.fits

    def sentence(self) -> str:
        """What contradicts what, and the likely cause."""
        text = (
            f"if the reported speeds are in {self.unit}, they are {self.reported:.3g} km/h in the mean, but positions "
            f"give {self.derived:.3g} km/h over the same {self.pairs} steps"
        )
        if self.fits:
            return f"{text}. {'Perhaps' if self.is_doubtful else 'Likely'} the speeds are in {' or '.join(self.fits)}"
        if self.reported < 0.05 * self.derived:
            return f"{text}. Likely the feed reports no real speeds"
        return f"{text}. No known unit fits"


def check_speeds(
    user: NDArray[np.generic], time_us: IntArray, lat: FloatArray, lng: FloatArray, kmh: FloatArray, unit: SpeedUnit,
    newest: int | None = None,
) -> SpeedCheck:  # fmt: skip
    """Compare the speeds ``kmh`` of fixes sorted by (user, time), read in ``unit``, with their positions; shape (n,).

    ``newest``: compare only so many steps, the newest.
    """
    moves = steps(user, time_us, lat, lng, LEAST_S)
    chosen = np.flatnonzero(moves.comparable & np.isfinite(kmh[moves.at]))
    if newest is not None:
        chosen = chosen[np.argsort(time_us[moves.at[chosen]], kind="stable")[-newest:]]
    reported, derived = np.clip(kmh[moves.at[chosen]], 0.0, _LARGEST_REPORTED), moves.kmh[chosen]
    if not len(reported):
        return SpeedCheck(0, 0.0, 0.0, unit)
    others = _share_of_others(user[moves.at[chosen]], reported, derived, unit)
    return SpeedCheck(len(reported), float(reported.mean()), float(derived.mean()), unit, others)


def _share_of_others(user: NDArray[np.generic], reported: FloatArray, derived: FloatArray, unit: SpeedUnit) -> float:
    """Share of the moving vehicles whose speeds fit in another unit than ``unit``, in which others fit; 0 if few."""
    _, who, count = np.unique(user, return_inverse=True, return_counts=True)
    sums = np.bincount(who, reported), np.bincount(who, derived)
    moving = (count >= _LEAST_OF_ONE) & (sums[1] >= MOVES_KMH * count)
    ratio = sums[0][moving] / sums[1][moving]
    if len(ratio) < _LEAST_VEHICLES:
        return 0.0
    in_units = ratio[:, None] * (np.array(list(SPEED_TO_KMH.values())) / SPEED_TO_KMH[unit])
    fits = (in_units >= _FITS_ABOVE) & (in_units <= _FITS_BELOW)
    wrong = fits.any(axis=1) & ((ratio < _WRONG_BELOW) | (ratio > _WRONG_ABOVE))
    right = fits[:, list(SPEED_TO_KMH).index(unit)]
    return float(wrong.mean()) if min(wrong.mean(), right.mean()) >= _OTHER_UNIT else 0.0


def check_rows(rows: NDArray[np.void], unit: SpeedUnit, newest: int | None = None) -> SpeedCheck:
    """Like :func:`check_speeds`, for the first 100 000 rows of a feed whose speeds are declared in this unit."""
    rows = rows[:_CHECKED_ROWS]
    rows = rows[np.lexsort((rows["time"], rows["user"]))]
    places = rows["lat"] * 1e-7, rows["lng"] * 1e-7
    speeds = rows["value"] * QUANTUM
    return check_speeds(rows["user"], rows["time"].astype(np.int64), *places, speeds, unit, newest)


def bound_problem(quanta: NDArray[np.number], value: ValueConfig) -> str | None:
    """Says so if a tenth of the values or more are above ``value.upper``, or no speeds and below ``value.lower``."""
    if not len(quanta):
        return None
    beyond = {"above value.upper": float((quanta > value.lower_quanta + value.upper_quanta).mean())}
    if not value.is_speed:
        beyond["below value.lower"] = float((quanta < value.lower_quanta).mean())
    where, share = max(beyond.items(), key=lambda each: each[1])
    if share < _ABOVE_BOUND:
        return None
    bound = value.upper if where.endswith("upper") else value.lower
    measured, remedy = ("speeds", "vehicles of the place may drive") if value.is_speed else ("values", "is measured")
    return (
        f"{share:.0%} of the {measured} are {where}, {bound:g} {value.unit}, and count as it: set it to what {remedy}, "
        "or correct the unit."
    )
