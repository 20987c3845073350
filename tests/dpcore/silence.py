"""Noise that is always zero: shows the statistic a mechanism would add noise to."""

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
