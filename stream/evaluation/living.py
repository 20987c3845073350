"""A feed that lives through a recording, and what its readers see. NOT PRIVATE: its noise can be foretold.

Ledger, plan, charge, draw, memory and messages are the service's
(:class:`stream.statistics.window_release.WindowStatistics`), and the number of a cell is the one that readers show
(:func:`stream.messages.estimate.estimates_of`).

What the users of a simulated feed have paid, by the rules of the ledger; it lives in memory and has no server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.evaluation.scores import means_of
from stream.messages.estimate import estimates_of
from stream.messages.message import HEXAGON_SPEED, Message
from stream.statistics.pacing import spendable
from stream.statistics.plan import Allowance, Due, Plan
from stream.statistics.window_release import WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms


class Accounts:
    """Users pay from the budget of the period and, with a horizon, from that of its block, as
    :meth:`stream.protocol.planning.Planning.make` has them pay.
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
            body = msgspec.json.decode(message.value)
            estimates = estimates_of(body)
            if estimates is not None and shows in estimates:
                mean, law = estimates[shows], 1.0 if plan.gaussian else np.sqrt(2)
                seen[int(body["cell"], 16)] = mean["value"], *mean["interval"], body["mean"]["scale"] * law
    nothing = (np.nan, np.nan, np.nan, np.inf)
    rows = [seen.get(cell, nothing) for cell in answering.tolist()]
    return Shown(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def exact_windows(config: Config, windows: Windows) -> list[Exact]:
    """The windows (slot -> rows) in order of time, as the terms read them."""
    reading = Terms.of(config).reading
    each = [Exact(slot, WindowRows.of(windows[slot], reading)) for slot in sorted(windows)]
    return [window for window in each if len(window.cells)]
