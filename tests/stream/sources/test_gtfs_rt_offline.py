"""``hexveil gtfs-rt``: releases without Kafka, keys in the address, and feeds that answer but stand still."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from google.transit import gtfs_realtime_pb2
from structlog.testing import capture_logs
from typer.testing import CliRunner

from stream.cli import app
from stream.embedded import EmbeddedFeed
from stream.ingestion.decoding import Decoder
from stream.sources import timestamps
from stream.sources.polling import FetchError, FileSink, Poller, PollSettings, poll
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from tests.stream.sources.agency import DELHI, Agency, answer, fetch, fleet, reader, snapshot_bytes
from tests.support.builders import SLOT, bus_config, bus_fleet_file, random_rows
from tests.support.environment import environment


@pytest.fixture
def buses(tmp_path: Path) -> Path:
    """A configuration of Delhi under "values"."""
    return bus_fleet_file(tmp_path, DELHI)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["gtfs-rt", *arguments])
    return result.exit_code, result.stdout, result.stderr


def events_of(releases: str) -> int:
    return sum(json.loads(line)["value"].get("events", 0) for line in releases.splitlines())


def test_stored_snapshots_are_released_without_kafka(buses, tmp_path):
    folder, out = tmp_path / "snapshots", tmp_path / "releases.ndjson"
    folder.mkdir()
    for step in range(5):
        (folder / f"{step:03}.pb").write_bytes(fleet(step))
    code, _, said = run(str(folder), "--offline", "--config", str(buses), "--out", str(out))
    assert code == 0, said
    assert events_of(out.read_text()) == 12
    assert "12 events (0 refused), 1 windows released" in said
    code, _, said = run(str(folder), "--offline", "--config", str(buses), "--out", str(out))
    assert code == 2
    assert "cannot be drawn again" in said


def differential(step: int, names: str, gone: str) -> bytes:
    """Of three buses the positions that changed, and one that is deleted."""
    message = gtfs_realtime_pb2.FeedMessage.FromString(fleet(step))
    changed = [entity for entity in message.entity if entity.vehicle.vehicle.id in names]
    del message.entity[:]
    message.entity.extend(changed)
    message.header.incrementality = gtfs_realtime_pb2.FeedHeader.DIFFERENTIAL
    message.entity.add(id=gone, is_deleted=True).vehicle.vehicle.id = gone
    data: bytes = message.SerializeToString()
    return data


def test_a_differential_feed_gives_the_events_of_the_full_one_whose_positions_it_sends(buses, tmp_path):
    """Bus b leaves out steps 2 and 3 and comes back; its deletion takes nothing back, and its speed is derived over the
    gap."""
    folder, out = tmp_path / "snapshots", tmp_path / "events.ndjson"
    folder.mkdir()
    for step, names in enumerate(("abc", "abc", "ac", "ac", "abc")):
        body = differential(step, names, "b") if step else fleet(step)
        (folder / f"{step:03}.pb").write_bytes(body)
    code, _, said = run(str(folder), "--config", str(buses), "--out", str(out))
    assert code == 0, said
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert {name: sum(event["user"] == name for event in events) for name in "abc"} == {"a": 4, "b": 2, "c": 4}
    assert all(event["speed"] == pytest.approx(26.7, abs=0.4) for event in events)
    assert "deleted" in said


def test_a_live_feed_is_released_without_kafka(buses, tmp_path):
    now, out = int(time.time()), tmp_path / "releases.ndjson"
    body = snapshot_bytes([(f"v{k}", now - 1, 28.6, 77.2, 8.0) for k in range(20)], now)
    with Agency([answer(200, body)]) as agency:
        code, _, said = run(agency.url, "--once", "--offline", "--config", str(buses), "--out", str(out))
    assert code == 0, said
    assert events_of(out.read_text()) == 20


def test_a_signal_to_the_whole_group_still_releases_the_window_in_progress(buses, tmp_path):
    """As ``timeout``, a service manager and a closing terminal send it."""
    now, out = int(time.time()), tmp_path / "releases.ndjson"
    body = snapshot_bytes([(f"v{k}", now - 1, 28.6, 77.2, 8.0) for k in range(20)], now)
    with Agency([answer(200, body)]) as agency:
        follow = [
            sys.executable,
            "-m",
            "stream",
            "gtfs-rt",
            agency.url,
            "--interval",
            "1s",
            "--offline",
            "--out",
            str(out),
        ]
        process = subprocess.Popen(
            [*follow, "--config", str(buses)],
            env=environment({}),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            while len(agency.requests) < 2 and process.poll() is None:
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert events_of(out.read_text()) == 20


async def test_a_silent_feed_closes_its_windows_by_the_clock(redis, tmp_path):
    config = bus_config(tmp_path)
    rows = RowStore(redis, config.feed.name)
    store = ReleaseStore.of(redis, config)
    feed = EmbeddedFeed(config, rows, store, Decoder(config, bytes(32)), lambda _: None, SLOT * 1_000_000)
    await rows.append("embedded/0", 0, 1, random_rows(1, 1), np.zeros(1, np.int64), np.full(1, SLOT))
    assert await feed.due_slots() == []
    feed.reach((SLOT + 3600 + 299) * 1_000_000)
    assert await feed.due_slots() == []
    feed.reach((SLOT + 3600 + 301) * 1_000_000)
    feed.reach(SLOT * 1_000_000)
    assert await feed.due_slots() == [SLOT]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:9/x", "--offline"], "name a file like releases.ndjson"),
        (["http://127.0.0.1:9/x", "--offline", "--out", "r.csv"], "name a file like releases.ndjson"),
        (["x.pb", "--from", "2025-09-11", "--until", "2025-09-12"], "stored snapshots with --offline"),
        (["x.pb", "--offline", "--from", "2025-09-11"], "give both --from and --until"),
        (["http://127.0.0.1:9/x", "--query", "key"], "store the secret in a file"),
    ],
    ids=["no file", "a table", "not offline", "half a span", "key on the command line"],
)
def test_wrong_usage_is_refused_with_the_remedy(buses, arguments, said):
    code, _, stderr = run(*arguments, "--config", str(buses))
    assert code == 2
    assert said in " ".join(stderr.replace("│", " ").split())


def test_a_key_in_the_query_reaches_the_agency_but_no_other_host_and_no_error():
    settings = {"query": {"api key": "s3cr&t/ü"}}
    with Agency([answer(200, b"elsewhere")]) as other, Agency([answer(302, Location=other.url)]) as agency:
        assert fetch(f"{agency.url}/vp?format=pb", **settings) == [b"elsewhere"]
        assert agency.requests[0]["path"] == "/vp?format=pb&api+key=s3cr%26t/%C3%BC"
        assert "s3cr" not in other.requests[0]["path"]
    moved = [answer(302, Location="/new"), answer(200, b"body")]
    with Agency(moved) as agency:
        assert fetch(agency.url, **settings) == [b"body"]
        assert "s3cr" in agency.requests[1]["path"], "the same host asks for the key again"
    with pytest.raises(FetchError) as caught:
        fetch("http://127.0.0.1:9/vp", **settings)
    assert "s3cr" not in str(caught.value)


MINUTE = 60_000_000


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


async def test_a_server_that_repeats_a_snapshot_with_and_without_304_is_noticed(tmp_path, monkeypatch):
    loop, stopping, source = asyncio.get_running_loop(), asyncio.Event(), reader("reported")
    again = answer(200, fleet(0, speed=5.0))
    monkeypatch.setattr(timestamps, "_STALE_US", 900_000)

    def last(handler: BaseHTTPRequestHandler) -> None:
        answer(304)(handler)
        loop.call_soon_threadsafe(loop.call_later, 0.2, stopping.set)

    settings = PollSettings(interval_s=1.0)
    with Agency([again, again, again, last]) as agency, capture_logs() as logs:
        sink = FileSink(tmp_path / "out.ndjson")
        await poll(source, Poller(agency.url, settings), settings, sink, stopping, once=False)
    said = [log["vehicles"] for log in logs if "no vehicle's timestamp has advanced" in log["event"]]
    assert said == [3, 1], "of a document, and of one that is the same"
    assert len((tmp_path / "out.ndjson").read_bytes().splitlines()) == 3
