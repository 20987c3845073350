"""``hexveil demo``: runs the whole service on this machine with a simulated city, and shows releases as they arrive."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from redis.exceptions import RedisError

from dpcore.relation import NeighbouringRelation
from stream.cli.demo_view import CITY, VEHICLES, Releases, report, said_of
from stream.cli.init import for_fleet
from stream.cli.options import (
    FAILED,
    HANDLED,
    UNREACHABLE,
    ConfigFile,
    Interrupts,
    choose_config,
    load_to_release,
    stop,
    stopped_by_signals,
)
from stream.config import Chosen, Config
from stream.config.feed import FeedConfig
from stream.config.search import LOCAL
from stream.embedded import EmbeddedError, present_us, run_embedded
from stream.local.kafka import KafkaServer, find_java, kafka_jars
from stream.local.server import LocalServerError, RedisServer, end_process, free_port, spawn, tail
from stream.messages.lines import read_line
from stream.messages.message import OUTPUT_TOPICS, Message
from stream.messages.topics import create_topics
from stream.servers.connection import kafka_options
from stream.sources.delivery import Pacer, Progress
from stream.sources.live_city import ATTRIBUTION, LiveCity, Truth, invented_schedule, streets
from stream.sources.messages import Messages
from stream.sources.places import as_area, as_table, places
from stream.sources.simulate import Simulation, simulate
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger, LedgerError

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

    vehicles: int = 300
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
            **further,
        )
        if self.feeding.truth is not None:
            os.environ.update(CITY)
        if self.relation == NeighbouringRelation.VALUES:
            os.environ["HEXVEIL_WINDOW__LATENESS"] = "event-time"  # the events may be in the past
        os.environ["HEXVEIL_PUBLIC__PLACES"] = str(self.scratch / _PLACES)
        os.environ.update(self._write_city(load_to_release(self.chosen)))
        return load_to_release(self.chosen)

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

    @contextmanager
    def child(self, name: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a ``hexveil`` command with the same configuration; its output goes to ``name``.log."""
        process = spawn([sys.executable, "-m", "stream", *arguments, *self.named], self.scratch / f"{name}.log")
        try:
            yield process
        finally:
            end_process(process, 5)


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
    for line in reversed(log.read_text(errors="replace").splitlines()):
        with suppress(json.JSONDecodeError, TypeError, KeyError):
            return int(json.loads(line)["events"])
    return None


_REFRESH_SECONDS = 0.25
_PATIENCE_S = 300.0
"""How much longer than its seconds a demo runs that has not released anything, as on a machine that is busy."""


def command(
    config: ConfigFile = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after so long, once a window is released.")] = None,
    fleet: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Simulate so many buses, by default with what 'hexveil init --vehicles' writes. Default: a live city "
            "under 'participation', buses under 'values'.",
        ),
    ] = None,
    kafka: Annotated[
        bool | None,
        typer.Option("--kafka/--no-kafka", help="Run with or without Kafka. Default: with Kafka if it can run."),
    ] = None,
) -> None:
    """Run the whole service on this machine and watch releases arrive, until Ctrl-C or --seconds."""
    is_ours, interrupts = fleet is None, Interrupts()
    try:
        with tempfile.TemporaryDirectory(prefix="hexveil-demo-") as folder:
            scratch = Path(folder)
            if fleet is not None and config is None:
                config = scratch / LOCAL
                config.write_text(for_fleet(NeighbouringRelation.VALUES, fleet), encoding="utf-8")
                typer.echo(f"Configuration: what 'hexveil init --vehicles {fleet}' writes", err=True)
            chosen = choose_config(config, NeighbouringRelation.PARTICIPATION if is_ours else None)
            settings = load_to_release(chosen)
            named = ["--config", str(chosen.file if config is None else config)] if is_ours or config else []
            if is_ours and settings.relation == NeighbouringRelation.PARTICIPATION:
                feeding = Feeding(VEHICLES, scratch / "truth.ndjson")
            else:
                feeding = Feeding(fleet or Feeding.vehicles)
            code = _run(Setup(chosen, settings.relation, named, feeding, scratch), seconds, kafka, interrupts)
    except LocalServerError as error:
        stop(f"{error}\nWithout Kafka: hexveil demo --no-kafka", UNREACHABLE)
    except (EmbeddedError, LedgerError, RedisError) as error:
        stop(f"the service ended: {error}", FAILED)
    except KafkaError as error:
        stop(f"the demo's Kafka does not answer: {error}", UNREACHABLE)
    except KeyboardInterrupt:
        typer.echo("Stopped before the service had started.", err=True)
        code = 0
    raise typer.Exit(code)


def _run(setup: Setup, seconds: float | None, kafka: bool | None, interrupts: Interrupts) -> int:
    if kafka is None:
        missing = why_no_kafka()
        if missing is not None:
            typer.echo(f"{missing}: the same city, windows, mechanisms and ledger run without Kafka.", err=True)
        kafka = missing is None
    with ExitStack() as stack:
        running = (start_with_kafka if kafka else start_embedded)(stack, setup)
        releases = Releases(ZoneInfo(running.config.feed.timezone))
        failure = asyncio.run(_watch(running, releases, seconds, interrupts))
        # A second Ctrl-C would lose the summary, so signals are ignored here; each wait below is bounded.
        for number in HANDLED:
            signal.signal(number, signal.SIG_IGN)
        running.end()
        sent = running.events_sent()
        summary = releases.summary() + ("" if sent is None else f"\n  events sent: {sent}")
        if (truth := setup.feeding.truth) is not None and truth.is_file():
            summary += f"\n{report(releases.order, truth)}"
        typer.echo(f"\n{summary}\n{asyncio.run(_ledger_text(running.config))}")
        if failure is not None:
            typer.secho(failure, err=True, fg=typer.colors.RED)
        return FAILED if failure is not None or releases.invalid else 0


async def _watch(running: Demo, releases: Releases, seconds: float | None, interrupts: Interrupts) -> str | None:
    """Show releases until the time is up or Ctrl-C. Returns what failed, or None."""
    stopped = stopped_by_signals()
    if interrupts.asked:
        stopped.set()
    clock = asyncio.get_running_loop().time
    began = clock()
    reading = asyncio.create_task(running.follow(releases))
    shown = 0
    try:
        while True:
            for name, process in running.processes.items():
                if process.poll() not in (None, 0) or (name != "source" and process.poll() == 0):
                    return f"the {name} ended with code {process.poll()}:\n{tail(running.scratch / f'{name}.log')}"
            if reading.done():
                await reading
            for line in releases.lines()[shown:]:
                typer.echo(line)
                shown += 1
            passed = 0.0 if seconds is None else clock() - began - seconds
            if stopped.is_set() or (passed > 0 and releases.order):
                return None
            if passed > _PATIENCE_S:
                return f"no window was released within {seconds} s, nor within {_PATIENCE_S:g} s more"
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _REFRESH_SECONDS)
    finally:
        while not reading.done():
            reading.cancel()  # again, because the client of Redis may lose a cancellation
            await asyncio.wait([reading], timeout=1.0)
        with suppress(asyncio.CancelledError):
            await reading


async def _ledger_text(config: Config) -> str:
    async with redis_client(config.redis) as redis:
        ledger = Ledger.of(redis, config)
        totals = [(period, *await ledger.total(period)) for period in await ledger.periods()]
    symbol, (_, per_one) = "ε" if config.privacy.accounting == "pure" else "ρ", config.privacy.ledger_unit
    lines = [
        f"  {period}: {symbol} {units / per_one:.6f} charged in all, {users} users" for period, users, units in totals
    ]
    return "\n".join(["Inside the trust boundary; you see it because you are the operator. Never publish:", *lines])
