"""Explains to the owner of a recording why events were refused: counts, one example for each reason, the likely cause.

An example shows the fields at fault, never the user.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from stream.config.feed import FeedConfig, FeedFields
from stream.ingestion.decoding import REASONS, Batch, Reason
from stream.ingestion.formats import feed_format, known_fields, looks_like
from stream.sources.refused_vehicles import SWAPPED_AXES, cause_of_left_out
from stream.windows import EARLIEST_S, LATEST_S

_SAMPLE = 100
"""Number of refused events of each reason from which the likely cause is found."""
_SHOWN = 80
_AT_FAULT = {
    Reason.OUT_OF_DOMAIN: ("lat", "lng"),
    Reason.SWAPPED_AXES: ("lat", "lng"),
    Reason.AT_ORIGIN: ("lat", "lng"),
    Reason.TOO_FAST: ("speed",),
    Reason.TOO_OLD: ("time",),
    Reason.IN_FUTURE: ("time",),
    Reason.NEGATIVE_SPEED: ("speed",),
    Reason.NOT_FINITE: ("time", "lat", "lng", "speed"),
    Reason.WRONG_TYPE: ("time", "lat", "lng", "speed"),
}
"""Fields that the example of each reason shows."""
_OF_ANOTHER_TIME = {
    Reason.TOO_OLD: "Likely a recording, which a live feed refuses: set window.lateness to 'event-time' here and for the "
    "worker, or release it by 'hexveil replay --offline'. Times before 2000 come from clocks that were never set.",
    Reason.IN_FUTURE: "Likely clocks that are ahead: correct them. window.max_future says by how much they may be.",
}
_UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
"""Number of each unit of time per second."""

Found = tuple[bool, list[tuple[str, Any]], FeedFields]


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
            self._first.setdefault(reason, before + where[0] + 1)
            sample = self._sample.setdefault(reason, [])
            sample += [values[at] or b"" for at in where[: _SAMPLE - len(sample)]]

    def leave_out(self, counts: Mapping[str, int], derived: int) -> None:
        """Count events that were left out, by reason, before any message was made of them, and those with a ``derived`` speed."""
        self.counts += Counter(counts)
        self.derived += derived

    def examples(self) -> dict[str, str]:
        """One event for each reason: its number in the recording and the fields at fault."""
        return {
            reason.value: f"event {self._first[reason]}: {self._example(reason, sample[0])}"
            for reason, sample in self._sample.items()
        }

    def told(self) -> list[str]:
        """One line for each reason, the most frequent first, and the likely cause if most events were refused."""
        examples = self.examples()
        lines = [
            f"  {count} {reason}" + (f", like {examples[reason]}" if reason in examples else "")
            for reason, count in self.counts.most_common()
        ]
        cause = self.likely_cause()
        return lines if cause is None else [*lines, cause]

    def likely_cause(self) -> str | None:
        """The likely cause with its remedy, if most events were refused and the most frequent reason allows a conclusion."""
        if self.refused <= self.taken:
            return None
        name = self.counts.most_common(1)[0][0]
        if name not in self._sample:
            return cause_of_left_out(self.counts)
        reason = Reason(name)
        fixes = [dict(self._found(message)[1]) for message in self._sample[reason]]
        if reason == Reason.SWAPPED_AXES:
            return SWAPPED_AXES
        if reason == Reason.OUT_OF_DOMAIN:
            return self._elsewhere(fixes)
        if reason in _OF_ANOTHER_TIME:
            return self._other_unit_of_time(fixes[0].get("time")) or _OF_ANOTHER_TIME[reason]
        if reason == Reason.WRONG_TYPE:
            return self._wrong_type(fixes[0])
        if reason == Reason.MISSING_FIELD:
            return self._other_format(self._sample[reason][0])
        return None

    def _found(self, message: bytes) -> Found:
        """Whether ``message`` is JSON, its fields, and their paths in the file or in the feed's format.

        Events of a recording are converted to the feed's format; one that cannot be converted is passed on unchanged.
        """
        places = [feed_format(self.feed.model_copy(update={"format": name})).fields for name in self._formats]
        readings = [(*looks_like(message, fields), fields) for fields in places]
        return max(readings, key=lambda reading: len(reading[1]))

    @property
    def _formats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.file_format, self.feed.format)))

    def _example(self, reason: Reason, message: bytes) -> str:
        readable, values, fields = self._found(message)
        if not readable:
            return _cut(repr(message[:_SHOWN])) if reason == Reason.NOT_JSON else f"{len(message)} bytes"
        if reason == Reason.MISSING_FIELD:
            there = {name for name, _ in values}
            names = zip(("user", "time", "lat", "lng", "speed"), fields.paths, strict=False)
            missing = [path for name, path in names if name not in there]
            return _cut(f"no {', '.join(missing)} among {_names(message)}")
        shown = [f"{name} {_cut(_text(value), 30)}" for name, value in values if name in _AT_FAULT.get(reason, ())]
        return ", ".join(shown) or f"{len(message)} bytes"

    def _elsewhere(self, fixes: list[dict[str, Any]]) -> str:
        domain = self.feed.domain
        lats, lngs = ([float(fix[name]) for fix in fixes] for name in ("lat", "lng"))
        return (
            f"Likely another place: these events are at lat {min(lats):g} to {max(lats):g}, lng {min(lngs):g} to {max(lngs):g}, and "
            f"feed.domain is south {domain.south:g}, west {domain.west:g}, north {domain.north:g}, east {domain.east:g}. Set "
            "feed.domain to the place of the recording."
        )

    def _other_unit_of_time(self, time: Any) -> str | None:
        if isinstance(time, bool) or not isinstance(time, (int, float)):
            return None
        unit = next((name for name, per_second in _UNITS.items() if EARLIEST_S <= time / per_second < LATEST_S), None)
        if unit is None or (unit == "milliseconds" and self.feed.format != "declared"):
            return None
        seconds = time / _UNITS[unit]
        remedy = {
            "seconds": "set feed.format = 'declared' and time_format = 'epoch-s' in [feed.fields]",
            "milliseconds": "set time_format = 'epoch-ms' in [feed.fields]",
            "microseconds": "set feed.format = 'declared' and time_format = 'epoch-us' in [feed.fields]",
        }.get(unit, "divide the times so that they are microseconds")
        return f"Likely {time:.0f} is a time in {unit} ({datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}): {remedy}."

    def _wrong_type(self, fix: dict[str, Any]) -> str | None:
        texts = [name for name in ("lat", "lng", "speed") if isinstance(fix.get(name), str)]
        if texts:
            return f"Likely {', '.join(texts)} are texts: write numbers without quotes."
        time = fix.get("time")
        if not isinstance(time, str):
            return self._other_unit_of_time(time)
        shown = _cut(json.dumps(time), 40)
        try:
            has_offset = datetime.fromisoformat(time).tzinfo is not None
        except ValueError:
            return (
                f"Likely the time {shown} is not of the declared time_format: write RFC 3339 like "
                "'2017-03-21T07:00:00-05:00', or set time_format in [feed.fields] to 'epoch-s', 'epoch-ms' or 'epoch-us'."
            )
        if has_offset:
            return None
        return (
            f"Likely the time {shown} has no offset from UTC, so it may be ambiguous: write it like "
            "'2017-03-21T07:00:00-05:00', or set timezone in [feed.fields] to its zone, like 'America/Chicago'."
        )

    def _other_format(self, message: bytes) -> str:
        for name, known in known_fields().items():
            if name not in self._formats and len(looks_like(message, known)[1]) == 5:
                return f"Likely another format: these events have the fields of {name!r}; give --format {name}."
        paths = self._found(message)[2].paths
        return (
            f"Likely another format: {self.file_format!r} has the fields {', '.join(paths)}. Name the fields of the recording in "
            "[feed.fields] and set feed.format = 'declared'."
        )


def _names(message: bytes) -> str:
    tree = json.loads(message, parse_int=float)
    return ", ".join(map(str, tree)) if isinstance(tree, dict) else f"a JSON {type(tree).__name__}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return json.dumps(value)


def _cut(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
