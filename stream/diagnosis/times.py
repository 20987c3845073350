"""Recognises the form of a feed's times by a sample of them: the unit of numbers, ISO 8601, day first, month first.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from stream.ingestion.formats import number, read_instant
from stream.windows import EARLIEST_S, LATEST_S

UNITS = {"epoch-s": 1.0, "epoch-ms": 1e3, "epoch-us": 1e6, "epoch-ns": 1e9}
"""Number of each unit of time per second."""
LONGEST_TEXT = 64
"""Characters of the longest text that may be a time."""
MOSTLY = 0.8
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d/%m/%y", "%m/%d/%y",
          "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%d %B %Y", "%d.%m.%y")  # fmt: skip
_CLOCKS = ("%H:%M:%S", "%H:%M", "%H:%M:%S.%f", "%I:%M:%S %p", "%I:%M %p", "%I:%M:%S.%f %p")
PATTERNS = (
    *(f"{date}{gap}{clock}{zone}" for date in _DATES for gap in (" ", "T", ", ") for clock in _CLOCKS for zone in ("",
    "%z", " %z")),
    "%Y%m%d%H%M%S",
    "%Y%m%d %H%M%S",
    "%a %b %d %H:%M:%S %Y",
    "%a, %d %b %Y %H:%M:%S %z",
)  # fmt: skip
_SAMPLE = 500
_ZONE = re.compile(r"([+-]\d\d:?\d\d|(?<=\d)\s?Z)$")


def _shape(text: str) -> str:
    """A text with each number as 9 and each word as a, so that few patterns are tried on it."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", _ZONE.sub("+0000", text)))


@cache
def _patterns() -> dict[str, list[str]]:
    """The patterns by the shape of the texts that they read."""
    moment, by_shape = datetime(2021, 11, 25, 17, 38, 59, 123, UTC), dict[str, list[str]]()
    for pattern in PATTERNS:
        by_shape.setdefault(_shape(moment.strftime(pattern)), []).append(pattern)
    return by_shape


class TimeForm(NamedTuple):
    """``time_format`` as in ``[feed.fields]``, or "epoch-ns". ``local``: share of the times that have no offset from
    UTC.

    ``either``: another pattern that reads all of the times as well.
    """

    time_format: str
    local: float = 0.0
    either: str | None = None


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
        return TimeForm("rfc3339", 1 - sum(offsets) / len(offsets))
    return _pattern_of(texts)


def unit_of(values: Sequence[Any]) -> str | None:
    """The unit in which most of ``values``, as numbers or texts of digits, lie between 2000 and 2100; None if there is
    none."""
    numbers = [_number(value) for value in values]
    known = np.array([value for value in numbers if value is not None])
    if not len(known) or len(known) < MOSTLY * len(values):
        return None
    fitting = {unit: ((known / per >= EARLIEST_S) & (known / per < LATEST_S)).mean() for unit, per in UNITS.items()}
    best = max(fitting, key=lambda unit: fitting[unit])
    return best if fitting[best] >= MOSTLY / 2 else None


def _number(value: Any) -> float | None:
    with suppress(ValueError, OverflowError):
        return number(value)
    return None


def _has_offset(text: str) -> bool | None:
    """Whether a text of ISO 8601 has an offset from UTC; None if it is none."""
    with suppress(ValueError, OverflowError):
        read_instant(text, None)
        return True
    with suppress(ValueError):
        datetime.fromisoformat(text)
        return False
    return None


def _pattern_of(texts: list[str]) -> TimeForm | None:
    """The pattern that reads all texts; of several, that by which they lie nearest together, as those of one feed
    do."""
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
    return TimeForm(best, 0.0 if "%z" in best else 1.0, alike)


def form(text: str) -> str:
    """A text without its content: each digit as 9, each letter but T and Z as a, anything but ASCII as ?."""
    plain = text.encode("ascii", "replace").decode()
    return re.sub(r"\d", "9", re.sub(r"[A-SU-Ya-z]", "a", plain))


_UNIX = datetime(1970, 1, 1)
