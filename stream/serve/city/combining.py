"""The released statistics of several cells together: mean speed and events, with the error of the noise. Pure.

A combination of released numbers is post-processing and costs no budget. The mean is that of the released means as they are
(raw), weighted by the released numbers of events. Cells carry independent noise, so variances add. The error is that of the
noise in the means; under "participation", where the numbers of events are noisy, too, they are taken as they were released.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

NORMAL, LAPLACE = 1.96, 2.12
"""Standard deviations within which 95 % of normal noise lies, and of any sum of independent Laplace noise at least 95 %."""


class _Estimate(msgspec.Struct):
    value: float
    raw: float
    scale: float
    interval: tuple[float, float]


class CellNumbers(msgspec.Struct):
    """What is read of a released cell."""

    cell: str
    status: str
    events: int | _Estimate
    accounting: str | None = None
    mean: _Estimate | None = None
    excludes: list[str] = []


def numbers_of(values: Iterable[bytes]) -> list[CellNumbers]:
    """Released cells, as far as they are needed here."""
    decoder = msgspec.json.Decoder(CellNumbers)
    return [decoder.decode(value) for value in values]


def combined(cells: Sequence[CellNumbers], upper: float) -> dict[str, Any]:
    """Events and mean speed (km/h, clipped to [0, ``upper``]) of the cells together, each with its 95 % interval.

    ``mean`` is None where no cell is published. The interval of events is None where they are exact.
    """
    published = [cell for cell in cells if cell.status == "published" and cell.mean is not None]
    return {
        "cells": len(cells),
        "published": len(published),
        "events": _events(cells),
        "mean": _mean(published, upper),
    }


def _events(cells: Sequence[CellNumbers]) -> dict[str, Any]:
    total, variance = 0.0, 0.0
    for cell in cells:
        if isinstance(cell.events, _Estimate):
            total += cell.events.raw
            variance += _variance(cell.events, cell)
        else:
            total += cell.events
    half = _quantile(cells) * math.sqrt(variance)
    interval = [max(total - half, 0.0), max(total + half, 0.0)] if variance else None
    return {"value": max(total, 0.0), "interval": interval}


def _mean(published: Sequence[CellNumbers], upper: float) -> dict[str, Any] | None:
    weights, total, variance = 0.0, 0.0, 0.0
    for cell in published:
        assert cell.mean is not None, "only cells with a mean are given"
        weight = max(cell.events.value, 0.0) if isinstance(cell.events, _Estimate) else float(cell.events)
        weights += weight
        total += weight * cell.mean.raw
        variance += weight**2 * _variance(cell.mean, cell)
    if not weights:
        return None
    raw, half = total / weights, _quantile(published) * math.sqrt(variance) / weights

    def clipped(number: float) -> float:
        return min(max(number, 0.0), upper)

    interval = [clipped(raw - half), clipped(raw + half)]
    return {"value": clipped(raw), "raw": raw, "interval": interval, "unit": "km/h"}


def _variance(estimate: _Estimate, cell: CellNumbers) -> float:
    """Variance of the noise: of its scale or, where a mean is a ratio of noisy numbers and has a wider interval, of that."""
    low, high = estimate.interval
    by_scale = estimate.scale if _gaussian(cell) else math.sqrt(2) * estimate.scale
    return max(by_scale, (high - low) / (2 * (NORMAL if _gaussian(cell) else LAPLACE))) ** 2


def _gaussian(cell: CellNumbers) -> bool:
    return cell.accounting == "zcdp"


def _quantile(cells: Sequence[CellNumbers]) -> float:
    return NORMAL if all(map(_gaussian, cells)) else LAPLACE
