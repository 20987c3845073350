"""Real workers: under "participation" every window is published at its instant, visited or not, in the same shape;
spatial histograms are answered by the API and by ``hexveil query``; servers that do not answer are waited for, said
once in a log of JSON only, and SIGTERM ends a worker in time; on a cluster every event is released once although a
master is killed."""

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import redis
from aiokafka.admin import AIOKafkaAdminClient

from dpcore.spatial import Rectangles, histogram_from_release
from stream.config import load_config
from stream.config.public_cells import public_cells
from stream.local import LOOPBACK, KafkaServer, RedisServer, free_port
from stream.logs import QUIET_SECONDS
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from stream.messages.topics import create_topics
from stream.storage.client import redis_client
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from tests.stream.serve.serving import serving
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, zcdp_config
from tests.support.environment import environment, make_ready, worker_environment, working
from tests.support.feeding import create_topic, produce
from tests.support.redis_cluster import LocalCluster, Node
from tests.support.topics_reader import read_all

_DOMAIN = '{"south": 30.2, "west": -97.75, "north": 30.3, "east": -97.6}'


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
async def test_every_window_is_released_on_the_tick_with_the_same_number_of_messages_visited_or_not(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name, accounting
):
    area = {"feed.domain": _DOMAIN, "hexagons.resolution": "7"}
    ticks = {"window.slot": "3s", "window.allowed_delay": "1s", "window.publication_margin": "5s"}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **area, **ticks)
    riders = hourly.RIDERS
    if accounting == "zcdp":
        zcdp_config(tmp_path)
        riders = tmp_path / "zcdp.toml"
    make_ready(hexveil, env, tmp_path, riders, since="2017-03-21")
    async with working(hexveil, env, tmp_path, riders), asyncio.timeout(60):
        while (markers := len(await read_all(kafka, topic_name, [WINDOW]))) < 4:
            if markers < 3:
                event = {"user": "u", "time": int(time.time() * 1000), "lat": 30.25, "lng": -97.7, "speed": 30}
                await produce(kafka, topic_name, [json.dumps(event).encode(), b"not json"], 1)
            await asyncio.sleep(1)
    records = await read_all(kafka, topic_name)
    assert not [record for record in records if record.topic == REJECTED], "a count of bad input left the boundary"
    starts = sorted(json.loads(record.value)["window"]["start"] for record in records if record.topic == WINDOW)
    seconds = [int(start[17:19]) for start in starts]
    assert all((b - a) % 60 == 3 for a, b in itertools.pairwise(seconds)), "a window was left out"
    per_window = Counter(json.loads(r.value)["window"]["start"] for r in records if r.topic == HEXAGON_SPEED)
    config = load_config(riders, **{"feed.domain": json.loads(_DOMAIN), "hexagons.resolution": 7})
    assert {per_window[start] for start in starts} == {len(public_cells(config))}
    (charge,) = (await redis.hgetall(FeedKeys(topic_name).ledger(_local_date()))).values()
    bodies = [json.loads(record.value) for record in records]
    if accounting == "pure":
        assert int(charge) % 2_000_000 == 0, "µε: a whole window each time"
        assert not any("rho" in body for body in bodies)
    else:
        assert int(charge) <= 400_001_000, "nρ"
        assert (int(charge) + 1_000) % 10**6 <= 2_000, "one cell: the whole of ρ of each window, rounded"
        assert {(body["accounting"], body["delta"], round(body["rho"], 6)) for body in bodies} == {("zcdp", 1e-6, 0.05)}
        show = [*hexveil, "ledger", "show", "--config", str(riders), "--json"]
        shown = subprocess.run(show, env=env, cwd=tmp_path, check=True, capture_output=True)
        assert json.loads(shown.stdout) == {_local_date(): {"users": 1, "nano_rho": int(charge)}}


def _local_date() -> str:
    return datetime.now(ZoneInfo("America/Chicago")).date().isoformat()


BOX = {"south": 30.1, "west": -97.9, "north": 30.5, "east": -97.5}
SETTINGS = {
    "mechanisms": ["auto", "euler", "ug"],
    "epsilon": 1.5,
    "domain": BOX,
    "rows": 16,
    "columns": 16,
    "euler": {},
}


def events(users: int = 40) -> list[bytes]:
    """Two hours; every fourth user stays outside the box."""
    rng = np.random.default_rng(4)
    encoded = []
    for user in range(users):
        for _ in range(20):
            lat = rng.uniform(30.6, 30.8) if user % 4 == 0 else rng.uniform(30.15, 30.45)
            moment = SLOT * 1000 + int(rng.integers(0, 7_200_000))
            place = {"lat": lat, "lng": rng.uniform(-97.8, -97.6)}
            encoded.append(json.dumps({"user": f"bus-{user}", "time": moment, "speed": 30.0} | place).encode())
    return encoded


async def test_what_the_worker_publishes_is_charged_complete_and_answered_by_the_api_and_from_a_file(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    settings = {"window.lateness": "event-time", "window.idle_timeout": "4s", "histogram": json.dumps(SETTINGS)}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **settings)
    await create_topic(kafka, topic_name, 2)
    make_ready(hexveil, env, tmp_path, hourly.BUS, since="2017-03-21")
    async with working(hexveil, env, tmp_path, hourly.BUS), asyncio.timeout(120):
        await produce(kafka, topic_name, events(), 2)
        while await redis.hlen(FeedKeys(topic_name).closed) < 2:
            await asyncio.sleep(0.5)
    config = load_config(
        hourly.BUS,
        **{"feed.name": topic_name, "kafka.bootstrap": kafka, "histogram": SETTINGS},
        **{"privacy.user_key_file": str(tmp_path / "user.key")},
    )
    users, total = await Ledger(redis, topic_name).total("2017-03-21")
    per_window = config.privacy.epsilon_micro, config.histogram_grant
    assert (users, total) == (40, 2 * (40 * per_window[0] + 30 * per_window[1])), "30 of 40 are ever in the box"

    records = await read_all(kafka, topic_name, OUTPUT_TOPICS)
    histograms = [json.loads(record.value) for record in records if record.topic == SPATIAL_HISTOGRAM]
    assert sorted((one["window"]["start"], one["mechanism"]) for one in histograms) == [
        (start, name) for start in ("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z") for name in ("auto", "euler", "ug")
    ]
    file = tmp_path / "releases.ndjson"
    file.write_text("".join(record.value.decode() + "\n" for record in records if record.topic != WINDOW))
    async with serving(config) as client:
        listed = (await (await client.get("/api/v1/histograms")).json())["windows"]
        assert [(window["window"]["start"], window["complete"]) for window in listed] == [
            ("2017-03-21T13:00:00Z", True),
            ("2017-03-21T12:00:00Z", True),
        ]
        for release in histograms:
            start, name = release["window"]["start"], release["mechanism"]
            got = await client.get(f"/api/v1/histograms/{start}/{name}")
            assert await got.json() == release
            asked = {"bbox": "-97.85,30.2,-97.6,30.45", "mechanism": name}
            answer = await client.get(f"/api/v1/histograms/{start}/count", params=asked)
            assert answer.status == 200, await answer.text()
            body = await answer.json()
            west, south, east, north = body["bbox"]
            assert west <= -97.85 < -97.6 <= east
            assert name == "euler" or body["bbox"] == [-97.85, 30.2, -97.6, 30.45]
            histogram = histogram_from_release(release)
            ranges = Rectangles.of_boxes(histogram.domain, [[south, west, north, east]])
            if name == "euler":
                ranges = Rectangles(*(np.rint(side) for side in (ranges.x0, ranges.x1, ranges.y0, ranges.y1)))
            assert abs(body["raw"] - histogram.answers(ranges)[0]) < 1e-6
            assert body["interval"][0] <= body["value"] <= body["interval"][1]
            command = [*hexveil, "query", str(file), "--bbox", asked["bbox"], "--window", start, "--mechanism", name]
            same = subprocess.run([*command, "--json"], env=env, cwd=tmp_path, check=True, capture_output=True)
            assert json.loads(same.stdout)["answers"] == [body]


STOP_SECONDS = 10.0
BUS = str(hourly.BUS)


class RunningWorker:
    """A worker process and its log."""

    def __init__(
        self, hexveil: Sequence[str], folder: Path, bootstrap: str, redis_url: str, port: int, **settings: str
    ) -> None:
        self.log, self.port = folder / "worker.log", port
        self.process = subprocess.Popen(
            [*hexveil, "worker", "--config", BUS],
            env=worker_environment(folder, bootstrap, redis_url, port, **settings),
            cwd=folder,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def lines(self) -> list[dict[str, Any]]:
        """Its log and all that it prints; every line must be JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def wait_for(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.2)

    def problems(self) -> list[str]:
        """What its readiness page says is missing."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/readyz", timeout=5) as answer:
                return list(json.loads(answer.read())["problems"])
        except urllib.error.HTTPError as refused:
            return list(json.loads(refused.read())["problems"])
        except OSError as absent:
            return [str(absent)]

    def is_ready(self) -> bool:
        return not self.problems()

    def stop(self) -> float:
        """Seconds that it took to end well after SIGTERM."""
        asked = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()[-3000:]
        return time.monotonic() - asked


@pytest.fixture
def start(hexveil: Sequence[str], tmp_path: Path) -> Iterator[Callable[..., RunningWorker]]:
    running: list[RunningWorker] = []

    def begin(*arguments: Any, **settings: str) -> RunningWorker:
        running.append(RunningWorker(hexveil, tmp_path, *arguments, **settings))
        return running[-1]

    yield begin
    for worker in running:
        worker.process.kill()
        worker.process.wait()


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker with the topics, for this test to stop and start."""
    with KafkaServer(tmp_path / "kafka") as server:
        asyncio.run(create_topics(bus_config(tmp_path, **{"kafka.bootstrap": server.bootstrap})))
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


def test_a_worker_waits_for_its_servers_outlasts_outages_with_a_line_each_and_ends_in_time_without_them(
    own_kafka, own_redis, start
):
    own_kafka.kill()
    own_redis.kill()
    worker = start(own_kafka.bootstrap, own_redis.url, free_port())
    worker.wait_for(lambda: worker.told("redis does not answer, waiting for it"))
    own_redis.start()
    worker.wait_for(lambda: worker.told("redis answers") and worker.told("kafka does not answer, waiting for it"))
    time.sleep(3)
    assert len(worker.told("redis does not answer, waiting for it")) == 1
    assert len(worker.told("kafka does not answer, waiting for it")) == 1
    own_kafka.start()
    worker.wait_for(worker.is_ready)

    time.sleep(QUIET_SECONDS + 1)  # a new outage, not the same one

    before = len(worker.lines())
    own_kafka.kill()
    time.sleep(20)
    assert worker.process.poll() is None
    during = worker.lines()[before:]
    assert 1 <= len(during) <= 5, during
    assert sum(line.get("logger", "").startswith("aiokafka") for line in during) <= 1

    own_kafka.start()
    worker.wait_for(worker.is_ready)
    own_kafka.kill()
    own_redis.kill()
    time.sleep(3)
    assert worker.stop() < STOP_SECONDS
    assert all({"event", "level", "timestamp"} <= line.keys() for line in worker.lines())


def test_a_worker_that_still_waits_ends_at_once(start):
    worker = start("127.0.0.1:9", "redis://:secret@127.0.0.1:10/0", free_port())
    worker.wait_for(lambda: worker.told("redis does not answer, waiting for it"))
    assert worker.stop() < STOP_SECONDS
    assert "secret" not in worker.log.read_text()


def test_a_worker_without_its_topic_ends_with_the_name_and_the_command_and_claims_nothing(
    kafka, own_redis, start, topic_name
):
    worker = start(kafka, own_redis.url, free_port(), **{"feed.topic": topic_name})
    assert worker.process.wait(90) == 1
    (last,) = worker.told("cannot go on")
    assert topic_name in last["reason"]
    assert "hexveil topics create" in last["reason"]
    with closing(redis.Redis.from_url(own_redis.url)) as client:
        assert client.keys() == []


async def test_a_topic_that_is_deleted_makes_the_worker_unready_until_it_is_there_again(
    kafka, own_redis, start, topic_name, tmp_path
):
    config = bus_config(tmp_path, **{"kafka.bootstrap": kafka, "feed.topic": topic_name})
    await create_topics(config)
    worker = start(kafka, own_redis.url, free_port(), **{"feed.topic": topic_name, "feed.name": topic_name})
    await asyncio.to_thread(worker.wait_for, worker.is_ready)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.delete_topics([topic_name])
        await asyncio.to_thread(worker.wait_for, lambda: topic_name in " ".join(worker.problems()))
        assert worker.process.poll() is None
        await create_topics(config)
        await asyncio.to_thread(worker.wait_for, worker.is_ready)
    finally:
        await admin.close()
    assert worker.stop() < STOP_SECONDS


def test_a_taken_operator_port_is_named_with_its_keys(start):
    with closing(socket.socket()) as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        worker = start("127.0.0.1:9", "redis://127.0.0.1:10/0", taken.getsockname()[1])
        assert worker.process.wait(60) == 2
    (last,) = worker.told("cannot go on")
    assert "operator.host, operator.port" in last["reason"]
    assert "Address already in use" in last["reason"]


EVENTS, PARTITIONS, WINDOWS = 7_000, 6, 2
"""One event a second, in two windows of an hour."""


def recording(folder: Path) -> Path:
    file, begin = folder / "hours.ndjson", 1_490_097_600_000
    events = [
        {"user": f"bus{k % 40}", "time": begin + 1_000 * k, "lat": 30.2, "lng": -97.7, "speed": 20.0 + k % 7}
        for k in range(EVENTS)
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return file


def holder_of_rows_only(cluster: LocalCluster, feed: str, topic: str) -> Node:
    keys = FeedKeys(feed)
    ledger = cluster.master_of(keys.generation)
    masters = (cluster.master_of(PartKeys(keys, f"{topic}/{number}").progress) for number in range(PARTITIONS))
    return next(node for node in masters if node is not ledger)


async def test_a_worker_releases_every_event_once_although_a_master_is_killed_while_it_reads(
    hexveil, kafka, topic_name, tmp_path
):
    with LocalCluster(tmp_path / "nodes") as cluster:
        settings = {
            "feed.name": topic_name,
            "feed.topic": topic_name,
            "kafka.bootstrap": kafka,
            "kafka.group": topic_name,
            **cluster.settings,
            "privacy.user_key_file": str(tmp_path / "user.key"),
            "window.lateness": "event-time",
            "window.idle_timeout": "2s",
        }
        config = bus_config(tmp_path, **settings)
        words = {"redis.cluster": json.dumps(settings["redis.cluster"]), "operator.port": str(free_port())}
        given = environment({**settings, **words, "config": str(hourly.BUS)})
        await create_topic(kafka, topic_name, PARTITIONS)
        await asyncio.to_thread(make_ready, hexveil, given, tmp_path, hourly.BUS, since="2017-03-21")
        replay = [*hexveil, "replay", str(recording(tmp_path)), "--format", "canonical"]
        await asyncio.to_thread(subprocess.run, replay, env=given, cwd=tmp_path, check=True)
        client = redis_client(config.redis)
        async with working(hexveil, given, tmp_path, hourly.BUS), asyncio.timeout(90):
            while not sum((await RowStore.of(client, config).next_offsets()).values()):
                await asyncio.sleep(0.02)
            holder_of_rows_only(cluster, topic_name, topic_name).process.kill()
            while len(await read_all(kafka, topic_name, [WINDOW])) < WINDOWS:
                await asyncio.sleep(0.3)
            cells = [json.loads(message.value) for message in await read_all(kafka, topic_name, [HEXAGON_SPEED])]
            assert sum(cell["events"] for cell in cells) == EVENTS
            assert len(await read_all(kafka, topic_name, [WINDOW])) == WINDOWS
        await client.aclose()
