"""Exact-loss allocation: noise scales for many released numbers under one budget per user (relation "values" only).

User l loses Σ_r Δ[r,l]/b_r when row r is released with Laplace scale b_r. Under relation "values" every Δ is public, so
the scales solve a convex program: minimise Σ_r w_r·b_r subject to Σ_r Δ[r,l]/b_r ≤ β_l for every user l.
Whatever the solver did, the scales handed out are integer ratios whose charges were added up in integers and found
within every allowance: the guarantee never rests on convergence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import scipy

from dpcore._allocation_program import Program
from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.budget import MICRO
from dpcore.contributions import Counts
from dpcore.errors import BudgetError, OverflowBoundError, ParameterError

Positions = npt.NDArray[np.integer[Any]]

_T = TypeVar("_T", np.int64, np.float64)

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

    row: Positions
    user: Positions
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
        ascends = self.row[1:] == self.row[:-1]
        ascends &= self.user[1:] > self.user[:-1]
        ascends |= self.row[1:] > self.row[:-1]
        if not ascends.all() or np.any(self.row < 0) or np.any(self.row >= self.n_rows):
            raise ParameterError("entries must be sorted by (row, user) without repeats, rows within the weights")
        if np.any(self.user < 0) or np.any(self.user >= self.n_users):
            raise ParameterError(f"user indices must lie in 0..{self.n_users - 1}")

    @classmethod
    def of_pairs(cls, counts: Counts, delta: IntArray, weight: FloatArray) -> Sensitivities:
        """One row per cell from the ``delta`` (P,) of each pair; pairs that move nothing are left out."""
        moves = delta > 0
        positive = np.where(weight > 0, weight, 1.0)
        # Half the memory: positions among cells and users of a window have 32 bits.
        row, user = counts.pair_cell[moves].astype(np.int32), counts.pair_user[moves].astype(np.int32)
        return cls(row, user, delta[moves], positive, counts.n_users)

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

    def row_max(self, column: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Largest entry of a column per row, shape (R,); 0 for a row without entries."""
        out = np.zeros(self.n_rows, dtype=column.dtype)
        filled = np.flatnonzero(np.diff(self.row_start))
        if len(filled):
            out[filled] = np.maximum.reduceat(column, self.row_start[filled])
        return out


@dataclass(frozen=True)
class Allocation:
    """Noise scales ``numerator``/``denominator`` (quanta of row r) and what they cost every user, in the ledger's unit:
    b of discrete Laplace noise in µε, or σ of discrete Gaussian noise in nρ.

    ``numerator`` 0: nobody can move the row; it is released without noise. ``charges``: shape (L,), exact upper bound
    of each user's loss, never above their allowance. ``objective`` = Σ w·scale of the handed-out scales, ``bound`` a
    lower bound of the optimum.
    """

    numerator: IntArray
    denominator: IntArray
    charges: IntArray
    objective: float
    bound: float

    @property
    def scales(self) -> FloatArray:
        """The scale of each row, shape (R,), quanta; for reports and intervals, never for drawing."""
        return self.numerator / self.denominator

    @property
    def gap(self) -> float:
        """Relative distance to the proved lower bound of the optimum, objective/bound − 1."""
        return self.objective / self.bound - 1 if self.bound > 0 else 0.0


def checked_retained(counts: Counts, retained: IntArray) -> None:
    """Raise :class:`ParameterError` unless ``retained`` (P,) lies between 0 and each pair's samples."""
    if retained.shape != counts.samples.shape or np.any(retained < 0) or np.any(retained > counts.samples):
        raise ParameterError("retained counts must lie between 0 and each pair's samples; plan from these counts")


def stack(parts: Sequence[Sensitivities]) -> Sensitivities:
    """All rows of ``parts`` in one program, in order; they must share the users."""
    if len({part.n_users for part in parts}) != 1:
        raise ParameterError("stacked statistics must be about the same users; build them from the same counts")
    offset = np.append(0, np.cumsum([part.n_rows for part in parts]))
    return Sensitivities(
        np.concatenate([part.row + base for part, base in zip(parts, offset[:-1].tolist(), strict=True)]),
        np.concatenate([part.user for part in parts]),
        np.concatenate([part.delta for part in parts]),
        np.concatenate([part.weight for part in parts]),
        parts[0].n_users,
    )


def allocate(
    sensitivities: Sensitivities, allowances: IntArray, *, tolerance: float = 1e-4, max_iterations: int = 500
) -> Allocation:
    """Scales of least Σ w·b within every user's allowance (``allowances``: shape (L,), µε, every entry positive).

    Stops at relative gap ``tolerance`` or after ``max_iterations``; either way the charges hold exactly. Relation
    "values". Raises :class:`BudgetError` for an allowance that cannot pay 1 µε per entry (leave such users out),
    :class:`OverflowBoundError` where an integer bound fails.
    """
    beta = checked_allowances(sensitivities, allowances, 1, MAX_NUMERATOR, "µε") / MICRO
    solution = _solved(sensitivities, beta, tolerance, max_iterations)
    numerator, denominator, _ = _round_exactly(sensitivities, allowances, solution.scales)
    numerator = _fill_slack(sensitivities, allowances, numerator, denominator)
    charges = exact_charges(sensitivities, numerator, denominator)
    if np.any(charges > allowances):
        raise BudgetError("a charge exceeds its allowance after rounding; nothing may be released with these scales")
    objective = float(sensitivities.weight @ (numerator / denominator))
    return Allocation(numerator, denominator, charges, objective, solution.bound)


def uniform_allocation(sensitivities: Sensitivities, allowances: IntArray) -> Allocation:
    """The papers' allocation: every user's allowance split equally over the most rows anyone has; charges exact.

    b_r = max_l Δ[r,l]·K/β_l, K the largest number of rows of one user. For comparison. Raises as :func:`allocate`.
    """
    beta = checked_allowances(sensitivities, allowances, 1, MAX_NUMERATOR, "µε") / MICRO
    most = int(sensitivities.entries_per_user.max(initial=0))
    scales = sensitivities.row_max(sensitivities.delta * most / beta[sensitivities.user]).astype(np.float64)
    numerator, denominator, charges = _round_exactly(sensitivities, allowances, scales)
    objective = float(sensitivities.weight @ (numerator / denominator))
    return Allocation(numerator, denominator, charges, objective, 0.0)


def exact_charges(sensitivities: Sensitivities, numerator: IntArray, denominator: IntArray) -> IntArray:
    """µε per user, shape (L,): Σ ⌈10⁶·Δ·denominator/numerator⌉ in int64.

    Raises :class:`OverflowBoundError` unless every product and sum provably stays below 2^62.
    """
    largest = sensitivities.row_max(sensitivities.delta)
    moved = largest > 0
    if np.any(numerator[moved] < 1) or np.any(numerator > MAX_NUMERATOR):
        raise OverflowBoundError(
            "noise scales must have numerators in 1..2^40; use a coarser quantum or a larger budget"
        )
    if np.any(denominator[moved] > MAX_CHARGE // (MICRO * largest[moved])):
        raise OverflowBoundError("10^6·sensitivity·denominator exceeds 2^62 for some row; use a coarser quantum")
    # In place, because a window may have tens of millions of entries: −⌊−10⁶·Δ·s / t⌋.
    cost = sensitivities.delta * -MICRO
    cost *= denominator[sensitivities.row]
    cost //= numerator[sensitivities.row]
    np.negative(cost, out=cost)
    if float(cost.max(initial=0)) * float(sensitivities.entries_per_user.max(initial=0)) >= MAX_CHARGE:
        raise OverflowBoundError("charges of one user could sum beyond 2^62; use larger scales")
    # bincount would add in floating point.
    charges = np.zeros(sensitivities.n_users, dtype=np.int64)
    np.add.at(charges, sensitivities.user, cost)
    return charges


def checked_allowances(
    sensitivities: Sensitivities, allowances: IntArray, least: int, most: int, unit: str
) -> IntArray:
    """``allowances`` (L,) in the ledger's ``unit``; raises :class:`BudgetError` for less than ``least`` for each entry
    of a user, and :class:`OverflowBoundError` above ``most``."""
    if allowances.shape != (sensitivities.n_users,) or not np.issubdtype(allowances.dtype, np.integer):
        raise BudgetError(f"allowances must be {sensitivities.n_users} integers of {unit}, one per user")
    short = np.flatnonzero(allowances < least * np.maximum(sensitivities.entries_per_user, 1))
    if len(short):
        raise BudgetError(
            f"{len(short)} users have less than {least} {unit} for each number they enter (the first {unit} "
            f"{allowances[short[0]]} for {sensitivities.entries_per_user[short[0]]}); leave them out of the window"
        )
    if len(allowances) and allowances.max() > most:
        raise OverflowBoundError(f"an allowance of {allowances.max()} {unit} exceeds {most}; give a smaller one")
    return allowances


def _round_exactly(
    sensitivities: Sensitivities, allowances: IntArray, scales: FloatArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Integer ratios t/s ≥ ``scales`` (s a power of two) whose exact charges are within every allowance, and these.

    A ceiling costs at most 1 µε per entry, so every user is given that much room first; a row whose entries already
    cost 1 µε each cannot get cheaper and is left there. Numerators near min(2^38, 2^61/β) keep 10⁶·Δ·s ≤ β·t < 2^62.
    """
    largest = sensitivities.row_max(sensitivities.delta)
    moved = largest > 0
    room = np.maximum(allowances - sensitivities.entries_per_user, 0)
    with np.errstate(divide="ignore"):
        inflation = sensitivities.row_max((allowances / room)[sensitivities.user])
    wanted = np.where(moved, np.minimum(scales * np.maximum(inflation, 1.0), MICRO * largest.astype(np.float64)), 0.0)
    finest = min(2.0**38, 2.0**61 / max(float(allowances.max(initial=1)), 1.0))
    return round_within(wanted, moved, finest, lambda t, s: exact_charges(sensitivities, t, s), allowances)


def round_within(
    wanted: FloatArray,
    moved: BoolArray,
    finest: float,
    charges_of: Callable[[IntArray, IntArray], IntArray],
    allowances: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """Integer ratios t/s ≥ ``wanted`` (R,), numerators up to ``finest``, s a power of two, that ``charges_of`` finds
    within all ``allowances`` (L,), and these charges; t = 0 of rows that are not ``moved``.

    Raises :class:`OverflowBoundError` for a scale above 2^40, :class:`BudgetError` where no rounding is within them.
    """
    slack = 1.0
    for attempt in range(_ROUNDING_ATTEMPTS):
        scale = wanted * slack
        if np.any(scale > MAX_NUMERATOR):
            raise OverflowBoundError(f"a noise scale of {scale.max():.3g} quanta exceeds 2^40; use a coarser quantum")
        exponent = np.floor(np.log2(finest / np.where(moved, scale, finest)))
        denominator = np.left_shift(1, np.clip(exponent, 0, 61).astype(np.int64))
        numerator = np.where(moved, np.maximum(np.ceil(scale * denominator), 1), 0).astype(np.int64)
        charges = charges_of(numerator, denominator)
        if np.all(charges <= allowances):
            return numerator, denominator, charges
        slack = 1 + 2.0 ** (attempt - 45)
    raise BudgetError("no rounding of the scales met every allowance; leave out users with next to nothing left")


_ROUNDING_ATTEMPTS = 60
"""Float error is about 2^-48 of a scale, so the second or third attempt succeeds; the last doubles the scales."""


def _fill_slack(
    sensitivities: Sensitivities, allowances: IntArray, numerator: IntArray, denominator: IntArray
) -> IntArray:
    """Lower each row's numerator, costliest rows first, to the least that what its users have left can pay."""
    numerator = numerator.copy()
    left = allowances - exact_charges(sensitivities, numerator, denominator)
    order = np.argsort(-sensitivities.weight * numerator / denominator, kind="stable")
    order = order[numerator[order] > 0]
    if len(sensitivities.row) < SHORT_ROW * len(order):
        order = _fill_together(sensitivities, order, numerator, denominator, left)
    start = sensitivities.row_start
    for row in order.tolist():
        part = slice(start[row], start[row + 1])
        users = sensitivities.user[part]
        spare = left[users]
        if not spare.all():
            continue
        need = MICRO * sensitivities.delta[part] * denominator[row]
        cost = -(-need // numerator[row])
        numerator[row] = (-(-need // (cost + spare))).max()
        left[users] = spare + cost - -(-need // numerator[row])
    return numerator


SHORT_ROW = 8
"""Entries of a usual row from which on users are in so many rows that few can be lowered at once."""
_TOGETHER = 16
"""Rows are lowered at once while they are as many as this, and no less than this part of those that wait."""


def _fill_together(
    sensitivities: Sensitivities, order: IntArray, numerator: IntArray, denominator: IntArray, left: IntArray
) -> IntArray:
    """Fill the slack of rows that share no user with a costlier one, again and again; the rows of ``order`` that
    remain.

    Until its turn comes, nobody takes from the users of such a row. What is left only shrinks, so a row with a user who
    has nothing left is never lowered. Writes to ``numerator`` and ``left`` what :func:`_fill_slack` would, row by row.
    """
    turn = np.full(len(numerator), -1)
    turn[order] = np.arange(len(order))
    waiting = np.flatnonzero(turn[sensitivities.row] >= 0)
    while len(waiting):
        turn[sensitivities.row[waiting[left[sensitivities.user[waiting]] == 0]]] = -1
        waiting = waiting[turn[sensitivities.row[waiting]] >= 0]
        row, user = sensitivities.row[waiting], sensitivities.user[waiting]
        first = np.full(sensitivities.n_users, len(order))
        np.minimum.at(first, user, turn[row])
        follows = np.zeros(len(numerator), dtype=bool)
        follows[row[turn[row] > first[user]]] = True
        now = ~follows[row]
        row, user, need = row[now], user[now], MICRO * sensitivities.delta[waiting[now]] * denominator[row[now]]
        begin = np.flatnonzero(np.diff(row, prepend=-1))
        if len(begin) < max(_TOGETHER, np.count_nonzero(turn >= 0) / _TOGETHER):
            break
        affordable = -(-need // numerator[row]) + left[user]
        numerator[row[begin]] = np.maximum.reduceat(-(-need // affordable), begin)
        left[user] = affordable - -(-need // numerator[row])
        turn[row[begin]] = -1
        waiting = waiting[~now]
    return order[turn[order] >= 0]


class _Solution(NamedTuple):
    """Float scales that obey every constraint up to rounding, and the dual bound."""

    scales: FloatArray
    bound: float


_recent: dict[bytes, _Solution] = {}
"""Planning a window asks for one program up to three times: before merging, without and with clipped samples."""
_MOST_RECENT = 8


def _solved(sensitivities: Sensitivities, beta: FloatArray, tolerance: float, max_iterations: int) -> _Solution:
    """What :func:`_solve` gives, computed once; nobody may write to its scales. Threads that ask for the same at once
    both compute it.
    """
    columns = (sensitivities.row, sensitivities.user, sensitivities.delta, sensitivities.weight, beta)
    digest = hashlib.blake2b(repr([(column.dtype.str, column.shape) for column in columns]).encode(), digest_size=32)
    digest.update(repr((tolerance, max_iterations)).encode())
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    key = digest.digest()
    solution = _recent.pop(key, None) or _solve(sensitivities, beta, tolerance, max_iterations)
    solution.scales.flags.writeable = False
    _recent[key] = solution
    for longest_ago in list(_recent)[:-_MOST_RECENT]:
        _recent.pop(longest_ago, None)
    return solution


def _matrix(sensitivities: Sensitivities, rows: IntArray, beta: FloatArray) -> scipy.sparse.csr_matrix:
    """Δ[r,l]/β_l of ``rows``, all that have entries, in the memory that the solver reads, without a product of
    matrices.

    Entries of a row are from its last user to its first. The solver adds them up in this order, so another one would
    change the last digits of scales.
    """
    size, entries = (len(rows), sensitivities.n_users), len(sensitivities.row)
    index = scipy.sparse.get_index_dtype(maxval=max(entries, *size))
    start = np.append(sensitivities.row_start[rows], entries)
    backwards = np.repeat(start[:-1] + start[1:] - 1, np.diff(start))
    backwards -= np.arange(entries)
    user = sensitivities.user[backwards]
    shares = sensitivities.delta[backwards] * (1 / beta)[user]
    return scipy.sparse.csr_matrix((shares, user.astype(index), start.astype(index)), size)


_WARM_UP = 30
"""Dual steps over all users before the program is restricted to those whose constraint can bind."""
_INNER = 400
"""Dual steps on the restricted program between two looks at all users."""


def _solve(sensitivities: Sensitivities, beta: FloatArray, tolerance: float, max_iterations: int) -> _Solution:
    """Multiplicative dual ascent on x = 1/b, first over all users, then over the few whose constraint can bind, until
    the best scales are within ``tolerance`` of the best bound. Boyd and Vandenberghe, *Convex Optimization*, chapter 5.
    """
    rows = np.flatnonzero(np.diff(sensitivities.row_start))
    scales = np.zeros(sensitivities.n_rows)
    if not len(rows):
        return _Solution(scales, 0.0)
    program = Program.of(_matrix(sensitivities, rows, beta), sensitivities.weight[rows])
    price = program.ascend(program.first_prices(), _WARM_UP)
    iterations = _WARM_UP
    cheapest = tightest = point = program.at(price)
    while cheapest.objective > tightest.bound * (1 + tolerance) and iterations < max_iterations:
        steps = min(_INNER, max_iterations - iterations)
        price = program.ascend_binding(price, point.loss, steps)
        iterations += steps
        point = program.at(price)
        cheapest = point if point.objective < cheapest.objective else cheapest
        tightest = point if point.bound > tightest.bound else tightest
    scales[rows] = cheapest.scales
    return _Solution(scales, tightest.bound)
