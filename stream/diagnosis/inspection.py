"""Inspects a source: reads it as the service does, measures it, says what is wrong with it, and suggests its
configuration."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stream.config import Config
from stream.config.feed import SPEED_TO_KMH
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.diagnosis.measures import Measures, measure
from stream.diagnosis.observations import Observations
from stream.diagnosis.observing import inspection_config
from stream.diagnosis.reading import ageless, read_recording
from stream.diagnosis.recognition import Accepted, unit_problem
from stream.diagnosis.refusals import REMEDIES, Refusals
from stream.diagnosis.snapshots import read_snapshots
from stream.diagnosis.speeds import bound_problem
from stream.diagnosis.suggestion import (
    Suggestion,
    fit_in_no_unit,
    speed_source,
    speed_unit,
    suggested_feed,
    suggestions,
)
from stream.diagnosis.users import events_as_users, everywhere_at_once
from stream.ingestion.decoding import REASONS, Decoder, Reason
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.statistics.fix_rules import refused
from stream.terms import FixRules

_FAR_NORTH = 66.0
"""Fleets beyond the polar circle are rare, and cities whose longitude is between 66 and 90 degrees are not."""
_TELLING = 0.7
"""Above this product of cosines, speeds by direction differ too little between right and exchanged axes."""
_NEARER = 0.6
"""A quotient below the product to this power is nearer to what exchanged axes give. On recordings of buses it is 0.89
to 1.01."""
_NO_SPEED, _MOST_ZERO, _TINY, _MOST_KNOWN = 0.5, 0.95, 0.2, 0.99


@dataclass(frozen=True)
class Inspection:
    """What an inspection ends with. ``usable``, ``refused``: what the service takes under ``config``, and why not the
    others."""

    seen: Observations
    measures: Measures
    config: Config
    usable: int
    refused: Counter[str]
    problems: list[str]
    suggestions: list[Suggestion]


# long: the steps of an inspection, in their order
def inspect(
    seen: Observations,
    source: Path | tuple[list[bytes], npt.NDArray[np.int64]],
    given: Config | None = None,
    limit: float = math.inf,
) -> Inspection:
    """The inspection of what was seen of ``source``: a file, or messages with the times of their arrival.

    What is counted is what the service makes of it under the ``given`` configuration, else under the suggested one.
    """
    measures, key = measure(seen), secrets.token_bytes(KEY_BYTES)
    feed = suggested_feed(seen, measures)
    config = inspection_config(None).model_copy(update={"feed": feed}) if given is None else given
    refusals, problems, unit = Refusals(config.feed, config.feed.recorded_format), [*seen.notes], None
    if not isinstance(source, Path):
        rows, refused = _read_messages(config, *source, key, refusals)
    elif seen.is_live:
        rows, refused, reader = read_snapshots(config, source, seen.command, key)
        refused, unit = refused + seen.refused - reader.tally.refused, reader.unit
    else:
        rows, refusals = read_recording(config, source, config.feed.recorded_format, key=key, most=limit)
        refused = refusals.counts
    closed = _refused_at_closing(config, rows)
    usable = len(rows) - closed.total()
    whole = usable + closed.total() + refused.total()
    if not usable:
        problems.append(f"None of its {whole} events can be used.")
    elif given is not None and (
        problem := unit_problem(rows, config.feed, config.feed.recorded_format, Accepted(unit=unit))
    ):
        problems.append(problem[0])
    problems += [
        f"{count} of {whole} events are refused as {why}" + _remedy(why, refusals)
        for why, count in refused.most_common()
    ]
    problems += odd(seen, measures, config)
    lines = suggestions(seen, measures, feed)
    return Inspection(seen, measures, config, usable, refused + closed, list(dict.fromkeys(problems)), lines)


def odd(seen: Observations, measures: Measures, config: Config) -> list[str]:
    """What is odd about the fixes that can be read, the gravest first, each with what to do about it."""
    if not len(seen):
        return []
    of_fixes = (
        *_place_and_time_problems(seen, measures),
        *_speed_problems(seen, measures, config),
        *_order_problems(measures),
    )
    return [*_of_users(seen), *of_fixes]


def _read_messages(
    config: Config, values: list[bytes], arrived_us: npt.NDArray[np.int64], key: bytes, refusals: Refusals
) -> tuple[npt.NDArray[np.void], Counter[str]]:
    """The messages of a topic as the worker decodes them."""
    batch = Decoder(ageless(config), key).decode(values, arrived_us)
    refusals.add(values, batch)
    return batch.rows, refusals.counts


def _refused_at_closing(config: Config, rows: npt.NDArray[np.void]) -> Counter[str]:
    """What the rules for faulty fixes refuse when the windows are closed."""
    rules, counts = FixRules.of(config), Counter[str]()
    starts = config.slotting.slot_starts(rows["time"].astype(np.int64))
    for start in np.unique(starts):
        counts += Counter({why: int(bad.sum()) for why, bad in refused(rules, rows[starts == start]).items()})
    return counts


def _remedy(why: str, refusals: Refusals) -> str:
    cause = refusals.cause_of(why) or (REMEDIES.get(Reason(why)) if why in REASONS else None)
    return "." if cause is None else f": {cause.rstrip('.')}."


def _of_users(seen: Observations) -> list[str]:
    once = None if seen.documents else events_as_users(seen.user, seen.time_us, "the user's field")
    everywhere = everywhere_at_once(seen.user, seen.time_us, seen.lat, seen.lng)
    return [sentence for sentence in (once, everywhere) if sentence is not None]


def _place_and_time_problems(seen: Observations, measures: Measures) -> list[str]:
    sentences = []
    lat, lng = measures.middle or (0.0, 0.0)
    if abs(lat) > _FAR_NORTH:
        sentences.append(
            f"Most fixes are around latitude {lat:.1f}, longitude {lng:.1f}. If the feed is not of that place, "
            "latitude and longitude "
            "are exchanged: exchange them in [feed.fields], and in the domain below."
        )
    elif (perhaps := _perhaps_exchanged(measures.direction_quotient, lat, lng)) is not None:
        sentences.append(perhaps)
    if seen.local:
        share = "The times" if seen.local == 1 else f"{seen.local:.0%} of the times"
        key = "feed.timezone" if seen.is_live else "feed.fields.timezone"
        sentences.append(
            f"{share} have no zone. They were read in that of {key}, UTC unless the configuration says otherwise: set "
            "it to the "
            "zone of the clocks, or windows are released hours off."
        )
    return sentences


def _perhaps_exchanged(quotient: float | None, lat: float, lng: float) -> str | None:
    """What speeds by direction say about the axes; None if nothing.

    If latitude and longitude are exchanged, distances along one are too long by the cosine of the true latitude, and
    along the other one too short by that of the longitude. The speeds that vehicles report are not.
    """
    if quotient is None or abs(lng) >= 90:
        return None
    exchanged = math.cos(math.radians(lat)) * math.cos(math.radians(lng))
    if exchanged > _TELLING or quotient > exchanged**_NEARER:
        return None
    return (
        f"Latitude and longitude are perhaps exchanged: along meridians, reported over derived speed is {quotient:.2f} "
        "of that along "
        f"parallels. Usual is 0.85 to 1.2, and {exchanged:.2f} if they are exchanged here. Most fixes are around "
        f"latitude {lat:.1f}, "
        f"longitude {lng:.1f}: look that place up on a map."
    )


def _speed_problems(seen: Observations, measures: Measures, config: Config) -> list[str]:
    speeds, (chosen, _) = measures.speeds, speed_source(seen, measures)
    remedy = f"let speeds be derived from positions: feed.speeds = {chosen!r}"
    if speeds.known < _NO_SPEED:
        return [f"{1 - speeds.known:.0%} of the fixes have no speed; {remedy}."]
    if speeds.zero + speeds.tiny > _MOST_ZERO:
        return [
            f"{speeds.zero:.0%} of the speeds are 0 and {speeds.tiny:.0%} above 0 but below 0.01, so they are no "
            "measurements; "
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
    quanta = seen.speed[np.isfinite(seen.speed)] * SPEED_TO_KMH[unit] / SPEED_QUANTUM_KMH
    if above := bound_problem(quanta, config.speed.upper_quanta):
        sentences.append(above)
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
            "speed.upper_bound; under 'participation' feed.quality.fastest_km_h refuses them."
        )
    if fit_in_no_unit(measures):
        sentences.append(
            f"The speeds fit in no unit: positions give {speeds.derived_kmh:.1f} km/h in the mean, and reported over "
            "derived is "
            + ", ".join(f"{quotient:g} in {unit}" for unit, quotient in speeds.quotients.items())
            + f"; {remedy}."
        )
    return sentences


def _order_problems(measures: Measures) -> list[str]:
    sentences = [
        f"{count} of {measures.fixes} fixes {what}."
        for count, what in (
            (measures.far, "lie far from the others, outside of the domain that is suggested"),
            (measures.repeats, "repeat a vehicle and time. Each counts once"),
            (
                measures.disorder,
                "come after a later one of their vehicle. hexveil replay sorts recordings; live, they count while "
                "their window is open",
            ),
            (
                measures.teleports,
                "are reached and left by jumps faster than 400 km/h over more than 1 km: errors of position, or two "
                "vehicles with one "
                "identifier. feed.quality.teleport_km_h refuses them",
            ),
            (
                measures.frozen,
                "repeat one position to the last digit for more than 20 min: parked, or stuck. feed.quality.frozen "
                "refuses them",
            ),
        )
        if count
    ]
    if measures.late.get("ahead", 0) > 0:
        sentences.append(
            f"{measures.late['ahead']:.2%} of the fixes have a time more than a minute after their arrival: wrong "
            f"clocks. "
            "events may be five minutes ahead."
        )
    if measures.late.get("5m", 0) > 0.01:
        sentences.append(
            f"{measures.late['5m']:.1%} of the fixes arrive more than 5 min after their time: raise "
            "window.allowed_delay, or they "
            "are late."
        )
    return sentences
