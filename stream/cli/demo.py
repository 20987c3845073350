"""``hexveil demo``: Kafka, Redis, a worker and a feed on this machine, and the releases as they arrive."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from redis.asyncio import Redis
from rich.console import Console
from rich.live import Live

from dpcore.budget import from_micro
from stream.cli.demo_view import Releases
from stream.cli.options import FAILED, UNREACHABLE, USAGE, ConfigFile, choose_config, read_config, stop
from stream.config import Chosen, Config
from stream.connection import kafka_options
from stream.local import KafkaServer, LocalServerError, RedisServer, end_process, free_port, spawn, tail
from stream.messages.message import OUTPUT_TOPICS
from stream.messages.topics import create_topics
from stream.storage.ledger import Ledger

_IDLE_TIMEOUT = "8s"
"""Wall clock after which a recording that has ended no longer holds its last window open."""
_PACE = 600
"""Simulated seconds per second: an hourly window every six seconds."""
_REFRESH_SECONDS = 0.25


@dataclass
class Feeding:
    """What feeds the demo: a recording, or the simulator where ``file`` is None."""

    file: Path | None
    file_format: str

    def arguments(self, timezone: str) -> list[str]:
        """Command line of the source."""
        if self.file is not None:
            source = ["replay", str(self.file), "--format", self.file_format, "--speed", "max"]
        else:
            # Yesterday's morning: a simulated clock that never passes the real one.
            morning = (datetime.now(ZoneInfo(timezone)) - timedelta(days=1)).replace(hour=6, minute=0, second=0)
            source = ["simulate", "--pace", str(_PACE), "--start", morning.isoformat(timespec="seconds")]
        return [*source, "--json"]

    def offline(self, config: list[str]) -> str:
        """What to run instead where Kafka cannot."""
        chosen = shlex.join(["", *config]).removeprefix("''")
        if self.file is not None:
            file, first = shlex.quote(str(self.file)), ""
        else:
            file = "simulated.ndjson.gz"
            first = f"hexveil simulate --duration 6h --out {file}{chosen} && "
        return f"{first}hexveil replay {file} --format {self.file_format} --offline{chosen} > releases.ndjson"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("demo")
    def demo(
        config: ConfigFile = None,
        seconds: Annotated[float | None, typer.Option(min=1, help="Stop by itself after this long.")] = None,
        feed: Annotated[Path | None, typer.Option(help="Recording to replay; default: the simulator.")] = None,
        file_format: Annotated[str | None, typer.Option("--format", help="Format of --feed.")] = None,
    ) -> None:
        """Run the whole service on this machine and watch releases arrive, until Ctrl-C or --seconds."""
        if feed is not None and not feed.is_file():
            stop(f"{feed}: no such file", USAGE)
        chosen = choose_config(config)
        settings = read_config(chosen)
        named = [] if config is None else ["--config", str(config)]
        feeding = Feeding(feed, "canonical" if feed is None else file_format or settings.feed.format)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with tempfile.TemporaryDirectory(prefix="hexveil-demo-") as scratch:
                code = _run(chosen, named, feeding, seconds, Path(scratch))
        except LocalServerError as error:
            stop(f"{error}\nWithout Kafka: {feeding.offline(named)}", UNREACHABLE)
        except KafkaError as error:
            stop(f"the demo's Kafka does not answer: {error}", UNREACHABLE)
        except KeyboardInterrupt:
            typer.echo("Stopped before the service had started.", err=True)
            code = 0
        raise typer.Exit(code)


def _run(chosen: Chosen, named: list[str], feeding: Feeding, seconds: float | None, scratch: Path) -> int:
    """``chosen``: the configuration; ``named``: options that make a child in this folder choose the same."""
    with ExitStack() as stack:
        typer.echo("Starting Kafka and Redis (the first time, Maven fetches Kafka) …", err=True)
        kafka = stack.enter_context(KafkaServer(scratch / "kafka"))
        redis = stack.enter_context(RedisServer(scratch / "redis"))
        # One environment for this process and its children, so that all read the same configuration.
        os.environ.update(
            HEXVEIL_KAFKA__BOOTSTRAP=kafka.bootstrap,
            HEXVEIL_REDIS__URL=redis.url,
            HEXVEIL_OPERATOR__PORT=str(free_port()),
            HEXVEIL_PUBLIC__PORT=str(free_port()),
            HEXVEIL_FEED__FORMAT=feeding.file_format,
            HEXVEIL_WINDOW__IDLE_TIMEOUT=_IDLE_TIMEOUT,
            HEXVEIL_PRIVACY__USER_KEY_FILE=str(scratch / "user.key"),
        )
        settings = read_config(chosen)
        asyncio.run(create_topics(settings))
        asyncio.run(_start_ledger(settings))
        address = f"http://{settings.operator.host}:{settings.operator.port}"
        typer.echo(f"Kafka {kafka.bootstrap}   Redis {redis.url}   operator {address}/metrics", err=True)
        typer.secho(f"Dashboard: http://{settings.public.host}:{settings.public.port}/", err=True, bold=True)
        serve = stack.enter_context(_child(["serve", *named], scratch / "serve.log"))
        worker = stack.enter_context(_child(["worker", *named], scratch / "worker.log"))
        arguments = feeding.arguments(settings.feed.timezone)
        source = stack.enter_context(_child([*arguments, *named], scratch / "source.log"))
        releases = Releases(ZoneInfo(settings.feed.timezone))
        failure = asyncio.run(
            _watch(settings, releases, {"worker": worker, "source": source, "serve": serve}, seconds, scratch)
        )
        # Impatience while everything ends would lose the summary; each wait below is bounded.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_process(source, 10)
        end_process(worker, 20)
        end_process(serve, 10)
        sent = _events_sent(scratch / "source.log")
        summary = releases.summary() + ("" if sent is None else f"\n  events sent: {sent}")
        typer.echo(f"\n{summary}\n{asyncio.run(_ledger_text(settings))}")
        if failure is not None:
            typer.secho(failure, err=True, fg=typer.colors.RED)
        return FAILED if failure is not None or releases.invalid else 0


@contextmanager
def _child(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn([sys.executable, "-m", "stream", *arguments], log)
    try:
        yield process
    finally:
        end_process(process, 5)


async def _watch(
    config: Config,
    releases: Releases,
    processes: dict[str, subprocess.Popen[bytes]],
    seconds: float | None,
    scratch: Path,
) -> str | None:
    """Show releases until the time is up or Ctrl-C; returns what failed, if anything did."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if seconds is not None:
        loop.call_later(seconds, stopped.set)
    reading = asyncio.create_task(_read(config, releases))
    console = Console()
    shown = 0
    with ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        try:
            while True:
                for name, process in processes.items():
                    if process.poll() not in (None, 0) or (name != "source" and process.poll() == 0):
                        return f"the {name} ended with code {process.poll()}:\n{tail(scratch / f'{name}.log')}"
                if reading.done():
                    await reading
                if live is not None:
                    live.update(releases.table(), refresh=True)
                else:
                    lines = releases.lines()
                    for line in lines[shown:]:
                        typer.echo(line)
                    shown = len(lines)
                if stopped.is_set():
                    return None
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), _REFRESH_SECONDS)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading


async def _read(config: Config, releases: Releases) -> None:
    async with AIOKafkaConsumer(
        *OUTPUT_TOPICS, **kafka_options(config.kafka), group_id=None, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            releases.add(record.topic, dict(record.headers), record.value)


def _events_sent(log: Path) -> int | None:
    """Events in the source's JSON summary, the last line it prints."""
    for line in reversed(log.read_text(errors="replace").splitlines()):
        with suppress(json.JSONDecodeError, TypeError, KeyError):
            return int(json.loads(line)["events"])
    return None


async def _start_ledger(config: Config) -> None:
    """A ledger for whatever time the demo shows: its servers are new and end with it, so there is no other."""
    async with Redis.from_url(config.redis.url) as redis:
        await Ledger(redis, config.feed.name).start_generation(birth=0)


async def _ledger_text(config: Config) -> str:
    async with Redis.from_url(config.redis.url) as redis:
        ledger = Ledger(redis, config.feed.name)
        totals = [(period, *await ledger.total(period)) for period in await ledger.periods()]
    lines = [f"  {period}: ε {from_micro(micro):.6f} charged in all, {users} users" for period, users, micro in totals]
    return "\n".join(["Inside the trust boundary, shown because you are the operator here; never publish:", *lines])
