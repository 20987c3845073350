"""The pure steps of releasing one window: sort its rows, plan, draw, write its messages.

No server and no clock: the result depends only on the rows, on what users have left, on the memory and on a tape of entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.section import BoundingBox
from stream.messages.message import Message
from stream.statistics.carried_clipping import carry
from stream.statistics.fix_rules import FixRules
from stream.statistics.histograms.fixes import Fixes, fixes_of, histogram_box
from stream.statistics.histograms.histograms import DrawnHistogram, draw_histograms
from stream.statistics.merging import by_planned_cells
from stream.statistics.pipeline import compose, compose_withheld, contributions_of, draw, plan_window
from stream.statistics.plan import Columns, Plan, PlanError, empty_plan, within
from stream.statistics.smoothing_state import decode_memory, encode_memory
from stream.statistics.storable import require_storable
from stream.statistics.user_limits import UserLimits
from stream.windows import Window, utc_text

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WindowRows:
    """The rows of one window as its statistics read them.

    ``rows``: all of them, perhaps without lat and lng if there are no ``box`` and no ``rules``; ``counted``: those that ``rules``
    do not refuse, within ``limits``, of which ``contributions`` and ``fixes`` are. ``fixes``: those inside ``box``, None without
    one, with corners where users ``declared`` regions. ``refused``: number of rows by reason, for operators only. ``beyond_limits``: rows that do not count because their user
    is above a limit, for operators only.
    """

    rows: npt.NDArray[np.void]
    counted: npt.NDArray[np.void]
    contributions: Contributions
    fixes: Fixes | None
    limits: UserLimits
    box: BoundingBox | None
    rules: FixRules | None
    refused: dict[str, int]
    beyond_limits: int
    declared: bool = False

    @classmethod
    def of(
        cls,
        rows: npt.NDArray[np.void],
        config: Config,
        limits: UserLimits,
        box: BoundingBox | None,
        rules: FixRules | None = None,
        *,
        declared: bool = False,
    ) -> WindowRows:
        """``rows`` of one window, whose order is immaterial, in their one order."""
        verdicts = {} if rules is None else rules.refused(rows)
        refused = {reason: int(verdict.sum()) for reason, verdict in verdicts.items()}
        plausible = rows[~np.logical_or.reduce(list(verdicts.values()))] if any(refused.values()) else rows
        counted, contributions = plausible, contributions_of(plausible, config)
        within = limits.counted(plausible, contributions)
        if within is not None:
            counted = plausible[within]
            contributions = contributions_of(counted, config)
        beyond = len(plausible) - len(counted)
        fixes = fixes_of(counted, box, declared=declared)
        return cls(rows, counted, contributions, fixes, limits, box, rules, refused, beyond, declared)

    def as_planned(self, plan: Plan, config: Config) -> WindowRows:
        """The rows as ``plan`` reads them; it may have been made under an earlier configuration, or without histograms.

        Raises :class:`PlanError` if another worker planned by positions after rows were read without them.
        """
        limits = UserLimits(plan.max_cells_per_user, plan.max_events_per_user)
        box = None if plan.histogram is None else plan.histogram.box
        if (box or plan.fix_rules) and "lat" not in (self.rows.dtype.names or ()):
            raise PlanError(
                f"another worker planned window {utc_text(plan.window.start)} by positions while this one read it without "
                "positions; nothing was drawn. The next attempt reads them"
            )
        if limits != self.limits or plan.fix_rules != self.rules:
            return WindowRows.of(self.rows, config, limits, box, plan.fix_rules, declared=plan.declares_regions)
        if (box, plan.declares_regions) == (self.box, self.declared):
            return self
        fixes = fixes_of(self.counted, box, declared=plan.declares_regions)
        return replace(self, fixes=fixes, box=box, declared=plan.declares_regions)

    def in_cells_of(self, plan: Plan) -> Contributions:
        """The contributions by the cells of ``plan``; raises as :func:`stream.statistics.merging.by_planned_cells`."""
        return by_planned_cells(plan, self.contributions)

    @property
    def counts(self) -> Counts:
        """Who contributed how often where."""
        return self.contributions.counts


class Allowance(NamedTuple):
    """What the ledger knows about the users of a window and its period.

    ``left``: (L,) what each user has left, in the ledger's unit. ``budget``: that of the period, in the same unit; None: the
    configured one. ``by_counts``: whether charges of the period depended on counts.
    """

    left: IntArray
    budget: int | None
    by_counts: bool


@dataclass(frozen=True)
class Drawn:
    """A window after its draw: ``columns`` of each statistic over the plan's cells, and the histograms."""

    counts: Counts
    columns: dict[str, Columns]
    histograms: Sequence[DrawnHistogram]


@dataclass(frozen=True)
class WindowStatistics:
    """The statistics of one configuration, as steps for the release protocol."""

    config: Config

    def arrange(self, rows: npt.NDArray[np.void], window: Window) -> WindowRows:
        """The rows of ``window`` among ``rows``, sorted. The order in which they arrived does not matter."""
        time = rows["time"]
        inside = (time >= window.start * 1_000_000) & (time < window.end * 1_000_000)
        rows = rows if inside.all() else rows[inside]
        config, box = self.config, histogram_box(self.config)
        limits, rules = UserLimits.of(config), FixRules.of(config)
        return WindowRows.of(rows, config, limits, box, rules, declared=config.declares_regions)

    def plan(self, rows: WindowRows, window: Window, allowance: Allowance, memory: bytes, generation: str) -> Plan:
        """The plan of a window on the terms of its period, with the clipping ranges that ``memory`` gives.

        Under "values", histograms are left out in a period whose charges depended on counts, because admission to them would
        reveal who else was there. They begin with the next period. Raises :class:`stream.statistics.storable.TooLargeError`.
        """
        config = self.config.model_copy(update={"histogram": None}) if allowance.by_counts else self.config
        period = config.slotting.period_of(window.start)
        plan = plan_window(rows.counts, allowance.left, config, window, period, generation, rows.fixes)
        require_storable(len(plan.cells))
        return carry(within(plan, allowance.budget), decode_memory(memory), config)

    def withhold(self, window: Window, generation: str) -> Plan | None:
        """The plan of a withheld window, without cells, users and charges. None if the window must not be withheld publicly.

        Under "values" a plan depends on public counts alone, so it is public that it failed. Under "participation" the
        failure would reveal that somebody was there.
        """
        config = self.config
        if config.relation != NeighbouringRelation.VALUES:
            return None
        period = config.slotting.period_of(window.start)
        plan = empty_plan(config, window, period, generation)
        return msgspec.structs.replace(plan, withheld=True)

    def draw(self, plan: Plan, rows: WindowRows | None, noise: Noise) -> Drawn | None:
        """The drawn window; None for a withheld one.

        Raises :class:`stream.statistics.plan.PlanError` if rows and plan do not match.
        """
        if plan.withheld:
            return None
        if rows is None:
            raise PlanError(
                f"window {utc_text(plan.window.start)} was planned, but its rows cannot be read now; nothing was drawn"
            )
        rows = rows.as_planned(plan, self.config)
        contributions = rows.in_cells_of(plan)
        columns = draw(plan, contributions, noise)
        return Drawn(contributions.counts, columns, draw_histograms(plan, rows.fixes, noise))

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """All messages of the window that is committed as ``number``, close marker last, and the new memory.

        The memory is empty if the window does not change it. Pure: it may be called again with another number.
        """
        if drawn is None:
            return compose_withheld(plan, self.config, number), b""
        before = decode_memory(memory)
        counts, columns = drawn.counts, drawn.columns
        messages, after = compose(plan, counts, columns, self.config, before, drawn.histograms, sequence=number)
        return messages, b"" if after is None or after is before else encode_memory(after)
