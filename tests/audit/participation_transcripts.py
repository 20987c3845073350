"""Forced transcripts of relation "participation" over four windows of the shipped path with residual clipping, in exact
arithmetic: what each user loses at most of what they are charged."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.accounting import NANO
from dpcore.budget import MICRO
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.statistics.merging import by_planned_cells
from stream.statistics.participation.draw import exact_integers
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from tests.audit.shipped import recorded
from tests.support.builders import SLOT, random_rows, zcdp_config
from tests.support.participating import SMALL, loss, riders
from tests.support.releasing import due_of

WINDOWS = 4
RESIDUAL: dict[str, Any] = {
    "speed.clipping": "residual",
    "speed.post_processing": ["kalman"],
    "speed.statistics": ["mean", "p50"],
    "participation.cells_per_user": 2,
    "participation.samples_per_cell": 3,
}
Planner = Callable[..., Plan]


def config_of(tmp_path: Path, weight: str, accounting: str) -> Config:
    settings = RESIDUAL | {"participation.weight": weight}
    if accounting == "zcdp":
        return zcdp_config(tmp_path, rho=0.1, rho_budget=0.35, **SMALL | settings)
    return riders(tmp_path, **settings | {"privacy.epsilon": 1.0, "privacy.budget": 3.5})


def worst_shares(config: Config, planner: Planner = plan_window, seed: int = 3) -> list[Fraction]:
    """Of each user the part of their charges that all windows together lose, at most."""
    spent, lost = dict[int, int](), dict[int, Fraction]()
    cells, noise = public_cells(config), recorded(seed)
    memory: Memory | None = None
    for number in range(WINDOWS):
        slot, budget = SLOT + 3600 * number, config.privacy.ledger_budget
        due = due_of(config, slot)

        def plan_of(rows: np.ndarray, due: Any = due, budget: int = budget, memory: Any = memory) -> tuple[Plan, Any]:
            read = WindowRows.of(rows, due.terms.reading)
            left = np.array([budget - spent.get(user, 0) for user in read.counts.users.tolist()], dtype=np.int64)
            plan = planner(read, due, Allowance(left, budget), cells, memory)
            return plan, by_planned_cells(plan, read.as_planned(plan).contributions)

        rows = random_rows(seed + number, 60, users=7, places=2, slot=slot)
        plan, contributions = plan_of(rows)
        assert number < 2 or plan.ranges is not None, "the first windows give the ranges of the others"
        exact = exact_integers(plan, contributions)
        for user in plan.users.tolist():
            other, without = plan_of(rows[rows["user"] != user])
            for here, there in zip(public_part(plan), public_part(other), strict=True):
                assert np.array_equal(here, there), "the public part of a plan looked at this window"
            lost[user] = lost.get(user, Fraction(0)) + loss(plan, exact, exact_integers(other, without))
        for user, charge in zip(*(column.tolist() for column in plan.charged_users()), strict=True):
            spent[user] = spent.get(user, 0) + charge
        speed = speed_of(plan.terms, cells)
        columns = speed.draw(plan, contributions, noise)
        _, memory = compose(plan, speed.body(plan, contributions.counts, columns), columns, memory, sequence=number + 1)
    assert max(spent.values()) <= config.privacy.ledger_budget
    unit = NANO if config.privacy.accounting == "zcdp" else MICRO
    return [amount * unit / spent[user] for user, amount in lost.items() if user in spent]


def public_part(plan: Plan) -> list[np.ndarray]:
    """What of a plan follows from earlier releases and the terms: scales and ranges."""
    part = plan.participation
    assert part is not None
    ranges = [column for column in (part.lower, part.upper, part.foretold) if column is not None]
    return [plan.cells, plan.numerators, plan.denominators, *ranges]
