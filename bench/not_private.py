"""NOT PRIVATE: what E2EPriv would reach if choosing a grid size cost nothing. For evaluation on data one may see.

Both look at the data without paying, so nothing here has the interface of a mechanism: the result answers queries and
has no release. The service imports nothing from here, and :func:`dpcore.spatial.release.rounded` refuses it. Source:
[E].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid, cuts
from dpcore.spatial.e2epriv import E2EPriv
from dpcore.spatial.grids import noisy_grid
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import Rectangles, answer


@dataclass(frozen=True)
class Unreleasable:
    """Answers of a grid whose ``size`` was read off the data."""

    size: int
    answers: Callable[[Rectangles], FloatArray]
    """Estimated counts of rectangles, shape (Q,)."""


def leaky(mechanism: E2EPriv, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise) -> Unreleasable:
    """Leaky: every size is drawn with the whole budget, then the one is kept whose tuning queries came out best.

    The draws are private one by one; that they are compared with the true data is what leaks.
    """
    truth = answer(image_of(counts), mechanism.queries)
    drawn = [
        Unreleasable(size, noisy_grid(counts, domain, epsilon_micro, noise, 1, size).answers)
        for size in mechanism.sizes
    ]
    errors = [np.abs(grid.answers(mechanism.queries) - truth) / np.maximum(truth, mechanism.rho) for grid in drawn]
    return drawn[int(np.argmin([error.mean() for error in errors]))]


def best_non_private(mechanism: E2EPriv, counts: IntGrid, domain: Domain) -> Unreleasable:
    """BestNonPriv: the largest size without any noise; what is left of its error is unevenness inside blocks."""
    size = max(mechanism.sizes)
    x_edges, y_edges = cuts(domain.rows, size), cuts(domain.columns, size)
    image = image_of(counts)[np.ix_(x_edges, y_edges)]
    return Unreleasable(size, lambda rectangles: answer(image, rectangles.in_blocks(x_edges, y_edges)))
