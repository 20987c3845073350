"""Residual clipping on the shipped path: ranges around the forecast that the memory gives, and the mean that undoes
them.

A range is post-processing of earlier releases and public counts, so it costs no budget. See :mod:`dpcore.residual`.
"""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Counts
from dpcore.participation import UNIT
from dpcore.residual import Forecast, Response, choose_ranges
from stream.statistics.columns import Derived
from stream.statistics.plan import Due, ParticipationPart, Plan
from stream.statistics.smoothing_state import Crowd, Memory, expected_crowd, foretold_of, widening_of
from stream.terms import QUANTUM

SPREAD_SHARE = 0.2
"""Standard deviation of users' means in a cell, as a share of U: public, chosen on CapMetro's 2015-09-06, 2016-11-25,
2017-03-16."""


OPEN_REACH = 2.5
"""Reach of that error in a smoothed interval, in its standard deviations. Of ten clones of CapMetro's 2016-11-26 94.5 %
of events are covered with 2.5, 93.2 with 1.96, 90.1 with 0; of days as they are at most 0.4 points fewer with 0."""


_FEWEST = 0.1
"""Users of a cell in which hardly anybody is expected."""


@dataclass(frozen=True)
class Ranges:
    """``lower``, ``upper``: ends of each cell's range, (C,), and the ``foretold`` mean, in quanta; ``gain``: of its
    response, (C,)."""

    lower: IntArray
    upper: IntArray
    foretold: IntArray
    gain: FloatArray

    @property
    def planned(self) -> dict[str, Any]:
        """The fields of a plan's part."""
        return {"lower": self.lower, "upper": self.upper, "foretold": self.foretold}


def ranges_of(counts: Counts, noise: FloatArray, due: Due, memory: Memory | None) -> Ranges:
    """The range of each cell of ``counts``; ``noise``: of its mean without clipping, (C,), quanta, infinite for
    none."""
    events, users = counts.by_cell(counts.samples), np.diff(counts.cell_start)
    crowd = Crowd(counts.cells, events.astype(np.float64), users.astype(np.float64), np.log(events / users))
    return _ranges(crowd, noise, due, memory)


def with_ranges(plan: Plan, memory: Memory | None) -> Plan:
    """A ``plan`` under "participation" with the range of each of its cells; unchanged without residual clipping, and
    where ``memory`` does not know the users of these cells.

    Ranges follow from the terms and from earlier releases alone, counts among them: this window's data have no part.
    """
    if not plan.terms.speed.clips or memory is None:
        return plan
    deviation = plan.scales.values[0] / UNIT * (1.0 if plan.gaussian else np.sqrt(2))
    if (crowd := expected_crowd(memory, plan.cells, plan.due, 2 * deviation**2)) is None:
        return plan
    # The mean is 1/2 and half the difference of two such numbers over their sum.
    noise = plan.terms.speed.upper_quanta * deviation / np.sqrt(2) / np.maximum(crowd.users, _FEWEST)
    ranges = _ranges(crowd, noise, plan.due, memory)
    return msgspec.structs.replace(plan, participation=ParticipationPart(**ranges.planned))


def _ranges(crowd: Crowd, noise: FloatArray, due: Due, memory: Memory | None) -> Ranges:
    top = due.terms.speed.upper_quanta
    forecast = foretold_of(memory, crowd, due)
    spread = SPREAD_SHARE * top
    foretold = np.round(forecast.value / QUANTUM).astype(np.int64)
    about = Forecast(foretold.astype(np.float64), forecast.deviation / QUANTUM, widening_of(memory, crowd.cells))
    finite = np.where(np.isfinite(noise), noise, float(top))
    lower, upper = choose_ranges(about, finite, spread=spread, top=top)
    response = Response.of(about.mean, lower.astype(np.float64), upper.astype(np.float64), spread, float(top))
    return Ranges(lower, upper, foretold, response.gain)


def with_what_clipping_leaves_open(plan: Plan, mean: Derived) -> Derived:
    """The modelled ``mean`` with an interval that includes what the correction for clipping leaves open; the same
    without residual clipping.

    That error is alike from window to window, so smoothing does not average it out as it does noise.
    """
    if (response := response_of(plan)) is None:
        return mean
    assert mean.interval is not None, "modelled means have intervals"
    left, top = OPEN_REACH * response.open, plan.terms.speed.upper
    low, high = (np.hypot(end - mean.value, left) for end in mean.interval)
    return replace(mean, interval=(np.maximum(mean.value - low, 0), np.minimum(mean.value + high, top)))


def response_of(plan: Plan) -> Response | None:
    """How the clipped mean of each cell follows its mean, in released units; None without residual clipping."""
    part = plan.participation or plan.values
    if part is None or part.foretold is None or part.lower is None or part.upper is None:
        return None
    top = plan.terms.speed.upper
    forecast, lower, upper = np.array([part.foretold, part.lower, part.upper]) * QUANTUM
    return Response.of(forecast, lower, upper, SPREAD_SHARE * top, top)


def half_ranges(plan: Plan) -> FloatArray:
    """Half the width of each range of a plan with residual clipping, (C,), in released units."""
    assert plan.ranges is not None, "only plans with residual clipping have a response"
    return np.asarray((plan.ranges[1] - plan.ranges[0]) * (QUANTUM / 2))
