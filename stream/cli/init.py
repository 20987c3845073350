"""``hexveil init``: writes a complete configuration with comments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.options import stop
from stream.config.search import LOCAL, template


def command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = LOCAL,
    relation: Annotated[
        NeighbouringRelation,
        typer.Option(help="values: scheduled public transport. participation: private cars, taxis, riders."),
    ] = NeighbouringRelation.VALUES,
    vehicles: Annotated[
        int | None, typer.Option(min=1, help="Vehicles on the road at a time: the live map that so many can fill.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a complete configuration with comments."""
    if path.exists() and not force:
        stop(f"{path} exists; choose another name or pass --force")
    text = for_fleet(relation, vehicles)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        stop(f"{path}: {error.strerror}; name a file in a folder that you may write to")
    named = "" if path == LOCAL else f" --config {path}"
    typer.echo(f"{path} written. Set feed and budget in it, then run: hexveil check{named}")


def for_fleet(relation: NeighbouringRelation, vehicles: int | None) -> str:
    """The configuration of the live map that so many vehicles on the road can fill; None: the shipped one."""
    text = template(relation).read_text(encoding="utf-8")
    if vehicles is None:
        return text
    from stream.config.fleets import fleet_map  # with the whole configuration, which is slow to import
    from stream.config.rewriting import rewritten

    chosen = fleet_map(relation, vehicles)
    return rewritten(text, chosen.keys(relation), f"for {chosen.vehicles or 'fewer'} vehicles on the road")
