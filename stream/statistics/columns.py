"""Columns of released statistics over the cells of a window, their granularity, names and units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray
from stream.terms import ValueTerms

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
    ) -> Columns:
        """Statistic ``name``, rounded to its granularity; the interval is widened by the possible rounding error.

        The value is clamped to ``within``, by default [0, ``top``].
        """
        raw, step = np.round(estimate, DECIMALS[name]), 0.5 * 10.0 ** -DECIMALS[name]
        return cls(raw, np.clip(raw, *(within or (0.0, top))), scale, interval[0] - step, interval[1] + step, top)

    def crowds(self, lower: float | FloatArray, upper: float | FloatArray) -> npt.NDArray[np.bool_]:
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
