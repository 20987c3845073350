"""The earth as a sphere: one radius, and distances on it."""

import numpy as np

from dpcore.arrays import FloatArray

EARTH_M = 6_371_008.8
"""Mean radius in metres (IUGG)."""


def great_circle_m(lat: FloatArray, lng: FloatArray, to_lat: FloatArray, to_lng: FloatArray) -> FloatArray:
    """Distance in metres between points in degrees, shape (n,), on a sphere (haversine: exact for small distances)."""
    a, b = np.radians(lat), np.radians(to_lat)
    half = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(np.radians(to_lng - lng) / 2) ** 2
    return np.asarray(2 * EARTH_M * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0))))


def local_kilometres(latitude: FloatArray, longitude: FloatArray) -> FloatArray:
    """Degrees (C,) to plane coordinates in km, shape (C, 2), around the middle of the area (equirectangular)."""
    middle = np.cos(np.radians(np.mean(latitude)))
    return np.asarray(EARTH_M / 1000 * np.radians(np.column_stack([longitude * middle, latitude])))
