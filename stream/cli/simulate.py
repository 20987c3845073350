"""``hexveil simulate``: a synthetic bus fleet goes to Kafka, a file or stdout."""

import gzip
import json
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.feeding import feed_kafka, parse_pace
from stream.cli.options import FAILED, ConfigFile, choose_config, stop
from stream.config import load_config
from stream.config.section import parse_duration
from stream.ingestion.formats import time_us
from stream.sources.delivery import Pacer
from stream.sources.live_city import LiveCity, Truth
from stream.sources.simulate import Faults, Simulation, simulate
from stream.windows import EARLIEST_S, LATEST_S


def command(
    vehicles: Annotated[int, typer.Option(min=1, help="Number of vehicles.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same feed.")] = 1,
    pace: Annotated[
        str,
        typer.Option(
            help="Multiple of real time, or 'max'. Once it reaches the present, the feed continues in real time."
        ),
    ] = "1",
    start: Annotated[str | None, typer.Option(help="Start of simulated time (RFC 3339); default: now.")] = None,
    duration: Annotated[
        str | None, typer.Option(help="Length of simulated time, like 3h; default: until Ctrl-C.")
    ] = None,
    interval: Annotated[str, typer.Option(help="Time between two fixes of a vehicle.")] = "30s",
    clean: Annotated[bool, typer.Option(help="Nothing late, repeated or invalid.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write NDJSON to this file instead of Kafka (.gz: compressed; '-': stdout).")
    ] = None,
    once: Annotated[bool, typer.Option(help="Stop after one interval.")] = False,
    city: Annotated[
        bool,
        typer.Option(
            help="From now on, cars of a city that lives faster than the clock: window.slot stands for 15 minutes."
        ),
    ] = False,
    truth: Annotated[
        Path | None, typer.Option(help="With --city: write events and mean speed of each cell and window. Not private.")
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Send a simulated bus fleet with synthetic streets, timetables and speeds, and with the faults of real feeds."""
    speed = parse_pace(pace)
    try:
        settings = load_config(choose_config(config))
        every = parse_duration(interval)
        length = every if once else None if duration is None else parse_duration(duration)
        simulation = Simulation(
            feed=settings.feed,
            value=settings.value,
            vehicles=vehicles,
            seed=seed,
            start_us=time.time_ns() // 1000 if start is None else _start(start),
            duration=length,
            interval=every,
            faults=Faults(0, 0, 0) if clean else Faults(),
        )
    except ValueError as error:
        stop(error)
    if city:
        if out is not None or start is not None or length is not None or speed != 1:
            stop("--city lives on Kafka, by its own clock, until Ctrl-C: leave out the other options of time and place")
        living = LiveCity(settings, vehicles, simulation.start_us, seed=seed)
        blocks = living.messages(None if truth is None else Truth(living, truth))
        feed_kafka(settings, blocks, Pacer(1.0, live=True), as_json=as_json)
        return
    if out is None:
        feed_kafka(settings, simulate(simulation), Pacer(speed, live=True), as_json=as_json)
        return
    if length is None:
        stop("--out needs an end: give --duration or --once")
    _write(simulation, out, as_json)


def _start(text: str) -> int:
    """µs UTC. Raises :class:`ValueError` for a time without an offset, and for one at which no event is accepted."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"--start {text!r} has no offset from UTC; write it like 2026-01-31T06:00:00Z")
    start_us = time_us(moment)
    if not EARLIEST_S * 1_000_000 <= start_us < LATEST_S * 1_000_000:
        raise ValueError(
            f"--start {text!r} is before 2000 or after 2099 in UTC, when no event is accepted; write a year between"
        )
    return start_us


def _write(simulation: Simulation, out: Path, as_json: bool) -> None:
    if str(out) == "-":
        with suppress(BrokenPipeError):
            for block in simulate(simulation):
                sys.stdout.buffer.writelines(line + b"\n" for line in block.values)
            sys.stdout.buffer.flush()
        return
    events = 0
    try:
        with gzip.open(out, "wb", compresslevel=3) if out.suffix == ".gz" else out.open("wb") as file:
            for block in simulate(simulation):
                file.writelines(line + b"\n" for line in block.values)
                events += len(block.values)
    except OSError as error:
        stop(f"{out}: {error.strerror or error}", FAILED)
    typer.echo(json.dumps({"file": str(out), "events": events}) if as_json else f"{events} events to {out}")
