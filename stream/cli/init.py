"""``hexveil init``: a commented configuration to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from stream.cli.options import USAGE, stop

_TEMPLATES = {"values": "bus-fleet", "participation": "riders"}


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("init")
    def init(
        path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("hexveil.toml"),
        relation: Annotated[
            Literal["values", "participation"],
            typer.Option(help="values: scheduled public transport. participation: private cars, taxis, riders."),
        ] = "values",
        force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    ) -> None:
        """Write a complete, commented configuration to start from."""
        if path.exists() and not force:
            stop(f"{path} exists; choose another name or pass --force", USAGE)
        text = (
            resources.files("stream.config")
            .joinpath("templates", f"{_TEMPLATES[relation]}.toml")
            .read_text(encoding="utf-8")
        )
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            stop(f"{path}: {error.strerror}; name a file in a folder that can be written", USAGE)
        typer.echo(f"{path} written. Set feed, epsilon and budget in it, then: hexveil check --config {path}")
