"""SIRI-VM becomes events whatever a server sends: a reason for each activity refused, no entity expanded, never a
crash. A snapshot is recognised by its bytes, whatever it is called, and from wherever it comes."""

import gzip
import io
import json
import math
import tracemalloc
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from redis.exceptions import RedisError
from typer.testing import CliRunner

from stream.cli import app
from stream.config.feed import FeedConfig
from stream.sources import polling
from stream.sources.siri import SiriVehicleMonitoring, decode_siri
from stream.sources.snapshots import LARGEST_SNAPSHOT, Snapshot, SnapshotError, decompressed
from stream.windows import Slotting
from tests.stream.sources.agency import DELHI, START, Agency, answer, fleet, reader, run
from tests.support.builders import bus_fleet_file, parse_time

NOON = "2026-03-02T12:00:00+00:00"
LONDON = ZoneInfo("Europe/London")


def activity(vehicle: str = "4112", operator: str = "FLON", time: str = NOON, **fields: str) -> str:
    """One VehicleActivity; ``fields``: elements of its journey in place of the usual ones, "" for none."""
    location = fields.get(
        "location", "<VehicleLocation><Longitude>-0.12</Longitude><Latitude>51.5</Latitude></VehicleLocation>"
    )
    named = [("OperatorRef", operator), ("VehicleRef", vehicle), ("Velocity", fields.get("velocity", "36"))]
    journey = "".join(f"<{name}>{text}</{name}>" for name, text in named if text)
    when = f"<RecordedAtTime>{time}</RecordedAtTime>" if time else ""
    return (
        f"<VehicleActivity>{when}<MonitoredVehicleJourney><LineRef>1</LineRef><FramedVehicleJourneyRef><VehicleRef>no</VehicleRef>"
        f"</FramedVehicleJourneyRef>{journey}{location}<Bearing>7</Bearing></MonitoredVehicleJourney></VehicleActivity>"
    )


def document(*activities: str, head: str = "<?xml version='1.0' encoding='UTF-8'?>", response: str = NOON) -> bytes:
    return (
        f"{head}<Siri xmlns='http://www.siri.org.uk/siri' version='2.0'><ServiceDelivery><ResponseTimestamp>{response}"
        f"</ResponseTimestamp><VehicleMonitoringDelivery>{''.join(activities)}</VehicleMonitoringDelivery></ServiceDelivery></Siri>"
    ).encode()


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


REFUSED = {
    "no vehicle": (activity(vehicle=""), "no-vehicle-id"),
    "a long name": (activity(vehicle="x" * 300), "id-too-long"),
    "no location": (activity(location=""), "no-position"),
    "a planar location": (activity(location="<VehicleLocation srsName='EPSG:27700'><Coordinates>1 "
"2</Coordinates></VehicleLocation>"), "other-coordinates"),
    "0, 0": (activity(location="<VehicleLocation><Longitude>0</Longitude><Latitude>0.0</Latitude></VehicleLocation>"),
    "no-place"),
    "no number": (activity(location="<VehicleLocation><Longitude>x</Longitude><Latitude>1</Latitude></VehicleLocation>"), "no-place"),  # noqa: E501
    "infinite": (activity(location="<VehicleLocation><Longitude>1e999</Longitude><Latitude>1</Latitude></VehicleLocation>"), "no-place"),  # noqa: E501
    "no time": (activity(time="noon"), "time-unreadable"),
    "twice a year": (activity(time="2026-10-25T01:30:00"), "time-unreadable"),
    "1970": (activity(time="1970-01-01T00:00:00Z"), "time-no-epoch-seconds"),
    "tomorrow": (activity(time="2026-03-03T12:00:00Z"), "time-in-future"),
    "a text of 3 MB": (activity("x" * 3_000_000), "id-too-long"),
    "20 000 attributes": (activity(location="<VehicleLocation " + "".join(f"a{k}='1' " for k in range(20_000)) + "/>"), "no-position"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_activity_that_is_no_fix_is_refused_with_its_reason_and_the_others_stay(name):
    refused, reason = REFUSED[name]
    seen = decoded(document(activity("a"), refused, activity("b")))
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
    domain = {"south": 51.0, "west": -1.0, "north": 52.0, "east": 1.0}
    feed = FeedConfig(name="bus", topic="bus", timezone="Europe/London", speed_unit="m/s", domain=domain)  # type: ignore[arg-type]
    source = SiriVehicleMonitoring(feed, Slotting(timedelta(hours=1), timedelta(days=1), feed.timezone), "reported")
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
    runner = CliRunner()
    done = runner.invoke(app, ["siri-vm", str(folder), "--config", str(london), "--out", "-"])
    assert done.exit_code == 1, "one file is no document"
    assert "2.xml: XML without a VehicleMonitoringDelivery" in done.stderr
    assert [json.loads(line)["user"] for line in done.stdout.splitlines()] == ["FLON:a"]
    with Agency([answer(200, document(activity("c"), activity("d")))]) as agency:
        done = runner.invoke(app, ["siri-vm", agency.url, "--once", "--config", str(london), "--out", "-"])
    assert done.exit_code == 0, done.stderr
    assert [json.loads(line)["speed"] for line in done.stdout.splitlines()] == [36.0, 36.0]


def test_velocities_in_another_unit_than_declared_are_not_released(london, tmp_path):
    """Twelve vehicles drive 10 m/s and say 10, which the configuration declares to be km/h."""
    folder = tmp_path / "stored"
    folder.mkdir()
    for minute in range(20):
        time = f"2026-03-02T12:{minute:02d}:00Z"
        place = f"<VehicleLocation><Longitude>-0.12</Longitude><Latitude>{51.4 + minute * 600 / 111_195}</Latitude></VehicleLocation>"  # noqa: E501
        fixes = [activity(f"{bus}", time=time, velocity="10", location=place) for bus in range(12)]
        (folder / f"{minute:02d}.xml").write_bytes(document(*fixes, response=time))
    command = ["siri-vm", str(folder), "--config", str(london), "--offline", "--out", str(tmp_path / "out.ndjson")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "set feed.speed_unit = 'm/s'" in refused.stderr
    assert not (tmp_path / "out.ndjson").exists()
    accepted = CliRunner().invoke(app, [*command, "--any-speed"])
    assert accepted.exit_code == 0, accepted.stderr
    assert "1 windows released" in accepted.stderr


COMPRESSED = gzip.compress(fleet(0, speed=5.0))


@pytest.mark.parametrize("form", [fleet(0, speed=5.0), COMPRESSED, COMPRESSED + gzip.compress(b"")], ids=len)
def test_a_file_and_a_pipe_are_decompressed_by_their_first_bytes_and_not_by_their_name(form, tmp_path):
    config = ["--config", str(bus_fleet_file(tmp_path, DELHI)), "--out", "-"]
    for name in ("0.pb", "0.pb.gz", "0", "-"):
        path = tmp_path / name
        path.write_bytes(form)
        outcome = CliRunner().invoke(app, ["gtfs-rt", "-" if name == "-" else str(path), *config], input=form)
        assert (outcome.exit_code, len(outcome.stdout.splitlines())) == (0, 3), name


@pytest.mark.parametrize("headers", [{}, {"Content_Type": "application/gzip"}, {"Content_Encoding": "gzip"}])
def test_an_answer_that_is_a_gzipped_file_is_read_whatever_its_headers_say(headers, tmp_path):
    with Agency([answer(200, COMPRESSED, **headers)]) as agency:
        config = str(bus_fleet_file(tmp_path, DELHI))
        code, _, _ = run(agency.url, "--once", "--config", config, "--out", str(tmp_path / "out"))
    assert code == 0
    assert [json.loads(line)["user"] for line in (tmp_path / "out").read_text().splitlines()] == ["a", "b", "c"]


def test_what_is_no_whole_gzip_stream_is_an_error_of_the_source_and_counts_as_unreadable():
    source = reader()
    for damaged in (COMPRESSED[:-9], COMPRESSED[:20] + b"\xff" * 20 + COMPRESSED[40:], b"\x1f\x8b"):
        with pytest.raises(SnapshotError, match="damaged or cut short"):
            source.events(damaged, START * 1_000_000)
    assert source.tally.unreadable == 3


def test_a_compressed_bomb_is_refused_by_its_size_in_bounded_memory():
    stored = io.BytesIO()
    with gzip.GzipFile(fileobj=stored, mode="wb") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    assert len(decompressed(stored.getvalue())) == LARGEST_SNAPSHOT + 1
    with pytest.raises(SnapshotError, match="are more than"):
        reader().events(stored.getvalue())


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_no_error_of_a_release_shows_the_key_in_the_address(scheme, monkeypatch, tmp_path):
    async def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    monkeypatch.setattr(polling, "poll", away)
    source = f"{scheme}://city:hidden@127.0.0.1:9/x?key=hidden"
    options = ["--offline", "--out", str(tmp_path / "r.ndjson"), "--config", str(bus_fleet_file(tmp_path, DELHI))]
    code, out, stderr = run(source, *options)
    assert code == 1
    assert "the release of" in stderr
    assert "hidden" not in out + stderr
