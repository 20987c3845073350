"""A synthetic live feed: canonical events of a simulated bus fleet, with the faults of real feeds. The seed determines
it.

Streets, timetables and speeds are invented; none of them was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.config.value import ValueConfig
from stream.sources.messages import Messages
from stream.sources.network import Fixes, Fleet, Network, build_network

GARBAGE = ("not-json", "no-position", "not-finite", "outside", "far-future", "long-user")
"""Kinds of invalid messages that the feed sometimes sends."""

LONGEST_DELAY_S = 280.0
_SPEEDS = ValueConfig(upper=65.0)
_EVENT = '{"user":"%s","time":"%sZ","lat":%.6f,"lng":%.6f,"speed":%.2f}'


@dataclass(frozen=True)
class Faults:
    """Shares of faulty fixes, and the GPS error. Late ones arrive up to :data:`LONGEST_DELAY_S` later, out of order."""

    late: float = 0.02
    duplicate: float = 0.005
    garbage: float = 0.0005
    gps_metres: float = 6.0


@dataclass(frozen=True)
class Simulation:
    """Parameters of one synthetic feed."""

    feed: FeedConfig
    vehicles: int
    start_us: int
    seed: int = 1
    duration: timedelta | None = None
    interval: timedelta = timedelta(seconds=30)
    faults: Faults = Faults()
    value: ValueConfig = _SPEEDS

    def __post_init__(self) -> None:
        if self.value.is_speed and self.feed.format != "canonical":
            raise ValueError(
                f"feed.format is {self.feed.format!r}, but the simulator sends canonical events; set it to 'canonical'"
            )
        if not self.value.is_speed and (self.feed.fields is None or self.names != list(self.feed.fields.paths)):
            raise ValueError(
                f"the simulator sends {self.value.name} as field 'value' beside user, time, lat and lng; name these "
                "in [feed.fields]"
            )
        if self.duration is not None and self.duration <= timedelta(0):
            raise ValueError(f"duration {self.duration} has no fixes; give one longer than 0 s, like 3h")
        if not 1 <= self.vehicles <= 10_000_000:
            raise ValueError(f"{self.vehicles} vehicles is not between 1 and 10 000 000")
        if not timedelta(seconds=1) <= self.interval <= timedelta(hours=1):
            raise ValueError(f"interval {self.interval} is not between 1 s and 1 h")

    @property
    def names(self) -> list[str]:
        """Fields of an event, in the order of :attr:`stream.config.feed.FeedFields.paths`."""
        return ["user", "time", "lat", "lng", "speed" if self.value.is_speed else "value"]

    @property
    def routes(self) -> int:
        """Number of routes, about one for twelve vehicles."""
        return min(max(self.vehicles // 12, 2), 120)


@dataclass(frozen=True)
class _Arrivals:
    """Fixes as they are sent. ``garbage``: -1, or an index into :data:`GARBAGE`."""

    due: np.ndarray
    vehicle: np.ndarray
    time: np.ndarray
    lat: np.ndarray
    lng: np.ndarray
    speed: np.ndarray
    garbage: np.ndarray

    def take(self, index: np.ndarray) -> _Arrivals:
        return _Arrivals(*(column[index] for column in self.__dict__.values()))

    def followed_by(self, other: _Arrivals) -> _Arrivals:
        return _Arrivals(*map(np.concatenate, zip(self.__dict__.values(), other.__dict__.values(), strict=True)))


def simulated_fleet(simulation: Simulation) -> tuple[Fleet, Network, np.random.Generator]:
    """The fleet at its start, its streets, and the generator that both drew from and that goes on with the fleet."""
    rng = np.random.Generator(np.random.PCG64(simulation.seed))
    network = build_network(simulation.feed.domain, simulation.routes, rng)
    fleet = Fleet(
        network,
        simulation.vehicles,
        simulation.start_us,
        ZoneInfo(simulation.feed.timezone),
        rng,
        interval=simulation.interval.total_seconds(),
    )
    return fleet, network, rng


def simulate(simulation: Simulation) -> Iterator[Messages]:
    """Messages of ``simulation`` in blocks of a few seconds of simulated time, until its duration is over."""
    fleet, network, rng = simulated_fleet(simulation)
    write = _Writer(simulation)
    end = (
        None if simulation.duration is None else simulation.start_us + simulation.duration // timedelta(microseconds=1)
    )
    waiting: _Arrivals | None = None
    while end is None or fleet.now_us < end:
        fixes = fleet.step()
        arriving = _disturb(fixes, simulation.faults, network.metres_per_degree, rng)
        if end is not None:
            arriving = arriving.take(arriving.time < end)
        waiting = arriving if waiting is None else waiting.followed_by(arriving)
        order = np.argsort(waiting.due, kind="stable")
        n = int(np.searchsorted(waiting.due[order], fleet.now_us, side="right"))
        if n:
            yield write(waiting.take(order[:n]))
        waiting = waiting.take(order[n:])
    if waiting is not None and len(waiting.due):
        yield write(waiting)


def _disturb(fixes: Fixes, faults: Faults, per_degree: tuple[float, float], rng: np.random.Generator) -> _Arrivals:
    """Add GPS noise (one fix in a hundred is off by a street), late arrivals, repeated and invalid messages."""
    n = len(fixes.vehicle)
    spread = faults.gps_metres * np.where(rng.random(n) < 0.01, 12.0, 1.0)
    lat = fixes.lat + rng.normal(size=n) * spread / per_degree[0]
    lng = fixes.lng + rng.normal(size=n) * spread / per_degree[1]
    speed = np.where(fixes.speed > 0, np.maximum(fixes.speed + rng.normal(0, 0.3, n), 0.0), 0.0)
    delay = np.where(rng.random(n) < faults.late, 15 + 60 * rng.standard_exponential(n), rng.uniform(0.1, 2.0, n)).clip(
        0, LONGEST_DELAY_S
    )
    kind = np.where(rng.random(n) < faults.garbage, rng.integers(0, len(GARBAGE), n), -1)
    due = fixes.time + np.round(delay * 1e6).astype(np.int64)
    arrivals = _Arrivals(due, fixes.vehicle, fixes.time, lat, lng, speed, kind)
    again = np.flatnonzero(rng.random(n) < faults.duplicate)
    if len(again) == 0:
        return arrivals
    repeats = arrivals.take(again)
    repeats.due[:] += rng.integers(1_000_000, 20_000_000, len(again))
    return arrivals.followed_by(repeats)


class Sensors:
    """Another value than a speed: a public field over the map, highest in its middle and at rush hours, read with
    errors.

    Every vehicle's sensor is off by a constant of its own. The field is invented, between the bounds of the value.
    """

    def __init__(self, simulation: Simulation) -> None:
        rng = np.random.Generator(np.random.PCG64([simulation.seed, 1]))
        self._measured, self._box = simulation.value, simulation.feed.domain
        self._zone = ZoneInfo(simulation.feed.timezone)
        self._off = rng.normal(0, 0.03, simulation.vehicles)
        self._rng = rng

    def share(self, time_us: np.ndarray, lat: np.ndarray, lng: np.ndarray) -> np.ndarray:
        """The field as a share of the value's range, (n,)."""
        box = self._box
        north = (lat - (box.south + box.north) / 2) / (box.north - box.south)
        east = (lng - (box.west + box.unrolled_east) / 2) / (box.unrolled_east - box.west)
        shift = datetime.fromtimestamp(float(time_us[0]) / 1e6, self._zone).utcoffset() or timedelta(0)
        hour = (time_us / 3.6e9 + shift.total_seconds() / 3600) % 24
        rush = np.exp(-((hour - 8) ** 2) / 6) + np.exp(-((hour - 17.5) ** 2) / 8)
        middle = np.exp(-(north**2 + east**2) / 0.02)
        return np.asarray(0.12 + 0.25 * middle + 0.3 * rush * (0.3 + middle))

    def read(self, arrivals: _Arrivals) -> np.ndarray:
        """What the sensors of these fixes say, in the unit of the value, (n,)."""
        share = self.share(arrivals.time, arrivals.lat, arrivals.lng) + self._off[arrivals.vehicle]
        noisy = share + self._rng.normal(0, 0.02, len(share))
        value = self._measured
        return np.asarray(value.lower + (value.upper - value.lower) * np.clip(noisy, 0.0, 1.0))


class _Writer:
    """The columns as JSON: canonical, with speeds in the unit that the feed declares, or with another value."""

    def __init__(self, simulation: Simulation) -> None:
        width = max(len(str(simulation.vehicles - 1)), 4)
        self.names = [f"bus-{index:0{width}d}" for index in range(simulation.vehicles)]
        self.keys: list[bytes | None] = [name.encode() for name in self.names]
        self.per_ms = 3.6 / SPEED_TO_KMH[simulation.feed.speed_unit]
        self.measured = simulation.names[-1]
        self.sensors = None if simulation.value.is_speed else Sensors(simulation)

    def __call__(self, arrivals: _Arrivals) -> Messages:
        names, vehicles = self.names, arrivals.vehicle.tolist()
        users, speeds = [names[vehicle] for vehicle in vehicles], arrivals.speed * self.per_ms
        measured = speeds if self.sensors is None else self.sensors.read(arrivals)
        values = canonical_events(users, arrivals.time, arrivals.lat, arrivals.lng, measured)
        if self.sensors is not None:
            values = [value.replace(b'"speed":', b'"value":') for value in values]
        for index in np.flatnonzero(arrivals.garbage >= 0).tolist():
            values[index] = _garbage(
                GARBAGE[arrivals.garbage[index]], values[index], names[vehicles[index]], self.measured
            )
        return Messages(arrivals.due, [self.keys[v] for v in vehicles], values)


def canonical_events(
    users: list[str], time_us: np.ndarray, lat: np.ndarray, lng: np.ndarray, speed: np.ndarray
) -> list[bytes]:
    """Canonical JSON of each event, (n,): degrees, and speeds in the unit that the feed declares."""
    times = np.datetime_as_string((time_us // 1000).view("M8[ms]"), unit="ms").tolist()
    rows = zip(users, times, lat.tolist(), lng.tolist(), speed.tolist(), strict=True)
    return [(_EVENT % row).encode() for row in rows]


def _garbage(kind: str, value: bytes, name: str, measured: str) -> bytes:
    last = f'"{measured}":'.encode()
    match kind:
        case "not-json":
            return value[: len(value) // 2]
        case "no-position":
            return value[: value.index(b',"lat"')] + b"}"
        case "not-finite":
            return value[: value.index(last)] + last + b"NaN}"
        case "outside":
            return value[: value.index(b',"lat"')] + b',"lat":0.0,"lng":0.0,' + last + b"0.0}"
        case "far-future":
            return value.replace(b'"time":"2', b'"time":"3', 1)
        case _:
            return value.replace(name.encode(), name.encode() * 200, 1)
