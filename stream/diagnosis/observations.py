"""What an inspection looks at: the fixes of a source that the service takes, as reported, and how it was read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream.config.feed import FeedConfig, FeedFields, SpeedUnit

WORKER = "hexveil worker"


class InspectionError(ValueError):
    """A source that cannot be inspected; the message says why and what to do."""


@dataclass(frozen=True)
class Observations:
    """Fixes in order of arrival, shape (n,), as a reader with ``feed`` takes them.

    ``user``: number of the vehicle; ``time_us``: µs UTC; ``lat``/``lng``: degrees; ``speed``: in the feed's own unit,
    NaN if none; ``arrived_us``: µs UTC, below 0 if unknown. ``kind``: what the source is, in words. ``format``: a known
    format, or "declared" with ``feed.fields``. ``speed_unit``: the unit that the format fixes, or None. ``local``:
    share of times without a zone, read in that of the fields. ``offset``: of most times from UTC, like "+05:30"; None
    if unknown. ``command``: that reads the source, :data:`WORKER` for a topic. ``notes``: what is to be said of how it
    was recognised. ``refused``: events that are no fix, by reason. ``documents``: snapshots; 0 for events.
    """

    kind: str
    format: str
    feed: FeedConfig
    user: NDArray[np.int64]
    time_us: NDArray[np.int64]
    lat: NDArray[np.float64]
    lng: NDArray[np.float64]
    speed: NDArray[np.float64]
    arrived_us: NDArray[np.int64]
    speed_unit: SpeedUnit | None = None
    local: float = 0.0
    offset: str | None = None
    command: str = "hexveil replay"
    notes: tuple[str, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    documents: int = 0

    def __len__(self) -> int:
        return len(self.user)

    @property
    def is_live(self) -> bool:
        """Whether a command of its own reads the feed, and sends canonical events."""
        return self.documents > 0

    @property
    def fields(self) -> FeedFields | None:
        """Paths of the fields; None for snapshots."""
        return self.feed.fields


def numbered(users: list[object]) -> NDArray[np.int64]:
    """Each identifier as a number, in order of first appearance."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(str(user), len(numbers)) for user in users], dtype=np.int64)
