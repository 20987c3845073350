"""Measures of a feed's fixes: how many, how often, how fast, and which faults. Pure; columns, near-linear in their length."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import h3.api.numpy_int as h3
import numpy as np
from numpy.typing import NDArray

from stream.config.feed import SPEED_TO_KMH
from stream.diagnosis.observations import Observations
from stream.diagnosis.speeds import LEAST_PAIRS, Steps, check_speeds, steps
from stream.windows import EARLIEST_US, LATEST_S

FROZEN_S = 1_200.0
"""A position that repeats to the last digit for longer is that of a stuck unit, or of a parked vehicle."""
TELEPORT_KMH, TELEPORT_M = 200.0, 1_000.0
"""A step that is faster and farther is an error of position, or two vehicles share one identifier."""
_ORIGIN_DEG = 0.01
_NEAR_DEG = 2.0
_FAR_TIMES, _FAR_DEG = 3.0, 0.5
"""Fixes that are farther from the others than these are across, and half a degree, are errors of position."""
_MOVES_KMH, _MOSTLY = 3.0, 1.5
"""Steps whose direction is judged: the slowest, and how much longer they are along one axis than along the other."""
_HOUR_US = 3_600_000_000
RESOLUTIONS = (6, 7, 8, 9)
IMPOSSIBLE_KMH = 400.0
"""No vehicle on a road or on rails is as fast."""


@dataclass(frozen=True)
class Speeds:
    """Reported speeds in the feed's own unit: shares of all fixes, and how they compare with positions.

    ``fits``: units in which they agree with positions. ``pairs``: steps that were compared; ``derived_kmh``: their mean speed.
    ``impossible``: number of speeds above :data:`IMPOSSIBLE_KMH`, by the unit in which they are read.
    """

    known: float
    zero: float
    tiny: float
    negative: float
    mean: float | None
    p99: float | None
    pairs: int
    derived_kmh: float | None
    quotients: dict[str, float]
    fits: list[str]
    impossible: dict[str, int]


@dataclass(frozen=True)
class Density:
    """Of one H3 resolution: means over vehicle-hours and over (cell, hour)s."""

    resolution: int
    cells_per_vehicle_hour: float
    vehicles_per_cell_hour: float
    cells: int


@dataclass(frozen=True)
class Measures:
    """What an inspection found. Counts are of fixes if nothing else is said; times are µs UTC.

    ``middle``: median latitude and longitude of usable fixes. ``direction_quotient``: reported over derived speed along meridians,
    divided by the same along parallels; None if there are too few steps. ``box``: where the fixes are; ``far``: those that lie
    farther from it than its vehicles may.
    """

    rows: int
    unread: dict[str, int]
    without_user: int
    without_position: int
    outside_globe: int
    origin: int
    swapped: int
    bad_time: int
    usable: int
    vehicles: int
    first_us: int | None
    last_us: int | None
    interval_s: tuple[float, float, float] | None
    repeats: int
    disorder: int
    late: dict[str, float]
    frozen_vehicles: int
    teleporting_vehicles: int
    teleports: int
    speeds: Speeds
    middle: tuple[float, float] | None
    direction_quotient: float | None
    box: tuple[float, float, float, float] | None
    far: int
    densities: list[Density]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Sorted:
    """Usable fixes, each (vehicle, time) once, sorted by them."""

    user: NDArray[np.int64]
    time_us: NDArray[np.int64]
    lat: NDArray[np.float64]
    lng: NDArray[np.float64]
    speed: NDArray[np.float64]


def measure(seen: Observations) -> Measures:
    """All measures of ``seen``."""
    lat, lng = seen.lat, seen.lng
    placed = np.isfinite(lat) & np.isfinite(lng)
    with np.errstate(invalid="ignore"):
        globe = (np.abs(lat) <= 90) & (np.abs(lng) <= 180)
        origin = (np.abs(lat) < _ORIGIN_DEG) & (np.abs(lng) < _ORIGIN_DEG)
    swapped = _swapped(lat, lng, placed & globe & ~origin) | (placed & ~globe & (np.abs(lng) <= 90))
    timed = (seen.time_us >= EARLIEST_US) & (seen.time_us < LATEST_S * 1_000_000)
    named = seen.user >= 0
    usable = placed & globe & ~origin & ~swapped & timed & named
    order, repeats = _order(seen, usable)
    fixes = _Sorted(seen.user[order], seen.time_us[order], lat[order], lng[order], seen.speed[order])
    moves = steps(fixes.user, fixes.time_us, fixes.lat, fixes.lng)
    teleports = (moves.kmh > TELEPORT_KMH) & (moves.metres > TELEPORT_M)
    times, box = fixes.time_us, _box(fixes)
    return Measures(
        rows=len(seen),
        unread=dict(seen.unread),
        without_user=int((~named).sum()),
        without_position=int((~placed).sum()),
        outside_globe=int((placed & ~globe).sum()),
        origin=int(origin.sum()),
        swapped=int(swapped.sum()),
        bad_time=int((~timed).sum()),
        usable=len(order),
        vehicles=len(np.unique(fixes.user)),
        first_us=int(times.min()) if len(order) else None,
        last_us=int(times.max()) if len(order) else None,
        interval_s=_quantiles(moves.seconds, (0.1, 0.5, 0.9)),
        repeats=repeats,
        disorder=_disorder(seen.user[usable], seen.time_us[usable]),
        late=_late(seen.time_us[usable], seen.arrived_us[usable]),
        frozen_vehicles=_frozen(fixes),
        teleporting_vehicles=len(np.unique(fixes.user[moves.at[teleports]])),
        teleports=int(teleports.sum()),
        speeds=_speeds(fixes, moves),
        middle=(float(np.median(fixes.lat)), float(np.median(fixes.lng))) if len(order) else None,
        direction_quotient=_direction_quotient(fixes, moves),
        box=box,
        far=_far(fixes, box),
        densities=[_density(fixes, resolution) for resolution in RESOLUTIONS] if len(order) else [],
    )


def _order(seen: Observations, usable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], int]:
    """Usable rows sorted by (vehicle, time), the first of each, and how many repeat a (vehicle, time)."""
    index = np.flatnonzero(usable)
    index = index[np.lexsort((index, seen.time_us[index], seen.user[index]))]
    again = (np.diff(seen.user[index]) == 0) & (np.diff(seen.time_us[index]) == 0)
    return index[np.concatenate([[True], ~again])] if len(index) else index, int(again.sum())


def _swapped(lat: NDArray[np.float64], lng: NDArray[np.float64], sound: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows far from where most are that would be there if latitude and longitude were exchanged."""
    if not sound.any():
        return np.zeros(len(lat), dtype=bool)
    middle = float(np.median(lat[sound])), float(np.median(lng[sound]))
    with np.errstate(invalid="ignore"):
        here = (np.abs(lat - middle[0]) < _NEAR_DEG) & (np.abs(lng - middle[1]) < _NEAR_DEG)
        there = (np.abs(lng - middle[0]) < _NEAR_DEG) & (np.abs(lat - middle[1]) < _NEAR_DEG)
    return sound & there & ~here


def _disorder(user: NDArray[np.int64], time_us: NDArray[np.int64]) -> int:
    """Rows whose vehicle had sent a later time before, in order of arrival."""
    order = np.argsort(user, kind="stable")
    grouped, times = user[order], time_us[order]
    if not len(order):
        return 0
    # Each vehicle's times are raised above those of the vehicle before, so that one running maximum serves all.
    times = times - times.min()
    span = int(times.max()) + 1
    rank = np.cumsum(np.concatenate([[0], np.diff(grouped) != 0]))
    if span > 2**62 // (int(rank[-1]) + 1):
        times, span = times // 1_000_000, span // 1_000_000 + 1
    raised = times + rank * span
    return int((raised < np.maximum.accumulate(raised)).sum())


def _late(time_us: NDArray[np.int64], arrived_us: NDArray[np.int64]) -> dict[str, float]:
    """Share of fixes that arrived more than so long after their time; empty if arrivals are unknown."""
    known = arrived_us >= 0
    if not known.any():
        return {}
    delay = (arrived_us - time_us)[known] / 1e6
    limits = {"1m": 60, "5m": 300, "15m": 900, "1h": 3600}
    return {name: float((delay > seconds).mean()) for name, seconds in limits.items()} | {
        "ahead": float((delay < -60).mean())
    }


def _frozen(fixes: _Sorted) -> int:
    """Vehicles that reported exactly one position for longer than :data:`FROZEN_S`."""
    if not len(fixes.user):
        return 0
    changed = (np.diff(fixes.user) != 0) | (np.diff(fixes.lat) != 0) | (np.diff(fixes.lng) != 0)
    begin = np.flatnonzero(np.concatenate([[True], changed]))
    end = np.append(begin[1:], len(fixes.user)) - 1
    stuck = (fixes.time_us[end] - fixes.time_us[begin]) / 1e6 > FROZEN_S
    return len(np.unique(fixes.user[begin[stuck]]))


def _speeds(fixes: _Sorted, moves: Steps) -> Speeds:
    speed, n = fixes.speed, max(len(fixes.speed), 1)
    known = np.isfinite(speed)
    values = speed[known]
    positive = np.where(known & (speed >= 0), speed, np.nan)
    quotients: dict[str, float] = {}
    fits: list[str] = []
    derived: float | None = None
    pairs = 0
    for unit, kmh in SPEED_TO_KMH.items():
        check = check_speeds(moves, positive * kmh, unit)
        pairs, derived = check.pairs, check.derived if check.pairs else None
        if check.pairs and check.derived > 0:
            quotients[unit] = round(check.ratio, 2)
            if check.is_compared and check.fits:
                fits.append(unit)
    return Speeds(
        known=len(values) / n,
        zero=float((values == 0).sum()) / n,
        tiny=float(((values > 0) & (values < 0.01)).sum()) / n,
        negative=float((values < 0).sum()) / n,
        mean=float(values.mean()) if len(values) else None,
        p99=float(np.quantile(values, 0.99)) if len(values) else None,
        pairs=pairs,
        derived_kmh=derived,
        quotients=quotients,
        fits=fits,
        impossible={unit: int((values * kmh > IMPOSSIBLE_KMH).sum()) for unit, kmh in SPEED_TO_KMH.items()},
    )


def _direction_quotient(fixes: _Sorted, moves: Steps) -> float | None:
    """About 1 in any unit of speed; where axes are exchanged, about the cosine of the latitude times that of the longitude."""
    reported = fixes.speed[moves.at]
    chosen = moves.comparable & np.isfinite(reported) & (reported >= 0) & (moves.kmh >= _MOVES_KMH)
    at, reported, derived = moves.at[chosen], reported[chosen], moves.kmh[chosen]
    north = np.abs(fixes.lat[at] - fixes.lat[at - 1])
    east = np.abs(fixes.lng[at] - fixes.lng[at - 1]) * np.cos(np.radians(fixes.lat[at]))
    ratios = []
    for along in (north > _MOSTLY * east, east > _MOSTLY * north):
        if along.sum() < LEAST_PAIRS or not reported[along].any():
            return None
        ratios.append(float(reported[along].sum() / derived[along].sum()))
    return ratios[0] / ratios[1] if math.isfinite(ratios[0] / ratios[1]) else None


def _box(fixes: _Sorted) -> tuple[float, float, float, float] | None:
    """South, west, north and east of all but the outermost thousandth of the fixes on each side.

    Of all but the outermost hundredth if the others lie far from them: a few units with wrong positions must not make a place of
    half a continent.
    """
    if not len(fixes.lat):
        return None
    (south, north), (west, east) = _extent(fixes.lat), _extent(fixes.lng)
    return south, west, north, east


def _extent(degrees: NDArray[np.float64]) -> tuple[float, float]:
    low, inner_low, inner_high, high = np.quantile(degrees, (0.001, 0.01, 0.99, 0.999)).tolist()
    room = _FAR_TIMES * (inner_high - inner_low) + _FAR_DEG
    return inner_low if inner_low - low > room else low, inner_high if high - inner_high > room else high


def _far(fixes: _Sorted, box: tuple[float, float, float, float] | None) -> int:
    """How many fixes lie farther outside of the box than vehicles of the place may."""
    if box is None:
        return 0
    south, west, north, east = box
    away = np.maximum.reduce([south - fixes.lat, fixes.lat - north, west - fixes.lng, fixes.lng - east])
    return int((away > _FAR_DEG).sum())


def _density(fixes: _Sorted, resolution: int) -> Density:
    cell_of = h3.latlng_to_cell
    places = zip(fixes.lat.tolist(), fixes.lng.tolist(), strict=True)
    cells = np.fromiter((cell_of(lat, lng, resolution) for lat, lng in places), np.uint64, len(fixes.lat))
    distinct, cell = np.unique(cells, return_inverse=True)
    hour = fixes.time_us // _HOUR_US
    hour = hour - hour.min()
    hours, n = int(hour.max()) + 1, len(distinct)  # at most 2^20 each, as are vehicles: the product fits into 63 bits
    triples = np.unique((fixes.user * hours + hour) * n + cell)
    vehicle_hours = len(np.unique(triples // n))
    cell_hours = len(np.unique(triples % (hours * n)))
    return Density(resolution, len(triples) / vehicle_hours, len(triples) / cell_hours, n)


def _quantiles(values: NDArray[np.float64], shares: tuple[float, float, float]) -> tuple[float, float, float] | None:
    if not len(values):
        return None
    low, middle, high = np.quantile(values, shares).tolist()
    return low, middle, high
