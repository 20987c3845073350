"""Private choice of a range or a quantile from integer columns, by the exact exponential mechanism.

Each column entry belongs to one unit of protection, or to a pseudo-user of which a user touches at most ``entries``.
Source: [M] arXiv 2401.15906 (ranges and quantiles), mechanisms S5, S6.
"""

from __future__ import annotations

import numpy as np

from dpcore.arrays import IntArray
from dpcore.budget import MICRO
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.scales import checked_micro, checked_upper

RANK_UNIT = 10
"""Target ranks are given in tenths, so 0.1·K̄ is an integer."""


def select_quantiles(
    column: IntArray, upper: int, ranks: IntArray, epsilon_micro: int, noise: Noise, *, entries: int = 1
) -> IntArray:
    """Private integers y in 0..``upper``, one per target rank, each at ``epsilon_micro`` for a change of ``entries``
    values.

    ``column``: shape (K,), integers in [0, ``upper``]. ``ranks``: shape (q,), in tenths of a value. P(y) ∝
    exp(−ε·c(y)/(2·entries)), c the distance of the rank r from [#{z < y}, #{z <= y}]. So a value that many entries
    share is a candidate of its own; a choice among the gaps between values alone would never find it
    (``research/errata.md``). A gap is drawn with its number of integers as weight, then an integer in it uniformly.
    Exact.
    Neighbours differ in ``entries`` values; adding that many values costs the same.
    """
    micro, top = checked_micro(epsilon_micro), checked_upper(upper)
    if len(column) and (int(column.min()) < 0 or int(column.max()) > top):
        raise ParameterError(f"values outside [0, {top}] would break the sensitivity; clip them first")
    distinct, multiplicity = np.unique(np.asarray(column, dtype=np.int64), return_counts=True)
    # In turn: the gap below the first value, that value, the gap above it, the next value, …
    start = np.append(0, np.column_stack([distinct, distinct + 1]).ravel())
    size = np.diff(np.append(start, top + 1))
    up_to = np.repeat(RANK_UNIT * np.append(0, np.cumsum(multiplicity)), 2)
    below, above = up_to[:-1], up_to[1:]
    target = np.asarray(ranks, dtype=np.int64)[:, None]
    costs = np.maximum(np.maximum(below - target, target - above), 0)
    offsets = np.arange(len(target) + 1, dtype=np.int64) * len(start)
    chosen = noise.exponential(
        costs.ravel(),
        micro,
        2 * entries * RANK_UNIT * MICRO,
        offsets=offsets,
        weights=np.tile(size, len(target)),
    )
    return np.asarray(start[chosen] + noise.below(size[chosen]))


def range_bins(upper: int, half_bin: int) -> IntArray:
    """Candidate ranges [x − 2τ, x + 2τ] ∩ [0, ``upper``], x the centres of bins of width 2τ; shape (⌈U/2τ⌉, 2).
    Public."""
    if half_bin < 1:
        raise ParameterError(f"half a bin is {half_bin} quanta; give at least 1")
    n_bins = max(-(-checked_upper(upper) // (2 * half_bin)), 1)
    centre = (2 * np.arange(n_bins, dtype=np.int64) + 1) * half_bin
    return np.stack([np.maximum(centre - 2 * half_bin, 0), np.minimum(centre + 2 * half_bin, upper)], axis=1)


def select_range(column: IntArray, upper: int, half_bin: int, epsilon_micro: int, noise: Noise) -> tuple[int, int]:
    """Private range [a, b] of :func:`range_bins` around the median of ``column`` (K,), for a change of one entry.

    Entries are snapped to bins; P(x) ∝ exp(−ε·c(x)/2), c = max(entries below, entries above), of sensitivity 1. Exact.
    """
    ranges = range_bins(upper, half_bin)
    filled = np.bincount(np.minimum(column // (2 * half_bin), len(ranges) - 1), minlength=len(ranges)).astype(np.int64)
    up_to = np.cumsum(filled)
    costs = np.maximum(up_to - filled, len(column) - up_to)
    chosen = int(noise.exponential(costs, checked_micro(epsilon_micro), 2 * MICRO)[0])
    return int(ranges[chosen, 0]), int(ranges[chosen, 1])
