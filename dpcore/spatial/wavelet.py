"""Privlet: noise on the 2-D Haar coefficients. Relation "participation", s points per user.

To be proved: the draw is ε-DP. Proof: one point changes :meth:`Privlet.sensitivity` coefficients, each by exactly 1, so
the coefficients change by s times that in L1, and have noise of that scale over ε. Tested:
tests/dpcore/spatial/test_mechanisms.py (by brute force), tests/audit/test_spatial_audit.py. Source: Xiao, Wang and
Gehrke, "Differential Privacy via Wavelet Transforms" (2011), as [H]'s baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.histogram import GridHistogram
from dpcore.spatial.mechanism import SpatialMechanism, laplace_variance, noisy_counts


@dataclass(frozen=True)
class Privlet(SpatialMechanism):
    """Integer Haar transform along both axes; one point moves (1+log₂ rows)(1+log₂ columns) coefficients by 1.

    Coefficients are unscaled sums and differences of halves, so Privlet's weighted noise becomes one scale for all and
    its generalised sensitivity the L1 sensitivity. Axes are padded with zeros to powers of two.
    """

    @staticmethod
    def sensitivity(domain: Domain) -> int:
        """Coefficients that one point changes, each by exactly 1."""
        rows, columns = ((cells - 1).bit_length() for cells in domain.shape)
        return (1 + rows) * (1 + columns)

    def draw(
        self, counts: IntGrid, domain: Domain, epsilon_micro: int, noise: Noise, points_per_user: int
    ) -> GridHistogram:
        """Histogram of all cells at ``epsilon_micro`` µε."""
        coefficients = haar(counts)
        scale = self.sensitivity(domain) * points_per_user
        cells = inverse_haar(noisy_counts(coefficients, epsilon_micro, scale, noise).astype(np.float64))
        share = 1.0
        for size in coefficients.shape:
            levels = size.bit_length() - 1
            share *= 4.0**-levels + sum(4.0**-k for k in range(1, levels + 1))
        variance = laplace_variance(epsilon_micro, scale) * share
        edges = np.arange(domain.rows + 1), np.arange(domain.columns + 1)
        return GridHistogram(domain, *edges, cells[: domain.rows, : domain.columns], variance, "haar")


def haar(counts: IntGrid) -> IntGrid:
    """Sums and differences of halves along both axes, padded to powers of two; entry [0, 0] is the total."""
    padded = np.zeros([1 << (size - 1).bit_length() for size in counts.shape], dtype=np.int64)
    padded[: counts.shape[0], : counts.shape[1]] = counts
    for _ in range(2):
        size = padded.shape[0]
        while size > 1:
            even, odd = padded[:size:2].copy(), padded[1:size:2].copy()
            padded[: size // 2], padded[size // 2 : size] = even + odd, even - odd
            size //= 2
        padded = np.ascontiguousarray(padded.T)
    return padded


def inverse_haar(coefficients: FloatArray) -> FloatArray:
    """Cells from :func:`haar`'s coefficients."""
    cells = coefficients.copy()
    for _ in range(2):
        size = 2
        while size <= cells.shape[0]:
            total, difference = cells[: size // 2].copy(), cells[size // 2 : size].copy()
            cells[:size:2], cells[1:size:2] = (total + difference) / 2, (total - difference) / 2
            size *= 2
        cells = np.ascontiguousarray(cells.T)
    return cells
