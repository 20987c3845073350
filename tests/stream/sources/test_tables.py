"""Parquet, CSV of any separator and standard input give the same events as JSON; wrong units are recognised and
reported.
"""

import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
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
from stream.sources.lines import RecordingError
from stream.sources.recording import Replay
from stream.storage.row_store import ROW
from tests.stream.sources.recordings import feed as feed_of
from tests.support.builders import SLOT
from tests.support.feeding import make_config

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
    return feed_of(format="declared", speed_unit=unit, fields=FeedFields(**(FIELDS | changes)))


def read_day(path: Path, feed: FeedConfig, tmp_path: Path) -> tuple[np.ndarray, Refusals]:
    config = make_config().model_copy(update={"feed": feed})
    privacy = config.privacy.model_copy(update={"user_key_file": tmp_path / "user.key"})
    return read_recording(config.model_copy(update={"privacy": privacy}), path, "declared")


def rows_of(path: Path, feed: FeedConfig, tmp_path: Path) -> np.ndarray:
    rows, _ = read_day(path, feed, tmp_path)
    assert rows.dtype == ROW
    return rows


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
        lists = {column: table[column] for column in FIELDS.values()}
        objects = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
        lines = tmp_path / "day.ndjson"
        lines.write_text("".join(json.dumps(item) + "\n" for item in objects))
        assert (rows_of(lines, feed, tmp_path) == rows).all()
        for separator, number in ((",", str), (";", lambda x: str(x).replace(".", ",")), ("\t", str), ("|", str)):
            texts = [[str(i["vehicle"]), str(i["seen"]), *(number(i[c]) for c in "yxv")] for i in objects]
            body = "\n".join(separator.join(line) for line in [list(lists), *texts])
            path = tmp_path / "day.gz"
            path.write_bytes(gzip.compress(body.encode()))
            assert (rows_of(path, feed, tmp_path) == rows).all(), separator


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
SOUND = 8
"""So many of these texts, the first, are times with an offset from UTC."""


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
        assert len(rows) == SOUND + (last != "junk")


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
    "no identifiers": ({"vehicle": [1.5] * N}, {}, "wrong-type"),
    "a day is no time": ({"seen": pa.array([17_000] * N, pa.date32())}, {}, "wrong-type"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_table_that_does_not_fit_is_refused_with_the_remedy(name, tmp_path):
    changes, fields, says = WRONG[name]
    path = write(tmp_path / "day.parquet", **columns(**changes))
    with pytest.raises(RecordingError, match=says):
        require_events(path, read_day(path, declared(**fields), tmp_path)[1])


def test_a_zone_for_numbers_is_refused():
    with pytest.raises(ValueError, match="remove timezone"):
        declared(time_format="epoch-s", timezone="UTC")


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
    config = make_config().model_copy(update={"feed": feed})
    problem = speed_problem(rows_of(path, feed, tmp_path), config, "declared", Accepted())
    assert (problem is None) == (likely is None)
    if problem is not None:
        assert likely is not None
        assert likely in problem[0]
        assert problem[1] == is_refused
    notes: list[str] = []
    if is_refused:
        with pytest.raises(RecordingError, match=f"{likely}.*--any-speed"):
            recognised(Replay(path, "declared", feed), config, path, "declared")
    else:
        recognised(Replay(path, "declared", feed), config, path, "declared", note=notes.append)
        assert notes == ([] if problem is None else [problem[0]])
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
