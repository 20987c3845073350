"""Why events are refused, the likely cause and the remedy. No sentence has the content of an event.

One table and one judge for recordings, of which some events of each reason are looked at again, and for workers, which
look at a sample of what arrives.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from stream.config.feed import UNITS_PER_DEGREE, FeedConfig, FeedFields
from stream.diagnosis.times import LONGEST_TEXT, MOSTLY, UNITS, form, time_form
from stream.ingestion.decoding import REASONS, Batch, Reason
from stream.ingestion.formats import NO_LETTER, feed_format, known_fields, looks_like, number
from stream.sources.refused_vehicles import cause_of_left_out

ROLES = ("user", "time", "lat", "lng", "speed")
_SAMPLE, _NAMED, _MOST_NAMES, _LONGEST_NAME = 100, 12, 40, 40
"""Refused events of each reason that are looked at; names of fields in a sentence, and of an event, and their
letters."""
_NO_FACTS: Mapping[str, float] = {}
_FACTS = ("row", "columns", "of", "undecoded")
_DECLARE = "set feed.format = 'declared' and {} in [feed.fields]"
REMEDIES = {
    Reason.NOT_JSON: "send one JSON object, or an array of them, in a message; of a file, hexveil inspect says what it "
    "is",
    Reason.MISSING_FIELD: "set feed.format to that of the events, or to 'declared' and name their fields in "
    "[feed.fields]",
    Reason.WRONG_TYPE: "a field has no value of its type: docs/feeds/declared.md",
    Reason.SWAPPED_AXES: "latitude and longitude are swapped: exchange them where they are sent, or in [feed.fields]",
    Reason.OUT_OF_DOMAIN: "they are of another place than feed.domain: correct it, or read another feed; hexveil "
    "inspect says where",
    Reason.AT_ORIGIN: "they are at 0, 0, as units without reception report",
    Reason.TOO_OLD: "they are older than window.max_age, as a recording is: set window.lateness to 'event-time' here "
    "and for the "
    "worker, or release it by 'hexveil replay --offline'. Times before 2000 come from clocks that were never set",
    Reason.IN_FUTURE: "they are more than five minutes ahead: correct the clocks that stamp them",
    Reason.NEGATIVE_SPEED: "a speed below 0 is none: correct it where it is sent",
    Reason.TOO_FAST: "they are faster than feed.quality.fastest_km_h, as in another unit than feed.speed_unit",
    Reason.NOT_FINITE: "NaN and infinity are no numbers: leave such a field out",
    Reason.ID_EMPTY: "they name no user, so nobody's budget could be charged",
    Reason.NOT_STAMPED: "set message.timestamp.type of the topic to LogAppendTime",
    Reason.SEVERAL_EVENTS: "send each event as a message of its own",
}
_AT_FAULT: dict[Reason, tuple[str, ...]] = {
    Reason.TOO_FAST: ("speed",),
    Reason.NEGATIVE_SPEED: ("speed",),
    Reason.TOO_OLD: ("time",),
    Reason.IN_FUTURE: ("time",),
    Reason.ID_EMPTY: ("user",),
    Reason.ID_TOO_LONG: ("user",),
} | dict.fromkeys((Reason.OUT_OF_DOMAIN, Reason.SWAPPED_AXES, Reason.AT_ORIGIN), ("lat", "lng"))


class Look(NamedTuple):
    """What is looked at of an event: names of its fields, those among them of the format, and numbers and short texts
    there."""

    names: tuple[str, ...]
    present: tuple[str, ...]
    values: Mapping[str, float | str]
    facts: Mapping[str, float] = _NO_FACTS
    """What a reader of tables says of a row that is no event."""


def look(message: bytes, fields: FeedFields) -> Look | None:
    """Look at an event, as far as it is JSON."""
    is_readable, present = looks_like(message, fields)
    if not is_readable:
        return None
    tree = json.loads(message.decode("utf-8", "replace"), parse_int=float)
    names = tuple(intern(name[:_LONGEST_NAME]) for name in islice(tree, _MOST_NAMES)) if isinstance(tree, dict) else ()
    values = {
        name: value
        for name, value in present
        if isinstance(value, float) or (isinstance(value, str) and len(value) <= LONGEST_TEXT)
    }
    facts = _NO_FACTS
    if names[:1] == ("row",):
        facts = {name: tree[name] for name in _FACTS if isinstance(tree.get(name), float)}
    return Look(names, tuple(name for name, _ in present), values, facts)


def cause(reason: Reason, looks: Sequence[Look], feed: FeedConfig, file_format: str | None = None) -> str | None:
    """The likely cause for which events like ``looks`` are refused, with the remedy; None if there is nothing to
    say."""
    file_format = file_format or feed.format
    special = {
        Reason.WRONG_TYPE: _of_types,
        Reason.OUT_OF_DOMAIN: _of_places,
        Reason.MISSING_FIELD: _of_fields,
        Reason.TOO_OLD: _of_times,
        Reason.IN_FUTURE: _of_times,
    }.get(reason)
    return (special(looks, feed, file_format) if special and looks else None) or REMEDIES.get(reason)


def _of_types(looks: Sequence[Look], feed: FeedConfig, file_format: str) -> str | None:
    if _mostly(NO_LETTER in str(each.values.get("user", "")) for each in looks):
        return _ENCODING
    texts = [name for name in ("lat", "lng", "speed") if _mostly(_is_no_number(each, name) for each in looks)]
    if texts:
        return f"{', '.join(texts)} {'is' if len(texts) == 1 else 'are'} no numbers"
    return _of_times(looks, feed, file_format)


def _is_no_number(look: Look, name: str) -> bool:
    value = look.values.get(name)
    try:
        return isinstance(value, str) and number(value) is None
    except (ValueError, OverflowError):
        return True


def _of_times(looks: Sequence[Look], feed: FeedConfig, file_format: str) -> str | None:
    """What is wrong with the form of times; None if they are of the configured form."""
    times = [each.values["time"] for each in looks if "time" in each.values]
    fields = feed.fields if file_format == "declared" else None
    configured = "epoch-ms" if fields is None else fields.time_format
    known = time_form(times)
    if known is None:
        texts = [time for time in times if isinstance(time, str)]
        if 2 * len(texts) <= len(times) or not texts:
            return None
        return (
            f"times are texts like {form(texts[-1])!r} (9 is any digit, a any letter), which is no form that is known: "
            "send them "
            "like '2017-03-21T07:00:00-05:00', or as numbers, or set time_format in [feed.fields] to their pattern"
        )
    if known.time_format == "epoch-ns":
        return "times are nanoseconds since 1970: divide them so that they are microseconds"
    is_zoned = fields is not None and fields.timezone is not None
    zone = "" if is_zoned or not known.local else " and timezone to the zone of the clocks, like 'America/Chicago',"
    if known.time_format != configured and not (known.time_format == "rfc3339" and fields is None):
        unit = (
            f"{known.time_format.removeprefix('epoch-')} since 1970"
            if known.time_format in UNITS
            else "of another form"
        )
        either = f" (or {known.either!r}: ask whoever runs the feed)" if known.either else ""
        return f"times are {unit}: {_DECLARE.format(f'time_format = {known.time_format!r}{either}{zone}')}"
    if zone:
        return (
            f"{known.local:.0%} of these times have no offset from UTC: {_DECLARE.format(f'the fields{zone}')}. Local "
            "times "
            "that occur twice or never are refused"
        )
    return None


def _of_places(looks: Sequence[Look], feed: FeedConfig, _: str) -> str | None:
    places = [place for each in looks if (place := _place(each)) is not None]
    if not places:
        return None
    units = units_of_degrees(*np.array(places).T)
    if units > 1:
        power = len(str(units)) - 1
        return f"they are degrees x 10^{power}: {_DECLARE.format(f'units_per_degree = {units}')}"
    if _mostly(feed.domain.contains(lng, lat) for lat, lng in places):
        return REMEDIES[Reason.SWAPPED_AXES]
    if _mostly(abs(lat) > 90 or abs(lng) > 180 for lat, lng in places):
        return "they are outside the globe: send latitude and longitude in degrees of WGS 84"
    return None


def _place(look: Look) -> tuple[float, float] | None:
    try:
        return number(look.values["lat"]), number(look.values["lng"])
    except (KeyError, ValueError, OverflowError):
        return None


def units_of_degrees(lat: Any, lng: Any) -> int:
    """The power of ten by which most positions are multiplied; 1 for degrees, and where no power puts them on the
    globe.

    The largest that brings them to no less than a tenth of a degree, as whole numbers are.
    """
    lat, lng = np.abs(np.asarray(lat, dtype=float)), np.abs(np.asarray(lng, dtype=float))
    if (
        not len(lat)
        or np.mean((lat <= 90) & (lng <= 180)) > 1 - MOSTLY
        or np.mean((lat % 1 == 0) & (lng % 1 == 0)) < MOSTLY
    ):
        return 1
    units: int
    for units in UNITS_PER_DEGREE[:0:-1]:
        inside = (lat <= 90 * units) & (lng <= 180 * units)
        if float(inside.mean()) >= MOSTLY and np.median(np.maximum(lat, lng)) >= units:
            return units
    return 1


_ENCODING = "their text is not UTF-8: set feed.encoding = 'cp1252', or to what hexveil inspect says"


def _of_fields(looks: Sequence[Look], feed: FeedConfig, file_format: str) -> str | None:
    if _mostly("undecoded" in each.facts for each in looks):
        return _ENCODING
    if _mostly("columns" in each.facts for each in looks):
        return "rows have another number of columns than the header: quote values in which a separator is"
    for name, known in known_fields().items():
        if name not in (file_format, feed.format) and _mostly(
            {path.split(".")[0] for path in known.paths} <= set(each.names) for each in looks
        ):
            return f"another format: these events have the fields of {name!r}: give --format {name}, or set feed.format"
    lacking = [role for role in ROLES if _mostly(role not in each.present for each in looks)]
    if not lacking:
        return None
    paths = dict(zip(ROLES, _fields_of(feed, file_format).paths, strict=False))
    named = ", ".join(f"{paths.get(role, role)!r} ({role})" for role in lacking)
    if lacking == ["speed"]:
        return (
            f"most have no {named}: name its field in [feed.fields]; if there is none, set feed.speeds "
            "= "
            "'derived' (docs/feeds/derived.md)"
        )
    return f"most have no {named}: {REMEDIES[Reason.MISSING_FIELD]}"


def _fields_of(feed: FeedConfig, file_format: str) -> FeedFields:
    return feed_format(feed.model_copy(update={"format": file_format})).fields


def _mostly(answers: Any) -> bool:
    each = list(map(bool, answers))
    return 2 * sum(each) > len(each)


@dataclass
class Refusals:
    """Counts the events of a recording in ``file_format``: accepted ones, and refused ones by reason.

    ``derived``: how many got a speed derived from positions, where the feed asks for it.
    """

    feed: FeedConfig
    file_format: str
    taken: int = 0
    derived: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _first: dict[Reason, int] = field(default_factory=dict)
    _sample: dict[Reason, list[bytes]] = field(default_factory=dict)
    _looks: dict[Reason, list[Look]] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Number of refused events."""
        return sum(self.counts.values())

    def add(self, values: Sequence[bytes | None], batch: Batch) -> None:
        """Count the events of the next decoded batch."""
        before = self.taken + self.refused
        self.taken += len(batch.rows)
        for code in np.unique(batch.reason).tolist():
            reason, where = REASONS[code], batch.rejected[batch.reason == code].tolist()
            self.counts[reason.value] += len(where)
            self._first.setdefault(reason, before + where[0])
            sample = self._sample.setdefault(reason, [])
            sample += [values[at] or b"" for at in where[: _SAMPLE - len(sample)]]
            self._looks.pop(reason, None)

    def leave_out(self, counts: Mapping[str, int], derived: int) -> None:
        """Count events that were left out, by reason, before any message was made of them, and those with a ``derived``
        speed."""
        self.counts += Counter(counts)
        self.derived += derived

    def examples(self) -> dict[str, str]:
        """One event for each reason: its row in the recording, from 0, and the names of the fields at fault."""
        return {reason.value: self._example(reason) for reason in self._sample}

    def told(self) -> list[str]:
        """One line for each reason, the most frequent first, with the cause of those that concern a twentieth of the
        events."""
        examples, lines, fewest = self.examples(), [], (self.taken + self.refused) / 20
        for name, count in self.counts.most_common():
            why = self.cause_of(name) if count >= fewest else None
            like = f", like {examples[name]}" if name in examples else ""
            lines.append(f"  {count} {name}{like}" + (f": {why}" if why else ""))
        return lines

    def likely_cause(self) -> str | None:
        """The likely cause of the most frequent reason, with its remedy, if more than a twentieth of the events are
        refused."""
        if not self.counts or 20 * self.refused <= self.taken + self.refused:
            return None
        why = self.cause_of(self.counts.most_common(1)[0][0])
        return None if why is None else f"Likely {why}."

    def cause_of(self, name: str) -> str | None:
        """The likely cause of one reason, with its remedy."""
        if name not in REASONS or Reason(name) not in self._sample:
            return cause_of_left_out(Counter({name: 1}))
        return cause(Reason(name), self._looked(Reason(name)), self.feed, self.file_format)

    def _looked(self, reason: Reason) -> list[Look]:
        """Events of a recording are converted to the feed's format; one that cannot be converted is passed on
        unchanged."""
        if reason not in self._looks:
            places = [_fields_of(self.feed, name) for name in dict.fromkeys((self.file_format, self.feed.format))]
            looks = [
                max((seen for fields in places if (seen := look(message, fields))), key=lambda seen: len(seen.present),
                default=None)
                for message in self._sample[reason]
            ]  # fmt: skip
            self._looks[reason] = [seen for seen in looks if seen is not None]
        return self._looks[reason]

    def _example(self, reason: Reason) -> str:
        where, looks = f"row {self._first[reason]}", self._looked(reason)
        if not looks:
            return where
        first = looks[0]
        if first.facts:
            row = first.facts["row"]
            known = f"{first.facts.get('columns', 0):.0f} of {first.facts.get('of', 0):.0f} columns"
            return f"row {row:.0f}: {known if 'columns' in first.facts else 'text that is not UTF-8'}"
        if reason == Reason.MISSING_FIELD:
            paths = dict(zip(ROLES, _fields_of(self.feed, self.file_format).paths, strict=False))
            lacking = [paths.get(role, role) for role in ROLES if role not in first.present]
            names = ", ".join(name for name in first.names[:_NAMED] if name.isprintable())
            return f"{where}: no {', '.join(lacking)} among {names or 'no fields'}"
        fields: tuple[str, ...] = _AT_FAULT.get(reason, ())
        if reason == Reason.WRONG_TYPE:
            fields = tuple(name for name in ("lat", "lng", "speed") if _is_no_number(first, name)) or ("time",)
        return f"{where}: {', '.join(fields)}" if fields else where


class LiveRefusals:
    """Counts refused events of a live feed by reason, and looks at some events. Its memory is fixed."""

    LEAST_EVENTS = 100
    """Events since the last judgement without which there is no new one."""

    def __init__(self, feed: FeedConfig) -> None:
        self._feed = feed
        self._counts, self._events = np.zeros(len(REASONS), dtype=np.int64), 0
        self._sentence: str | None = None

    def take(self, batch: Batch) -> None:
        """Count the events of a batch."""
        self._counts += np.bincount(batch.reason, minlength=len(REASONS))
        self._events += len(batch.rows) + len(batch.reason)

    def judged(self, looks: Sequence[Look]) -> str | None:
        """For which reason most events are refused, with the remedy. A sentence stays until enough newer events are
        judged."""
        if self._events >= self.LEAST_EVENTS:
            self._sentence = self._judge(looks) if 2 * self._counts.sum() > self._events else None
            self._counts[:], self._events = 0, 0
        return self._sentence

    def _judge(self, looks: Sequence[Look]) -> str:
        reason = REASONS[int(self._counts.argmax())]
        refused, why = (
            f"{self._counts.max()} of {self._events} events are refused as {reason.value}",
            cause(reason, looks, self._feed),
        )
        return refused if why is None else f"{refused}: {why}"
