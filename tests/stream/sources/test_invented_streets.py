"""The street map of the simulated city shows the roads on which its vehicles drive, by the names that its stops
have."""

from __future__ import annotations

from pathlib import Path

import pytest
import shapely
from pyogrio.raw import read

from stream.config.feed import FeedConfig
from stream.config.section import BoundingBox
from stream.sources.invented_schedule import invented_schedule
from stream.sources.invented_streets import crossing, street_map
from stream.sources.network import site_in
from stream.sources.simulate import Simulation, simulated_fleet
from stream.tiles.vector_tile import Feature, Point
from tests.stream.sources.recordings import AUSTIN
from tests.support.counting_calls import calls_in
from tests.support.mercator import in_metres

DOMAIN = BoundingBox.model_validate(AUSTIN)
FEED = FeedConfig(name="bus", topic="bus", timezone="America/Chicago", domain=DOMAIN)
SIMULATION = Simulation(FEED, 300, 1_710_738_000_000_000)


def roads_of(path: Path, domain: BoundingBox, seed: int = 1) -> dict[str, shapely.Geometry]:
    """The roads by name, in metres on the map of the world, at the closest zoom."""
    path.write_bytes(street_map(domain, seed))
    meta, _, shapes, columns = read(path, layer="roads")
    names = columns[list(meta["fields"]).index("name")]
    lines = shapely.from_wkb(shapes)
    return {name: shapely.union_all(lines[names == name]) for name in set(names)}


def test_every_vehicle_drives_on_a_road_of_the_map(tmp_path: Path) -> None:
    roads = shapely.union_all(list(roads_of(tmp_path / "city.pmtiles", DOMAIN).values()))
    shapely.prepare(roads)
    _, network, _ = simulated_fleet(SIMULATION)
    driven = in_metres(Feature("line", list(zip(network.vertex_lat, network.vertex_lng, strict=True))))
    assert len(driven) > 1_000
    assert shapely.distance(roads, shapely.points(driven)).max() < 5.0
    other = shapely.union_all(list(roads_of(tmp_path / "other.pmtiles", DOMAIN, seed=2).values()))
    assert shapely.distance(other, shapely.points(driven)).max() > 200.0, "another seed has other main roads"


def test_a_stop_has_the_name_of_the_crossing_that_the_map_shows_nearest_to_it(tmp_path: Path) -> None:
    roads = roads_of(tmp_path / "city.pmtiles", DOMAIN)
    avenues = [name for name in roads if name.endswith(" Avenue")]
    streets = [name for name in roads if name.endswith(" Street")]
    assert (len(avenues), len(streets)) == (23, 23)
    site, near = site_in(DOMAIN), 0
    for stop in list(invented_schedule(SIMULATION).stops.values())[::7]:
        point: Point = in_metres(Feature("point", [(stop.lat, stop.lng)]))[0]
        if max(abs(stop.lat - site.lat), abs(stop.lng - site.lng)) < 0.05:  # where both run past
            nearest = [
                min(names, key=lambda name: roads[name].distance(shapely.Point(point))) for names in (avenues, streets)
            ]
            assert stop.name == " / ".join(name.partition(" ")[0] for name in nearest)
            near += 1
    assert near > 20
    assert crossing(site, site.lat, site.lng) == "Maple / 12th"
    assert crossing(site, 90.0, -180.0) == "Birch / 1st"


def test_river_parks_and_their_names_are_there(tmp_path: Path) -> None:
    path = tmp_path / "city.pmtiles"
    path.write_bytes(street_map(DOMAIN, 1))
    names = {layer: read(path, layer=layer) for layer in ("water", "landuse", "places")}
    assert "Hexwater" in names["water"][3][list(names["water"][0]["fields"]).index("name")]
    assert len(names["landuse"][2]) >= 3
    assert "Veil Park" in names["places"][3][list(names["places"][0]["fields"]).index("name")]
    assert b"An invented city" in path.read_bytes()


@pytest.mark.parametrize(
    ("south", "west", "north", "east"),
    [
        (-1, -1, 1, 1),
        (69, 18, 70, 20),
        (-90, -180, 90, 180),
        (89.98, -180, 90, 180),
        (85, 179.9, 85.4, 180),
        (10.0, 10.0, 10.000001, 10.000001),
    ],
    ids=["equator", "arctic", "world", "pole", "edge", "tiny"],
)
def test_any_domain_has_a_small_map_that_takes_little_work(
    tmp_path: Path, south: float, west: float, north: float, east: float
) -> None:
    domain = BoundingBox(south=south, west=west, north=north, east=east)
    made = list[bytes]()
    assert calls_in(lambda: made.append(street_map(domain, 1))) < 500_000
    (archive,) = made
    assert archive == street_map(domain, 1)
    assert len(archive) < 200_000
    (tmp_path / "city.pmtiles").write_bytes(archive)
    meta, _, _, columns = read(tmp_path / "city.pmtiles", layer="places")
    assert {*columns[list(meta["fields"]).index("name")]} <= {"Veil Park", "Noise Common", "Ledger Hill"}
