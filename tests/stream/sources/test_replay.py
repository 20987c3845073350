"""Recordings and simulations reach a real Kafka topic completely, in order and at the requested pace. Events that
vehicles push by HTTP reach Kafka before they are acknowledged; what a sender may cost is bounded."""

import asyncio
import gzip
import itertools
import json
import math
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
from aiokafka import AIOKafkaProducer

from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, free_port
from stream.sources import delivery, pushed
from stream.sources.delivery import KafkaSender, Pacer, Progress, deliver
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.recording import Replay
from tests.stream.sources.recordings import feed, gathered
from tests.support import hourly
from tests.support.builders import bus_config, riders_config
from tests.support.command import run
from tests.support.environment import environment, write_secret
from tests.support.nightly import nightly_but
from tests.support.topics_reader import stored


async def send(kafka: str, topic: str, blocks: object, pacer: Pacer, looks: float = math.inf) -> Progress:
    """``looks``: how often it is looked whether to stop until it is."""
    progress, looked = Progress(), itertools.count()
    async with KafkaSender(KafkaConfig(bootstrap=kafka), topic) as sender:
        await deliver(blocks, sender, pacer, progress, stopped=lambda: next(looked) > looks)  # type: ignore[arg-type]
    return progress


def synthetic(due: np.ndarray) -> list[Messages]:
    return [Messages(due, [b"v%d" % (i % 7) for i in range(len(due))], [b"%d" % i for i in range(len(due))])]


@pytest.mark.parametrize("order", ["time", "file"])
@pytest.mark.parametrize("rows", nightly_but([3_000], [3_000, 45_386]))
async def test_a_recorded_day_reaches_the_topic_whole_and_in_order_per_vehicle(
    rows, order, kafka, topic, shared_data, tmp_path, monkeypatch
):
    """In the order of the file, in which nearly every row is late, and in that of time, in many batches. Nightly it is
    the whole day."""
    monkeypatch.setattr(delivery, "BATCH_BYTES", 16 << 10)
    with gzip.open(shared_data / "capmetro" / "2017-03-21.csv.gz", "rt") as day:
        (tmp_path / "day.csv").write_text("".join(itertools.islice(day, 1 + rows)))
    one, other = (Replay(tmp_path / "day.csv", "capmetro", feed(), order=order) for _ in range(2))
    expected, got, messages = defaultdict(list), defaultdict(list), gathered(one)
    for key, value in zip(messages.keys, messages.values, strict=True):
        expected[key].append(value)
    progress = await send(kafka, topic, other, Pacer(None))
    assert (progress.sent, progress.unread) == (rows, 0)
    partitions = await stored(kafka, topic)
    for key, value in itertools.chain(*partitions):
        got[key].append(value)
    assert got == expected
    homes = [{key for key, _ in partition} for partition in partitions]
    assert all(homes), "vehicles spread over all partitions"
    assert sum(map(len, homes)) == len(got), "one vehicle, one partition"


async def test_keys_go_to_the_partition_that_an_ordinary_producer_chooses(kafka, topic):
    keys: list[bytes | None] = [b"vehicle-%d" % i for i in range(50)]
    await send(kafka, topic, [Messages(np.arange(50), keys, [b"x"] * 50)], Pacer(None))
    ours = [{key for key, _ in partition} for partition in await stored(kafka, topic)]
    async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
        for key in keys:
            metadata = await producer.send_and_wait(topic, b"y", key=key)
            assert key in ours[metadata.partition]


async def test_a_recording_cut_short_is_delivered_up_to_the_cut_and_then_reported(kafka, topic):
    def broken():  # type: ignore[no-untyped-def]
        yield from synthetic(np.arange(5000))
        raise RecordingError("cut")

    with pytest.raises(RecordingError, match="cut"):
        await send(kafka, topic, broken(), Pacer(None))
    assert sum(map(len, await stored(kafka, topic))) == 5000


@pytest.mark.parametrize(
    ("due", "pace", "least_s", "looks"),
    [
        (np.arange(0, 120_000_000, 100_000), 60.0, 1.9, math.inf),
        (np.concatenate([np.arange(0, 1_000_000, 10_000), np.arange(500_000, 1_500_000, 10_000)]), 1.0, 1.3, math.inf),
        (np.arange(0, 1_000_000_000, 100_000), 1.0, 0.2, 10),
    ],
    ids=["two recorded minutes", "rows that go back in time", "a stop within a block"],
)
async def test_pace_is_kept_rows_that_go_back_in_time_neither_stop_nor_hurry_it_and_what_was_sent_is_kept_at_a_stop(
    due, pace, least_s, looks, kafka, topic
):
    began = time.monotonic()
    progress = await send(kafka, topic, synthetic(due), Pacer(pace), looks)
    assert least_s < time.monotonic() - began < 20, "0.2 to 2 s, and the connection of a busy machine"
    assert sum(map(len, await stored(kafka, topic))) == progress.sent > 0
    assert (progress.sent == len(due)) == (looks == math.inf)


async def test_an_accelerated_live_feed_never_runs_ahead_of_the_clock(kafka, topic):
    now = time.time()
    due = np.arange(int((now - 100) * 1e6), int((now + 1.0) * 1e6), 100_000)
    await send(kafka, topic, synthetic(due), Pacer(1000.0, live=True))
    assert time.time() >= due[-1] / 1e6


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pace_that_is_no_pace_is_refused(speed):
    with pytest.raises(ValueError, match="positive"):
        Pacer(speed)


@pytest.fixture
def sending(kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The topic to which commands send."""
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", kafka)
    monkeypatch.setenv("HEXVEIL_FEED__TOPIC", topic)
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")  # what is sent is of other years
    return topic


def test_the_replay_command_sends_and_tells(kafka, sending, tmp_path, monkeypatch):
    """The summary is JSON alone, and never among releases."""
    path, options = tmp_path / "x.ndjson", ("--config", hourly.BUS, "--json")
    row = {"user": "a", "time": "2024-03-18T12:00:00Z", "lat": 30.3, "lng": -97.7, "speed": 12.5}
    path.write_text(json.dumps(row) + "\n{}\n")

    summary = json.loads(run("replay", path, *options).stdout)
    assert (summary["events"], summary["unread"], summary["interrupted"]) == (2, 1, False)
    assert (summary["first"], summary["last"]) == ("2024-03-18T12:00:00Z", "2024-03-18T12:00:00Z")
    assert sum(map(len, asyncio.run(stored(kafka, sending)))) == 2
    apart = run("replay", path, *options, "--offline", "--out", tmp_path / "releases.ndjson")
    assert (json.loads(apart.stdout)["events"], apart.stderr) == (1, "")
    mixed = run("replay", path, *options, "--offline")
    assert all("topic" in json.loads(line) for line in mixed.stdout.splitlines())
    assert json.loads(mixed.stderr)["error"] is None
    assert "No such file" in run("replay", tmp_path / "no.csv", *options, code=2).stderr
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    assert "start the broker" in run("replay", path, *options, code=3).stderr


async def test_ctrl_c_ends_the_simulator_cleanly_with_a_summary(hexveil, kafka, sending):
    command = [*hexveil, "simulate", "--config", str(hourly.BUS), "--vehicles", "50", "--json"]
    command += ["--start", "2024-03-18T12:00:00Z", "--pace", "600"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=REPO_ROOT, env=environment({}), stdout=pipe, stderr=pipe, text=True)
    async with asyncio.timeout(90):
        while not sum(map(len, await stored(kafka, sending))):
            await asyncio.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["interrupted"]
    assert sum(map(len, await stored(kafka, sending))) == summary["events"] > 0


@pytest.mark.parametrize("command", ["simulate --once", "replay day.ndjson"])
def test_a_topic_that_is_missing_is_told_in_one_line_with_the_remedy(hexveil, kafka, topic_name, tmp_path, command):
    (tmp_path / "day.ndjson").write_text('{"user":"a","time":1490097600000,"lat":30.25,"lng":-97.7,"speed":20}\n')
    settings = {"kafka.bootstrap": kafka, "feed.topic": topic_name, "window.lateness": "event-time"}
    command = [*hexveil, *command.split(), "--config", str(hourly.BUS)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(settings), capture_output=True, text=True)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert topic_name in line
    assert "hexveil topics create" in line


TOKEN = "0123456789abcdef0123456789abcdef"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


def event(vehicle: str, **changes: object) -> dict[str, object]:
    return {"user": vehicle, "time": round(time.time() * 1000), "lat": 30.2, "lng": -97.7, "speed": 20.0} | changes


def lines(*events: dict[str, object]) -> bytes:
    return b"\r\n\n".join(json.dumps(entry).encode() for entry in events)


@asynccontextmanager
async def receiving(config: Config, rate: float = 1e5) -> AsyncIterator[str]:
    """The address of a running receiver."""
    stopping, port, intake = asyncio.Event(), free_port(), pushed.PushIntake(config)
    serving = asyncio.create_task(
        pushed.serve_push(pushed.application(intake, TOKEN, pushed.PushAllowance(rate)), port, stopping)
    )
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        writer.close()
        yield f"http://{LOOPBACK}:{port}/v1/events"
    finally:
        stopping.set()
        await serving
        await intake.close()


async def post(session: aiohttp.ClientSession, url: str, body: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    async with session.post(url, data=body, headers=ALLOWED | headers) as answer:
        return answer.status, await answer.json()


async def test_what_is_acknowledged_is_in_kafka_and_what_is_refused_is_not(kafka, topic, tmp_path):
    config = bus_config(tmp_path, **{"kafka.bootstrap": kafka, "feed.topic": topic})
    async with receiving(config) as url, aiohttp.ClientSession() as session:
        sound = [event(f"v{k % 3}", time=round(time.time() * 1000) - 1000 * k) for k in range(9)]
        sound[1]["lat"] = "30.2"  # as the service reads it, too
        assert await post(session, url, lines(*sound[:3])) == (202, {"accepted": 3})
        assert await post(session, url, json.dumps(sound[3:8]).encode()) == (202, {"accepted": 5})
        assert await post(session, url, json.dumps(sound[8]).encode()) == (202, {"accepted": 1})
        status, said = await post(session, url, lines(event("a"), event("b", lat=0.0, lng=0.0), event("c", speed="x")))
        assert status == 422
        assert said["refused"] == [{"event": 1, "reason": "at-origin"}, {"event": 2, "reason": "wrong-type"}]
    parts = await stored(kafka, topic)
    messages = [(key, json.loads(value)) for part in parts for key, value in part]
    assert sorted(str(entry) for _, entry in messages) == sorted(str(entry) for entry in sound)
    assert all(key == str(entry["user"]).encode() for key, entry in messages)


async def test_under_participation_a_refused_event_does_not_keep_out_those_of_others(kafka, topic, tmp_path):
    config = riders_config(tmp_path, **{"kafka.bootstrap": kafka, "feed.topic": topic})
    async with receiving(config) as url, aiohttp.ClientSession() as session:
        wrong, sound = event("a", lat=0.0, lng=0.0), event("b")
        refused = [{"event": 0, "reason": "at-origin"}]
        assert await post(session, url, lines(wrong, sound)) == (202, {"accepted": 1, "refused": refused})
        assert (await post(session, url, lines(wrong)))[0] == 422
    assert [json.loads(value) for part in await stored(kafka, topic) for _, value in part] == [sound]


async def test_a_sender_without_the_token_or_beyond_a_bound_is_refused_with_the_reason(tmp_path):
    """Without a broker: no request of these would reach it, and a sound one is told to come back."""
    config = bus_config(tmp_path, **{"kafka.bootstrap": f"{LOOPBACK}:9"})
    async with receiving(config, rate=100.0) as url, aiohttp.ClientSession() as session:
        for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \u00fc"):
            assert (await post(session, url, lines(event("a")), Authorization=wrong))[0] == 401
        for wrong in (b"[1, 2", b"[" * 20_000, b"\xff", b"", b"[]"):
            assert (await post(session, url, wrong))[0] == 400
        assert [entry["reason"] for entry in (await post(session, url, b"[1, null, []]"))[1]["refused"]] == [
            "missing-field"
        ] * 3
        assert (await post(session, url, bytes(pushed.MOST_BYTES + 1)))[0] == 413
        assert (await post(session, url, b"1\n" * (pushed.MOST_EVENTS + 1)))[0] == 413
        assert (await post(session, url, lines(event("a")), **{"Content-Encoding": "gzip"}))[0] == 415
        async with session.post(url, data=lines(event("a")), headers=ALLOWED) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert (await post(session, url, b"1\n" * 4_000))[0] == 422
        status, said = await post(session, url, b"1\n" * 4_000)
        assert (status, said["error"]) == (429, "more than 100 events a second")
        async with session.get(url, headers=ALLOWED) as answer:
            assert answer.status == 405


async def test_what_waits_for_a_silent_broker_is_bounded(tmp_path):
    """A broker that accepts connections and never answers: without the bound, every request would be kept meanwhile."""
    over = asyncio.Event()

    async def stay_silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    silent = await asyncio.start_server(stay_silent, LOOPBACK, 0)
    address = f"{LOOPBACK}:{silent.sockets[0].getsockname()[1]}"
    intake = pushed.PushIntake(bus_config(tmp_path, **{"kafka.bootstrap": address}))
    events = [
        json.dumps(event(f"v{k}", note="x" * 60_000)).encode() for k in range(pushed.MOST_WAITING_BYTES // 120_000)
    ]
    waiting = [asyncio.create_task(intake.take(events)) for _ in range(4)]
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (2, 2)
    assert all("too many events wait" in str(task.exception()) for task in done)
    over.set()
    silent.close()
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)


async def test_what_is_refused_is_counted_before_it_is_written_anew_and_costs_allowance(tmp_path, monkeypatch):
    """An array of 500 000 zeros took the loop 0.9 s and cost nothing; sixteen at a time kept an honest sender
    waiting."""
    written: list[object] = []
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: written.append(args))
    config = bus_config(tmp_path, **{"kafka.bootstrap": f"{LOOPBACK}:9"})
    async with receiving(config, rate=100.0) as url, aiohttp.ClientSession() as session:
        flood = b"[" + b"0," * 500_000 + b"0]"
        answers = [await post(session, url, flood) for _ in range(4)]
    assert [status for status, _ in answers] == [413, 413, 429, 429]
    assert not written


def test_the_allowance_fills_at_its_rate_and_no_further():
    now = [0.0]
    bucket = pushed.PushAllowance(10.0, clock=lambda: now[0])
    assert bucket.take(pushed.MOST_EVENTS) == 0
    assert bucket.take(1) == 1
    assert bucket.take(100) == 11
    now[0] = 5.0
    assert bucket.take(51) == 1
    assert bucket.take(50) == 0
    now[0] = 1e9
    assert bucket.take(pushed.MOST_EVENTS + 1) > 0


@pytest.mark.parametrize(
    "token", [None, "secret", "0123456789abcdef\n0123456789abcdef"], ids=["absent", "short", "two lines"]
)
def test_a_weak_or_missing_token_is_refused_and_not_shown(token, tmp_path):
    if token is not None:
        write_secret(tmp_path / "token", token)
    done = run("push", "--token-file", str(tmp_path / "token"), code=2)
    assert "--token-file" in done.stderr
    assert "0123456789abcdef" not in done.stderr
