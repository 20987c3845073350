"""NOT PRIVATE: what E2EPriv would reach if choosing a grid size cost nothing. For evaluation on data one may see.

Both look at the data without paying, so nothing here has the interface of a mechanism: the result answers queries and has
no release. The service imports nothing from here, and :func:`dpcore.spatial.release.rounded` refuses it. Source: [E].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, FloatArray, IntGrid, block_sums, cuts
from dpcore.spatial.e2epriv import E2EPriv
from dpcore.spatial.histogram import GridHistogram
from dpcore.spatial.mechanism import laplace_variance, noisy_counts
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import Rectangles, answer


@dataclass(frozen=True)
class Unreleasable:
    """Answers of a grid whose ``size`` was read off the data."""

    size: int
    _histogram: GridHistogram

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Estimated counts, shape (Q,)."""
        return self._histogram.answers(rectangles)


def leaky(mechanism: E2EPriv, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise) -> Unreleasable:
    """Leaky: the size of least predicted cost on the data itself, then noise with the whole budget."""
    errors, _ = mechanism.errors(counts, domain, MICRO / epsilon_micro, int(counts.sum()))
    return _drawn(mechanism.sizes[int(np.argmin(errors))], counts, domain, epsilon_micro, noise)


def best_non_private(
    mechanism: E2EPriv, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise
) -> Unreleasable:
    """BestNonPriv: every size drawn with the whole budget, and the one kept whose tuning queries came out best."""
    image = image_of(counts)
    truth = answer(image, mechanism.queries)
    drawn = [_drawn(size, counts, domain, epsilon_micro, noise) for size in mechanism.sizes]
    found = [np.abs(d.answers(mechanism.queries) - truth) / np.maximum(truth, mechanism.rho) for d in drawn]
    return drawn[int(np.argmin([error.mean() for error in found]))]


def _drawn(size: int, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise) -> Unreleasable:
    x_edges, y_edges = cuts(domain.rows, size), cuts(domain.columns, size)
    noisy = noisy_counts(block_sums(counts, x_edges, y_edges), epsilon_micro, 1, noise).astype(np.float64)
    return Unreleasable(size, GridHistogram(domain, x_edges, y_edges, noisy, laplace_variance(epsilon_micro, 1)))
