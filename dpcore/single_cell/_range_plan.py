"""Public part of a mean over a private range, and the mean within the range that was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpcore.contributions import IntArray
from dpcore.noise import Noise
from dpcore.scales import noise_ratio
from dpcore.single_cell.cell import noisy_estimate
from dpcore.single_cell.estimate import Estimate
from dpcore.single_cell.grouping import Grouping
from dpcore.single_cell.mean import GRID


@dataclass(frozen=True)
class RangePlan:
    """Public part of a mean over a private range; integers in 1/GRID quantum.

    ``sensitivities``: shape (L,), most that each user moves their array's average, before the range narrows it. The
    range costs ``range_micro`` in all, the mean ``mean_micro``. ``narrowest``: smallest range that can be drawn.
    ``charges``: µε (L,), an upper bound over every range that can be drawn. ``bias_bound``: quanta, over every range as
    well. ``half_bin``: τ. ``rank``: lower quantile in tenths of an array. ``predicted_error``: quanta, see
    :class:`AutoMean`.
    """

    samples: IntArray
    grouping: Grouping
    sensitivities: IntArray
    range_micro: int
    mean_micro: int
    half_bin: int
    rank: int
    narrowest: int
    charges: IntArray
    grouping_bias: float
    bias_bound: float
    predicted_error: float

    @property
    def retained(self) -> IntArray:
        """Γ, shape (L,)."""
        return self.grouping.retained

    @cached_property
    def largest(self) -> int:
        """Largest of ``sensitivities``."""
        return int(self.sensitivities.max())


def mean_within(averages: IntArray, low: int, high: int, upper: int, plan: RangePlan, noise: Noise) -> Estimate:
    """Mean of the averages clipped to [``low``, ``high``], noised for that range; bias bound for the range drawn."""
    t, s = noise_ratio(min(high - low, plan.largest), plan.mean_micro)
    bias = plan.grouping_bias + max(low, GRID * upper - high) / GRID
    statistic = int(np.minimum(np.maximum(averages, low), high).sum())
    return noisy_estimate(statistic, t, s, GRID * plan.grouping.n_arrays, upper, min(bias, float(upper)), noise)
