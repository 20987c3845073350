"""How good a live map of a fleet is, by accounting, grants and clipping (mechanisms S15 to S19). NOT PRIVATE: it knows
the truth.

``python -m research live_map``: the feeds of :mod:`research.live_feeds` through ``hexveil evaluate --live``
(:func:`stream.evaluation.live.evaluate_live`), which is the shipped path; what its figures mean is said there.
"""

from __future__ import annotations

import sys
from typing import Any

from dpcore.relation import NeighbouringRelation
from research.live_feeds import PARTICIPATION, VALUES, config_of, windows_of
from stream.evaluation.live import evaluate_live

FEEDS = (
    *(day + times for day in ("2016-11-26", "2017-03-21") for times in ("", ":2.5", ":10")),
    "2016-11-24+2016-11-26+2016-11-27",
    "taxis",
    "city:300",
    "city:1600",
    "city:10000",
)
BOTH = ("taxis", "city:10000")
"""Feeds that are measured under "participation", too."""


def run(quick: bool) -> dict[str, Any]:
    """Figures of each feed for each mechanism, two draws each (quick: one of one feed)."""
    figures: dict[str, Any] = {}
    for feed in ("2017-03-21",) if quick else FEEDS:
        figures[feed] = measured(feed, NeighbouringRelation.VALUES, VALUES, 1 if quick else 2)
        if feed in BOTH:
            both = measured(feed, NeighbouringRelation.PARTICIPATION, PARTICIPATION, 2)
            figures[f"{feed}, participation"] = both
    return figures


def measured(
    feed: str, relation: NeighbouringRelation, mechanisms: dict[str, dict[str, Any]], draws: int
) -> dict[str, Any]:
    """The facts of :class:`stream.evaluation.live.LiveScore` by mechanism."""
    configs = {name: config_of(feed, relation, keys) for name, keys in mechanisms.items()}
    windows = windows_of(feed, next(iter(configs.values())))
    scores = {}
    for name, config in configs.items():
        print(feed, relation, name, file=sys.stderr)
        scores[name] = evaluate_live(config, windows, draws, name).facts()
    return scores
