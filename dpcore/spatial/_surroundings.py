"""How dense the ring around each box of a grid is."""

from __future__ import annotations

import numpy as np

from dpcore.spatial.domain import FloatArray
from dpcore.spatial.partition import IntArray
from dpcore.spatial.queries import integral_image


def density_image(shape: tuple[int, int], boxes: IntArray, density: FloatArray) -> FloatArray:
    """Integral image of the grid whose cells hold the ``density`` (P,) of the one of the disjoint ``boxes`` they lie in."""
    x0, x1, y0, y1 = boxes.T
    change = np.zeros((shape[0] + 1, shape[1] + 1))
    for x, y, sign in ((x0, y0, 1), (x1, y1, 1), (x0, y1, -1), (x1, y0, -1)):
        np.add.at(change, (x, y), sign * density)
    return np.asarray(integral_image(change.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]), dtype=np.float64)


def at_ring_density(image: FloatArray, boxes: IntArray, own: FloatArray) -> FloatArray:
    """Count of each box at the density of the ring around it, (P,): one box height and width on every side, within the grid.
    ``own``: (P,), what the box itself adds to the integral ``image``.
    """
    x0, x1, y0, y1 = boxes.T
    height, width = x1 - x0, y1 - y0
    area = height * width
    x0, x1 = np.maximum(x0 - height, 0), np.minimum(x1 + height, image.shape[0] - 1)
    y0, y1 = np.maximum(y0 - width, 0), np.minimum(y1 + width, image.shape[1] - 1)
    points = image[x1, y1] - image[x0, y1] - image[x1, y0] + image[x0, y0] - own
    ring = np.maximum((x1 - x0) * (y1 - y0) - area, 1)
    return np.asarray(np.maximum(points, 0.0) / ring * area, dtype=np.float64)
