"""NOT PRIVATE: what E2EPriv would reach if choosing a grid size cost nothing. For evaluation on data one may see.

Both look at the data without paying, so nothing here has the interface of a mechanism: the result answers queries and has
no release. The service imports nothing from here, and :func:`dpcore.spatial.release.rounded` refuses it. Source: [E].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, FloatArray, IntGrid
from dpcore.spatial.e2epriv import E2EPriv
from dpcore.spatial.grids import noisy_grid
from dpcore.spatial.histogram import GridHistogram
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
    return Unreleasable(size, noisy_grid(counts, domain, epsilon_micro, noise, 1, size))
