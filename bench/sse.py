"""A thousand event streams on one core: from the close marker to the last reader, and readers that do not read.

``hexveil serve`` runs as it is installed, on a core of its own; Kafka, the publisher and the readers share the others. A
latency is the time from handing the marker to the producer until its event has reached a reader, or all of them; the
clock is the machine's monotonic one, the same for every process. Readers that stop reading are there to hold up the
others; once cut off they come back with Last-Event-ID, and every event must have reached them once, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import h3

from stream.config import Config
from stream.local import LOOPBACK, KafkaServer, free_port
from stream.publishing import make_producer
from stream.releases import HEXAGON_SPEED, WINDOW, Message, digest, window_message
from stream.topics import create_topics
from stream.windows import Window

READERS = 1000
STALLED = 100
WINDOWS = 30
CELLS = 120
PAUSE = 0.2
"""Seconds between windows while latencies are taken."""
FEED = "bench"
_ROOT = Path(__file__).resolve().parent.parent
_START = 1_490_054_400
_EVENT = re.compile(rb"id: (\d+)\nevent: window\ndata: [^\n]*\n\n")
_TICKS = os.sysconf("SC_CLK_TCK")


def bench_config(bootstrap: str, port: int) -> Config:
    return Config(
        relation="values",
        feed={
            "name": FEED,
            "topic": "bench.positions",
            "format": "canonical",
            "timezone": "UTC",
            "domain": {"south": 29.8, "west": -98.3, "north": 30.9, "east": -97.2},
        },
        privacy={"epsilon": 2.0, "budget": 48.0},
        hexagons={"resolution": 7},
        speed={"upper_bound": 65.0},
        kafka={"bootstrap": bootstrap, "group": "bench"},
        public={"host": LOOPBACK, "port": port, "max_streams": READERS + 2 * STALLED},
    )


def messages_of(number: int) -> list[Message]:
    """A window of suppressed cells, the smallest that the schema takes, and its marker."""
    window = Window(_START + 3600 * number, _START + 3600 * (number + 1))
    stamp = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (window.start, window.end)]
    common = {"feed": FEED, "window": {"start": stamp[0], "end": stamp[1]}, "relation": "values", "epsilon": 2.0}
    counted = {"status": "suppressed", "events": 1, "users": 1}
    cells = sorted(h3.grid_disk(h3.latlng_to_cell(30.27, -97.74, 7), 8))[:CELLS]
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
    }
    return [*made, window_message(WINDOW, FEED, window, "close", FEED, marker)]


class Reader(asyncio.Protocol):
    """One connection that notes when which event came."""

    def __init__(self, readers: Readers, last: int | None = None) -> None:
        self.readers, self.ids, self.last = readers, [] if last is None else [last], last
        self._rest = b""
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        resume = "" if self.last is None else f"Last-Event-ID: {self.last}\r\n"
        transport.write(f"GET /api/v1/stream HTTP/1.1\r\nHost: bench\r\n{resume}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._rest += data
        end = 0
        for found in _EVENT.finditer(self._rest):
            self.ids.append(int(found[1]))
            self.readers.note(self, int(found[1]), now)
            end = found.end()
        self._rest = self._rest[end:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Readers:
    """Readers of one process, steered by lines on stdin, reporting by lines on stdout."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._quick: set[Reader] = set()
        self._stalled: list[Reader] = []
        self._arrivals: dict[int, list[float]] = {}

    def note(self, reader: Reader, number: int, now: float) -> None:
        if reader not in self._quick:
            return
        came = self._arrivals.setdefault(number, [])
        came.append(now)
        if len(came) == len(self._quick):
            tell({"event": number, "median": median(came), "last": came[-1]})

    async def connect(self, count: int, receive_buffer: int | None = None, last: int | None = None) -> list[Reader]:
        loop = asyncio.get_running_loop()
        made = []
        for _ in range(count):
            link = socket.socket()
            if receive_buffer is not None:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            link.setblocking(False)
            await loop.sock_connect(link, (LOOPBACK, self._port))
            _, reader = await loop.create_connection(lambda: Reader(self, last), sock=link)
            made.append(reader)
        return made

    async def open(self, count: int) -> None:
        self._quick |= set(await self.connect(count))

    async def stall(self, count: int) -> None:
        """Connections that read their first event and then nothing."""
        self._stalled = await self.connect(count, receive_buffer=4096)
        while any(not reader.ids for reader in self._stalled):
            await asyncio.sleep(0.05)
        for reader in self._stalled:
            assert reader.transport is not None
            reader.transport.pause_reading()

    async def resume(self, newest: int) -> dict[str, int]:
        """Read what is left, connect again until everything up to ``newest`` came; every event once and in order."""
        whole = 0
        for reader in self._stalled:
            assert reader.transport is not None
            reader.transport.resume_reading()
            await asyncio.wait_for(reader.closed, 30)
            ids = list(reader.ids)
            (again,) = await self.connect(1, last=ids[-1])
            async with asyncio.timeout(30):
                while again.ids[-1] < newest:
                    await asyncio.sleep(0.01)
            ids += again.ids[1:]
            assert again.transport is not None
            again.transport.abort()
            whole += ids == list(range(ids[0], newest + 1))
        return {"whole": whole}

    async def obey(self) -> None:
        commands: dict[str, Callable[[int], Any]] = {"open": self.open, "stall": self.stall, "resume": self.resume}
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, argument = line.split()
            found = await commands[name](int(argument))
            tell({"done": name} | (found or {}))


def tell(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


class Remote:
    """The process of the readers, seen from the parent."""

    def __init__(self, port: int, cores: set[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sse", str(port)],
            cwd=_ROOT,
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
        command = [sys.executable, "-m", "stream", "serve", "--config", str(_ROOT / "config" / "bus-fleet.toml")]
        self._log = (folder / "serve.log").open("w")
        self.process = subprocess.Popen(command, cwd=_ROOT, env=environment, stderr=self._log)
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
            found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


class Publisher:
    """Publishes windows one by one and knows when each marker was handed over."""

    def __init__(self, config: Config) -> None:
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
        *cells, marker = messages_of(number)
        waiting = [await self._send(message) for message in cells]
        await asyncio.gather(*waiting)
        self.sent[number] = time.monotonic()
        await (await self._send(marker))
        return number

    async def _send(self, message: Message) -> Any:
        return await self._producer.send(
            message.topic,
            message.value,
            key=message.key,
            headers=list(message.headers),
            timestamp_ms=message.timestamp_ms,
        )


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


async def measure(config: Config, served: Served, readers: Remote, counts: tuple[int, int, int]) -> dict[str, Any]:
    count, stalled, windows = counts
    async with Publisher(config) as publisher:
        idle = served.memory_mb()
        readers.command("open", count)
        await asyncio.to_thread(readers.until_done, "open")
        while served.metric("hexveil_public_sse_clients") < count:
            await asyncio.sleep(0.1)

        async def rounds(amount: int, pause: float = PAUSE) -> range:
            first = len(publisher.sent) + 1
            for _ in range(amount):
                number = await publisher.publish()
                await asyncio.to_thread(readers.until_event, number)
                await asyncio.sleep(pause)
            return range(first, len(publisher.sent) + 1)

        await rounds(3)
        cpu = served.cpu_seconds()
        alone = latencies(publisher, readers, await rounds(windows))
        spent = (served.cpu_seconds() - cpu) / windows
        held = served.memory_mb()

        readers.command("stall", stalled)
        await rounds(1)
        await asyncio.to_thread(readers.until_done, "stall")
        beside = latencies(publisher, readers, await rounds(windows))
        while served.metric("hexveil_public_sse_dropped_total") < stalled:
            await rounds(20, pause=0)
        with_stalled = served.memory_mb()
        readers.command("resume", len(publisher.sent))
        whole = (await asyncio.to_thread(readers.until_done, "resume"))["whole"]
        return {
            "readers": count,
            "alone": alone,
            "beside_stalled": beside | {"stalled": stalled},
            "serve_cpu_ms_per_window": round(spent * 1000, 1),
            "serve_memory_mb": {"idle": round(idle), "with_readers": round(held), "at_the_end": round(with_stalled)},
            "memory_kb_per_reader": round((held - idle) * 1024 / count, 1),
            "stalled_cut_off": int(served.metric("hexveil_public_sse_dropped_total")),
            "windows_until_cut_off": len(publisher.sent) - windows - 4,
            "resumed_without_a_gap": whole,
        }


def run(readers: int = READERS, stalled: int = STALLED, windows: int = WINDOWS) -> dict[str, Any]:
    """Latency, processor time and memory with that many readers, then the same beside readers that stall."""
    cores = sorted(os.sched_getaffinity(0))
    own, others = {cores[0]}, set(cores[1:]) or set(cores)
    with tempfile.TemporaryDirectory() as folder, KafkaServer() as kafka:
        config = bench_config(kafka.bootstrap, free_port())
        asyncio.run(create_topics(config))
        served = Served(config, Path(folder), own)
        with closing_all(served):
            remote = Remote(served.port, others)
            with closing_all(remote):
                os.sched_setaffinity(0, others)
                try:
                    return asyncio.run(measure(config, served, remote, (readers, stalled, windows)))
                finally:
                    os.sched_setaffinity(0, cores)


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(run(), indent=2))
        return
    asyncio.run(Readers(int(sys.argv[1])).obey())


if __name__ == "__main__":
    main()
