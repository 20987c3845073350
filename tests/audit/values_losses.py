"""What the shipped draw of relation "values" adds noise to, and what it costs each user: exact, for their values at 0,
at U and at random."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore import distribution
from dpcore.contributions import Contributions
from stream.config import Config
from stream.config.value import QUANTUM
from stream.statistics.columns import VARIANCE_GRID
from stream.statistics.plan import Plan, counts_digest
from stream.statistics.window_rows import contributions_of
from stream.terms import MOVING_QUANTA
from tests.dpcore.silence import Silence
from tests.support.builders import bus_config, random_rows
from tests.support.releasing import draw, planned

U = 6500
SETTINGS: dict[str, dict[str, Any]] = {
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
TREES: dict[str, dict[str, Any]] = {
    "percentiles": {"speed.statistics": ["p15", "p50", "p85"]},
    "mean and percentiles, uniform": {
        "speed.statistics": ["mean", "p50"],
        "speed.allocation": "uniform",
        "speed.clipping": "none",
        "speed.suppression": "none",
    },
}
"""Settings of percentiles, whose noise is added to counts of bins."""


def fleet(tmp_path: Path, **settings: Any) -> Config:
    """The hourly bus-fleet.toml at ε = 1 per window."""
    return bus_config(tmp_path, **{"privacy.epsilon": 1.0, "privacy.budget": 24.0} | settings)


class Asked(Silence):
    """Adds no noise and records the scales that the draw requests, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.scales: list[tuple[int, int]] = []

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        t, s = np.broadcast_arrays(np.asarray(numerator), np.asarray(denominator))
        self.scales += zip(t.ravel().tolist(), s.ravel().tolist(), strict=True)
        return super().discrete_laplace(numerator, denominator, size)


def integers(plan: Plan, contributions: Contributions) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The integers to which noise was added, recovered from the draw, (numbers, C), and the noise scales in the same
    order, of which moving reports have each twice.
    """
    noise = Asked()
    columns = draw(plan, contributions, noise)
    n = np.maximum(contributions.counts.by_cell(plan.retained), 1)
    assert n.max() < 10, "a mean of more values is rounded too coarsely to show its integer"
    exact = []
    if "mean" in columns:
        exact.append(columns["mean"].raw * n / QUANTUM)
    if "moving_mean" in columns:
        moving = columns["moving"].raw
        off_middle = columns["moving_mean"].raw / QUANTUM - (U + MOVING_QUANTA) / 2
        exact += [2 * np.round(off_middle * moving), moving * (U - MOVING_QUANTA)]
    if "variance" in columns:
        exact.append(columns["variance"].raw / (VARIANCE_GRID * QUANTUM**2))
    return np.round(exact).astype(np.int64), noise.scales


def nodes(plan: Plan, contributions: Contributions) -> tuple[np.ndarray, list[Fraction]]:
    """The counts of the trees of percentiles to which the shipped draw adds noise, and 1/b of each, flat."""
    exact: list[np.ndarray] = []
    ratio: list[Fraction] = []
    original = distribution.noisy_levels

    def recorded(tree: Any, levels: Any, scales: Any, noise: Any) -> Any:
        for i, (level, real) in enumerate(zip(levels, tree.real_nodes(), strict=True)):
            exact.append(level[:, :real].ravel())
            of_cells = zip(scales.numerator[:, i].tolist(), scales.denominator[:, i].tolist(), strict=True)
            ratio.extend(Fraction(s, t) for t, s in of_cells for _ in range(real))
        return original(tree, levels, scales, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "noisy_levels", recorded)
        draw(plan, contributions, asked := Asked())
    requested = Counter(Fraction(s, t) for t, s in asked.scales)
    assert all(requested[each] >= n for each, n in Counter(ratio).items()), "a node has other noise than was planned"
    return np.concatenate([np.zeros(0, dtype=np.int64), *exact]), ratio


def of_each_number(plan: Plan, scales: np.ndarray) -> np.ndarray:
    """The planned ``scales`` (statistics · C) for each of the :func:`integers`, flat."""
    names = [name for name in ("mean", "moving_mean", "variance") if name in plan.terms.speed.statistics]
    scales = scales[: len(names) * len(plan.cells)]  # those of trees follow
    numbers = [2 if name == "moving_mean" else 1 for name in names]
    return np.repeat(scales.reshape(-1, len(plan.cells)), numbers, axis=0).ravel()


def worst_share(config: Config, seed: int) -> Fraction:
    """The largest part of their charge that any user of a random window loses: Σ |Δ|·s/t over the scales that the draw
    requested."""
    rows, worst = random_rows(seed, 28, users=7), Fraction(0)
    plan, contributions = planned(config, rows)
    exact, scales = integers(plan, contributions)
    noisy = np.flatnonzero(of_each_number(plan, plan.scales.numerator))
    tree, of_nodes = nodes(plan, contributions)
    assert len(scales) == len(noisy) + len(tree), "a number without noise that has a scale, or the reverse"
    ratio = {int(at): Fraction(s, t) for at, (t, s) in zip(noisy, scales[: len(noisy)], strict=True)}
    rng = np.random.default_rng(seed)
    for user, charge in zip(plan.users.tolist(), plan.charges.tolist(), strict=True):
        mine = rows["user"] == user
        for values in (np.zeros(mine.sum()), np.full(mine.sum(), U), rng.choice([0, U, 2 * U], mine.sum())):
            changed = rows.copy()
            changed["value"][mine] = values
            other = contributions_of(changed, config.value.upper_quanta)
            assert counts_digest(other.counts) == counts_digest(contributions.counts), "a plan is made of counts alone"
            moved = np.abs(exact - integers(plan, other)[0]).ravel()
            loss = sum((int(moved[at]) * ratio[int(at)] for at in np.flatnonzero(moved)), Fraction(0))
            nodes_moved = np.abs(tree - nodes(plan, other)[0])
            loss += sum((int(nodes_moved[at]) * of_nodes[at] for at in np.flatnonzero(nodes_moved)), Fraction(0))
            assert charge <= config.privacy.epsilon_micro
            worst = max(worst, loss * 1_000_000 / charge if charge else 1_000_000 * loss)
        assert planned(config, changed)[0].digest == plan.digest, "the plan looked at values"
    return worst
