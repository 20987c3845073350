"""The timetable of a simulated city: its routes, their lines and stops with invented names. It represents no real city."""

from __future__ import annotations

import math

from stream.sources.network import Network
from stream.sources.schedule import Point, Schedule, Stop
from stream.sources.simulate import Simulation, simulated_fleet

_AVENUES = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ivy", "Juniper", "Katsura", "Larch", "Maple", "Nutmeg",
    "Oak", "Pine", "Quince", "Rowan", "Spruce", "Thorn", "Ulmo", "Viburnum", "Willow", "Yew", "Zelkova",
)  # fmt: skip
"""Names of avenues from west to east; beyond the last they begin anew."""
_BLOCK_KM = 0.8


def invented_schedule(simulation: Simulation) -> Schedule:
    """Stops, routes and lines of the simulated fleet. Deterministic, as the fleet is."""
    _, network, _ = simulated_fleet(simulation)
    schedule = Schedule()
    for path in range(0, len(network.path_start), 2):  # the way back of a route runs along the same line
        route = str(path // 2 + 1)
        schedule.routes[route] = route
        schedule.lines[route] = [_line(network, path)]
        for number, (lat, lng) in enumerate(_stops(network, path)):
            schedule.stops[f"{route}-{number}"] = Stop(_name(network, lat, lng), lat, lng)
    return schedule


def _line(network: Network, path: int) -> list[Point]:
    along = (network.vertex_at >= network.path_start[path]) & (network.vertex_at <= network.path_end[path])
    return list(zip(network.vertex_lat[along].tolist(), network.vertex_lng[along].tolist(), strict=True))


def _stops(network: Network, path: int) -> list[Point]:
    of_path = (network.stop_at > network.path_start[path]) & (network.stop_at <= network.path_end[path])
    lat, lng = network.locate(network.stop_at[of_path])
    return list(zip(lat.tolist(), lng.tolist(), strict=True))


def _name(network: Network, lat: float, lng: float) -> str:
    """The crossing nearest to a place, on a grid of avenues and numbered streets."""
    metres_lat, metres_lng = network.metres_per_degree
    avenue = math.floor((lng - float(network.vertex_lng.min())) * metres_lng / 1000 / _BLOCK_KM)
    street = math.floor((float(network.vertex_lat.max()) - lat) * metres_lat / 1000 / _BLOCK_KM) + 1
    return f"{_AVENUES[avenue % len(_AVENUES)]} / {_ordinal(street)}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
