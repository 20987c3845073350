"""Says in sentences what is wrong with a feed, and suggests a configuration with the reason of each line. Pure.

Only facts of the feed are suggested: its format, units, place and hexagons. Nothing that protects (epsilon, budget, upper
bounds) is, because it must not follow from what is protected. Under "participation" positions are protected as well, so
the place and the hexagons are left to the operator.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from dpcore.relation import NeighbouringRelation
from stream.config.feed import FeedFields, SpeedSource
from stream.diagnosis.measures import IMPOSSIBLE_KMH, Measures
from stream.diagnosis.observations import Observations

ENOUGH_VEHICLES = 3.0
"""Mean number of vehicles in a visited hexagon and hour for which a mean of speeds is worth releasing."""
_SMALL_FLEET = 100
"""With fewer vehicles and the shipped epsilon, the intervals of most means are wider than +-8 km/h."""
_SPREAD = 0.1
_FAR_NORTH = 66.0
"""Fleets beyond the polar circle are rare, and cities whose longitude is between 66 and 90 degrees are not."""
_TELLING = 0.7
"""Above this product of cosines, speeds by direction differ too little between right and exchanged axes."""
_NEARER = 0.6
"""A quotient below the product to this power is nearer to what exchanged axes give. On recordings of buses it is 0.89 to 1.01."""
_LONG = {"epoch-ms": "milliseconds", "epoch-us": "microseconds"}
_NO_SPEED, _MOST_KNOWN, _MOST_ZERO, _TINY = 0.5, 0.99, 0.95, 0.2


@dataclass(frozen=True)
class Suggestion:
    """One key of a configuration: its value as TOML, and why."""

    section: str
    key: str
    value: str
    reason: str


def problems(seen: Observations, measures: Measures) -> list[str]:
    """Faults of the feed, the gravest first, each with what to do about it."""
    if measures.usable:
        sentences = [*_place_and_time_problems(seen, measures), *_speed_problems(seen, measures)]
    else:
        sentences = [f"None of its {measures.rows} fixes can be used."]
    if seen.time_format in ("epoch-ms", "epoch-us"):
        sentences.append(
            f"The times are {_LONG[seen.time_format]} since 1970, and GTFS-realtime prescribes seconds. hexveil gtfs-rt refuses such "
            "vehicles as time-no-epoch-seconds: ask the agency."
        )
    shares = (
        (measures.origin, "lie at 0, 0: units without reception. They are refused as at-origin"),
        (measures.swapped, "have latitude and longitude exchanged. They are refused as swapped-axes"),
        (
            measures.far,
            "lie far from the others, outside of the domain that is suggested. They are refused as out-of-domain",
        ),
        (measures.outside_globe, "lie outside the globe. They are refused as out-of-domain"),
        (measures.bad_time, "have a time before 2000 or after 2100: clocks that were never set. They are refused"),
        (measures.without_user, "name no vehicle, so nobody's budget could be charged. They are refused"),
        (measures.without_position, "have no position. They are refused"),
        (measures.repeats, "repeat a vehicle and time. Each counts once"),
    )
    sentences += [f"{count} of {measures.rows} fixes {what}." for count, what in shares if count]
    if measures.disorder:
        sentences.append(
            f"{measures.disorder} fixes come after a later one of their vehicle. hexveil replay sorts recordings; live, they count "
            "while their window is open."
        )
    if measures.teleporting_vehicles:
        sentences.append(
            f"{measures.teleporting_vehicles} of {measures.vehicles} vehicles jump faster than 200 km/h over more than 1 km "
            f"({measures.teleports} times): errors of position, or two vehicles with one identifier. feed.quality.teleport_km_h "
            "refuses such fixes."
        )
    if measures.frozen_vehicles:
        sentences.append(
            f"{measures.frozen_vehicles} of {measures.vehicles} vehicles repeat one position to the last digit for more than 20 min: "
            "parked, or stuck. feed.quality.frozen refuses them."
        )
    if measures.late.get("ahead", 0) > 0:
        sentences.append(
            f"{measures.late['ahead']:.2%} of the fixes have a time more than a minute after their arrival: wrong clocks. "
            "window.max_future says how far ahead is accepted."
        )
    if measures.late.get("5m", 0) > 0.01:
        sentences.append(
            f"{measures.late['5m']:.1%} of the fixes arrive more than 5 min after their time: raise window.allowed_delay, or they "
            "are late."
        )
    return sentences


def _place_and_time_problems(seen: Observations, measures: Measures) -> list[str]:
    sentences = []
    lat, lng = measures.middle or (0.0, 0.0)
    if abs(lat) > _FAR_NORTH:
        sentences.append(
            f"Most fixes are around latitude {lat:.1f}, longitude {lng:.1f}. If the feed is not of that place, latitude and longitude "
            "are exchanged: exchange them in [feed.fields], and in the domain below."
        )
    elif (perhaps := _perhaps_exchanged(measures.direction_quotient, lat, lng)) is not None:
        sentences.append(perhaps)
    if seen.local and seen.is_live:
        sentences.append(
            "The times have no zone. They were taken as UTC: set feed.timezone to the zone of the agency's clocks, in which hexveil "
            "siri-vm reads them, or windows are released hours off."
        )
    elif seen.local:
        sentences.append(
            "The times have no zone. They were taken as UTC, and as timezone = 'UTC' is suggested for them: unless that is the zone of "
            "the recording, set feed.fields.timezone, or windows are released hours off."
        )
    return sentences


def _perhaps_exchanged(quotient: float | None, lat: float, lng: float) -> str | None:
    """What speeds by direction say about the axes; None if nothing.

    If latitude and longitude are exchanged, distances along one are too long by the cosine of the true latitude, and along the
    other one too short by that of the longitude. The speeds that vehicles report are not.
    """
    if quotient is None or abs(lng) >= 90:
        return None
    exchanged = math.cos(math.radians(lat)) * math.cos(math.radians(lng))
    if exchanged > _TELLING or quotient > exchanged**_NEARER:
        return None
    return (
        f"Latitude and longitude are perhaps exchanged: along meridians, reported over derived speed is {quotient:.2f} of that along "
        f"parallels. Usual is 0.85 to 1.2, and {exchanged:.2f} if they are exchanged here. Most fixes are around latitude {lat:.1f}, "
        f"longitude {lng:.1f}: look that place up on a map."
    )


def _speed_problems(seen: Observations, measures: Measures) -> list[str]:
    speeds, (chosen, _) = measures.speeds, speed_source(seen, measures)
    remedy = f"let speeds be derived from positions: feed.speeds = {chosen!r}"
    if speeds.known < _NO_SPEED:
        return [f"{1 - speeds.known:.0%} of the fixes have no speed; {remedy}."]
    if speeds.zero + speeds.tiny > _MOST_ZERO:
        return [
            f"{speeds.zero:.0%} of the speeds are 0 and {speeds.tiny:.0%} above 0 but below 0.01, so they are no measurements; "
            f"{remedy}."
        ]
    if speeds.tiny > _TINY:
        return [f"{speeds.tiny:.0%} of the speeds are above 0 but below 0.01: rounding, no measurements; {remedy}."]
    sentences = [f"{1 - speeds.known:.0%} of the fixes have no speed; {remedy}."] if speeds.known < _MOST_KNOWN else []
    if speeds.negative:
        otherwise = "count as missing" if chosen == "missing" and seen.is_live else "are refused"
        fate = f"count as 0 under relation 'values' and {otherwise} under 'participation'"
        sentences.append(
            f"{speeds.negative:.2%} of the speeds are negative. They {'are not read' if chosen == 'derived' else fate}."
        )
    unit, _ = speed_unit(seen, measures)
    if seen.speed_unit is not None and unit != seen.speed_unit:
        fixed = "GTFS-realtime prescribes" if seen.is_live else f"format {seen.format!r} fixes"
        advice = remedy if seen.is_live else f"the suggested configuration reads them in {unit}"
        sentences.append(
            f"The speeds agree with positions in {' or '.join(speeds.fits)} and not in {seen.speed_unit}, which {fixed}; {advice}."
        )
    if impossible := speeds.impossible[unit]:
        sentences.append(
            f"{impossible} speeds are above {IMPOSSIBLE_KMH:g} km/h, read in {unit}: errors. Under relation 'values' they count as "
            "speed.upper_bound; under 'participation' feed.quality.fastest_km_h refuses them."
        )
    if _fit_in_no_unit(measures):
        sentences.append(
            f"The speeds fit in no unit: positions give {speeds.derived_kmh:.1f} km/h in the mean, and reported over derived is "
            + ", ".join(f"{quotient:g} in {unit}" for unit, quotient in speeds.quotients.items())
            + f"; {remedy}."
        )
    return sentences


def speed_source(seen: Observations, measures: Measures) -> tuple[SpeedSource, str]:
    """Where speeds should come from, and why."""
    speeds = measures.speeds
    if seen.is_live and seen.speed_unit is not None and speeds.fits and seen.speed_unit not in speeds.fits:
        return (
            "derived",
            f"{seen.command} reads {seen.speed_unit}, in which the reported speeds do not agree with positions",
        )
    if speeds.known and (speeds.zero + speeds.tiny > _MOST_ZERO or speeds.tiny > _TINY or _fit_in_no_unit(measures)):
        return "derived", "the reported speeds cannot be right, so all are derived from positions"
    if speeds.known < _MOST_KNOWN:
        return "missing", f"{1 - speeds.known:.0%} of the fixes have no speed; it is derived from positions"
    return "reported", "the fixes have speeds"


def _fit_in_no_unit(measures: Measures) -> bool:
    speeds = measures.speeds
    return bool(speeds.pairs and not speeds.fits and speeds.derived_kmh is not None and speeds.derived_kmh >= 3)


def speed_unit(seen: Observations, measures: Measures) -> tuple[str, str]:
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


def suggestions(seen: Observations, measures: Measures) -> list[Suggestion]:
    """Keys of ``[feed]``, ``[feed.fields]`` and ``[hexagons]`` that fit the feed."""
    if not measures.usable or measures.box is None:
        return []
    unit, why = speed_unit(seen, measures)
    name, fields = seen.format, seen.fields
    source, because = speed_source(seen, measures)
    if seen.is_live:
        unit, why = (unit, why) if seen.speed_unit is None else ("km/h", f"{seen.command} converts speeds")
    elif source != "reported":
        name, fields = "canonical", None if name == "canonical" and not seen.local else seen.own_fields
    elif name == "capmetro" and unit == "mph" and not seen.local:
        name = "capmetro-2015"
    elif seen.local or seen.speed_unit not in (None, unit):
        name, fields = "declared", seen.own_fields
    lines = [
        Suggestion("feed", "format", _toml(name), _why_format(seen, name)),
        Suggestion("feed", "timezone", '"UTC"', "set it to the city's zone: timeslots and periods are aligned in it"),
    ]
    if name in ("canonical", "declared"):
        lines.append(Suggestion("feed", "speed_unit", _toml(unit), why))
    lines.append(Suggestion("feed", "speeds", _toml(source), because))
    where = (
        "where the fixes of this one moment are, with a margin; vehicles go farther in a day: take it from a map"
        if measures.interval_s is None
        else "where the fixes are, with a margin; check it on a map"
    )
    lines.append(Suggestion("feed", "domain", _domain(measures.box), where))
    if fields is not None:
        lines += _fields(fields, seen.local)
    dense = [item for item in measures.densities if item.vehicles_per_cell_hour >= ENOUGH_VEHICLES]
    chosen = dense[-1] if dense else measures.densities[0]
    lines.append(
        Suggestion(
            "hexagons",
            "resolution",
            str(chosen.resolution),
            f"{chosen.vehicles_per_cell_hour:.1f} vehicles in a visited hexagon and hour, {chosen.cells_per_vehicle_hour:.1f} "
            "hexagons of a vehicle in an hour" + _few(measures.vehicles),
        )
    )
    return lines


def _few(vehicles: int) -> str:
    return (
        f"; {vehicles} vehicles are few, so intervals are wide: hexveil tune searches for other settings"
        if vehicles < _SMALL_FLEET
        else ""
    )


def _why_format(seen: Observations, name: str) -> str:
    if seen.is_live:
        return f"{seen.command} sends canonical events"
    if name == "capmetro-2015":
        return f"{seen.kind}; the columns of capmetro, with speeds in mph"
    if name == "canonical" != seen.format:
        return f"{seen.kind}; events with derived speeds are canonical, and what they are made of has the fields named below"
    return f"{seen.kind}; " + (
        "its fields are named below" if name == "declared" else "it has the fields of this format"
    )


def _fields(fields: FeedFields, local: bool) -> list[Suggestion]:
    lines = [
        Suggestion("feed.fields", role, _toml(path), "by its name")
        for role, path in zip(("user", "time", "lat", "lng", "speed"), fields.paths, strict=False)
    ]
    lines.append(Suggestion("feed.fields", "time_format", _toml(fields.time_format), "by its values"))
    if local:
        lines.append(
            Suggestion("feed.fields", "timezone", '"UTC"', "its times have no zone: set that of the recording")
        )
    return lines


def _domain(box: tuple[float, float, float, float]) -> str:
    south, west, north, east = box
    south, north = math.floor(south * 10 - 10 * _SPREAD) / 10, math.ceil(north * 10 + 10 * _SPREAD) / 10
    west, east = math.floor(west * 10 - 10 * _SPREAD) / 10, math.ceil(east * 10 + 10 * _SPREAD) / 10
    south, north, west, east = max(south, -90), min(north, 90), max(west, -180), min(east, 180)
    return f"{{ south = {south:g}, west = {west:g}, north = {north:g}, east = {east:g} }}"


def _toml(text: str) -> str:
    return json.dumps(text)  # a basic string of TOML has the escapes of JSON


def configuration(template: str, lines: list[Suggestion], relation: NeighbouringRelation) -> str:
    """The shipped ``template`` with the suggested lines in place of its own, each with its reason.

    Under "participation" the domain and the hexagons are not taken from the recording: the domain is left out, so that
    ``hexveil check`` asks for it.
    """
    text = template
    for line in lines:
        if line.section == "feed.fields":
            continue
        if relation == NeighbouringRelation.PARTICIPATION and line.key == "resolution":
            continue
        new = f"{line.key} = {line.value}  # {line.reason}"
        if relation == NeighbouringRelation.PARTICIPATION and line.key == "domain":
            new = "# domain = { south = …, west = …, north = …, east = … }  # a public fact of the city, not of the recording"
        line_of_key = re.search(rf"^(# )?{line.key} = .*$", text, re.MULTILINE)
        assert line_of_key is not None, "the template has every key that is suggested"
        text = text[: line_of_key.start()] + new + text[line_of_key.end() :]
    fields = [f"{line.key} = {line.value}  # {line.reason}" for line in lines if line.section == "feed.fields"]
    return text.rstrip("\n") + "\n" + ("\n[feed.fields]\n" + "\n".join(fields) + "\n" if fields else "")
