"""``hexveil init``: writes a complete configuration with comments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.options import USAGE, stop
from stream.config.search import LOCAL, template


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("init")
    def init(
        path: Annotated[Path, typer.Argument(help="File to write.")] = LOCAL,
        relation: Annotated[
            NeighbouringRelation,
            typer.Option(help="values: scheduled public transport. participation: private cars, taxis, riders."),
        ] = NeighbouringRelation.VALUES,
        force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    ) -> None:
        """Write a complete configuration with comments."""
        if path.exists() and not force:
            stop(f"{path} exists; choose another name or pass --force", USAGE)
        try:
            path.write_bytes(template(relation).read_bytes())
        except OSError as error:
            stop(f"{path}: {error.strerror}; name a file in a folder that you may write to", USAGE)
        named = "" if path == LOCAL else f" --config {path}"
        typer.echo(f"{path} written. Set feed, epsilon and budget in it, then run: hexveil check{named}")
