"""Suggests a configuration that fits a feed, with the reason of each line. Pure.

Only facts of the feed are suggested: its format, units and place, and the map that its fleet can fill, by a public
table. Nothing that protects is, because it must not follow from what is protected. Under "participation" positions are
protected as well, so the place and the map are left to the operator.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from dpcore.relation import NeighbouringRelation
from stream.config.feed import FeedConfig, FeedFields, SpeedSource, SpeedUnit
from stream.config.fleets import fleet_map
from stream.config.rewriting import rewritten, toml
from stream.config.section import BoundingBox
from stream.diagnosis.measures import Measures
from stream.diagnosis.observations import Observations
from stream.diagnosis.speeds import LEAST_PAIRS, MOVES_KMH
from stream.ingestion.formats import known_fields

_SPREAD = 0.1
_MOST_KNOWN, _MOST_ZERO, _TINY = 0.99, 0.95, 0.2
_VALUES = NeighbouringRelation.VALUES
_OF_FLEET = ("window", "privacy", "hexagons", "speed")
"""Sections whose keys follow from the size of the fleet."""
_FIELDS = ("user", "time", "lat", "lng", "speed", "time_format", "timezone", "units_per_degree")


@dataclass(frozen=True)
class Suggestion:
    """One key of a configuration: its value as TOML, None to leave it out, and why."""

    section: str
    key: str
    value: str | None
    reason: str


def speed_source(seen: Observations, measures: Measures) -> tuple[SpeedSource, str]:
    """Where speeds should come from, and why."""
    speeds = measures.speeds
    if speeds.known and (speeds.zero + speeds.tiny > _MOST_ZERO or speeds.tiny > _TINY or fit_in_no_unit(measures)):
        return "derived", "the reported speeds cannot be right, so all are derived from positions"
    if speeds.known < _MOST_KNOWN:
        return "missing", f"{1 - speeds.known:.0%} of the fixes have no speed; it is derived from positions"
    return "reported", "the fixes have speeds"


def fit_in_no_unit(measures: Measures) -> bool:
    """Whether the vehicles move, and no unit brings their reported speeds near to that."""
    speeds = measures.speeds
    is_compared = speeds.pairs >= LEAST_PAIRS and speeds.derived_kmh is not None and speeds.derived_kmh >= MOVES_KMH
    return is_compared and not speeds.fits


def speed_unit(seen: Observations, measures: Measures) -> tuple[SpeedUnit, str]:
    """The unit of speed and why: that of the format if positions agree, else one that fits them."""
    speeds, fixed = measures.speeds, seen.speed_unit
    if fixed is not None and (fixed in speeds.fits or not speeds.fits):
        return fixed, "the format says so" + (", and positions agree" if fixed in speeds.fits else "")
    if not speeds.fits:
        return "km/h", "not known: positions and speeds say too little; ask whoever runs the feed"
    roads = [unit for unit in speeds.fits if unit != "kn"] or speeds.fits
    best = min(roads, key=lambda unit: abs(math.log(speeds.quotients[unit] / 1.1)))
    others = [unit for unit in speeds.fits if unit != best]
    return best, (
        f"reported over derived is {speeds.quotients[best]:g}; usual are 1.0 to 1.2"
        + (f". {' and '.join(others)} would fit, too: ask whoever runs the feed" if others else "")
    )


def suggested_feed(seen: Observations, measures: Measures) -> FeedConfig:
    """The section ``[feed]`` by which the service reads the feed as it is meant."""
    (unit, _), (source, _) = speed_unit(seen, measures), speed_source(seen, measures)
    name, fields = seen.format, seen.fields
    if name == "capmetro" and unit == "mph":
        name = "capmetro-2015"
    elif not seen.is_live and seen.speed_unit not in (None, unit):
        known = known_fields()[seen.format]
        name, fields = "declared", known.model_copy(update={"time_format": "epoch-ms"} if _counts(seen) else {})
    if source != "reported":
        name, fields = (
            "canonical",
            fields or (None if name == "canonical" else known_fields().get(name.removesuffix("-2015"))),
        )
    given: dict[str, Any] = {
        "domain": _domain(measures.box) if measures.box else seen.feed.domain,
        "format": name,
        "fields": fields,
    }
    fixed = seen.speed_unit if seen.is_live else seen.speed_unit if name not in ("canonical", "declared") else None
    kept = seen.feed.model_dump(include={"name", "topic", "timezone", "encoding", "records"})
    return FeedConfig(**kept, **given, speeds=source, speed_unit=None if unit == fixed else unit)


def _counts(seen: Observations) -> bool:
    """Whether times of a known format are numbers, which a declared feed has to say."""
    return seen.fields is not None and seen.fields.time_format == "epoch-ms"


def suggestions(seen: Observations, measures: Measures, feed: FeedConfig) -> list[Suggestion]:
    """Keys of ``[feed]``, ``[feed.fields]``, ``[window]`` and ``[hexagons]`` that fit the feed, as ``feed`` has
    them."""
    if measures.box is None:
        return []
    unit, why = speed_unit(seen, measures)
    lines = [
        Suggestion("feed", "format", _toml(feed.format), _why_format(seen, feed.format)),
        Suggestion("feed", "timezone", '"UTC"', "set it to the city's zone: timeslots and periods are aligned in it"),
    ]
    if feed.given_speed_unit is not None:
        lines.append(Suggestion("feed", "speed_unit", _toml(unit), why))
    if feed.encoding != "utf-8":
        lines.append(
            Suggestion("feed", "encoding", _toml(feed.encoding), "its bytes are no UTF-8; look at names with accents")
        )
    if feed.records is not None:
        lines.append(Suggestion("feed", "records", _toml(feed.records), "the list of events in the document"))
    lines.append(Suggestion("feed", "speeds", _toml(feed.speeds), speed_source(seen, measures)[1]))
    where = (
        "where the fixes of this one moment are, with a margin; vehicles go farther in a day: take it from a map"
        if measures.interval_s is None
        else "where the fixes are, with a margin; check it on a map"
    )
    box = feed.domain
    shown = f"{{ south = {box.south:g}, west = {box.west:g}, north = {box.north:g}, east = {box.east:g} }}"
    lines.append(Suggestion("feed", "domain", shown, where))
    if feed.fields is not None:
        lines += _fields(feed.fields, seen.local)
    chosen, why = fleet_map(_VALUES, measures.on_road), f"for {measures.on_road} vehicles at a time: README.md"
    for key, value in chosen.keys(_VALUES).items():
        section, _, name = key.partition(".")
        lines.append(Suggestion(section, name, None if value is None else toml(value), why))
    return lines


def _why_format(seen: Observations, name: str) -> str:
    if seen.is_live:
        return f"{seen.command} sends canonical events"
    if name == "capmetro-2015":
        return f"{seen.kind}; the columns of capmetro, with speeds in mph"
    if name == "canonical" != seen.format:
        return (
            f"{seen.kind}; events with derived speeds are canonical, and what they are made of has "
            "the "
            "fields named below"
        )
    return f"{seen.kind}; " + (
        "its fields are named below" if name == "declared" else "it has the fields of this format"
    )


def _fields(fields: FeedFields, local: float) -> list[Suggestion]:
    why = {
        "time_format": "by its values",
        "timezone": f"{local:.0%} of its times have no zone: set that of the clocks",
        "units_per_degree": "by the size of its numbers",
    }
    chosen = {key: getattr(fields, key) for key in _FIELDS}
    return [
        Suggestion("feed.fields", key, _toml(value), why.get(key, "by its name"))
        for key, value in chosen.items()
        if value is not None and (key != "units_per_degree" or value != 1)
    ]


def _domain(box: tuple[float, float, float, float]) -> BoundingBox:
    """The box with a margin, in tenths of a degree."""
    south, west, north, east = box
    crosses = west > east
    south, north = math.floor(south * 10 - 10 * _SPREAD) / 10, math.ceil(north * 10 + 10 * _SPREAD) / 10
    west, east = math.floor(west * 10 - 10 * _SPREAD) / 10, math.ceil(east * 10 + 10 * _SPREAD) / 10
    if not crosses:
        west, east = max(west, -180), min(east, 180)
    return BoundingBox(south=max(south, -90), west=west, north=min(north, 90), east=east)


def _toml(value: object) -> str:
    return json.dumps(value)  # a basic string of TOML has the escapes of JSON


def configuration(template: str, lines: list[Suggestion], relation: NeighbouringRelation) -> str:
    """The shipped ``template`` with the suggested lines in place of its own, each with its reason.

    Under "participation" nothing is taken from where and how many users were: the domain is left out, so that
    ``hexveil check`` asks for it, and the map stays that of the template. Another slot divides the same budget.
    """
    protected = relation == NeighbouringRelation.PARTICIPATION
    for_fleet = [line for line in lines if line.section in _OF_FLEET]
    changes = {
        f"{line.section}.{line.key}": line.value if line.value is None else tomllib.loads(f"v = {line.value}")["v"]
        for line in for_fleet
    }
    text = template if protected or not for_fleet else rewritten(template, changes, for_fleet[0].reason)
    for line in lines:
        if line.section == "feed.fields" or line in for_fleet:
            continue
        new = f"{line.key} = {line.value}  # {line.reason}"
        if protected and line.key == "domain":
            new = (
                "# domain = { south = …, west = …, north = …, east = … }  # a public fact of the city, "
                "not "
                "of the recording"
            )
        line_of_key = re.search(rf"^(# )?{line.key} = .*$", text, re.MULTILINE)
        if line_of_key is None:  # keys that the template does not show follow the format
            line_of_key = re.search(r"^format = .*$", text, re.MULTILINE)
            assert line_of_key is not None
            new = f"{line_of_key[0]}\n{new}"
        text = text[: line_of_key.start()] + new + text[line_of_key.end() :]
    fields = [f"{line.key} = {line.value}  # {line.reason}" for line in lines if line.section == "feed.fields"]
    return text.rstrip("\n") + "\n" + ("\n[feed.fields]\n" + "\n".join(fields) + "\n" if fields else "")
