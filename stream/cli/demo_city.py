"""The demo's live city: its settings, and how well its map tells what the city knows."""

from __future__ import annotations

import itertools
import json
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from stream.cli.demo_view import DemoWindow
from stream.config import Config
from stream.sources.live_city import LIVES_FOR

VEHICLES = 10_000
CITY = {
    "HEXVEIL_WINDOW__SLOT": "20s",
    "HEXVEIL_WINDOW__ALLOWED_DELAY": "2s",
    "HEXVEIL_WINDOW__PUBLICATION_MARGIN": "3s",
    "HEXVEIL_FEED__DOMAIN": '{"south": 30.133, "west": -97.895, "north": 30.401, "east": -97.586}',
    "HEXVEIL_FEED__QUALITY__TELEPORT_KM_H": "0",
}
"""Windows of the city, which lives faster than the clock, and its place. Its cars move faster than they say."""
USEFUL_KM_H = 5.0
_BEFORE = 4
"""Windows before an incident whose mean it is compared with."""


def said_of(config: Config) -> str:
    """What the page says about the city's time."""
    slot, quarter = config.window.slot, LIVES_FOR // timedelta(minutes=1)
    return f"An invented city: {slot.total_seconds():g} seconds of the clock stand for {quarter} minutes of its day"


class _Window(NamedTuple):
    """One window as the city knows it, and as the map shows it: (events, mean) and estimate by cell."""

    start: str
    true: dict[str, tuple[int, float]]
    shown: dict[str, float]
    incident: list[str] | None

    def mean(self, cells: list[str]) -> tuple[float, float] | None:
        """The true and the shown mean of the events in ``cells``; None if there are none, or none is shown."""
        seen = [(*self.true[cell], self.shown[cell]) for cell in cells if cell in self.true and cell in self.shown]
        events = sum(n for n, _, _ in seen)
        if not events:
            return None
        return sum(n * true for n, true, _ in seen) / events, sum(n * shown for n, _, shown in seen) / events


def report(windows: list[DemoWindow], truth: Path) -> str:
    """What the demo measured: pace, lag, hexagons, error and the first incident. The city alone knows it."""
    known = {line["start"]: line for line in map(json.loads, truth.read_text(encoding="utf-8").splitlines())}
    pairs = [_pair(known[window.start], window) for window in windows if window.start in known]
    if not pairs:
        return "The city and its map have no whole window in common yet."
    arrived = [window.arrived for window in windows]
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrived)]
    lags = [window.arrived - datetime.fromisoformat(window.end).timestamp() for window in windows]
    pace = f"one every {sum(gaps) / len(gaps):.1f} s, {max(gaps):.1f} s at most, " if gaps else ""
    lines = [
        "The map against what the city knows (inside the trust boundary; nobody else can tell):",
        f"  windows: {pace}shown {median(lags):.1f} s after their end (median; at most {max(lags):.1f} s)",
        f"  hexagons with an estimate: {median(len(pair.shown) for pair in pairs):.0f}",
        f"  within {USEFUL_KM_H:g} km/h of the truth: {_within(pairs):.0%} of the events",
    ]
    if len(pairs) > 1:
        lines[-1] += f", {_within(pairs[-1:]):.0%} in the newest window"
    return "\n".join(lines + _incident(pairs))


def _pair(line: dict[str, Any], window: DemoWindow) -> _Window:
    true = {cell: (int(events), float(mean)) for cell, (events, mean) in line["cells"].items()}
    return _Window(window.start, true, window.means, line["incident"])


def _within(pairs: list[_Window]) -> float:
    """Share of the events in hexagons whose estimate is near the truth; where nothing is shown, none is."""
    near = sum(
        events
        for pair in pairs
        for cell, (events, mean) in pair.true.items()
        if abs(pair.shown.get(cell, float("inf")) - mean) <= USEFUL_KM_H
    )
    return near / sum(events for pair in pairs for events, _ in pair.true.values())


def _incident(pairs: list[_Window]) -> list[str]:
    """What the map showed of the first incident's drop, a number for each window."""
    first = next((number for number, pair in enumerate(pairs) if pair.incident), None)
    if first is None:
        return ["  no incident was seen whole yet"]
    cells = pairs[first].incident or []
    before = [mean for pair in pairs[max(0, first - 1 - _BEFORE) : max(0, first - 1)] if (mean := pair.mean(cells))]
    during = [mean for pair in pairs[first:] if pair.incident == cells and (mean := pair.mean(cells))]
    if not before or not during:
        return ["  an incident, but no windows before and during it"]
    true, shown = (sum(mean[side] for mean in before) / len(before) for side in (0, 1))
    drops = ", ".join(f"{(shown - now[1]) / (true - now[0]):.0%}" for now in during[:4])
    return [f"  incident in {len(cells)} hexagons: from {true:.0f} to {during[0][0]:.0f} km/h; the map showed {drops}"]
