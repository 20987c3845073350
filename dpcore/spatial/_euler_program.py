"""The linear program over the components of an Euler histogram, with the constraints of
:mod:`dpcore.spatial.euler_inference`."""

from __future__ import annotations

import numpy as np
import scipy

from dpcore.arrays import FloatArray, IntArray
from dpcore.spatial.domain import IntGrid

INTEGRAL_WITHIN = 1e-6
ROUNDING_SECONDS = 10.0


def sides(h: IntGrid) -> list[tuple[IntGrid, IntGrid]]:
    """(side rows, line rows) for both sides of every grid line, in both directions."""
    return [(side, lines) for grid in (h, h.T) for lines in [grid[1::2]] for side in (grid[:-1:2], grid[2::2])]


def signs(shape: tuple[int, ...]) -> IntGrid:
    """1 for faces and vertices, −1 for edges: their signs in the answer for a block of cells."""
    rows, columns = (np.arange(size) for size in shape)
    return np.asarray(1 - 2 * ((rows[:, None] + columns[None, :]) % 2), dtype=np.int64)


class Program:
    """min Σ|h − noisy|: the sparse constraints, once, for both solves."""

    def __init__(self, noisy: IntGrid, *, covert: bool) -> None:
        self.noisy, self.n = noisy, noisy.size
        index = np.arange(self.n, dtype=np.int64).reshape(noisy.shape)
        blocks = [self._bounded(index)]
        self.aux = 0
        if covert:
            for side, line in sides(index):
                blocks.append(self._runs(side, line))
        flat = noisy.ravel()
        self.above = np.flatnonzero(flat > 0)
        # A count below 0 can only be raised: its deviation is linear, no pair of slacks is needed.
        rows = sum(block[3] for block in blocks)
        at = np.cumsum([0, *(block[3] for block in blocks)])
        row = np.concatenate([block[0] + shift for block, shift in zip(blocks, at, strict=False)])
        column = np.concatenate([block[1] for block in blocks])
        value = np.concatenate([block[2] for block in blocks])
        self.width = self.n + self.aux + len(self.above)
        # Slack t_i ≥ 0 of a positive count with h_i + t_i ≥ noisy_i: |h − noisy| = h − noisy + 2·max(0, noisy − h).
        slack = np.arange(len(self.above))
        row = np.concatenate([row, rows + slack, rows + slack])
        column = np.concatenate([column, self.above, self.n + self.aux + slack])
        value = np.concatenate([value, np.full(2 * len(slack), -1.0)])
        total = rows + len(slack)
        self.matrix = scipy.sparse.csr_array(scipy.sparse.coo_array((value, (row, column)), shape=(total, self.width)))
        self.upper = np.concatenate([np.zeros(rows), -flat[self.above].astype(np.float64)])
        self.cost = np.concatenate([np.ones(self.n), np.zeros(self.aux), np.full(len(slack), 2.0)])

    def _bounded(self, index: IntGrid) -> tuple[IntArray, IntArray, FloatArray, int]:
        """Every odd component ≤ its two neighbours across: C1 and C2."""
        small, large = [], []
        for grid in (index, index.T):
            for side in (grid[:-1:2], grid[2::2]):
                small.append(grid[1::2].ravel())
                large.append(side.ravel())
        lesser, greater = np.concatenate(small), np.concatenate(large)
        row = np.arange(len(lesser))
        ones = np.ones(len(lesser))
        return np.tile(row, 2), np.concatenate([lesser, greater]), np.concatenate([ones, -ones]), len(lesser)

    def _runs(self, side: IntGrid, line: IntGrid) -> tuple[IntArray, IntArray, FloatArray, int]:
        """m_j ≤ a_j and m_j ≤ a_j + m_{j−1} − b_{j−1} with one m_j ≥ 0 per cell."""
        lines, cells = side.shape[0], side[:, ::2].shape[1]
        m = self.n + self.aux + np.arange(lines * cells, dtype=np.int64).reshape(lines, cells)
        self.aux += m.size
        face, edge, across, vertex = side[:, ::2], line[:, ::2], side[:, 1::2], line[:, 1::2]
        first = [(m, 1.0), (face, -1.0), (edge, 1.0)]
        later = [(m[:, 1:], 1.0), (face[:, 1:], -1.0), (edge[:, 1:], 1.0)]
        later += [(m[:, :-1], -1.0), (across, 1.0), (vertex, -1.0)]
        rows, columns, values, at = [], [], [], 0
        for terms in (first, later):
            n = terms[0][0].size
            for variable, sign in terms:
                rows.append(at + np.arange(n))
                columns.append(variable.ravel())
                values.append(np.full(n, sign))
            at += n
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(values), at

    def solve(self) -> IntGrid | None:
        """An integral solution: the relaxation's, else the best rounding of it that is feasible, else None."""
        relaxed = self.relaxed()
        if relaxed is None:
            return None
        whole = np.rint(relaxed)
        if np.abs(relaxed - whole).max(initial=0.0) > INTEGRAL_WITHIN:
            rounded = self.rounding_of(relaxed)
            if rounded is None:
                return None
            whole = np.rint(rounded)
        return whole.astype(np.int64).reshape(self.noisy.shape)

    def relaxed(self) -> FloatArray | None:
        """A vertex of the relaxation, shape (n,)."""

        # Dual simplex: interior points would stop between tied integral vertices.
        vertex = scipy.optimize.linprog(self.cost, self.matrix, self.upper, bounds=(0, None), method="highs-ds")
        return self._components(vertex.x)

    def rounding_of(self, relaxed: FloatArray) -> FloatArray | None:
        """The best feasible choice of every fractional component's floor or ceiling."""

        whole = np.rint(relaxed)
        fractional = np.abs(relaxed - whole) > INTEGRAL_WITHIN
        low, high, integral = np.zeros(self.width), np.full(self.width, np.inf), np.zeros(self.width)
        low[: self.n] = np.where(fractional, np.floor(relaxed), whole)
        high[: self.n] = np.where(fractional, np.ceil(relaxed), whole)
        integral[: self.n] = fractional
        result = scipy.optimize.milp(
            self.cost,
            constraints=scipy.optimize.LinearConstraint(self.matrix, -np.inf, self.upper),
            bounds=scipy.optimize.Bounds(low, high),
            integrality=integral,
            options={"time_limit": ROUNDING_SECONDS},
        )
        return self._components(result.x)

    def _components(self, solution: FloatArray | None) -> FloatArray | None:
        return None if solution is None else solution[: self.n]
