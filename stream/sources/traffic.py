"""Traffic of a simulated city by place and time: rush hours, jams that move along roads, and incidents. Pure.

Places are kilometres east and north of the middle of the city, times µs of the city's clock. Nothing here was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.sources.fleet import CONGESTION_WEEKDAY

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
    """One incident: its place (x, y) in km, and its first and last moment in µs."""

    place: tuple[float, float]
    start_us: int
    end_us: int


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
        return Incident((x, y), start_us, start_us + round(INCIDENT_HOURS * HOUR_US))

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
