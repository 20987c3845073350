"""Carried clipping: ranges for users' means in each cell, computed from what earlier windows released.

A range is post-processing of past outputs, so it costs no budget. No sensitivity depends on it, because a user's
numbers in a cell sum to their weight wherever in the range their mean lies. A narrow range gives less noise; a mean
outside is clipped.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stream.statistics.plan import ParticipationPart, Plan
from stream.statistics.smoothing_state import Memory, intervals
from stream.terms import QUANTUM

SPREAD = 2.0
"""The range reaches from the cell's mean divided by this to the mean multiplied by this. Narrower ranges bias the mean
more."""
NARROWEST_KMH = 20.0
"""Width of the narrowest range of speeds."""
NARROWEST_SHARE = 0.25
"""The same of other values, as a share of U."""


def carry(plan: Plan, memory: Memory | None) -> Plan:
    """``plan`` with the ranges that ``memory`` gives for its cells; unchanged without carried clipping."""
    if plan.terms.speed.clipping != "carried" or memory is None or memory.lower != plan.terms.value.lower:
        return plan
    top, is_speed = plan.terms.speed.upper, plan.terms.value.is_speed
    narrow = NARROWEST_KMH if is_speed else NARROWEST_SHARE * top
    low, high = intervals(memory, plan.cells)
    low, high = np.clip(low / SPREAD, 0.0, top), np.clip(high * SPREAD, 0.0, top)
    middle = np.clip((low + high) / 2, narrow / 2, max(top - narrow / 2, narrow / 2))
    low = np.maximum(np.minimum(low, middle - narrow / 2), 0.0)
    high = np.minimum(np.maximum(high, middle + narrow / 2), top)
    lower, upper = (np.round(end / QUANTUM).astype(np.int64) for end in (low, high))
    return msgspec.structs.replace(plan, participation=ParticipationPart(lower=lower, upper=upper))
