"""The released statistics of several cells together: the mean and how many, with the error of the noise. Pure.

A combination of released numbers is post-processing and costs no budget. Cells carry independent noise, so variances
add.

Relation "values": the number of events is exact and a mean's noise does not depend on it, so the mean is that of the
released means as they are (raw), weighted by events. Relation "participation": a mean is a ratio of noisy numbers,
which is biased towards the middle of its range where few users were; weighted by its noisy count, an empty cell would
pull the area there. So the ratios are undone: with l, w the lower end and width of the cell's range, n its raw count
and r its raw mean, the noisy sum of speeds is s = (l + w/2)·n + (r − l − w/2)·max(n, 1), as :mod:`dpcore.bernstein`
took the ratio. The mean is Σs/Σn, its interval Fieller's: all m with (Σs − m·Σn)² <= z²·Var(noise of Σs − m·Σn). Where
Σn is not clearly above 0 these are no interval, and there is no mean.

What a model made of the cells' means (:mod:`stream.messages.cells`) has errors that may depend on each other, so
they are not averaged out: the weighted mean of the estimates has the weighted means of their ends as its interval.
Where that is narrower than the interval of the released means together, it leads; else these do.

Where many of the reports are in cells at the bound of speeds (``at_bound``), the mean together is to be read as "or
more", too.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np

from dpcore.arrays import BoolArray, FloatArray
from dpcore.bernstein import MEAN_OF
from dpcore.cdf import ONE_SIDED
from stream.config.value import QUANTUM
from stream.messages.cells import RELEASED, Cell, Clipping, Number, estimates_of
from stream.serve.city.areas import Area

NORMAL, LAPLACE = 1.96, ONE_SIDED
"""Standard deviations within which 95 % of normal noise lies, of sums of Laplace noise at least 95 %."""

_COUNTED, _MEASURED = 0.05, 0.0005
"""Rounding errors of a released count and of a released mean, at most."""


CROWDED = 0.1
"""Share of the reports, or of a way, in cells at the bound from which on what is together is at the bound: where it is
less, speeds that are 20 km/h above the bound add at most 2 km/h."""


def inside(area: Area, cells: Sequence[Cell]) -> list[Cell]:
    """Those of the released cells that belong to an area."""
    belonging = set(area.holds((cell.cell, cell.excludes) for cell in cells))
    return [cell for cell in cells if cell.cell in belonging]


def combined(cells: Sequence[Cell], within: Clipping) -> dict[str, Any]:
    """Events or users, and mean (in the unit of ``within``, clipped to it) of the cells together, each with its 95 %
    interval.

    ``mean`` is None where no cell is published, and where so few may have been there that the noise leaves the mean
    open. ``estimate`` is the leading mean, with its ``method``; None where nobody is estimated. Of ``events`` and
    ``users`` that is None by which the means are not weighted. The interval of exact events is None. Both means have
    ``at_bound``, which is true, where at least :data:`CROWDED` of the weights are in cells at the bound.
    """
    published = [cell for cell in cells if cell.status == "published" and cell.mean is not None]
    noisy = any(isinstance(cell.counted, Number) for cell in published)
    by_users = any(cell.events is None for cell in cells)
    count = _sum(cells, [cell.counted for cell in cells])
    mean = (_mean_of_ratios if noisy else _mean)(published, within)
    leading = _leading(cells, mean, within.unit)
    if is_crowded((_weight(cell), cell.mean is not None and cell.mean.at_bound) for cell in published):
        mean, leading = (one and one | {"at_bound": True} for one in (mean, leading))
    return {
        "cells": len(cells),
        "published": len(published),
        "events": None if by_users else count,
        "users": count if by_users else None,
        "mean": mean,
        "estimate": leading,
    }


def is_crowded(parts: Iterable[tuple[float, bool]]) -> bool:
    """Whether parts at the bound have at least :data:`CROWDED` of the weights; each: (weight, at the bound)."""
    weights = {False: 0.0, True: 0.0}
    for weight, at_bound in parts:
        weights[at_bound] += weight
    return weights[True] > 0 and weights[True] >= CROWDED * sum(weights.values())


def _leading(cells: Sequence[Cell], mean: dict[str, Any] | None, unit: str) -> dict[str, Any] | None:
    """The mean of the cells' estimates or, where its interval is narrower, that of their released means."""
    led = [(_weight(cell), estimates.mean) for cell in cells if (estimates := estimates_of(cell))]
    estimated = [(weight, one, one.interval) for weight, one in led if one and one.interval]
    weights = sum(weight for weight, _, _ in estimated)
    if not weights:
        return None
    parts = [(weight / weights, one, ends) for weight, one, ends in estimated]
    low, high = (sum(share * ends[end] for share, _, ends in parts) for end in (0, 1))
    if mean is not None and mean["interval"][1] - mean["interval"][0] <= high - low:
        return {name: mean[name] for name in ("value", "interval", "unit")} | {"method": RELEASED}
    value = sum(share * one.value for share, one, _ in parts)
    return {"value": value, "interval": [low, high], "unit": unit, "method": parts[0][1].method}


def _weight(cell: Cell) -> float:
    return float(cell.counted) if isinstance(cell.counted, int) else cell.counted.value


def totals(cells: Sequence[Cell]) -> dict[str, dict[str, Any] | None]:
    """Events and users of the cells together, as of :func:`combined`; None where no cell has such a number. Who is in
    several cells counts in each."""
    events = [cell for cell in cells if cell.events is not None]
    return {
        "events": _sum(events, [cell.counted for cell in events]) if events else None,
        "users": _sum(cells, [cell.users for cell in cells]) if cells else None,
    }


def deviations_of(low: FloatArray, high: FloatArray, scale: FloatArray, laplace: BoolArray) -> FloatArray:
    """Standard deviations (N,) of noise: of its scale or, where its 95 % interval says more, of that. An interval is
    wider because of rounding, and of a mean that is a ratio of noisy numbers."""
    by_interval = (high - low) / (2 * np.where(laplace, LAPLACE, NORMAL))
    deviation: FloatArray = np.maximum(by_interval, scale * np.where(laplace, math.sqrt(2), 1.0))
    return deviation


def _columns(cells: Sequence[Cell], numbers: Sequence[Number]) -> tuple[FloatArray, FloatArray]:
    """Of each cell a number as it was drawn, and the variance of its noise, (N,) both."""
    laplace = np.array([not cell.is_gaussian for cell in cells], dtype=bool)
    low, high = np.array([number.interval for number in numbers], dtype=float).reshape(-1, 2).T
    scale = np.array([number.scale for number in numbers], dtype=float)
    return np.array([number.raw for number in numbers]), deviations_of(low, high, scale, laplace) ** 2


def _sum(cells: Sequence[Cell], numbers: Sequence[int | Number]) -> dict[str, Any]:
    noisy = [isinstance(number, Number) for number in numbers]
    drawn, variances = _columns(list(compress(cells, noisy)), [one for one in numbers if isinstance(one, Number)])
    total = float(drawn.sum()) + sum(number for number in numbers if isinstance(number, int))
    half = _quantile(cells) * math.sqrt(variances.sum())
    interval = [max(total - half, 0.0), max(total + half, 0.0)] if half else None
    return {"value": max(total, 0.0), "interval": interval}


def _mean(published: Sequence[Cell], within: Clipping) -> dict[str, Any] | None:
    """Of means that are weighted by exact numbers of events."""
    weights = np.array([cell.counted for cell in published], dtype=float)
    drawn, variances = _columns(published, [cell.mean for cell in published if cell.mean is not None])
    if not weights.any():
        return None
    raw = float(weights @ drawn / weights.sum())
    half = _quantile(published) * math.sqrt(weights**2 @ variances) / float(weights.sum())
    return _stated(raw, raw - half, raw + half, within)


def _mean_of_ratios(published: Sequence[Cell], within: Clipping) -> dict[str, Any] | None:
    """Of means that are ratios of noisy numbers: the ratio of their totals."""
    form = MEAN_OF[2 if any(cell.variance is not None for cell in published) else 1]
    rows = [
        (number.raw, cell.deviation_of(number), cell.mean.raw, *(cell.clipping or within).of_shares(QUANTUM))
        for cell in published
        if isinstance(number := cell.counted, Number) and cell.mean is not None
    ]
    counts, deviations, means, lower, width = np.array(rows).T
    opened = [(cell.clipping and cell.clipping.stretched and cell.clipping.stretched.open) or 0.0 for cell in published]
    left, middle = float(np.square(counts * opened).sum()), lower + width / 2
    count, total = float(counts.sum()), float((middle * counts + (means - middle) * np.maximum(counts, 1.0)).sum())
    # The released sums have independent noise of one variance, which is that of the count divided among them.
    variances = deviations**2 / len(form) + _COUNTED**2 / 3
    parts = lower + width * form[:, None]
    square = _quantile(published) ** 2
    a = count**2 - square * len(form) * float(variances.sum())
    b = total * count - square * float((variances * parts).sum())
    c = total**2 - square * float((variances * parts**2).sum())
    if a <= 0 or count <= 0:
        return None
    root, raw, open_half = math.sqrt(max(b**2 - a * c, 0.0)), total / count, NORMAL * math.sqrt(left) / count
    low, high = (math.hypot(raw - (b + end) / a, open_half) for end in (-root, root))
    return _stated(raw, raw - low - _MEASURED, raw + high + _MEASURED, within)


def _stated(raw: float, low: float, high: float, within: Clipping) -> dict[str, Any]:
    value, low, high = (min(max(number, within.lower), within.upper) for number in (raw, low, high))
    return {"value": value, "raw": raw, "interval": [low, high], "unit": within.unit}


def _quantile(cells: Sequence[Cell]) -> float:
    return NORMAL if all(cell.is_gaussian for cell in cells) else LAPLACE
