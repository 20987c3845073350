"""A timetable becomes public facts of cells: names, routes, lines, the public cell list, and how fast its vehicles
should be in each hour; hostile archives cost a bounded amount."""

import json
import tracemalloc
import zipfile
from pathlib import Path

import h3
import numpy as np
import pytest
import shapely

from dpcore.earth import great_circle_m
from stream.config import load_config
from stream.config.public_cells import public_cells
from stream.config.section import BoundingBox
from stream.local.kafka import REPO_ROOT
from stream.serve.city.places import read_places
from stream.sources import schedule, timetable
from stream.sources.live_city import invented_schedule
from stream.sources.places import Place, as_table, places, route_lines, simplified
from stream.sources.schedule import Schedule, ScheduleError, Stop, mode_of, read_schedule
from stream.sources.scheduled_speed import ScheduledSpeeds, line_of, positions, scheduled_speeds
from stream.sources.simulate import Simulation
from stream.sources.timetable import read_timetable
from tests.stream.sources.made_schedules import AUSTIN, FILES, archive, zipped
from tests.support import hourly
from tests.support.command import run
from tests.support.counting_calls import calls_in


def test_cells_are_named_after_their_stops_and_know_the_routes_that_cross_them_without_a_gap(tmp_path):
    read = read_schedule(archive(tmp_path / "gtfs.zip"))
    chart = places(read, AUSTIN, 8)
    congress, lamar = h3.latlng_to_cell(30.2682, -97.7429, 8), h3.latlng_to_cell(30.3200, -97.7300, 8)
    named = {place.cell: place for place in chart.cells}
    assert named[congress] == Place(congress, "Congress / 6th", 2, ("2", "10", "Airport"))
    assert named[lamar].name == "Lamar, North"
    assert chart.outside == 1, "London"
    assert dict(read.refused) == {"stop-no-place": 3, "shape-no-place": 1, "shape-missing": 1, "trip-of-no-route": 1}
    crossed = {place.cell for place in chart.cells if "10" in place.routes}
    assert len(crossed) >= len(h3.grid_path_cells(lamar, congress))
    assert all(any(h3.are_neighbor_cells(cell, other) for other in crossed) for cell in crossed), "one connected line"


def test_the_public_cell_list_is_exactly_that_of_the_cells_that_routes_cross(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_HEXAGONS__RESOLUTION", "8")
    text = hourly.RIDERS.read_text(encoding="utf-8").replace(
        "[participation]", '[participation]\ngeojson = "cells.geojson"'
    )
    (tmp_path / "hexveil.toml").write_text(text, encoding="utf-8")
    archive(tmp_path / "gtfs.zip")
    done = run("gtfs", "gtfs.zip", "--out", "places.json", "--area", "cells.geojson", "--json")
    summary, listed = json.loads(done.stdout), json.loads((tmp_path / "places.json").read_text())["cells"]
    crossed = sorted(h3.str_to_int(place["cell"]) for place in listed if place["routes"])
    settings = load_config(tmp_path / "hexveil.toml")
    assert public_cells(settings).tolist() == crossed
    assert summary["crossed"] == len(crossed) > 5
    assert "--force" in run("gtfs", "gtfs.zip", "--out", "places.json", code=2).stderr


STREAM = zipped(dict(FILES), zipfile.ZIP_LZMA)
INSIDE = 30 + len("stops.txt") + 20
"""Where its first file is under way."""
HOSTILE = {
    "nothing": (b"", "no zip archive"),
    "HTML": (b"<html>login</html>" * 10, "no zip archive"),
    "a list too long": (b"PK\x05\x06" + b"\0" * 8 + b"\xff\xff\xff\x7f" + b"\0" * 6, "too many files"),
    "no stops": ({"agency.txt": "agency_id\n"}, "no stops.txt"),
    "a damaged LZMA stream": (STREAM[:INSIDE] + b"\xff" * 60 + STREAM[INSIDE + 60 :], "not a readable GTFS archive"),
    "a name that is no UTF-8": (zipped({"stöps.txt": "x"}).replace("ö".encode(), b"\xff\xfe"),
    "not a readable GTFS archive"),
    "a folder": ({f"feed/{name}": text for name, text in FILES.items()}, "in the folder 'feed'"),
    "no column": (FILES | {"stops.txt": "id,name\n1,a\n"}, "no column stop_id"),
    "one long line": (FILES | {"stops.txt": b"x" * 1_000_000}, "a line of more than"),
    "one long field": (FILES | {"stops.txt": FILES["stops.txt"] + '"' + "a\n" * 200_000},
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
    bomb = archive(tmp_path / "bytes.zip", FILES | {"shapes.txt": FILES["shapes.txt"] + "s1,30,-97,1\n" * 200_000})
    assert bomb.stat().st_size < 50_000
    with pytest.raises(ScheduleError, match=r"shapes\.txt has more than 1048576 bytes"):
        read_schedule(bomb)
    rows = archive(tmp_path / "rows.zip", FILES | {"trips.txt": FILES["trips.txt"] + "r1,t,s1\n" * 101})
    with pytest.raises(ScheduleError, match=r"trips\.txt has more than 100 rows"):
        read_schedule(rows)


def test_lines_across_continents_are_refused_before_they_cost_much(tmp_path, monkeypatch):
    monkeypatch.setattr("stream.sources.places.MOST_SAMPLES", 10_000)
    far = FILES["shapes.txt"] + "s1,-80,170,21\ns1,80,-9,22\n"
    with pytest.raises(ScheduleError, match="coarser resolution"):
        places(read_schedule(archive(tmp_path / "gtfs.zip", FILES | {"shapes.txt": far})), AUSTIN, 8)


def test_stops_alone_count_in_their_cells_and_stations_entrances_and_boarding_areas_do_not(tmp_path):
    text, kinds = "stop_id,stop_name,stop_lat,stop_lon,location_type\nnode,,,,3\n", ("", "0", "1", "2", "3", "4")
    for k, (lat, lng) in enumerate(np.random.default_rng(5).uniform((30.1, -97.9), (30.5, -97.5), (300, 2))):
        text += f"{k},stop {k},{lat:.6f},{lng:.6f},{kinds[k % 6]}\n"
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
    shapes = SHAPES + "".join(f"s1,30.2{n},-97.7,{n}\n" for n in range(20))
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
    outputs = ("--out", "places.json", "--area", "cells.geojson")
    assert "no route crosses feed.domain" in run("gtfs", "gtfs.zip", "--config", hourly.RIDERS, *outputs, code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["gtfs.zip"]


def test_no_dropped_point_is_farther_from_the_line_than_the_tolerance():
    line = np.column_stack([np.cumsum(np.random.default_rng(5).normal(0, 1e-4, 500)), np.linspace(0, 0.2, 500)])
    for tolerance in (5.0, 50.0):
        kept = simplified(line, tolerance)
        assert 2 <= len(kept) < len(line)
        assert kept[[0, -1]].tolist() == line[[0, -1]].tolist()
        way = shapely.LineString(kept)
        degrees = max(way.distance(shapely.Point(point)) for point in line)
        assert degrees * 111_195 <= tolerance * 1.01


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
    files["stops.txt"] += '8,"a\u0000\nb\u202e",30.33,-97.73\n9,,30.34,-97.73\n'
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


LAT, LNG, STEP = 30.25, -97.75, 0.01
"""Stops lie on a meridian, 1 112 m apart."""
METRES = float(great_circle_m(*(np.array([x]) for x in (LAT, LNG, LAT + STEP, LNG)))[0])
CALENDAR = "service_id,start_date,end_date,monday,tuesday,wednesday,thursday,friday,saturday,sunday\n"
DATES, FREQUENCIES = "service_id,date,exception_type\n", "trip_id,start_time,end_time,headway_secs\n"
STOPS, TRIPS = "stop_id,stop_name,stop_lat,stop_lon\n", "route_id,service_id,trip_id\n"
CALLS = "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
SHAPES = "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\n"


def timetable_of(times: str, **files: str | None) -> dict[str, str | bytes]:
    """One trip t of service w over stops 0, 1, …; ``times``: "arrival departure" or "arrival" of each stop, comma
    apart; ``files``: in place of those of the trip, None for none."""
    calls = [(text.split() * 2)[:2] if text.strip() else ["", ""] for text in times.split(",")]
    rows = [f"t,{arrival},{departure},{k},{k}" for k, (arrival, departure) in enumerate(calls)]
    made = {
        "stops": STOPS + "\n".join(f"{k},S{k},{LAT + k * STEP:.6f},{LNG}" for k in range(len(calls))),
        "routes": "route_id,route_short_name\nr,1\n",
        "trips": TRIPS + "r,w,t\n",
        "stop_times": CALLS + "\n".join(rows),
        "calendar": CALENDAR + "w,20170306,20170312,1,1,1,1,1,1,1\n",
    }
    return {f"{name}.txt": text for name, text in (made | files).items() if text is not None}


def called(trip: str, *calls: str) -> str:
    """Rows of stop_times.txt; a call is "time stop"."""
    split = [call.split() for call in calls]
    return "".join(f"{trip},{time},{time},{stop},{k}\n" for k, (time, stop) in enumerate(split))


def speeds(folder: Path, times: str, resolution: int = 8, **files: str | None) -> ScheduledSpeeds:
    path = archive(folder / "gtfs.zip", timetable_of(times, **files))
    return scheduled_speeds(read_timetable(path), AUSTIN, resolution)


def test_metres_and_seconds_of_all_cells_are_those_of_the_trip_on_the_days_on_which_it_runs(tmp_path):
    made = speeds(tmp_path, "7:00:00,7:02:00,7:04:00")
    assert made.metres.sum(axis=(0, 2)) == pytest.approx(2 * METRES * np.array([5, 1, 1]), rel=1e-6)
    assert made.seconds[:, :, 7].sum(axis=0) == pytest.approx([1200, 240, 240])
    known = made.seconds[:, 0, 7] > 0
    assert (made.metres / np.where(made.seconds > 0, made.seconds, 1))[known, 0, 7] == pytest.approx(METRES / 120)
    assert (made.trips, made.straight, dict(made.refused)) == (1, 1, {})


def test_a_cell_with_a_fast_and_a_slow_service_has_their_distance_by_their_time_and_not_the_mean_of_speeds(tmp_path):
    calls = CALLS + called("t", "7:00:00 0", "7:01:00 1") + called("slow", "7:00:00 0", "7:10:00 1")
    made = speeds(tmp_path, "7:00:00,7:01:00", trips=TRIPS + "r,w,t\nr,w,slow\n", stop_times=calls)
    assert made.metres.sum() / made.seconds.sum() == pytest.approx(2 * METRES / 660, rel=1e-6)


@pytest.mark.parametrize(
    ("times", "in_all", "standing"),
    [
        ("6:00:00 7:00:00,7:02:00 7:05:00,7:07:00 9:00:00", 420, 180),
        ("7:00:00,7:05:00 7:15:00,7:15:00,7:20:00", 1200, 600),
        ("7:00:00,7:05:00 7:15:00,7:15:01,7:20:00", 1200, 600),
        ("7:00:00,7:00:00 7:06:00,7:10:00", 600, 360),
    ],
    ids=["also-before-and-after-the-trip", "of-minutes", "a-second-later", "of-the-first-minute"],
)
def test_standing_at_a_stop_is_time_of_its_cell_but_not_before_the_trip_or_after_it(tmp_path, times, in_all, standing):
    made = speeds(tmp_path, times, resolution=9)
    assert made.seconds[:, 1].sum() == pytest.approx(in_all)
    assert made.seconds[made.cells.index(h3.latlng_to_cell(LAT + STEP, LNG, 9)), 1, 7] > standing


@pytest.mark.parametrize(
    "times",
    [
        "7:00:00,,7:04:00",
        "7:00:00,nonsense,7:04:00",
        "7:00:00,7:02:00 nonsense,7:04:00",
        "7:00:00,nonsense 7:02:00,7:04:00",
        "7:00:00,7:00:00,7:04:00",
        "7:00:00,7:04:00,7:04:00",
    ],
    ids=["blank", "no-time", "no-departure", "no-arrival", "rounded-at-the-start", "rounded-at-the-end"],
)
def test_times_that_are_missing_or_rounded_are_filled_by_distance(tmp_path, times):
    made = speeds(tmp_path, times)
    assert made.seconds[:, 1].sum() == pytest.approx(240)
    if times.count("7:04:00") == 1:
        known = made.seconds[:, 1, 7] > 0
        assert made.metres[known, 1, 7] / made.seconds[known, 1, 7] == pytest.approx(METRES / 120)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ("7:00:00,7:02:00,6:00:00", "trip-without-times"),
        ("7:00:00,7:02:00,", "trip-without-times"),
        ("7:00:00,7:00:00,7:00:00", "trip-without-times"),
        ("7:00:00 6:00:00,7:02:00,7:03:00", "trip-without-times"),
        ("999:00:00,7:02:00,7:03:00", "trip-without-times"),
        ("7:00:00", "trip-of-one-stop"),
    ],
)
def test_a_trip_without_usable_times_is_refused_by_name(tmp_path, times, reason):
    made = speeds(tmp_path, times)
    assert (made.trips, dict(made.refused), made.table()["cells"]) == (0, {reason: 1}, [])


def daily(seconds: dict[int, int]) -> dict[tuple[int, int], int]:
    """The same seconds of the hours of each day, of five workdays in all."""
    return {(day, hour): n * (1 if day else 5) for hour, n in seconds.items() for day in range(3)}


FRIDAY, WORKDAYS = CALENDAR + "w,20170306,20170312,0,0,0,0,1,0,0\n", CALENDAR + "w,20170306,20170312,1,1,1,1,1,0,0\n"
EXCEPTIONS = "w,20170306,2\nw,20170306,2\nw,20170312,1\nw,20170319,1\nw,2017-03-19,1\nx,20170318,1\n"
RUNS = "t,8:00:00,9:00:00,600\nt,22:00:00,22:10:00,0\nt,9,10,60\n"
WORLD = {
    "trips": TRIPS + "r,w,t\nr,w,far\n",
    "stop_times": CALLS + called("t", "7:00:00 0", "7:02:00 1") + called("far", "7:00:00 0", "7:02:00 2"),
    "stops": STOPS + "0,A,30.25,-97.75\n1,B,30.26,-97.75\n2,C,-30.26,97.75\n",
}
DRIVES: dict[str, tuple[str, dict[str, str | None], dict[tuple[int, int], int], dict[str, int]]] = {
    "after midnight, on Saturday": ("25:30:00,25:34:00", {"calendar": FRIDAY}, {(1, 1): 240}, {}),
    "after two midnights, on Sunday": ("49:30:00,49:34:00", {"calendar": FRIDAY}, {(2, 1): 240}, {}),
    "each exception once, on the day of its date": (
        "7:00:00,7:02:00",
        {"calendar": WORKDAYS, "calendar_dates": DATES + EXCEPTIONS},
        {(0, 7): 4 * 120, (2, 7): 2 * 120},
        {"exception-no-day": 1},
    ),
    "exceptions without a calendar": (
        "7:00:00,7:02:00",
        {"calendar": None, "calendar_dates": DATES + "w,20170318,1\n"},
        {(1, 7): 120},
        {},
    ),
    "as often as frequencies say, and not at its own time": (
        "7:00:00,7:02:00",
        {"frequencies": FREQUENCIES + RUNS},
        daily({8: 6 * 120}),
        {"frequency-no-headway": 2},
    ),
    "a stay in the hour of its middle": (
        "6:53:00,6:55:00 8:55:00,8:57:00",
        {},
        daily({6: 120, 7: 7200, 8: 120}),
        {},
    ),
    "beside a trip around the world": ("7:00:00,7:02:00", WORLD, daily({7: 120}), {"trip-without-way": 1}),
    "outside of the domain": ("7:00:00,7:02:00", {"stops": STOPS + "0,A,51.5,0.1\n1,B,51.51,0.1\n"}, {}, {}),
}


@pytest.mark.parametrize("name", DRIVES)
def test_a_trip_has_seconds_on_the_days_and_in_the_hours_in_which_it_drives_in_the_domain(tmp_path, name):
    times, files, wanted, refused = DRIVES[name]
    made = speeds(tmp_path, times, **files)
    seconds = {(day, hour): made.seconds[:, day, hour].sum() for day in range(3) for hour in range(24)}
    assert {when: n for when, n in seconds.items() if n} == pytest.approx(wanted)
    assert (made.trips, dict(made.refused)) == (1, refused)
    assert bool(made.table()["cells"]) == bool(made.cells) == bool(wanted)


def test_of_a_mode_alone_the_scheduled_speeds_lines_and_cells_are_those_of_a_timetable_without_the_others(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    both = {  # a bus (t) with 120 s from stop to stop, and a metro (m) with 30 s
        "routes": "route_id,route_short_name,route_type\nr,1,3\nu,U,401\n",
        "trips": TRIPS + "r,w,t\nu,w,m\n",
        "frequencies": FREQUENCIES + "m,8:00:00,9:00:00,1800\n",
        "stop_times": CALLS + called("t", "7:00:00 0", "7:02:00 1") + called("m", "7:00:00 0", "7:00:30 1"),
    }
    archive(tmp_path / "both.zip", timetable_of("7:00:00,7:02:00", **both))
    archive(tmp_path / "bus.zip", timetable_of("7:00:00,7:02:00"))
    options = ("--config", hourly.RIDERS, "--resolution", 8)
    mixed = run("gtfs", "both.zip", "--out", "mixed.json", *options)
    assert "of all modes (1 bus, 1 metro); choose yours with --mode" in mixed.stderr
    bus = json.loads(run("gtfs", "both.zip", "--out", "of_bus.json", "--mode", "bus", "--json", *options).stdout)
    assert bus["modes"] == {"bus": 1, "metro": 1}
    assert (bus["refused"], bus["scheduled"]["refused"]) == ({"trip-of-other-mode": 1}, {})
    run("gtfs", "bus.zip", "--out", "bus.json", *options)
    read = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("mixed", "of_bus", "bus")}
    assert read["of_bus"] == read["bus"] != read["mixed"]
    ferry = run("gtfs", "both.zip", "--out", "none.json", "--mode", "ferry", *options, code=2)
    assert "no route of that mode; it has 1 bus, 1 metro" in ferry.stderr


def test_a_route_has_the_mode_of_its_type_and_an_unknown_one_is_other():
    of_type = (
        "0 tram, 1 metro, 3 bus, 7 lift, 11 trolleybus, 12 metro, 109 rail, 200 coach, 405 metro, 702 bus, "
        "800 trolleybus, 906 tram, 1000 ferry, 1702 other, 8 other, -1 other, ٣ other, 99999999999 other"
    )
    for route_type, mode in (pair.split() for pair in of_type.split(", ")):
        assert mode_of(route_type) == mode
    assert mode_of("") == "other"


def test_frequencies_that_would_make_endless_trips_are_refused_before_they_cost_much(tmp_path):
    files = timetable_of("7:00:00,7:02:00", frequencies=FREQUENCIES + "t,0:00:00,167:59:59,1\n" * 10_000)
    timetable = read_timetable(archive(tmp_path / "gtfs.zip", files))
    tracemalloc.start()
    with pytest.raises(ScheduleError, match="more than 10000000 calls"):
        scheduled_speeds(timetable, AUSTIN, 8)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_a_shape_lengthens_the_way_and_one_that_misses_the_stops_does_not_count(tmp_path):
    detour = [(LAT, LNG), (LAT, LNG + STEP), (LAT + STEP, LNG + STEP), (LAT + STEP, LNG)]
    rows = "".join(f"s,{lat:.6f},{lng:.6f},{9 * k}\n" for k, (lat, lng) in enumerate(detour))
    away = "s,30.5,-97.5,1\ns,30.6,-97.5,2\n"
    for points, way, straight in ((rows, 1 + 2 * np.cos(np.radians(LAT)), 0), (away, 1.0, 1)):
        trips = "route_id,service_id,trip_id,shape_id\nr,w,t,s\n"
        made = speeds(tmp_path, "7:00:00,7:02:00", trips=trips, shapes=SHAPES + points)
        assert made.metres[:, 1].sum() == pytest.approx(METRES * way, rel=1e-3)
        assert made.straight == straight


def test_stops_of_a_loop_that_is_driven_twice_lie_along_it_in_their_order():
    square = [(0, 0), (0, 1), (1, 1), (1, 0)] * 2 + [(0, 0)]
    line = line_of(LAT + np.array(square, dtype=np.float64) * STEP + [0, LNG - LAT])
    assert line is not None
    assert positions(line, line.points[::2]) == pytest.approx(line.along[::2])


def test_the_cost_grows_with_the_timetable_and_not_faster(tmp_path):
    """Four times as many trips of the same pattern take at most five times as many calls."""

    def cost(trips: int) -> int:
        hours = [(trip, 7 + trip % 9) for trip in range(trips)]
        calls = [called(f"t{trip}", *(f"{hour}:{k:02}:00 {k}" for k in range(20))) for trip, hour in hours]
        files = {"trips": TRIPS + "".join(f"r,w,t{t}\n" for t in range(trips)), "stop_times": CALLS + "".join(calls)}
        return calls_in(lambda: speeds(tmp_path, "7:00:00," * 20, **files))

    cost(100)
    assert cost(2_000) < 5 * cost(500)


def test_more_trips_than_calls_could_use_are_refused_whatever_their_route(tmp_path, monkeypatch):
    monkeypatch.setattr(timetable, "MOST_TRIPS", 3)
    trips = TRIPS + "".join(f"r,w,{trip}\n" for trip in range(4))
    file = archive(tmp_path / "gtfs.zip", timetable_of("7:00:00,7:02:00", trips=trips))
    for routes in (None, {"another"}):
        with pytest.raises(ScheduleError, match=r"trips.txt has more than 3 trips; divide the schedule by agency"):
            read_timetable(file, routes)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, None),
        ({"agency": "agency_id,agency_timezone\na,US/Central\n"}, None),
        ({"agency": "agency_id,agency_timezone\na,Europe/Berlin\n"}, "its clocks are those of Europe/Berlin"),
        ({"agency": "agency_id,agency_timezone\na,../x\n"}, "is no time zone"),
        ({"calendar": CALENDAR}, "no trip with days of service"),
    ],
    ids=["none", "alias", "other-clocks", "no-zone", "no-service"],
)
def test_the_command_writes_scheduled_speeds_or_says_why_there_are_none(tmp_path, monkeypatch, files, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_HEXAGONS__RESOLUTION", "8")
    (tmp_path / "hexveil.toml").write_text(hourly.RIDERS.read_text(encoding="utf-8"), encoding="utf-8")
    archive(tmp_path / "gtfs.zip", timetable_of("7:00:00,7:02:00,7:04:00", **files))
    done = run("gtfs", "gtfs.zip", "--out", "places.json")
    written = json.loads((tmp_path / "places.json").read_text())
    if said is not None:
        assert said in done.stderr
        assert "scheduled" not in written
        return
    assert "from 1 trips, 1 of them straight from stop to stop" in done.stderr
    assert written["scheduled"]["days"] == {"workday": 5, "saturday": 1, "sunday": 1}
    served = read_places(tmp_path / "places.json").scheduled
    assert served is not None
    assert len(served.cells) == len(written["scheduled"]["cells"]) > 1
    assert all({hour[1] for hour in row["hours"]} == {7} for row in written["scheduled"]["cells"])
