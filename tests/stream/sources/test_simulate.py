"""The synthetic feed is deterministic and plausible, and has the requested shares of faults. The live city: its budget
pays for every car, its truth is that of its events, and an incident slows what is near; its streets are the roads on
which vehicles drive."""

import gzip
import json
import os
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest import mock

import h3
import numpy as np
import pytest
import shapely

from stream.cli.demo_view import CITY
from stream.config import load_config
from stream.config.feed import FeedConfig
from stream.config.section import BoundingBox
from stream.local.kafka import REPO_ROOT
from stream.serve.city.city import read_streets
from stream.sources.live_city import LiveCity, Truth, crossing, invented_schedule, streets
from stream.sources.network import ARTERIAL, RING, STREET, site_in
from stream.sources.simulate import GARBAGE, LONGEST_DELAY_S, Faults, Simulation, simulate, simulated_fleet
from tests.stream.sources.recordings import AUSTIN
from tests.support import hourly
from tests.support.command import run as hexveil

FEED = FeedConfig(name="bus", topic="bus", timezone="America/Chicago", domain=AUSTIN)  # type: ignore[arg-type]
MONDAY = 1_710_738_000_000_000  # 2024-03-18T00:00 in Austin
CLEAN = Faults(late=0, duplicate=0, garbage=0, gps_metres=0)


def run(**changes: Any) -> tuple[np.ndarray, list[bytes]]:
    parameters = {"feed": FEED, "vehicles": 60, "start_us": MONDAY, "duration": timedelta(hours=1)} | changes
    blocks = list(simulate(Simulation(**parameters)))
    return np.concatenate([block.due for block in blocks]), [value for block in blocks for value in block.values]


def events(values: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(value) for value in values]


def micros(event: dict[str, Any]) -> int:
    return round(datetime.fromisoformat(event["time"]).timestamp() * 1e3) * 1000


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    first, again, other = run(seed=7), run(seed=7), run(seed=8)
    assert first[1] == again[1] != other[1]
    assert (first[0] == again[0]).all()


def test_peaks_are_slower_than_noon_and_night_with_most_of_the_fleet_on_the_road_and_a_third_of_it_standing():
    hours = [MONDAY + hour * 3_600_000_000 for hour in (2, 3, 8, 11, 12, 17)]
    fleet = {"vehicles": 120, "interval": timedelta(minutes=5), "faults": CLEAN}
    weekday = [event for start_us in hours for event in events(run(start_us=start_us, **fleet)[1])]
    users, speeds = defaultdict[int, set[str]](set), defaultdict[int, list[float]](list)
    for event in weekday:
        hour = (int(event["time"][11:13]) - 5) % 24
        users[hour].add(event["user"])
        speeds[hour].append(event["speed"])
    mean = {hour: np.mean([speed for speed in speeds[hour] if speed > 5]) for hour in speeds}
    night, noon = np.mean([mean[2], mean[3]]), np.mean([mean[11], mean[12]])
    assert 15 < mean[17] < mean[11] * 0.85 < noon < night < 65
    assert mean[8] < 0.9 * noon
    assert len(users[8]) > 0.75 * 150
    assert 0 < len(speeds[3]) < 0.35 * len(speeds[8]), "the timetable uses a tenth of the fleet at night"
    assert 0.2 < np.mean([event["speed"] == 0 for event in weekday]) < 0.55, "at stops, lights and terminals"


def test_a_vehicle_moves_as_far_as_its_speeds_say():
    _, values = run(vehicles=20, start_us=MONDAY + 11 * 3_600_000_000, interval=timedelta(seconds=5), faults=CLEAN)
    tracks = defaultdict(list)
    for event in events(values):
        tracks[event["user"]].append(event)
    driven = stated = 0.0
    for track in tracks.values():
        north = np.array([event["lat"] for event in track]) * 110_574
        east = np.array([event["lng"] for event in track]) * 111_320 * np.cos(np.radians(30.35))
        step = np.hypot(np.diff(north), np.diff(east))
        seconds = np.diff([micros(event) for event in track]) / 1e6
        near = seconds < 6
        driven += step[near].sum()
        stated += (np.array([event["speed"] for event in track])[1:] / 3.6 * seconds)[near].sum()
        assert (step[near] < 40 * 6).all(), "nobody jumps"
    assert driven == pytest.approx(stated, rel=0.1)


@pytest.mark.parametrize("box", [AUSTIN, {"south": 48.8, "west": 2.3, "north": 48.81, "east": 2.32}])
def test_every_fix_of_a_clean_feed_lies_in_its_domain_and_arrives_in_order_and_duration_counts_event_time(box):
    due, values = run(faults=CLEAN, feed=FEED.model_copy(update={"domain": BoundingBox(**box)}))
    assert (np.diff(due) >= 0).all()
    for event in events(values):
        assert box["south"] < event["lat"] < box["north"]
        assert box["west"] < event["lng"] < box["east"]
        assert 0 <= event["speed"] < 130
        assert MONDAY <= micros(event) < MONDAY + 3_600_000_000


def test_late_and_repeated_fixes_and_garbage_come_in_the_asked_shares():
    # n about 50 000 fixes: the bounds are more than five standard deviations of each share.
    faults = Faults(late=0.1, duplicate=0.05, garbage=0.03)
    due, values = run(vehicles=600, start_us=MONDAY + 8 * 3_600_000_000, faults=faults)
    good = []
    bad = 0
    for arrival, value in zip(due, values, strict=True):
        try:
            event = json.loads(value, parse_constant=lambda _: None)
        except json.JSONDecodeError:
            bad += 1
            continue
        fine = event.get("lat", 0) != 0 and event["speed"] is not None and len(event["user"]) < 20
        if fine and event["time"] < "2100":
            good.append((arrival - micros(event), event["user"], event["time"]))
        else:
            bad += 1
    n = len(values)
    assert bad / n == pytest.approx(0.03, abs=0.005)
    repeats = len(good) - len({row[1:] for row in good})
    assert repeats / n == pytest.approx(0.05 / 1.05, abs=0.006)
    delay = np.array([row[0] for row in good]) / 1e6
    assert np.mean(delay > 25) == pytest.approx(0.1 * np.exp(-10 / 60), abs=0.01)
    assert delay.min() > 0
    assert delay.max() < LONGEST_DELAY_S + 21


def test_every_kind_of_garbage_occurs():
    _, values = run(faults=Faults(late=0, duplicate=0, garbage=1.0))
    kinds = Counter[str]()
    for value in values:
        text = value.decode()
        kinds["not-json"] += not text.endswith("}")
        kinds["no-position"] += text.endswith("}") and "lat" not in text
        kinds["not-finite"] += "NaN" in text
        kinds["outside"] += '"lat":0.0' in text
        kinds["far-future"] += '"time":"3' in text
        kinds["long-user"] += len(text) > 1000
    assert min(kinds[kind] for kind in GARBAGE) > len(values) / 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vehicles": 0}, "vehicles"),
        ({"interval": timedelta(0)}, "interval"),
        ({"duration": timedelta(0)}, "duration"),
        ({"feed": FEED.model_copy(update={"format": "itms"})}, "canonical"),
    ],
)
def test_parameters_outside_their_bounds_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(**changes)


def test_the_command_writes_a_file_and_a_pipe(tmp_path):
    common = ["simulate", "--config", str(hourly.BUS), "--vehicles", "30", "--start", "2024-03-18T12:00:00Z"]
    out = tmp_path / "city.ndjson.gz"
    result = hexveil(*common, "--duration", "10m", "--out", out, "--json")
    with gzip.open(out, "rb") as file:
        assert json.loads(result.stdout)["events"] == len(file.readlines())
    piped = hexveil(*common, "--once", "--out", "-")
    assert 0 < len(piped.stdout_bytes.splitlines()) <= 33
    assert "--duration" in hexveil(*common, "--out", out, code=2).stderr
    hexveil(*common, "--start", "2024-03-18T12:00:00", "--once", code=2)


@pytest.mark.parametrize(
    "start", ["1999-12-31T23:59:59Z", "2100-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:00"]
)
def test_a_start_at_which_no_event_is_accepted_is_refused_with_the_bounds(start):
    command = ["simulate", "--config", str(hourly.BUS), "--vehicles", "3", "--duration", "3h", "--out", "-"]
    result = hexveil(*command, "--start", start, code=2)
    assert start in result.stderr
    assert "before 2000 or after 2099" in result.stderr


START_US, WINDOWS, CARS = 1_772_600_400_000_000, 20, 400


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Events of five hours of the city, and what it noted of its whole windows."""
    with mock.patch.dict(os.environ, CITY):
        config = load_config(REPO_ROOT / "config" / "riders-live.toml")
    city, path = LiveCity(config, CARS, START_US), tmp_path_factory.mktemp("city") / "truth.ndjson"
    end = START_US + WINDOWS * 20_000_000
    events: list[dict[str, object]] = []
    for block in city.messages(Truth(city, path)):
        if block.due[-1] >= end:
            break
        events += map(json.loads, block.values)
    return events, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.nightly
def test_cars_are_replaced_before_the_budget_of_sixteen_windows_is_spent(lived):  # type: ignore[no-untyped-def]
    windows = defaultdict(set)
    for event in lived[0]:
        moment = datetime.fromisoformat(event["time"]).timestamp()
        windows[event["user"]].add(int(moment) // 20)
    assert 14 <= max(map(len, windows.values())) <= 16
    present = [sum(window in seen for seen in windows.values()) for window in set.union(*windows.values())]
    assert min(present) >= CARS, "whoever stops is replaced at once"


def test_the_truth_is_that_of_the_events(lived):  # type: ignore[no-untyped-def]
    events, truth = lived
    known, start = truth[3], datetime.fromisoformat(truth[3]["start"]).timestamp()
    speeds = defaultdict(list)
    for event in events:
        if start <= datetime.fromisoformat(event["time"]).timestamp() < start + 20:
            speeds[h3.latlng_to_cell(event["lat"], event["lng"], 8)].append(event["speed"])
    moved = sum(abs(len(speeds[cell]) - count) for cell, (count, _) in known["cells"].items())
    assert moved <= 2, "positions are written to six decimals, so a fix at an edge may change its cell"
    exact = [cell for cell, (count, _) in known["cells"].items() if len(speeds[cell]) == count]
    assert all(np.mean(speeds[cell]) == pytest.approx(known["cells"][cell][1], abs=0.01) for cell in exact)


def test_an_incident_takes_more_than_half_of_the_speed_where_it_is(lived):  # type: ignore[no-untyped-def]
    truth = lived[1]
    struck = [line for line in truth if line["incident"]]
    assert struck
    cells = {cell for line in struck for cell in line["incident"]}

    def mean(lines: list[dict[str, dict[str, tuple[int, float]]]]) -> float:
        seen = [line["cells"][cell] for line in lines for cell in cells if cell in line["cells"]]
        return sum(n * value for n, value in seen) / sum(n for n, _ in seen)

    assert mean(struck) < 0.5 * mean(truth[: truth.index(struck[0]) - 1])
    assert all(later["start"] > before["start"] for before, later in pairwise(truth))


DOMAIN = BoundingBox.model_validate(AUSTIN)
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
    assert set(network.segment_class.tolist()) == {STREET, ARTERIAL, RING}
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


DOMAINS = {
    "equator": (-1, -1, 1, 1),
    "arctic": (69, 18, 70, 20),
    "world": (-90, -180, 90, 180),
    "pole": (89.98, -180, 90, 180),
    "edge": (85, 179.9, 85.4, 180),
    "tiny": (10.0, 10.0, 10.000001, 10.000001),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_any_domain_has_streets_that_the_service_accepts_with_their_names(tmp_path, name):
    domain = BoundingBox(**dict(zip(("south", "west", "north", "east"), DOMAINS[name], strict=True)))
    made = json.dumps(streets(domain, 1))
    assert made == json.dumps(streets(domain, 1))
    assert len(made) < 200_000
    (tmp_path / "city.geojson").write_text(made)
    read = read_streets(tmp_path / "city.geojson")
    assert read.attribution == "An invented city"
    assert {"Maple Avenue", "12th Street", "Mill Road", "Outer Ring"} <= {
        feature["properties"]["name"] for feature in read.features
    }
