"""``hexveil gtfs``: place names and routes of hexagons, and the public list of cells, from an agency's timetable."""

import json
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from stream.cli.feeding import refusals
from stream.cli.options import ConfigFile, Force, choose_config, require_new, stop, write_text
from stream.config import Config, load_config
from stream.config.public_cells import MAX_CELLS
from stream.sources.places import Places, as_area, as_table, places
from stream.sources.schedule import Mode, Schedule, ScheduleError, read_schedule
from stream.sources.scheduled_speed import scheduled_speeds
from stream.sources.timetable import Timetable, read_timetable


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.zip", help="GTFS schedule, the archive as the agency publishes it.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File for the places (.json). Default: stdout."),
    ] = None,
    area: Annotated[
        Path | None,
        typer.Option(help="File for the cells that routes cross, as participation.geojson takes it (.geojson)."),
    ] = None,
    resolution: Annotated[
        int | None, typer.Option(min=0, max=12, help="H3 resolution. Default: hexagons.resolution.", show_default=False)
    ] = None,
    mode: Annotated[
        list[Mode] | None,
        typer.Option(help="Count routes of this mode alone; may be repeated. Default: all modes.", show_default=False),
    ] = None,
    force: Force = False,
    config: ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary alone, as JSON, to stdout; needs --out.")
    ] = False,
) -> None:
    """Read an agency's timetable: names, routes and scheduled speeds of hexagons, and the public cell list. Public
    facts; they cost no budget.
    """
    _check_options(out, area, force=force, as_json=as_json)
    settings = load_config(choose_config(config, silent=as_json))
    schedule = read_schedule(file, mode or tuple(Mode))
    if mode and not schedule.routes:
        raise ScheduleError(f"{file} has no route of that mode; it has {_listed(schedule)}")
    level = settings.hexagons.resolution if resolution is None else resolution
    chart = places(schedule, settings.feed.domain, level)
    if not chart.cells:
        stop(
            f"{file}: none of its {len(schedule.stops)} stops lies in feed.domain, and no route crosses it; correct "
            "the domain"
        )
    if area is not None and not any(place.routes for place in chart.cells):
        stop(
            f"{file}: no route crosses feed.domain, so there is no public list; correct the domain, or leave out --area"
        )
    speeds, scheduled = _scheduled(file, settings, level, schedule.routes if mode else None)
    _write(out, as_table(chart, scheduled))
    if area is not None:
        _write(area, as_area(chart))
    _tell(settings, schedule, chart, as_json, speeds)
    if not (mode or as_json) and scheduled is not None and len(schedule.modes) > 1:
        typer.echo(
            f"Note: scheduled speeds are of all modes ({_listed(schedule)}); choose yours with --mode.", err=True
        )


_NONE: dict[str, Any] = {"cells": 0, "trips": 0, "straight": 0, "refused": {}, "missing": None}
"""What is told of scheduled speeds where there are none."""


def _listed(schedule: Schedule) -> str:
    """Routes by mode: "81 bus, 2 rail"."""
    return ", ".join(f"{count} {mode}" for mode, count in schedule.modes.most_common()) or "none"


def _scheduled(
    file: Path, config: Config, resolution: int, routes: Collection[str] | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What is told of scheduled speeds, and these; None, and why. Without them the places are written all the same."""
    try:
        timetable = read_timetable(file, routes)
        _check_zones(timetable, config.feed.timezone)
        speeds = scheduled_speeds(timetable, config.feed.domain, resolution)
        table = speeds.table()
    except ScheduleError as error:
        return _NONE | {"missing": str(error)}, None
    facts = _NONE | {"refused": dict(speeds.refused)}
    if not table["cells"]:
        return facts | {"missing": "no trip with days of service and times crosses feed.domain"}, None
    return facts | {"cells": len(table["cells"]), "trips": speeds.trips, "straight": speeds.straight}, table


def _check_zones(timetable: Timetable, zone: str) -> None:
    """Raise :class:`ScheduleError` if the clocks of an agency differ from those of the feed on some noon of a month."""
    year = timetable.first_year or 2000
    noons = [datetime(year, month, 15, 12, tzinfo=UTC) for month in range(1, 13)]
    for other in timetable.zones:
        try:
            place = ZoneInfo(other)
        except (KeyError, ValueError, OSError):
            raise ScheduleError(f"agency_timezone {other!r} is no time zone; correct agency.txt") from None
        if any(noon.astimezone(place).utcoffset() != noon.astimezone(ZoneInfo(zone)).utcoffset() for noon in noons):
            raise ScheduleError(f"its clocks are those of {other}, and those of feed.timezone are {zone}'s")


def _check_options(out: Path | None, area: Path | None, *, force: bool, as_json: bool) -> None:
    for option, path, suffix in (("--out", out, ".json"), ("--area", area, ".geojson")):
        if path is not None and path.suffix != suffix:
            raise typer.BadParameter(f"{path} does not end in {suffix}", param_hint=option)
    if as_json and out is None:
        raise typer.BadParameter(
            "the places go to stdout without --out, where the summary would be", param_hint="--json"
        )
    for path in (out, area):
        if path is not None:
            require_new(path, force=force)


def _write(path: Path | None, document: dict[str, Any]) -> None:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if path is None:
        typer.echo(text)
    else:
        write_text(path, text + "\n")


def _tell(config: Config, schedule: Schedule, chart: Places, as_json: bool, speeds: dict[str, Any]) -> None:
    crossed = sum(bool(place.routes) for place in chart.cells)
    summary = {
        "stops": len(schedule.stops),
        "routes": len(schedule.routes),
        "modes": dict(schedule.modes),
        "cells": len(chart.cells),
        "named": sum(place.name is not None for place in chart.cells),
        "crossed": crossed,
        "outside": chart.outside,
        "refused": dict(schedule.refused),
        "scheduled": speeds,
    }
    if as_json:
        typer.echo(json.dumps(summary))
        return
    lines = [
        f"{summary['stops']} stops, {summary['routes']} routes: {summary['cells']} cells of resolution "
        f"{chart.resolution}, {summary['named']} with a name, {crossed} crossed by routes; {chart.outside} not wholly "
        "in feed.domain left out" + refusals(schedule.refused)
    ]
    if speeds["missing"] is not None:
        lines.append(f"Note: no scheduled speeds: {speeds['missing']}.")
    elif speeds["cells"]:
        straight = f", {speeds['straight']} of them straight from stop to stop" if speeds["straight"] else ""
        lines.append(
            f"Scheduled speeds of {speeds['cells']} cells from {speeds['trips']} trips{straight}"
            + refusals(Counter(speeds["refused"]))
        )
    if config.participation is not None and crossed > MAX_CELLS:
        lines.append(f"Note: {crossed} cells are more than the {MAX_CELLS} that may be public; use larger cells.")
    for line in lines:
        typer.echo(line, err=True)
