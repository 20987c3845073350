"""Noise that is always zero: shows the statistic a mechanism would add noise to, and the scales that it asks for."""

from fractions import Fraction
from typing import Any

import numpy as np

from dpcore.noise import Noise


class Silence(Noise):
    """Discrete Laplace draws are 0; private selections stay random. For tests only: nothing drawn with it may be
    released.
    """

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        if size is not None:
            return np.zeros(size, dtype=np.int64)
        return np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)), dtype=np.int64)


class Asked(Silence):
    """Silence that keeps 1/b of every draw that is asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[Fraction] = []

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        drawn = super().discrete_laplace(numerator, denominator, size)
        scales = (np.broadcast_to(part, drawn.shape).ravel().tolist() for part in (numerator, denominator))
        self.rates += [Fraction(s, t) for t, s in zip(*scales, strict=True)]
        return drawn
