"""Forced transcripts of relation "values" over three windows of the shipped path, in exact arithmetic: what each user
loses at most of what they are charged."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import NANO
from dpcore.budget import MICRO
from dpcore.mean import Mean
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.residual import ResidualMean
from dpcore.variance import Variance
from stream.config import Config
from stream.statistics import plan
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from tests.audit.shipped import recorded
from tests.audit.values_losses import of_each_number
from tests.support.builders import SLOT, bus_config, live_config, random_rows
from tests.support.releasing import due_of

U = 6500
WINDOWS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "rolling and residual": {},
    "rolling, mean and variance": {"speed.clipping": "none", "speed.statistics": ["mean", "variance"]},
    "moving reports, in another order": {
        "speed.clipping": "none",
        "speed.statistics": ["variance", "moving_mean", "mean"],
    },
    "first come": {"privacy.admission": "first-come", "privacy.windows": 2, "speed.clipping": "none"},
    "merged": {"hexagons.merge_until": 30.0, "hexagons.coarsest_resolution": 5},
}
PURE, PURE_RESIDUAL = "pure ε, rolling", "pure ε, residual"
OF_PURE: dict[str, Any] = {
    "privacy.epsilon": None,
    "privacy.admission": "rolling",
    "privacy.service": "05:00-10:00",
    "privacy.budget": 6.0,
    "speed.suppression": "none",
}
Planner = Callable[..., Plan]


def settings_of(name: str, tmp_path: Path) -> Config:
    """The configuration of an audit."""
    if name in SETTINGS:
        return live_config(tmp_path, **SETTINGS[name])
    residual = {"speed.clipping": "residual", "speed.sum_cap": 0.0} if name == PURE_RESIDUAL else {}
    return bus_config(tmp_path, **OF_PURE | residual)


@dataclass
class Combined:
    """The integers of every statistic of a window, in the order of the plan's scales."""

    integers: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)


@contextmanager
def combined() -> Any:
    """While the block runs, records what the shipped draw adds its noise to."""
    seen = Combined()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Mean, ResidualMean, MovingMean, Variance):
            original = kind.draw

            def draw(self: Any, kept: Any, noise: Any, original: Any = original) -> Any:
                result = original(self, kept, noise)
                seen.integers.append(np.asarray(result - noise))
                seen.noise.append(np.asarray(noise))
                return result

            patch.setattr(kind, "draw", draw)
        yield seen


class World:
    """A feed of one configuration, with its ledger and memory."""

    def __init__(self, config: Config, planner: Planner = plan_window) -> None:
        self.config, self.planner, self.spent = config, planner, dict[int, int]()
        self.memory: Memory | None = None

    def plan(self, rows: np.ndarray, slot: int) -> tuple[Plan, WindowRows]:
        """The plan of a window, by the ledger and the memory so far."""
        due, budget = due_of(self.config, slot), self.config.privacy.ledger_budget
        read = WindowRows.of(rows, due.terms.reading)
        left = np.array([budget - self.spent.get(user, 0) for user in read.counts.users.tolist()], dtype=np.int64)
        left = plan.spendable(left, read.counts.users, due, budget)
        return self.planner(read, due, Allowance(left, budget), memory=self.memory), read

    def charge(self, plan: Plan) -> None:
        """Charge the users of a plan."""
        for user, charge in zip(*(column.tolist() for column in plan.charged_users()), strict=True):
            self.spent[user] = self.spent.get(user, 0) + charge


def integers_of(plan: Plan, read: WindowRows, noise: Noise) -> tuple[np.ndarray, dict[str, Any], Any]:
    """(Integers, columns, contributions) of the shipped draw."""
    contributions = by_planned_cells(plan, read.as_planned(plan).contributions)
    with combined() as seen:
        columns = speed_of(plan.terms).draw(plan, contributions, noise)
    return np.concatenate([exact.ravel() for exact in seen.integers]), columns, contributions


def others(rows: np.ndarray, user: int, seed: int) -> list[np.ndarray]:
    """The same rows with other values of ``user``: all 0, all U, at random."""
    rng, mine, worlds = np.random.default_rng(seed), rows["user"] == user, []
    for values in (np.zeros(mine.sum()), np.full(mine.sum(), U), rng.choice([0, U, 2 * U], mine.sum())):
        worlds.append(rows.copy())
        worlds[-1]["value"][mine] = values
    return worlds


def worst_losses(config: Config, seed: int, planner: Planner = plan_window) -> tuple[dict[int, Fraction], World]:
    """The worst loss of each user over three windows, in the ledger's unit, and the world in which they lost it. The
    user who is changed has all other values in one window, and again in the next: losses of windows add up under a
    forced transcript.
    """
    world, total, noise = World(config, planner), dict[int, Fraction](), recorded(seed)
    for number in range(WINDOWS):
        slot = SLOT + 3600 * number
        rows = random_rows(seed + number, 40, users=7, slot=slot)
        plan, read = world.plan(rows, slot)
        exact, columns, contributions = integers_of(plan, read, noise)
        power, unit = (2, NANO // 2) if plan.gaussian else (1, MICRO)
        ratio = [
            Fraction(int(s), int(t)) ** power * unit if t else None
            for t, s in zip(*(of_each_number(plan, part) for part in (plan.numerators, plan.denominators)), strict=True)
        ]
        for user in plan.users.tolist():
            worst = Fraction(0)
            for changed in others(rows, user, seed):
                other, other_read = world.plan(changed, slot)
                assert other.digest == plan.digest, "the plan looked at values"
                moved = exact - integers_of(plan, other_read, recorded(0))[0]
                assert all(ratio[at] is not None for at in np.flatnonzero(moved)), "a number moved that has no noise"
                loss = sum((abs(int(moved[at])) ** power * ratio[at] for at in np.flatnonzero(moved)), Fraction(0))
                worst = max(worst, loss)
            total[user] = total.get(user, Fraction(0)) + worst
        world.charge(plan)
        bodies = speed_of(plan.terms).body(plan, contributions.counts, columns)
        _, world.memory = compose(plan, bodies, columns, world.memory, sequence=number + 1)
    return total, world


def overspent(losses: dict[int, Fraction], world: World) -> bool:
    """Whether some user loses more than they are charged, or is charged more than the budget."""
    budget = world.config.privacy.ledger_budget
    return any(loss > world.spent.get(user, 0) for user, loss in losses.items()) or max(world.spent.values()) > budget
