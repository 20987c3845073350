"""Measures of a feed's fixes: how many, how often, how fast, and what is odd. Pure; columns, near-linear in length."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcore.arrays import FloatArray, IntArray
from stream.config.feed import PARTICIPATION_FASTEST_KM_H, PARTICIPATION_FROZEN, SPEED_TO_KMH, SpeedUnit
from stream.diagnosis.reading import Observations
from stream.diagnosis.speeds import LEAST_PAIRS, MOVES_KMH, Steps, check_speeds, steps
from stream.statistics.fix_rules import refused
from stream.storage.row_store import ROW
from stream.terms import FixRules

RULES = FixRules(frozen_us=round(PARTICIPATION_FROZEN.total_seconds() * 1e6), teleport_km_h=PARTICIPATION_FASTEST_KM_H)
"""The rules for faulty fixes, with the thresholds that the service has where they are on by default."""
_FAR_TIMES, _FAR_DEG = 3.0, 0.5
"""Fixes that are farther from the bulk than this many times its size, and half a degree, are errors of position."""
_MOSTLY = 1.5
"""Steps whose direction is judged are so much longer along one axis than along the other."""
_AT_A_TIME_US = 900_000_000
LARGEST = 1e300
"""Larger numbers are infinite in another unit."""


@dataclass(frozen=True)
class Speeds:
    """Reported speeds in the feed's own unit: shares of all fixes, and how they compare with positions.

    ``fits``: units in which they agree with positions. ``pairs``: steps that were compared; ``derived_kmh``: their mean
    speed. ``impossible``: number of speeds above 400 km/h, by the unit in which they are read.
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
    fits: list[SpeedUnit]
    others: float
    impossible: dict[str, int]

    @property
    def fit_nowhere(self) -> bool:
        """Whether the vehicles move, and no unit brings their reported speeds near to that."""
        return self.pairs >= LEAST_PAIRS and (self.derived_kmh or 0) >= MOVES_KMH and not self.fits


@dataclass(frozen=True)
class Measures:
    """What the fixes of a feed that can be read are like. Counts are of fixes if nothing else is said; times are µs
    UTC.

    ``on_road``: vehicles in the median quarter of an hour. ``middle``: median latitude and longitude.
    ``direction_quotient``: reported over derived speed along meridians, divided by the same along parallels; None if
    there are too few steps. ``box``: south, west, north and east of the bulk, west greater than east across 180
    degrees; ``far``: those far outside of it.
    """

    fixes: int
    vehicles: int
    on_road: int
    first_us: int | None
    last_us: int | None
    interval_s: tuple[float, float, float] | None
    repeats: int
    disorder: int
    late: dict[str, float]
    frozen: int
    teleports: int
    speeds: Speeds
    middle: tuple[float, float] | None
    direction_quotient: float | None
    box: tuple[float, float, float, float] | None
    far: int


def measure(seen: Observations) -> Measures:
    """All measures of ``seen``."""
    order = np.lexsort((np.arange(len(seen)), seen.time_us, seen.user))
    again = (np.diff(seen.user[order]) == 0) & (np.diff(seen.time_us[order]) == 0)
    order = order[np.concatenate([[True], ~again])] if len(order) else order
    user, time_us = seen.user[order], seen.time_us[order]
    lat, lng, speed = seen.lat[order], seen.lng[order], seen.speed[order]
    moves = steps(user, time_us, lat, lng)
    box, far = _box(lat, lng)
    faulty = refused(RULES, _rows(user, time_us, lat, lng))
    return Measures(
        fixes=len(seen),
        vehicles=len(np.unique(user)),
        on_road=_on_road(user, time_us),
        first_us=int(time_us.min()) if len(order) else None,
        last_us=int(time_us.max()) if len(order) else None,
        interval_s=_quantiles(moves.seconds),
        repeats=int(again.sum()),
        disorder=_disorder(seen.user, seen.time_us),
        late=_late(seen.time_us, seen.arrived_us),
        frozen=int(faulty["frozen"].sum()),
        teleports=int(faulty["teleport"].sum()),
        speeds=_speeds(user, time_us, lat, lng, speed),
        middle=(float(np.median(lat)), float(np.median(lng))) if len(order) else None,
        direction_quotient=_direction_quotient(lat, lng, speed, moves),
        box=box,
        far=far,
    )


def _rows(user: IntArray, time_us: IntArray, lat: FloatArray, lng: FloatArray) -> NDArray[np.void]:
    rows = np.zeros(len(user), dtype=ROW)
    rows["user"], rows["time"] = user, time_us
    rows["lat"], rows["lng"] = np.rint(lat * 1e7), np.rint(lng * 1e7)
    return rows


def _on_road(user: IntArray, time_us: IntArray) -> int:
    if not len(user):
        return 0
    quarters = np.unique(np.column_stack([time_us // _AT_A_TIME_US, user]), axis=0)[:, 0]
    return int(np.median(np.unique(quarters, return_counts=True)[1]))


def _disorder(user: IntArray, time_us: IntArray) -> int:
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


def _late(time_us: IntArray, arrived_us: IntArray) -> dict[str, float]:
    """Share of fixes that arrived more than so long after their time; empty if arrivals are unknown."""
    known = arrived_us >= 0
    if not known.any():
        return {}
    delay = (arrived_us - time_us)[known] / 1e6
    limits = {"1m": 60, "5m": 300, "15m": 900, "1h": 3600}
    return {name: float((delay > seconds).mean()) for name, seconds in limits.items()} | {
        "ahead": float((delay < -60).mean())
    }


def _speeds(user: IntArray, time_us: IntArray, lat: FloatArray, lng: FloatArray, speed: FloatArray) -> Speeds:
    n, known = max(len(speed), 1), np.isfinite(speed) & (np.abs(speed) < LARGEST)
    values = speed[known]
    check = check_speeds(user, time_us, lat, lng, np.where(known & (speed >= 0), speed, np.nan), "km/h")
    return Speeds(
        known=len(values) / n,
        zero=float((values == 0).sum()) / n,
        tiny=float(((values > 0) & (values < 0.01)).sum()) / n,
        negative=float((values < 0).sum()) / n,
        mean=float(values.mean()) if len(values) else None,
        p99=float(np.quantile(values, 0.99)) if len(values) else None,
        pairs=check.pairs,
        derived_kmh=check.derived if check.pairs else None,
        quotients={unit: round(q, 2) for unit, q in check.quotients.items()} if check.derived > 0 else {},
        fits=check.fits,
        others=check.others,
        impossible={unit: int((values * kmh > RULES.teleport_km_h).sum()) for unit, kmh in SPEED_TO_KMH.items()},
    )


def _direction_quotient(lat: FloatArray, lng: FloatArray, speed: FloatArray, moves: Steps) -> float | None:
    """About 1 in any unit of speed; where axes are exchanged, about the product of the cosines of both."""
    reported = speed[moves.at]
    chosen = moves.comparable & np.isfinite(reported) & (reported >= 0) & (moves.kmh >= MOVES_KMH)
    at, reported, derived = moves.at[chosen], reported[chosen], moves.kmh[chosen]
    north = np.abs(lat[at] - lat[at - 1])
    east = np.abs(lng[at] - lng[at - 1]) * np.cos(np.radians(lat[at]))
    ratios = []
    for along in (north > _MOSTLY * east, east > _MOSTLY * north):
        if along.sum() < LEAST_PAIRS or not reported[along].any():
            return None
        ratios.append(float(reported[along].sum() / derived[along].sum()))
    return ratios[0] / ratios[1] if math.isfinite(ratios[0] / ratios[1]) else None


def _box(lat: FloatArray, lng: FloatArray) -> tuple[tuple[float, float, float, float] | None, int]:
    """South, west, north and east of the bulk, and how many fixes lie far outside of it, as errors of position do.

    The bulk are the fixes that are not farther from four fifths of them than those are across, three times, and half a
    degree; of more than a thousand, all but the outermost thousandth on each side.
    """
    if not len(lat):
        return None, 0
    turned = np.where(lng < 0, lng + 360, lng)
    east_of_0 = np.ptp(np.quantile(turned, (0.1, 0.9))) < np.ptp(np.quantile(lng, (0.1, 0.9)))
    along = turned if east_of_0 else lng
    (south, north), (west, east) = _bulk(lat), _bulk(along)
    inside = (lat >= south) & (lat <= north) & (along >= west) & (along <= east)
    if not inside.any():
        inside = np.ones(len(lat), dtype=bool)
    away = np.maximum.reduce([south - lat, lat - north, west - along, along - east])
    (south, north), (west, east) = (
        np.quantile(values[inside], (0.001, 0.999))
        if inside.sum() > 1_000
        else (values[inside].min(), values[inside].max())
        for values in (lat, along)
    )
    west, east = ((float(edge) + 180) % 360 - 180 if edge > 180 else float(edge) for edge in (west, east))
    return (float(south), west, float(north), east), int((away > 0).sum())


def _bulk(values: FloatArray) -> tuple[float, float]:
    ordered = np.sort(values)
    cut = min(math.ceil(len(ordered) / 10), (len(ordered) - 1) // 2)
    low, high = float(ordered[cut]), float(ordered[len(ordered) - 1 - cut])
    room = _FAR_TIMES * (high - low) + _FAR_DEG
    return low - room, high + room


def _quantiles(values: FloatArray) -> tuple[float, float, float] | None:
    if not len(values):
        return None
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return low, middle, high
