"""Columns of released statistics over the cells of a window, their granularity, names and units.

The whole distribution of a cell's speeds, published where percentiles are read from it; it costs nothing more.

The noisy tree of every cell is drawn and paid for once, for percentiles and distribution together. What is published is
a function of it (:mod:`dpcore.cdf`), rounded to a fixed granularity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.cdf import CDFs, bin_edges
from stream.statistics.plan import Plan
from stream.terms import MAX_NUMBERS, QUANTUM, SpeedTerms, ValueTerms

VARIANCE_GRID = 100
"""Output grid of the variance in quanta²: 0.01 (km/h)²."""
DECIMALS = {
    "mean": 3,
    "typical": 3,
    "deviation": 3,
    "moving_mean": 3,
    "variance": 2,
    "p15": 2,
    "p50": 2,
    "p85": 2,
    "cdf": 5,
    "events": 1,
    "users": 1,
    "moving": 1,
}
"""Fixed output granularity per statistic."""
PERCENTS = {"p15": 15.0, "p50": 50.0, "p85": 85.0}
"""The percentiles that traffic engineers use."""
MOVING_MEAN, MOVING = "moving_mean", "moving"
"""The mean of moving reports, and their number, which comes with it."""
CDF = "cdf"
"""The whole distribution, from which percentiles are read."""


@dataclass(frozen=True)
class Columns:
    """One statistic over all cells, (C,) each, or (C, K), in released units; ``low``/``high`` before clamping."""

    raw: FloatArray
    value: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    top: float

    @classmethod
    def rounded(
        cls,
        name: str,
        estimate: FloatArray,
        scale: FloatArray,
        interval: tuple[FloatArray, FloatArray],
        top: float,
        within: tuple[float | FloatArray, float | FloatArray] | None = None,
    ) -> Self:
        """Statistic ``name``, rounded to its granularity; the interval is widened by the possible rounding error.

        The value is clamped to ``within``, by default [0, ``top``].
        """
        raw, step = np.round(estimate, DECIMALS[name]), 0.5 * 10.0 ** -DECIMALS[name]
        return cls(raw, np.clip(raw, *(within or (0.0, top))), scale, interval[0] - step, interval[1] + step, top)

    def crowds(self, lower: float | FloatArray, upper: float | FloatArray) -> BoolArray:
        """Whether each released value, (C,), crowds the ``upper`` end of its range: it is in the upper half, and its
        interval reaches the end. Then true speeds may be higher. A rule on what is released and on public bounds, so it
        costs no budget.
        """
        return (self.high >= upper) & (self.raw >= (lower + upper) / 2)


@dataclass(frozen=True)
class Derived:
    """A post-processed statistic over all cells, shape (C,) each. ``interval``: its ends, or None."""

    method: str
    value: FloatArray
    interval: tuple[FloatArray, FloatArray] | None = None


Body = dict[str, Any]

_LIKE_A_VALUE = ("mean", "typical", *PERCENTS)
"""Statistics that move with the values; variances and numbers of events and users do not."""
_DIGITS = 6


def unit_of(name: str, value: ValueTerms) -> str:
    """The unit of statistic ``name``."""
    if name in ("events", "users", MOVING):
        return "1"
    return f"({value.unit})^2" if name == "variance" else value.unit


def from_lower_bound(body: Body, value: ValueTerms) -> Body:
    """A body whose values count from the lower bound, as it is published."""
    if not value.lower_quanta:
        return body
    moved = {name: _moved(part, value.lower) for name, part in body.items() if name in _LIKE_A_VALUE}
    if "post_processed" in body:
        moved["post_processed"] = {
            name: _moved(part, value.lower) if name in _LIKE_A_VALUE else part
            for name, part in body["post_processed"].items()
        }
    if "clipping" in body:
        ends = {name: _moved(part, value.lower) for name, part in body["clipping"].items() if name == "stretched"}
        moved["clipping"] = _moved(body["clipping"], value.lower) | ends
    if "cdf" in body:
        moved["cdf"] = body["cdf"] | {"at": [_sum(end, value.lower) for end in body["cdf"]["at"]]}
    return body | moved


def _moved(part: Body, lower: float) -> Body:
    ends = {"interval": [_sum(end, lower) for end in part["interval"]]} if "interval" in part else {}
    return part | {key: _sum(part[key], lower) for key in ("value", "raw", "lower", "upper") if key in part} | ends


def _sum(number: float, lower: float) -> float:
    return round(number + lower, _DIGITS)


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
