"""A recording of which nothing can be used is refused with reasons, counts, examples and the likely cause."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream.local.kafka import REPO_ROOT
from tests.support.builders import SLOT
from tests.support.command import run

BUS, RIDERS = (str(REPO_ROOT / "config" / name) for name in ("bus-fleet.toml", "riders-live.toml"))
DAY = ("--from", "2017-03-21T04:00", "--until", "2017-03-21T08:00")
EVENT = {"user": "bus-17", "time": SLOT * 1000, "lat": 30.25, "lng": -97.7, "speed": 20}


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def events(**changes: Any) -> bytes:
    return lines(*[EVENT | changes] * 128)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; nothing answers on the network, so what is sent would be exit 3."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # the recordings are of 2017
    return tmp_path


PARQUET = b"PAR1\x15\x04\x15" + bytes(range(256)) * 20
GTFS_RT = b"\x0a\x0b\x0a\x032.0\x10\x00\x18\x80\x94\xeb\xdc\x03" + b"\x12\x20\n\x0412345" * 40
SIRI = b'<?xml version="1.0"?>\n<Siri>\n' + b"<VehicleActivity/>\n" * 50 + b"</Siri>\n"

CAPMETRO = {"vehicle_id": 1, "timestamp": "2017-03-21T07:00:00-05:00", "latitude": 30.2, "longitude": -97.7, "speed": 5}


def table(event: dict[str, Any]) -> bytes:
    """A sound Parquet file of two such events."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([event] * 2), file)
    return file.getvalue()


def driving(lat: float, speed: float) -> bytes:
    """Five buses that drive north from there at 36 km/h for half an hour."""
    places = [(bus, SLOT + 30 * step, lat + step / 371) for step in range(60) for bus in range(5)]
    fixes = [{"user": f"b{bus}", "time": at * 1000, "lat": north, "speed": speed} for bus, at, north in places]
    return lines(*(EVENT | fix for fix in fixes))


USELESS: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "empty": ("day.ndjson", b"", ("contains no events",)),
    "Parquet": ("day.parquet", PARQUET, ("not a readable Parquet file",)),
    "Parquet in gzip": ("day.parquet.gz", gzip.compress(table(EVENT)), ("a Parquet file that is compressed by gzip",)),
    "GTFS-RT": ("day.pb", GTFS_RT, ("GTFS-realtime", "hexveil gtfs-rt")),
    "SIRI": ("day.xml", SIRI, ("not-json", "XML, as SIRI is")),
    "an array": (
        "day.json",
        json.dumps([EVENT | {"lat": 21.17}] * 3, indent=1).encode(),
        ("3 out-of-domain, like row 0",),
    ),
    "Parquet of texts": ("texts.parquet", table(EVENT | {"time": "noon"}), ()),
    "zip": ("day.zip", b"PK\x03\x04" + b"\0" * 100, ("a zip archive",)),
    "UTF-16": ("day.ndjson", events().decode().encode("utf-16"), ("UTF-16",)),
    "CSV by another name": ("day.txt", b"user,time,lat,lng,speed\na,1,2,3,4\n", ("1 too-old",)),
    "semicolons": ("day.csv", b"user;time;lat;lng;speed\na;1;2;3;4\n", ("1 too-old",)),
    "tabs without a name": ("day", b"id\twhen\ty\tx\tv\n1\t2\t3\t4\t5\n", ("no column lat", "[feed.fields]")),
    "another table": ("day.csv", b"vehicle_id,timestamp,latitude,longitude,speed\n", ("--format capmetro",)),
    "unknown columns": ("day.csv", b"id,when,y,x,v\n1,2,3,4,5\n", ("no column lat", "[feed.fields]")),
    "another format": ("day.ndjson", lines(CAPMETRO), ("1 missing-field", "--format capmetro")),
    "other fields": ("day.ndjson", lines({"id": 1, "x": 2}), ("among id, x", "[feed.fields]")),
    "another city": (
        "day.ndjson.gz",
        gzip.compress(events(lat=21.17, lng=72.83)),
        ("128 out-of-domain, like row 0: lat, lng", "of another place than feed.domain"),
    ),
    "swapped": ("day.ndjson", events(lat=-97.7, lng=30.25), ("latitude and longitude are swapped",)),
    "seconds": (
        "day.ndjson",
        events(time=SLOT),
        ("128 too-old, like row 0: time", "s since 1970", "time_format = 'epoch-s'"),
    ),
    "seconds in a CSV": (
        "day.csv",
        b"user,time,lat,lng,speed\n" + b"a,%d.5,30.25,-97.7,20\n" % SLOT * 3,
        ("3 too-old", "time_format = 'epoch-s'"),
    ),
    "microseconds": (
        "day.ndjson",
        events(time=SLOT * 1_000_000),
        ("128 in-future", "us since 1970", "time_format = 'epoch-us'"),
    ),
    "no offset": ("day.ndjson", events(time="2017-03-21T07:00:00"), ("128 wrong-type", "no offset from UTC")),
    "no time": ("day.ndjson", events(time="noon"), ("128 wrong-type", "times are like 'aaaa'")),
    "text": ("day.ndjson", events(lat="north", lng="west"), ("lat, lng are no numbers",)),
}


@pytest.mark.parametrize("command", ["replay {} --offline --json", "replay {}", "evaluate {} --trials 1"])
@pytest.mark.parametrize("name", USELESS)
def test_a_recording_without_a_usable_event_is_wrong_usage_and_says_why(desk, name, command):
    file, content, says = USELESS[name]
    (desk / file).write_bytes(content)
    done = run(*command.format(file).split(), "--config", BUS, code=2)
    stderr = done.stderr
    assert done.stdout == ""
    if command.startswith("evaluate") and name in ("GTFS-RT", "SIRI"):  # which it reads
        assert "no vehicle positions" in stderr
        return
    assert file in stderr
    for words in says:
        assert words in stderr.replace("\n", " "), stderr
    assert "bus-17" not in stderr, "an example names a user"
    assert file != "texts.parquet" or "It seems to be" not in stderr, "it was read to its end"


def test_a_recording_is_looked_through_for_its_first_sound_event_before_anything_is_sent(desk):
    (desk / "late.ndjson").write_bytes(lines(*[EVENT | {"lat": 0.0}] * 3_000, EVENT))
    assert "Kafka" in run("replay", "late.ndjson", "--order", "file", "--config", BUS, code=3).stderr


def test_a_span_without_events_names_the_span_that_has_some(desk):
    (desk / "day.ndjson").write_bytes(events())
    span = ("--from", "2020-01-01", "--until", "2020-01-02")
    done = run("replay", "day.ndjson", "--offline", "--config", BUS, *span, code=2)
    assert done.stdout == ""
    assert "from 2017-03-21T12:00:00Z to 2017-03-21T12:00:00Z" in done.stderr


@pytest.mark.parametrize("content", [events(lat=0.0), events(time=(SLOT - 86_400) * 1000)])
def test_under_participation_windows_are_released_all_the_same_and_the_command_says_that_they_are_empty(
    desk, monkeypatch, content
):
    monkeypatch.delenv("HEXVEIL_WINDOW__LATENESS")
    monkeypatch.setenv("HEXVEIL_WINDOW__SLOT", "4h")
    monkeypatch.setenv("HEXVEIL_HEXAGONS__RESOLUTION", "6")
    (desk / "day.ndjson").write_bytes(content)
    done = run("replay", "day.ndjson", "--offline", "--config", RIDERS, *DAY, code=2)
    assert "only noise" in done.stderr
    assert sum(json.loads(line)["topic"] == "hexveil.window.v1" for line in done.stdout.splitlines()) == 1


def test_some_refused_events_are_counted_with_an_example_and_end_well(desk):
    (desk / "day.ndjson").write_bytes(events() + events(lat=95)[: len(events(lat=95)) // 128] + b"nonsense\n")
    stderr = run("replay", "day.ndjson", "--offline", "--config", BUS).stderr
    assert "1 out-of-domain, like row 128: lat, lng" in stderr
    assert "1 not-json, like row 129" in stderr
    assert "Likely" not in stderr


@pytest.mark.parametrize(("arguments", "ends"), [(["--offline"], 0), ([], 3)])
def test_speeds_that_would_agree_better_in_another_unit_are_noted_and_not_refused(desk, arguments, ends):
    """Speeds in mph that are read as km/h. Without --offline nothing answers, which is exit 3."""
    (desk / "day.ndjson").write_bytes(driving(30, 36 / 1.609344))
    said = " ".join(run("replay", "day.ndjson", "--config", BUS, *arguments, code=ends).stderr.split())
    assert "Note: if the reported speeds are in km/h, they are 22.4 km/h in the mean" in said
    assert "Perhaps the speeds are in mph or kn: ask whoever runs the feed, and set feed.speed_unit = 'mph'" in said


@pytest.mark.parametrize(("arguments", "ends"), [(["--offline", *DAY], 0), ([], 3)])
def test_under_participation_no_speed_decides_whether_a_recording_is_released_or_sent(
    desk, monkeypatch, arguments, ends
):
    """Speeds in m/s that are read as km/h, which is refused under "values". Without --offline nothing answers, which is
    exit 3."""
    monkeypatch.delenv("HEXVEIL_WINDOW__LATENESS")
    monkeypatch.setenv("HEXVEIL_WINDOW__SLOT", "4h")
    monkeypatch.setenv("HEXVEIL_HEXAGONS__RESOLUTION", "6")
    (desk / "day.ndjson").write_bytes(driving(30.2, 10))
    monkeypatch.setenv("HEXVEIL_WINDOW__MAX_AGE", "36500d")
    run("replay", "day.ndjson", "--config", RIDERS, *arguments, code=ends)
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")
    assert "speed_unit" in run("replay", "day.ndjson", "--config", BUS, *arguments[:1], code=2).stderr


@pytest.mark.parametrize("command", [("replay", "--offline", "--format", "capmetro", "--config", BUS), ("inspect",)])
def test_a_table_without_a_header_is_said_to_have_none_and_its_first_row_is_not_quoted(command, desk):
    (desk / "day.csv").write_text("secret-17,2017-03-21T07:00:00-05:00,30.19,-97.77,5\n" * 20)
    stderr = run(command[0], "day.csv", *command[1:], code=2).stderr
    assert "its first line has numbers, so it is no header: write the names of its columns before it" in stderr
    assert "secret" not in stderr
