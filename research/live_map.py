"""How good a live map of a fleet is, by accounting, grants and clipping (mechanisms S15 to S19). NOT PRIVATE: it knows
the truth.

``python -m research live_map``: the feeds of :mod:`research.live_feeds` through ``hexveil evaluate --live``
(:func:`stream.evaluation.live.evaluate_live`), which is the shipped path; what its figures mean is said there. The last
mechanism of each feed stands beside the bounds of :mod:`research.live_bounds`. Each row is printed to stderr when it is
there.
"""

from __future__ import annotations

from typing import Any

from dpcore.relation import NeighbouringRelation
from research.live_bounds import Recorded, bounds
from research.live_feeds import PARTICIPATION, VALUES, config_of, told, windows_of
from stream.evaluation.live import judge
from stream.evaluation.living import Feed

FEEDS = (
    *(day + times for day in ("2016-11-26", "2017-03-21") for times in ("", ":2.5", ":10")),
    "2016-11-24+2016-11-26+2016-11-27",
    "taxis",
    "city:300",
    "city:1600/24",
    "city:10000/24",
    "city:10000",
)
BOTH = ("taxis", "city:10000")
"""Feeds that are measured under "participation", too."""
WISHES = {"": (0.1, 0.25), "2.5": (0.25, 0.55), "10": (0.55, 0.95), "city": (0.9, 0.99)}
"""Share of a drop that should be seen in the first and in the last window of an incident: by clones of recorded days,
and of 10 000 simulated vehicles."""


def run(quick: bool) -> dict[str, Any]:
    """Figures of each feed for each mechanism, six draws of recorded days, one of others (quick: of one feed)."""
    figures: dict[str, Any] = {}
    for feed in ("2017-03-21",) if quick else FEEDS:
        draws = 6 if feed.startswith("20") and not quick else 1
        figures[feed] = measured(feed, NeighbouringRelation.VALUES, VALUES, draws)
        if feed in BOTH:
            both = measured(feed, NeighbouringRelation.PARTICIPATION, PARTICIPATION, draws)
            figures[f"{feed}, participation"] = both
    return figures


def measured(
    feed: str, relation: NeighbouringRelation, mechanisms: dict[str, dict[str, Any]], draws: int
) -> dict[str, Any]:
    """The facts of :class:`stream.evaluation.live.LiveScore` by mechanism."""
    configs = {name: config_of(feed, relation, keys) for name, keys in mechanisms.items()}
    windows = windows_of(feed, next(iter(configs.values())))
    figures: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        feeds = [Recorded(Feed(config, seed), {}) for seed in range(draws)]
        facts = judge(config, windows, feeds, name).facts()
        if name == list(configs)[-1]:
            facts |= bounds(config, windows, feeds[0].shown, _wish(feed))
        figures[name] = told(f"{feed}, {relation}, {name}", facts)
    return figures


def _wish(feed: str) -> tuple[float, float] | None:
    name, _, times = feed.partition(":")
    if name == "city":
        return WISHES["city"] if times.startswith("10000") else None
    return WISHES.get(times) if name[:2] == "20" and "+" not in name else None
