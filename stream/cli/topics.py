"""``hexveil topics``: creates the topics of a deployment."""

from __future__ import annotations

import asyncio
import json

import typer
from aiokafka.errors import KafkaError

from stream.cli.options import UNREACHABLE, AsJson, ConfigFile, choose_config, load_to_release, stop

command = typer.Typer(help="Create the topics of this deployment.", no_args_is_help=True)


@command.callback()
def group() -> None:
    """Create the topics of this deployment."""


@command.command("create")
def create(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Create the input and output topics that are missing. Existing topics are not changed."""
    from stream.messages.topics import create_topics

    settings = load_to_release(choose_config(config))
    try:
        result = asyncio.run(create_topics(settings))
    except (KafkaError, OSError) as error:
        stop(f"Kafka at {settings.kafka.bootstrap} did not create the topics: {error}", UNREACHABLE)
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, outcome in result.items():
        typer.echo(f"{outcome:8} {name}")
