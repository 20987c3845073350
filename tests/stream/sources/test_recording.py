"""Recordings become the messages a live producer would have sent: Parquet, CSV of any separator and standard input give
the same events as JSON; wrong units are recognised and reported."""

import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stream.config.feed import FeedConfig, FeedFields
from stream.diagnosis.reading import Accepted, read_recording, recognised, require_events, speed_problem
from stream.diagnosis.refusals import Refusals
from stream.sources import lines as lines_module
from stream.sources.lines import Lines, RecordingError
from stream.sources.messages import Messages
from stream.sources.recording import Recording, Replay, in_time_order
from stream.storage.row_store import ROW
from tests.stream.sources.recordings import feed, gathered
from tests.support.builders import SLOT, bus_config

CAPMETRO_HEADER = b"vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign\n"
ITMS = (
    b'{"vehicle_label":"M22","location":{"coordinates":[72.848299,21.144356],"type":"Point"},"speed":17.0,'
    b'"observationDateTime":"2021-05-08T08:29:45+05:30","license_plate":"GJ05NH3216"}'
)


def read(path: Path, file_format: str, target: FeedConfig) -> Messages:
    with Recording(path, file_format, target) as recording:
        return gathered(recording)


def test_a_row_becomes_a_canonical_event_in_the_unit_of_the_feed_or_an_object_of_its_own(tmp_path):
    capmetro = tmp_path / "day.csv"
    capmetro.write_bytes(
        CAPMETRO_HEADER
        + b"2619,2017-03-21T00:00:31-05:00,17.43456,1,1723912,30.19826,-97.77679,1-Metric/South Congress-SB\n"
        + b'77,2017-03-21T00:00:30-05:00,0.44704,1,9,30.2,-97.7,"A, B"\r\n'
    )
    messages = read(capmetro, "capmetro", feed())
    place = {"lat": 30.19826, "lng": -97.77679}
    row = {"user": "2619", "time": "2017-03-21T00:00:31-05:00", "speed": 62.764416} | place
    assert json.loads(messages.values[0]) == row
    assert messages.keys == [b"2619", b"77"]
    assert messages.due[0] == datetime.fromisoformat("2017-03-21T05:00:31Z").timestamp() * 1e6
    for file_format, unit, speed in (
        ("capmetro-2015", "km/h", 17.43456 * 1.609344),
        ("capmetro", "m/s", 17.43456),
        ("capmetro", "mph", 39.0),
    ):
        value = json.loads(read(capmetro, file_format, feed(speed_unit=unit)).values[0])
        assert value["speed"] == pytest.approx(speed, abs=1e-6)
    own = json.loads(read(capmetro, "capmetro", feed(format="capmetro")).values[1])
    assert own["trip_headsign"] == "A, B"
    assert (own["vehicle_id"], own["speed"], own["latitude"]) == ("77", 0.44704, 30.2)
    (tmp_path / "feed.ndjson").write_bytes(ITMS)
    place = {"lat": 21.144356, "lng": 72.848299}
    row = {"user": "GJ05NH3216", "time": "2021-05-08T08:29:45+05:30", "speed": 17.0} | place
    assert json.loads(read(tmp_path / "feed.ndjson", "itms", feed()).values[0]) == row


def test_ndjson_of_the_feeds_format_passes_byte_for_byte_also_behind_a_line_that_begins_like_gzip(tmp_path):
    path, damaged = tmp_path / "feed.ndjson", b"\x1f\x8b\x08" + ITMS
    packed = gzip.compress(ITMS + b"\nnot json at all\n") + gzip.compress(ITMS)
    for body, odd in ((packed, b"not json at all"), (damaged + b"\n" + ITMS + b"\n", damaged)):
        path.write_bytes(body)
        messages = read(path, "itms", feed(format="itms"))
        assert messages.values == ([ITMS, odd, ITMS] if body == packed else [odd, ITMS])
        assert messages.keys == [None if value == odd else b"GJ05NH3216" for value in messages.values]
        assert messages.unread == 1


def test_a_cut_gzip_yields_what_it_holds_and_then_says_so(tmp_path):
    rows = b"".join(b"%d,2017-03-21T00:00:31-05:00,1.0,1,2,30.2,-97.7,%d\n" % (i, i * 7919) for i in range(5000))
    whole = gzip.compress(CAPMETRO_HEADER + rows)
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    got: list[Messages] = []
    with pytest.raises(RecordingError, match=r"cut short after \d+ bytes; \d+ lines were read"):
        got.extend(Replay(path, "capmetro", feed()))
    assert 1000 < len(gathered(got).values) < 5000


DAMAGED = bytearray(gzip.compress(bytes(np.random.default_rng(0).integers(65, 90, 400_000, dtype=np.uint8))))
DAMAGED[len(DAMAGED) // 2] ^= 0xFF


@pytest.mark.parametrize(
    ("content", "file_format", "target", "message"),
    [
        (b"", "capmetro", "canonical", "empty"),
        (bytes(DAMAGED), "canonical", "canonical", "damaged gzip"),
        (b"a,b\n1,2\n", "capmetro", "canonical", "no column"),
        (CAPMETRO_HEADER, "itms", "canonical", "not read from CSV"),
        (CAPMETRO_HEADER, "capmetro", "itms", "cannot be sent to a feed of format 'itms'"),
        (CAPMETRO_HEADER, "capmetro-2015", "capmetro", "cannot be sent"),
        (CAPMETRO_HEADER, "gpx", "canonical", "cannot read format"),
        (CAPMETRO_HEADER, "declared", "canonical", r"\[feed.fields\]"),
    ],
    ids=range(8),
)
def test_a_recording_that_does_not_fit_is_refused_with_the_remedy(tmp_path, content, file_format, target, message):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        read(path, file_format, feed(format=target))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "x.ndjson"
    path.write_bytes(b"first\n" + b"x" * (5 << 20) + b"\nlast\n")
    with Lines(path) as lines:
        assert [line for block in lines for line in block] == [b"first", b"x" * 1024, b"last"]


@pytest.mark.parametrize("begin", [b"", b"{}\n", b"[\n{},\n["], ids=["nothing", "a line", "an array"])
def test_a_text_in_which_no_line_ends_any_more_is_refused_like_a_device_that_never_ends(begin, tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(lines_module, "LARGEST_DOCUMENT", 4 << 20)
    endless = tmp_path / "endless.ndjson"
    with endless.open("wb") as file:
        file.write(begin)
        file.truncate(1 << 40)  # a hole, which takes no space on the disk
    for path in (endless, Path("/dev/zero")):
        with Lines(path) as text:
            with pytest.raises(RecordingError, match="no line ends in 4 MiB; write one event a line"):
                list(text)
            assert text.position < 8 << 20


@pytest.mark.parametrize("run_rows", [10**9, 1000, 37])
def test_time_order_is_a_stable_sort_whether_it_spills_or_not(run_rows):
    due = np.random.default_rng(3).integers(0, 400, 5000)
    values = [b"%d" % number for number in range(len(due))]
    parts = (slice(at, at + 100) for at in range(0, len(due), 100))
    blocks = (Messages(due[part], [b"k"] * 100, values[part], unread=1) for part in parts)
    messages = gathered(in_time_order(blocks, run_rows))
    expected = np.argsort(due, kind="stable")
    assert [int(value) for value in messages.values] == expected.tolist()
    assert messages.due.tolist() == due[expected].tolist()
    assert messages.unread == 50


def test_the_recorded_day_is_grouped_by_trip_and_comes_out_as_a_live_feed_whose_rows_keep_their_meaning(shared_data):
    path = shared_data / "capmetro" / "2017-03-21.csv.gz"
    as_it_lies = gathered(Replay(path, "capmetro", feed(), order="file"))
    behind = np.maximum.accumulate(as_it_lies.due) - as_it_lies.due > 300_000_000
    assert behind.mean() > 0.9, "in file order nearly every row is more than five minutes late"
    in_order = gathered(Replay(path, "capmetro", feed()))
    assert (np.diff(in_order.due) >= 0).all()
    assert sorted(in_order.values) == sorted(as_it_lies.values)
    assert (len(in_order.values), in_order.unread) == (45_386, 0)
    with gzip.open(path, "rt") as file:
        rows = [line.rstrip("\n").split(",") for line in file][1:]
    for row, key, value in zip(rows, as_it_lies.keys, map(json.loads, as_it_lies.values), strict=True):
        assert value["user"] == row[0] == str(key, "ascii")
        assert datetime.fromisoformat(value["time"]) == datetime.fromisoformat(row[1])
        assert value["speed"] == pytest.approx(float(row[2]) * 3.6, abs=1e-6)
        assert (value["lat"], value["lng"]) == (float(row[5]), float(row[6]))


SOUND_ROW = "7,2017-03-21T00:00:31-05:00,1.0,1,2,30.2,-97.7,9"
ODD_TIMES = ("\u00b2", "1" * 5000, "9" * 30, "-", "--5", "\ud7ff", "NaN", "yesterday", "2017-03-21T00:00:31")
ODD_ROWS = [SOUND_ROW.replace("2017-03-21T00:00:31-05:00", time).encode() for time in ODD_TIMES]
ODD_ROWS += [SOUND_ROW.replace(number, text).encode() for number, text in (("1.0", "fast"), ("30.2", "nan"))]
ODD_ROWS += [b"only,three,cells", b'"unclosed,' + SOUND_ROW[2:].encode(), b"\xff\xfe\x00", b"\r0", b'"a"\r0']


@pytest.mark.parametrize("target", ["canonical", "capmetro"])
def test_a_row_that_no_reader_foresaw_is_passed_on_unread_and_the_others_are_read(tmp_path, target):
    path, sound = tmp_path / "odd.csv", SOUND_ROW.encode()
    for row in ODD_ROWS:
        path.write_bytes(CAPMETRO_HEADER + b"\n".join((sound, row, sound)))
        messages = read(path, "capmetro", feed(format=target))
        assert (messages.keys, messages.unread) == ([b"7", None, b"7"], 1), row


N = 400
ZONE = "America/Chicago"
MOMENTS = [datetime.fromtimestamp(SLOT + 15 * n, UTC) + timedelta(microseconds=250_000 * (n % 4)) for n in range(N)]
FIELDS = {"user": "vehicle", "time": "seen", "lat": "y", "lng": "x", "value": "v"}


def columns(times: Any = None, **changes: Any) -> dict[str, Any]:
    """A fleet of four that drives north at 36 km/h, in the columns that FIELDS names."""
    return {
        "vehicle": [f"bus-{n % 4}" for n in range(N)],
        "seen": pa.array(MOMENTS, pa.timestamp("us", "UTC")) if times is None else times,
        "y": [30.0 + (n // 4) * 60 * 10 / 111_195 for n in range(N)],
        "x": [-97.7] * N,
        "v": [36.0] * N,
        "route": ["7"] * N,
    } | changes


def declared(unit: str = "km/h", **changes: Any) -> FeedConfig:
    return feed(format="declared", speed_unit=unit, fields=FeedFields(**(FIELDS | changes)))


def read_day(path: Path, feed: FeedConfig, tmp_path: Path) -> tuple[np.ndarray, Refusals]:
    config = bus_config(tmp_path).model_copy(update={"feed": feed})
    rows, refusals = read_recording(config, path, "declared")
    assert rows.dtype == ROW
    return rows, refusals


def rows_of(path: Path, feed: FeedConfig, tmp_path: Path) -> np.ndarray:
    return read_day(path, feed, tmp_path)[0]


def write(path: Path, **table: Any) -> Path:
    pq.write_table(pa.table(table), path, row_group_size=150)
    return path


EPOCH_US = [round(moment.timestamp() * 1_000_000) for moment in MOMENTS]
TIMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "timestamps in UTC": (None, {}),
    "timestamps of a zone": (pa.array(MOMENTS, pa.timestamp("ns", "Asia/Shanghai")), {}),
    "local timestamps": (pa.array([us - 5 * 3_600_000_000 for us in EPOCH_US], pa.timestamp("us")), {"timezone": ZONE}),
    "seconds": ([us / 1e6 for us in EPOCH_US], {"time_format": "epoch-s"}),
    "milliseconds": ([us // 1000 for us in EPOCH_US], {"time_format": "epoch-ms"}),
    "microseconds": (EPOCH_US, {"time_format": "epoch-us"}),
    "texts": ([moment.isoformat() for moment in MOMENTS], {}),
    "local texts": (
        [(moment.replace(tzinfo=None) - timedelta(hours=5)).isoformat(" ") for moment in MOMENTS],
        {"timezone": ZONE},
    ),
}


@pytest.mark.parametrize("name", TIMES)
def test_every_form_of_time_gives_the_same_rows_from_parquet_ndjson_and_csv(name, tmp_path):
    times, changes = TIMES[name]
    table = columns(times)
    feed = declared(**changes)
    rows = rows_of(write(tmp_path / "day.parquet", **table), feed, tmp_path)
    assert len(rows) == N
    assert rows["time"].tolist() == EPOCH_US
    if not isinstance(table["seen"], pa.Array):  # JSON and CSV have no timestamps of their own
        objects = pa.table({column: table[column] for column in FIELDS.values()}).to_pylist()
        lines = tmp_path / "day.ndjson"
        lines.write_text("".join(json.dumps(item) + "\n" for item in objects))
        assert (rows_of(lines, feed, tmp_path) == rows).all()
        for separator, number in ((",", str), (";", lambda x: str(x).replace(".", ",")), ("\t", str), ("|", str)):
            texts = [[str(i["vehicle"]), str(i["seen"]), *(number(i[c]) for c in "yxv")] for i in objects]
            body = "\n".join(separator.join(line) for line in [list(FIELDS.values()), *texts])
            (tmp_path / "day.gz").write_bytes(gzip.compress(body.encode()))
            assert (rows_of(tmp_path / "day.gz", feed, tmp_path) == rows).all(), separator


def test_a_local_time_that_occurs_twice_or_never_is_refused_alone(tmp_path):
    local = ["2017-11-05T01:30:00", "2017-03-12T02:30:00", "2017-03-21T07:00:00", None]
    feed = declared(timezone=ZONE)
    for times in (pa.array(local), pa.array([t and datetime.fromisoformat(t) for t in local], pa.timestamp("us"))):
        table = {name: column[:4] for name, column in columns(times).items()}
        assert rows_of(write(tmp_path / "day.parquet", **table), feed, tmp_path)["time"].tolist() == [SLOT * 10**6]


TEXTS = [
    "2017-03-21T12:00:00Z",
    "2017-03-21 07:00:00.5-05:00",
    "2017-03-21T07:00:00.25-0500",
    "2017-03-21t12:00:00.1234567z",
    "2016-02-29T12:00:00Z",
    "2017-03-21 12:00:00+00",  # as Postgres writes it
    "2017-03-21T12:00Z",
    "2017-03-21T12Z",
    "2017-02-29T12:00:00Z",
    "2017-03-21T24:00:00Z",
    "2017-03-21T12:00:00",
    None,
]


@pytest.mark.parametrize("last", ["2017-03-21T12:00:01Z", "2017-03-21T12:00:01+00", "junk"])
def test_the_text_of_one_row_does_not_decide_whether_another_row_is_read(last, tmp_path):
    texts = [*TEXTS, last]
    for kind in (pa.string(), pa.large_string()):
        table = {name: column[: len(texts)] for name, column in columns(pa.array(texts, kind)).items()}
        rows = rows_of(write(tmp_path / "day.parquet", **table), declared(), tmp_path)
        lines = tmp_path / "day.ndjson"
        objects = [dict(zip(table, row, strict=True)) for row in zip(*(table | {"seen": texts}).values(), strict=True)]
        lines.write_text("".join(json.dumps(item) + "\n" for item in objects))
        assert (rows == rows_of(lines, declared(), tmp_path)).all()
        assert len(rows) == 8 + (last != "junk"), "the first eight have an offset from UTC"


ANY_LENGTH = [[-97.7, 30.25], [], None, [-97.7], [-97.7, None], [-97.6, 30.5, 12.0]]


@pytest.mark.parametrize(
    ("kind", "lists"),
    [
        (pa.list_(pa.float64()), ANY_LENGTH),
        (pa.large_list(pa.float64()), ANY_LENGTH),
        (pa.list_(pa.float64(), 2), [[-97.7, 30.25], None, [-97.7, None], [-97.6, 30.5]]),
        (pa.list_(pa.float64(), 1), [[-97.7], None]),
        (pa.null(), [None, None]),
    ],
)
def test_a_list_that_is_too_short_is_a_missing_field_of_its_row_alone(kind, lists, tmp_path):
    feed = declared(lat="at.1", lng="at.0")
    places = pa.array(lists * 50, kind)  # more rows than a row group, so that batches are slices
    table = {name: column[: len(places)] for name, column in columns().items()} | {"at": places}
    whole = [place for place in places.to_pylist() if place is not None and len(place) > 1 and None not in place]
    read, refusals = read_day(write(tmp_path / "day.parquet", **table), feed, tmp_path)
    assert refusals.counts == Counter({"missing-field": len(places) - len(whole)})
    assert (read["lat"] / 1e7).tolist() == [place[1] for place in whole]


def test_rows_without_a_value_are_refused_with_the_reason_that_json_has(tmp_path):
    table = columns(
        v=[None, float("nan"), -1.0, 1e300] + [36.0] * (N - 4), vehicle=["a", "b", "c", "d", "", None] + ["e"] * (N - 6)
    )
    read, refusals = read_day(write(tmp_path / "day.parquet", **table), declared(), tmp_path)
    assert refusals.counts == Counter({"missing-field": 3, "id-empty": 1})
    assert len(read) == N - 4


def test_nested_columns_are_found_by_their_path_and_sent_as_the_feed_has_them(tmp_path):
    table = columns()
    table |= {"at": [{"coordinates": [-97.7, 30.25]}] * N, "id": [{"plate": "a"}] * N}
    feed = declared(lat="at.coordinates.1", lng="at.coordinates.0", user="id.plate")
    messages = list(Replay(write(tmp_path / "day", **table), "declared", feed))
    assert sum(len(block.values) for block in messages) == N
    assert json.loads(messages[0].values[0]) == {
        "id": {"plate": "a"},
        "seen": f"{MOMENTS[0]:%Y-%m-%dT%H:%M:%S}Z",
        "at": {"coordinates": [-97.7, 30.25]},
        "v": 36.0,
    }
    assert messages[0].keys[0] == b"a"


def test_a_canonical_feed_gets_parquet_in_its_own_unit(tmp_path):
    canonical = declared("mph").model_copy(update={"format": "canonical", "fields": None})
    names = {"vehicle": "vehicle_id", "seen": "timestamp", "y": "latitude", "x": "longitude", "v": "speed"}
    table = columns(pa.array(MOMENTS, pa.timestamp("ms", "UTC")), v=[10.0] * N)
    path = write(tmp_path / "day.parquet", **{new: table[old] for old, new in names.items()})
    first = next(iter(Replay(path, "capmetro", canonical)))
    assert json.loads(first.values[0])["speed"] == pytest.approx(10 * 3.6 / 1.609344, abs=1e-6)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no such column": ({}, {"lat": "latitude"}, "no column latitude"),
    "no zone": ({"seen": pa.array(EPOCH_US, pa.timestamp("us"))}, {}, "no offset from UTC.*timezone"),
    "numbers for texts": ({"seen": EPOCH_US}, {}, "time_format = 'epoch-us'"),
    "a zone for numbers": ({}, {"time_format": "epoch-s", "timezone": "UTC"}, "remove timezone"),
    "no identifiers": ({"vehicle": [1.5] * N}, {}, "wrong-type"),
    "a day is no time": ({"seen": pa.array([17_000] * N, pa.date32())}, {}, "wrong-type"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_table_that_does_not_fit_is_refused_with_the_remedy(name, tmp_path):
    changes, fields, says = WRONG[name]
    path = write(tmp_path / "day.parquet", **columns(**changes))
    with pytest.raises(ValueError, match=says):
        require_events(path, read_day(path, declared(**fields), tmp_path)[1])


@pytest.mark.parametrize(
    ("declared_unit", "per_kmh", "likely", "is_refused"),
    [
        ("km/h", 1 / 3.6, "Likely the speeds are in m/s", True),
        ("m/s", 1.0, "Likely the speeds are in km/h", True),
        ("m/s", 1 / 1.609344, "Likely the speeds are in mph or kn", True),
        ("mph", 1 / 3.6, "Likely the speeds are in m/s", True),
        ("km/h", 1 / 1.852, "Likely the speeds are in mph or kn", True),
        ("km/h", 1 / 1.609344, "Perhaps the speeds are in mph or kn", False),
        ("mph", 1.0, "Perhaps the speeds are in km/h", False),
        ("km/h", 1.0, None, False),
        ("kn", 1 / 1.609344, None, False),
        ("mph", 1 / 1.852, None, False),
        ("km/h", 1.5, None, False),
        ("km/h", 0.0, "Likely the feed reports no real speeds", False),
    ],
)
def test_a_wrong_unit_of_speed_is_recognised_by_the_positions(declared_unit, per_kmh, likely, is_refused, tmp_path):
    feed = declared(declared_unit)
    path = write(tmp_path / "day.parquet", **columns(v=[36.0 * per_kmh] * N))
    config = bus_config(tmp_path, **{"window.lateness": "event-time"}).model_copy(update={"feed": feed})
    problem = speed_problem(rows_of(path, feed, tmp_path), config, "declared", Accepted())
    assert (problem is None) == (likely is None)
    assert problem is None or (likely in problem[0], problem[1]) == (True, is_refused)
    notes: list[str] = []
    refusal = pytest.raises(RecordingError, match=f"{likely}.*--any-speed") if is_refused else nullcontext()
    with refusal:
        recognised(Replay(path, "declared", feed), config, path, "declared", note=notes.append)
    assert notes == ([] if problem is None or is_refused else [problem[0]])
    recognised(Replay(path, "declared", feed), config, path, "declared", accepted=Accepted(any_speed=True))


def test_parquet_and_lines_are_read_from_standard_input(tmp_path, monkeypatch):
    feed = declared()
    path = write(tmp_path / "day.parquet", **columns())
    expected = rows_of(path, feed, tmp_path)
    lines = b"".join(value + b"\n" for block in Replay(path, "declared", feed, order="file") for value in block.values)
    for body in (path.read_bytes(), lines, gzip.compress(lines)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        assert (rows_of(Path("-"), feed, tmp_path) == expected).all()


def test_events_of_a_pipe_come_as_they_are_written_and_silence_is_an_empty_block():
    program = (
        "import sys; from pathlib import Path; from stream.sources.lines import Lines\n"
        "for lines in Lines(Path('-')): print(len(lines), flush=True)"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, env=os.environ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for burst in (3, 2):
            child.stdin.write(b"{}\n" * burst)
            child.stdin.flush()
            came = 0
            while came < burst:
                came += int(child.stdout.readline())
            assert came == burst
            time.sleep(0.2)
        child.stdin.close()
        assert {int(line) for line in child.stdout} == {0}
    assert child.returncode == 0
