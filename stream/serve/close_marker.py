"""What the service reads of a window's close marker."""

from __future__ import annotations

import msgspec

from stream.config.value import SPEED, SPEED_UNIT
from stream.serve.window_store import WindowView


class Stretched(msgspec.Struct):
    """The range of which a mean with residual clipping is a share, and the deviation of what clipping leaves open."""

    lower: float
    upper: float
    open: float


class Bounds(msgspec.Struct):
    """A range of values, in their unit."""

    lower: float
    upper: float
    unit: str = SPEED_UNIT
    stretched: Stretched | None = None

    def of_shares(self, least: float) -> tuple[float, float]:
        """Lower end and width, at least ``least``, of the range of which a mean of noisy numbers is a share."""
        ends = self.stretched or self
        return ends.lower, max(ends.upper - ends.lower, least)


class Period(msgspec.Struct):
    """The ledger period of the window, of which only the zone is read."""

    timezone: str


class CloseMarker(msgspec.Struct):
    """How the numbers of a window were made."""

    relation: str
    clipping: Bounds
    period: Period
    accounting: str = "pure"
    withheld: bool = False
    value: str = SPEED


def marker_of(window: WindowView) -> CloseMarker | None:
    """The window's close marker; None before it arrived."""
    return None if window.marker is None else msgspec.json.decode(window.marker, type=CloseMarker)


def bounds_of(window: WindowView) -> Bounds:
    """The bounds of the window's values; any number of 0 or more before its close marker arrived."""
    marker = marker_of(window)
    return Bounds(0.0, float("inf")) if marker is None else marker.clipping
