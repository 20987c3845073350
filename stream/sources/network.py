"""A synthetic road network and bus routes inside a box: radial, ring and grid roads. No real city is meant."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from stream.config.section import BoundingBox

STREET, ARTERIAL, RING = 0, 1, 2
"""Road classes: inner grid, radial main roads, orbital roads."""
FREE_SPEED_MS = np.array([9.0, 14.0, 19.0])
"""Speed on an empty road of each class, m/s (32, 50 and 68 km/h)."""
RED_LIGHTS_PER_S = np.array([1 / 70, 1 / 110, 1 / 400])
"""Rate at which a moving vehicle is stopped by a light, per class."""

LARGEST_RADIUS_KM = 15.0
STOP_SPACING_M = (300.0, 550.0)
_KM_PER_DEGREE_LAT = 110.574
_KM_PER_DEGREE_LNG = 111.320


@dataclass(frozen=True)
class Network:
    """Directed paths laid end to end on one axis of metres, so that one ``searchsorted`` locates every vehicle.

    Path p covers ``path_start[p] .. path_end[p]``; ``path_next[p]`` is driven after it (the way back, or the loop).
    ``vertex_*`` are the corners in axis order, ``segment_class[i]`` and ``segment_factor[i]`` (lasting congestion,
    about 1) belong to the road from corner i to i + 1. ``stop_at`` are the stops in axis order, the last of each path
    its terminal; ``first_stop[p]`` is the index of its first.
    """

    path_start: np.ndarray
    path_end: np.ndarray
    path_next: np.ndarray
    path_route: np.ndarray
    vertex_at: np.ndarray
    vertex_lat: np.ndarray
    vertex_lng: np.ndarray
    segment_class: np.ndarray
    segment_factor: np.ndarray
    stop_at: np.ndarray
    stop_is_terminal: np.ndarray
    first_stop: np.ndarray
    running_time: np.ndarray
    metres_per_degree: tuple[float, float]

    def segment(self, at: np.ndarray) -> np.ndarray:
        """Index of the road segment under each axis position."""
        return np.clip(np.searchsorted(self.vertex_at, at, side="right") - 1, 0, len(self.vertex_at) - 2)

    def locate(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latitude and longitude in degrees of each axis position."""
        return np.interp(at, self.vertex_at, self.vertex_lat), np.interp(at, self.vertex_at, self.vertex_lng)


def _spoke(rng: np.random.Generator, angle: float, radius: float) -> np.ndarray:
    """Corners (x, y in km) from the centre outwards, gently bent."""
    distances = np.linspace(0, radius, max(int(radius / 0.8), 3) + 1)
    bend = np.cumsum(rng.normal(0, 0.02, len(distances)))
    bend[:2] = 0
    return np.column_stack([distances * np.cos(angle + bend), distances * np.sin(angle + bend)])


def _ring(radius: float) -> np.ndarray:
    turn = np.linspace(0, 2 * np.pi, 49)
    return radius * np.column_stack([np.cos(turn), np.sin(turn)])


def _lattice_walk(rng: np.random.Generator, reach: float) -> np.ndarray:
    """A street route on the inner grid: straight runs with right-angle turns, from one side to the other."""
    block = reach / 6
    rows = rng.choice(np.arange(-6, 7), size=int(rng.integers(2, 5)), replace=False) * block
    columns = np.linspace(-reach, reach, len(rows) + 1)
    columns[1:-1] = np.round(columns[1:-1] / block) * block
    corners = []
    for index, row in enumerate(rows):
        corners += [(columns[index], row), (columns[index + 1], row)]
    walk = np.array(corners)
    return walk[:, ::-1] if rng.random() < 0.5 else walk


def _split(points: np.ndarray, longest_km: float = 0.5) -> np.ndarray:
    """The same line with corners added so that no segment is longer than ``longest_km``."""
    pieces = [points[:1]]
    for a, b in itertools.pairwise(points):
        n = max(int(np.ceil(np.hypot(*(b - a)) / longest_km)), 1)
        pieces.append(a + (b - a) * np.arange(1, n + 1)[:, None] / n)
    return np.concatenate(pieces)


def _lines(rng: np.random.Generator, radius: float, routes: int) -> list[tuple[np.ndarray, int, bool]]:
    """(corners, road class of the line outside the centre, is a loop) of each route."""
    spokes = [_spoke(rng, 2 * np.pi * k / 9 + rng.normal(0, 0.08), radius * rng.uniform(0.75, 0.95)) for k in range(9)]
    lines: list[tuple[np.ndarray, int, bool]] = []
    for index in range(routes):
        kind = index % 8
        if kind == 3:
            lines.append((_ring(radius * (0.5 if index % 16 == 3 else 0.85)), RING, True))
        elif kind in (1, 5, 7):
            lines.append((_lattice_walk(rng, radius * 0.5), STREET, False))
        else:
            a, b = rng.choice(len(spokes), size=2, replace=False)
            lines.append((np.concatenate([spokes[a][::-1], spokes[b][1:]]), ARTERIAL, False))
    return lines


def build_network(domain: BoundingBox, routes: int, rng: np.random.Generator) -> Network:
    """``routes`` routes, each driven both ways, within ``domain`` with a margin; at most 15 km from its middle."""
    lat0, lng0 = (domain.south + domain.north) / 2, (domain.west + domain.east) / 2
    per_lat, per_lng = _KM_PER_DEGREE_LAT, _KM_PER_DEGREE_LNG * float(np.cos(np.radians(lat0)))
    radius = min(
        LARGEST_RADIUS_KM, 0.45 * min((domain.north - domain.south) * per_lat, (domain.east - domain.west) * per_lng)
    )
    congestion: dict[tuple[float, float], float] = {}
    starts, ends, nexts, owners, first_stops, minutes = [], [], [], [], [], []
    vertex_at, vertex_xy, classes, factors, stops, terminals = [], [], [], [], [], []
    axis, n_stops = 0.0, 0
    for route, (line, road, loop) in enumerate(_lines(rng, radius, routes)):
        corners = _split(line)
        for points, way in ((corners, 0), (corners[::-1], 1)):
            lengths = 1000 * np.hypot(*np.diff(points, axis=0).T)
            middle = (points[:-1] + points[1:]) / 2
            road_class = np.where((road == ARTERIAL) & (np.hypot(*middle.T) < 0.2 * radius), STREET, road)
            places = [tuple(np.round(xy, 2)) for xy in middle]
            for place in places:
                congestion.setdefault(place, float(np.exp(rng.normal(0, 0.15))))
            factor = np.array([congestion[place] for place in places])
            length = float(lengths.sum())
            gaps = rng.uniform(*STOP_SPACING_M, size=int(length / STOP_SPACING_M[0]) + 1).cumsum()
            path_stops = np.append(gaps[gaps < length - 150], length)
            starts.append(axis)
            ends.append(axis + length)
            nexts.append(2 * route + (way if loop else 1 - way))
            owners.append(route)
            first_stops.append(n_stops)
            minutes.append(float((lengths / (FREE_SPEED_MS[road_class] * factor)).sum()) * 1.3 + 20 * len(path_stops))
            vertex_at.append(axis + np.append(0, lengths.cumsum()))
            vertex_xy.append(points)
            classes.append(np.append(road_class, road_class[-1]))
            factors.append(np.append(factor, factor[-1]))
            stops.append(axis + path_stops)
            terminals.append(np.arange(len(path_stops)) == len(path_stops) - 1)
            n_stops += len(path_stops)
            axis += length + 1000.0
    xy = np.concatenate(vertex_xy)
    return Network(
        path_start=np.array(starts),
        path_end=np.array(ends),
        path_next=np.array(nexts),
        path_route=np.array(owners),
        vertex_at=np.concatenate(vertex_at),
        vertex_lat=lat0 + xy[:, 1] / per_lat,
        vertex_lng=lng0 + xy[:, 0] / per_lng,
        segment_class=np.concatenate(classes),
        segment_factor=np.concatenate(factors),
        stop_at=np.concatenate(stops),
        stop_is_terminal=np.concatenate(terminals),
        first_stop=np.array(first_stops),
        running_time=np.array(minutes),
        metres_per_degree=(1000 * per_lat, 1000 * per_lng),
    )
