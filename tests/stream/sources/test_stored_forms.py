"""A snapshot is recognised by its bytes, whatever it is called, and from wherever it comes."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from redis.exceptions import RedisError
from typer.testing import CliRunner

from stream.cli import app
from stream.sources import live
from stream.sources.siri import SiriVehicleMonitoring
from stream.sources.snapshots import LARGEST_SNAPSHOT, SnapshotError, decompressed
from tests.stream.sources.agency import DELHI, FEED, HOURS, Agency, answer, fleet, reader, run
from tests.stream.sources.gtfs import START
from tests.support.builders import bus_fleet_file

COMPRESSED = gzip.compress(fleet(0, speed=5.0))


@pytest.mark.parametrize("name", ["0.pb", "0.pb.gz", "0"])
@pytest.mark.parametrize("form", [fleet(0, speed=5.0), COMPRESSED, COMPRESSED + gzip.compress(b"")], ids=len)
def test_a_file_is_decompressed_by_its_first_bytes_and_not_by_its_name(name: str, form: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(form)
    code, out, _ = run(str(tmp_path / name), "--config", str(bus_fleet_file(tmp_path, DELHI)), "--out", "-")
    assert (code, len(out.splitlines())) == (0, 3)


@pytest.mark.parametrize("headers", [{}, {"Content_Type": "application/gzip"}, {"Content_Encoding": "gzip"}])
def test_an_answer_that_is_a_gzipped_file_is_read_whatever_its_headers_say(
    headers: dict[str, str], tmp_path: Path
) -> None:
    with Agency([answer(200, COMPRESSED, **headers)]) as agency:
        config = str(bus_fleet_file(tmp_path, DELHI))
        code, _, _ = run(agency.url, "--once", "--config", config, "--out", str(tmp_path / "out"))
    assert code == 0
    assert [json.loads(line)["user"] for line in (tmp_path / "out").read_text().splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize("form", [fleet(0, speed=5.0), COMPRESSED], ids=["plain", "gzip"])
def test_a_snapshot_of_a_pipe_is_read(form: bytes, tmp_path: Path) -> None:
    config = bus_fleet_file(tmp_path, DELHI)
    outcome = CliRunner().invoke(app, ["gtfs-rt", "-", "--config", str(config), "--out", "-"], input=form)
    assert (outcome.exit_code, len(outcome.stdout.splitlines())) == (0, 3)


def test_what_is_no_whole_gzip_stream_is_an_error_of_the_source_and_counts_as_unreadable() -> None:
    source = reader()
    for damaged in (COMPRESSED[:-9], COMPRESSED[:20] + b"\xff" * 20 + COMPRESSED[40:], b"\x1f\x8b"):
        with pytest.raises(SnapshotError, match="damaged or cut short"):
            source.events(damaged, START * 1_000_000)
    assert source.tally.unreadable == 3


def test_a_compressed_bomb_is_refused_by_its_size_in_bounded_memory() -> None:
    stored = io.BytesIO()
    with gzip.GzipFile(fileobj=stored, mode="wb") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    assert len(decompressed(stored.getvalue())) == LARGEST_SNAPSHOT + 1
    with pytest.raises(SnapshotError, match="are more than"):
        reader().events(stored.getvalue())


def test_siri_is_decompressed_as_well() -> None:
    body = (
        b"<Siri><ServiceDelivery><VehicleMonitoringDelivery><VehicleActivity><RecordedAtTime>2025-01-01T00:00:00Z"
        b"</RecordedAtTime><MonitoredVehicleJourney><VehicleRef>7</VehicleRef><Velocity>20</Velocity><VehicleLocation>"
        b"<Longitude>77.2</Longitude><Latitude>28.6</Latitude></VehicleLocation></MonitoredVehicleJourney></VehicleActivity>"
        b"</VehicleMonitoringDelivery></ServiceDelivery></Siri>"
    )
    (event,) = SiriVehicleMonitoring(FEED, HOURS).events(gzip.compress(body)).values
    assert json.loads(event)["speed"] == 20


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_no_error_of_a_release_shows_the_key_in_the_address(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    monkeypatch.setattr(live, "poll", away)
    source = f"{scheme}://city:hidden@127.0.0.1:9/x?key=hidden"
    options = ["--offline", "--out", str(tmp_path / "r.ndjson"), "--config", str(bus_fleet_file(tmp_path, DELHI))]
    code, out, stderr = run(source, *options)
    assert code == 1
    assert "the release of" in stderr
    assert "hidden" not in out + stderr
