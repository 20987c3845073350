"""The window of another day that is compared with a window: the one that begins at the same local time.

Pure; uses released windows only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from stream.serve.close_marker import marker_of
from stream.serve.local_time import local_start, start_at, zone_of
from stream.serve.window_store import View, WindowView

Reason = Literal["same", "gone", "withheld", "incomplete", "later", "clocks", "none"]
"""Why there is no window to compare with.

"same": the day is that of the window itself. "gone": only later windows are kept. "withheld": nothing was published about it,
which follows from public counts. "incomplete": its messages have not all arrived. "later": it lies after the newest complete
window. "clocks": the clocks changed on that day, and no window began at that local time. "none": no such window was released.
"""
REASONS: tuple[Reason, ...] = ("same", "gone", "withheld", "incomplete", "later", "clocks", "none")
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
        """As the API answers."""
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

    Without ``day``, it is that of a week before, where it can be compared with, else that of the day before. Of a local time
    that the clocks repeat, the first is compared with the first and the second with the second.
    """
    complete = [other.start for other in view.ordered(window.feed) if other.complete]
    kept = (complete[-1], complete[0]) if complete else None
    zone = zone_of(window)
    local = local_start(window.start, zone)
    days = [local.date() - back for back in _DEFAULTS if local.date().toordinal() > back.days] if day is None else [day]
    beside = [_on(view, window, local, zone, one, kept) for one in days or [local.date()]]
    return next((one for one in beside if one.other is not None), beside[-1])


def _on(
    view: View, window: WindowView, local: datetime, zone: str, day: date, kept: tuple[str, str] | None
) -> OtherDay:
    start = start_at(local.replace(year=day.year, month=day.month, day=day.day))
    other = None if start is None else view.windows.get((window.feed, start))
    reason = _reason(window, start, other, kept)
    if reason == "none" and (start is None or _clocks_change(day, local)):
        reason = "clocks"
    return OtherDay(window, zone, day, other if reason is None else None, reason, kept)


def _reason(
    window: WindowView, start: str | None, other: WindowView | None, kept: tuple[str, str] | None
) -> Reason | None:
    if start == window.start:
        return "same"
    if other is None:
        if start is None or kept is None:
            return "none"
        return "gone" if start < kept[0] else "later" if start > kept[1] else "none"
    if not other.complete:
        return "incomplete"
    marker = marker_of(other)
    return "withheld" if marker is not None and marker.withheld else None


def _clocks_change(day: date, local: datetime) -> bool:
    """Whether the offset from UTC at the local start of ``day`` is not that at its end."""
    if day == date.max:
        return False
    midnight = datetime(day.year, day.month, day.day, tzinfo=local.tzinfo)
    return midnight.utcoffset() != (midnight + _DAY).utcoffset()
