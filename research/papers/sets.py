"""Generates point sets like those of the papers, because none of the papers publishes its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.int64]


def gaussian(points: int, side: int, sigma: float, centres: int, seed: int) -> Grid:
    """[H]'s synthetic sets: ``points`` around uniform ``centres`` with standard deviation ``sigma`` cells, side ×
    side."""
    rng = np.random.default_rng(seed)
    middle = rng.uniform(0.2, 0.8, (centres, 2)) * side
    where = middle[rng.integers(0, centres, points)] + rng.normal(0, sigma, (points, 2))
    inside = ((where >= 0) & (where < side)).all(axis=1)
    return _counted(where[inside], side)


def population(points: int, side: int, seed: int, *, towns: int = 600, concentration: float = 1.1) -> Grid:
    """Towns of power-law size over the whole box: few large ones, many small ones, a tenth of the points in between."""
    rng = np.random.default_rng(seed)
    size = np.arange(1, towns + 1) ** -concentration
    centres = rng.uniform(0, side, (towns, 2))
    spread = side * 0.02 * (size / size[0]) ** 0.35
    town = rng.choice(towns, points, p=size / size.sum())
    where = centres[town] + rng.normal(0, 1, (points, 2)) * spread[town, None]
    rural = rng.random(points) < 0.1
    where[rural] = rng.uniform(0, side, (int(rural.sum()), 2))
    return _counted(np.clip(where, 0, side - 1e-6), side)


def thinned(counts: Grid, points: int, seed: int) -> Grid:
    """``points`` of the points of a grid, chosen at random."""
    rng = np.random.default_rng(seed)
    chosen = rng.multivariate_hypergeometric(counts.ravel(), points, method="marginals")
    return np.asarray(chosen.reshape(counts.shape), dtype=np.int64)


def _counted(where: npt.NDArray[np.float64], side: int) -> Grid:
    x, y = where.astype(np.int64).T
    return np.bincount(x * side + y, minlength=side * side).reshape(side, side).astype(np.int64)
