"""The most that clipping can bias a release under "values". With the mean size of the noise it is the worst-case error
E.

A function of public counts and of the plan, so stating it costs nothing; the largest E of all cells is what [C] tells a
client. Of the mean: U·(1 − n/N) for N − n samples that are not retained, and Σ_ℓ max(0, U·Γ_ℓ − T)/n for a cap T of
users' sums; U where residual clipping narrows the range, because all vehicles may be outside it. Of the variance: the
two cases of :func:`dpcore.variance.clipping_bias`. Means of a single-cell mechanism: the bound of its own. Source: the
talk on [M] and [C], E_g = Σ (max bias) + E|Z|.
"""

from __future__ import annotations

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.contributions import Counts
from dpcore.mean import clipping_bias as mean_bias
from dpcore.variance import clipping_bias as variance_bias
from stream.statistics.plan import Plan
from stream.statistics.values.cell_means import cell_mechanism
from stream.terms import QUANTUM


def worst_biases(plan: Plan, counts: Counts) -> dict[str, FloatArray]:
    """Bounds for the mean in km/h and the variance in (km/h)², by cell (C,), as far as released. Relation "values"."""
    total, kept = counts.by_cell(counts.samples), counts.by_cell(plan.retained)
    speed, biases = plan.terms.speed, {}
    upper, micro = speed.upper, 0 if plan.values is None else plan.values.mean_epsilon_micro
    if "mean" in speed.statistics:
        inside = _of_mechanism(plan, counts, micro) if micro else _of_caps(plan, counts)
        biases["mean"] = np.minimum(upper * mean_bias(total, kept) + inside * QUANTUM, upper)
    if "variance" in speed.statistics:
        biases["variance"] = upper**2 * variance_bias(total, kept)
    return biases


def highest_means(plan: Plan, counts: Counts) -> FloatArray:
    """The mean of each cell in which all are as fast as counts, km/h, (C,): U, less where caps take from it. Public."""
    highest = np.full(counts.n_cells, plan.terms.speed.upper)
    return highest if plan.ranges is not None else highest - _of_caps(plan, counts) * QUANTUM


def _of_caps(plan: Plan, counts: Counts) -> FloatArray:
    """The most that caps or ranges take from the mean of retained samples, in quanta, (C,)."""
    if plan.ranges is not None:
        upper = plan.terms.speed.upper_quanta
        return np.where(plan.ranges[1] - plan.ranges[0] < upper, float(upper), 0.0)
    if plan.caps is None:
        return np.zeros(counts.n_cells)
    above = np.maximum(plan.retained * plan.terms.speed.upper_quanta - plan.caps[counts.pair_cell], 0)
    taken = np.bincount(counts.pair_cell, weights=above, minlength=counts.n_cells)
    return np.asarray(taken / np.maximum(counts.by_cell(plan.retained), 1))


def _of_mechanism(plan: Plan, counts: Counts, epsilon_micro: int) -> FloatArray:
    """The bias bound that a single-cell mechanism states for its retained samples, in quanta, (C,)."""
    mechanism, bounds = cell_mechanism(plan.terms.speed), np.zeros(counts.n_cells)
    for g in range(counts.n_cells):
        samples = plan.retained[counts.cell_start[g] : counts.cell_start[g + 1]]
        if samples.any():
            bounds[g] = mechanism.plan(samples[samples > 0], epsilon_micro).bias_bound
    return bounds
