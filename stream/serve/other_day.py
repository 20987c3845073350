"""The window of another day that is compared with a window: the one that begins at the same local time.

Pure; uses released windows only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from stream.serve.close_marker import CloseMarker, marker_of
from stream.serve.local_time import elapsed, local_length, local_start, start_at, zone_of
from stream.serve.window_store import View, WindowView

Reason = Literal["same", "gone", "withheld", "incomplete", "later", "settings", "clocks", "none"]
"""Why there is no window to compare with.

"same": the day is that of the window itself. "gone": it was here, but is no longer kept. "withheld": nothing was
published about it, which follows from public counts. "incomplete": its messages have not all arrived, or the close
marker of the window itself has not, which states the zone and the settings. "later": it lies after the newest complete
window. "settings": it has another length, another relation or other bounds of clipping. "clocks": no window begins and
ends at the same local times, and the clocks changed on one of the two days. "none": no such window is here.
"""
REASONS: tuple[Reason, ...] = ("same", "gone", "withheld", "incomplete", "later", "settings", "clocks", "none")
_DAY = timedelta(days=1)
_DEFAULTS = (7 * _DAY, _DAY)
"""How far back to look where no day is chosen, in this order."""


@dataclass(frozen=True)
class OtherDay:
    """What stands beside a window: a complete window of ``day``, a local date, or the reason why there is none."""

    window: WindowView
    zone: str
    day: date
    other: WindowView | None
    reason: Reason | None
    kept: tuple[str, str] | None
    """Starts of the oldest and the newest complete window of the feed."""

    def body(self) -> dict[str, Any]:
        """The object that the API answers with."""
        oldest, newest = self.kept or (None, None)
        return {
            "feed": self.window.feed,
            "window": {"start": self.window.start, "end": self.window.end},
            "timezone": self.zone,
            "day": self.day.isoformat(),
            "other": None if self.other is None else self.other.summary(),
            "reason": self.reason,
            "oldest": oldest,
            "newest": newest,
        }


def other_day(view: View, window: WindowView, day: date | None) -> OtherDay:
    """The window that begins on ``day`` at the local time at which ``window`` begins, on the clocks of its feed.

    Without ``day``, it is that of a week before, where it can be compared with, else that of the day before. Of a local
    time that the clocks repeat, the first is compared with the first and the second with the second.
    """
    zone = zone_of(window)
    local = local_start(window.start, zone)
    days = [local.date() - back for back in _DEFAULTS if local.date().toordinal() > back.days] if day is None else [day]
    beside = [_on(view, window, local, zone, one) for one in days or [local.date()]]
    return next((one for one in beside if one.other is not None), beside[-1])


def _on(view: View, window: WindowView, local: datetime, zone: str, day: date) -> OtherDay:
    start = start_at(local.replace(year=day.year, month=day.month, day=day.day))
    marker = marker_of(window)
    kept = view.span(window.feed)
    other = None if start is None else view.windows.get((window.feed, start))
    reason: Reason | None
    if start == window.start:
        reason = "same"
    elif marker is None:
        reason = "incomplete"
    elif other is None:
        reason = _absent(view, window, start, local, day)
    else:
        reason = _unlike(window, marker, other, zone)
    return OtherDay(window, zone, day, other if reason is None else None, reason, kept)


def _absent(view: View, window: WindowView, start: str | None, local: datetime, day: date) -> Reason:
    """Why no window that starts then is here."""
    if (window.feed, start) in view.forgotten:
        return "gone"
    kept = view.span(window.feed)
    if start is not None and kept is not None and start > kept[1]:
        return "later"
    return "clocks" if _clocks_change(day, local) or _clocks_change(local.date(), local) else "none"


def _unlike(window: WindowView, marker: CloseMarker, other: WindowView, zone: str) -> Reason | None:
    """Why a window at the same local time cannot be compared with ``window``; None if it can."""
    known = marker_of(other)
    if not other.complete or known is None:
        return "incomplete"
    if known.withheld:
        return "withheld"
    if (known.relation, known.clipping) != (marker.relation, marker.clipping):
        return "settings"
    if local_length(other, zone) != local_length(window, zone):
        return "clocks" if elapsed(other) == elapsed(window) else "settings"
    return None


def _clocks_change(day: date, local: datetime) -> bool:
    """Whether the offset from UTC at the local start of ``day`` is not that at its end."""
    if day == date.max:
        return False
    midnight = datetime(day.year, day.month, day.day, tzinfo=local.tzinfo)
    return midnight.utcoffset() != (midnight + _DAY).utcoffset()
