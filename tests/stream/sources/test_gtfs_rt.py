"""``hexveil gtfs-rt``: a fleet behind an address that misbehaves, or stored snapshots, become events once each."""

import asyncio
import gzip
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from structlog.testing import capture_logs

from stream.local import REPO_ROOT
from stream.sources import snapshot_events
from stream.sources.polling import FetchError, FileSink, Poller, PollSettings, backed_off, poll
from stream.sources.snapshots import SnapshotError
from tests.stream.sources.agency import FEED, START, Agency, answer, fetch, fleet, reader, run, snapshot_bytes
from tests.support import hourly
from tests.support.topics_reader import stored


def test_missing_speeds_are_derived_and_marked():
    source = reader()
    assert source.events(fleet(0)).values == []
    event = json.loads(source.events(fleet(1)).values[0])
    assert event["speed"] == pytest.approx(26.7, abs=0.3)
    assert event["derived"] is True
    assert event["time"] == (START + 28) * 1000
    assert (source.tally.events, source.tally.derived, source.tally.without_speed) == (3, 3, 3)


def test_reported_speeds_are_taken_in_the_feeds_unit_and_not_marked():
    for unit, speed in ((None, 36.0), ("mph", 10.0)):  # m/s as the format prescribes and km/h, or what is declared
        declared = FEED.model_copy(update={"given_speed_unit": unit})
        event = json.loads(reader("missing", declared).events(fleet(0, speed=10.0)).values[0])
        assert event["speed"] == pytest.approx(speed, abs=0.001)
        assert "derived" not in event


def test_a_feed_that_reports_zeros_while_its_vehicles_move_is_noticed():
    source, names = reader("reported"), "".join(chr(97 + k) for k in range(26))
    for step in range(12):
        source.events(fleet(step, speed=0.0, names=names))
    assert source.tally.reported_speeds_are_wrong
    honest = reader("reported")
    for step in range(12):
        honest.events(fleet(step, speed=7.4, names=names))
    assert not honest.tally.reported_speeds_are_wrong


def test_what_one_vehicle_sends_changes_no_event_of_another():
    """Clocks far ahead, jumps and thousands of made-up names do not change them either."""
    alone, crowded = reader(), reader()
    for step in range(4):
        wild = [(f"x{k}", START + 30 * step + 3000, 28.9, 77.9, None) for k in range(50)]
        wild += [("y", START + 30 * step, 28.1 + 0.3 * (step % 2), 77.0, 1e9)]
        mixed = snapshot_bytes(
            [("a", START + 30 * step - 2, 28.6 + 0.002 * step, 77.2, None), *wild], START + 30 * step
        )
        own = snapshot_bytes([("a", START + 30 * step - 2, 28.6 + 0.002 * step, 77.2, None)], START + 30 * step)
        mine = [value for value in crowded.events(mixed).values if json.loads(value)["user"] == "a"]
        assert mine == alone.events(own).values


def test_a_vehicle_whose_timestamp_stands_still_is_one_event():
    source = reader("reported")
    again = [source.events(fleet(0, speed=5.0)).values for _ in range(3)]
    assert [len(values) for values in again] == [3, 0, 0]
    assert source.tally.repeated == 6


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


# --- an address ---


def cut_short(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(b"\x0a\x0d")


def slow(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(40):
        try:
            handler.wfile.write(b"x")
            time.sleep(0.1)
        except OSError:
            return


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(2000):
            handler.wfile.write(b"x" * 65536)
    except OSError:
        return


def test_an_unchanged_document_is_asked_for_conditionally_and_not_decoded_again():
    first = answer(200, b"body", ETag='"7"', Last_Modified="Thu, 11 Sep 2025 09:40:16 GMT")
    with Agency([first, answer(304)]) as agency:
        assert fetch(agency.url, times=2) == [b"body", None]
    assert agency.requests[1]["If-None-Match"] == '"7"'
    assert agency.requests[1]["If-Modified-Since"] == "Thu, 11 Sep 2025 09:40:16 GMT"


def test_a_compressed_answer_is_read_and_a_compressed_bomb_is_refused():
    small, bomb = gzip.compress(b"body"), gzip.compress(b"\0" * (80 << 20))
    with Agency([answer(200, small, Content_Encoding="gzip"), answer(200, bomb, Content_Encoding="gzip")]) as agency:
        assert fetch(agency.url) == [b"body"]
        with pytest.raises(FetchError, match="more than"):
            fetch(agency.url)


@pytest.mark.parametrize(
    ("script", "said", "final"),
    [
        (answer(500), "status 500", False),
        (answer(403), "status 403; check the address and the key", True),
        (cut_short, "Error", False),
        (slow, "no complete answer within 1 s", False),
        (endless, "more than 1048576 bytes", False),
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
        waits = []
        for _ in range(2):
            with pytest.raises(FetchError) as caught:
                fetch(agency.url)
            waits.append(caught.value.retry_after_s)
    assert waits == [7.0, 3600.0]


def test_a_secret_header_reaches_the_agency_but_no_other_host():
    with Agency([answer(200, b"elsewhere")]) as other, Agency([answer(302, Location=other.url)]) as agency:
        assert fetch(agency.url, headers={"X-Api-Key": "s3cret"}) == [b"elsewhere"]
        assert agency.requests[0]["X-Api-Key"] == "s3cret"
        assert "X-Api-Key" not in other.requests[0]


# --- the command ---


@pytest.fixture
def config(tmp_path: Path) -> Path:
    text = hourly.RIDERS.read_text(encoding="utf-8")
    head, _, rest = text.partition("[feed]")
    _, _, tail = rest.partition("\n[")
    section = (
        '[feed]\nname = "delhi"\ntopic = "TOPIC"\nformat = "canonical"\ntimezone = "Asia/Kolkata"\n'
        "domain = { south = 28.0, west = 76.5, north = 29.0, east = 78.0 }\n"
    )
    path = tmp_path / "hexveil.toml"
    path.write_text(head + section + "\n[" + tail, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "snapshots"
    made.mkdir()
    for step in range(5):
        (made / f"{step:03}.pb").write_bytes(fleet(step))
    return made


def test_stored_snapshots_become_canonical_events_in_a_file(config, folder, tmp_path):
    out = tmp_path / "events.ndjson"
    code, _, stderr = run(str(folder), "--config", str(config), "--out", str(out))
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert (code, len(events)) == (0, 12)
    assert all(math.isclose(event["speed"], 26.7, abs_tol=0.4) for event in events)
    assert "12 events, 12 with a derived speed" in stderr


def test_one_damaged_snapshot_is_skipped_named_and_told_by_the_exit_code(config, folder):
    (folder / "002.pb").write_bytes(b"<html>maintenance</html>")
    body = gzip.compress((folder / "003.pb").read_bytes())
    (folder / "damaged.pb.gz").write_bytes(body[:10] + b"\xff" * 20 + body[30:])
    code, out, stderr = run(str(folder), "--config", str(config), "--out", "-")
    assert code == 1
    assert len(out.splitlines()) == 9
    assert "002.pb: an HTML or XML page" in stderr
    assert "damaged or cut short (Error -3 while decompressing" in stderr


NO_TEXT = rb'{"header":{"gtfs_realtime_version":"2.0","\ud800":1},"entity":[]}'


def test_a_file_with_a_name_that_is_no_text_is_refused_and_named_alone_and_beside_others(config, folder):
    (folder / "002.json").write_bytes(NO_TEXT)
    code, _, stderr = run(str(folder / "002.json"), "--config", str(config), "--out", "-")
    assert code == 2
    assert "002.json: not a GTFS-realtime feed" in stderr
    code, out, stderr = run(str(folder), "--config", str(config), "--out", "-")
    assert (code, len(out.splitlines())) == (1, 12)
    assert "002.json: not a GTFS-realtime feed" in stderr


async def test_an_answer_with_a_name_that_is_no_text_is_skipped_and_the_next_one_is_read(tmp_path):
    loop, stopping, out = asyncio.get_running_loop(), asyncio.Event(), tmp_path / "out.ndjson"

    def last(handler: BaseHTTPRequestHandler) -> None:
        answer(200, fleet(0, speed=5.0))(handler)
        loop.call_soon_threadsafe(loop.call_later, 0.5, stopping.set)

    settings, source = PollSettings(interval_s=1.0), reader("reported")
    with capture_logs() as logs, Agency([answer(200, NO_TEXT), last]) as agency:
        await poll(source, Poller(agency.url, settings), settings, FileSink(out), stopping, once=False)
    assert len(out.read_bytes().splitlines()) == 3
    assert source.tally.unreadable == 1
    assert [log["event"] for log in logs] == ["an answer is not a snapshot and is skipped"]


def test_one_snapshot_without_speeds_says_what_a_derived_speed_needs(config, folder):
    code, _, stderr = run(str(folder / "000.pb"), "--config", str(config), "--out", "-")
    assert code == 2
    assert "two positions of the vehicle" in stderr
    assert "name a folder of snapshots, or the agency's address" in stderr


def test_a_pipe_that_a_shell_names_as_a_file_is_read(config):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(fleet(0, speed=5.0))
    code, out, _ = run(f"/dev/fd/{reading}", "--config", str(config), "--out", "-")
    os.close(reading)
    assert (code, len(out.splitlines())) == (0, 3)


@pytest.mark.parametrize("out", ["/dev/full", "/nowhere/events.ndjson"])
def test_a_file_that_cannot_be_written_ends_a_live_feed_with_its_name(out, config):
    with Agency([answer(200, fleet(0, speed=5.0))]) as agency:
        code, _, stderr = run(agency.url, "--once", "--config", str(config), "--out", out)
    assert code == 1
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
    ],
)
def test_wrong_usage_is_refused_with_the_remedy(config, arguments, said):
    code, _, stderr = run(*arguments, "--config", str(config), "--out", "-")
    assert code == 2
    assert said in " ".join(stderr.replace("│", " ").split())
    assert "hidden" not in stderr


@pytest.fixture
def moving_agency() -> Iterator[Agency]:
    steps = [answer(500), *(answer(200, fleet(step)) for step in range(3)), answer(200, b"garbage\xff"), cut_short]
    with Agency([*steps, *(answer(200, fleet(step)) for step in range(3, 6)), answer(304)]) as agency:
        yield agency


async def test_a_feed_that_fails_now_and_then_reaches_kafka_whole_and_ends_on_sigterm(
    hexveil, kafka, topic_name, config, moving_agency
):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(topic_name, 4, 1)])
    text = config.read_text().replace("TOPIC", topic_name)
    config.write_text(text)
    command = [*hexveil, "gtfs-rt", moving_agency.url, "--config", str(config), "--interval", "1s"]
    process = subprocess.Popen(
        command,
        cwd=REPO_ROOT,
        env={"HEXVEIL_KAFKA__BOOTSTRAP": kafka, "PYTHONPATH": str(REPO_ROOT), "PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(300):
            events = [json.loads(value) for part in await stored(kafka, topic_name) for _, value in part]
            if len(events) >= 15:
                break
            await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        await admin.delete_topics([topic_name])
        await admin.close()
    assert process.returncode == 0, stderr
    assert len({(event["user"], event["time"]) for event in events}) == len(events) == 15
    assert "is not a snapshot and is skipped" in stderr


@pytest.mark.parametrize(("failures", "seconds"), [(0, 2.0), (3, 16.0), (8, 300.0), (5_000, 300.0)])
def test_the_pause_doubles_up_to_five_minutes_however_long_an_outage_lasts(failures, seconds):
    """After 1 024 failures, some three days, a doubled pause was no float any more and ended the command."""
    assert backed_off(2.0, failures) == seconds


def test_a_header_far_in_the_future_does_not_silence_its_vehicles_until_then():
    source, ahead = reader("reported"), START + 10 * 365 * 86_400
    wrong = snapshot_bytes([("a", ahead, 28.6, 77.2, 5.0)], ahead)
    assert source.events(wrong, START * 1_000_000).values == []
    assert source.tally.refused == {"time-in-future": 1}
    right = snapshot_bytes([("a", START + 30, 28.6, 77.2, 5.0)], START + 30)
    assert len(source.events(right, (START + 30) * 1_000_000).values) == 1
