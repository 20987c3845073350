"""A synthetic road network with bus routes inside a box: radial, ring and grid roads. It represents no real city.

A synthetic bus fleet in motion: timetables, road speeds by class and hour, stops. Columns only; no clock, no I/O.
"""

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

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
_GAP_M = 1000.0
"""Metres between two paths on the axis, so that no position lies on both."""
_KM_PER_DEGREE_LAT = 110.574
_KM_PER_DEGREE_LNG = 111.320
RINGS = (0.5, 0.85)
"""Radii of the orbital roads, as shares of the city's."""
BLOCKS = 12
"""Blocks of the street grid from the middle to the edge of the city."""


@dataclass(frozen=True)
class Site:
    """Where a city lies: its middle in degrees, its radius, and kilometres per degree of latitude and longitude."""

    lat: float
    lng: float
    radius_km: float
    km_per_degree: tuple[float, float]

    def degrees(self, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Latitudes and longitudes of places (n, 2), in kilometres east and north of the middle."""
        return self.lat + xy[:, 1] / self.km_per_degree[0], self.lng + xy[:, 0] / self.km_per_degree[1]


def site_in(domain: BoundingBox) -> Site:
    """The city in the middle of ``domain``, with a margin around it; its radius is at most 15 km."""
    lat, lng = (domain.south + domain.north) / 2, (domain.west + domain.unrolled_east) / 2
    km = _KM_PER_DEGREE_LAT, _KM_PER_DEGREE_LNG * float(np.cos(np.radians(lat)))
    radius = min(
        LARGEST_RADIUS_KM,
        0.45 * min((domain.north - domain.south) * km[0], (domain.unrolled_east - domain.west) * km[1]),
    )
    return Site(lat, lng, radius, km)


@dataclass(frozen=True)
class Network:
    """Directed paths, one after the other on one axis in metres, so that one ``searchsorted`` locates every vehicle.

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


def main_roads(rng: np.random.Generator, radius: float) -> list[np.ndarray]:
    """Corners of the radial main roads, from the middle of the city outwards. ``rng`` draws them first."""
    return [_spoke(rng, 2 * np.pi * k / 9 + rng.normal(0, 0.08), radius * rng.uniform(0.75, 0.95)) for k in range(9)]


def ring_road(radius: float) -> np.ndarray:
    """Corners (x, y) of an orbital road; the last one is the first."""
    turn = np.linspace(0, 2 * np.pi, 49)
    return radius * np.column_stack([np.cos(turn), np.sin(turn)])


def _lattice_walk(rng: np.random.Generator, reach: float) -> np.ndarray:
    """A street route on the inner half of the grid: straight runs with right-angle turns, from side to side."""
    half = BLOCKS // 2
    block = reach / half
    rows = rng.choice(np.arange(-half, half + 1), size=int(rng.integers(2, 5)), replace=False) * block
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
    spokes = main_roads(rng, radius)
    lines: list[tuple[np.ndarray, int, bool]] = []
    for index in range(routes):
        kind = index % 8
        if kind == 3:
            lines.append((ring_road(radius * RINGS[index % 16 != 3]), RING, True))
        elif kind in (1, 5, 7):
            lines.append((_lattice_walk(rng, radius * 0.5), STREET, False))
        else:
            a, b = rng.choice(len(spokes), size=2, replace=False)
            lines.append((np.concatenate([spokes[a][::-1], spokes[b][1:]]), ARTERIAL, False))
    return lines


class _Path(NamedTuple):
    """One way along a route: its corners (P, 2) in km, its metres, its stops in metres from its start, the last one its
    terminal. ``segment_m``, ``road_class`` and ``congestion`` are of the roads between corners, shape (P - 1,).
    """

    corners: np.ndarray
    length: float
    stops: np.ndarray
    segment_m: np.ndarray
    road_class: np.ndarray
    congestion: np.ndarray


def _path(
    corners: np.ndarray, road: int, radius: float, known: dict[tuple[float, ...], float], rng: np.random.Generator
) -> _Path:
    """The path over ``corners`` (P, 2) in km; an arterial road is a street near the centre. ``known``: congestion by
    place, which is drawn when the first road comes through, and lasts."""
    segment_m = 1000 * np.hypot(*np.diff(corners, axis=0).T)
    middle, length = (corners[:-1] + corners[1:]) / 2, float(segment_m.sum())
    road_class = np.where((road == ARTERIAL) & (np.hypot(*middle.T) < 0.2 * radius), STREET, road)
    places = [tuple(np.round(xy, 2).tolist()) for xy in middle]
    for place in places:
        known.setdefault(place, float(np.exp(rng.normal(0, 0.15))))
    gaps = rng.uniform(*STOP_SPACING_M, size=int(length / STOP_SPACING_M[0]) + 1).cumsum()
    stops = np.append(gaps[gaps < length - 150], length)
    return _Path(corners, length, stops, segment_m, road_class, np.array([known[place] for place in places]))


def build_network(domain: BoundingBox, routes: int, rng: np.random.Generator) -> Network:
    """``routes`` routes of the city in ``domain``, each driven both ways: paths a kilometre apart on the axis."""
    site, known, following = site_in(domain), dict[tuple[float, ...], float](), list[int]()
    paths = list[_Path]()
    for route, (line, road, loop) in enumerate(_lines(rng, site.radius_km, routes)):
        corners = _split(line)
        paths += [_path(way, road, site.radius_km, known, rng) for way in (corners, corners[::-1])]
        following += [2 * route, 2 * route + 1] if loop else [2 * route + 1, 2 * route]
    starts = np.cumsum([0.0] + [path.length + _GAP_M for path in paths[:-1]])
    placed = list(zip(starts, paths, strict=True))
    lat, lng = site.degrees(np.concatenate([path.corners for path in paths]))
    counts = [len(path.stops) for path in paths]
    driving = [float((p.segment_m / (FREE_SPEED_MS[p.road_class] * p.congestion)).sum()) for p in paths]
    return Network(
        path_start=starts,
        path_end=np.array([at + path.length for at, path in placed]),
        path_next=np.array(following),
        path_route=np.arange(len(paths)) // 2,
        vertex_at=np.concatenate([at + np.append(0, path.segment_m.cumsum()) for at, path in placed]),
        vertex_lat=lat,
        vertex_lng=lng,
        segment_class=np.concatenate([np.append(path.road_class, path.road_class[-1]) for path in paths]),
        segment_factor=np.concatenate([np.append(path.congestion, path.congestion[-1]) for path in paths]),
        stop_at=np.concatenate([at + path.stops for at, path in placed]),
        stop_is_terminal=np.concatenate([np.arange(n) == n - 1 for n in counts]),
        first_stop=np.cumsum([0, *counts[:-1]]),
        running_time=np.array([seconds * 1.3 + 20 * n for seconds, n in zip(driving, counts, strict=True)]),
        metres_per_degree=(1000 * site.km_per_degree[0], 1000 * site.km_per_degree[1]),
    )


MIN_LAYOVER_S = 180.0
"""A bus rests at least this long at a terminal before its next departure."""
SILENT_AFTER_S = 600.0
"""A bus that rests longer is out of service and sends nothing."""
SERVE_STOP = 0.65
"""Probability that somebody boards or alights at a stop."""

SERVICE_WEEKDAY = np.interp(
    np.arange(24), [0, 1, 4, 5, 7, 9, 15, 18, 20, 23], [0.25, 0.12, 0.12, 0.4, 1.0, 0.8, 0.9, 1.0, 0.6, 0.35]
)
"""Share of the fleet that the timetable uses in each hour of a weekday; the headway is inverse to it."""
SERVICE_WEEKEND = np.interp(np.arange(24), [0, 2, 5, 9, 18, 23], [0.3, 0.12, 0.15, 0.6, 0.6, 0.35])

_PEAKS = np.exp(-(((np.arange(24) + 0.5 - 8) / 1.3) ** 2)) + 1.1 * np.exp(-(((np.arange(24) + 0.5 - 17.3) / 1.6) ** 2))
_DAY = 1 / (1 + np.exp(-(np.arange(24) - 6.5))) / (1 + np.exp(np.arange(24) - 20.5))
CONGESTION_WEEKDAY = 1 - np.outer([0.30, 0.40, 0.45], _PEAKS.clip(0, 1)) - 0.12 * _DAY
"""(3, 24): factor on the free speed of each road class in each hour."""
CONGESTION_WEEKEND = np.repeat((1 - 0.15 * _DAY)[None, :], 3, axis=0)


@dataclass(frozen=True)
class Fixes:
    """Fixes that the vehicles took in one step, sorted by time: vehicle index, µs UTC, degrees, m/s."""

    vehicle: np.ndarray
    time: np.ndarray
    lat: np.ndarray
    lng: np.ndarray
    speed: np.ndarray


class Fleet:
    """``vehicles`` buses on ``network`` from ``start_us``, each sending a fix every ``interval`` seconds.

    Deterministic for a given generator. One :meth:`step` advances all vehicles by ``tick`` seconds.
    """

    def __init__(
        self,
        network: Network,
        vehicles: int,
        start_us: int,
        timezone: ZoneInfo,
        rng: np.random.Generator,
        *,
        interval: float = 30.0,
        tick: float = 5.0,
    ) -> None:
        self.network, self.now_us, self.timezone, self.rng = network, start_us, timezone, rng
        self.interval_us, self.tick = round(interval * 1e6), min(tick, interval)
        routes = int(network.path_route.max()) + 1
        route = np.arange(vehicles) % routes
        self.path = 2 * route + (np.arange(vehicles) // routes) % 2
        cycle = network.running_time.reshape(routes, 2).sum(axis=1) + 2 * MIN_LAYOVER_S
        self.peak_headway = np.repeat(cycle / np.maximum(np.bincount(route, minlength=routes), 1), 2)
        self.timetable = rng.random(len(self.peak_headway))
        share, _ = self._hour()
        self.driving = rng.random(vehicles) < share
        self.at = network.path_start[self.path].copy()
        run = network.path_end[self.path] - self.at
        self.at[self.driving] += (rng.random(vehicles) * run)[self.driving]
        self.next_stop = np.searchsorted(network.stop_at, self.at, side="right")
        self.resting = np.where(rng.random(vehicles) < 0.2, 0.0, SILENT_AFTER_S) + MIN_LAYOVER_S * rng.random(vehicles)
        self.dwell = np.zeros(vehicles)
        self.speed = np.where(self.driving, 6.0, 0.0)
        self.mood = rng.normal(size=vehicles)
        self.phase_us = rng.integers(0, self.interval_us, vehicles)

    def _hour(self) -> tuple[float, np.ndarray]:
        local = datetime.fromtimestamp(self.now_us / 1e6, UTC).astimezone(self.timezone)
        if local.weekday() < 5:
            return float(SERVICE_WEEKDAY[local.hour]), CONGESTION_WEEKDAY[:, local.hour]
        return float(SERVICE_WEEKEND[local.hour]), CONGESTION_WEEKEND[:, local.hour]

    def step(self) -> Fixes:
        """Advance one tick and return the fixes taken in it."""
        share, congestion = self._hour()
        self._depart(share)
        self._drive(congestion)
        self.now_us += round(self.tick * 1e6)
        return self._measure()

    def _depart(self, share: float) -> None:
        """Let the buses that have rested longest depart, as the timetable says for this tick."""
        self.timetable += self.tick * share / self.peak_headway
        due = np.floor(self.timetable).astype(np.int64)
        self.timetable -= due
        ready = np.flatnonzero(~self.driving & (self.resting >= MIN_LAYOVER_S) & (due[self.path] > 0))
        if len(ready) == 0:
            return
        ready = ready[np.lexsort((-self.resting[ready], self.path[ready]))]
        path = self.path[ready]
        rank = np.arange(len(ready)) - np.searchsorted(path, path, side="left")
        leaving = ready[rank < due[path]]
        self.driving[leaving] = True
        self.dwell[leaving] = 0.0

    def _drive(self, congestion: np.ndarray) -> None:
        net, rng, tick, n = self.network, self.rng, self.tick, len(self.at)
        self.mood *= 0.97
        self.mood += rng.normal(0, 0.243, n)
        self.dwell -= tick
        self.resting += tick
        segment = net.segment(self.at)
        road = net.segment_class[segment]
        moving = self.driving & (self.dwell <= 0)
        chance = rng.random(n)
        red = moving & (chance < RED_LIGHTS_PER_S[road] * tick)
        target = (FREE_SPEED_MS * congestion)[road] * net.segment_factor[segment] * np.exp(0.2 * self.mood)
        change = np.clip(target - self.speed, -2.0 * tick, 1.0 * tick)
        self.speed = np.where(moving & ~red, self.speed + change, 0.0)
        self.at = self.at + self.speed * tick
        waits = rng.random(n)
        self.dwell[red] = 5 + 40 * waits[red]
        arrived = np.flatnonzero(moving & (self.at >= net.stop_at[self.next_stop]))
        if len(arrived) == 0:
            return
        stop = self.next_stop[arrived]
        ends = net.stop_is_terminal[stop]
        serve = arrived[~ends & (rng.random(len(arrived)) < SERVE_STOP)]
        self.at[serve] = net.stop_at[self.next_stop[serve]]
        self.speed[serve] = 0.0
        self.dwell[serve] = 8 - 14 * np.log(1 - waits[serve]).clip(-8, 0)
        self.next_stop[arrived] = stop + 1
        home = arrived[ends]
        self.path[home] = net.path_next[self.path[home]]
        self.at[home] = net.path_start[self.path[home]]
        self.next_stop[home] = net.first_stop[self.path[home]]
        self.speed[home] = 0.0
        self.driving[home] = False
        self.resting[home] = 0.0

    def _measure(self) -> Fixes:
        back_us = (self.now_us - self.phase_us) % self.interval_us
        chosen = np.flatnonzero((back_us < round(self.tick * 1e6)) & (self.driving | (self.resting < SILENT_AFTER_S)))
        chosen = chosen[np.argsort(-back_us[chosen], kind="stable")]
        at = self.at[chosen] - self.speed[chosen] * back_us[chosen] / 1e6
        lat, lng = self.network.locate(np.maximum(at, self.network.path_start[self.path[chosen]]))
        return Fixes(chosen, self.now_us - back_us[chosen], lat, lng, self.speed[chosen])
