"""The timetable of a simulated city: its routes, their lines and stops with invented names. It represents no real city.

The streets of a simulated city: its grid, main and ring roads with invented names. It represents no real city.

Vehicles drive on these roads (:mod:`stream.sources.network`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from stream.config.section import BoundingBox
from stream.sources.network import BLOCKS, RINGS, Network, Site, main_roads, ring_road, site_in
from stream.sources.schedule import Point, Schedule, Stop
from stream.sources.simulate import Simulation, simulated_fleet

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
    named = [*_grid(site), *_main_roads(site, rng), *_ring_roads(site)]
    return {"type": "FeatureCollection", "attribution": said, "features": [_feature(site, *one) for one in named]}


def _grid(site: Site) -> Iterator[tuple[str, np.ndarray]]:
    """Avenues and numbered streets as far as the city reaches; those on its edge have no length."""
    block = site.radius_km / BLOCKS
    for number in range(1 - BLOCKS, BLOCKS):
        at = number * block
        half = math.sqrt(site.radius_km**2 - at**2)
        yield f"{_AVENUES[number + BLOCKS]} Avenue", np.array([(at, half), (at, -half)])
        yield f"{_ordinal(BLOCKS - number)} Street", np.array([(-half, at), (half, at)])


def _main_roads(site: Site, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    lines = zip(main_roads(rng, site.radius_km), _MAIN_ROADS, strict=True)
    return ((f"{name} Road", line) for line, name in lines)


def _ring_roads(site: Site) -> Iterator[tuple[str, np.ndarray]]:
    return ((name, ring_road(site.radius_km * share)) for share, name in zip(RINGS, _RING_NAMES, strict=True))


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
