"""A simulated fleet as an agency publishes it: VehiclePositions at an address on this machine, for demos and tests.

Like many feeds it leaves speeds out for some vehicles, repeats a vehicle's last position until there is a newer one,
and drops vehicles that have been silent for ten minutes. Streets, timetables and speeds are invented; the seed
determines them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
from aiohttp import web
from google.transit import gtfs_realtime_pb2

from stream.http_server import BoundedRunner, serve_until
from stream.local import LOOPBACK
from stream.sources.simulate import VEHICLE_POSITIONS, Simulation, simulated_fleet

_CONNECTIONS, _IDLE_SECONDS = 64, 15.0
_SILENT_US = 600_000_000
_WITHOUT_SPEED = 3
"""Every third vehicle reports no speed."""


class SimulatedAgency:
    """The newest position of every vehicle of a simulated fleet, as a snapshot of GTFS-realtime."""

    def __init__(self, simulation: Simulation) -> None:
        self._fleet, *_ = simulated_fleet(simulation)
        self._time = np.zeros(simulation.vehicles, dtype=np.int64)
        self._place = np.zeros((3, simulation.vehicles))
        """Latitude, longitude (degrees) and speed (m/s) of each vehicle."""

    def snapshot(self, now_us: int) -> bytes:
        """The feed at ``now_us`` (µs UTC), which must not be before that of the call before."""
        while self._fleet.now_us + round(self._fleet.tick * 1e6) <= now_us:
            fixes = self._fleet.step()
            self._time[fixes.vehicle] = fixes.time
            self._place[:, fixes.vehicle] = fixes.lat, fixes.lng, fixes.speed
        message = gtfs_realtime_pb2.FeedMessage()
        message.header.gtfs_realtime_version = "2.0"
        message.header.timestamp = now_us // 1_000_000
        for vehicle in np.flatnonzero(self._time > now_us - _SILENT_US).tolist():
            position = message.entity.add(id=str(vehicle)).vehicle
            position.vehicle.id = f"bus-{vehicle:04d}"
            position.timestamp = int(self._time[vehicle]) // 1_000_000
            position.position.latitude, position.position.longitude = self._place[:2, vehicle].tolist()
            if vehicle % _WITHOUT_SPEED:
                position.position.speed = float(self._place[2, vehicle])
        body: bytes = message.SerializeToString()
        return body


def simulated_clock(start_us: int, pace: float) -> Callable[[], int]:
    """A clock (µs UTC) that begins at ``start_us``, runs ``pace`` times as fast, never beyond the present."""
    began = time.time_ns() // 1000

    def now_us() -> int:
        present = time.time_ns() // 1000
        return min(present, start_us + round((present - began) * pace))

    return now_us


async def serve_agency(agency: SimulatedAgency, clock: Callable[[], int], port: int, stopping: asyncio.Event) -> None:
    """Answer at ``http://127.0.0.1:port`` + :data:`VEHICLE_POSITIONS` until ``stopping`` is set. Raises
    :class:`OSError` if it cannot listen."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=agency.snapshot(clock()), content_type="application/x-protobuf")

    application = web.Application()
    application.router.add_get(VEHICLE_POSITIONS, answer)
    await serve_until(stopping, BoundedRunner(application, _CONNECTIONS, _IDLE_SECONDS), (LOOPBACK, port))
