"""Clipping carried over: the range of users' means in each cell, from what earlier windows released.

The range is post-processing of past outputs, so it costs no budget, and no sensitivity depends on it: a user's numbers in a
cell sum to their weight there wherever in the range their mean lies. Narrow ranges mean little noise; a mean outside is clipped.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.statistics.plan import Plan, pack_integers
from stream.statistics.smoothing_state import Memory, intervals

SPREAD = 2.0
"""Users' means are taken to lie between the cell's mean divided and multiplied by this; narrower ranges bias the mean."""
NARROWEST_KMH = 20.0
"""No range is narrower."""


def carry(plan: Plan, memory: Memory | None, config: Config) -> Plan:
    """``plan`` with the ranges that ``memory`` gives for its cells; as it is where nothing is carried over."""
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
