"""Relation "values" under zCDP and with rolling grants on the shipped path: forced transcripts over three windows, in
exact arithmetic.

One world is released with real noise, window after window: ledger, plan, draw, messages, memory. Its transcript is
forced on worlds in which one user has other values everywhere. Given the same outputs, their plans must be the same
bytes, and what they add noise to may differ by no more than that user is charged: Σ Δ²·s²/(2t²), under pure ε Σ Δ·s/t,
over the integers and scales that the shipped draw combines. No sampling; power 1. Planted bugs must show.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
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
from stream.statistics import pacing
from stream.statistics.pipeline import compose
from stream.statistics.plan import Allowance, Plan
from stream.statistics.relations import speed_of
from stream.statistics.smoothing_state import Memory
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from tests.audit.shipped import recorded
from tests.audit.values_losses import of_each_number
from tests.support.builders import SLOT, bus_config, live_config, random_rows
from tests.support.nightly import nightly_but
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
PURE = "pure ε, rolling"
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
    return bus_config(tmp_path, **OF_PURE) if name == PURE else live_config(tmp_path, **SETTINGS[name])


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
        left = pacing.spendable(left, read.counts.users, due, budget)
        return self.planner(read, due, Allowance(left, budget), memory=self.memory), read

    def charge(self, plan: Plan) -> None:
        """Charge the users of a plan."""
        for user, charge in zip(*(column.tolist() for column in plan.charged_users()), strict=True):
            self.spent[user] = self.spent.get(user, 0) + charge


def integers_of(plan: Plan, read: WindowRows, noise: Noise) -> tuple[np.ndarray, dict[str, Any], Any]:
    """(Integers, columns, contributions) of the shipped draw."""
    contributions = read.as_planned(plan).in_cells_of(plan)
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


@pytest.mark.parametrize("seed", nightly_but([0], [0, 10]))
@pytest.mark.parametrize("name", [*SETTINGS, PURE])
def test_no_user_loses_more_over_three_windows_than_they_are_charged(
    tmp_path: Path, name: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    losses, world = worst_losses(settings_of(name, tmp_path), seed)
    shares = (loss / world.spent[user] for user, loss in losses.items() if user in world.spent)
    record_property("loss", {"worst": float(max(shares)), "charged": 1.0})
    assert not overspent(losses, world)
    assert max(losses.values()) > 0.2 * max(world.spent.values()), "the audit found next to nothing"


def test_the_noise_that_is_drawn_has_the_law_that_was_charged_for(tmp_path: Path) -> None:
    """400 draws of six cells: the mean of (noise/σ)² is 1 ± 5·√(2/n) (α = 6·10⁻⁷); half the scale gives ¼, Laplace
    noise 2."""
    plan, read = World(live_config(tmp_path)).plan(random_rows(3, 40, users=7), SLOT)
    contributions, noise = read.as_planned(plan).in_cells_of(plan), recorded(8)
    with combined() as seen:
        for _ in range(400):
            speed_of(plan.terms).draw(plan, contributions, noise)
    squares = np.square(np.array(seen.noise) / plan.scales.values)
    assert squares.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / squares.size))


def half_the_scale(*given: Any, **named: Any) -> Plan:
    """Planted bug: half the noise that was charged for."""
    plan = plan_window(*given, **named)
    return msgspec.structs.replace(plan, denominators=2 * plan.scales.denominator)


def charged_half(*given: Any, **named: Any) -> Plan:
    """Planted bug: charges are halved, as if sensitivities were not squared by their full range."""
    plan = plan_window(*given, **named)
    return msgspec.structs.replace(plan, charges=plan.charges // 2)


@pytest.mark.parametrize("bug", [half_the_scale, charged_half])
@pytest.mark.parametrize("name", nightly_but([PURE], ["rolling and residual", "first come", PURE]))
def test_the_same_audit_catches_a_plan_that_tells_more_than_it_charges(tmp_path: Path, name: str, bug: Planner) -> None:
    assert any(overspent(*worst_losses(settings_of(name, tmp_path), 10 * seed, bug)) for seed in range(2))


def test_ranges_around_the_true_data_are_caught(tmp_path: Path) -> None:
    def around_the_truth(read: WindowRows, *given: Any, **named: Any) -> Plan:
        plan = plan_window(read, *given, **named)
        counts = read.contributions.counts
        means = read.contributions.cell_sums() // counts.by_cell(counts.samples)
        part = msgspec.structs.replace(
            plan.values, lower=np.clip(means - 100, 0, U - 200), upper=np.clip(means - 100, 0, U - 200) + 200
        )
        return msgspec.structs.replace(plan, values=part)

    with pytest.raises(AssertionError, match="the plan looked at values"):
        worst_losses(live_config(tmp_path), 0, around_the_truth)


@pytest.mark.parametrize("name", ["rolling and residual", PURE])
def test_the_grant_of_another_user_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """User 1 has spent everything; the next user's ledger says that they have not."""
    of_oneself = pacing.rolling_grants

    def of_the_neighbour(budget: int, spent: np.ndarray, left: int) -> np.ndarray:
        return of_oneself(budget, np.roll(spent, 1), left)

    for grants, caught in ((of_oneself, False), (of_the_neighbour, True)):
        monkeypatch.setattr(pacing, "rolling_grants", grants)
        world = World(settings_of(name, tmp_path))
        rows = random_rows(3, 40, users=7)
        world.spent = {int(np.unique(rows["user"])[0]): world.config.privacy.ledger_budget}
        world.charge(world.plan(rows, SLOT)[0])
        assert (max(world.spent.values()) > world.config.privacy.ledger_budget) is caught


def test_a_user_without_budget_is_not_in_the_numbers_and_pays_nothing(tmp_path: Path) -> None:
    world = World(live_config(tmp_path))
    rows = random_rows(3, 40, users=7)
    user = int(rows["user"][0])
    world.spent[user] = world.config.privacy.ledger_budget
    plan, read = world.plan(rows, SLOT)
    exact, *_ = integers_of(plan, read, recorded(1))
    assert plan.charges[plan.users == user].tolist() == [0]
    for changed in others(rows, user, 1):
        assert np.array_equal(exact, integers_of(plan, world.plan(changed, SLOT)[1], recorded(1))[0])
