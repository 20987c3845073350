"""Compares releases of a recording with its true values. NOT PRIVATE: it uses true values and prints results about
them.

It runs the service's own plan and draw many times, with a ledger that continues from window to window.

Scores of one draw of one window, under either relation. NOT PRIVATE: they are computed from true values.

The configurations that an evaluation compares: other epsilons, mechanisms and accountings with an equal promise.
"""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.contributions import Contributions
from dpcore.distribution import Distribution
from dpcore.errors import DPError
from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.config.loading import with_section
from stream.config.public_cells import public_cells
from stream.evaluation.living import Accounts
from stream.evaluation.scores import Charges, Errors, Run, Score, means_of, useful_error
from stream.statistics.columns import MOVING_MEAN, PERCENTS, Columns, Derived
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import area_body, post_process, worst_errors
from stream.statistics.plan import Due, Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.cell_statistics import MECHANISMS
from stream.statistics.values.draw import draw_distributions, exact_values
from stream.statistics.values.plan import duality_gap
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from stream.terms import CLIPPED_NORMAL, Terms

_PLAIN = {"allocation": "uniform", "suppression": "none", "clipping": "none", "sum_cap": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "uniform": _PLAIN,
    "chop-user": _PLAIN | {"suppression": "chop-user"},
    "exact-loss": _PLAIN | {"allocation": "exact-loss"},
    "exact-loss+chop-user": _PLAIN | {"allocation": "exact-loss", "suppression": "chop-user"},
    "exact-loss+cap": _PLAIN | {"allocation": "exact-loss", "sum_cap": 0.7},
} | {name: _PLAIN | {"mean_mechanism": name} for name in MECHANISMS}
"""Ways to share each user's epsilon, all with the same loss per user and window."""
ACCOUNTINGS = ("pure", "zcdp")
"""Ways to count losses, at an equal promise for a period."""
COMPARED_DELTA = 1e-6
"""δ of the promise under "zcdp" if the configuration uses pure ε."""


def with_speed(config: Config, **changes: Any) -> Config:
    """``config`` with other settings of ``[speed]``."""
    return config.model_copy(update={"speed": config.speed.model_copy(update=changes)})


def with_epsilon(config: Config, epsilon: float) -> Config:
    """``config`` with another epsilon, its budget in proportion; under zCDP with the ρ that converts to it.

    Raises :class:`stream.config.ConfigError` for an epsilon that a configuration may not have.
    """
    privacy = config.privacy
    try:
        grant = privacy.units(epsilon)
    except DPError as error:
        raise ConfigError(f"privacy: {error}") from None
    keys = privacy.keys_for(grant, privacy.ledger_budget * grant // privacy.ledger_grant)
    return with_section(config, "privacy", privacy.model_dump(by_alias=True) | keys)


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
        given |= {"epsilon": None, "delta": COMPARED_DELTA, "windows": max(budgets // grants, 1)}
    else:
        given |= {"delta": None, "windows": None, "epsilon": privacy.budget * grants / budgets}
    return with_section(config, "privacy", given)


def variants(config: Config, names: list[str]) -> Iterator[tuple[str, Config]]:
    """The named variants of a configuration."""
    for name in names:
        if name in ACCOUNTINGS:
            yield name, with_accounting(config, name)
        else:
            yield name, config if name == "configured" else with_speed(config, **VARIANTS[name])


Tables = defaultdict[tuple[str, str], Errors]
"""Errors by (statistic, estimator)."""
Drawn = tuple[dict[str, Columns], dict[str, Derived], Memory | None]
"""What was drawn, what models made of it, and the memory after it."""

_ROUNDING = 1e-9
"""Tolerance for floats: a number this close to the end of an interval counts as inside."""


class _Witness(Noise):
    """Noise that records what it adds, for mechanisms that draw one number at a time. The record is not private."""

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


@dataclass(frozen=True)
class Places:
    """The two coordinate systems of a window under "values", and the one place that converts between them.

    ``hexagons``: samples by H3 hexagon, where events lie; truth and weight of an error are each hexagon's own, however
    coarse the cell that answers for it. ``cells``: the same samples by the cells of the plan, each a hexagon or the
    parent that several were merged into; noise, intervals and released numbers are a cell's.
    """

    hexagons: Contributions
    cells: Contributions
    published: IntArray
    """Indices of the cells that are published, shape (P,)."""
    shown: IntArray
    """Indices of the hexagons that a published cell answers for, shape (S,)."""
    answering: IntArray
    """Index of the cell that answers for each of them, shape (S,)."""

    @classmethod
    def of(cls, plan: Plan, contributions: Contributions) -> Self:
        """Places of a planned window; raises as :func:`stream.statistics.merging.by_planned_cells`."""
        cells = by_planned_cells(plan, contributions)
        ids = contributions.counts.cells if plan.merged is None else plan.merged
        answering, published = np.searchsorted(cells.counts.cells, ids), np.flatnonzero(plan.published)
        shown = np.flatnonzero(np.isin(answering, published))
        return cls(contributions, cells, published, shown, answering[shown])

    @property
    def weight(self) -> FloatArray:
        """Events of each shown hexagon, shape (S,)."""
        return _events(self.hexagons)[self.shown]

    def errors(self, estimate: FloatArray, truth: FloatArray) -> FloatArray:
        """``estimate``, shape (C,) by cell, less ``truth``, shape (H,) by hexagon, of shown hexagons: shape (S,)."""
        return estimate[self.answering] - truth[self.shown]


def score_draw(
    plan: Plan, contributions: Contributions, measured: Contributions, tables: Tables, memory: Memory | None
) -> Memory | None:
    """Add the errors of one draw of one window to ``tables``; returns the memory after it.

    ``measured``: the contributions before speeds were clipped.
    """
    score = _score_participation if plan.values is None else _score_values
    columns, derived, memory = score(plan, contributions, tables, memory)
    _judge_means(plan, (contributions, measured), columns, derived, tables)
    return memory


def _score_values(plan: Plan, contributions: Contributions, tables: Tables, memory: Memory | None) -> Drawn:
    """Errors are each hexagon's against its own truth; intervals are judged cell by cell."""
    places, noise = Places.of(plan, contributions), _Witness()
    kept = places.cells.retain(plan.retained)
    judged = _judged(plan)
    truth, target = exact_values(plan, contributions, statistics=judged), exact_values(plan, kept, plan.caps)
    speed = speed_of(plan.terms)
    columns = speed.draw(plan, places.cells, noise)
    if plan.values is not None and plan.values.mean_epsilon_micro and "mean" in columns:
        target["mean"] = _witnessed(columns["mean"], places.published, noise)
    for name, column in columns.items():
        if name not in truth:
            continue  # the distribution has a draw of its own; the number of moving reports is judged by their mean
        tables[name, "released"].add(places.errors(column.value, truth[name]), places.weight)
        _score_noise(tables[name, "released"], name, column, target[name], places)
    _score_distributions(plan, places.cells, kept, tables)
    bodies = speed.body(plan, places.cells.counts, columns)
    for name, worst in worst_errors(bodies).items():
        tables[name, "released"].add_worst_error(worst)
    derived, memory = post_process(plan, bodies, memory)
    pooled = exact_values(plan, places.cells)
    for name, estimate in _by_statistic(derived):
        table = tables[name, estimate.method]
        table.add(places.errors(estimate.value, truth[name]), places.weight)
        if estimate.interval is not None:
            table.covered.append(_covers(estimate.interval, pooled[name])[places.published])
    return columns, derived, memory


def _judge_means(
    plan: Plan,
    samples: tuple[Contributions, Contributions],
    columns: Mapping[str, Columns],
    derived: Mapping[str, Derived],
    tables: Tables,
) -> None:
    """Judge the intervals of means cell by cell. ``samples``: clipped and as measured, by hexagon."""
    clipped, measured = (by_planned_cells(plan, each) for each in samples)
    cells, events = clipped.counts.cells, _events(clipped)
    at = np.minimum(np.searchsorted(plan.cells, cells), len(plan.cells) - 1)
    shown = np.flatnonzero((plan.cells[at] == cells) & plan.published[at])
    truths, at = np.stack([means_of(clipped), means_of(measured)])[:, shown], at[shown]
    released = {name: Derived("released", each.value, (each.low, each.high)) for name, each in columns.items()}
    for name, estimate in itertools.chain(released.items(), _by_statistic(derived)):
        if name == "mean" and estimate.interval is not None:
            interval = np.clip(estimate.interval, 0.0, plan.terms.speed.upper)[:, at]
            verdicts = tables[name, estimate.method].verdicts
            lower = plan.terms.value.lower
            verdicts.add(cells[shown], events[shown], estimate.value[at] + lower, interval + lower, truths + lower)


def _judged(plan: Plan) -> tuple[str, ...]:
    """Statistics whose true values are needed: those that are released, and percentiles that are modelled."""
    modelled = PERCENTS if CLIPPED_NORMAL in plan.terms.speed.post_processing else ()
    return tuple(dict.fromkeys([*plan.terms.speed.statistics, *modelled]))


def _by_statistic(derived: Mapping[str, Derived]) -> Iterator[tuple[str, Derived]]:
    """Post-processed statistics that estimate what is released; what is typical, and how far from it, is neither."""
    return ((name, estimate) for name, estimate in derived.items() if name == "mean" or name in PERCENTS)


def _witnessed(column: Columns, published: IntArray, noise: _Witness) -> FloatArray:
    """What noise was added to in a single-cell mean, shape (C,): the mechanism's own number, not the samples' mean."""
    noisy = published[column.scale[published] > 0]
    target = np.zeros_like(column.raw)
    target[noisy] = column.raw[noisy] - column.scale[noisy] * np.array(noise.added)
    return target


def _score_noise(table: Errors, name: str, column: Columns, target: FloatArray, places: Places) -> None:
    """Noise and coverage of the published cells that noise was added to; ``target``, (C,): what it was added to."""
    noisy = places.published[(column.scale[places.published] > 0) & np.isfinite(target[places.published])]
    if name not in (*PERCENTS, MOVING_MEAN):  # a ratio where few move has noise without a mean
        table.add_noise((column.raw - target)[noisy], _events(places.cells)[noisy])
    table.covered.append(_covers((column.low, column.high), target, _ROUNDING)[noisy])


def _covers(
    interval: tuple[FloatArray, FloatArray] | FloatArray, target: FloatArray, rounding: float = 0.0
) -> BoolArray:
    low, high = interval
    return (low <= target + rounding) & (target <= high + rounding)


def _events(contributions: Contributions) -> FloatArray:
    counts = contributions.counts
    return counts.by_cell(counts.samples).astype(np.float64)


def _score_distributions(plan: Plan, contributions: Contributions, kept: Contributions, tables: Tables) -> None:
    """Kolmogorov distance of a distribution drawn by the plan of the percentiles, and whether its band holds what noise
    was added to, at all bins; a draw of its own.
    """
    cells, drawn = draw_distributions(plan, kept, Noise())
    if drawn is None:
        return
    speed, shares = plan.terms.speed, drawn.shares()
    distribution = Distribution(speed.upper_quanta, speed.cdf_bins)
    true, noised = (np.cumsum(distribution.integers(of)[cells], axis=1) for of in (contributions, kept))
    distance = np.abs(shares.value - true / true[:, -1:]).max(axis=1)
    table, target = tables["distribution", "released"], noised / noised[:, -1:]
    table.add(distance, true[:, -1].astype(np.float64))
    inside = (shares.low <= target + _ROUNDING) & (target <= shares.high + _ROUNDING)
    table.covered.append(np.asarray(inside.all(axis=1)))


def _score_participation(plan: Plan, contributions: Contributions, tables: Tables, memory: Memory | None) -> Drawn:
    """Errors in the visited cells of the public list; coverage of the truth before any cap."""
    counts = contributions.counts
    listed = np.isin(counts.cells, plan.cells)
    at = np.searchsorted(plan.cells, counts.cells[listed])
    truth = exact_values(plan, contributions, statistics=_judged(plan))
    weight = _events(contributions)[listed]
    speed = speed_of(plan.terms)
    columns = speed.draw(plan, contributions, Noise())
    bodies = speed.body(plan, counts, columns)
    derived, memory = post_process(plan, bodies, memory, area_body(columns, plan.terms.value))
    released = {name: Derived("released", each.value, (each.low, each.high)) for name, each in columns.items()}
    for name, estimate in itertools.chain(released.items(), _by_statistic(derived)):
        if name not in truth:
            continue  # of the counts of events and users: they have no value of their own to be judged by
        table, true = tables[name, estimate.method], truth[name][listed]
        table.add(estimate.value[at] - true, weight)
        if estimate.interval is not None:
            table.covered.append(_covers(np.array(estimate.interval)[:, at], true)[np.isfinite(true)])
    return columns, derived, memory


@dataclass(frozen=True)
class PlannedWindow:
    """One window as the service would plan it, with the ledger after the earlier windows. ``measured``: its
    contributions as they are before clipping.
    """

    plan: Plan
    contributions: Contributions
    fixes: Fixes | None
    after: Callable[[Memory | None], Plan]
    measured: Callable[[], Contributions]

    def remembering(self, memory: Memory | None) -> Plan:
        """The plan with ``memory`` of earlier releases, from the same ledger; another only with residual clipping."""
        return self.after(memory) if self.plan.terms.speed.clipping == "residual" else self.plan

    def duality_gaps(self) -> list[float]:
        """Relative distance of the noise scales' objective to its proved lower bound; None without optimising."""
        gap = duality_gap(self.plan, by_planned_cells(self.plan, self.contributions).counts)
        return [] if gap is None else [gap]


def planned_windows(config: Config, windows: dict[int, npt.NDArray[np.void]]) -> Iterator[PlannedWindow]:
    """Plans of ``windows`` (slot -> rows) in order of time, from one ledger."""
    terms, cells, accounts = Terms.of(config), public_cells(config), Accounts()
    for slot in sorted(windows):
        due = Due(terms, terms.window_at(slot), "evaluation")
        rows = WindowRows.of(windows[slot], terms.reading)
        after = partial(plan_window, rows, due, accounts.allowance(due, rows.counts.users), cells)
        plan = after()
        accounts.pay(due, plan)
        yield PlannedWindow(plan, rows.contributions, rows.fixes, after, partial(_measured, rows))


def _measured(rows: WindowRows) -> Contributions:
    unbounded = msgspec.structs.replace(rows.reading, upper_quanta=int(np.iinfo(np.int32).max))
    return WindowRows.of(rows.rows, unbounded).contributions


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
    chosen: Counter[str] = Counter()
    most_cells = (0, 0)
    memories: list[Memory | None] = [None] * trials
    cells = events = 0
    for planned in planned_windows(config, windows):
        plan = planned.plan
        charges.append(plan.charges)
        gaps += planned.duality_gaps()
        chosen.update([plan.chosen] if plan.chosen else [])
        most_cells = max(most_cells, (0, 0) if plan.values is None else plan.values.most_cells)
        cells += planned.contributions.counts.n_cells
        events += int(planned.contributions.counts.samples.sum())
        samples = planned.contributions, planned.measured()
        memories = [score_draw(planned.remembering(memory), *samples, tables, memory) for memory in memories]
        on_window()
    run = Run(
        mechanism=mechanism,
        unit=config.value.unit,
        useful=useful_error(config.value),
        epsilon=config.privacy.epsilon,
        trials=trials,
        windows=len(windows),
        cells=cells,
        events=events,
        charges=Charges.of(np.concatenate([np.zeros(0, np.int64), *charges]), config.privacy.ledger_unit[0]),
        duality_gap=max(gaps, default=None),
        plans=dict(chosen),
        most_cells=most_cells,
        seconds=time.monotonic() - started,
    )
    return [table.score(statistic, estimator, run) for (statistic, estimator), table in tables.items()]
