"""A simulated city that lives faster than the clock, whose time its events bear.

Only so can a demo show hours of a live map within minutes: under relation "participation" a worker takes what is in
time by the broker's clock, and nothing else. Positions therefore move faster than the speeds of their events say.

Traffic of a simulated city by place and time: rush hours, jams that move along roads, and incidents. Pure.

Places are kilometres east and north of the middle of the city, times µs of the city's clock. Nothing here was measured.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.config import Config
from stream.config.feed import SPEED_TO_KMH
from stream.messages.message import cell_text
from stream.sources.cars import Cars, traffic_in
from stream.sources.fleet import CONGESTION_WEEKDAY
from stream.sources.messages import Messages
from stream.sources.network import build_network, site_in
from stream.sources.simulate import canonical_events
from stream.windows import utc_text

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

    def factors(self, places: FloatArray, road_class: npt.NDArray[np.int64], now_us: int) -> FloatArray:
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
