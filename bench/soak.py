"""Watches the memory of every process for a while under a steady flow: a real broker, Redis, worker, ``hexveil serve``
and its readers.

Windows are a minute long and periods ten minutes, so that windows close, and periods retire, many times in a short run.
After ``_WARM`` of the run, a line is fitted to one figure per minute: the mean resident memory of a process, and the
least memory of Redis, which falls whenever a window was released. The slope has a 95 % interval from the residuals; a
process grows if all of the interval is above ``MAX_MB_PER_HOUR``, and is flat if all of it is below.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
from aiokafka import AIOKafkaProducer
from redis.asyncio import Redis
from scipy import stats

from bench.hourly import FILES
from bench.sse import Remote
from stream.config import Config, load_config
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import LOOPBACK, RedisServer, end_process, free_port, spawn
from stream.messages.topics import create_topics

MAX_MB_PER_HOUR = 16.0
"""A process that would gain a gigabyte in less than three days counts as growing."""
_WARM = 0.4
_SAMPLE_SECONDS, _WINDOW_SECONDS = 5.0, 60
_USERS, _READERS = 2_000, 50
_MAX_WINDOWS = 4
"""Windows that serve keeps: it is full before the measurement begins."""
_LEAST_POINTS = 5
_OPEN_WINDOWS = 4
"""With more open windows at the end, closing lagged behind: then Redis grows by the rows that wait, and nothing
follows."""


@dataclass(frozen=True)
class Sizes:
    """Length in seconds, and events per second."""

    seconds: float
    rate: int


FULL, QUICK = Sizes(7200, 50_000), Sizes(10, 200)


def run(quick: bool, seconds: float | None = None, rate: int | None = None) -> dict[str, Any]:
    """Memory over time, the slopes, and what was sent, read and released meanwhile."""
    sizes = QUICK if quick else FULL
    return asyncio.run(_soaked(Sizes(seconds or sizes.seconds, rate or sizes.rate)))


def bench_settings(kafka: str, redis_url: str, folder: Path) -> dict[str, Any]:
    """Keys that differ from the hourly bus fleet: short windows and periods, and few windows kept by serve."""
    return {
        "feed.name": "soak",
        "window.slot": f"{_WINDOW_SECONDS}s",
        "window.allowed_delay": "10s",
        "window.max_age": "30m",
        "privacy.period": "10m",
        "privacy.user_key_file": str(folder / "user.key"),
        "kafka.bootstrap": kafka,
        "redis.url": redis_url,
        "operator.port": free_port(),
        "public.port": free_port(),
        "public.max_windows": _MAX_WINDOWS,
    }


async def _soaked(sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexveil-soak-")))
        kafka, redis = stack.enter_context(KafkaServer(start_seconds=300)), stack.enter_context(RedisServer())
        settings = bench_settings(kafka.bootstrap, redis.url, folder)
        file = folder / "hexveil.toml"
        shutil.copy(FILES["bus-fleet"], file)
        config = load_config(file, **settings)
        await create_topics(config)
        processes = {name: stack.enter_context(_Process(name, settings, folder)) for name in ("worker", "serve")}
        for name, surface in (("worker", config.operator), ("serve", config.public)):
            await _answers(processes[name], surface.port)
        readers = Remote(config.public.port, os.sched_getaffinity(0))
        stack.callback(readers.close)
        readers.command("open", _READERS)
        await asyncio.to_thread(readers.until_done, "open")
        watched = {name: process.pid for name, process in processes.items()} | {"redis": redis.pid, "broker": kafka.pid}
        watch = _Watch(watched, config)
        watching = asyncio.create_task(watch.watch(sizes.seconds))
        sent = await _send(config, sizes)
        await watching
        return watch.report(sizes) | {"events_sent": sent} | await _done(config)


class _Process:
    """Start ``hexveil NAME`` with the settings; its output goes into a file of ``folder``."""

    def __init__(self, name: str, settings: dict[str, Any], folder: Path) -> None:
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "stream", name, "--config", str(folder / "hexveil.toml")]
        self._environment = os.environ | {
            f"HEXVEIL_{key.replace('.', '__').upper()}": str(value) for key, value in settings.items()
        }

    def __enter__(self) -> _Process:
        self._process = spawn(self._command, self.log, cwd=REPO_ROOT, env=self._environment)
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        end_process(self._process, 20)

    @property
    def ended(self) -> bool:
        """Whether it no longer runs."""
        return self._process.poll() is not None


async def _answers(process: _Process, port: int) -> None:
    deadline = time.monotonic() + 240
    while not await asyncio.to_thread(_is_ready, port):
        if time.monotonic() > deadline or process.ended:
            raise RuntimeError(f"a process did not start: {process.log.read_text(encoding='utf-8')[-2000:]}")
        await asyncio.sleep(0.5)


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=5):
            return True
    except (URLError, OSError):
        return False


async def _send(config: Config, sizes: Sizes) -> int:
    """Events at the given rate, or as fast as the machine can; returns their number."""
    producer = AIOKafkaProducer(bootstrap_servers=config.kafka.bootstrap, acks=1)
    await producer.start()
    rng, sent, begun = Random(1), 0, time.monotonic()
    partitions = sorted(await producer.partitions_for(config.feed.topic))
    part = max(min(sizes.rate // 10, 5_000), 20)
    try:
        while (elapsed := time.monotonic() - begun) < sizes.seconds:
            if sent > elapsed * sizes.rate:
                await asyncio.sleep(0.05)
                continue
            batch = producer.create_batch()
            for value in _events(rng, part):
                if batch.append(key=None, value=value, timestamp=None) is None:
                    break
            sent += batch.record_count()
            await (await producer.send_batch(batch, config.feed.topic, partition=rng.choice(partitions)))
    finally:
        await producer.stop()
    return sent


def _events(rng: Random, count: int) -> Iterator[bytes]:
    now = int(time.time() * 1000)
    for _ in range(count):
        user, lat, lng = rng.randrange(_USERS), 30.2 + rng.random() / 5, -97.8 + rng.random() / 5
        yield b'{"user":"bus-%d","time":%d,"lat":%.5f,"lng":%.5f,"speed":%d}' % (user, now, lat, lng, rng.randrange(70))


class _Watch:
    """Samples of memory, in MB, by process."""

    def __init__(self, processes: dict[str, int], config: Config) -> None:
        self._processes, self._config = processes, config
        self._samples: dict[str, list[tuple[float, float]]] = defaultdict(list)

    async def watch(self, seconds: float) -> None:
        """Take samples for so long."""
        begun = time.monotonic()
        pause = min(_SAMPLE_SECONDS, seconds / 10)
        async with Redis.from_url(self._config.redis.url) as redis:
            while (at := time.monotonic() - begun) < seconds:
                for name, pid in self._processes.items():
                    for number, member in enumerate(_family(pid)):
                        self._samples[name if number == 0 else f"{name}.{number}"].append((at, _resident_mb(member)))
                memory = await redis.info("memory")
                self._samples["redis.used"].append((at, int(memory["used_memory"]) / 2**20))
                await asyncio.sleep(pause)

    def report(self, sizes: Sizes) -> dict[str, Any]:
        """For each process its first and last figure, the slope after warm-up, and the verdict."""
        processes = {
            name: _trend(samples, sizes.seconds * _WARM, np.min if name == "redis.used" else np.mean)
            for name, samples in sorted(self._samples.items())
        }
        growing = [name for name, trend in processes.items() if trend["verdict"] == "growing" and name != "broker"]
        return {
            "seconds": sizes.seconds,
            "events_per_second_wanted": sizes.rate,
            "memory": processes,
            "growing": growing,
        }


def _trend(samples: Sequence[tuple[float, float]], warm: float, per_minute: Any) -> dict[str, Any]:
    """Slope in MB per hour with its 95 % interval: Student's t on the residuals of one figure per minute."""
    times, sizes = np.array(samples).T
    figures: dict[str, Any] = {
        "first_mb": round(sizes[0], 1),
        "last_mb": round(sizes[-1], 1),
        "most_mb": round(sizes.max(), 1),
    }
    minutes = (times // _WINDOW_SECONDS).astype(int)
    chosen = [minute for minute in np.unique(minutes)[:-1] if minute * _WINDOW_SECONDS >= warm]
    if len(chosen) < _LEAST_POINTS:
        return figures | {"mb_per_hour": None, "verdict": "too short"}
    fit = stats.linregress(np.array(chosen) / 60, [per_minute(sizes[minutes == minute]) for minute in chosen])
    half = float(np.nan_to_num(stats.t.ppf(0.975, len(chosen) - 2) * fit.stderr))  # nan where nothing varies
    low, high = float(fit.slope) - half, float(fit.slope) + half
    verdict = "growing" if low > MAX_MB_PER_HOUR else "flat" if high < MAX_MB_PER_HOUR else "undecided"
    return figures | {
        "mb_per_hour": round(float(fit.slope), 2),
        "interval": [round(low, 2), round(high, 2)],
        "verdict": verdict,
    }


def _family(pid: int) -> list[int]:
    """A process and its descendants, oldest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return [pid]
    return [pid, *(member for child in sorted(map(int, children)) for member in _family(child))]


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


async def _done(config: Config) -> dict[str, Any]:
    """What the worker read and released, by its own counters, and the keys in Redis."""
    metrics = await asyncio.to_thread(_metrics, config.operator.port)
    names = {
        "events_ingested": "hexveil_events_ingested_total",
        "windows_closed": "hexveil_windows_closed_total",
        "open_windows": "hexveil_open_windows",
        "consumer_lag": "hexveil_consumer_lag_messages",
    }
    async with Redis.from_url(config.redis.url) as redis:
        keys = await redis.dbsize()
    done = {said: metrics.get(name, 0.0) for said, name in names.items()} | {"redis_keys": keys}
    return done | {"closing_kept_up": done["open_windows"] <= _OPEN_WINDOWS}


def _metrics(port: int) -> dict[str, float]:
    with urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines if line[0] != "#")}
