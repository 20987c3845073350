"""``hexveil inspect`` recognises formats, counts planted faults, and writes a valid configuration."""

import csv
import gzip
import io
import json
import re
import time
import tomllib
from collections.abc import Callable
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
from typer.testing import CliRunner

from stream.cli import app
from stream.config.servers import KafkaConfig
from stream.diagnosis.columns import guess_fields, paths_of
from stream.diagnosis.inspection import inspect, suggested_feed
from stream.diagnosis.live import TopicUnreachableError, newest_messages
from stream.diagnosis.measures import measure
from stream.diagnosis.observing import observe_file, observe_messages
from stream.diagnosis.reading import InspectionError, Observations
from stream.diagnosis.times import time_form
from tests.stream.sources.agency import feed_message
from tests.support.builders import SLOT
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
FAULTS: dict[str, tuple[Observations, dict[str, Any], str]] = {
    "zero": (fleet(speed=np.zeros(960)), {}, "100% of the speeds are 0"),
    "none": (fleet(speed=np.full(960, np.nan)), {}, "100% of the fixes have no speed"),
    "tiny": (fleet(speed=np.full(960, 1e-6)), {}, "100% above 0 but below 0.01"),
    "absurd": (fleet(speed=np.full(960, 7000.0)), {}, "fit in no unit"),
    "fixed unit": (
        fleet(format="itms", speed_unit="km/h", speed=np.full(960, 10.0)),
        {},
        "agree with positions in m/s and not in km/h, which format 'itms' fixes; the suggested configuration reads "
        "them in m/s",
    ),
    "fixed unit of a snapshot": (
        fleet(kind="GTFS-realtime", speed_unit="m/s", documents=60),
        {},
        "agree with positions in km/h and not in m/s, which GTFS-realtime prescribes; set feed.speed_unit = 'km/h'",
    ),
    "impossible": (
        fleet(speed_unit="m/s", speed=changed(np.full(960, 10.0), [5, 99, 400], 112.0)),
        {},
        "3 speeds are above 400 km/h, read in m/s",
    ),
    "all swapped": (
        fleet(lat=SEEN.lat + 46.9, lng=np.full(960, 28.6)),
        {},
        "around latitude 77.3, longitude 28.6. If the feed is not of that place, latitude and longitude are exchanged",
    ),
    "no zone": (fleet(local=1.0), {}, "The times have no zone. They were read in that of feed.fields.timezone"),
    "negative": (fleet(speed=changed(SEEN.speed, slice(0, 5), -1.0)), {}, "0.52% of the speeds are negative"),
    "repeats": (fleet(time_us=changed(SEEN.time_us, 8, SEEN.time_us[0])), {"repeats": 1}, "repeat a vehicle and time"),
    "disorder": (
        fleet(time_us=changed(SEEN.time_us, 80, SEEN.time_us[0] - 1)),
        {"disorder": 1},
        "1 of 960 fixes come after a later one",
    ),
    "teleport": (
        fleet(lat=changed(SEEN.lat, 400, 30.9)),
        {"teleports": 1},
        "1 of 960 fixes are reached and left by jumps",
    ),
    "frozen": (
        fleet(lat=np.where(SEEN.user == 3, 30.25, SEEN.lat)),
        {"frozen": 120},
        "120 of 960 fixes repeat one position",
    ),
    "late": (fleet(arrived_us=SEEN.time_us + 400_000_000), {}, "100.0% of the fixes arrive more than 5 min"),
    "ahead": (fleet(arrived_us=SEEN.time_us - 400_000_000), {}, "wrong clocks"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_that_was_put_in_is_counted_and_said(name):
    seen, counts, says = FAULTS[name]
    measures = measure(seen)
    assert {key: getattr(measures, key) for key in counts} == counts
    assert says in " ".join(problems(seen))


def test_what_contradicts_a_given_configuration_is_said(tmp_path):
    """The vehicles drive in Austin at 36 km/h; the configuration is of Delhi, or has another unit."""
    day, path = write_day(tmp_path / "day", "ndjson"), tmp_path / "mine.toml"
    assert CliRunner().invoke(app, ["inspect", str(day), "--write", str(path), "--relation", "values"]).exit_code == 0
    written, delhi = path.read_text(), "domain = { south = 28, west = 76.5, north = 30, east = 78 }"
    for line, other, says in (
        ("domain", delhi, "960 of 960 events are refused as out-of-domain: they are of another"),
        ("speed_unit", 'speed_unit = "m/s"', "Likely the speeds are in km/h: set feed.speed_unit"),
    ):
        path.write_text(re.sub(rf"(?m)^{line} = .*$", other, written))
        assert says in CliRunner().invoke(app, ["inspect", str(day), "--config", str(path)]).stdout


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


@pytest.mark.parametrize("kind", ["parquet", "ndjson", "csv"])
def test_what_is_written_is_a_sound_configuration_by_which_the_file_is_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    day, runner = write_day(tmp_path / "day", kind), CliRunner()
    done = runner.invoke(app, ["inspect", str(day), "--json", "--write", "mine.toml", "--relation", "values"])
    assert done.exit_code == 0, done.stderr
    assert "NOT PRIVATE" in done.stderr
    report = json.loads(done.stdout)
    assert report["usable"] == 960
    assert report["refused"] == {}
    assert not re.search(r"\bt[0-7]\b", done.stdout), "names a user"
    from stream.config import find_config, load_config
    from stream.diagnosis.reading import read_recording

    assert "Austin" not in (tmp_path / "mine.toml").read_text()
    config = load_config(find_config(tmp_path / "mine.toml", "values"))
    assert config.feed.fields is not None
    assert config.feed.fields.time_format == "epoch-s"
    assert config.feed.speed_unit == "km/h"
    rows, _ = read_recording(config, day, "declared")
    assert len(rows) == 960


@pytest.mark.parametrize(
    "separator", nightly_but(["\t", " ", ":", "\x01"], [",", ";", "\t", "|", " ", "^", "~", ":", "\x01", "/"])
)
def test_any_one_character_may_separate_columns(separator, tmp_path):
    names = ("bus-id", "when", "y", "x", "v") if separator in ":/" else ("vehicle", "ts", "lat", "lon", "speed")
    day, path, runner = tmp_path / "day.txt", tmp_path / "mine.toml", CliRunner()
    rows = zip(SEEN.user.tolist(), (SEEN.time_us // 1000).tolist(), SEEN.lat.tolist(), strict=True)
    table = [names, *((f"b{user}", ms, lat, -97.7, 36.0) for user, ms, lat in rows)]
    day.write_text("\n".join(separator.join(map(str, row)) for row in table))
    done = runner.invoke(app, ["inspect", str(day), "--write", str(path), "--relation", "values"])
    assert done.exit_code == 0, done.stderr
    assert "960 usable" in done.stdout
    shown = done.stdout.partition("A configuration that fits")[2].partition("\n")[2].partition("\nNext\n")[0]
    assert tomllib.loads(shown)["feed"]["format"] == "declared", "what is shown can be copied"
    out = ["--out", str(tmp_path / "r.ndjson"), "--json"]
    released = runner.invoke(app, ["replay", str(day), "--offline", "--config", str(path), *out])
    assert released.exit_code == 0, released.stderr
    assert json.loads(released.stdout)["events"] == 960


def itms(minute: int, bus: int, time: str) -> dict[str, Any]:
    place = {"type": "Point", "coordinates": [-97.7, 30 + minute * 600 / 111_195]}
    return {"license_plate": f"b{bus}", "observationDateTime": time, "location": place, "speed": 10.0}


def capmetro(minute: int, bus: int, time: str) -> dict[str, Any]:
    lat = 30 + minute * 600 / 111_195
    return {"vehicle_id": f"b{bus}", "timestamp": time, "latitude": lat, "longitude": -97.7, "speed": 36.0}


@pytest.mark.parametrize(("event", "unit"), [(itms, "m/s"), (capmetro, "km/h")])
@pytest.mark.parametrize("offset", ["+00:00", ""])
def test_where_a_formats_own_unit_or_zone_does_not_fit_what_is_written_declares_it_and_releases(
    event, unit, offset, tmp_path
):
    day, path, runner = tmp_path / "day.ndjson", tmp_path / "mine.toml", CliRunner()
    times = [f"2017-03-21T12:{minute:02}:00{offset}" for minute in range(50)]
    rows = [event(minute, bus, time) for minute, time in enumerate(times) for bus in range(6)]
    day.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = runner.invoke(app, ["inspect", str(day), "--write", str(path), "--relation", "values"])
    assert done.exit_code == 0, done.stderr
    assert (f"agree with positions in {unit} and not in" in done.stdout) == (offset != "")
    assert ("The times have no zone" in done.stdout) == (offset == "")
    out = ["--out", str(tmp_path / "r.ndjson"), "--json"]
    released = runner.invoke(app, ["replay", str(day), "--offline", "--config", str(path), *out])
    assert released.exit_code == 0, released.stderr
    summary = json.loads(released.stdout)
    assert (summary["refused"], summary["notes"]) == ({}, [])
    assert summary["windows"]


@pytest.mark.parametrize(
    ("offset", "zone"), [("+05:30", "Asia/Kolkata"), ("-05:00", "Etc/GMT+5"), ("+00:00", "UTC"), ("Z", "UTC")]
)
def test_the_zone_suggested_has_the_offset_of_the_times_and_is_said_not_to_be_the_only_one(offset, zone, tmp_path):
    rows = [itms(minute, bus, f"2021-05-08T08:{minute:02}:00{offset}") for minute in range(50) for bus in range(6)]
    day = tmp_path / "day.ndjson"
    day.write_text("".join(json.dumps(row) + "\n" for row in rows))
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
def test_where_speeds_are_absent_or_wrong_what_is_written_derives_them(kind, speed, wanted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"absent": None, "some": lambda n: 36.0 if n % 3 else None, "zero": lambda n: 0.0}[speed]
    day, runner = write_day(tmp_path / "day", kind, given), CliRunner()
    done = runner.invoke(app, ["inspect", str(day), "--json", "--write", "mine.toml", "--relation", "values"])
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert f"feed.speeds = {wanted!r}" in " ".join(report["problems"])
    assert {line["key"]: line["value"] for line in report["suggestions"]}["speeds"] == json.dumps(wanted)
    released = runner.invoke(
        app, ["replay", "day", "--offline", "--config", "mine.toml", "--json", "--out", "r.ndjson"]
    )
    assert released.exit_code == 0, released.stderr
    summary = json.loads(released.stdout)
    assert summary["refused"] == ({"without-speed": 8} if speed != "some" else {"without-speed": 3})
    assert summary["derived"] >= 300
    checked = runner.invoke(app, ["check", "--config", "mine.toml"])
    assert "a derived speed is public as well and is not protected" in checked.stdout


@pytest.mark.parametrize(
    ("tenth", "others", "fate"),
    [(36, 36, "count as 0 under"), (None, 36, "count as 0 under"), (900, 900, "are not read")],
)
def test_what_becomes_of_negative_speeds_is_said_as_it_is(tenth, others, fate, tmp_path):
    """Where speeds are derived because some are missing, too: a number is never replaced."""
    day = write_day(tmp_path / "day", "ndjson", lambda n: tenth if n % 10 == 2 else -1.0 if n % 40 == 1 else others)
    done = CliRunner().invoke(app, ["inspect", str(day), "--json"])
    assert done.exit_code == 0, done.stderr
    assert f"of the speeds are negative. They {fate}" in " ".join(json.loads(done.stdout)["problems"])


def test_under_participation_nothing_of_where_users_were_is_written(tmp_path):
    day, path = write_day(tmp_path / "day", "csv"), tmp_path / "mine.toml"
    done = CliRunner().invoke(app, ["inspect", str(day), "--write", str(path), "--relation", "participation"])
    assert done.exit_code == 0, done.stderr
    written = path.read_text()
    assert not re.search(r"^domain =", written, re.MULTILINE)
    assert re.search(r"^resolution = 8 ", written, re.MULTILINE)
    checked = CliRunner().invoke(app, ["check", "--config", str(path)])
    assert checked.exit_code == 2
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
    done = CliRunner().invoke(app, ["inspect", "-", "--json"], input=body)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["fixes"] == (960 if form == "Parquet" else 20)


def test_lines_whose_first_field_is_a_header_are_no_snapshot(tmp_path):
    rows = [{"header": {"v": 1}, "entity": [], "id": n, "ts": SLOT, "lat": 30.2, "lon": -97.7} for n in range(5)]
    (tmp_path / "day").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(observe_file(tmp_path / "day", 10**6)) == 5


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"a,b,c\n1,2,3\n", "no field looks like"),
        ("a.parquet", b"PAR1 nothing", "not a readable Parquet file"),
        ("a.ndjson", b"nonsense", "no field looks like"),
        ("a.csv", b"id,x\n1,2\n", "A table needs a header, whose names any one character separates"),
        ("a.pb", b"\x0a\x0d\x0a\x032.0\x10\x00\x18\x80\xff\xff", "no vehicle positions"),
        ("empty.csv", b"", "no JSON objects, no header of a table.*If it is empty"),
        ("noise.bin", bytes(range(128, 256)) * 9, "no JSON objects, no header of a table"),
        ("a.zip", b"PK\x03\x04" + bytes(99), "no header of a table.* a zip archive: unpack it first"),
    ],
)
def test_what_cannot_be_inspected_is_refused_with_the_reason(name, content, says, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InspectionError, match=says):
        observe_file(tmp_path / name, 10**6)


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
