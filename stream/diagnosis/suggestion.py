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
from stream.config.feed import FeedConfig, SpeedSource, SpeedUnit
from stream.config.fleets import fleet_map
from stream.config.rewriting import rewritten, toml
from stream.config.section import BoundingBox
from stream.diagnosis.measures import Measures
from stream.diagnosis.observations import WORKER, Observations
from stream.ingestion.formats import known_fields

_SPREAD = 0.1
_MOST_KNOWN, _MOST_ZERO, _TINY = 0.99, 0.95, 0.2
_VALUES = NeighbouringRelation.VALUES
_OF_FLEET = ("window", "privacy", "hexagons", "speed")
"""Sections whose keys follow from the size of the fleet."""
_FIELDS = ("user", "time", "lat", "lng", "value", "time_format", "timezone", "units_per_degree")


@dataclass(frozen=True)
class Suggestion:
    """One key of a configuration: its value as TOML, None to leave it out, and why."""

    section: str
    key: str
    value: str | None
    reason: str


def speed_source(measures: Measures) -> tuple[SpeedSource, str]:
    """Where speeds should come from, and why."""
    speeds = measures.speeds
    if speeds.zero + speeds.tiny > _MOST_ZERO:
        shares = f"{speeds.zero:.0%} of the speeds are 0 and {speeds.tiny:.0%} above 0 but below 0.01"
        return "derived", f"{shares}, so they are no measurements"
    if speeds.tiny > _TINY:
        return "derived", f"{speeds.tiny:.0%} of the speeds are above 0 but below 0.01: rounding, no measurements"
    if speeds.fit_nowhere and speeds.known:
        return "derived", (
            f"the speeds fit in no unit: positions give {speeds.derived_kmh:.1f} km/h in the mean, and reported over "
            "derived is " + ", ".join(f"{quotient:g} in {unit}" for unit, quotient in speeds.quotients.items())
        )
    if measures.fixes and speeds.known < _MOST_KNOWN:
        return "missing", f"{1 - speeds.known:.0%} of the fixes have no speed"
    return "reported", "the fixes have speeds"


def speed_unit(seen: Observations, measures: Measures) -> tuple[SpeedUnit, str]:
    """The unit of speed and why: that of the format if positions agree, else one that fits them."""
    fits, fixed = measures.speeds.fits, seen.speed_unit
    if fixed is not None and (fixed in fits or not fits):
        return fixed, "the format says so" + (", and positions agree" if fits else "")
    if not fits:
        return "km/h", "not known: positions and speeds say too little; ask whoever runs the feed"
    others = f". {' and '.join(fits[1:])} would fit, too: ask whoever runs the feed" if fits[1:] else ""
    return fits[0], f"reported over derived is {measures.speeds.quotients[fits[0]]:g}; usual are 1.0 to 1.2{others}"


def suggested_feed(seen: Observations, measures: Measures) -> FeedConfig:
    """The section ``[feed]`` by which the service reads the feed as it is meant."""
    (unit, _), (source, _) = speed_unit(seen, measures), speed_source(measures)
    name: Any = seen.format
    fields = seen.feed.fields
    if name == "capmetro" and unit == "mph":
        name = "capmetro-2015"
    elif not seen.is_live and seen.speed_unit not in (None, unit):
        counts = fields is not None and fields.time_format == "epoch-ms"
        name, fields = "declared", known_fields()[name].model_copy(update={"time_format": "epoch-ms"} if counts else {})
    if fields is not None and fields.value is None and source == "reported":  # nothing is known, for want of fixes
        source = "missing"
    elif seen.command == WORKER and (fields is None or fields.value is not None):  # which derives none
        source = "reported"
    if source != "reported":
        own = None if name == "canonical" else known_fields().get(name.removesuffix("-2015"))
        name, fields = "canonical", fields or own
    fixed = seen.speed_unit if seen.is_live or name not in ("canonical", "declared") else None
    return FeedConfig(
        **seen.feed.model_dump(include={"name", "topic", "timezone", "encoding", "records"}),
        domain=seen.feed.domain if measures.box is None else _domain(measures.box),
        format=name,
        fields=fields,
        speeds=source,
        speed_unit=None if unit == fixed else unit,
    )


def suggestions(seen: Observations, measures: Measures, feed: FeedConfig) -> list[Suggestion]:
    """Keys of ``[feed]``, ``[feed.fields]`` and of the map that fit the feed, as ``feed`` has them."""
    if measures.box is None:
        return []
    lines: list[Suggestion] = []

    def add(section: str, key: str, value: object, why: str, *, there: bool = True) -> None:
        if there:
            lines.append(Suggestion(section, key, value if key == "domain" else json.dumps(value), why))  # type: ignore[arg-type]

    box, source = feed.domain, speed_source(measures)[1]
    where = "check it on a map" if measures.interval_s else "vehicles go farther in a day than in this one moment"
    add("feed", "format", feed.format, _why_format(seen, feed.format))
    add("feed", "timezone", feed.timezone, _why_zone(seen))
    add("feed", "speed_unit", feed.speed_unit, speed_unit(seen, measures)[1], there=feed.given_speed_unit is not None)
    add("feed", "encoding", feed.encoding, "its bytes are no UTF-8; look at names with accents",
        there=feed.encoding != "utf-8")  # fmt: skip
    add("feed", "records", feed.records, "the list of events in the document", there=feed.records is not None)
    add("feed", "speeds", feed.speeds, source if feed.speeds == "reported" else f"{source}; from positions")
    shown = f"{{ south = {box.south:g}, west = {box.west:g}, north = {box.north:g}, east = {box.east:g} }}"
    add("feed", "domain", shown, f"where the fixes are, with a margin; {where}")
    why = {
        "time_format": "by its values",
        "timezone": f"{seen.local:.0%} of its times have no zone: set that of the clocks"
        if seen.local
        else "by its values",
        "units_per_degree": "by the size of its numbers",
    }
    for key in _FIELDS if feed.fields is not None else ():
        value = getattr(feed.fields, key)
        add("feed.fields", key, value, why.get(key, "by its name"), there=value not in (None, 1))
    reason = f"for {measures.on_road} vehicles at a time: README.md"
    for key, value in fleet_map(_VALUES, measures.on_road).keys(_VALUES).items():
        section, _, name = key.partition(".")
        lines.append(Suggestion(section, name, None if value is None else toml(value), reason))
    return lines


def _why_zone(seen: Observations) -> str:
    shared = f"most times have {seen.offset}, which several zones share; " if seen.offset else ""
    return f"{shared}set it to the city's zone: timeslots and periods are aligned in it"


def _why_format(seen: Observations, name: str) -> str:
    if seen.is_live:
        return f"{seen.command} sends canonical events"
    if name == "capmetro-2015":
        return f"{seen.kind}; the columns of capmetro, with speeds in mph"
    if name == "canonical" != seen.format:
        return f"{seen.kind}; events with derived speeds are canonical, made of the fields that are named below"
    return f"{seen.kind}; " + (
        "its fields are named below" if name == "declared" else "it has the fields of this format"
    )


def _domain(box: tuple[float, float, float, float]) -> BoundingBox:
    """The box with a margin, in tenths of a degree."""
    (south, west), (north, east) = ((math.floor(10 * (edge - _SPREAD)) / 10 for edge in box[:2]),
                                    (math.ceil(10 * (edge + _SPREAD)) / 10 for edge in box[2:]))  # fmt: skip
    if box[1] <= box[3]:
        west, east = max(west, -180), min(east, 180)
    return BoundingBox(south=max(south, -90), west=west, north=min(north, 90), east=east)


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
            new = "# domain = { south = …, west = …, north = …, east = … }  # a public fact of the city"
        line_of_key = re.search(rf"^(# )?{line.key} = .*$", text, re.MULTILINE)
        if line_of_key is None:  # keys that the template does not show follow the format
            line_of_key = re.search(r"^format = .*$", text, re.MULTILINE)
            assert line_of_key is not None
            new = f"{line_of_key[0]}\n{new}"
        text = text[: line_of_key.start()] + new + text[line_of_key.end() :]
    fields = [f"{line.key} = {line.value}  # {line.reason}" for line in lines if line.section == "feed.fields"]
    return text.rstrip("\n") + "\n" + ("\n[feed.fields]\n" + "\n".join(fields) + "\n" if fields else "")
