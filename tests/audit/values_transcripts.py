"""Forced transcripts of relation "values" over three windows of the shipped path, in exact arithmetic: what each user
loses at most of what they are charged, for their values at 0, at U and at random."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore import distribution
from dpcore.accounting import NANO
from dpcore.budget import MICRO
from dpcore.mean import Mean
from dpcore.moving_mean import MovingMean
from dpcore.noise import Noise
from dpcore.residual import ResidualMean
from dpcore.variance import Variance
from stream.config import Config
from stream.statistics.plan import Plan
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from tests.audit.shipped import Planner, World, as_drawn
from tests.dpcore.silence import Asked
from tests.support.builders import SLOT, bus_config, live_config, random_rows, uneven_rows
from tests.support.tapes import recorded

U = 6500
WINDOWS = 3
OF_A_WINDOW: dict[str, dict[str, Any]] = {
    "as configured": {},
    "mean": {"speed.statistics": ["mean"]},
    "uniform": {"speed.allocation": "uniform", "speed.clipping": "none", "speed.suppression": "none"},
    "no cap": {"speed.sum_cap": 0},
    "as shipped, unmerged": {"speed.statistics": ["mean"], "speed.sum_cap": 1.5},
    "a tight cap": {"speed.sum_cap": 0.4, "speed.clipping": "none"},
    "three users at least": {"speed.min_users": 3},
    "moving reports": {"speed.statistics": ["moving_mean", "variance", "mean"]},
    "moving reports alone": {"speed.statistics": ["moving_mean"], "speed.clipping": "none"},
}
"""Under pure ε, with ε = 1 in each window."""
CAPS: dict[str, Any] = {"speed.clipping": "none", "hexagons.coarsest_resolution": 4, "speed.post_processing": []}
ROLLING: dict[str, Any] = {
    "privacy.epsilon": None,
    "privacy.admission": "rolling",
    "privacy.service": "05:00-10:00",
    "privacy.budget": 6.0,
    "speed.suppression": "none",
}
OF_EPSILON: dict[str, dict[str, Any]] = OF_A_WINDOW | {
    # The noise of percentiles is added to counts of bins.
    "percentiles": {"speed.statistics": ["p15", "p50", "p85"]},
    "mean and percentiles, uniform": OF_A_WINDOW["uniform"] | {"speed.statistics": ["mean", "p50"]},
    # Sparse hexagons are released through their parents, each cell under a cap of its own.
    "hexagons of many levels": CAPS | {"hexagons.merge_until": 120.0, "speed.sum_cap": 0.2},
    "all samples under caps": CAPS
    | {
        "hexagons.merge_until": 60.0,
        "speed.sum_cap": 0.3,
        "speed.suppression": "none",
        "speed.statistics": ["mean"],
    },
    "pure ε, rolling": ROLLING,
    "pure ε, residual": ROLLING | {"speed.clipping": "residual", "speed.sum_cap": 0.0},
}
OF_RHO: dict[str, dict[str, Any]] = {
    "rolling and residual": {},
    "rolling, mean and variance": {"speed.clipping": "none", "speed.statistics": ["mean", "variance"]},
    "moving reports, in another order": {
        "speed.clipping": "none",
        "speed.statistics": ["variance", "moving_mean", "mean"],
    },
    "first come": {"privacy.admission": "first-come", "privacy.windows": 2, "speed.clipping": "none"},
    "merged": {"hexagons.merge_until": 30.0, "hexagons.coarsest_resolution": 5},
}


def fleet(tmp_path: Path, **settings: Any) -> Config:
    """The hourly bus-fleet.toml at ε = 1 per window."""
    return bus_config(tmp_path, **{"privacy.epsilon": 1.0, "privacy.budget": 24.0} | settings)


def settings_of(name: str, tmp_path: Path) -> Config:
    """The configuration of an audit."""
    return live_config(tmp_path, **OF_RHO[name]) if name in OF_RHO else fleet(tmp_path, **OF_EPSILON[name])


@dataclass
class Combined:
    """What a window adds noise to: the integers of every statistic in the order of the plan's scales, and the counts of
    the trees of percentiles with 1/b of each."""

    integers: list[np.ndarray] = field(default_factory=list)
    noise: list[np.ndarray] = field(default_factory=list)
    nodes: list[np.ndarray] = field(default_factory=list)
    of_nodes: list[Fraction] = field(default_factory=list)


@contextmanager
def combined() -> Iterator[Combined]:
    """While the block runs, records what the shipped draw adds its noise to."""
    seen = Combined()
    original_levels = distribution.noisy_levels

    def levels_of(tree: Any, levels: Any, scales: Any, noise: Any) -> Any:
        for i, (level, real) in enumerate(zip(levels, tree.real_nodes(), strict=True)):
            seen.nodes.append(level[:, :real].ravel())
            of_cells = zip(scales.numerator[:, i].tolist(), scales.denominator[:, i].tolist(), strict=True)
            seen.of_nodes.extend(Fraction(s, t) for t, s in of_cells for _ in range(real))
        return original_levels(tree, levels, scales, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "noisy_levels", levels_of)
        for kind in (Mean, ResidualMean, MovingMean, Variance):
            original = kind.draw

            def draw(self: Any, kept: Any, noise: Any, original: Any = original) -> Any:
                result = original(self, kept, noise)
                seen.integers.append(np.asarray(result - noise))
                seen.noise.append(np.asarray(noise))
                return result

            patch.setattr(kind, "draw", draw)
        yield seen


def rates_of(plan: Plan, of_nodes: list[Fraction]) -> list[Fraction]:
    """1/b, or 1/σ, of the noise on each integer of :func:`integers_of`; 0 where there is none. Moving reports have two
    numbers each; the planned scales of trees follow, and come in ``of_nodes``."""
    names = [name for name in ("mean", "moving_mean", "variance") if name in plan.terms.speed.statistics]
    numbers, count = [2 if name == "moving_mean" else 1 for name in names], len(names) * len(plan.cells)
    parts = (part[:count].reshape(-1, len(plan.cells)) for part in (plan.numerators, plan.denominators))
    scales = (np.repeat(part, numbers, axis=0).ravel().tolist() for part in parts)
    return [Fraction(s, t) if t else Fraction(0) for t, s in zip(*scales, strict=True)] + of_nodes


def integers_of(plan: Plan, read: WindowRows, noise: Noise) -> tuple[np.ndarray, list[Fraction], dict[str, Any], Any]:
    """(Integers, 1/b of each, columns, contributions) of the shipped draw."""
    contributions = as_drawn(plan, read)
    with combined() as seen:
        columns = speed_of(plan.terms).draw(plan, contributions, noise)
    exact = [part.ravel() for part in (*seen.integers, *seen.nodes)]
    return np.concatenate(exact), rates_of(plan, seen.of_nodes), columns, contributions


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
        if config.relation == "values" and config.hexagons.merge_until:
            rows = uneven_rows(seed + number, 240, users=9, slot=slot)
        plan, read = world.plan(rows, slot)
        exact, rates, columns, contributions = integers_of(plan, read, noise)
        power, unit = (2, NANO // 2) if plan.gaussian else (1, MICRO)
        costs = [rate**power * unit for rate in rates]
        if not plan.gaussian:
            integers_of(plan, read, asked := Asked())
            assert Counter(asked.rates) == Counter(rate for rate in rates if rate), (
                "other noise is drawn than was planned"
            )
        for user in plan.users.tolist():
            worst = Fraction(0)
            for changed in others(rows, user, seed):
                other, other_read = world.plan(changed, slot)
                assert other.digest == plan.digest, "the plan looked at values"
                moved = exact - integers_of(plan, other_read, recorded(0))[0]
                assert all(costs[at] for at in np.flatnonzero(moved)), "a number moved that has no noise"
                loss = sum((abs(int(moved[at])) ** power * costs[at] for at in np.flatnonzero(moved)), Fraction(0))
                worst = max(worst, loss)
            total[user] = total.get(user, Fraction(0)) + worst
        world.released(plan, contributions, columns)
    return total, world


def overspent(losses: dict[int, Fraction], world: World) -> bool:
    """Whether some user loses more than they are charged, or is charged more than the budget."""
    budget = world.config.privacy.ledger_budget
    return any(loss > world.spent.get(user, 0) for user, loss in losses.items()) or max(world.spent.values()) > budget
