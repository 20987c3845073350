"""Notices documents of which hardly any vehicle gives an event, because of its timestamp. Pure."""

from __future__ import annotations

from typing import NamedTuple

from stream.sources.staleness import STALE_S

_STALE_US = round(STALE_S * 1_000_000)
_EARLIER = (
    "most vehicles have an earlier timestamp than one that was sent, so they are left out: the agency's clock was ahead, its "
    "servers answer with old documents, or stored files are not in order of time"
)
_AHEAD = (
    "most vehicles have a timestamp that is more than window.max_future ahead, so they are refused: correct the clock of this "
    "machine, or feed.timezone if times have no zone, or ask the agency"
)
_UNMOVED = f"for {STALE_S:.0f} s no vehicle's timestamp has advanced, although the document changes: no event is sent; ask the agency"


class Judged(NamedTuple):
    """Vehicles of a document: those with a new timestamp, with an earlier one than was sent, with one too far ahead; all."""

    fresh: int
    earlier: int
    ahead: int
    entries: int


class TimestampWatch:
    """Follows the documents of one source."""

    def __init__(self) -> None:
        self._unmoved_since: int | None = None
        self._said_us: int | None = None
        self._documents = 0

    def judged(self, document: Judged, at_us: int) -> tuple[str, int] | None:
        """Take one document, at its arrival or, if that is unknown, its header (µs UTC).

        Returns what is wrong, and of how many documents since it was said before; None if nothing is, or if it was said within
        the last five minutes.
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
        unmoved = self._unmoved_since
        return _UNMOVED if unmoved is not None and at_us - unmoved >= _STALE_US else None
