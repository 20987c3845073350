"""``hexveil gtfs-rt``: a fleet behind an address that misbehaves or stands still, or stored snapshots, become events
once each, or releases without Kafka; ``--speeds`` and ``feed.speeds`` that differ are said."""

import asyncio
import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from google.transit import gtfs_realtime_pb2
from structlog.testing import capture_logs

from stream.cli.feeding import live_speed_note
from stream.local.kafka import REPO_ROOT
from stream.sources import snapshot_events, timestamps
from stream.sources.polling import FetchError, FileSink, Poller, PollSettings, backed_off, poll
from stream.sources.snapshots import SnapshotError
from tests.stream.sources.agency import (
    DELHI,
    FEED,
    START,
    Agency,
    Vehicle,
    answer,
    fetch,
    fleet,
    reader,
    snapshot_bytes,
)
from tests.support.builders import bus_config, bus_fleet_file, riders_config
from tests.support.command import run
from tests.support.environment import environment
from tests.support.topics_reader import stored


def test_reported_speeds_are_taken_in_the_feeds_unit_and_not_marked():
    for unit, speed in ((None, 36.0), ("mph", 10.0)):  # m/s as the format prescribes and km/h, or what is declared
        declared = FEED.model_copy(update={"given_speed_unit": unit})
        event = json.loads(reader("missing", declared).events(fleet(0, speed=10.0)).values[0])
        assert event["speed"] == pytest.approx(speed, abs=0.001)
        assert "derived" not in event


def test_a_feed_that_reports_zeros_while_its_vehicles_move_is_noticed():
    for speed, is_wrong in ((0.0, True), (7.4, False)):
        source = reader("reported")
        for step in range(12):
            source.events(fleet(step, speed=speed, names="abcdefghijklmnopqrstuvwxyz"))
        assert source.tally.reported_speeds_are_wrong is is_wrong


def test_what_one_vehicle_sends_changes_no_event_of_another():
    """Clocks far ahead, jumps and thousands of made-up names do not change them either."""
    alone, crowded = reader(), reader()
    for step in range(4):
        now = START + 30 * step
        own: list[Vehicle] = [("a", now - 2, 28.6 + 0.002 * step, 77.2, None)]
        wild: list[Vehicle] = [(f"x{k}", now + 3000, 28.9, 77.9, None) for k in range(50)]
        wild += [("y", now, 28.1 + 0.3 * (step % 2), 77.0, 1e9)]
        values = crowded.events(snapshot_bytes(own + wild, now)).values
        mine = [value for value in values if json.loads(value)["user"] == "a"]
        assert mine == alone.events(snapshot_bytes(own, now)).values


def test_a_flood_of_made_up_vehicles_is_refused_and_the_next_snapshot_is_read(monkeypatch):
    monkeypatch.setattr("stream.sources.derived_speed.MOST_VEHICLES", 8)
    source = reader("reported")
    flood = snapshot_bytes([(f"x{k}", START, 28.6, 77.2, 5.0) for k in range(9)])
    for body in (flood, flood.replace(b"x", b"y")):
        with pytest.raises(SnapshotError, match="more than 8 vehicles"):
            source.events(body)
    assert len(source.events(fleet(1, speed=5.0)).values) == 3


def test_of_made_up_names_only_so_many_are_remembered_and_the_newest_stay(monkeypatch):
    monkeypatch.setattr(snapshot_events, "MOST_REMEMBERED", 2_000)
    source = reader("reported")
    bodies = [
        snapshot_bytes([(f"v{step}-{k}", START + step, 28.6, 77.2, 5.0) for k in range(1_000)], START + step)
        for step in range(8)
    ]
    for body in bodies:
        assert len(source.events(body, (START + 9) * 1_000_000).values) == 1_000
    assert source.events(bodies[-1], (START + 9) * 1_000_000).values == []
    assert len(source.events(bodies[0], (START + 9) * 1_000_000).values) == 1_000, "the oldest names are forgotten"


def test_a_feed_of_another_format_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"set feed\.format to 'canonical'"):
        reader(feed=FEED.model_copy(update={"format": "itms"}))


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b"\x0a\x0d")


def pouring(size: int, pause_s: float) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer without end, in pieces."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(2000):
                handler.wfile.write(b"x" * size)
                time.sleep(pause_s)

    return send


@pytest.mark.parametrize(
    ("script", "said", "final"),
    [
        (answer(500), "status 500", False),
        (answer(403), "status 403; check the address and the key", True),
        (cut_short, "Error", False),
        (pouring(1, 0.1), "no complete answer within 1 s", False),
        (pouring(65_536, 0), "more than 1048576 bytes", False),
        (answer(200, gzip.compress(bytes(2 << 20)), Content_Encoding="gzip"), "more than 1048576 bytes", False),
        (answer(302, Location="/again"), "more than 5 redirects", False),
        (answer(302, Location="file:///etc/passwd"), "redirected to a file address", True),
    ],
)
def test_a_server_that_misbehaves_gives_an_error_in_bounded_time(script, said, final):
    began = time.monotonic()
    with Agency([script]) as agency, pytest.raises(FetchError, match=said) as caught:
        fetch(agency.url, timeout_s=1.0, largest=1 << 20)
    assert caught.value.final is final
    assert time.monotonic() - began < 60


def test_retry_after_is_honoured_within_an_hour():
    with Agency([answer(503, Retry_After="7"), answer(503, Retry_After="99999999")]) as agency:
        for wait in (7.0, 3600.0):
            with pytest.raises(FetchError) as caught:
                fetch(agency.url)
            assert caught.value.retry_after_s == wait


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(bus_fleet_file(tmp_path, DELHI))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "snapshots"
    made.mkdir()
    for step in range(5):
        (made / f"{step:03}.pb").write_bytes(fleet(step))
    return made


def events_in(releases: Path) -> int:
    return sum(json.loads(line)["value"].get("events", 0) for line in releases.read_text().splitlines())


def test_stored_snapshots_become_canonical_events_in_a_file_or_releases(config, folder, tmp_path):
    out = tmp_path / "events.ndjson"
    stderr = run("gtfs-rt", folder, "--config", config, "--out", out).stderr
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(events) == 12
    assert all(math.isclose(event["speed"], 26.7, abs_tol=0.4) and event["derived"] for event in events)
    assert events[0]["time"] == (START + 28) * 1000
    assert "12 events, 12 with a derived speed" in stderr
    offline = ("gtfs-rt", folder, "--offline", "--config", config, "--out", tmp_path / "releases.ndjson")
    assert "12 events (0 refused), 1 windows released" in run(*offline).stderr
    assert events_in(tmp_path / "releases.ndjson") == 12
    assert "cannot be drawn again" in run(*offline, code=2).stderr


def test_one_damaged_snapshot_is_skipped_named_and_told_by_the_exit_code_and_alone_refused(config, folder, tmp_path):
    """Of ``--json``, what machines read is JSON alone."""
    (folder / "002.pb").write_bytes(b"<html>maintenance</html>")
    body = gzip.compress((folder / "003.pb").read_bytes())
    (folder / "damaged.pb.gz").write_bytes(body[:10] + b"\xff" * 20 + body[30:])
    command = ("gtfs-rt", folder, "--config", config, "--out")
    done = run(*command, "-", code=1)
    assert len(done.stdout.splitlines()) == 9
    assert "002.pb: an HTML or XML page" in done.stderr
    assert "damaged or cut short (Error -3 while decompressing" in done.stderr
    alone = run("gtfs-rt", folder / "002.pb", "--config", config, "--out", "-", code=2)
    assert "002.pb: an HTML or XML page" in alone.stderr
    apart = run(*command, tmp_path / "events.ndjson", "--json", code=1)
    report = json.loads(apart.stdout)
    assert (report["snapshots"]["events"], apart.stderr) == (9, "")
    assert ("002.pb" in report["problems"][0], "public" in report["notes"][0]) == (True, True)
    piped = run(*command, "-", "--json", code=1)
    assert len([json.loads(line)["user"] for line in piped.stdout.splitlines()]) == 9
    assert json.loads(piped.stderr)["snapshots"]["events"] == 9


def test_one_snapshot_without_speeds_says_what_a_derived_speed_needs(config, folder):
    stderr = run("gtfs-rt", folder / "000.pb", "--config", config, "--out", "-", code=2).stderr
    assert "two positions of the vehicle" in stderr
    assert "name a folder of snapshots, or the agency's address" in stderr


def test_a_pipe_that_a_shell_names_as_a_file_is_read(config):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(fleet(0, speed=5.0))
    done = run("gtfs-rt", f"/dev/fd/{reading}", "--config", config, "--out", "-")
    os.close(reading)
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("out", ["/dev/full", "/nowhere/events.ndjson"])
def test_a_file_that_cannot_be_written_ends_a_live_feed_with_its_name(out, config):
    with Agency([answer(200, fleet(0, speed=5.0))]) as agency:
        stderr = run("gtfs-rt", agency.url, "--once", "--config", config, "--out", out, code=1).stderr
    assert f"{out}: " in stderr
    assert "--out needs a file that you may write to" in stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.pb"], "neither a file, nor a folder"),
        (["a" * 300], "neither a file, nor a folder"),
        (["http://127.0.0.1:9/x", "also.pb"], "give one address"),
        (["http://127.0.0.1:9/x", "--interval", "100ms"], "outside 1 s to 1 h"),
        (["http://city:hidden\u2100@127.0.0.1:9/x"], "is not an http or https address"),
        (["http://127.0.0.1:9/x", "--header", "X-Key"], "store the secret in a file"),
        (["x.pb", "--speeds", "guessed"], "is none of"),
        (["http://127.0.0.1:9/x", "--offline"], "name a file like releases.ndjson"),
        (["http://127.0.0.1:9/x", "--offline", "--out", "r.csv"], "name a file like releases.ndjson"),
        (["x.pb", "--from", "2025-09-11", "--until", "2025-09-12"], "stored snapshots with --offline"),
        (["x.pb", "--offline", "--from", "2025-09-11"], "give both --from and --until"),
        (["http://127.0.0.1:9/x", "--query", "key"], "store the secret in a file"),
    ],
)
def test_wrong_usage_is_refused_with_the_remedy(config, arguments, said):
    out = [] if "--offline" in arguments else ["--out", "-"]
    stderr = run("gtfs-rt", *arguments, "--config", config, *out, code=2).stderr
    assert said in " ".join(stderr.replace("│", " ").split())
    assert "hidden" not in stderr


async def test_a_feed_that_fails_now_and_then_reaches_kafka_whole_and_ends_on_sigterm(hexveil, kafka, topic, config):
    steps = [answer(500), *(answer(200, fleet(step)) for step in range(3)), answer(200, b"garbage\xff"), cut_short]
    events, pipe = list[dict[str, object]](), subprocess.PIPE
    with Agency([*steps, *(answer(200, fleet(step)) for step in range(3, 6)), answer(304)]) as agency:
        command = [*hexveil, "gtfs-rt", agency.url, "--config", config, "--interval", "1s"]
        settings = environment({"kafka.bootstrap": kafka, "feed.topic": topic})
        with subprocess.Popen(command, cwd=REPO_ROOT, env=settings, stderr=pipe, text=True) as process:
            try:
                async with asyncio.timeout(120):
                    while len(events) < 15:
                        await asyncio.sleep(0.2)
                        events = [json.loads(value) for part in await stored(kafka, topic) for _, value in part]
            finally:
                process.send_signal(signal.SIGTERM)
                _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert len({(event["user"], event["time"]) for event in events}) == len(events) == 15
    assert "is not a snapshot and is skipped" in stderr


@pytest.mark.parametrize(("failures", "seconds"), [(0, 2.0), (3, 16.0), (8, 300.0), (5_000, 300.0)])
def test_the_pause_doubles_up_to_five_minutes_however_long_an_outage_lasts(failures, seconds):
    """After 1 024 failures, some three days, a doubled pause was no float any more and ended the command."""
    assert backed_off(2.0, failures) == seconds


def test_a_differential_feed_gives_the_events_of_the_full_one_whose_positions_it_sends(config, tmp_path):
    """Bus b leaves out steps 2 and 3 and comes back; its deletion takes nothing back, and its speed is derived over the
    gap."""
    folder, out = tmp_path / "snapshots", tmp_path / "events.ndjson"
    folder.mkdir()
    for step, names in enumerate(("abc", "abc", "ac", "ac", "abc")):
        message = gtfs_realtime_pb2.FeedMessage.FromString(fleet(step))
        sent = [entity for entity in message.entity if entity.vehicle.vehicle.id in names]
        del message.entity[:]
        message.entity.extend(sent)
        if step:
            message.header.incrementality = gtfs_realtime_pb2.FeedHeader.DIFFERENTIAL
            message.entity.add(id="b", is_deleted=True).vehicle.vehicle.id = "b"
        (folder / f"{step:03}.pb").write_bytes(message.SerializeToString())
    said = run("gtfs-rt", folder, "--config", config, "--out", out).stderr
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert {name: sum(event["user"] == name for event in events) for name in "abc"} == {"a": 4, "b": 2, "c": 4}
    assert all(event["speed"] == pytest.approx(26.7, abs=0.4) for event in events)
    assert "deleted" in said


def test_a_signal_to_the_whole_group_still_releases_the_window_in_progress(config, tmp_path):
    """As ``timeout``, a service manager and a closing terminal send it."""
    now, out = int(time.time()), tmp_path / "releases.ndjson"
    body = snapshot_bytes([(f"v{k}", now - 1, 28.6, 77.2, 8.0) for k in range(20)], now)
    with Agency([answer(200, body)]) as agency:
        command = [sys.executable, "-m", "stream", "gtfs-rt", agency.url, "--interval", "1s", "--config", config]
        command += ["--offline", "--out", str(out)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment({}), stderr=pipe, text=True, start_new_session=True)
        try:
            while len(agency.requests) < 2 and process.poll() is None:
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert events_in(out) == 20


def test_a_key_in_the_query_or_a_header_reaches_the_agency_but_no_other_host_and_no_error():
    settings = {"query": {"api key": "s3cr&t/ü"}, "headers": {"X-Api-Key": "s3cret"}}
    with Agency([answer(200, b"elsewhere")]) as other, Agency([answer(302, Location=other.url)]) as agency:
        assert fetch(f"{agency.url}/vp?format=pb", **settings) == [b"elsewhere"]
        assert agency.requests[0]["path"] == "/vp?format=pb&api+key=s3cr%26t/%C3%BC"
        assert agency.requests[0]["X-Api-Key"] == "s3cret"
        assert "s3cr" not in str(other.requests[0])
    moved = [answer(302, Location="/new"), answer(200, b"body")]
    with Agency(moved) as agency:
        assert fetch(agency.url, **settings) == [b"body"]
        assert "s3cr" in agency.requests[1]["path"], "the same host asks for the key again"
    with pytest.raises(FetchError) as caught:
        fetch("http://127.0.0.1:9/vp", **settings)
    assert "s3cr" not in str(caught.value)


def test_a_host_that_was_redirected_to_and_asks_for_the_key_is_named_without_it():
    with Agency([answer(401)]) as other, Agency([answer(302, Location=f"{other.url}/x?agency=7")]) as agency:
        with pytest.raises(
            FetchError, match=f"status 401 after a redirect to {other.url}, which was not sent the key"
        ) as caught:
            fetch(agency.url, headers={"X-Api-Key": "s3cret"})
        assert caught.value.final
        assert "s3cret" not in str(caught.value)
        with pytest.raises(FetchError, match="status 401; check the address and the key"):
            fetch(other.url, headers={"X-Api-Key": "s3cret"})


async def test_a_server_that_repeats_a_snapshot_with_and_without_304_is_noticed_and_asked_conditionally(
    tmp_path, monkeypatch
):
    loop, stopping, source = asyncio.get_running_loop(), asyncio.Event(), reader("reported")
    again = answer(200, fleet(0, speed=5.0), ETag='"7"', Last_Modified="Thu, 11 Sep 2025 09:40:16 GMT")

    def last(handler: BaseHTTPRequestHandler) -> None:
        answer(304)(handler)
        loop.call_soon_threadsafe(loop.call_later, 0.2, stopping.set)

    settings = PollSettings(interval_s=1.0)
    monkeypatch.setattr(timestamps, "_STALE_US", 900_000)
    with Agency([again, again, again, last]) as agency, capture_logs() as logs:
        sink = FileSink(tmp_path / "out.ndjson")
        await poll(source, Poller(agency.url, settings), settings, sink, stopping, once=False)
    assert agency.requests[1]["If-None-Match"] == '"7"'
    assert agency.requests[1]["If-Modified-Since"] == "Thu, 11 Sep 2025 09:40:16 GMT"
    said = [log["vehicles"] for log in logs if "no vehicle's timestamp has advanced" in log["event"]]
    assert said == [3, 1], "of a document, and of one that is the same"
    assert len((tmp_path / "out.ndjson").read_bytes().splitlines()) == 3, "one event of each vehicle"


CONFIGURED = (None, "reported", "missing", "derived")
"""The last three: with 0, 1 and 2 derived speeds of two vehicles at two times, of which one reports its speed."""


@pytest.mark.parametrize("given", CONFIGURED)
@pytest.mark.parametrize("configured", CONFIGURED)
def test_a_live_command_obeys_its_option_then_the_configuration_and_says_each_mismatch(
    configured, given, config, tmp_path, monkeypatch
):
    for step, now in enumerate((START, START + 30)):
        buses = [(name, now, 28.6 + 0.002 * step, 77.2, speed) for name, speed in (("a", 8.0), ("b", None))]
        (tmp_path / f"{step}.pb").write_bytes(snapshot_bytes(buses, now))
    if configured is not None:
        monkeypatch.setenv("HEXVEIL_FEED__SPEEDS", configured)
    options = ["--out", tmp_path / "events", "--json", *([] if given is None else ["--speeds", given])]
    done = run("gtfs-rt", tmp_path / "0.pb", tmp_path / "1.pb", "--config", config, *options)
    report = json.loads(done.stdout)
    used = CONFIGURED[1 + report["snapshots"]["derived"]]
    assert used == (given or configured or "missing")
    hint = f"feed.speeds is {configured or 'reported'!r}, and hexveil check, the dashboard and /api/v1/feeds say"
    is_said = [hint in note and f"set feed.speeds to {used!r}" in note for note in report["notes"]]
    assert any(is_said) == (used != (configured or "reported"))


def test_a_mismatch_is_said_under_participation_too(tmp_path):
    for config in (riders_config(tmp_path), bus_config(tmp_path)):
        assert "set feed.speeds to 'derived'" in (live_speed_note(config, "derived") or "")
        assert live_speed_note(config, "reported") is None
