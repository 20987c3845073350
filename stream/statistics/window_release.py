"""The pure steps of releasing one window: sort its rows, plan, draw, write its messages.

No server and no clock: the result depends only on the rows, on what users have left, on the memory and on a tape of
entropy.

The statistics of speed under each relation, of one shape: plan, draw, body. The relation is chosen here alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import IdArray, IntArray
from dpcore.contributions import Counts
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.messages.message import Message
from stream.statistics.columns import Columns
from stream.statistics.histograms.histograms import DrawnHistogram, asked_by, draw_histograms
from stream.statistics.merging import by_planned_cells
from stream.statistics.participation.draw import draw_participation, plan_participation
from stream.statistics.pipeline import (
    compose,
    compose_withheld,
    mark_at_bound,
    noisy_numbers,
    release_bodies,
    state_worst_errors,
)
from stream.statistics.plan import NO_IDS, Allowance, Due, Plan, PlanError, require_storable
from stream.statistics.residual_clipping import with_ranges
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from stream.statistics.values.cell_statistics import highest_means, worst_biases
from stream.statistics.values.draw import draw_values
from stream.statistics.values.plan import plan_gaussian, plan_values
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms
from stream.windows import Window, utc_text


@dataclass(frozen=True)
class Values:
    """Neighbours differ in the values of one user; counts are public.

    ``may_withhold``: a plan depends on public counts alone, so it is public that it failed.
    """

    may_withhold: ClassVar[bool] = True
    draw = staticmethod(draw_values)

    def plan(
        self, counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
    ) -> Plan:
        """As :func:`stream.statistics.values.plan.plan_values`; under zCDP as
        :func:`stream.statistics.values.plan.plan_gaussian`."""
        if due.terms.privacy.zcdp is not None:
            return plan_gaussian(counts, due, allowance, asked, memory)
        return plan_values(counts, due, allowance, asked, memory)

    def body(self, plan: Plan, counts: Counts, columns: dict[str, Columns]) -> list[dict[str, Any]]:
        """The body of every cell's message, with exact counts and worst-case errors."""
        exact = {"events": counts.by_cell(counts.samples).tolist(), "users": np.diff(counts.cell_start).tolist()}
        bodies = release_bodies(plan, columns, exact)
        state_worst_errors(worst_biases(plan, counts), columns, bodies)
        mark_at_bound(plan, highest_means(plan, counts), columns, bodies)
        return bodies


@dataclass(frozen=True)
class Participation:
    """Neighbours differ by all events of one user. ``cells``: ids of the public list, (C,), which only ``plan`` reads.

    ``may_withhold``: that a plan failed would reveal that somebody was there.
    """

    may_withhold: ClassVar[bool] = False
    draw = staticmethod(draw_participation)
    cells: IdArray

    def plan(
        self, counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
    ) -> Plan:
        """As :func:`stream.statistics.participation.draw.plan_participation`, with the ranges that ``memory`` gives."""
        return with_ranges(plan_participation(counts, due, allowance, self.cells, asked), memory)

    def body(self, plan: Plan, counts: Counts, columns: dict[str, Columns]) -> list[dict[str, Any]]:
        """The body of every cell's message; no true count is in it."""
        bodies = release_bodies(plan, columns, noisy_numbers(columns))
        mark_at_bound(plan, plan.terms.speed.upper, columns, bodies)
        return bodies


def speed_of(terms: Terms, cells: IdArray = NO_IDS) -> Values | Participation:
    """The statistics of speed under the relation of ``terms``; ``cells``: the public list, to plan with."""
    return Values() if terms.relation == NeighbouringRelation.VALUES else Participation(cells)


@dataclass(frozen=True)
class Drawn:
    """A window after its draw: ``columns`` of each statistic over the plan's cells, and the histograms."""

    counts: Counts
    columns: dict[str, Columns]
    histograms: Sequence[DrawnHistogram]


@dataclass(frozen=True)
class WindowStatistics:
    """The statistics of a feed on its ``terms``, as steps of the protocol; ``cells``: ids of its public list, (C,)."""

    terms: Terms
    cells: IdArray = field(default_factory=lambda: NO_IDS)

    def arrange(self, rows: npt.NDArray[np.void], window: Window) -> WindowRows:
        """The rows of ``window`` among ``rows``, sorted. The order in which they arrived does not matter."""
        time = rows["time"]
        inside = (time >= window.start * 1_000_000) & (time < window.end * 1_000_000)
        return WindowRows.of(rows if inside.all() else rows[inside], self.terms.reading)

    def plan(self, rows: WindowRows, due: Due, allowance: Allowance, memory: bytes = b"") -> Plan:
        """The plan of the window that is ``due``, with the clipping ranges that ``memory`` gives.

        Raises :class:`stream.statistics.plan.TooLargeError`.
        """
        plan = plan_window(rows, due, allowance, self.cells, decode_memory(memory))
        require_storable(plan)
        return plan

    def withhold(self, due: Due, budget: int) -> Plan | None:
        """The plan of a withheld window, without cells, users and charges. None if it must not be withheld publicly."""
        return Plan(due=due, budget=budget, withheld=True) if self.may_withhold else None

    @property
    def may_withhold(self) -> bool:
        """Whether it may be published that no plan of a window could be made."""
        return speed_of(self.terms).may_withhold

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
        rows = rows.as_planned(plan)
        contributions = by_planned_cells(plan, rows.contributions)
        columns = speed_of(plan.terms).draw(plan, contributions, noise)
        return Drawn(contributions.counts, columns, draw_histograms(plan, rows.fixes, noise))

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """All messages of the window that is committed as ``number``, close marker last, and the new memory.

        The memory is empty if the window does not change it. Pure: it may be called again with another number.
        """
        if drawn is None:
            return compose_withheld(plan, number), b""
        before = decode_memory(memory)
        bodies = speed_of(plan.terms).body(plan, drawn.counts, drawn.columns)
        messages, after = compose(plan, bodies, drawn.columns, before, drawn.histograms, sequence=number)
        return messages, b"" if after is None or after is before else encode_memory(after)


def plan_window(
    rows: WindowRows, due: Due, allowance: Allowance, cells: IdArray = NO_IDS, memory: Memory | None = None
) -> Plan:
    """Decide who takes part, which samples are retained, the noise scales and every user's charge, before any noise is
    drawn.

    ``cells``: ids of the public list under relation "participation", (C,). ``memory``: of earlier releases. In a period
    whose charges depended on counts, no histograms are released, because admission to them would reveal who else was
    there. They begin with the next period. Raises :class:`PlanError` if the rows were read without the fixes that
    histograms count.
    """
    if allowance.by_counts and due.terms.histogram is not None:
        due = Due(msgspec.structs.replace(due.terms, histogram=None), due.window, due.generation)
    asked = asked_by(due.terms.histogram, rows.fixes, rows.counts.users)
    plan = speed_of(due.terms, cells).plan(rows.counts, due, allowance, asked.charges, memory)
    return msgspec.structs.replace(plan, fixes_digest=asked.fixes_digest)
