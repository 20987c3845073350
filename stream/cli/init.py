"""``hexveil init``: writes a complete configuration with comments."""

from pathlib import Path
from typing import Annotated

import typer

from dpcore.relation import NeighbouringRelation
from stream.cli.options import Force, require_new, stop, write_text
from stream.config.search import LOCAL, template
from stream.config.servers import MapKind


def command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = LOCAL,
    relation: Annotated[
        NeighbouringRelation,
        typer.Option(help="values: scheduled public transport. participation: private cars, taxis, riders."),
    ] = NeighbouringRelation.VALUES,
    vehicles: Annotated[
        int | None, typer.Option(min=1, help="Vehicles on the road at a time: the live map that so many can fill.")
    ] = None,
    kind: Annotated[
        MapKind,
        typer.Option("--map", help="typical: what each hour is usually like, finer than few vehicles can fill live."),
    ] = "live",
    force: Force = False,
) -> None:
    """Write a complete configuration with comments."""
    require_new(path, force=force)
    if kind == "typical" and relation == NeighbouringRelation.PARTICIPATION:
        stop("--map typical was measured under relation 'values' alone; leave it out")
    write_text(path, for_fleet(relation, vehicles, kind))
    named = "" if path == LOCAL else f" --config {path}"
    typer.echo(f"{path} written. Set feed, area and budget in it, then run: hexveil check{named}")


def for_fleet(relation: NeighbouringRelation, vehicles: int | None, kind: MapKind = "live") -> str:
    """The configuration of the map that so many vehicles on the road can fill; of no number, the shipped live one."""
    text = template(relation).read_text(encoding="utf-8")
    if vehicles is None and kind == "live":
        return text
    from stream.config.fleets import fleet_map  # with the whole configuration, which is slow to import
    from stream.config.rewriting import rewritten

    chosen = fleet_map(relation, vehicles or 0, kind)
    fits = f"for {chosen.vehicles or 'fewer'} vehicles on the road" if kind == "live" else "for a typical map"
    return rewritten(text, chosen.keys(relation), fits)
