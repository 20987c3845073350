"""Relation "participation": the draw of a planned window over the public cell list, and the ratios of noisy numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.bernstein import NoisyPolynomials, Ratio, polynomials
from dpcore.cdf import ONE_SIDED, bin_edges, consistent_cells
from dpcore.contributions import Contributions
from dpcore.gaussian import discrete_gaussian
from dpcore.level_tree import LevelTree
from dpcore.noise import Noise
from dpcore.scales import check_total
from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.statistics.participation.plan import UNIT, Layout, layout, pair_weights, sample_weights, scales
from stream.statistics.plan import DECIMALS, PERCENTS, Columns, Plan, PlanError, check_rows

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_NO_BOUND = float(2**53)
_LAPLACE = (ONE_SIDED, 2.61)
"""97.5 % and 98.75 % quantiles over standard deviation of a Laplace variable; sums of independent ones have less. Two
intervals with the latter hold together with 95 %."""
_NORMAL = (1.96, 2.2415)
"""The same of a normal variable."""


def exact_integers(plan: Plan, contributions: Contributions) -> IntArray:
    """What noise is added to, in 1/UNIT: shape (R, C), rows in the order of :attr:`Layout.rows`; never to be shown.

    One full contribution moves the rows of each part by its sensitivity at most, in L1.
    """
    kept = contributions.retain(np.frombuffer(plan.retained, "<i8"))
    check_total(len(kept.values), UNIT)
    found, counts = Layout.planned(plan), kept.counts
    cells = np.frombuffer(plan.cells, "<u8")
    listed = len(cells)
    column = np.searchsorted(cells, counts.cells[counts.pair_cell])
    of_value = np.repeat(column, counts.samples)
    weights = sample_weights(kept, plan.weight)
    if plan.lower:
        parts = polynomials(_in_range(plan, kept, column), pair_weights(counts, plan.weight), plan.upper_quanta, 1)
        rows = [_sums(column, part, listed) for part in parts]
    else:
        parts = polynomials(kept.values, weights, plan.upper_quanta, found.polynomials)
        rows = [_sums(of_value, part, listed) for part in parts]
    if found.users:
        rows.append(UNIT * np.bincount(column[counts.samples > 0], minlength=listed)[:listed])
    if found.tree is not None:
        bins = found.tree.bins
        edges = bin_edges(plan.upper_quanta, plan.cdf_bins)
        slot = of_value * bins + np.searchsorted(edges, kept.values, side="right") - 1
        levels = found.tree.levels(_sums(slot, weights, listed * bins).reshape(listed, bins))
        rows += [node for level, real in zip(levels, found.tree.real_nodes(), strict=True) for node in level.T[:real]]
    return np.array(rows, dtype=np.int64)


def _in_range(plan: Plan, kept: Contributions, column: IntArray) -> IntArray:
    """Each pair's mean, clipped to the range of its cell and mapped from it to [0, U], shape (P,): nearest integers."""
    samples = kept.counts.samples
    lower, upper = (np.append(np.frombuffer(end, "<i8"), 0)[column] for end in (plan.lower, plan.upper))
    total = np.append(0, np.cumsum(kept.values))[kept.pair_start]
    whole = samples * (upper - lower)
    above = np.clip(np.diff(total) - samples * lower, 0, whole)
    some = np.maximum(whole, 1)
    found: IntArray = (2 * above * plan.upper_quanta + some) // (2 * some)
    return found


def draw_participation(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Noise for every integer of every public cell in one batch, then ratios of the noisy numbers.

    Raises :class:`stream.statistics.plan.PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    rows = Layout.planned(plan).rows
    if len(plan.numerators) != 8 * len(rows):
        raise PlanError(
            f"the plan holds {len(plan.numerators) // 8} noise scales for {len(rows)} parts: it was stored by another "
            "version; release its window with that version"
        )
    exact = exact_integers(plan, contributions)
    part = np.repeat(np.arange(len(rows)), rows)
    t, s = (np.frombuffer(column, "<i8")[part] for column in (plan.numerators, plan.denominators))
    t, s = np.broadcast_to(t[:, None], exact.shape), np.broadcast_to(s[:, None], exact.shape)
    drawn = discrete_gaussian(noise, t, s) if plan.zcdp else noise.discrete_laplace(t, s)
    return _columns(plan, (exact + drawn) / UNIT)


@dataclass(frozen=True)
class _Law:
    """The noise of a plan: standard deviations of its parts in full weights, and what is stated of a deviation."""

    deviations: FloatArray
    per_scale: float
    two_sided: tuple[float, float]

    @classmethod
    def of(cls, t: IntArray, s: IntArray, gaussian: bool) -> _Law:
        if gaussian:
            return cls(t / s / UNIT, 1.0, _NORMAL)
        return cls(np.sqrt(2) * t / s / UNIT, float(np.sqrt(2)), _LAPLACE)


def count_half_width(config: Config) -> float:
    """Half of the 95 % interval of a cell's count, in full weights: a constant of the configuration.

    Raises as :func:`stream.statistics.participation.plan.scales`.
    """
    t, s = scales(config)
    law = _Law.of(t, s, config.privacy.accounting == "zcdp")
    return law.two_sided[0] * float(law.deviations[0] * np.sqrt(layout(config).polynomials + 1))


def _columns(plan: Plan, noisy: FloatArray) -> dict[str, Columns]:
    """Every statistic from the ``noisy`` rows (R, C), in full weights: post-processing."""
    t, s = (np.frombuffer(column, "<i8") for column in (plan.numerators, plan.denominators))
    found, law = Layout.planned(plan), _Law.of(t, s, plan.zcdp is not None)
    degree = found.polynomials
    held = NoisyPolynomials(noisy[: degree + 1], float(law.deviations[0]))
    counted = _count(held.count, held.count_deviation, law)
    columns = {"users": counted}
    if found.users:
        columns = {"users": _count(noisy[degree + 1], float(law.deviations[1]), law), "events": counted}
    upper = plan.upper_quanta * SPEED_QUANTUM_KMH
    if "mean" in plan.statistics:
        columns["mean"] = _ratio("mean", held.mean(law.two_sided[0]), _width(plan), upper, law, _lower(plan))
    if "variance" in plan.statistics:
        columns["variance"] = _ratio("variance", held.variance(law.two_sided[1]), upper**2, upper**2 / 4, law)
    if found.tree is not None:
        columns |= _percentiles(plan, found.tree, noisy[degree + 1 + found.users :], held, law)
    return columns


def _count(raw: FloatArray, deviation: float, law: _Law) -> Columns:
    raw = np.round(raw, DECIMALS["users"])
    half = law.two_sided[0] * deviation + 0.5 * 10.0 ** -DECIMALS["users"]
    scale = np.full(len(raw), deviation / law.per_scale)
    return Columns(raw, np.maximum(raw, 0.0), scale, raw - half, raw + half, _NO_BOUND)


def _ratio(
    name: str, ratio: Ratio, unit: float | FloatArray, top: float, law: _Law, lower: float | FloatArray = 0.0
) -> Columns:
    scale, interval = ratio.deviation * unit / law.per_scale, (lower + ratio.low * unit, lower + ratio.high * unit)
    return Columns.rounded(
        name, lower + ratio.value * unit, scale, interval, top, (lower, np.minimum(lower + unit, top))
    )


def _lower(plan: Plan) -> FloatArray:
    """Low end of the range of each cell's mean, km/h: (C,) or a number."""
    return np.frombuffer(plan.lower or bytes(8), "<i8") * SPEED_QUANTUM_KMH


def _width(plan: Plan) -> FloatArray:
    """Width of the range of each cell's mean, km/h."""
    if not plan.upper:
        return np.array([plan.upper_quanta * SPEED_QUANTUM_KMH])
    return np.frombuffer(plan.upper, "<i8") * SPEED_QUANTUM_KMH - _lower(plan)


def _percentiles(
    plan: Plan, tree: LevelTree, nodes: FloatArray, held: NoisyPolynomials, law: _Law
) -> dict[str, Columns]:
    """p15, p50, p85 of one noisy tree per cell; its root is the noisy count, which is paid for already."""
    levels, start, listed = [], 0, nodes.shape[1]
    for real, span in zip(tree.real_nodes(), tree.leaves_below(), strict=True):
        full = np.zeros((listed, math.prod(tree.factors) // span))
        full[:, :real] = nodes[start : start + real].T
        levels.append(full)
        start += real
    # Laplace scales of equal deviation: what is weighed, and how wide intervals are, follows from deviations alone.
    equal = np.tile(law.deviations[-tree.height :] / np.sqrt(2), (listed, 1))
    root = held.count, np.full(listed, held.count_deviation / np.sqrt(2))
    drawn = consistent_cells(tree, bin_edges(plan.upper_quanta, plan.cdf_bins), root, levels, equal)
    upper, columns = plan.upper_quanta * SPEED_QUANTUM_KMH, {}
    for name, percent in PERCENTS.items():
        if name in plan.statistics:
            value, low, high = (column * SPEED_QUANTUM_KMH for column in drawn.percentile(percent))
            scale = (high - low) / 2 / law.two_sided[0] / law.per_scale
            columns[name] = Columns.rounded(name, value, scale, (low, high), upper)
    return columns


def _sums(index: IntArray, values: IntArray, size: int) -> IntArray:
    """Exact integer sums per index; bincount would add in floating point."""
    order = np.argsort(index, kind="stable")
    total = np.append(0, np.cumsum(values[order]))
    start = np.searchsorted(index[order], np.arange(size + 1))
    sums: IntArray = total[start[1:]] - total[start[:-1]]
    return sums
