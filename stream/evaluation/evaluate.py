"""Compares releases of a recording with its true values. NOT PRIVATE: it uses true values and prints results about them.

It runs the service's own plan and draw many times, with a ledger that continues from window to window.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.contributions import Contributions
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.evaluation.draws import Tables, score_draw
from stream.evaluation.scores import Charges, Errors, HistogramScore, Run, Score
from stream.statistics.carried_clipping import carry
from stream.statistics.fix_rules import FixRules
from stream.statistics.histograms.fixes import Fixes, histogram_box
from stream.statistics.merging import by_planned_cells
from stream.statistics.pacing import spendable
from stream.statistics.pipeline import plan_window
from stream.statistics.plan import Plan
from stream.statistics.smoothing_state import Memory
from stream.statistics.user_limits import UserLimits
from stream.statistics.values.plan import duality_gap
from stream.statistics.window_release import WindowRows

IntArray = npt.NDArray[np.int64]

NOT_PRIVATE = "NOT PRIVATE: computed from true values. Keep it inside the trust boundary; it is not a release."


@dataclass(frozen=True)
class PlannedWindow:
    """One window as the service would plan it, with the ledger after the earlier windows."""

    plan: Plan
    contributions: Contributions
    fixes: Fixes | None

    def duality_gaps(self, config: Config) -> list[float]:
        """Relative distance of the noise scales' objective to its proved lower bound; nothing where none were optimised."""
        if self.plan.relation != NeighbouringRelation.VALUES:
            return []
        gap = duality_gap(self.plan, by_planned_cells(self.plan, self.contributions).counts, config)
        return [] if gap is None else [gap]


def planned_windows(config: Config, windows: dict[int, npt.NDArray[np.void]]) -> Iterator[PlannedWindow]:
    """Plans of ``windows`` (slot -> rows) in order of time."""
    slotting, box = config.slotting, histogram_box(config)
    limits, rules = UserLimits.of(config), FixRules.of(config)
    spent: dict[str, dict[int, int]] = {}
    for slot in sorted(windows):
        window = slotting.window(slot)
        rows = WindowRows.of(windows[slot], config, limits, box, rules, declared=config.declares_regions)
        period = slotting.period_of(slot)
        counts, budget = rows.counts, config.privacy.ledger_budget
        ledger = spent.setdefault(period.key, {})
        left = np.array([budget - ledger.get(user, 0) for user in counts.users.tolist()], dtype=np.int64)
        left = spendable(left, counts.users, window, budget, config)
        plan = plan_window(counts, left, config, window, period, "evaluation", rows.fixes)
        users, charged = plan.charged_users()
        for user, charge in zip(users.tolist(), charged.tolist(), strict=True):
            ledger[user] = ledger.get(user, 0) + charge
        yield PlannedWindow(plan, rows.contributions, rows.fixes)


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
        charges.append(planned.plan.charges)
        gaps += planned.duality_gaps(config)
        chosen.update([planned.plan.chosen] if planned.plan.chosen else [])
        most_cells = max(most_cells, planned.plan.most_cells)
        cells += planned.contributions.counts.n_cells
        events += int(planned.contributions.counts.samples.sum())
        memories = [
            score_draw(carry(planned.plan, memory, config), planned.contributions, config, tables, memory)
            for memory in memories
        ]
        on_window()
    run = Run(
        mechanism=mechanism,
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
