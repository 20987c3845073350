"""Distances on the earth as a sphere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpcore.earth import EARTH_M

FloatArray = npt.NDArray[np.float64]


def great_circle_m(lat: FloatArray, lng: FloatArray, to_lat: FloatArray, to_lng: FloatArray) -> FloatArray:
    """Distance in metres between points in degrees, shape (n,), on a sphere (haversine: exact for small distances)."""
    a, b = np.radians(lat), np.radians(to_lat)
    half = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(to_lng - lng) / 2) ** 2
    return np.asarray(2 * EARTH_M * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0))))
