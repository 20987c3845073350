"""GTFS-realtime and SIRI-VM become events whatever an agency sends: a reason for each entity refused, no entity of XML
expanded, never a crash. A snapshot is recognised by its bytes, whatever it is called, and from wherever it comes."""

import gzip
import json
import math
import tracemalloc
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from google.protobuf import json_format
from google.transit import gtfs_realtime_pb2
from redis.exceptions import RedisError

from stream.sources.file_kinds import HEAD_BYTES, is_gtfs_realtime
from stream.sources.siri import SiriVehicleMonitoring, decode_siri
from stream.sources.snapshots import LARGEST_SNAPSHOT, MOST_SPEED_MS, Snapshot, SnapshotError, decompressed
from stream.sources.vehicle_positions import MOST_ENTITIES, MOST_SEPARATORS, FeedMessage, decode_snapshot
from tests.stream.sources.agency import (
    DELHI,
    FEED,
    HOURS,
    NOON,
    START,
    Agency,
    activity,
    answer,
    document,
    feed_message,
    fleet,
    place,
    reader,
    siri_bytes,
    snapshot_bytes,
)
from tests.support.builders import bus_fleet_file, parse_time
from tests.support.command import run

HEADER, EMPTY = b"\x0a\x05\x0a\x032.0", b"\x12\x00"
BUS = ("a", START - 5, 28.61, 77.21, 7.5)


def in_form(message: gtfs_realtime_pb2.FeedMessage, form: str) -> bytes:
    if form == "protobuf":
        return bytes(message.SerializePartialToString())
    mark = b"\xef\xbb\xbf" if form == "JSON after a byte order mark" else b""
    return mark + json_format.MessageToJson(message).encode()


@pytest.mark.parametrize("incrementality", [None, "FULL_DATASET", "DIFFERENTIAL"])
@pytest.mark.parametrize("form", ["protobuf", "JSON", "JSON after a byte order mark"])
def test_each_position_counts_whatever_the_incrementality_and_a_deleted_entity_is_none(incrementality, form):
    message = feed_message([BUS, ("gone", START, 28.7, 77.3, 1.0), ("b", None, 28.7, 77.3, None)])
    if incrementality is not None:
        message.header.incrementality = message.header.Incrementality.Value(incrementality)
    message.entity[1].is_deleted = True
    message.entity.add(id="only an id", is_deleted=True)
    body = in_form(message, form)
    assert is_gtfs_realtime(body[:HEAD_BYTES])
    snapshot = decode_snapshot(body)
    assert snapshot.vehicles == ["a", "b"]
    assert snapshot.time.tolist() == [(START - 5) * 10**6, START * 10**6], "without a timestamp: the header's"
    assert snapshot.lat == pytest.approx([28.61, 28.7], abs=1e-5)
    assert snapshot.speed == pytest.approx([7.5, math.nan], nan_ok=True)
    assert snapshot.refused == {"deleted": 2}


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
    pair = in_form(feed_message([("\U0001f68c", START, 28.6, 77.2, 1.0)]), "JSON")
    assert b"\\ud83d\\ude8c" in pair
    assert decode_snapshot(pair).vehicles == ["\U0001f68c"]


def test_only_a_speed_that_is_no_number_counts_as_missing():
    """Infinite is what single precision makes of a number that is too large for it."""
    speeds = (math.nan, math.inf, -math.inf)
    decoded = decode_snapshot(snapshot_bytes([(str(s), START, 28.6, 77.2, s) for s in speeds])).speed
    assert np.array_equal(decoded, [math.nan, MOST_SPEED_MS, -MOST_SPEED_MS], equal_nan=True)
    for literal in ("NaN", '"NaN"', "null"):
        body = in_form(feed_message([BUS]), "JSON").replace(b"7.5", literal.encode())
        assert math.isnan(decode_snapshot(body).speed[0])


def test_without_any_timestamp_the_arrival_counts_and_without_that_the_vehicle_is_refused():
    body = snapshot_bytes([("a", None, 28.6, 77.2, 1.0)], header_s=None)
    assert decode_snapshot(body, received_us=START * 10**6 + 7).time.tolist() == [START * 10**6]
    assert decode_snapshot(body).refused == {"no-time": 1}
    assert decode_snapshot(snapshot_bytes([BUS], header_s=2**64 - 1)).vehicles == ["a"]
    for header in ("", '"header":null,', '"header":{"incrementality":null},'):
        assert decode_snapshot(f'{{{header}"entity":[{ENTITY}]}}'.encode()).vehicles == ["a"]


HALF = "\\ud800"
NONE = "not a GTFS-realtime feed"
JSON_HEADER = '"header":{"gtfsRealtimeVersion":"2.0"}'
ENTITY = json_format.MessageToJson(feed_message([BUS]).entity[0])
HALVES = {
    "as a name": f'{{"header":{{"gtfs_realtime_version":"2.0","{HALF}":1}},"entity":[]}}',
    "beside others": f'{{"header":{{"gtfsRealtimeVersion":"2.0","x{HALF}y":1}},"entity":[{ENTITY}]}}',
    "of the lower ones": '{"header":{"\\uDC00":1},"entity":[]}',
    "in a deep object": f'{{"header":{{}},"entity":[{{"id":"1","vehicle":{{"trip":{{"{HALF}":{{}}}}}}}}]}}',
    "instead of an object": f'{{"header":"{HALF}","entity":[]}}',
    "as a value": f'{{"header":{{"gtfs_realtime_version":"{HALF}"}},"entity":[]}}',
}
UNREADABLE: dict[str, tuple[bytes | str, str]] = {
    "nothing": (b"", "neither header nor vehicles"),
    "HTML": (b"<html>login secret</html>", "HTML or XML"),
    "a number of entities": ('{"entity": 5}', NONE),
    "deep arrays": (b"[" * 5000, NONE),
    "deep objects": (b'{"a":' * 5000, NONE),
    "cut short": (snapshot_bytes([BUS])[:-7], NONE),
    "too large": (b"\x00" * (LARGEST_SNAPSHOT + 1), "more than"),
    **{f"half a pair {where}": (body, NONE) for where, body in HALVES.items()},
    "an object of entities": (f'{{{JSON_HEADER},"entity":{{"secret":{{"parse secret field":1}}}}}}', "entity"),
    "a time in words": ('{"header":{"timestamp":"secret"},"entity":[]}', "in header.timestamp"),
    "a name twice": (f'{{{JSON_HEADER},"entity":[{{"secret":1,"secret":2}}]}}', "occurs twice"),
    "a cut name": ('{"secret', "char 1"),
    "incrementality 7": (HEADER[:1] + b"\x07" + HEADER[2:] + b"\x10\x07", "(?i)incrementality"),
    "incrementality 7 in JSON": (f'{{"header":{{"incrementality":7}},"entity":[{ENTITY}]}}', "(?i)incrementality"),
    "a part in JSON": (f'{{"header":{{"incrementality":"PARTIAL"}},"entity":[{ENTITY}]}}', "(?i)incrementality"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_bytes_that_are_no_snapshot_are_refused_with_what_is_wrong_and_quote_nothing(name):
    body, says = UNREADABLE[name]
    with pytest.raises(SnapshotError, match=says) as refused:
        decode_snapshot(body.encode() if isinstance(body, str) else body)
    assert "secret" not in str(refused.value)


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


@pytest.mark.parametrize("form", ["protobuf", "JSON"])
def test_a_position_without_a_longitude_is_none(form):
    message = feed_message([BUS, BUS])
    message.entity[0].vehicle.position.ClearField("longitude")
    snapshot = decode_snapshot(in_form(message, form))
    assert (snapshot.vehicles, dict(snapshot.refused)) == (["a"], {"no-position": 1})


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


LONDON = ZoneInfo("Europe/London")


def decoded(body: bytes, received: str | None = None) -> Snapshot:
    return decode_siri(body, None if received is None else parse_time(received), LONDON, 1.0)


def test_an_activity_becomes_a_fix_of_its_operators_vehicle():
    other = activity("7", "", "2026-03-02T11:59:58.500Z", velocity="")
    assert np.isfinite(decoded(document(activity(velocity="9" * 300))).speed[0]), "no unit makes a number infinite"
    seen = decoded(document(activity(), other))
    assert seen.vehicles == ["FLON:4112", "7"]
    assert seen.time.tolist() == [parse_time(NOON), parse_time(NOON) - 1_500_000]
    assert (seen.lat.tolist(), seen.lng.tolist()) == ([51.5, 51.5], [-0.12, -0.12])
    assert seen.speed == pytest.approx([10.0, math.nan], nan_ok=True), "36 km/h; none"
    assert seen.header == parse_time(NOON)


def test_prefixes_other_encodings_and_structures_of_2_0_are_read():
    prefixed = document(activity()).replace(b"<", b"<s:").replace(b"<s:/", b"</s:").replace(b"<s:?", b"<?")
    prefixed = prefixed.replace(b"xmlns=", b"xmlns:s=")
    assert decoded(prefixed).vehicles == ["FLON:4112"]
    text = document(activity("é1"), head="<?xml version='1.0' encoding='ISO-8859-1'?>").decode()
    assert decoded(text.encode("latin-1")).vehicles == ["FLON:é1"]
    structure = document(activity()).replace(b"VehicleMonitoringDelivery", b"vehicleMonitoringDeliveryStructure")
    assert decoded(structure).vehicles == ["FLON:4112"]


def test_times_without_a_zone_are_local_and_those_that_are_absent_are_the_responses():
    summer = decoded(document(activity(time="2026-07-02T12:00:00"), response="2026-07-02T12:00:10"))
    assert summer.time.tolist() == [parse_time("2026-07-02T11:00:00Z")]
    assert decoded(document(activity(time=""))).time.tolist() == [parse_time(NOON)]
    unstamped = decoded(document(activity(time=""), response="later"), received="2026-03-02T12:00:03Z")
    assert (unstamped.header, unstamped.time.tolist()) == (None, [parse_time(NOON) + 3_000_000])


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no vehicle": ({"vehicle": ""}, "no-vehicle-id"),
    "a long name": ({"vehicle": "x" * 300}, "id-too-long"),
    "no location": ({"location": ""}, "no-position"),
    "a planar location": (
        {"location": "<VehicleLocation srsName='EPSG:27700'><Coordinates>1 2</Coordinates></VehicleLocation>"},
        "other-coordinates",
    ),
    "0, 0": ({"location": place("0.0", "0")}, "no-place"),
    "no number": ({"location": place("1", "x")}, "no-place"),
    "infinite": ({"location": place("1", "1e999")}, "no-place"),
    "no time": ({"time": "noon"}, "time-unreadable"),
    "twice a year": ({"time": "2026-10-25T01:30:00"}, "time-unreadable"),
    "1970": ({"time": "1970-01-01T00:00:00Z"}, "time-no-epoch-seconds"),
    "tomorrow": ({"time": "2026-03-03T12:00:00Z"}, "time-in-future"),
    "a text of 3 MB": ({"vehicle": "x" * 3_000_000}, "id-too-long"),
    "20 000 attributes": (
        {"location": "<VehicleLocation " + " ".join(f"a{k}='1'" for k in range(20_000)) + "/>"},
        "no-position",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_activity_that_is_no_fix_is_refused_with_its_reason_and_the_others_stay(name):
    fields, reason = REFUSED[name]
    seen = decoded(document(activity("a"), activity(**fields), activity("b")))
    assert seen.vehicles == ["FLON:a", "FLON:b"]
    assert dict(seen.refused) == {reason: 1}


LAUGHS = "<!DOCTYPE Siri [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {name} '{f'&{before};' * 10}'>" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
) + "]>"  # fmt: skip
EXTERNAL = "<!DOCTYPE Siri [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (document(activity("&i;"), head=LAUGHS), "with a document type"),
        (document(activity("&x;"), head=EXTERNAL), "with a document type"),
        (document(activity(), head="<!DOCTYPE Siri SYSTEM 'http://127.0.0.1:9/siri.dtd'>"), "with a document type"),
        (document(activity("&x;")), "undefined entity"),
        (b"<a>" * 50_000, "more than 40 levels"),
        (b"<html><body>maintenance</body></html>", "without a VehicleMonitoringDelivery"),
        (document(activity())[:-30], "not a SIRI document in XML"),
        (b'{"Siri": {}}', "not a SIRI document in XML"),
        (b"", "not a SIRI document in XML"),
        (document(activity(), head="<?xml version='1.0' encoding='utf-7'?>"), "not a SIRI document in XML"),
        (bytes(LARGEST_SNAPSHOT + 1), "more than the"),
    ],
    ids=["laughs", "a file", "a type", "an entity", "deep", "HTML", "cut", "JSON", "nothing", "encoding", "large"],
)
def test_hostile_xml_is_refused_and_nothing_is_expanded_or_fetched(body, says):
    with pytest.raises(SnapshotError, match=says):
        decoded(body)


def test_a_document_of_more_elements_than_a_city_needs_costs_no_more_than_the_bound(monkeypatch):
    monkeypatch.setattr("stream.sources.siri.MOST_ELEMENTS", 1000)
    tiny = b"<Siri><VehicleMonitoringDelivery>" + b"<a/>" * 998
    ends = b"</VehicleMonitoringDelivery></Siri>"
    assert decoded(tiny + ends).vehicles == []
    with pytest.raises(SnapshotError, match="more than 1000 elements"):
        decoded(tiny + b"<a/>" * 5 + ends)


def test_a_long_name_of_a_namespace_is_not_copied_for_each_element():
    """With it, 130 KB of XML took 100 MB, and 1 MB would take gigabytes."""
    names = "".join(f"<e{k}/>" for k in range(1_000))
    body = (
        f"<Siri xmlns='{'u' * 100_000}'><VehicleMonitoringDelivery>{names}</VehicleMonitoringDelivery></Siri>".encode()
    )
    tracemalloc.start()
    assert decoded(body).vehicles == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_velocity_is_read_in_the_unit_that_the_feed_declares_and_a_gzipped_document_decompressed():
    source = SiriVehicleMonitoring(FEED.model_copy(update={"given_speed_unit": "m/s"}), HOURS, "reported")
    (value,) = source.events(gzip.compress(document(activity(velocity="11")))).values
    event = json.loads(value)
    assert (event["user"], event["speed"], event["time"]) == ("FLON:4112", 11.0, parse_time(NOON) // 1000)


@pytest.fixture
def london(tmp_path: Path) -> Path:
    return bus_fleet_file(tmp_path, {"south": 51.0, "west": -1.0, "north": 52.0, "east": 1.0})


def test_an_address_and_stored_documents_become_canonical_events(london, tmp_path):
    folder = tmp_path / "stored"
    folder.mkdir()
    (folder / "1.xml").write_bytes(document(activity("a"), activity("b", velocity="")))
    (folder / "2.xml").write_bytes(b"<html/>")
    done = run("siri-vm", folder, "--config", london, "--out", "-", code=1)
    assert "2.xml: XML without a VehicleMonitoringDelivery" in done.stderr
    assert [json.loads(line)["user"] for line in done.stdout.splitlines()] == ["FLON:a"]
    with Agency([answer(200, document(activity("c"), activity("d")))]) as agency:
        done = run("siri-vm", agency.url, "--once", "--config", london, "--out", "-")
    assert [json.loads(line)["speed"] for line in done.stdout.splitlines()] == [36.0, 36.0]


def test_velocities_in_another_unit_than_declared_are_not_released(london, tmp_path):
    """Twelve vehicles drive 10 m/s and say 10, which the configuration declares to be km/h."""
    folder = tmp_path / "stored"
    folder.mkdir()
    for minute in range(20):
        seconds, lat = START + 60 * minute, 51.4 + minute * 600 / 111_195
        fixes = [(f"FLON:{bus}", seconds, lat, -0.12, 10) for bus in range(12)]
        (folder / f"{minute:02d}.xml").write_bytes(siri_bytes(fixes, seconds))
    command = ("siri-vm", folder, "--config", london, "--offline", "--out", tmp_path / "out.ndjson")
    assert "set feed.speed_unit = 'm/s'" in run(*command, code=2).stderr
    assert not (tmp_path / "out.ndjson").exists()
    accepted = run(*command, "--any-speed")
    assert "1 windows released" in accepted.stderr


COMPRESSED = gzip.compress(fleet(0, speed=5.0))


@pytest.mark.parametrize("form", [fleet(0, speed=5.0), COMPRESSED, COMPRESSED + gzip.compress(b"")], ids=len)
def test_a_file_and_a_pipe_are_decompressed_by_their_first_bytes_and_not_by_their_name(form, tmp_path):
    config = ["--config", str(bus_fleet_file(tmp_path, DELHI)), "--out", "-"]
    for name in ("0.pb", "0.pb.gz", "0", "-"):
        path = tmp_path / name
        path.write_bytes(form)
        outcome = run("gtfs-rt", "-" if name == "-" else path, *config, input=form)
        assert len(outcome.stdout.splitlines()) == 3, name


@pytest.mark.parametrize("headers", [{}, {"Content_Type": "application/gzip"}, {"Content_Encoding": "gzip"}])
def test_an_answer_that_is_a_gzipped_file_is_read_whatever_its_headers_say(headers, tmp_path):
    with Agency([answer(200, COMPRESSED, **headers)]) as agency:
        config = bus_fleet_file(tmp_path, DELHI)
        run("gtfs-rt", agency.url, "--once", "--config", config, "--out", tmp_path / "out")
    assert [json.loads(line)["user"] for line in (tmp_path / "out").read_text().splitlines()] == ["a", "b", "c"]


def test_what_is_no_whole_gzip_stream_is_an_error_of_the_source_and_counts_as_unreadable():
    source = reader()
    for damaged in (COMPRESSED[:-9], COMPRESSED[:20] + b"\xff" * 20 + COMPRESSED[40:], b"\x1f\x8b"):
        with pytest.raises(SnapshotError, match="damaged or cut short"):
            source.events(damaged, START * 1_000_000)
    assert source.tally.unreadable == 3


def test_a_compressed_bomb_is_refused_by_its_size_in_bounded_memory():
    bomb = gzip.compress(bytes(2 * LARGEST_SNAPSHOT))
    assert len(decompressed(bomb)) == LARGEST_SNAPSHOT + 1
    with pytest.raises(SnapshotError, match="are more than"):
        reader().events(bomb)


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_no_error_of_a_release_shows_the_key_in_the_address(scheme, monkeypatch, tmp_path):
    async def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    monkeypatch.setattr("stream.cli.positions.poll", away)
    source = f"{scheme}://city:hidden@127.0.0.1:9/x?key=hidden"
    options = ["--offline", "--out", str(tmp_path / "r.ndjson"), "--config", str(bus_fleet_file(tmp_path, DELHI))]
    done = run("gtfs-rt", source, *options, code=1)
    assert "the release of" in done.stderr
    assert "hidden" not in done.output
