"""Time spans as an operator writes them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

_LONGEST_US = 36_500 * 86_400_000_000
_DURATION_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def parse_duration(text: object) -> timedelta:
    """``"90s"``, ``"5m"``, ``"1h"``, ``"1d"`` as a time span; refuses anything else."""
    if isinstance(text, timedelta):
        return text
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a whole number with ms, s, m, h or d, like '1h'")
    microseconds = int(match[1][:30]) * _DURATION_UNITS[match[2]]
    if microseconds > _LONGEST_US:
        raise ValueError(f"{text!r} is longer than 36500d; give less")
    return timedelta(microseconds=microseconds)


def duration_text(span: timedelta) -> str:
    """Whole seconds as an operator writes them, in the largest unit that divides them: ``"90s"``, ``"5m"``."""
    seconds = span // timedelta(seconds=1)
    unit = next(unit for unit in "dhms" if seconds * 1_000_000 % _DURATION_UNITS[unit] == 0)
    return f"{seconds * 1_000_000 // _DURATION_UNITS[unit]}{unit}"


def _positive(span: timedelta) -> timedelta:
    if span <= timedelta(0):
        raise ValueError("must be longer than zero")
    return span


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
