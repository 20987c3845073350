"""Small programs and cells, of which exact losses and worst changes are computed without the code that charges."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import optimize

from dpcore.allocation import Sensitivities
from dpcore.contributions import Contributions, Counts


def counts_of(table: Any) -> Counts:
    """Counts of a dense (users × cells) table; empty users and cells are left out."""
    table = np.array(table, dtype=np.int64)
    table = table[table.any(axis=1)][:, table.any(axis=0)]
    cell, user = np.nonzero(table.T)
    users, cells = (np.arange(n, dtype=np.uint64) for n in table.shape)
    return Counts(cells, users, cell, user, table[user, cell])


def from_dense(matrix: np.ndarray, weight: np.ndarray | None = None) -> Sensitivities:
    row, user = np.nonzero(matrix)
    weight = np.ones(len(matrix)) if weight is None else weight
    return Sensitivities(row, user, matrix[row, user].astype(np.int64), weight, matrix.shape[1])


matrices = arrays(
    np.int64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.sampled_from([0, 0, 1, 2, 7, 800, 10**6])
)
"""Sensitivities, rows × users."""


def overcharged(matrix: np.ndarray, allocation: Any, gaussian: bool = False) -> bool:
    """Whether some user loses more than they are charged: Σ Δ/b in µε, or under Gaussian noise Σ Δ²/(2σ²) in nρ."""
    power, unit = (2, Fraction(10**9, 2)) if gaussian else (1, Fraction(10**6))
    rates = [
        Fraction(int(s), int(t)) ** power * unit if t else Fraction(0)
        for t, s in zip(allocation.numerator, allocation.denominator, strict=True)
    ]
    lost = [sum(int(d) ** power * rate for d, rate in zip(column, rates, strict=True)) for column in matrix.T]
    return any(loss > int(charge) for loss, charge in zip(lost, allocation.charges, strict=True))


def optimum(moves: np.ndarray, weight: np.ndarray, beta: np.ndarray, power: float = 1.0) -> float:
    """min Σ w·x^(−power) subject to movesᵀ·x ≤ β, by SLSQP over shares z = x/x₀ of a feasible x₀, from three starts."""
    even = 1 / ((moves > 0).sum(0).max() * (moves / beta).max(1))
    part = weight / even**power
    solutions = [
        optimize.minimize(
            lambda z: float((part / z**power).sum() / part.sum()),
            np.full(len(moves), start),
            jac=lambda z: -power * part / z ** (power + 1) / part.sum(),
            bounds=[(1e-3, None)] * len(moves),
            constraints={
                "type": "ineq",
                "fun": lambda z: 1 - (moves.T @ (even * z)) / beta,
                "jac": lambda z: -(moves.T * even) / beta[:, None],
            },
            method="SLSQP",
            options={"maxiter": 1000, "ftol": 1e-12},
        )
        for start in (0.9, 0.5, 0.2)
    ]
    return min(float(solution.fun) * part.sum() for solution in solutions if solution.success)


Row = tuple[int, int, int, int]
"""Cell, user, time and value of an event."""


def group(rows: list[Row], upper: int) -> Contributions:
    cell, user, time, value = (np.array(column) for column in zip(*rows, strict=True))
    return Contributions.group(cell.astype(np.uint64), user.astype(np.uint64), time, value, upper=upper)


def in_one_cell(samples: tuple[int, ...], value: int = 0) -> list[Row]:
    """Events of users 0, 1, … in one cell, of which user i has ``samples[i]``."""
    return [(1, user, k, value) for user, m in enumerate(samples) for k in range(m)]


def worst_changes(
    samples: tuple[int, ...], values: tuple[int, ...], upper: int, integers: Callable[[Contributions], Any]
) -> list[int]:
    """Per user of one cell the largest L1 change of ``integers`` by their values, over all ``values`` of everybody."""
    rows = in_one_cell(samples)
    owner = np.array([user for _, user, _, _ in rows])
    beside: list[dict[tuple[int, ...], set[tuple[int, ...]]]] = [{} for _ in samples]
    for chosen in itertools.product(values, repeat=len(rows)):
        drawn = integers(group([(c, u, k, v) for (c, u, k, _), v in zip(rows, chosen, strict=True)], upper))
        exact = tuple(np.asarray(drawn).ravel().tolist())
        for user, by_others in enumerate(beside):
            by_others.setdefault(tuple(np.array(chosen)[owner != user]), set()).add(exact)
    return [
        max(
            sum(abs(a - b) for a, b in zip(one, other, strict=True))
            for reached in by_others.values()
            for one, other in itertools.product(reached, repeat=2)
        )
        for by_others in beside
    ]
