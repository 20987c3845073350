"""``hexveil hfp``: vehicle positions of an MQTT broker go to Kafka or a file, or are released without Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream.cli.feeding import (
    EventsFile,
    Offline,
    SnapshotReport,
    Speeds,
    SummaryAsJson,
    check_release_file,
    live_speed_note,
    run_live,
    speed_source,
)
from stream.cli.options import ConfigFile, Force, choose_config, load_to_release, secret_text, stop
from stream.config import load_config
from stream.sources.hfp import EVERY_POSITION, HighFrequencyPositions

if TYPE_CHECKING:
    from stream.sources.polling import Sink


def command(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The broker: mqtts://HOST[:PORT], or mqtt:// without TLS.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Topic filter, with + and #; may be repeated. Default: {EVERY_POSITION}", show_default=False
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="File of the CA that signed the broker's certificate. Default: the system's.")
    ] = None,
    login: Annotated[Path | None, typer.Option(help="File with USER:PASSWORD in one line, and nothing else.")] = None,
    speeds: Speeds = None,
    out: EventsFile = None,
    offline: Offline = False,
    force: Force = False,
    once: Annotated[bool, typer.Option(help="Stop after the first events.")] = False,
    config: ConfigFile = None,
    as_json: SummaryAsJson = False,
) -> None:
    """Send vehicle positions from an MQTT broker (HFP) to the service. Missing speeds are derived from positions."""
    try:
        from stream.sources.mqtt import Broker, Following
    except ModuleNotFoundError as error:
        stop(f"{error.name}, which speaks MQTT, is not installed: pip install 'hexveil[mqtt]'")
    if offline:
        check_release_file(out)
    try:
        settings = (load_to_release if offline else load_config)(choose_config(config, silent=as_json))
        source_of_speeds = speed_source(speeds, settings.feed)
        reader = HighFrequencyPositions(settings.feed, settings.slotting, source_of_speeds, settings.relation)
        broker = Broker(address, tuple(topic or [EVERY_POSITION]), ca, None if login is None else _login(login))
        broker.tls()
    except ValueError as error:
        stop(error)
    note = live_speed_note(settings, source_of_speeds)
    report = SnapshotReport(reader, note, as_json, on_stderr=str(out) == "-", unit="messages")

    async def feed(sink: Sink, stopping: asyncio.Event) -> None:
        following = Following(reader, broker, sink, stopping)
        try:
            await following.run(once=once)
        finally:
            reader.tally.refused += following.refused

    run_live(settings, feed, address, out, offline=offline, force=force)
    report.summary()


def _login(path: Path) -> tuple[str, str]:
    """User and password in a file. Raises :class:`ValueError`, which never shows them."""
    text = secret_text("--login", path)
    user, separator, password = text.partition(":")
    if not (user and separator and password) or not text.isprintable():
        raise ValueError(f"--login {path}: write USER:PASSWORD in one line, and nothing else")
    return user, password
