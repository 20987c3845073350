"""When windows begin on the clocks of their feed. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from stream.serve.window_store import WindowView, marker_of

_LEAST = timedelta(microseconds=1)
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


def local_length(window: WindowView, zone: str) -> timedelta:
    """From the first to the last time that the clocks of ``zone`` show in the window.

    It is the length of the window unless the clocks change in it. The end is that of the last moment in the window:
    where the clocks skip from 02:00 to 03:00, the window from 01:00 ends at 02:00.
    """
    begin = local_start(window.start, zone).replace(tzinfo=None)
    try:
        last = (datetime.fromisoformat(window.end) - _LEAST).astimezone(_place(zone))
    except OverflowError:  # the first or the last day of the calendar
        return elapsed(window)
    return last.replace(tzinfo=None) + _LEAST - begin


def elapsed(window: WindowView) -> timedelta:
    """Length of the window."""
    return datetime.fromisoformat(window.end) - datetime.fromisoformat(window.start)


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
