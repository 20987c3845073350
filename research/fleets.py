"""What map a fleet can fill: the table of fleets (:mod:`stream.config.fleets`). NOT PRIVATE: it knows the truth.

``python -m research fleets``: recorded and simulated buses under "values" and cars of the demo's city under
"participation", with what ``hexveil init`` writes for them. Live maps through ``hexveil evaluate --live``, three draws
each, of 10 000 buses one: of each resolution and timeslot, with the vehicles on the road (median of the windows): share
of events within ±5 km/h, MAE in km/h, the median half width, coverage, and skill. Positive skill says more than the
typical map of the other windows. Cars are measured with residual clipping and without.

Typical maps of feeds of several days, two draws: of each day but the first the same, where the truth is the mean of the
cell at this hour over all days of the feed, which nobody knows on that day.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.relation import NeighbouringRelation
from research.live_feeds import config_of, told, windows_of
from stream.config.fleets import FLEET_MAPS, FleetMap, fleet_map
from stream.config.section import parse_duration
from stream.evaluation.live import evaluate_live
from stream.evaluation.living import Exact, Feed, Shown
from stream.evaluation.scores import USEFUL_KMH

VALUES, PARTICIPATION = NeighbouringRelation.VALUES, NeighbouringRelation.PARTICIPATION
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
TYPICAL_MAPS = ("city:300/120", "2016-11-24+2016-11-25+2016-11-26+2016-11-27")
WINDOWS = {row.resolution: row.windows for row in FLEET_MAPS[PARTICIPATION]}


def run(quick: bool) -> dict[str, Any]:
    """Figures of each feed by resolution and timeslot (quick: of one small map)."""
    if quick:
        return {"city:300/16": live("city:300/16", VALUES, 5, "15m", "residual")}
    figures: dict[str, Any] = {}
    for feed in TYPICAL_MAPS:
        figures[f"{feed}, typical"] = told(f"{feed}, typical", typical(feed))
    for relation, feeds, clippings in (
        (VALUES, VALUES_MAPS, ("residual",)),
        (PARTICIPATION, RIDERS_MAPS, ("residual", "none")),
    ):
        for feed, maps in feeds.items():
            for resolution, slot in maps:
                for clipping in clippings:
                    name = f"{feed}, {relation}, resolution {resolution}, {slot}, clipping {clipping}"
                    figures[name] = told(name, live(feed, relation, resolution, slot, clipping))
    return figures


def live(feed: str, relation: NeighbouringRelation, resolution: int, slot: str, clipping: str) -> dict[str, Any]:
    """The facts of :class:`stream.evaluation.live.LiveScore`."""
    tried = FleetMap(0, resolution, parse_duration(slot), 0.0, 0.0, WINDOWS[resolution], clipping)
    config = config_of(feed, relation, tried.keys(relation) | _TYPICAL[relation])
    return evaluate_live(config, windows_of(feed, config), 1 if feed == "city:10000/9" else 3).facts()


_TYPICAL: dict[NeighbouringRelation, dict[str, Any]] = {VALUES: {"value.typical": None}, PARTICIPATION: {}}
"""The shipped file for buses expects no level."""


def typical(feed: str) -> dict[str, dict[str, float]]:
    """By day: what the typical map shows, beside the mean of the hour over all days."""
    config = config_of(feed, VALUES, fleet_map(VALUES, 0, "typical").keys(VALUES) | _TYPICAL[VALUES])
    windows, zone = windows_of(feed, config), ZoneInfo(config.feed.timezone)
    times = [datetime.fromtimestamp(window.slot, zone) for window in windows]
    usual, feeds = _by_hour(windows, [time.hour for time in times]), [Feed(config, 0), Feed(config, 1)]
    shown = [[each.release(window) for each in feeds] for window in windows]
    figures = {}
    for day in sorted({time.date() for time in times})[1:]:
        its = [k for k, time in enumerate(times) if time.date() == day]
        parts = [(windows[k].events, usual[k], one) for k in its for one in shown[k]]
        figures[day.isoformat()] = _figures(parts)
    return figures


def _by_hour(windows: Sequence[Exact], hours: Sequence[int]) -> list[FloatArray]:
    """Of each window the mean of its cells, (H,), at this hour over all windows."""
    cells = np.unique(np.concatenate([window.cells for window in windows]))
    total = np.zeros((2, 24, len(cells)))
    places = [np.searchsorted(cells, window.cells) for window in windows]
    for window, hour, at in zip(windows, hours, places, strict=True):
        total[:, hour, at] += window.events, window.events * window.mean
    return [total[1, hour, at] / total[0, hour, at] for hour, at in zip(hours, places, strict=True)]


def _figures(parts: Sequence[tuple[FloatArray, FloatArray, Shown]]) -> dict[str, float]:
    events, true = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    value, low, high = (np.concatenate([shown[i] for *_, shown in parts]) for i in range(3))
    share, wrong, half = events / events.sum(), np.abs(value - true), (high - low) / 2
    order, covers = np.argsort(half), (low <= true) & (true <= high)
    return {
        "shown": float(share @ np.isfinite(value)),
        "useful": float(share @ (wrong <= USEFUL_KMH)),
        "mae": float(np.nansum(share * wrong)),
        "half_width": float(half[order][np.searchsorted(np.cumsum(share[order]), 0.5)]),
        "covers_events": float(share @ covers),
        "covers_cells": float(covers.mean()),
    }
