"""Section ``[feed.quality]``: which fixes are refused because a fault of the unit explains them better than a
journey."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import Field, model_validator

from stream.config.durations import Duration
from stream.config.section import Section

PARTICIPATION_FASTEST_KM_H = 400.0
"""Faster than any vehicle on a road or on rails."""
ORIGIN_DEGREES = 0.01
"""Fixes this near to latitude 0, longitude 0, in the Gulf of Guinea, are refused: units without a position say so."""
PARTICIPATION_FROZEN = timedelta(minutes=20)
"""Whoever drives for so long is not at one position to the last digit."""


class QualityConfig(Section):
    """Rules for faulty fixes. Each reads one event, or one user's own events of a window; nobody else's events decide.

    ``fastest_km_h``: faster events are refused; 0: none. ``frozen``: a position that a user repeats to the last digit
    for longer is refused; under "participation" only with a speed above 0, and by default after 20 min.
    ``teleport_km_h``: a fix is refused if the user would have to be faster than this to come from the fix before it,
    and to reach the one after it; under "participation" 400 by default. 0: none.
    ``standing_m``: events of a user who reports only speeds of 0 in a window, and moves by more than this, are refused.
    """

    fastest_km_h: float | None = Field(default=None, ge=0, le=100_000)
    frozen: Duration | None = None
    teleport_km_h: float | None = Field(default=None, ge=0, le=100_000)
    standing_m: float | None = Field(default=None, ge=100, le=1_000_000)

    @model_validator(mode="after")
    def _standing_is_no_walking_pace(self) -> Self:
        if self.fastest_km_h and self.fastest_km_h < 10:
            raise ValueError(
                f"fastest_km_h {self.fastest_km_h:g} would refuse ordinary traffic; write 10 or more, or 0 for no such "
                "rule"
            )
        return self
