"""The pure steps of releasing one window: sort its rows, plan, draw, write its messages.

No server and no clock: the result depends only on the rows, on what users have left, on the memory and on a tape of
entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import IdArray
from dpcore.contributions import Counts
from dpcore.noise import Noise
from stream.messages.message import Message
from stream.statistics.columns import Columns
from stream.statistics.histograms.histograms import DrawnHistogram, Histograms
from stream.statistics.pipeline import compose, compose_withheld
from stream.statistics.plan import NO_IDS, Allowance, Due, Plan, PlanError
from stream.statistics.relations import speed_of
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from stream.statistics.storable import require_storable
from stream.statistics.window_rows import WindowRows
from stream.terms import Terms
from stream.windows import Window, utc_text


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

        Raises :class:`stream.statistics.storable.TooLargeError`.
        """
        plan = plan_window(rows, due, allowance, self.cells, decode_memory(memory))
        require_storable(len(plan.cells))
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
        contributions = rows.in_cells_of(plan)
        columns = speed_of(plan.terms).draw(plan, contributions, noise)
        return Drawn(contributions.counts, columns, Histograms(plan.terms.histogram).draw(plan, rows.fixes, noise))

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
        due = Due(due.terms.without_histograms(), due.window, due.generation)
    asked = Histograms(due.terms.histogram).plan(rows.fixes, rows.counts.users)
    plan = speed_of(due.terms, cells).plan(rows.counts, due, allowance, asked.charges, memory)
    return msgspec.structs.replace(plan, fixes_digest=asked.fixes_digest)
