"""Range queries in cell units, exact answers by an integral image, and how far queries overlap a grid.

A query is the half-open rectangle [x0, x1) × [y0, y1); x runs along axis 0 of the count grid, y along axis 1. Edges may
lie inside cells: a cell counts in proportion to the area covered.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import ParameterError
from dpcore.spatial.domain import Domain, IntGrid

SHORT = 64
"""Columns from which on rows are added up faster one by one than by a sum along the first axis."""


class QueryError(ParameterError):
    """A query that is inverted, not finite, or reaches outside the public box."""


@dataclass(frozen=True)
class Rectangles:
    """Q queries as columns of shape (Q,), in cell units.

    Raises :class:`QueryError` for unequal lengths, values that are not finite, or inverted sides. An empty rectangle
    (x0 = x1 or y0 = y1) is a query whose answer is 0.
    """

    x0: FloatArray
    x1: FloatArray
    y0: FloatArray
    y1: FloatArray

    def __post_init__(self) -> None:
        columns = []
        for name in ("x0", "x1", "y0", "y1"):
            column = np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64))
            object.__setattr__(self, name, column)
            columns.append(column)
        if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
            raise QueryError("query columns x0, x1, y0, y1 differ in length; give one value of each per query")
        if not all(np.isfinite(column).all() for column in columns):
            raise QueryError("a query holds NaN or an infinite bound; give finite bounds")
        inverted = np.flatnonzero((self.x0 > self.x1) | (self.y0 > self.y1))
        if len(inverted):
            first = int(inverted[0])
            raise QueryError(
                f"query {first} is inverted: x {self.x0[first]}..{self.x1[first]}, "
                f"y {self.y0[first]}..{self.y1[first]}; give x0 <= x1 and y0 <= y1"
            )

    def __len__(self) -> int:
        return len(self.x0)

    @classmethod
    def of_cells(cls, inclusive: npt.ArrayLike) -> Self:
        """Rectangles from rows of inclusive cell indices x0, x1, y0, y1, shape (Q, 4)."""
        cells = np.asarray(inclusive, dtype=np.float64).reshape(-1, 4)
        return cls(cells[:, 0], cells[:, 1] + 1, cells[:, 2], cells[:, 3] + 1)

    @classmethod
    def of_boxes(cls, domain: Domain, boxes: npt.ArrayLike) -> Self:
        """From rows of south, west, north, east in the units of ``domain``, shape (Q, 4); refused outside the box."""
        rows = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        x0, y0 = domain.cell_coordinates(rows[:, 0], rows[:, 1])
        x1, y1 = domain.cell_coordinates(rows[:, 2], rows[:, 3])
        # A bound equal to the box's may miss it by an ulp after scaling.
        x0, x1 = (_snap(column, domain.rows) for column in (x0, x1))
        y0, y1 = (_snap(column, domain.columns) for column in (y0, y1))
        rectangles = cls(x0, x1, y0, y1)
        rectangles.require_inside(domain)
        return rectangles

    def require_inside(self, domain: Domain) -> None:
        """Raise :class:`QueryError` if a query reaches outside the grid of ``domain``."""
        low = min(self.x0.min(initial=0.0), self.y0.min(initial=0.0))
        if low < 0 or self.x1.max(initial=0.0) > domain.rows or self.y1.max(initial=0.0) > domain.columns:
            raise QueryError(
                f"a query reaches outside the public box of {domain.rows} × {domain.columns} cells; cut it to the box"
            )

    @cached_property
    def whole_edges(self) -> tuple[IntGrid, ...] | None:
        """x0, x1, y0, y1 as integers if every edge lies on a cell boundary, computed once for all histograms."""
        columns = self.x0, self.x1, self.y0, self.y1
        if not all(np.array_equal(column, np.floor(column)) for column in columns):
            return None
        return tuple(column.astype(np.int64) for column in columns)

    def in_blocks(self, x_edges: IntGrid, y_edges: IntGrid) -> "Rectangles":
        """Measured in the blocks that the edges make instead of cells: 2.5 lies in the middle of the third block."""
        x, y = np.arange(len(x_edges)), np.arange(len(y_edges))
        along_x = (np.interp(side, x_edges, x) for side in (self.x0, self.x1))
        return Rectangles(*along_x, *(np.interp(side, y_edges, y) for side in (self.y0, self.y1)))

    def part(self, chosen: slice) -> "Rectangles":
        """Some of the queries."""
        return Rectangles(self.x0[chosen], self.x1[chosen], self.y0[chosen], self.y1[chosen])

    def areas(self) -> FloatArray:
        """Areas in cells, shape (Q,)."""
        return (self.x1 - self.x0) * (self.y1 - self.y0)


def _snap(column: FloatArray, cells: int) -> FloatArray:
    for bound in (0.0, float(cells)):
        column = np.where(np.abs(column - bound) < 1e-9 * max(cells, 1), bound, column)
    return column


def integral_image(values: IntArray | FloatArray) -> IntArray | FloatArray:
    """Sums over [0, i) × [0, j), shape (rows+1, columns+1); integers stay integers."""
    image = np.zeros((values.shape[0] + 1, values.shape[1] + 1), dtype=values.dtype)
    image[1:, 1:] = values
    sum_along_both(image[1:, 1:])
    return image


def sum_along_both(table: npt.NDArray[Any]) -> None:
    """Replace ``table`` (n, m) by its running sums along both axes."""
    if table.shape[1] < SHORT:
        np.cumsum(table, axis=0, out=table)
    else:
        for before, row in itertools.pairwise(table):
            row += before
    np.cumsum(table, axis=1, out=table)


def answer(image: IntArray | FloatArray, queries: Rectangles) -> FloatArray:
    """Answers from an integral image, shape (Q,); exact for edges on cell boundaries, bilinear inside cells."""
    if queries.whole_edges is not None:
        x0, x1, y0, y1 = queries.whole_edges
        exact = image[x1, y1] - image[x0, y1] - image[x1, y0] + image[x0, y0]
        return np.asarray(exact, dtype=np.float64)
    return (
        _corner(image, queries.x1, queries.y1)
        - _corner(image, queries.x0, queries.y1)
        - _corner(image, queries.x1, queries.y0)
        + _corner(image, queries.x0, queries.y0)
    )


def _corner(image: IntArray | FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    i = np.minimum(x.astype(np.int64), image.shape[0] - 2)
    j = np.minimum(y.astype(np.int64), image.shape[1] - 2)
    fx, fy = x - i, y - j
    low = image[i, j] * (1 - fy) + image[i, j + 1] * fy
    high = image[i + 1, j] * (1 - fy) + image[i + 1, j + 1] * fy
    return np.asarray(low * (1 - fx) + high * fx, dtype=np.float64)


def axis_overlaps(edges: IntGrid, low: FloatArray, high: FloatArray) -> FloatArray:
    """Share of each part of one axis that [low, high) covers, shape (Q, parts), for edges of shape (parts+1,)."""
    covered = np.minimum(high[:, None], edges[1:]) - np.maximum(low[:, None], edges[:-1])
    return np.asarray(np.maximum(covered, 0.0) / np.diff(edges), dtype=np.float64)


@dataclass(frozen=True)
class OverlapNorms:
    """‖α‖₁ and ‖α‖₂² per query, shape (Q,), α the shares of a grid's cells that the query covers."""

    l1: FloatArray
    l2_squared: FloatArray

    def noise_term(self, scale: float) -> FloatArray:
        """min(λ‖α‖₁, √2·λ‖α‖₂), (Q,): at least the mean size of an answer's noise, ``scale`` λ in each cell."""
        return np.minimum(scale * self.l1, math.sqrt(2) * scale * np.sqrt(self.l2_squared))


def overlap_norms(queries: Rectangles, x_edges: IntGrid, y_edges: IntGrid) -> OverlapNorms:
    """Norms of the overlap of each query with the grid between the given edges; products of per-axis sums."""
    ox = axis_overlaps(x_edges, queries.x0, queries.x1)
    oy = axis_overlaps(y_edges, queries.y0, queries.y1)
    return OverlapNorms(ox.sum(axis=1) * oy.sum(axis=1), (ox**2).sum(axis=1) * (oy**2).sum(axis=1))
