"""Shows releases in the demo: one row per window, and a summary."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

from rich.table import Table

from dpcore.errors import ParameterError
from stream.messages.estimate import RELEASED, estimates_of
from stream.messages.message import HEXAGON_SPEED, REJECTED, SPATIAL_HISTOGRAM, WINDOW, validator

_ROWS = 16


@dataclass
class DemoWindow:
    """The messages of one window so far; complete with its close marker and all that this counts."""

    start: str
    end: str
    epsilon: float = 0.0
    cells: int = 0
    suppressed: int = 0
    busiest: tuple[float, str, dict[str, Any], dict[str, Any]] | None = None
    """Its events, its name, its estimated mean, and its mean as it was drawn."""
    half_widths: list[float] = field(default_factory=list)
    raw_half_widths: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """Published events of each cell, or under "participation" users: noisy, so at least 0."""
    totals: dict[str, str] = field(default_factory=dict)
    announced: int | None = None
    means: dict[str, float] = field(default_factory=dict)
    """The estimated mean of each cell that has one."""
    arrived: float = 0.0
    """When it was complete (epoch seconds)."""

    @property
    def complete(self) -> bool:
        """All cells, all histograms and the marker arrived."""
        return self.announced is not None and self.cells + len(self.totals) >= self.announced

    def add_histogram(self, body: dict[str, Any]) -> None:
        """One spatial histogram: how many it counts in its whole box, with the 95 % interval."""
        from stream.messages.range_query import count_in  # takes a second to import; only needed with histograms

        box = body["domain"]
        estimate = count_in(body, (box["west"], box["south"], box["east"], box["north"]))
        interval = "" if estimate["interval"] is None else " ({}–{})".format(*estimate["interval"])
        self.totals[body["mechanism"]] = f"{estimate['value']:.0f}{interval}"

    def add_cell(self, body: dict[str, Any]) -> None:
        """One hexagon."""
        self.cells += 1
        self.epsilon = body["epsilon"]
        if body["status"] != "published":
            self.suppressed += 1
        elif mean := (estimates_of(body) or {}).get("mean"):
            self.means[body["cell"]] = mean["value"]
            self.half_widths.append(_half_width(mean))
            self.raw_half_widths.append(_half_width(body["mean"]))
            counted = body.get("events", body["users"])
            events = counted if isinstance(counted, int) else counted["value"]
            self.weights.append(max(events, 0))
            if self.busiest is None or events > self.busiest[0]:
                self.busiest = (events, body["cell"], mean, body["mean"])

    def span(self, timezone: ZoneInfo) -> str:
        """Local month, day and hours."""
        start, end = (datetime.fromisoformat(moment).astimezone(timezone) for moment in (self.start, self.end))
        clock = "%H:%M" if start.second == end.second == 0 else "%H:%M:%S"
        return f"{start:%m-%d} {start:{clock}}–{end:{clock}}"

    def busiest_mean(self) -> str:
        """Estimated mean of the cell with most events, with its 95 % interval."""
        return "-" if self.busiest is None else _with_interval(self.busiest[2])

    def busiest_raw(self) -> str:
        """The same mean as it was drawn."""
        return "-" if self.busiest is None else _with_interval(self.busiest[3])

    def counted(self) -> str:
        """Totals of the spatial histograms; empty without."""
        return ", ".join(f"{name} {total}" for name, total in sorted(self.totals.items()))

    def median_half_width(self) -> str:
        """Median over cells of half the estimated mean's 95 % interval."""
        return _median(self.half_widths)

    def typical_half_width(self) -> str:
        """The same with every cell weighted by what it counts: half of the events are in cells this narrow."""
        reached, half = 0.0, sum(self.weights) / 2
        for width, weight in sorted(zip(self.half_widths, self.weights, strict=True)):
            reached += weight
            if reached >= half:
                return f"± {width:.1f}"
        return "-"

    def typical_raw(self) -> str:
        """The same of the means as they were drawn."""
        return _median(self.raw_half_widths)

    @property
    def modelled(self) -> bool:
        """Whether a model's estimates lead."""
        return self.busiest is not None and self.busiest[2]["method"] != RELEASED


def _half_width(estimate: dict[str, Any]) -> float:
    low, high = estimate["interval"]
    return float(high - low) / 2


def _median(half_widths: list[float]) -> str:
    return f"± {median(half_widths):.1f}" if half_widths else "-"


def _with_interval(estimate: dict[str, Any]) -> str:
    low, high = estimate["interval"]
    return f"{estimate['value']:.1f} ({low:.0f}–{high:.0f})"


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
            self._refuse(topic, problem.message)
            return
        if topic == REJECTED:
            self.refused[body["reason"]] += body["count"]
        elif topic in (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW):
            window = self.windows.setdefault(body["window"]["start"], DemoWindow(**body["window"]))
            if topic == WINDOW:
                window.announced = body["messages"]
                window.epsilon = body["epsilon"]
            elif topic == SPATIAL_HISTOGRAM:
                try:
                    window.add_histogram(body)
                except ParameterError as error:
                    self._refuse(topic, str(error))
            else:
                window.add_cell(body)
            if window.complete and window not in self.order:
                window.arrived = time.time()
                self.order.append(window)

    def _refuse(self, topic: str, problem: str) -> None:
        self.invalid += 1
        self.first_problem = self.first_problem or f"{topic}: {problem}"

    def table(self) -> Table:
        """The latest complete windows."""
        table = Table(
            title=f"Private releases: {len(self.order)} windows, {self.messages} messages",
            caption="busiest: most events; its mean in km/h (95 % interval); typical: half of the events are in cells "
            "this narrow",
        )
        table.add_column("window", no_wrap=True)
        for column in ("cells", "suppr.", "busiest", "its mean", "typical", "ε"):
            table.add_column(column, justify="right", no_wrap=True)
        mapped = any(window.totals for window in self.order[-_ROWS:])
        if mapped:
            table.add_column("on the map", justify="right", no_wrap=True)
        for window in self.order[-_ROWS:]:
            events = "-" if window.busiest is None else f"{window.busiest[0]:g}"
            columns = [str(window.cells), str(window.suppressed), events, window.busiest_mean()]
            columns += [window.typical_half_width(), f"{window.epsilon:g}"]
            table.add_row(window.span(self.timezone), *columns, *([window.counted() or "-"] if mapped else []))
        return table

    def lines(self) -> list[str]:
        """One plain line per complete window, in order of arrival."""
        return [self._line(window) for window in self.order]

    def _line(self, window: DemoWindow) -> str:
        busy = "-" if window.busiest is None else f"{window.busiest[1]} ({window.busiest[0]:g} events)"
        counted = f"on the map {window.counted()}  " if window.totals else ""
        kind = "modelled mean" if window.modelled else "mean"
        raw = f"raw {window.busiest_raw()}, median {window.typical_raw()}  " if window.modelled else ""
        return (
            f"{window.span(self.timezone)}  {window.cells} cells ({window.suppressed} suppressed)  "
            f"busiest {busy}: {kind} {window.busiest_mean()} km/h  "
            f"all cells (median) {window.median_half_width()}, by events {window.typical_half_width()}  "
            f"{raw}{counted}ε {window.epsilon:g}"
        )

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
