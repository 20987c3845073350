"""A feed that lives through a recording, and what its readers see. NOT PRIVATE: its noise can be foretold.

Ledger, plan, charge, draw, memory and messages are the service's
(:class:`stream.statistics.window_release.WindowStatistics`), and the number of a cell is the one that readers show
(:func:`stream.messages.cells.estimates_of`).

What the users of a simulated feed have paid, by the rules of the ledger; it lives in memory and has no server.

A planted incident, and what the map shows of it, from the event to the screen. NOT PRIVATE: it knows true means.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.evaluation.scores import means_of
from stream.messages.cells import cells_of, estimates_of
from stream.messages.message import HEXAGON_SPEED, Message
from stream.statistics.plan import Allowance, Due, Plan, spendable
from stream.statistics.window_release import WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms


class Accounts:
    """Users pay from the budget of the period and, with a horizon, from that of its block, as
    :meth:`stream.protocol.release_protocol.ReleaseProtocol.make` has them pay.
    """

    def __init__(self) -> None:
        self._spent: dict[str, Counter[int]] = defaultdict(Counter)

    def allowance(self, due: Due, users: IdArray) -> Allowance:
        """What each of ``users`` (L,) may spend in the window that is ``due``."""
        budget, block = due.terms.privacy.budget, due.period.block
        left = spendable(self._left(due.period.key, budget, users), users, due, budget)
        if block is not None:
            left = np.minimum(left, self._left(block.key, block.budget, users))
        return Allowance(left, budget)

    def pay(self, due: Due, plan: Plan) -> None:
        """Add the charges of a plan."""
        users, charged = plan.charged_users()
        paid, block = dict(zip(users.tolist(), charged.tolist(), strict=True)), due.period.block
        for key in (due.period.key, *(() if block is None else (block.key,))):
            self._spent[key].update(paid)

    def _left(self, key: str, budget: int, users: IdArray) -> IntArray:
        spent = self._spent[key]
        return np.array([budget - spent[user] for user in users.tolist()], dtype=np.int64)


Windows = dict[int, npt.NDArray[np.void]]


class Shown(NamedTuple):
    """What readers see of each hexagon with events, shape (H,), in km/h: value and 95 % interval, nan where there is
    none; ``noise``: standard deviation of the released mean's noise.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    noise: FloatArray


@dataclass(frozen=True)
class Exact:
    """One window as it truly was: its rows, and of each hexagon with events their number and clipped mean, (H,)."""

    slot: int
    rows: WindowRows
    cells: IdArray = field(init=False)
    events: FloatArray = field(init=False)
    mean: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        counts, put = self.rows.counts, object.__setattr__
        put(self, "cells", counts.cells)
        put(self, "events", counts.by_cell(counts.samples).astype(np.float64))
        put(self, "mean", means_of(self.rows.contributions))


class Living(Protocol):
    """The state that one window leaves to the next."""

    def forked(self) -> Self:
        """The same as it is now, to be continued with other rows."""

    def release(self, window: Exact) -> Shown:
        """What readers see of the next window."""


class Feed:
    """A feed that lives from window to window. Its noise follows from ``seed``, so it may never leave the boundary."""

    def __init__(self, config: Config, seed: int) -> None:
        self._terms, self._seed = Terms.of(config), seed
        self._statistics = WindowStatistics(self._terms, public_cells(config))
        self._accounts, self._memory, self._number = Accounts(), b"", 0
        self._shows = "typical" if config.public.map == "typical" else "mean"

    def forked(self) -> Self:
        """The feed as it is now, to be continued with other rows."""
        return deepcopy(self)

    def release(self, window: Exact) -> Shown:
        """Plan, charge, draw and compose the next window, and read it as everybody does."""
        due = Due(self._terms, self._terms.window_at(window.slot), "evaluation")
        plan = self._statistics.plan(
            window.rows, due, self._accounts.allowance(due, window.rows.counts.users), self._memory
        )
        self._accounts.pay(due, plan)
        noise = Noise(np.random.default_rng([self._seed, window.slot]).bytes)
        drawn = self._statistics.draw(plan, window.rows, noise)
        self._number += 1
        messages, memory = self._statistics.compose(plan, drawn, self._memory, self._number)
        self._memory = memory or self._memory
        return _read(plan, window.cells, messages, self._shows)


def _read(plan: Plan, hexagons: IdArray, messages: Sequence[Message], shows: str) -> Shown:
    """What the ``messages`` show of each of ``hexagons``, or of the cell it was merged into: the leading mean, or what
    is typical."""
    answering = hexagons if plan.merged is None else plan.merged
    seen = {}
    for message in messages:
        if message.topic == HEXAGON_SPEED:
            (cell,) = cells_of([message.value])
            led = getattr(estimates_of(cell), shows, None)
            if led is not None and cell.mean is not None:
                seen[int(cell.cell, 16)] = led.value, *led.interval, cell.deviation_of(cell.mean)
    nothing = (np.nan, np.nan, np.nan, np.inf)
    rows = [seen.get(cell, nothing) for cell in answering.tolist()]
    return Shown(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def exact_windows(config: Config, windows: Windows) -> list[Exact]:
    """The windows (slot -> rows) in order of time, as the terms read them."""
    reading = Terms.of(config).reading
    each = [Exact(slot, WindowRows.of(windows[slot], reading)) for slot in sorted(windows)]
    return [window for window in each if len(window.cells)]


INCIDENT_S = 3600
"""Length of a planted incident."""
APART = 3
"""Cells of an incident are at least so many hexagons apart, so that none answers for another."""


@dataclass(frozen=True)
class Incident:
    """Slower traffic for an hour from ``start`` (epoch seconds): speeds of ``cells`` (C,) times ``factors`` (C,)."""

    start: int
    cells: IdArray
    factors: FloatArray

    def slots(self, slot_s: int) -> list[int]:
        """Starts of the windows that it touches."""
        return list(range(self.start, self.start + INCIDENT_S, slot_s))

    def struck(self, window: Exact, upper_quanta: int) -> Exact:
        """``window`` with the incident."""
        rows = window.rows.rows.copy()
        at = np.minimum(np.searchsorted(self.cells, rows["cell"]), len(self.cells) - 1)
        hit = (self.cells[at] == rows["cell"]) & (rows["time"] < (self.start + INCIDENT_S) * 1_000_000)
        slowed = np.minimum(rows["value"][hit], upper_quanta) * self.factors[at[hit]]
        rows["value"][hit] = np.round(slowed).astype(rows["value"].dtype)
        return Exact(window.slot, WindowRows.of(rows, window.rows.reading))


def plant(windows: Sequence[Exact], slot_s: int, *, most: int, drop: float | None = None) -> Incident | None:
    """An incident in the busiest hour of the last day, in up to ``most`` cells, busiest first, that have events in each
    window of it; None if there is no such cell.

    ``drop``: mean speeds fall by so many km/h, in cells that are faster by at least 2 km/h; None: to 0.4 of what they
    are, in cells above 10 km/h. The cells are :data:`APART`.
    """
    if (busiest := _busiest_hour(windows, slot_s)) is None:
        return None
    cells, number = np.unique(np.concatenate([window.cells for window in busiest]), return_counts=True)
    events, total = np.zeros((2, len(cells)))
    for window in busiest:
        at = np.searchsorted(cells, window.cells)
        events[at] += window.events
        total[at] += window.events * window.mean
    mean, chosen = total / events, dict[int, float]()
    possible = (number == len(busiest)) & (mean > (10.0 if drop is None else drop + 2))
    for i in np.lexsort((cells, -events)).tolist():
        if possible[i] and len(chosen) < most and _apart(int(cells[i]), chosen):
            chosen[int(cells[i])] = 0.4 if drop is None else 1 - drop / mean[i]
    if not chosen:
        return None
    ascending = sorted(chosen)
    factors = np.array([chosen[cell] for cell in ascending])
    return Incident(busiest[0].slot, np.array(ascending, dtype=np.uint64), factors)


def _busiest_hour(windows: Sequence[Exact], slot_s: int) -> list[Exact] | None:
    """The windows that an incident may touch of the hour of the last day with most events."""
    by_slot, touched = {window.slot: window for window in windows}, range(0, INCIDENT_S, slot_s)
    hours = [
        [by_slot[start + later] for later in touched]
        for start in by_slot
        if start > windows[-1].slot - 86_400 and all(start + later in by_slot for later in touched)
    ]
    return max(hours, key=lambda hour: sum(window.events.sum() for window in hour), default=None)


def _apart(cell: int, others: dict[int, float]) -> bool:
    near = set(h3.grid_disk(cell, APART - 1).tolist())
    return not any(other in near for other in others)


@dataclass(frozen=True)
class Response:
    """What the map shows of a planted incident, window by window. ``minutes``: from the incident's begin until the
    window is on the screen; ``seen``: share of the drop that it shows; ``flagged``: share of the ``cells`` whose 95 %
    interval lies below the mean that they had without the incident. ``drop``: mean over cells, in km/h.
    """

    start: int
    cells: int
    drop: float
    minutes: tuple[float, ...]
    seen: tuple[float, ...]
    flagged: tuple[float, ...]

    def after(self, minutes: float) -> tuple[float, float]:
        """(Seen, flagged) as the screen is so many minutes after the begin; (0, 0) while it shows an older window."""
        return max(
            ((m, s, f) for m, s, f in zip(self.minutes, self.seen, self.flagged, strict=True) if m <= minutes),
            default=(0.0, 0.0, 0.0),
        )[1:]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        points = zip(self.minutes, self.seen, self.flagged, strict=True)
        return {
            "start": self.start,
            "cells": self.cells,
            "drop_km_h": self.drop,
            "on_screen": [{"minutes": m, "seen": s, "flagged": f} for m, s, f in points],
            "seen_after_15_min": self.after(15)[0],
            "seen_after_60_min": self.after(60)[0],
        }


class Watch:
    """Compares a feed that meets an incident with the same feed without it, draw after draw."""

    def __init__(self, config: Config, incident: Incident, windows: Sequence[Exact]) -> None:
        self._slot_s = int(config.window.slot.total_seconds())
        delay = config.window.allowed_delay.total_seconds()
        margin = config.window.publication_margin
        self._delay_s = delay + (0.0 if margin is None else margin.total_seconds())
        self.incident, self._slots = incident, incident.slots(self._slot_s)
        upper = Terms.of(config).speed.upper_quanta
        self.struck = {window.slot: incident.struck(window, upper) for window in windows if window.slot in self._slots}
        self._without = {window.slot: window for window in windows if window.slot in self.struck}
        self._shown, self._flagged = {slot: list[float]() for slot in self.struck}, dict[int, list[float]]()

    @property
    def first(self) -> int:
        """Start of the first window with the incident."""
        return self._slots[0]

    def add(self, slot: int, without: Shown, struck: Shown) -> None:
        """What both showed of one window of one draw."""
        at = np.searchsorted(self._without[slot].cells, self.incident.cells)
        fall = np.nan_to_num(without.value[at] - struck.value[at])
        self._shown[slot].append(float(fall.sum()))
        self._flagged.setdefault(slot, []).append(float((struck.high[at] < self._without[slot].mean[at]).mean()))

    def response(self) -> Response:
        """Means over all draws."""
        drops = {slot: self._drop(slot) for slot in self._slots}
        return Response(
            start=self.incident.start,
            cells=len(self.incident.cells),
            drop=float(np.mean([drop.mean() for drop in drops.values()])),
            minutes=tuple((slot + self._slot_s - self.first + self._delay_s) / 60 for slot in self._slots),
            seen=tuple(float(np.mean(self._shown[slot]) / drops[slot].sum()) for slot in self._slots),
            flagged=tuple(float(np.mean(self._flagged[slot])) for slot in self._slots),
        )

    def _drop(self, slot: int) -> FloatArray:
        """True drop of each cell of the incident, in km/h, (C,), over the part of the window in which it lasts."""
        before, after = self._without[slot], self.struck[slot]
        at = np.searchsorted(before.cells, self.incident.cells)
        fall = (before.mean - after.mean)[at]
        inside = before.rows.rows["time"] < (self.incident.start + INCIDENT_S) * 1_000_000
        here = before.rows.rows["cell"]
        struck = np.array([(inside & (here == cell)).sum() / (here == cell).sum() for cell in self.incident.cells])
        return np.asarray(fall / struck)
