"""What a configuration reads of single events, so that sums for each cell and user are not enough (``window.state``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcore.relation import NeighbouringRelation

if TYPE_CHECKING:
    from stream.config.deployment import Config

MAX_SQUARES = 2**53
"""Redis adds in double precision, which is exact up to this: a user's events of a window, times U² in quanta, stay within it."""
_OF_SUMS = ("mean", "variance")
"""Statistics that are drawn from Σx and Σx² of each user in each cell."""


def without_sums(config: Config) -> list[str]:
    """Each key that prevents ``window.state`` "sums", with the reason and the remedy; none if nothing does."""
    upper, most = config.speed.upper_quanta, config.window.max_events_per_user
    problems = needs_rows(config)
    if most * upper**2 > MAX_SQUARES:
        problems.append(
            f"window.max_events_per_user {most}: so many squares of speeds up to {upper} quanta could exceed 2^53, up to which Redis adds "
            f"exactly; set it to {MAX_SQUARES // upper**2} or less"
        )
    return problems


def needs_rows(config: Config) -> list[str]:
    """Each key that needs the events of a window themselves, with the reason and the remedy; none if their sums are enough."""
    speed, quality = config.speed, config.feed.quality
    others = [name for name in speed.statistics if name not in _OF_SUMS]
    needs = {
        "relation": (
            config.relation != NeighbouringRelation.VALUES,
            "under 'participation' every event is weighted and rounded by itself, whatever participation.weight is; leave window.state out",
        ),
        "speed.statistics": (
            bool(others),
            f"{', '.join(others)} are read from single speeds; name only 'mean' and 'variance'",
        ),
        "speed.mean_mechanism": (
            speed.mean_mechanism != "allocated",
            "it picks or arranges single speeds of a cell; set it to 'allocated'",
        ),
        "speed.clipping": (speed.clipping != "none", "it keeps the first events of a user; set it to 'none'"),
        "histogram": (config.histogram is not None, "it reads positions; leave out [histogram]"),
        "feed.quality.teleport_km_h": (config.teleport_km_h != 0, "it compares the fixes of a window; set it to 0"),
        "feed.quality.frozen": (bool(config.frozen), 'it compares the fixes of a window; set it to "0s"'),
        "feed.quality.standing_m": (bool(quality.standing_m), "it compares the fixes of a window; leave it out"),
    }
    return [f"{key}: {why}" for key, (bad, why) in needs.items() if bad]
