"""Fixes of a window inside the public box of its histograms, and the choice of those that represent a user.

The choice depends on the user's own rows and on the configuration only, so no user's presence changes what another
contributes.

Regions that users declare in a window: all events of a user with one time are the corners of one region.

To be proved: for neighbours that differ by all events of one user (relation "participation"), the regions of
:meth:`Corners.regions` differ by at most ``per_user`` (r), all of that user. Proof: which rows are corners, which of
them make one region, whether it is accepted and which are the last r follow from rows of this user alone; so does the
shape of each. So :class:`~dpcore.spatial.euler.Euler` with ``regions_per_user`` = r is ε-DP on them: its noise is
scaled by r. Tested: with whole users, and an audit with noise that is not scaled, in
tests/stream/statistics/test_corners.py. Source: [B], sections 3 and 4.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IdArray, IntArray
from dpcore.event_order import first_of_equal, indexed, ordered, since_earliest
from dpcore.spatial import Domain
from dpcore.spatial.declared import MAX_DECLARED_CORNERS, declared_regions
from dpcore.spatial.regions import Regions
from stream.terms import Box

DEGREES = 1e-7
"""Unit of a row's lat and lng."""


def in_degrees(lat: IntArray, lng: IntArray) -> FloatArray:
    """(latitude, longitude) in degrees, shape (n, 2)."""
    return np.asarray(np.column_stack([lat, lng]) * DEGREES, dtype=np.float64)


def same_as_before(*columns: npt.NDArray[Any]) -> BoolArray:
    """Whether each of the sorted rows, (n,), repeats the row before in all ``columns``."""
    same = np.zeros(len(columns[0]), dtype=bool)
    same[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    return same


@dataclass(frozen=True)
class Corners:
    """C distinct corners, sorted by user, time and place; ``time`` in µs UTC, ``lat`` and ``lng`` in 1e-7 degree."""

    user: IdArray
    time: IntArray
    lat: IntArray
    lng: IntArray

    @classmethod
    def of_rows(cls, rows: npt.NDArray[np.void], inside: BoolArray) -> Corners:
        """The corners of regions of which at least one corner is ``inside`` the box, (N,), in any order."""
        order = np.lexsort((rows["lng"], rows["lat"], rows["time"], rows["user"]))
        own, inside = rows[order], inside[order]
        again = same_as_before(*(own[name] for name in ("user", "time", "lat", "lng")))
        region = _groups(own["user"], own["time"])
        met = np.zeros(len(own), dtype=bool)
        met[region[inside]] = True
        kept = own[met[region] & ~again]
        columns = (kept[name].astype(np.int64) for name in ("time", "lat", "lng"))
        return cls(kept["user"].astype(np.uint64), *columns)

    @property
    def columns(self) -> tuple[npt.NDArray[np.uint64 | np.int64], ...]:
        """All columns, for a digest."""
        return self.user, self.time, self.lat, self.lng

    @property
    def points(self) -> FloatArray:
        """(latitude, longitude) in degrees, shape (C, 2)."""
        return in_degrees(self.lat, self.lng)

    def of(self, users: IdArray) -> Corners:
        """The corners of ``users``."""
        chosen = np.isin(self.user, users)
        return Corners(self.user[chosen], self.time[chosen], self.lat[chosen], self.lng[chosen])

    def regions(self, x: FloatArray, y: FloatArray, *, diameter: float, per_user: int) -> Regions:
        """The last ``per_user`` regions of each user, as hulls of diameter at most ``diameter``; ``x`` and ``y``: the
        corners in the unit of length of the domain, shape (C,). A region of more than
        :data:`~dpcore.spatial.declared.MAX_DECLARED_CORNERS` corners is refused by itself.
        """
        region = _groups(self.user, self.time)
        start = np.flatnonzero(np.diff(region, prepend=-1))
        end = np.append(start[1:], len(region))
        small = end - start <= MAX_DECLARED_CORNERS
        start, end = start[small], end[small]
        owner = np.unique(self.user[start], return_inverse=True)[1]
        # By user, the last region first: of these as many as may count.
        latest = np.lexsort((-start, owner))
        rank = np.arange(len(latest)) - np.searchsorted(owner[latest], owner[latest])
        chosen = latest[rank < per_user]
        points = np.column_stack([x, y])
        polygons = [points[a:b] for a, b in zip(start[chosen].tolist(), end[chosen].tolist(), strict=True)]
        return declared_regions(polygons, owner[chosen], diameter=diameter, per_user=per_user).regions


def _groups(user: IdArray, time: IntArray) -> IntArray:
    """The number of the region of each sorted row: rows of one user and time are one."""
    return np.asarray(np.cumsum(~same_as_before(user, time), dtype=np.int64) - 1)


@dataclass(frozen=True)
class Fixes:
    """F fixes inside the box, sorted by (user, time), one per user and time; ``lat`` and ``lng`` in 1e-7 degree.

    ``corners``: those of the regions that users declared; None where they declare none.
    """

    user: IdArray
    lat: IntArray
    lng: IntArray
    corners: Corners | None = None

    def __len__(self) -> int:
        return len(self.user)

    @cached_property
    def _starts(self) -> IntArray:
        return first_of_equal(self.user)

    @property
    def users(self) -> IdArray:
        """Users with a fix, ascending."""
        return self.user[self._starts]

    @property
    def points(self) -> FloatArray:
        """(latitude, longitude) in degrees, shape (F, 2)."""
        return in_degrees(self.lat, self.lng)

    @property
    def digest(self) -> str:
        """Digest of all fixes and corners. A plan fits only fixes with its digest."""
        state = hashlib.sha256()
        for column in (self.user, self.lat, self.lng, *(self.corners.columns if self.corners else ())):
            state.update(np.ascontiguousarray(column).tobytes())
        return state.hexdigest()

    def of(self, users: IdArray) -> Fixes:
        """The fixes of ``users``."""
        chosen = np.isin(self.user, users)
        corners = None if self.corners is None else self.corners.of(users)
        return Fixes(self.user[chosen], self.lat[chosen], self.lng[chosen], corners)

    def representatives(self, per_user: int) -> Fixes:
        """The last fix of each user, or ``per_user`` of their fixes, spread evenly and ending with the last."""
        fixes = np.diff(np.append(self._starts, len(self.user)))
        kept = np.minimum(fixes, per_user)
        user = np.repeat(np.arange(len(kept)), kept)
        rank = np.arange(len(user)) - np.repeat(np.cumsum(kept) - kept, kept)
        chosen = self._starts[user] + (rank + 1) * fixes[user] // kept[user] - 1
        return Fixes(self.user[chosen], self.lat[chosen], self.lng[chosen])


def fixes_of(rows: npt.NDArray[np.void], box: Box | None, *, declared: bool = False) -> Fixes | None:
    """Fixes inside ``box``; None without a box. The order of ``rows`` does not matter. ``declared``: with the corners
    of the regions that users declared.

    Of rows with equal (user, time), the one with the lowest (cell, lat, lng) is kept, so measured values have no
    influence.
    """
    if box is None:
        return None
    domain = Domain(box.south, box.west, box.north, box.east, 1, 1)
    inside = domain.contains(rows["lat"] * DEGREES, rows["lng"] * DEGREES)
    user, time, cell, lat, lng = (rows[name][inside] for name in ("user", "time", "cell", "lat", "lng"))
    (users, of_user), (_, since) = indexed(user), since_earliest(time)
    order, first, _ = ordered(of_user.astype(np.int64), since, cell, lat, lng)
    kept = ~same_as_before(since[order])
    kept[first] = True
    order = order[kept]
    fixes = Fixes(users[of_user[order]], lat[order].astype(np.int64), lng[order].astype(np.int64))
    return replace(fixes, corners=Corners.of_rows(rows, inside)) if declared else fixes
