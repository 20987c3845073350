"""Single-cell mean mechanisms over every cell of a window (relation "values"): one epsilon per cell, exact charges.

A user in few cells, or with few samples in them, is charged only their exact loss there. The allocated mean
(:mod:`stream.statistics.values.plan`) shares epsilon over cells by need, and is nearly always more accurate over a
whole city.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Contributions, Counts
from dpcore.noise import Noise
from dpcore.single_cell.mean import ArrayAveraging, Baseline, PooledMinimax
from dpcore.single_cell.range_mean import AutoMean, EpsilonQuantile, FixedQuantile, Levy
from stream.terms import SpeedTerms

MECHANISMS: dict[str, Any] = {
    "baseline": Baseline,
    "array-averaging": ArrayAveraging,
    "pooled-minimax": PooledMinimax,
    "levy": Levy,
    "fixed-quantile": FixedQuantile,
    "epsilon-quantile": EpsilonQuantile,
    "auto": AutoMean,
}
"""Mechanisms by configured name: S1 and S3–S6 of the source, and "auto", which chooses by predicted error."""


def cell_mechanism(speed: SpeedTerms) -> Any:
    """The mechanism chosen for the mean of a cell."""
    return MECHANISMS[speed.mean_mechanism](speed.upper_quanta)


@dataclass(frozen=True)
class CellMeans:
    """The public part: charges (L,) in µε, and each cell's predicted worst-case error (C,) in quanta (inf: no mean)."""

    charges: IntArray
    predicted_error: FloatArray


def cell_epsilon(counts: Counts, samples: IntArray, allowance: int) -> int:
    """µε of one cell: ``allowance`` divided by the largest number of cells of any user, rounded down."""
    return allowance // max(int(counts.by_user((samples > 0).astype(np.int64)).max(initial=1)), 1)


def plan_cell_means(mechanism: Any, counts: Counts, samples: IntArray, epsilon_micro: int) -> CellMeans:
    """Plan every cell with ``samples`` (P,) retained by a :func:`cell_mechanism` at ``epsilon_micro`` per cell."""
    charges = np.zeros(counts.n_users, dtype=np.int64)
    error = np.full(counts.n_cells, np.inf)
    for g in range(counts.n_cells):
        pairs = _pairs_of(counts, samples, g)
        if len(pairs):
            plan = mechanism.plan(samples[pairs], epsilon_micro)
            charges[counts.pair_user[pairs]] += plan.charges
            error[g] = plan.predicted_error
    return CellMeans(charges, error)


def draw_cell_means(mechanism: Any, kept: Contributions, epsilon_micro: int, noise: Noise) -> FloatArray:
    """(raw, scale, low, high) of every cell, shape (4, C), in quanta; the plans are recomputed from the same counts."""
    counts, values = kept.counts, kept.values
    out = np.zeros((4, counts.n_cells))
    for g in range(counts.n_cells):
        pairs = _pairs_of(counts, counts.samples, g)
        if len(pairs):
            first, last = kept.pair_start[counts.cell_start[g]], kept.pair_start[counts.cell_start[g + 1]]
            plan = mechanism.plan(counts.samples[pairs], epsilon_micro)
            estimate = mechanism.release(values[first:last], plan, noise)
            out[:, g] = estimate.raw, estimate.scale, estimate.low, estimate.high
    return out


def _pairs_of(counts: Counts, samples: IntArray, g: int) -> IntArray:
    pairs = np.arange(counts.cell_start[g], counts.cell_start[g + 1])
    return pairs[samples[pairs] > 0]
