"""Error of the releases against the truth over a recording. NOT PRIVATE: it reads true values and prints what they say.

Runs the very plan and draw of the service, many times, with a ledger that carries over from window to window.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.accounting import NANO, rho_of
from dpcore.contributions import Contributions
from dpcore.distribution import Distribution
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.evaluation.scores import Charges, Errors, Run, Score
from stream.statistics.carried_clipping import carry
from stream.statistics.histograms.fixes import Fixes, fixes_of, histogram_box
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import contributions_of, draw, plan_window, post_process, release_bodies
from stream.statistics.plan import PERCENTS, Columns, Derived, Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.cell_means import MECHANISMS
from stream.statistics.values.draw import draw_distributions, exact_values
from stream.statistics.values.plan import duality_gap

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Tables = defaultdict[tuple[str, str], Errors]

NOT_PRIVATE = "NOT PRIVATE: computed from true values. Keep it inside the trust boundary; it is not a release."
_PLAIN = {"allocation": "uniform", "suppression": "none", "clipping": "none", "sum_cap": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "uniform": _PLAIN,
    "chop-user": _PLAIN | {"suppression": "chop-user"},
    "exact-loss": _PLAIN | {"allocation": "exact-loss"},
    "exact-loss+chop-user": _PLAIN | {"allocation": "exact-loss", "suppression": "chop-user"},
    "exact-loss+clipping": _PLAIN | {"allocation": "exact-loss", "clipping": "joint"},
    "exact-loss+clipping+cap": _PLAIN | {"allocation": "exact-loss", "clipping": "joint", "sum_cap": 0.7},
} | {name: _PLAIN | {"mean_mechanism": name} for name in MECHANISMS}
"""Ways to share each user's epsilon, all at equal loss per user and window."""
ACCOUNTINGS = ("pure", "zcdp")
"""Ways to count losses, at an equal promise for a period."""
COMPARED_DELTA = 1e-6
"""δ of the promise under "zcdp" where the configuration counts pure ε."""


class _Witness(Noise):
    """Noise that remembers what it added one number at a time, as single-cell means do: what makes a score not private."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[float] = []

    def discrete_laplace(
        self, numerator: int | IntArray, denominator: int | IntArray = 1, size: int | None = None
    ) -> IntArray:
        drawn = super().discrete_laplace(numerator, denominator, size)
        if size == 1:
            self.added.append(float(drawn[0] * np.float64(denominator) / np.float64(numerator)))
        return drawn


def with_speed(config: Config, **changes: Any) -> Config:
    """``config`` with other speed settings."""
    return config.model_copy(update={"speed": config.speed.model_copy(update=changes)})


def with_epsilon(config: Config, epsilon: float) -> Config:
    """``config`` with another epsilon, its budget in proportion; under zCDP with the rho that converts to it."""
    privacy = config.privacy
    if privacy.rho is None or privacy.rho_budget is None or privacy.delta is None:
        changes = {"epsilon": epsilon, "budget": privacy.budget * epsilon / privacy.epsilon}
    else:
        rho = rho_of(epsilon, privacy.delta) / NANO
        changes = {"rho": rho, "rho_budget": privacy.rho_budget * rho / privacy.rho}
    given = privacy.model_dump(by_alias=True) | changes
    return config.model_copy(update={"privacy": type(privacy)(**given)})


def with_accounting(config: Config, accounting: str) -> Config:
    """``config`` under "pure" or "zcdp" with the same (ε, δ) promised for a period and as many windows paid in full.

    δ is the configured one, else :data:`COMPARED_DELTA`; "pure" promises the same ε with δ = 0.
    """
    privacy = config.privacy
    if accounting == privacy.accounting:
        return config
    given = privacy.model_dump(by_alias=True) | {"accounting": accounting}
    grants, budgets = privacy.ledger_grant, privacy.ledger_budget
    if accounting == "zcdp":
        budget = rho_of(privacy.budget, COMPARED_DELTA)
        given |= {"epsilon": None, "budget": None, "delta": COMPARED_DELTA}
        given |= {"rho_budget": budget / NANO, "rho": budget * grants // budgets / NANO}
    else:
        given |= {"rho": None, "rho_budget": None, "delta": None}
        given |= {"budget": privacy.budget, "epsilon": privacy.budget * grants / budgets}
    return config.model_copy(update={"privacy": type(privacy)(**given)})


@dataclass(frozen=True)
class PlannedWindow:
    """One window as the service would plan it: with the ledger as earlier windows left it."""

    plan: Plan
    contributions: Contributions
    fixes: Fixes | None


def planned_windows(config: Config, windows: dict[int, npt.NDArray[np.void]]) -> Iterator[PlannedWindow]:
    """Plans of ``windows`` (slot -> rows) in order of time."""
    slotting, box = config.slotting, histogram_box(config)
    spent: dict[str, dict[int, int]] = {}
    for slot in sorted(windows):
        contributions, fixes = contributions_of(windows[slot], config), fixes_of(windows[slot], box)
        counts, period = contributions.counts, slotting.period_of(slot)
        ledger = spent.setdefault(period.key, {})
        left = np.array([config.privacy.ledger_budget - ledger.get(user, 0) for user in counts.users.tolist()])
        plan = plan_window(counts, left.astype(np.int64), config, slotting.window(slot), period, "evaluation", fixes)
        users, charged = plan.charged_users()
        for user, charge in zip(users.tolist(), charged.tolist(), strict=True):
            ledger[user] = ledger.get(user, 0) + charge
        yield PlannedWindow(plan, contributions, fixes)


def evaluate(
    config: Config,
    windows: dict[int, npt.NDArray[np.void]],
    trials: int,
    mechanism: str = "configured",
    on_window: Callable[[], None] = lambda: None,
) -> list[Score]:
    """Score one configuration over ``windows`` (slot -> rows), ``trials`` draws each."""
    started = time.monotonic()
    tables: Tables = defaultdict(Errors)
    charges: list[IntArray] = []
    gaps: list[float] = []
    memories: list[Memory | None] = [None] * trials
    cells = 0
    for planned in planned_windows(config, windows):
        plan, contributions = planned.plan, planned.contributions
        counts = contributions.counts
        charges.append(plan.charges)
        gap = (
            duality_gap(plan, by_planned_cells(plan, contributions).counts, config)
            if plan.relation == NeighbouringRelation.VALUES
            else None
        )
        gaps += [] if gap is None else [gap]
        cells += counts.n_cells
        memories = [
            _score_draw(carry(plan, memory, config), contributions, config, tables, memory) for memory in memories
        ]
        on_window()
    run = Run(
        mechanism=mechanism,
        epsilon=config.privacy.epsilon,
        trials=trials,
        windows=len(windows),
        cells=cells,
        charges=Charges.of(
            np.concatenate(charges) if charges else np.zeros(0, np.int64), config.privacy.ledger_unit[0]
        ),
        duality_gap=max(gaps) if gaps else None,
        seconds=time.monotonic() - started,
    )
    return [table.score(statistic, estimator, run) for (statistic, estimator), table in tables.items()]


def _score_draw(
    plan: Plan,
    contributions: Contributions,
    config: Config,
    tables: Tables,
    memory: Memory | None,
) -> Memory | None:
    """Score one draw of one window; returns the memory after it.

    Errors are each hexagon's against its own truth, however coarse the region that answers for it; intervals are the region's.
    """
    if plan.relation == NeighbouringRelation.PARTICIPATION:
        return _score_participation(plan, contributions, config, tables, memory)
    pooled = by_planned_cells(plan, contributions)
    counts, hexagons = pooled.counts, contributions.counts
    cell = np.arange(counts.n_cells) if plan.merged is None else np.searchsorted(counts.cells, plan.merged)
    published = np.flatnonzero(plan.published)
    shown = np.flatnonzero(np.isin(cell, published))
    weight, events = (held.by_cell(held.samples).astype(np.float64) for held in (hexagons, counts))
    cell, places, weight = cell[shown], hexagons.cells[shown], weight[shown]
    kept = pooled.retain(plan.retained)
    truth, before = exact_values(plan, pooled), exact_values(plan, kept, plan.sum_cap or None)
    own = exact_values(plan, contributions)
    noise = _Witness()
    columns = draw(plan, pooled, noise)
    for name, column in columns.items():
        table = tables[name, "released"]
        table.add(places, column.value[cell] - own[name][shown], weight)
        noisy = column.scale[published] > 0
        at = published[noisy]
        target = before[name][at]
        if name == "mean" and plan.mean_epsilon_micro:
            # Noise was added to a number of the mechanism's own, not to the mean of the retained samples.
            target = column.raw[at] - column.scale[at] * np.array(noise.added)
        if name not in PERCENTS:
            table.add_noise(column.raw[at] - target, events[at])
        table.covered.append((column.low[at] <= target + 1e-9) & (target <= column.high[at] + 1e-9))
    _score_distributions(plan, pooled, kept, tables)
    found, memory = post_process(plan, counts, columns, release_bodies(plan, counts, columns, config), config, memory)
    for derived in found.values():
        true = truth["mean"][published]
        table = tables["mean", derived.method]
        table.add(places, derived.value[cell] - own["mean"][shown], weight)
        table.covered.append((derived.low[published] <= true) & (true <= derived.high[published]))
    return memory


def _score_distributions(plan: Plan, contributions: Contributions, kept: Contributions, tables: Tables) -> None:
    """Kolmogorov distance of a distribution drawn by the plan of the percentiles; a draw of its own."""
    cells, drawn = draw_distributions(plan, kept, Noise())
    if drawn is None:
        return
    true = np.cumsum(Distribution(plan.upper_quanta, plan.cdf_bins).integers(contributions)[cells], axis=1)
    distance = np.abs(drawn.prefix[:, 1:] / drawn.total[:, None] - true / true[:, -1:]).max(axis=1)
    tables["distribution", "released"].add(contributions.counts.cells[cells], distance, true[:, -1].astype(np.float64))


def _score_participation(
    plan: Plan,
    contributions: Contributions,
    config: Config,
    tables: Tables,
    memory: Memory | None,
) -> Memory | None:
    """Errors in the visited cells of the public list; coverage of the truth before any cap."""
    counts = contributions.counts
    cells = plan.cells
    listed = np.isin(counts.cells, cells)
    at = np.searchsorted(cells, counts.cells[listed])
    truth = exact_values(plan, contributions)
    weight = counts.by_cell(counts.samples)[listed].astype(np.float64)
    columns = draw(plan, contributions, Noise())
    bodies = release_bodies(plan, counts, columns, config)
    found, memory = post_process(plan, counts, columns, bodies, config, memory)
    estimates: list[tuple[str, str, Columns | Derived]] = [
        *((name, "released", column) for name, column in columns.items() if name in truth),
        *(("mean", derived.method, derived) for derived in found.values()),
    ]
    for name, estimator, column in estimates:
        table, true = tables[name, estimator], truth[name][listed]
        table.add(cells[at], column.value[at] - true, weight)
        table.covered.append((column.low[at] <= true) & (true <= column.high[at]))
    return memory


def variant_names(config: Config) -> list[str]:
    """Variants that the relation allows: mechanisms under "values", accountings under "participation"."""
    return list(VARIANTS) if config.relation == NeighbouringRelation.VALUES else list(ACCOUNTINGS)


def variants(config: Config, names: list[str]) -> Iterator[tuple[str, Config]]:
    """The named variants of a configuration."""
    for name in names:
        if name in ACCOUNTINGS:
            yield name, with_accounting(config, name)
        else:
            yield name, config if name == "configured" else with_speed(config, **VARIANTS[name])


def report(source: str, trials: int, scores: list[Score]) -> dict[str, Any]:
    """Everything as JSON, marked for what it is."""
    return {
        "private": False,
        "warning": NOT_PRIVATE,
        "recording": source,
        "trials": trials,
        "scores": [asdict(score) for score in scores],
    }
