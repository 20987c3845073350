"""Section ``[value]``: what an event measures, in which unit, and the bounds to which it is clipped.

Settings that rest on speed being distance by time: they are refused with another value.
"""

from collections.abc import Iterator

from pydantic import Field

from stream.config.feed import FeedConfig
from stream.config.section import Section
from stream.config.speed import MOVING_KM_H, SpeedConfig

QUANTUM = 0.01
"""Public grid of values: integers of this many units before anything is summed."""
SPEED = "speed"
"""Name of the value of traffic: km/h, from 0. Rules that argue with distance are about it alone."""
SPEED_UNIT = "km/h"
WIDEST = 10_000.0
"""Widest range of a value, in units: a million steps of the grid, of whose squares 9 million events fit into 64 bits.
"""


class ValueConfig(Section):
    """The value of an event: ``name``, ``unit``, and the public bounds ``lower`` and ``upper`` that it is clipped to.

    ``typical``: the mean that is expected before any release; smoothed means lie near it while the noise of releases
    hides more; without it, near the middle of the range.
    """

    name: str = Field(
        default=SPEED,
        pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,31}$",
        description="at most 32 letters, digits, dots, underscores and hyphens, a letter first, like 'PM2.5'",
    )
    unit: str = Field(
        default=SPEED_UNIT,
        pattern=r"^[^\s\x00-\x1f\x7f]{1,16}$",
        description="at most 16 characters without spaces, like 's' or 'µg/m³'",
    )
    lower: float = Field(default=0.0, ge=-100_000, le=100_000)
    upper: float = Field(ge=-100_000, le=100_000)
    typical: float | None = None

    def _problems(self) -> Iterator[str]:
        for key in ("lower", "upper"):
            bound = getattr(self, key)
            if abs(bound / QUANTUM - round(bound / QUANTUM)) > 1e-6:
                yield f"{key} {bound} is not a multiple of {QUANTUM} {self.unit}; round it"
        if not 0 < self.upper - self.lower <= WIDEST:
            yield (
                f"upper {self.upper:g} must be at most {WIDEST:g} {self.unit} above lower {self.lower:g}, and not "
                "below it; choose other bounds, or another unit"
            )
        if self.typical is not None and not self.lower <= self.typical <= self.upper:
            yield f"typical {self.typical:g} is not between lower and upper; set one that is"
        if self.is_speed and (self.unit != SPEED_UNIT or self.lower != 0 or self.upper > 1000):
            yield (
                f"a value named {SPEED!r} is in {SPEED_UNIT}, from lower 0 to upper 1000 at most; leave out unit and "
                "lower (events may be in another unit: feed.speed_unit), or give the value another name"
            )

    @property
    def is_speed(self) -> bool:
        """Whether distance by time explains the value."""
        return self.name == SPEED

    @property
    def lower_quanta(self) -> int:
        """``lower`` in quanta of :data:`QUANTUM`."""
        return round(self.lower / QUANTUM)

    @property
    def upper_quanta(self) -> int:
        """U, the width of the range, in quanta: inside, values count from ``lower``."""
        return round(self.upper / QUANTUM) - self.lower_quanta


def value_problems(value: ValueConfig, feed: FeedConfig, speed: SpeedConfig) -> Iterator[str]:
    """A sentence for each choice that another one is in the way of."""
    moving, quality = "moving_mean" in speed.statistics, feed.quality
    if moving and value.upper <= MOVING_KM_H:
        yield (
            f"value.upper {value.upper:g} is not above {MOVING_KM_H:g} km/h, from which on a report moves; raise it, "
            "or leave 'moving_mean' out of speed.statistics"
        )
    if value.is_speed:
        return
    given = {
        "speed.statistics 'moving_mean'": moving,
        "speed.sum_cap": speed.sum_cap,
        "feed.speeds": feed.derives_speeds,
        "feed.speed_unit": feed.given_speed_unit,
        "feed.quality.fastest_km_h": quality.fastest_km_h,
        "feed.quality.teleport_km_h": quality.teleport_km_h,
        "feed.quality.standing_m": quality.standing_m,
        "feed.quality.frozen": quality.frozen,
        f"feed.format {feed.format!r}": feed.recorded_format != "declared",
    }
    if wrong := [key for key, used in given.items() if used]:
        yield (
            f"value.name {value.name!r} is no speed, and {', '.join(wrong)} {'are' if len(wrong) > 1 else 'is'} about "
            "speeds alone; leave that out (format: choose 'declared')"
        )
