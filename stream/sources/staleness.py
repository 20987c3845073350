"""Notices that a feed answers but stands still: the same header timestamp or document again and again. Pure."""

from __future__ import annotations

STALE_S = 300.0
"""Agencies publish every 10 to 60 seconds; a feed that stands still for longer has stopped behind its server."""


class Staleness:
    """Follows the feed's own clock over the answers of one address.

    Only the times of arrival measure how long it stood still, so an agency's clock that is wrong by a constant is no
    staleness.
    """

    def __init__(self, longest_s: float = STALE_S) -> None:
        self._longest_us = round(longest_s * 1_000_000)
        self._clock: int | None = None
        self._moved_us: int | None = None
        self.stale = False

    def answered(self, clock_us: int | None, received_us: int, *, brought_events: bool) -> str | None:
        """Take one answer; returns a sentence if the feed begins to be stale, or moves again.

        ``clock_us``: the header's timestamp; None if it has none or the document is unchanged. Without a timestamp, new
        events count as movement.
        """
        moved = brought_events if clock_us is None else clock_us != self._clock
        if moved or self._moved_us is None:
            self._clock = clock_us if clock_us is not None else self._clock
            self._moved_us = received_us
            if self.stale:
                self.stale = False
                return "the feed moves again"
            return None
        if not self.stale and received_us - self._moved_us >= self._longest_us:
            self.stale = True
            seconds = (received_us - self._moved_us) / 1_000_000
            return (
                f"the feed stands still: for {seconds:.0f} s its header has had the same timestamp, although its "
                "server answers; ask the agency"
            )
        return None
