"""``hexveil schema``: lists and exports the schemas of the published messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.options import AsJson, stop

ASYNCAPI = "asyncapi.json"


command = typer.Typer(help="List and export the schemas of the published messages.", no_args_is_help=True)


@command.command("list")
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


@command.command("export")
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
