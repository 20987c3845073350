"""Real workers: under "participation" every window is published at its instant, visited or not, in the same shape;
spatial histograms are answered by the API and by ``hexveil query``; servers that do not answer are waited for, said
once in a log of JSON only, and SIGTERM ends a worker in time; on a cluster every event is released once although a
master is killed. Windows are published at fixed instants, which do not depend on their rows. Real Kafka and Redis."""

import asyncio
import itertools
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import redis
from aiokafka import AIOKafkaConsumer
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from dpcore.spatial import Rectangles, histogram_from_release
from stream.app.services import Closing, Publishing, WorkProcess
from stream.app.worker import Worker
from stream.config import Config, load_config
from stream.config.public_cells import public_cells
from stream.local.kafka import KafkaServer
from stream.local.server import LOOPBACK, RedisServer, free_port
from stream.logs import QUIET_SECONDS
from stream.messages.message import HEXAGON_SPEED, OUTPUT_TOPICS, REJECTED, SPATIAL_HISTOGRAM, WINDOW
from stream.messages.topics import create_topics
from stream.offline import replay_offline
from stream.protocol.close_process import PUBLICATION_LEAD_SECONDS, close_windows, publish_windows
from stream.protocol.ledger_check import LedgerCheck
from stream.statistics.window_release import WindowStatistics
from stream.storage.client import redis_client
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ReadThrough, RowStore
from stream.windows import PublicationTimes, utc_text
from tests.stream.serve.serving import serving
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders_config, zcdp_config
from tests.support.environment import environment, make_ready, worker_environment, working
from tests.support.feeding import administering, create_topic, produce, until, until_true
from tests.support.redis_cluster import LocalCluster
from tests.support.schemas import validate
from tests.support.topics_reader import read_all, versions

_DOMAIN = {"south": 30.2, "west": -97.75, "north": 30.3, "east": -97.6}


@pytest.mark.parametrize("accounting", ["pure", "zcdp"])
async def test_every_window_is_released_on_the_tick_with_the_same_number_of_messages_visited_or_not(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name, accounting
):
    area = {"feed.domain": json.dumps(_DOMAIN), "hexagons.resolution": "7"}
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
    config = load_config(riders, **{"feed.domain": _DOMAIN, "hexagons.resolution": 7})
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
SETTINGS = {"mechanisms": ["auto", "euler", "ug"], "epsilon": 1.5, "domain": BOX, "euler": {}}
SETTINGS |= {"rows": 16, "columns": 16}
FIELDS = {"user": "user", "time": "time", "lat": "lat", "lng": "lng", "value": "speed", "time_format": "epoch-ms"}


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


async def read(redis: Redis, feed: str, messages: int) -> None:
    """Until a worker read so many messages of the feed."""
    while sum((await RowStore(redis, feed).next_offsets()).values()) < messages:
        await asyncio.sleep(0.05)


@pytest.mark.nightly
async def test_a_recorded_day_that_is_replayed_to_a_worker_that_is_killed_is_released_and_charged_as_without_kafka(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name, shared_data
):
    """Every window once, as an offline replay under the same key says. No file is left, and no vehicle is logged."""
    day, folder = shared_data / "capmetro" / "2017-03-21.csv.gz", tmp_path / "worker"
    folder.mkdir()
    recorded = {"window.lateness": "event-time", "window.idle_timeout": "4s"}
    env = worker_environment(folder, kafka, redis_url, free_port(), topic_name, **recorded)
    make_ready(hexveil, env, folder, hourly.BUS, since="2017-03-21")
    replay = [*hexveil, "replay", str(day), "--config", BUS, "--format", "capmetro", "--speed", "max"]
    subprocess.run(replay, env=env, cwd=folder, check=True)
    async with working(hexveil, env, folder, hourly.BUS, signal.SIGKILL), asyncio.timeout(60):
        await read(redis, topic_name, 1_000)
    async with working(hexveil, env, folder, hourly.BUS), asyncio.timeout(120):
        while await redis.hlen(FeedKeys(topic_name).closed) < 11:
            await asyncio.sleep(0.5)
    assert {path.name for path in folder.iterdir()} == {"user.key", "worker.log"}
    assert not re.search(r"(?<![\d.])2619(?!\d)", (folder / "worker.log").read_text())
    with (tmp_path / "offline.ndjson").open("w") as out:
        summary = await asyncio.to_thread(replay_offline, bus_config(folder), day, "capmetro", out)
    assert await Ledger(redis, topic_name).total("2017-03-21") == summary.charged["2017-03-21"]
    assert summary.charged["2017-03-21"][0] == 329
    published = await versions(kafka, topic_name)
    assert {len(values) for values in published.values()} == {1}
    lines = [json.loads(line)["value"] for line in (tmp_path / "offline.ndjson").read_text().splitlines()]
    public = [
        sorted((b["window"]["start"], b.get("cell", ""), b.get("events"), b.get("users")) for b in of if "window" in b)
        for of in ([json.loads(value) for values in published.values() for value in values], lines)
    ]
    assert public[0] == public[1]


async def test_what_a_worker_after_a_killed_one_publishes_is_charged_complete_and_answered_by_the_api_and_from_a_file(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    settings = {"window.lateness": "event-time", "window.idle_timeout": "4s", "histogram": json.dumps(SETTINGS)}
    settings |= {"feed.format": "declared", "feed.fields": json.dumps(FIELDS), "value.name": "PM2.5"}
    settings |= {"value.unit": "µg/m³", "speed.sum_cap": "0"}
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **settings)
    await create_topic(kafka, topic_name, 2)
    make_ready(hexveil, env, tmp_path, hourly.BUS, since="2017-03-21")
    await produce(kafka, topic_name, events(), 2)
    async with working(hexveil, env, tmp_path, hourly.BUS, signal.SIGKILL), asyncio.timeout(60):
        await read(redis, topic_name, 1)
    async with working(hexveil, env, tmp_path, hourly.BUS), asyncio.timeout(120):
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
    bodies = [json.loads(record.value) for record in records]
    for record, body in zip(records, bodies, strict=True):
        validate(record.topic, body)
    assert sum(body["events"] for body in bodies if "mean" in body) == len(events()), "each event once"
    assert {path.name for path in tmp_path.iterdir()} == {"user.key", "worker.log"}
    assert not re.search("bus-[0-9]", (tmp_path / "worker.log").read_text()), "a vehicle was logged"
    assert {body["mean"]["unit"] for body in bodies if "mean" in body} == {"µg/m³"}
    markers = {(body["value"], body["clipping"]["unit"]) for body in bodies if "generation" in body}
    assert markers == {("PM2.5", "µg/m³")}
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

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: not self.problems())

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
    worker.wait_until_ready()

    time.sleep(QUIET_SECONDS + 1)  # a new outage, not the same one

    before = len(worker.lines())
    own_kafka.kill()
    time.sleep(20)
    assert worker.process.poll() is None
    during = worker.lines()[before:]
    assert 1 <= len(during) <= 5, during
    assert sum(line.get("logger", "").startswith("aiokafka") for line in during) <= 1

    own_kafka.start()
    worker.wait_until_ready()
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
    await asyncio.to_thread(worker.wait_until_ready)
    async with administering(kafka) as admin:
        await admin.delete_topics([topic_name])
    await asyncio.to_thread(worker.wait_for, lambda: topic_name in " ".join(worker.problems()))
    assert worker.process.poll() is None
    await create_topics(config)
    await asyncio.to_thread(worker.wait_until_ready)
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
        place, hours = {"lat": 30.2, "lng": -97.7, "speed": 20.0}, tmp_path / "hours.ndjson"
        sent = [place | {"user": f"bus{k % 40}", "time": 1_000 * (SLOT + k)} for k in range(EVENTS)]
        hours.write_text("".join(json.dumps(event) + "\n" for event in sent))
        replay = [*hexveil, "replay", str(hours), "--format", "canonical"]
        await asyncio.to_thread(subprocess.run, replay, env=given, cwd=tmp_path, check=True)
        running = working(hexveil, given, tmp_path, hourly.BUS)
        async with redis_client(config.redis) as client, running, asyncio.timeout(90):
            await read(client, topic_name, 1)
            keys = FeedKeys(topic_name)
            parts = (PartKeys(keys, f"{topic_name}/{number}").progress for number in range(PARTITIONS))
            ledger = cluster.master_of(keys.generation)  # and the master to kill holds rows only
            next(node for node in map(cluster.master_of, parts) if node is not ledger).process.kill()
            while len(await read_all(kafka, topic_name, [WINDOW])) < WINDOWS:
                await asyncio.sleep(0.3)
            cells = [json.loads(message.value) for message in await read_all(kafka, topic_name, [HEXAGON_SPEED])]
            assert sum(cell["events"] for cell in cells) == EVENTS
            assert len(await read_all(kafka, topic_name, [WINDOW])) == WINDOWS


SMALL_BOX = {"south": 30.17, "west": -97.75, "north": 30.30, "east": -97.66}
SLOT_SECONDS, MARGIN = 3, 10.0
COST, LATER = 2.9, 5
"""Seconds by which the draw of one window is longer than those of so many later ones: until the last of them, a busy
machine has closed what waited."""
TOLERANCE = 2.0
"""Seconds after its instant in which a message has to arrive, on a machine that does other things beside."""


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 10**5), st.integers(-(10**6), 10**10))
def test_an_instant_is_one_of_the_public_ones_and_the_first_that_is_left(end, delay, margin, now):
    times = PublicationTimes(timedelta(seconds=delay), timedelta(seconds=margin))
    instant = times.next_us(end, now * 1_000_000)
    assert instant >= max(now * 1_000_000, times.first_us(end))
    assert (instant - times.first_us(end)) % (margin * 1_000_000) == 0
    assert instant == times.first_us(end) or instant - margin * 1_000_000 < now * 1_000_000


def test_participation_always_has_instants_and_values_where_it_asks_for_them(tmp_path):
    assert bus_config(tmp_path).publication is None
    assert riders_config(tmp_path).publication == PublicationTimes(timedelta(minutes=5), timedelta(minutes=1))
    asked = bus_config(tmp_path, **{"window.publication_margin": "30s"}).publication
    assert asked is not None
    assert asked.margin == timedelta(seconds=30)
    with pytest.raises(Exception, match="publication_margin is for live feeds"):
        bus_config(tmp_path, **{"window.publication_margin": "30s", "window.lateness": "event-time"})
    with pytest.raises(Exception, match="give 1s or more"):
        riders_config(tmp_path, **{"window.publication_margin": "10ms"})


class Arrivals:
    """When each message of a feed arrived at a reader of the output topics, in seconds, by window."""

    def __init__(self, feed: str) -> None:
        self._feed = feed.encode()
        self.listening = asyncio.Event()
        self.first: dict[str, float] = {}
        self.markers: dict[str, float] = {}
        self.numbers: dict[str, int] = {}

    async def listen(self, kafka: str) -> None:
        """Reads until it is cancelled."""
        latest = {"bootstrap_servers": kafka, "auto_offset_reset": "latest"}
        async with AIOKafkaConsumer(HEXAGON_SPEED, WINDOW, **latest) as consumer:
            await consumer.seek_to_end()
            self.listening.set()
            async for record in consumer:
                now = time.time()
                if b'"feed":"%b"' % self._feed not in (record.value or b""):
                    continue  # other tests write there, too, and not all of it is a message
                body = json.loads(record.value)
                start = body["window"]["start"]
                self.first.setdefault(start, now)
                if record.topic == WINDOW:
                    self.markers.setdefault(start, now)
                    self.numbers[start] = body["sequence"]


@asynccontextmanager
async def beside(*tasks: Any) -> AsyncIterator[None]:
    """Until the block ends. A task that fails ends the block, with its error."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(task) for task in tasks]
        yield
        while not all(task.done() for task in running):
            for task in running:
                task.cancel()  # again, because the client of Redis may lose a cancellation
            await asyncio.wait(running, timeout=1.0)


async def read_on(rows: RowStore) -> None:
    """Record repeatedly that the partition was read to its end, as a reader of an idle feed does."""
    while True:
        now = await rows.now_us()
        await rows.list_partitions(["t/0"], now)
        await rows.read_through([ReadThrough("t/0", None, 0, now)])
        await asyncio.sleep(0.1)


async def in_a_thread(self: WorkProcess, task: Callable[..., Any], *given: object) -> Any:
    """Statistics whose draw the test can slow down."""
    return await asyncio.to_thread(task, *given)


def costly_in(first: int, cost: float) -> Callable[..., Any]:
    """The draw, which takes ``cost`` seconds more in the window that begins at ``first``."""
    draw = WindowStatistics.draw

    def costly(self: Any, plan: Any, *rest: Any) -> Any:
        if plan.window.start == first:
            time.sleep(cost)
        return draw(self, plan, *rest)

    return costly


async def begun(redis: Redis, folder: Path, feed: str, kafka: str, redis_url: str, **overrides: str) -> Config:
    """A feed in a small box, with its topics and its ledger."""
    settings = {"feed.name": feed, "feed.domain": SMALL_BOX, "kafka.bootstrap": kafka, "redis.url": redis_url}
    config = riders_config(folder, **settings, **overrides)
    await create_topics(config)
    await Ledger(redis, feed).start_generation(birth=0)
    return config


def at_an_instant(offset: float) -> bool:
    """Whether a message that arrived so long after the end of its window was published at an instant: the first one, or
    a later one, where the machine does so much beside that closing takes longer than until the first.
    """
    return offset + 0.01 >= MARGIN and (offset + 0.01) % MARGIN < TOLERANCE


@pytest.mark.parametrize("cost", [COST, 2.5 * SLOT_SECONDS], ids=["one window waits", "several wait"])
async def test_windows_of_very_different_cost_are_published_in_order_at_the_same_offset_from_their_end(
    cost, kafka, redis, redis_url, tmp_path, topic_name,
    monkeypatch
):  # fmt: skip
    """By the arrivals of the first and last messages of the costly window and of the last one; the published numbers do
    not tell."""
    ticks = {"window.slot": f"{SLOT_SECONDS}s", "window.allowed_delay": "0s"}
    ticks |= {"window.publication_margin": f"{MARGIN:.0f}s", "hexagons.resolution": "7"}
    config = await begun(redis, tmp_path, topic_name, kafka, redis_url, **ticks)
    rows, arrivals = RowStore(redis, topic_name), Arrivals(topic_name)
    async with beside(arrivals.listen(kafka), read_on(rows)):
        await asyncio.wait_for(arrivals.listening.wait(), 60)
        first = int(time.time()) // SLOT_SECONDS * SLOT_SECONDS + 2 * SLOT_SECONDS
        await redis.set(FeedKeys(topic_name).first_slot, first)
        crowd = random_rows(1, 2000, slot=first)
        crowd["time"] = first * 1_000_000 + np.arange(2000)
        await rows.append("t/0", 0, 2000, crowd, np.arange(2000), np.full(2000, first))
        monkeypatch.setattr(WindowStatistics, "draw", costly_in(first, cost))
        monkeypatch.setattr(WorkProcess, "run", in_a_thread)
        monkeypatch.setattr(Worker, "end_soon", lambda _: None)
        worker = Worker(config)
        worker.ready.set()
        services = [Closing(worker), Publishing(worker)]
        slots = range(first, first + (LATER + 1) * SLOT_SECONDS, SLOT_SECONDS)
        async with aclosing(worker.redis):
            for service in services:
                await service.start()
            try:
                await until_true(lambda: all(utc_text(slot) in arrivals.markers for slot in slots), 120.0)
            finally:
                for service in services:
                    await service.stop()
    assert [arrivals.numbers[utc_text(slot)] for slot in slots] == list(range(1, LATER + 2))
    for slot in (slots[0], slots[-1]):
        for arrived in (arrivals.first[utc_text(slot)], arrivals.markers[utc_text(slot)]):
            assert at_an_instant(arrived - slot - SLOT_SECONDS), (slot, arrived)


async def test_a_worker_stopped_while_a_window_waits_ends_at_once_and_the_next_publishes_it_at_an_instant(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    margin = 24.0
    area = {"feed.domain": json.dumps(SMALL_BOX), "hexagons.resolution": "7"}
    ticks = {"window.slot": f"{SLOT_SECONDS}s", "window.allowed_delay": "0s"}
    ticks["window.publication_margin"] = f"{margin:.0f}s"
    env = worker_environment(tmp_path, kafka, redis_url, free_port(), topic_name, **area, **ticks)
    make_ready(hexveil, env, tmp_path, hourly.RIDERS)
    keys, arrivals = FeedKeys(topic_name), Arrivals(topic_name)

    async def committed() -> list[int]:
        return sorted(
            [int(key.decode().rpartition(":")[2]) async for key in redis.scan_iter(match=keys.outbox(0)[:-1] + "*")]
        )

    def left(slot: int) -> float:
        """Seconds until the next instant of the window."""
        return (slot + SLOT_SECONDS - time.time()) % margin

    async def newest_waits() -> bool:
        """Not the oldest: on a busy machine its first instant may be over, and the next one near."""
        slots = await committed()
        return bool(slots) and left(slots[-1]) > margin / 2

    async with beside(arrivals.listen(kafka)):
        async with working(hexveil, env, tmp_path, hourly.RIDERS):
            await until(newest_waits, 180.0)
            waiting_slots = await committed()
            slot = waiting_slots[-1]
            waiting, begun = left(slot), time.monotonic()
        assert time.monotonic() - begun < waiting, "the worker waited for the instant"
        assert utc_text(slot) not in arrivals.first, "published before its instant"
        for earlier in waiting_slots:
            if utc_text(earlier) in arrivals.first:
                late = (arrivals.first[utc_text(earlier)] - earlier - SLOT_SECONDS) % margin
                assert late < TOLERANCE, "published between the instants"
        async with working(hexveil, env, tmp_path, hourly.RIDERS):
            await until_true(lambda: utc_text(slot) in arrivals.markers, 180.0)
    behind = arrivals.markers[utc_text(slot)] - (slot + SLOT_SECONDS) - margin
    assert behind % margin < TOLERANCE, "published between the instants"


async def test_the_metric_tells_how_far_behind_its_instant_a_window_was_published(
    kafka, redis, redis_url, tmp_path, topic_name
):
    margin = {"window.publication_margin": f"{MARGIN:.0f}s"}
    config = await begun(redis, tmp_path, topic_name, kafka, redis_url, **margin)
    worker = Worker(config)
    async with aclosing(worker.redis):
        (committed,) = await close_windows(config, [SLOT])
        assert (committed.failure, committed.released) == (None, None)
        worker.record(committed)
        assert await worker.store.committed([SLOT, SLOT + 3600]) == [SLOT]
        while not (reports := await publish_windows(config, [SLOT])):
            await asyncio.sleep(0.5)  # the next instant is not near
        (report,) = reports
        worker.record(report)
        assert await worker.store.committed([SLOT]) == [SLOT]
    assert report.behind is not None
    assert report.behind > 10**8, "seconds since 2017"
    assert report.behind % MARGIN < TOLERANCE, "at a whole number of margins"
    samples = {s.name: s.value for m in worker.metrics.registry.collect() for s in m.samples if not s.labels}
    assert samples["hexveil_publication_behind_seconds_count"] == 1
    assert samples["hexveil_window_close_seconds_count"] == 1
    assert samples["hexveil_windows_closed_total"] == 1


async def test_a_window_is_published_however_long_connecting_and_verifying_take(
    kafka, redis, redis_url, tmp_path, topic_name, monkeypatch
):
    """Far brokers answer so late that the lead is too short: the instant passes, and the next attempt begins
    earlier."""
    config = await begun(redis, tmp_path, topic_name, kafka, redis_url, **{"window.publication_margin": "12s"})
    assert (await close_windows(config, [SLOT]))[0].failure is None
    worker, verify, leads = Worker(config), LedgerCheck.verify, list[float]()

    async def slowly(check: LedgerCheck) -> None:
        await asyncio.sleep(PUBLICATION_LEAD_SECONDS + 0.5)
        await verify(check)

    async def near(within_seconds: float) -> list[int]:
        now_us, end = await worker.rows.now_us(), config.slotting.window(SLOT).end
        assert config.publication is not None
        is_near = config.publication.next_us(end, now_us) <= now_us + within_seconds * 1e6
        leads.extend([within_seconds] if is_near else [])
        return [SLOT] if is_near else []

    monkeypatch.setattr(WorkProcess, "run", in_a_thread)
    monkeypatch.setattr(LedgerCheck, "verify", slowly)
    monkeypatch.setattr(worker, "to_publish", near)
    publishing = Publishing(worker)
    async with aclosing(worker.redis), asyncio.timeout(120):
        while not await worker.rows.is_closed(SLOT):
            await asyncio.sleep(await publishing.look())
    assert leads[:2] == [PUBLICATION_LEAD_SECONDS, 2 * PUBLICATION_LEAD_SECONDS]


async def test_a_process_that_was_stopped_begins_nothing_and_waits_for_the_end_of_its_service():
    """A service may look for work once more between its stop and its end."""
    process = WorkProcess()
    assert await process.run(abs, -1) == 1
    await process.stop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await process.run(abs, -1)
