"""Where the stops of a trip lie along its line, and which cells the line crosses between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import h3
import numpy as np
from numpy.typing import NDArray

from dpcore.earth import great_circle_m

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

FURTHEST_M = 250.0
"""A stop further from its shape than this does not lie on it."""
MOST_COMPARED = 1_000_000
"""Pairs of a stop and an edge of one trip; of more, the trip is drawn straight from stop to stop."""
_DEGREE_M = 111_195.0


@dataclass(frozen=True)
class Line:
    """A line through ``points`` (n, 2) in degrees, of which no two consecutive ones are alike."""

    points: FloatArray

    @cached_property
    def along(self) -> FloatArray:
        """Metres from the start to each point."""
        lat, lng = self.points.T
        return np.concatenate([[0.0], np.cumsum(great_circle_m(lat[:-1], lng[:-1], lat[1:], lng[1:]))])


@dataclass(frozen=True)
class Course:
    """Cells along a line: cell k lies between ``ends[k]`` and ``ends[k + 1]`` metres."""

    cells: list[str]
    ends: FloatArray


def line_of(points: FloatArray) -> Line | None:
    """The line through the points; None if they are all alike."""
    differs = np.any(points[1:] != points[:-1], axis=1)
    kept = points[np.concatenate([[True], differs])] if len(points) else points
    return Line(kept) if len(kept) > 1 else None


def course_of(line: Line, resolution: int, step: float) -> Course:
    """The cells that the line crosses, looked up in the middle of parts of at most ``step`` metres."""
    length = float(line.along[-1])
    count = max(1, int(np.ceil(length / step)))
    ends = np.linspace(0.0, length, count + 1)
    middles = (ends[1:] + ends[:-1]) / 2
    lat, lng = (np.interp(middles, line.along, column).tolist() for column in line.points.T)
    cells = [h3.latlng_to_cell(*place, resolution) for place in zip(lat, lng, strict=True)]
    starts = [k for k in range(count) if not k or cells[k] != cells[k - 1]]
    return Course([cells[k] for k in starts], np.append(ends[starts], length))


def positions(line: Line, stops: FloatArray) -> FloatArray | None:
    """Metres along the line at which it passes the stops (n, 2), in their order, with the least sum of squared
    distances.

    None if a stop lies further than :data:`FURTHEST_M` from there, or if too many pairs would be compared.
    """
    if len(stops) * len(line.points) > MOST_COMPARED:
        return None
    apart, share = _distances(line, stops)
    chosen = _in_order(apart**2)
    rows = np.arange(len(stops))
    if apart[rows, chosen].max() > FURTHEST_M:
        return None
    lengths = np.diff(line.along)
    return np.maximum.accumulate(line.along[chosen] + share[rows, chosen] * lengths[chosen])


def _distances(line: Line, stops: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Metres (n, edges) from each stop to each edge on a plane, and the share of the edge at which that is."""
    scale = np.array([_DEGREE_M, _DEGREE_M * np.cos(np.radians(line.points[0, 0]))])
    points, places = line.points * scale, stops * scale
    edge = points[1:] - points[:-1]
    towards = places[:, None] - points[None, :-1]
    square = np.maximum((edge**2).sum(axis=1), 1e-12)
    share = np.clip((towards * edge).sum(axis=2) / square, 0.0, 1.0)
    return np.hypot(*np.moveaxis(towards - share[:, :, None] * edge, 2, 0)), share


def _in_order(cost: FloatArray) -> IntArray:
    """One column for each row, never before that of the row above, with the least sum of costs."""
    numbers, total, before = np.arange(cost.shape[1]), cost[0], []
    for row in cost[1:]:
        least = np.minimum.accumulate(total)
        before.append(np.maximum.accumulate(np.where(total == least, numbers, 0)))
        total = least + row
    chosen = [int(np.argmin(total))]
    for back in reversed(before):
        chosen.append(int(back[chosen[-1]]))
    return np.array(chosen[::-1])
