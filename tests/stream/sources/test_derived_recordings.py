"""A recording without speeds gives the events that a live source gives for the same fixes, in whatever form and chunks.
Under relation "values" the number that a vehicle reports as its speed decides neither whether there is an event, nor
where it is, nor whether its speed is derived. Derived speeds equal those of a plain loop, and never cross vehicles or
periods."""

import itertools
import json
import math
import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from dpcore.earth import EARTH_M
from stream.config.feed import FeedConfig
from stream.diagnosis.reading import ageless, read_recording
from stream.diagnosis.refusals import Refusals
from stream.ingestion.decoding import REASONS, Batch, Decoder, Reason
from stream.ingestion.formats import user_identity
from stream.ingestion.pseudonyms import load_user_key
from stream.local.kafka import REPO_ROOT
from stream.sources import derived_events
from stream.sources.derived_events import DerivedEvents, with_speeds
from stream.sources.derived_speed import CAP_KMH, FROZEN_S, LEAST_S, MOST_S, SpeedDerivation
from stream.sources.hfp import HighFrequencyPositions, Publication
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.recording import in_time_order, open_recording
from stream.sources.siri import SiriVehicleMonitoring
from stream.sources.vehicle_positions import GtfsRealtime
from tests.stream.sources.agency import siri_bytes, snapshot_bytes
from tests.stream.sources.speedless import (
    MINUTES,
    NAMES,
    SPEEDLESS,
    Fix,
    by_vehicle,
    config_of,
    configured,
    day,
    feed,
    live,
    publication,
)
from tests.support.builders import SLOT, bus_config
from tests.support.command import run
from tests.support.environment import environment
from tests.support.feeding import create_topic
from tests.support.topics_reader import PARTITIONS, stored


def write(path: Path, fixes: list[Fix], *, with_speed: bool, names: Mapping[str, str] = NAMES) -> Path:
    """The fixes as ``path`` names their form; without speeds, there is no such column."""
    columns = dict(zip(names.values(), map(list, zip(*fixes, strict=True)), strict=True))
    if not with_speed:
        del columns[names["value"]]
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path, row_group_size=100)
        return path
    if path.suffix == ".csv":
        lines = [",".join("" if cell is None else str(cell) for cell in row) for row in [tuple(columns), *rows]]
    else:
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def events_of(config: Any, path: Path) -> list[bytes]:
    source = DerivedEvents(config.feed, config.slotting)
    with open_recording(path, "declared", config.feed) as recording:
        return [value for block in with_speeds(in_time_order(recording), source) for value in block.values]


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
@pytest.mark.parametrize("with_speed", [False, True])
def test_every_form_gives_the_events_of_a_live_source_however_it_is_ordered_and_cut(
    tmp_path, monkeypatch, kind, with_speed
):
    """A time far ahead costs its vehicle no other event."""
    fixes = [fix if with_speed else (*fix[:4], None) for fix in day()]
    wanted = live(fixes)
    assert sum(b'"derived":true' in value for value in wanted) > 300
    assert any(b"derived" not in value for value in wanted) == with_speed
    ahead: Fix = ("22:1", SLOT + 40 * 365 * 86_400, 30.2, -97.7, None)
    grouped = sorted(fixes, key=lambda fix: fix[0])
    mixed = random.Random(2).sample(fixes, len(fixes))
    config = config_of(tmp_path, feed())
    for at_once, order in ((3, [ahead, *grouped]), (3, fixes + mixed[:200]), (20_000, mixed)):
        monkeypatch.setattr(derived_events, "AT_ONCE", at_once)
        path = write(tmp_path / f"day.{kind}", order, with_speed=with_speed)
        events = by_vehicle(events_of(config, path))
        once = {name: list(dict.fromkeys(own)) for name, own in events.items()}
        assert once == by_vehicle(wanted), "the service counts what is repeated once"


@pytest.mark.parametrize("cell", ["", "n/a", "NaN", "-", "fast"])
def test_a_cell_of_a_table_that_holds_no_number_is_a_missing_speed_and_on_request_none_is_even_read(tmp_path, cell):
    fixes, speeds = day(), "derived" if cell == "fast" else "missing"
    path, known = write(tmp_path / "day.csv", fixes, with_speed=True), ",7.25\n" if speeds == "derived" else ",\n"
    path.write_text(path.read_text(encoding="utf-8").replace(known, f",{cell}\n"), encoding="utf-8")
    wanted = [(*fix[:4], None) for fix in fixes] if speeds == "derived" else fixes
    assert by_vehicle(events_of(config_of(tmp_path, feed(speeds)), path)) == by_vehicle(live(wanted))


def test_offline_a_recording_gives_the_rows_of_the_live_events_and_the_rest_is_counted(tmp_path):
    fixes = [(*fix[:4], None) for fix in day()]
    faults = '\n"x"\n' + "".join(f'{{"bus": "22:1", "seen": {at}, "y": 30.2, "x": -97.7}}\n' for at in ('"noon"', 5))
    path = write(tmp_path / "day.ndjson", fixes, with_speed=False)
    path.write_text(path.read_text(encoding="utf-8") + faults, encoding="utf-8")
    config, values = config_of(tmp_path, feed()), live(fixes)
    rows, refusals = read_recording(config, path, "declared")
    key = load_user_key(config.privacy.user_key_file)
    wanted = Decoder(ageless(config), key).decode(values, (SLOT + 86_400) * 1_000_000).rows
    assert np.array_equal(np.sort(rows), np.sort(wanted))
    assert refusals.derived == refusals.taken == len(values)
    left_out = {"without-speed": len(fixes) - len(values), "time-no-epoch-seconds": 1}
    assert refusals.counts == left_out | {"missing-field": 2}, "what cannot be converted has not the feed's fields"


def test_nobodys_speeds_depend_on_who_else_is_in_the_recording(tmp_path):
    """Not on wrong clocks, nor on so many others that memory is cleared: what relation "participation" requires."""
    fixes = [(*fix[:4], None) for fix in day()]
    config = config_of(tmp_path, feed(), "participation")
    alone = {name: [fix for fix in fixes if fix[0] == name] for name in ("22:1", "22:2", "22:3")}
    rng = random.Random(4)
    others: list[Fix] = [("wrong", SLOT + year * 31_536_000, 30.2, -97.7, None) for year in range(-10, 60)]
    others += [(f"once-{k}", SLOT + rng.randrange(60 * MINUTES), 30.3, -97.6, None) for k in range(6_000)]
    together = by_vehicle(events_of(config, write(tmp_path / "all.ndjson", fixes + others, with_speed=False)))
    for name, own in alone.items():
        path = write(tmp_path / "one.ndjson", own, with_speed=False)
        assert events_of(config, path) == together[name] != []


def test_fields_without_a_speed_need_speeds_to_be_derived_and_derived_events_are_canonical():
    fields = {"user": "bus", "time": "seen", "lat": "y", "lng": "x"}
    assert feed(fields=fields).recorded_format == "declared"
    assert feed(fields=None).recorded_format == "canonical"
    with pytest.raises(ValidationError, match=r"names no value; name it, or set format to 'canonical' and speeds"):
        feed("reported", fields=fields, format="declared")
    with pytest.raises(ValidationError, match="events with derived speeds are canonical"):
        feed(format="capmetro", fields=None)
    with pytest.raises(ValidationError, match="go together"):
        feed("reported")


def replayed(
    hexveil: Sequence[str], tmp_path: Path, kafka: str, topic: str, text: str, names: Mapping[str, str] = SPEEDLESS
) -> str:
    """Run ``hexveil replay`` as the page of derived speeds pipes into it, with a map of fields, which names no speed
    unless ``names`` does; what it says."""
    page = (REPO_ROOT / "docs" / "feeds" / "derived.md").read_text(encoding="utf-8")
    options = re.search(r"hexveil replay - (.*)--config hexveil.toml", page)
    assert options is not None
    servers = {"kafka.bootstrap": kafka, "feed.topic": topic, "privacy.user_key_file": str(tmp_path / "user.key")}
    command = [*hexveil, "replay", "-", "--config", str(configured(tmp_path, names)), *options[1].split()]
    settings = environment(servers | {"window.lateness": "event-time"})
    done = subprocess.run(command, input=text, env=settings, cwd=REPO_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


async def test_through_kafka_a_recording_without_speeds_in_disorder_is_the_live_feed_with_derived_ones(
    kafka, topic, tmp_path, hexveil
):
    fixes = [(*fix[:4], None) for fix in day()]
    wanted, path = live(fixes), tmp_path / "day.csv"
    text = write(path, random.Random(3).sample(fixes, len(fixes)), with_speed=False).read_text().replace(",", ";")
    says = replayed(hexveil, tmp_path, kafka, topic, text)
    assert f"{len(wanted)} events, {len(wanted)} with a derived speed" in says
    assert "a derived speed is public as well and is not protected" in says
    parts = await stored(kafka, topic)
    assert by_vehicle([value for part in parts for _, value in part]) == by_vehicle(wanted)
    assert all(json.loads(value)["user"].encode() == key for part in parts for key, value in part)
    keys = [key for part in parts for key in {key for key, _ in part}]
    assert len(keys) == len(set(keys)), "one vehicle, one partition"


async def test_no_vehicles_speeds_decide_whether_the_documented_pipe_sends_an_hour(
    kafka, topic_name, tmp_path, monkeypatch, hexveil
):
    """An hour of 60 vehicles that report in mph, of which the first reports another speed."""
    monkeypatch.setenv("HEXVEIL_FEED__SPEED_UNIT", "km/h")
    sent = []
    for number, mine in enumerate((7.9, 100.0)):
        topic = f"{topic_name}-{number}"
        await create_topic(kafka, topic, PARTITIONS)
        places = [(v, SLOT + 60 * s, round(30.2 + 0.002 * s, 6), -97.7 + v / 200) for s in range(30) for v in range(60)]
        rows = [{"bus": f"22:{v}", "seen": at, "y": y, "x": x, "v": 7.9 if v else mine} for v, at, y, x in places]
        replayed(hexveil, tmp_path, kafka, topic, "".join(json.dumps(row) + "\n" for row in rows), NAMES)
        events = [json.loads(value) for part in await stored(kafka, topic) for _, value in part]
        sent.append(sorted((e["user"], e["time"], e["lat"], e["lng"]) for e in events))
    assert len(sent[0]) == 60 * 30
    assert sent[0] == sent[1]


@pytest.mark.parametrize("path", ["-", "day.ndjson"])
def test_the_order_of_the_file_is_refused_because_it_would_decide_about_speeds(path, tmp_path):
    day = write(tmp_path / "day.ndjson", [("22:1", SLOT, 30.2, -97.7, None)], with_speed=False)
    named = path if path == "-" else str(day)
    done = run("replay", named, "--order", "file", "--config", str(configured(tmp_path)), code=2)
    assert "leave out --order file" in done.stderr


FINITE = (-1e300, -3e38, -1e6, -40.0, -1.0, -1e-5, -1e-12, -0.0, 0.0, 1e-45, 1e-12, 1e-6, 0.0099, 3.0, 999_999.0)
FINITE += (1e6, 1.1e6, 3e38, 1e300, 1.7e308)
"""Numbers out of the bounds of a measurement, at them, and where rounding or another unit would change what they
are."""


@pytest.mark.parametrize("kind", ["csv", "ndjson", "parquet"])
@pytest.mark.parametrize("file_format", ["declared", "canonical", "capmetro-2015"])
@pytest.mark.parametrize("relation", ["values", "participation"])
def test_no_finite_speed_is_replaced_and_each_counts_as_where_none_is_derived(kind, file_format, relation, tmp_path):
    """Which number a vehicle reports decides nothing here: "values" protects it."""
    rng = random.Random(6)
    fixes: list[Fix] = [(*fix[:4], rng.choice(FINITE) if rng.random() < 0.7 else None) for fix in day()]
    known: list[Fix] = [fix for fix in fixes if fix[4] is not None]
    names = {
        "declared": NAMES,
        "canonical": {role: role for role in NAMES} | {"value": "speed"},
        "capmetro-2015": dict(zip(NAMES, ("vehicle_id", "timestamp", "latitude", "longitude", "speed"), strict=True)),
    }[file_format]
    scale, path = 1 if file_format == "declared" else 1000, tmp_path / f"day.{kind}"

    def read(fixes: list[Fix], chosen: FeedConfig) -> tuple[np.ndarray, Refusals]:
        write(path, [(fix[0], fix[1] * scale, *fix[2:]) for fix in fixes], with_speed=True, names=names)
        return read_recording(config_of(tmp_path, chosen, relation), path, file_format)

    reported, missing = feed("reported", fields=None), feed("missing", fields=None)
    if file_format == "declared":
        reported, missing = feed("reported", format="declared"), feed("missing")
    wanted, why = read(known, reported)
    assert len(wanted) > 100
    got, refusals = read(known, missing)
    assert np.array_equal(np.sort(got), np.sort(wanted))
    assert (refusals.counts, refusals.derived) == (why.counts, 0)
    together, refusals = read(fixes, missing)
    assert refusals.derived > 50
    assert len(together) == len(wanted) + refusals.derived
    assert set(wanted.tolist()) <= set(together.tolist())


def test_no_other_vehicle_decides_what_is_forgotten_and_too_many_end_the_recording(monkeypatch):
    monkeypatch.setattr("stream.sources.snapshot_events.MOST_REMEMBERED", 16)
    monkeypatch.setattr(derived_events, "AT_ONCE", 7)

    def events(others: int) -> list[bytes]:
        """A vehicle that repeats a fix after ``others`` were seen at the same time."""
        names = ["own", *(f"other-{k}" for k in range(others)), "own"]
        rows = [("own", SLOT, 30.2)] + [(name, SLOT + 60, 30.201) for name in names]
        values = [json.dumps({"user": u, "time": 1000 * t, "lat": lat, "lng": -97.7}).encode() for u, t, lat in rows]
        due = np.array([t * 1_000_000 for _, t, _ in rows], dtype=np.int64)
        keys: list[bytes | None] = [u.encode() for u, _, _ in rows]
        source = DerivedEvents(feed(), bus_config(Path("unused")).slotting)
        sent = [value for block in with_speeds([Messages(due, keys, values)], source) for value in block.values]
        return [value for value in sent if b'"own"' in value]

    assert len(events(0)) == 1
    assert events(900) == events(0)
    monkeypatch.setattr("stream.sources.derived_speed.MOST_VEHICLES", 800)
    with pytest.raises(RecordingError, match="more than 800 vehicles"):
        events(900)


@pytest.mark.parametrize("offline", [True, False])
def test_swapped_axes_are_named_where_no_speed_is_reported(offline, tmp_path):
    fixes: list[Fix] = [(name, clock, lng, lat, None) for name, clock, lat, lng, _ in day()]
    path = write(tmp_path / "day.csv", fixes, with_speed=False)
    command = ["replay", str(path), "--config", str(configured(tmp_path)), *(["--offline"] if offline else [])]
    done = run(*command, code=2, env={"HEXVEIL_WINDOW__LATENESS": "event-time"})
    assert f"{len(fixes)} swapped-axes" in done.stderr
    assert "Likely lat and lng are swapped" in done.stderr


def test_the_field_of_users_belongs_to_their_identity_where_speeds_are_derived():
    one, other = (feed(fields={**NAMES, "user": name}) for name in ("bus", "driver"))
    for file_format in (None, "declared"):
        assert user_identity(one, file_format) != user_identity(other, file_format)
    assert user_identity(feed("reported", fields=None)) == "field 'user' of topic bus"


def test_what_is_no_event_is_passed_on_to_be_refused_with_its_reason():
    source = DerivedEvents(feed(), bus_config(Path("unused")).slotting)
    values = [b"not json", b"{}", b'{"user": "a", "time": 1490097600000, "lat": null, "lng": 1}', b"\xff" * 70_000]
    blocks = list(with_speeds([Messages(np.zeros(4, np.int64), [None] * 4, values, 4)], source))
    assert [(block.values, block.unread) for block in blocks] == [(values, 4)]


Speeds = Mapping[tuple[int, int], float | str | None]
"""What each vehicle reports at each step, as a number or its digits; None: nothing."""
CONFIG = config_of(Path("unused"), feed(fields=None, timezone="UTC"))
DECODER = Decoder(CONFIG, bytes(range(32)))
VEHICLES, STEPS = (1, 2), 5
FIXES = [(vehicle, step) for step in range(STEPS) for vehicle in VEHICLES]
PUBLIC = ["cell", "user", "time", "lat", "lng"]
DIGITS = ("3.4028235e38", "-1e39", "1e-400", "1e400", "-1e400", "9" * 400, "-" + "9" * 5000)
"""Numbers at and beyond the bounds of single and double precision, as texts may contain them."""


def clock(step: int) -> int:
    return SLOT + 30 * step


def lat(step: int) -> float:
    return 30.2 + 0.002 * step


def protobuf(step: int, speeds: Speeds) -> bytes:
    """A snapshot, whose speeds are single-precision numbers."""
    reported = {v: speeds[v, step] for v in VEHICLES}
    single = {v: None if s is None else max(min(float(s), 3.4e38), -3.4e38) for v, s in reported.items()}
    buses = [(str(v), clock(step), lat(step), -97.7 + v / 100, single[v]) for v in VEHICLES]
    return snapshot_bytes(buses, clock(step))


def as_json(step: int, speeds: Speeds) -> bytes:
    entities = []
    for v in VEHICLES:
        speed = "" if speeds[v, step] is None else f', "speed": {speeds[v, step]}'
        position = f'{{"latitude": {lat(step)}, "longitude": {-97.7 + v / 100}{speed}}}'
        entities.append(f'{{"id": "{v}", "vehicle": {{"vehicle": {{"id": "{v}"}}, "position": {position}}}}}')
    header = f'"header": {{"gtfsRealtimeVersion": "2.0", "timestamp": {clock(step)}}}'
    return f'{{{header}, "entity": [{", ".join(entities)}]}}'.encode()


def siri(step: int, speeds: Speeds) -> bytes:
    buses = [(str(v), clock(step), lat(step), -97.7 + v / 100, speeds[v, step]) for v in VEHICLES]
    return siri_bytes(buses, clock(step))


def hfp(speeds: Speeds) -> Iterator[tuple[int, Publication]]:
    for vehicle, step in FIXES:
        message = publication((f"22:{vehicle}", clock(step), lat(step), -97.7 + vehicle / 100, None))
        speed = "null" if speeds[vehicle, step] is None else str(speeds[vehicle, step])
        yield step, message._replace(payload=message.payload.replace(b"null", speed.encode()))


DOCUMENTS = {
    "protobuf": (GtfsRealtime, protobuf),
    "JSON": (GtfsRealtime, as_json),
    "SIRI": (SiriVehicleMonitoring, siri),
}
SOURCES = [*DOCUMENTS, "HFP"]


def sent(source: str, speeds: Speeds, config: Any = CONFIG) -> list[bytes]:
    """What a live command sends of all steps."""
    if source == "HFP":
        positions = HighFrequencyPositions(config.feed, config.slotting)
        blocks = [positions.of([message], clock(step) * 1_000_000) for step, message in hfp(speeds)]
    else:
        kind, document = DOCUMENTS[source]
        documents = kind(config.feed, config.slotting, relation=config.relation)
        blocks = [documents.events(document(step, speeds), clock(step) * 1_000_000) for step in range(STEPS)]
    return [value for block in blocks for value in block.values]


def decoded(values: list[bytes], decoder: Decoder = DECODER) -> Batch:
    return decoder.decode(values, clock(STEPS) * 1_000_000)


def public(values: list[bytes]) -> tuple[list[dict[str, Any]], NDArray[np.void], list[int]]:
    """All that a feed makes public under "values": its events without the reported speeds, and the rows that the worker
    keeps."""
    events: list[dict[str, Any]] = [json.loads(value) for value in values]
    shown = [event if event.get("derived") else {k: v for k, v in event.items() if k != "speed"} for event in events]
    batch = decoded(values)
    assert ((batch.rows["value"] >= 0) & (batch.rows["value"] < 2**31)).all()
    return shown, batch.rows[PUBLIC], batch.refused.tolist()


def same(one: list[bytes], other: list[bytes]) -> bool:
    (first, rows, refused), (second, others, again) = public(one), public(other)
    return first == second and np.array_equal(rows, others) and refused == again == []


NUMBERS = st.sampled_from(FINITE) | st.sampled_from(DIGITS) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=len(FIXES), max_size=len(FIXES)), st.data())
def test_feeds_that_differ_in_one_users_speeds_have_the_same_events_at_the_same_places(source, reports, data):
    """Of a live source that derives what is missing. Which fixes have a speed at all is public, as the fixes are."""
    one = {fix: data.draw(NUMBERS) if known else None for fix, known in zip(FIXES, reports, strict=True)}
    other = {fix: data.draw(NUMBERS) if fix[0] == 1 and speed is not None else speed for fix, speed in one.items()}
    assert same(sent(source, one), sent(source, other))
    assert len(sent(source, one)) >= sum(reports)


def test_a_number_beyond_a_formats_precision_or_of_any_size_counts_as_reported():
    for source, number in itertools.product(SOURCES, (*DIGITS, -1.0, 1e-6, 1.1e6)):
        one: Speeds = dict.fromkeys(FIXES, 3.0)
        assert same(sent(source, one), sent(source, one | {(1, 3): number}))


def itms(speed: float) -> bytes:
    place = {"type": "Point", "coordinates": [-97.7, 30.2]}
    event = {"license_plate": "1", "observationDateTime": f"{datetime.fromtimestamp(SLOT, UTC).isoformat()}"}
    return json.dumps(event | {"location": place, "speed": speed}).encode()


def canonical(speed: float) -> bytes:
    return json.dumps({"user": "1", "time": SLOT * 1000, "lat": 30.2, "lng": -97.7, "speed": speed}).encode()


@pytest.mark.parametrize(("file_format", "event"), [("itms", itms), ("canonical", canonical)])
@pytest.mark.parametrize("unit", ["km/h", "m/s", "mph", "kn"])
def test_the_worker_and_the_intake_of_pushed_events_refuse_no_finite_number(file_format, event, unit):
    """Both judge by this decoder. A negative speed counts as 0, and one that int32 cannot hold as the highest that it
    can."""
    chosen = feed("reported", fields=None, format=file_format, speed_unit=unit)
    decoder = Decoder(CONFIG.model_copy(update={"feed": chosen}), bytes(range(32)))
    batch = decoded([event(speed) for speed in FINITE], decoder)
    assert batch.refused.tolist() == []
    assert len(np.unique(batch.rows[PUBLIC])) == 1
    assert (np.diff(batch.rows["value"]) >= 0).all()
    assert batch.rows["value"][: FINITE.index(0.0)].tolist() == [0] * FINITE.index(0.0)
    assert batch.rows["value"][-1] == 2**31 - 1


def test_under_participation_a_negative_speed_refuses_its_own_event(tmp_path):
    decoder = Decoder(config_of(tmp_path, CONFIG.feed, "participation"), bytes(range(32)))
    batch = decoded([canonical(speed) for speed in (-1.0, 3.0, -1e-12)], decoder)
    assert [REASONS[code] for code in batch.reason] == [Reason.NEGATIVE_SPEED] * 2
    assert batch.index.tolist() == [1]


@pytest.mark.parametrize(("reported", "is_replaced"), [(-1.0, True), (1e-6, True), (3e38, True), (0.0, False)])
def test_under_participation_a_live_source_derives_what_is_no_measurement(reported, is_replaced):
    """That follows from the user's own events. The next position of the vehicle has a derived speed, which counts."""
    config = config_of(Path("unused"), CONFIG.feed, "participation")
    values = sent("protobuf", {(v, step): {1: reported, 2: 8.0}[v] for v, step in FIXES}, config)
    events = [json.loads(value) for value in values]
    assert sum("derived" in event for event in events) == (STEPS - 1 if is_replaced else 0)
    assert decoded(values, Decoder(config, bytes(range(32)))).refused.tolist() == []
    assert len(values) == 2 * STEPS - is_replaced


def derive_all(rows: list[tuple[str, int, float, float]], cuts: list[int], period: int = 0) -> np.ndarray:
    derivation, out = SpeedDerivation(), []
    for part in np.split(np.arange(len(rows)), cuts):
        names, clocks, lats, lngs = zip(*(rows[i] for i in part), strict=True) if len(part) else ((),) * 4
        times = np.array(clocks, np.int64) * 1_000_000
        places, periods = (np.array(lats, float), np.array(lngs, float)), np.full(len(part), period)
        out.append(derivation.derive(list(names), times, *places, periods, now_us=int(times.max(initial=0))))
    return np.concatenate(out)


def plain(rows: list[tuple[str, int, float, float]]) -> list[float]:
    """The definition, one fix at a time."""
    speeds = []
    for name, time, lat, lng in rows:
        mine = sorted({(t, a, b) for n, t, a, b in rows if n == name and t <= time})
        earlier = [fix for fix in mine if fix[0] <= time - LEAST_S]
        since = time
        for t, a, b in reversed(mine):
            if (a, b) != (lat, lng) or since - t > MOST_S:
                break
            since = t
        if not earlier or time - since > FROZEN_S:
            speeds.append(math.nan)
            continue
        t, a, b = earlier[-1]
        north, east = math.sin(math.radians(lat - a) / 2), math.sin(math.radians(lng - b) / 2)
        chord = math.hypot(north, east * math.sqrt(math.cos(math.radians(a)) * math.cos(math.radians(lat))))
        kmh = 3.6 * EARTH_M * 2 * math.asin(chord) / (time - t)
        speeds.append(kmh if time - t <= MOST_S and kmh <= CAP_KMH else math.nan)
    return speeds


@st.composite
def drives(draw: st.DrawFn) -> list[tuple[str, int, float, float]]:
    """Fixes in time order of up to four vehicles, some standing, some jumping, some silent for long; two are at 180
    degrees."""
    rows, clock = [], SLOT
    places = {name: (28.6, lng) for name, lng in zip("abcd", (77.2, 77.2, -179.999, -179.9), strict=True)}
    for _ in range(draw(st.integers(1, 40))):
        clock += draw(st.sampled_from([1, 3, 7, 8, 20, 60, 200, 301, 700]))
        name = draw(st.sampled_from("abcd"))
        lat, lng = places[name]
        step = draw(st.sampled_from([0.0, 0.0, 0.0005, 0.003, 0.5]))
        places[name] = (round(lat + step, 6), round((lng - step / 2 + 180) % 360 - 180, 6))
        rows.append((name, clock, *places[name]))
    return rows


@given(drives(), st.data())
def test_any_batches_of_a_feed_in_time_order_give_the_speeds_of_the_definition(rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    derived, wanted = derive_all(rows, cuts), np.array(plain(rows))
    assert (np.isnan(derived) == np.isnan(wanted)).all(), (rows, derived, wanted)
    assert derived == pytest.approx(wanted, rel=1e-4, abs=0.05, nan_ok=True)


def test_no_speed_is_derived_across_the_border_of_two_ledger_periods_and_no_stay_before_it_decides_after_it():
    """Else a user's events of one period would follow from their fixes of the period before."""
    rows = [("a", SLOT, 28.6, 77.2), ("a", SLOT + 30, 28.602, 77.2)]
    assert derive_all(rows, [1], period=SLOT * 1_000_000)[1] == pytest.approx(26.7, abs=0.1)
    assert np.isnan(derive_all(rows, [1], period=(SLOT + 10) * 1_000_000)[1])
    standing = [("a", SLOT + 60 * k, 28.6, 77.2) for k in range(100)]
    assert np.isnan(derive_all(standing[:60], [])[21:]).all()
    after = derive_all(standing, [60], period=(SLOT + 3_600) * 1_000_000)[60:]
    assert np.isnan(after).tolist() == [True] + [False] * 20 + [True] * 19


def test_memory_follows_the_vehicles_on_the_road_not_all_that_ever_drove():
    derivation = SpeedDerivation()
    for hour in range(60):
        names = [f"{hour}-{k}" for k in range(100)]
        time = np.full(100, (SLOT + 3600 * hour) * 1_000_000)
        derivation.derive(names, time, np.full(100, 28.6), np.full(100, 77.2), np.zeros(100, np.int64), int(time[0]))
    assert len(derivation) <= 1_200


def test_a_redelivered_snapshot_changes_nothing():
    rows = [("a", SLOT + 30 * k, 28.6 + 0.002 * k, 77.2) for k in range(6)]
    once, twice = derive_all(rows, []), derive_all([*rows[:4], *rows[2:4], *rows[4:]], [4, 6])
    assert twice[:4] == pytest.approx(once[:4], nan_ok=True)
    assert twice[6:] == pytest.approx(once[4:])
