"""Derives speeds from positions: great-circle distance to an earlier fix of the same vehicle, divided by the time.
Pure.

A derived speed depends on two fixes of *one* user, both in the same ledger period. So a user's events of one period
change only that user's own speeds of that period. Under relation "values" positions and times are public, so a derived
speed is public as well and is not protected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcore.arrays import FloatArray, IntArray
from dpcore.earth import great_circle_m
from stream.sources.snapshots import SnapshotError
from stream.windows import EARLIEST_US

_US = 1_000_000
_KEY_ZERO_MS, _KEY_SPAN = EARLIEST_US // 1000, 1 << 42
"""Bits of a sort key for milliseconds since 2000, enough for 139 years; the bits above hold up to 2^21 vehicles."""
MOST_VEHICLES = 1 << 21


LEAST_S, MOST_S = 8.0, 300.0
"""Seconds between two fixes that give a speed: less, and GPS error is too large; more, and the way is unknown. The
reference is the newest fix that is old enough."""
CAP_KMH = 130.0
"""A higher speed is an error of position."""
FROZEN_S = 1_200.0
"""If a position repeats to the last digit for longer within a ledger period, without a gap of :data:`MOST_S`, the unit
is stuck; a standing vehicle would show small changes."""


@dataclass
class _Fixes:
    """Fixes sorted by (vehicle, time), each pair once."""

    vehicle: IntArray
    time: IntArray
    lat: FloatArray
    lng: FloatArray
    since: IntArray
    """Time since which the vehicle has been at exactly this position, within the ledger period."""
    period: IntArray
    """Start of the ledger period."""

    def part(self, where: NDArray[Any]) -> "_Fixes":
        return _Fixes(*(column[where] for column in vars(self).values()))


class SpeedDerivation:
    """Derives speeds for consecutive batches. Of every vehicle it keeps the few fixes with which a later one may be
    compared.

    Vehicles without a fix in the last five minutes are forgotten, so memory is bounded by the number of vehicles on the
    road.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        """The vehicles of which fixes are kept, by their numbers there."""
        empty = np.zeros(0, dtype=np.int64)
        self._kept = _Fixes(empty, empty, np.zeros(0), np.zeros(0), empty, empty)

    def __len__(self) -> int:
        """Number of vehicles in memory."""
        return len(self._names)

    def derive(
        self, vehicles: Sequence[str], time: IntArray, lat: FloatArray, lng: FloatArray, period: IntArray, now_us: int
    ) -> FloatArray:
        """Speeds in km/h, shape (n,); NaN if none can be derived.

        ``time``: µs UTC, in any order; ``lat``/``lng``: degrees; ``period``: start of each row's ledger period. A speed
        is never derived across two periods. A repeated (vehicle, time) gives the same speed again. ``now_us``: the
        feed's own clock, by which old fixes are forgotten. It must not be the largest of ``time``, because then one
        vehicle's wrong clock would affect all others.
        """
        number = {name: at for at, name in enumerate(self._names)}
        vehicle = np.fromiter((number.setdefault(name, len(number)) for name in vehicles), np.int64, len(vehicles))
        if len(number) > MOST_VEHICLES:
            raise SnapshotError(f"more than {MOST_VEHICLES} vehicles within {MOST_S:.0f} s; split the feed")
        fixes = self._with_kept(_Fixes(vehicle, time, lat, lng, time, period))
        earlier = self._reference(fixes)
        speeds = self._speeds(fixes, earlier)
        at = np.searchsorted(_key(fixes.vehicle, fixes.time), _key(vehicle, time))
        speed = speeds[at] if len(at) else np.zeros(0)
        in_period = fixes.time[earlier[at]] >= period if len(at) else np.zeros(0, dtype=bool)
        self._remember(fixes, earlier, now_us, list(number))
        return np.where(in_period, speed, np.nan)

    def forget_after(self, times: Mapping[str, int]) -> None:
        """Forget the fixes of some vehicles that are later than a time of each (µs UTC)."""
        never = np.iinfo(np.int64).max
        latest = np.array([times.get(name, never) for name in self._names], dtype=np.int64)
        self._kept = self._kept.part(self._kept.time <= latest[self._kept.vehicle])

    def _with_kept(self, new: _Fixes) -> _Fixes:
        both = _Fixes(*map(np.concatenate, zip(vars(self._kept).values(), vars(new).values(), strict=True)))
        _, first = np.unique(_key(both.vehicle, both.time), return_index=True)
        fixes = both.part(first)
        moved = np.ones(len(first), dtype=bool)
        moved[1:] = (np.diff(fixes.vehicle) != 0) | (np.diff(fixes.lat) != 0) | (np.diff(fixes.lng) != 0)
        moved[1:] |= np.diff(fixes.time) > round(MOST_S * _US)
        moved[1:] |= fixes.time[:-1] < fixes.period[1:]
        start = np.maximum.accumulate(np.where(moved, np.arange(len(first)), 0))
        if len(start):
            fixes.since = fixes.since[start]
        return fixes

    def _reference(self, fixes: _Fixes) -> IntArray:
        """For each fix the index of its reference: the newest fix that is old enough; else its own index."""
        key = _key(fixes.vehicle, fixes.time)
        earlier = np.searchsorted(key, key - round(LEAST_S * 1000), side="right") - 1
        own = np.arange(len(key))
        valid = (earlier >= 0) & (earlier < own)
        valid &= fixes.vehicle[np.maximum(earlier, 0)] == fixes.vehicle if len(key) else valid
        return np.asarray(np.where(valid, earlier, own))

    def _speeds(self, fixes: _Fixes, earlier: IntArray) -> FloatArray:
        seconds = (fixes.time - fixes.time[earlier]) / _US
        metres = great_circle_m(fixes.lat[earlier], fixes.lng[earlier], fixes.lat, fixes.lng)
        with np.errstate(divide="ignore", invalid="ignore"):
            kmh = 3.6 * metres / seconds
        frozen = (fixes.time - fixes.since) / _US > FROZEN_S
        good = (seconds > 0) & (seconds <= MOST_S) & (kmh <= CAP_KMH) & ~frozen
        return np.where(good, kmh, np.nan)

    def _remember(self, fixes: _Fixes, earlier: IntArray, now_us: int, names: list[str]) -> None:
        """Of every vehicle: the reference of its newest fix and all fixes after it; all its fixes if there is no
        reference yet.

        Vehicles whose newest fix is too old to be a reference again are forgotten. ``names``: by number.
        """
        if not len(fixes.time):
            return
        last = np.flatnonzero(np.append(np.diff(fixes.vehicle) != 0, True))
        sizes = np.diff(last, prepend=-1)
        begins = np.where(earlier[last] < last, earlier[last], last - sizes + 1)
        recent = fixes.time[last] >= now_us - round(MOST_S * _US)
        wanted = np.repeat(recent, sizes) & (np.arange(len(fixes.time)) >= np.repeat(begins, sizes))
        self._kept = fixes.part(wanted)
        there, self._kept.vehicle = np.unique(self._kept.vehicle, return_inverse=True)
        self._names = [names[number] for number in there.tolist()]


def _key(vehicle: IntArray, time: IntArray) -> IntArray:
    """(vehicle, time in milliseconds) as one sortable number."""
    return vehicle * _KEY_SPAN + np.clip(time // 1000 - _KEY_ZERO_MS, 0, _KEY_SPAN - 1)
