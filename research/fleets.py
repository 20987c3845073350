"""What map a fleet can fill: the table of fleets (:mod:`stream.config.fleets`). NOT PRIVATE: it knows the truth.

``python -m research fleets``: recorded and simulated buses under "values", at (12, 10⁻⁶) a day, by accounting "zcdp"
with rolling grants and residual clipping; and cars of the demo's city under "participation" at (4, 10⁻⁶) a day. Three
draws each through ``hexveil evaluate --live``, of 10 000 buses one. Of each
resolution and timeslot, with the vehicles on the road (median of the windows): share of events within ±5 km/h, MAE in
km/h, the median half width, coverage, and skill. Positive skill says more than the typical map of the other windows.
"""

from __future__ import annotations

import sys
from typing import Any

from dpcore.relation import NeighbouringRelation
from research.live_feeds import VALUES, config_of, windows_of
from stream.evaluation.live import evaluate_live

SMALL = ((5, "15m"), (6, "15m"), (6, "1h"), (7, "1h"))
VALUES_MAPS = {
    "2017-03-21": SMALL,
    "city:300/16": SMALL,
    "city:1600/12": ((6, "15m"), (7, "15m")),
    "city:3600/12": ((7, "15m"),),
    "city:10000/9": ((7, "5m"), (8, "15m")),
}
RIDERS_MAPS = {
    "cars:300": SMALL[:2],
    "cars:1200": ((6, "15m"), (7, "15m")),
    "cars:4000": ((7, "15m"), (8, "15m")),
    "cars:10000": ((8, "15m"),),
}
"""Resolutions and timeslots that are tried on each feed."""
RIDERS: dict[str, Any] = {
    "privacy.budget": 4.0,
    "speed.clipping": "none",
    "feed.domain": {"south": 30.133, "west": -97.895, "north": 30.401, "east": -97.586},
}
WINDOWS = {5: 16, 6: 12, 7: 8, 8: 6}
"""By resolution: how many the budget of a day pays for of a user who stays in one hexagon. So four hours of driving are
paid for."""


def run(quick: bool) -> dict[str, Any]:
    """Figures of each feed by resolution and timeslot (quick: of one small map)."""
    if quick:
        return {"city:300/16": measured("city:300/16", NeighbouringRelation.VALUES, 5, "15m")}
    tried: dict[NeighbouringRelation, dict[str, Any]] = {
        NeighbouringRelation.VALUES: VALUES_MAPS,
        NeighbouringRelation.PARTICIPATION: RIDERS_MAPS,
    }
    return {
        f"{feed}, {relation}, resolution {resolution}, {slot}": measured(feed, relation, resolution, slot)
        for relation, feeds in tried.items()
        for feed, maps in feeds.items()
        for resolution, slot in maps
    }


def measured(feed: str, relation: NeighbouringRelation, resolution: int, slot: str) -> dict[str, Any]:
    """The facts of :class:`stream.evaluation.live.LiveScore`."""
    print(feed, relation, resolution, slot, file=sys.stderr)
    riders = RIDERS | {"privacy.windows": WINDOWS[resolution]}
    mechanism = VALUES["and residual"] if relation == NeighbouringRelation.VALUES else riders
    config = config_of(feed, relation, mechanism | {"window.slot": slot, "hexagons.resolution": resolution})
    return evaluate_live(config, windows_of(feed, config), 1 if feed == "city:10000/9" else 3).facts()
