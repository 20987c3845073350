"""A small deployment whose every output is written down: real Kafka, Redis and worker parts, a clock that the test
moves."""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import structlog
from aiohttp.test_utils import TestClient, TestServer
from aiokafka.admin import AIOKafkaAdminClient
from redis.asyncio import Redis

from dpcore.gaussian import discrete_gaussian
from dpcore.noise import Noise
from dpcore.spatial.mechanism import noisy_counts
from dpcore.spatial.partition import draw_counts
from stream.app.running import Ingesting
from stream.app.worker import Worker
from stream.config import Config
from stream.ingestion import reader
from stream.messages.message import HEXAGON_SPEED, WINDOW
from stream.messages.topics import create_topics
from stream.protocol import close_process
from stream.protocol.close_process import CloseReport, close_windows, publish_windows
from stream.serve.api import SERVICE, make_app
from stream.serve.ogc.selection import item_id
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import RowStore
from stream.windows import CLOCK_MARGIN_US, read_through
from tests.support import feeding
from tests.support.feeding import administering, produce, until
from tests.support.releasing import GENERATION
from tests.support.tapes import recorded
from tests.support.topics_reader import read_topics

HOUR = 3600
START = 1_795_266_000
"""2026-11-21 13:00 UTC, the start of an hour: the feed runs from here on."""
HOURS = 4
Hourly = Callable[[int], Sequence[bytes]]
"""Messages that arrive in the given hour of the feed."""


class Clock:
    """Clock of the store and the broker, and of the worker's parts; what measures spans stays real."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.now = float(START)

    def time(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    async def now_us(self) -> int:
        return int(self.now * 1e6)

    async def arrivals(self, records: Sequence[object]) -> np.ndarray:
        return np.full(len(records), await self.now_us())


class _Overwhelming(np.ndarray):
    """A number that stays itself when another is added, so that the sum does not depend on the other number."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        plain = [value.view(np.ndarray) if isinstance(value, _Overwhelming) else value for value in inputs]
        if ufunc is np.add and method == "__call__":
            (mine,) = (value.view(np.ndarray) for value in inputs if isinstance(value, _Overwhelming))
            if out is None:
                return mine.copy()
            out[0][...] = mine
            return out[0]
        return getattr(ufunc, method)(*plain, **({} if out is None else {"out": out}), **kwargs)


class Swallowing(Noise):
    """Recorded noise that replaces the number to which it is added, and choices that ignore their costs.

    It makes the noisy numbers and choices of any two histories equal, as their noise might. A release that is a
    function of these and of public numbers alone is then the same to the byte; whatever still differs did not pass
    through noise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain = recorded(5)

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        return self.plain.discrete_laplace(numerator, denominator, size).view(_Overwhelming)

    def exponential(self, costs: Any, *scale: Any, **kept: Any) -> Any:
        return self.plain.exponential(np.zeros_like(costs), *scale, **kept)


def _swallowed(draw: Callable[..., Any], counts: Any, *rest: Any) -> Any:
    """What ``draw`` gives for counts that its noise swallowed."""
    return draw(np.zeros_like(counts), *rest)


def _swallowing_gaussian(noise: Swallowing, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
    return discrete_gaussian(noise.plain, numerator, denominator, size).view(_Overwhelming)


@dataclass
class Transcript:
    """Everything that left the boundary. ``records``: topic/partition -> records; ``answers``: request -> answer."""

    records: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    answers: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    logs: list[Any] = field(default_factory=list)

    def differences(self, other: Transcript) -> list[str]:
        """Where the two differ, shortened."""
        differences = []
        for mine, theirs in ((self.records, other.records), (self.answers, other.answers)):
            for place in sorted(mine.keys() | theirs.keys()):
                one, two = mine.get(place), theirs.get(place)
                if one != two:
                    pairs = zip(one or (), two or (), strict=False)
                    first = next(((a, b) for a, b in pairs if a != b), (len(one or ()), len(two or ())))
                    differences.append(f"{place}: {str(first[0])[:700]} <> {str(first[1])[:700]}")
        if self.logs != other.logs:
            differences.append(f"log of the public service: {self.logs} <> {other.logs}")
        return differences


@contextmanager
def worker_parts(monkeypatch: pytest.MonkeyPatch, noise: Callable[[], Noise]) -> Iterator[Clock]:
    """Clock and noise of the worker's parts, replaced while the block runs."""
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "time", clock)
        patch.setattr(reader, "LOOK_SECONDS", 0.1)  # every hour of the feed waits for a look
        patch.setattr(RowStore, "now_us", lambda _: clock.now_us())
        patch.setattr(reader.Ingestor, "arrivals", lambda _, records: clock.arrivals(records))
        patch.setattr(close_process, "Noise", noise)
        for name, module in sys.modules.items():
            if noise is Swallowing and name.startswith(("stream.", "dpcore.spatial.", "dpcore.participation")):
                if hasattr(module, "discrete_gaussian"):
                    patch.setattr(module, "discrete_gaussian", _swallowing_gaussian)
                for draw in (noisy_counts, draw_counts):
                    if hasattr(module, draw.__name__):
                        patch.setattr(module, draw.__name__, partial(_swallowed, draw))
        yield clock


async def observe(config: Config, redis: Redis, arrivals: Hourly, clock: Clock, *, look: bool = True) -> Transcript:
    """Run the feed for :data:`HOURS` through a fresh broker state and write down every output; ``look``: the public API
    too."""
    await redis.flushall()
    close_process.begin_anew()
    await Ledger(redis, config.feed.name).start_generation(birth=0)
    await redis.set(FeedKeys(config.feed.name).generation, GENERATION)
    await _clear(config.kafka.bootstrap)
    await create_topics(config)
    await _run(config, arrivals, clock)
    transcript = Transcript(records=await _records(config))
    if look:
        await _look(config, transcript)
    return transcript


async def _run(config: Config, arrivals: Hourly, clock: Clock) -> None:
    worker = Worker(config)
    state = RowStore(worker.redis, config.feed.name)
    reading = Ingesting(worker)
    await reading.start()
    try:
        assert await worker.due_slots() == []
        sent = 0
        for hour in range(HOURS):
            clock.now = START + hour * HOUR + HOUR / 2
            values = arrivals(hour)
            await produce(config.kafka.bootstrap, config.feed.topic, values, 4, first=sent)
            sent += len(values)

            async def taken(all_of: int = sent) -> bool:
                return sum((await state.next_offsets()).values()) == all_of

            await until(taken)
            clock.now = START + (hour + 1) * HOUR + config.window.allowed_delay.total_seconds() + 4
            reports: list[CloseReport] = []
            if due := await _due(worker, clock.now):
                reports = await close_windows(config, due)
                if config.publication is not None:
                    clock.now = config.publication.first_us(START + (hour + 1) * HOUR) / 1e6
                    reports += await publish_windows(config, due)
            for report in reports:
                assert report.failure is None, report
                worker.record(report)
        await worker.due_slots()
    finally:
        await reading.stop()
        await worker.redis.aclose()


async def _due(worker: Worker, now: float) -> list[int]:
    """What is due once every partition was found read to its end at ``now``."""

    async def read() -> bool:
        return (read_through((await worker.rows.look()).times) or 0) >= int(now * 1e6) - CLOCK_MARGIN_US

    await until(read)
    return await worker.due_slots()


async def _topics(admin: AIOKafkaAdminClient) -> list[str]:
    return sorted(name for name in await admin.list_topics() if not name.startswith("__"))


async def _clear(bootstrap: str) -> None:
    async with administering(bootstrap) as admin:

        async def gone() -> bool:
            left = await _topics(admin)
            if left:
                await admin.delete_topics(left)
            return not left

        await until(gone)


async def _records(config: Config) -> dict[str, list[tuple[Any, ...]]]:
    """Every record of every topic but the input, as a consumer of the broker sees it."""
    bootstrap = config.kafka.bootstrap
    async with administering(bootstrap) as admin:
        topics = [name for name in await _topics(admin) if name != config.feed.topic]
    assert {HEXAGON_SPEED, WINDOW} <= set(topics)
    by_partition: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for r in await read_topics(bootstrap, topics):
        size = r.serialized_value_size
        by_partition[f"{r.topic}/{r.partition}"].append(
            (r.offset, r.timestamp, r.timestamp_type, r.key, r.headers, r.value, size)
        )
    return by_partition


async def _look(config: Config, transcript: Transcript) -> None:
    """Send the public service every kind of request, valid and invalid, then read its metrics; keep its log."""
    with structlog.testing.capture_logs() as logs:
        public = make_app(config)
        async with TestClient(TestServer(public)) as client:
            await public[SERVICE].intake.caught_up.wait()
            windows = (await (await client.get("/api/v1/windows")).json())["windows"]
            starts = [window["window"]["start"] for window in windows]
            for operation in public[SERVICE].operations:
                collections = [f"{config.feed.name}.{kind}" for kind in ("newest", "all")]
                for path in _paths(operation.path, [*starts, *_STRANGE], [*_cells(transcript), *_STRANGE], collections):
                    await _ask(client, path, transcript)
            await _ask_stream(client, len(starts), transcript)
            for path in ("/", "/healthz", "/readyz", "/api/v1/nothing", "/metrics/users"):
                await _ask(client, path, transcript)
            metrics = await (await client.get("/metrics")).text()
    timed = ("hexveil_public_request_seconds", "# ")
    kept = [line for line in metrics.splitlines() if not line.startswith(timed) and "_created" not in line]
    transcript.answers["/metrics"] = tuple(kept)
    transcript.logs = logs


_STRANGE = ("2026-11-21T03:00:00Z", "86489e34fffffff", "nonsense", "ug")
_QUERIES = ("", "?format=geojson", "?bbox=-97.8,30.2,-97.6,30.3", "?limit=0", "?window=nonsense")


def _cells(transcript: Transcript) -> list[str]:
    released = (records for name, records in transcript.records.items() if name.startswith(HEXAGON_SPEED))
    return sorted({key.decode() for records in released for _, _, _, key, *_ in records})


def _paths(template: str, windows: Sequence[str], cells: Sequence[str], collections: Sequence[str]) -> list[str]:
    """Requests that match ``template``, and some that do not; event streams are left out."""
    if template.endswith("/stream"):
        return []
    paths = [template]
    for name, values in (
        ("{window}", windows),
        ("{cell}", cells),
        ("{mechanism}", _STRANGE),
        ("{collection}", [*collections, *_STRANGE]),
        ("{item}", [item_id(start, cell) for start in windows[:2] for cell in cells[:2]]),
    ):
        if name in template:
            paths = [path.replace(name, value) for path in paths for value in values]
    if "{" in template:
        return paths
    return [path + query for path in paths for query in (*_QUERIES, *(f"?window={start}" for start in windows))]


async def _ask(client: TestClient, path: str, transcript: Transcript) -> None:
    answer = await client.get(path, headers={"Host": "traffic.example.org"})  # links name the host, whatever the port
    headers = sorted((name, value) for name, value in answer.headers.items() if name != "Date")
    body = await answer.read()
    if answer.content_type == "application/vnd.apache.parquet":
        body = str(len(body)).encode()
    transcript.answers[path] = (answer.status, headers, body)


async def _ask_stream(client: TestClient, windows: int, transcript: Transcript) -> None:
    stream = await client.get("/api/v1/stream", headers={"Last-Event-ID": "0"})
    seen = b""
    while seen.count(b"event: window") < windows or not seen.endswith(b"\n\n"):
        seen += await stream.content.readany()
    stream.close()
    retry, _, events = seen.partition(b"\n\n")
    assert re.fullmatch(rb"retry: \d+", retry)  # each client another number, drawn when it comes
    transcript.answers["/api/v1/stream"] = (stream.status, events)


def event(user: str, hour: int, second: float, lat: float, lng: float, speed: float) -> bytes:
    """One canonical event of ``second`` in the given hour of the feed."""
    return feeding.event(user, (START + hour * HOUR + second) * 1000, lat, lng, speed)
