"""Mean and 1/n variance over many cells at once, with given noise scales (relation "values").

Integer statistics: Σx in quanta for the mean; ⌊(n·Σx² − (Σx)²) / (n²·v)⌋ for the variance, v quanta² being its public
output grid. Neighbours differ in the values of one user; counts are public.
Source: [C] arXiv 2405.06261, mechanisms S7 (variance bias cases corrected).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.allocation import Sensitivities
from dpcore.contributions import Contributions, Counts, IntArray
from dpcore.errors import ParameterError

FloatArray = npt.NDArray[np.float64]
_INT64_SAFE = 2**62


def sum_cap(counts: Counts, upper: int, share: float) -> int:
    """Most that one user adds to Σx of a cell, in quanta: ``share``·U·(mean samples of a pair), at least U. Public.

    Speed times time is distance, and a cell is only so wide: who stays long in it drove slowly. So long stays need not
    be given room for U throughout. Raises :class:`ParameterError` for a share not above 0.
    """
    if not (np.isfinite(share) and share > 0):
        raise ParameterError(f"a cap of {share} mean contributions is not above 0; give a positive share or no cap")
    held = counts.samples[counts.samples > 0]
    return max(upper, math.ceil(share * upper * float(held.mean()))) if len(held) else upper


def mean_sensitivity(counts: Counts, samples: IntArray, upper: int, cap: int | None = None) -> IntArray:
    """Δ of Σx over retained ``samples`` (P,) for each pair, in quanta: U·Γ, at most ``cap``; shape (P,)."""
    _check_shape(counts, samples)
    delta: IntArray = samples * upper
    return delta if cap is None else np.minimum(delta, cap)


def variance_sensitivity(counts: Counts, samples: IntArray, upper: int, grid: int) -> IntArray:
    """Δ of the variance in units of ``grid`` quanta² for each pair: ⌈U²·j·(n−j)/(n²·grid)⌉, j = min(Γ, ⌊n/2⌋).

    |⌊a⌋ − ⌊b⌋| <= ⌈|a − b|⌉, so rounding the aggregate down costs nothing beyond this ceiling. 0 where n <= 1.
    """
    _check_shape(counts, samples)
    n = counts.by_cell(samples)[counts.pair_cell]
    j = np.minimum(samples, n // 2)
    top = int(n.max(initial=0))
    dtype: Any = np.int64 if (upper * upper) * max(top, 1) ** 2 * max(grid, 1) < _INT64_SAFE else object
    moved = (upper * upper) * (j.astype(dtype) * (n - j).astype(dtype))
    unit = np.maximum(n.astype(dtype) * n.astype(dtype) * grid, 1)
    ceiling: IntArray = (-(-moved // unit)).astype(np.int64)
    return ceiling


def mean_rows(counts: Counts, samples: IntArray, upper: int, cap: int | None = None) -> Sensitivities:
    """Allocation rows of the means, one per cell; weight = events per full range U·n of Σx, so units compare."""
    retained = counts.by_cell(samples)
    weight = counts.by_cell(counts.samples) / np.maximum(retained * upper, 1)
    return _rows(counts, mean_sensitivity(counts, samples, upper, cap), weight)


def variance_rows(counts: Counts, samples: IntArray, upper: int, grid: int) -> Sensitivities:
    """Allocation rows of the variances, one per cell; weight = events per full range U²/4."""
    span = max(upper * upper / 4 / grid, 1.0)
    return _rows(counts, variance_sensitivity(counts, samples, upper, grid), counts.by_cell(counts.samples) / span)


def cell_variances(contributions: Contributions, grid: int) -> IntArray:
    """⌊(n·Σx² − (Σx)²)/(n²·grid)⌋ per cell, shape (C,); 0 where n = 0. Exact for any n."""
    n = contributions.counts.by_cell(contributions.counts.samples).astype(object)
    sums = contributions.cell_sums().astype(object)
    squares = contributions.cell_squares().astype(object)
    return np.asarray((n * squares - sums * sums) // np.maximum(n * n * grid, 1)).astype(np.int64)


def mean_clipping_bias(total: IntArray, retained: IntArray, upper: float) -> FloatArray:
    """Worst-case bias U·(1 − n/N) of a mean over n of N samples, shape (C,), in the unit of ``upper``."""
    return np.asarray(upper * (1.0 - retained / np.maximum(total, 1)))


def variance_clipping_bias(total: IntArray, retained: IntArray, upper: float) -> FloatArray:
    """Worst-case bias of a variance over n of N samples: U²n(N−n)/N² for n > N/2, else U²⌊N/2⌋⌈N/2⌉/N²; 0 for n = N."""
    N = np.maximum(total, 1).astype(np.float64)
    n = retained.astype(np.float64)
    half = np.floor(N / 2) * np.ceil(N / 2)
    return np.asarray(upper * upper * np.where(2 * n > N, n * (N - n), half) / (N * N))


def _rows(counts: Counts, delta: IntArray, weight: FloatArray) -> Sensitivities:
    keep = delta > 0
    positive = np.where(weight > 0, weight, 1.0)
    return Sensitivities(counts.pair_cell[keep], counts.pair_user[keep], delta[keep], positive, counts.n_users)


def _check_shape(counts: Counts, samples: IntArray) -> None:
    if samples.shape != counts.samples.shape or np.any(samples < 0) or np.any(samples > counts.samples):
        raise ParameterError("retained counts must lie between 0 and each pair's samples; plan from these counts")
