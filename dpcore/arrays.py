"""Arrays by what they hold; the docstrings say their shapes."""

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IdArray = npt.NDArray[np.uint64]
"""Keyed hashes of users, or H3 indices of cells."""
IntArray = npt.NDArray[np.int64]
