"""The streets of the simulated city are the roads on which its vehicles drive, by the names that its stops have."""

import json
from collections import defaultdict

import numpy as np
import pytest
import shapely

from stream.config.feed import FeedConfig
from stream.config.section import BoundingBox
from stream.serve.city.city import read_streets
from stream.sources.live_city import crossing, invented_schedule, streets
from stream.sources.network import site_in
from stream.sources.simulate import Simulation, simulated_fleet
from tests.stream.sources.recordings import AUSTIN

DOMAIN = BoundingBox.model_validate(AUSTIN)
FEED = FeedConfig(name="bus", topic="bus", timezone="America/Chicago", domain=DOMAIN)
SIMULATION = Simulation(FEED, 300, 1_710_738_000_000_000)
SITE = site_in(DOMAIN)


def in_metres(lat: np.ndarray, lng: np.ndarray) -> np.ndarray:
    """Metres east and north of the middle of the city, (n, 2)."""
    north, east = (lat - SITE.lat) * SITE.km_per_degree[0], (lng - SITE.lng) * SITE.km_per_degree[1]
    return np.column_stack([east, north]) * 1000


def roads_of(seed: int = 1) -> dict[str, shapely.Geometry]:
    """The roads by name, in metres."""
    lines = defaultdict(list)
    for feature in streets(DOMAIN, seed)["features"]:
        at = np.array(feature["geometry"]["coordinates"])
        lines[feature["properties"]["name"]].append(shapely.LineString(in_metres(at[:, 1], at[:, 0])))
    return {name: shapely.union_all(own) for name, own in lines.items()}


def test_every_vehicle_drives_on_a_road_of_the_map():
    roads = shapely.union_all(list(roads_of().values()))
    shapely.prepare(roads)
    _, network, _ = simulated_fleet(SIMULATION)
    driven = shapely.points(in_metres(network.vertex_lat, network.vertex_lng))
    assert len(driven) > 1_000
    assert shapely.distance(roads, driven).max() < 5.0
    other = shapely.union_all(list(roads_of(seed=2).values()))
    assert shapely.distance(other, driven).max() > 200.0, "another seed has other main roads"


def test_a_stop_has_the_name_of_the_crossing_that_the_map_shows_nearest_to_it():
    roads = roads_of()
    avenues = [name for name in roads if name.endswith(" Avenue")]
    numbered = [name for name in roads if name.endswith(" Street")]
    assert (len(avenues), len(numbered)) == (23, 23)
    near = 0
    for stop in list(invented_schedule(SIMULATION).stops.values())[::7]:
        (point,) = shapely.points(in_metres(np.array([stop.lat]), np.array([stop.lng])))
        if max(abs(stop.lat - SITE.lat), abs(stop.lng - SITE.lng)) < 0.05:  # where both run past
            nearest = [min(names, key=lambda name: roads[name].distance(point)) for names in (avenues, numbered)]
            assert stop.name == " / ".join(name.partition(" ")[0] for name in nearest)
            near += 1
    assert near > 20
    assert crossing(SITE, SITE.lat, SITE.lng) == "Maple / 12th"
    assert crossing(SITE, 90.0, -180.0) == "Birch / 1st"


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
def test_any_domain_has_streets_that_the_service_accepts_with_their_names(tmp_path, south, west, north, east):
    domain = BoundingBox(south=south, west=west, north=north, east=east)
    made = json.dumps(streets(domain, 1))
    assert made == json.dumps(streets(domain, 1))
    assert len(made) < 200_000
    (tmp_path / "city.geojson").write_text(made)
    read = read_streets(tmp_path / "city.geojson")
    assert read.attribution == "An invented city"
    assert {"Maple Avenue", "12th Street", "Mill Road", "Outer Ring"} <= {
        feature["properties"]["name"] for feature in read.features
    }
