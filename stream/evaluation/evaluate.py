"""Compares releases of a recording with its true values. NOT PRIVATE: it uses true values and prints results about
them.

It runs the service's own plan and draw many times, with a ledger that continues from window to window.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import IntArray
from dpcore.contributions import Contributions
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.evaluation.draws import Tables, score_draw
from stream.evaluation.living import Accounts
from stream.evaluation.scores import Charges, Errors, HistogramScore, Run, Score, useful_error
from stream.statistics.histograms.fixes import Fixes
from stream.statistics.merging import by_planned_cells
from stream.statistics.plan import Due, Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.plan import duality_gap
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms

NOT_PRIVATE = "NOT PRIVATE: computed from true values. Keep it inside the trust boundary; it is not a release."


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


def report(source: str, trials: int, scores: Sequence[Score | HistogramScore], of: str = "scores") -> dict[str, Any]:
    """The scores as JSON, marked as not private."""
    return {
        "private": False,
        "warning": NOT_PRIVATE,
        "recording": source,
        "trials": trials,
        of: [asdict(score) for score in scores],
    }
