"""When windows begin on the clocks of their feed. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from stream.serve.close_marker import marker_of
from stream.serve.window_store import WindowView

_KEPT = 20_000
"""Number of local starts that are kept."""


def zone_of(window: WindowView) -> str:
    """Name of the time zone that the window's close marker states; UTC before it arrived."""
    marker = marker_of(window)
    return "UTC" if marker is None else marker.period.timezone


@lru_cache(maxsize=_KEPT)
def local_start(start: str, zone: str) -> datetime:
    """The start of a window, as messages write it, on the clocks of ``zone``; in UTC if these have no such day."""
    moment = datetime.fromisoformat(start)
    try:
        return moment.astimezone(_place(zone))
    except OverflowError:  # the first or the last day of the calendar
        return moment


def start_at(local: datetime) -> str | None:
    """The start in UTC as messages write it; None for a local time that the clocks skip or that no calendar has."""
    try:
        moment = local.astimezone(UTC)
        back = moment.astimezone(local.tzinfo)
    except OverflowError:
        return None
    return (
        moment.isoformat().replace("+00:00", "Z") if back.replace(tzinfo=None) == local.replace(tzinfo=None) else None
    )


def _place(zone: str) -> ZoneInfo:
    """The zone of that name, or UTC if no such zone is known."""
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return ZoneInfo("UTC")
