"""Carried clipping: ranges for users' means in each cell, computed from what earlier windows released.

A range is post-processing of past outputs, so it costs no budget. No sensitivity depends on it, because a user's numbers in a
cell sum to their weight wherever in the range their mean lies. A narrow range gives less noise; a mean outside is clipped.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.statistics.plan import Plan, pack_integers
from stream.statistics.smoothing_state import Memory, intervals

SPREAD = 2.0
"""The range reaches from the cell's mean divided by this to the mean multiplied by this. Narrower ranges bias the mean more."""
NARROWEST_KMH = 20.0
"""Width of the narrowest range."""


def carry(plan: Plan, memory: Memory | None, config: Config) -> Plan:
    """``plan`` with the ranges that ``memory`` gives for its cells; unchanged if carried clipping is not configured."""
    if config.speed.clipping != "carried" or memory is None:
        return plan
    top = plan.upper_quanta * SPEED_QUANTUM_KMH
    low, high = intervals(memory, plan.cells)
    low, high = np.clip(low / SPREAD, 0.0, top), np.clip(high * SPREAD, 0.0, top)
    middle = np.clip((low + high) / 2, NARROWEST_KMH / 2, max(top - NARROWEST_KMH / 2, NARROWEST_KMH / 2))
    low = np.maximum(np.minimum(low, middle - NARROWEST_KMH / 2), 0.0)
    high = np.minimum(np.maximum(high, middle + NARROWEST_KMH / 2), top)
    lower, upper = (pack_integers(np.round(end / SPEED_QUANTUM_KMH)) for end in (low, high))
    return msgspec.structs.replace(plan, lower_bytes=lower, upper_bytes=upper)
