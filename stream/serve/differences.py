"""Which differences of a window noise does not explain, although there are many of them. Pure.

Each cell has a chance: a bound on the probability that noise alone makes a difference as large as its own, if the exact
values are equal. Of the cells of a window, those are clear whose chances Benjamini and Hochberg (1995) choose: the
share of the clear ones without a true difference, 0 where none is clear, is at most :data:`FALSE_SHARE` on average over
windows; where no cell differs, at most that share of windows has a clear cell. It needs independent noise, which
released values have, and modelled ones do not: their errors depend on each other and do not average out over windows.

A clear difference was chosen because it came out large, and noise was part of that. So its error is that of the level
at which it was chosen (Benjamini and Yekutieli 2005, theorem 1): the share of the clear ones whose error does not hold
the true difference, 0 where none is clear, is at most :data:`FALSE_SHARE` on average over windows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import h3
import numpy as np
from scipy.special import erfc

from dpcore.arrays import BoolArray, FloatArray
from stream.messages.cells import Cell, Estimate, Number, is_anybody
from stream.serve.city.combining import LAPLACE, NORMAL, deviations_of

FALSE_SHARE = 0.05
STATISTICS = ("mean", "moving_mean", "p15", "p50", "p85")
"""Of which values are compared with those of another day."""
Missing = Literal["none", "suppressed", "area", "settings", "statistic", "uncertain"]
_HALVINGS = 12
"""Of the range in which the error of a clear difference is sought: to 2⁻¹² of that difference."""
_NONE = math.nan, math.nan
_ALIKE = 1e-3
"""Two scales of Laplace noise that differ by a smaller share are taken as the larger of them."""


class Values(NamedTuple):
    """Columns (C,): values with the ends of their 95 % intervals, NaN where a cell has none; at least this standard
    deviation of their noise; whether it is Laplace noise, else normal; whether noise carried value and interval out of
    the possible range, so that nothing is left but a bound."""

    value: FloatArray
    low: FloatArray
    high: FloatArray
    deviation: FloatArray
    laplace: BoolArray
    lost: BoolArray

    @classmethod
    def exact(cls, value: FloatArray) -> Self:
        """Values without noise."""
        none = np.zeros(len(value), dtype=bool)
        return cls(value, value, value, np.zeros(len(value)), none, none)

    def towards(self, to: FloatArray) -> FloatArray:
        """Standard deviation of the noise of each, (C,): by the side of its interval that faces where ``to`` points, or
        by its scale where that is wider."""
        side = np.where(to < 0, self.value - self.low, self.high - self.value)
        return np.maximum(self.deviation, side / np.where(self.laplace, LAPLACE, NORMAL))


class Verdicts(NamedTuple):
    """(C,): errors of differences in their unit, NaN where there is nothing to compare: 95 %, or of the level at which
    a clear one was chosen; and whether noise does not explain the difference."""

    error: FloatArray
    clear: BoolArray


def verdicts(now: Values, other: Values) -> Verdicts:
    """Judges the differences of a window's cells.

    A cell counts also where it has nothing to compare with, which may depend on noise: that makes the others no more
    clear.
    """
    difference = now.value - other.value
    size, laplace = np.abs(difference), now.laplace | other.laplace
    noise = now.towards(-difference), other.towards(difference)
    error = np.where(laplace, LAPLACE, NORMAL) * np.hypot(*noise)
    beyond = (size > error) & ~now.lost & ~other.lost
    chances = np.where(beyond, tail_of(size, *noise, laplace), 1.0)
    level = clear_level(chances[~np.isnan(difference)], len(chances))
    clear: BoolArray = beyond & (chances <= level)
    least, most = error[clear], size[clear]
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        is_within = tail_of(middle, noise[0][clear], noise[1][clear], laplace[clear]) > level
        least, most = np.where(is_within, middle, least), np.where(is_within, most, middle)
    error[clear] = most
    return Verdicts(error, clear)


def clear_level(chances: FloatArray, cells: int) -> float:
    """The chance up to which differences are clear, given those of a window of so many cells; -1 where none is."""
    ascending = np.sort(chances)
    fit = np.flatnonzero(ascending <= FALSE_SHARE / max(cells, 1) * np.arange(1, len(ascending) + 1))
    return FALSE_SHARE / cells * (int(fit[-1]) + 1) if len(fit) else -1.0


def tail_of(size: FloatArray, one: FloatArray, other: FloatArray, laplace: BoolArray) -> FloatArray:
    """Bound on the chance that noise of these standard deviations makes two values differ by more than ``size``.

    Two values with Laplace noise: exact. Normal noise: exact. With one of each, a difference beyond its 95 % error is
    rarer than with Laplace noise of both (the ratio of the tails was computed for every share of the variance up to 12
    deviations). Values without noise that differ at all do so for certain.
    """
    wide, narrow = np.maximum(one, other), np.minimum(one, other)
    noisy = wide > 0
    normal = erfc(size / np.where(noisy, np.hypot(one, other), 1.0) / math.sqrt(2))
    if not laplace.any():
        return np.where(noisy, normal, 0.0)
    s = np.where(noisy, wide, 1.0) / math.sqrt(2)
    ratio = np.where(noisy, narrow / np.where(noisy, wide, 1.0), 0.0)
    alike = ratio > 1 - _ALIKE
    square = np.where(alike, 0.0, ratio) ** 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        second = np.where(square > 0, square * np.exp(-size / (s * ratio)), 0.0)
        both = np.where(alike, np.exp(-size / s) * (1 + size / (2 * s)), (np.exp(-size / s) - second) / (1 - square))
    return np.where(noisy, np.where(laplace, both, normal), 0.0)


def _number(cell: Cell, statistic: str) -> Number | None:
    """The released number; None where the cell was not published, or without it."""
    number: Number | None = getattr(cell, statistic)
    return number if cell.status == "published" else None


def _settings(cell: Cell) -> tuple[str, str, bool]:
    """Equal where two windows measured the same. Ranges of a cell's own follow its traffic, so they differ from window
    to window; what counts is whether there are such."""
    return cell.relation, cell.weight, cell.clipping is not None


def _released(cells: Sequence[Cell | None], statistic: str) -> Values:
    numbers = [None if cell is None else _number(cell, statistic) for cell in cells]
    laplace = np.array([cell is not None and not cell.is_gaussian for cell in cells], dtype=bool)
    scale = np.array([math.nan if one is None else one.scale for one in numbers])
    return _values(numbers, scale, laplace)


def _values(numbers: Sequence[Number | Estimate | None], scale: FloatArray, laplace: BoolArray) -> Values:
    value = np.array([math.nan if one is None else one.value for one in numbers])
    ends = [_NONE if one is None or one.interval is None else one.interval for one in numbers]
    low, high = np.array(ends, dtype=float).reshape(-1, 2).T
    return Values(value, low, high, deviations_of(low, high, scale, laplace), laplace, (low == high) & (scale > 0))


def from_typical(cells: Sequence[Cell]) -> dict[str, float]:
    """By cell the error of its deviation from the typical mean, of those that are clear.

    Value and 95 % interval are those of the message (``post_processed.deviation``), whose errors are taken as normal.
    Every cell with a leading mean counts.
    """
    counted = [cell for cell in cells if cell.mean is not None and cell.status == "published" and is_anybody(cell)]
    none = np.zeros(len(counted))
    deviated = [cell.post_processed.deviation if cell.post_processed else None for cell in counted]
    error, clear = verdicts(_values(deviated, none, none > 0), Values.exact(none))
    return {counted[at].cell: round(float(error[at]), 3) for at in np.flatnonzero(clear).tolist()}


def from_schedule(cells: Sequence[Cell], speeds: Mapping[str, float], upper: float) -> dict[str, tuple[float, bool]]:
    """By cell the error of its released mean against a scheduled speed, which has no noise, and whether it is clear.

    Speeds above the bound of a cell, else ``upper``, are measured as the bound: a higher scheduled speed is compared
    with nothing.
    """
    measured = [cell for cell in cells if _number(cell, "mean")]
    bounds = np.array([upper if cell.clipping is None else cell.clipping.upper for cell in measured])
    scheduled = np.array([speeds.get(cell.cell, math.nan) for cell in measured])
    judged = verdicts(_released(measured, "mean"), Values.exact(np.where(scheduled > bounds, np.nan, scheduled)))
    rows = zip(measured, judged.error.tolist(), judged.clear.tolist(), strict=True)
    return {cell.cell: (round(error, 3), clear) for cell, error, clear in rows if not math.isnan(error)}


def beside(here: Sequence[Cell], there: Sequence[Cell], statistic: str) -> dict[str, list[Any]]:
    """Columns of the cells that have a released ``statistic``, with that of another window, or why it is missing."""
    cells, others = [cell for cell in here if _number(cell, statistic)], {cell.cell: cell for cell in there}
    sharing = _sharing(cells, others)
    beside = [others.get(cell.cell) for cell in cells]
    missing = [_missing(cell, one, statistic, sharing) for cell, one in zip(cells, beside, strict=True)]
    known = [one if why is None else None for one, why in zip(beside, missing, strict=True)]
    then = _released(known, statistic)
    error, clear = verdicts(_released(cells, statistic), then)
    return {
        "cell": [cell.cell for cell in cells],
        "missing": missing,
        "value": then.value.tolist(),
        "low": then.low.tolist(),
        "high": then.high.tolist(),
        "at_bound": [one is not None and getattr(one, statistic).at_bound for one in known],
        "users": [
            one.users if one is not None and why == "suppressed" and isinstance(one.users, int) else None
            for one, why in zip(beside, missing, strict=True)
        ],
        "error": np.round(error, 3).tolist(),
        "clear": clear.tolist(),
    }


def _missing(cell: Cell, other: Cell | None, statistic: str, sharing: set[str]) -> Missing | None:
    """Why a cell has no value of the other window that can be compared with."""
    if other is None:
        return "area" if cell.cell in sharing else "none"
    if sorted(cell.excludes) != sorted(other.excludes):
        return "area"
    if other.status != "published":
        return "suppressed"
    if _settings(cell) != _settings(other):
        return "settings"
    number = _number(other, statistic)
    if number is None:
        return "statistic"
    low, high = number.interval
    is_known = number.value > 0 and high - low <= number.value and (low != high or not number.scale)
    return None if is_known else "uncertain"


def _sharing(here: Sequence[Cell], others: Mapping[str, Cell]) -> set[str]:
    """Cells that are not in the other window but share ground with its cells, of other sizes."""
    alone = {cell.cell: cell for cell in here if cell.cell not in others}
    levels, sizes = ({h3.get_resolution(cell) for cell in cells} for cells in (alone, others if alone else ()))
    shared = {
        cell
        for cell in alone
        for size in sizes
        if size < h3.get_resolution(cell) and h3.cell_to_parent(cell, size) in others
    }
    for other in others:
        for parent in (h3.cell_to_parent(other, level) for level in levels if level < h3.get_resolution(other)):
            if parent in alone and not any(_is_in(other, apart) for apart in alone[parent].excludes):
                shared.add(parent)
    return shared


def _is_in(cell: str, area: str) -> bool:
    level = h3.get_resolution(area)
    return bool(level <= h3.get_resolution(cell) and h3.cell_to_parent(cell, level) == area)
