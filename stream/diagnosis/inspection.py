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
from stream.config.value import QUANTUM
from stream.diagnosis.measures import LARGEST, Measures, measure
from stream.diagnosis.observations import Observations
from stream.diagnosis.reading import inspection_config, read_recording
from stream.diagnosis.recognition import Accepted, speed_problem
from stream.diagnosis.refusals import REMEDIES, Refusals
from stream.diagnosis.snapshots import read_snapshots
from stream.diagnosis.speeds import bound_problem
from stream.diagnosis.suggestion import Suggestion, speed_source, speed_unit, suggested_feed, suggestions
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


def inspect(
    seen: Observations,
    source: Path | tuple[list[bytes], npt.NDArray[np.int64]],
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
    seen: Observations, source: Path | tuple[list[bytes], npt.NDArray[np.int64]], config: Config, limit: float
) -> tuple[npt.NDArray[np.void], Refusals, Accepted]:
    """The rows that the service makes of the source, and what it refuses."""
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
    """What the rules for faulty fixes refuse when the windows are closed."""
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
