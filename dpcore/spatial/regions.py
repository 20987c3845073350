"""Users' spatial regions: extraction from fixes, shrinking to a public diameter, footprints on the Euler grid.

Everything here is done to one user's data at a time, so it costs no privacy; what one user can change in the sum of
footprints is bounded by :meth:`Footprints.sensitivity`. Coordinates are planar, in one unit of length, on the box of a
:class:`~dpcore.spatial.domain.Domain` in that unit (x along its rows). Source: [B], sections 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.errors import ParameterError
from dpcore.spatial.domain import Domain, IntGrid

MAX_CORNERS = 64
"""Corners of one region: footprints look at every pair."""
MAX_NEAREST = 5760
"""Fixes that make a region at most, as in [B]; of more than :data:`MAX_CORNERS`, the outermost become corners."""
MAX_DENSITY_FIXES = 256
"""Fixes of one user whose density is compared, each with each; of more, this many evenly spaced ones."""
PAIRS_AT_ONCE = 2**20
"""Pairs of fixes whose densities are computed together, and pairs of corners that are looked at together."""
_SHRINK_MARGIN = 1 - 1e-9
_FLAT = 1e-9
"""Regions thinner than this many cells are degenerate: one face."""


class RegionError(ParameterError):
    """Regions whose columns do not fit together or are not finite, or parameters of extraction outside their range."""


@dataclass(frozen=True)
class Regions:
    """R regions: the convex hulls of the corners ``start[r] .. start[r+1]`` (in any order) of ``x`` and ``y``.

    ``user``: int64 (R,), who each belongs to. Raises :class:`RegionError` for columns that do not fit, coordinates that
    are not finite, a region without corners or with more than :data:`MAX_CORNERS`.
    """

    start: IntArray
    x: FloatArray
    y: FloatArray
    user: IntArray

    def __post_init__(self) -> None:
        sizes = np.diff(self.start)
        if len(self.start) != len(self.user) + 1 or self.start[0] != 0 or not len(self.x) == len(self.y):
            raise RegionError(f"{len(self.user)} users and {len(self.start)} starts; give one more start than users")
        if self.start[-1] != len(self.x) or (len(sizes) and not 1 <= sizes.min() <= sizes.max() <= MAX_CORNERS):
            raise RegionError(f"a region needs 1 to {MAX_CORNERS} corners; reduce larger ones to their hull")
        if not (np.isfinite(self.x).all() and np.isfinite(self.y).all()):
            raise RegionError("corners hold NaN or infinite coordinates; reject them before")

    def __len__(self) -> int:
        return len(self.user)

    @classmethod
    def of_polygons(cls, polygons: list[npt.ArrayLike], user: npt.ArrayLike | None = None) -> Regions:
        """From one (corners, 2) array per region; without ``user`` each belongs to somebody else."""
        corners = [np.asarray(polygon, dtype=np.float64).reshape(-1, 2) for polygon in polygons]
        stacked = np.concatenate(corners) if corners else np.zeros((0, 2))
        start = np.cumsum([0, *map(len, corners)], dtype=np.int64)
        owners = np.arange(len(corners)) if user is None else np.asarray(user)
        return cls(start, stacked[:, 0], stacked[:, 1], owners.astype(np.int64))

    def at_most(self, per_user: int) -> Regions:
        """The first ``per_user`` regions of every user."""
        order = np.argsort(self.user, kind="stable")
        users = self.user[order]
        rank = np.arange(len(users)) - np.searchsorted(users, users, side="left")
        kept = np.sort(order[rank < per_user])
        if len(kept) == len(self):
            return self
        chosen = np.zeros(len(self), dtype=bool)
        chosen[kept] = True
        sizes = np.diff(self.start)
        corner = np.repeat(chosen, sizes)
        start = np.concatenate([[0], np.cumsum(sizes[chosen])]).astype(np.int64)
        return Regions(start, self.x[corner], self.y[corner], self.user[chosen])

    def pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """Every pair of corners of each region, and each corner with itself: region, first and second corner."""
        sizes = np.diff(self.start)
        squares = sizes * sizes
        region = np.repeat(np.arange(len(self)), squares)
        within = np.arange(int(squares.sum())) - np.repeat(np.cumsum(squares) - squares, squares)
        first, second = within // sizes[region], within % sizes[region]
        once = first <= second
        region, first, second = region[once], first[once], second[once]
        return region, self.start[region] + first, self.start[region] + second

    def parts(self) -> Iterator[Regions]:
        """The regions in parts of some :data:`PAIRS_AT_ONCE` pairs of corners, in order: memory is bounded."""
        if not len(self):
            return
        pairs = np.cumsum(np.diff(self.start) ** 2)
        begins = np.flatnonzero(np.diff(pairs // PAIRS_AT_ONCE, prepend=-1))
        for first, end in zip(begins.tolist(), [*begins[1:].tolist(), len(self)], strict=True):
            corners = slice(self.start[first], self.start[end])
            start = self.start[first : end + 1] - self.start[first]
            yield Regions(start, self.x[corners], self.y[corners], self.user[first:end])

    def diameters(self) -> FloatArray:
        """Largest distance between two corners, shape (R,)."""
        return np.concatenate([np.zeros(0), *(part._widest() for part in self.parts())])

    def _widest(self) -> FloatArray:
        region, a, b = self.pairs()
        widest = np.zeros(len(self))
        np.maximum.at(widest, region, np.hypot(self.x[a] - self.x[b], self.y[a] - self.y[b]))
        return widest

    def shrunk(self, diameter: float) -> Regions:
        """Each region scaled about the mean of its corners so that its diameter is at most ``diameter``."""
        if not (math.isfinite(diameter) and diameter > 0):
            raise RegionError(f"diameter {diameter} is not a positive length; give the public bound B")
        if len(self) == 0:
            return self
        widest = self.diameters()
        sizes = np.diff(self.start)
        factor = np.repeat(
            np.divide(diameter * _SHRINK_MARGIN, widest, out=np.ones(len(self)), where=widest > diameter), sizes
        )
        x, y = (
            np.where(factor < 1, centre + (column - centre) * factor, column)
            for column in (self.x, self.y)
            for centre in [np.repeat(np.add.reduceat(column, self.start[:-1]) / sizes, sizes)]
        )
        return Regions(self.start, x, y, self.user)


def extract_regions(
    user: IntArray, x: FloatArray, y: FloatArray, *, nearest: int, bandwidth: float, discard_beyond: float = math.inf
) -> Regions:
    """One region per user: the ``nearest`` fixes to the mode of their fixes' density, as corners of a hull.

    ``discard_beyond``: a diameter B about the mode; fixes farther away than B/2 are discarded, as in the source, so
    that no region is wider than B. Without it wide regions keep their shape and are shrunk when they are counted. Both
    follow from the user's own fixes, and the sensitivity is the same.

    Of more than :data:`MAX_CORNERS` fixes those farthest in as many directions: their hull lies inside that of all
    fixes, by at most 2.5 % of the diameter (tan(π/64)/2). Apart from sorting, the cost grows with the number of fixes,
    and a region follows from its user's own fixes alone.

    The mode is the fix with the highest Gaussian kernel density (``bandwidth`` in the unit of length). Columns of shape
    (N,); regions come in ascending order of user. Raises :class:`RegionError`. Source: [B], section 3.
    """
    if not 1 <= nearest <= MAX_NEAREST:
        raise RegionError(f"{nearest} nearest fixes; give 1 to {MAX_NEAREST}")
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise RegionError(f"bandwidth {bandwidth} is not a positive length")
    if not discard_beyond > 0:
        raise RegionError(f"fixes are discarded beyond {discard_beyond}; give a positive length, or leave it out")
    if not len(user) == len(x) == len(y):
        raise RegionError(f"columns of {len(user)}, {len(x)} and {len(y)} fixes; give one value of each per fix")
    order = np.argsort(user, kind="stable")
    points = np.column_stack([x, y]).astype(np.float64)[order]
    if not np.isfinite(points).all():
        raise RegionError("fixes hold NaN or infinite coordinates; reject them before")
    users, first, fixes = np.unique(user[order], return_index=True, return_counts=True)
    owner = np.repeat(np.arange(len(users)), fixes)
    away = points - points[_modes(points, first, fixes, bandwidth)][owner]
    squared = np.square(away).sum(axis=1)
    nearest_first = np.lexsort((squared, owner))
    kept = nearest_first[np.arange(len(points)) - first[owner] < nearest]
    kept = kept[np.sqrt(squared[kept]) <= discard_beyond / 2]
    kept = kept[outermost(points[kept], owner[kept])]
    start = np.append(0, np.cumsum(np.bincount(owner[kept], minlength=len(users)))).astype(np.int64)
    return Regions(start, points[kept, 0], points[kept, 1], users.astype(np.int64))


def outermost(points: FloatArray, owner: IntArray) -> BoolArray:
    """Which ``points`` (N, 2) are corners: of owners with more than :data:`MAX_CORNERS`, the first that is farthest in
    each of as many directions; of the others all. Points come by owner.
    """
    chosen = np.bincount(owner)[owner] <= MAX_CORNERS
    many = np.flatnonzero(~chosen)
    if not len(many):
        return chosen
    x, y = points[many].T
    _, start, group = np.unique(owner[many], return_index=True, return_inverse=True)
    for angle in 2 * np.pi * np.arange(MAX_CORNERS) / MAX_CORNERS:
        # By element: a matrix product may round a row otherwise beside other rows, which are other users' fixes.
        along = x * np.cos(angle) + y * np.sin(angle)
        farthest = np.flatnonzero(along == np.maximum.reduceat(along, start)[group])
        _, first = np.unique(group[farthest], return_index=True)
        chosen[many[farthest[first]]] = True
    return chosen


def _modes(points: FloatArray, first: IntArray, fixes: IntArray, bandwidth: float) -> IntArray:
    """For each user the fix of highest density, as an index into ``points``, which are by user; the first of equal
    ones.

    ``first``, ``fixes``: where each user's begin and how many they are, shape (L,). Users with equally many are
    compared together, each within their own: at most :data:`MAX_DENSITY_FIXES` of them, so the cost per fix is bounded.
    """
    step = -(-fixes // MAX_DENSITY_FIXES)
    sampled = -(-fixes // step)
    modes = first.copy()
    for size in np.unique(sampled[sampled > 1]).tolist():
        group = np.flatnonzero(sampled == size)
        for part in np.array_split(group, -(-len(group) * size * size // PAIRS_AT_ONCE)):
            sample = first[part, None] + step[part, None] * np.arange(size)
            own = points[sample]
            squared = ((own[:, :, None, :] - own[:, None, :, :]) ** 2).sum(axis=3)
            density = np.exp(-squared / (2 * bandwidth**2)).sum(axis=2)
            modes[part] = sample[np.arange(len(part)), np.argmax(density, axis=1)]
    return modes


@dataclass(frozen=True)
class Footprints:
    """Which components of the (2·rows−1) × (2·columns−1) array the interior of each region meets: runs of one row each.

    ``region``, ``row``, ``low``, ``high`` (inclusive columns), int64 (S,). Even–even is a face, odd–odd a vertex, the
    rest edges. A region meets a contiguous run in every component row, both ends of which are faces or edges across.
    """

    domain: Domain
    region: IntArray
    row: IntArray
    low: IntArray
    high: IntArray

    @staticmethod
    def reach(domain: Domain, diameter: float) -> tuple[int, int]:
        """k = ⌈B/d⌉ along the rows and the columns."""
        sides = (domain.north - domain.south) / domain.rows, (domain.east - domain.west) / domain.columns
        if not (math.isfinite(diameter) and diameter > 0):
            raise RegionError(f"diameter {diameter} is not a positive length; give the public bound B")
        return math.ceil(diameter / sides[0]), math.ceil(diameter / sides[1])

    @staticmethod
    def sensitivity(domain: Domain, diameter: float) -> int:
        """Components that a region of this diameter meets: (2k+1)², or (2k₁+1)(2k₂+1) where cells are not square."""
        k, l = Footprints.reach(domain, diameter)  # noqa: E741
        return (2 * k + 1) * (2 * l + 1)

    @classmethod
    def of(cls, regions: Regions, domain: Domain, diameter: float) -> Footprints:
        """Footprints of ``regions`` shrunk to ``diameter``; what lies outside the box is cut off.

        At most 2k+1 rows and columns per region are kept, by index, so that rounding cannot break the sensitivity.
        """
        runs, before = [np.zeros((4, 0), dtype=np.int64)], 0
        for part in regions.parts():
            met = cls._of_part(part.shrunk(diameter), domain, diameter)
            runs.append(np.array([met.region + before, met.row, met.low, met.high]))
            before += len(part)
        return cls(domain, *np.concatenate(runs, axis=1))

    @classmethod
    def _of_part(cls, regions: Regions, domain: Domain, diameter: float) -> Footprints:
        x, y = domain.cell_coordinates(regions.x, regions.y)
        # Far outside the box nothing is counted, but the integers below must not overflow.
        x, y = x.clip(-1e6, 1e6 + domain.rows), y.clip(-1e6, 1e6 + domain.columns)
        rows, columns = cls.reach(domain, diameter)
        flat = _flat(regions, x, y)
        bands = _Bands.of(regions, x, flat, rows)
        left, right = _columns_met(regions, x, y, bands)
        middle_x, middle_y = (np.add.reduceat(c, regions.start[:-1]) / np.diff(regions.start) for c in (x, y))
        at = bands.offset[flat]
        left[at] = right[at] = 2 * np.floor(middle_y[flat]).astype(np.int64)
        first = np.where(flat, np.floor(middle_x), bands.first).astype(np.int64)
        region = bands.region
        last = np.minimum.reduceat(left, bands.offset)[region] + 2 * columns
        return cls(domain, region, bands.row + 2 * first[region], left, np.minimum(right, last))._inside()

    def _inside(self) -> Footprints:
        """The parts of the runs that lie inside the box."""
        rows, columns = 2 * self.domain.rows - 1, 2 * self.domain.columns - 1
        inside = (self.row >= 0) & (self.row < rows) & (self.high >= 0) & (self.low < columns)
        low, high = np.maximum(self.low, 0), np.minimum(self.high, columns - 1)
        return Footprints(self.domain, self.region[inside], self.row[inside], low[inside], high[inside])

    def total(self) -> IntGrid:
        """How many regions meet each component, shape (2·rows−1, 2·columns−1)."""
        shape = (2 * self.domain.rows - 1, 2 * self.domain.columns)
        steps = np.bincount(self.row * shape[1] + self.low, minlength=shape[0] * shape[1])
        steps -= np.bincount(self.row * shape[1] + self.high + 1, minlength=len(steps))
        return np.cumsum(steps.reshape(shape), axis=1)[:, :-1].astype(np.int64)


def _flat(regions: Regions, x: FloatArray, y: FloatArray) -> BoolArray:
    """Regions without interior: all corners within a hair of one line."""
    region, a, b = regions.pairs()
    dx, dy = x[b] - x[a], y[b] - y[a]
    length = np.hypot(dx, dy)
    longest = np.zeros(len(regions))
    np.maximum.at(longest, region, length)
    best = np.full(len(regions), -1)
    winners = np.flatnonzero(length >= longest[region])
    best[region[winners]] = winners
    sizes = np.diff(regions.start)
    direction_x, direction_y, base = (np.repeat(c[best], sizes) for c in (dx, dy, a))
    with np.errstate(invalid="ignore", divide="ignore"):
        away = np.abs(direction_x * (y - y[base]) - direction_y * (x - x[base])) / np.repeat(longest, sizes)
    widest = np.maximum.reduceat(np.nan_to_num(away), regions.start[:-1])
    return np.asarray(widest < _FLAT)


@dataclass(frozen=True)
class _Bands:
    """Component rows of R regions: bands of cells and the grid lines between them, alternating, a band at either end.

    ``first``: grid row of each region's first band; ``count``: its component rows; both (R,), with ``offset`` where
    they begin among the rows of all regions, region after region.
    """

    first: IntArray
    count: IntArray
    offset: IntArray

    @classmethod
    def of(cls, regions: Regions, x: FloatArray, flat: BoolArray, reach: int) -> _Bands:
        """Bands between least and largest ``x`` of each region: one of a ``flat`` region, at most ``reach`` + 1."""
        top, bottom = (f.reduceat(x, regions.start[:-1]) for f in (np.minimum, np.maximum))
        first = np.floor(top).astype(np.int64)
        bands = np.minimum(np.maximum(np.ceil(bottom).astype(np.int64) - first, 1), reach + 1)
        bands[flat] = 1
        count = 2 * bands - 1
        return cls(first, count, np.cumsum(count) - count)

    @property
    def region(self) -> IntArray:
        """The region of each row, shape (rows,)."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def row(self) -> IntArray:
        """Each row's place within its region: even for a band, odd for a line."""
        return np.arange(int(self.count.sum())) - np.repeat(self.offset, self.count)


class _Extremes:
    """Least and largest y met in every row of ``bands``; infinite where nothing was."""

    def __init__(self, bands: _Bands) -> None:
        self.bands = bands
        self.low, self.high = (np.full(int(bands.count.sum()), end) for end in (np.inf, -np.inf))

    def meet(self, region: IntArray, row: IntArray, y: FloatArray) -> None:
        """``y`` is met in the ``row`` of ``region``; rows that the region does not have are left out."""
        valid = (row >= 0) & (row < self.bands.count[region])
        at, met = self.bands.offset[region[valid]] + row[valid], y[valid]
        np.minimum.at(self.low, at, met)
        np.maximum.at(self.high, at, met)


def _columns_met(regions: Regions, x: FloatArray, y: FloatArray, bands: _Bands) -> tuple[IntArray, IntArray]:
    """First and last component column, both even, that each region meets in each of its rows."""
    extremes = _Extremes(bands)
    corner = np.repeat(np.arange(len(regions)), np.diff(regions.start))
    for side in (np.floor(x), np.ceil(x) - 1):  # a corner on a grid line belongs to the bands on both sides
        extremes.meet(corner, 2 * (side.astype(np.int64) - bands.first[corner]), y)
    _meet_crossings(extremes, regions, x, y)
    low, high = extremes.low, extremes.high
    # The top or bottom corner of the region may round past its own band; it has no other.
    missing = np.flatnonzero(~np.isfinite(low))
    low[missing] = high[missing] = y[regions.start[np.searchsorted(bands.offset, missing, side="right") - 1]]
    left = np.floor(low).astype(np.int64)
    right = np.maximum(np.ceil(high).astype(np.int64) - 1, left)
    left, right = 2 * left, 2 * right
    # Bands contain the runs of the lines beside them: convexity gives it, rounding may lose it.
    lines = np.flatnonzero(bands.row % 2 == 1)
    for band in (lines - 1, lines + 1):
        np.minimum.at(left, band, left[lines])
        np.maximum.at(right, band, right[lines])
    return left, right


def _meet_crossings(extremes: _Extremes, regions: Regions, x: FloatArray, y: FloatArray) -> None:
    """Where segments between two corners cross grid lines, on the line and in the bands beside it.

    A hull's section by a line ends where some segment between two corners crosses it, so all pairs are looked at.
    """
    region, a, b = regions.pairs()
    a, b = np.where(x[a] <= x[b], a, b), np.where(x[a] <= x[b], b, a)
    from_line = np.ceil(x[a]).astype(np.int64)
    lines = np.maximum(np.floor(x[b]).astype(np.int64) - from_line + 1, 0)
    segment = np.repeat(np.arange(len(region)), lines)
    line = np.arange(len(segment)) - np.repeat(np.cumsum(lines) - lines, lines) + from_line[segment]
    region, a, b = region[segment], a[segment], b[segment]
    width = x[b] - x[a]
    share = np.divide(line - x[a], width, out=np.zeros(len(segment)), where=width > 0)
    crossing = y[a] + share * (y[b] - y[a])
    row = 2 * (line - extremes.bands.first[region]) - 1
    for near in (row - 1, row, row + 1):
        extremes.meet(region, near, crossing)
