"""Speed and travel time along the lines of a route in one window, from the estimates of the cells that they cross.
Pure.

A line is cut where it leaves a cell. With L metres in a cell of v km/h the way takes the sum of 3.6·L/v seconds. The
errors of cells may depend on each other, and one that a line crosses twice errs twice alike, so they are not averaged
out: the interval of the time goes from all cells at the upper ends of their intervals to all at the lower ends. It
holds if the errors of cells are jointly normal, whatever their correlation. Where a lower end is (nearly) 0, the time
has no upper end. Where much of the way is in cells at the bound of speeds, the speed is to be read as "or more", the
time as "or less" (``at_bound``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import h3

from stream.config.geojson import Position
from stream.serve.city.combining import CellNumbers, is_crowded

SHORTEST_M = 20.0
"""A piece that crosses an edge of a cell belongs to the cell in which it begins, if it is no longer."""
NEAR_M, BESIDE_M = 150.0, 80.0
"""How far from a line a stop may be that somebody names, and one that is listed as a stop of it."""
SLOWEST_KMH = 0.5
"""Slower estimates say nothing about a travel time."""
_METRES = 111_195.0
"""Metres of a degree of latitude."""

Piece = tuple[str, float, float]
"""A piece of a line, in its direction: its cell, and the metres from the start of the line to its ends."""


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


def along(line: Sequence[Position], place: Position, near: float = NEAR_M) -> float | None:
    """Metres from the start of the line to its point nearest to a place; None if that is not within ``near`` metres."""
    nearest, at, best = near, 0.0, None
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


class Span(NamedTuple):
    """A speed in km/h with the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    at_bound: bool = False


Speeds = Mapping[str, Span]
"""Of released cells."""


def estimates(cells: Iterable[CellNumbers], name: str) -> Speeds:
    """The leading estimates of that name, such as "mean"."""
    known = ((cell.cell, (cell.estimate or {}).get(name)) for cell in cells)
    return {cell: Span(one.value, *one.interval, one.at_bound) for cell, one in known if one is not None}


def stops_along(line: Sequence[Position], stops: Mapping[str, Sequence[Position]]) -> list[str]:
    """The names of stops beside a line, in its direction, each once."""
    slack = BESIDE_M / _METRES / math.cos(math.radians(line[0][1]))
    lngs, lats = zip(*line, strict=True)
    near = [
        (name, place)
        for name, places in stops.items()
        for place in places
        if min(lngs) - slack <= place[0] <= max(lngs) + slack and min(lats) - slack <= place[1] <= max(lats) + slack
    ]
    passed = [(at, name) for name, place in near if (at := along(line, place, BESIDE_M)) is not None]
    return list(dict.fromkeys(name for _, name in sorted(passed)))


def travel(
    pieces: Sequence[Piece],
    part: tuple[float, float],
    cells: Collection[str],
    kinds: Mapping[str, Speeds],
    scheduled: Mapping[str, float],
) -> dict[str, Any]:
    """What is known of the ``part`` of a line, in metres from its start; ``cells`` were released.

    ``kinds``: speeds by what they are. The measured part lies in cells of which the first kind is known; each other
    kind, and what is ``scheduled`` in km/h, is stated where it is known of all these cells.
    """
    first = next(iter(kinds.values()))
    metres = {cell: length for cell, length in _metres(pieces, part, cells).items() if _is_known(first.get(cell))}
    said: dict[str, Any] = {"metres": round(part[1] - part[0]), "measured_metres": round(sum(metres.values()))}
    for name, speeds in kinds.items():
        is_whole = bool(metres) and all(_is_known(speeds.get(cell)) for cell in metres)
        said[name] = _with_intervals(metres, speeds) if is_whole else None
    is_timed = bool(metres) and metres.keys() <= scheduled.keys()
    return said | {"scheduled": _stated(metres, {cell: scheduled[cell] for cell in metres}) if is_timed else None}


def _is_known(span: Span | None) -> bool:
    return span is not None and span.value >= SLOWEST_KMH


def _metres(pieces: Sequence[Piece], part: tuple[float, float], cells: Collection[str]) -> dict[str, float]:
    """The metres of a part of a line in each released cell."""
    metres: dict[str, float] = defaultdict(float)
    resolutions = sorted({h3.get_resolution(cell) for cell in cells}, reverse=True)
    for cell, start, end in pieces:
        length = min(end, part[1]) - max(start, part[0])
        released = _released(cell, resolutions, cells) if length > 0 else None
        if released is not None:
            metres[released] += length
    return metres


def _with_intervals(metres: Mapping[str, float], speeds: Speeds) -> dict[str, Any]:
    """Minutes and km/h, each with its interval; without an upper end where a cell may stand still."""
    fastest = _stated(metres, {cell: speeds[cell].high for cell in metres})
    lower = {cell: speeds[cell].low for cell in metres}
    slowest = _stated(metres, lower) if min(lower.values()) >= SLOWEST_KMH else {"minutes": None, "km_h": 0.0}
    crowded = is_crowded((length, speeds[cell].at_bound) for cell, length in metres.items())
    said = _stated(metres, {cell: speeds[cell].value for cell in metres}) | ({"at_bound": True} if crowded else {})
    return said | {
        f"{name}_interval": [one[name], other[name]]
        for name, one, other in (("minutes", fastest, slowest), ("km_h", slowest, fastest))
    }


def _stated(metres: Mapping[str, float], speeds: Mapping[str, float]) -> dict[str, Any]:
    """Minutes for the way, and the speed along it in km/h."""
    minutes = sum(length * 0.06 / speeds[cell] for cell, length in metres.items())
    return {"minutes": round(minutes, 2), "km_h": round(0.06 * sum(metres.values()) / minutes, 2)}


def _released(cell: str, resolutions: Sequence[int], cells: Collection[str]) -> str | None:
    """The released cell in which a finer one lies; the finest of several."""
    own = h3.get_resolution(cell)
    parents = (h3.cell_to_parent(cell, resolution) for resolution in resolutions if resolution <= own)
    return next((parent for parent in parents if parent in cells), None)


def _cell(place: Position, resolution: int) -> str:
    return str(h3.latlng_to_cell(place[1], place[0], resolution))


def _distance(a: Position, b: Position) -> float:
    return math.hypot((b[0] - a[0]) * math.cos(math.radians((a[1] + b[1]) / 2)), b[1] - a[1]) * _METRES
