"""``hexveil inspect`` reads SIRI-VM, whose unit of speed differs by producer, and answers of servers in any format."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.transit import gtfs_realtime_pb2
from typer.testing import CliRunner

from stream.cli import app
from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.config.section import BoundingBox
from stream.diagnosis.observations import InspectionError
from stream.diagnosis.observing import observe_file
from tests.stream.sources.agency import Agency, answer
from tests.support.inspecting import inspected, problems

BEGIN = datetime(2025, 9, 11, 9, tzinfo=UTC)
KMH, EVERY_S, VEHICLES, STEPS = 36.0, 30, 20, 40


def document(step: int, per_unit: float = 1.0, zone: bool = True, velocity: bool = True) -> bytes:
    """Vehicles that drive north at 36 km/h, whose ``Velocity`` is in a unit of so many km/h."""
    moment = (BEGIN + timedelta(seconds=EVERY_S * step)).isoformat()
    recorded = moment if zone else moment.removesuffix("+00:00")
    activities = "".join(
        f"<VehicleActivity><RecordedAtTime>{recorded}</RecordedAtTime><MonitoredVehicleJourney><OperatorRef>X</OperatorRef>"
        f"<VehicleRef>secret-{n}</VehicleRef>"
        + (f"<Velocity>{KMH / per_unit:.2f}</Velocity>" if velocity else "")
        + "<VehicleLocation>"
        f"<Longitude>{10.7 + n / 100}</Longitude><Latitude>{59.9 + step * KMH / 3.6 * EVERY_S / 111_195:.6f}</Latitude>"
        "</VehicleLocation></MonitoredVehicleJourney></VehicleActivity>"
        for n in range(VEHICLES)
    )
    return (
        f'<?xml version="1.0"?>\n<Siri xmlns="http://www.siri.org.uk/siri"><ServiceDelivery><ResponseTimestamp>{moment}'
        f"</ResponseTimestamp><VehicleMonitoringDelivery>{activities}</VehicleMonitoringDelivery></ServiceDelivery></Siri>"
    ).encode()


def archive(folder: Path, **form: object) -> Path:
    folder.mkdir()
    for step in range(STEPS):
        body = document(step, **form)  # type: ignore[arg-type]
        (folder / f"{step:03}.xml").write_bytes(gzip.compress(body) if step % 2 else body)
    return folder


@pytest.mark.parametrize("unit", ["km/h", "m/s", "mph"])
def test_the_unit_of_velocity_is_found_and_what_the_configuration_says_otherwise(unit: str, tmp_path: Path) -> None:
    report = inspected(archive(tmp_path / "day", per_unit=SPEED_TO_KMH[unit]))
    assert (report.usable, report.measures.vehicles) == (VEHICLES * STEPS, VEHICLES)
    lines = {line.key: line for line in report.suggestions}
    assert lines["speed_unit"].value == f'"{unit}"'
    assert lines["format"].reason == "hexveil siri-vm sends canonical events"
    domain = BoundingBox(south=59, west=10, north=61, east=12)
    feed = FeedConfig(name="bus", topic="bus", timezone="Europe/Oslo", domain=domain, speed_unit="m/s")
    said = " ".join(inspected(tmp_path / "day", report.config.model_copy(update={"feed": feed})).problems)
    assert ("if the reported speeds are in m/s" in said) is (unit != "m/s")


def test_times_without_a_zone_and_missing_speeds_are_said(tmp_path: Path) -> None:
    seen = observe_file(archive(tmp_path / "day", zone=False, velocity=False), 10**6)
    sentences = " ".join(problems(seen))
    assert "They were read in that of feed.timezone" in sentences
    assert "100% of the fixes have no speed; let speeds be derived" in sentences


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_document_is_recognised_in_any_encoding_that_it_declares(encoding: str, tmp_path: Path) -> None:
    declared = encoding.removesuffix("-sig")
    text = document(0, zone=False).decode().replace('"1.0"', f'"1.0" encoding="{declared}"', 1)
    (tmp_path / "vm.xml").write_bytes(text.encode(encoding))
    seen = observe_file(tmp_path / "vm.xml", 100)
    assert (seen.kind, len(seen), seen.local) == ("SIRI-VM", VEHICLES, 1.0)


def test_one_document_is_recognised_from_a_file_a_pipe_and_a_folder_with_damaged_ones(tmp_path: Path) -> None:
    folder = archive(tmp_path / "day")
    assert len(observe_file(folder / "001.xml", 10**6)) == VEHICLES
    (folder / "003.xml").write_bytes(b"<html>maintenance</html>")
    (folder / "004.xml").write_bytes(b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><Siri>&a;</Siri>')
    seen = observe_file(folder, 10**6)
    assert (len(seen), seen.refused["no snapshot"]) == (VEHICLES * (STEPS - 2), 2)
    assert len(observe_file(folder, VEHICLES)) == VEHICLES
    outcome = CliRunner().invoke(app, ["inspect", "-", "--json"], input=document(0))
    assert (outcome.exit_code, json.loads(outcome.stdout)["kind"]) == (0, "SIRI-VM")
    assert "secret-" not in outcome.output


def test_a_folders_form_is_that_of_most_of_its_files_and_not_of_the_first(tmp_path: Path) -> None:
    folder = archive(tmp_path / "day")
    (folder / "0-README.txt").write_text("what this is")
    (folder / "000-error.html").write_bytes(b"<!DOCTYPE html><html>busy</html>")
    seen = observe_file(folder, 10**6)
    assert (seen.kind, len(seen), seen.refused["no snapshot"]) == ("a folder of SIRI-VM", VEHICLES * STEPS, 2)
    for file in list(folder.glob("*.xml"))[5:]:
        file.unlink()
    message = gtfs_realtime_pb2.FeedMessage.FromString(b"\x0a\x05\x0a\x032.0")
    for k in range(6):
        (folder / f"{k}.pb").write_bytes(message.SerializeToString())
    with pytest.raises(InspectionError, match="no vehicle positions in it"):
        observe_file(folder, 10**6)


def test_xml_that_is_no_siri_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"<html><body>maintenance</body></html>")
    with pytest.raises(InspectionError, match="XML without a VehicleMonitoringDelivery"):
        observe_file(tmp_path / "page", 100)


def test_what_is_written_releases_the_archive_in_the_right_unit(tmp_path: Path) -> None:
    folder, config, out = archive(tmp_path / "day", per_unit=3.6), tmp_path / "c.toml", tmp_path / "r.ndjson"
    written = CliRunner().invoke(app, ["inspect", str(folder), "--write", str(config), "--relation", "values"])
    assert written.exit_code == 0, written.output
    released = CliRunner().invoke(
        app, ["siri-vm", str(folder), "--offline", "--out", str(out), "--config", str(config)]
    )
    assert released.exit_code == 0, released.output
    assert f"{VEHICLES * STEPS} events (0 refused)" in released.stderr
    assert "Note" not in released.stderr, "the speeds agree with the positions"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (document(0), "SIRI-VM"),
        (gzip.compress(document(0)), "SIRI-VM"),
        (b'{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}\n' * 3, "JSON, one object per line"),
        (b'[{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}]', "JSON, arrays of objects"),
        (b"bus;time;lat;lng\n7;1757581200;59,9;10,7\n", "CSV, separated by semicolons"),
    ],
)
def test_an_address_is_inspected_whatever_its_format(body: bytes, kind: str) -> None:
    with Agency([answer(200, body)]) as agency:
        outcome = CliRunner().invoke(app, ["inspect", agency.url, "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["kind"] == kind


def test_an_answer_that_cannot_be_read_is_named_as_such_and_not_as_a_file() -> None:
    lines = b'{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}\n' * 9
    with Agency([answer(200, gzip.compress(lines)[:-8])]) as agency:
        outcome = CliRunner().invoke(app, ["inspect", agency.url])
    assert outcome.exit_code == 2
    assert "the answer: the gzip stream is cut short" in outcome.output
    assert "/tmp" not in outcome.output
