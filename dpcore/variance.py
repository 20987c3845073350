"""1/n variance of one cell under relation "values".

Integer statistic: ⌊(n·Σx² − (Σx)²)/(n²·grid)⌋, grid quanta² being its public granularity. Neighbours differ in the values
of one user. Source: [C] arXiv 2405.06261, mechanisms S7 (its clipping bias cases and item-level Δ corrected).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.contributions import IntArray
from dpcore.errors import ParameterError
from dpcore.moments import variance_clipping_bias
from dpcore.noise import Noise
from dpcore.release import Estimate
from dpcore.scales import (
    check_total,
    checked_samples,
    checked_upper,
    checked_values,
    losses,
    noise_ratio,
    noisy_estimate,
    retained_values,
)


@dataclass(frozen=True)
class VariancePlan:
    """Public part of a variance. ``sensitivities``: shape (L,), most that each user moves the statistic, in ``grid`` quanta².

    ``numerator``/``denominator``: noise scale in the same unit. ``charges``: µε (L,), his own Δ/scale rounded up.
    ``bias_bound``: quanta², clipping and rounding.
    """

    samples: IntArray
    retained: IntArray
    sensitivities: IntArray
    numerator: int
    denominator: int
    charges: IntArray
    grid: int
    bias_bound: float

    @property
    def scale(self) -> float:
        """Noise scale b of the released variance, in quanta²."""
        return self.numerator / self.denominator * self.grid

    @property
    def predicted_error(self) -> float:
        """Worst-case |error| to expect, in quanta²: clipping bias + E|noise| (= b)."""
        return self.bias_bound + self.scale


@dataclass(frozen=True)
class Variance:
    """Variance (1/n) of the first ``capacity`` samples of each user plus Lap(max Δ/ε), clamped to [0, U²/4].

    ``upper``: U in quanta; ``capacity``: None keeps all; ``grid``: granularity in quanta². One retained sample in the cell
    has variance 0, released without noise and free of charge.
    """

    upper: int
    capacity: int | None = None
    grid: int = 1

    def plan(self, samples: IntArray, epsilon_micro: int) -> VariancePlan:
        """Plan from counts ``samples`` (L,) of one cell; raises :class:`DPError` subclasses for input out of bounds."""
        upper, m = checked_upper(self.upper), checked_samples(samples)
        largest = int(m.max())
        if self.capacity is not None and not 1 <= self.capacity <= largest:
            raise ParameterError(
                f"capacity {self.capacity} is outside [1, {largest}], the samples per user; give one inside"
            )
        if self.grid < 1:
            raise ParameterError(f"grid {self.grid} quanta² is no granularity; give at least 1")
        check_total(int(m.sum()), upper * upper)
        retained = np.minimum(m, largest if self.capacity is None else self.capacity)
        n, total = int(retained.sum()), int(m.sum())
        sensitivities = np.array([variance_change(upper, int(g), n, self.grid) for g in retained], dtype=np.int64)
        t, s = noise_ratio(int(sensitivities.max()), epsilon_micro)
        bias = float(variance_clipping_bias(np.array([total]), np.array([n]), upper)[0])
        rounding = float(self.grid) if upper and n > 1 else 0.0
        return VariancePlan(m, retained, sensitivities, t, s, losses(sensitivities, t, s), self.grid, bias + rounding)

    def release(self, values: IntArray, plan: VariancePlan, noise: Noise) -> Estimate:
        """Draw the variance of the retained ``values`` (N,), quanta sorted by (user, time); in quanta²."""
        kept, _ = retained_values(checked_values(values, plan.samples, self.upper), plan.samples, plan.retained)
        n, total, squares = len(kept), int(kept.sum()), int((kept * kept).sum())
        statistic = (n * squares - total * total) // (n * n * plan.grid)
        return noisy_estimate(
            statistic, plan.numerator, plan.denominator, 1 / plan.grid, self.upper**2 / 4, plan.bias_bound, noise
        )


def variance_change(upper: int, own: int, n: int, grid: int) -> int:
    """⌈U²·j·(n−j)/(n²·grid)⌉, j = min(own, ⌊n/2⌋): most that ``own`` of ``n`` values in 0..U move the statistic."""
    j = min(own, n // 2)
    return -(-upper * upper * j * (n - j) // (n * n * grid))
