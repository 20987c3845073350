"""The shipped path under audit: rows -> plan -> charge -> draw of :mod:`stream.statistics.pipeline`, on many small
towns at once.

A window of R towns that share neither users nor cells is R independent releases in one draw: every town's numbers are
one sample. What a town's user may lose is what the plan charges them, whatever is charged in other towns.
Tapes are recorded, so an audit gives the same answer in every run: a correct release is never refuted by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from redis.asyncio import Redis

from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.statistics.columns import Columns
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Plan, spendable
from stream.statistics.smoothing_state import Memory
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW
from tests.support.builders import SLOT
from tests.support.releasing import draw, due_of

Event = tuple[int, int, int]
"""(Cell of the town, user of the town, value in quanta)."""
_USERS = 100
"""Ids set aside for the users of one town."""


@dataclass(frozen=True)
class Towns:
    """R copies of a town: ``cells[r]`` are the ids of the cells of town r, ascending."""

    cells: npt.NDArray[np.uint64]

    @classmethod
    def unlisted(cls, towns: int, cells: int) -> Towns:
        """Towns of ``cells`` cells with made-up ids, for relation "values"."""
        return cls((1 + np.arange(towns * cells, dtype=np.uint64)).reshape(towns, cells))

    @classmethod
    def of_list(cls, listed: npt.NDArray[np.uint64], cells: int) -> Towns:
        """As many towns of ``cells`` cells as a public list holds."""
        return cls(listed[: len(listed) // cells * cells].reshape(-1, cells))

    def rows(self, events: Sequence[Event]) -> npt.NDArray[np.void]:
        """Rows of a window in which the same ``events`` happen in every town; users of a town have distinct times."""
        cell, user, value = (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
        count = len(self.cells)
        rows = np.zeros(count * len(events), dtype=ROW)
        rows["cell"] = self.cells[:, cell].ravel()
        rows["user"] = (np.arange(count)[:, None] * _USERS + user[None, :]).ravel() + 1
        rows["time"] = SLOT * 1_000_000 + np.tile(np.arange(len(events)) * 1000, count)
        rows["value"] = np.tile(value, count)
        return rows

    def charge(self, plan: Plan, user: int) -> float:
        """The largest charge of ``user`` over all towns, in whole units of ε (or ρ)."""
        mine = (plan.users - np.uint64(1)) % np.uint64(_USERS) == user
        return float(plan.charges[mine].max(initial=0)) / (1_000_000 if not plan.gaussian else 1_000_000_000)

    def numbers(self, plan: Plan, columns: dict[str, Columns]) -> npt.NDArray[np.float64]:
        """Raw released numbers, a row for each town: shape (R, numbers)."""
        at = np.searchsorted(plan.cells, self.cells)
        return np.hstack([column.raw[at] for column in columns.values()])


async def ledger_of(redis: Redis, feed: str = "bus", birth: int = 0) -> tuple[Ledger, str]:
    """A new ledger and its generation."""
    ledger = Ledger(redis, feed)
    return ledger, await ledger.start_generation(birth=birth)


Planner = Callable[..., Plan]


class World:
    """A feed of one configuration: what its users have spent, and its memory of earlier releases."""

    def __init__(self, config: Config, planner: Planner = plan_window) -> None:
        self.config, self.planner, self.cells = config, planner, public_cells(config)
        self.spent: Counter[int] = Counter()
        self.memory: Memory | None = None
        self.windows = 0

    def plan(self, rows: np.ndarray, slot: int) -> tuple[Plan, WindowRows]:
        """The plan of a window, by the ledger and the memory so far."""
        due, privacy = due_of(self.config, slot), self.config.privacy
        read, budget = WindowRows.of(rows, due.terms.reading), privacy.ledger_budget
        left = np.array([budget - self.spent[user] for user in read.counts.users.tolist()], dtype=np.int64)
        left = spendable(left, read.counts.users, due, budget)
        plan = self.planner(read, due, Allowance(left, budget), self.cells, self.memory)
        grant = self.config.window_grant if privacy.admission == "first-come" else budget
        assert plan.charges.max(initial=0) <= grant
        return plan, read

    def charge(self, plan: Plan) -> None:
        """Charge the users of a plan."""
        self.spent.update(dict(zip(*(column.tolist() for column in plan.charged_users()), strict=True)))

    def released(self, plan: Plan, contributions: Contributions, columns: dict[str, Columns]) -> None:
        """Charge the users of a plan, and remember its release."""
        self.charge(plan)
        self.windows += 1
        bodies = speed_of(plan.terms, self.cells).body(plan, contributions.counts, columns)
        _, self.memory = compose(plan, bodies, columns, self.memory, sequence=self.windows)


def as_drawn(plan: Plan, read: WindowRows) -> Contributions:
    """What the draw under ``plan`` is given of a window's rows."""
    return by_planned_cells(plan, read.as_planned(plan).contributions)


def drawn(plan: Plan, contributions: Contributions, towns: Towns, draws: int, noise: Noise) -> npt.NDArray[np.float64]:
    """``draws`` releases of every town under a given plan."""
    return np.concatenate([towns.numbers(plan, draw(plan, contributions, noise)) for _ in range(draws)])
