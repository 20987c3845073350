"""Exact-loss allocation: noise scales for many released numbers under one budget per user (relation "values" only).

User l loses Σ_r Δ[r,l]/b_r when row r is released with Laplace scale b_r. Under relation "values" every Δ is public, so
the scales solve a convex program: minimise Σ_r w_r·b_r subject to Σ_r Δ[r,l]/b_r ≤ β_l for every user l.
Whatever the solver did, the scales handed out are integer ratios whose charges were added up in integers and found
within every allowance: the guarantee never rests on convergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpcore.budget import MICRO
from dpcore.contributions import Counts, IntArray
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError

FloatArray = npt.NDArray[np.float64]

MAX_NUMERATOR = 2**40
"""Largest numerator of a scale (the exact sampler's bound)."""
MAX_SENSITIVITY = 2**40
"""Largest Δ, in quanta of its row."""
MAX_CHARGE = 2**62
"""Every integer product and sum of a charge stays below this."""


@dataclass(frozen=True)
class Sensitivities:
    """Sparse matrix Δ of R rows (released numbers) × L users, in quanta of each row; E entries, sorted by (row, user).

    ``weight``: shape (R,), cost of one quantum of noise scale; 0 is refused. Public under relation "values".
    """

    row: IntArray
    user: IntArray
    delta: IntArray
    weight: FloatArray
    n_users: int

    def __post_init__(self) -> None:
        if not len(self.row) == len(self.user) == len(self.delta):
            raise ParameterError("row, user and delta must have one entry each; give columns of equal length")
        if len(self.delta) and (self.delta.min() < 1 or self.delta.max() > MAX_SENSITIVITY):
            raise OverflowBoundError(
                f"sensitivities span {self.delta.min()}..{self.delta.max()} quanta, allowed is 1..2^40; "
                "leave zeros out and use a coarser quantum"
            )
        if not (np.all(np.isfinite(self.weight)) and np.all(self.weight > 0)):
            raise ParameterError("every row weight must be finite and above 0; leave out rows that are not released")
        key = self.row * max(self.n_users, 1) + self.user
        if np.any(np.diff(key) <= 0) or np.any(self.row < 0) or np.any(self.row >= self.n_rows):
            raise ParameterError("entries must be sorted by (row, user) without repeats, rows within the weights")
        if np.any(self.user < 0) or np.any(self.user >= self.n_users):
            raise ParameterError(f"user indices must lie in 0..{self.n_users - 1}")

    @property
    def n_rows(self) -> int:
        """R."""
        return len(self.weight)

    @cached_property
    def row_start(self) -> IntArray:
        """Shape (R+1,): entries of row r are ``row_start[r]:row_start[r+1]``."""
        return np.searchsorted(self.row, np.arange(self.n_rows + 1)).astype(np.int64)

    @cached_property
    def entries_per_user(self) -> IntArray:
        """Shape (L,)."""
        return np.bincount(self.user, minlength=self.n_users).astype(np.int64)

    def row_max(self, column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Largest entry of a column per row, shape (R,); 0 for a row without entries."""
        out = np.zeros(self.n_rows, dtype=column.dtype)
        filled = np.flatnonzero(np.diff(self.row_start))
        if len(filled):
            out[filled] = np.maximum.reduceat(column, self.row_start[filled])
        return out


@dataclass(frozen=True)
class Allocation:
    """Scales b_r = ``numerator``/``denominator`` (quanta of row r) and what they cost every user.

    ``numerator`` 0: nobody can move the row; it is released without noise. ``charges``: shape (L,), µε, exact upper
    bound of each user's loss, never above his allowance. ``objective`` = Σ w·b of the handed-out scales, ``bound`` a
    lower bound of the optimum, ``gap`` = objective/bound − 1. ``prices``: dual price of each user's allowance.
    """

    numerator: IntArray
    denominator: IntArray
    charges: IntArray
    objective: float
    bound: float
    iterations: int
    prices: FloatArray = field(repr=False)

    @property
    def scales(self) -> FloatArray:
        """b, shape (R,), quanta; for reports and intervals, never for drawing."""
        return self.numerator / self.denominator

    @property
    def gap(self) -> float:
        """Relative distance to the proved lower bound of the optimum."""
        return self.objective / self.bound - 1 if self.bound > 0 else 0.0


def mean_rows(counts: Counts, samples: IntArray, upper: int) -> Sensitivities:
    """One row per cell for the integer Σx over the retained ``samples`` (P,) of values in [0, ``upper``]: Δ = U·Γ.

    The mean is Σx/n, n public. Weight: events of the cell / range of the row (U·n), so 1 = one full range of error
    for one event. Relation "values".
    """
    retained = counts.by_cell(samples)
    weight = counts.by_cell(counts.samples) / np.maximum(retained * max(upper, 1), 1)
    return _rows(counts, samples * upper, weight)


def variance_rows(counts: Counts, samples: IntArray, upper: int) -> Sensitivities:
    """One row per cell for the integer n·Σx² − (Σx)² (n² times the 1/n variance): Δ = U²·j·(n−j), j = min(Γ, ⌊n/2⌋).

    Weight: events / range of the row (U²·⌊n/2⌋·⌈n/2⌉). Relation "values". Raises :class:`OverflowBoundError` where
    U²n² leaves int64. Source: [C], mechanisms S7.
    """
    retained = counts.by_cell(samples)
    most = int(retained.max(initial=0))
    if upper**2 * most**2 >= MAX_CHARGE:
        raise OverflowBoundError(f"variance of {most} values of up to {upper} quanta exceeds 2^62; use a coarser quantum")
    n = retained[counts.pair_cell]
    j = np.minimum(samples, n // 2)
    span = np.maximum(upper * upper * (retained // 2) * (retained - retained // 2), 1)
    return _rows(counts, upper * upper * j * (n - j), counts.by_cell(counts.samples) / span)


def histogram_rows(counts: Counts, samples: IntArray, levels: int) -> Sensitivities:
    """``levels`` rows per cell (cell-major) for a tree of counts over each cell's values: Δ = 2Γ at every level.

    Weight: events / (range n of a count · levels). Relation "values". Source: [T], mechanisms S12.
    """
    single = _rows(counts, 2 * samples, counts.by_cell(counts.samples) / np.maximum(counts.by_cell(samples), 1))
    row = (single.row[:, None] * levels + np.arange(levels)).ravel()
    order = np.argsort(row, kind="stable")
    return Sensitivities(
        row[order],
        np.repeat(single.user, levels)[order],
        np.repeat(single.delta, levels)[order],
        np.repeat(single.weight / levels, levels),
        single.n_users,
    )


def stack(parts: Sequence[Sensitivities]) -> Sensitivities:
    """All rows of ``parts`` in one program, in order; they must share the users."""
    if len({part.n_users for part in parts}) != 1:
        raise ParameterError("stacked statistics must be about the same users; build them from the same counts")
    offset = np.append(0, np.cumsum([part.n_rows for part in parts]))
    return Sensitivities(
        np.concatenate([part.row + base for part, base in zip(parts, offset[:-1], strict=True)]),
        np.concatenate([part.user for part in parts]),
        np.concatenate([part.delta for part in parts]),
        np.concatenate([part.weight for part in parts]),
        parts[0].n_users,
    )


def _rows(counts: Counts, delta: IntArray, weight: FloatArray) -> Sensitivities:
    keep = delta > 0
    positive = np.where(weight > 0, weight, 1.0)
    return Sensitivities(counts.pair_cell[keep], counts.pair_user[keep], delta[keep], positive, counts.n_users)


def allocate(
    sensitivities: Sensitivities, allowances: IntArray, *, tolerance: float = 1e-4, max_iterations: int = 500
) -> Allocation:
    """Scales of least Σ w·b within every user's allowance (``allowances``: shape (L,), µε, every entry positive).

    Stops at relative gap ``tolerance`` or after ``max_iterations``; either way the charges hold exactly. Relation
    "values". Raises :class:`BudgetError` for an allowance that cannot pay 1 µε per entry (leave such users out),
    :class:`OverflowBoundError` where an integer bound fails.
    """
    beta = _checked_allowances(sensitivities, allowances)
    solution = _solve(sensitivities, beta, tolerance, max_iterations)
    numerator, denominator, charges = _round_exactly(sensitivities, allowances, solution.scales)
    objective = float(sensitivities.weight @ (numerator / denominator))
    return Allocation(
        numerator, denominator, charges, objective, solution.bound, solution.iterations, solution.prices
    )


def uniform_allocation(sensitivities: Sensitivities, allowances: IntArray) -> Allocation:
    """The papers' allocation: every user's allowance split equally over the most rows anyone has; charges exact.

    b_r = max_l Δ[r,l]·K/β_l, K the largest number of rows of one user. For comparison. Raises as :func:`allocate`.
    """
    beta = _checked_allowances(sensitivities, allowances)
    most = int(sensitivities.entries_per_user.max(initial=0))
    scales = sensitivities.row_max(sensitivities.delta * most / beta[sensitivities.user]).astype(np.float64)
    numerator, denominator, charges = _round_exactly(sensitivities, allowances, scales)
    objective = float(sensitivities.weight @ (numerator / denominator))
    return Allocation(numerator, denominator, charges, objective, 0.0, 0, np.zeros(sensitivities.n_users))
