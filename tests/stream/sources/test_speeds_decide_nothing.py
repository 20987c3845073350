"""Under relation "values" the number that a vehicle reports as its speed decides neither whether there is an event, nor
where it is, nor whether its speed is derived: two feeds that differ in one user's speeds alone are told apart by no
public fact. Derived speeds equal those of a plain loop, are the same in any batches, bounded, and never cross vehicles
or periods."""

import itertools
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpcore.earth import EARTH_M
from stream.ingestion.decoding import REASONS, Batch, Decoder, Reason
from stream.sources.derived_speed import CAP_KMH, FROZEN_S, LEAST_S, MOST_S, SpeedDerivation
from stream.sources.hfp import HighFrequencyPositions
from stream.sources.siri import SiriVehicleMonitoring
from stream.sources.vehicle_positions import GtfsRealtime
from tests.stream.sources.agency import siri_bytes, snapshot_bytes
from tests.stream.sources.speedless import config_of, feed, publication
from tests.support.builders import SLOT

Speeds = Mapping[tuple[int, int], float | str | None]
"""What each vehicle reports at each step, as a number or its digits; None: nothing."""
CONFIG = config_of(Path("unused"), feed(fields=None, timezone="UTC"))
DECODER = Decoder(CONFIG, bytes(range(32)))
VEHICLES, STEPS = (1, 2), 5
FIXES = [(vehicle, step) for step in range(STEPS) for vehicle in VEHICLES]
PUBLIC = ["cell", "user", "time", "lat", "lng"]
FINITE = (
    -1e300,
    -3e38,
    -1e6,
    -1.0,
    -1e-12,
    -0.0,
    0.0,
    1e-45,
    1e-6,
    0.0099,
    3.0,
    999_999.0,
    1.1e6,
    3e38,
    1e300,
    1.7e308,
)
DIGITS = ("3.4028235e38", "-1e39", "1e-400", "1e400", "-1e400", "9" * 400, "-" + "9" * 5000)
"""Numbers at and beyond the bounds of single and double precision, as texts may contain them."""


def clock(step: int) -> int:
    return SLOT + 30 * step


def lat(step: int) -> float:
    return 30.2 + 0.002 * step


def gtfs(speeds: Speeds) -> list[bytes]:
    """What ``hexveil gtfs-rt`` sends of protobuf, whose speeds are single-precision numbers."""
    source, values = GtfsRealtime(CONFIG.feed, CONFIG.slotting), list[bytes]()
    for step in range(STEPS):
        reported = {v: speeds[v, step] for v in VEHICLES}
        single = {v: None if s is None else max(min(float(s), 3.4e38), -3.4e38) for v, s in reported.items()}
        buses = [(str(v), clock(step), lat(step), -97.7 + v / 100, single[v]) for v in VEHICLES]
        values += source.events(snapshot_bytes(buses, clock(step)), clock(step) * 1_000_000).values
    return values


def gtfs_json(speeds: Speeds) -> list[bytes]:
    """What ``hexveil gtfs-rt`` sends of JSON."""
    return sent_of(
        speeds,
        '{{"header": {{"gtfsRealtimeVersion": "2.0", "timestamp": {clock}}}, "entity": [{entities}]}}',
        '{{"id": "{v}", "vehicle": {{"vehicle": {{"id": "{v}"}}, "position": '
        '{{"latitude": {lat}, "longitude": {lng}{speed}}}}}}}',
        ', "speed": {}',
        ", ",
    )


def sent_of(speeds: Speeds, document: str, entity: str, speed: str, between: str) -> list[bytes]:
    source, values = GtfsRealtime(CONFIG.feed, CONFIG.slotting), list[bytes]()
    for step in range(STEPS):
        reported = {v: speeds[v, step] for v in VEHICLES}
        shown = {v: "" if s is None else speed.format(s) for v, s in reported.items()}
        entities = [entity.format(v=v, lat=lat(step), lng=-97.7 + v / 100, speed=shown[v]) for v in VEHICLES]
        body = document.format(clock=clock(step), entities=between.join(entities))
        values += source.events(body.encode(), clock(step) * 1_000_000).values
    return values


def siri(speeds: Speeds) -> list[bytes]:
    """What ``hexveil siri-vm`` sends."""
    source, values = SiriVehicleMonitoring(CONFIG.feed, CONFIG.slotting), list[bytes]()
    for step in range(STEPS):
        buses = [(str(v), clock(step), lat(step), -97.7 + v / 100, speeds[v, step]) for v in VEHICLES]
        values += source.events(siri_bytes(buses, clock(step)), clock(step) * 1_000_000).values
    return values


def hfp(speeds: Speeds) -> list[bytes]:
    """What ``hexveil hfp`` sends."""
    source, values = HighFrequencyPositions(CONFIG.feed, CONFIG.slotting), list[bytes]()
    for vehicle, step in FIXES:
        message = publication((f"22:{vehicle}", clock(step), lat(step), -97.7 + vehicle / 100, None))
        speed = "null" if speeds[vehicle, step] is None else str(speeds[vehicle, step])
        message = message._replace(payload=message.payload.replace(b"null", speed.encode()))
        values += source.of([message], clock(step) * 1_000_000).values
    return values


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
SOURCES = [gtfs, gtfs_json, siri, hfp]


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=len(FIXES), max_size=len(FIXES)), st.data())
def test_feeds_that_differ_in_one_users_speeds_have_the_same_events_at_the_same_places(source, reports, data):
    """Of a live source that derives what is missing. Which fixes have a speed at all is public, as the fixes are."""
    one = {fix: data.draw(NUMBERS) if known else None for fix, known in zip(FIXES, reports, strict=True)}
    other = {fix: data.draw(NUMBERS) if fix[0] == 1 and speed is not None else speed for fix, speed in one.items()}
    assert same(source(one), source(other))
    assert len(source(one)) >= sum(reports)


def test_a_number_beyond_a_formats_precision_or_of_any_size_counts_as_reported():
    for source, number in itertools.product(SOURCES, (*DIGITS, -1.0, 1e-6, 1.1e6)):
        one: Speeds = dict.fromkeys(FIXES, 3.0)
        assert same(source(one), source(one | {(1, 3): number}))


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
    source, values = GtfsRealtime(config.feed, config.slotting, relation=config.relation), list[bytes]()
    for step in range(STEPS):
        buses = [("1", clock(step), lat(step), -97.7, reported), ("2", clock(step), lat(step), -97.6, 8.0)]
        values += source.events(snapshot_bytes(buses, clock(step)), clock(step) * 1_000_000).values
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


def on_sphere(lat: float, lng: float) -> tuple[float, float, float]:
    """Cartesian coordinates of a place on the unit sphere."""
    phi, theta = math.radians(lat), math.radians(lng)
    return math.cos(phi) * math.cos(theta), math.cos(phi) * math.sin(theta), math.sin(phi)


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
        # The chord, because the arc cosine of a number near 1 makes a decimetre of nothing.
        chord = math.dist(on_sphere(a, b), on_sphere(lat, lng))
        kmh = 3.6 * EARTH_M * 2 * math.asin(chord / 2) / (time - t)
        speeds.append(kmh if time - t <= MOST_S and kmh <= CAP_KMH else math.nan)
    return speeds


@st.composite
def drives(draw: st.DrawFn) -> list[tuple[str, int, float, float]]:
    """Fixes in time order of up to four vehicles, some standing, some jumping, some silent for long."""
    rows, clock = [], SLOT
    places = dict.fromkeys("abcd", (28.6, 77.2))
    for _ in range(draw(st.integers(1, 40))):
        clock += draw(st.sampled_from([1, 3, 7, 8, 20, 60, 200, 301, 700]))
        name = draw(st.sampled_from("abcd"))
        lat, lng = places[name]
        step = draw(st.sampled_from([0.0, 0.0, 0.0005, 0.003, 0.5]))
        places[name] = (round(lat + step, 6), round(lng - step / 2, 6))
        rows.append((name, clock, *places[name]))
    return rows


@given(drives(), st.data())
def test_any_batches_of_a_feed_in_time_order_give_the_speeds_of_the_definition(rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    derived, wanted = derive_all(rows, cuts), np.array(plain(rows))
    assert (np.isnan(derived) == np.isnan(wanted)).all(), (rows, derived, wanted)
    assert derived == pytest.approx(wanted, rel=1e-4, abs=0.05, nan_ok=True)


def test_no_speed_is_derived_across_the_border_of_two_ledger_periods():
    rows = [("a", SLOT, 28.6, 77.2), ("a", SLOT + 30, 28.602, 77.2)]
    assert derive_all(rows, [1], period=SLOT * 1_000_000)[1] == pytest.approx(26.7, abs=0.1)
    assert np.isnan(derive_all(rows, [1], period=(SLOT + 10) * 1_000_000)[1])


def test_a_stay_before_the_border_of_two_ledger_periods_decides_nothing_after_it():
    """Else a user's events of one period would follow from their fixes of the period before."""
    midnight = SLOT + 3_600
    rows = [("a", SLOT + 60 * k, 28.6, 77.2) for k in range(100)]
    before = derive_all(rows[:60], [])
    after = derive_all(rows, [60], period=midnight * 1_000_000)[60:]
    assert np.isnan(before[21:]).all()
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
