"""The street map of a simulated city: its grid, main and ring roads, river and parks with invented names. It represents
no real city.

Vehicles drive on these roads (:mod:`stream.sources.network`). Layers and tags are those of Protomaps' basemaps.
"""

from __future__ import annotations

import math

import numpy as np

from stream.config.section import BoundingBox
from stream.sources.network import BLOCKS, RINGS, Site, main_roads, ring_road, site_in
from stream.tiles.archive import archive_of
from stream.tiles.vector_tile import Feature, Point

ATTRIBUTION = "An invented city"
_EQUATOR_KM = 40_075.0
_CLOSEST, _CLOSER = 16, 6
"""Closest zoom of any city, and zooms between the farthest and the closest of one."""
_GRID_HIDDEN = 3
"""Zooms at which the streets of the grid would lie too close together to be drawn."""
_AVENUES = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ivy", "Juniper", "Katsura", "Larch",
    "Maple", "Nutmeg",
    "Oak", "Pine", "Quince", "Rowan", "Spruce", "Thorn", "Ulmo", "Viburnum", "Willow", "Yew", "Zelkova",
)  # fmt: skip
"""Names of avenues from west to east, a block apart; the middle one runs through the middle of the city."""
_MAIN_ROADS = ("Harbour", "Mill", "Castle", "Quarry", "Lantern", "Orchard", "Windmill", "Meadow", "Foundry")
_RING_NAMES = ("Inner Ring", "Outer Ring")
_RIVER = "Hexwater"
_PARKS = {"Veil Park": (2, 2, 4, 4), "Noise Common": (-6, -2, -4, 0), "Ledger Hill": (-3, 6, -1, 8)}
"""West, south, east and north edge in blocks from the middle."""


def crossing(site: Site, lat: float, lng: float) -> str:
    """The crossing of the grid's avenues and numbered streets that is nearest to a place; streets are counted from the
    north."""
    block = site.radius_km / BLOCKS
    east, north = (lng - site.lng) * site.km_per_degree[1] / block, (lat - site.lat) * site.km_per_degree[0] / block
    column, row = (min(max(round(blocks), 1 - BLOCKS), BLOCKS - 1) for blocks in (east, north))
    return f"{_AVENUES[column + BLOCKS]} / {_ordinal(BLOCKS - row)}"


def street_map(domain: BoundingBox, seed: int, said: str = ATTRIBUTION) -> bytes:
    """The archive of the city that a simulation with ``seed`` drives in (PMTiles). Deterministic, as its network is.

    ``said``: what the page says about it.
    """
    site, rng = site_in(domain), np.random.Generator(np.random.PCG64(seed))
    zooms = _zooms(site)
    roads = [*_grid(site, zooms[0] + _GRID_HIDDEN), *_main_roads(site, rng), *_ring_roads(site)]
    layers = {"landuse": _parks(site), "water": _river(site), "roads": roads, "places": _park_names(site)}
    return archive_of(layers, zooms, said)


def _zooms(site: Site) -> range:
    """Zoom levels, from one at which the city is small to one at which a tile is about a third of its radius wide."""
    across = _EQUATOR_KM * math.cos(math.radians(site.lat)) / (site.radius_km / 3)
    closest = min(max(math.floor(math.log2(across)), 0), _CLOSEST)
    return range(max(closest - _CLOSER, 0), closest + 1)


def _grid(site: Site, min_zoom: int) -> list[Feature]:
    """Avenues and numbered streets as far as the city reaches; those on its edge have no length."""
    block, streets = site.radius_km / BLOCKS, []
    for number in range(1 - BLOCKS, BLOCKS):
        at = number * block
        half = math.sqrt(site.radius_km**2 - at**2)
        for line, name in (
            (((at, half), (at, -half)), f"{_AVENUES[number + BLOCKS]} Avenue"),
            (((-half, at), (half, at)), f"{_ordinal(BLOCKS - number)} Street"),
        ):
            streets.append(_road(site, np.array(line), name, "minor_road", min_zoom))
    return streets


def _main_roads(site: Site, rng: np.random.Generator) -> list[Feature]:
    lines = zip(main_roads(rng, site.radius_km), _MAIN_ROADS, strict=True)
    return [_road(site, line, f"{name} Road", "major_road") for line, name in lines]


def _ring_roads(site: Site) -> list[Feature]:
    return [
        _road(site, ring_road(site.radius_km * share), name, "highway")
        for share, name in zip(RINGS, _RING_NAMES, strict=True)
    ]


def _road(site: Site, line: np.ndarray, name: str, kind: str, min_zoom: int = 0) -> Feature:
    return Feature("line", _places(site, line), {"name": name, "kind": kind}, min_zoom)


def _river(site: Site) -> list[Feature]:
    """A band from the western to the eastern edge, with its middle line, along which its name is written."""
    x = np.linspace(-1.1, 1.1, 45) * site.radius_km
    middle = (-0.28 + 0.06 * np.sin(x / site.radius_km * 5)) * site.radius_km
    half = site.radius_km / 60
    banks = np.vstack([np.column_stack([x, middle + half]), np.column_stack([x, middle - half])[::-1]])
    tags = {"name": _RIVER, "kind": "river"}
    line = Feature("line", _places(site, np.column_stack([x, middle])), tags)
    return [Feature("polygon", _places(site, banks), {"kind": "river"}), line]


def _parks(site: Site) -> list[Feature]:
    corners = ((0, 1), (2, 1), (2, 3), (0, 3))
    outlines = (np.array([(park[x], park[y]) for x, y in corners]) for park in _PARKS.values())
    return [
        Feature("polygon", _places(site, outline * site.radius_km / BLOCKS), {"kind": "park"}) for outline in outlines
    ]


def _park_names(site: Site) -> list[Feature]:
    middles = {
        name: np.array([[west + east, south + north]]) / 2 for name, (west, south, east, north) in _PARKS.items()
    }
    return [
        Feature("point", _places(site, at * site.radius_km / BLOCKS), {"name": name, "kind": "park"})
        for name, at in middles.items()
    ]


def _places(site: Site, xy: np.ndarray) -> list[Point]:
    """Latitude and longitude of places in kilometres east and north of the middle."""
    lat, lng = site.degrees(xy)
    return list(zip(lat.tolist(), lng.tolist(), strict=True))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
