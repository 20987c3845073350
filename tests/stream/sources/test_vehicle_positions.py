"""VehiclePositions become columns whatever an agency sends: a reason for each entity refused, never a crash."""

import math

import numpy as np
import pytest
from google.protobuf import json_format
from google.transit import gtfs_realtime_pb2

from stream.sources.file_kinds import HEAD_BYTES, is_gtfs_realtime
from stream.sources.snapshots import LARGEST_SNAPSHOT, MOST_SPEED_MS, SnapshotError
from stream.sources.vehicle_positions import MOST_ENTITIES, MOST_SEPARATORS, FeedMessage, decode_snapshot
from tests.stream.sources.agency import START, feed_message, snapshot_bytes

BUS = ("a", START - 5, 28.61, 77.21, 7.5)


def in_form(message: gtfs_realtime_pb2.FeedMessage, form: str) -> bytes:
    if form == "protobuf":
        return bytes(message.SerializeToString())
    return json_format.MessageToJson(message).encode()


def test_a_byte_order_mark_before_json_is_skipped():
    marked = b"\xef\xbb\xbf" + in_form(feed_message([BUS]), "json")
    assert decode_snapshot(marked).vehicles == ["a"]
    assert is_gtfs_realtime(marked[:HEAD_BYTES])


@pytest.mark.parametrize("incrementality", [None, "FULL_DATASET", "DIFFERENTIAL"])
@pytest.mark.parametrize("form", ["protobuf", "json"])
def test_each_position_counts_whatever_the_incrementality_and_a_deleted_entity_is_none(incrementality, form):
    message = feed_message([BUS, ("gone", START, 28.7, 77.3, 1.0), ("b", None, 28.7, 77.3, None)])
    if incrementality is not None:
        message.header.incrementality = message.header.Incrementality.Value(incrementality)
    message.entity[1].is_deleted = True
    message.entity.add(id="only an id", is_deleted=True)
    snapshot = decode_snapshot(in_form(message, form))
    assert snapshot.vehicles == ["a", "b"]
    assert snapshot.time.tolist() == [(START - 5) * 10**6, START * 10**6], "without a timestamp: the header's"
    assert snapshot.lat == pytest.approx([28.61, 28.7], abs=1e-5)
    assert snapshot.speed == pytest.approx([7.5, math.nan], nan_ok=True)
    assert snapshot.refused == {"deleted": 2}


@pytest.mark.parametrize(
    "body",
    [
        in_form(feed_message([BUS]), "protobuf")
        .replace(b"\x0a\x032.0", b"\x0a\x032.0\x10\x07")
        .replace(b"\x0a\x0b", b"\x0a\x0d", 1),
        in_form(feed_message([BUS]), "json").replace(b'"timestamp"', b'"incrementality": "PARTIAL", "timestamp"', 1),
        in_form(feed_message([BUS]), "json").replace(b'"timestamp"', b'"incrementality": 7, "timestamp"', 1),
    ],
    ids=["protobuf", "json-name", "json-number"],
)
def test_an_unknown_incrementality_is_refused_by_name_in_every_form(body):
    with pytest.raises(SnapshotError, match=r"(?i)incrementality"):
        decode_snapshot(body)


@pytest.mark.parametrize("header", ["null", "{}", '"text"', '["incrementality"]', '{"incrementality": null}'])
def test_a_json_header_without_incrementality_is_read_and_one_of_another_type_crashes_nothing(header):
    entity = json_format.MessageToJson(feed_message([BUS]).entity[0])
    try:
        assert decode_snapshot(f'{{"header": {header}, "entity": [{entity}]}}'.encode()).vehicles == ["a"]
    except SnapshotError:
        assert not header.endswith("}"), "only a header of another type may be refused"


@pytest.mark.parametrize(
    ("vehicle", "reason"),
    [
        (("", START, 28.6, 77.2, 1.0), "no-vehicle-id"),
        (("x" * 300, START, 28.6, 77.2, 1.0), "id-too-long"),
        (("a", START, 0.0, 0.0, 1.0), "no-place"),
        (("a", START, math.nan, 77.2, 1.0), "no-place"),
        (("a", START, 128.6, 77.2, 1.0), "no-place"),
        (("a", START * 1000, 28.6, 77.2, 1.0), "time-no-epoch-seconds"),
        (("a", 0, 28.6, 77.2, 1.0), "time-no-epoch-seconds"),
        (("a", 2**64 - 1, 28.6, 77.2, 1.0), "time-no-epoch-seconds"),
        (("a", START + 4000, 28.6, 77.2, 1.0), "time-in-future"),
    ],
)
def test_an_entity_that_is_no_event_is_refused_with_its_reason_and_the_others_stay(vehicle, reason):
    snapshot = decode_snapshot(snapshot_bytes([BUS, vehicle, BUS]))
    assert snapshot.refused == {reason: 1}
    assert snapshot.vehicles == ["a", "a"]


def test_an_identifier_that_is_not_utf_8_or_a_whole_surrogate_pair_is_text_all_the_same():
    body = snapshot_bytes([BUS, ("brokn", START, 28.6, 77.2, 1.0), BUS]).replace(b"brokn", b"bro\xf3n")
    snapshot = decode_snapshot(body)
    assert snapshot.vehicles[1] == "bro\\xf3n"
    assert (len(snapshot.vehicles), dict(snapshot.refused)) == (3, {})
    pair = in_form(feed_message([("\U0001f68c", START, 28.6, 77.2, 1.0)]), "json")
    assert b"\\ud83d\\ude8c" in pair
    assert decode_snapshot(pair).vehicles == ["\U0001f68c"]


def test_only_a_speed_that_is_no_number_counts_as_missing():
    """Infinite is what single precision makes of a number that is too large for it."""
    speeds = (math.nan, math.inf, -math.inf)
    decoded = decode_snapshot(snapshot_bytes([(str(s), START, 28.6, 77.2, s) for s in speeds])).speed
    assert np.array_equal(decoded, [math.nan, MOST_SPEED_MS, -MOST_SPEED_MS], equal_nan=True)
    for literal in ("NaN", '"NaN"', "null"):
        body = in_form(feed_message([BUS]), "json").replace(b"7.5", literal.encode())
        assert math.isnan(decode_snapshot(body).speed[0])


def test_json_in_which_a_name_occurs_twice_is_refused():
    with pytest.raises(SnapshotError, match="occurs twice"):
        decode_snapshot(in_form(feed_message([BUS]), "json").replace(b'"speed"', b'"speed": 3, "speed"'))


def test_without_any_timestamp_the_arrival_counts_and_without_that_the_vehicle_is_refused():
    body = snapshot_bytes([("a", None, 28.6, 77.2, 1.0)], header_s=None)
    assert decode_snapshot(body, received_us=START * 10**6 + 7).time.tolist() == [START * 10**6]
    assert decode_snapshot(body).refused == {"no-time": 1}
    assert decode_snapshot(snapshot_bytes([BUS], header_s=2**64 - 1)).vehicles == ["a"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "neither header nor vehicles"),
        (b"<html>login</html>", "HTML or XML"),
        (b'{"entity": 5}', "not a GTFS-realtime feed"),
        (b"[" * 5000, "not a GTFS-realtime feed"),
        (b'{"a":' * 5000, "not a GTFS-realtime feed"),
        (snapshot_bytes([BUS])[:-7], "not a GTFS-realtime feed"),
        (b"\x00" * (LARGEST_SNAPSHOT + 1), "more than"),
    ],
)
def test_bytes_that_are_no_snapshot_are_refused_with_what_they_look_like(body, said):
    with pytest.raises(SnapshotError, match=said):
        decode_snapshot(body)


HALF = "\\ud800"
JSON_HEADER = '"header":{"gtfsRealtimeVersion":"2.0"}'
ENTITY = json_format.MessageToJson(feed_message([BUS]).entity[0])
NO_TEXT = {
    "a name": f'{{"header":{{"gtfs_realtime_version":"2.0","{HALF}":1}},"entity":[]}}',
    "a name beside others": f'{{"header":{{"gtfsRealtimeVersion":"2.0","x{HALF}y":1}},"entity":[{ENTITY}]}}',
    "a name of the lower half": '{"header":{"\\uDC00":1},"entity":[]}',
    "a name in a deep object": f'{{"header":{{}},"entity":[{{"id":"1","vehicle":{{"trip":{{"{HALF}":{{}}}}}}}}]}}',
    "a text instead of an object": f'{{"header":"{HALF}","entity":[]}}',
    "a value": f'{{"header":{{"gtfs_realtime_version":"{HALF}"}},"entity":[]}}',
}


@pytest.mark.parametrize("where", NO_TEXT)
def test_json_with_half_a_surrogate_pair_is_refused_wherever_it_is(where):
    with pytest.raises(SnapshotError, match="not a GTFS-realtime feed"):
        decode_snapshot(NO_TEXT[where].encode())


BAD = {
    "latitude": '"position":{"latitude":"secret 1","longitude":2}',
    "id": '"vehicle":{"id":["secret"]}',
    "timestamp": '"timestamp":"secret"',
}


@pytest.mark.parametrize("field", BAD)
def test_one_bad_entity_loses_itself_only_and_fields_that_are_not_used_lose_nothing(field):
    unused = '"trip":{"tripId":5,"scheduleRelationship":"LATER"},"occupancyStatus":"CROWDED_BEYOND_2027"'
    good = ENTITY.replace('"vehicle": {', f'"vehicle": {{{unused},', 1)
    body = f'{{{JSON_HEADER},"entity":[{good},{{"id":"2","vehicle":{{{BAD[field]}}}}},{good.replace("7.5", "null")}]}}'
    snapshot = decode_snapshot(body.encode(), START * 10**6)
    assert snapshot.vehicles == ["a", "a"]
    assert dict(snapshot.refused) == {"unreadable": 1}


@pytest.mark.parametrize("form", ["protobuf", "json"])
def test_a_position_without_a_longitude_is_none(form):
    message = feed_message([BUS, BUS])
    message.entity[0].vehicle.position.ClearField("longitude")
    partial = message.SerializePartialToString() if form == "protobuf" else in_form(message, form)
    snapshot = decode_snapshot(partial)
    assert (snapshot.vehicles, dict(snapshot.refused)) == (["a"], {"no-position": 1})


QUOTED = {
    "entity": f'{{{JSON_HEADER},"entity":{{"secret":{{"parse secret field":1}}}}}}',
    "occurs twice": f'{{{JSON_HEADER},"entity":[{{"secret":1,"secret":2}}]}}',
    "char 1": '{"secret',
}


@pytest.mark.parametrize("where", QUOTED)
def test_what_is_said_of_an_unreadable_feed_names_the_place_and_quotes_nothing(where):
    with pytest.raises(SnapshotError) as refused:
        decode_snapshot(QUOTED[where].encode())
    assert where in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_agencies_publish_is_read(shared_data):
    published = {
        "delhi-2025-09-11": (1707, 1707, {"no-place": 7, "time-in-future": 1}),
        "edmonton-2018-03-18": (132, 85, {}),
        "aomori-2022-10-22": (37, 0, {}),
    }
    for name, expected in published.items():
        snapshot = decode_snapshot((shared_data / "gtfs-rt" / f"{name}.pb").read_bytes())
        counts = len(snapshot.vehicles), int((snapshot.speed >= 0).sum()), dict(snapshot.refused)
        assert counts == expected, name


HEADER, EMPTY = b"\x0a\x05\x0a\x032.0", b"\x12\x00"
BOMBS = {
    "protobuf": HEADER + EMPTY * (MOST_ENTITIES + 1),
    "protobuf in a group": HEADER + b"\x1b" + EMPTY * (MOST_ENTITIES + 1) + b"\x1c",
    "JSON": b'{"entity":[' + b"{}," * MOST_ENTITIES + b"{}]}",
    "JSON nested": b'{"x":[' + b"0," * MOST_SEPARATORS + b"0]}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_snapshot_of_more_parts_than_a_city_has_is_refused_before_it_is_parsed(name, monkeypatch):
    """Two bytes may be a message of their own: 32 kB of gzip took 1.8 GB."""
    parse = "stream.sources.vehicle_positions.json_format.ParseDict"
    monkeypatch.setattr(parse, lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(SnapshotError, match="more entities or other parts"):
        decode_snapshot(BOMBS[name])


def test_nothing_but_entities_is_repeated_in_what_is_parsed():
    """What else is nested, such as the stops of a trip, a parser keeps as bytes."""
    repeated, waiting = [], [FeedMessage.DESCRIPTOR]
    while waiting:
        for field in waiting.pop().fields:
            repeated += [field.full_name] if field.is_repeated else []
            waiting += [field.message_type] if field.message_type is not None else []
    assert repeated == ["transit_realtime.FeedMessage.entity"]
