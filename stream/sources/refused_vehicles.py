"""Notices a live source most of whose vehicles are refused, and why. Pure; its memory is fixed."""

from __future__ import annotations

from collections import Counter

from stream.sources.snapshots import IN_FUTURE, NO_PLACE
from stream.sources.staleness import STALE_S

_SAY_AGAIN_US = round(STALE_S * 1_000_000)
_ENOUGH, _AT_LEAST = 100, 10
"""Vehicles that are judged at once; fewer if they took :data:`_LONGEST_US` to arrive."""
_LONGEST_US = 45_000_000
_OTHER_MESSAGES = frozenset({"no-vehicle", "deleted"})
"""Entries that say nothing about vehicles, and may stand beside these."""
REMEDIES = {
    "no-vehicle": "the feed has trip updates or alerts and no vehicle position: unless that changes, ask the agency "
    "for the address of its vehicle positions",
    "no-vehicle-id": "the feed does not name its vehicles, so nobody's budget could be charged: ask the agency for "
    "their identifiers",
    "no-position": "the feed has no coordinates: ask the agency",
    NO_PLACE: "coordinates are outside the globe or exactly 0, 0: ask the agency, which may send them in another unit "
    "or order",
    "other-coordinates": "srsName names other coordinates: ask the agency for WGS 84",
    "time-unreadable": "their times are no times of the format, or local times without a zone: ask the agency",
    "time-no-epoch-seconds": "their times are outside the years 2000 to 2100, as milliseconds are where the format has "
    "seconds: ask the agency for seconds",
}
"""What is wrong where most vehicles are refused for a reason, and what to do."""
SWAPPED_AXES = "Likely lat and lng are swapped: exchange them in the recording, or in [feed.fields]."
_OF_POSITIONS = {
    "swapped-axes": SWAPPED_AXES,
    "without-speed": "No speed can be derived for these events: it needs two positions of the vehicle, 8 s to 5 min "
    "apart, in one ledger period.",
    "time-no-epoch-seconds": "Likely times in another unit: hexveil inspect says in which; set time_format in "
    "[feed.fields].",
}
"""Likely causes for events that are left out where speeds are derived."""


def cause_of_left_out(counts: Counter[str]) -> str | None:
    """The likely cause of the most frequent reason for which events are left out where speeds are derived."""
    return next((_OF_POSITIONS.get(name) for name, _ in counts.most_common(1)), None)


class RefusalWatch:
    """Follows the vehicles of one source."""

    def __init__(self) -> None:
        self._taken = 0
        self._refused: Counter[str] = Counter()
        self._began_us: int | None = None
        self._said_us: int | None = None

    def judged(self, taken: int, refused: Counter[str], at_us: int) -> str | None:
        """Take what became of some vehicles that arrived at ``at_us`` (µs UTC).

        Returns why most are refused, once there are enough of them; None if most are not, or if it was said within the
        last five minutes. Timestamps ahead are judged elsewhere.
        """
        self._taken += taken
        self._refused += Counter({reason: count for reason, count in refused.items() if reason != IN_FUTURE})
        self._began_us = at_us if self._began_us is None else self._began_us
        entries = self._taken + self._refused.total()
        waited = at_us - self._began_us >= _LONGEST_US
        if entries < (_AT_LEAST if waited else _ENOUGH):
            return None
        trouble = self._trouble()
        self._taken, self._began_us = 0, None
        self._refused.clear()
        if trouble is None or (self._said_us is not None and 0 <= at_us - self._said_us < _SAY_AGAIN_US):
            return None
        self._said_us = at_us
        return trouble

    def _trouble(self) -> str | None:
        counts = Counter({why: count for why, count in self._refused.items() if why not in _OTHER_MESSAGES})
        if not self._taken and not counts:
            counts["no-vehicle"] = self._refused["no-vehicle"]
        if counts.total() <= self._taken:
            return None
        reason = counts.most_common(1)[0][0]
        cause = REMEDIES.get(reason)
        return f"most vehicles are refused as {reason}" + ("" if cause is None else f": {cause}")
