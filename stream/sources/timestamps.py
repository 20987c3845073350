"""Notices what is odd about a live source: hardly any vehicle gives an event because of its timestamp, or most of its
vehicles are refused. Pure; its memory is fixed.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from dpcore.arrays import FloatArray
from stream.sources.snapshots import IN_FUTURE, NO_PLACE

STALE_S = 300.0
"""Agencies publish every 10 to 60 seconds; a feed that stands still for longer has stopped behind its server."""


_STALE_US = round(STALE_S * 1_000_000)
_EARLIER = (
    "most vehicles have an earlier timestamp than one that was sent, so they are left out: the agency's clock was "
    "ahead, its servers answer with old documents, or stored files are not in order of time"
)
_AHEAD = (
    "most vehicles have a timestamp that is more than five minutes ahead, so they are refused: correct the clock of "
    "this machine, or feed.timezone if times have no zone, or ask the agency"
)
_BEHIND = (
    "most new timestamps are more than 25 min behind their arrival, so that events are late for their windows: they "
    "are local times read in another zone, or of a clock that is behind; ask the agency, or correct feed.timezone if "
    "times have no zone, or the clock of this machine"
)
_UNMOVED = (
    f"for {STALE_S:.0f} s no vehicle's timestamp has advanced, although the server answers: no event is sent; ask the "
    "agency"
)


_QUARTER_S, _LEAST_SHIFT_S, _MOST_SHIFT_S, _TOLERANCE_S = 900, 1_500, 14.25 * 3600, 300
_FAR_S = 1e12


def local_as_utc(ahead_s: FloatArray, of: str) -> str | None:
    """What is wrong if most times are steadily whole quarters of an hour ahead of another clock, or behind it; None if
    not.

    ``ahead_s``: by how many seconds each is ahead; ``of``: that clock, in words.
    """
    if not len(ahead_s):
        return None
    low, middle, high = np.quantile(np.clip(ahead_s, -_FAR_S, _FAR_S), (0.25, 0.5, 0.75)).tolist()
    shift = round(middle / _QUARTER_S) * _QUARTER_S
    steady = high - low <= 2 * _TOLERANCE_S and abs(middle - shift) <= _TOLERANCE_S
    if not steady or not _LEAST_SHIFT_S <= abs(shift) <= _MOST_SHIFT_S:
        return None
    hours, minutes = divmod(abs(shift) // 60, 60)
    shown = " ".join(text for text, number in ((f"{hours} h", hours), (f"{minutes} min", minutes)) if number)
    return (
        f"most times are {shown} {'ahead of' if shift > 0 else 'behind'} {of}: local time sent as UTC? If so, set "
        "feed.times_zone to the zone of those clocks, like 'Europe/Berlin', which follows daylight saving; else "
        "correct their offset, or timezone in [feed.fields]"
    )


BEHIND_US = 1_500_000_000
"""A new timestamp that is older than this at its arrival may be late for its window. Zones differ by 30 minutes and
more."""
_ENOUGH_TIMES = 10
"""New timestamps that are judged at once, of which most are behind."""


class Judged(NamedTuple):
    """Vehicles of a document: those with a new timestamp, of which some are behind; with an earlier one than was sent,
    with one too far ahead; all.
    """

    fresh: int
    behind: int
    earlier: int
    ahead: int
    entries: int


UNCHANGED = Judged(fresh=0, behind=0, earlier=0, ahead=0, entries=1)
"""A document of which the server says that it is the one before."""


class TimestampWatch:
    """Follows the documents of one source."""

    def __init__(self) -> None:
        self._unmoved_since: int | None = None
        self._said_us: int | None = None
        self._documents = 0
        self._fresh = self._behind = 0

    def judged(self, document: Judged, at_us: int) -> tuple[str, int] | None:
        """Take one document, at its arrival or, if that is unknown, its header (µs UTC).

        Returns what is wrong, and of how many documents since it was said before; None if nothing is, or if it was said
        within the last five minutes.
        """
        if document.fresh or not document.entries:
            self._unmoved_since = None
        elif self._unmoved_since is None:
            self._unmoved_since = at_us
        trouble = self._trouble(document, at_us)
        if trouble is None:
            return None
        self._documents += 1
        if self._said_us is not None and 0 <= at_us - self._said_us < _STALE_US:
            return None
        documents, self._documents, self._said_us = self._documents, 0, at_us
        return trouble, documents

    def _trouble(self, document: Judged, at_us: int) -> str | None:
        if 2 * document.ahead > document.entries:
            return _AHEAD
        if 2 * document.earlier > document.entries:
            return _EARLIER
        if self._are_behind(document):
            return _BEHIND
        unmoved = self._unmoved_since
        return _UNMOVED if unmoved is not None and at_us - unmoved >= _STALE_US else None

    def _are_behind(self, document: Judged) -> bool:
        self._fresh += document.fresh
        self._behind += document.behind
        if self._fresh < _ENOUGH_TIMES:
            return False
        mostly = 2 * self._behind > self._fresh
        self._fresh = self._behind = 0
        return mostly


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
        if trouble is None or (self._said_us is not None and 0 <= at_us - self._said_us < _STALE_US):
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
