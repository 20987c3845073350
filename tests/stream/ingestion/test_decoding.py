"""Messages become columns, and each refused message has its reason (that none stops the feed, and that its neighbours
change nothing, is tried by the campaign of :mod:`tests.stream.test_fuzz`): events, NGSI-LD, and
regions alone, in arrays and between other messages. The user key is secret and single; pseudonyms depend on it and on
nothing else."""

import json
import multiprocessing
import random
import sys
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fuzzing.mutation import Mutator
from stream.config import Config
from stream.ingestion import decoding
from stream.ingestion.arrays import MAX_EVENTS
from stream.ingestion.decoding import AT_ONCE, MAX_MESSAGE_BYTES, REASONS, Decoder, Reason
from stream.ingestion.pseudonyms import Pseudonyms, UserKeyError, key_fingerprint, load_user_key
from stream.storage.row_store import ROW
from tests.support.builders import SLOT, bus_config, parse_time, with_histograms
from tests.support.feeding import KEY, array, make_config, refusals

NOW_US = parse_time("2017-03-21T12:00:00Z")
FIX = {"user": "2619", "time": "2017-03-21T06:59:31-05:00", "lat": 30.19826, "lng": -97.77679, "speed": 20.0}
ITMS = (
    b'{"vehicle_label":"M22","route_id":"110","id":"x","location":{"coordinates":[72.848299,21.144356],"type":"Point"},'
    b'"speed":17.0,"observationDateTime":"2021-05-08T08:29:45+05:30","trip_id":"14004216",'
    b'"license_plate":"GJ05NH3216","trip_delay":36,"trip_direction":"UP"}'
)


def configure(resolution=7, max_age="1d", **feed):
    return make_config(feed=feed, resolution=resolution, lateness="append-time", max_age=max_age)


CANONICAL = Decoder(configure(), KEY)


def fix(**changes) -> bytes:
    return json.dumps(FIX | changes).encode()


def reason_of(message, decoder=CANONICAL, now_us=NOW_US):
    batch = decoder.decode([message], now_us)
    return Reason(REASONS[batch.reason[0]]) if len(batch.reason) else None


def row_of(message, decoder=CANONICAL, now_us=NOW_US):
    batch = decoder.decode([message], now_us)
    assert not len(batch.refused), REASONS[batch.reason[0]]
    return batch.rows[0]


@pytest.mark.parametrize(
    ("feed", "speed", "kmh"),
    [
        ({"format": "canonical", "speed_unit": "km/h"}, 17.0, 17.0),
        ({"format": "canonical", "speed_unit": "m/s"}, 10, 36.0),
        ({"format": "canonical", "speed_unit": "kn"}, 10, 18.52),
        ({"format": "capmetro"}, 0.44704, 1.61),
        ({"format": "capmetro"}, 17.43456, 62.76),
        ({"format": "capmetro-2015"}, 70, 112.65),
    ],
)
def test_speeds_become_quanta_in_the_unit_of_the_feed(feed, speed, kmh):
    capmetro = dict(zip(("vehicle_id", "timestamp", "latitude", "longitude"), FIX.values(), strict=False))
    row = row_of(fix(**capmetro | {"speed": speed, "trip_headsign": ""}), Decoder(configure(**feed), KEY))
    assert row["value"] == round(kmh * 100)
    assert row["lat"] == 301982600
    assert row["time"] == 1490097571_000_000


SURAT = {"domain": {"south": 21, "west": 72, "north": 22, "east": 73}, "timezone": "Asia/Kolkata", "speed_unit": "km/h"}
ITMS_PATHS = {
    "user": "license_plate",
    "time": "observationDateTime",
    "lat": "location.coordinates.1",
    "lng": "location.coordinates.0",
    "value": "speed",
}


@pytest.mark.parametrize("feed", [{"format": "itms"}, {"format": "declared", "fields": ITMS_PATHS}])
def test_the_surat_feed_has_longitude_first_and_the_licence_plate_as_user_by_its_format_or_by_declared_paths(feed):
    decoder = Decoder(configure(**SURAT | feed), KEY)
    now_us = parse_time("2021-05-08T03:00:00Z")
    row = row_of(ITMS, decoder, now_us)
    assert (row["lat"], row["lng"], row["value"]) == (211443560, 728482990, 1700)
    assert row["time"] == parse_time("2021-05-08T02:59:45Z")
    assert row["user"] == Pseudonyms(KEY)["GJ05NH3216"]
    for old, new, reason in [
        (b"[72.848299,21.144356]", b"[72.848299]", Reason.MISSING_FIELD),
        (b"72.848299", b'"east"', Reason.WRONG_TYPE),
        (b"17.0", b"null", Reason.MISSING_FIELD),
        (b'"2021-05-08T08:29:45+05:30"', b'"noon"', Reason.WRONG_TYPE),
        (ITMS, b'{"location":[]}', Reason.MISSING_FIELD),
        (ITMS, b"[1,2]", Reason.MISSING_FIELD),
    ]:
        assert reason_of(ITMS.replace(old, new), decoder, now_us) is reason


NO_CHARACTER = "\udcff".encode("utf-8", "surrogatepass").decode("latin1")
BAD: dict[Reason, list[bytes | None]] = {
    Reason.TOMBSTONE: [None],
    Reason.TOO_LARGE: [b" " * (1 << 20) + fix(), b"x" * 10_000_000],
    Reason.NOT_JSON: [
        *(b"", b"\xff\xfe\x00", b"\xef\xbb\xbf" + fix(), fix() + b"{}", fix() + b"," + fix(), b"[" * 60_000),
        b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"," + fix()[1:],
    ],
    Reason.MISSING_FIELD: [b"null", b"[]", b"{}", fix(speed=None)],
    Reason.WRONG_TYPE: [
        *(fix(user=NO_CHARACTER).replace(b"\\u00", b"\\ud8"), b'{"user":"\xff",' + fix()[16:]),
        *(fix(speed="fast"), fix(lat=True), fix(user=1.5), fix(user=["a"])),
        *(fix(time=time) for time in ("2017-03-21T06:59:31", "yesterday")),
    ],
    Reason.NOT_FINITE: [
        *(fix(lat=float("nan")), fix(speed=float("inf"))),
        *(fix().replace(b"20.0", number) for number in (b"1e999", b"1" + b"0" * 5000)),
    ],
    Reason.ID_EMPTY: [fix(user="")],
    Reason.ID_TOO_LONG: [fix(user=user) for user in ("x" * 257, "é" * 129, 10**400)],
    Reason.OUT_OF_DOMAIN: [fix(lat=29.79), fix(lng=97.77), fix(lat=1e300), fix(lat=0.0, lng=0.011)],
    Reason.SWAPPED_AXES: [fix(lat=FIX["lng"], lng=FIX["lat"])],
    Reason.AT_ORIGIN: [fix(lat=-0.009, lng=0.009)],
    Reason.TOO_OLD: [
        fix(time=time) for time in ("2017-03-20T11:59:59Z", "0001-01-01T00:00:00+14:00", -(10**30), 0, -1e306)
    ],
    Reason.IN_FUTURE: [
        fix(time=time)
        for time in (
            "2017-03-21T12:05:01Z",
            "9999-12-31T23:59:59-14:00",
            *(1e300, 10**30, 1e306, sys.float_info.max, 10**400),
        )
    ],
}


def test_bad_input_has_its_reason_and_values_on_the_bounds_are_accepted():
    for reason, message in ((reason, message) for reason, messages in BAD.items() for message in messages):
        assert reason_of(message) is reason
        # A bad message changes nothing about the messages before and after it.
        batch = CANONICAL.decode([fix(), message, fix(speed=1)], NOW_US)
        assert batch.index.tolist() == [0, 2]
        assert batch.refused.tolist() == [1]
        assert batch.rows["value"].tolist() == [2000, 100]
    for time in ("2017-03-21T12:05:00Z", "2017-03-20T12:00:00Z", NOW_US // 1000):
        assert reason_of(fix(time=time)) is None
    assert reason_of(fix(user="x" * 256)) is None


def test_of_a_repeated_key_the_last_counts_and_whole_number_users_are_their_digits():
    assert row_of(b'{"speed":1,' + fix()[1:])["value"] == 2000
    assert row_of(fix(user=2619))["user"] == row_of(fix())["user"]
    assert row_of(fix(speed=1e12))["value"] == 2**31 - 1


@given(st.datetimes(datetime(2000, 1, 2), datetime(2099, 1, 1)), st.integers(-1439, 1439))
def test_a_time_with_an_offset_is_exact_to_the_microsecond(moment, offset):
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream.ingestion.decoding.MAX_FUTURE", timedelta(days=36_500))
        decoder = Decoder(configure(max_age="36500d"), KEY)
    exact = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert row_of(fix(time=moment.isoformat()), decoder)["time"] == exact == parse_time(moment.isoformat())


@given(st.floats(29.8, 30.9), st.floats(-98.3, -97.2), st.floats(0, 1000), st.integers(0, 15))
def test_cell_position_and_quanta_are_those_of_the_exact_numbers(lat, lng, speed, resolution):
    row = row_of(fix(lat=lat, lng=lng, speed=speed), Decoder(configure(resolution=resolution), KEY))
    assert h3.int_to_str(int(row["cell"])) == h3.latlng_to_cell(lat, lng, resolution)
    assert abs(Fraction(int(row["value"]), 100) - Fraction(speed)) <= Fraction(501, 100_000)
    assert abs(int(row["lat"]) - lat * 1e7) < 0.51


@given(st.sets(st.integers(0, 63), max_size=9))
@settings(max_examples=60)
def test_a_message_that_makes_the_columns_fail_is_refused_alone_wherever_it_lies(poison):
    """No such message is known. If a future bug lets one through, the batch is halved until that message stands
    alone."""

    class Faulty(Decoder):
        def judged(self, users, columns, index, reason, now_us):
            if (columns[3] == 13.0).any():
                raise ZeroDivisionError
            return super().judged(users, columns, index, reason, now_us)

    values = [fix(speed=13.0) if i in poison else (b"rubbish" if i % 7 == 3 else fix(speed=i)) for i in range(64)]
    values[13] = values[13] if 13 in poison else fix(speed=0)
    batch, honest = Faulty(configure(), KEY).decode(values, NOW_US), CANONICAL.decode(values, NOW_US)
    refused = {int(i): REASONS[code] for i, code in zip(batch.refused, batch.reason, strict=True)}
    assert {i for i, why in refused.items() if why is Reason.UNDECODABLE} == poison
    assert {i for i, why in refused.items() if why is Reason.NOT_JSON} == set(range(3, 64, 7)) - poison
    kept = [i for i in honest.index.tolist() if i not in poison]
    assert batch.index.tolist() == kept
    assert (batch.rows == honest.rows[np.isin(honest.index, kept)]).all()
    assert (batch.slots == honest.slots[np.isin(honest.index, kept)]).all()


POINT = {"type": "Point", "coordinates": [-97.7, 30.2]}
AT = "2017-03-21T12:00:05Z"
NORMALISED = {
    "id": "urn:ngsi-ld:Vehicle:17",
    "type": "Vehicle",
    "location": {"type": "GeoProperty", "value": POINT, "observedAt": AT},
    "speed": {"type": "Property", "value": 30.5, "unitCode": "KMH", "observedAt": AT},
    "@context": ["https://uri.etsi.org/ngsi-ld/v1/ngsi-ld-core-context.jsonld"],
}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "normalised": (
        NORMALISED,
        "location.observedAt location.value.coordinates.1 location.value.coordinates.0 speed.value",
    ),
    "concise": (
        NORMALISED | {"location": POINT, "speed": {"value": 30.5, "unitCode": "KMH", "observedAt": AT}},
        "speed.observedAt location.coordinates.1 location.coordinates.0 speed.value",
    ),
    "simplified": (
        {"id": NORMALISED["id"], "type": "Vehicle", "location": POINT, "speed": 30.5, "observationDateTime": AT},
        "observationDateTime location.coordinates.1 location.coordinates.0 speed",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_entity_gives_the_row_of_its_vehicle(name, tmp_path):
    entity, paths = FORMS[name]
    fields = dict(zip(("user", "time", "lat", "lng", "value"), ["id", *paths.split()], strict=True))
    config = bus_config(tmp_path, **{"feed.format": "declared", "feed.fields": fields})
    decoder = Decoder(config, bytes(32))
    batch = decoder.decode([json.dumps(entity).encode(), json.dumps([entity]).encode()], SLOT * 1_000_000 + 10_000_000)
    row, again = batch.rows
    assert row == again, "an array of one entity is that entity"
    assert row.dtype == ROW
    assert (row["time"], row["lat"], row["lng"]) == (SLOT * 1_000_000 + 5_000_000, 302_000_000, -977_000_000)
    assert row["value"] == 3050
    assert not len(batch.refused)


SECRET, ARRIVED_US = b"k" * 32, (SLOT + 120) * 1_000_000
CORNER = {"lat": 30.2, "lng": -97.7}
CORNERS = [CORNER, {"lat": 30.21, "lng": -97.7}, {"lat": 30.2, "lng": -97.71}]


@pytest.fixture(scope="module", params=["values", "participation"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Config:
    return declaring(request.param, tmp_path_factory.mktemp("declared"))


def declaring(relation: str, folder: Path) -> Config:
    euler = {"origin": "declared", "regions_per_user": 2}
    quality = {"feed.quality.teleport_km_h": 0, "feed.quality.frozen": "0s"}
    return with_histograms(relation, folder, ["euler"], **({"histogram.euler": euler} | quality))


def message(**fields: Any) -> bytes:
    """A canonical event; fields that are None are left out."""
    event = {"user": "rider", "time": (SLOT + 60) * 1000, "speed": 0} | fields
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def region(*corners: object, **fields: Any) -> bytes:
    return message(region=list(corners) or CORNERS, **fields)


def notification(*events: bytes) -> bytes:
    return b'{"type": "Notification", "data": ' + array(*events) + b"}"


@pytest.mark.parametrize("several", [array, notification])
def test_a_region_among_several_events_is_refused_alone_and_stops_nothing(several, tmp_path):
    decoder, point = Decoder(declaring("values", tmp_path), SECRET), message(**CORNER)
    batch = decoder.decode([several(region(), point), region(), several(region(), region()), point], ARRIVED_US)
    assert batch.index.tolist() == [0, 1, 1, 1, 3]
    assert refusals(batch) == [(0, 0, "several-events"), (2, 0, "several-events"), (2, 1, "several-events")]


def test_under_participation_an_array_with_a_region_is_refused_as_a_whole(tmp_path):
    decoder = Decoder(declaring("participation", tmp_path), SECRET)
    batch = decoder.decode([array(region(), message(**CORNER)), array(region()), region(), region()], ARRIVED_US)
    assert batch.index.tolist() == [2] * 3 + [3] * 3
    assert refusals(batch) == [(0, -1, "several-events"), (1, -1, "several-events")]


@pytest.mark.parametrize(
    ("refused", "element", "reason"),
    [
        (region(CORNER, {"lat": "30.2", "lng": -97.7}), 1, "wrong-type"),
        (region(CORNER, {"lat": True, "lng": -97.7}), 1, "wrong-type"),
        (region(CORNER, CORNER, [30.2, -97.7]), 2, "wrong-type"),
        (region(CORNER, CORNER | {"user": "other"}), 1, "wrong-type"),
        (region(CORNER, {"lat": 30.2}), 1, "missing-field"),
        (region(CORNER, {"lat": None, "lng": -97.7}), 1, "missing-field"),
        (region(CORNER, {"lat": float("nan"), "lng": -97.7}), 1, "not-finite"),
        (region(CORNER).replace(b"30.2", b"1e400"), 0, "not-finite"),
        (region(CORNER, {"lat": 10**400, "lng": -97.7}), 1, "not-finite"),
        (message(region=[]), -1, "missing-field"),
        (message(region=CORNER), -1, "wrong-type"),
        (message(region=0), -1, "wrong-type"),
        (region(speed=float("inf")), -1, "not-finite"),
        (region(speed="fast"), -1, "wrong-type"),
        (region(time=None), -1, "missing-field"),
        (region(user=None), -1, "missing-field"),
        (region(**CORNER), -1, "several-events"),
        (region(lat=30.2), -1, "several-events"),
        (message(region=[], **CORNER), -1, "several-events"),
        (region(*[CORNER] * 3_000), -1, "too-large"),
        (region()[:-1], -1, "not-json"),
    ],
)
def test_a_bad_region_has_its_reason_and_names_the_corner_at_fault(config, refused, element, reason):
    batch = Decoder(config, SECRET).decode([region(CORNER), refused, message(**CORNER)], ARRIVED_US)
    assert batch.index.tolist() == [0, 2]
    assert refusals(batch) == [(1, element, reason)]


def test_a_region_is_one_event_for_each_corner_and_a_corner_outside_the_domain_is_refused_alone(config):
    corners = [{"lat": 30.2 + 0.1 * k, "lng": -97.8} for k in range(3)]
    batch = Decoder(config, SECRET).decode([message(**CORNER), region(*corners, FAR), message(**CORNER)], ARRIVED_US)
    assert batch.index.tolist() == [0, 1, 1, 1, 2]
    assert refusals(batch) == [(1, 3, "out-of-domain")]
    assert batch.rows["lat"][1:4].tolist() == [round(corner["lat"] * 1e7) for corner in corners]
    assert len(np.unique(batch.rows[["user", "time"]])) == 1


def test_a_null_is_absent_as_elsewhere_and_regions_are_refused_where_single_events_or_none_are_declared(
    config, tmp_path
):
    alone = json.dumps(json.loads(message(**CORNER)) | {"region": None}).encode()
    with_place = json.dumps(json.loads(region()) | {"lat": None, "lng": None}).encode()
    assert Decoder(config, SECRET).decode([alone, with_place], ARRIVED_US).index.tolist() == [0, 1, 1, 1]
    batch = Decoder(config, SECRET, arrays=False).decode([region(), region(**CORNER), message(**CORNER)], ARRIVED_US)
    assert refusals(batch) == [(0, -1, "several-events"), (1, -1, "several-events")]
    plain = with_histograms("participation", tmp_path, ["euler"])
    assert Decoder(plain, SECRET).decode([region()], ARRIVED_US).refused.tolist() == [0]


def test_what_a_region_may_cost_is_bounded(config):
    """The densest message has fewer corners than an array may have events, and a piece ends after so many."""
    most = (MAX_MESSAGE_BYTES - 60) // len(b'{"lat":0,"lng":0},')
    dense = json.dumps(json.loads(message(region=[{"lat": 0, "lng": 0}] * most)), separators=(",", ":")).encode()
    assert len(dense) <= MAX_MESSAGE_BYTES < len(dense) + 20
    assert most < MAX_EVENTS
    part = Decoder(config, SECRET).decode_part([dense] * 50, ARRIVED_US)
    assert part.messages <= AT_ONCE // most + 1
    assert len(part.refused) == part.messages * most


PLACED, FAR = message(**CORNER), {"lat": 10.0, "lng": -97.7}
REGIONS = (region(), region(CORNER), region(CORNER, FAR), region(user=""), region("x"), region(**CORNER))
ODD = (message(**CORNER, speed=-1), b"NaN", b"{:}", b"{}", b"[1]", b"null", b'"],[\\""', b'{"region": [NaN]}')
DEEP = b'{"region":' + b"[" * 60_000
MUTATED = st.integers(0, 10**6).map(lambda seed: Mutator(random.Random(seed)).json(json.loads(region())))
PARTS = st.sampled_from([*REGIONS, PLACED, *ODD, DEEP]) | MUTATED
MESSAGES = PARTS | st.lists(PARTS, min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from([array(*parts), notification(*parts)])
)


@given(st.lists(MESSAGES | st.none(), max_size=8), st.integers(1, 12))
def test_regions_arrays_and_points_in_any_order_and_pieces_are_read_as_each_alone(config, values, at_once):
    decoder = Decoder(config, SECRET)
    whole, alone = decoder.decode(values, ARRIVED_US), [decoder.decode([value], ARRIVED_US) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "AT_ONCE", at_once)
        pieces = decoder.decode(values, ARRIVED_US)
    for batch in (whole, pieces):
        assert batch.index.tolist() == [at for at, one in enumerate(alone) for _ in one.rows]
        assert batch.rows.tolist() == [row for one in alone for row in one.rows.tolist()]
        assert refusals(batch) == [(at, *rest) for at, one in enumerate(alone) for _, *rest in refusals(one)]
        assert batch.messages == len(values)
    assert {*whole.index.tolist(), *whole.refused.tolist()} == set(range(len(values)))
    assert Reason.UNDECODABLE not in {REASONS[code] for code in whole.reason}


def test_the_key_file_is_made_once_readable_by_its_owner_only_also_by_processes_that_start_together(tmp_path):
    path = tmp_path / "var" / "user.key"
    with multiprocessing.get_context("fork").Pool(8) as pool:
        keys = pool.map(load_user_key, [path] * 32, chunksize=1)
    assert {*keys, load_user_key(path)} == {keys[0]}
    assert len(keys[0]) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["user.key"]
    for size in (0, 31, 33):
        path.write_bytes(bytes(size))
        with pytest.raises(UserKeyError, match="instead of 32"):
            load_user_key(path)


def test_pseudonyms_depend_on_the_key_outlive_the_cache_and_are_of_sound_identifiers_only():
    key, other = b"a" * 32, b"b" * 32
    small, large = Pseudonyms(key, capacity=150), Pseudonyms(key)
    users = [f"bus-{i % 7}" for i in range(50)]
    assert [small[user] for user in users] == [large[user] for user in users]
    assert len(small) <= 2
    assert Pseudonyms(other)["bus-1"] != large["bus-1"]
    assert key_fingerprint(key) != key_fingerprint(other)
    for user in ("", "x" * 257, "é" * 129, "\ud800"):
        with pytest.raises(KeyError):
            large[user]


@pytest.mark.parametrize("user", ["bus-{:04}", "{:04}" + "😀" * 63], ids=["short", "long"])
def test_memory_of_pseudonyms_is_bounded_however_long_identifiers_are(user):
    """Python takes four bytes for each character of an identifier with one emoji."""
    pseudonyms, capacity = Pseudonyms(bytes(32), capacity=64_000), 64_000
    sizes = []
    for number in range(3_000):
        _ = pseudonyms[user.format(number)]
        sizes.append(sum(map(sys.getsizeof, pseudonyms)) if number % 97 == 0 else 0)
    assert capacity / 2 < max(sizes) <= capacity
