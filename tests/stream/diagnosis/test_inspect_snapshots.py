"""``hexveil inspect`` of what agencies publish: damaged files, timestamps in another unit, one snapshot, a small fleet.
``hexveil inspect`` reads SIRI-VM, whose unit of speed differs by producer, and answers of servers in any format. What
an inspection reads and keeps is bounded, whatever arrives."""

import gzip
import json
import os
import sys
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config.feed import SPEED_TO_KMH, FeedConfig
from stream.config.section import BoundingBox
from stream.diagnosis.measures import measure
from stream.diagnosis.observing import observe_file
from stream.diagnosis.reading import InspectionError, Observations
from stream.sources.lines import StandardInput
from tests.stream.sources.agency import START, Agency, answer, feed_message, siri_bytes, snapshot_bytes
from tests.support.inspecting import CONFIG, inspected, problems

VEHICLES = 12


def snapshot(step: int, per_second: int = 1, speed: float | None = None) -> bytes:
    """Vehicles that drive north at 40 km/h, a snapshot every 30 s; ``per_second``: in which unit timestamps are."""
    time = (START + 30 * step) * per_second
    buses = [(f"bus-{n}", time, 28.6 + 0.003 * step, 77.2 + 0.01 * n, speed) for n in range(VEHICLES)]
    return snapshot_bytes(buses, time)


def reasons(path: Path) -> dict[str, str]:
    return {line.key: line.reason for line in inspected(path).suggestions}


@pytest.mark.parametrize("per_second", [1_000, 1_000_000, 1_000_000_000, 10_000_000_000])
def test_timestamps_in_another_unit_are_said_and_end_in_no_other_error(per_second, tmp_path):
    (tmp_path / "0.pb").write_bytes(snapshot(0, per_second))
    with pytest.raises(
        InspectionError, match=r"12 time-no-epoch-seconds. Likely their times are outside the years 2000"
    ):
        inspected(tmp_path / "0.pb")


def test_of_a_folder_what_is_damaged_or_no_snapshot_is_counted_and_the_others_are_read(tmp_path):
    for step in range(6):
        (tmp_path / f"{step}.pb").write_bytes(snapshot(step, speed=11.1))
    (tmp_path / "1.pb").write_bytes(gzip.compress(snapshot(1, speed=11.1)))
    (tmp_path / "2.pb.gz").write_bytes(gzip.compress(snapshot(2, speed=11.1))[:-9])
    (tmp_path / "3.txt").write_bytes(b"notes")
    (tmp_path / ".hidden").write_bytes(b"notes")
    seen = observe_file(tmp_path, 1_000_000)
    assert len(seen) == 6 * VEHICLES
    assert seen.refused["no snapshot"] == 2


def test_an_address_of_trip_updates_is_named_as_such(tmp_path):
    message = feed_message([("a", START, 28.6, 77.2, None)])
    message.entity[0].ClearField("vehicle")
    (tmp_path / "0.pb").write_bytes(message.SerializeToString())
    with pytest.raises(InspectionError, match="Likely the feed has trip updates or alerts and no vehicle position"):
        observe_file(tmp_path / "0.pb", 100)


def test_a_folder_of_recordings_is_one_recording(tmp_path):
    for name in ("a", "b"):
        row = f"{name},1490097600000,30.2,-97.7,1\n"
        (tmp_path / f"{name}.csv").write_text("user,time,lat,lng,speed\n" + row)
    assert inspected(tmp_path).usable == 2


def test_a_folder_of_nothing_but_damaged_files_names_the_first(tmp_path):
    (tmp_path / "0.pb.gz").write_bytes(gzip.compress(snapshot(0))[:-9])
    with pytest.raises(InspectionError, match=r"no vehicle positions in it: .*gzip that are damaged or cut short"):
        observe_file(tmp_path, 100)


def test_of_one_moment_the_suggested_domain_says_that_vehicles_go_farther(tmp_path):
    (tmp_path / "0.pb").write_bytes(snapshot(0))
    assert "than in this one moment" in reasons(tmp_path / "0.pb")["domain"]
    (tmp_path / "1.pb").write_bytes(snapshot(1))
    assert reasons(tmp_path)["domain"] == "where the fixes are, with a margin; check it on a map"


@pytest.mark.parametrize(("share", "is_far"), [(0.004, True), (0.05, True), (0.3, False)])
def test_a_few_wrong_positions_do_not_make_the_suggested_domain_half_a_continent(share, is_far):
    seen = grid(28.6, 77.2, exchanged=False)
    wrong = np.arange(len(seen)) < share * len(seen)
    seen = replace(seen, lat=np.where(wrong, 1.0, seen.lat), lng=np.where(wrong, 2.0, seen.lng))
    measures = measure(seen)
    assert measures.box is not None
    assert (measures.box[0] > 28) is is_far
    assert measures.far == (wrong.sum() if is_far else 0)
    assert any("lie far from the others" in sentence for sentence in problems(seen)) is is_far


def test_speeds_that_are_derived_already_are_not_asked_for_again(tmp_path):
    for step in range(3):
        (tmp_path / f"{step}.pb").write_bytes(snapshot(step, speed=0.0))
    seen = observe_file(tmp_path, 100)
    sentences = problems(seen)
    assert sentences[0].endswith("let speeds be derived from positions: feed.speeds = 'derived'.")


def grid(lat: float, lng: float, *, exchanged: bool, known: bool = True, drift: float = 0.0) -> Observations:
    """Forty vehicles of a city at this place that drive 30 km/h north and east in turn, and report it in km/h.

    ``drift``: by so much too much northwards, as where such streets are straighter.
    """
    steps, vehicles = 41, 40
    user, step = np.repeat(np.arange(vehicles), steps), np.tile(np.arange(steps), vehicles)
    metres = 30 / 3.6 * 30
    north, east = metres * (step // 2) / 111_195, metres * ((step + 1) // 2) / 111_195 / np.cos(np.radians(lat))
    axes = lat + north + 0.001 * user, lng + east
    speed = np.where(step % 2 == 0, 30.0 * (1 + drift), 30.0)
    return Observations(
        kind="JSON",
        format="canonical",
        feed=CONFIG.feed,
        user=user,
        time_us=(START + 30 * step) * 1_000_000,
        lat=axes[exchanged],
        lng=axes[not exchanged],
        speed=speed if known else np.full(len(user), np.nan),
        arrived_us=np.full(len(user), -1),
    )


def says_exchanged(seen: Observations) -> bool:
    return any("perhaps exchanged" in sentence for sentence in problems(seen))


@pytest.mark.parametrize("drift", [-0.12, 0.0, 0.12])
@pytest.mark.parametrize("place", [(51.5, -0.1), (48.2, 16.4), (60.2, 24.9), (-23.5, -46.6), (41.0, 29.0)])
def test_exchanged_axes_are_said_where_speeds_by_direction_tell_and_right_ones_are_not(place, drift):
    assert says_exchanged(grid(*place, exchanged=True, drift=drift))
    assert not says_exchanged(grid(*place, exchanged=False, drift=drift))


def test_where_both_places_are_near_the_equator_or_without_speeds_nothing_is_claimed():
    for place in ((6.5, 3.4), (-1.3, 36.8), (38.0, 23.7), (40.4, -3.7)):
        assert not says_exchanged(grid(*place, exchanged=True))
    assert measure(grid(51.5, -0.1, exchanged=True, known=False)).direction_quotient is None


@pytest.mark.parametrize("hostile", [np.inf, -1.0, 0.0])
def test_no_speeds_make_the_judgement_of_directions_raise(hostile):
    seen = grid(51.5, -0.1, exchanged=True)
    assert problems(replace(seen, speed=np.full(len(seen), hostile)))
    measure(replace(seen, speed=np.full(len(seen), hostile)))


KMH, EVERY_S, BUSES, STEPS = 36.0, 30, 20, 40


def document(step: int, per_unit: float = 1.0, zone: bool = True, velocity: bool = True) -> bytes:
    """Vehicles that drive north at 36 km/h, whose ``Velocity`` is in a unit of so many km/h."""
    seconds, lat = START + EVERY_S * step, round(59.9 + step * KMH / 3.6 * EVERY_S / 111_195, 6)
    said = f"{KMH / per_unit:.2f}" if velocity else None
    body = siri_bytes([(f"X:secret-{n}", seconds, lat, 10.7 + n / 100, said) for n in range(BUSES)], seconds)
    return body if zone else body.replace(b"Z</RecordedAtTime>", b"</RecordedAtTime>")


def archive(folder: Path, **form: object) -> Path:
    folder.mkdir()
    for step in range(STEPS):
        body = document(step, **form)  # type: ignore[arg-type]
        (folder / f"{step:03}.xml").write_bytes(gzip.compress(body) if step % 2 else body)
    return folder


@pytest.mark.parametrize("unit", ["km/h", "m/s", "mph"])
def test_the_unit_of_velocity_is_found_and_what_the_configuration_says_otherwise(unit, tmp_path):
    report = inspected(archive(tmp_path / "day", per_unit=SPEED_TO_KMH[unit]))
    assert (report.usable, report.measures.vehicles) == (BUSES * STEPS, BUSES)
    lines = {line.key: line for line in report.suggestions}
    assert lines["speed_unit"].value == f'"{unit}"'
    assert lines["format"].reason == "hexveil siri-vm sends canonical events"
    domain = BoundingBox(south=59, west=10, north=61, east=12)
    feed = FeedConfig(name="bus", topic="bus", timezone="Europe/Oslo", domain=domain, speed_unit="m/s")
    said = " ".join(inspected(tmp_path / "day", report.config.model_copy(update={"feed": feed})).problems)
    assert ("if the reported speeds are in m/s" in said) is (unit != "m/s")


def test_times_without_a_zone_and_missing_speeds_are_said(tmp_path):
    seen = observe_file(archive(tmp_path / "day", zone=False, velocity=False), 10**6)
    sentences = " ".join(problems(seen))
    assert "They were read in that of feed.timezone" in sentences
    assert "100% of the fixes have no speed; let speeds be derived" in sentences


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_document_is_recognised_in_any_encoding_that_it_declares(encoding, tmp_path):
    declared = encoding.removesuffix("-sig")
    text = document(0, zone=False).decode().replace('"1.0"', f'"1.0" encoding="{declared}"', 1)
    (tmp_path / "vm.xml").write_bytes(text.encode(encoding))
    seen = observe_file(tmp_path / "vm.xml", 100)
    assert (seen.kind, len(seen), seen.local) == ("SIRI-VM", BUSES, 1.0)


def test_one_document_is_recognised_from_a_file_a_pipe_and_a_folder_with_damaged_ones(tmp_path):
    folder = archive(tmp_path / "day")
    assert len(observe_file(folder / "001.xml", 10**6)) == BUSES
    (folder / "003.xml").write_bytes(b"<html>maintenance</html>")
    (folder / "004.xml").write_bytes(b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><Siri>&a;</Siri>')
    seen = observe_file(folder, 10**6)
    assert (len(seen), seen.refused["no snapshot"]) == (BUSES * (STEPS - 2), 2)
    assert len(observe_file(folder, BUSES)) == BUSES
    outcome = CliRunner().invoke(app, ["inspect", "-", "--json"], input=document(0))
    assert (outcome.exit_code, json.loads(outcome.stdout)["kind"]) == (0, "SIRI-VM")
    assert "secret-" not in outcome.output


def test_a_folders_form_is_that_of_most_of_its_files_and_not_of_the_first(tmp_path):
    folder = archive(tmp_path / "day")
    (folder / "0-README.txt").write_text("what this is")
    (folder / "000-error.html").write_bytes(b"<!DOCTYPE html><html>busy</html>")
    seen = observe_file(folder, 10**6)
    assert (seen.kind, len(seen), seen.refused["no snapshot"]) == ("a folder of SIRI-VM", BUSES * STEPS, 2)
    for file in list(folder.glob("*.xml"))[5:]:
        file.unlink()
    for k in range(6):
        (folder / f"{k}.pb").write_bytes(snapshot_bytes([], None))
    with pytest.raises(InspectionError, match="no vehicle positions in it"):
        observe_file(folder, 10**6)


def test_xml_that_is_no_siri_is_refused_with_what_it_lacks(tmp_path):
    (tmp_path / "page").write_bytes(b"<html><body>maintenance</body></html>")
    with pytest.raises(InspectionError, match="XML without a VehicleMonitoringDelivery"):
        observe_file(tmp_path / "page", 100)


def test_what_is_written_releases_the_archive_in_the_right_unit(tmp_path):
    folder, config, out = archive(tmp_path / "day", per_unit=3.6), tmp_path / "c.toml", tmp_path / "r.ndjson"
    written = CliRunner().invoke(app, ["inspect", str(folder), "--write", str(config), "--relation", "values"])
    assert written.exit_code == 0, written.output
    released = CliRunner().invoke(
        app, ["siri-vm", str(folder), "--offline", "--out", str(out), "--config", str(config)]
    )
    assert released.exit_code == 0, released.output
    assert f"{BUSES * STEPS} events (0 refused)" in released.stderr
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
def test_an_address_is_inspected_whatever_its_format(body, kind):
    with Agency([answer(200, body)]) as agency:
        outcome = CliRunner().invoke(app, ["inspect", agency.url, "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["kind"] == kind


def test_an_answer_that_cannot_be_read_is_named_as_such_and_not_as_a_file():
    lines = b'{"user":"a","time":1757581200000,"lat":59.9,"lng":10.7,"speed":3}\n' * 9
    with Agency([answer(200, gzip.compress(lines)[:-8])]) as agency:
        outcome = CliRunner().invoke(app, ["inspect", agency.url])
    assert outcome.exit_code == 2
    assert "the answer: the gzip stream is cut short" in outcome.output
    assert "/tmp" not in outcome.output


def test_an_inspection_reads_its_limit_of_events_and_keeps_no_other_field(tmp_path):
    extra = ",".join(f'"x{k}":"{k}"' for k in range(100))
    row = f'{{"user":"a","time":1490097600000,"lat":30.2,"lng":-97.7,"speed":1,{extra}}}\n'
    (tmp_path / "day").write_text(row * 40_000)
    tracemalloc.start()
    seen = observe_file(tmp_path / "day", 2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) < 4_000
    assert peak < 40_000_000, "2000 trees are a sample"


def test_of_an_endless_snapshot_on_standard_input_no_more_is_read_than_a_snapshot_may_have(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    stored = StandardInput()

    def endless() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb", buffering=0) as pipe:
            while True:
                pipe.write(b"header {")

    writer = threading.Thread(target=endless, daemon=True)
    writer.start()
    assert stored.peek(8) == b"header {"
    assert stored.read_whole(100_000) == b"header {" * 12_500
    sys.stdin.close()
    writer.join(10)
    assert not writer.is_alive()


def test_a_source_whose_name_is_too_long_for_a_file_is_no_file(monkeypatch):
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    outcome = CliRunner().invoke(app, ["inspect", "a" * 300])
    assert outcome.exit_code == 3
    assert isinstance(outcome.exception, SystemExit)
