"""Base classes of the sections of a configuration."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


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


class BoundingBox(Section):
    """Public box in degrees. Where ``west`` is greater than ``east``, it lies across the meridian of 180 degrees."""

    south: float = Field(ge=-90, le=90)
    west: float = Field(ge=-180, le=180)
    north: float = Field(ge=-90, le=90)
    east: float = Field(ge=-180, le=180)

    @model_validator(mode="after")
    def _has_area(self) -> Self:
        if self.south >= self.north or self.west == self.east:
            raise ValueError("the box has no area; make south smaller than north and west another longitude than east")
        return self

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

    def meets(self, other: BoundingBox) -> bool:
        """Whether the boxes have a point in common."""
        return (
            self.south <= other.north
            and other.south <= self.north
            and any(
                self.west <= other.unrolled_east + turn and other.west + turn <= self.unrolled_east for turn in _TURNS
            )
        )

    def holds(self, other: BoundingBox) -> bool:
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
