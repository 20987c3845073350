"""A synthetic bus fleet in motion: timetables, road speeds by class and hour, stops. Columns only; no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np

from stream.sources.network import FREE_SPEED_MS, RED_LIGHTS_PER_S, Network

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
