"""``hexveil verify``: checks releases as a third party can, and says what was withheld and what it cannot see."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream.cli.options import FAILED, UNREACHABLE, AsJson, ConfigFile, stop

if TYPE_CHECKING:
    from stream.messages.verification import Record, Verification

TOPIC = "topic"


def command(
    releases: Annotated[
        str,
        typer.Argument(
            help="File of releases, one message per line, plain or .gz ('-': stdin); or 'topic': the output topics "
            "of the configured Kafka."
        ),
    ],
    key: Annotated[
        list[Path] | None,
        typer.Option(
            help="The operator's public key (PEM). Repeat it for several. Without it signatures are checked "
            "against the key that they name."
        ),
    ] = None,
    holding: Annotated[
        list[str] | None,
        typer.Option(
            help="Digest of a close marker that you kept from earlier, as this command prints it; it has to be "
            "among them."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check messages, close markers, their chain and signatures, and the stated budgets and periods."""
    from stream.messages.chain import load_public
    from stream.messages.verification import Verification

    trusted = [load_public(path) for path in key or ()]
    verification = Verification(trusted, holding or ())
    if releases == TOPIC:
        _take_topics(verification, config)
    else:
        try:
            for record in _records(releases):
                verification.take(record)
        except (OSError, EOFError, zlib.error) as error:
            stop(f"cannot read {releases}: {error}")
    report = verification.finish()
    typer.echo(json.dumps(report) if as_json else "\n".join(_text(report, trusted)))
    if not report["sound"]:
        raise typer.Exit(FAILED)


def _records(file: str) -> Iterator[Record]:
    from stream.messages.lines import LineError, lines_in, read_line
    from stream.messages.verification import Record

    for number, text in enumerate(lines_in(file), start=1):
        try:
            line = read_line(text)
        except LineError:
            stop(f"line {number} of {file} is not a message; give a file that 'hexveil replay --offline' wrote")
        yield Record(line.topic, line.headers, bytes(line.value), f"line {number}")


def _take_topics(verification: Verification, config: Path | None) -> None:
    from aiokafka.errors import KafkaError

    from stream.cli.options import choose_config, load_to_release
    from stream.protocol.markers import each_released

    settings = load_to_release(choose_config(config))

    async def take() -> None:
        async for record in each_released(settings.kafka):
            verification.take(record)

    try:
        asyncio.run(take())
    except (KafkaError, OSError) as error:
        stop(f"Kafka at {settings.kafka.bootstrap} cannot be read: {error}", UNREACHABLE)


def _text(report: dict[str, Any], trusted: list[str]) -> Iterator[str]:
    for feed in report["feeds"]:
        if not feed["windows"]:
            continue
        first, last = feed["numbers"]
        block = "" if feed["horizon"] is None else f", {feed['horizon']:g} in a block of the horizon"
        yield (
            f"Feed {feed['feed']}: {feed['windows']} windows, numbers {first} to {last}, from {feed['first']} to "
            f"{feed['last']}; relation '{feed['relation']}', at most ε {feed['epsilon']:g} in a window and "
            f"{feed['budget']:g} in a period{block}."
        )
        if first > 1:
            yield f"  The first {first - 1} windows are not here."
        if feed["faded"]:
            yield (
                f"  Of the first {feed['faded']} windows here only the close markers are left, so their messages were "
                "not checked."
            )
        if feed["chained"] < feed["windows"]:
            yield f"  {feed['windows'] - feed['chained']} close markers are of an earlier version and not chained."
        if feed["signed"]:
            against = (
                "against the key that you gave"
                if trusted
                else "by the key that they name; compare it with the operator's"
            )
            yield f"  {feed['signed']} close markers are signed, checked {against}: {', '.join(feed['signers'])}"
        else:
            yield "  The close markers are not signed: this shows that they fit together, not who made them."
        if feed["withheld"]:
            yield f"  Withheld, which public counts alone decide: {', '.join(feed['withheld'])}."
        yield f"  Keep the digest of the last close marker, and give it next time with --holding: {feed['last_marker']}"
    for problem in report["problems"]:
        where = f"feed {problem['feed']}: " if problem["feed"] else ""
        yield f"PROBLEM ({problem['kind']}): {where}{problem['text']}."
    yield "Everything that was checked holds." if report["sound"] else f"{len(report['problems'])} problem(s)."
    yield report["unchecked"]
