"""Base classes of the sections of a configuration.

Time spans as an operator writes them.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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


class Section(BaseModel):
    """A table of the TOML file. Unknown keys are refused, and values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_booleans(cls, given: Any) -> Any:
        # Without this check, pydantic would read true as the number 1, for example as an epsilon of 1.
        wrong = [key for key, value in given.items() if isinstance(value, bool)] if isinstance(given, dict) else []
        if wrong:
            raise ValueError(f"{', '.join(wrong)} is true or false, which no key accepts; write a number or text")
        return given

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        """A sentence for each value that another one is in the way of. Only the first is told."""
        yield from ()


class BoundingBox(Section):
    """Public box in degrees. Where ``west`` is greater than ``east``, it lies across the meridian of 180 degrees."""

    south: float = Field(ge=-90, le=90)
    west: float = Field(ge=-180, le=180)
    north: float = Field(ge=-90, le=90)
    east: float = Field(ge=-180, le=180)

    def _problems(self) -> Iterator[str]:
        if self.south >= self.north or self.west == self.east:
            yield "the box has no area; make south smaller than north and west another longitude than east"

    @property
    def crosses_180(self) -> bool:
        """Whether the box lies across the meridian of 180 degrees."""
        return self.west > self.east

    @property
    def unrolled_east(self) -> float:
        """The eastern edge as a longitude that is greater than ``west``, up to 540."""
        return self.east + 360 * self.crosses_180

    def contains(self, lat: float, lng: float) -> bool:
        """Whether the point lies in this box, edges included."""
        west, east = lng >= self.west, lng <= self.east
        return (
            self.south <= lat <= self.north
            and abs(lng) <= 180
            and ((west or east) if self.crosses_180 else (west and east))
        )

    def meets(self, other: "BoundingBox") -> bool:
        """Whether the boxes have a point in common."""
        return (
            self.south <= other.north
            and other.south <= self.north
            and any(
                self.west <= other.unrolled_east + turn and other.west + turn <= self.unrolled_east for turn in _TURNS
            )
        )

    def holds(self, other: "BoundingBox") -> bool:
        """Whether ``other`` lies in this box, edges included."""
        return (
            self.south <= other.south
            and other.north <= self.north
            and any(
                self.west <= other.west + turn and other.unrolled_east + turn <= self.unrolled_east for turn in _TURNS
            )
        )


_TURNS = (-360, 0, 360)
"""Degrees by which a box may be turned around the globe to be compared with another one."""
