"""The timetable of a simulated city: its routes, their lines and stops with invented names. It represents no real
city."""

from __future__ import annotations

from stream.sources.invented_streets import crossing
from stream.sources.network import Network, site_in
from stream.sources.schedule import Point, Schedule, Stop
from stream.sources.simulate import Simulation, simulated_fleet


def invented_schedule(simulation: Simulation) -> Schedule:
    """Stops, routes and lines of the simulated fleet. Deterministic, as the fleet is."""
    _, network, _ = simulated_fleet(simulation)
    site = site_in(simulation.feed.domain)
    schedule = Schedule()
    for path in range(0, len(network.path_start), 2):  # the way back of a route runs along the same line
        route = str(path // 2 + 1)
        schedule.routes[route] = route
        schedule.lines[route] = [_line(network, path)]
        for number, (lat, lng) in enumerate(_stops(network, path)):
            schedule.stops[f"{route}-{number}"] = Stop(crossing(site, lat, lng), lat, lng)
    return schedule


def _line(network: Network, path: int) -> list[Point]:
    along = (network.vertex_at >= network.path_start[path]) & (network.vertex_at <= network.path_end[path])
    return list(zip(network.vertex_lat[along].tolist(), network.vertex_lng[along].tolist(), strict=True))


def _stops(network: Network, path: int) -> list[Point]:
    of_path = (network.stop_at > network.path_start[path]) & (network.stop_at <= network.path_end[path])
    lat, lng = network.locate(network.stop_at[of_path])
    return list(zip(lat.tolist(), lng.tolist(), strict=True))
