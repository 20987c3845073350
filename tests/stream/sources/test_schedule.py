"""A timetable becomes public facts of cells: names, routes and the public cell list; hostile archives cost a bounded
amount. Lines of routes are simplified within their tolerance, cut at the domain and bounded; the served file is the one
that gtfs writes."""

import json
import random
import zipfile

import h3
import numpy as np
import pytest
import shapely
from typer.testing import CliRunner

from stream.cli import app
from stream.config import load_config
from stream.config.public_cells import public_cells
from stream.config.section import BoundingBox
from stream.local import REPO_ROOT
from stream.serve.city.places import read_places
from stream.sources import schedule
from stream.sources.live_city import invented_schedule
from stream.sources.places import Place, as_table, places, route_lines, simplified
from stream.sources.schedule import Schedule, ScheduleError, Stop, read_schedule
from stream.sources.simulate import Simulation
from tests.stream.sources.made_schedules import AUSTIN, FILES, archive, zipped
from tests.support import hourly
from tests.support.counting_calls import calls_in


def at(chart: tuple[Place, ...], lat: float, lng: float) -> Place:
    cell = h3.latlng_to_cell(lat, lng, 8)
    return next(place for place in chart if place.cell == cell)


def test_cells_are_named_after_their_stops_and_know_the_routes_that_cross_them_without_a_gap(tmp_path):
    read = read_schedule(archive(tmp_path / "gtfs.zip"))
    chart = places(read, AUSTIN, 8)
    assert at(chart.cells, 30.2682, -97.7429) == Place(
        h3.latlng_to_cell(30.2682, -97.7429, 8), "Congress / 6th", 2, ("2", "10", "Airport")
    )
    assert at(chart.cells, 30.3200, -97.7300).name == "Lamar, North"
    assert chart.outside == 1, "London"
    assert dict(read.refused) == {"stop-no-place": 3, "shape-no-place": 1, "shape-missing": 1, "trip-of-no-route": 1}
    crossed = {place.cell for place in chart.cells if "10" in place.routes}
    path = h3.grid_path_cells(h3.latlng_to_cell(30.3200, -97.7300, 8), h3.latlng_to_cell(30.2682, -97.7429, 8))
    assert len(crossed) >= len(path)
    assert all(any(h3.are_neighbor_cells(cell, other) for other in crossed) for cell in crossed), "one connected line"


def test_the_public_cell_list_is_exactly_that_of_the_cells_that_routes_cross(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_HEXAGONS__RESOLUTION", "8")
    text = hourly.RIDERS.read_text(encoding="utf-8").replace(
        "[participation]", '[participation]\ngeojson = "cells.geojson"'
    )
    (tmp_path / "hexveil.toml").write_text(text, encoding="utf-8")
    archive(tmp_path / "gtfs.zip")
    done = CliRunner().invoke(app, ["gtfs", "gtfs.zip", "--out", "places.json", "--area", "cells.geojson", "--json"])
    assert done.exit_code == 0, done.stderr
    summary, listed = json.loads(done.stdout), json.loads((tmp_path / "places.json").read_text())["cells"]
    crossed = sorted(h3.str_to_int(place["cell"]) for place in listed if place["routes"])
    settings = load_config(tmp_path / "hexveil.toml")
    assert public_cells(settings).tolist() == crossed
    assert summary["crossed"] == len(crossed) > 5
    again = CliRunner().invoke(app, ["gtfs", "gtfs.zip", "--out", "places.json"])
    assert (again.exit_code, "--force" in again.stderr) == (2, True)


def with_file(name: str, text: str | bytes) -> dict[str, str | bytes]:
    return FILES | {name: text}


def damaged(body: bytes) -> bytes:
    """The archive with other bytes in the middle of its first file."""
    start = 30 + len("stops.txt") + 20
    return body[:start] + b"\xff" * 60 + body[start + 60 :]


HOSTILE = {
    "nothing": (b"", "no zip archive"),
    "HTML": (b"<html>login</html>" * 10, "no zip archive"),
    "a list too long": (b"PK\x05\x06" + b"\0" * 8 + b"\xff\xff\xff\x7f" + b"\0" * 6, "too many files"),
    "no stops": ({"agency.txt": "agency_id\n"}, "no stops.txt"),
    "a damaged LZMA stream": (damaged(zipped(dict(FILES), zipfile.ZIP_LZMA)), "not a readable GTFS archive"),
    "a name that is no UTF-8": (zipped({"stöps.txt": "x"}).replace("ö".encode(), b"\xff\xfe"),
    "not a readable GTFS archive"),
    "a folder": ({f"feed/{name}": text for name, text in FILES.items()}, "in the folder 'feed'"),
    "no column": (with_file("stops.txt", "id,name\n1,a\n"), "no column stop_id"),
    "one long line": (with_file("stops.txt", b"x" * 1_000_000), "a line of more than"),
    "one long field": (with_file("stops.txt", FILES["stops.txt"] + '"' + "a\n" * 200_000),
    "field larger than field limit"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_sentence(name, tmp_path):
    content, says = HOSTILE[name]
    path = tmp_path / "gtfs.zip"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        archive(path, content)
    with pytest.raises(ScheduleError, match=says):
        read_schedule(path)


def test_a_bomb_is_read_no_further_than_its_bound(tmp_path, monkeypatch):
    monkeypatch.setitem(schedule.BOUNDS, "shapes", (1 << 20, 10**6))
    monkeypatch.setitem(schedule.BOUNDS, "trips", (1 << 20, 100))
    bomb = archive(tmp_path / "bytes.zip", with_file("shapes.txt", FILES["shapes.txt"] + "s1,30,-97,1\n" * 200_000))
    assert bomb.stat().st_size < 50_000
    with pytest.raises(ScheduleError, match=r"shapes\.txt has more than 1048576 bytes"):
        read_schedule(bomb)
    rows = archive(tmp_path / "rows.zip", with_file("trips.txt", FILES["trips.txt"] + "r1,t,s1\n" * 101))
    with pytest.raises(ScheduleError, match=r"trips\.txt has more than 100 rows"):
        read_schedule(rows)


def test_lines_across_continents_are_refused_before_they_cost_much(tmp_path, monkeypatch):
    monkeypatch.setattr("stream.sources.places.MOST_SAMPLES", 10_000)
    far = FILES["shapes.txt"] + "s1,-80,170,21\ns1,80,-9,22\n"
    with pytest.raises(ScheduleError, match="coarser resolution"):
        places(read_schedule(archive(tmp_path / "gtfs.zip", with_file("shapes.txt", far))), AUSTIN, 8)


def test_stops_alone_count_in_their_cells_and_stations_entrances_and_boarding_areas_do_not(tmp_path):
    rng, kinds = random.Random(5), ("", "0", "1", "2", "3", "4")
    rows = [
        f"{k},stop {k},{rng.uniform(30.1, 30.5):.6f},{rng.uniform(-97.9, -97.5):.6f},{kinds[k % 6]}\n"
        for k in range(300)
    ]
    text = "stop_id,stop_name,stop_lat,stop_lon,location_type\n" + "".join(rows) + "node,,,,3\n"
    read = read_schedule(archive(tmp_path / "gtfs.zip", {"stops.txt": text}))
    chart = places(read, AUSTIN, 8)
    assert sum(place.stops for place in chart.cells) == len(read.stops) == 100
    assert all(int(stop) % 6 < 2 for stop in read.stops)
    assert all(place.name for place in chart.cells)
    assert not read.refused


def test_shapes_that_trips_name_are_bounded_as_points_are_and_count_for_each_of_their_routes(tmp_path, monkeypatch):
    """One shape of a million points and 100 000 routes that run on it would be 10¹¹ points to simplify."""
    monkeypatch.setattr(schedule, "MOST_POINTS", 50)

    def read(**files: str) -> Schedule:
        return read_schedule(archive(tmp_path / "gtfs.zip", FILES | {f"{k}.txt": text for k, text in files.items()}))

    assert read(trips=FILES["trips.txt"] + "r1,t,s1\n" * 100).lines
    shapes = "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\n" + "".join(
        f"s1,30.2{n},-97.7,{n}\n" for n in range(20)
    )
    routes = "route_id,route_short_name,route_long_name\n" + "".join(f"r{k},{k},\n" for k in range(9))
    trips = "route_id,trip_id,shape_id\n" + "".join(f"r{k},t{k},s1\n" for k in range(9))
    for files in (
        {"trips": FILES["trips.txt"] + "".join(f"r1,t,x{k}\n" for k in range(51))},
        {"shapes": shapes, "routes": routes, "trips": trips},
    ):
        with pytest.raises(ScheduleError, match="more than 50 points"):
            read(**files)


def test_an_archive_without_routes_gives_no_public_list_and_no_file_is_written_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "gtfs.zip", {"stops.txt": FILES["stops.txt"]})
    command = ["gtfs", "gtfs.zip", "--config", str(hourly.RIDERS), "--out", "places.json"]
    empty = CliRunner().invoke(app, [*command, "--area", "cells.geojson"])
    assert (empty.exit_code, "no route crosses feed.domain" in empty.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["gtfs.zip"]


METRES = 111_195.0
"""Metres of a degree of latitude."""


def test_no_dropped_point_is_farther_from_the_line_than_the_tolerance():
    line = np.column_stack([np.cumsum(np.random.default_rng(5).normal(0, 1e-4, 500)), np.linspace(0, 0.2, 500)])
    for tolerance in (5.0, 50.0):
        kept = simplified(line, tolerance)
        assert 2 <= len(kept) < len(line)
        assert kept[[0, -1]].tolist() == line[[0, -1]].tolist()
        way = shapely.LineString(kept)
        assert max(way.distance(shapely.Point(point)) for point in line) * METRES <= tolerance * 1.01


def test_lines_are_cut_at_the_domain_and_listed_once_per_route():
    box = BoundingBox(south=0, west=0, north=1, east=1)
    line = [(0.5, -0.5), (0.5, 0.1), (0.6, 0.4), (2.0, 0.5), (0.2, 0.5), (0.2, 0.5), (0.3, 0.9)]
    schedule = Schedule(
        routes={"a": "10", "b": "10", "c": "far"}, lines={"a": [line, line], "b": [line], "c": [[(5, 5), (6, 6)]]}
    )
    cut = [[(0.2, 0.5), (0.3, 0.9)], [(0.5, 0.1), (0.6, 0.4)]]
    assert route_lines(schedule, box) == {"10": cut}


def test_more_lines_than_fit_are_simplified_further_and_then_refused():
    box = BoundingBox(south=-1, west=-1, north=1, east=1)
    rng = np.random.default_rng(6)
    lines = [[(float(y), float(x)) for y, x in rng.uniform(-1, 1, (200, 2))] for _ in range(20)]
    schedule = Schedule(routes={"a": "1"}, lines={"a": lines})  # type: ignore[arg-type]
    assert 0 < sum(map(len, route_lines(schedule, box, 1_000)["1"])) <= 1_000
    with pytest.raises(ScheduleError, match="more than 15 lines"):
        route_lines(schedule, box, 30)


class Counted(dict[str, Stop]):
    """Stops of which each look at one is a call."""

    def __getitem__(self, key: str) -> Stop:
        return super().__getitem__(key)


@pytest.mark.parametrize("count", [500, 2_000])
def test_more_lines_or_stops_in_one_cell_than_a_city_has_cost_work_by_their_number_alone(count):
    """Each line is a route of its own, and each stop has a name of its own."""
    box = BoundingBox(south=-1, west=-1, north=1, east=1)
    lines = {f"{k}": [[(0.5, 0.5), (0.5, k / count)]] for k in range(count)}
    many = Schedule(routes={k: k for k in lines}, lines=lines)  # type: ignore[arg-type]
    stops = Counted({f"{k}": Stop(f"stop {k}", 0.1, 0.1 + k * 1e-9) for k in range(count)})
    assert calls_in(lambda: route_lines(many, box)) < 200 * count
    assert calls_in(lambda: places(Schedule(stops=stops), box, 5)) < 40 * count


def test_the_file_that_gtfs_writes_is_served_with_names_that_are_printable_and_platforms_as_one_stop(tmp_path):
    files = dict(FILES)
    files["stops.txt"] += '8,"a\u0000\nb\u202e",30.33,-97.73\n'
    chart = places(read_schedule(archive(tmp_path / "gtfs.zip", files)), AUSTIN, 8)
    path = tmp_path / "places.json"
    path.write_text(json.dumps(as_table(chart)), encoding="utf-8")
    served = read_places(path)
    assert [place.cell for place in served.cells] == [place.cell for place in chart.cells]
    assert sorted(stop.name for stop in served.stops) == ["Congress / 6th", "Lamar, North", "a b"]
    assert {line.route for line in served.lines} == {"2", "10", "Airport"}
    assert set(served.corridors()) == {"2", "10", "Airport"}


@pytest.mark.parametrize("template", ["bus-fleet.toml", "riders-live.toml"])
def test_the_invented_city_has_a_name_for_nearly_every_cell_and_is_served(tmp_path, template):
    config = load_config(REPO_ROOT / "config" / template, **{"feed.format": "canonical"})
    schedule = invented_schedule(Simulation(config.feed, 300, 1_490_097_600_000_000))
    chart = places(schedule, config.feed.domain, config.hexagons.resolution)
    path = tmp_path / "places.json"
    path.write_text(json.dumps(as_table(chart)), encoding="utf-8")
    served = read_places(path)
    assert len(served.cells) > 20
    assert sum(place.name is None for place in served.cells) < len(served.cells) / 10
    assert len(served.lines) == 25


def test_a_line_is_simplified_in_parts_because_one_of_corners_takes_time_by_its_square(monkeypatch):
    measured: list[int] = []
    norm = np.linalg.norm

    def counted(points: np.ndarray, **options: int) -> np.ndarray:
        measured.append(len(points))
        return norm(points, **options)

    monkeypatch.setattr(np.linalg, "norm", counted)
    ends = np.linspace(0, 1, 12_000)
    spiral = [(30.0 + 0.3 * (1 - k) * np.cos(400 * k), -97.7 + 0.3 * (1 - k) * np.sin(400 * k)) for k in ends.tolist()]
    read = Schedule(stops={}, routes={"r": "1"}, lines={"r": [spiral]})
    (name,) = route_lines(read, AUSTIN)
    assert name == "1"
    assert max(measured) < 2_000
