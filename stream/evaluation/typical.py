"""The typical map that a live map must beat: exact means of earlier days, or of the other windows of a single day. NOT
PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray

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
    if times[0].date() == times[-1].date():
        rest = _other_windows(places, sums, len(cells))
        return Typical(rest, [True] * len(rest), "other windows of the day")
    known = [time.date() != times[0].date() for time in times]
    return Typical(_days_before(times, places, sums, len(cells)), known, "earlier days")


def _other_windows(places: Sequence[IntArray], sums: Sequence[FloatArray], cells: int) -> list[FloatArray]:
    total = np.zeros((2, cells))
    for at, own in zip(places, sums, strict=True):
        total[:, at] += own
    level = total[1].sum() / total[0].sum()
    return [_mean(total[:, at] - own, level) for at, own in zip(places, sums, strict=True)]


def _days_before(
    times: Sequence[datetime], places: Sequence[IntArray], sums: Sequence[FloatArray], cells: int
) -> list[FloatArray]:
    total, maps, today = np.zeros((2, 24, cells)), [], list[int]()
    for k, (time, at) in enumerate(zip(times, places, strict=True)):
        if today and time.date() != times[today[0]].date():
            for before in today:
                total[:, times[before].hour, places[before]] += sums[before]
            today = []
        today.append(k)
        whole = _mean(total.sum(axis=1), float(_mean(total.sum(axis=(1, 2)), 0.0)))[at]
        maps.append(_mean(total[:, time.hour, at] + EVENTS * np.stack([np.ones_like(whole), whole]), 0.0))
    return maps


def _mean(sums: FloatArray, level: float) -> FloatArray:
    """Means (...) from ``sums`` (2, ...) of events and of speeds; ``level`` where there are no events."""
    events, total = sums
    return np.asarray(np.where(events > 0.5, total / np.maximum(events, 1), level))
