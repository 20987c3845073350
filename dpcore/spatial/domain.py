"""The public box of a spatial histogram and its count grid: points become integer counts of half-open cells.

The box and its grid are configuration, never taken from data. Axis 0 (rows) runs from south to north, axis 1 (columns)
from west to east; a generic x/y box reads south/north as x and west/east as y.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.earth import EARTH_M
from dpcore.errors import ParameterError

IntGrid = IntArray
IndexGrid = npt.NDArray[np.int32]
"""Indices of cells and of parts, of which there are at most :data:`MAX_CELLS`: 32 bits take half of the memory."""

MAX_CELLS = 2**26
"""Cells of the largest count grid: 64 Mi int64 counts are 512 MiB."""
_AT_ONCE = 2**14
"""Points of which the cells are computed at once, so that their arrays fit into a processor's cache."""


class DomainError(ParameterError):
    """A box without area, a grid without cells, or points and counts that do not fit them."""


@dataclass(frozen=True)
class PointCounts:
    """Counts per cell, shape (rows, columns), and how many points fell outside the box (never for publication)."""

    counts: IntGrid
    outside: int


@dataclass(frozen=True)
class Domain:
    """Public box [south, north) × [west, east) cut into ``rows`` × ``columns`` equal half-open cells.

    In degrees, ``west`` may be greater than ``east``: the box then lies across the meridian of 180 degrees.

    Raises :class:`DomainError` for bounds that are not finite, zero or negative area, or grid sizes below 1.
    """

    south: float
    west: float
    north: float
    east: float
    rows: int = 256
    columns: int = 256

    def __post_init__(self) -> None:
        bounds = (self.south, self.west, self.north, self.east)
        if not all(math.isfinite(bound) for bound in bounds):
            raise DomainError(f"box {bounds} has a bound that is not finite; give four finite numbers")
        crosses = self.west > self.east and max(abs(self.west), abs(self.east)) <= 180
        if self.south >= self.north or not (self.west < self.east or crosses):
            raise DomainError(
                f"box {bounds} (south, west, north, east) has no area; give south < north and west < east"
            )
        if self.rows < 1 or self.columns < 1:
            raise DomainError(f"grid of {self.rows} × {self.columns} cells; give at least 1 × 1")
        if self.rows * self.columns > MAX_CELLS:
            raise DomainError(f"grid of {self.rows} × {self.columns} cells exceeds {MAX_CELLS}; give a coarser grid")

    @classmethod
    def unit_cells(cls, rows: int, columns: int) -> Self:
        """A box in which every cell is 1 × 1: for data that arrives as counts."""
        return cls(0.0, 0.0, float(max(rows, 1)), float(max(columns, 1)), rows, columns)

    def in_metres(self) -> "Domain":
        """This box in degrees as one in metres from its south-west corner (equirectangular), with the same grid."""
        across = math.cos(math.radians((self.south + self.north) / 2))
        north = math.radians(self.north - self.south) * EARTH_M
        east = math.radians(self.width) * EARTH_M * across
        return Domain(0.0, 0.0, north, east, self.rows, self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    @property
    def width(self) -> float:
        """The width of the box from west to east."""
        return self.east - self.west + (360.0 if self.west > self.east else 0.0)

    def offsets(self, latitude: FloatArray, longitude: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Distances from the south-west corner, northwards and eastwards, in the unit of the box."""
        north = np.asarray(latitude, dtype=np.float64) - self.south
        east = np.asarray(longitude, dtype=np.float64) - self.west
        return north, np.where(east < 0, east + 360.0, east) if self.west > self.east else east

    @property
    def cells(self) -> int:
        """rows · columns."""
        return self.rows * self.columns

    def cell_coordinates(self, latitude: FloatArray, longitude: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Positions in units of cells from the south-west corner; not clipped to the box."""
        north, east = self.offsets(latitude, longitude)
        return north * (self.rows / (self.north - self.south)), east * (self.columns / self.width)

    def contains(self, latitude: FloatArray, longitude: FloatArray) -> BoolArray:
        """Which positions lie in the half-open box."""
        from_west, to_east = longitude >= self.west, longitude < self.east
        across = from_west | to_east if self.west > self.east else from_west & to_east
        return np.asarray((latitude >= self.south) & (latitude < self.north) & across)

    def count(self, points: FloatArray) -> PointCounts:
        """Counts of ``points``, shape (N, 2) of (latitude, longitude) or (x, y).

        A point outside the box contributes nothing to any cell; it is only counted, for the operator inside the trust
        boundary. Dropping depends on that point alone, so the sensitivity stays s for s points per user.
        Raises :class:`DomainError` for another shape and for NaN or infinite coordinates.
        """
        points = np.asarray(points, dtype=np.float64)
        if points.size == 0:
            return PointCounts(np.zeros(self.shape, np.int64), 0)
        if points.ndim != 2 or points.shape[1] != 2:
            raise DomainError(f"points of shape {points.shape}; give (N, 2)")
        starts = range(0, len(points), _AT_ONCE)
        flat = np.concatenate([self._cells_of(points[start : start + _AT_ONCE]) for start in starts])
        counts = np.bincount(flat, minlength=self.cells).astype(np.int64)
        return PointCounts(counts.reshape(self.shape), len(points) - len(flat))

    def _cells_of(self, points: FloatArray) -> IntGrid:
        """Flat cell of each of ``points`` (N, 2) in the box; raises :class:`DomainError` for NaN or infinity."""
        latitude, longitude = points[:, 0], points[:, 1]
        # One pass: the sum of finite float64 coordinates is finite unless they are absurdly large.
        if not (np.isfinite(latitude.sum()) and np.isfinite(longitude.sum())) and not np.isfinite(points).all():
            first = points[~np.isfinite(points).all(axis=1)][0].tolist()
            raise DomainError(f"points hold NaN or infinite coordinates, {first} first; drop them before counting")
        inside = self.contains(latitude, longitude)
        if not inside.all():
            latitude, longitude = latitude[inside], longitude[inside]
        x, y = self.cell_coordinates(latitude, longitude)
        # Rounding may carry a point just below the north or east edge onto it.
        flat = np.minimum(x.astype(np.int64), self.rows - 1) * self.columns
        flat += np.minimum(y.astype(np.int64), self.columns - 1)
        return flat

    def counts_of(self, points_or_counts: npt.NDArray[Any]) -> IntGrid:
        """Counts of shape (rows, columns) from an integer array of that shape or from float points of shape (N, 2).

        Raises :class:`DomainError` for counts of another shape or below 0.
        """
        given = np.asarray(points_or_counts)
        if not np.issubdtype(given.dtype, np.integer):
            return self.count(given).counts
        if given.shape != self.shape:
            raise DomainError(
                f"counts of shape {given.shape} for a grid of {self.shape}; give counts of the grid's shape"
            )
        if given.size and int(given.min()) < 0:
            raise DomainError(f"counts hold {int(given.min())}; give counts of 0 or more")
        return given.astype(np.int64)

    def to_release(self) -> dict[str, Any]:
        """The domain as JSON."""
        return asdict(self)

    @classmethod
    def from_release(cls, document: dict[str, Any]) -> Self:
        """The domain of a release; raises :class:`DomainError` as the constructor does."""
        try:
            return cls(**{each.name: document[each.name] for each in fields(cls)})
        except KeyError as missing:
            raise DomainError(f"domain without {missing}; give south, west, north, east, rows and columns") from None


def cuts(cells: int, parts: int) -> IntGrid:
    """Edges of ``parts`` nearly equal parts of ``cells`` cells, shape (parts+1,); ``parts`` is capped at ``cells``.

    Parts follow cell boundaries, so that every histogram is exact on the count grid; they differ by at most one cell.
    """
    if parts < 1:
        raise DomainError(f"{parts} parts of an axis; give at least 1")
    parts = min(parts, cells)
    return np.arange(parts + 1, dtype=np.int64) * cells // parts


def block_sums(counts: IntGrid, x_edges: IntGrid, y_edges: IntGrid) -> IntGrid:
    """Sums of ``counts`` over the blocks between strictly increasing edges, shape (len(x)-1, len(y)-1)."""
    rows = np.add.reduceat(counts, x_edges[:-1], axis=0)
    return np.asarray(np.add.reduceat(rows, y_edges[:-1], axis=1), dtype=np.int64)
