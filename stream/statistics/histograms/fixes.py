"""Fixes of a window inside the public box of its histograms, and the choice of those that represent a user.

The choice depends on the user's own rows and on the configuration only, so no user's presence changes what another
contributes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpcore.event_order import first_of_equal, indexed, ordered, since_earliest
from dpcore.spatial import Domain
from stream.statistics.histograms.corners import Corners
from stream.statistics.histograms.sorted_rows import DEGREES, in_degrees, same_as_before
from stream.terms import Box

IntArray = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.uint64]
FloatArray = npt.NDArray[np.float64]


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
