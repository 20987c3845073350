"""``hexveil inspect`` recognises formats, counts planted faults, and writes a valid configuration: of recordings, of
what agencies publish in GTFS-realtime and SIRI-VM, damaged or in another unit, and of answers of servers. What it
reads and keeps is bounded."""

import csv
import gzip
import io
import itertools
import json
import os
import re
import sys
import threading
import time
import tomllib
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer
from google.protobuf import json_format

from stream.config import find_config, load_config
from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.config.section import BoundingBox
from stream.config.servers import KafkaConfig
from stream.diagnosis.columns import guess_fields, paths_of
from stream.diagnosis.inspection import inspect, suggested_feed
from stream.diagnosis.live import TopicUnreachableError, newest_messages
from stream.diagnosis.measures import measure
from stream.diagnosis.observing import observe_file, observe_messages
from stream.diagnosis.reading import InspectionError, Observations, read_recording
from stream.diagnosis.times import time_form
from stream.sources.lines import StandardInput
from tests.stream.sources.agency import START, Agency, answer, feed_message, siri_bytes, snapshot_bytes
from tests.support.builders import SLOT
from tests.support.command import run
from tests.support.counting_calls import calls_in
from tests.support.feeding import create_topic
from tests.support.inspecting import CONFIG, inspected, problems
from tests.support.nightly import nightly_but

STEP_S, VEHICLES, FIXES = 30, 8, 120
NORTH = 10 / 111_195
"""Degrees of latitude in ten metres."""


def fleet(**columns: Any) -> Observations:
    """Eight vehicles that drive north at 36 km/h for an hour, in order of time; ``columns`` replace some."""
    user = np.tile(np.arange(VEHICLES), FIXES)
    seconds = np.repeat(np.arange(FIXES) * STEP_S, VEHICLES)
    n = len(user)
    return Observations(
        **{
            "kind": "JSON",
            "format": "canonical",
            "feed": CONFIG.feed,
            "user": user,
            "time_us": (SLOT + seconds) * 1_000_000,
            "lat": 30.2 + NORTH * seconds + user * 1e-5,
            "lng": np.full(n, -97.7),
            "speed": np.full(n, 36.0),
            "arrived_us": (SLOT + seconds + 2) * 1_000_000,
        }
        | columns
    )


def changed(column: np.ndarray, at: Any, value: Any) -> np.ndarray:
    column = column.copy()
    column[at] = value
    return column


def test_a_sound_feed_has_no_faults_and_its_facts_are_right():
    seen = fleet()
    measures = measure(seen)
    assert problems(seen) == []
    assert (measures.fixes, measures.vehicles, measures.on_road) == (960, 8, 8)
    assert measures.interval_s == (30.0, 30.0, 30.0)
    assert measures.speeds.fits == ["km/h"]
    assert measures.speeds.derived_kmh == pytest.approx(36.0, rel=1e-3)
    assert measures.late == {"1m": 0.0, "5m": 0.0, "15m": 0.0, "1h": 0.0, "ahead": 0.0}


SEEN = fleet()


def test_measuring_takes_no_call_for_each_vehicle_or_fix():
    columns = {name: np.tile(getattr(SEEN, name), 10) for name in ("time_us", "lat", "lng", "speed", "arrived_us")}
    many = fleet(**columns, user=np.tile(SEEN.user, 10) + VEHICLES * (np.arange(10 * len(SEEN)) // len(SEEN)))
    assert calls_in(lambda: measure(many)) < 2 * calls_in(lambda: measure(SEEN))


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"speed": np.zeros(960)}, "100% of the speeds are 0"),
    "none": ({"speed": np.full(960, np.nan)}, "100% of the fixes have no speed"),
    "tiny": ({"speed": np.full(960, 1e-6)}, "100% above 0 but below 0.01"),
    "absurd": ({"speed": np.full(960, 7000.0)}, "fit in no unit"),
    "fixed unit": (
        {"format": "itms", "speed_unit": "km/h", "speed": np.full(960, 10.0)},
        "agree with positions in m/s and not in km/h, which format 'itms' fixes; the suggested configuration reads "
        "them in m/s",
    ),
    "fixed unit of a snapshot": (
        {"kind": "GTFS-realtime", "speed_unit": "m/s", "documents": 60},
        "agree with positions in km/h and not in m/s, which GTFS-realtime prescribes; set feed.speed_unit = 'km/h'",
    ),
    "impossible": (
        {"speed_unit": "m/s", "speed": changed(np.full(960, 10.0), [5, 99, 400], 112.0)},
        "3 speeds are above 400 km/h, read in m/s",
    ),
    "all swapped": (
        {"lat": SEEN.lat + 46.9, "lng": np.full(960, 28.6)},
        "around latitude 77.3, longitude 28.6. If the feed is not of that place, latitude and longitude are exchanged",
    ),
    "no zone": ({"local": 1.0}, "The times have no zone. They were read in that of feed.fields.timezone"),
    "negative": ({"speed": changed(SEEN.speed, slice(0, 5), -1.0)}, "0.52% of the speeds are negative"),
    "repeats": ({"time_us": changed(SEEN.time_us, 8, SEEN.time_us[0])}, "1 of 960 fixes repeat a vehicle and time"),
    "disorder": ({"time_us": changed(SEEN.time_us, 80, SEEN.time_us[0] - 1)}, "1 of 960 fixes come after a later one"),
    "teleport": ({"lat": changed(SEEN.lat, 400, 30.9)}, "1 of 960 fixes are reached and left by jumps"),
    "frozen": ({"lat": np.where(SEEN.user == 3, 30.25, SEEN.lat)}, "120 of 960 fixes repeat one position"),
    "late": ({"arrived_us": SEEN.time_us + 400_000_000}, "100.0% of the fixes arrive more than 5 min"),
    "ahead": ({"arrived_us": SEEN.time_us - 400_000_000}, "wrong clocks"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_that_was_put_in_is_counted_and_said(name):
    columns, says = FAULTS[name]
    assert says in " ".join(problems(fleet(**columns)))


def test_what_contradicts_a_given_configuration_is_said(tmp_path):
    """The vehicles drive in Austin at 36 km/h; the configuration is of Delhi, or has another unit."""
    day, path = write_day(tmp_path / "day", "ndjson"), tmp_path / "mine.toml"
    assert "No faults" in written(day)
    assert "No faults" in run("inspect", day, "--config", path).stdout
    text, delhi = path.read_text(), "domain = { south = 28, west = 76.5, north = 30, east = 78 }"
    for line, other, says in (
        ("domain", delhi, "960 of 960 events are refused as out-of-domain: they are of another"),
        ("time_format", "", "960 of 960 events are refused as wrong-type"),
        ("speed_unit", 'speed_unit = "m/s"', "Likely the speeds are in km/h: set feed.speed_unit"),
    ):
        path.write_text(re.sub(rf"(?m)^{line} = .*$", other, text))
        assert says in run("inspect", day, "--config", path).stdout


PLACE = {"type": "Point", "coordinates": [1.5, 2.5]}
NAMES: dict[str, tuple[Any, str]] = {
    "itms": (
        {"license_plate": "a", "observationDateTime": "x", "location": PLACE, "speed": 1},
        "user license_plate, lat location.coordinates.1, lng location.coordinates.0",
    ),
    "HFP": (
        {"VP": {"veh": 1, "tst": "x", "lat": 1.0, "long": 2.0, "spd": 3.0, "oper": 6}},
        "user VP.veh, time VP.tst, lat VP.lat, lng VP.long, speed VP.spd",
    ),
    "normalised NGSI-LD": (
        {
            "id": "urn:ngsi-ld:Vehicle:9",
            "type": "Vehicle",
            "location": {"type": "GeoProperty", "value": PLACE, "observedAt": "x"},
            "speed": {"type": "Property", "value": 3.0, "unitCode": "KMH"},
        },
        "user id, time location.observedAt, lat location.value.coordinates.1, lng location.value.coordinates.0, "
        "speed speed.value",
    ),
    "nested id": (
        {"id": 9, "vehicle": {"id": "a"}, "t": 1, "y": 1.0, "x": 2.0},
        "user vehicle.id, time t, lat y, lng x",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_guessed_by_their_names(name):
    tree, expected = NAMES[name]
    guessed = guess_fields(paths_of(tree))
    assert {tuple(pair.split()) for pair in expected.split(", ")} <= set(guessed.items())
    assert len(set(guessed.values())) == len(guessed)


def write_day(path: Path, kind: str, speed: Callable[[int], float | None] | None = lambda _: 36.0) -> Path:
    """A day in one of the forms; ``speed``: of the n-th fix; without it there is no such field."""
    seen = fleet()
    rows = [
        {"taxi": f"t{u}", "when": t // 1_000_000, "Latitude": lat, "Longitude": -97.7}
        | ({} if speed is None else {"kmh": speed(n)})
        for n, (u, t, lat) in enumerate(zip(seen.user.tolist(), seen.time_us.tolist(), seen.lat.tolist(), strict=True))
    ]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "ndjson":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
            writer.writeheader()
            writer.writerows(rows)
    return path


def written(day: Path, relation: str = "values") -> str:
    """What ``hexveil inspect`` says of a recording, whose configuration it writes as ``mine.toml`` beside it."""
    done = run("inspect", day, "--write", day.parent / "mine.toml", "--relation", relation)
    assert "NOT PRIVATE" in done.stderr
    return done.stdout


def released(day: Path, command: str = "replay") -> dict[str, Any]:
    """The summary of a release of a recording by what was written."""
    options = ["--offline", "--config", day.parent / "mine.toml", "--out", day.parent / "r.ndjson", "--json"]
    summary: dict[str, Any] = json.loads(run(command, day, *options).stdout)
    return summary


@pytest.mark.parametrize("kind", ["parquet", "ndjson", "csv"])
def test_what_is_written_is_a_sound_configuration_by_which_the_file_is_read(kind, tmp_path):
    day = write_day(tmp_path / "day", kind)
    said = written(day)
    assert "960 usable" in said
    assert not re.search(r"\bt[0-7]\b", said), "names a user"
    assert "Austin" not in (tmp_path / "mine.toml").read_text()
    config = load_config(find_config(tmp_path / "mine.toml", "values"))
    assert config.feed.fields is not None
    assert (config.feed.fields.time_format, config.feed.speed_unit) == ("epoch-s", "km/h")
    rows, refusals = read_recording(config, day, "declared")
    assert (len(rows), refusals.counts) == (960, {})


@pytest.mark.parametrize(
    "separator", nightly_but(["\t", " ", ":", "\x01"], [",", ";", "\t", "|", " ", "^", "~", ":", "\x01", "/"])
)
def test_any_one_character_may_separate_columns(separator, tmp_path):
    names = ("bus-id", "when", "y", "x", "v") if separator in ":/" else ("vehicle", "ts", "lat", "lon", "speed")
    day, rows = tmp_path / "day.txt", zip(SEEN.user, SEEN.time_us // 1000, SEEN.lat.tolist(), strict=True)
    table = [names, *((f"b{user}", ms, lat, -97.7, 36.0) for user, ms, lat in rows)]
    day.write_text("\n".join(separator.join(map(str, row)) for row in table))
    said = written(day)
    assert "960 usable" in said
    shown = said.partition("A configuration that fits")[2].partition("\n")[2].partition("\nNext\n")[0]
    assert tomllib.loads(shown)["feed"]["format"] == "declared", "what is shown can be copied"
    assert released(day)["events"] == 960


def of_50_minutes(path: Path, form: str, time: str) -> Path:
    """Events of six buses in one of the formats; ``time``: with a place for the minute."""
    rows: list[dict[str, Any]] = []
    for minute, bus in itertools.product(range(50), range(6)):
        at, lat = time.format(f"{minute:02}"), 30 + minute * 600 / 111_195
        if form == "itms":
            place = {"type": "Point", "coordinates": [-97.7, lat]}
            rows.append({"license_plate": f"b{bus}", "observationDateTime": at, "location": place, "speed": 10.0})
        else:
            fix = {"latitude": lat, "longitude": -97.7, "speed": 36.0}
            rows.append({"vehicle_id": f"b{bus}", "timestamp": at, **fix})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("form", "unit"), [("itms", "m/s"), ("capmetro", "km/h")])
@pytest.mark.parametrize("offset", ["+00:00", ""])
def test_where_a_formats_own_unit_or_zone_does_not_fit_what_is_written_declares_it_and_releases(
    form, unit, offset, tmp_path
):
    day = of_50_minutes(tmp_path / "day.ndjson", form, f"2017-03-21T12:{{}}:00{offset}")
    said = written(day)
    assert (f"agree with positions in {unit} and not in" in said) == (offset != "")
    assert ("The times have no zone" in said) == (offset == "")
    summary = released(day)
    assert (summary["refused"], summary["notes"]) == ({}, [])
    assert summary["windows"]


@pytest.mark.parametrize(
    ("offset", "zone"), [("+05:30", "Asia/Kolkata"), ("-05:00", "Etc/GMT+5"), ("+00:00", "UTC"), ("Z", "UTC")]
)
def test_the_zone_suggested_has_the_offset_of_the_times_and_is_said_not_to_be_the_only_one(offset, zone, tmp_path):
    day = of_50_minutes(tmp_path / "day.ndjson", "itms", f"2021-05-08T08:{{}}:00{offset}")
    (line,) = (line for line in inspected(day).suggestions if line.key == "timezone")
    assert line.value == json.dumps(zone)
    assert (f"most times have {offset}, which several zones share" in line.reason) == (zone != "UTC")


def test_every_offset_that_clocks_show_today_has_a_zone_that_shows_it():
    moments = [datetime(2026, month, 15, tzinfo=UTC) for month in (1, 7)]
    for name in available_timezones() - {"localtime", "Factory"}:
        for moment in moments:
            local = moment.astimezone(ZoneInfo(name))
            form = time_form([local.isoformat()])
            assert form is not None
            if form.offset is None:
                assert not local.utcoffset(), name
            else:
                assert form.zone is not None, name
                assert local.utcoffset() in {one.astimezone(ZoneInfo(form.zone)).utcoffset() for one in moments}, name


@pytest.mark.parametrize(
    ("kind", "speed", "wanted"),
    [("parquet", "absent", "missing"), ("ndjson", "some", "missing"), ("csv", "zero", "derived")],
)
def test_where_speeds_are_absent_or_wrong_what_is_written_derives_them(kind, speed, wanted, tmp_path):
    given = {"absent": None, "some": lambda n: 36.0 if n % 3 else None, "zero": lambda n: 0.0}[speed]
    day = write_day(tmp_path / "day", kind, given)
    said = " ".join(written(day).split())
    assert f"feed.speeds = {wanted!r}" in said
    assert tomllib.loads((tmp_path / "mine.toml").read_text())["feed"]["speeds"] == wanted
    summary = released(day)
    assert summary["refused"] == ({"without-speed": 8} if speed != "some" else {"without-speed": 3})
    assert summary["derived"] >= 300
    checked = run("check", "--config", tmp_path / "mine.toml")
    assert "a derived speed is public as well and is not protected" in checked.stdout


def test_a_map_and_histograms_are_drawn_that_say_they_are_not_private(tmp_path):
    day, drawn = write_day(tmp_path / "day.ndjson", "ndjson"), tmp_path / "feed.svg"
    run("inspect", day, "--plot", drawn)
    assert "<!-- NOT PRIVATE" in drawn.read_text()
    refused = run("inspect", day, "--plot", tmp_path, code=2)
    assert "cannot write" in refused.stderr


@pytest.mark.parametrize(
    ("tenth", "others", "fate"),
    [(36, 36, "count as 0 under"), (None, 36, "count as 0 under"), (900, 900, "are not read")],
)
def test_what_becomes_of_negative_speeds_is_said_as_it_is(tenth, others, fate, tmp_path):
    """Where speeds are derived because some are missing, too: a number is never replaced."""
    day = write_day(tmp_path / "day", "ndjson", lambda n: tenth if n % 10 == 2 else -1.0 if n % 40 == 1 else others)
    done = run("inspect", day, "--json")
    assert f"of the speeds are negative. They {fate}" in " ".join(json.loads(done.stdout)["problems"])


def test_under_participation_nothing_of_where_users_were_is_written(tmp_path):
    written(write_day(tmp_path / "day", "csv"), "participation")
    text = (tmp_path / "mine.toml").read_text()
    assert not re.search(r"^domain =", text, re.MULTILINE)
    assert re.search(r"^resolution = 8 ", text, re.MULTILINE)
    checked = run("check", "--config", str(tmp_path / "mine.toml"), code=2)
    assert "feed.domain" in checked.stderr


def forms() -> dict[str, bytes]:
    """Snapshots of 20 vehicles and a Parquet file of 960 fixes."""
    message, table = feed_message([(f"v{n}", None, 30.2 + n / 100, -97.7, 1e-6) for n in range(20)], SLOT), io.BytesIO()
    tree = json_format.MessageToDict(message)
    columns = {"id": SEEN.user, "ts": SEEN.time_us // 1000, "lat": SEEN.lat, "lon": SEEN.lng, "speed": SEEN.speed}
    pq.write_table(pa.table(columns), table)
    return {
        "protobuf": message.SerializeToString(),
        "JSON": json.dumps(tree).encode(),
        "indented JSON": json.dumps(tree, indent=2).encode(),
        "JSON with its entities first": json.dumps(dict(sorted(tree.items()))).encode(),
        "JSON in snake case": json_format.MessageToJson(message, preserving_proto_field_name=True).encode(),
        "Parquet": table.getvalue(),
    }


@pytest.mark.parametrize(
    ("form", "is_packed"), [(form, packed) for form in forms() for packed in sorted({False, form != "Parquet"})]
)
def test_every_form_is_recognised_by_its_content_from_a_file_and_from_standard_input(form, is_packed, tmp_path):
    body = gzip.compress(forms()[form]) if is_packed else forms()[form]
    (tmp_path / "of no name").write_bytes(body)
    assert len(observe_file(tmp_path / "of no name", 10**6)) == (960 if form == "Parquet" else 20)
    done = run("inspect", "-", "--json", input=body)
    assert json.loads(done.stdout)["fixes"] == (960 if form == "Parquet" else 20)


def test_lines_whose_first_field_is_a_header_are_no_snapshot(tmp_path):
    rows = [{"header": {"v": 1}, "entity": [], "id": n, "ts": SLOT, "lat": 30.2, "lon": -97.7} for n in range(5)]
    (tmp_path / "day").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(observe_file(tmp_path / "day", 10**6)) == 5


FLEET = 12


def snapshot(step: int, per_second: int = 1, speed: float | None = None) -> bytes:
    """Vehicles that drive north at 40 km/h, a snapshot every 30 s; ``per_second``: in which unit timestamps are."""
    time = (START + 30 * step) * per_second
    buses = [(f"bus-{n}", time, 28.6 + 0.003 * step, 77.2 + 0.01 * n, speed) for n in range(FLEET)]
    return snapshot_bytes(buses, time)


TRIP_UPDATE = feed_message([("a", START, 28.6, 77.2, None)])
TRIP_UPDATE.entity[0].ClearField("vehicle")
NO_UNIT = f"{FLEET} time-no-epoch-seconds. Likely their times are outside the years 2000"
UNREADABLE: list[tuple[str, bytes, str]] = [
    ("a.csv", b"a,b,c\n1,2,3\n", "no field looks like"),
    ("a.parquet", b"PAR1 nothing", "not a readable Parquet file"),
    ("a.ndjson", b"nonsense", "no field looks like"),
    ("a.csv", b"id,x\n1,2\n", "A table needs a header, whose names any one character separates"),
    ("a.pb", b"\x0a\x0d\x0a\x032.0\x10\x00\x18\x80\xff\xff", "no vehicle positions"),
    ("empty.csv", b"", "no JSON objects, no header of a table.*If it is empty"),
    ("noise.bin", bytes(range(128, 256)) * 9, "no JSON objects, no header of a table"),
    ("a.zip", b"PK\x03\x04" + bytes(99), "no header of a table.* a zip archive: unpack it first"),
    ("page", b"<html><body>maintenance</body></html>", "XML without a VehicleMonitoringDelivery"),
    ("0.pb", TRIP_UPDATE.SerializeToString(), "Likely the feed has trip updates or alerts and no vehicle position"),
    *[(f"{unit}.pb", snapshot(0, unit), NO_UNIT) for unit in (1_000, 1_000_000, 1_000_000_000, 10_000_000_000)],
]


@pytest.mark.parametrize(("name", "content", "says"), UNREADABLE)
def test_what_cannot_be_inspected_is_refused_with_the_reason(name, content, says, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InspectionError, match=says):
        inspected(tmp_path / name)


async def test_a_topic_is_inspected_by_the_stamps_of_its_broker(kafka, topic_name):
    topic, now = topic_name, time.time()
    await create_topic(kafka, topic, 2, {"message.timestamp.type": "LogAppendTime"})
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for n in range(60):
            event = {"user": f"v{n % 3}", "time": round((now - 600) * 1000) + n, "lat": 30.2, "lng": -97.7, "speed": 0}
            await producer.send_and_wait(topic, json.dumps(event).encode(), key=str(n % 3).encode())
        await producer.send_and_wait(topic, b"rubbish")
    config = KafkaConfig(bootstrap=kafka)
    values, arrived_us, _ = await newest_messages(config, topic, 1_000)
    report = inspect(observe_messages(values, arrived_us, 1_000), (values, arrived_us))
    assert (report.usable, dict(report.refused)) == (60, {"not-json": 1})
    assert report.measures.late["5m"] == 1.0
    assert len((await newest_messages(config, topic, 30))[0]) <= 30
    with pytest.raises(InspectionError, match="nor a topic with messages"):
        await newest_messages(config, f"{topic}-else", 10)
    with pytest.raises(TopicUnreachableError):
        await newest_messages(KafkaConfig(bootstrap="127.0.0.1:9"), topic, 10)


def test_arrays_and_deep_objects_are_counted_and_not_followed():
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    event = b'{"user":"a","time":1490097600000,"lat":30.2,"lng":-97.7,"speed":1}'
    values, arrived_us = [event, b"[1]", deep, b"\xff"], np.full(4, 1_490_097_600_000_000)
    report = inspect(observe_messages(values, arrived_us, 10), (values, arrived_us))
    assert (report.usable, report.refused.total()) == (1, 3)


def test_a_feed_of_hostile_numbers_is_measured_all_the_same():
    """Of places and times that the service takes, with speeds of any kind."""
    rng = np.random.default_rng(3)
    nasty = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, 5e-324])
    for n in (0, 1, 2, 500):
        seen = fleet(
            user=rng.integers(0, 4, n),
            time_us=rng.choice(np.array([SLOT * 10**6, 946_684_800_000_000, 4_102_444_799_000_000]), n),
            lat=rng.choice(np.array([-90.0, 0.5, 90.0]), n),
            lng=rng.choice(np.array([-180.0, 0.0, 180.0]), n),
            speed=rng.choice(nasty, n),
            arrived_us=rng.choice(np.array([-1, 0, 2**61]), n),
        )
        with np.errstate(all="ignore"):
            measures = measure(seen)
            assert problems(seen) is not None
            assert measures.fixes == n
            suggested_feed(seen, measures)
    directed = grid(51.5, -0.1, exchanged=True)
    for speed in (np.inf, -1.0, 0.0):
        assert problems(replace(directed, speed=np.full(len(directed), speed)))


def test_a_folder_of_recordings_is_one_recording(tmp_path):
    for name in ("a", "b"):
        row = f"{name},1490097600000,30.2,-97.7,1\n"
        (tmp_path / f"{name}.csv").write_text("user,time,lat,lng,speed\n" + row)
    assert inspected(tmp_path).usable == 2


def test_damaged_files_of_a_folder_are_counted_and_the_others_read_and_where_there_is_no_other_the_first_is_named(
    tmp_path,
):
    (tmp_path / "0.pb.gz").write_bytes(gzip.compress(snapshot(0))[:-9])
    with pytest.raises(InspectionError, match=r"no vehicle positions in it: .*gzip that are damaged or cut short"):
        observe_file(tmp_path, 100)
    (tmp_path / "1.pb").write_bytes(snapshot(1, speed=11.1))
    (tmp_path / "2.pb").write_bytes(gzip.compress(snapshot(2, speed=11.1)))
    report = inspected(tmp_path)
    assert (report.usable, dict(report.refused)) == (2 * FLEET, {"no snapshot": 1})


def test_of_one_moment_the_suggested_domain_says_that_vehicles_go_farther(tmp_path):
    for step, says in ((0, "than in this one moment"), (1, "where the fixes are, with a margin; check it on a map")):
        (tmp_path / f"{step}.pb").write_bytes(snapshot(step))
        (domain,) = (line for line in inspected(tmp_path).suggestions if line.key == "domain")
        assert says in domain.reason


@pytest.mark.parametrize(("share", "is_far"), [(0.004, True), (0.05, True), (0.3, False)])
def test_a_few_wrong_positions_do_not_make_the_suggested_domain_half_a_continent(share, is_far):
    seen = grid(28.6, 77.2, exchanged=False)
    wrong = np.arange(len(seen)) < share * len(seen)
    seen = replace(seen, lat=np.where(wrong, 1.0, seen.lat), lng=np.where(wrong, 2.0, seen.lng))
    measures = measure(seen)
    assert measures.box is not None
    assert (measures.box[0] > 28) is is_far
    assert measures.far == (wrong.sum() if is_far else 0)
    assert any("lie far from the others" in sentence for sentence in problems(seen)) is is_far


def test_speeds_that_are_derived_already_are_not_asked_for_again(tmp_path):
    for step in range(3):
        (tmp_path / f"{step}.pb").write_bytes(snapshot(step, speed=0.0))
    first, *_ = problems(observe_file(tmp_path, 100))
    assert first.endswith("let speeds be derived from positions: feed.speeds = 'derived'.")


def grid(lat: float, lng: float, *, exchanged: bool, known: bool = True, drift: float = 0.0) -> Observations:
    """Forty vehicles of a city at this place that drive 30 km/h north and east in turn, and report it in km/h.

    ``drift``: by so much too much northwards, as where such streets are straighter.
    """
    steps, vehicles = 41, 40
    user, step = np.repeat(np.arange(vehicles), steps), np.tile(np.arange(steps), vehicles)
    metres = 30 / 3.6 * 30
    north, east = metres * (step // 2) / 111_195, metres * ((step + 1) // 2) / 111_195 / np.cos(np.radians(lat))
    axes = lat + north + 0.001 * user, lng + east
    speed = np.where(step % 2 == 0, 30.0 * (1 + drift), 30.0)
    return Observations(
        kind="JSON",
        format="canonical",
        feed=CONFIG.feed,
        user=user,
        time_us=(START + 30 * step) * 1_000_000,
        lat=axes[exchanged],
        lng=axes[not exchanged],
        speed=speed if known else np.full(len(user), np.nan),
        arrived_us=np.full(len(user), -1),
    )


def says_exchanged(seen: Observations) -> bool:
    return any("perhaps exchanged" in sentence for sentence in problems(seen))


@pytest.mark.parametrize("drift", [-0.12, 0.0, 0.12])
@pytest.mark.parametrize("place", [(51.5, -0.1), (48.2, 16.4), (60.2, 24.9), (-23.5, -46.6), (41.0, 29.0)])
def test_exchanged_axes_are_said_where_speeds_by_direction_tell_and_right_ones_are_not(place, drift):
    assert says_exchanged(grid(*place, exchanged=True, drift=drift))
    assert not says_exchanged(grid(*place, exchanged=False, drift=drift))


def test_where_both_places_are_near_the_equator_or_without_speeds_nothing_is_claimed():
    for place in ((6.5, 3.4), (-1.3, 36.8), (38.0, 23.7), (40.4, -3.7)):
        assert not says_exchanged(grid(*place, exchanged=True))
    assert measure(grid(51.5, -0.1, exchanged=True, known=False)).direction_quotient is None


KMH, EVERY_S, BUSES, STEPS = 36.0, 30, 20, 40


def document(step: int, per_unit: float = 1.0, zone: bool = True, velocity: bool = True) -> bytes:
    """Vehicles that drive north at 36 km/h, whose ``Velocity`` is in a unit of so many km/h."""
    seconds, lat = START + EVERY_S * step, round(59.9 + step * KMH / 3.6 * EVERY_S / 111_195, 6)
    said = f"{KMH / per_unit:.2f}" if velocity else None
    body = siri_bytes([(f"X:secret-{n}", seconds, lat, 10.7 + n / 100, said) for n in range(BUSES)], seconds)
    return body if zone else body.replace(b"Z</RecordedAtTime>", b"</RecordedAtTime>")


def archive(folder: Path, **form: object) -> Path:
    folder.mkdir()
    for step in range(STEPS):
        body = document(step, **form)  # type: ignore[arg-type]
        (folder / f"{step:03}.xml").write_bytes(gzip.compress(body) if step % 2 else body)
    return folder


@pytest.mark.parametrize("unit", ["km/h", "m/s", "mph"])
def test_the_unit_of_velocity_is_found_and_what_the_configuration_says_otherwise(unit, tmp_path):
    report = inspected(archive(tmp_path / "day", per_unit=SPEED_TO_KMH[unit]))
    assert (report.usable, report.measures.vehicles) == (BUSES * STEPS, BUSES)
    lines = {line.key: line for line in report.suggestions}
    assert lines["speed_unit"].value == f'"{unit}"'
    assert lines["format"].reason == "hexveil siri-vm sends canonical events"
    domain = BoundingBox(south=59, west=10, north=61, east=12)
    feed = FeedConfig(name="bus", topic="bus", timezone="Europe/Oslo", domain=domain, speed_unit="m/s")
    said = " ".join(inspected(tmp_path / "day", report.config.model_copy(update={"feed": feed})).problems)
    assert ("if the reported speeds are in m/s" in said) is (unit != "m/s")


def test_times_without_a_zone_and_missing_speeds_are_said(tmp_path):
    seen = observe_file(archive(tmp_path / "day", zone=False, velocity=False), 10**6)
    sentences = " ".join(problems(seen))
    assert "They were read in that of feed.timezone" in sentences
    assert "100% of the fixes have no speed; let speeds be derived" in sentences


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_document_is_recognised_in_any_encoding_that_it_declares(encoding, tmp_path):
    declared = encoding.removesuffix("-sig")
    text = document(0, zone=False).decode().replace('"1.0"', f'"1.0" encoding="{declared}"', 1)
    (tmp_path / "vm.xml").write_bytes(text.encode(encoding))
    seen = observe_file(tmp_path / "vm.xml", 100)
    assert (seen.kind, len(seen), seen.local) == ("SIRI-VM", BUSES, 1.0)


def test_one_document_is_recognised_from_a_file_a_pipe_and_a_folder_with_damaged_ones(tmp_path):
    folder = archive(tmp_path / "day")
    assert len(observe_file(folder / "001.xml", 10**6)) == BUSES
    (folder / "003.xml").write_bytes(b"<html>maintenance</html>")
    (folder / "004.xml").write_bytes(b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><Siri>&a;</Siri>')
    (folder / "005.xml").write_bytes(gzip.compress(document(5))[:-9])
    (folder / "6.txt").write_bytes(b"notes")
    (folder / ".hidden").write_bytes(b"notes")
    seen = observe_file(folder, 10**6)
    assert (len(seen), seen.refused["no snapshot"]) == (BUSES * (STEPS - 3), 4)
    assert len(observe_file(folder, BUSES)) == BUSES
    outcome = run("inspect", "-", "--json", input=document(0))
    assert json.loads(outcome.stdout)["kind"] == "SIRI-VM"
    assert "secret-" not in outcome.output


def test_a_folders_form_is_that_of_most_of_its_files_and_not_of_the_first(tmp_path):
    folder = archive(tmp_path / "day")
    (folder / "0-README.txt").write_text("what this is")
    (folder / "000-error.html").write_bytes(b"<!DOCTYPE html><html>busy</html>")
    seen = observe_file(folder, 10**6)
    assert (seen.kind, len(seen), seen.refused["no snapshot"]) == ("a folder of SIRI-VM", BUSES * STEPS, 2)
    for file in list(folder.glob("*.xml"))[5:]:
        file.unlink()
    for k in range(6):
        (folder / f"{k}.pb").write_bytes(snapshot_bytes([], None))
    with pytest.raises(InspectionError, match="no vehicle positions in it"):
        observe_file(folder, 10**6)


def test_what_is_written_releases_the_archive_in_the_right_unit(tmp_path):
    folder = archive(tmp_path / "day", per_unit=3.6)
    written(folder)
    summary = released(folder, "siri-vm")
    assert (summary["events"], summary["refused"]) == (BUSES * STEPS, {})
    assert not [note for note in summary["notes"] if "Note" in note or "speeds" in note], "they agree with positions"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (document(0), "SIRI-VM"),
        (gzip.compress(document(0)), "SIRI-VM"),
        (b'{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}\n' * 3, "JSON, one object per line"),
        (b'[{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}]', "JSON, arrays of objects"),
        (b"bus;time;lat;lng\n7;1757581200;59,9;10,7\n", "CSV, separated by semicolons"),
    ],
)
def test_an_address_is_inspected_whatever_its_format(body, kind):
    with Agency([answer(200, body)]) as agency:
        outcome = run("inspect", agency.url, "--json")
    assert json.loads(outcome.stdout)["kind"] == kind


def test_an_answer_that_cannot_be_read_is_named_as_such_and_not_as_a_file():
    lines = b'{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}\n' * 9
    with Agency([answer(200, gzip.compress(lines)[:-8])]) as agency:
        outcome = run("inspect", agency.url, code=2)
    assert "the answer: the gzip stream is cut short" in outcome.output
    assert "/tmp" not in outcome.output


def test_an_inspection_reads_its_limit_of_events_whatever_arrays_hold_and_keeps_no_other_field(tmp_path):
    extra = ",".join(f'"x{k}":"{k}"' for k in range(100))
    row = f'{{"user":"a","time":1490097600000,"lat":30.2,"lng":-97.7,"speed":1,{extra}}}\n'
    (tmp_path / "day").write_text(row * 40_000)
    tracemalloc.start()
    seen = observe_file(tmp_path / "day", 2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) < 4_000
    assert peak < 40_000_000, "2000 trees are a sample"
    arrays = [f"[{','.join([row] * 50)}]".encode()] * 3
    assert len(observe_messages(arrays, np.full(3, 1_490_097_600_000_000), 120)) == 120


def test_of_an_endless_snapshot_on_standard_input_no_more_is_read_than_a_snapshot_may_have(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    stored = StandardInput()

    def endless() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb", buffering=0) as pipe:
            while True:
                pipe.write(b"header {")

    writer = threading.Thread(target=endless, daemon=True)
    writer.start()
    assert stored.peek(8) == b"header {"
    assert stored.read_whole(100_000) == b"header {" * 12_500
    sys.stdin.close()
    writer.join(10)
    assert not writer.is_alive()


def test_a_source_whose_name_is_too_long_for_a_file_is_no_file(monkeypatch):
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    run("inspect", "a" * 300, code=3)
