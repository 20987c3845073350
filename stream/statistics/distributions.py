"""The whole distribution of a cell's speeds, published where percentiles are read from it; it costs nothing more.

The noisy tree of every cell is drawn and paid for once, for percentiles and distribution together. What is published is
a function of it (:mod:`dpcore.cdf`), rounded to a fixed granularity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpcore.arrays import FloatArray, IntArray
from dpcore.cdf import CDFs, bin_edges
from stream.statistics.columns import CDF, DECIMALS, PERCENTS, Columns
from stream.statistics.plan import Plan
from stream.terms import MAX_NUMBERS, QUANTUM, SpeedTerms


def needs_distribution(statistics: Sequence[str]) -> bool:
    """Whether any of the named statistics is read from a distribution."""
    return any(name == CDF or name in PERCENTS for name in statistics)


def bins_of(upper: int, bins: int) -> int:
    """Number K of bins of 0..``upper`` quanta."""
    return len(bin_edges(upper, bins)) - 1


def numbers_of(speed: SpeedTerms, cells: int) -> int:
    """Numbers of a window's distributions, of so many cells."""
    return cells * bins_of(speed.upper_quanta, speed.cdf_bins)


def too_large(plan: Plan) -> bool:
    """Whether the window's distributions are left out: by its cells, which are public, and constants."""
    speed = plan.terms.speed
    return needs_distribution(speed.statistics) and numbers_of(speed, len(plan.cells)) > MAX_NUMBERS


def only_for_itself(speed: SpeedTerms, cells: int) -> bool:
    """Whether the trees of so many ``cells`` would be paid in vain: for distributions left out, and no percentile."""
    read = CDF in speed.statistics and not any(name in PERCENTS for name in speed.statistics)
    return read and numbers_of(speed, cells) > MAX_NUMBERS


def share_columns(drawn: CDFs | None, cells: IntArray, n_cells: int, bins: int, per_scale: float) -> Columns:
    """The distributions ``drawn`` of ``cells`` as columns (C, K); cells without noise have the whole range as their
    band.

    ``per_scale``: standard deviations of a unit of the stated scale.
    """
    decimals = DECIMALS[CDF]
    table = np.ones((5, n_cells, bins))
    table[2:4] = 0.0
    if drawn is not None:
        table[:, cells] = drawn.shares()
    value, raw, deviation, low, high = table
    unit = 10.0**decimals
    return Columns(
        np.round(raw, decimals) + 0.0,
        np.round(value, decimals),
        deviation / per_scale,
        np.floor(low * unit) / unit,
        np.ceil(high * unit) / unit,
        1.0,
    )


def distribution_bodies(plan: Plan, column: Columns) -> list[dict[str, Any]]:
    """The field ``cdf`` of every cell's message."""
    edges = bin_edges(plan.terms.speed.upper_quanta, plan.terms.speed.cdf_bins)
    at = np.round((edges[1:] - 1) * QUANTUM, 2).tolist()
    lists = [part.tolist() for part in (column.value, column.raw, _significant(column.scale), column.low, column.high)]
    names = ("value", "raw", "scale", "low", "high")
    return [
        {"at": at, **dict(zip(names, of_cell, strict=True)), "band": "simultaneous", "unit": "1"}
        for of_cell in zip(*lists, strict=True)
    ]


def _significant(scale: FloatArray) -> FloatArray:
    """``scale`` with four significant digits, and 0 below 10⁻⁹: rounded up, so no less noise is stated than added."""
    digits = 10.0 ** (np.floor(np.log10(np.maximum(scale, 1e-9))) - 3)
    return np.where(scale < 1e-9, 0.0, np.round(np.ceil(scale / digits - 1e-9) * digits, 12))
