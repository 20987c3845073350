"""Released spatial histograms: answer any rectangle with an interval, become JSON and come back.

A histogram is a partition of the count grid into rectangles with noisy counts, uniform inside each. Intervals cover the
noise alone, not the uniformity assumption; noise variances of the parts are added as if independent, which for
consistent trees is an upper bound in practice and never a claim about privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpcore.errors import ParameterError
from dpcore.spatial.domain import Domain, FloatArray, IntGrid
from dpcore.spatial.queries import Rectangles, answer, axis_overlaps, integral_image

LAPLACE_95 = math.log(20) / math.sqrt(2)
"""Half width of the 95 % interval of Laplace noise in standard deviations: 2.118; sums of Laplace noise need less."""

PAIRS_PER_CHUNK = 2**22
"""Query × part overlaps held at once."""


def noise_half_width(variance: FloatArray, step: FloatArray) -> FloatArray:
    """Half widths of 95 % intervals of Σ α·X, X discrete Laplace: 2.118·σ + ``step``, the largest α, shape (Q,).

    The step is for the discreteness: P(|X| ≤ 2.118·σ) alone is 0.90 at ε = 3. Where the variance is 0 there is no noise.
    """
    return np.asarray(np.where(variance > 0, LAPLACE_95 * np.sqrt(variance) + step, 0.0), dtype=np.float64)


class HistogramError(ParameterError):
    """Parts that do not tile the grid, or a release document that is not a histogram."""


@runtime_checkable
class Histogram(Protocol):
    """What every spatial mechanism returns."""

    @property
    def domain(self) -> Domain:
        """The public box and its count grid."""
        ...

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Estimated counts, shape (Q,)."""
        ...

    def half_widths(self, rectangles: Rectangles) -> FloatArray:
        """Half widths of 95 % noise intervals, shape (Q,)."""
        ...

    def query(self, rectangles: Rectangles) -> tuple[FloatArray, FloatArray]:
        """Estimated counts and half widths, each of shape (Q,)."""
        ...

    def to_release(self) -> dict[str, Any]:
        """``{"domain": …, "structure": …}`` as JSON values."""
        ...


@dataclass(frozen=True)
class GridHistogram:
    """Counts of the blocks between ``x_edges`` and ``y_edges`` (cell units, from 0 to rows and columns).

    ``counts`` and ``variances`` (noise variance of each count) have shape (len(x_edges)-1, len(y_edges)-1);
    ``variances`` may be one number for all.
    """

    domain: Domain
    x_edges: IntGrid
    y_edges: IntGrid
    counts: FloatArray
    variances: FloatArray | float

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
        x_position, y_position = np.arange(len(self.x_edges)), np.arange(len(self.y_edges))
        return Rectangles(
            np.interp(rectangles.x0, self.x_edges, x_position),
            np.interp(rectangles.x1, self.x_edges, x_position),
            np.interp(rectangles.y0, self.y_edges, y_position),
            np.interp(rectangles.y1, self.y_edges, y_position),
        )

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Estimated counts, shape (Q,); raises ``QueryError`` outside the domain."""
        return answer(self._image, self._in_blocks(rectangles))

    def half_widths(self, rectangles: Rectangles) -> FloatArray:
        """Half widths of 95 % noise intervals, shape (Q,)."""
        rectangles.require_inside(self.domain)
        widths = np.zeros(len(rectangles))
        step = max(1, PAIRS_PER_CHUNK // (len(self.x_edges) + len(self.y_edges)))
        for start in range(0, len(rectangles), step):
            part = slice(start, start + step)
            ox = axis_overlaps(self.x_edges, rectangles.x0[part], rectangles.x1[part])
            oy = axis_overlaps(self.y_edges, rectangles.y0[part], rectangles.y1[part])
            if isinstance(self.variances, np.ndarray):
                variance = np.einsum("qi,qi->q", ox**2 @ self.variances, oy**2)
            else:
                variance = (ox**2).sum(axis=1) * (oy**2).sum(axis=1) * self.variances
            widths[part] = noise_half_width(variance, ox.max(axis=1) * oy.max(axis=1))
        return widths

    def query(self, rectangles: Rectangles) -> tuple[FloatArray, FloatArray]:
        """Estimated counts and half widths of 95 % noise intervals, each of shape (Q,)."""
        return self.answers(rectangles), self.half_widths(rectangles)

    def to_release(self) -> dict[str, Any]:
        """``kind`` "grid": edges, rows of counts and their variances."""
        many = isinstance(self.variances, np.ndarray)
        return {
            "domain": self.domain.to_release(),
            "structure": {
                "kind": "grid",
                "x_edges": self.x_edges.tolist(),
                "y_edges": self.y_edges.tolist(),
                "counts": _numbers(self.counts),
                "variances": _numbers(np.asarray(self.variances)) if many else float(self.variances),
            },
        }


@dataclass(frozen=True)
class SparseReading:
    """Two more readings of the same draws, for relative error: ``counts`` (P,) ≥ 0, exactly 0 where space looks empty, and
    ``expected`` (P,) ≥ 0, posterior means.

    Expected counts answer where they and the sparse ones both reach ``below``, else the sparse ones. Answers are whole
    numbers. Raises :class:`HistogramError` for counts that are negative or not finite, or not of one shape.
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
    def from_release(cls, sparse: dict[str, Any]) -> SparseReading:
        """The ``sparse`` part of a release's structure."""
        counts, expected = (np.asarray(sparse[name], dtype=np.float64) for name in ("counts", "expected"))
        return cls(counts, expected, float(sparse["below"]))

    def to_release(self) -> dict[str, Any]:
        """JSON values."""
        return {"counts": _numbers(self.counts), "expected": _numbers(self.expected), "below": self.below}


@dataclass(frozen=True)
class PartitionHistogram:
    """P disjoint rectangles [x0, x1) × [y0, y1) of whole cells that tile the grid, with counts and noise variances.

    ``boxes``: int64 (P, 4) of x0, x1, y0, y1; ``counts`` and ``variances``: (P,). With a ``sparse`` reading answers aim at
    relative error and need not add up. Raises :class:`HistogramError` for parts that overlap, leave a gap or reach outside.
    """

    domain: Domain
    boxes: IntGrid
    counts: FloatArray
    variances: FloatArray
    sparse: SparseReading | None = None
    parts: IntGrid = field(init=False, repr=False)
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
        object.__setattr__(self, "parts", paint(self.domain, boxes))

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

    def half_widths(self, rectangles: Rectangles) -> FloatArray:
        """Half widths of 95 % noise intervals, shape (Q,)."""
        rectangles.require_inside(self.domain)
        widths = np.zeros(len(rectangles))
        x0, x1, y0, y1 = self.boxes.T.astype(np.float64)
        step = max(1, PAIRS_PER_CHUNK // len(self.boxes))
        for start in range(0, len(rectangles), step):
            part = slice(start, start + step)
            ox = np.minimum(rectangles.x1[part, None], x1) - np.maximum(rectangles.x0[part, None], x0)
            oy = np.minimum(rectangles.y1[part, None], y1) - np.maximum(rectangles.y0[part, None], y0)
            share = np.maximum(ox, 0.0) * np.maximum(oy, 0.0) / self.areas
            widths[part] = noise_half_width((share**2) @ self.variances, share.max(axis=1))
        return widths

    def query(self, rectangles: Rectangles) -> tuple[FloatArray, FloatArray]:
        """Estimated counts and half widths of 95 % noise intervals, each of shape (Q,)."""
        return self.answers(rectangles), self.half_widths(rectangles)

    def to_release(self) -> dict[str, Any]:
        """``kind`` "partition": boxes of cell indices with counts and variances, and the sparse reading if there is one."""
        structure = {
            "kind": "partition",
            "boxes": self.boxes.tolist(),
            "counts": _numbers(self.counts),
            "variances": _numbers(self.variances),
        }
        if self.sparse is not None:
            structure["sparse"] = self.sparse.to_release()
        return {"domain": self.domain.to_release(), "structure": structure}


def paint(domain: Domain, boxes: IntGrid) -> IntGrid:
    """Index of the box that holds each cell, shape (rows, columns).

    Raises :class:`HistogramError` unless the boxes tile the grid exactly.
    """
    x0, x1, y0, y1 = boxes.T
    if not len(boxes) or min(x0.min(), y0.min()) < 0 or x1.max() > domain.rows or y1.max() > domain.columns:
        raise HistogramError("parts are missing or reach outside the grid; give boxes of cells inside it")
    if np.any(x0 >= x1) or np.any(y0 >= y1):
        raise HistogramError("a part has no cells; give x0 < x1 and y0 < y1")
    # Second differences: each box adds its index (and, beside it, 1) at its corners; summed twice they fill the boxes.
    change = np.zeros((2, domain.rows + 1, domain.columns + 1), dtype=np.int64)
    for layer, weight in enumerate((np.arange(len(boxes), dtype=np.int64), np.ones(len(boxes), dtype=np.int64))):
        np.add.at(change[layer], (x0, y0), weight)
        np.add.at(change[layer], (x1, y1), weight)
        np.add.at(change[layer], (x0, y1), -weight)
        np.add.at(change[layer], (x1, y0), -weight)
    owner, cover = np.asarray(change.cumsum(axis=1).cumsum(axis=2)[:, :-1, :-1], dtype=np.int64)
    if np.any(cover != 1):
        raise HistogramError("parts overlap or leave a gap; give boxes that tile the grid")
    return np.asarray(owner, dtype=np.int64)


def _numbers(values: FloatArray) -> Any:
    """JSON numbers; a whole number without its decimal point."""
    if np.array_equal(values, np.rint(values)):
        return np.rint(values).astype(np.int64).tolist()
    return np.asarray(values, dtype=np.float64).tolist()
