"""``hexveil topics``: creates the topics of a deployment; ``hexveil schema``: the schemas of what is published."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.options import UNREACHABLE, AsJson, ConfigFile, choose_config, load_to_release, stop

command = typer.Typer(help="Create the topics of this deployment.", no_args_is_help=True)


@command.callback()
def group() -> None:
    """Create the topics of this deployment."""


@command.command("create")
def create(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Create the input and output topics that are missing. Existing topics are not changed."""
    from aiokafka.errors import KafkaError

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


ASYNCAPI = "asyncapi.json"


schemas = typer.Typer(help="List and export the schemas of the published messages.", no_args_is_help=True)


@schemas.command("list")
def list_schemas(as_json: AsJson = False) -> None:
    """List every output topic with the title of its messages."""
    from stream.messages.message import OUTPUT_TOPICS, schema

    titles = {topic: schema(topic)["title"] for topic in OUTPUT_TOPICS}
    if as_json:
        typer.echo(json.dumps(titles))
        return
    width = max(map(len, titles))
    for topic, title in titles.items():
        typer.echo(f"{topic:{width}}  {title}")


@schemas.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if absent.")], as_json: AsJson = False
) -> None:
    """Write the JSON Schema (2020-12) of every output topic, and an AsyncAPI 3.1 document of all topics."""
    from stream.messages.message import OUTPUT_TOPICS, schema
    from stream.messages.topics import document

    contents = {f"{topic}.json": schema(topic) for topic in OUTPUT_TOPICS} | {ASYNCAPI: document()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        stop(f"{folder} cannot be written to ({error.strerror}); name a folder that you may write to")
    written = [str(folder / name) for name in contents]
    typer.echo(json.dumps(written) if as_json else "\n".join(written))
