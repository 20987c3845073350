"""Settings that rest on speed being distance by time: they are refused with another value."""

from __future__ import annotations

from collections.abc import Iterator

from stream.config.feed import FeedConfig
from stream.config.speed import MOVING_KM_H, SpeedConfig
from stream.config.value import ValueConfig


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
