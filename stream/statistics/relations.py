"""The statistics of speed under each relation, of one shape: plan, draw, body. The relation is chosen here alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dpcore.arrays import IdArray, IntArray
from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.statistics.columns import Columns
from stream.statistics.participation.draw import draw_participation
from stream.statistics.participation.plan import plan_participation
from stream.statistics.pipeline import exact_numbers, mark_at_bound, noisy_numbers, release_bodies, state_worst_errors
from stream.statistics.plan import NO_IDS, Allowance, Due, Plan
from stream.statistics.residual_clipping import with_ranges
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.draw import draw_values
from stream.statistics.values.gaussian_plan import plan_gaussian
from stream.statistics.values.plan import plan_values
from stream.statistics.values.worst_bias import highest_means, worst_biases
from stream.terms import Terms


@dataclass(frozen=True)
class Values:
    """Neighbours differ in the values of one user; counts are public.

    ``may_withhold``: a plan depends on public counts alone, so it is public that it failed.
    """

    may_withhold: ClassVar[bool] = True

    def plan(
        self, counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
    ) -> Plan:
        """As :func:`stream.statistics.values.plan.plan_values`; under zCDP as
        :func:`stream.statistics.values.gaussian_plan.plan_gaussian`."""
        if due.terms.privacy.zcdp is not None:
            return plan_gaussian(counts, due, allowance, asked, memory)
        return plan_values(counts, due, allowance, asked, memory)

    def draw(self, plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
        """As :func:`stream.statistics.values.draw.draw_values`."""
        return draw_values(plan, contributions, noise)

    def body(self, plan: Plan, counts: Counts, columns: dict[str, Columns]) -> list[dict[str, Any]]:
        """The body of every cell's message, with exact counts and worst-case errors."""
        bodies = release_bodies(plan, columns, exact_numbers(counts))
        state_worst_errors(worst_biases(plan, counts), columns, bodies)
        mark_at_bound(plan, highest_means(plan, counts), columns, bodies)
        return bodies


@dataclass(frozen=True)
class Participation:
    """Neighbours differ by all events of one user. ``cells``: ids of the public list, (C,), which only ``plan`` reads.

    ``may_withhold``: that a plan failed would reveal that somebody was there.
    """

    may_withhold: ClassVar[bool] = False
    cells: IdArray

    def plan(
        self, counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
    ) -> Plan:
        """As :func:`stream.statistics.participation.plan.plan_participation`, with the ranges that ``memory`` gives."""
        return with_ranges(plan_participation(counts, due, allowance, self.cells, asked), memory)

    def draw(self, plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
        """As :func:`stream.statistics.participation.draw.draw_participation`."""
        return draw_participation(plan, contributions, noise)

    def body(self, plan: Plan, counts: Counts, columns: dict[str, Columns]) -> list[dict[str, Any]]:
        """The body of every cell's message; no true count is in it."""
        bodies = release_bodies(plan, columns, noisy_numbers(columns))
        mark_at_bound(plan, plan.terms.speed.upper, columns, bodies)
        return bodies


def speed_of(terms: Terms, cells: IdArray = NO_IDS) -> Values | Participation:
    """The statistics of speed under the relation of ``terms``; ``cells``: the public list, to plan with."""
    chosen: Mapping[NeighbouringRelation, Values | Participation] = {
        NeighbouringRelation.VALUES: Values(),
        NeighbouringRelation.PARTICIPATION: Participation(cells),
    }
    return chosen[terms.relation]
