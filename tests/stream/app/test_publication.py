"""Windows are published at fixed instants, which do not depend on their rows. Real Kafka and Redis."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from stream.app.services import Closing, Publishing, WorkProcess
from stream.app.worker import Worker
from stream.config import Config
from stream.local import free_port
from stream.messages.message import HEXAGON_SPEED, WINDOW
from stream.messages.topics import create_topics
from stream.protocol.close_process import PUBLICATION_LEAD_SECONDS, close_windows, publish_windows
from stream.protocol.ledger_check import LedgerCheck
from stream.statistics.window_release import WindowStatistics
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ReadThrough, RowStore
from stream.windows import PublicationTimes
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows, riders_config
from tests.support.environment import make_ready, worker_environment, working
from tests.support.feeding import until, until_true

BOX = {"south": 30.17, "west": -97.75, "north": 30.30, "east": -97.66}
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
        topics = (HEXAGON_SPEED, WINDOW)
        consumer = AIOKafkaConsumer(*topics, bootstrap_servers=kafka, auto_offset_reset="latest")
        await consumer.start()
        try:
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
        finally:
            await consumer.stop()


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


def text(slot: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(slot))


def costly_in(first: int, cost: float) -> Callable[..., Any]:
    """The draw, which takes ``cost`` seconds more in the window that begins at ``first``."""
    draw = WindowStatistics.draw

    def costly(self: Any, plan: Any, *rest: Any) -> Any:
        if plan.window.start == first:
            time.sleep(cost)
        return draw(self, plan, *rest)

    return costly


async def offsets_after_the_end(
    config: Config, redis: Redis, kafka: str, monkeypatch: pytest.MonkeyPatch, cost: float = COST
) -> list[tuple[float, float]]:
    """Seconds from the end of each window to the arrival of its first and last message. The first one is costly.

    The published numbers do not tell so.
    """
    rows, arrivals = RowStore(redis, config.feed.name), Arrivals(config.feed.name)
    async with beside(arrivals.listen(kafka), read_on(rows)):
        await asyncio.wait_for(arrivals.listening.wait(), 60)
        first = int(time.time()) // SLOT_SECONDS * SLOT_SECONDS + 2 * SLOT_SECONDS
        await redis.set(FeedKeys(config.feed.name).first_slot, first)
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

        for service in services:
            await service.start()
        try:
            await until_true(lambda: all(text(slot) in arrivals.markers for slot in slots), 120.0)
        finally:
            for service in services:
                await service.stop()
            await worker.redis.aclose()
    assert [arrivals.numbers[text(slot)] for slot in slots] == list(range(1, LATER + 2))
    return [
        (arrivals.first[text(slot)] - slot - SLOT_SECONDS, arrivals.markers[text(slot)] - slot - SLOT_SECONDS)
        for slot in slots
    ]


async def begun(redis: Redis, folder: Path, feed: str, kafka: str, redis_url: str, **overrides: str) -> Config:
    """A feed in a small box, with its topics and its ledger."""
    settings = {"feed.name": feed, "feed.domain": BOX, "kafka.bootstrap": kafka, "redis.url": redis_url}
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
    ticks = {"window.slot": f"{SLOT_SECONDS}s", "window.allowed_delay": "0s"}
    ticks |= {"window.publication_margin": f"{MARGIN:.0f}s", "hexagons.resolution": "7"}
    config = await begun(redis, tmp_path, topic_name, kafka, redis_url, **ticks)
    costly, *_, cheap = await offsets_after_the_end(config, redis, kafka, monkeypatch, cost)
    assert all(map(at_an_instant, [*costly, *cheap])), (costly, cheap)


async def test_a_worker_stopped_while_a_window_waits_ends_at_once_and_the_next_publishes_it_at_an_instant(
    hexveil, kafka, redis, redis_url, tmp_path, topic_name
):
    margin = 24.0
    area = {"feed.domain": json.dumps(BOX), "hexagons.resolution": "7"}
    ticks = {
        "window.slot": f"{SLOT_SECONDS}s",
        "window.allowed_delay": "0s",
        "window.publication_margin": f"{margin:.0f}s",
    }
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
        assert text(slot) not in arrivals.first, "published before its instant"
        for earlier in waiting_slots:
            if text(earlier) in arrivals.first:
                late = (arrivals.first[text(earlier)] - earlier - SLOT_SECONDS) % margin
                assert late < TOLERANCE, "published between the instants"
        async with working(hexveil, env, tmp_path, hourly.RIDERS):
            await until_true(lambda: text(slot) in arrivals.markers, 180.0)
    behind = arrivals.markers[text(slot)] - (slot + SLOT_SECONDS) - margin
    assert behind % margin < TOLERANCE, "published between the instants"


async def test_the_metric_tells_how_far_behind_its_instant_a_window_was_published(
    kafka, redis, redis_url, tmp_path, topic_name
):
    margin = {"window.publication_margin": f"{MARGIN:.0f}s"}
    config = await begun(redis, tmp_path, topic_name, kafka, redis_url, **margin)
    worker = Worker(config)
    try:
        (committed,) = await close_windows(config, [SLOT])
        assert (committed.failure, committed.released) == (None, None)
        worker.record(committed)
        assert await worker.store.committed([SLOT, SLOT + 3600]) == [SLOT]
        while not (reports := await publish_windows(config, [SLOT])):
            await asyncio.sleep(0.5)  # the next instant is not near
        (report,) = reports
        worker.record(report)
        assert await worker.store.committed([SLOT]) == [SLOT]
    finally:
        await worker.redis.aclose()
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
    try:
        async with asyncio.timeout(120):
            while not await worker.rows.is_closed(SLOT):
                await asyncio.sleep(await publishing.look())
    finally:
        await worker.redis.aclose()
    assert leads[:2] == [PUBLICATION_LEAD_SECONDS, 2 * PUBLICATION_LEAD_SECONDS]


async def test_a_process_that_was_stopped_begins_nothing_and_waits_for_the_end_of_its_service():
    """A service may look for work once more between its stop and its end."""
    process = WorkProcess()
    assert await process.run(abs, -1) == 1
    await process.stop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await process.run(abs, -1)
