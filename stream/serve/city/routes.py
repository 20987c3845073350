"""Speed and travel time along the lines of a route in one window, from the estimates of the cells that they cross.
Pure.

A line is cut where it leaves a cell. With L metres in a cell of v km/h the way takes the sum of 3.6·L/v seconds. The
errors of cells may depend on each other, and one that a line crosses twice errs twice alike, so they are not averaged
out: the interval of the time goes from all cells at the upper ends of their intervals to all at the lower ends. It
holds if the errors of cells are jointly normal, whatever their correlation. Where a lower end is (nearly) 0, the time
has no upper end.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import h3

from stream.config.geojson import Position
from stream.serve.city.combining import CellNumbers, Modelled

SHORTEST_M = 20.0
"""A piece that crosses an edge of a cell belongs to the cell in which it begins, if it is no longer."""
NEAR_M = 150.0
"""How far from a line its stops may be."""
SLOWEST_KMH = 0.5
"""Slower estimates say nothing about a travel time."""
_METRES = 111_195.0
"""Of a degree of latitude."""

Piece = tuple[str, float, float]
"""Of a line, in its direction: the cell of a piece, and the metres from the start of the line to its ends."""


def pieces_of(line: Sequence[Position], resolution: int) -> list[Piece]:
    """The line cut into pieces that lie in one cell each."""
    pieces: list[Piece] = []
    at = 0.0
    for a, b in pairwise(line):
        waiting, begun = [(a, b, _cell(a, resolution), _cell(b, resolution))], len(pieces)
        while waiting:
            a, b, first, last = waiting.pop()
            length = _distance(a, b)
            if first != last and length > SHORTEST_M:
                middle = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
                between = _cell(middle, resolution)
                waiting += [(middle, b, between, last), (a, middle, first, between)]
                continue
            # Parts of one straight line in one cell are one piece.
            start = pieces.pop()[1] if len(pieces) > begun and pieces[-1][0] == first else at
            pieces.append((first, start, at + length))
            at += length
    return pieces


def along(line: Sequence[Position], place: Position) -> float | None:
    """Metres from the start of the line to its point nearest to a place; None if that is too far away."""
    nearest, at, best = NEAR_M, 0.0, None
    for a, b in pairwise(line):
        wide = math.cos(math.radians(a[1])) * _METRES
        dx, dy = (b[0] - a[0]) * wide, (b[1] - a[1]) * _METRES
        px, py = (place[0] - a[0]) * wide, (place[1] - a[1]) * _METRES
        length = math.hypot(dx, dy)
        share = min(max((px * dx + py * dy) / length**2, 0.0), 1.0) if length else 0.0
        away = math.hypot(px - share * dx, py - share * dy)
        if away <= nearest:
            nearest, best = away, at + share * length
        at += length
    return best


def travel(
    pieces: Sequence[Piece],
    part: tuple[float, float],
    cells: Mapping[str, CellNumbers],
    scheduled: Mapping[str, float],
) -> dict[str, Any]:
    """What is known of the ``part`` of a line, in metres from its start. ``scheduled``: km/h of released cells."""
    estimates = {cell: one.estimate["mean"] for cell, one in cells.items() if one.estimate and "mean" in one.estimate}
    known = {cell: one for cell, one in estimates.items() if one.value >= SLOWEST_KMH}
    metres = {cell: length for cell, length in _metres(pieces, part, cells).items() if cell in known}
    said: dict[str, Any] = {"metres": round(part[1] - part[0]), "measured_metres": round(sum(metres.values()))}
    if not metres:
        return said | {"now": None, "scheduled": None}
    is_timed = metres.keys() <= scheduled.keys()
    return said | {
        "now": _now(metres, known),
        "scheduled": _stated(metres, {cell: scheduled[cell] for cell in metres}) if is_timed else None,
    }


def _metres(pieces: Sequence[Piece], part: tuple[float, float], cells: Mapping[str, CellNumbers]) -> dict[str, float]:
    """The metres of a part of a line in each released cell."""
    metres: dict[str, float] = defaultdict(float)
    resolutions = sorted({h3.get_resolution(cell) for cell in cells}, reverse=True)
    for cell, start, end in pieces:
        length = min(end, part[1]) - max(start, part[0])
        released = _released(cell, resolutions, cells) if length > 0 else None
        if released is not None:
            metres[released] += length
    return metres


def _now(metres: Mapping[str, float], known: Mapping[str, Modelled]) -> dict[str, Any]:
    """Minutes and km/h by the estimates, each with its interval; without an upper end where a cell may stand still."""
    fastest = _stated(metres, {cell: known[cell].interval[1] for cell in metres})
    lower = {cell: known[cell].interval[0] for cell in metres}
    slowest = _stated(metres, lower) if min(lower.values()) >= SLOWEST_KMH else {"minutes": None, "km_h": 0.0}
    return _stated(metres, {cell: known[cell].value for cell in metres}) | {
        f"{name}_interval": [one[name], other[name]]
        for name, one, other in (("minutes", fastest, slowest), ("km_h", slowest, fastest))
    }


def _stated(metres: Mapping[str, float], speeds: Mapping[str, float]) -> dict[str, Any]:
    """Minutes for the way, and the speed along it in km/h."""
    minutes = sum(length * 0.06 / speeds[cell] for cell, length in metres.items())
    return {"minutes": round(minutes, 2), "km_h": round(0.06 * sum(metres.values()) / minutes, 2)}


def _released(cell: str, resolutions: Sequence[int], cells: Mapping[str, CellNumbers]) -> str | None:
    """The released cell in which a finer one lies; the finest of several."""
    own = h3.get_resolution(cell)
    parents = (h3.cell_to_parent(cell, resolution) for resolution in resolutions if resolution <= own)
    return next((parent for parent in parents if parent in cells), None)


def _cell(place: Position, resolution: int) -> str:
    return str(h3.latlng_to_cell(place[1], place[0], resolution))


def _distance(a: Position, b: Position) -> float:
    return math.hypot((b[0] - a[0]) * math.cos(math.radians((a[1] + b[1]) / 2)), b[1] - a[1]) * _METRES
