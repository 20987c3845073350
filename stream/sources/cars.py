"""The vehicles of a simulated live city: columns only; no clock, no I/O.

A vehicle drives along the roads for a few hours, then another one takes its place. Streets and speeds are invented.
"""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import numpy as np

from stream.config.section import BoundingBox
from stream.sources.fleet import Fixes
from stream.sources.live_city import Traffic
from stream.sources.network import RED_LIGHTS_PER_S, RINGS, Network, main_roads, ring_road, site_in

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
        """Paths, and places on their axis, for ``n`` vehicles."""
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
        """Put a new vehicle in the place of each that has driven long enough."""
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
