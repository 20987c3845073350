"""The typical map that a live map must beat: exact means of earlier days, or of the other windows of a single day. NOT
PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]
Means = tuple[int, IdArray, FloatArray, FloatArray]
"""Of a window: its start in epoch seconds; ids, events and exact means of its cells, (H,) each."""


@dataclass(frozen=True)
class Typical:
    """Of each window the typical mean of its cells, (H,), in km/h; whether it has one that it may be compared with; and
    what they are means of.
    """

    maps: list[FloatArray]
    known: list[bool]
    against: str


EVENTS = 100
"""The mean of a cell over all hours counts as so many events beside its events of one hour. On CapMetro's 2016-11-24 to
27, 30 were worse than no hours at all, 100 were about as good."""


def typical_of(windows: Sequence[Means], zone: ZoneInfo) -> Typical:
    """Of a recording of several days: the mean of the cell in this hour of the days before, with :data:`EVENTS` of its
    mean over all hours; the first day is not compared. Of a single day: its mean in the other windows. Where the cell
    has no events there, the mean of all cells.
    """
    times = [datetime.fromtimestamp(slot, zone) for slot, *_ in windows]
    cells = np.unique(np.concatenate([ids for _, ids, _, _ in windows]))
    places = [np.searchsorted(cells, ids) for _, ids, _, _ in windows]
    sums = [np.stack([n, n * mean]) for _, _, n, mean in windows]
    total = np.zeros((2, 24, len(cells)))
    if times[0].date() == times[-1].date():
        for at, own in zip(places, sums, strict=True):
            total[:, 0, at] += own
        level = total[1].sum() / total[0].sum()
        rest = [_mean(total[:, 0, at] - own, level) for at, own in zip(places, sums, strict=True)]
        return Typical(rest, [True] * len(rest), "other windows of the day")
    maps, today = [], list[int]()
    for k, time in enumerate(times):
        if today and time.date() != times[today[0]].date():
            for before in today:
                total[:, times[before].hour, places[before]] += sums[before]
            today = []
        today.append(k)
        everywhere = total.sum(axis=(1, 2))
        whole = _mean(total.sum(axis=1), float(_mean(everywhere, 0.0)))[places[k]]
        maps.append(_mean(total[:, time.hour, places[k]] + EVENTS * np.stack([np.ones_like(whole), whole]), 0.0))
    return Typical(maps, [time.date() != times[0].date() for time in times], "earlier days")


def _mean(sums: FloatArray, level: float) -> FloatArray:
    """Means (...) from ``sums`` (2, ...) of events and of speeds; ``level`` where there are no events."""
    events, total = sums
    return np.asarray(np.where(events > 0.5, total / np.maximum(events, 1), level))
