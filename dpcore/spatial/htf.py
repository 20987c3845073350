"""HTF: a binary tree whose cuts make both sides homogeneous. Height, cuts, stops and counts are private.

Neighbours differ by all points of one user, at most s (relation "participation"). A cut at k costs o_k = Σ|c − μ₁| +
Σ|c − μ₂| over the cells c of both sides, in 1/:data:`QUANTUM`, rounded down for each side. To be proved: the tree is
ε-DP, where ε = cost of N̂ + :class:`PathBudget`. Proof: a point changes Σ|c − μ| of its side by at most 2(q−1)/q < 2, q
the cells of that side, so j points of a user in a box change its integer costs by at most 2·QUANTUM·j.
:func:`split_sensitivity` is no less for j = s, so the choice of a cut at ε′ costs them at most ε′·j/s; so does a count
at ε′. The boxes of one level are disjoint and every path from the root costs the same. Tested: by brute force in
tests/dpcore/spatial/test_mechanisms.py and tests/dpcore/spatial/test_partitions.py (costs, paths), and in
tests/audit/test_spatial_audit.py (choices, exactly). Source: [H], corrected as in research/errata.md.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IntArray
from dpcore.budget import MICRO, BudgetSplit
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.grids import noisy_total, require_share
from dpcore.spatial.partition import LevelDraws, Tree, areas, box_sums, combine, draw_counts, grow, image_of
from dpcore.spatial.posterior import Goal, TreeMechanism, require_goal
from dpcore.spatial.queries import sum_along_both
from dpcore.spatial.trees import MAX_HEIGHT, Candidates, height_of

QUANTUM = 256
"""Cost units per unit of o_k; with it every product below stays under 2^62 for the largest grid."""


def split_sensitivity(points_per_user: int) -> int:
    """A bound on what a user changes in an integer cost of :func:`split_costs`.

    2·QUANTUM·s would do: before it is rounded down, the cost of a side with j of the user's points changes by less than
    2·QUANTUM·j, and so by at most that afterwards. The unit above it costs 0.2 % of the accuracy of cuts. It stays
    because without it recorded randomness would give other releases than before.
    """
    return 2 * QUANTUM * points_per_user + 1


@dataclass(frozen=True)
class PathBudget:
    """µε that every path from the root spends: on ``stops`` and ``splits`` level by level, 0 at the last one, and
    ``count_micro`` on its last count.

    A path that ends early spends the shares of the levels below, too: its last count is drawn with :meth:`left`.
    """

    splits: tuple[int, ...]
    stops: tuple[int, ...]
    count_micro: int

    def left(self, depth: int) -> int:
        """µε that a path has not spent before ``depth``."""
        return self.count_micro + sum(self.stops[depth:]) + sum(self.splits[depth:])


@dataclass(frozen=True)
class HTF(TreeMechanism):
    """Homogeneous tree. ``height_share``, ``split_share``: parts of the budget for |D| and for the cuts; of the rest,
    ``stop_share`` (β) pays for the stop tests, geometrically over the heights.

    A node stops at ``stop_cells`` cells, which costs nothing, or at a noisy count of at most ``stop_count``; it then
    draws its count with everything that its path has left. Deep in a tree ε′ is so small that a cut is nearly random.
    Cuts therefore leave at least ``margin`` of a node's lines on either side, so that random cuts leave no large nodes
    where the tree ends, and the tree may grow ``extra_levels`` beyond its formula. Both are public. The paper's own
    tree has neither: see :meth:`published`.

    ``split`` "exponential" chooses exactly; "search" is the paper's Algorithm 1, corrected, with at most ``rounds`` (T)
    rounds, 0 for as many as a node may need. ``level_epsilon_micro``: a fixed ε′ for the cuts of each level, 0 to share
    ``split_share`` among the levels. ``goal`` "relative" releases a sparse reading of the same draws, too.
    """

    split: Literal["exponential", "search"] = "exponential"
    height_share: float = 0.01
    split_share: float = 0.1
    stop_share: float = 0.6
    margin: float = 0.45
    extra_levels: int = 2
    stop_cells: int = 1
    stop_count: float = 20.0
    max_height: int = 20
    consistency: bool = True
    goal: Goal = "absolute"
    rounds: int = 0
    level_epsilon_micro: int = 0

    @classmethod
    def published(cls, *, stop_share: float = 0.5) -> Self:
        """Tree with parameters of [H]: T = 3, ε′ = 5·10⁻⁴ a level, stop at 5 cells or 100 points, no consistency."""
        return cls(
            "search",
            stop_share=stop_share,
            margin=0.0,
            extra_levels=0,
            stop_cells=5,
            stop_count=100.0,
            consistency=False,
            rounds=3,
            level_epsilon_micro=500,
        )

    def __post_init__(self) -> None:
        for name in ("height_share", "split_share", "stop_share"):
            require_share(name, getattr(self, name))
        if self.height_share + self.split_share >= 1:
            raise ParameterError(
                f"height_share {self.height_share} and split_share {self.split_share} leave nothing for counts; lower "
                "them"
            )
        if self.split not in ("exponential", "search"):
            raise ParameterError(f"split {self.split!r}; give exponential or search")
        if self.extra_levels < 0:
            raise ParameterError(f"{self.extra_levels} extra levels; give 0 or more")
        if not 0 <= self.margin <= 0.5:
            raise ParameterError(f"margin {self.margin} is outside 0..0.5; give the least part of a node beside a cut")
        require_goal(self.goal)
        if min(self.rounds, self.level_epsilon_micro) < 0:
            raise ParameterError(
                f"rounds {self.rounds} and level_epsilon_micro {self.level_epsilon_micro}; give 0 or more"
            )
        if not 1 <= self.max_height <= MAX_HEIGHT or self.stop_cells < 1:
            raise ParameterError(f"max_height must be 1..{MAX_HEIGHT} and stop_cells at least 1")

    def tree(self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int) -> Tree:
        """The tree with its draws before consistency; the root carries the cost of |D|. Source: [H]."""
        height_micro, rest_micro = self.parts(epsilon_micro)
        total = noisy_total(counts, height_micro, points_per_user, noise)
        height = height_of(total, epsilon_micro, points_per_user, self.max_height) + self.extra_levels
        budget = self.path_budget(rest_micro, min(height, self.max_height))
        image, ranked = image_of(counts), RankedCells.of(counts)

        def draw(truth: IntArray, boxes: IntArray, depth: int) -> LevelDraws:
            draws = self._draw_level(truth, boxes, depth, budget, points_per_user, noise)
            return draws if depth else replace(draws, spent=draws.spent + height_micro)

        def divide(boxes: IntArray, noisy: FloatArray, depth: int) -> tuple[IntArray, IntArray]:
            candidates = Candidates.of(boxes, depth % 2, self.margin)
            costs = split_costs(ranked, image, boxes, candidates)
            return candidates.cut(boxes, self._choose(costs, candidates, budget.splits[depth], points_per_user, noise))

        return grow(image, domain, draw, divide)

    def parts(self, epsilon_micro: int) -> tuple[int, ...]:
        """µε for |D|, and for everything else."""
        return BudgetSplit.by_weights(epsilon_micro, [self.height_share, 1 - self.height_share]).shares

    def path_budget(self, rest_micro: int, height: int) -> PathBudget:
        """How ``rest_micro`` is spent along every path of a tree of ``height``: a function of public parameters."""
        if self.level_epsilon_micro:
            splits = (self.level_epsilon_micro,) * height
            data_micro = rest_micro - sum(splits)
            if data_micro <= 0:
                raise ParameterError(
                    f"{height} levels of {self.level_epsilon_micro} µε leave nothing of {rest_micro} µε for counts; "
                    "lower level_epsilon_micro or raise the budget"
                )
        else:
            rest = 1 - self.height_share
            split_micro, data_micro = BudgetSplit.by_weights(
                rest_micro, [self.split_share / rest, 1 - self.split_share / rest]
            ).shares
            splits = BudgetSplit.by_weights(split_micro, [1.0] * height).shares
        stop_micro, count_micro = BudgetSplit.by_weights(data_micro, [self.stop_share, 1 - self.stop_share]).shares
        stops = BudgetSplit.by_weights(stop_micro, [2 ** (depth / 3) for depth in range(height)]).shares
        return PathBudget((*splits, 0), (*stops, 0), count_micro)

    def _draw_level(
        self, truth: IntArray, boxes: IntArray, depth: int, budget: PathBudget, points_per_user: int, noise: Noise
    ) -> LevelDraws:
        """Draws of the true counts ``truth`` of one level's disjoint ``boxes``: a stop test of each, and a final draw
        of those that end here with all that their path has left.
        """
        test = np.where(areas(boxes) <= self.stop_cells, 0, budget.stops[depth])
        drawn = draw_counts(truth, test, points_per_user, noise)
        divided = (test > 0) & (drawn[0] > self.stop_count)
        final = np.where(divided, 0, budget.left(depth) - test)
        draws = combine(drawn, draw_counts(truth, final, points_per_user, noise))
        return LevelDraws(*draws, test + final + np.where(divided, budget.splits[depth], 0), divided)

    def _choose(
        self, costs: IntArray, candidates: Candidates, epsilon_micro: int, points_per_user: int, noise: Noise
    ) -> IntArray:
        sensitivity = split_sensitivity(points_per_user)
        if self.split == "search":
            return search(costs, candidates.offsets, epsilon_micro, sensitivity, noise, self.rounds)
        ratio = epsilon_micro, 2 * sensitivity * MICRO
        return noise.exponential(costs, *ratio, offsets=candidates.offsets)


def search(
    costs: IntArray, offsets: IntArray, epsilon_micro: int, sensitivity: int, noise: Noise, most_rounds: int = 0
) -> IntArray:
    """Algorithm 1, corrected: each group narrows [l, r] by comparing noisy costs at the middle and both quarters.

    T rounds look at 2T+1 costs, each with Laplace((2T+1)·sensitivity/ε); T follows the longest group, which is public,
    and is at most ``most_rounds`` unless that is 0. Returns the chosen candidate relative to each group's start.
    """
    longest = int(np.diff(offsets).max())
    rounds = max(1, (longest - 1).bit_length())
    rounds = min(rounds, most_rounds or rounds)

    def look(k: IntArray) -> IntArray:
        scale = (2 * rounds + 1) * sensitivity * MICRO
        drawn = noise.discrete_laplace(scale, epsilon_micro, size=len(k))
        return np.asarray(costs[offsets[:-1] + k - 1] + drawn, dtype=np.int64)

    low, high = np.ones(len(offsets) - 1, dtype=np.int64), np.diff(offsets)
    middle = (low + high) // 2
    value = look(middle)
    for _ in range(rounds):
        first, second = (low + middle) // 2, -(-(middle + high) // 2)
        before, after = look(first), look(second)
        left, right = (before < value) & (before <= after), (after < value) & (after < before)
        low, high = (
            np.where(left, low, np.where(right, middle, first)),
            np.where(left, middle, np.where(right, high, second)),
        )
        middle, value = (
            np.where(left, first, np.where(right, second, middle)),
            np.where(left, before, np.where(right, after, value)),
        )
    return np.asarray(middle - 1, dtype=np.int64)


@dataclass(frozen=True)
class RankedCells:
    """Cells by the rank of their count among all counts that occur: ``distinct`` rising, ``rank`` (rows, columns)."""

    distinct: IntArray
    rank: npt.NDArray[np.int32]

    @classmethod
    def of(cls, counts: IntGrid) -> Self:
        """Ranks of one count grid."""
        distinct, rank = np.unique(counts, return_inverse=True)
        return cls(distinct, rank.reshape(counts.shape).astype(np.int32))


def split_costs(ranked: RankedCells, image: IntGrid, boxes: IntArray, candidates: Candidates) -> IntArray:
    """⌊QUANTUM·Σ|c − μ₁|⌋ + ⌊QUANTUM·Σ|c − μ₂|⌋ for every candidate, in exact integers.

    Σ|c − μ| = 2(S − μN), S and N the sum and number of cells above μ. Both come from one table per box: cells by line
    and by rank, summed along both; ranks beyond the largest mean are left out.
    """
    box, lower = candidates.box, candidates.lower(boxes, candidates.box, candidates.k)
    first = _Side.of(ranked, areas(lower), box_sums(image, lower))
    second = _Side.of(ranked, areas(boxes)[box] - first.area, box_sums(image, boxes)[box] - first.points)
    ranks = np.maximum.reduceat(np.maximum(first.ranks, second.ranks), candidates.offsets[:-1])
    tables = RankTables.of(ranked, boxes, candidates, ranks)
    line = candidates.k - candidates.first[box]
    cost = first.cost(*tables.upto(box, line, first.ranks))
    # What lies behind the cut is what lies in the whole box less what lies before the cut.
    before = tables.upto(box, line, second.ranks)
    anywhere = tables.upto(box, tables.lines[box] - 1, second.ranks)
    return cost + second.cost(anywhere[0] - before[0], anywhere[1] - before[1])


@dataclass(frozen=True)
class _Side:
    """One side of every candidate cut, shape (C,) each: its ``area`` in cells, its ``points``, and the number of
    distinct counts, in ``ranks``, that are not above its mean.
    """

    area: IntArray
    points: IntArray
    ranks: IntArray

    @classmethod
    def of(cls, ranked: RankedCells, area: IntArray, points: IntArray) -> Self:
        """A count is an integer, so it is not above the mean iff it is not above the mean rounded down."""
        return cls(area, points, np.searchsorted(ranked.distinct, points // area, side="right").astype(np.int64))

    def cost(self, cells_below: IntArray, points_below: IntArray) -> IntArray:
        """⌊QUANTUM·Σ|c − μ|⌋ (C,) from the cells that are not above the mean and from the points in them, (C,) each."""
        cells_above, points_above = self.area - cells_below, self.points - points_below
        quotient, rest = np.divmod(self.points, self.area)
        fraction = -(-2 * QUANTUM * rest * cells_above // self.area)
        return np.asarray(2 * QUANTUM * (points_above - quotient * cells_above) - fraction, dtype=np.int64)


@dataclass(frozen=True)
class RankTables:
    """Number of ``cells`` of rank <= j before the i-th candidate of each box, and the ``points`` in them; both flat:
    rank, box, i, summed over all boxes before.

    ``lines`` (P,) per box, one per candidate and one for the whole box; ``start`` (P,): where the lowest rank of a box
    begins, behind an entry of what lies before it; ``step`` (P,): entries from one rank to the next.
    """

    start: IntArray
    step: IntArray
    lines: IntArray
    cells: IntArray
    points: IntArray

    @classmethod
    def of(cls, ranked: RankedCells, boxes: IntArray, candidates: Candidates, ranks: IntArray) -> Self:
        """Tables of ``ranks`` (P,) ranks per box.

        Widths are rounded up to powers of two, so that tables of one width make one matrix and few matrices are summed;
        where all tables together are small beside the grid, they have the largest width.
        """
        lines = np.diff(candidates.offsets) + 1
        width = 1 << np.ceil(np.log2(np.maximum(ranks, 1))).astype(np.int64)
        if lines.sum() * width.max() <= ranked.rank.size:
            width[:] = width.max()
        order, widths, size = np.argsort(width, kind="stable"), np.unique(width), lines * (width + 1)
        first, start, step = np.empty((3, len(boxes)), dtype=np.int64)
        first[order] = np.cumsum(size[order]) - size[order]
        counted = np.bincount(_entries(ranked, boxes, candidates, first, width), minlength=int(size.sum()))
        sums, begin = np.zeros((2, int((lines * width).sum() + widths.sum())), dtype=np.int64), 0
        for each in widths:
            same = order[width[order] == each]
            ends = np.cumsum(lines[same])
            start[same], step[same] = begin + 1 + ends - lines[same], 1 + ends[-1]
            here = counted[first[same[0]] :][: ends[-1] * (each + 1)].reshape(-1, each + 1)
            _sum_up(here[:, :each].T, ranked.distinct, sums[:, begin:][:, : each * step[same[0]]].reshape(2, each, -1))
            begin += each * step[same[0]]
        return cls(start, step, lines, *sums)

    def upto(self, box: IntArray, line: IntArray, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(Cells, counts) among the ``ranks`` lowest in lines 0 … ``line`` of each ``box``; (0, 0) for no ranks."""
        before = self.start[box] - 1 + (np.maximum(ranks, 1) - 1) * self.step[box]
        entry = before + 1 + line
        cells, points = (table[entry] - table[before] for table in (self.cells, self.points))
        return np.where(ranks > 0, cells, 0), np.where(ranks > 0, points, 0)


def _entries(
    ranked: RankedCells, boxes: IntArray, candidates: Candidates, first: IntArray, width: IntArray
) -> npt.NDArray[np.integer[Any]]:
    """Entry in which each cell is counted, (cells,): box, line, rank, from ``first`` of its box on; ranks beyond the
    ``width`` of a box share one more entry. Those of cells outside every box lie behind all others.
    """
    shape, axis = ranked.rank.shape, candidates.axis
    low, high = np.where(axis == 0, boxes[:, :2].T, boxes[:, 2:].T)
    lowest, inside = _lowest(high - low, candidates, first, width), int((high - low).sum())
    lowest = np.append(lowest, np.full(max(shape), ((np.diff(candidates.offsets) + 1) * (width + 1)).sum()))
    # Half of the memory takes half of the time.
    lowest = lowest.astype(np.int32 if lowest.max() + width.max() < 2**31 else np.int64)
    # Cells outside every box are on lines behind those of the boxes.
    line = _painted(shape, boxes, np.cumsum(high - low) - high - inside)
    x, y = (np.arange(inside, inside + length, dtype=np.int32) for length in shape)
    along = np.where(axis == 0, width, -width)
    if np.ptp(along):
        cut = _painted(shape, boxes, along)
        line += np.where(cut > 0, x[:, None], y)
    else:
        cut = np.asarray(along[0], dtype=np.int32)
        line += x[:, None] if cut > 0 else y
    entry = np.take(lowest, line)
    entry += np.minimum(ranked.rank, np.abs(cut))
    return entry.ravel()


def _lowest(lines: IntArray, candidates: Candidates, first: IntArray, width: IntArray) -> IntArray:
    """Entry of the lowest rank of every one of the ``lines`` (P,) of cells of the boxes, one box after the other.

    Lines before the first candidate share its row, lines behind the last candidate the last row.
    """
    box = np.repeat(np.arange(len(lines)), lines)
    row = np.arange(len(box)) - (np.cumsum(lines) - lines + candidates.first - 1)[box]
    return np.asarray(first[box] + np.clip(row, 0, np.diff(candidates.offsets)[box]) * (width + 1)[box])


def _painted(shape: tuple[int, int], boxes: IntArray, values: IntArray) -> npt.NDArray[np.int32]:
    """The value of the box of every cell, and 0 for cells outside every box; boxes are disjoint. ``values``: (P,)."""
    x0, x1, y0, y1 = boxes.T
    change = np.zeros((shape[0] + 1, shape[1] + 1), dtype=np.int32)
    # No two disjoint boxes have the same corner of one kind, so each of these sums takes every entry once at most.
    for x, y, sign in ((x0, y0, 1), (x1, y1, 1), (x0, y1, -1), (x1, y0, -1)):
        change[x, y] += (sign * values).astype(np.int32)
    sum_along_both(change)
    return change[:-1, :-1]


def _sum_up(counted: IntArray, distinct: IntArray, sums: IntArray) -> None:
    """Fill ``sums`` (2, W, L + 1), which are 0, behind the first column: with running sums along both axes of the cells
    ``counted`` (W, L) by rank and line, and of their counts.
    """
    cells, points = sums
    np.cumsum(counted, axis=1, out=cells[:, 1:])
    known = distinct[: len(counted), None]
    np.multiply(cells[: len(known)], known, out=points[: len(known)])
    for table in (cells, points):
        np.cumsum(table, axis=0, out=table)
