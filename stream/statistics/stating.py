"""How messages state values: in their unit, from the lower bound on. Inside, values count from that bound. Pure."""

from __future__ import annotations

from typing import Any

from stream.statistics.columns import MOVING, PERCENTS
from stream.terms import ValueTerms

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
