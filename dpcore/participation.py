"""What every public cell releases under relation "participation": numbers that a user moves by their weight, plus
noise.

To be proved: if all events of one user are removed, the numbers of part p (count and moments of a cell, its users, a
level of its tree, its moving reports) move in L1 by at most their weight there times
:meth:`Participation.sensitivities` of p, over all cells together; so they lose at most :meth:`Participation.charges`,
which depend on their own data only, as do the cells and samples they give. The same holds of the part of the area,
which is the count and mean of all cells together. Proof: a sample of weight w adds w to one node of each level, and
non-negative numbers of sum w to the polynomials of its cell (:mod:`dpcore.bernstein`): L1 norm w, hence L2 norm at most
w. Where a range is given (:mod:`dpcore.residual`), the mean of a user's samples in the cell takes their place, clipped
to it and mapped to [0, U]: its polynomials still sum to w, and the range follows from earlier releases. To those of
moving reports a sample adds the same or, where it stands, nothing. Weights of a user's contribution add up to at most
the sensitivity, in at most k cells ("share": in all cells together). The area's numbers are sums of such
polynomials over all samples of all cells. They move in L1 by the sum W of a user's weights, hence in L2 by at most W,
not by the root of the sum of squares over cells. So the area is offered with "share" only, where W is at most 1.
Discrete Laplace noise of scale b costs L1/b; discrete Gaussian noise of scale σ costs L2²/(2σ²) in ρ
(:mod:`dpcore.accounting`). Parts and cells have independent noise and add up. Scales are constants of the
configuration, so they reveal nothing, and every cell of a public list is released. Tested: over every world of 3 users,
3 windows and 2 cells in ``tests/audit/test_participation_audit.py``, on samples of the shipped path in
``tests/audit/test_participation_audit.py``; of the area also in ``tests/stream/statistics/test_area_mean.py``.

Neighbours differ by all events of one user. Integers are in 1/:data:`UNIT`. Source: mechanisms S13, S12.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np

from dpcore.accounting import gaussian_ratio, square_losses
from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.bernstein import polynomials
from dpcore.budget import MICRO
from dpcore.cdf import bin_edges, bin_tree
from dpcore.contributions import Contributions, Counts, stretches
from dpcore.errors import BudgetError, ParameterError
from dpcore.gaussian import discrete_gaussian
from dpcore.level_tree import LevelTree, split_budget
from dpcore.noise import Noise
from dpcore.scales import check_clipped, check_total, noise_ratio

Weight = Literal["sample", "user", "share"]
"""What has the weight 1: a sample, a user in a cell, or a user in the window."""

UNIT = 2**20
"""Integer weight of one sample, or of one user: fine enough that a user's weight divides among thousands of samples."""


@dataclass(frozen=True)
class Layout:
    """What is released of every cell, in the order of the scales: constants of the configuration.

    ``degree``: of the polynomials that hold count, mean and variance. ``users``: whether users are counted apart from
    their samples. ``tree``: over the bins of the distribution, at most U + 1; None without percentiles. ``upper``: U in
    quanta. ``moving_from``: quanta from which on a report moves, if number and mean of moving reports are released,
    else 0. ``area``: whether count and mean of all cells together are released, too. Each of them is a part with a
    noise scale of its own, the tree one per level; the area's is the last. Raises :class:`ParameterError` for an area
    with a weight other than "share", and for more bins than values.
    """

    degree: int
    users: bool
    tree: LevelTree | None
    weight: Weight
    upper: int
    area: bool = False
    moving_from: int = 0

    def __post_init__(self) -> None:
        if self.tree is not None and self.tree.bins > self.upper + 1:
            raise ParameterError(
                f"a tree over {self.tree.bins} bins has more of them than the {self.upper + 1} values; use Layout.of"
            )
        if self.area and self.weight != "share":
            raise ParameterError(
                f"weight {self.weight!r} lets one user move the area's mean by more than 1; use 'share'"
            )

    @classmethod
    def of(
        cls,
        *,
        mean: bool,
        variance: bool,
        percentiles: bool,
        weight: Weight,
        upper: int,
        bins: int,
        area: bool = False,
        moving_from: int = 0,
    ) -> Self:
        """The layout for these statistics of values up to ``upper`` quanta, in min(``bins``, U + 1) bins."""
        tree = bin_tree(upper, bins) if percentiles else None
        return cls(2 if variance else int(mean), weight == "sample", tree, weight, upper, area, moving_from)

    @property
    def rows(self) -> IntArray:
        """Released numbers per cell of each part but the area, shape (parts,)."""
        nodes = [] if self.tree is None else self.tree.real_nodes()
        return np.array([self.degree + 1] + [1] * self.users + nodes + [2] * (self.moving_from > 0), dtype=np.int64)


@dataclass(frozen=True)
class Participation:
    """The terms on which users contribute: constants of the configuration.

    ``cells``: k, the cells that count of one user. ``samples``: m, the samples that count of one user in a cell, only
    where ``layout.weight`` is "sample". ``grant``: what a user pays for a window at most, µε, or nρ where ``gaussian``.
    ``shares``: relative shares of polynomials, users and percentiles; those of moving reports have as much as the
    polynomials again. ``area_share``: of the area, where ``layout`` has it.
    """

    layout: Layout
    cells: int
    samples: int
    grant: int
    gaussian: bool
    shares: tuple[float, float, float]
    area_share: float = 0.0

    @property
    def sensitivities(self) -> IntArray:
        """Most that one full contribution moves each part, in 1/:data:`UNIT`, shape (parts,): in L1, hence also in
        L2."""
        most = UNIT * (self.samples if self.layout.weight == "sample" else 1)
        levels = 0 if self.layout.tree is None else self.layout.tree.height
        others = levels + (self.layout.moving_from > 0) + self.layout.area
        return np.array([most] + [UNIT] * self.layout.users + [most] * others, dtype=np.int64)

    def own_choice(self, counts: Counts, listed_cells: IdArray) -> IntArray:
        """Samples kept per pair, shape (P,): of each user the k listed cells with most of their samples, m samples in
        each.

        Ties go to the lowest cell. A user's choice depends on their own events and the public list only.
        """
        listed = np.isin(counts.cells, listed_cells)[counts.pair_cell]
        pairs = np.flatnonzero(listed)
        order = pairs[np.lexsort((counts.pair_cell[pairs], -counts.samples[pairs], counts.pair_user[pairs]))]
        user = counts.pair_user[order]
        first = np.searchsorted(user, user)
        chosen = order[np.arange(len(order)) - first < self.cells]
        kept = np.zeros(len(counts.samples), dtype=np.int64)
        own = counts.samples[chosen]
        kept[chosen] = np.minimum(own, self.samples) if self.layout.weight == "sample" else own
        return kept

    @property
    def unit_grant(self) -> int:
        """µε, or nρ, that one full contribution costs at most, rounded down.

        With weight "sample" or "user" that is one cell, and a window's grant is shared by the k cells a user may
        contribute to; with "share" a user makes one contribution to the window, divided over their cells.
        """
        return self.grant // (1 if self.layout.weight == "share" else self.cells)

    @cached_property
    def part_grants(self) -> IntArray:
        """µε, or nρ, of each part of a full contribution, shape (parts,); they add up to :attr:`unit_grant` exactly.

        Raises :class:`BudgetError` where a part would get less than 1.
        """
        moments, users, percentiles = self.shares
        weights = [moments] + [users] * self.layout.users
        if self.layout.tree is not None:
            # The variance of a level is ∝ 1/ε², but ∝ 1/ρ: least in total at shares ∝ (n − 1)^(1/3) and (n − 1)^(1/2).
            levels = self.layout.tree.shares() ** (1.5 if self.gaussian else 1.0)
            weights += (percentiles * levels / levels.sum()).tolist()
        weights += [moments] * (self.layout.moving_from > 0) + [self.area_share] * self.layout.area
        if self.unit_grant < len(weights):
            raise BudgetError(
                f"an allowance of {self.grant} {'nρ' if self.gaussian else 'µε'} over {self.cells} cells and "
                f"{len(weights)} parts leaves less than 1 each; raise the allowance, or lower cells_per_user"
            )
        return split_budget(self.unit_grant, np.array(weights) / sum(weights))

    @cached_property
    def scales(self) -> tuple[IntArray, IntArray]:
        """Noise scales t/s of the parts, in 1/:data:`UNIT`: never less noise than their grant pays for; σ where
        ``gaussian``.

        Raises :class:`BudgetError`, or :class:`dpcore.errors.OverflowBoundError` for scales above 2^40.
        """
        bounds, grants = self.sensitivities.tolist(), self.part_grants.tolist()
        if self.gaussian:
            ratios = [gaussian_ratio(bound, grant) for bound, grant in zip(bounds, grants, strict=True)]
        else:
            ratios = [noise_ratio(bound, grant) for bound, grant in zip(bounds, grants, strict=True)]
            if any(bound * s * MICRO > g * t for bound, g, (t, s) in zip(bounds, grants, ratios, strict=True)):
                raise BudgetError(
                    "a noise scale falls short of its share after rounding; nothing may be released with it"
                )
        t, s = np.array(ratios, dtype=np.int64).T
        return t, s

    def charges(self, counts: Counts) -> IntArray:
        """What each user pays for pairs with ``counts.samples`` kept samples, shape (L,), µε or nρ: by their own data
        only.

        µε: :attr:`unit_grant` for each of their cells, or once with "share". nρ: the exact loss Σ w²/(2σ²) of their
        weights w, in the area (Σ w)²/(2σ²), each part's rounded up, for noise on numbers of L2 norm at most w. Never
        above the grant of a window: with "share" a user's weights add up to 1, otherwise they have at most k cells of
        at most one full contribution.
        """
        weight = self.layout.weight
        cells = counts.by_user((counts.samples > 0).astype(np.int64))
        if not self.gaussian:
            return (np.minimum(cells, 1) if weight == "share" else cells) * self.unit_grant
        # Squares in units that fit: of UNIT², or of 1 where a user's weights add up to UNIT.
        unit, of_cell = (1, pair_weights(counts, weight)) if weight == "share" else (UNIT, counts.samples)
        squares = cells if weight == "user" else counts.by_user(np.square(of_cell))
        moved = [squares] * len(self.sensitivities)
        if self.layout.users:
            moved[1] = cells
        if self.layout.area:
            moved[-1] = np.square(counts.by_user(of_cell))
        charges = np.zeros(counts.n_users, dtype=np.int64)
        for squared, t, s in zip(moved, *(column.tolist() for column in self.scales), strict=True):
            charges += square_losses(squared, t, s * unit)
        return charges


@dataclass(frozen=True)
class PublicCells:
    """The cells of a window. ``cells``: (C,) listed ids, ascending. ``ranges``: quanta (2, C) to which a user's mean in
    each cell is clipped, made of released values alone; None: values count as they are.
    """

    cells: IdArray
    ranges: IntArray | None = None


def integers(layout: Layout, kept: Contributions, public: PublicCells) -> IntArray:
    """What noise is added to, in 1/:data:`UNIT`: shape (R, C), rows in the order of :attr:`Layout.rows`; never to be
    shown.

    Raises :class:`ParameterError` for samples in cells that are not listed, and for values that were clipped to more
    than U.
    """
    check_total(len(kept.quanta), UNIT)
    check_clipped(kept.upper, layout.upper)
    counts, listed, tree = kept.counts, len(public.cells), layout.tree
    if counts.samples[~np.isin(counts.cells, public.cells)[counts.pair_cell]].any():
        raise ParameterError(
            f"samples lie in none of the {listed} listed cells; keep what Participation.own_choice keeps"
        )
    column = np.searchsorted(public.cells, counts.cells)[counts.pair_cell]
    moments = np.zeros((layout.degree + 1, listed + 1), dtype=np.int64)
    moving = np.zeros((2, listed + 1), dtype=np.int64)
    in_bins = np.zeros((1, listed * (0 if tree is None else tree.bins)), dtype=np.int64)
    if public.ranges is not None:
        means = _in_range(public.ranges, kept, column, layout.upper)
        _add(moments, column, polynomials(means, pair_weights(counts, layout.weight), layout.upper, 1))
    for piece in weighed(kept, layout.weight):
        cell = column[piece.pair]
        if public.ranges is None:
            _add(moments, cell, polynomials(piece.values, piece.weights, layout.upper, layout.degree))
        if layout.moving_from:
            _add(moving, cell, _of_moving(layout, piece))
        if tree is not None:
            edges = bin_edges(layout.upper, tree.bins)
            bin_of_cell = cell * tree.bins + np.searchsorted(edges, piece.values, side="right") - 1
            _add(in_bins, bin_of_cell, piece.weights[None, :])
    rows = list(moments[:, :listed])
    if layout.users:
        rows.append(UNIT * np.bincount(column[counts.samples > 0], minlength=listed))
    if tree is not None:
        levels = tree.levels(in_bins.reshape(listed, tree.bins))
        for level, real in zip(levels, tree.real_nodes(), strict=True):
            rows += list(level.T[:real])
    if layout.moving_from:
        rows += list(moving[:, :listed])
    return np.array(rows, dtype=np.int64)


def _of_moving(layout: Layout, piece: "Weighed") -> IntArray:
    """Polynomials (2, n) of the values that move, between the threshold and U; those that stand add 0."""
    above = piece.values - layout.moving_from
    weights = np.where(above >= 0, piece.weights, 0)
    return polynomials(np.maximum(above, 0), weights, layout.upper - layout.moving_from, 1)


def area_integers(layout: Layout, kept: Contributions) -> IntArray:
    """What the noise of the area is added to, in 1/:data:`UNIT`: shape (2,), sums over all cells; never to be shown.

    Values count as they are, whatever the ranges of cells.
    """
    check_total(len(kept.quanta), UNIT)
    sums = np.zeros(2, dtype=np.int64)
    for piece in weighed(kept, layout.weight):
        sums += polynomials(piece.values, piece.weights, layout.upper, 1).sum(axis=1)
    return sums


def draw(
    layout: Layout, exact: IntArray, area: IntArray, scales: tuple[IntArray, IntArray], gaussian: bool, noise: Noise
) -> tuple[FloatArray, FloatArray]:
    """The ``exact`` integers (R, C), and those of the ``area``, (2,) or none, plus noise of the parts' ``scales``, of
    which the last is the area's, in one batch; in full weights, shapes (R, C) and (2,) or none."""
    part = np.repeat(np.arange(len(layout.rows)), layout.rows)
    t, s = (
        np.append(np.broadcast_to(column[part][:, None], exact.shape), np.full(len(area), column[-1]))
        for column in scales
    )
    drawn = discrete_gaussian(noise, t, s) if gaussian else noise.discrete_laplace(t, s)
    noisy = np.asarray((np.append(exact, area) + drawn) / UNIT)
    return noisy[: exact.size].reshape(exact.shape), noisy[exact.size :]


def pair_weights(counts: Counts, weight: Weight) -> IntArray:
    """Integer weight of every pair with ``counts.samples`` kept samples, shape (P,), in 1/:data:`UNIT`: by own data
    only.

    "sample": 1 for each of them. "user": 1. "share": parts of 1 as a user's samples of the window are divided.
    """
    before, whole = _running(counts, weight)
    divisor = np.maximum(whole, 1)
    weights: IntArray = UNIT * (before + counts.samples) // divisor - UNIT * before // divisor
    return weights


class Weighed(NamedTuple):
    """Some kept values: the pair of each, the value in quanta, and its weight in 1/:data:`UNIT`, shape (n,) each."""

    pair: IntArray
    values: IntArray
    weights: IntArray


def weighed(kept: Contributions, weight: Weight) -> Iterator[Weighed]:
    """Every kept value with its integer weight, some at a time: columns of all of them would take more memory than the
    values.

    The weights of a pair add up to :func:`pair_weights` exactly.
    """
    samples, start = kept.counts.samples, kept.pair_start
    before, whole = _running(kept.counts, weight)
    begin, whole = start[:-1] - before, np.maximum(whole, 1)
    for first, end in stretches(start):
        pair = np.repeat(np.arange(first, end), samples[first:end])
        values = kept.quanta[start[first] : start[end]].astype(np.int64)
        position, divisor = np.arange(start[first], start[end]) - begin[pair], whole[pair]
        yield Weighed(pair, values, UNIT * (position + 1) // divisor - UNIT * position // divisor)


def _running(counts: Counts, weight: Weight) -> tuple[IntArray, IntArray]:
    """Samples of a whole that come before each pair, and samples of that whole; shape (P,) each.

    The whole is each sample by itself under "sample", the pair under "user", all of its user's pairs under "share".
    """
    if weight != "share":
        return np.zeros_like(counts.samples), np.ones_like(counts.samples) if weight == "sample" else counts.samples
    order = np.argsort(counts.pair_user, kind="stable")
    running = np.cumsum(counts.samples[order]) - counts.samples[order]
    before = np.empty(len(counts.samples), dtype=np.int64)
    before[order] = running - running[np.searchsorted(counts.pair_user[order], counts.pair_user[order])]
    return before, counts.by_user(counts.samples)[counts.pair_user]


def _in_range(ranges: IntArray, kept: Contributions, column: IntArray, upper: int) -> IntArray:
    """Each pair's mean, clipped to the range of its cell and mapped from it to [0, U], shape (P,): nearest integers."""
    samples = kept.counts.samples
    lower, above = (np.append(end, 0)[column] for end in ranges)
    total = np.append(0, np.cumsum(kept.values))[kept.pair_start]
    whole = samples * (above - lower)
    inside = np.clip(np.diff(total) - samples * lower, 0, whole)
    divisor = np.maximum(whole, 1)
    means: IntArray = (2 * inside * upper + divisor) // (2 * divisor)
    return means


def _add(sums: IntArray, index: IntArray, parts: IntArray) -> None:
    """Add ``parts`` (R, n) to ``sums`` (R, S) by ``index`` (n,): exact, where bincount would add in floating point."""
    for row, part in zip(sums, parts, strict=True):
        np.add.at(row, index, part)
