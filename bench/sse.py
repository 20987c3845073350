"""Measures a thousand event streams on one core: latency from the close marker to the readers, and stalled readers.

``hexveil serve`` runs on its own core; Kafka, the publisher and the readers share the others. A latency is the time
from giving the close marker to the producer until its event reaches a reader, or all readers, by the machine's
monotonic clock. Stalled readers stop reading. They must not delay the others; once disconnected they come back with
Last-Event-ID, and every event must have reached them once, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import h3

from bench.configuration import bench_config
from bench.progress import shown
from bench.publishing import deliver
from stream.config import Config
from stream.local.kafka import REPO_ROOT, KafkaServer
from stream.local.server import LOOPBACK, free_port
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message, digest, window_message
from stream.messages.topics import create_topics
from stream.protocol.publishing import make_producer
from stream.windows import Window

FEED = "bench"
_START = 1_490_054_400
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sizes:
    """What is measured; ``pause`` in seconds between windows while latencies are taken."""

    readers: int
    stalled: int
    windows: int
    cells: int
    pause: float


FULL = Sizes(readers=1000, stalled=100, windows=30, cells=120, pause=0.2)
QUICK = Sizes(readers=20, stalled=1, windows=2, cells=5, pause=0.05)


def config_of(bootstrap: str, port: int) -> Config:
    """The configuration of the service on a port of loopback."""
    return bench_config(
        feed={"name": FEED, "domain": {"south": 29.8, "west": -98.3, "north": 30.9, "east": -97.2}},
        kafka={"bootstrap": bootstrap},
        public={"host": LOOPBACK, "port": port},
    )


def messages_of(number: int, size: int) -> list[Message]:
    """A window of suppressed cells, the smallest that the schema takes, and its marker."""
    window = Window(_START + 3600 * number, _START + 3600 * (number + 1))
    stamp = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (window.start, window.end)]
    common = {"feed": FEED, "window": {"start": stamp[0], "end": stamp[1]}, "relation": "values", "epsilon": 2.0}
    counted = {"status": "suppressed", "events": 1, "users": 1}
    cells = sorted(h3.grid_disk(h3.latlng_to_cell(30.27, -97.74, 7), 8))[:size]
    made = [
        window_message(HEXAGON_SPEED, FEED, window, cell, cell, common | {"cell": cell, "resolution": 7} | counted)
        for cell in cells
    ]
    marker = common | {
        "budget": 48.0,
        "period": {"start": stamp[0], "end": stamp[1], "timezone": "UTC"},
        "clipping": {"lower": 0.0, "upper": 65.0, "unit": "km/h"},
        "resolution": 7,
        "statistics": ["mean"],
        "messages": len(made),
        "digest": digest(message.value for message in made),
        "generation": "00000000-0000-4000-8000-000000000000",
        "sequence": number,
    }
    return [*made, window_message(WINDOW, FEED, window, "close", FEED, marker)]


class Remote:
    """The process of the readers, seen from the parent."""

    def __init__(self, port: int, cores: set[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sse_readers", str(port)],
            cwd=REPO_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, cores)
        self.events: dict[int, dict[str, float]] = {}
        self.done: dict[str, dict[str, Any]] = {}

    def command(self, name: str, argument: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {argument}\n")
        self._process.stdin.flush()

    def until_done(self, name: str) -> dict[str, Any]:
        """Its report once a command is done."""
        while name not in self.done:
            self._read()
        return self.done[name]

    def until_event(self, number: int) -> None:
        """Return once an event has reached every reader."""
        while number not in self.events:
            self._read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        report: dict[str, Any] = json.loads(next(self._process.stdout))
        if "event" in report:
            self.events[report["event"]] = report
        else:
            self.done[report["done"]] = report

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


class Served:
    """The process of ``hexveil serve``, seen from outside."""

    def __init__(self, config: Config, folder: Path, cores: set[int]) -> None:
        self.port = config.public.port
        environment = os.environ | {
            "HEXVEIL_FEED__NAME": FEED,
            "HEXVEIL_KAFKA__BOOTSTRAP": config.kafka.bootstrap,
            "HEXVEIL_PUBLIC__HOST": config.public.host,
            "HEXVEIL_PUBLIC__PORT": str(config.public.port),
        }
        command = [sys.executable, "-m", "stream", "serve", "--config", str(REPO_ROOT / "config" / "bus-fleet.toml")]
        self._log = (folder / "serve.log").open("w")
        self.process = subprocess.Popen(command, cwd=REPO_ROOT, env=environment, stderr=self._log)
        os.sched_setaffinity(self.process.pid, cores)
        deadline = time.monotonic() + 60
        while not self._ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"serve did not start: {(folder / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.2)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/readyz", timeout=5):
                return True
        except urllib.error.URLError:
            return False

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/metrics", timeout=20) as answer:
            line = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert line is not None, name
        return float(line[1])

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert resident is not None
        return int(resident[1]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


class Publisher:
    """Publishes windows one by one and knows when each marker was handed over."""

    def __init__(self, config: Config, cells: int) -> None:
        self._cells = cells
        self._producer = make_producer(config.kafka)
        self.sent: dict[int, float] = {}

    async def __aenter__(self) -> Publisher:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def publish(self) -> int:
        """The next window; the number of its event."""
        number = len(self.sent) + 1
        *cells, marker = messages_of(number, self._cells)
        await deliver(self._producer, cells)
        self.sent[number] = time.monotonic()
        await deliver(self._producer, [marker])
        return number


@contextmanager
def closing_all(*closable: Any) -> Any:
    try:
        yield
    finally:
        for one in closable:
            one.close()


def latencies(publisher: Publisher, readers: Remote, numbers: range) -> dict[str, float]:
    """Milliseconds from the marker to half of the readers and to the last of them, over windows."""
    last = sorted((readers.events[n]["last"] - publisher.sent[n]) * 1000 for n in numbers)
    half = [(readers.events[n]["median"] - publisher.sent[n]) * 1000 for n in numbers]
    return {
        "windows": len(last),
        "median_reader_ms": round(median(half), 1),
        "last_reader_ms": round(median(last), 1),
        "last_reader_worst_ms": round(last[-1], 1),
    }


async def measure(config: Config, served: Served, readers: Remote, sizes: Sizes) -> dict[str, Any]:
    count, stalled, windows = sizes.readers, sizes.stalled, sizes.windows
    async with Publisher(config, sizes.cells) as publisher:
        idle = served.memory_mb()
        readers.command("open", count)
        await asyncio.to_thread(readers.until_done, "open")
        while served.metric("hexveil_public_sse_clients") < count:
            await asyncio.sleep(0.1)

        async def rounds(amount: int, title: str) -> range:
            first = len(publisher.sent) + 1
            for _ in shown(range(amount), title):
                number = await publisher.publish()
                await asyncio.to_thread(readers.until_event, number)
                await asyncio.sleep(sizes.pause)
            return range(first, len(publisher.sent) + 1)

        await rounds(3, "first windows")
        cpu = served.cpu_seconds()
        alone = latencies(publisher, readers, await rounds(windows, "readers alone"))
        spent = (served.cpu_seconds() - cpu) / windows
        beside_readers = served.memory_mb()

        readers.command("stall", stalled)
        await rounds(1, "stalling")
        await asyncio.to_thread(readers.until_done, "stall")
        beside = latencies(publisher, readers, await rounds(windows, "beside stalled readers"))
        while served.metric("hexveil_public_sse_dropped_total") < stalled:
            for _ in range(20):
                number = await publisher.publish()
            await asyncio.to_thread(readers.until_event, number)
        with_stalled = served.memory_mb()
        readers.command("resume", len(publisher.sent))
        whole = (await asyncio.to_thread(readers.until_done, "resume"))["whole"]
        return {
            "readers": count,
            "alone": alone,
            "beside_stalled": beside | {"stalled": stalled},
            "serve_cpu_ms_per_window": round(spent * 1000, 1),
            "serve_memory_mb": {
                "idle": round(idle),
                "with_readers": round(beside_readers),
                "at_the_end": round(with_stalled),
            },
            "memory_kb_per_reader": round((beside_readers - idle) * 1024 / count, 1),
            "stalled_cut_off": int(served.metric("hexveil_public_sse_dropped_total")),
            "windows_until_cut_off": len(publisher.sent) - windows - 4,
            "resumed_without_a_gap": whole,
        }


def run(quick: bool) -> dict[str, Any]:
    """The figures of :func:`streams`."""
    return streams(QUICK if quick else FULL)


def streams(sizes: Sizes) -> dict[str, Any]:
    """Latency, processor time and memory with that many readers, then the same beside readers that stall."""
    cores = sorted(os.sched_getaffinity(0))
    own, others = {cores[0]}, set(cores[1:]) or set(cores)
    with tempfile.TemporaryDirectory() as folder, KafkaServer() as kafka:
        config = config_of(kafka.bootstrap, free_port())
        asyncio.run(create_topics(config))
        served = Served(config, Path(folder), own)
        with closing_all(served):
            remote = Remote(served.port, others)
            with closing_all(remote):
                os.sched_setaffinity(0, others)
                try:
                    return asyncio.run(measure(config, served, remote, sizes))
                finally:
                    os.sched_setaffinity(0, cores)
