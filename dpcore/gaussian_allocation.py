"""Exact-loss allocation of discrete Gaussian noise: scales for many released numbers, one budget per user (relation
"values").

To be proved: row r is released as T_r + N_Z(0, σ_r²), and changing the values of user l moves T_r by at most Δ[r,l],
which is public. Then l loses at most ρ_l = Σ_r Δ[r,l]²/(2σ_r²) in zCDP, and the charge of l is never below it. Proof:
an integer that moves by d under discrete Gaussian noise of scale σ costs d²/(2σ²) (Canonne, Kamath and Steinke 2020,
Theorem 4), the rows' noises are independent, and zCDP adds up (Bun and Steinke 2016, Lemma 1.7). The charge is the sum
of ⌈10⁹·Δ²·s²/(2t²)⌉ over the rows, in integers, for the very ratio σ = t/s that is drawn with. Tested: exact fractions
and brute force in ``tests/dpcore/test_accounting.py``.

The scales solve a convex program in p = 1/σ²: minimise Σ_r w_r·σ_r subject to Σ_r p_r·Δ[r,l]²/2 ≤ β_l, as S14 does for
Laplace noise. Whatever the solver did, the charges were added up in integers and found within every allowance. Source:
mechanism S15; Boyd and Vandenberghe, *Convex Optimization*, chapter 5.
"""

import numpy as np
import scipy

from dpcore.accounting import MAX_RHO, NANO
from dpcore.allocation import (
    MAX_CHARGE,
    MAX_NUMERATOR,
    Allocation,
    Sensitivities,
    checked_allowances,
    round_within,
)
from dpcore.arrays import FloatArray, IntArray
from dpcore.errors import OverflowBoundError

STEPS = 200
"""Dual steps: by then the objective is within a thousandth of its bound; what is left is scaled to fit."""


def allocate_gaussian(sensitivities: Sensitivities, allowances: IntArray) -> Allocation:
    """Scales of least Σ w·σ within every user's allowance (``allowances``: shape (L,), nρ, every entry positive).

    Relation "values". Raises :class:`BudgetError` for an allowance that cannot pay 2 nρ per entry (leave such users
    out), :class:`OverflowBoundError` where an integer bound fails.
    """
    beta = checked_allowances(sensitivities, allowances, 2, MAX_RHO * NANO, "nρ") / NANO
    precision, bound = _solve(sensitivities, beta)
    numerator, denominator, charges = _round_exactly(sensitivities, allowances, precision)
    objective = float(sensitivities.weight @ (numerator / denominator))
    return Allocation(numerator, denominator, charges, objective, bound)


def exact_rho_charges(sensitivities: Sensitivities, numerator: IntArray, denominator: IntArray) -> IntArray:
    """nρ per user, shape (L,): Σ ⌈10⁹·Δ²·s²/(2t²)⌉ for scales t/s, in integers without bound, then int64.

    Raises :class:`ParameterError` for a row that somebody moves and that has no noise, :class:`OverflowBoundError` for
    a sum that could exceed 2^62.
    """
    moved = np.diff(sensitivities.row_start) > 0
    if np.any(numerator[moved] < 1) or np.any(numerator > MAX_NUMERATOR) or np.any(denominator < 1):
        raise OverflowBoundError(
            "noise scales must have numerators in 1..2^40 and denominators of 1 or more; use a coarser quantum or a "
            "larger budget"
        )
    # Users with as many samples in a cell have one cost there, so few products need integers without bound.
    order = np.lexsort((sensitivities.delta, sensitivities.row))
    row, delta = sensitivities.row[order], sensitivities.delta[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (row[1:] != row[:-1]) | (delta[1:] != delta[:-1])
    begin = np.flatnonzero(first)
    top = [NANO * int(s) ** 2 for s in denominator.tolist()]
    bottom = [2 * int(t) ** 2 for t in numerator.tolist()]
    costs = [
        -(-top[r] * moves**2 // bottom[r]) for r, moves in zip(row[begin].tolist(), delta[begin].tolist(), strict=True)
    ]
    if max(costs, default=0) * int(sensitivities.entries_per_user.max(initial=0)) >= MAX_CHARGE:
        raise OverflowBoundError("charges of one user could sum beyond 2^62 nρ; use larger scales")
    each = np.empty(len(order), dtype=np.int64)
    each[order] = np.repeat(np.array(costs, dtype=np.int64), np.diff(np.append(begin, len(order))))
    # bincount would add in floating point.
    charges = np.zeros(sensitivities.n_users, dtype=np.int64)
    np.add.at(charges, sensitivities.user, each)
    return charges


def _solve(sensitivities: Sensitivities, beta: FloatArray) -> tuple[FloatArray, float]:
    """Precisions p (R,) that obey every constraint up to rounding, and a lower bound of the objective, by
    multiplicative dual steps.

    At prices y the Lagrangian Σ w·p^(-1/2) + c·p − y, c = Σ_l y_l·Δ²/(2β_l), is least at p = (w/2c)^(2/3).
    """
    precision = np.zeros(sensitivities.n_rows)
    rows = np.flatnonzero(np.diff(sensitivities.row_start))
    if not len(rows):
        return precision, 0.0
    position = np.zeros(sensitivities.n_rows, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    share = np.square(sensitivities.delta.astype(np.float64)) / (2 * beta[sensitivities.user])
    size = len(rows), sensitivities.n_users
    matrix = scipy.sparse.csr_matrix((share, (position[sensitivities.row], sensitivities.user)), size)
    transposed, weight = matrix.T.tocsr(), sensitivities.weight[rows]

    def at(price: FloatArray) -> FloatArray:
        return np.asarray((weight / (2 * np.maximum(matrix @ price, _NOTHING))) ** (2 / 3))

    price = np.asarray(matrix.sum(axis=0)).ravel()
    price = price * weight.sum() / max(price.sum(), _NOTHING)
    for _ in range(STEPS):
        price = np.maximum(price * (transposed @ at(price)), price.max(initial=0.0) * _SLACK)
    chosen = at(price)
    loss = transposed @ chosen
    # p divided by the largest loss among the users of its row is feasible.
    worst = np.maximum.reduceat(loss[matrix.indices], matrix.indptr[:-1])
    precision[rows] = chosen / worst
    # The best multiple of the prices, which weigh S = Σ c·p, gives 2·S^(3/2)/√Σy.
    spent = float(price @ loss)
    return precision, 2 * spent**1.5 / max(float(price.sum()), _NOTHING) ** 0.5


_NOTHING = 1e-300
_SLACK = 1e-15
"""Least price as a share of the largest one: a price of 0 could never grow again."""


def _round_exactly(
    sensitivities: Sensitivities, allowances: IntArray, precision: FloatArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Integer ratios t/s >= p^(-1/2) (s a power of two), numerators near 2^38, whose exact charges are within every
    allowance.

    A ceiling costs at most 1 nρ per entry, so every user is given that much room first.
    """
    moved = np.diff(sensitivities.row_start) > 0
    room = 1 - sensitivities.entries_per_user / allowances
    tightest = sensitivities.row_max((1 / room)[sensitivities.user])
    wanted = np.zeros(sensitivities.n_rows)
    wanted[moved] = np.sqrt(tightest[moved] / precision[moved])
    # Beyond, every entry of the row costs 1 nρ already.
    wanted = np.minimum(wanted, sensitivities.row_max(sensitivities.delta) * np.sqrt(NANO / 2) * (1 + 2.0**-40))
    return round_within(wanted, moved, 2.0**38, lambda t, s: exact_rho_charges(sensitivities, t, s), allowances)
