"""Inspects a source: reads it as the service does, measures it, says what is wrong with it, and suggests its
configuration.

Suggests a configuration that fits a feed, with the reason of each line. Pure.

Only facts of the feed are suggested: its format, units and place, and the map that its fleet can fill, by a public
table. Nothing that protects is, because it must not follow from what is protected. Under "participation" positions are
protected as well, so the place and the map are left to the operator.
"""

import json
import math
import re
import secrets
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.arrays import IntArray
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import SPEED_TO_KMH, FeedConfig, SpeedSource, SpeedUnit
from stream.config.fleets import fleet_map
from stream.config.rewriting import rewritten, toml
from stream.config.section import BoundingBox
from stream.config.value import QUANTUM
from stream.diagnosis.measures import LARGEST, Measures, measure
from stream.diagnosis.reading import WORKER, Accepted, Observations, inspection_config, read_recording, speed_problem
from stream.diagnosis.refusals import REMEDIES, Refusals
from stream.diagnosis.snapshots import read_snapshots
from stream.diagnosis.speeds import bound_problem
from stream.diagnosis.users import events_as_users, everywhere_at_once
from stream.ingestion.decoding import REASONS, Decoder, Reason
from stream.ingestion.formats import known_fields
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.statistics.fix_rules import refused
from stream.terms import FixRules

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
    shared = f"most times have {seen.offset}, which several zones share; " if seen.offset else ""
    why_zone = f"{shared}set it to the city's zone: timeslots and periods are aligned in it"
    add("feed", "timezone", feed.timezone, why_zone)
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


_FAR_NORTH = 66.0
"""Fleets beyond the polar circle are rare, and cities whose longitude is between 66 and 90 degrees are not."""
_TELLING = 0.7
"""Above this product of cosines, speeds by direction differ too little between right and exchanged axes."""
_NEARER = 0.6
"""A quotient below the product to this power is nearer to exchanged axes. Recorded buses have 0.89 to 1.01."""


@dataclass(frozen=True)
class Inspection:
    """What an inspection ends with. ``usable``, ``refused``: what the service takes under ``config``, or why not."""

    seen: Observations
    measures: Measures
    config: Config
    usable: int
    refused: Counter[str]
    problems: list[str]
    suggestions: list[Suggestion]


def inspect(
    seen: Observations,
    source: Path | tuple[list[bytes], IntArray],
    given: Config | None = None,
    limit: float = math.inf,
) -> Inspection:
    """The inspection of what was seen of ``source``: a file, or messages with the times of their arrival.

    What is counted is what the service makes of it under the ``given`` configuration, else under the suggested one.
    """
    measures = measure(seen)
    feed = suggested_feed(seen, measures)
    config = inspection_config(None).model_copy(update={"feed": feed}) if given is None else given
    rows, refusals, accepted = _read(seen, source, config, limit)
    closed = _refused_at_closing(config, rows)
    usable = len(rows) - closed.total()
    whole, problems = usable + closed.total() + refusals.refused, [*seen.notes]
    if not usable:
        problems.append(f"None of its {whole} events can be used.")
    elif given is not None and (problem := speed_problem(rows, config, config.feed.recorded_format, accepted)):
        problems.append(problem[0])
    for why, count in refusals.counts.most_common():
        cause = refusals.cause_of(why) or (REMEDIES.get(Reason(why)) if why in REASONS else None)
        counted = f"{count} of {whole} events are refused as {why}"
        problems.append(f"{counted}." if cause is None else f"{counted}: {cause.rstrip('.')}.")
    problems += odd(seen, measures, config)
    lines = suggestions(seen, measures, feed)
    return Inspection(seen, measures, config, usable, refusals.counts + closed, list(dict.fromkeys(problems)), lines)


def _read(
    seen: Observations, source: Path | tuple[list[bytes], IntArray], config: Config, limit: float
) -> tuple[npt.NDArray[np.void], Refusals, Accepted]:
    key, form = secrets.token_bytes(KEY_BYTES), config.feed.recorded_format
    if not isinstance(source, Path):
        values, arrived_us = source
        refusals, batch = Refusals(config.feed), Decoder(config, key).decode(values, arrived_us)
        refusals.add(values, batch, arrived_us)
        return batch.rows, refusals, Accepted()
    if seen.is_live:
        rows, refusals, reader = read_snapshots(config, source, seen.command, key)
        refusals.leave_out(seen.refused - reader.tally.refused, 0)
        return rows, refusals, Accepted(reader=reader)
    return *read_recording(config, source, form, key=key, most=limit), Accepted()


def _refused_at_closing(config: Config, rows: npt.NDArray[np.void]) -> Counter[str]:
    rules, counts = FixRules.of(config), Counter[str]()
    starts = config.slotting.slot_starts(rows["time"].astype(np.int64))
    for start in np.unique(starts):
        counts += Counter({why: int(bad.sum()) for why, bad in refused(rules, rows[starts == start]).items()})
    return counts


def odd(seen: Observations, measures: Measures, config: Config) -> list[str]:
    """What is odd about the fixes that can be read, the gravest first, each with what to do about it."""
    if not len(seen):
        return []
    users = (
        None if seen.documents == 1 else events_as_users(seen.user, seen.time_us, "the user's field"),
        everywhere_at_once(seen.user, seen.time_us, seen.lat, seen.lng),
    )
    sentences = (*users, _of_place(measures), _of_zone(seen), *_of_speeds(seen, measures, config), *_of_order(measures))
    return [sentence for sentence in sentences if sentence is not None]


def _of_place(measures: Measures) -> str | None:
    """Whether the axes are exchanged, by the place, or by what speeds by direction say.

    If they are, distances along one are too long by the cosine of the true latitude, and along the other one too short
    by that of the longitude. The speeds that vehicles report are not.
    """
    (lat, lng), quotient = measures.middle or (0.0, 0.0), measures.direction_quotient
    if abs(lat) > _FAR_NORTH:
        return (
            f"Most fixes are around latitude {lat:.1f}, longitude {lng:.1f}. If the feed is not of that place, "
            "latitude and longitude are exchanged: exchange them in [feed.fields], and in the domain below."
        )
    exchanged = math.cos(math.radians(lat)) * math.cos(math.radians(lng))
    if quotient is None or abs(lng) >= 90 or exchanged > _TELLING or quotient > exchanged**_NEARER:
        return None
    return (
        f"Latitude and longitude are perhaps exchanged: along meridians, reported over derived speed is {quotient:.2f} "
        f"of that along parallels. Usual is 0.85 to 1.2, and {exchanged:.2f} if they are exchanged here. Most fixes "
        f"are around latitude {lat:.1f}, longitude {lng:.1f}: look that place up on a map."
    )


def _of_zone(seen: Observations) -> str | None:
    if not seen.local:
        return None
    share = "The times" if seen.local == 1 else f"{seen.local:.0%} of the times"
    key = "feed.timezone" if seen.is_live else "feed.fields.timezone"
    return (
        f"{share} have no zone. They were read in that of {key}, UTC unless the configuration says otherwise: set it "
        "to the zone of the clocks, or windows are released hours off."
    )


def _of_speeds(seen: Observations, measures: Measures, config: Config) -> list[str]:
    speeds, (chosen, why), (unit, _) = measures.speeds, speed_source(measures), speed_unit(seen, measures)
    sentences = []
    if chosen != "reported":
        sentences.append(f"{why[0].upper()}{why[1:]}; let speeds be derived from positions: feed.speeds = {chosen!r}.")
    if speeds.zero + speeds.tiny > 0.5 or not speeds.known:
        return sentences
    if speeds.negative:
        otherwise = "count as missing" if chosen == "missing" and seen.is_live else "are refused"
        fate = f"count as 0 under relation 'values' and {otherwise} under 'participation'"
        sentences.append(
            f"{speeds.negative:.2%} of the speeds are negative. They {'are not read' if chosen == 'derived' else fate}."
        )
    quanta = seen.speed[np.abs(seen.speed) < LARGEST] * SPEED_TO_KMH[unit] / QUANTUM
    if above := bound_problem(quanta, config.value):
        sentences.append(above)
    if speeds.others:
        sentences.append(
            f"The speeds of {speeds.others:.0%} of the vehicles fit their positions in another unit than the others': "
            "have them sent in one unit, or let all be derived: feed.speeds = 'derived'."
        )
    if seen.speed_unit is not None and unit != seen.speed_unit:
        fixed = "GTFS-realtime prescribes" if seen.is_live else f"format {seen.format!r} fixes"
        advice = (
            f"set feed.speed_unit = {unit!r}" if seen.is_live else f"the suggested configuration reads them in {unit}"
        )
        sentences.append(
            f"The speeds agree with positions in {' or '.join(speeds.fits)} and not in {seen.speed_unit}, which "
            f"{fixed}; {advice}."
        )
    if impossible := speeds.impossible[unit]:
        sentences.append(
            f"{impossible} speeds are above 400 km/h, read in {unit}: errors. Under relation 'values' they count as "
            "value.upper; under 'participation' feed.quality.fastest_km_h refuses them."
        )
    return sentences


def _of_order(measures: Measures) -> list[str]:
    counted = {
        "lie far from the others, outside of the domain that is suggested": measures.far,
        "repeat a vehicle and time. Each counts once": measures.repeats,
        "come after a later one of their vehicle. hexveil replay sorts recordings; live, they count while their window "
        "is open": measures.disorder,
        "are reached and left by jumps faster than 400 km/h over more than 1 km: errors of position, or two vehicles "
        "with one identifier. feed.quality.teleport_km_h refuses them": measures.teleports,
        "repeat one position to the last digit for more than 20 min: parked, or stuck. feed.quality.frozen refuses "
        "them": measures.frozen,
    }
    late, ahead = measures.late.get("5m", 0.0), measures.late.get("ahead", 0.0)
    shares = {
        "have a time more than a minute after their arrival: wrong clocks. Up to five minutes are accepted": ahead,
        "arrive more than 5 min after their time: raise window.allowed_delay, or they are late": late * (late > 0.01),
    }
    sentences = [f"{count} of {measures.fixes} fixes {what}." for what, count in counted.items() if count]
    return [*sentences, *(f"{share:.1%} of the fixes {what}." for what, share in shares.items() if share)]
