"""Why events are refused, the likely cause and the remedy: one table, for recordings and for a worker's feed.

Some events of each reason are looked at. No sentence has the content of an event.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from stream.config.feed import UNITS_PER_DEGREE, FeedConfig, FeedFields
from stream.diagnosis.times import LONGEST_TEXT, MOSTLY, no_form, time_form
from stream.ingestion.arrays import MAX_ARRAY_BYTES, first_element, may_hold_several
from stream.ingestion.decoding import MAX_MESSAGE_BYTES, REASONS, ArrivalTimes, Batch, Reason
from stream.ingestion.formats import (
    NO_LETTER,
    ROLES,
    feed_format,
    fields_in,
    known_fields,
    lenient_tree,
    number_or_none,
    time_reader,
    time_us,
)
from stream.sources.timestamps import cause_of_left_out, local_as_utc

_SAMPLE, _LEAST_TIMES, _NAMED, _MOST_NAMES, _LONGEST_NAME = 100, 10, 12, 40, 40
"""Refused events of each reason that are looked at, and that are compared with their arrivals; names of fields in a
sentence, and of an event, and their letters."""
_DECLARE = "set feed.format = 'declared' and {} in [feed.fields]"
_TWICE = "Local times that occur twice or never are refused"
_ENCODING = "their text is not UTF-8: set feed.encoding = 'cp1252', or to what hexveil inspect says"
REMEDIES = {
    Reason.NOT_JSON: "send one JSON object, or an array of them, in a message; hexveil inspect says what a file is",
    Reason.MISSING_FIELD: "set feed.format to that of the events, or to 'declared' and name their fields in "
    "[feed.fields]",
    Reason.WRONG_TYPE: "a field has no value of its type: docs/feeds/declared.md",
    Reason.SWAPPED_AXES: "latitude and longitude are swapped: exchange them where they are sent, or in [feed.fields]",
    Reason.OUT_OF_DOMAIN: "they are of another place than feed.domain: correct it, or read another feed; hexveil "
    "inspect says where",
    Reason.AT_ORIGIN: "they are at 0, 0, as units without reception report",
    Reason.TOO_OLD: "they are older than window.max_age, as a recording is: set window.lateness to 'event-time' here "
    "and for the worker, or release it by 'hexveil replay --offline'. Times before 2000 come from clocks that were "
    "never set",
    Reason.IN_FUTURE: "they are more than five minutes ahead: correct the clocks that stamp them",
    Reason.NEGATIVE_SPEED: "a speed below 0 is none: correct it where it is sent",
    Reason.TOO_FAST: "they are faster than feed.quality.fastest_km_h, as in another unit than feed.speed_unit",
    Reason.NOT_FINITE: "NaN and infinity are no numbers: leave such a field out",
    Reason.ID_EMPTY: "they name no user, so nobody's budget could be charged",
    Reason.NOT_STAMPED: "set message.timestamp.type of the topic to LogAppendTime",
    Reason.SEVERAL_EVENTS: "send each event as a message of its own",
}
_AT_FAULT = {
    **dict.fromkeys((Reason.TOO_FAST, Reason.NEGATIVE_SPEED), "speed"),
    **dict.fromkeys((Reason.TOO_OLD, Reason.IN_FUTURE), "time"),
    **dict.fromkeys((Reason.ID_EMPTY, Reason.ID_TOO_LONG), "user"),
    **dict.fromkeys((Reason.OUT_OF_DOMAIN, Reason.SWAPPED_AXES, Reason.AT_ORIGIN), "lat, lng"),
}


class Look(NamedTuple):
    """A refused event: the names of its fields, the format's fields with numbers and short texts in them (None for
    others), what a reader of tables says of a row that is no event, and when it arrived."""

    names: tuple[str, ...]
    values: Mapping[str, float | str | None]
    facts: Mapping[str, Any]
    arrived_us: int

    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude, if both are numbers."""
        lat, lng = (number_or_none(self.values.get(name)) for name in ("lat", "lng"))
        return None if lat is None or lng is None else (lat, lng)


def _look(message: bytes, formats: Iterable[FeedFields], arrived_us: int) -> Look | None:
    """Look at an event, as far as it is JSON, by that of the formats of which it has most fields."""
    try:
        tree = lenient_tree(message)
    except (ValueError, RecursionError):
        return None
    names = tuple(intern(name[:_LONGEST_NAME]) for name in islice(tree, _MOST_NAMES)) if isinstance(tree, dict) else ()
    present = max((fields_in(tree, fields) for fields in formats), key=len)
    values = {
        name: value if isinstance(value, float) or (isinstance(value, str) and len(value) <= LONGEST_TEXT) else None
        for name, value in present.items()
    }
    facts = (
        {name: tree[name] for name in ("row", "columns", "of", "undecoded") if name in tree}
        if names[:1] == ("row",)
        else {}
    )
    return Look(names, values, {name: fact for name, fact in facts.items() if isinstance(fact, float)}, arrived_us)


class Refusals:
    """Counts events: accepted ones, and refused ones by reason. It looks at the first ``sample`` of each reason.

    ``file_format``: of the recording; the feed's own without it. ``derived``: how many got a speed derived from
    positions, where the feed asks for it.
    """

    def __init__(self, feed: FeedConfig, file_format: str | None = None, sample: int = _SAMPLE) -> None:
        self._feed, self._format, self._most = feed, file_format or feed.format, sample
        # An event of a recording that cannot be converted to the feed's format is passed on unchanged.
        formats = [feed_format(feed.model_copy(update={"format": name})) for name in {self._format: 0, feed.format: 0}]
        self._fields, self._splits = [known.fields for known in formats], not formats[0].positional
        self.taken = self.derived = 0
        self.counts = Counter[str]()
        self._first, self._looks = dict[Reason, int](), dict[Reason, list[Look | None]]()

    @property
    def refused(self) -> int:
        """Number of refused events."""
        return self.counts.total()

    def add(self, values: Sequence[bytes | None], batch: Batch, arrived_us: ArrivalTimes = -1) -> None:
        """Count the events of the next decoded batch."""
        before = self.taken + self.refused
        self.taken += len(batch.rows)
        if not len(batch.reason):
            return
        for code in np.unique(batch.reason).tolist():
            reason, where = REASONS[code], batch.refused[batch.reason == code].tolist()
            self.counts[reason.value] += len(where)
            self._first.setdefault(reason, before + where[0])
            looks = self._looks.setdefault(reason, [])
            for at in where[: self._most - len(looks)]:
                arrived = arrived_us if isinstance(arrived_us, int) else int(arrived_us[at])
                looks.append(self._seen(values[at] or b"", arrived))

    def _seen(self, value: bytes, arrived_us: int) -> Look | None:
        if self._splits and len(value) <= MAX_ARRAY_BYTES and may_hold_several(value):
            value = first_element(value)
        return _look(value, self._fields, arrived_us) if len(value) <= MAX_MESSAGE_BYTES else None

    def leave_out(self, counts: Mapping[str, int], derived: int) -> None:
        """Count events that were left out before any message was made, by reason, and those with a derived speed."""
        self.counts += Counter(counts)
        self.derived += derived

    def examples(self) -> dict[str, str]:
        """One event for each reason: its row in the recording, from 0, and the names of the fields at fault."""
        return {reason.value: self._example(reason) for reason in self._first}

    def told(self) -> list[str]:
        """One line for each reason, the most frequent first, with the cause of those of a twentieth of the events."""
        examples, lines, fewest = self.examples(), [], (self.taken + self.refused) / 20
        for name, count in self.counts.most_common():
            why = self.cause_of(name) if count >= fewest else None
            like = f", like {examples[name]}" if name in examples else ""
            lines.append(f"  {count} {name}{like}" + (f": {why}" if why else ""))
        return lines

    def likely_cause(self) -> str | None:
        """The likely cause of the most frequent reason, if more than a twentieth of the events are refused."""
        if not self.counts or 20 * self.refused <= self.taken + self.refused:
            return None
        why = self.cause_of(self.counts.most_common(1)[0][0])
        return None if why is None else f"Likely {why}."

    def cause_of(self, name: str) -> str | None:
        """The likely cause of one reason, with its remedy."""
        if name not in REASONS or Reason(name) not in self._first:
            return cause_of_left_out(Counter({name: 1}))
        reason, looks = Reason(name), self._looked(Reason(name))
        special: Callable[[list[Look]], str | None] | None = {
            Reason.WRONG_TYPE: self._of_types,
            Reason.OUT_OF_DOMAIN: self._of_places,
            Reason.MISSING_FIELD: self._of_fields,
            Reason.TOO_OLD: self._of_times,
            Reason.IN_FUTURE: self._of_times,
        }.get(reason)
        return (special(looks) if special and looks else None) or REMEDIES.get(reason)

    def _looked(self, reason: Reason) -> list[Look]:
        return [look for look in self._looks[reason] if look is not None]

    def _example(self, reason: Reason) -> str:
        where, looks = f"row {self._first[reason]}", self._looked(reason)
        if not looks:
            return where
        first = looks[0]
        if first.facts:
            columns = f"{first.facts.get('columns', 0):.0f} of {first.facts.get('of', 0):.0f} columns"
            return f"row {first.facts['row']:.0f}: " + (
                columns if "columns" in first.facts else "text that is not UTF-8"
            )
        if reason == Reason.MISSING_FIELD:
            names = ", ".join(name for name in first.names[:_NAMED] if name.isprintable())
            return f"{where}: no {', '.join(self._paths(looks[:1]))} among {names or 'no fields'}"
        fields = _AT_FAULT.get(reason, "")
        if reason == Reason.WRONG_TYPE:
            fields = ", ".join(name for name in ("lat", "lng", "speed") if _is_no_number(first, name)) or "time"
        return f"{where}: {fields}" if fields else where

    def _paths(self, looks: Sequence[Look]) -> dict[str, str]:
        paths = dict(zip(ROLES, self._fields[0].paths, strict=False))
        return {paths.get(role, role): role for role in ROLES if _mostly(role not in each.values for each in looks)}

    def _of_types(self, looks: list[Look]) -> str | None:
        if _mostly(NO_LETTER in str(each.values.get("user", "")) for each in looks):
            return _ENCODING
        texts = [name for name in ("lat", "lng", "speed") if _mostly(_is_no_number(each, name) for each in looks)]
        if texts:
            return f"{', '.join(texts)} {'is' if len(texts) == 1 else 'are'} no numbers"
        return self._of_times(looks)

    def _of_times(self, looks: list[Look]) -> str | None:
        """What is wrong with the form or the zone of times; None if they are of the configured form."""
        declared = self._format == "declared"
        times = [time for each in looks if (time := each.values.get("time")) is not None]
        known, fields = time_form(times), self._fields[0]
        configured, zoned = fields.time_format if declared else "epoch-ms", fields.timezone is not None
        if known is None:
            return no_form(times)
        if known.time_format != configured and (declared or known.time_format != "rfc3339"):
            return known.said(_DECLARE, zoned=zoned)
        if known.local and not zoned:
            said = known.said(_DECLARE).removeprefix("times are of another form: ")
            return f"{known.local:.0%} of these times have no offset from UTC: {said}. " + _TWICE
        if self._feed.times_zone is not None:
            return None
        read = time_reader(fields, declared=declared)
        moments = [(_moment(read, each.values.get("time")), each.arrived_us) for each in looks if each.arrived_us >= 0]
        ahead = np.array([(moment - arrived) / 1e6 for moment, arrived in moments if moment is not None])
        return local_as_utc(ahead, "the moments when they arrive") if len(ahead) >= _LEAST_TIMES else None

    def _of_places(self, looks: list[Look]) -> str | None:
        places = [place for each in looks if (place := each.place()) is not None]
        powers = powers_of_degrees(*np.array(places).T) if places else ()
        if powers:
            powers_told = " or ".join(f"10^{len(str(power)) - 1}" for power in powers)
            return f"they are degrees x {powers_told}: {_DECLARE.format(f'units_per_degree = {powers[0]}')}"
        if _mostly(self._feed.domain.contains(lng, lat) for lat, lng in places):
            return REMEDIES[Reason.SWAPPED_AXES]
        if _mostly(abs(lat) > 90 or abs(lng) > 180 for lat, lng in places):
            return (
                "they are outside the globe, as metres of a grid are: send latitude and longitude of WGS 84 in degrees"
            )
        return None

    def _of_fields(self, looks: list[Look]) -> str | None:
        if _mostly("undecoded" in each.facts for each in looks):
            return _ENCODING
        if _mostly("columns" in each.facts for each in looks):
            return "rows have another number of columns than the header: quote values in which a separator is"
        for name, known in known_fields().items():
            roots = {path.split(".")[0] for path in known.paths}
            if name not in (self._format, self._feed.format) and _mostly(roots <= set(each.names) for each in looks):
                return f"they have the fields of {name!r}, another format: give --format {name}, or set feed.format"
        paths = self._paths(looks)
        if not paths:
            return None
        lacking = "they have no " + ", ".join(f"{path!r} ({role})" for path, role in paths.items())
        if list(paths.values()) == ["speed"]:
            return (
                f"{lacking}: name its field in [feed.fields]; if there is none, derive speeds before the worker's "
                "topic: feed.speeds = 'derived', docs/feeds/derived.md"
            )
        if self.taken > self.counts[Reason.MISSING_FIELD]:
            return f"{lacking}; most others do, so these are left out"
        return f"{lacking}: {REMEDIES[Reason.MISSING_FIELD]}"


def powers_of_degrees(lat: Any, lng: Any) -> list[int]:
    """Powers of ten by which most positions may be multiplied, the likeliest first; empty for degrees and nonsense.

    They are whole numbers of at least a degree. Of several powers the smallest puts them in a city of usual size.
    """
    lat, lng = np.abs(np.asarray(lat, dtype=float)), np.abs(np.asarray(lng, dtype=float))
    whole = (lat % 1 == 0) & (lng % 1 == 0)
    if not len(lat) or np.mean((lat <= 90) & (lng <= 180)) > 1 - MOSTLY or np.mean(whole) < MOSTLY:
        return []
    largest = float(np.median(np.maximum(lat, lng)))
    return [
        power
        for power in UNITS_PER_DEGREE[1:]
        if largest >= power and np.mean((lat <= 90 * power) & (lng <= 180 * power)) >= MOSTLY
    ]


def _moment(read: Callable[[Any], Any], value: Any) -> float | None:
    try:
        return time_us(read(value))
    except (ValueError, ArithmeticError):
        return None


def _is_no_number(look: Look, name: str) -> bool:
    return name in look.values and number_or_none(look.values[name]) is None


def _mostly(answers: Iterable[Any]) -> bool:
    each = list(map(bool, answers))
    return 2 * sum(each) > len(each)
