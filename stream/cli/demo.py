"""``hexveil demo``: runs the whole service on this machine with a simulated city, and shows releases as they arrive."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from aiokafka.errors import KafkaError
from redis.exceptions import RedisError

from dpcore.relation import NeighbouringRelation
from stream.cli.demo_services import BUSES, Demo, Feeding, Setup, start_embedded, start_with_kafka, why_no_kafka
from stream.cli.demo_view import VEHICLES, Releases, report
from stream.cli.init import for_fleet
from stream.cli.options import (
    FAILED,
    HANDLED,
    UNREACHABLE,
    ConfigFile,
    Interrupts,
    choose_config,
    read_config,
    stop,
    stopped_by_signals,
)
from stream.config import Config
from stream.config.search import LOCAL
from stream.embedded import EmbeddedError
from stream.local import LocalServerError, tail
from stream.storage.client import redis_client
from stream.storage.ledger import Ledger, LedgerError

_REFRESH_SECONDS = 0.25
_PATIENCE_S = 300.0
"""How much longer than its seconds a demo runs that has not released anything, as on a machine that is busy."""


def command(
    config: ConfigFile = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after so long, once a window is released.")] = None,
    fleet: Annotated[
        int | None,
        typer.Option(min=1, help="Simulate so many buses, by default with what 'hexveil init --vehicles' writes."),
    ] = None,
    kafka: Annotated[
        bool | None,
        typer.Option("--kafka/--no-kafka", help="Run with or without Kafka. Default: with Kafka if it can run."),
    ] = None,
) -> None:
    """Run the whole service on this machine and watch releases arrive, until Ctrl-C or --seconds."""
    interrupts = Interrupts()
    try:
        with tempfile.TemporaryDirectory(prefix="hexveil-demo-") as folder:
            scratch = Path(folder)
            if fleet is not None and config is None:
                config = scratch / LOCAL
                config.write_text(for_fleet(NeighbouringRelation.VALUES, fleet), encoding="utf-8")
                typer.echo(f"Configuration: what 'hexveil init --vehicles {fleet}' writes", err=True)
            chosen = choose_config(config, NeighbouringRelation.PARTICIPATION if fleet is None else None)
            settings = read_config(chosen)
            named = ["--config", str(chosen.file if config is None else config)] if fleet is None or config else []
            if fleet is None and settings.relation == NeighbouringRelation.PARTICIPATION:
                feeding = Feeding(VEHICLES, scratch / "truth.ndjson")
            else:
                feeding = Feeding(fleet or BUSES)
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
