"""Recognises the form of a feed's times by a sample: the unit of numbers, ISO 8601, day first, month first. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from stream.ingestion.formats import number_or_none, read_instant
from stream.windows import EARLIEST_S, LATEST_S

UNITS = {"epoch-s": 1.0, "epoch-ms": 1e3, "epoch-us": 1e6, "epoch-ns": 1e9}
"""Number of each unit of time per second."""
LONGEST_TEXT = 64
"""Characters of the longest text that may be a time."""
MOSTLY = 0.8
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d/%m/%y", "%m/%d/%y",
          "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%d %B %Y", "%d.%m.%y")  # fmt: skip
_CLOCKS = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%I:%M:%S %p", "%I:%M %p", "%I:%M:%S.%f %p")
_AFTER = ("", "%z", " %z", " UTC")
PATTERNS = (
    *(f"{date}{gap}{clock}{end}" for date in _DATES for gap in (" ", "T", ", ") for clock in _CLOCKS for end in _AFTER),
    *(f"%Y-%m-%d %H:%M:%S{fraction} UTC" for fraction in ("", ".%f")),
    *("%Y%m%d%H%M%S", "%Y%m%d %H%M%S", "%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S %z"),
)
_SAMPLE = 500
_ZONE = re.compile(r"([+-]\d\d:?\d\d|(?<=\d)\s?Z)$")
_UNIX = datetime(1970, 1, 1)
_FRACTIONS = {
    "-09:30": "Pacific/Marquesas", "-03:30": "America/St_Johns", "-02:30": "America/St_Johns", "+03:30": "Asia/Tehran",
    "+04:30": "Asia/Kabul", "+05:30": "Asia/Kolkata", "+05:45": "Asia/Kathmandu", "+06:30": "Asia/Yangon",
    "+08:45": "Australia/Eucla", "+09:30": "Australia/Darwin", "+10:30": "Australia/Adelaide",
    "+12:45": "Pacific/Chatham", "+13:45": "Pacific/Chatham",
}  # fmt: skip
"""A zone of each offset that is no whole number of hours and that clocks show: the one where most people live."""
_NEITHER = (
    (r"/Date\(-?\d+.*", "numbers in /Date(…)/: send the number alone, milliseconds since 1970"),
    (r"\d\d?:\d\d(:\d\d(\.\d+)?)?", "of a day that another field may name: send date and time in one"),
    (r".*\d ?[A-Z]{2,5}", "with the short name of a zone, which is ambiguous: send an offset like -05:00, or no zone, "
     "and set timezone in [feed.fields]"),
    (r"[2-6]\d{4}([.,]\d+)?", "days since 1900, as spreadsheets count them: export them as text of ISO 8601"),
)  # fmt: skip
"""Forms that no setting reads, and what to do."""


class TimeForm(NamedTuple):
    """``time_format`` as in ``[feed.fields]``, or "epoch-ns". ``local``: share of the times without an offset from UTC.

    ``either``: another pattern that reads all of the times as well. ``offset``: from UTC, like "+05:30", that most of
    the times have; None if they have none or say UTC.
    """

    time_format: str
    local: float = 0.0
    either: str | None = None
    offset: str | None = None

    @property
    def is_utc(self) -> bool:
        """Whether the pattern names UTC in words, which no reader of patterns knows as an offset."""
        return self.time_format.endswith("UTC")

    @property
    def zone(self) -> str | None:
        """A zone whose clocks show the ``offset``; None if it is unknown. Of whole hours the one that has it all year.

        Several zones share each offset, so that this one aligns days as the feed does, and may not be the city's.
        """
        if self.offset is None or self.offset[-2:] != "00":
            return _FRACTIONS.get(self.offset or "")
        hours = -int(self.offset[:3])  # the names of these zones count hours west of Greenwich
        return f"Etc/GMT{hours:+d}" if -14 <= hours <= 12 else None

    def said(self, declare: str, *, zoned: bool = False) -> str:
        """What the times are, and the remedy. ``declare``: how a field is declared; ``zoned``: its zone is."""
        if self.time_format == "epoch-ns":
            return "times are nanoseconds since 1970: divide them so that they are microseconds"
        what = f"{self.time_format[6:]} since 1970" if self.time_format in UNITS else "of another form"
        either = f" (or {self.either!r}: ask whoever runs the feed)" if self.either else ""
        zone = " and timezone to the zone of the clocks, like 'America/Chicago'," if self.local and not zoned else ""
        return f"times are {what}: {declare.format(f'time_format = {self.time_format!r}{either}{zone}')}"


def time_form(values: Sequence[Any]) -> TimeForm | None:
    """The form of most of ``values``; None if none is known."""
    values = values[:: max(1, len(values) // _SAMPLE)]
    unit = unit_of(values)
    if unit is not None:
        return TimeForm(unit)
    texts = [value for value in values if isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT]
    if not texts or len(texts) < MOSTLY * len(values):
        return None
    offsets = [has_offset for text in texts if (has_offset := _has_offset(text)) is not None]
    if len(offsets) >= MOSTLY * len(texts):
        return TimeForm("rfc3339", 1 - sum(offsets) / len(offsets), offset=_offset_of(texts))
    return _pattern_of(texts)


def _offset_of(texts: list[str]) -> str | None:
    ends = Counter(end and end[0] for end in map(_ZONE.search, texts))
    offset = ends.most_common(1)[0][0]
    return f"{offset[:3]}:{offset[-2:]}" if offset and offset[0] in "+-" and offset.strip("+-0:") else None


def no_form(values: Sequence[Any]) -> str | None:
    """What times of no known form are like, without their content; None if there are none."""
    if not values:
        return None
    last = str(values[-1])[:LONGEST_TEXT]
    for pattern, what in _NEITHER:
        if re.fullmatch(pattern, last):
            return f"times are {what}"
    # Digits as 9, letters as a, but for T and Z; anything but ASCII as ?.
    plain = re.sub(r"\d", "9", re.sub(r"[A-SU-Ya-z]", "a", last.encode("ascii", "replace").decode()))
    return (
        f"times are like {plain!r} (9 is any digit, a any letter), which is no form that is known: send them like "
        "'2017-03-21T07:00:00-05:00', or set time_format in [feed.fields] to their pattern"
    )


def unit_of(values: Sequence[Any]) -> str | None:
    """The unit in which most ``values``, numbers or texts of digits, lie between 2000 and 2100; None if none."""
    known = np.array([number for value in values if (number := number_or_none(value)) is not None])
    if not len(known) or len(known) < MOSTLY * len(values):
        return None
    fitting = {unit: ((known / per >= EARLIEST_S) & (known / per < LATEST_S)).mean() for unit, per in UNITS.items()}
    best = max(fitting, key=lambda unit: fitting[unit])
    return best if fitting[best] >= MOSTLY / 2 else None


def _has_offset(text: str) -> bool | None:
    """Whether a text of ISO 8601 has an offset from UTC; None if it is none."""
    with suppress(ValueError, OverflowError):
        read_instant(text, None)
        return True
    with suppress(ValueError):
        datetime.fromisoformat(text)
        return False
    return None


def _shape(text: str) -> str:
    """A text with each number as 9 and each word as a, so that few patterns are tried on it."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", _ZONE.sub("+0000", text)))


@cache
def _patterns() -> dict[str, list[str]]:
    moment, by_shape = datetime(2021, 11, 25, 17, 38, 59, 123, UTC), dict[str, list[str]]()
    for pattern in PATTERNS:
        by_shape.setdefault(_shape(moment.strftime(pattern)), []).append(pattern)
    return by_shape


def _pattern_of(texts: list[str]) -> TimeForm | None:
    """The pattern that reads all texts; of several, that by which they lie nearest together, as in one feed."""
    spans: dict[str, float] = {}
    for pattern in _patterns().get(_shape(texts[0]), ()):
        with suppress(ValueError):
            moments = [datetime.strptime(text, pattern).replace(tzinfo=None) for text in texts]
            if all(EARLIEST_S <= (moment - _UNIX).total_seconds() < LATEST_S for moment in moments):
                spans[pattern] = (max(moments) - min(moments)).total_seconds()
    if not spans:
        return None
    best, *others = sorted(spans, key=lambda pattern: spans[pattern])
    alike = next((other for other in others if spans[other] <= 2 * spans[best] + 86_400), None)
    zoned = best.endswith("%z")
    return TimeForm(best, 0.0 if zoned or best.endswith("UTC") else 1.0, alike, _offset_of(texts) if zoned else None)
