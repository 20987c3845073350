"""A simulated city: its streets, its timetable, its traffic by place and time (rush hours, jams that move along roads,
incidents), and cars that drive along the roads for a few hours. It represents no real city; nothing was measured.

It lives faster than the clock, whose time its events bear. Only so can a demo show hours of a live map within minutes:
under relation "participation" a worker takes what is in time by the broker's clock, and nothing else. Positions
therefore move faster than the speeds of their events say. Places are kilometres east and north of the middle of the
city, times µs of its clock. Pure, but for the file of :class:`Truth`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np

from dpcore.arrays import FloatArray, IntArray
from stream.config import Config
from stream.config.feed import SPEED_TO_KMH
from stream.config.section import BoundingBox
from stream.messages.message import cell_text
from stream.sources.messages import Messages
from stream.sources.network import (
    BLOCKS,
    CONGESTION_WEEKDAY,
    RED_LIGHTS_PER_S,
    RINGS,
    Fixes,
    Network,
    Site,
    build_network,
    main_roads,
    ring_road,
    site_in,
)
from stream.sources.schedule import Point, Schedule, Stop
from stream.sources.simulate import Simulation, canonical_events, simulated_fleet
from stream.windows import utc_text

LONGEST_DRIVE = timedelta(hours=3, minutes=45)
"""With timeslots of a quarter of an hour a vehicle is in at most sixteen, which last four hours."""

SPEED_MS = np.array([9.0, 10.0, 11.0])
"""Speed of cars on an empty road of each class, m/s (32, 36 and 40 km/h)."""


def traffic_in(domain: BoundingBox, seed: int, start_us: int, timezone: ZoneInfo) -> Traffic:
    """The traffic of the city that a simulation with ``seed`` drives in: jams on four main roads and the outer ring."""
    site = site_in(domain)
    spokes = main_roads(np.random.Generator(np.random.PCG64(seed)), site.radius_km)
    roads = (*spokes[:6:3], ring_road(site.radius_km * RINGS[1]))
    places = np.array([spoke[len(spoke) // 2] for spoke in spokes[1::2]])
    return Traffic(roads, places, start_us, timezone)


class Cars:
    """``vehicles`` cars on ``network``, each with a fix every ``interval`` seconds. A :meth:`step` is ``tick`` seconds.

    Vehicles are numbered: the ones at the start from 0, and every one that takes another's place gets the next number.
    """

    def __init__(
        self,
        network: Network,
        traffic: Traffic,
        domain: BoundingBox,
        vehicles: int,
        rng: np.random.Generator,
        *,
        interval: float,
        tick: float = 15.0,
    ) -> None:
        self.network, self.traffic, self.rng = network, traffic, rng
        self.now_us, self.interval_us, self.tick = traffic.start_us, round(interval * 1e6), min(tick, interval)
        site = site_in(domain)
        middle = [(column[:-1] + column[1:]) / 2 for column in (network.vertex_lat, network.vertex_lng)]
        east, north = (middle[1] - site.lng) * site.km_per_degree[1], (middle[0] - site.lat) * site.km_per_degree[0]
        self._places = np.column_stack([east, north])
        self._lasting = network.segment_factor[:-1] ** 0.25
        self.number = np.arange(vehicles)
        self.next_number = vehicles
        self.path, self.at = self._somewhere(vehicles)
        longest = LONGEST_DRIVE // timedelta(microseconds=1)
        self.ends_us = self.now_us + rng.integers(1, longest, vehicles)
        self.speed = np.full(vehicles, 8.0)
        self.waits = np.zeros(vehicles)
        self.mood = rng.normal(size=vehicles)
        self.phase_us = rng.integers(0, self.interval_us, vehicles)

    def _somewhere(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = self.network.path_end - self.network.path_start
        path = self.rng.choice(len(lengths), n, p=lengths / lengths.sum())
        return path, self.network.path_start[path] + self.rng.random(n) * lengths[path]

    def step(self) -> Fixes:
        """Advance one tick and return the fixes taken in it."""
        self._renew()
        self._drive()
        self.now_us += round(self.tick * 1e6)
        return self._measure()

    def _renew(self) -> None:
        over = np.flatnonzero(self.ends_us <= self.now_us)
        self.number[over] = self.next_number + np.arange(len(over))
        self.next_number += len(over)
        self.path[over], self.at[over] = self._somewhere(len(over))
        self.ends_us[over] += LONGEST_DRIVE // timedelta(microseconds=1)
        self.mood[over] = self.rng.normal(size=len(over))

    def _drive(self) -> None:
        net, rng, tick = self.network, self.rng, self.tick
        factors = self.traffic.factors(self._places, net.segment_class[:-1], self.now_us) * self._lasting
        segment = net.segment(self.at)
        road = net.segment_class[segment]
        self.waits -= tick
        moving = self.waits <= 0
        red = moving & (rng.random(len(road)) < RED_LIGHTS_PER_S[road] * tick)
        usual = (SPEED_MS[road] * factors[segment]) * np.exp(0.15 * self.mood)
        self.speed = np.where(moving & ~red, usual, 0.0)
        self.waits[red] = 5 + 40 * rng.random(int(red.sum()))
        self.at = self.at + self.speed * tick
        over = self.at - net.path_end[self.path]
        home = np.flatnonzero(over > 0)
        self.path[home] = net.path_next[self.path[home]]
        self.at[home] = net.path_start[self.path[home]] + over[home]

    def _measure(self) -> Fixes:
        back_us = (self.now_us - self.phase_us) % self.interval_us
        chosen = np.flatnonzero(back_us < round(self.tick * 1e6))
        chosen = chosen[np.argsort(-back_us[chosen], kind="stable")]
        at = self.at[chosen] - self.speed[chosen] * back_us[chosen] / 1e6
        lat, lng = self.network.locate(np.maximum(at, self.network.path_start[self.path[chosen]]))
        return Fixes(self.number[chosen], self.now_us - back_us[chosen], lat, lng, self.speed[chosen])


HOUR_US = 3_600_000_000
RUSH = 0.15
"""Rush hours slow cars by so much less than they slow buses, which queue at stops."""
JAM_KM, JAM_SPEED = 1.2, 0.45
"""Radius of a moving jam, and the share of the usual speed that is left in its middle."""
JAM_KM_H = 3.0
"""Speed at which a jam moves along its road."""
INCIDENT_KM, INCIDENT_SPEED, INCIDENT_HOURS = 1.8, 0.3, 3.0
"""Radius of an incident, the share of speed that is left throughout it, and how long it lasts."""
EVERY_HOURS = 4.0
"""Time from the begin of an incident to that of the next one."""


@dataclass(frozen=True)
class Incident:
    """One incident: its place (x, y) in km, and its first moment in µs."""

    place: tuple[float, float]
    start_us: int


@dataclass(frozen=True)
class Traffic:
    """The traffic of a city that begins to be watched at ``start_us``.

    ``roads``: corners (n, 2) of the roads along which jams move to and fro, one jam on each. ``places``: (n, 2), where
    incidents happen, one after the other; the first begins ``first_hours`` after the start.
    """

    roads: tuple[FloatArray, ...]
    places: FloatArray
    start_us: int
    timezone: ZoneInfo
    first_hours: float = 1.25

    def incident(self, now_us: int) -> Incident | None:
        """The incident of this moment, if there is one."""
        hours = (now_us - self.start_us) / HOUR_US - self.first_hours
        number = int(hours // EVERY_HOURS)
        if hours < 0 or hours - number * EVERY_HOURS >= INCIDENT_HOURS:
            return None
        x, y = self.places[number % len(self.places)].tolist()
        start_us = self.start_us + round((self.first_hours + number * EVERY_HOURS) * HOUR_US)
        return Incident((x, y), start_us)

    def factors(self, places: FloatArray, road_class: IntArray, now_us: int) -> FloatArray:
        """The share of the free speed that is driven at ``places`` (n, 2) on roads of ``road_class`` (n,)."""
        local = datetime.fromtimestamp(now_us / 1e6, UTC).astimezone(self.timezone)
        hour = local.hour + local.minute / 60 - 0.5
        usual = [np.interp(hour, np.arange(-1, 25), np.pad(row, 1, mode="wrap")) for row in CONGESTION_WEEKDAY]
        factors = 1 - RUSH * (1 - np.array(usual)[road_class])
        for number, road in enumerate(self.roads):
            gone = np.exp(-np.square(_distance(places, self._middle(number, road, now_us)) / JAM_KM))
            factors *= 1 - (1 - JAM_SPEED) * gone
        if (incident := self.incident(now_us)) is not None:
            factors[_distance(places, np.array(incident.place)) < INCIDENT_KM] *= INCIDENT_SPEED
        return factors

    def _middle(self, number: int, road: FloatArray, now_us: int) -> FloatArray:
        """Where the jam of a road is: it goes to and fro between the road's ends."""
        along = np.append(0.0, np.hypot(*np.diff(road, axis=0).T).cumsum())
        gone = (number / len(self.roads)) * along[-1] + (now_us - self.start_us) / HOUR_US * JAM_KM_H
        at = along[-1] - abs(gone % (2 * along[-1]) - along[-1])
        return np.array([np.interp(at, along, column) for column in road.T])


def _distance(places: FloatArray, place: FloatArray) -> FloatArray:
    return np.asarray(np.hypot(*(places - place).T))


LIVES_FOR = timedelta(minutes=15)
"""What one timeslot of the feed stands for."""
_MORNING = datetime(2026, 3, 3, 6, 30)
"""The city's local time when it begins to live: a Tuesday, an hour and a half before the peak of the morning."""
_ROUTES = 120


@dataclass(frozen=True)
class LiveCity:
    """``vehicles`` on the road of the city in the feed's domain, from ``start_us`` (µs UTC) on.

    ``interval``: city's time between two fixes of a vehicle. The clock of the city follows from ``window.slot``, which
    stands for :data:`LIVES_FOR`.
    """

    config: Config
    vehicles: int
    start_us: int
    interval: timedelta = timedelta(minutes=2)
    seed: int = 1

    @property
    def faster(self) -> float:
        """How many seconds of the city pass in one of the clock."""
        return LIVES_FOR / self.config.window.slot

    def clock_us(self, city_us: np.ndarray) -> np.ndarray:
        """The clock's time (µs UTC) when the city's is ``city_us``, (n,)."""
        return self.start_us + np.asarray((city_us - self._begin_us) / self.faster, dtype=np.int64)

    def city_us(self, clock_us: int) -> int:
        """The city's time (µs UTC) at ``clock_us``."""
        return self._begin_us + round((clock_us - self.start_us) * self.faster)

    @property
    def _begin_us(self) -> int:
        return int(_MORNING.replace(tzinfo=ZoneInfo(self.config.feed.timezone)).timestamp()) * 1_000_000

    def traffic(self) -> Traffic:
        """Jams and incidents of the city."""
        feed = self.config.feed
        return traffic_in(feed.domain, self.seed, self._begin_us, ZoneInfo(feed.timezone))

    def messages(self, truth: Truth | None = None) -> Iterator[Messages]:
        """Blocks of a third of a second or so, without end; ``truth`` notes what they hold."""
        feed, rng = self.config.feed, np.random.Generator(np.random.PCG64(self.seed))
        network = build_network(feed.domain, _ROUTES, rng)
        interval = self.interval.total_seconds()
        cars, per_ms = Cars(network, self.traffic(), feed.domain, self.vehicles, rng, interval=interval), 3.6
        unit = SPEED_TO_KMH[feed.speed_unit]
        while True:
            fixes = cars.step()
            if not len(fixes.vehicle):
                continue
            time_us, speeds = self.clock_us(fixes.time), np.round(fixes.speed * per_ms / unit, 2)
            users = [f"car-{number:06d}" for number in fixes.vehicle.tolist()]
            values = canonical_events(users, time_us, fixes.lat, fixes.lng, speeds)
            if truth is not None:
                truth.add(time_us, fixes.lat, fixes.lng, speeds * unit)
            yield Messages(time_us, [user.encode() for user in users], values)


class Truth:
    """What the city knows and releases must not show: events and mean speed by cell, a line of JSON for each window."""

    def __init__(self, city: LiveCity, path: Path) -> None:
        self._city, self._path = city, path
        self._slotting, self._resolution = city.config.slotting, city.config.hexagons.resolution
        self._open: dict[int, dict[int, tuple[int, float]]] = defaultdict(dict)

    def add(self, time_us: np.ndarray, lat: np.ndarray, lng: np.ndarray, kmh: np.ndarray) -> None:
        """Note events, (n,) each, which are not before those that were noted; windows that are over are written."""
        slots = self._slotting.slot_starts(time_us)
        places = zip(lat.tolist(), lng.tolist(), strict=True)
        cells = [h3.latlng_to_cell(*place, self._resolution) for place in places]
        for slot, cell, speed in zip(slots.tolist(), cells, kmh.tolist(), strict=True):
            events, total = self._open[slot].get(cell, (0, 0.0))
            self._open[slot][cell] = events + 1, total + speed
        for slot in [slot for slot in self._open if slot < slots[-1]]:
            self._write(slot, self._open.pop(slot))

    def _write(self, slot: int, cells: dict[int, tuple[int, float]]) -> None:
        means = {cell_text(cell): (events, round(total / events, 3)) for cell, (events, total) in cells.items()}
        line = {"start": utc_text(slot), "cells": means, "incident": self._hit(slot, list(cells))}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _hit(self, slot: int, cells: list[int]) -> list[str] | None:
        """The cells around the incident of this window; None if there is none, or only in a part of the window."""
        city, window = self._city, self._slotting.window(slot)
        city_us = [city.city_us(moment * 1_000_000) for moment in window]
        incidents = [city.traffic().incident(us) for us in city_us]
        if incidents[0] is None or incidents[0] != incidents[1]:
            return None
        site = site_in(city.config.feed.domain)
        xy = np.array([h3.cell_to_latlng(cell) for cell in cells])
        east, north = (xy[:, 1] - site.lng) * site.km_per_degree[1], (xy[:, 0] - site.lat) * site.km_per_degree[0]
        x, y = incidents[0].place
        near = np.hypot(east - x, north - y) < INCIDENT_KM
        return sorted(cell_text(cell) for cell, hit in zip(cells, near.tolist(), strict=True) if hit)


ATTRIBUTION = "An invented city"
_AVENUES = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ivy", "Juniper", "Katsura", "Larch",
    "Maple", "Nutmeg",
    "Oak", "Pine", "Quince", "Rowan", "Spruce", "Thorn", "Ulmo", "Viburnum", "Willow", "Yew", "Zelkova",
)  # fmt: skip
"""Names of avenues from west to east, a block apart; the middle one runs through the middle of the city."""
_MAIN_ROADS = ("Harbour", "Mill", "Castle", "Quarry", "Lantern", "Orchard", "Windmill", "Meadow", "Foundry")
_RING_NAMES = ("Inner Ring", "Outer Ring")


def crossing(site: Site, lat: float, lng: float) -> str:
    """The crossing of the grid's avenues and numbered streets nearest to a place; streets count from the north."""
    block = site.radius_km / BLOCKS
    east, north = (lng - site.lng) * site.km_per_degree[1] / block, (lat - site.lat) * site.km_per_degree[0] / block
    column, row = (min(max(round(blocks), 1 - BLOCKS), BLOCKS - 1) for blocks in (east, north))
    return f"{_AVENUES[column + BLOCKS]} / {_ordinal(BLOCKS - row)}"


def streets(domain: BoundingBox, seed: int, said: str = ATTRIBUTION) -> dict[str, Any]:
    """The streets of the city that a simulation with ``seed`` drives in, as GeoJSON. Deterministic, as its network is.

    ``said``: what the page says about it.
    """
    site, rng = site_in(domain), np.random.Generator(np.random.PCG64(seed))
    roads = [f"{name} Road" for name in _MAIN_ROADS]
    named = [
        *_grid(site),
        *zip(roads, main_roads(rng, site.radius_km), strict=True),
        *((name, ring_road(site.radius_km * share)) for share, name in zip(RINGS, _RING_NAMES, strict=True)),
    ]
    return {"type": "FeatureCollection", "attribution": said, "features": [_feature(site, *one) for one in named]}


def _grid(site: Site) -> Iterator[tuple[str, np.ndarray]]:
    """Avenues and numbered streets as far as the city reaches; those on its edge have no length."""
    block = site.radius_km / BLOCKS
    for number in range(1 - BLOCKS, BLOCKS):
        at = number * block
        half = math.sqrt(site.radius_km**2 - at**2)
        yield f"{_AVENUES[number + BLOCKS]} Avenue", np.array([(at, half), (at, -half)])
        yield f"{_ordinal(BLOCKS - number)} Street", np.array([(-half, at), (half, at)])


def _feature(site: Site, name: str, line: np.ndarray) -> dict[str, Any]:
    """A road through places in kilometres east and north of the middle."""
    lat, lng = site.degrees(line)
    places = np.clip(np.column_stack([lng, lat]), (-180, -90), (180, 90)).round(7)
    shape = {"type": "LineString", "coordinates": places.tolist()}
    return {"type": "Feature", "geometry": shape, "properties": {"name": name}}


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def invented_schedule(simulation: Simulation) -> Schedule:
    """Stops, routes and lines of the simulated fleet. Deterministic, as the fleet is."""
    _, network, _ = simulated_fleet(simulation)
    site = site_in(simulation.feed.domain)
    schedule = Schedule()
    for path in range(0, len(network.path_start), 2):  # the way back of a route runs along the same line
        route = str(path // 2 + 1)
        schedule.routes[route] = route
        along = (network.vertex_at >= network.path_start[path]) & (network.vertex_at <= network.path_end[path])
        corners = zip(network.vertex_lat[along].tolist(), network.vertex_lng[along].tolist(), strict=True)
        schedule.lines[route] = [list(corners)]
        for number, (lat, lng) in enumerate(_stops(network, path)):
            schedule.stops[f"{route}-{number}"] = Stop(crossing(site, lat, lng), lat, lng)
    return schedule


def _stops(network: Network, path: int) -> list[Point]:
    of_path = (network.stop_at > network.path_start[path]) & (network.stop_at <= network.path_end[path])
    lat, lng = network.locate(network.stop_at[of_path])
    return list(zip(lat.tolist(), lng.tolist(), strict=True))
