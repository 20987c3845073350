"""Inference for noisy Euler histograms: counts that regions could have left, nearest in L1 or in the largest deviation.

Constraints on the components F (faces), E (edges), V (vertices): every one ≥ 0; C1, an edge ≤ its two faces; C2, a
vertex ≤ its four edges; covertness: along every grid line and on either side of it, with a_j = F_j − Eline_j and b_j =
Eacross_j − V_j, every run satisfies Σa − Σb ≥ 0, so that a rectangle's answer never falls when it grows.
Post-processing only: no privacy depends on it. "truncated" sets counts below 0 to 0 and nothing else, as Algorithm 2 of
the source begins. "ordered" has C1 and C2, and no ≥ 0: counts that may be negative can cancel others, so wide answers
are not raised as much. Source: [B], section 5, corrected: its C3 is violated by true data, and C1, C2 alone leave F = E
= 1, V = 0 answering −3 on 3 × 3 cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcore.spatial._euler_program import Program, sides, signs
from dpcore.spatial.domain import IntGrid

Grade = Literal["noisy", "ordered", "truncated", "consistent", "covert"]
"""What the counts satisfy: nothing; C1 and C2; none is below 0; both; both and covertness."""
Inference = Literal["none", "ordered", "truncated", "max-norm", "consistent", "covert"]
"""What counts are inferred to be: nothing, so that answers stay unbiased; or a :data:`Grade`, nearest in L1 unless
"max-norm"."""


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
        (_least_runs(a, b) >= 0).all() for a, b in map(_run_terms, sides(components))
    )


def _run_terms(pair: tuple[IntGrid, IntGrid]) -> tuple[IntGrid, IntGrid]:
    side, line = pair
    return side[:, ::2] - line[:, ::2], side[:, 1::2] - line[:, 1::2]


def _least_runs(a: IntGrid, b: IntGrid) -> IntGrid:
    """Least Σa − Σb over the runs that end at each cell: M_j = a_j + min(0, M_{j−1} − b_{j−1})."""
    least = a.copy()
    for j in range(1, a.shape[1]):
        least[:, j] += np.minimum(0, least[:, j - 1] - b[:, j - 1])
    return least
