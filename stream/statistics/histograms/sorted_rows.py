"""What fixes and corners have in common: rows that are sorted by user and time, and positions in 1e-7 degree. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.arrays import FloatArray, IntArray

DEGREES = 1e-7
"""Unit of a row's lat and lng."""


def in_degrees(lat: IntArray, lng: IntArray) -> FloatArray:
    """(latitude, longitude) in degrees, shape (n, 2)."""
    return np.asarray(np.column_stack([lat, lng]) * DEGREES, dtype=np.float64)


def same_as_before(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether each of the sorted rows, (n,), repeats the row before in all ``columns``."""
    same = np.zeros(len(columns[0]), dtype=bool)
    same[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    return same
