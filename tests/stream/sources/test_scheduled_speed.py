"""A timetable says how fast its vehicles should be in each cell and hour: all metres by all seconds, however it is
written."""

import json
import tracemalloc
from pathlib import Path

import h3
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from dpcore.earth import great_circle_m
from stream.cli import app
from stream.serve.city.places import read_places
from stream.sources import timetable
from stream.sources.schedule import ScheduleError, mode_of
from stream.sources.scheduled_speed import ScheduledSpeeds, line_of, positions, scheduled_speeds
from stream.sources.timetable import read_timetable
from tests.stream.sources.made_schedules import AUSTIN, archive
from tests.support import hourly
from tests.support.counting_calls import calls_in

LAT, LNG, STEP = 30.25, -97.75, 0.01
"""Stops lie on a meridian, 1 112 m apart."""
METRES = float(great_circle_m(*(np.array([x]) for x in (LAT, LNG, LAT + STEP, LNG)))[0])
CALENDAR = "service_id,start_date,end_date,monday,tuesday,wednesday,thursday,friday,saturday,sunday\n"
EVERY_DAY = CALENDAR + "w,20170306,20170312,1,1,1,1,1,1,1\n"


def schedule(times: str, **files: str) -> dict[str, str | bytes]:
    """One trip t of service w over stops 0, 1, …; ``times``: "arrival departure" or "arrival" of each stop, comma
    apart."""
    calls = [(text.split() * 2)[:2] if text.strip() else ["", ""] for text in times.split(",")]
    rows = [f"t,{arrival},{departure},{k},{k}" for k, (arrival, departure) in enumerate(calls)]
    stops = [f"{k},S{k},{LAT + k * STEP:.6f},{LNG}" for k in range(len(calls))]
    made = {
        "stops": "stop_id,stop_name,stop_lat,stop_lon\n" + "\n".join(stops),
        "routes": "route_id,route_short_name\nr,1\n",
        "trips": "route_id,service_id,trip_id\nr,w,t\n",
        "stop_times": "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n" + "\n".join(rows),
        "calendar": EVERY_DAY,
    }
    return {f"{name}.txt": text for name, text in (made | files).items()}


def speeds(folder: Path, files: dict[str, str | bytes], resolution: int = 8) -> ScheduledSpeeds:
    return scheduled_speeds(read_timetable(archive(folder / "gtfs.zip", files)), AUSTIN, resolution)


def test_metres_and_seconds_of_all_cells_are_those_of_the_trip_on_the_days_on_which_it_runs(tmp_path):
    made = speeds(tmp_path, schedule("7:00:00,7:02:00,7:04:00"))
    assert made.metres.sum(axis=(0, 2)) == pytest.approx(2 * METRES * np.array([5, 1, 1]), rel=1e-6)
    assert made.seconds[:, :, 7].sum(axis=0) == pytest.approx([1200, 240, 240])
    known = made.seconds[:, 0, 7] > 0
    assert (made.metres / np.where(made.seconds > 0, made.seconds, 1))[known, 0, 7] == pytest.approx(METRES / 120)
    assert (made.trips, made.straight, dict(made.refused)) == (1, 1, {})


def test_a_cell_with_a_fast_and_a_slow_service_has_their_distance_by_their_time_and_not_the_mean_of_speeds(tmp_path):
    rows = "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
    for trip, end in (("t", "7:01:00"), ("slow", "7:10:00")):
        rows += f"{trip},7:00:00,7:00:00,0,0\n{trip},{end},{end},1,1\n"
    trips = "route_id,service_id,trip_id\nr,w,t\nr,w,slow\n"
    made = speeds(tmp_path, schedule("7:00:00,7:01:00", trips=trips, stop_times=rows))
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
    made = speeds(tmp_path, schedule(times), resolution=9)
    assert made.seconds[:, 1].sum() == pytest.approx(in_all)
    assert made.seconds[made.cells.index(h3.latlng_to_cell(LAT + STEP, LNG, 9)), 1, 7] > standing


def test_a_stay_counts_in_the_hour_of_its_middle(tmp_path):
    made = speeds(tmp_path, schedule("6:53:00,6:55:00 8:55:00,8:57:00"))
    assert made.seconds[:, 1, 7].sum() == pytest.approx(7200)


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
    made = speeds(tmp_path, schedule(times))
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
    made = speeds(tmp_path, schedule(times))
    assert (made.trips, dict(made.refused), made.table()["cells"]) == (0, {reason: 1}, [])


def test_after_midnight_the_hour_and_the_day_are_those_on_which_the_vehicle_drives(tmp_path):
    friday = CALENDAR + "w,20170306,20170312,0,0,0,0,1,0,0\n"
    made = speeds(tmp_path, schedule("25:30:00,25:34:00", calendar=friday))
    assert made.seconds[:, 1, 1].sum() == pytest.approx(240), "Saturday 01:30"
    assert made.seconds.sum() == pytest.approx(240)
    assert speeds(tmp_path, schedule("49:30:00,49:34:00", calendar=friday)).seconds[:, 2, 1].sum() == pytest.approx(240)


def test_exceptions_of_the_calendar_count_once_and_on_the_day_of_the_week_of_their_date(tmp_path):
    dates = "service_id,date,exception_type\nw,20170306,2\nw,20170306,2\nw,20170312,1\nw,20170319,1\nw,2017-03-19,1\nx,20170318,1\n"  # noqa: E501
    workdays = CALENDAR + "w,20170306,20170312,1,1,1,1,1,0,0\n"
    made = speeds(tmp_path, schedule("7:00:00,7:02:00", calendar=workdays, calendar_dates=dates))
    assert made.seconds.sum(axis=(0, 2)) == pytest.approx([4 * 120, 0, 2 * 120])
    assert dict(made.refused) == {"exception-no-day": 1}
    alone = schedule("7:00:00,7:02:00", calendar_dates="service_id,date,exception_type\nw,20170318,1\n")
    del alone["calendar.txt"]
    assert speeds(tmp_path, alone).seconds.sum(axis=(0, 2)) == pytest.approx([0, 120, 0])


def test_a_trip_of_frequencies_runs_as_often_as_they_say_and_not_at_its_own_time(tmp_path):
    rows = "trip_id,start_time,end_time,headway_secs\nt,8:00:00,9:00:00,600\nt,22:00:00,22:10:00,0\nt,9,10,60\n"
    made = speeds(tmp_path, schedule("7:00:00,7:02:00", frequencies=rows))
    assert made.seconds[:, 1, 8].sum() == pytest.approx(6 * 120)
    assert made.seconds[:, 1, 7].sum() == 0
    assert dict(made.refused) == {"frequency-no-headway": 2}


def two_modes() -> dict[str, str | bytes]:
    """A bus (t) with 120 s from stop to stop, and a metro (m) with 30 s."""
    files = schedule(
        "7:00:00,7:02:00",
        routes="route_id,route_short_name,route_type\nr,1,3\nu,U,401\n",
        trips="route_id,service_id,trip_id\nr,w,t\nu,w,m\n",
        frequencies="trip_id,start_time,end_time,headway_secs\nm,8:00:00,9:00:00,1800\n",
    )
    calls = str(files["stop_times.txt"])
    return files | {"stop_times.txt": calls + "\nm,7:00:00,7:00:00,0,0\nm,7:00:30,7:00:30,1,1\n"}


def test_of_a_mode_alone_the_scheduled_speeds_lines_and_cells_are_those_of_a_timetable_without_the_others(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "both.zip", two_modes())
    archive(tmp_path / "bus.zip", schedule("7:00:00,7:02:00"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["gtfs", *arguments, "--config", str(hourly.RIDERS), "--resolution", "8"])

    mixed = run("both.zip", "--out", "mixed.json")
    assert (mixed.exit_code, "of all modes (1 bus, 1 metro); choose yours with --mode" in mixed.stderr) == (0, True)
    bus = run("both.zip", "--out", "of_bus.json", "--mode", "bus", "--json")
    assert (bus.exit_code, json.loads(bus.stdout)["modes"]) == (0, {"bus": 1, "metro": 1})
    assert json.loads(bus.stdout)["refused"] == {"trip-of-other-mode": 1}
    assert json.loads(bus.stdout)["scheduled"]["refused"] == {}
    assert run("bus.zip", "--out", "bus.json").exit_code == 0
    read = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("mixed", "of_bus", "bus")}
    assert read["of_bus"] == read["bus"] != read["mixed"]
    ferry = run("both.zip", "--out", "none.json", "--mode", "ferry")
    assert (ferry.exit_code, "no route of that mode; it has 1 bus, 1 metro" in ferry.stderr) == (2, True)


def test_a_route_has_the_mode_of_its_type_and_an_unknown_one_is_other():
    of_type = (
        "0 tram, 1 metro, 3 bus, 7 lift, 11 trolleybus, 12 metro, 109 rail, 200 coach, 405 metro, 702 bus, "
        "800 trolleybus, 906 tram, 1000 ferry, 1702 other, 8 other, -1 other, ٣ other, 99999999999 other"
    )
    for route_type, mode in (pair.split() for pair in of_type.split(", ")):
        assert mode_of(route_type) == mode
    assert mode_of("") == "other"


def test_frequencies_that_would_make_endless_trips_are_refused_before_they_cost_much(tmp_path):
    rows = "trip_id,start_time,end_time,headway_secs\n" + "t,0:00:00,167:59:59,1\n" * 10_000
    path = archive(tmp_path / "gtfs.zip", schedule("7:00:00,7:02:00", frequencies=rows))
    timetable = read_timetable(path)
    tracemalloc.start()
    with pytest.raises(ScheduleError, match="more than 10000000 calls"):
        scheduled_speeds(timetable, AUSTIN, 8)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_a_shape_lengthens_the_way_and_one_that_misses_the_stops_does_not_count(tmp_path):
    detour = [(LAT, LNG), (LAT, LNG + STEP), (LAT + STEP, LNG + STEP), (LAT + STEP, LNG)]
    shapes = "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\n"
    rows = "\n".join(f"s,{lat:.6f},{lng:.6f},{9 * k}" for k, (lat, lng) in enumerate(detour))
    trips = "route_id,service_id,trip_id,shape_id\nr,w,t,s\n"
    made = speeds(tmp_path, schedule("7:00:00,7:02:00", trips=trips, shapes=shapes + rows))
    assert made.metres[:, 1].sum() == pytest.approx(METRES * (1 + 2 * np.cos(np.radians(LAT))), rel=1e-3)
    assert made.straight == 0
    away = shapes + "s,30.5,-97.5,1\ns,30.6,-97.5,2\n"
    made = speeds(tmp_path, schedule("7:00:00,7:02:00", trips=trips, shapes=away))
    assert made.metres[:, 1].sum() == pytest.approx(METRES, rel=1e-6)
    assert made.straight == 1


def test_stops_of_a_loop_that_is_driven_twice_lie_along_it_in_their_order():
    square = [(0, 0), (0, 1), (1, 1), (1, 0)] * 2 + [(0, 0)]
    line = line_of(LAT + np.array(square, dtype=np.float64) * STEP + [0, LNG - LAT])
    assert line is not None
    assert positions(line, line.points[::2]) == pytest.approx(line.along[::2])


def test_a_trip_around_the_world_is_refused_before_it_costs_much_and_takes_no_other_along(tmp_path):
    rows = "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
    for trip, stops in (("t", "01"), ("far", "02")):
        rows += "".join(f"{trip},7:0{2 * k}:00,7:0{2 * k}:00,{stop},{k}\n" for k, stop in enumerate(stops))
    trips = "route_id,service_id,trip_id\nr,w,t\nr,w,far\n"
    files = schedule("7:00:00,7:02:00", trips=trips, stop_times=rows)
    files["stops.txt"] = "stop_id,stop_name,stop_lat,stop_lon\n0,A,30.25,-97.75\n1,B,30.26,-97.75\n2,C,-30.26,97.75\n"
    made = speeds(tmp_path, files)
    assert (made.trips, dict(made.refused)) == (1, {"trip-without-way": 1})
    assert made.seconds[:, 1].sum() == pytest.approx(120)


def test_cells_outside_of_the_domain_have_no_speed(tmp_path):
    files = schedule("7:00:00,7:02:00")
    files["stops.txt"] = "stop_id,stop_name,stop_lat,stop_lon\n0,A,51.5,0.1\n1,B,51.51,0.1\n"
    made = speeds(tmp_path, files)
    assert (made.cells, made.table()["cells"]) == ([], [])


def test_the_cost_grows_with_the_timetable_and_not_faster(tmp_path):
    """Four times as many trips of the same pattern take at most five times as many calls."""

    def cost(trips: int) -> int:
        head = "trip_id,arrival_time,departure_time,stop_id,stop_sequence\n"
        rows = [f"t{t},{7 + t % 9}:{k:02}:00,{7 + t % 9}:{k:02}:00,{k},{k}" for t in range(trips) for k in range(20)]
        listed = "route_id,service_id,trip_id\n" + "\n".join(f"r,w,t{t}" for t in range(trips))
        files = schedule("7:00:00," * 20, trips=listed, stop_times=head + "\n".join(rows))
        return calls_in(lambda: speeds(tmp_path, files))

    cost(100)
    assert cost(2_000) < 5 * cost(500)


def test_more_trips_than_calls_could_use_are_refused_whatever_their_route(tmp_path, monkeypatch):
    monkeypatch.setattr(timetable, "MOST_TRIPS", 3)
    trips = "route_id,service_id,trip_id\nr,w,1\nr,w,2\nr,w,3\nr,w,4\n"
    file = archive(tmp_path / "gtfs.zip", schedule("7:00:00,7:02:00", trips=trips))
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
    archive(tmp_path / "gtfs.zip", schedule("7:00:00,7:02:00,7:04:00", **files))
    done = CliRunner().invoke(app, ["gtfs", "gtfs.zip", "--out", "places.json"])
    assert done.exit_code == 0, done.stderr
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
