"""Shows releases in the demo: one line per window, and a summary."""

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from stream.config import Config
from stream.messages.cells import estimates_in
from stream.messages.message import REJECTED, RELEASE_TOPICS, SPATIAL_HISTOGRAM, WINDOW, validator
from stream.sources.live_city import LIVES_FOR


@dataclass
class DemoWindow:
    """The messages of one window so far; complete with its close marker and all that this counts."""

    start: str
    end: str
    epsilon: float = 0.0
    cells: int = 0
    suppressed: int = 0
    histograms: int = 0
    busiest: tuple[float, str, dict[str, Any]] | None = None
    """Its events (under "participation" users, which are noisy), its name, and its estimated mean."""
    half_widths: list[float] = field(default_factory=list)
    announced: int | None = None
    means: dict[str, float] = field(default_factory=dict)
    """The estimated mean of each cell that has one."""
    arrived: float = 0.0
    """When it was complete (epoch seconds)."""

    @property
    def complete(self) -> bool:
        """All cells, all histograms and the marker arrived."""
        return self.announced is not None and self.cells + self.histograms >= self.announced

    def add_cell(self, body: dict[str, Any]) -> None:
        """One hexagon."""
        self.cells += 1
        self.epsilon = body["epsilon"]
        if body["status"] != "published":
            self.suppressed += 1
        elif mean := (estimates_in(body) or {}).get("mean"):
            self.means[body["cell"]] = mean["value"]
            self.half_widths.append((mean["interval"][1] - mean["interval"][0]) / 2)
            counted = body.get("events", body["users"])
            events = counted if isinstance(counted, int) else counted["value"]
            if self.busiest is None or events > self.busiest[0]:
                self.busiest = (events, body["cell"], mean)

    def line(self, timezone: ZoneInfo) -> str:
        """What a reader of the window learns, in one line; its times are local."""
        start, end = (datetime.fromisoformat(moment).astimezone(timezone) for moment in (self.start, self.end))
        clock = "%H:%M" if start.second == end.second == 0 else "%H:%M:%S"
        text = f"{start:%m-%d} {start:{clock}}–{end:{clock}}  {self.cells} cells ({self.suppressed} suppressed)  "
        if self.busiest is not None:
            events, cell, mean = self.busiest
            low, high = mean["interval"]
            text += f"busiest {cell} ({events:g} events): mean {mean['value']:.1f} ({low:.0f}–{high:.0f}) km/h  "
            text += f"all cells (median) ± {median(self.half_widths):.1f}  "
        return f"{text}ε {self.epsilon:g}"


class Releases:
    """Every message that was released, each ``ce_id`` once."""

    def __init__(self, timezone: ZoneInfo) -> None:
        self.timezone = timezone
        self.messages = self.duplicates = self.invalid = 0
        self.first_problem: str | None = None
        self.refused: Counter[str] = Counter()
        self.windows: dict[str, DemoWindow] = {}
        self.order: list[DemoWindow] = []
        """The complete windows, as they arrived."""
        self._seen: set[bytes] = set()

    def add(self, topic: str, headers: dict[str, bytes], value: bytes) -> None:
        """Take one record. Repeated messages and those that do not match their schema are counted and not shown."""
        self.messages += 1
        if headers["ce_id"] in self._seen:
            self.duplicates += 1
            return
        self._seen.add(headers["ce_id"])
        body = json.loads(value)
        problem = next(validator(topic).iter_errors(body), None)
        if problem is not None:
            self.invalid += 1
            self.first_problem = self.first_problem or f"{topic}: {problem.message}"
            return
        if topic == REJECTED:
            self.refused[body["reason"]] += body["count"]
        elif topic in RELEASE_TOPICS:
            window = self.windows.setdefault(body["window"]["start"], DemoWindow(**body["window"]))
            if topic == WINDOW:
                window.announced = body["messages"]
                window.epsilon = body["epsilon"]
            elif topic == SPATIAL_HISTOGRAM:
                window.histograms += 1
            else:
                window.add_cell(body)
            if window.complete and window not in self.order:
                window.arrived = time.time()
                self.order.append(window)

    def lines(self) -> list[str]:
        """One plain line per complete window, in order of arrival."""
        return [window.line(self.timezone) for window in self.order]

    def summary(self) -> str:
        """Counts of everything seen."""
        refused = ", ".join(f"{reason} {count}" for reason, count in sorted(self.refused.items())) or "none"
        problem = "" if self.first_problem is None else f" ({self.first_problem})"
        return (
            f"Windows closed: {len(self.order)}\n"
            f"  messages read: {self.messages}\n"
            f"  duplicates by ce_id: {self.duplicates}\n"
            f"  failing their JSON Schema: {self.invalid}{problem}\n"
            f"  events refused: {refused}"
        )


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
    pairs = [
        _Window(window.start, line["cells"], window.means, line["incident"])
        for window in windows
        if (line := known.get(window.start)) is not None
    ]
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
