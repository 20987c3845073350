"""Inference for noisy Euler histograms: counts that regions could have left, nearest in L1 or in the largest deviation.

Constraints on the components F (faces), E (edges), V (vertices): every one ≥ 0; C1, an edge ≤ its two faces; C2, a
vertex ≤ its four edges; covertness: along every grid line and on either side of it, with a_j = F_j − Eline_j and b_j =
Eacross_j − V_j, every run satisfies Σa − Σb ≥ 0, so that a rectangle's answer never falls when it grows.
Post-processing only: no privacy depends on it. "truncated" sets counts below 0 to 0 and nothing else, as Algorithm 2 of
the source begins. "ordered" has C1 and C2, and no ≥ 0: counts that may be negative can cancel others, so wide answers
are not raised as much. Source: [B], section 5, corrected: its C3 is violated by true data, and C1, C2 alone leave F = E
= 1, V = 0 answering −3 on 3 × 3 cells.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from dpcore.arrays import FloatArray, IntArray
from dpcore.spatial.domain import IntGrid

Grade = Literal["noisy", "ordered", "truncated", "consistent", "covert"]
"""What the counts satisfy: nothing; C1 and C2; none is below 0; both; both and covertness."""
Inference = Literal["none", "ordered", "truncated", "max-norm", "consistent", "covert"]
"""What is inferred: nothing, so that answers stay unbiased; or a :data:`Grade`, nearest in L1 unless "max-norm"."""


@dataclass(frozen=True)
class Inferred:
    """Integer ``components`` and what holds of them; ``distance`` is Σ|components − noisy|."""

    components: IntGrid
    grade: Grade
    distance: int


def infer(noisy: IntGrid, inference: Inference = "covert") -> Inferred:
    """A covert, or merely a consistent, integer array nearest to ``noisy`` in L1; merely C1 and C2 if no covert one is
    found. "truncated" and "max-norm" need no program.

    The relaxation is mostly integral, but not always: the covertness constraints have half-integral vertices. Where a
    few components come out as halves, an integer program over them alone rounds each up or down; at 40 × 40 cells that
    adds at most a few units to a distance of some 200 000.

    The whole is overestimated by far where most components are empty, because counts that are raised to 0 cannot cancel
    others. A total as a further constraint would mend that, but it breaks the structure of the program: on 24 × 24
    cells no whole numbers are found, and on 32 × 32 the program takes 14 times as long.
    """
    if inference == "none":
        return Inferred(noisy, "noisy", 0)
    if inference == "truncated":
        return Inferred(truncated(noisy), "truncated", int(np.maximum(-noisy, 0).sum()))
    if inference == "ordered":
        # C1 and C2 compare counts, so they hold of shifted ones alike; above the least draw, ≥ 0 binds nothing.
        least = int(noisy.min())
        raised = Program(noisy - least, covert=False).solve()
        if raised is None or not is_consistent(raised):
            return Inferred(noisy, "noisy", 0)
        return Inferred(raised + least, "ordered", int(np.abs(raised + least - noisy).sum()))
    if inference == "max-norm":
        nearest = nearest_in_max_norm(noisy)
        return Inferred(nearest, "consistent", int(np.abs(nearest - noisy).sum()))
    solution = Program(noisy, covert=True).solve() if inference == "covert" else None
    if solution is not None and is_covert(solution):
        return Inferred(solution, "covert", int(np.abs(solution - noisy).sum()))
    # C1 and C2 are difference constraints: totally unimodular, so every vertex of the relaxation is integral.
    solution = Program(noisy, covert=False).solve()
    if solution is None or not is_consistent(solution):
        return Inferred(noisy, "noisy", 0)
    return Inferred(solution, "consistent", int(np.abs(solution - noisy).sum()))


def truncated(noisy: IntGrid) -> IntGrid:
    """``noisy`` with counts below 0 set to 0, as Algorithm 2 of the source begins."""
    return np.asarray(np.maximum(noisy, 0), dtype=np.int64)


def nearest_in_max_norm(noisy: IntGrid) -> IntGrid:
    """The integer array with C1, C2 and ≥ 0 whose largest deviation from ``noisy`` is least: the L∞ program of the
    source.

    C1 and C2 order the components: a vertex is not above the edges that end there, an edge not above its faces. Halfway
    between the largest count below a component in this order and the smallest above it, none deviates by more than half
    of the largest contradiction, which no array can better; counts below 0 have to rise to 0 in any. So no program has
    to be solved.
    """
    below, above = noisy.copy(), noisy.copy()
    for axis in (0, 1):
        least, most = np.moveaxis(above, axis, 0), np.moveaxis(below, axis, 0)
        least[1::2] = np.minimum(least[1::2], np.minimum(least[:-1:2], least[2::2]))
        np.maximum(most[:-1:2], most[1::2], out=most[:-1:2])
        np.maximum(most[2::2], most[1::2], out=most[2::2])
    return np.asarray(np.maximum((below + above) // 2, 0), dtype=np.int64)


def whole_of(components: IntGrid) -> int:
    """The answer for the whole grid."""
    return int((signs(components.shape) * components).sum())


def is_consistent(components: IntGrid) -> bool:
    """Whether C1, C2 and ≥ 0 hold exactly."""
    h = components
    return bool(
        (h >= 0).all() and all((across[1::2] <= np.minimum(across[:-1:2], across[2::2])).all() for across in (h, h.T))
    )


def is_covert(components: IntGrid) -> bool:
    """Whether every rectangle of cells has an answer ≥ 0 that never falls when the rectangle grows, and C1, C2 hold."""
    return is_consistent(components) and all(
        (_least_runs(side[:, ::2] - line[:, ::2], side[:, 1::2] - line[:, 1::2]) >= 0).all()
        for side, line in sides(components)
    )


def _least_runs(a: IntGrid, b: IntGrid) -> IntGrid:
    """Least Σa − Σb over the runs that end at each cell: M_j = a_j + min(0, M_{j−1} − b_{j−1})."""
    least = a.copy()
    for j in range(1, a.shape[1]):
        least[:, j] += np.minimum(0, least[:, j - 1] - b[:, j - 1])
    return least


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
            blocks += [self._runs(side, line) for side, line in sides(index)]
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
        greater, lesser = (np.concatenate([part.ravel() for part in each]) for each in zip(*sides(index), strict=True))
        row, ones = np.arange(len(lesser)), np.ones(len(lesser))
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
