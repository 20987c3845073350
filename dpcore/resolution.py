"""Adaptive resolution: pool sparse cells into their parents until the predicted interval of each region is narrow
enough.

Relation "values" only: which cells are pooled is a function of public counts. A region is what remains of a parent
after those of its cells that can stand alone are taken out. Every event belongs to exactly one region.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.contributions import Counts
from dpcore.errors import ParameterError


@dataclass(frozen=True)
class Resolution:
    """``region``: shape (C,), identifier of the region of each finest cell; ``level``: (C,), 0 = the cell itself.

    ``counts``: the same samples by region. ``half_width``: predicted, per region of ``counts.cells``.
    """

    region: IdArray
    level: IntArray
    counts: Counts
    half_width: FloatArray


def choose_resolution(
    counts: Counts, parents: Sequence[IdArray], predict: Callable[[Counts], FloatArray], *, target: float
) -> Resolution:
    """Pool, level by level, the regions whose predicted half width exceeds ``target`` into their parents.

    ``parents[k]``: shape (C,), identifier of each finest cell's ancestor k + 1 levels up; identifiers of different
    levels must differ (H3's do). ``predict``: counts by region -> half width of each region's interval, in the unit of
    ``target``. It is called again after every level, because pooling frees budget. Relation "values". Raises
    :class:`ParameterError`.
    """
    if not target > 0:
        raise ParameterError(f"target half width {target} is not above 0; give a positive one")
    if any(len(column) != counts.n_cells for column in parents):
        raise ParameterError(f"every parent column must have one entry for each of the {counts.n_cells} cells")
    region, level = counts.cells.copy(), np.zeros(counts.n_cells, dtype=np.int64)
    pooled = counts
    half_width = predict(pooled)
    for height, parent in enumerate(parents, start=1):
        wide = (half_width > target)[np.searchsorted(pooled.cells, region)]
        if not wide.any():
            break
        region, level = np.where(wide, parent, region), np.where(wide, height, level)
        pooled = regroup(counts, region)
        half_width = predict(pooled)
    return Resolution(region, level, pooled, half_width)


def regroup(counts: Counts, region: IdArray) -> Counts:
    """``counts`` with cell g renamed ``region[g]``; samples of a user in cells of one region add up."""
    cells, new = np.unique(region, return_inverse=True)
    key = new[counts.pair_cell].astype(np.int64) * counts.n_users + counts.pair_user
    pairs, at = np.unique(key, return_inverse=True)
    samples = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(samples, at, counts.samples)
    return Counts(cells, counts.users, pairs // counts.n_users, pairs % counts.n_users, samples)
