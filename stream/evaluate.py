"""Error of the releases against the truth over a recording. NOT PRIVATE: it reads true values and prints what they say.

Runs the very plan and draw of the service, many times, with a ledger that carries over from window to window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.accounting import NANO, rho_of
from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.cell_means import MECHANISMS
from stream.closing import slotting_of
from stream.config import Config
from stream.fixes import fixes_of, histogram_box
from stream.memory import Memory
from stream.pipeline import contributions_of, draw, plan_window, post_process, release_bodies
from stream.plan import Columns, Derived, Plan
from stream.values import PERCENTS, exact_values

FloatArray = npt.NDArray[np.float64]

NOT_PRIVATE = "NOT PRIVATE: computed from true values. Keep it inside the trust boundary; it is not a release."
USEFUL_KMH = 5.0
"""A mean within this many km/h of the truth is useful."""

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


@dataclass(frozen=True)
class Score:
    """Event-weighted errors of one estimator of one statistic, over all windows and trials, in the released unit.

    ``mae``, ``rmse``, ``bias``: of the clamped value. ``noise``: mean absolute noise. ``coverage``: share of cells whose
    95 % interval holds what noise was added to. ``charge_median``, ``charge_max``: in ε, under zCDP in ρ. ``useful_coverage``: share of events in cells within ±5 km/h (means).
    """

    mechanism: str
    statistic: str
    estimator: str
    epsilon: float
    mae: float
    rmse: float
    bias: float
    noise: float | None
    coverage: float | None
    useful_coverage: float | None
    useful_cells: float | None
    windows: int
    cells: int
    charge_median: float
    charge_max: float
    seconds: float


@dataclass
class _Errors:
    """Columns of one estimator: error, weight, noise, covered."""

    error: list[FloatArray]
    weight: list[FloatArray]
    noise: list[FloatArray]
    covered: list[npt.NDArray[np.bool_]]

    def add(self, error: FloatArray, weight: FloatArray) -> None:
        self.error.append(error)
        self.weight.append(weight)


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


def evaluate(
    config: Config,
    windows: dict[int, npt.NDArray[np.void]],
    trials: int,
    mechanism: str = "configured",
    on_window: Callable[[], None] = lambda: None,
) -> list[Score]:
    """Score one configuration over ``windows`` (slot -> rows), ``trials`` draws each."""
    started = time.monotonic()
    slotting = slotting_of(config)
    spent: dict[str, dict[int, int]] = {}
    tables: dict[tuple[str, str], _Errors] = {}
    charges: list[npt.NDArray[np.int64]] = []
    memories: list[Memory | None] = [None] * trials
    cells = 0
    for slot in sorted(windows):
        contributions = contributions_of(windows[slot], config)
        counts = contributions.counts
        period = slotting.period_of(slot)
        ledger = spent.setdefault(period.key, {})
        left = np.array([config.privacy.ledger_budget - ledger.get(user, 0) for user in counts.users.tolist()])
        fixes = fixes_of(windows[slot], histogram_box(config))
        plan = plan_window(counts, left.astype(np.int64), config, slotting.window(slot), period, "evaluation", fixes)
        users, charged = plan.charged_users()
        for user, charge in zip(users.tolist(), charged.tolist(), strict=True):
            ledger[user] = ledger.get(user, 0) + charge
        charges.append(np.frombuffer(plan.charges, "<i8"))
        cells += counts.n_cells
        memories = [_score_draw(plan, contributions, config, tables, memory) for memory in memories]
        on_window()
    seconds = time.monotonic() - started
    all_charges = np.concatenate(charges) / config.privacy.ledger_unit[1] if charges else np.zeros(1)
    return [
        _score(mechanism, statistic, estimator, config, table, len(windows), cells, all_charges, seconds)
        for (statistic, estimator), table in tables.items()
    ]


def _score_draw(
    plan: Plan,
    contributions: Contributions,
    config: Config,
    tables: dict[tuple[str, str], _Errors],
    memory: Memory | None,
) -> Memory | None:
    """Score one draw of one window; returns the memory after it."""
    if plan.relation == "participation":
        return _score_participation(plan, contributions, config, tables, memory)
    counts = contributions.counts
    published = np.frombuffer(plan.published, np.uint8).astype(bool)
    weight = counts.by_cell(counts.samples)[published].astype(np.float64)
    truth = exact_values(plan, contributions)
    before = exact_values(plan, contributions.retain(np.frombuffer(plan.retained, "<i8")), plan.sum_cap or None)
    columns = draw(plan, contributions, Noise())
    for name, column in columns.items():
        table = tables.setdefault((name, "released"), _Errors([], [], [], []))
        table.add((column.value - truth[name])[published], weight)
        if name == "mean" and plan.mean_epsilon_micro:
            continue  # noise was added to other numbers than the pooled mean
        if name not in PERCENTS:
            table.noise.append(np.abs(column.raw - before[name])[published])
        noisy = published & (column.scale > 0)
        table.covered.append((column.low <= before[name] + 1e-9)[noisy] & (before[name] <= column.high + 1e-9)[noisy])
    found, memory = post_process(plan, counts, columns, release_bodies(plan, counts, columns, config), config, memory)
    for derived in found.values():
        true = truth["mean"]
        table = tables.setdefault(("mean", derived.method), _Errors([], [], [], []))
        table.add((derived.value - true)[published], weight)
        table.covered.append(((derived.low <= true) & (true <= derived.high))[published])
    return memory


def _score_participation(
    plan: Plan,
    contributions: Contributions,
    config: Config,
    tables: dict[tuple[str, str], _Errors],
    memory: Memory | None,
) -> Memory | None:
    """Errors in the visited cells of the public list; coverage of the truth before any cap."""
    counts = contributions.counts
    cells = np.frombuffer(plan.cells, "<u8")
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
        table = tables.setdefault((name, estimator), _Errors([], [], [], []))
        true = truth[name][listed]
        table.add(column.value[at] - true, weight)
        table.covered.append((column.low[at] <= true) & (true <= column.high[at]))
    return memory


def _score(
    mechanism: str,
    statistic: str,
    estimator: str,
    config: Config,
    table: _Errors,
    windows: int,
    cells: int,
    charges: FloatArray,
    seconds: float,
) -> Score:
    error, weight = np.concatenate(table.error), np.concatenate(table.weight)
    share = weight / weight.sum() if len(weight) else weight
    useful = np.abs(error) <= USEFUL_KMH
    noise = np.concatenate(table.noise) if table.noise else None
    return Score(
        mechanism=mechanism,
        statistic=statistic,
        estimator=estimator,
        epsilon=config.privacy.epsilon,
        mae=float(share @ np.abs(error)),
        rmse=float(np.sqrt(share @ np.square(error))),
        bias=float(share @ error),
        noise=None if noise is None else float(share @ noise),
        coverage=float(np.concatenate(table.covered).mean()) if table.covered else None,
        useful_coverage=float(share @ useful) if statistic != "variance" else None,
        useful_cells=float(useful.mean()) if statistic != "variance" else None,
        windows=windows,
        cells=cells,
        charge_median=float(np.median(charges)),
        charge_max=float(charges.max()),
        seconds=seconds,
    )


def variants(config: Config, names: list[str]) -> Iterator[tuple[str, Config]]:
    """The named variants of a configuration."""
    for name in names:
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
