"""Residual clipping on the shipped path: ranges around the forecast that the memory gives, and the mean that undoes
them.

A range is post-processing of earlier releases and public counts, so it costs no budget. See :mod:`dpcore.residual`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Counts
from dpcore.residual import Forecast, Response, choose_ranges, widened
from stream.statistics.columns import Derived
from stream.statistics.plan import Due, Plan
from stream.statistics.smoothing_state import Memory, foretold_of, widening_of
from stream.terms import QUANTUM

SPREAD_SHARE = 0.2
"""Standard deviation of users' means in a cell, as a share of U: public, chosen on CapMetro's 2015-09-06, 2016-11-25,
2017-03-16."""


OPEN_REACH = 2.5
"""Reach of that error in a smoothed interval, in its standard deviations: with 1.96, 92 % of the cells of ten clones of
CapMetro's 2016-11-26 were covered, with 2.5, 93 %."""


@dataclass(frozen=True)
class Ranges:
    """``lower``, ``upper``: ends of each cell's range, (C,), and the ``foretold`` mean, in quanta; ``gain``: of its
    response, (C,)."""

    lower: IntArray
    upper: IntArray
    foretold: IntArray
    gain: FloatArray

    @property
    def ends(self) -> tuple[IntArray, IntArray]:
        """(Lower, upper)."""
        return self.lower, self.upper


def ranges_of(counts: Counts, noise: FloatArray, due: Due, memory: Memory | None) -> Ranges:
    """The range of each cell of ``counts``; ``noise``: of its mean without clipping, (C,), quanta, infinite for
    none."""
    speed = due.terms.speed
    events, users = counts.by_cell(counts.samples), np.diff(counts.cell_start)
    forecast = foretold_of(memory, counts.cells, events, users, due)
    spread, top = SPREAD_SHARE * speed.upper_quanta, speed.upper_quanta
    foretold = np.round(forecast.value / QUANTUM).astype(np.int64)
    widening = widening_of(memory, counts.cells)
    about = Forecast(foretold.astype(np.float64), forecast.deviation / QUANTUM, widening)
    finite = np.where(np.isfinite(noise), noise, float(top))
    lower, upper = choose_ranges(about, finite, spread=spread, top=top)
    response = Response.of(about.mean, lower.astype(np.float64), upper.astype(np.float64), spread, float(top))
    return Ranges(lower, upper, foretold, response.gain)


def widening_after(plan: Plan, bodies: Sequence[dict[str, Any]], memory: Memory | None) -> FloatArray | None:
    """By how much the next range of each body's cell is wider, (C,), from what was published; None without residual
    clipping."""
    response = response_of(plan)
    if response is None or plan.ranges is None:
        return None
    released = np.array(["mean" in body for body in bodies], dtype=bool)
    mean, deviation = response.forecast.copy(), np.zeros(len(bodies))
    mean[released] = [body["mean"]["raw"] / QUANTUM for body in bodies if "mean" in body]
    deviation[released] = [body["mean"]["scale"] / QUANTUM for body in bodies if "mean" in body]
    clipped = response.expected + (mean - response.forecast) * response.gain
    half = (plan.ranges[1] - plan.ranges[0]) / 2
    return widened(widening_of(memory, plan.cells), clipped, response, half, deviation * response.gain)


def with_what_clipping_leaves_open(plan: Plan, mean: Derived) -> Derived:
    """The modelled ``mean`` with an interval that includes what the correction for clipping leaves open; the same
    without residual clipping.

    That error is alike from window to window, so smoothing does not average it out as it does noise.
    """
    if (response := response_of(plan)) is None:
        return mean
    assert mean.interval is not None, "modelled means have intervals"
    left, top = OPEN_REACH * response.open * QUANTUM, plan.terms.speed.upper
    low, high = (np.hypot(end - mean.value, left) for end in mean.interval)
    return replace(mean, interval=(np.maximum(mean.value - low, 0), np.minimum(mean.value + high, top)))


def response_of(plan: Plan) -> Response | None:
    """How the clipped mean of each cell follows its mean, in quanta; None without residual clipping."""
    part = plan.values
    if part is None or part.foretold is None or part.lower is None or part.upper is None:
        return None
    top = plan.terms.speed.upper_quanta
    lower, upper = part.lower.astype(np.float64), part.upper.astype(np.float64)
    return Response.of(part.foretold.astype(np.float64), lower, upper, SPREAD_SHARE * top, float(top))
