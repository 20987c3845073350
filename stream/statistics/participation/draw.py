"""Relation "participation": draws a planned window over the public list of cells, and takes ratios of noisy numbers.

The plan under relation "participation", where nothing about a user is public, not even that a hexagon was visited.

Neighbours differ by all events of one user. Noise scales are constants of the terms. The cells and samples that a user
contributes, their weights and the charge depend on the user's own data only (:mod:`dpcore.participation`). Every cell
of a public list is released in every window.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np

from dpcore.arrays import FloatArray, IdArray, IntArray
from dpcore.bernstein import NoisyPolynomials, Ratio
from dpcore.cdf import ONE_SIDED, bin_edges, consistent_cells
from dpcore.contributions import Contributions, Counts
from dpcore.level_tree import LevelTree
from dpcore.noise import Noise
from dpcore.participation import (
    UNIT,
    Layout,
    Participation,
    PublicCells,
    Weight,
    area_integers,
    draw,
    integers,
)
from stream.statistics.columns import (
    CDF,
    DECIMALS,
    MOVING,
    MOVING_MEAN,
    PERCENTS,
    Columns,
    needs_distribution,
    share_columns,
    too_large,
)
from stream.statistics.plan import (
    NO_INTEGERS,
    Allowance,
    Due,
    ParticipationPart,
    Plan,
    PlanError,
    check_rows,
    counts_digest,
)
from stream.statistics.residual_clipping import response_of
from stream.terms import MOVING_KM_H, MOVING_QUANTA, QUANTUM, ParticipationTerms, SpeedTerms, Terms


@lru_cache(maxsize=8)
def _layout(speed: SpeedTerms, weight: Weight, area: bool) -> Layout:
    return Layout.of(
        mean="mean" in speed.statistics,
        variance="variance" in speed.statistics,
        percentiles=needs_distribution(speed.statistics),
        weight=weight,
        upper=speed.upper_quanta,
        bins=speed.cdf_bins,
        area=area,
        moving_from=MOVING_QUANTA if MOVING_MEAN in speed.statistics else 0,
    )


def layout_of(terms: Terms) -> Layout:
    """The numbers that are released of every cell, and of the area as a whole."""
    own = own_terms(terms)
    return _layout(terms.speed, own.weight, own.shares[-1] > 0)


def own_terms(terms: Terms) -> ParticipationTerms:
    """The part of the terms that is there under this relation."""
    assert terms.participation is not None, "the terms have the part under this relation"
    return terms.participation


participation_with = lru_cache(maxsize=8)(Participation)
"""Rules are made once, because their noise scales are the same in every window."""


def participation_of(terms: Terms) -> Participation:
    """The rules by which users contribute."""
    own, privacy = own_terms(terms), terms.privacy
    moments, users, percentiles, area = map(float, own.shares)
    return participation_with(
        layout_of(terms),
        cells=own.cells_per_user,
        samples=own.samples_per_cell,
        grant=privacy.grant,
        gaussian=privacy.zcdp is not None,
        shares=(moments, users, percentiles),
        area_share=area,
    )


def plan_participation(
    counts: Counts, due: Due, allowance: Allowance, cells: IdArray, asked: IntArray | int = 0
) -> Plan:
    """The contribution and charge of every user. A user who cannot pay contributes nothing, and nothing published shows
    it.

    ``cells``: ids of the public list, (C,), ascending. ``asked``: (L,) the charge for histograms in the ledger's unit.
    A user pays it together with the rest or not at all.
    """
    rules = participation_of(due.terms)
    kept = rules.own_choice(counts, cells)
    charges = rules.charges(replace(counts, samples=kept)) + asked
    pays = charges <= allowance.left
    t, s = rules.scales
    return Plan(
        due=due,
        budget=allowance.budget,
        cells=cells,
        users=counts.users,
        charges=np.where(pays, charges, 0),
        retained=np.where(pays[counts.pair_user], kept, 0),
        numerators=t,
        denominators=s,
        counts_digest=counts_digest(counts),
        participation=ParticipationPart(),
    )


_NO_BOUND = float(2**53)
_LAPLACE = (ONE_SIDED, 2.61)
"""97.5 % and 98.75 % quantiles of a Laplace variable, in standard deviations; sums of independent ones have smaller
quantiles. Two intervals with the latter contain both numbers with 95 %."""
AREA_USERS, AREA_MEAN = "area_users", "area_mean"
"""Names of the columns, of one row, of the area as a whole."""
_NORMAL = (1.96, 2.2415)
"""The same for a normal variable."""


def exact_integers(plan: Plan, contributions: Contributions) -> IntArray:
    """The true integers to which noise is added, in 1/UNIT: (R, C), as :attr:`Layout.rows`. Never publish them."""
    kept = contributions.retain(plan.retained)
    return integers(layout_of(plan.terms), kept, PublicCells(plan.cells, plan.ranges))


def draw_participation(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Draw noise for all integers of all public cells in one batch, then take ratios of the noisy numbers.

    Raises :class:`stream.statistics.plan.PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    layout, scales = layout_of(plan.terms), (plan.scales.numerator, plan.scales.denominator)
    if len(scales[0]) != (parts := len(layout.rows) + layout.area):
        raise PlanError(
            f"the plan has {len(scales[0])} noise scales for {parts} parts, so it was stored by another "
            "version; release its window with that version"
        )
    exact, area = exact_integers(plan, contributions), NO_INTEGERS
    if layout.area:
        area = area_integers(layout, contributions.retain(plan.retained))
    noisy, noisy_area = draw(layout, exact, area, scales, plan.gaussian, noise)
    return columns_of(plan, noisy) | (area_columns(plan, noisy_area) if layout.area else {})


@dataclass(frozen=True)
class _Law:
    """The noise of a plan: standard deviations of its parts in full weights, and the stated scale and interval."""

    deviations: FloatArray
    per_scale: float
    two_sided: tuple[float, float]

    @classmethod
    def of(cls, t: IntArray, s: IntArray, gaussian: bool) -> Self:
        if gaussian:
            return cls(t / s / UNIT, 1.0, _NORMAL)
        return cls(np.sqrt(2) * t / s / UNIT, float(np.sqrt(2)), _LAPLACE)


def count_half_width(terms: Terms) -> float:
    """Half of the 95 % interval of a cell's count, in full weights: a constant of the terms.

    Raises as :attr:`dpcore.participation.Participation.scales`.
    """
    rules = participation_of(terms)
    law = _Law.of(*rules.scales, rules.gaussian)
    return _half_of_count(float(law.deviations[0] * np.sqrt(rules.layout.degree + 1)), law)


def columns_of(plan: Plan, noisy: FloatArray) -> dict[str, Columns]:
    """Every statistic from the ``noisy`` rows (R, C), in full weights: post-processing."""
    layout = layout_of(plan.terms)
    law = _Law.of(plan.scales.numerator, plan.scales.denominator, plan.gaussian)
    degree = layout.degree
    sums = NoisyPolynomials(noisy[: degree + 1], float(law.deviations[0]))
    counted = _count(sums.count, sums.count_deviation, law)
    columns = {"users": counted}
    if layout.users:
        columns = {"users": _count(noisy[degree + 1], float(law.deviations[1]), law), "events": counted}
    upper = plan.terms.speed.upper
    if "mean" in plan.terms.speed.statistics:
        columns["mean"] = _mean(plan, sums.mean(law.two_sided[0]), law)
    if "variance" in plan.terms.speed.statistics:
        columns["variance"] = _ratio("variance", sums.variance(law.two_sided[1]), upper**2, upper**2 / 4, law)
    if layout.moving_from:
        moving = NoisyPolynomials(noisy[-2:], float(law.deviations[len(layout.rows) - 1]))
        ratio = moving.mean(law.two_sided[0])
        columns[MOVING_MEAN] = _ratio(MOVING_MEAN, ratio, upper - MOVING_KM_H, upper, law, np.array([MOVING_KM_H]))
        columns[MOVING] = _count(moving.count, moving.count_deviation, law)
    if layout.tree is not None:
        columns |= _distribution(plan, layout.tree, noisy[degree + 1 + layout.users :], sums, law)
    return columns


def area_columns(plan: Plan, noisy: FloatArray) -> dict[str, Columns]:
    """Users and mean of all cells together, one row, from the area's ``noisy`` numbers (2,), in full weights."""
    law = _Law.of(plan.scales.numerator, plan.scales.denominator, plan.gaussian)
    sums = NoisyPolynomials(noisy[:, None], float(law.deviations[-1]))
    upper = plan.terms.speed.upper
    return {
        AREA_USERS: _count(sums.count, sums.count_deviation, law),
        AREA_MEAN: _ratio("mean", sums.mean(law.two_sided[0]), upper, upper, law),
    }


def _half_of_count(deviation: float, law: _Law) -> float:
    """That of the noise and half a step of the grid on which counts are released."""
    return law.two_sided[0] * deviation + 0.5 * 10.0 ** -DECIMALS["users"]


def _count(raw: FloatArray, deviation: float, law: _Law) -> Columns:
    raw, half = np.round(raw, DECIMALS["users"]), _half_of_count(deviation, law)
    scale = np.full(len(raw), deviation / law.per_scale)
    return Columns(raw, np.maximum(raw, 0.0), scale, raw - half, raw + half, _NO_BOUND)


def _ratio(
    name: str, ratio: Ratio, unit: float | FloatArray, top: float, law: _Law, lower: float | FloatArray = 0.0
) -> Columns:
    scale, interval = ratio.deviation * unit / law.per_scale, (lower + ratio.low * unit, lower + ratio.high * unit)
    return Columns.rounded(
        name, lower + ratio.value * unit, scale, interval, top, (lower, np.minimum(lower + unit, top))
    )


def _mean(plan: Plan, ratio: Ratio, law: _Law) -> Columns:
    """The mean of each cell: the share of U that the ``ratio`` says or, with residual clipping, of the stretched range.

    With it the interval is that of the noise and of what the correction leaves open. It reaches 0 or U where that of
    the noise reaches the end of the range, because all users may be outside.
    """
    top = plan.terms.speed.upper
    if (response := response_of(plan)) is None or plan.ranges is None:
        return _ratio("mean", ratio, top, top, law)
    lower, upper = (response.undone(end * QUANTUM) for end in plan.ranges)
    value, low, high = (lower + part * (upper - lower) for part in (ratio.value, ratio.low, ratio.high))
    left = law.two_sided[0] * response.open
    low = np.where(ratio.low > 0, value - np.hypot(value - low, left), np.minimum(low, 0.0))
    high = np.where(ratio.high < 1, value + np.hypot(high - value, left), np.maximum(high, top))
    scale = np.hypot(ratio.deviation * (upper - lower), response.open) / law.per_scale
    return Columns.rounded("mean", value, scale, (low, high), top)


def _distribution(
    plan: Plan, tree: LevelTree, nodes: FloatArray, sums: NoisyPolynomials, law: _Law
) -> dict[str, Columns]:
    """The distribution from one noisy tree per cell, and p15, p50 and p85 of it. Its root is the noisy count, which has
    been paid for.
    """
    listed = nodes.shape[1]
    # Laplace scales with the same standard deviations, on which alone weights and widths of intervals depend.
    first = 1 + layout_of(plan.terms).users
    equal = np.tile(law.deviations[first : first + tree.height] / np.sqrt(2), (listed, 1))
    root = sums.count, np.full(listed, sums.count_deviation / np.sqrt(2))
    drawn = consistent_cells(
        tree, bin_edges(plan.terms.speed.upper_quanta, plan.terms.speed.cdf_bins), root, _levels(tree, nodes), equal
    )
    upper = plan.terms.speed.upper
    columns = {}
    if not too_large(plan):
        columns[CDF] = share_columns(drawn, np.arange(listed), listed, tree.bins, law.per_scale)
    for name, percent in PERCENTS.items():
        if name in plan.terms.speed.statistics:
            value, low, high = (column * QUANTUM for column in drawn.percentile(percent))
            scale = (high - low) / 2 / law.two_sided[0] / law.per_scale
            columns[name] = Columns.rounded(name, value, scale, (low, high), upper)
    return columns


def _levels(tree: LevelTree, nodes: FloatArray) -> list[FloatArray]:
    """The nodes of each level, shape (C, nodes), from the released ``nodes`` (R, C). Nodes without a bin are 0."""
    levels, start = [], 0
    for real, span in zip(tree.real_nodes(), tree.leaves_below(), strict=True):
        full = np.zeros((nodes.shape[1], math.prod(tree.factors) // span))
        full[:, :real] = nodes[start : start + real].T
        levels.append(full)
        start += real
    return levels
