"""Recordings become the messages a live producer would have sent."""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from stream.config.feed import FeedConfig
from stream.sources import lines as lines_module
from stream.sources.lines import Lines, RecordingError
from stream.sources.messages import Messages
from stream.sources.recording import Recording, Replay, in_time_order
from tests.stream.sources.recordings import feed, gathered

CAPMETRO_HEADER = b"vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign\n"
ITMS = (
    b'{"vehicle_label":"M22","location":{"coordinates":[72.848299,21.144356],"type":"Point"},"speed":17.0,'
    b'"observationDateTime":"2021-05-08T08:29:45+05:30","license_plate":"GJ05NH3216"}'
)


def read(path: Path, file_format: str, target: FeedConfig) -> Messages:
    with Recording(path, file_format, target) as recording:
        return gathered(recording)


@pytest.fixture
def capmetro(tmp_path: Path) -> Path:
    path = tmp_path / "day.csv"
    path.write_bytes(
        CAPMETRO_HEADER
        + b"2619,2017-03-21T00:00:31-05:00,17.43456,1,1723912,30.19826,-97.77679,1-Metric/South Congress-SB\n"
        + b'77,2017-03-21T00:00:30-05:00,0.44704,1,9,30.2,-97.7,"A, B"\r\n'
    )
    return path


def test_a_row_of_capmetro_or_itms_becomes_a_canonical_event_in_kmh(capmetro, tmp_path):
    messages = read(capmetro, "capmetro", feed())
    place = {"lat": 30.19826, "lng": -97.77679}
    row = {"user": "2619", "time": "2017-03-21T00:00:31-05:00", "speed": 62.764416} | place
    assert json.loads(messages.values[0]) == row
    assert messages.keys == [b"2619", b"77"]
    assert messages.due[0] == datetime.fromisoformat("2017-03-21T05:00:31Z").timestamp() * 1e6
    (tmp_path / "feed.ndjson").write_bytes(ITMS)
    place = {"lat": 21.144356, "lng": 72.848299}
    row = {"user": "GJ05NH3216", "time": "2021-05-08T08:29:45+05:30", "speed": 17.0} | place
    assert json.loads(read(tmp_path / "feed.ndjson", "itms", feed()).values[0]) == row


@pytest.mark.parametrize(
    ("file_format", "unit", "expected"),
    [
        ("capmetro", "km/h", 17.43456 * 3.6),
        ("capmetro-2015", "km/h", 17.43456 * 1.609344),
        ("capmetro", "m/s", 17.43456),
        ("capmetro", "mph", 39.0),
    ],
)
def test_speed_arrives_in_the_unit_that_the_feed_declares(capmetro, file_format, unit, expected):
    value = json.loads(read(capmetro, file_format, feed(speed_unit=unit)).values[0])
    assert value["speed"] == pytest.approx(expected, abs=1e-6)


def test_a_row_goes_as_an_object_of_its_own_columns_to_a_feed_of_its_own_format(capmetro):
    value = json.loads(read(capmetro, "capmetro", feed(format="capmetro")).values[1])
    assert value["trip_headsign"] == "A, B"
    assert (value["vehicle_id"], value["speed"], value["latitude"]) == ("77", 0.44704, 30.2)


def test_ndjson_of_the_feeds_format_passes_byte_for_byte(tmp_path):
    path = tmp_path / "feed.ndjson.gz"
    path.write_bytes(gzip.compress(ITMS + b"\nnot json at all\n") + gzip.compress(ITMS))
    messages = read(path, "itms", feed(format="itms"))
    assert messages.values == [ITMS, b"not json at all", ITMS]
    assert messages.keys == [b"GJ05NH3216", None, b"GJ05NH3216"]
    assert messages.unread == 1


HOSTILE = [
    b"only,three,cells",
    b"1,2017-03-21T00:00:31-05:00,fast,1,2,30.2,-97.7,x",
    b"1,yesterday,1.0,1,2,30.2,-97.7,x",
    b"1,2017-03-21T00:00:31,1.0,1,2,30.2,-97.7,no offset",
    b"1,2017-03-21T00:00:31-05:00,1.0,1,2,nan,-97.7,x",
    b'"unclosed,2017-03-21T00:00:31-05:00,1.0,1,2,30.2,-97.7,x',
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("target", ["canonical", "capmetro"])
def test_a_malformed_row_is_passed_on_and_counted_and_its_neighbours_survive(capmetro, bad, target):
    good = capmetro.read_bytes()
    capmetro.write_bytes(good + bad + b"\n" + good.removeprefix(CAPMETRO_HEADER))
    messages = read(capmetro, "capmetro", feed(format=target))
    assert messages.unread == 1
    assert [key is None for key in messages.keys] == [False, False, True, False, False]


def test_a_cut_gzip_yields_what_it_holds_and_then_says_so(tmp_path):
    rows = b"".join(b"%d,2017-03-21T00:00:31-05:00,1.0,1,2,30.2,-97.7,%d\n" % (i, i * 7919) for i in range(5000))
    whole = gzip.compress(CAPMETRO_HEADER + rows)
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    got: list[Messages] = []
    with pytest.raises(RecordingError, match=r"cut short after \d+ bytes; \d+ lines were read"):
        got.extend(Replay(path, "capmetro", feed()))
    assert 1000 < len(gathered(got).values) < 5000


def test_a_damaged_first_line_that_begins_like_gzip_costs_no_other_line(tmp_path):
    path = tmp_path / "day.ndjson"
    path.write_bytes(b"\x1f\x8b\x08" + ITMS + b"\n" + ITMS + b"\n")
    messages = read(path, "itms", feed(format="itms"))
    assert messages.values[1] == ITMS
    assert messages.unread == 1


def test_a_damaged_gzip_is_an_error_in_words(tmp_path):
    whole = bytearray(gzip.compress(bytes(np.random.default_rng(0).integers(65, 90, 400_000, dtype=np.uint8))))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "bad.ndjson.gz"
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match="damaged gzip"):
        read(path, "canonical", feed())


@pytest.mark.parametrize(
    ("content", "file_format", "target", "message"),
    [
        (b"", "capmetro", "canonical", "empty"),
        (b"a,b\n1,2\n", "capmetro", "canonical", "no column"),
        (CAPMETRO_HEADER, "itms", "canonical", "not read from CSV"),
        (CAPMETRO_HEADER, "capmetro", "itms", "cannot be sent to a feed of format 'itms'"),
        (CAPMETRO_HEADER, "capmetro-2015", "capmetro", "cannot be sent"),
        (CAPMETRO_HEADER, "gpx", "canonical", "cannot read format"),
        (CAPMETRO_HEADER, "declared", "canonical", r"\[feed.fields\]"),
    ],
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


def blocks_of(due: np.ndarray, size: int) -> Iterator[Messages]:
    for at in range(0, len(due), size):
        part = due[at : at + size]
        yield Messages(part, [b"k"] * len(part), [b"%d" % (at + i) for i in range(len(part))], unread=1)


@pytest.mark.parametrize("run_rows", [10**9, 1000, 37])
def test_time_order_is_a_stable_sort_whether_it_spills_or_not(run_rows):
    due = np.random.default_rng(3).integers(0, 400, 5000)
    messages = gathered(in_time_order(blocks_of(due, 100), run_rows))
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


@pytest.mark.parametrize("time", ["\u00b2", "1" * 5000, "9" * 30, "-", "--5", "\ud7ff", "NaN"])
def test_a_row_whose_time_no_reader_foresaw_is_passed_on_unread_and_the_next_ones_follow(tmp_path, time):
    path = tmp_path / "odd.csv"
    rows = [f"7,{moment},1.0,1,2,30.2,-97.7,9\n" for moment in (time, "2017-03-21T00:00:31-05:00")]
    path.write_bytes(CAPMETRO_HEADER + "".join(rows).encode())
    messages = gathered(Replay(path, "capmetro", feed()))
    assert len(messages.values) == 2
    assert json.loads(messages.values[-1])["user"] == "7"
