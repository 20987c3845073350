"""Generated cities of several kinds, as rows of the service: feeds that no constant was chosen for. Seeded, no clock.

Vehicles drive straight, turn at random and turn back at the edge of a square. The kind says how fast traffic is where
and when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.config.section import BoundingBox
from stream.config.value import QUANTUM
from stream.sources.network import Fleet, build_network
from stream.storage.row_store import ROW

Rows = npt.NDArray[np.void]
Traffic = Callable[[FloatArray, FloatArray, float], FloatArray]
"""Usual speed in km/h at (x, y) in km from the south-west corner, (V,) each, at an hour of the day."""

SOUTH, WEST = 30.1, -98.0
KM_PER_DEGREE = 111.2
TIMEZONE = ZoneInfo("America/Chicago")
START = int(datetime(2026, 3, 3, 7, tzinfo=TIMEZONE).timestamp())
"""A Tuesday, 07:00 in Austin."""


@dataclass(frozen=True)
class City:
    """``vehicles`` in a square of ``side_km`` for ``hours``, a fix every ``interval`` seconds. ``spread``: standard
    deviation of one speed as a share of the usual one; ``stops``: share of fixes at rest; ``upper``: U in km/h.
    """

    vehicles: int
    hours: int
    interval: float
    side_km: float
    traffic: Traffic
    spread: float
    stops: float
    upper: float


def _rough(x: FloatArray, y: FloatArray) -> FloatArray:
    """A smooth field of mean about 0 and standard deviation about 1."""
    return np.asarray(np.sin(1.1 * x + 0.3 * y) + np.cos(0.7 * y - 0.5 * x) + np.sin(0.23 * x - 0.31 * y + 1)) * 0.8


def _slow(x: FloatArray, y: FloatArray, hour: float) -> FloatArray:
    return np.asarray(16 + 4 * _rough(x, y) - 3 * np.exp(-(((hour - 8) / 1.5) ** 2)))


def _fast(x: FloatArray, y: FloatArray, hour: float) -> FloatArray:
    return np.asarray(72 + 12 * _rough(x / 2, y / 2))


def _two(x: FloatArray, y: FloatArray, hour: float) -> FloatArray:
    motorway = (np.abs(x - y) < 2.5) | (np.abs(x + y - 25) < 2.5)
    return np.asarray(np.where(motorway, 80.0, 22.0) + 2 * _rough(x, y))


def _waves(x: FloatArray, y: FloatArray, hour: float) -> FloatArray:
    return np.asarray(35 + 20 * np.sin(2 * np.pi * (x / 12 - hour / 3)))


KINDS = {
    "dense and slow": City(1_200, 3, 60.0, 12.0, _slow, 0.35, 0.35, 65.0),
    "sparse and fast": City(60, 5, 120.0, 40.0, _fast, 0.15, 0.03, 110.0),
    "two speeds": City(300, 10, 120.0, 25.0, _two, 0.2, 0.1, 110.0),
    "one-way waves": City(300, 10, 120.0, 25.0, _waves, 0.2, 0.1, 80.0),
}
"""Every kind by its name."""


def rows_of(kind: str, seed: int) -> Rows:
    """Simulate a city of this kind and return all fixes."""
    city, rng = KINDS[kind], np.random.default_rng(seed)
    at, heading = rng.uniform(0, city.side_km, (city.vehicles, 2)), rng.uniform(0, 2 * np.pi, city.vehicles)
    driver, shift = rng.normal(0, 0.08, city.vehicles), rng.uniform(0, city.interval, city.vehicles)
    parts = []
    for step in range(int(city.hours * 3600 / city.interval)):
        usual = city.traffic(at[:, 0], at[:, 1], 7 + step * city.interval / 3600)
        speed = usual * (1 + driver + city.spread * rng.normal(size=city.vehicles))
        speed = np.where(rng.random(city.vehicles) < city.stops, 0.0, np.maximum(speed, 0.0))
        parts.append((np.arange(city.vehicles), START + step * city.interval + shift, at.copy(), speed))
        heading = np.where(rng.random(city.vehicles) < 0.2, heading + rng.normal(0, 1.2, city.vehicles), heading)
        at = at + (speed * city.interval / 3600)[:, None] * np.column_stack([np.cos(heading), np.sin(heading)])
        outside = np.any((at < 0) | (at > city.side_km), axis=1)
        at, heading = np.clip(at, 0, city.side_km), np.where(outside, heading + np.pi, heading)
    vehicle, time, where, speed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    narrow = np.cos(np.radians(SOUTH))
    return _rows(vehicle, time, SOUTH + where[:, 1] / KM_PER_DEGREE, WEST + where[:, 0] / KM_PER_DEGREE / narrow, speed)


def bus_fleet(vehicles: int, start: int, seed: int, *, interval: float, tick: float) -> Fleet:
    """The simulator's buses from ``start`` (epoch seconds) on, a line for each twelve, with a fix every ``interval``
    seconds each."""
    rng = np.random.default_rng(seed)
    box = BoundingBox(south=SOUTH, west=WEST, north=SOUTH + 0.5, east=WEST + 0.5)
    network = build_network(box, max(2, vehicles // 12), rng)
    return Fleet(network, vehicles, start * 1_000_000, TIMEZONE, rng, interval=interval, tick=tick)


def timetable(vehicles: int, hours: int, seed: int) -> Rows:
    """All fixes of a bus fleet of the simulator, one a minute."""
    fleet = bus_fleet(vehicles, START, seed, interval=60.0, tick=10.0)
    steps = [fleet.step() for _ in range(hours * 360)]
    vehicle, time, lat, lng, speed = (
        np.concatenate([getattr(fixes, name) for fixes in steps]) for name in ("vehicle", "time", "lat", "lng", "speed")
    )
    return _rows(vehicle, time / 1e6, lat, lng, speed * 3.6)


def _rows(
    vehicle: npt.NDArray[np.int64], time: FloatArray, lat: FloatArray, lng: FloatArray, speed: FloatArray
) -> Rows:
    """Rows in H3 cells of resolution 7, as the service stores them."""
    rows = np.zeros(len(vehicle), dtype=ROW)
    rows["cell"] = [h3.latlng_to_cell(*place, 7) for place in zip(lat.tolist(), lng.tolist(), strict=True)]
    rows["user"], rows["time"] = vehicle + 1, np.round(time * 1e6)
    rows["lat"], rows["lng"] = np.round(lat * 1e7), np.round(lng * 1e7)
    rows["value"] = np.round(speed / QUANTUM)
    return rows
