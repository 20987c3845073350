"""Released spatial histograms: answer any rectangle with an interval, become JSON and come back.

A histogram is a partition of the count grid into rectangles with noisy counts. Answers take points to lie evenly inside
each; intervals do not (:mod:`dpcore.spatial.range_noise`).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from dpcore.arrays import BoolArray, FloatArray
from dpcore.errors import ParameterError
from dpcore.packing import MOST_LISTED, MOST_PACKED, packed
from dpcore.spatial.domain import Domain, IndexGrid, IntGrid
from dpcore.spatial.queries import Rectangles, answer, integral_image
from dpcore.spatial.range_noise import (
    Intervals,
    NoisySums,
    PartNoise,
    TreeNoise,
    between,
    haar_share,
    independent_tails,
    spread_tails,
)

GridNoise = Literal["independent", "haar"]
PAIRS_PER_CHUNK = 2**22
"""Overlaps of queries and parts that are computed at once."""


_HAIR = 1e-9
"""An edge nearer to a grid line than this, in cells or blocks, counts as lying on it."""


class HistogramError(ParameterError):
    """Parts that do not tile the grid, or a release document that is not a histogram."""


@dataclass(frozen=True)
class GridHistogram:
    """Counts of the blocks between ``x_edges`` and ``y_edges`` (cell units, from 0 to rows and columns).

    ``counts`` have shape (len(x_edges)-1, len(y_edges)-1), ``variances`` of the noise that shape or one number for
    all. ``noise``: "independent" draws, or "haar" for cells computed from Haar coefficients with independent draws;
    None if unknown. ``draws``: how many independent draws add up in a block, at most.
    """

    domain: Domain
    x_edges: IntGrid
    y_edges: IntGrid
    counts: FloatArray
    variances: FloatArray | float
    noise: GridNoise | None = "independent"
    draws: int = 1

    def __post_init__(self) -> None:
        for name, edges, cells in (("x", self.x_edges, self.domain.rows), ("y", self.y_edges, self.domain.columns)):
            if len(edges) < 2 or edges[0] != 0 or edges[-1] != cells or np.any(np.diff(edges) < 1):
                raise HistogramError(f"{name} edges must rise from 0 to {cells}; give the edges of a partition")
        if self.counts.shape != (len(self.x_edges) - 1, len(self.y_edges) - 1):
            raise HistogramError(f"counts of shape {self.counts.shape} do not match the edges; give one per block")

    @cached_property
    def _image(self) -> FloatArray:
        return np.asarray(integral_image(self.counts.astype(np.float64)), dtype=np.float64)

    def _in_blocks(self, rectangles: Rectangles) -> Rectangles:
        rectangles.require_inside(self.domain)
        return rectangles.in_blocks(self.x_edges, self.y_edges)

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Estimated counts, shape (Q,); raises ``QueryError`` outside the domain."""
        return answer(self._image, self._in_blocks(rectangles))

    def intervals(self, rectangles: Rectangles) -> Intervals | None:
        """95 % intervals of the exact counts; None without a known noise of one variance."""
        blocks = self._in_blocks(rectangles)
        if self.noise is None or isinstance(self.variances, np.ndarray):
            return None
        sides, covers = ((blocks.x0, blocks.x1), (blocks.y0, blocks.y1)), rectangles.areas() > 0
        inside = [(np.ceil(low - _HAIR), np.floor(high + _HAIR)) for low, high in sides]
        touched = [(np.floor(low + _HAIR), np.ceil(high - _HAIR)) for low, high in sides]
        return between(self._sums(self.variances, inside, covers), self._sums(self.variances, touched, covers))

    def _sums(self, variance: float, edges: list[tuple[FloatArray, FloatArray]], covers: BoolArray) -> NoisySums:
        """Sums of the whole blocks between edges along x and y, (Q,) each; of no block where the start is not before
        the end or the rectangle ``covers`` nothing.
        """
        (x0, x1), (y0, y1) = edges
        covers = covers & (x1 > x0) & (y1 > y0)
        x0, x1, y0, y1 = (np.where(covers, edge, 0.0) for edge in (x0, x1, y0, y1))
        counts = answer(self._image, Rectangles(x0, x1, y0, y1))
        low_x, high_x, low_y, high_y = (edge.astype(np.int64) for edge in (x0, x1, y0, y1))
        blocks = (high_x - low_x) * (high_y - low_y)
        if self.noise == "independent":
            return NoisySums(counts, blocks, independent_tails(blocks * self.draws, variance / self.draws))
        (rows, columns), one = self.counts.shape, (np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64))
        share = haar_share(rows, low_x, high_x) * haar_share(columns, low_y, high_y)
        of_one = haar_share(rows, *one) * haar_share(columns, *one)
        return NoisySums(counts, blocks, spread_tails(np.where(covers, share / of_one, 0.0) * variance))

    def to_release(self) -> dict[str, Any]:
        """``kind`` "grid" or "packed-grid": edges, counts in rows or packed, their variance and kind of noise."""
        many = isinstance(self.variances, np.ndarray)
        structure: dict[str, Any] = {
            "kind": "grid" if self._packed is None else "packed-grid",
            "x_edges": self.x_edges.tolist(),
            "y_edges": self.y_edges.tolist(),
            "counts": self._packed or _numbers(self.counts),
            "variances": _numbers(np.asarray(self.variances)) if many else float(self.variances),
        }
        if self.noise is not None:
            structure["noise"] = self.noise
        if self.draws > 1:
            structure["draws"] = self.draws
        return {"domain": self.domain.to_release(), "structure": structure}

    @cached_property
    def _packed(self) -> dict[str, Any] | None:
        """The counts as one text, where they are whole, many, and of independent noise; else None."""
        is_packed = self.noise == "independent" and self.counts.size > MOST_LISTED and isinstance(self.variances, float)
        return packed(self.counts) if is_packed and np.array_equal(self.counts, np.rint(self.counts)) else None

    def fitting(self) -> "GridHistogram":
        """The grid, with neighbouring blocks joined until its packed counts have at most :data:`MOST_PACKED`
        characters.

        Post-processing of what was drawn. Joined blocks have the noise of four; those at the last edges of an odd
        number of blocks have less, and intervals that hold more often: draws are symmetric and log-concave, so that a
        sum of more of them is more spread out.
        """
        if self._packed is None or len(self._packed["planes"]) <= MOST_PACKED:
            return self
        rows, columns = (np.arange(0, length, 2) for length in self.counts.shape)
        counts = np.add.reduceat(np.add.reduceat(self.counts, rows, axis=0), columns, axis=1)
        x_edges, y_edges = (np.append(edges[:-1:2], edges[-1:]) for edges in (self.x_edges, self.y_edges))
        variance, draws = 4 * float(self.variances), 4 * self.draws
        return GridHistogram(self.domain, x_edges, y_edges, counts, variance, self.noise, draws).fitting()


@dataclass(frozen=True)
class SparseReading:
    """Two more readings of the same draws, for relative error: ``counts`` (P,) ≥ 0, exactly 0 where space looks empty,
    and ``expected`` (P,) ≥ 0, posterior means.

    An answer comes from the expected counts where both readings give at least ``below``, else from the sparse counts.
    Answers are whole numbers. Raises :class:`HistogramError` for counts that are negative or not finite, or not of one
    shape.
    """

    counts: FloatArray
    expected: FloatArray
    below: float

    def __post_init__(self) -> None:
        if self.counts.shape != self.expected.shape:
            raise HistogramError(
                f"{len(self.counts)} sparse counts and {len(self.expected)} expected ones; give one of each per part"
            )
        both = np.append(self.counts, self.expected)
        if not (np.isfinite(both).all() and np.all(both >= 0) and self.below >= 0):
            raise HistogramError(
                f"sparse or expected counts or their bound {self.below} are negative or not finite; give 0 or more"
            )

    @classmethod
    def from_release(cls, sparse: dict[str, Any]) -> Self:
        """The ``sparse`` part of a release's structure."""
        counts, expected = (np.asarray(sparse[name], dtype=np.float64) for name in ("counts", "expected"))
        return cls(counts, expected, float(sparse["below"]))

    def to_release(self) -> dict[str, Any]:
        """JSON values."""
        return {"counts": _numbers(self.counts), "expected": _numbers(self.expected), "below": self.below}


@dataclass(frozen=True)
class PartitionHistogram:
    """P disjoint rectangles [x0, x1) × [y0, y1) of whole cells that tile the grid, with counts and noise variances.

    ``boxes``: int64 (P, 4) of x0, x1, y0, y1; ``counts`` and ``variances``: (P,). With a ``sparse`` reading answers aim
    at relative error and need not add up; intervals always follow from ``counts`` and their ``noise``. Raises
    :class:`HistogramError` for parts that overlap, leave a gap or reach outside the grid.
    """

    domain: Domain
    boxes: IntGrid
    counts: FloatArray
    variances: FloatArray
    sparse: SparseReading | None = None
    noise: PartNoise = "independent"
    parts: IndexGrid = field(init=False, repr=False)
    """Part of each cell, shape (rows, columns)."""

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, dtype=np.int64).reshape(-1, 4)
        object.__setattr__(self, "boxes", boxes)
        if not len(boxes) == len(self.counts) == len(self.variances):
            raise HistogramError(
                f"{len(boxes)} parts, {len(self.counts)} counts and {len(self.variances)} variances; give one per part"
            )
        if self.sparse is not None and len(self.sparse.counts) != len(boxes):
            raise HistogramError(f"{len(boxes)} parts and {len(self.sparse.counts)} sparse counts; give one per part")
        if isinstance(self.noise, TreeNoise) and self.noise.leaves != len(boxes):
            raise HistogramError(f"{len(boxes)} parts and {self.noise.leaves} leaves of their noise; give one per part")
        object.__setattr__(self, "parts", paint(self.domain.shape, boxes))

    @cached_property
    def _images(self) -> dict[str, FloatArray]:
        """Integral images of the readings by name."""
        readings = {"unbiased": self.counts}
        if self.sparse is not None:
            readings = {"sparse": self.sparse.counts, "expected": self.sparse.expected}
        return {
            name: np.asarray(integral_image((counts / self.areas)[self.parts]), dtype=np.float64)
            for name, counts in readings.items()
        }

    @property
    def areas(self) -> IntGrid:
        """Cells per part, shape (P,)."""
        return (self.boxes[:, 1] - self.boxes[:, 0]) * (self.boxes[:, 3] - self.boxes[:, 2])

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Estimated counts, shape (Q,); raises ``QueryError`` outside the domain."""
        rectangles.require_inside(self.domain)
        if self.sparse is None:
            return answer(self._images["unbiased"], rectangles)
        sparse, expected = (answer(self._images[name], rectangles) for name in ("sparse", "expected"))
        # Sums of exact zeros may come out of the integral image as rounding of its largest entries.
        sparse[sparse < 1e-9 * max(float(self.sparse.counts.sum()), 1.0)] = 0.0
        return np.rint(np.where(np.minimum(sparse, expected) < self.sparse.below, sparse, expected))

    def intervals(self, rectangles: Rectangles) -> Intervals | None:
        """95 % intervals of the exact counts; None without a known noise."""
        rectangles.require_inside(self.domain)
        if self.noise is None:
            return None
        step = max(1, PAIRS_PER_CHUNK // len(self.boxes))
        parts = [self._bounded(rectangles.part(slice(at, at + step))) for at in range(0, len(rectangles), step)]
        return Intervals(
            *(np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0)]) for name in ("low", "high"))
        )

    def _bounded(self, ranges: Rectangles) -> Intervals:
        x0, x1, y0, y1 = self.boxes.T.astype(np.float64)
        low_x, high_x, low_y, high_y = (edge[:, None] for edge in (ranges.x0, ranges.x1, ranges.y0, ranges.y1))
        inside = (low_x <= x0 + _HAIR) & (x1 <= high_x + _HAIR) & (low_y <= y0 + _HAIR) & (y1 <= high_y + _HAIR)
        touched = (low_x < x1 - _HAIR) & (x0 < high_x - _HAIR) & (low_y < y1 - _HAIR) & (y0 < high_y - _HAIR)
        touched &= (ranges.areas() > 0)[:, None]
        return between(self._sums(inside.astype(np.float64)), self._sums(touched.astype(np.float64)))

    def _sums(self, members: FloatArray) -> NoisySums:
        """Sums of the parts that each row of ``members`` (Q, P) takes, 0 or 1."""
        variance = self.noise.variances(members) if isinstance(self.noise, TreeNoise) else members @ self.variances
        number = np.count_nonzero(members, axis=1)
        return NoisySums(members @ self.counts, number, spread_tails(variance))

    def to_release(self) -> dict[str, Any]:
        """``kind`` "partition": boxes of cell indices with counts and variances, and a sparse reading if any."""
        structure = {
            "kind": "partition",
            "boxes": self.boxes.tolist(),
            "counts": _numbers(self.counts),
            "variances": _numbers(self.variances),
        }
        if self.sparse is not None:
            structure["sparse"] = self.sparse.to_release()
        if self.noise is not None:
            structure["noise"] = self.noise.to_release() if isinstance(self.noise, TreeNoise) else self.noise
        return {"domain": self.domain.to_release(), "structure": structure}


Histogram = GridHistogram | PartitionHistogram
"""What every spatial mechanism returns."""


def paint(shape: tuple[int, int], boxes: IntGrid) -> IndexGrid:
    """Index of the box that holds each cell of a grid of ``shape``.

    Raises :class:`HistogramError` unless the boxes tile the grid exactly: their lines of cells, in the order in which
    they begin, then each begin where the one before ends.
    """
    (rows, columns), (x0, x1, y0, y1) = shape, boxes.T
    if not len(boxes) or min(x0.min(), y0.min()) < 0 or x1.max() > rows or y1.max() > columns:
        raise HistogramError("parts are missing or reach outside the grid; give boxes of cells inside it")
    if np.any(x0 >= x1) or np.any(y0 >= y1):
        raise HistogramError("a part has no cells; give x0 < x1 and y0 < y1")
    height = x1 - x0
    if int(height.sum()) > rows * columns:
        raise HistogramError("parts overlap; give boxes that tile the grid")
    owner = np.repeat(np.arange(len(boxes)), height)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(height) - height - x0, height)
    at = np.full(rows * columns, -1, dtype=np.int32)
    at[row * columns + y0[owner]] = owner
    begin = np.flatnonzero(at >= 0)
    part, width = at[begin], (y1 - y0)[at[begin]]
    if len(begin) < len(owner) or np.any(np.cumsum(width) - width != begin) or int(width.sum()) != rows * columns:
        raise HistogramError("parts overlap or leave a gap; give boxes that tile the grid")
    return np.repeat(part, width).reshape(shape)


def _numbers(values: FloatArray) -> Any:
    """JSON numbers; a whole number without its decimal point."""
    if np.array_equal(values, np.rint(values)):
        return np.rint(values).astype(np.int64).tolist()
    return np.asarray(values, dtype=np.float64).tolist()
