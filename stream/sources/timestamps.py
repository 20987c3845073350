"""Notices documents of which hardly any vehicle gives an event, because of its timestamp. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.sources.staleness import STALE_S

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
    f"for {STALE_S:.0f} s no vehicle's timestamp has advanced, although the document changes: no event is sent; ask "
    "the agency"
)


_QUARTER_S, _LEAST_SHIFT_S, _MOST_SHIFT_S, _TOLERANCE_S = 900, 1_500, 14.25 * 3600, 300
_FAR_S = 1e12


def local_as_utc(ahead_s: NDArray[np.float64], of: str) -> str | None:
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
_ENOUGH = 10
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
        if self._fresh < _ENOUGH:
            return False
        mostly = 2 * self._behind > self._fresh
        self._fresh = self._behind = 0
        return mostly
