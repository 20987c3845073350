"""Starts the processes of a demo: the service with or without Kafka, and the dashboard over its releases."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import typer
from aiokafka import AIOKafkaConsumer

from dpcore.relation import NeighbouringRelation
from stream.cli.demo_view import CITY, Releases, said_of
from stream.cli.options import read_config
from stream.config import Chosen, Config
from stream.config.feed import FeedConfig
from stream.embedded import present_us, run_embedded
from stream.local import (
    KafkaServer,
    LocalServerError,
    RedisServer,
    end_process,
    find_java,
    free_port,
    kafka_jars,
    spawn,
)
from stream.messages.lines import read_line
from stream.messages.message import OUTPUT_TOPICS, Message
from stream.messages.topics import create_topics
from stream.servers.connection import kafka_options
from stream.sources.delivery import Pacer, Progress
from stream.sources.invented_city import ATTRIBUTION, invented_schedule, streets
from stream.sources.live_city import LiveCity, Truth
from stream.sources.messages import Messages
from stream.sources.places import as_area, as_table, places
from stream.sources.simulate import Simulation, simulate
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger

BUSES = 300
_IDLE_TIMEOUT = "8s"
"""Wall time after which a partition without buses holds up no window."""
_WINDOW_SECONDS = 10
"""How long a window of simulated buses lasts in the demo."""
_PLACES, _STREETS, _AREA = "places.json", "streets.geojson", "city.geojson"
"""Files of the simulated city, which the dashboard shows."""
_FOLLOW_SECONDS = 0.1


@dataclass(frozen=True)
class Feeding:
    """The source of the demo: a simulated fleet of so many ``vehicles``; with ``truth``, a live city, which notes there
    what it knows."""

    vehicles: int
    truth: Path | None = None

    def command(self, config: Config) -> list[str]:
        """Command line of the source."""
        if self.truth is not None:
            source = ["--city", "--truth", str(self.truth)]
        else:
            start = _morning(config.feed.timezone).isoformat(timespec="seconds")
            source = ["--pace", str(_pace(config)), "--start", start]
        return ["simulate", "--vehicles", str(self.vehicles), *source, "--json"]

    def simulation(self, feed: FeedConfig) -> Simulation:
        """The simulated fleet."""
        return Simulation(feed, self.vehicles, int(_morning(feed.timezone).timestamp()) * 1_000_000)

    def blocks(self, config: Config) -> tuple[Iterable[Messages], Pacer, int]:
        """The same source in this process: its messages, their pace, and when it begins (µs UTC)."""
        if self.truth is not None:
            city = LiveCity(config, self.vehicles, present_us())
            return city.messages(Truth(city, self.truth)), Pacer(1.0, live=True), city.start_us
        simulation = self.simulation(config.feed)
        return simulate(simulation), Pacer(_pace(config), live=True), simulation.start_us


def _pace(config: Config) -> int:
    """Simulated seconds per second of simulated buses."""
    return round(config.window.slot.total_seconds() / _WINDOW_SECONDS)


def _morning(timezone: str) -> datetime:
    """Yesterday at six, so that the simulated clock stays behind the real one."""
    return (datetime.now(ZoneInfo(timezone)) - timedelta(days=1)).replace(hour=6, minute=0, second=0, microsecond=0)


@dataclass(frozen=True)
class Setup:
    """Settings of a demo. ``named``: options with which a child in this folder chooses the same configuration."""

    chosen: Chosen
    relation: NeighbouringRelation
    named: list[str]
    feeding: Feeding
    scratch: Path

    def config(self, redis: RedisServer, **further: str) -> Config:
        """The configuration that this process and its children use, with the same environment variables."""
        os.environ.update(
            HEXVEIL_REDIS__URL=redis.url,
            HEXVEIL_OPERATOR__PORT=str(free_port()),
            HEXVEIL_PUBLIC__PORT=str(free_port()),
            HEXVEIL_FEED__FORMAT="canonical",
            HEXVEIL_WINDOW__IDLE_TIMEOUT=_IDLE_TIMEOUT,
            HEXVEIL_PRIVACY__USER_KEY_FILE=str(self.scratch / "user.key"),
            HEXVEIL_PUBLIC__PLACES=str(self.scratch / _PLACES),
            **further,
        )
        if self.feeding.truth is not None:
            os.environ.update(CITY)
        if self.relation == NeighbouringRelation.VALUES:
            os.environ["HEXVEIL_WINDOW__LATENESS"] = "event-time"  # the events of a simulated day are in the past
        os.environ.update(self._write_city(read_config(self.chosen)))
        return read_config(self.chosen)

    def _write_city(self, settings: Config) -> dict[str, str]:
        """The names, lines and stops of the simulated city, which is invented, for the map; streets where none are
        chosen. Returns the environment variables that name the files."""
        simulation = self.feeding.simulation(settings.feed)
        chart = places(invented_schedule(simulation), settings.feed.domain, settings.hexagons.resolution)
        chosen, table = {}, as_table(chart)
        if self.feeding.truth is not None:
            table |= {"lines": [], "stops": []}  # cars have none
            chosen["HEXVEIL_PARTICIPATION__GEOJSON"] = str(area := self.scratch / _AREA)
            area.write_text(json.dumps(as_area(chart)), encoding="utf-8")
        (self.scratch / _PLACES).write_text(json.dumps(table), encoding="utf-8")
        if settings.public.basemap is None and settings.public.streets is None:
            chosen["HEXVEIL_PUBLIC__STREETS"] = str(lines := self.scratch / _STREETS)
            said = ATTRIBUTION if self.feeding.truth is None else said_of(settings)
            lines.write_text(json.dumps(streets(settings.feed.domain, simulation.seed, said)), encoding="utf-8")
        return chosen

    def child(self, name: str, arguments: list[str]) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a ``hexveil`` command with the same configuration; its output goes to ``name``.log."""
        return _child([*arguments, *self.named], self.scratch / f"{name}.log")


@dataclass(frozen=True)
class Demo:
    """A running demo. ``follow`` passes releases to the view until cancelled; ``end`` stops all but the servers."""

    config: Config
    scratch: Path
    processes: dict[str, subprocess.Popen[bytes]]
    follow: Callable[[Releases], Coroutine[Any, Any, None]]
    events_sent: Callable[[], int | None]

    def end(self) -> None:
        """Stop the source first, so that the worker receives everything that it sent; each wait is bounded."""
        for name in ("source", "worker", "serve"):
            if name in self.processes:
                end_process(self.processes[name], 20 if name == "worker" else 10)


def why_no_kafka() -> str | None:
    """Why Kafka cannot run here, in one sentence; None if it can. Downloads missing parts if Maven is installed."""
    try:
        find_java()
        typer.echo("Looking for Kafka; on first use, Maven downloads it …", err=True)
        kafka_jars()
    except LocalServerError as error:
        return str(error).splitlines()[0].partition(". ")[0].rstrip(".")
    return None


def start_with_kafka(stack: ExitStack, setup: Setup) -> Demo:
    """Start Kafka, Redis, a worker, a source and the dashboard, each as a process."""
    typer.echo("Starting Kafka and Redis …", err=True)
    kafka = stack.enter_context(KafkaServer(setup.scratch / "kafka"))
    redis = stack.enter_context(RedisServer(setup.scratch / "redis"))
    settings = setup.config(redis, HEXVEIL_KAFKA__BOOTSTRAP=kafka.bootstrap)
    asyncio.run(create_topics(settings))
    asyncio.run(_start_ledger(settings))
    address = f"http://{settings.operator.host}:{settings.operator.port}"
    typer.echo(f"Kafka {kafka.bootstrap}   Redis {redis.url}   operator {address}/metrics", err=True)
    _tell_dashboard(settings)
    commands = {"serve": ["serve"], "worker": ["worker"], "source": setup.feeding.command(settings)}
    processes = {name: stack.enter_context(setup.child(name, command)) for name, command in commands.items()}

    async def follow(releases: Releases) -> None:
        async with AIOKafkaConsumer(
            *OUTPUT_TOPICS, **kafka_options(settings.kafka), group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            async for record in consumer:
                releases.add(record.topic, dict(record.headers), record.value)

    return Demo(settings, setup.scratch, processes, follow, lambda: _events_sent(setup.scratch / "source.log"))


def start_embedded(stack: ExitStack, setup: Setup) -> Demo:
    """Run source and service in this process, closing in another, and the dashboard over the file of releases."""
    redis = stack.enter_context(RedisServer(setup.scratch / "redis"))
    settings = setup.config(redis)
    file = setup.scratch / "releases.ndjson"
    file.touch()
    typer.echo(f"Redis {redis.url}   releases {file}", err=True)
    _tell_dashboard(settings)
    (blocks, pacer, start_us), progress = setup.feeding.blocks(settings), Progress()
    processes = {"serve": stack.enter_context(setup.child("serve", ["serve", str(file)]))}

    async def follow(releases: Releases) -> None:
        def report(message: Message) -> None:
            releases.add(message.topic, dict(message.headers), message.value)

        reading = asyncio.create_task(_follow_file(file, releases))
        try:
            await run_embedded(settings, blocks, pacer, file, progress, start_us=start_us, report=report)
            await reading
        finally:
            reading.cancel()

    return Demo(settings, setup.scratch, processes, follow, lambda: progress.sent)


async def _start_ledger(config: Config) -> None:
    """Start a ledger that releases every time. There is no other ledger: the demo's servers are new."""
    async with redis_client(config.redis) as redis:
        await Ledger.of(redis, config).start_generation(birth=0)


def _tell_dashboard(settings: Config) -> None:
    typer.secho(f"Dashboard: http://{settings.public.host}:{settings.public.port}/", err=True, bold=True)


@contextmanager
def _child(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn([sys.executable, "-m", "stream", *arguments], log)
    try:
        yield process
    finally:
        end_process(process, 5)


async def _follow_file(file: Path, releases: Releases) -> None:
    from stream.serve.reading.files import Follower

    follower = Follower(file)
    try:
        while True:
            for line in map(read_line, follower.lines()):
                headers = {name: text.encode() for name, text in line.headers.items()}
                releases.add(line.topic, headers, bytes(line.value))
            if follower.position == follower.size():
                await asyncio.sleep(_FOLLOW_SECONDS)
    finally:
        follower.close()


def _events_sent(log: Path) -> int | None:
    """Events in the source's JSON summary, the last line it prints."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        with suppress(json.JSONDecodeError, TypeError, KeyError):
            return int(json.loads(line)["events"])
    return None
