"""Recordings and simulations reach a real Kafka topic completely, in order and at the requested pace."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import typer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from typer.testing import CliRunner

from stream.cli import replay as replay_cli
from stream.cli import simulate as simulate_cli
from stream.config.servers import KafkaConfig
from stream.local import REPO_ROOT
from stream.sources.delivery import DeliveryError, KafkaSender, Pacer, Progress, deliver
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.replay import Replay
from tests.stream.sources.recordings import feed, gathered
from tests.support import hourly
from tests.support.topics_reader import PARTITIONS, stored


@pytest.fixture
async def topics(kafka: str, topic_name: str) -> AsyncIterator[list[str]]:
    """Two empty topics."""
    names = [topic_name, f"{topic_name}-second"]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    yield names
    await admin.delete_topics(names)
    await admin.close()


@pytest.fixture
def topic(topics: list[str]) -> str:
    return topics[0]


async def send(kafka: str, topic: str, blocks: object, pacer: Pacer, **options: object) -> Progress:
    progress = Progress()
    async with KafkaSender(KafkaConfig(bootstrap=kafka), topic) as sender:
        await deliver(blocks, sender, pacer, progress, **options)  # type: ignore[arg-type]
    return progress


def synthetic(due: np.ndarray) -> list[Messages]:
    return [Messages(due, [b"v%d" % (i % 7) for i in range(len(due))], [b"%d" % i for i in range(len(due))])]


@pytest.mark.nightly
async def test_the_recorded_day_reaches_the_topic_whole_and_in_order_per_vehicle(
    kafka: str, topics: list[str], shared_data: Path
) -> None:
    path = shared_data / "capmetro" / "2017-03-21.csv.gz"
    for order, topic in zip(("time", "file"), topics, strict=True):
        await check_that_a_day_arrives(kafka, topic, path, order)


async def check_that_a_day_arrives(kafka: str, topic: str, path: Path, order: str) -> None:
    expected = defaultdict(list)
    messages = gathered(Replay(path, "capmetro", feed(), order=order))  # type: ignore[arg-type]
    for key, value in zip(messages.keys, messages.values, strict=True):
        expected[key].append(value)
    progress = await send(kafka, topic, Replay(path, "capmetro", feed(), order=order), Pacer(None))  # type: ignore[arg-type]
    assert (progress.sent, progress.unread) == (45_386, 0)
    got = defaultdict(list)
    home = {}
    for index, partition in enumerate(await stored(kafka, topic)):
        assert partition, "vehicles spread over all partitions"
        for key, value in partition:
            got[key].append(value)
            assert home.setdefault(key, index) == index, "one vehicle, one partition"
    assert got == expected


async def test_keys_go_to_the_partition_that_an_ordinary_producer_chooses(kafka: str, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    keys: list[bytes | None] = [b"vehicle-%d" % i for i in range(50)]
    await send(kafka, topic, [Messages(np.arange(50), keys, [b"x"] * 50)], Pacer(None))
    ours = [{key for key, _ in partition} for partition in await stored(kafka, topic)]
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    for key in keys:
        metadata = await producer.send_and_wait(topic, b"y", key=key)
        assert key in ours[metadata.partition]
    await producer.stop()


async def test_a_recording_cut_short_is_delivered_up_to_the_cut_and_then_reported(kafka: str, topic: str) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield from synthetic(np.arange(5000))
        raise RecordingError("cut")

    with pytest.raises(RecordingError, match="cut"):
        await send(kafka, topic, broken(), Pacer(None))
    assert sum(map(len, await stored(kafka, topic))) == 5000


async def test_pace_is_kept(kafka: str, topic: str) -> None:
    due = np.arange(0, 120_000_000, 100_000)  # two recorded minutes
    began = time.monotonic()
    await send(kafka, topic, synthetic(due), Pacer(60.0))
    took = time.monotonic() - began
    assert 1.9 < took < 20, "2 s at 60 times the pace, and the connection of a busy machine"
    assert sum(map(len, await stored(kafka, topic))) == len(due)


async def test_rows_that_go_back_in_time_neither_stop_nor_hurry_the_pace(kafka: str, topic: str) -> None:
    due = np.concatenate([np.arange(0, 1_000_000, 10_000), np.arange(0, 1_000_000, 10_000) + 500_000])
    began = time.monotonic()
    progress = await send(kafka, topic, synthetic(due), Pacer(1.0))
    assert 1.3 < time.monotonic() - began < 20
    assert progress.sent == len(due)


async def test_an_accelerated_live_feed_never_runs_ahead_of_the_clock(kafka: str, topic: str) -> None:
    now = time.time()
    due = np.arange(int((now - 100) * 1e6), int((now + 1.0) * 1e6), 100_000)
    await send(kafka, topic, synthetic(due), Pacer(1000.0, live=True))
    assert time.time() >= due[-1] / 1e6


async def test_limit_stops_at_the_number(kafka: str, topic: str) -> None:
    progress = await send(kafka, topic, synthetic(np.arange(5000)) * 3, Pacer(None), limit=7001)
    assert progress.sent == 7001
    assert sum(map(len, await stored(kafka, topic))) == 7001


async def test_a_stop_keeps_what_was_sent(kafka: str, topic: str) -> None:
    began = time.monotonic()
    progress = await send(
        kafka, topic, synthetic(np.arange(0, 10**9, 10**5)), Pacer(1.0), stopped=lambda: time.monotonic() - began > 1
    )
    assert 0 < progress.sent < 30
    assert sum(map(len, await stored(kafka, topic))) == progress.sent


async def test_a_missing_broker_is_a_delivery_error_in_words() -> None:
    with pytest.raises(DeliveryError, match="start the broker"):
        await send("127.0.0.1:1", "nothing", [], Pacer(None))


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pace_that_is_no_pace_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Pacer(speed)


@pytest.fixture
def cli() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("replay")(replay_cli.command)
    app.command("simulate")(simulate_cli.command)
    return app


async def test_the_replay_command_sends_and_tells(
    cli: typer.Typer, kafka: str, topic: str, repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
    monkeypatch.setenv("HEXVEIL_FEED__TOPIC", topic)
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # the recording is over
    path = tmp_path / "x.ndjson"
    row = {"user": "a", "time": "2024-03-18T12:00:00Z", "lat": 30.3, "lng": -97.7, "speed": 12.5}
    path.write_text(json.dumps(row) + "\n{}\n")
    command = ["replay", str(path), "--config", str(hourly.BUS), "--json"]
    result = await asyncio.to_thread(lambda: _in_process(command))
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["events"], summary["unread"], summary["interrupted"]) == (2, 1, False)
    assert (summary["first"], summary["last"]) == ("2024-03-18T12:00:00Z", "2024-03-18T12:00:00Z")
    assert sum(map(len, await stored(kafka, topic))) == 2
    absent = CliRunner().invoke(cli, [*command[:1], str(tmp_path / "no.csv"), *command[2:]])
    assert (absent.exit_code, "No such file" in absent.stderr) == (2, True)
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    assert (await asyncio.to_thread(lambda: _in_process(command))).returncode == 3


async def test_ctrl_c_ends_the_simulator_cleanly_with_a_summary(
    kafka: str, topic: str, repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
    monkeypatch.setenv("HEXVEIL_FEED__TOPIC", topic)
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # the simulated day is over
    command = ["simulate", "--config", str(hourly.BUS), "--vehicles", "50", "--json"]
    command += ["--start", "2024-03-18T12:00:00Z", "--pace", "600"]
    process = subprocess.Popen(_launch(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not sum(map(len, await stored(kafka, topic))):
        assert time.monotonic() < deadline, "the simulator sent nothing"
        await asyncio.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["interrupted"]
    assert sum(map(len, await stored(kafka, topic))) == summary["events"] > 0


def _launch(command: list[str]) -> list[str]:
    program = (
        "import typer; from stream.cli import replay, simulate; app = typer.Typer(); "
        "app.command('replay')(replay.command); app.command('simulate')(simulate.command); app()"
    )
    return [sys.executable, "-c", program, *command]


def _in_process(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_launch(command), capture_output=True, text=True, timeout=60, env=os.environ, check=False)


@pytest.mark.parametrize("command", ["simulate --once", "replay day.ndjson"])
def test_a_topic_that_is_missing_is_told_in_one_line_with_the_remedy(
    hexveil: Sequence[str], kafka: str, topic_name: str, tmp_path: Path, command: str
) -> None:
    (tmp_path / "day.ndjson").write_text('{"user":"a","time":1490097600000,"lat":30.25,"lng":-97.7,"speed":20}\n')
    done = subprocess.run(
        [*hexveil, *command.split(), "--config", str(hourly.BUS)],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(REPO_ROOT), "HEXVEIL_KAFKA__BOOTSTRAP": kafka, "HEXVEIL_FEED__TOPIC": topic_name}
        | {"HEXVEIL_WINDOW__LATENESS": "event-time"},  # the recording is of 2017
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert topic_name in line
    assert "hexveil topics create" in line
